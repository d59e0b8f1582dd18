"""The memory history of each GPU and the host, the selected part of it, and growth per step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.memory.allocations import COLUMNS, ROW, from_events, from_snapshot, on_gpu
from gpusight.analysis.selection import ResolvedSelection
from gpusight.analysis.steps.step_list import find_steps
from gpusight.analysis.steps.step_window import window_steps
from gpusight.errors import DamagedCaptureError, UsageError
from gpusight.results import Field, Fmt, NotApplicable, TableResult
from gpusight.trace.intervals import Intervals, contains

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analysis.memory.allocations import AllocationHistory
    from gpusight.analysis.selection import Selection
    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


_BUCKETS = 480
POINTS = _BUCKETS * 4 + 2
"""The most points of a downsampled timeline."""


@dataclass(frozen=True)
class MemoryPoints:
    """Times, and the last event up to each, which sets the levels then."""

    times: Ints
    events: Ints

    def __len__(self) -> int:
        """Count the points."""
        return len(self.times)


@dataclass(frozen=True)
class MemoryView:
    """The part of a history in the selected time."""

    history: AllocationHistory
    inside: Ints
    """Numbers of the events in that time."""
    points: MemoryPoints
    """The start of each span, each event inside, and its end; in order of time."""
    peak: int
    """Number of the point with the most memory in use; the first of them."""

    @property
    def start_ns(self) -> int:
        """Where the selected time begins."""
        return int(self.points.times[0])

    @property
    def end_ns(self) -> int:
        """Where the selected time ends."""
        return int(self.points.times[-1])

    @property
    def peak_ns(self) -> int:
        """Time of the peak."""
        return int(self.points.times[self.peak])

    @property
    def peak_event(self) -> int:
        """The last event up to the peak."""
        return int(self.points.events[self.peak])

    @property
    def peak_bytes(self) -> int:
        """The most in use."""
        return self.history.allocated_after(self.peak_event)

    @property
    def end_bytes(self) -> int:
        """Bytes in use at the end."""
        return self.history.allocated_after(int(self.points.events[-1]))

    @property
    def takes(self) -> Ints:
        """Sizes of the allocations inside."""
        sizes = self.history.takes[self.inside]
        return sizes[sizes > 0]


def allocated_at(history: AllocationHistory, points: MemoryPoints) -> Ints:
    """Return the bytes in use at points."""
    return np.append(history.allocated, history.start_allocated)[points.events]


def reserved_at(history: AllocationHistory, points: MemoryPoints) -> Ints | None:
    """Return the bytes reserved from the driver at points; None where not recorded."""
    if history.reserved is None or history.start_reserved is None:
        return None
    return np.append(history.reserved, history.start_reserved)[points.events]


def thin(view: MemoryView) -> MemoryPoints:
    """Keep at most POINTS points: of each bucket of time the extremes and the last."""
    points, times = view.points, view.points.times
    if len(points) <= POINTS:
        return points
    width_ns = (view.end_ns - view.start_ns) / _BUCKETS
    bucket = np.minimum((times - view.start_ns) // width_ns, _BUCKETS - 1)
    changes = np.diff(bucket) > 0
    number = np.cumsum(np.r_[0, changes])
    firsts, lasts = np.flatnonzero(np.r_[True, changes]), np.flatnonzero(np.r_[changes, True])

    def extremes(levels: Ints, extreme: np.ufunc) -> Ints:
        """Find the first point in each bucket where its extreme is reached."""
        reached = np.flatnonzero(levels == extreme.reduceat(levels, firsts)[number])
        first_reached: Ints = reached[np.r_[True, np.diff(number[reached]) > 0]]
        return first_reached

    allocated, reserved = allocated_at(view.history, points), reserved_at(view.history, points)
    kept = [np.array([0, view.peak]), lasts]
    kept += [extremes(allocated, np.maximum), extremes(allocated, np.minimum)]
    if reserved is not None:
        kept.append(extremes(reserved, np.maximum))
    rows = np.unique(np.concatenate(kept))
    return MemoryPoints(times[rows], points.events[rows])


_MAX_SIZE = 1 << 58
_MAX_SUM = 1 << 61
"""No machine reaches them; far below where integers overflow."""
_FINAL = (
    "device", "stream", "segment", "segment_bytes", "segment_kind", "expandable", "address",
    "bytes", "requested_bytes", "state",
)  # fmt: skip


class DeviceMemories:
    """The memory of each GPU and of the host, as far as it is selected."""

    def __init__(self, trace: Trace, selection: Selection) -> None:
        self.trace = trace
        self.selection = selection
        # The device is checked in `gpus`: the capture may have no other activity of that GPU.
        self._whole = ResolvedSelection(
            trace, replace(selection, device=None, within=None, time=None)
        )
        self.events = self._whole.host("memory_events", COLUMNS, row_index=ROW)
        self.final = trace.table("memory_blocks", _FINAL)
        operations = self.events["operation"].cast(pl.String).unique()
        self.is_snapshot = trace.has("memory_blocks") or "segment_allocation" in operations
        _check_sizes(self.events, ("bytes", "allocated_bytes", "reserved_bytes"))
        _check_sizes(self.final, ("bytes", "requested_bytes", "segment_bytes"))
        self._events: dict[int | None, pl.DataFrame] = {}
        self._views: dict[int | None, MemoryView] = {}

    @cached_property
    def gpus(self) -> list[int]:
        """The GPUs whose memory was recorded; only the selected one where one is."""
        named = self.events.filter(on_gpu())["device"].unique().to_list()
        known = sorted({*named, *self.final["device"].unique().to_list()})
        wanted = self.selection.device
        if wanted is None:
            return known
        if wanted not in known:
            names = ", ".join(map(str, known)) or "none"
            raise UsageError(
                f"no memory of GPU {wanted} was recorded", hint=f"GPUs with memory: {names}"
            )
        return [wanted]

    @cached_property
    def spans(self) -> Intervals | None:
        """The selected time; None for the whole capture."""
        time = self.selection.time
        if self.selection.within is None:
            if time is None:
                return None
            return Intervals(np.array([time.start_ns]), np.array([time.end_ns]))
        spans = ResolvedSelection(self.trace, replace(self.selection, device=None)).spans
        return Intervals.from_arrays(spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy())

    @cached_property
    def extent(self) -> tuple[int, int] | None:
        """From the first to the last activity of the capture; None where it only has memory."""
        window = self._whole.window
        return (window.start_ns, window.end_ns) if len(window.intervals) else None

    def events_of(self, device: int | None) -> pl.DataFrame:
        """Return the events about one GPU's memory, or about the host's (None)."""
        if device not in self._events:
            about = ~on_gpu() if device is None else on_gpu() & (pl.col("device") == device)
            self._events[device] = self.events.filter(about)
        return self._events[device]

    def final_of(self, device: int) -> pl.DataFrame:
        """Return the blocks that one GPU had at the end, with their rows as `row`."""
        return self.final.with_row_index(ROW).filter(pl.col("device") == device)

    def view(self, device: int | None) -> MemoryView:
        """Return the selected part of one GPU's memory, or of the host's (None)."""
        if device not in self._views:
            events = self.events_of(device)
            if device is None or not self.is_snapshot:
                history = from_events(events)
            else:
                history = from_snapshot(events, self.final_of(device))
            self._views[device] = self._view(history)
        return self._views[device]

    def view_of(self, events: pl.DataFrame) -> MemoryView:
        """Return the selected part of some events only, such as those of one kind of memory."""
        return self._view(from_events(events))

    def _view(self, history: AllocationHistory) -> MemoryView:
        spans = self.spans
        if spans is None:
            # The capture and every event; the last event too, as a span excludes its end.
            starts, ends = history.times[:1].tolist(), (history.times[-1:] + 1).tolist()
            if self.extent is not None:
                starts.append(self.extent[0])
                ends.append(self.extent[1])
            start = min(starts, default=0)
            spans = Intervals(np.array([start]), np.array([max([start + 1, *ends])]))
        inside = np.flatnonzero(contains(spans, history.times))
        at_start, at_end = (
            np.searchsorted(history.times, bounds, side="left") - 1
            for bounds in (spans.starts, spans.ends)
        )
        times = np.concatenate((spans.starts, history.times[inside], spans.ends))
        events = np.concatenate((at_start, inside, at_end))
        # At one instant: first the span's start, then events in their order, then its end.
        part = np.repeat([0, 1, 2], [len(spans), len(inside), len(spans)])
        order = np.lexsort((events, part, times))
        points = MemoryPoints(times[order], events[order])
        return MemoryView(history, inside, points, int(np.argmax(allocated_at(history, points))))


def _check_sizes(frame: pl.DataFrame, columns: Sequence[str]) -> None:
    """Refuse sizes whose sum overflows: they are no sizes of memory."""
    sizes = frame.select(pl.col(columns).cast(pl.Float64).abs())
    largest = max((value for value in sizes.max().row(0) if value is not None), default=0)
    if largest > _MAX_SIZE or sizes["bytes"].sum() > _MAX_SUM:
        raise DamagedCaptureError(
            "the capture's record of memory cannot be right",
            why="its sizes add up to more than any machine has",
        )


STEP_FIELDS = (
    Field("number", "Step", Fmt.ID, "Number of the step"),
    Field("start_ns", "Start", Fmt.TIME, "Start on the host"),
    Field("duration_ns", "Duration", Fmt.TIME, "Duration on the host"),
    Field("start_bytes", "At start", Fmt.BYTES, "In use at its start"),
    Field("peak_bytes", "Peak", Fmt.BYTES, "Peak in use during it"),
    Field("end_bytes", "At end", Fmt.BYTES, "In use at its end"),
    Field("growth_bytes", "Growth", Fmt.BYTES, "Growth since the end of the previous step"),
    Field("allocations", "Allocations", Fmt.COUNT, "Allocations during it"),
    Field("name", "Range", Fmt.NAME, "Name of the range that is the step", shown=False),
)
_MAX_COMPARED_STEPS = 400
"""Of more steps, so many evenly spaced ones are compared."""


@dataclass(frozen=True)
class StepGrowth:
    """Memory in use by step."""

    table: TableResult | NotApplicable
    per_step: float | None = None
    """Bytes that stay in use from step to step: the median over all pairs of steps."""
    allocations: float | None = None
    """Allocations per step, median."""

    def step_at(self, time_ns: int) -> int | None:
        """Return the number of the step at a time."""
        if isinstance(self.table, NotApplicable):
            return None
        start, duration = pl.col("start_ns"), pl.col("duration_ns")
        inside = self.table.frame.filter((start <= time_ns) & (time_ns < start + duration))
        return int(inside["number"][0]) if inside.height else None


def growth(trace: Trace, view: MemoryView, process: int | None) -> StepGrowth:
    """Follow the memory in use from step to step."""
    trace_steps = window_steps(trace)
    if isinstance(trace_steps, NotApplicable):
        return StepGrowth(trace_steps)
    if process is not None and trace_steps.steps[0].process not in {None, process}:
        # The steps of the window are those of another process: this one may name its own.
        trace_steps = find_steps(trace)
        if isinstance(trace_steps, NotApplicable):
            return StepGrowth(trace_steps)
    steps = [s for s in trace_steps.steps if s.process in {None, process} or process is None]
    # Steps of several threads run side by side.
    steps = [s for s in steps if s.thread == steps[0].thread]
    steps = [s for s in steps if view.start_ns <= s.start_ns < view.end_ns]
    if not steps:
        return StepGrowth(NotApplicable("steps", "no step lies in the selection"))
    rows = [_step_row(view.history, step) for step in steps]
    frame = pl.DataFrame(rows).with_columns(pl.col("end_bytes").diff().alias("growth_bytes"))
    table = TableResult(
        "steps", "Memory by step", STEP_FIELDS, frame.select(f.key for f in STEP_FIELDS)
    )
    allocations: float = frame["allocations"].median()  # type: ignore[assignment]
    return StepGrowth(table, slope(frame["end_bytes"].to_numpy()), allocations)


def _step_row(history: AllocationHistory, step: TraceStep) -> dict[str, object]:
    first, last = (history.last_before(t) for t in (step.start_ns, step.end_ns))
    inside = slice(first + 1, last + 1)
    start = history.allocated_after(first)
    return {
        "number": step.number,
        "start_ns": step.start_ns,
        "duration_ns": step.end_ns - step.start_ns,
        "start_bytes": start,
        "peak_bytes": max(start, int(history.allocated[inside].max(initial=0))),
        "end_bytes": history.allocated_after(last),
        "allocations": int((history.takes[inside] > 0).sum()),
        "name": step.name,
    }


def slope(levels: np.ndarray) -> float | None:
    """Return the rise from one level to the next: the median slope over all pairs (Theil-Sen).

    A first step that fills caches, or an outlier, does not change it; a leak in every other step
    does, which the median of the differences of neighbors would miss.
    """
    if len(levels) < 2:
        return None
    steps = np.arange(len(levels))
    if len(levels) > _MAX_COMPARED_STEPS:
        steps = np.linspace(0, len(levels) - 1, _MAX_COMPARED_STEPS).astype(np.int64)
    first, second = (steps[index] for index in np.triu_indices(len(steps), 1))
    return float(np.median((levels[second] - levels[first]) / (second - first)))
