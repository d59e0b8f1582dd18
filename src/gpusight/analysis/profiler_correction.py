"""The same capture at the speed that the program has without a profiler.

A profiler makes the host slower, not the GPU. Where the step time without it is known, the host's
time is reduced until the replay of the unchanged program takes that long; elsewhere by what the
recorded events are estimated to cost (`profiler_costs`). Every time of the capture is then moved to
where the replay puts it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.clock_alignment import clock_shifts, clocks_agree
from gpusight.analysis.corrected_trace import (
    MAX_MISSED,
    CorrectedTrace,
    Correction,
    MovedTimes,
    RecordedTrace,
)
from gpusight.analysis.gpu_schedule import build_schedule, step_marks
from gpusight.analysis.launch_index import launched, launches_of
from gpusight.analysis.profiler_costs import (
    Overhead,
    estimate_overhead,
    hidden_overhead,
    known_overhead,
    recorded_events,
    replayed_length,
)
from gpusight.analysis.replay.simulation import run_program
from gpusight.analysis.replay.window_replay import calibrate
from gpusight.analysis.selection import EVERYTHING, Selection
from gpusight.analysis.steps.step_list import counts_on, known_pace, starts_of
from gpusight.analysis.steps.step_window import step_window
from gpusight.errors import UsageError
from gpusight.pace import BEFORE, WHOLE_PROGRAM, Pace
from gpusight.results import NotApplicable
from gpusight.trace.part_of_trace import part_of
from gpusight.units import TIME_UNITS, format_time, parse_amount

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.analysis.profiler_costs import EstimatedOverhead
    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.analysis.steps.window_headline import StepWindow
    from gpusight.trace.intervals import Reals
    from gpusight.trace.trace import Trace


MAX_SOLVED_OPS = 24_000
"""GPU activities among which the overhead is found: one replay takes hundredths of a second."""
MAX_SLOWDOWN = 4.0
"""Steps that were slowed down by more, or are faster by more, are not those that were timed. Where
the recorder counted on from the timed steps they are: torch.profiler slows blocking launches down
5.5 times."""
MAX_AT_ONCE = 1_500_000
"""GPU activities whose steps are replayed in one go; more are replayed group by group."""
IN_A_GROUP = 500_000
"""GPU activities of such a group."""
MAX_ESTIMATED_OPS = 2_000
"""GPU activities on which the estimate is based: three short replays, for every capture."""
MIN_THREAD_SHARE = 0.02
"""Part of the calls that a host thread must make to count as one that launches."""
MIN_ESTIMATED_SHARE = 0.02
"""Share of the step. Where the profiler is estimated to take less, the GPU or other work of the
host sets the pace, and the times of the capture are kept."""


OFF = "off"
NOT_CORRECTED = "not corrected for the profiler: "
"""How the note begins that has the reason why a known step time was not used."""


def without_profiler(trace: Trace, process: str | None = None) -> Trace:
    """Return the capture with the times that the program has without the profiler.

    They are known where the recorder or the user (`Trace.pace`) gave the step time; where nobody
    did, they are estimated. Times stay as they are where the time of the recorder does not fit the
    capture, with a note on the reason, and where nothing can be estimated. With `process`, by name
    or number, the steps are those of that process.
    """
    if isinstance(trace, (CorrectedTrace, RecordedTrace)):
        return trace
    view = f"without the profiler, {trace.pace}, {process}"
    if view not in trace.views:
        trace.views[view] = _chosen(trace, trace.pace, Selection(process=process))
    return trace.views[view]


def _chosen(trace: Trace, pace: str | float | None, selection: Selection) -> Trace:
    if pace == OFF:
        return trace
    if pace is not None:
        moved = corrected(trace, Pace.given(_step_time(pace)), selection)
        if isinstance(moved, NotApplicable):
            raise UsageError("the times cannot be corrected", why=moved.reason, hint="--pace off")
        return moved
    focus = step_window(trace, selection)
    steps = () if isinstance(focus, NotApplicable) else focus.steps
    known = known_pace(trace, steps[0].process if steps else None)
    if known is None and known_pace(trace) is not None:
        reason = "the step time without it is known of another process only"
        return RecordedTrace(trace, NOT_CORRECTED + reason)
    estimate = _estimate(trace, focus) if known is None or known.how == BEFORE else None
    if known is None or (estimate is not None and estimate.excludes(known)):
        return trace if estimate is None else _estimated(estimate, slower=known)
    moved = corrected(trace, known, selection)
    if isinstance(moved, NotApplicable):
        return RecordedTrace(trace, NOT_CORRECTED + moved.reason)
    return moved


def _step_time(pace: str | float) -> float:
    """Read a step time: nanoseconds, or a text with a unit."""
    amount = parse_amount(pace) if isinstance(pace, str) else None
    step_ns = amount.scaled(TIME_UNITS) if amount is not None else pace
    if not isinstance(step_ns, (int, float)) or not 0 < step_ns < math.inf:
        raise UsageError(f"no step time: {pace!r}", hint="write 28.6ms, 900us or off")
    return float(step_ns)


def corrected(trace: Trace, pace: Pace, selection: Selection = EVERYTHING) -> Trace | NotApplicable:
    """Return the capture as it would be if its steps took the time without a profiler."""
    focus = step_window(trace, selection)
    if isinstance(focus, NotApplicable):
        return focus
    if not focus.steps:
        return NotApplicable("pace", "no steps found, so that a step time cannot be compared", "")
    if pace.step_source == WHOLE_PROGRAM:
        return NotApplicable("pace", "only the time of the whole program is known", "")
    if reason := obstacle(trace, focus):
        return NotApplicable("pace", reason, "")
    slowdown = focus.step_ns / pace.mean_ns
    highest = math.inf if counts_on(focus.steps, pace) else MAX_SLOWDOWN
    if not 1 / MAX_SLOWDOWN < slowdown < highest:
        recorded, plain = (format_time(t, digits=3) for t in (focus.step_ns, pace.mean_ns))
        reason = (
            f"steps take {recorded} in the capture and {plain} without the profiler: these are "
            "not the same steps"
        )
        return NotApplicable("pace", reason, "")
    groups = _step_groups(trace, focus)
    schedule = _schedule(trace, focus, focus.steps) if len(groups) == 1 else None
    ops = _work_count(trace, focus) if schedule is None else len(schedule.ops)
    part = _schedule(trace, focus, _middle(focus.steps, ops, MAX_SOLVED_OPS))
    overhead, weights, tool = known_overhead(part, pace.mean_ns / focus.step_ns), None, ""
    if hidden := hidden_overhead(part, overhead):
        overhead, weights, tool = hidden[0], hidden[1].weights, hidden[1].tool
    moved = _moved(trace, focus, groups, overhead, weights, pace, schedule)
    moved.correction = replace(moved.correction, tool=tool, is_hidden=bool(hidden))
    return moved


@dataclass(frozen=True)
class _Estimate:
    """What the profiler of a capture is likely to take, and the steps that were replayed for it."""

    focus: StepWindow
    cost: EstimatedOverhead
    sample: GpuSchedule
    steps: int
    """In the sample."""
    events: Reals
    recorded_ns: int
    low_ns: int
    middle_ns: int
    high_ns: int
    """Of the sample: as recorded, and without the highest, the likely and the lowest cost."""

    @property
    def is_little(self) -> bool:
        """The profiler hardly slows the steps down."""
        return self.middle_ns > (1 - MIN_ESTIMATED_SHARE) * self.recorded_ns

    def excludes(self, pace: Pace) -> bool:
        """Return whether steps timed before the recording are no measure of the recorded ones.

        They were slower than the recorded ones without the least that recording costs: the program
        was not warm yet, or did something else. Where the GPU sets the pace, this cannot be seen.
        """
        if not self.cost.is_used or self.is_little:
            return False
        return pace.mean_ns > self.focus.step_ns * self.high_ns / self.recorded_ns


def _estimate(trace: Trace, focus: StepWindow | NotApplicable) -> _Estimate | None:
    """Estimate the time of some steps; None for a tool that was not measured."""
    if isinstance(focus, NotApplicable) or not focus.steps or obstacle(trace, focus):
        return None
    sample, steps = sample_schedule(trace, focus, MAX_ESTIMATED_OPS)
    cost = estimate_overhead(sample)
    if cost is None:
        return None
    length_ns, events = replayed_length(sample, cost.weights)
    cost = cost.limited(length_ns)
    lengths = map(length_ns, (cost.high, cost.middle, cost.low))
    return _Estimate(focus, cost, sample, steps, events, sample.end_ns - sample.start_ns, *lengths)


def _threads_run_apart(schedule: GpuSchedule) -> bool:
    """Return whether several host threads launch, which wait for each other without any CUDA call.

    A replay moves each by itself: with less host time they would drift apart.
    """
    calls = np.bincount(schedule.calls.host_thread)
    return int(np.count_nonzero(calls >= MIN_THREAD_SHARE * calls.sum())) > 1


def _estimated(estimate: _Estimate, slower: Pace | None) -> Trace:
    """Return the capture without the overhead that its profiler is likely to have.

    `slower` are steps that were timed, but took too long to be the recorded ones.
    """
    trace, focus, cost = estimate.sample.trace, estimate.focus, estimate.cost
    recorded_ns, middle_ns = estimate.recorded_ns, estimate.middle_ns
    if estimate.is_little and (not cost.is_used or _threads_run_apart(estimate.sample)):
        return RecordedTrace(
            trace,
            correction=Correction(
                Pace.estimated(focus.step_ns),
                recorded_ns=focus.step_ns,
                step_ns=focus.step_ns,
                overhead=Overhead(0.0),
                events=float(estimate.events.sum()) / estimate.steps,
                estimate=(estimate.low_ns / recorded_ns, 1.0),
            ),
        )
    if not cost.is_used:
        limits = estimate.low_ns / recorded_ns, estimate.high_ns / recorded_ns
        return RecordedTrace(trace, estimate=limits)
    schedule = estimate.sample if estimate.steps == len(focus.steps) else None
    pace = Pace.estimated(focus.step_ns * middle_ns / recorded_ns)
    groups = _step_groups(trace, focus)
    moved = _moved(trace, focus, groups, cost.middle, cost.weights, pace, schedule)
    limits = estimate.low_ns / middle_ns, estimate.high_ns / middle_ns
    moved.correction = replace(
        moved.correction,
        estimate=limits,
        tool=cost.tool,
        slower=slower,
        is_hidden=estimate.is_little,
    )
    return moved


def _moved(
    trace: Trace,
    focus: StepWindow,
    groups: Sequence[Sequence[TraceStep]],
    overhead: Overhead,
    weights: Mapping[str, float] | None,
    pace: Pace,
    known: GpuSchedule | None,
) -> CorrectedTrace:
    """Move all times of a capture to where the replay of its steps puts them.

    `known` is the schedule of all steps, where there is one already.
    """
    times, counted = MovedTimes(trace), 0.0
    for group in groups:
        if known is None or len(groups) > 1:
            schedule = _schedule(trace, focus, group, is_part=len(groups) > 1)
        else:
            schedule = known
        events = recorded_events(schedule, weights)
        counted += float(events.sum())
        program = overhead.removed_from(calibrate(schedule).program, events)
        times.add(schedule, run_program(program))
    steps = len(focus.steps)
    step_ns = (times.end_ns - times.start_ns) / steps
    correction = Correction(pace, focus.step_ns, step_ns, overhead, counted / steps)
    moved = CorrectedTrace(trace, focus, times, correction)
    clocks_agree(moved)
    return moved


def _step_groups(trace: Trace, focus: StepWindow) -> list[Sequence[TraceStep]]:
    """Split the steps of a long window into groups that are replayed one after the other."""
    launches = np.cumsum(launches_of(launched(trace), focus.steps))
    if launches[-1] <= MAX_AT_ONCE:
        return [focus.steps]
    number = launches // IN_A_GROUP
    cuts = np.flatnonzero(np.diff(number)) + 1
    edges = [0, *cuts.tolist(), len(focus.steps)]
    return [focus.steps[first:after] for first, after in pairwise(edges)]


def obstacle(trace: Trace, focus: StepWindow) -> str:
    """Return why the times of a capture cannot be moved; empty where they can."""
    if clock_shifts(trace):
        return "the clocks of host and GPU disagree"
    if _shares_gpu(trace, focus):
        return "another process uses the same GPU, which slows both down without a profiler too"
    return ""


def _shares_gpu(trace: Trace, focus: StepWindow) -> bool:
    """Return whether another process uses the GPUs of the steps for a part of the window."""
    process = focus.steps[0].process
    if process is None:
        return False
    inside = (pl.col("start_ns") < focus.end_ns) & (pl.col("end_ns") > focus.start_ns)
    work = launched(trace).filter(inside).drop_nulls(["process", "device"])
    is_own = pl.col("process") == process
    own = work.filter(is_own)
    other = work.filter(~is_own, pl.col("device").is_in(own["device"].unique().implode()))
    own_ns, other_ns = (float((part["end_ns"] - part["start_ns"]).sum()) for part in (own, other))
    return other_ns > MAX_MISSED * own_ns


def _middle(steps: Sequence[TraceStep], ops: int, most: int) -> Sequence[TraceStep]:
    """Choose steps from the middle of the window with few enough GPU activities."""
    count = max(1, min(len(steps), len(steps) * most // max(1, ops)))
    first = (len(steps) - count) // 2
    return steps[first : first + count]


def sample_schedule(trace: Trace, focus: StepWindow, most: int) -> tuple[GpuSchedule, int]:
    """Lay out steps from the middle of a window, `most` GPU activities; returns how many too."""
    steps = _middle(focus.steps, _work_count(trace, focus), most)
    return _schedule(trace, focus, steps), len(steps)


def _work_count(trace: Trace, focus: StepWindow) -> int:
    """Count what was launched in a window."""
    return int(launched(trace)["launch_ns"].is_between(focus.host_start_ns, focus.end_ns).sum())


def _schedule(
    trace: Trace, focus: StepWindow, steps: Sequence[TraceStep], *, is_part: bool = False
) -> GpuSchedule:
    """Lay out these steps of a window, up to the step that follows; of a part of the capture."""
    starts = starts_of(focus.steps)
    later = starts[starts > steps[-1].start_ns]
    start_ns = focus.start_ns if steps[0] == focus.steps[0] else steps[0].start_ns
    end_ns = int(later[0]) if len(later) else focus.end_ns
    shown = part_of(trace, (start_ns, end_ns)) if is_part else trace
    process = steps[0].process
    return build_schedule(shown, start_ns, end_ns, process=process, marks=step_marks(steps))
