"""`gpusight steps`: the steps one by one."""

from __future__ import annotations

from typing import Any

import pytest

import gpusight as gs
from gpusight.analysis.selection import Selection
from gpusight.analysis.steps.step_detection import detect_steps
from gpusight.analysis.steps.step_list import TraceSteps
from gpusight.analysis.steps.step_report import steps
from gpusight.results import Composite, NotApplicable, TableResult
from gpusight.trace.trace import Trace
from tests.analysis.steps.programs import made
from tests.shared import DATA, SHARED, needs_shared, opened
from tests.traces import build_trace

US = 1_000


def program(count: int = 3) -> Trace:
    """Steps of 100 us with two kernels each; those of the third overlap and end late."""
    ranges, calls, kernels = [], [], []
    for step in range(count):
        at = step * 120 * US
        ranges.append({"name": f"step_{step}", "start_ns": at, "end_ns": at + 100 * US})
        ranges.append({"name": "forward", "start_ns": at, "end_ns": at + 20 * US})
        ranges.append({"name": "backward", "start_ns": at + 20 * US, "end_ns": at + 40 * US})
        for n in (0, 1):
            key = {"correlation": step * 2 + n + 1}
            calls.append(
                {"start_ns": at + (1 + 20 * n) * US, "end_ns": at + (2 + 20 * n) * US, **key}
            )
            first, length = (10, 30) if step < 2 else (70, 50)
            start = at + (first + 40 * n) * US
            kernels.append({"start_ns": start, "end_ns": start + length * US, "name": "k", **key})
    return build_trace(ranges=ranges, api_calls=calls, kernels=kernels)


def table(result: object, section: int = 0) -> list[dict[str, Any]]:
    assert isinstance(result, Composite), result
    part = result.sections[section]
    assert isinstance(part, TableResult), part
    return part.rows()


def fact(result: object, key: str) -> Any:
    assert isinstance(result, Composite)
    return next(f.value for f in result.facts if f.key == key)


def test_each_step_has_its_time_and_what_the_gpu_did() -> None:
    rows = table(steps(program()))
    keys = ("number", "duration_ns", "took_ns", "gpu_busy_ns", "lag_ns", "kernels", "pause_ns")
    assert [[row[key] for key in keys] for row in rows] == [
        [0, 100 * US, 100 * US, 60 * US, 0, 2, 20 * US],
        [1, 100 * US, 120 * US, 60 * US, 0, 2, 20 * US],
        [2, 100 * US, 180 * US, 90 * US, 60 * US, 2, None],
    ]
    assert rows[0]["gpu_share"] == pytest.approx(0.6)
    assert rows[2]["gpu_share"] == pytest.approx(90 / 180)


def contiguous() -> Trace:
    bounds = [{"start_ns": n * 10, "end_ns": n * 10 + 10} for n in range(3)]
    return build_trace(ranges=[{"name": f"step_{n}", **b} for n, b in enumerate(bounds)])


@pytest.mark.parametrize(
    ("trace", "shown"),
    [
        (program(3), ["duration_ns", "lag_ns"]),
        (program(2), ["duration_ns"]),  # the GPU is never behind the host
        (contiguous(), []),
    ],
)
def test_the_time_on_the_host_is_shown_where_it_differs(trace: Trace, shown: list[str]) -> None:
    result = steps(trace)
    assert isinstance(result, Composite)
    by_step = result.sections[0]
    assert isinstance(by_step, TableResult)
    host = [f for f in by_step.fields if f.key in {"duration_ns", "lag_ns"}]
    assert [f.key for f in host if f.shown] == shown


def test_facts_describe_the_kept_steps() -> None:
    result = steps(program(), steps="0-1")
    assert (fact(result, "steps"), fact(result, "kept")) == (3, 2)
    assert [fact(result, f"{key}_ns") for key in ("median", "min", "max", "between")] == [
        110 * US,
        100 * US,
        120 * US,  # with the pause before it
        10 * US,
    ]
    assert fact(result, "gpu_share") == pytest.approx(6 / 11)  # of the window, with the gap
    assert fact(result, "step_ns") == pytest.approx(fact(result, "window_ns") / 2)
    assert [row["remark"] for row in table(result)] == [None, None, "excluded"]


def test_a_step_out_of_the_ordinary_is_marked() -> None:
    ranges = [
        {"name": f"step_{n}", "start_ns": n * 1000, "end_ns": n * 1000 + (900 if n == 4 else 300)}
        for n in range(6)
    ]
    rows = table(steps(build_trace(ranges=ranges)))
    assert [row["outlier"] for row in rows] == [False] * 4 + [True, False]
    assert rows[4]["remark"] == "slow"


def test_a_first_step_that_fills_the_pipeline_is_not_slow() -> None:
    """The GPU is one step behind the host: only the first step has nothing to overlap with."""
    ranges, kernels, calls = [], [], []
    for n in range(6):
        at = n * 1000
        ranges.append({"name": f"step_{n}", "start_ns": at, "end_ns": at + 1000})
        calls.append(
            {"name": "cudaLaunchKernel", "start_ns": at, "end_ns": at + 10, "correlation": n}
        )
        kernels.append({"name": "k", "start_ns": at + 800, "end_ns": at + 1700, "correlation": n})
    rows = table(steps(build_trace(ranges=ranges, kernels=kernels, api_calls=calls), warmup=True))
    assert [row["took_ns"] for row in rows] == [1700, *[1000] * 5]
    assert [row["remark"] for row in rows] == ["pipeline fill", *[None] * 5]
    assert not any(row["outlier"] for row in rows)
    # A host that is slow in the first step is another matter.
    ranges[0]["start_ns"] = -1000
    rows = table(steps(build_trace(ranges=ranges, kernels=kernels, api_calls=calls), warmup=True))
    assert rows[0]["remark"] == "slow"


def test_a_long_pause_makes_the_step_after_it_slow() -> None:
    starts = [0, 1000, 2000, 3000, 9000, 10_000]
    ranges = [
        {"name": f"step_{n}", "start_ns": at, "end_ns": at + 900} for n, at in enumerate(starts)
    ]
    rows = table(steps(build_trace(ranges=ranges)))
    assert [row["remark"] for row in rows] == [None, None, None, None, "slow", None]
    assert [row["took_ns"] for row in rows] == [900, 1000, 1000, 1000, 6000, 1000]


def test_phases_add_up_to_the_gpu_work_of_the_kept_steps() -> None:
    rows = table(steps(program(), steps="0-1"), section=1)
    assert {row["phase"]: row["gpu_ns"] for row in rows} == {
        "forward": 60 * US,
        "backward": 60 * US,
    }
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert rows[0]["step_ns"] == 30 * US


def test_phases_of_a_range_hold_only_what_it_launched() -> None:
    rows = table(steps(program(), Selection(within="forward")), section=1)
    assert [row["phase"] for row in rows] == ["forward"]


def test_no_steps_is_said_with_the_remedy() -> None:
    result = steps(build_trace(kernels=[{"end_ns": 9, "name": "k"}]))
    assert isinstance(result, NotApplicable)
    assert "does not repeat" in result.reason
    assert "nvtx.range" in result.hint


def test_the_public_function_gives_the_same() -> None:
    page = gs.steps(DATA / "dataload.sqlite", steps="2-4")
    assert "step" in str(page).lower()


@needs_shared
def test_gpu_bound_steps_take_as_long_as_the_gpu() -> None:
    result = steps(opened(SHARED / "nsys" / "healthy.sqlite"))
    assert fact(result, "median_ns") == pytest.approx(2.21e6, rel=0.02)
    assert fact(result, "gpu_share") > 0.95


def test_the_inner_loop_is_shown_where_there_is_one() -> None:
    trace, _ = made("sampling_without_noise_at_the_end", 305)
    result = steps(trace)
    inner = detect_steps(trace).steps
    assert isinstance(inner, TraceSteps)
    assert inner.inner_loop is not None
    own = inner.inner_loop
    shown = [fact(result, key) for key in ("inner_count", "inner_gpu_ops", "inner_gpu_ns")]
    assert shown == [own.count, own.gpu_ops, own.gpu_ns]
    assert 6 <= own.count <= 14
    without = steps(program())
    assert isinstance(without, Composite)
    assert without.meta["inner_count"] is None
    assert not any(f.key.startswith("inner") for f in without.facts)
    assert type(fact(without, "between_ns")) is float  # a number of NumPy's is a text in JSON


@pytest.mark.parametrize("count", range(4))
@pytest.mark.parametrize("kind", ["kernels", "copies", "api_calls", "cpu_ops"])
def test_a_capture_of_few_activities_is_read(kind: str, count: int) -> None:
    """Its sequence is shorter than any period that is tried."""
    rows: list[Any] = [
        {"start_ns": n * US, "end_ns": n * US + 500, "name": "a"} for n in range(count)
    ]
    if kind == "copies":
        rows = [{**row, "bytes": 4} for row in rows]
        for row in rows:
            del row["name"]
    tables: dict[str, Any] = {kind: rows}
    result = steps(build_trace(**tables))
    if kind == "cpu_ops" and count == 3:
        assert fact(result, "steps") == 3  # three operators of one name, and no GPU work
        return
    assert isinstance(result, NotApplicable)
    assert ("--window" in result.hint) == (count >= 2 and kind in {"kernels", "copies"})


def test_a_window_without_a_whole_step_says_so() -> None:
    report = steps(program(), window=(110 * US, 100_000_000))
    assert isinstance(report, Composite)  # cut at the last activity; two steps are inside
    report = steps(program(), window=(0, 50 * US))
    assert isinstance(report, NotApplicable)
    assert report.reason == "the window contains no whole step"
    lone = build_trace(kernels=[{"start_ns": 5, "end_ns": 90, "name": "k"}])
    report = steps(lone, window=(0, 50))
    assert isinstance(report, NotApplicable)
    assert "does not repeat itself" in report.reason


def test_a_step_is_never_busier_than_it_is_long() -> None:
    """Two streams: work of a step runs beside that of the one before, which ends later."""
    ranges: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    kernels: list[dict[str, Any]] = []
    for n in range(4):
        at = n * 100 * US
        ranges.append({"name": f"step_{n}", "start_ns": at, "end_ns": at + 90 * US})
        for stream, length in ((1, 150), (2, 120)):
            key = {"correlation": len(calls) + 1}
            calls.append({"start_ns": at + stream * US, "end_ns": at + (stream + 1) * US, **key})
            busy = {"start_ns": at + 5 * US, "end_ns": at + (5 + length) * US}
            kernels.append({**busy, "name": "k", "stream": stream, **key})
    rows = table(steps(build_trace(ranges=ranges, api_calls=calls, kernels=kernels)))
    assert [row["gpu_share"] for row in rows] == pytest.approx([0.968, 1, 1, 1], abs=0.01)


def test_no_steps_comes_with_a_window_to_choose() -> None:
    busy = [{"start_ns": n * US, "end_ns": n * US + 900, "name": f"k{n}"} for n in range(20)]
    result = steps(build_trace(kernels=busy))
    assert isinstance(result, NotApplicable)
    assert "--window 0us-19us" in result.hint or "--window 0us-20us" in result.hint
