"""What each lane of the host did at every instant of a window, by cause."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gpusight.analyses.attribution.nested import joint_keys
from gpusight.analyses.ledger.causes import Cause
from gpusight.analyses.ledger.lanes import Lanes
from gpusight.analyses.ledger.layers import layers
from gpusight.model.intervals import contains, distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.analyses.schedule.schedule import Ints, Schedule
    from gpusight.model.trace import Trace

_CAUSES = len(Cause)


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
        """Make it of stretches, each with its ns by cause; they are sorted and do not overlap."""
        causes = np.flatnonzero(by_cause.any(axis=0))
        grown = np.zeros((2 * len(lane), len(causes)), np.int64)
        grown[1::2] = by_cause[:, causes]
        times = np.stack((start_ns, end_ns), axis=1).reshape(-1)
        return cls(np.repeat(lane, 2), times, causes, np.cumsum(grown, axis=0))

    def spent(self, lanes: Ints, starts: Ints, ends: Ints) -> Ints:
        """Give the ns of each cause that lanes spent from `starts` to `ends`, one row a span.

        Rows sum to the length of their span exactly: where nothing is known of a lane, the cause
        is unknown. Reversed spans count nothing.
        """
        length = np.maximum(ends - starts, 0)
        found = np.zeros((len(length), _CAUSES), np.int64)
        if len(self.lane):
            done = self._until(lanes, starts + length) - self._until(lanes, starts)
            found[:, self.causes] = done
        found[:, Cause.UNKNOWN] += length - found.sum(axis=1)
        return _without_negatives(found)

    def moved(self, lane: Ints, before_ns: Ints, after_ns: Ints) -> HostTime:
        """Give it with moments of lanes moved; what lies between two of them stretches or shrinks.

        Moments are sorted by lane and time. A stretch that had no length and now has some is spent
        as the instant before it was.
        """
        at = np.flatnonzero(lane[1:] == lane[:-1])
        here, starts, ends = lane[at], before_ns[at], before_ns[at + 1]
        starts = np.where(ends > starts, starts, ends - 1)
        spent = self.spent(here, starts, ends)
        length = np.maximum(after_ns[at + 1] - after_ns[at], 0)
        scaled = _part(spent, length, ends - starts)
        return HostTime.of_stretches(here, after_ns[at], after_ns[at] + length, scaled)

    @cached_property
    def pieces(self) -> tuple[Ints, Ints, Ints, Ints]:
        """The stretches: lane, start, end, and the cause that most of it was spent for."""
        if not len(self.causes):
            none = np.empty(0, np.int64)
            return none, none, none, none
        grown = np.diff(self.spent_ns, axis=0)
        some = np.flatnonzero((grown > 0).any(axis=1) & (self.lane[1:] == self.lane[:-1]))
        cause = self.causes[grown[some].argmax(axis=1)]
        return self.lane[some], self.time_ns[some], self.time_ns[some + 1], cause

    @cached_property
    def _bounds(self) -> tuple[Ints, Ints, Ints]:
        """The lanes, and the first and last moment of each."""
        first = np.flatnonzero(np.diff(self.lane, prepend=-1))
        return self.lane[first], first, np.append(first[1:], len(self.lane)) - 1

    def _until(self, lanes: Ints, times: Ints) -> Ints:
        """Give what lanes had spent by these times; nothing for lanes that are not known."""
        known, first, last = self._bounds
        code = np.minimum(np.searchsorted(known, lanes), len(known) - 1)
        strange = known[code] != lanes
        first, last = first[code], last[code]
        inside = np.clip(times, self.time_ns[first], self.time_ns[last])
        keys, wanted = joint_keys(self.lane, self.time_ns, known[code], inside)
        at = np.clip(np.searchsorted(keys, wanted, side="right") - 1, first, last)
        after = np.minimum(at + 1, last)
        length = self.time_ns[after] - self.time_ns[at]
        done: Ints = self.spent_ns[at]
        done += _part(self.spent_ns[after] - done, inside - self.time_ns[at], length)
        done[strange] = 0
        return done


def host_time(trace: Trace, schedule: Schedule) -> HostTime:
    """Find what each lane of a schedule did at every instant of its window."""
    lanes = Lanes(schedule)
    found = [layer for layer in layers(trace, lanes) if len(layer[1])]
    windows = lanes.windows
    edges = [array for _, spans in found for array in (spans.starts, spans.ends)]
    cuts = distinct(windows.starts, windows.ends, *edges)
    cause = np.full(max(len(cuts) - 1, 0), int(Cause.FRAMEWORK))
    for layer, spans in reversed(found):
        cause[contains(spans, cuts[:-1])] = layer
    cause[~contains(windows, cuts[:-1])] = _CAUSES
    kept = np.append(np.diff(cause, prepend=-1) != 0, True)[: len(cuts)]
    return _cumulated(lanes, cuts[kept], cause[kept[:-1]])


def _cumulated(lanes: Lanes, cuts: Ints, cause: Ints) -> HostTime:
    lane = lanes.axis.group(cuts)
    time = cuts - lane * (lanes.axis.length_ns + 1) + lanes.axis.start_ns
    length = np.diff(cuts)
    causes = np.flatnonzero(np.bincount(cause, minlength=_CAUSES)[:_CAUSES])
    spent = np.zeros((len(cuts), len(causes)), np.int64)
    for column, one in enumerate(causes):
        spent[1:, column] = np.cumsum(np.where(cause == one, length, 0))
    return HostTime(lane, time, causes, spent)


def _part(whole: Ints, passed: Ints, length: Ints) -> Ints:
    """Give the part of each row that has passed; rows of sum `length` give rows of sum `passed`."""
    pure = whole == length[:, None]
    part: Ints = pure * passed[:, None]
    # Only a replay has stretches of several causes: as measured, each has one.
    mixed: NDArray[np.intp] = np.flatnonzero(~pure.any(axis=1) & (length > 0))
    if len(mixed):
        share = passed[mixed] / length[mixed]
        part[mixed] = whole[mixed] * share[:, None]
        # Rounding down loses a nanosecond or two: they go to the largest.
        lost = passed[mixed] - part[mixed].sum(axis=1)
        part[mixed, whole[mixed].argmax(axis=1)] += lost
    return part


def _without_negatives(rows: Ints) -> Ints:
    """Let the largest of a row make up for what rounding took below zero."""
    low = np.minimum(rows, 0)
    if low.any():
        rows = rows - low
        rows[np.arange(len(rows)), rows.argmax(axis=1)] += low.sum(axis=1)
    return rows
