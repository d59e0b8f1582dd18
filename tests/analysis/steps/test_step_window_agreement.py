"""Every command covers the same time window, and names it, its step time and GPU busy alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import gpusight as gs
from gpusight.analysis.ledger.ledger_tables import ledger_page
from gpusight.analysis.profiler_correction import without_profiler
from gpusight.analysis.selection import EVERYTHING, ResolvedSelection, Selection, TimeWindow
from gpusight.analysis.steps.step_window import StepWindow, step_window, with_window
from gpusight.errors import GpusightError, NotApplicableError, UsageError
from tests.analysis.steps.test_step_window import MS, program
from tests.shared import DATA, name, opened
from tests.traces import build_trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpusight.render.result_view import Result
    from gpusight.results import Composite
    from gpusight.trace.trace import Trace

TIMELINES = [
    *sorted(DATA.glob("*.sqlite")),
    *sorted(DATA.glob("*.nsys-rep")),
    *sorted(DATA.glob("*.json.gz")),
    *sorted(DATA.glob("*.xplane.pb")),
]
LISTINGS: tuple[Callable[..., Result], ...] = (
    gs.summary, gs.kernels, gs.ops, gs.launches, gs.ranges, gs.api_calls, gs.copies, gs.memory,
    gs.flops, gs.occupancy,
)  # fmt: skip
MICROSECOND = 1_000


def facts(page: Composite) -> dict[str, Any]:
    return {fact.key: fact.value for fact in page.facts}


def window_of(trace: Trace) -> StepWindow:
    window = step_window(trace)
    assert isinstance(window, StepWindow)
    return window


@pytest.mark.parametrize("path", TIMELINES, ids=name)
def test_commands_agree_on_the_window(path: Path) -> None:
    trace = without_profiler(opened(path))
    window = window_of(trace)
    ledger = facts(ledger_page(gs.ledger(trace).answer))
    utilization = gs.utilization(trace, bins=5).answer
    summary = gs.summary(trace).answer
    timeline = gs.timeline(trace).answer
    diagnosis = gs.diagnose(trace, rules=["launch-bound"]).timeline
    assert diagnosis is not None

    pages = [utilization, summary, timeline]
    assert {page.window for page in pages} == {window.text}
    known = [ledger, facts(utilization), facts(summary)]
    if not window.steps:
        with pytest.raises(NotApplicableError):
            gs.steps(trace)
        assert "no steps found" in window.text
    else:
        steps = facts(gs.steps(trace).answer)
        known.append({**steps, "busy_share": steps["gpu_share"]})
        times = [steps, ledger, facts(utilization), facts(timeline)]
        assert {page["step_ns"] for page in times} == {window.step_ns}
        assert steps["min_ns"] <= window.step_ns <= steps["max_ns"]
        assert diagnosis.step_ns == window.step_ns
        assert diagnosis.steps == steps["kept"] == facts(utilization)["steps"] == len(window.steps)
    assert diagnosis.focus.text == window.text
    assert {page["window_ns"] for page in known} == {window.length_ns}
    busy = [page.get("busy_share", page.get("gpu_busy_share")) for page in known]
    shares = [device.busy_share for device in diagnosis.ledger.devices]
    busy.append(sum(shares) / len(shares))
    assert busy == [pytest.approx(busy[0])] * len(busy)
    assert busy[0] <= 1


@pytest.mark.parametrize("path", TIMELINES, ids=name)
def test_listings_name_the_window_in_their_headline(path: Path) -> None:
    trace = without_profiler(opened(path))
    text = window_of(trace).text
    for command in LISTINGS:
        try:
            result = command(trace)
        except NotApplicableError:
            continue
        assert result.answer.window == text, command.__name__
        assert result.to_dict()["meta"]["window"] == text
        assert text in " ".join(result.to_text().split())


@pytest.mark.parametrize("path", TIMELINES, ids=name)
def test_kernels_of_the_window_are_those_of_its_steps(path: Path) -> None:
    trace = without_profiler(opened(path))
    window = window_of(trace)
    if not window.steps or not trace.has("kernels"):
        pytest.skip("no kernels of steps")
    table = gs.steps(trace)["steps"].frame
    launched = int(table.filter("kept")["kernels"].sum())
    processes = trace.table("kernels", ["process"])["process"].n_unique()
    kernels = gs.kernels(trace)
    if processes == 1:
        assert kernels.meta["kernels"] >= launched  # and those launched between two steps
    whole = gs.kernels(trace, window=(None, None))
    assert whole.answer.window.startswith("whole capture, ")
    assert whole.meta["kernels"] == trace.table("kernels", ["start_ns"]).height


def warm_up() -> Trace:
    """Two steps of warm-up, then four of 1 ms, 0.1 ms apart, two kernels each."""
    return program([9, 5, 1, 1, 1, 1])


def test_warm_up_is_left_out_unless_it_is_included() -> None:
    trace = warm_up()
    assert gs.kernels(trace).meta["kernels"] == 8
    assert gs.kernels(trace).answer.window == "4 steps of 1.07 ms (2 warm-up steps excluded)"
    assert gs.kernels(trace, warmup=True).meta["kernels"] == 12
    assert gs.kernels(trace, warmup=True).answer.window == "6 steps of 3.08 ms"
    assert gs.kernels(trace, steps="3-4").meta["kernels"] == 4
    assert gs.kernels(trace, steps="3-4").answer.window == "2 steps of 1.05 ms"
    everything = gs.kernels(trace, window=(None, None))
    assert everything.meta["kernels"] == 12
    assert everything.answer.window == "whole capture, 18.5 ms, 6 steps"


def test_a_window_of_time_holds_what_starts_in_it() -> None:
    result = gs.kernels(warm_up(), window=(0, 9 * MS))
    assert (result.meta["kernels"], result.answer.window) == (2, "window of 9.00 ms, 1 step")


def test_a_range_covers_its_occurrences_after_the_warm_up_unless_steps_are_chosen() -> None:
    trace = warm_up()
    result = gs.kernels(trace, within="step_*")
    named = "in ranges 'step_*' (2 in warm-up excluded)"
    assert (result.meta["kernels"], result.answer.window) == (8, named)
    everything = gs.kernels(trace, within="step_*", warmup=True)
    assert (everything.meta["kernels"], everything.answer.window) == (12, "in ranges 'step_*'")
    early = gs.kernels(trace, within="step_1")
    assert (early.meta["kernels"], early.answer.window) == (2, "in ranges 'step_1', all in warm-up")
    late = gs.kernels(trace, within="step_4")
    assert (late.meta["kernels"], late.answer.window) == (2, "in ranges 'step_4'")
    window = step_window(trace, Selection(within="step_*"))
    assert isinstance(window, StepWindow)
    assert (window.start_ns, len(window.steps)) == (window_of(trace).start_ns, 4)
    assert window.notes[-1].startswith("2 occurrences of the range in warm-up are excluded")
    assert gs.kernels(trace, within="step_*", steps="4").meta["kernels"] == 2


def test_host_events_of_the_window_start_in_its_steps() -> None:
    trace = warm_up()
    assert gs.ranges(trace).frame["name"].to_list() == [f"step_{n}" for n in range(2, 6)]
    assert gs.api_calls(trace).meta["calls"] == 8


def test_gpu_work_launched_before_the_window_keeps_the_gpu_busy() -> None:
    """A kernel of the warm-up runs into the first step, which launches one after it."""
    kernels = [
        {"start_ns": 10 * MICROSECOND, "end_ns": 60 * MICROSECOND, "correlation": 1},
        {"start_ns": 60 * MICROSECOND, "end_ns": 80 * MICROSECOND, "correlation": 2},
    ]
    calls = [
        {"start_ns": at * MICROSECOND, "end_ns": (at + 1) * MICROSECOND, "correlation": number}
        for number, at in ((1, 5), (2, 45))
    ]
    trace = build_trace(kernels=[{**k, "name": "k"} for k in kernels], api_calls=calls)
    host = (40 * MICROSECOND, 50 * MICROSECOND)
    time = TimeWindow(40 * MICROSECOND, 80 * MICROSECOND, *host)
    scope = ResolvedSelection(trace, Selection(time=time))
    assert scope.gpu("kernels", ["correlation"])["correlation"].to_list() == [2]
    assert scope.window.length_ns == 40 * MICROSECOND
    from gpusight.analysis.gpu_time import busy_share

    assert busy_share(trace, Selection(time=time)) == 1.0


def test_a_capture_without_steps_is_covered_whole() -> None:
    trace = build_trace(kernels=[{"start_ns": 0, "end_ns": MS, "name": "k"}])
    assert with_window(trace) == (EVERYTHING, "whole capture, 1.00 ms, no steps found")
    with pytest.raises(GpusightError):
        gs.kernels(trace, steps="1")
    with pytest.raises(UsageError):
        gs.kernels(trace, steps="1", window=(0, None))


def test_without_steps_every_command_leaves_out_the_start_of_the_program() -> None:
    calls = [{"start_ns": 0, "end_ns": 6 * MS, "name": "cuModuleLoadData"}]
    calls += [
        {
            "start_ns": at * MS,
            "end_ns": at * MS + 5_000,
            "name": "cudaLaunchKernel",
            "correlation": at,
        }
        for at in (7, 9)
    ]
    kernels = [
        {"start_ns": at * MS + 9_000, "end_ns": at * MS + MS, "name": f"k{at}", "correlation": at}
        for at in (7, 9)
    ]
    trace = build_trace(kernels=kernels, api_calls=calls, devices=[{"device": 0}])
    text = "3.00 ms, no steps found (program start excluded: 7.00 ms)"
    assert gs.summary(trace).answer.window == gs.kernels(trace).answer.window == text
    assert gs.diagnose(trace).timeline.focus.text == text  # type: ignore[union-attr]
    assert gs.api_calls(trace).frame["name"].to_list() == ["cudaLaunchKernel"]
    whole = gs.api_calls(trace, warmup=True)
    assert whole.answer.window == "whole capture, 10.0 ms, no steps found"
    assert whole.frame["name"].to_list() == ["cuModuleLoadData", "cudaLaunchKernel"]
