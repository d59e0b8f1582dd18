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
"""The most points that a thinned timeline has."""


@dataclass(frozen=True)
class MemoryPoints:
    """Moments, and the last event up to each: what the levels are then."""

    times: Ints
    events: Ints

    def __len__(self) -> int:
        """Count the points."""
        return len(self.times)


@dataclass(frozen=True)
class MemoryView:
    """What of a history lies in the selected time."""

    history: AllocationHistory
    inside: Ints
    """Numbers of the events in that time."""
    points: MemoryPoints
    """Where each span begins, each event inside, where it ends; in order of time."""
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
        """When most was in use."""
        return int(self.points.times[self.peak])

    @property
    def peak_event(self) -> int:
        """The last event up to then."""
        return int(self.points.events[self.peak])

    @property
    def peak_bytes(self) -> int:
        """The most that was in use."""
        return self.history.allocated_after(self.peak_event)

    @property
    def takes(self) -> Ints:
        """Sizes of the allocations inside."""
        sizes = self.history.takes[self.inside]
        return sizes[sizes > 0]


def look(
    history: AllocationHistory, extent: tuple[int, int] | None, spans: Intervals | None = None
) -> MemoryView:
    """Look at a history from start to end, or only inside some spans (at least one).

    `extent` is what else is known of when the capture began and ended.
    """
    if spans is None:
        spans = _whole(history, extent)
    inside = np.flatnonzero(contains(spans, history.times))
    points = _points(history, spans, inside)
    return MemoryView(history, inside, points, int(np.argmax(allocated_at(history, points))))


def _whole(history: AllocationHistory, extent: tuple[int, int] | None) -> Intervals:
    """Span the capture and every event; the last event too, as a span's end lies outside it."""
    firsts, lasts = history.times[:1].tolist(), (history.times[-1:] + 1).tolist()
    if extent is not None:
        firsts.append(extent[0])
        lasts.append(extent[1])
    first = min(firsts, default=0)
    return Intervals(np.array([first]), np.array([max([first + 1, *lasts])]))


def _points(history: AllocationHistory, spans: Intervals, inside: Ints) -> MemoryPoints:
    """Lay out where spans begin and end and the events inside them, in order."""
    entered, left = (
        np.searchsorted(history.times, bounds, side="left") - 1
        for bounds in (spans.starts, spans.ends)
    )
    times = np.concatenate((spans.starts, history.times[inside], spans.ends))
    events = np.concatenate((entered, inside, left))
    # At one instant: first the span's beginning, then events in their order, then its end.
    part = np.repeat([0, 1, 2], [len(spans), len(inside), len(spans)])
    order = np.lexsort((events, part, times))
    return MemoryPoints(times[order], events[order])


def allocated_at(history: AllocationHistory, points: MemoryPoints) -> Ints:
    """Give the bytes in use at points."""
    return _at(history.allocated, history.start_allocated, points.events)


def reserved_at(history: AllocationHistory, points: MemoryPoints) -> Ints | None:
    """Give the bytes held from the driver at points; None where the capture does not say."""
    if history.reserved is None or history.start_reserved is None:
        return None
    return _at(history.reserved, history.start_reserved, points.events)


def _at(levels: Ints, start: int, events: Ints) -> Ints:
    return np.append(levels, start)[events]


def thin(view: MemoryView) -> MemoryPoints:
    """Keep at most POINTS points: of each stretch of time the extremes and the last."""
    points, times = view.points, view.points.times
    if len(points) <= POINTS:
        return points
    width = (view.end_ns - view.start_ns) / _BUCKETS
    stretch = np.minimum((times - view.start_ns) // width, _BUCKETS - 1)
    changes = np.diff(stretch) > 0
    number = np.cumsum(np.r_[0, changes])
    firsts, lasts = np.flatnonzero(np.r_[True, changes]), np.flatnonzero(np.r_[changes, True])
    allocated, reserved = allocated_at(view.history, points), reserved_at(view.history, points)
    kept = [np.array([0, view.peak]), lasts]
    kept += [_extremes(allocated, number, firsts, way) for way in (np.maximum, np.minimum)]
    if reserved is not None:
        kept.append(_extremes(reserved, number, firsts, np.maximum))
    rows = np.unique(np.concatenate(kept))
    return MemoryPoints(times[rows], points.events[rows])


def _extremes(levels: Ints, number: Ints, firsts: Ints, extreme: np.ufunc) -> Ints:
    """Find the first place in each stretch where its extreme is reached."""
    reached = np.flatnonzero(levels == extreme.reduceat(levels, firsts)[number])
    places: Ints = reached[np.r_[True, np.diff(number[reached]) > 0]]
    return places


_NO_SIZE = 1 << 58
_NO_SUM = 1 << 61
"""Sizes and sums of them that no machine reaches, far below where numbers wrap around."""
FINAL = (
    "device",
    "stream",
    "segment",
    "segment_bytes",
    "segment_kind",
    "expandable",
    "address",
    "bytes",
    "requested_bytes",
    "state",
)


class DeviceMemories:
    """The memories that a capture tells about, as far as they are selected."""

    def __init__(self, trace: Trace, selection: Selection) -> None:
        self.trace = trace
        self.selection = selection
        # The device is checked here: a capture may know memory of a GPU that did no other work.
        self._whole = ResolvedSelection(trace, replace(selection, device=None, within=None))
        self.events = self._whole.host("memory_events", COLUMNS, row_index=ROW)
        self.final = trace.table("memory_blocks", FINAL)
        self.is_snapshot = trace.has("memory_blocks") or "segment_allocation" in self._operations
        _check_sizes(self.events, ("bytes", "allocated_bytes", "reserved_bytes"))
        _check_sizes(self.final, ("bytes", "requested_bytes", "segment_bytes"))
        self._events: dict[int | None, pl.DataFrame] = {}
        self._views: dict[int | None, MemoryView] = {}

    @cached_property
    def _operations(self) -> set[str]:
        return set(self.events["operation"].cast(pl.String).unique().to_list())

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
        """The selected time; None for all of it."""
        if self.selection.within is None:
            return None
        spans = ResolvedSelection(self.trace, replace(self.selection, device=None)).spans
        return Intervals.from_arrays(spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy())

    @cached_property
    def extent(self) -> tuple[int, int] | None:
        """From the first to the last activity of the capture; None where only memory was seen."""
        window = self._whole.window
        return (window.start_ns, window.end_ns) if len(window.intervals) else None

    def events_of(self, device: int | None) -> pl.DataFrame:
        """Give the events about one GPU's memory, or about the host's (None)."""
        if device not in self._events:
            mine = ~on_gpu() if device is None else on_gpu() & (pl.col("device") == device)
            self._events[device] = self.events.filter(mine)
        return self._events[device]

    def final_of(self, device: int) -> pl.DataFrame:
        """Give the blocks that one GPU had at the end, with their rows as `row`."""
        return self.final.with_row_index(ROW).filter(pl.col("device") == device)

    def view(self, device: int | None) -> MemoryView:
        """Look at one memory."""
        if device not in self._views:
            self._views[device] = look(self._history(device), self.extent, self.spans)
        return self._views[device]

    def look_at(self, events: pl.DataFrame) -> MemoryView:
        """Look at some events only, such as those of one kind of memory."""
        return look(from_events(events), self.extent, self.spans)

    def _history(self, device: int | None) -> AllocationHistory:
        events = self.events_of(device)
        if device is None or not self.is_snapshot:
            return from_events(events)
        return from_snapshot(events, self.final_of(device))


def _check_sizes(frame: pl.DataFrame, columns: Sequence[str]) -> None:
    """Refuse sizes that no sum can hold: they are no sizes of memory."""
    sizes = frame.select(pl.col(columns).cast(pl.Float64).abs())
    largest = max((value for value in sizes.max().row(0) if value is not None), default=0)
    if largest > _NO_SIZE or sizes["bytes"].sum() > _NO_SUM:
        raise DamagedCaptureError(
            "the capture's record of memory cannot be right",
            why="its sizes add up to more than any machine has",
        )


STEP_FIELDS = (
    Field("number", "Step", Fmt.ID, "Number of the step"),
    Field("start_ns", "Began", Fmt.TIME, "When it began"),
    Field("duration_ns", "Took", Fmt.TIME, "How long the host took for it"),
    Field("start_bytes", "At start", Fmt.BYTES, "In use when it began"),
    Field("peak_bytes", "Peak", Fmt.BYTES, "The most in use during it"),
    Field("end_bytes", "At end", Fmt.BYTES, "In use when it ended"),
    Field("growth_bytes", "Growth", Fmt.BYTES, "In use at its end more than at the step's before"),
    Field("allocations", "Allocations", Fmt.COUNT, "Allocations during it"),
    Field("name", "Range", Fmt.NAME, "Name of the range that is the step", shown=False),
)
_MOST_COMPARED = 400
"""Steps whose every pair is compared; of more, so many are taken evenly."""


@dataclass(frozen=True)
class StepGrowth:
    """What steps do to the memory in use."""

    table: TableResult | NotApplicable
    per_step: float | None = None
    """Bytes that stay in use from step to step: the median over all pairs of steps."""
    allocations: float | None = None
    """Allocations a step, median."""

    def step_at(self, time_ns: int) -> int | None:
        """Give the number of the step that a time lies in."""
        if isinstance(self.table, NotApplicable):
            return None
        began, took = pl.col("start_ns"), pl.col("duration_ns")
        inside = self.table.frame.filter((began <= time_ns) & (time_ns < began + took))
        return int(inside["number"][0]) if inside.height else None


def growth(trace: Trace, view: MemoryView, process: int | None) -> StepGrowth:
    """Follow the memory in use from step to step."""
    found = find_steps(trace)
    if isinstance(found, NotApplicable):
        return StepGrowth(found)
    steps = _steps_of_one_thread(
        [s for s in found.steps if s.process in {None, process} or process is None]
    )
    steps = [s for s in steps if view.start_ns <= s.start_ns < view.end_ns]
    if not steps:
        return StepGrowth(NotApplicable("steps", "no step lies in the selection"))
    rows = [_row(view.history, step) for step in steps]
    frame = pl.DataFrame(rows).with_columns(pl.col("end_bytes").diff().alias("growth_bytes"))
    table = TableResult(
        "steps", "Memory by step", STEP_FIELDS, frame.select(f.key for f in STEP_FIELDS)
    )
    typical: float = frame["allocations"].median()  # type: ignore[assignment]
    return StepGrowth(table, slope(frame["end_bytes"].to_numpy()), typical)


def _steps_of_one_thread(steps: list[TraceStep]) -> list[TraceStep]:
    """Keep the steps of one thread: those of several run side by side."""
    threads = {s.thread for s in steps}
    return steps if len(threads) < 2 else [s for s in steps if s.thread == steps[0].thread]


def _row(history: AllocationHistory, step: TraceStep) -> dict[str, object]:
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
    """Give how much levels rise from one to the next: the median over all pairs of them.

    A first step that fills caches, or one that is odd, does not move it; a leak of every other step
    does, which the median of the neighbours' differences would miss.
    """
    if len(levels) < 2:
        return None
    places = np.arange(len(levels))
    if len(levels) > _MOST_COMPARED:
        places = np.linspace(0, len(levels) - 1, _MOST_COMPARED).astype(np.int64)
    first, second = (places[index] for index in np.triu_indices(len(places), 1))
    return float(np.median((levels[second] - levels[first]) / (second - first)))
