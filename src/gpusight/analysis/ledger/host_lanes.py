"""Lanes of host work (`ApiCalls.lane`) on one axis, and what each spent its time on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gpusight.analysis.attribution.nested_intervals import joint_keys
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.trace.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl
    from numpy.typing import NDArray

    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.trace.intervals import Ints


NOBODY = -(1 << 62)
"""Stands for a thread that nothing is known of."""


@dataclass(frozen=True, slots=True)
class LaneAxis:
    """The windows of all lanes one after the other, with an instant of none in between.

    So intervals of all lanes are cut at once.
    """

    start_ns: int
    length_ns: int

    def at(self, lanes: Ints, times: Ints) -> Ints:
        """Return the place of a moment in a lane's window; what lies outside goes to its edge."""
        inside = np.clip(times, self.start_ns, self.start_ns + self.length_ns) - self.start_ns
        places: Ints = lanes * (self.length_ns + 1) + inside
        return places

    def edges(self, lanes: Ints) -> Intervals:
        """Return the windows of these lanes, which rise."""
        starts = lanes * (self.length_ns + 1)
        return Intervals.from_arrays(starts, starts + self.length_ns)

    def lane(self, places: Ints) -> Ints:
        """Return the lane that places belong to."""
        return places // (self.length_ns + 1)


@dataclass(frozen=True)
class LaneThreads:
    """The threads that worked in lanes: each until another one goes on."""

    lane: Ints
    thread: Ints
    """Position in `GpuSchedule.threads`."""
    start_ns: Ints
    end_ns: Ints
    first_ns: Ints
    """When its first call started: until then, the work may still have been handed over."""


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
        """Which thread worked when: between two calls, the thread of the second."""
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
        """Return the thread (position in `GpuSchedule.threads`) that worked in a lane at a time."""
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
        # Cut out of each thread what lies in its shifts, and move that onto the lane.
        offset = (codes - shifts.lane) * (self.axis.length_ns + 1)
        starts, ends = shifts.start_ns + offset, shifts.end_ns + offset
        first = np.searchsorted(spans.ends, starts, side="right")
        after = np.maximum(np.searchsorted(spans.starts, ends, side="left"), first)
        count = after - first
        shift = np.repeat(np.arange(len(starts)), count)
        at = np.arange(len(shift)) - np.repeat(np.cumsum(count) - count, count) + first[shift]
        low = np.maximum(spans.starts[at], starts[shift])
        high = np.minimum(spans.ends[at], ends[shift])
        return Intervals.from_arrays(low - offset[shift], high - offset[shift])

    def _on_threads(self, frame: pl.DataFrame, known: Ints) -> Intervals:
        """Put events of these threads onto an axis like that of the lanes, thread by thread."""
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


@dataclass(frozen=True)
class HostTime:
    """How much of each cause lanes had spent at certain moments.

    Between two moments of a lane it grows evenly. As measured, each stretch has one cause, so that
    nothing is lost by that.
    """

    lane: Ints
    """Of each moment, rising."""
    time_ns: Ints
    """Of each moment, rising within its lane."""
    causes: Ints
    """Those that occur, rising: most captures have few."""
    spent_ns: Ints
    """Of each moment and cause, counted on from lane to lane: an array of two dimensions."""

    @classmethod
    def of_stretches(cls, lane: Ints, start_ns: Ints, end_ns: Ints, by_cause: Ints) -> HostTime:
        """Make it from stretches, each with its ns by cause; sorted, without overlaps."""
        causes = np.flatnonzero(by_cause.any(axis=0))
        grown = np.zeros((2 * len(lane), len(causes)), np.int64)
        grown[1::2] = by_cause[:, causes]
        times = np.stack((start_ns, end_ns), axis=1).reshape(-1)
        return cls(np.repeat(lane, 2), times, causes, np.cumsum(grown, axis=0))

    def spent(self, lanes: Ints, starts: Ints, ends: Ints) -> Ints:
        """Return the ns of each cause that lanes spent from `starts` to `ends`, one row a span.

        Rows sum to the length of their span exactly: where nothing is known of a lane, the cause
        is unknown. Reversed spans count nothing.
        """
        length = np.maximum(ends - starts, 0)
        spent = np.zeros((len(length), len(IdleCause)), np.int64)
        if len(self.lane):
            done = self._until(lanes, starts + length) - self._until(lanes, starts)
            spent[:, self.causes] = done
        spent[:, IdleCause.UNKNOWN] += length - spent.sum(axis=1)
        # The largest of a row makes up for what rounding took below zero.
        low = np.minimum(spent, 0)
        if low.any():
            spent -= low
            spent[np.arange(len(spent)), spent.argmax(axis=1)] += low.sum(axis=1)
        return spent

    def moved(self, lane: Ints, before_ns: Ints, after_ns: Ints) -> HostTime:
        """Return it with moments of lanes moved; what lies between two stretches or shrinks.

        Moments are sorted by lane and time. A stretch that had no length and now has some is spent
        as the instant before it was.
        """
        at = np.flatnonzero(lane[1:] == lane[:-1])
        lane, starts, ends = lane[at], before_ns[at], before_ns[at + 1]
        starts = np.where(ends > starts, starts, ends - 1)
        spent = self.spent(lane, starts, ends)
        length = np.maximum(after_ns[at + 1] - after_ns[at], 0)
        scaled = _scaled_rows(spent, length, ends - starts)
        return HostTime.of_stretches(lane, after_ns[at], after_ns[at] + length, scaled)

    @cached_property
    def pieces(self) -> tuple[Ints, Ints, Ints, Ints]:
        """The stretches: lane, start, end, and the cause that most of it was spent for."""
        if not len(self.causes):
            empty = np.empty(0, np.int64)
            return empty, empty, empty, empty
        grown = np.diff(self.spent_ns, axis=0)
        at = np.flatnonzero((grown > 0).any(axis=1) & (self.lane[1:] == self.lane[:-1]))
        cause = self.causes[grown[at].argmax(axis=1)]
        return self.lane[at], self.time_ns[at], self.time_ns[at + 1], cause

    @cached_property
    def _bounds(self) -> tuple[Ints, Ints, Ints]:
        """The lanes, and the first and last moment of each."""
        first = np.flatnonzero(np.diff(self.lane, prepend=-1))
        return self.lane[first], first, np.append(first[1:], len(self.lane)) - 1

    def _until(self, lanes: Ints, times: Ints) -> Ints:
        """Return what lanes had spent by these times; nothing for lanes that are not known."""
        known, first, last = self._bounds
        code = np.minimum(np.searchsorted(known, lanes), len(known) - 1)
        unknown = known[code] != lanes
        first, last = first[code], last[code]
        inside = np.clip(times, self.time_ns[first], self.time_ns[last])
        keys, wanted = joint_keys(self.lane, self.time_ns, known[code], inside)
        at = np.clip(np.searchsorted(keys, wanted, side="right") - 1, first, last)
        after = np.minimum(at + 1, last)
        length = self.time_ns[after] - self.time_ns[at]
        done: Ints = self.spent_ns[at]
        done += _scaled_rows(self.spent_ns[after] - done, inside - self.time_ns[at], length)
        done[unknown] = 0
        return done


def _scaled_rows(rows: Ints, wanted: Ints, length: Ints) -> Ints:
    """Scale rows whose sums are `length` so that their sums are `wanted`, exactly."""
    pure = rows == length[:, None]
    scaled: Ints = pure * wanted[:, None]
    # Only a replay has stretches of several causes: as measured, each has one.
    mixed: NDArray[np.intp] = np.flatnonzero(~pure.any(axis=1) & (length > 0))
    if len(mixed):
        share = wanted[mixed] / length[mixed]
        scaled[mixed] = rows[mixed] * share[:, None]
        # Rounding down loses a nanosecond or two: they go to the largest.
        lost = wanted[mixed] - scaled[mixed].sum(axis=1)
        scaled[mixed, rows[mixed].argmax(axis=1)] += lost
    return scaled
