"""Captures without the profiler's overhead: what moves, what stays, and what is refused."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpusight as gs
from gpusight.analysis.clock_alignment import aligned
from gpusight.analysis.corrected_trace import correction_of, recorded_span
from gpusight.analysis.profiler_correction import corrected, without_profiler
from gpusight.analysis.profiler_costs import COSTS, MAX_UNIT
from gpusight.analysis.profiler_costs import NSYS as NSYS_TOOL
from gpusight.analysis.selection import Selection
from gpusight.analysis.steps.step_list import known_pace
from gpusight.analysis.steps.step_window import step_window
from gpusight.analysis.steps.window_headline import StepWindow
from gpusight.errors import UsageError
from gpusight.pace import MESSAGE, Pace
from gpusight.results import NotApplicable
from gpusight.rules.diagnosis import TimelineDiagnosis
from gpusight.rules.timeline_diagnosis import FindingLocator, diagnose_timeline
from gpusight.trace.schema import TABLES
from gpusight.units import format_time
from tests.profiled_loops import profiled_loop, step_ns, stored_pace
from tests.shared import SHARED, needs_shared, opened
from tests.traces import build_trace

if TYPE_CHECKING:
    from gpusight.trace.trace import Trace

NSYS: dict[str, Any] = {"tool": "Nsight Systems"}
LOOPS: dict[str, dict[str, Any]] = {
    "launch-bound": {},
    "autograd thread": {"threads": 2},
    "two streams": {"kernel_us": 60, "streams": 2},
}


def at_pace(trace: Trace, pace: str | float | None) -> Trace:
    """Return a capture as every command sees it that was given this step time."""
    trace.pace = pace
    return without_profiler(trace)


def window_of(trace: Trace, **chosen: Any) -> StepWindow:
    focus = step_window(trace, **chosen)
    assert isinstance(focus, StepWindow), focus
    return focus


def marked(stored: object, **loop: Any) -> Trace:
    """Record a loop whose capture holds a step time in an NVTX mark, as nsys and CUPTI have it."""
    loop_trace = profiled_loop(**loop)
    tables: dict[str, Any] = {
        name: loop_trace.table(name).rows(named=True) for name in TABLES if loop_trace.has(name)
    }
    text = stored if isinstance(stored, str) else json.dumps(stored)
    mark = {"name": f"{MESSAGE}{text}", "kind": "mark"}
    meta = {"tool": loop_trace.meta.tool}
    return build_trace(meta, **{**tables, "ranges": [mark, *tables["ranges"]]})


def diagnosed(trace: Trace) -> TimelineDiagnosis:
    diagnosis = diagnose_timeline(trace)
    assert isinstance(diagnosis, TimelineDiagnosis), diagnosis
    return diagnosis


# What moves, and what stays -----------------------------------------------------------------------


@pytest.mark.parametrize("overhead_us", [2, 6])
@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_the_corrected_step_takes_the_time_without_the_profiler(
    loop: dict[str, Any], overhead_us: float
) -> None:
    plain_ns = step_ns(profiled_loop(**loop))
    recorded = profiled_loop(overhead_us=overhead_us, **loop)
    trace = at_pace(recorded, plain_ns)

    focus, before = window_of(trace), window_of(recorded)
    assert focus.step_ns == pytest.approx(plain_ns, rel=0.005)
    assert focus.recorded_step_ns == before.step_ns
    assert [(s.name, s.number) for s in focus.steps] == [(s.name, s.number) for s in before.steps]
    correction = correction_of(trace)
    assert correction is not None
    assert correction.step_ns == focus.step_ns
    assert correction.document()["recorded_step_ns"] == before.step_ns

    trace.validate()
    assert aligned(trace) is trace, "the clocks of host and GPU still agree"
    assert without_profiler(trace) is trace
    for table in ("kernels", "api_calls", "ranges"):
        assert_same_events(table, recorded, trace)
    assert gpu_durations(trace) == gpu_durations(recorded)
    assert calls_by_range(trace) == calls_by_range(recorded)


def assert_same_events(table: str, recorded: Trace, trace: Trace) -> None:
    timeless = [c for c in TABLES[table].column_names if c not in {"start_ns", "end_ns"}]
    moved, old = (t.table(table).select(timeless).sort(pl.all()) for t in (trace, recorded))
    assert moved.equals(old)


def gpu_durations(trace: Trace) -> list[tuple[int, int]]:
    length_ns = pl.col("end_ns") - pl.col("start_ns")
    return sorted(trace.kernels.select("correlation", length_ns).rows())


def calls_by_range(trace: Trace) -> dict[tuple[str, int], list[int]]:
    """List the calls in each range of their thread, by the order of the ranges of that name."""
    counts: dict[str, int] = {}
    inside = {}
    calls = trace.table("api_calls", ["start_ns", "end_ns", "thread", "correlation"]).rows()
    for name, start_ns, end_ns, thread in trace.table(
        "ranges", ["name", "start_ns", "end_ns", "thread"]
    ).rows():
        counts[name] = counts.get(name, 0) + 1
        inside[name, counts[name]] = sorted(
            correlation
            for begins, ends, owner, correlation in calls
            if owner == thread and start_ns <= begins and ends <= end_ns
        )
    return inside


def test_chosen_steps_are_those_of_the_capture_with_both_times() -> None:
    recorded = profiled_loop(overhead_us=4)
    trace = at_pace(recorded, step_ns(profiled_loop()))
    focus = window_of(trace, steps="2-3")
    before = window_of(recorded, steps="2-3")
    assert [s.name for s in focus.steps] == ["step_2", "step_3"]
    assert focus.recorded_step_ns == before.step_ns
    assert focus.step_ns == pytest.approx(window_of(trace).step_ns, rel=0.02)
    assert focus.text == "2 steps of 324 µs (480 µs with the profiler)"
    # A window is of the times that a timeline shows.
    chosen = window_of(trace, window=(before.start_ns, before.end_ns))
    assert [s.name for s in chosen.steps] == ["step_2", "step_3"]
    assert chosen.length_ns == pytest.approx(focus.length_ns, rel=0.02)


def test_the_gpu_limits_a_program_that_the_profiler_hardly_slows_down() -> None:
    loop: dict[str, Any] = {"kernel_us": 100, "overhead_us": 1}
    recorded = profiled_loop(**loop)
    before = window_of(recorded)
    trace = at_pace(recorded, before.step_ns * 0.7)
    focus, correction = window_of(trace), correction_of(trace)
    assert focus.step_ns == pytest.approx(before.step_ns, rel=0.05)
    assert correction is not None
    assert "the GPU alone takes" in correction.text
    assert gpu_durations(trace) == gpu_durations(recorded)


def test_a_slower_pace_changes_nothing() -> None:
    recorded = profiled_loop(overhead_us=1)
    trace = at_pace(recorded, 1.5 * step_ns(recorded))
    focus = window_of(trace)
    assert focus.step_ns == focus.recorded_step_ns == window_of(recorded).step_ns
    assert focus.text == "6 steps of 363 µs", "one time is enough"
    assert focus.notes[0] == "the profiler did not slow the steps down (544 µs/step given)"
    for table in ("kernels", "api_calls"):
        assert trace.table(table).equals(recorded.table(table))


def test_two_overheads_of_one_program_give_one_answer() -> None:
    plain = profiled_loop()
    plain_ns = step_ns(plain)
    expected = diagnosed(plain)
    for overhead_us in (2, 7):
        recorded = profiled_loop(overhead_us=overhead_us)
        recorded.pace = plain_ns
        diagnosis = diagnosed(recorded)
        # What is taken off a call and off the time before it is not known apart to the percent.
        assert shares(diagnosis) == pytest.approx(shares(expected), abs=0.03)
        busy = diagnosis.ledger.devices[0].busy_share
        assert busy == pytest.approx(expected.ledger.devices[0].busy_share, abs=0.002)
        assert [f.rule for f in diagnosis.plan] == [f.rule for f in expected.plan]
        for fix, other in zip(diagnosis.plan, expected.plan, strict=True):
            assert fix.saved_ns == pytest.approx(other.saved_ns, rel=0.05)
        raw = profiled_loop(overhead_us=overhead_us)
        raw.pace = "off"
        assert diagnosed(raw).ledger.devices[0].busy_share < busy - 0.02


def shares(diagnosis: TimelineDiagnosis) -> dict[str, float]:
    """Return the ledger of the first GPU: each entry as a share of the window."""
    return {entry.entry: entry.share or 0.0 for entry in diagnosis.ledger.devices[0].entries}


def test_findings_are_located_in_the_capture_as_recorded() -> None:
    recorded = profiled_loop(overhead_us=5)
    recorded.pace = step_ns(profiled_loop())
    diagnosis = diagnosed(recorded)
    assert "profiler-overhead" in diagnosis.not_applicable
    trace = without_profiler(recorded)
    last_ns = max(recorded.api_calls["end_ns"].to_list())
    for finding in diagnosis.findings:
        for location in FindingLocator(recorded, diagnosis).of(finding):
            assert 0 <= location.start_ns <= location.end_ns <= last_ns
            # Either what the capture shows there, or what is said to be corrected.
            shown = location.label.endswith(format_time(location.end_ns - location.start_ns))
            assert shown != location.label.endswith(" without the profiler"), location.label
    for row in (0, 30, 68):
        name, first, last = trace.table("kernels", ["name", "start_ns", "end_ns"]).row(row)
        start_ns, end_ns, old_row = recorded_span(trace, first, last, "kernels", row)
        assert old_row is not None
        columns = ["name", "start_ns", "end_ns"]
        assert recorded.table("kernels", columns).row(old_row) == (name, start_ns, end_ns)
        group = trace.table("kernels", ["end_ns"])["end_ns"][row + 3]
        several = start_ns, recorded.kernels["end_ns"][old_row + 3]
        assert recorded_span(trace, first, group, None, None) == (*several, None)
        assert recorded_span(trace, first, group, "kernels", row) == (*several, old_row)
    focus, before = window_of(trace), window_of(recorded)
    assert recorded_span(trace, focus.start_ns, focus.end_ns, None, None) == (
        before.start_ns,
        before.end_ns,
        None,
    )


def test_another_process_moves_with_the_busiest_thread() -> None:
    loop = profiled_loop(overhead_us=5)
    tables: dict[str, Any] = {
        name: loop.table(name).rows(named=True) for name in TABLES if loop.has(name)
    }
    middle_ns = int(step_ns(loop) * 3)
    other = {"start_ns": middle_ns, "end_ns": middle_ns + 9_000, "process": 2, "thread": 77}
    call = {**other, "name": "cudaLaunchKernel", "api": "runtime", "correlation": 9_999}
    trace = build_trace(
        **{
            **tables,
            "api_calls": [*tables["api_calls"], call],
            "ranges": [*tables["ranges"], {**other, "name": "other"}],
            "processes": [{"process": 1}, {"process": 2}],
        }
    )
    moved = at_pace(trace, step_ns(profiled_loop()))
    moved.validate()
    row = moved.ranges.filter(pl.col("name") == "other").row(0, named=True)
    assert row["start_ns"] == pytest.approx(3 * step_ns(profiled_loop()), rel=0.05)


@settings(max_examples=15, deadline=None)
@given(
    overhead_us=st.floats(0, 12),
    host_us=st.floats(0, 40),
    kernel_us=st.floats(0.5, 90),
    launches=st.integers(3, 9),
    threads=st.integers(1, 2),
    streams=st.integers(1, 3),
    share=st.floats(0.3, 1.4),
)
def test_moved_times_never_run_backwards(share: float, **loop: Any) -> None:
    recorded = profiled_loop(steps=4, **loop)
    moved = corrected(recorded, Pace.given(share * step_ns(recorded)))
    if isinstance(moved, NotApplicable):
        return
    moved.validate()  # sorted, and each end after its start
    focus = window_of(moved)
    # A nanosecond for each time that was rounded.
    assert focus.length_ns <= window_of(recorded).length_ns + 4 * 12
    assert list(focus.steps) == sorted(focus.steps, key=lambda step: step.start_ns)
    assert gpu_durations(moved) == gpu_durations(recorded)


# Which step time is used, and which is refused ----------------------------------------------------


def test_off_keeps_the_times_of_the_capture() -> None:
    recorded = marked(stored_pace(324_000.0), overhead_us=5)
    assert at_pace(recorded, "off") is recorded


def test_the_recorder_s_step_time_is_used_by_itself() -> None:
    plain_ns = step_ns(profiled_loop())
    stored = stored_pace(plain_ns)
    trace = at_pace(marked(stored, overhead_us=5), None)
    correction = correction_of(trace)
    assert correction is not None
    assert window_of(trace).step_ns == pytest.approx(plain_ns, rel=0.005)
    assert correction.pace.text == "measured before the recording, 9 steps"
    assert correction.text.endswith("(324 µs/step measured before the recording, 9 steps)")


def test_a_step_time_of_the_recorder_that_does_not_fit_is_noted() -> None:
    recorded = marked(stored_pace(32_400.0), overhead_us=5)
    trace = without_profiler(recorded)
    assert correction_of(trace) is None
    assert without_profiler(trace) is trace
    focus = window_of(trace)
    assert focus.recorded_step_ns is None
    assert focus.step_ns == window_of(recorded).step_ns
    note = (
        "not corrected for the profiler: steps take 519 µs in the capture and 32.4 µs without the "
        "profiler: these are not the same steps"
    )
    assert focus.notes[0] == note
    diagnosis = diagnosed(recorded)
    assert note in diagnosis.notes
    assert diagnosis.document()["profiler"] is None


def test_timed_steps_slower_than_the_profiler_explains_are_not_used() -> None:
    recorded = marked(stored_pace(600_000.0), overhead_us=5, **NSYS)
    trace = without_profiler(recorded)
    correction = correction_of(trace)
    assert correction is not None
    assert correction.estimate is not None
    assert correction.slower is not None
    focus = window_of(trace)
    assert focus.is_estimate
    assert focus.step_ns < 0.95 * window_of(recorded).step_ns
    assert focus.notes[0].endswith("timed before the recording were slower (600 µs), not used")


@pytest.mark.parametrize("pace", ["3240us", "32.4us", 3.24e9])
def test_a_given_step_time_that_does_not_fit_is_an_error(pace: str | float) -> None:
    with pytest.raises(UsageError, match="cannot be corrected") as refused:
        at_pace(profiled_loop(), pace)
    assert "not the same steps" in str(refused.value)


@pytest.mark.parametrize("pace", ["", "fast", "-3ms", "0ms", 0, -1.0, float("nan"), float("inf")])
def test_what_is_no_step_time_is_an_error(pace: str | float) -> None:
    with pytest.raises(UsageError, match="no step time"):
        at_pace(profiled_loop(), pace)


@pytest.mark.parametrize(
    "stored",
    [
        "",
        "{",
        "[]",
        "null",
        "NaN",
        '{"mean_ns": NaN}',
        '{"mean_ns": 1e999}',
        {"mean_ns": -324_000.0},
        {"mean_ns": 0},
        {"mean_ns": "324000"},
        {"mean_ns": None},
        {"mean_ns": 324_000.0, "steps": -1},
        {"mean_ns": 324_000.0, "steps": "many"},
        {"mean_ns": 324_000.0, "spread": []},
        {"mean_ns": 324_000.0, "spread": -1.0},
        {"mean_ns": 10**400},
        {"version": 2},
        "[" * 5_000,
    ],
    ids=lambda stored: str(stored)[:24],
)
def test_a_damaged_step_time_in_the_capture_is_ignored(stored: object) -> None:
    if isinstance(stored, dict):
        stored = stored_pace(324_000.0) | stored
    trace = marked(stored, steps=3, launches=3)
    assert known_pace(trace) is None
    assert without_profiler(trace) is trace


def test_captures_that_cannot_be_corrected_say_why() -> None:
    loop = profiled_loop()
    rows = {name: loop.table(name).rows(named=True) for name in TABLES if loop.has(name)}
    one_kernel: dict[str, Any] = {"devices": rows["devices"], "kernels": rows["kernels"][:1]}
    for tables, reason in (({}, "no activity"), (one_kernel, "no steps found")):
        refused = corrected(build_trace(**tables), Pace.given(324_000.0))
        assert isinstance(refused, NotApplicable)
        assert reason in refused.reason


@pytest.mark.parametrize(("lacking", "step_us"), [("kernels", 200), ("api_calls", 324)])
def test_a_capture_without_kernels_or_calls(lacking: str, step_us: float) -> None:
    loop = profiled_loop()
    tables: dict[str, Any] = {
        name: loop.table(name).rows(named=True) for name in TABLES if loop.has(name)
    }
    del tables[lacking]
    moved = at_pace(build_trace(**tables), 200_000.0)
    moved.validate()
    # Without calls, nothing is known of the host that could be reduced.
    assert window_of(moved).step_ns == pytest.approx(1_000 * step_us, rel=0.005)


# Where the step time without the profiler is estimated --------------------------------------------


@pytest.mark.parametrize("overhead_us", [3, 6, 8])
def test_without_a_known_step_time_it_is_estimated(overhead_us: float) -> None:
    plain_ns = step_ns(profiled_loop())
    recorded = profiled_loop(overhead_us=overhead_us, **NSYS)
    trace = without_profiler(recorded)
    focus, correction = window_of(trace), correction_of(trace)
    assert correction is not None
    assert focus.estimate_ns is not None
    low_ns, high_ns = focus.estimate_ns
    assert low_ns < focus.step_ns < high_ns < window_of(recorded).step_ns
    assert low_ns < plain_ns < high_ns
    assert focus.step_ns == pytest.approx(plain_ns, rel=0.3)
    assert gpu_durations(trace) == gpu_durations(recorded)
    document = correction.document()
    assert document["estimated"] is True
    assert document["how"] == "estimated"
    assert document["measured_step_ns"] is None
    assert (document["low_step_ns"], document["high_step_ns"]) == (low_ns, high_ns)
    # One value: the window, the headline, the note and the rule.
    assert document["step_ns"] == focus.step_ns
    assert re.search(r" steps of about [\d.]+ µs \([\d.]+ µs with the profiler", focus.text)
    assert focus.notes[0].startswith(f"{correction.brief}; about ")
    assert focus.notes[0].endswith(" per event of nsys subtracted")
    assert correction.brief.startswith("step time without the profiler: ")
    assert correction.brief.endswith(" µs (estimate; recorded times: --pace off)")
    diagnosis = diagnosed(recorded)
    assert "profiler-overhead" in diagnosis.not_applicable
    assert diagnosis.step_ns == focus.step_ns


def test_a_slow_machine_has_a_costly_profiler() -> None:
    """Times of the same loop on a CPU that takes twice as long give twice the estimate."""
    fast, slow = (
        window_of(without_profiler(scaled(profiled_loop(overhead_us=2, **NSYS), factor)))
        for factor in (1, 2)
    )
    assert slow.step_ns == pytest.approx(2 * fast.step_ns, rel=0.01)


def test_the_cost_of_an_event_is_limited_where_launches_are_very_slow() -> None:
    trace = without_profiler(scaled(profiled_loop(overhead_us=5, **NSYS), 10))
    correction = correction_of(trace)
    assert correction is not None
    cost = COSTS[NSYS_TOOL]
    assert correction.overhead.event_ns == MAX_UNIT * cost.units * cost.unit_ns


def scaled(trace: Trace, factor: int, **meta: Any) -> Trace:
    """Return a trace whose times all are so many times as long."""
    times = {"start_ns", "end_ns"}
    tables: dict[str, Any] = {
        name: [
            {c: factor * v if c in times else v for c, v in row.items()}
            for row in trace.table(name).rows(named=True)
        ]
        for name in TABLES
        if trace.has(name)
    }
    return build_trace({**NSYS, **meta}, **tables)


def test_the_estimate_hardly_changes_the_step_of_a_program_that_the_gpu_limits() -> None:
    recorded = profiled_loop(kernel_us=100, overhead_us=1, **NSYS)
    trace = without_profiler(recorded)
    focus, correction = window_of(trace), correction_of(trace)
    assert correction is not None
    assert correction.is_hidden
    assert focus.recorded_step_ns == window_of(recorded).step_ns
    assert focus.step_ns == pytest.approx(focus.recorded_step_ns, rel=0.02)
    assert gpu_durations(trace) == gpu_durations(recorded)
    assert focus.notes[0].startswith("the profiler hardly slows the steps down (estimate); about ")
    assert focus.notes[0].endswith(" of nsys subtracted from host time")
    assert "profiler-overhead" in diagnosed(recorded).not_applicable


@pytest.mark.parametrize("is_known", [False, True])
def test_overhead_that_the_gpu_hides_is_not_in_what_a_faster_gpu_leaves(is_known: bool) -> None:
    """The step shows nothing of the profiler until the kernels are faster: then the host does."""
    recorded = profiled_loop(kernel_us=100, overhead_us=6, **NSYS)
    if is_known:
        recorded.pace = step_ns(profiled_loop(kernel_us=100))
    repaired_ns = step_ns(profiled_loop(kernel_us=2))
    after = gs.whatif(recorded, speedup={"kernels": 50}).answer
    assert after.changed_ns / after.steps == pytest.approx(repaired_ns, rel=0.15)
    recorded.pace = "off"
    under_it = gs.whatif(recorded, speedup={"kernels": 50}).answer
    assert under_it.changed_ns / under_it.steps > 1.5 * repaired_ns


def test_launches_that_a_profiler_delays_start_as_usual_without_it() -> None:
    """Where each step waits for its kernel, less host time alone cannot explain the step time."""
    loop: dict[str, Any] = {"launches": 1, "steps": 40, "host_us": 10}
    plain_ns = step_ns(profiled_loop(**loop))
    recorded = profiled_loop(overhead_us=2, latency_us=60, **loop, **NSYS)
    trace = at_pace(recorded, plain_ns)
    correction = correction_of(trace)
    assert correction is not None
    assert 0 < correction.overhead.share < 1
    assert window_of(trace).step_ns == pytest.approx(plain_ns, rel=0.01)
    assert gpu_durations(trace) == gpu_durations(recorded)


def test_overhead_that_the_step_time_shows_is_not_guessed() -> None:
    plain_ns = step_ns(profiled_loop())
    known = correction_of(at_pace(profiled_loop(overhead_us=3, **NSYS), plain_ns))
    assert known is not None
    assert not known.is_hidden
    assert known.step_ns == pytest.approx(plain_ns, rel=0.005)


def test_work_that_waits_for_the_gpu_at_the_start_of_the_window_moves_with_the_gpu() -> None:
    """It was launched in the warm-up step. The host became faster since, and the GPU did not."""
    recorded = profiled_loop(kernel_us=100, overhead_us=3, **NSYS)
    tables: dict[str, Any] = {
        name: recorded.table(name).rows(named=True) for name in TABLES if recorded.has(name)
    }
    # No wait for the GPU ends a step: the host is ahead by more with each.
    tables["api_calls"] = [
        call for call in tables["api_calls"] if call["name"] != "cudaDeviceSynchronize"
    ]
    second_ns = next(row["start_ns"] for row in tables["ranges"] if row["name"] == "step_1")
    for name in ("api_calls", "ranges"):
        for row in tables[name]:
            row["start_ns"] += 2_000_000 * (row["start_ns"] >= second_ns)
            row["end_ns"] += 2_000_000 * (row["end_ns"] >= second_ns)
    for number, kernel in enumerate(tables["kernels"]):
        kernel["start_ns"] = 40_000 + 3_900_000 * (number > 0) + 101_000 * number
        kernel["end_ns"] = kernel["start_ns"] + (4_000_000 if number == 0 else 100_000)
    recorded = build_trace(NSYS, **tables)
    trace = without_profiler(recorded)
    assert correction_of(trace) is not None
    focus = window_of(trace)
    assert len(focus.left_out) == 1
    kernels = trace.table("kernels", ["start_ns", "end_ns"]).sort("start_ns")
    idle = kernels["start_ns"][1:] - kernels["end_ns"][:-1]
    assert set(idle) == {1_000}


def test_an_estimate_that_is_not_good_enough_is_only_shown() -> None:
    assert not COSTS["CUPTI"].is_used
    recorded = profiled_loop(overhead_us=5, tool="gpusight record, CUPTI 13.0")
    trace = without_profiler(recorded)
    focus = window_of(trace)
    assert correction_of(trace) is None
    assert focus.recorded_step_ns is None
    assert not focus.is_estimate
    assert focus.estimate_ns is not None
    assert focus.estimate_ns[0] < focus.estimate_ns[1] < focus.step_ns
    assert focus.step_ns == window_of(recorded).step_ns
    assert focus.text.startswith("6 steps of 519 µs (about ")
    assert focus.text.endswith(" µs without the profiler)")
    diagnosis = diagnosed(recorded)
    assert diagnosis.document()["window"]["estimate_ns"] == focus.estimate_ns
    assert "profiler-overhead" in [finding.rule for finding in diagnosis.findings]


def test_launches_that_wait_for_their_kernel_do_not_show_what_a_launch_takes() -> None:
    loop = profiled_loop(overhead_us=5, **NSYS)
    tables: dict[str, Any] = {
        name: loop.table(name).rows(named=True) for name in TABLES if loop.has(name)
    }
    for call, kernel in zip(
        [row for row in tables["api_calls"] if row["name"] == "cudaLaunchKernel"],
        tables["kernels"],
        strict=True,
    ):
        kernel["end_ns"] = call["end_ns"] - 1
        kernel["start_ns"] = kernel["end_ns"] - 4_000
    correction = correction_of(without_profiler(build_trace(NSYS, **tables)))
    assert correction is not None
    assert correction.overhead.event_ns == COSTS[NSYS_TOOL].units * COSTS[NSYS_TOOL].unit_ns


def test_off_and_other_tools_have_the_times_of_the_capture() -> None:
    assert at_pace(profiled_loop(overhead_us=5, **NSYS), "off").pace == "off"
    for recorded in (
        at_pace(profiled_loop(overhead_us=5, **NSYS), "off"),
        without_profiler(profiled_loop(overhead_us=5, tool="JAX profiler")),
    ):
        assert correction_of(recorded) is None
        assert window_of(recorded).recorded_step_ns is None


@pytest.mark.parametrize("scale", [1, 3])
def test_no_estimate_goes_beyond_what_was_measured(scale: int) -> None:
    """Back-to-back launches are little else than recording, by the costs per event."""
    recorded = scaled(profiled_loop(host_us=1, kernel_us=0.2, overhead_us=5, **NSYS), scale)
    focus = window_of(without_profiler(recorded))
    assert focus.recorded_step_ns is not None
    assert focus.estimate_ns is not None
    usual, most = COSTS[NSYS_TOOL].max_slowdown
    assert focus.recorded_step_ns / focus.step_ns <= 1.02 * usual
    assert focus.recorded_step_ns / focus.estimate_ns[0] <= 1.02 * most


def test_recorders_of_other_vendors_were_not_measured() -> None:
    recorded = scaled(profiled_loop(overhead_us=5, **NSYS), 1, cuda_version="HIP 6.4")
    assert correction_of(without_profiler(recorded)) is None
    assert window_of(without_profiler(recorded)).estimate_ns is None


@needs_shared
@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("dataload", {"input-starved"}),
        ("tiny", {"elementwise-chain", "launch-bound"}),
        ("pageable", {"pageable-copy"}),
        ("gpt_small_forward", {"fp32-no-tensor-cores"}),
        ("gpt_small_train", {"fp32-no-tensor-cores"}),
        ("gpt_small_train_bf16_fused", {"launch-bound"}),
        ("item", {"host-sync"}),  # a CUDA graph needs its fix first
        ("healthy", set()),
    ],
)
def test_planted_defects_come_first_and_two_tools_agree_on_the_step(
    name: str, first: set[str]
) -> None:
    """What users get: estimated times of one program under nsys and torch.profiler."""
    result = [
        diagnosed(opened(SHARED / folder / f"{name}{suffix}"))
        for folder, suffix in (("nsys", ".sqlite"), ("torch", ".json.gz"))
    ]
    for diagnosis in result:
        rules = [finding.rule for finding in diagnosis.findings]
        assert set(rules[:1]) <= first if first else not rules
    shorter, longer = sorted(diagnosis.step_ns for diagnosis in result)
    assert longer < 1.35 * shorter, "75.0 and 42.7 ms recorded of one of them"


# Several processes --------------------------------------------------------------------------------


def two_processes(*, device: int, marks: tuple[int, ...]) -> Trace:
    """Record the loop in process 1 and again in process 2, on `device`; `marks`: who stored a time.

    Without the profiler a step takes 300 us in process 1 and 310 us in process 2.
    """
    loop = profiled_loop(overhead_us=5)
    tables: dict[str, Any] = {"ranges": []}
    for process in marks:
        pace = Pace(9, 290_000.0 + 10_000 * process, 300_000.0, 0.01, "before", "optimizer")
        name = f"{MESSAGE}{pace.to_text()}"
        tables["ranges"].append({"name": name, "kind": "mark", "process": process})
    for table in TABLES:
        if table == "processes" or not loop.has(table):
            continue
        rows = loop.table(table).rows(named=True)
        changes = {"process": 2, "device": device}
        other = [{**row, **{k: v for k, v in changes.items() if k in row}} for row in rows]
        tables.setdefault(table, []).extend([*rows, *other])
    tables["processes"] = [{"process": n, "pid": n, "name": "python"} for n in (1, 2)]
    return build_trace(**tables)


def test_each_process_has_its_own_step_time() -> None:
    trace = two_processes(device=1, marks=(1, 2))
    for process in ("1", "2"):
        correction = correction_of(without_profiler(trace, process))
        assert correction is not None
        assert correction.pace.mean_ns == 290_000 + 10_000 * int(process)


def test_the_step_time_of_another_process_is_not_used() -> None:
    trace = two_processes(device=1, marks=(1,))
    assert correction_of(without_profiler(trace, "1")) is not None
    other = without_profiler(trace, "2")
    assert correction_of(other) is None
    assert "another process only" in window_of(other, selection=Selection(process="2")).notes[0]


def test_processes_that_share_a_gpu_are_not_corrected() -> None:
    trace = without_profiler(two_processes(device=0, marks=(1, 2)), "1")
    assert correction_of(trace) is None
    assert "another process uses the same GPU" in window_of(trace).notes[0]
