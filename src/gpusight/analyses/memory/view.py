"""The part of a history that is looked at: its peak, and a bounded number of points to draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpusight.model.intervals import Intervals, contains

if TYPE_CHECKING:
    from gpusight.analyses.memory.blocks import Ints
    from gpusight.analyses.memory.history import History

_BUCKETS = 480
POINTS = _BUCKETS * 4 + 2
"""The most points that a thinned timeline has."""


@dataclass(frozen=True)
class Points:
    """Moments, and the last event up to each: what the levels are then."""

    times: Ints
    events: Ints

    def __len__(self) -> int:
        """Count the points."""
        return len(self.times)


@dataclass(frozen=True)
class View:
    """What of a history lies in the selected time."""

    history: History
    inside: Ints
    """Numbers of the events in that time."""
    points: Points
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


def look(history: History, extent: tuple[int, int] | None, spans: Intervals | None = None) -> View:
    """Look at a history from start to end, or only inside some spans (at least one).

    `extent` is what else is known of when the capture began and ended.
    """
    if spans is None:
        spans = _whole(history, extent)
    inside = np.flatnonzero(contains(spans, history.times))
    points = _points(history, spans, inside)
    return View(history, inside, points, int(np.argmax(allocated_at(history, points))))


def _whole(history: History, extent: tuple[int, int] | None) -> Intervals:
    """Span the capture and every event; the last event too, as a span's end lies outside it."""
    firsts, lasts = history.times[:1].tolist(), (history.times[-1:] + 1).tolist()
    if extent is not None:
        firsts.append(extent[0])
        lasts.append(extent[1])
    first = min(firsts, default=0)
    return Intervals(np.array([first]), np.array([max([first + 1, *lasts])]))


def _points(history: History, spans: Intervals, inside: Ints) -> Points:
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
    return Points(times[order], events[order])


def allocated_at(history: History, points: Points) -> Ints:
    """Give the bytes in use at points."""
    return _at(history.allocated, history.start_allocated, points.events)


def reserved_at(history: History, points: Points) -> Ints | None:
    """Give the bytes held from the driver at points; None where the capture does not say."""
    if history.reserved is None or history.start_reserved is None:
        return None
    return _at(history.reserved, history.start_reserved, points.events)


def _at(levels: Ints, start: int, events: Ints) -> Ints:
    return np.append(levels, start)[events]


def thin(view: View) -> Points:
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
    return Points(times[rows], points.events[rows])


def _extremes(levels: Ints, number: Ints, firsts: Ints, extreme: np.ufunc) -> Ints:
    """Find the first place in each stretch where its extreme is reached."""
    reached = np.flatnonzero(levels == extreme.reduceat(levels, firsts)[number])
    places: Ints = reached[np.r_[True, np.diff(number[reached]) > 0]]
    return places
