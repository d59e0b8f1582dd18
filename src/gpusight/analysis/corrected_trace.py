"""A capture whose times are those of its program without a profiler, and what was taken off."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from gpusight.analysis.gpu_schedule import NONE, OpKind, number_rows
from gpusight.analysis.profiler_costs import (
    COSTS,
    Overhead,
)
from gpusight.analysis.steps.step_list import StepList, ends_of, frame_of, starts_of
from gpusight.analysis.steps.step_window import (
    WindowedTrace,
    step_spans,
    step_window,
    with_uneven_note,
)
from gpusight.core import native
from gpusight.results import NotApplicable
from gpusight.trace.part_of_trace import PartOfTrace
from gpusight.trace.schema import TABLES
from gpusight.trace.trace import MovedSource, Trace
from gpusight.units import format_share, format_time, in_one_unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analysis.gpu_schedule import GpuSchedule, ScheduleTiming
    from gpusight.analysis.selection import Selection
    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.analysis.steps.step_window import Bounds
    from gpusight.analysis.steps.window_headline import StepWindow
    from gpusight.pace import Pace
    from gpusight.trace.intervals import Ints, Reals


MAX_MISSED = 0.02
"""How far the corrected step may be from the known one to count as explained."""


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


class _Knots(NamedTuple):
    """Moments and where they are moved to; both rise."""

    before: Ints
    after: Ints


def _moved_times(knots: _Knots, times: Ints) -> Ints:
    """Move times: between two moments in proportion, those after the last one with it."""
    first, last = knots.before[0], knots.before[-1]
    later = times - last + knots.after[-1]
    between = _between(*knots, times).astype(np.int64)  # the others stay exact
    return np.where(times <= first, times, np.where(times >= last, later, between))


def _between(xs: Ints, ys: Ints, times: Ints) -> Reals:
    """Interpolate as `interp` does, which makes floats of all it gets: of those around alone."""
    if not len(times):
        return np.empty(0, np.float64)
    low = max(int(np.searchsorted(xs, times.min())) - 1, 0)
    high = int(np.searchsorted(xs, times.max(), side="right")) + 1
    low = min(low, len(xs) - 1)
    return np.interp(times, xs[low:high], ys[low:high])


_AT_ONCE = 1 << 20
"""Times of several threads that are moved at once, so that what is needed for it stays small."""


class MovedTimes:
    """Moves times of a capture to where a replay puts them."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._spans: list[tuple[int, int, int, int]] = []
        """Of each schedule: start and end, and where these are moved to."""
        self._numbers: dict[tuple[int, int], int] = {}
        """Of each thread, by process and thread."""
        self._calls: dict[int, list[tuple[Ints, Ints]]] = {}
        """Edges of the calls of each thread, and where they are moved to."""
        self._ops: dict[str, list[tuple[Ints | slice, Ints]]] = {}
        """Rows of GPU activities of each table, and when they start."""
        self._threads_of: dict[str, Ints | int] = {}

    def add(self, schedule: GpuSchedule, timing: ScheduleTiming) -> None:
        """Add the next schedule; it begins where the one before ended."""
        shift = self._spans[-1][3] - timing.start_ns if self._spans else 0
        ends = timing.start_ns + shift, timing.end_ns + shift
        self._spans.append((schedule.start_ns, schedule.end_ns, *ends))
        calls, ops = schedule.calls, schedule.ops
        for number, thread in enumerate(schedule.threads):
            own = np.flatnonzero(calls.thread == number)
            edges = (
                np.concatenate(([first], np.stack((s[own], e[own]), axis=1).reshape(-1), [last]))
                for first, s, e, last in (
                    (schedule.start_ns, calls.start_ns, calls.end_ns, schedule.end_ns),
                    (timing.start_ns, timing.call_start_ns, timing.call_end_ns, timing.end_ns),
                )
            )
            before, after = edges
            number_in_all = self._numbers.setdefault(thread, len(self._numbers))
            self._calls.setdefault(number_in_all, []).append((before, after + shift))
        # What ran before the window stays; what waited for the GPU at its start runs as replayed.
        inside = ops.start_ns >= schedule.start_ns
        for kind in OpKind:
            own = np.flatnonzero((ops.kind == kind) & inside)
            if len(own):
                rows, part = ops.row[own], schedule.trace
                rows = (
                    part.rows_in_whole(kind.table)[rows] if isinstance(part, PartOfTrace) else rows
                )
                starts = timing.op_start_ns[own] + shift
                together = bool((np.diff(rows) == 1).all())
                where = slice(int(rows[0]), int(rows[-1]) + 1) if together else rows
                self._ops.setdefault(kind.table, []).append((where, starts))

    @property
    def start_ns(self) -> int:
        """When the window begins."""
        return self._spans[0][2]

    @property
    def end_ns(self) -> int:
        """When the window ends."""
        return self._spans[-1][3]

    def steps(self, steps: Sequence[TraceStep]) -> StepList:
        """Move steps."""
        frame = frame_of(steps)
        edges = np.stack((starts_of(steps), ends_of(steps)), axis=1)
        known, rows = number_rows(frame, _THREAD)
        keys = known.with_columns(pl.col(*_THREAD).fill_null(NONE)).rows()
        threads = np.array([self._numbers.get((p, t), NONE) for p, t in keys], np.int64)[rows]
        for thread in np.unique(threads).tolist():
            own = threads == thread
            edges[own] = self.moments(thread, edges[own].reshape(-1)).reshape(-1, 2)
        moved = zip(("start_ns", "end_ns"), edges.T, strict=True)
        return StepList(frame.with_columns(pl.Series(name, times) for name, times in moved))

    def rows(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Return time columns of a table, moved."""
        if table in _OPS_OF:
            return self._gpu_times(table).select(columns)
        if table not in self._threads_of:
            self._threads_of[table] = self._threads(table)
        threads = self._threads_of[table]
        times = {c: self._trace.table(table, [c])[c].to_numpy() for c in columns}
        if isinstance(threads, int):
            return pl.DataFrame({c: self.moments(threads, time) for c, time in times.items()})
        moved = {c: np.empty_like(time) for c, time in times.items()}
        for first in range(0, len(threads), _AT_ONCE):
            some = slice(first, first + _AT_ONCE)
            for thread in np.unique(threads[some]).tolist():
                own = np.flatnonzero(threads[some] == thread)
                for column, time in times.items():
                    moved[column][some][own] = self.moments(thread, time[some][own])
        return pl.DataFrame(moved)

    def _threads(self, table: str) -> Ints | int:
        """Return the number of each row's thread, or of all; `NONE` for one that calls nothing."""
        trace = self._trace
        if not set(_THREAD) <= set(TABLES[table].column_names):
            return NONE
        known, rows = number_rows(trace.table(table, _THREAD), _THREAD)
        keys = known.with_columns(pl.col(*_THREAD).cast(pl.Int64).fill_null(NONE)).rows()
        numbers = np.array([self._numbers.get((p, t), NONE) for p, t in keys], np.int64)
        return int(numbers[0]) if len(set(numbers.tolist())) == 1 else numbers[rows]

    def moments(self, thread: int, times: Ints) -> Ints:
        """Move moments of a thread, or of none: between its calls in proportion."""
        knots = self._knots.get(thread, self._knots[NONE])
        compiled = native.move_times(*knots, times)
        return _moved_times(knots, times) if compiled is None else compiled

    def recorded(self, *moments: int) -> tuple[int, ...]:
        """Return when moments of a replay are in the capture."""
        knots = self._knots[NONE]
        back = _moved_times(_Knots(knots.after, knots.before), np.array(moments, np.int64))
        return tuple(back.tolist())

    @cached_property
    def _knots(self) -> dict[int, _Knots]:
        """Times before and after of the calls of each thread; of no thread: of the busiest one."""
        knots = {}
        for number, edges in self._calls.items():
            # A call that ends after the window in one of the two must not run backwards.
            before, after = (
                np.maximum.accumulate(joined := np.concatenate(times), out=joined)
                for times in zip(*edges, strict=True)
            )
            knots[number] = _Knots(before, after)
        self._calls.clear()
        busiest = max(knots, key=lambda number: len(knots[number].before), default=NONE)
        if busiest in knots:
            return knots | {NONE: knots[busiest]}
        (first, *_), (_, last, *_) = self._spans[0], self._spans[-1]
        ends = np.array([first, last]), np.array([self.start_ns, self.end_ns])
        return {NONE: _Knots(*ends)}

    def _gpu_times(self, table: str) -> pl.DataFrame:
        """Return when GPU activities run: as replayed, others with what runs at their time."""
        recorded = self._trace.table(table, ["start_ns", "end_ns"])
        start = self.moments(NONE, recorded["start_ns"].to_numpy())
        for rows, starts in self._ops.get(table, ()):
            start[rows] = starts
        end = recorded["end_ns"].to_numpy() - recorded["start_ns"].to_numpy()
        end += start
        return pl.DataFrame({"start_ns": start, "end_ns": end})


_OPS_OF = {kind.table: kind for kind in OpKind}
_THREAD = ["process", "thread"]


class CorrectedTrace(WindowedTrace):
    """A capture with the times that its program has without the profiler."""

    def __init__(
        self, recorded: Trace, focus: StepWindow, times: MovedTimes, correction: Correction
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
            steps=self.times.steps(chosen.steps),
            left_out=self.times.steps(chosen.left_out),
            notes=(self.correction.text, *chosen.notes),
            recorded_step_ns=chosen.step_ns,
        )
        if not moved.is_of_steps:
            return moved
        if chosen.steps == self._focus.steps:
            start_ns, end_ns = self.times.start_ns, self.times.end_ns
        else:
            begun, done = step_spans(self, moved.steps)
            start_ns, end_ns = int(begun[0]), int(done[-1])
        moved = with_uneven_note(self, replace(moved, start_ns=start_ns, end_ns=end_ns))
        return replace(moved, estimate_ns=self.correction.range_ns(moved.step_ns))


class RecordedTrace(WindowedTrace):
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


def correction_of(trace: Trace) -> Correction | None:
    """Return how a capture was corrected; None for one with the times of its file."""
    return trace.correction if isinstance(trace, (CorrectedTrace, RecordedTrace)) else None


def recorded_span(
    trace: Trace, start_ns: int, end_ns: int, table: str | None, row: int | None
) -> tuple[int, int, int | None]:
    """Return where the capture shows a span of a corrected one: start, end, row of its event."""
    if not isinstance(trace, CorrectedTrace):
        return start_ns, end_ns, row
    # Idle time is between GPU work, whose ends are known.
    first_ns, last_ns = trace.times.recorded(start_ns, end_ns)
    first_ns = _recorded_edge(trace, start_ns, ("start_ns", "end_ns"), first_ns)
    last_ns = _recorded_edge(trace, end_ns, ("end_ns", "start_ns"), last_ns)
    if table is None or row is None:
        return first_ns, max(first_ns, last_ns), None
    columns = ["start_ns", "end_ns"]
    recorded_row = trace.source.recorded_row(table, row)
    # A span may be idle time before its event, or the part of it in a window.
    if trace.table(table, columns).row(row) == (start_ns, end_ns) or last_ns <= first_ns:
        first_ns, last_ns = trace.source.trace.table(table, columns).row(recorded_row)
    return first_ns, last_ns, recorded_row


def _recorded_edge(
    trace: CorrectedTrace, moment_ns: int, columns: tuple[str, str], default_ns: int
) -> int:
    """Return when GPU work began or ended that does so at a moment of the corrected capture.

    It does not move with the host: what it waits for decides.
    """
    for table in ("kernels", "copies", "memsets"):
        if not trace.has(table):
            continue
        recorded = trace.source.trace.table(table, columns)
        moved = trace.table(table, columns)
        for column in columns:
            row = moved[column].index_of(moment_ns)
            if row is not None:
                return int(recorded[column][trace.source.recorded_row(table, row)])
    return default_ns
