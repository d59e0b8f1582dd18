"""From a capture to its digest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from gpusight.analysis.capture_summary import summary
from gpusight.analysis.ledger.accounting import Accounting
from gpusight.analysis.profiler_correction import without_profiler
from gpusight.analysis.selection import EVERYTHING, Selection
from gpusight.analysis.steps.step_window import step_window, with_window
from gpusight.comparison.baseline_file import fault
from gpusight.comparison.build_digest import make_digest, scope_of
from gpusight.comparison.digest import MAX_BLOCKS, Digest, rounded_parts
from gpusight.comparison.digest_rows import MAX_KERNELS, MAX_NAME_CHARS
from gpusight.errors import GpusightError
from gpusight.pace import Pace
from gpusight.results import NotApplicable
from gpusight.rules.context import busiest_process
from tests.profiled_loops import profiled_loop, step_ns
from tests.shared import (
    DATA,
    EVERY_REPORT,
    EVERY_SQLITE,
    EVERY_TORCH_TRACE,
    SHARED,
    name,
    needs_shared,
    opened,
)
from tests.traces import build_trace

if TYPE_CHECKING:
    from pathlib import Path

    from gpusight.trace.trace import Trace


_SMALL = 1_500_000
EVERY_SMALL = [
    path
    for path in (*EVERY_SQLITE, *EVERY_REPORT, *EVERY_TORCH_TRACE)
    if path.stat().st_size < _SMALL
]


def digest_of(trace: Trace, *args: Any, **options: Any) -> Digest:
    made = make_digest(trace, *args, **options)
    assert isinstance(made, Digest), made
    return made


def mean(digest: Digest, series: tuple[float, ...]) -> float:
    return float(np.average(series, weights=digest.blocks))


def loop(steps: int, *, period: int = 1_000, device: int = 0, **extra: Any) -> dict[str, Any]:
    """Steps of 900 ns and 100 ns of pause: a gemm of 300 ns in `fwd_N`, a relu of 100 ns."""
    rows: dict[str, Any] = {"ranges": [], "api_calls": [], "kernels": []}
    for step in range(steps):
        at = step * period
        rows["ranges"] += [
            {"start_ns": at, "end_ns": at + 900, "name": f"step_{step}"},
            {"start_ns": at + 50, "end_ns": at + 150, "name": f"fwd_{step}"},
        ]
        for number, (begins, kernel, starts, takes) in enumerate(
            ((100, "gemm", 200, 300), (200, "relu", 600, 100))
        ):
            key = 10 * step + number + 1
            rows["api_calls"].append(
                {"start_ns": at + begins, "end_ns": at + begins + 20, "correlation": key}
            )
            rows["kernels"].append(
                {
                    "start_ns": at + starts,
                    "end_ns": at + starts + takes,
                    "name": kernel,
                    "correlation": key,
                    "device": device,
                }
            )
    return {**rows, **extra}


# Steps --------------------------------------------------------------------------------------------


def test_a_loop_is_summed_up_step_by_step() -> None:
    digest = digest_of(build_trace({"path": "/a/b/run.sqlite"}, **loop(4)))
    assert (digest.label, digest.steps, digest.blocks) == ("run.sqlite", 4, (1, 1, 1, 1))
    # The window holds four steps of 900 ns and three pauses of 100 ns.
    assert digest.step_ns == (975.0,) * 4
    assert digest.between_ns == (75.0,) * 4
    # Shortest and longest are durations, as in `steps`: with the pause before, if there is one.
    assert (digest.median_ns, digest.min_ns, digest.max_ns) == (1_000.0, 900.0, 1_000.0)
    assert digest.stddev_ns == 50.0
    assert digest.kernel_ns == (400.0,) * 4
    rows = [(row.name, row.range, row.ns[0], row.calls[0]) for row in digest.kernels]
    assert rows == [("gemm", "fwd_#", 300.0, 1.0), ("relu", "step_#", 100.0, 1.0)]
    assert digest.order == (0, 1)
    ranges = {row.name: (row.calls[0], row.host_ns[0], row.gpu_ns) for row in digest.ranges}
    assert ranges == {"step_#": (1.0, 900.0, (400.0,) * 4), "fwd_#": (1.0, 100.0, (300.0,) * 4)}
    assert [(row.name, row.calls[0], row.host_ns[0]) for row in digest.api] == [
        ("cudaLaunchKernel", 2.0, 40.0)
    ]
    assert sum(series[0] for series in digest.ledger.values()) == 975.0


def test_work_that_the_host_runs_ahead_of_counts_where_it_was_launched() -> None:
    # The GPU takes 1,500 ns for what the host launches in 1,000: steps are as long as that.
    rows = loop(4)
    rows["kernels"] = [
        {
            "start_ns": 1_500 * step + 100,
            "end_ns": 1_500 * step + 1_600,
            "name": "gemm",
            "correlation": 10 * step + 1,
        }
        for step in range(4)
    ]
    digest = digest_of(build_trace(**rows))
    assert digest.step_ns == (1_600.0, 1_500.0, 1_500.0, 1_500.0)
    assert digest.kernel_ns == (1_500.0,) * 4
    assert digest.between_ns == (0.0,) * 4


def test_many_steps_are_joined_to_even_blocks() -> None:
    digest = digest_of(build_trace(**loop(120)))
    assert digest.steps == 120
    assert (len(digest.blocks), sum(digest.blocks)) == (MAX_BLOCKS, 120)
    assert max(digest.blocks) - min(digest.blocks) == 1
    assert mean(digest, digest.kernel_ns) == pytest.approx(400.0)


def test_without_steps_the_window_stands_for_one() -> None:
    rows = loop(1)
    rows["ranges"] = [{"start_ns": 0, "end_ns": 900, "name": "everything"}]
    digest = digest_of(build_trace(**rows))
    assert (digest.steps, digest.blocks) == (0, (1,))
    assert "steps" in digest.missing
    assert digest.kernel_ns == (400.0,)
    assert sum(series[0] for series in digest.ledger.values()) == digest.step_ns[0]


def test_steps_and_windows_can_be_chosen() -> None:
    trace = build_trace(**loop(6))
    assert digest_of(trace, steps="2-3").steps == 2
    assert digest_of(trace, window=(1_000, 4_000)).steps == 3


def test_one_step_has_no_time_between_steps() -> None:
    digest = digest_of(build_trace(**loop(4)), steps="1")
    assert (digest.step_ns, digest.between_ns) == ((900.0,), (0.0,))


def test_what_warm_up_left_over_is_no_time_of_the_steps() -> None:
    # As in `diagnose`, the window begins when the GPU is done with earlier steps.
    rows = loop(6)
    rows["kernels"][0]["end_ns"] = 2_150
    rows["kernels"][1] |= {"start_ns": 2_150, "end_ns": 2_160}
    digest = digest_of(build_trace(**rows), steps="2-5")
    assert mean(digest, digest.step_ns) == pytest.approx((3_900 - 160) / 4, abs=1)
    assert max(digest.step_ns) - min(digest.step_ns) < 200


def test_a_chosen_window_counts_whole() -> None:
    digest = digest_of(build_trace(**loop(6)), window=(500, 4_500))
    assert digest.steps == 3
    assert mean(digest, digest.step_ns) == pytest.approx(4_000 / 3, abs=1)


# GPUs and processes -------------------------------------------------------------------------------


def two_gpus(second_ns: int) -> dict[str, Any]:
    rows = loop(3)
    for step in range(3):
        key, at = 10 * step + 5, 1_000 * step
        rows["api_calls"].append({"start_ns": at + 300, "end_ns": at + 310, "correlation": key})
        rows["kernels"].append(
            {
                "start_ns": at + 400,
                "end_ns": at + 400 + second_ns,
                "name": "gemm",
                "correlation": key,
                "device": 1,
            }
        )
    rows["devices"] = [{"name": "NVIDIA A"}, {"name": "NVIDIA B"}]
    return rows


def test_kernels_sum_over_gpus_and_the_ledger_is_their_mean() -> None:
    digest = digest_of(build_trace(**two_gpus(200)))
    assert digest.gpus == ("NVIDIA A", "NVIDIA B")
    assert digest.kernel_ns == (600.0,) * 3
    computing = sum(v[0] for key, v in digest.ledger.items() if key.startswith("compute"))
    assert computing == (400 + 200) / 2
    assert any("summed over 2 GPUs" in note for note in digest.notes)


def test_one_gpu_of_two_can_be_chosen() -> None:
    digest = digest_of(build_trace(**two_gpus(200)), Selection(device=1))
    assert (digest.gpus, digest.kernel_ns[0]) == (("NVIDIA B",), 200.0)


def test_a_gpu_that_hardly_worked_does_not_halve_the_ledger() -> None:
    digest = digest_of(build_trace(**two_gpus(1)))
    assert digest.gpus == ("NVIDIA A",)
    assert any("GPU 1 is nearly unused" in note for note in digest.notes)


def test_of_several_processes_that_of_the_steps_counts() -> None:
    rows = loop(3)
    rows["kernels"].append({"start_ns": 500, "end_ns": 700, "name": "other", "process": 2})
    digest = digest_of(build_trace(**rows))
    assert {row.name for row in digest.kernels} == {"gemm", "relu"}
    assert any("2 processes" in note for note in digest.notes)


# What captures lack -------------------------------------------------------------------------------


def test_without_calls_ranges_and_correlations_there_is_a_digest_still() -> None:
    kernels = [{"start_ns": 100 * n, "end_ns": 100 * n + 60, "name": f"k{n % 3}"} for n in range(7)]
    digest = digest_of(build_trace(kernels=kernels))
    assert mean(digest, digest.kernel_ns) * max(1, digest.steps) > 0
    assert {"ranges", "api", "memory_peak", "phases"} <= set(digest.missing)
    assert all(row.range is None for row in digest.kernels)


def test_ranges_whose_gpu_work_is_unknown_say_so() -> None:
    rows = loop(3)
    for kernel in rows["kernels"]:
        kernel["correlation"] = None
    digest = digest_of(build_trace(**rows))
    assert all(row.gpu_ns is None for row in digest.ranges)
    assert "ranges_gpu" in digest.missing


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("thrice.ncu-rep.xz", "Nsight Compute report has no timeline"),
        ("gpt_small_train_key_averages.txt", "printed totals"),
        ("memory_snapshot.pickle", "a memory snapshot has no timeline"),
    ],
)
def test_what_has_no_timeline_is_said_so(file: str, reason: str) -> None:
    made = make_digest(opened(DATA / file))
    assert isinstance(made, NotApplicable)
    assert reason in made.reason
    assert "a timeline is needed" in made.hint


def test_without_gpu_work_it_says_how_to_record_it() -> None:
    made = make_digest(build_trace(api_calls=[{"start_ns": 0, "end_ns": 5}]))
    assert isinstance(made, NotApplicable)
    assert (made.command, made.reason) == ("compare", "no GPU work in the capture")
    cut = make_digest(
        build_trace(
            {"warnings": ("the trace is cut off",)}, api_calls=[{"start_ns": 0, "end_ns": 5}]
        )
    )
    assert isinstance(cut, NotApplicable)
    assert cut.reason == "the trace is cut off; no GPU work in the capture"
    assert cut.hint == "copy or record it again"
    assert "capture with" in made.hint


def test_kernels_inside_whole_graphs_are_missing() -> None:
    graph = {"start_ns": 700, "end_ns": 750, "correlation": 2}
    digest = digest_of(build_trace(**loop(3, graph_launches=[graph])))
    assert "CUDA graphs were traced as a whole" in digest.missing["kernels"]
    assert "kernels" not in digest_of(build_trace(**loop(3))).missing


def test_copies_and_fills_are_told_apart_by_kinds_of_memory() -> None:
    copy = {"start_ns": 700, "end_ns": 750, "bytes": 4_000, "correlation": 2}
    fill = {"start_ns": 760, "end_ns": 770, "bytes": 8, "correlation": 1}
    digest = digest_of(build_trace(**loop(3, copies=[copy], memsets=[fill])))
    rows = {(row.operation, row.src_kind, row.dst_kind): row.bytes for row in digest.copies}
    assert rows == {
        ("Host-to-Device", "Pinned", "Device"): (4_000.0, 0.0, 0.0),
        ("Memset", None, "Device"): (8.0, 0.0, 0.0),
    }


def test_the_memory_peak_is_that_of_each_gpu() -> None:
    events = [
        {"time_ns": at, "address": at, "bytes": size, "device": 0}
        for at, size in ((10, 100), (20, 300))
    ]
    digest = digest_of(build_trace(**loop(3, memory_events=events)))
    assert digest.memory_peak == {"0": 400}


def test_the_cheapest_kernels_are_one_row_and_sums_hold() -> None:
    kernels = [
        {"start_ns": 100 * n, "end_ns": 100 * n + 1 + n % 90, "name": f"kernel_{n}"}
        for n in range(MAX_KERNELS + 50)
    ]
    digest = digest_of(build_trace(kernels=kernels))
    assert len(digest.kernels) == MAX_KERNELS + 1
    rest = digest.kernels[-1]
    assert (rest.name, rest.range, rest.category, sum(rest.calls)) == ("", None, "other", 50.0)
    assert sum(row.ns[0] for row in digest.kernels) == digest.kernel_ns[0]
    assert max(digest.order) == MAX_KERNELS


# Real captures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", EVERY_SMALL, ids=map(name, EVERY_SMALL))
def test_parts_sum_to_the_whole_on_every_capture(path: Path) -> None:
    try:
        trace = without_profiler(opened(path))
    except GpusightError:
        pytest.skip("not a capture")
    digest = make_digest(trace)
    if isinstance(digest, NotApplicable):
        assert not trace.has("kernels")
        return
    blocks = len(digest.blocks)
    assert sum(digest.blocks) == max(1, digest.steps)
    ledger = np.array(list(digest.ledger.values()))
    assert np.array_equal(ledger.sum(axis=0), digest.step_ns)
    assert not fault(digest)
    kernels = np.array([row.ns for row in digest.kernels]).reshape(-1, blocks)
    assert np.array_equal(kernels.sum(axis=0), digest.kernel_ns)
    assert all(0 <= at < len(digest.kernels) for at in digest.order)
    assert digest.min_ns <= digest.median_ns <= digest.max_ns
    agrees_with_diagnose(trace, digest)
    agrees_with_summary(trace, digest)


def agrees_with_diagnose(trace: Trace, digest: Digest) -> None:
    """Compare the step time and the ledger, which `diagnose` and `ledger` have too."""
    window = step_window(trace)
    assert not isinstance(window, NotApplicable)
    assert mean(digest, digest.step_ns) == pytest.approx(window.step_ns, abs=1)
    if len(digest.gpus) > 1:
        return  # the ledger is a mean
    process = busiest_process(trace, window, EVERYTHING)
    (device,) = Accounting(trace, window.start_ns, window.end_ns, process).ledger.devices
    entries = {entry.entry: entry.ns / max(1, digest.steps) for entry in device.entries}
    assert {key: mean(digest, ns) for key, ns in digest.ledger.items()} == {
        key: pytest.approx(ns, abs=1) for key, ns in entries.items() if key in digest.ledger
    }
    assert max((ns for key, ns in entries.items() if key not in digest.ledger), default=0) < 1


def agrees_with_summary(trace: Trace, digest: Digest) -> None:
    """Compare GPU busy, kernel time and kernels; `summary` has those of every process."""
    if digest.processes > 1:
        return
    facts = {fact.key: fact.value for fact in summary(trace, with_window(trace)[0]).facts}
    steps = max(1, digest.steps)
    busy = sum(mean(digest, ns) for key, ns in digest.ledger.items() if key[:4] != "idle")
    share = busy / mean(digest, digest.step_ns)
    assert share == pytest.approx(facts["gpu_busy_share"], abs=1e-5)
    if "kernel_ns" in facts:
        assert mean(digest, digest.kernel_ns) == pytest.approx(facts["kernel_ns"] / steps, abs=1)
        count = sum(mean(digest, row.calls) for row in digest.kernels)
        assert count == pytest.approx(facts["kernels"] / steps, rel=1e-3)


@needs_shared
@pytest.mark.parametrize(
    ("capture", "step_ms", "kernel_ms"),
    [
        ("gpt_small_train", 46.86, 39.26),
        ("gpt_small_train_bf16_fused", 42.74, 10.51),
        ("gpt_tiny_train_r1", 14.09, 4.10),
        ("gpt_tiny_train_r2", 17.76, 4.10),
        ("gpt_tiny_train_r3", 19.43, 4.10),
        ("gpt_tiny_train_tf32_r1", 18.96, 2.40),
        ("gpt_tiny_train_tf32_r2", 20.21, 2.39),
        ("gpt_tiny_train_tf32_r3", 20.71, 2.40),
    ],
)
@pytest.mark.usefixtures("recorded_times")
def test_step_and_kernel_times_are_the_known_ones(
    capture: str, step_ms: float, kernel_ms: float
) -> None:
    digest = digest_of(opened(SHARED / f"nsys/{capture}.sqlite"))
    assert mean(digest, digest.step_ns) / 1e6 == pytest.approx(step_ms, abs=0.006)
    assert mean(digest, digest.kernel_ns) / 1e6 == pytest.approx(kernel_ms, abs=0.006)
    assert set(digest.phases) == {"forward", "backward", "optimizer"}
    assert sum(len(row.calls) for row in digest.api) > 0
    assert digest.memory_peak


def test_findings_are_those_of_diagnose() -> None:
    from gpusight.rules.timeline_diagnosis import diagnose_timeline

    trace = opened(DATA / "dataload.sqlite")
    diagnosis = diagnose_timeline(trace)
    assert not isinstance(diagnosis, NotApplicable)
    steps, length_ns = diagnosis.steps, diagnosis.focus.length_ns
    expected = [
        (f.rule, f.saved_ns / steps, f.saved_ns / length_ns)
        for f in diagnosis.findings
        if f.saved_ns is not None
    ]
    made = digest_of(trace).findings
    findings = [(f.rule, f.step_ns, f.share) for f in made if f.step_ns is not None]
    assert findings == expected != []
    assert [f.rule for f in made if f.in_plan] == [f.rule for f in diagnosis.plan]


def test_the_spread_of_the_measured_step_time_is_kept() -> None:
    trace = profiled_loop(overhead_us=4)
    trace.stored_pace = Pace(20, step_ns(profiled_loop()), 3e5, 0.04, "before", "optimizer")
    digest = digest_of(trace)
    assert digest.recorded_step_ns is not None
    assert (digest.pace_steps, digest.pace_spread) == (20, 0.04)
    # One that is slower than the capture changes no time, and has no error to add.
    trace = profiled_loop(overhead_us=4)
    trace.stored_pace = Pace(20, 6e5, 6e5, 0.04, "before", "optimizer")
    assert digest_of(trace).pace_steps == 0


# Privacy and arithmetic ---------------------------------------------------------------------------


def test_a_digest_tells_nothing_about_the_machine() -> None:
    rows = loop(3)
    rows["kernels"][0]["name"] = "lambda at /home/alice/secret/kernels.cu:12"
    rows["ranges"].append({"start_ns": 300, "end_ns": 400, "name": "/home/alice/secret/train.py:7"})
    meta = {
        "path": "/home/alice/secret/run.sqlite",
        "os": "alice-os",
        "cpu": "alice-cpu",
        "driver_version": "alice-driver",
        "warnings": ("cannot read /home/alice/secret/run.sqlite",),
        "notes": ("alice noted",),
    }
    rows |= {
        "processes": [{"process": 1, "pid": 1, "name": "/home/alice/bin/python --token=secret"}],
        "threads": [{"thread": 11, "process": 1, "tid": 1, "name": "alice-thread"}],
        "diagnostics": [{"text": "host alice.example.org"}],
    }
    written = msgspec.json.encode(digest_of(build_trace(meta, **rows)))
    assert b"run.sqlite" in written
    assert b"kernels.cu:12" in written
    assert b"alice" not in written
    assert b"secret" not in written


def test_rounded_parts_sum_to_the_whole() -> None:
    parts = np.random.default_rng(7).uniform(0, 10, (37, 20))
    whole = tuple(np.round(parts.sum(axis=0)).tolist())
    rows = np.array(rounded_parts(parts, whole))
    assert np.array_equal(rows.sum(axis=0), whole)
    assert np.abs(rows - parts).max() < 1


# The time between steps in a digest, and what ranges lie where.


def fed(steps: int) -> dict[str, Any]:
    """Steps of 900 ns; after each, 400 ns of range `data_N`, in it a copy of 100 ns on the GPU."""
    rows = loop(steps, period=1_500)
    rows["copies"] = []
    for step in range(steps):
        at, key = 1_500 * step + 900, 10 * step + 9
        rows["ranges"].append({"start_ns": at + 50, "end_ns": at + 450, "name": f"data_{step}"})
        rows["api_calls"].append(
            {
                "start_ns": at + 250,
                "end_ns": at + 280,
                "correlation": key,
                "name": "cudaMemcpyAsync",
            }
        )
        rows["copies"].append(
            {"start_ns": at + 300, "end_ns": at + 400, "correlation": key, "bytes": 4_000}
        )
    return rows


def test_the_time_between_steps_is_accounted_for() -> None:
    digest = digest_of(build_trace(**fed(4)))
    # Four steps of 900 ns, three pauses of 600 ns.
    assert digest.step_ns == (1_350.0,) * 4
    # Of a pause the copy takes 100 ns; the GPU waits for data while the host is in the range, up
    # to the call that launches the copy, and for what the host does outside of it.
    assert digest.between_ns == (450.0,) * 4
    assert digest.ledger["copy/h2d"] == (75.0,) * 4
    assert digest.ledger["idle/input"][0] == pytest.approx(250 * 3 / 4, abs=1)


def test_ranges_calls_and_copies_count_up_to_the_next_step() -> None:
    digest = digest_of(build_trace(**fed(4)))
    # Three of them are in the window; no step is an outlier for it.
    ranges = {row.name: (row.calls, row.host_ns, row.gpu_ns) for row in digest.ranges}
    assert ranges["data_#"] == ((0.75,) * 4, (300.0,) * 4, (75.0,) * 4)
    calls = {row.name: (row.calls, row.host_ns) for row in digest.api}
    assert calls["cudaMemcpyAsync"] == ((0.75,) * 4, (22.0,) * 4)
    assert [(row.calls, row.ns, row.bytes) for row in digest.copies] == [
        ((0.75,) * 4, (75.0,) * 4, (3_000.0,) * 4)
    ]


def test_what_follows_the_last_step_does_not_count() -> None:
    rows = fed(3)
    rows["ranges"][-1]["end_ns"] += 5_000  # how long the last one takes is of no matter
    rows["ranges"].append({"start_ns": 950, "end_ns": 1_000, "name": "log"})  # once in two pauses
    digest = digest_of(build_trace(**rows))
    ranges = {row.name: (mean(digest, row.calls), sum(row.host_ns)) for row in digest.ranges}
    assert ranges["data_#"] == pytest.approx((2 / 3, 800.0), rel=2e-3)
    assert ranges["log"] == pytest.approx((1 / 3, 50.0), rel=2e-3)


def test_kernels_between_steps_count() -> None:
    rows = fed(4)
    for copy in rows["copies"]:
        rows["kernels"].append({**copy, "name": "evaluate"})
        del rows["kernels"][-1]["bytes"]
    rows["copies"] = []
    digest = digest_of(build_trace(**rows))
    assert digest.kernel_ns == (475.0,) * 4
    assert {row.name: row.ns[0] for row in digest.kernels} == {
        "gemm": 300.0,
        "relu": 100.0,
        "evaluate": 75.0,
    }
    assert set(digest.order) == {0, 1}  # of the step itself


def test_a_range_that_holds_steps_is_no_part_of_one() -> None:
    rows = fed(6)
    epochs = [(1_420, 5_980), (5_990, 8_000)]  # the first holds steps 1 to 3
    rows["ranges"] += [{"start_ns": a, "end_ns": b, "name": "epoch"} for a, b in epochs]
    worker = {"start_ns": 1_450, "end_ns": 4_000, "name": "prefetch", "thread": 99}
    digest = digest_of(build_trace(**{**rows, "ranges": [*rows["ranges"], worker]}))
    names = {row.name for row in digest.ranges}
    assert "epoch" not in names
    assert "prefetch" in names


def test_outer_ranges_hold_each_other_never() -> None:
    rows = loop(4)
    for step in range(4):
        at = 1_000 * step
        rows["ranges"] += [
            {"start_ns": at + 5, "end_ns": at + 895, "name": "train"},  # the step again
            {"start_ns": at + 60, "end_ns": at + 140, "name": "attention"},
            {"start_ns": at + 200, "end_ns": at + 400, "name": "optimizer"},
            {"start_ns": at + 200, "end_ns": at + 400, "name": "worker", "thread": 99},
            {"start_ns": at + 910, "end_ns": at + 990, "name": "data"},
        ]
    digest = digest_of(build_trace(**rows))
    outer = {row.name: row.outer for row in digest.ranges}
    assert outer == {
        "step_#": False,
        "train": False,
        "fwd_#": True,
        "attention": False,
        "optimizer": True,
        "worker": False,
        "data": True,
    }


def test_between_ranges_that_were_asked_for_nothing_counts() -> None:
    digest = digest_of(build_trace(**fed(4)), Selection(within="fwd_*"))
    assert digest.steps == 4
    assert digest.between_ns == (0.0,) * 4
    assert sum(digest.step_ns) == sum(ns[0] * 4 for ns in digest.ledger.values())
    assert {row.name for row in digest.ranges} == {"fwd_#"}
    assert not digest.copies
    assert "time between these ranges is excluded" in digest.notes


def test_between_steps_of_one_range_that_was_asked_for_time_counts() -> None:
    rows = fed(4)
    rows["ranges"].append({"start_ns": 0, "end_ns": 6_000, "name": "training"})
    digest = digest_of(build_trace(**rows), Selection(within="training"))
    assert (digest.steps, digest.between_ns) == (4, (450.0,) * 4)


# Which part of a capture was summed up, as options that can be typed again.


MS = 1_000_000


@pytest.mark.parametrize(
    ("selection", "options", "expected"),
    [
        (EVERYTHING, {}, ""),
        (Selection(within=" forward "), {}, "--in forward"),
        (Selection(within="/step_[0-9]+/"), {}, "--in '/step_[0-9]+/'"),
        (Selection(device=0), {}, "--device 0"),
        (Selection(process="python"), {}, "--process python"),
        (Selection(process="1234"), {}, "--process ID"),
        (EVERYTHING, {"steps": "3 - 7"}, "--steps 3-7"),
        (EVERYTHING, {"steps": "ALL", "warmup": True}, "--steps all --warmup"),
        (EVERYTHING, {"window": (1200 * MS, 1500 * MS)}, "--window 1200ms-1500ms"),
        (EVERYTHING, {"window": (None, 2000 * MS)}, "--window -2s"),
        (EVERYTHING, {"window": (7, None)}, "--window 7ns-"),
        (Selection(within="a", device=1), {"steps": "5"}, "--in a --device 1 --steps 5"),
    ],
)
def test_what_was_chosen_is_written_as_it_is_typed(
    selection: Selection, options: dict[str, Any], expected: str
) -> None:
    assert scope_of(selection, **options) == expected


def test_a_long_choice_fits_a_baseline_and_stays_apart() -> None:
    scopes = [scope_of(Selection(within="x" * 5_000 + end)) for end in "ab"]
    assert max(map(len, scopes)) <= MAX_NAME_CHARS
    assert scopes[0] != scopes[1]
    assert scope_of(Selection(within="\ud800")).encode()


def test_a_digest_says_of_what_part_it_is() -> None:
    trace = opened(DATA / "dataload.sqlite")
    whole, part = make_digest(trace), make_digest(trace, steps="1-2")
    assert isinstance(whole, Digest)
    assert isinstance(part, Digest)
    assert (whole.scope, part.scope) == ("", "--steps 1-2")
    assert not fault(part)


def test_findings_of_a_range_are_not_those_of_the_capture() -> None:
    trace = opened(DATA / "gpt_small_forward.sqlite")
    names = trace.table("ranges")["name"].unique().to_list()
    made = make_digest(trace, Selection(within=sorted(filter(None, names))[0]))
    assert isinstance(made, Digest)
    assert made.findings == ()
    assert made.missing["findings"] == "findings are of whole steps, not of a range"
