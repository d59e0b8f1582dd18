"""The same capture at the speed that the program has without a profiler.

A profiler makes the host slower, not the GPU. Where the step time without it is known, the host's
time is reduced until the replay of the unchanged program takes that long; every time of the capture
is then moved to where the replay puts it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.clock_alignment import clock_shifts
from gpusight.analysis.gpu_schedule import NONE, CallKind, OpKind, build_schedule
from gpusight.analysis.replay.simulation import run_program
from gpusight.analysis.replay.window_replay import calibrate
from gpusight.analysis.selection import EVERYTHING, Selection
from gpusight.analysis.steps.step_launches import launched
from gpusight.analysis.steps.step_window import (
    WindowedTrace,
    WindowKind,
    step_spans,
    step_window,
)
from gpusight.errors import UsageError
from gpusight.pace import MESSAGE, WHOLE_PROGRAM, Pace
from gpusight.results import NotApplicable
from gpusight.trace.moved_times import MovedSource
from gpusight.trace.schema import TABLES
from gpusight.trace.trace import Trace
from gpusight.units import TIME_UNITS, format_share, format_time, parse_amount

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analysis.gpu_schedule import GpuSchedule, ScheduleTiming
    from gpusight.analysis.replay.simulation import ReplayProgram
    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.analysis.steps.step_window import Bounds, StepWindow
    from gpusight.trace.intervals import Ints


MAX_SOLVED_OPS = 24_000
"""GPU activities among which the overhead is found: one replay takes hundredths of a second."""
MAX_EVENT_NS = 20_000.0
"""Largest overhead per recorded event: 4 to 16 us explain the measured step times of programs that
the host limits. What is more than this slows the host down as a whole."""
MAX_MISSED = 0.02
"""How far the corrected step may be from the known one to count as explained."""
MAX_SLOWDOWN = 4.0
"""No profiler slows a step down by more, nor does it make one faster: then the steps differ."""
TOLERANCE = 0.002
"""How exactly the replay must take the time that is known."""
_MAX_REPLAYS = 24
_EVENT_TABLES = ("api_calls", "cpu_ops", "ranges", "os_calls", "python_calls")
"""What a profiler records of the host; each row costs the program time."""


@dataclass(frozen=True)
class Correction:
    """What was taken off the host's time, and what it made of the step."""

    pace: Pace
    """Step time without a profiler, measured or given."""
    recorded_ns: float
    """Step time of the capture."""
    step_ns: float
    """Step time of the corrected capture."""
    overhead: Overhead
    events: float
    """Recorded events of the launching threads per step."""

    def document(self) -> dict[str, Any]:
        """Return plain objects, for JSON."""
        return {
            "recorded_step_ns": self.recorded_ns,
            "step_ns": self.step_ns,
            "measured_step_ns": self.pace.mean_ns,
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
        known = f"{format_time(self.pace.mean_ns, digits=3)}/step {self.pace.text}"
        if not self.overhead.event_ns:
            return f"the profiler did not slow the steps down ({known})"
        taken = f"{format_time(round(self.overhead.event_ns), digits=3)} per recorded event"
        if self.overhead.share:
            taken += f" and {format_share(self.overhead.share)} of the other host time"
        text = f"profiler overhead taken off: {taken} ({known})"
        if abs(self.step_ns / self.pace.mean_ns - 1) > MAX_MISSED:
            text += f"; the GPU alone takes {format_time(self.step_ns, digits=3)}/step"
        return text


OFF = "off"


def known_pace(trace: Trace, process: int | None = None) -> Pace | None:
    """Return the step time without a profiler that the recorder stored with the capture.

    Each process marks its own: with `process`, the one of that process.
    """
    known = trace.stored_pace or trace.meta.pace
    if known is not None or not trace.has("ranges"):
        return known
    names = names_of(trace.table("ranges", ["name"])["name"])
    codes = [code for code, name in enumerate(names) if name.startswith(MESSAGE)]
    if not codes:
        return None
    is_mark = pl.col("name").to_physical().is_in(codes)
    if process is not None:
        is_mark &= pl.col("process").is_null() | (pl.col("process") == process)
    marks = trace.table("ranges", ["name", "process"]).filter(is_mark)["name"]
    try:
        return None if marks.is_empty() else Pace.from_text(marks[0].removeprefix(MESSAGE))
    except (ValueError, RecursionError):
        # Damaged, or of another version: then times are those of the capture.
        return None


def without_profiler(trace: Trace, process: str | None = None) -> Trace:
    """Return the capture with the times that the program has without the profiler.

    They are known where the recorder or the user (`Trace.pace`) gave the step time; where nobody
    did, times stay as they are; also where the time of the recorder does not fit the capture, with
    a note on the reason. With `process`, by name or number, the steps are those of that process.
    """
    if isinstance(trace, (_CorrectedTrace, _NotedTrace)):
        return trace
    view = f"without the profiler, {trace.pace}, {process}"
    if view not in trace.views:
        trace.views[view] = _chosen(trace, trace.pace, Selection(process=process))
    return trace.views[view]


def _chosen(trace: Trace, pace: str | float | None, selection: Selection) -> Trace:
    if pace == OFF:
        return trace
    if pace is None:
        if known_pace(trace) is None:
            return trace
        focus = step_window(trace, selection)
        steps = () if isinstance(focus, NotApplicable) else focus.steps
        known = known_pace(trace, steps[0].process if steps else None)
        if known is None:
            return _NotedTrace(trace, "the step time without it is known of another process only")
        moved = corrected(trace, known, selection)
        return moved if isinstance(moved, Trace) else _NotedTrace(trace, moved.reason)
    moved = corrected(trace, Pace.given(_step_time(pace)), selection)
    if isinstance(moved, NotApplicable):
        raise UsageError("the times cannot be corrected", why=moved.reason, hint="--pace off")
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
    return trace.correction if isinstance(trace, _CorrectedTrace) else None


def corrected(trace: Trace, pace: Pace, selection: Selection = EVERYTHING) -> Trace | NotApplicable:
    """Return the capture as it would be if its steps took the time without a profiler."""
    focus = step_window(trace, selection)
    if isinstance(focus, NotApplicable):
        return focus
    if not focus.steps:
        return NotApplicable("pace", "no steps found, so that a step time cannot be compared", "")
    if pace.step_source == WHOLE_PROGRAM:
        return NotApplicable("pace", "only the time of the whole program is known", "")
    if clock_shifts(trace):
        return NotApplicable("pace", "the clocks of host and GPU disagree", "")
    if _shares_gpu(trace, focus):
        reason = "another process uses the same GPU, which slows both down without a profiler too"
        return NotApplicable("pace", reason, "")
    slowdown = focus.step_ns / pace.mean_ns
    if not 1 / MAX_SLOWDOWN < slowdown < MAX_SLOWDOWN:
        recorded, plain = (format_time(t, digits=3) for t in (focus.step_ns, pace.mean_ns))
        reason = (
            f"steps take {recorded} in the capture and {plain} without the profiler: these are "
            "not the same steps"
        )
        return NotApplicable("pace", reason, "")
    schedule = _schedule(trace, focus, focus.steps)
    part = _schedule(trace, focus, _middle(focus.steps, len(schedule.ops)))
    overhead = _overhead(part, pace.mean_ns / focus.step_ns)
    events = recorded_events(schedule)
    timing = run_program(overhead.taken_off(calibrate(schedule).program, events))
    steps = len(focus.steps)
    step_ns = (timing.end_ns - timing.start_ns) / steps
    correction = Correction(pace, focus.step_ns, step_ns, overhead, float(events.sum()) / steps)
    return _CorrectedTrace(trace, focus, _MovedTimes(schedule, timing), correction)


def _shares_gpu(trace: Trace, focus: StepWindow) -> bool:
    """Return whether another process uses the GPUs of the steps for a part of the window."""
    inside = (pl.col("start_ns") < focus.end_ns) & (pl.col("end_ns") > focus.start_ns)
    work = launched(trace).filter(inside).drop_nulls(["process", "device"])
    is_own = pl.col("process") == focus.steps[0].process
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


def _middle(steps: Sequence[TraceStep], ops: int) -> Sequence[TraceStep]:
    """Choose steps from the middle of the window with few enough GPU activities."""
    count = max(1, min(len(steps), len(steps) * MAX_SOLVED_OPS // max(1, ops)))
    first = (len(steps) - count) // 2
    return steps[first : first + count]


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


@dataclass(frozen=True, slots=True)
class Overhead:
    """What a profiler adds to the host's time."""

    event_ns: float
    """Per recorded event."""
    share: float = 0.0
    """Of all that is left of the host's time."""

    @classmethod
    def of(cls, amount: float) -> Overhead:
        """Return more overhead for a larger amount: up to 1 per event, up to 2 of all time too."""
        return cls(min(amount, 1.0) * MAX_EVENT_NS, max(0.0, amount - 1))

    def taken_off(self, program: ReplayProgram, events: Ints) -> ReplayProgram:
        """Return a program without the overhead."""
        if not self.event_ns:
            return program
        gap_ns, own_ns = (
            self._reduced(host_ns, count)
            for host_ns, count in ((program.gap_ns, events[0]), (program.own_ns, events[1]))
        )
        movable_ns = np.minimum(program.movable_ns, np.maximum(gap_ns, 0))
        return program.changed(gap_ns=gap_ns, movable_ns=movable_ns, own_ns=own_ns)

    def _reduced(self, host_ns: Ints, events: Ints) -> Ints:
        """Take events off times that are long against them, and a part off the others."""
        positive = np.maximum(host_ns, 1)
        left = (1 - self.share) * positive * np.exp(-events * self.event_ns / positive)
        reduced: Ints = np.where(host_ns > 0, left, host_ns).astype(np.int64)
        return reduced


def _overhead(schedule: GpuSchedule, share: float) -> Overhead:
    """Find the overhead without which the replay takes this share of its time.

    Where the GPU needs more than that, the smallest one with which it does not wait for the host.
    """
    program = calibrate(schedule).program
    events = recorded_events(schedule)

    def length_ns(amount: float) -> int:
        timing = run_program(Overhead.of(amount).taken_off(program, events))
        return timing.end_ns - timing.start_ns

    low, high = 0.0, 2.0
    wanted_ns = max(share * length_ns(low), (1 + TOLERANCE) * length_ns(high))
    if length_ns(low) <= wanted_ns:
        return Overhead(0.0)
    for _ in range(_MAX_REPLAYS):
        middle = (low + high) / 2
        missed_ns = length_ns(middle) - wanted_ns
        if abs(missed_ns) < TOLERANCE * wanted_ns:
            return Overhead.of(middle)
        low, high = (middle, high) if missed_ns > 0 else (low, middle)
    return Overhead.of(high)


def recorded_events(schedule: GpuSchedule) -> Ints:
    """Count what was recorded on its thread in the time before each call, and in it."""
    calls, trace = schedule.calls, schedule.trace
    counts = np.zeros((2, len(calls)), np.int64)
    # Part of what recording a call takes lies outside its own time stamps.
    counts[0] = calls.kind != CallKind.MARK
    for table in _EVENT_TABLES:
        if not trace.has(table):
            continue
        frame = trace.table(table, ["start_ns", "process", "thread"])
        for number, (process, thread) in enumerate(schedule.threads):
            own = np.flatnonzero(calls.thread == number)
            times = frame.filter(
                pl.col("process").fill_null(NONE) == process,
                pl.col("thread").fill_null(NONE) == thread,
            )["start_ns"].to_numpy()
            edges = (schedule.before_calls[own], calls.start_ns[own], calls.end_ns[own])
            before, start, end = (np.searchsorted(times, edge) for edge in edges)
            counts[0, own] += np.maximum(start - before, 0)
            counts[1, own] += np.maximum(end - start, 0)
    return counts


class _MovedTimes:
    """Moves times of a capture to where a replay puts them."""

    def __init__(self, schedule: GpuSchedule, timing: ScheduleTiming) -> None:
        self._schedule = schedule
        self._timing = timing
        self._numbers = {thread: number for number, thread in enumerate(schedule.threads)}

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
        threads = self._threads(table)
        for thread in np.unique(threads):
            rows = np.flatnonzero(threads == thread)
            for times in moved.values():
                times[rows] = self.moments(int(thread), times[rows])
        return pl.DataFrame(moved)

    def _threads(self, table: str) -> Ints:
        """Return the number of each row's thread; `NONE` for one that calls nothing."""
        trace = self._schedule.trace
        if not set(_THREAD) <= set(TABLES[table].column_names):
            return np.full(trace.row_count(table), NONE)
        schema = dict.fromkeys((*_THREAD, "number"), pl.Int64)
        known = [(*key, number) for key, number in self._numbers.items()]
        frame = trace.table(table, _THREAD).with_columns(pl.col(*_THREAD).cast(pl.Int64))
        numbers = frame.fill_null(NONE).join(
            pl.DataFrame(known, schema=schema, orient="row"),
            on=_THREAD,
            how="left",
            maintain_order="left",
        )["number"]
        threads: Ints = numbers.fill_null(NONE).to_numpy()
        return threads

    def moments(self, thread: int, times: Ints) -> Ints:
        """Move moments of a thread, or of none: between its calls in proportion."""
        before, after = self._knots.get(thread, self._knots[NONE])
        inside = np.interp(times, before, after)
        later = times - before[-1] + after[-1]
        moved: Ints = np.where(
            times <= before[0], times, np.where(times >= before[-1], later, inside)
        )
        return moved.astype(np.int64)

    def recorded(self, *moments: int) -> tuple[int, ...]:
        """Return when moments of a replay are in the capture."""
        before, after = self._knots[NONE]
        back = np.interp(moments, after, before)
        later = np.array(moments) - after[-1] + before[-1]
        back = np.where(np.array(moments) >= after[-1], later, back)
        earlier = np.array(moments) <= after[0]
        return tuple(np.where(earlier, moments, back).astype(np.int64).tolist())

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
        own = np.flatnonzero((ops.kind == _OPS_OF[table]) & ~ops.carried)
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
            return replace(moved, start_ns=self.times.start_ns, end_ns=self.times.end_ns)
        begun, done = step_spans(self, moved.steps)
        return replace(moved, start_ns=int(begun[0]), end_ns=int(done[-1]))


class _NotedTrace(WindowedTrace):
    """A capture with its recorded times and a note why they are not corrected."""

    def __init__(self, recorded: Trace, reason: str) -> None:
        super().__init__(MovedSource(recorded, lambda _table, _columns: None))
        self._recorded = recorded
        self._note = f"not corrected for the profiler: {reason}"

    def window(
        self, selection: Selection, *, steps: str | None, window: Bounds | None, warmup: bool
    ) -> StepWindow | NotApplicable:
        """Choose a window of the capture, and add the note."""
        chosen = step_window(self._recorded, selection, steps=steps, window=window, warmup=warmup)
        if isinstance(chosen, NotApplicable):
            return chosen
        return replace(chosen, notes=(self._note, *chosen.notes))
