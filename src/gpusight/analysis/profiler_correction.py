"""The same capture at the speed that the program has without a profiler.

A profiler makes the host slower, not the GPU. Where the step time without it is known, the host's
time is reduced until the replay of the unchanged program takes that long; elsewhere by what the
recorded events are estimated to cost (`profiler_costs`). Every time of the capture is then moved to
where the replay puts it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.analysis.clock_alignment import clock_shifts, clocks_agree
from gpusight.analysis.gpu_schedule import NONE, OpKind, build_schedule, number_rows
from gpusight.analysis.launch_index import launched
from gpusight.analysis.profiler_costs import (
    COSTS,
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
from gpusight.analysis.steps.step_list import counts_on, known_pace
from gpusight.analysis.steps.step_window import (
    WindowedTrace,
    WindowKind,
    step_spans,
    step_window,
    with_uneven_note,
)
from gpusight.errors import UsageError
from gpusight.pace import BEFORE, WHOLE_PROGRAM, Pace
from gpusight.results import NotApplicable
from gpusight.trace.schema import TABLES
from gpusight.trace.trace import MovedSource, Trace
from gpusight.units import TIME_UNITS, format_share, format_time, in_one_unit, parse_amount

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analysis.gpu_schedule import GpuSchedule, ScheduleTiming
    from gpusight.analysis.profiler_costs import EstimatedOverhead
    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.analysis.steps.step_window import Bounds, StepWindow
    from gpusight.trace.intervals import Ints, Reals


MAX_SOLVED_OPS = 24_000
"""GPU activities among which the overhead is found: one replay takes hundredths of a second."""
MAX_MISSED = 0.02
"""How far the corrected step may be from the known one to count as explained."""
MAX_SLOWDOWN = 4.0
"""Steps that were slowed down by more, or are faster by more, are not those that were timed. Where
the recorder counted on from the timed steps they are: torch.profiler slows blocking launches down
5.5 times."""
MAX_ESTIMATED_OPS = 2_000
"""GPU activities on which the estimate is based: three short replays, for every capture."""
MIN_THREAD_SHARE = 0.02
"""Part of the calls that a host thread must make to count as one that launches."""
MIN_ESTIMATED_SHARE = 0.02
"""Share of the step. Where the profiler is estimated to take less, the GPU or other work of the
host sets the pace, and the times of the capture are kept."""


@dataclass(frozen=True)
class Correction:
    """What was taken off the host's time, and what it made of the step."""

    pace: Pace
    """Step time without a profiler: measured, given or estimated."""
    recorded_ns: float
    """Step time of the capture."""
    step_ns: float
    """Step time of the corrected capture."""
    overhead: Overhead
    events: float
    """Recorded events of the launching threads per step."""
    estimate: tuple[float, float] | None = None
    """Lowest and highest step time of an estimate, relative to the corrected one."""
    tool: str = ""
    """Whose overhead was estimated: of the step, or where the step time does not show it."""
    is_hidden: bool = False
    """The host's launches do not set the pace: what was taken off hardly changes the step, but
    where a fix makes the GPU or the input faster, they would."""
    slower: Pace | None = None
    """Steps that were timed, and not used: they were slower than the profiler explains."""

    def range_ns(self, step_ns: float) -> tuple[float, float] | None:
        """Return the lowest and the highest estimate of a step; None where its time is known."""
        if self.estimate is None:
            return None
        low, high = self.estimate
        return low * step_ns, high * step_ns

    def document(self) -> dict[str, Any]:
        """Return plain objects, for JSON."""
        low_ns, high_ns = self.range_ns(self.step_ns) or (None, None)
        return {
            "recorded_step_ns": self.recorded_ns,
            "step_ns": self.step_ns,
            "estimated": self.estimate is not None,
            "low_step_ns": low_ns,
            "high_step_ns": high_ns,
            "measured_step_ns": None if self.estimate else self.pace.mean_ns,
            "measured_steps": self.pace.steps,
            "spread": self.pace.spread if self.pace.steps else None,
            "how": self.pace.how,
            "overhead_per_event_ns": self.overhead.event_ns,
            "overhead_share": self.overhead.share,
            "events_per_step": self.events,
        }

    @property
    def text(self) -> str:
        """Say what was taken off, and how the step time is known."""
        if self.estimate is not None:
            return "; ".join(filter(None, (self.brief, self._estimate_method)))
        known = f"{format_time(self.pace.mean_ns, digits=3)}/step {self.pace.text}"
        unslowed = f"the profiler did not slow the steps down ({known})"
        if self.is_hidden:
            return f"{unslowed}; {self._usual_text} subtracted from host time (estimate)"
        if not self.overhead.event_ns:
            return unslowed
        taken = f"{format_time(round(self.overhead.event_ns), digits=3)} per recorded event"
        if self.overhead.share:
            taken += f" and {format_share(self.overhead.share)} of the host time between events"
        text = f"profiler overhead subtracted: {taken} ({known})"
        if abs(self.step_ns / self.pace.mean_ns - 1) > MAX_MISSED:
            text += f"; the GPU alone takes {format_time(self.step_ns, digits=3)}/step"
        return text

    @property
    def brief(self) -> str:
        """Say how the step time is known, in a line: an estimate without how it was made."""
        if self.estimate is None:
            return self.text
        if self.is_hidden or not self.overhead.event_ns:
            return "the profiler hardly slows the steps down (estimate)"
        low, high = (format_time(s * self.step_ns, digits=3) for s in self.estimate)
        limits = in_one_unit(low, high, " to ")
        return f"step time without the profiler: {limits} (estimate; recorded times: --pace off)"

    @property
    def _estimate_method(self) -> str:
        if not self.overhead.event_ns:
            return ""
        if self.is_hidden:
            return f"{self._usual_text} subtracted from host time"
        text = f"{self._usual_text} subtracted"
        if self.slower is not None:
            timed = format_time(self.slower.mean_ns, digits=3)
            text += f"; steps timed before the recording were slower ({timed}), not used"
        return text

    @property
    def _usual_text(self) -> str:
        """Say what the tool usually takes: `about 1.8 µs per event … of torch.profiler`."""
        taken = f"about {format_time(round(self.overhead.event_ns), digits=2)} per event"
        if weight := COSTS[self.tool].weights.get("cpu_ops"):
            operator = format_time(round(weight * self.overhead.event_ns), digits=2)
            taken += f", {operator} per operator"
        return f"{taken} of {self.tool}"


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
    if isinstance(trace, (_CorrectedTrace, _RecordedTrace)):
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
        return _RecordedTrace(trace, NOT_CORRECTED + reason)
    estimate = _estimate(trace, focus) if known is None or known.how == BEFORE else None
    if known is None or (estimate is not None and estimate.excludes(known)):
        return trace if estimate is None else _estimated(estimate, slower=known)
    moved = corrected(trace, known, selection)
    if isinstance(moved, NotApplicable):
        return _RecordedTrace(trace, NOT_CORRECTED + moved.reason)
    return moved


def _step_time(pace: str | float) -> float:
    """Read a step time: nanoseconds, or a text with a unit."""
    amount = parse_amount(pace) if isinstance(pace, str) else None
    step_ns = amount.scaled(TIME_UNITS) if amount is not None else pace
    if not isinstance(step_ns, (int, float)) or not 0 < step_ns < math.inf:
        raise UsageError(f"no step time: {pace!r}", hint="write 28.6ms, 900us or off")
    return float(step_ns)


def correction_of(trace: Trace) -> Correction | None:
    """Return how a capture was corrected; None for one with the times of its file."""
    return trace.correction if isinstance(trace, (_CorrectedTrace, _RecordedTrace)) else None


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
    schedule = _schedule(trace, focus, focus.steps)
    part = _schedule(trace, focus, _middle(focus.steps, len(schedule.ops), MAX_SOLVED_OPS))
    overhead, weights, tool = known_overhead(part, pace.mean_ns / focus.step_ns), None, ""
    if hidden := hidden_overhead(part, overhead):
        overhead, weights, tool = hidden[0], hidden[1].weights, hidden[1].tool
    events = recorded_events(schedule, weights)
    timing = run_program(overhead.removed_from(calibrate(schedule).program, events))
    moved = _moved(overhead, events, schedule, timing, focus, pace)
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
        return _RecordedTrace(
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
        return _RecordedTrace(trace, estimate=limits)
    schedule, events = estimate.sample, estimate.events
    if estimate.steps < len(focus.steps):
        schedule = _schedule(trace, focus, focus.steps)
        events = recorded_events(schedule, cost.weights)
    pace = Pace.estimated(focus.step_ns * middle_ns / recorded_ns)
    timing = run_program(cost.middle.removed_from(calibrate(schedule).program, events))
    moved = _moved(cost.middle, events, schedule, timing, focus, pace)
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
    overhead: Overhead,
    events: Reals,
    schedule: GpuSchedule,
    timing: ScheduleTiming,
    focus: StepWindow,
    pace: Pace,
) -> _CorrectedTrace:
    """Move all times of a capture to where the replay of its window puts them."""
    steps = len(focus.steps)
    step_ns = (timing.end_ns - timing.start_ns) / steps
    correction = Correction(pace, focus.step_ns, step_ns, overhead, float(events.sum()) / steps)
    moved = _CorrectedTrace(schedule.trace, focus, _MovedTimes(schedule, timing), correction)
    clocks_agree(moved)
    return moved


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


def recorded_span(
    trace: Trace, start_ns: int, end_ns: int, table: str | None, row: int | None
) -> tuple[int, int, int | None]:
    """Return where the capture shows a span or an event of a corrected one: start, end, row."""
    if not isinstance(trace, _CorrectedTrace):
        return start_ns, end_ns, row
    source, times = trace.source, trace.times
    if table is None or row is None:
        first_ns, last_ns = times.recorded(start_ns, end_ns)
        return first_ns, last_ns, None
    recorded_row = source.recorded_row(table, row)
    first_ns, last_ns = source.trace.table(table, ["start_ns", "end_ns"]).row(recorded_row)
    return first_ns, last_ns, recorded_row


def _middle(steps: Sequence[TraceStep], ops: int, most: int) -> Sequence[TraceStep]:
    """Choose steps from the middle of the window with few enough GPU activities."""
    count = max(1, min(len(steps), len(steps) * most // max(1, ops)))
    first = (len(steps) - count) // 2
    return steps[first : first + count]


def sample_schedule(trace: Trace, focus: StepWindow, most: int) -> tuple[GpuSchedule, int]:
    """Lay out steps from the middle of a window, `most` GPU activities; returns how many too."""
    work = launched(trace)["launch_ns"].is_between(focus.host_start_ns, focus.end_ns).sum()
    steps = _middle(focus.steps, int(work), most)
    return _schedule(trace, focus, steps), len(steps)


def _schedule(trace: Trace, focus: StepWindow, steps: Sequence[TraceStep]) -> GpuSchedule:
    """Lay out these steps of a window, up to the step that follows."""
    later = [step.start_ns for step in focus.steps if step.start_ns > steps[-1].start_ns]
    start_ns = focus.start_ns if steps[0] is focus.steps[0] else steps[0].start_ns
    end_ns = later[0] if later else focus.end_ns
    marks = [
        (
            moment_ns,
            NONE if step.process is None else step.process,
            NONE if step.thread is None else step.thread,
        )
        for step in steps
        for moment_ns in (step.start_ns, step.end_ns)
    ]
    return build_schedule(trace, start_ns, end_ns, process=steps[0].process, marks=marks)


class _MovedTimes:
    """Moves times of a capture to where a replay puts them."""

    def __init__(self, schedule: GpuSchedule, timing: ScheduleTiming) -> None:
        self._schedule = schedule
        self._timing = timing
        self._numbers = {thread: number for number, thread in enumerate(schedule.threads)}
        self._rows_of: dict[str, list[tuple[int, Ints]]] = {}

    @property
    def start_ns(self) -> int:
        """When the window begins."""
        return self._timing.start_ns

    @property
    def end_ns(self) -> int:
        """When the window ends."""
        return self._timing.end_ns

    def step(self, step: TraceStep) -> TraceStep:
        """Move a step."""
        process, thread = (NONE if key is None else key for key in (step.process, step.thread))
        number = self._numbers.get((process, thread), NONE)
        start_ns, end_ns = self.moments(number, np.array([step.start_ns, step.end_ns])).tolist()
        return replace(step, start_ns=start_ns, end_ns=end_ns)

    def rows(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Return time columns of a table, moved."""
        if table in _OPS_OF:
            return self._gpu_times(table).select(columns)
        trace = self._schedule.trace
        moved = {c: trace.table(table, [c])[c].to_numpy().copy() for c in columns}
        if table not in self._rows_of:
            threads = self._threads(table)
            numbers = np.unique(threads).tolist()
            self._rows_of[table] = [(n, np.flatnonzero(threads == n)) for n in numbers]
        for thread, rows in self._rows_of[table]:
            for times in moved.values():
                times[rows] = self.moments(thread, times[rows])
        return pl.DataFrame(moved)

    def _threads(self, table: str) -> Ints:
        """Return the number of each row's thread; `NONE` for one that calls nothing."""
        trace = self._schedule.trace
        if not set(_THREAD) <= set(TABLES[table].column_names):
            return np.full(trace.row_count(table), NONE)
        known, rows = number_rows(trace.table(table, _THREAD), _THREAD)
        keys = known.with_columns(pl.col(*_THREAD).cast(pl.Int64).fill_null(NONE)).rows()
        numbers = np.array([self._numbers.get((p, t), NONE) for p, t in keys], np.int64)
        return numbers[rows]

    def moments(self, thread: int, times: Ints) -> Ints:
        """Move moments of a thread, or of none: between its calls in proportion."""
        before, after = self._knots.get(thread, self._knots[NONE])
        inside = np.interp(times, *self._float_knots.get(thread, self._float_knots[NONE]))
        later = times - before[-1] + after[-1]
        moved: Ints = np.where(
            times <= before[0], times, np.where(times >= before[-1], later, inside)
        )
        return moved.astype(np.int64)

    def recorded(self, *moments: int) -> tuple[int, ...]:
        """Return when moments of a replay are in the capture."""
        before, after = self._knots[NONE]
        float_before, float_after = self._float_knots[NONE]
        back = np.interp(moments, float_after, float_before)
        later = np.array(moments) - after[-1] + before[-1]
        back = np.where(np.array(moments) >= after[-1], later, back)
        earlier = np.array(moments) <= after[0]
        return tuple(np.where(earlier, moments, back).astype(np.int64).tolist())

    @cached_property
    def _float_knots(self) -> dict[int, tuple[Reals, Reals]]:
        """The knots as `interp` reads them, which otherwise copies them for every step."""
        return {
            thread: (before.astype(np.float64), after.astype(np.float64))
            for thread, (before, after) in self._knots.items()
        }

    @cached_property
    def _knots(self) -> dict[int, tuple[Ints, Ints]]:
        """Times before and after of the calls of each thread; of no thread: of the busiest one."""
        schedule, timing, calls = self._schedule, self._timing, self._schedule.calls
        knots = {}
        for number in np.unique(calls.thread):
            own = np.flatnonzero(calls.thread == number)
            before, after = (
                np.concatenate(([first], np.stack((s[own], e[own]), axis=1).reshape(-1), [last]))
                for first, s, e, last in (
                    (schedule.start_ns, calls.start_ns, calls.end_ns, schedule.end_ns),
                    (timing.start_ns, timing.call_start_ns, timing.call_end_ns, timing.end_ns),
                )
            )
            # A call that ends after the window in one of the two must not run backwards.
            knots[int(number)] = np.maximum.accumulate(before), np.maximum.accumulate(after)
        ends = np.array([[schedule.start_ns, schedule.end_ns], [timing.start_ns, timing.end_ns]])
        busiest = int(np.bincount(calls.thread).argmax()) if len(calls) else NONE
        return {NONE: (ends[0], ends[1])} | knots | ({NONE: knots[busiest]} if knots else {})

    def _gpu_times(self, table: str) -> pl.DataFrame:
        """Return when GPU activities run: as replayed, others with what runs at their time."""
        ops = self._schedule.ops
        recorded = self._schedule.trace.table(table, ["start_ns", "end_ns"])
        start = self.moments(NONE, recorded["start_ns"].to_numpy())
        length = (recorded["end_ns"] - recorded["start_ns"]).to_numpy()
        # What ran before the window stays; what waited for the GPU at its start runs as replayed.
        inside = ops.start_ns >= self._schedule.start_ns
        own = np.flatnonzero((ops.kind == _OPS_OF[table]) & inside)
        start[ops.row[own]] = self._timing.op_start_ns[own]
        return pl.DataFrame({"start_ns": start, "end_ns": start + length})


_OPS_OF = {kind.table: kind for kind in OpKind}
_THREAD = ["process", "thread"]


class _CorrectedTrace(WindowedTrace):
    """A capture with the times that its program has without the profiler."""

    def __init__(
        self, recorded: Trace, focus: StepWindow, times: _MovedTimes, correction: Correction
    ) -> None:
        self.source = MovedSource(recorded, times.rows)
        super().__init__(self.source)
        self._focus = focus
        self.times = times
        self.correction = correction
        self._windows: dict[Any, StepWindow | NotApplicable] = {}

    def window(
        self, selection: Selection, *, steps: str | None, window: Bounds | None, warmup: bool
    ) -> StepWindow | NotApplicable:
        """Choose a window of the capture, with the times of its file, and move it."""
        key = (selection, steps, window, warmup)
        if key not in self._windows:
            recorded = self.source.trace
            chosen = step_window(recorded, selection, steps=steps, window=window, warmup=warmup)
            known = chosen if isinstance(chosen, NotApplicable) else self._moved(chosen)
            self._windows[key] = known
        return self._windows[key]

    def _moved(self, chosen: StepWindow) -> StepWindow:
        start_ns, end_ns = self.times.moments(NONE, np.array([chosen.start_ns, chosen.end_ns]))
        moved = replace(
            chosen,
            start_ns=int(start_ns),
            end_ns=int(end_ns),
            steps=tuple(map(self.times.step, chosen.steps)),
            left_out=tuple(map(self.times.step, chosen.left_out)),
            notes=(self.correction.text, *chosen.notes),
            recorded_step_ns=chosen.step_ns,
        )
        if not moved.steps or chosen.kind not in {WindowKind.STEPS, WindowKind.NUMBERED}:
            return moved
        if chosen.steps == self._focus.steps:
            start_ns, end_ns = self.times.start_ns, self.times.end_ns
        else:
            begun, done = step_spans(self, moved.steps)
            start_ns, end_ns = int(begun[0]), int(done[-1])
        moved = with_uneven_note(self, replace(moved, start_ns=start_ns, end_ns=end_ns))
        return replace(moved, estimate_ns=self.correction.range_ns(moved.step_ns))


class _RecordedTrace(WindowedTrace):
    """A capture with its recorded times, and what is known about those without the profiler."""

    def __init__(
        self,
        recorded: Trace,
        note: str = "",
        *,
        correction: Correction | None = None,
        estimate: tuple[float, float] | None = None,
    ) -> None:
        # The same tables, read once: nothing moves.
        self.__dict__.update(recorded.__dict__)
        self._recorded = recorded
        self._notes = (note,) if note else ()
        self.correction = correction
        self._estimate = estimate

    def window(
        self, selection: Selection, *, steps: str | None, window: Bounds | None, warmup: bool
    ) -> StepWindow | NotApplicable:
        """Choose a window of the capture, and add what is known."""
        chosen = step_window(self._recorded, selection, steps=steps, window=window, warmup=warmup)
        if isinstance(chosen, NotApplicable):
            return chosen
        chosen = replace(chosen, notes=(*self._notes, *chosen.notes))
        if self._estimate is not None:
            low, high = self._estimate
            return replace(chosen, estimate_ns=(low * chosen.step_ns, high * chosen.step_ns))
        if self.correction is None:
            return chosen
        estimate_ns = self.correction.range_ns(chosen.step_ns)
        return replace(chosen, recorded_step_ns=chosen.step_ns, estimate_ns=estimate_ns)
