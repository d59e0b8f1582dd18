"""Lanes of host work on one axis, so that intervals of all lanes are cut at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gpusight.trace.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.trace.intervals import Ints


NOBODY = -(1 << 62)
"""Stands for a thread that nothing is known of."""


@dataclass(frozen=True, slots=True)
class LaneAxis:
    """One window after the other, with an instant that belongs to none in between."""

    start_ns: int
    length_ns: int

    def at(self, groups: Ints, times: Ints) -> Ints:
        """Give the place of a moment in a group's window; what lies outside goes to its edge."""
        inside = np.clip(times, self.start_ns, self.start_ns + self.length_ns) - self.start_ns
        places: Ints = groups * (self.length_ns + 1) + inside
        return places

    def edges(self, groups: Ints) -> Intervals:
        """Give the windows of these groups, which rise."""
        starts = groups * (self.length_ns + 1)
        return Intervals.from_arrays(starts, starts + self.length_ns)

    def group(self, places: Ints) -> Ints:
        """Give the group that places belong to."""
        return places // (self.length_ns + 1)


@dataclass(frozen=True)
class LaneThreads:
    """Who worked in a lane: a thread, until another one goes on."""

    lane: Ints
    thread: Ints
    """Position in `GpuSchedule.threads`."""
    start_ns: Ints
    end_ns: Ints
    first_ns: Ints
    """When its first call began: until then, the work may still have been handed over."""


@dataclass(frozen=True)
class HostLanes:
    """The lanes of a schedule."""

    schedule: GpuSchedule

    @cached_property
    def axis(self) -> LaneAxis:
        """The axis that all lanes lie on."""
        return LaneAxis(self.schedule.start_ns, max(self.schedule.length_ns, 0))

    @cached_property
    def numbers(self) -> Ints:
        """The lanes that there are, rising."""
        return np.flatnonzero(np.bincount(self.schedule.calls.lane))

    @cached_property
    def order(self) -> Ints:
        """The calls, lane by lane, each in order of start."""
        return np.argsort(self.schedule.calls.lane, kind="stable")

    @cached_property
    def windows(self) -> Intervals:
        """The windows of the lanes, on the axis."""
        return self.axis.edges(self.numbers)

    @cached_property
    def shifts(self) -> LaneThreads:
        """Who worked when: between two calls, the thread of the second."""
        calls, order = self.schedule.calls, self.order
        lane, thread = calls.lane[order], calls.thread[order]
        start = self.axis.at(lane, calls.start_ns[order])
        # Lanes follow each other on the axis, so one running maximum serves them all.
        ended = np.maximum.accumulate(self.axis.at(lane, calls.end_ns[order]))
        fresh = np.diff(lane, prepend=-1) != 0
        begins = np.flatnonzero(fresh | (np.diff(thread, prepend=-1) != 0))
        edges = self.axis.edges(lane[begins][fresh[begins]])
        first = np.where(fresh[begins], 0, ended[begins - 1])
        first[fresh[begins]] = edges.starts
        last = np.append(first[1:], 0)
        last[np.append(fresh[begins][1:], True)] = edges.ends
        return LaneThreads(
            lane[begins], thread[begins], first, np.maximum(first, last), start[begins]
        )

    def threads_at(self, lanes: Ints, times: Ints) -> Ints:
        """Give the thread (a position in `GpuSchedule.threads`) that worked in a lane at a time."""
        at = np.searchsorted(self.shifts.start_ns, self.axis.at(lanes, times), side="right") - 1
        threads: Ints = self.shifts.thread[at]
        return threads

    def of_threads(
        self, frame: pl.DataFrame, stand_in: Mapping[int, int] | None = None
    ) -> Intervals:
        """Put events of threads (`start_ns`, `end_ns`, `thread`) onto the lanes they worked for.

        `stand_in` gives, by position in `GpuSchedule.threads`, the thread that counts instead.
        """
        if frame.is_empty() or not len(self.numbers):
            return Intervals.empty()
        shifts = self.shifts
        keys = np.array([thread for _, thread in self.schedule.threads], np.int64)
        for position, thread in (stand_in or {}).items():
            keys[position] = thread
        known = np.unique(keys)
        codes = np.searchsorted(known, keys)[shifts.thread]
        spans = self._on_threads(frame, known)
        # Both ends of a shift, seen from the lane, and the same moments seen from the thread.
        offset = (codes - shifts.lane) * (self.axis.length_ns + 1)
        return _cut_and_moved(spans, shifts.start_ns + offset, shifts.end_ns + offset, -offset)

    def _on_threads(self, frame: pl.DataFrame, known: Ints) -> Intervals:
        thread = frame["thread"].fill_null(NOBODY).to_numpy()
        code = np.minimum(np.searchsorted(known, thread), len(known) - 1)
        kept = (known[code] == thread) & (thread != NOBODY)
        start, end = (frame[c].to_numpy()[kept] for c in ("start_ns", "end_ns"))
        return Intervals.from_arrays(self.axis.at(code[kept], start), self.axis.at(code[kept], end))

    def of_all(self, frame: pl.DataFrame) -> Intervals:
        """Put events that name no thread onto every lane."""
        start, end = (frame[c].to_numpy() for c in ("start_ns", "end_ns"))
        lanes = np.repeat(self.numbers, len(start))
        places = (self.axis.at(lanes, np.tile(t, len(self.numbers))) for t in (start, end))
        return Intervals.from_arrays(*places)


def _cut_and_moved(spans: Intervals, starts: Ints, ends: Ints, by: Ints) -> Intervals:
    """Cut out what lies in each of these windows, and move it."""
    first = np.searchsorted(spans.ends, starts, side="right")
    after = np.maximum(np.searchsorted(spans.starts, ends, side="left"), first)
    count = after - first
    window = np.repeat(np.arange(len(starts)), count)
    at = np.arange(len(window)) - np.repeat(np.cumsum(count) - count, count) + first[window]
    low = np.maximum(spans.starts[at], starts[window]) + by[window]
    high = np.minimum(spans.ends[at], ends[window]) + by[window]
    return Intervals.from_arrays(low, high)
