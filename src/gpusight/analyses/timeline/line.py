"""Events one after another on a line, asked about any stretch of it without a walk over them.

What a screen shows has a bound however many events there are: no more events of a bin's width fit
on it than bins, and the narrower ones are sums. Both are exact at any zoom, as they come from sums
up to an event rather than from a pyramid of rounded levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from gpusight.analyses.timeline.totals import Totals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.analyses.timeline.window import Ints

_Codes: TypeAlias = "NDArray[np.uint8]"
_COLOURS = 256
_AT_ONCE = 1 << 20
"""Events that are counted by colour in one go."""


@dataclass(frozen=True, slots=True)
class LineBins:
    """What is too narrow to be drawn alone; bins without any of it are left out."""

    bin: Ints
    busy_ns: Ints
    """Time of the bin that the narrow events take."""
    count: Ints
    """Narrow events that begin in the bin."""
    colour: Ints
    """What most of `busy_ns` is, the lower code of equals; where all of a bin's are instants, the
    colour of the first."""


class Line:
    """Events that do not overlap, in order of start: answers take O(bins log events).

    It keeps 21 bytes an event and at most 4 for the sums; the arrays given are not copied.
    """

    def __init__(
        self,
        start_ns: Ints,
        end_ns: Ints,
        colour: _Codes,
        by_length: tuple[tuple[int, NDArray[np.int32]], ...],
        totals: Totals,
    ) -> None:
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.colour = colour
        self._by_length = by_length
        self._totals = totals

    @classmethod
    def of(cls, start_ns: Ints, end_ns: Ints, colour: _Codes) -> Line:
        """Take events that begin no earlier than the one before them ends, the first first."""
        start = np.asarray(start_ns, np.int64)
        end = np.asarray(end_ns, np.int64)
        codes = np.asarray(colour, np.uint8)
        if not len(start) == len(end) == len(codes):
            raise ValueError("start_ns, end_ns and colour must be of equal length")
        if bool((end < start).any()) or bool((start[1:] < end[:-1]).any()):
            raise ValueError("events of a line must not overlap and must be in order: use pack")
        return cls(start, end, codes, _by_length(start, end), Totals.of(start, end, codes))

    def __len__(self) -> int:
        """Count the events."""
        return len(self.start_ns)

    @property
    def nbytes(self) -> int:
        """Bytes that it keeps, the arrays it was given among them."""
        given = self.start_ns.nbytes + self.end_ns.nbytes + self.colour.nbytes
        return given + self._totals.nbytes + sum(at.nbytes for _, at in self._by_length)

    def slices(self, start_ns: int, end_ns: int, least_ns: int) -> Ints:
        """Give positions of events that touch [start, end) and last `least_ns` or longer.

        They come in order. At least 1 ns is asked for: an instant is never a slice.
        """
        least_ns = max(least_ns, 1)
        first = int(np.searchsorted(self.end_ns, start_ns, side="right"))
        last = int(np.searchsorted(self.start_ns, end_ns, side="left"))
        return self._long(first, last, least_ns)

    def bins(self, edges: Ints, least_ns: int) -> LineBins:
        """Sum up the events shorter than `least_ns` in each of the bins between the edges."""
        if not self._has_narrow(int(edges[0]), int(edges[-1]), max(least_ns, 1)):
            return LineBins(*(np.empty(0, np.int64) for _ in range(4)))
        begun = np.searchsorted(self.start_ns, edges, side="left")
        long = self._long(int(begun[0]), int(begun[-1]), max(least_ns, 1))
        home = np.searchsorted(edges, self.start_ns[long], side="right") - 1
        count = np.diff(begun) - np.bincount(home, minlength=len(edges) - 1)
        busy = self._totals.between(begun)
        np.subtract.at(busy, (home, self._totals.column[self.colour[long]]), self._lengths(long))
        self._move_over_edges(busy, begun, edges, max(least_ns, 1))
        return self._narrow(busy, count, begun, long)

    def busy_ns(self, edges: Ints) -> Ints:
        """Measure how much of each bin between the edges is covered by events."""
        begun = np.searchsorted(self.start_ns, edges, side="left")
        busy = self._totals.between(begun).sum(axis=1)
        over_ns = self._over_ns(begun, edges)
        covered: Ints = busy + over_ns[:-1] - over_ns[1:]
        return covered

    def sums(self, start_ns: int, end_ns: int) -> tuple[Ints, Ints]:
        """Sum up [start, end) for each of 256 colours: time inside, and events that touch it.

        An instant touches it when it lies inside, at the start or after it.
        """
        edges = np.array([start_ns, max(start_ns, end_ns)], np.int64)
        begun = np.searchsorted(self.start_ns, edges, side="left")
        busy = self._totals.between(begun)
        self._move_over_edges(busy, begun, edges, np.iinfo(np.int64).max)
        inside = np.zeros(_COLOURS, np.int64)
        inside[self._totals.codes] = busy[0]
        first = min(int(np.searchsorted(self.end_ns, start_ns, side="right")), int(begun[0]))
        return inside, self._count(first, int(begun[1]))

    def at(self, time_ns: int, within_ns: int) -> int | None:
        """Give the position of the event at a time, else of the nearest that close; None if none.

        Of two equally near it is the one before.
        """
        after = int(np.searchsorted(self.start_ns, time_ns, side="right"))
        near = []
        if after > 0:
            near.append((max(0, time_ns - int(self.end_ns[after - 1])), after - 1))
        if after < len(self):
            near.append((int(self.start_ns[after]) - time_ns, after))
        distance_ns, position = min(near, default=(within_ns + 1, -1))
        return position if distance_ns <= within_ns else None

    def _long(self, first: int, last: int, least_ns: int) -> Ints:
        """Give the positions from `first` up to `last` whose events last at least so long."""
        found = [
            positions[slice(*np.searchsorted(positions, np.array([first, last], np.int32)))]
            for bits, positions in self._by_length
            if bits >= least_ns.bit_length()
        ]
        if not found:
            return np.empty(0, np.int64)
        every: Ints = np.sort(np.concatenate(found)).astype(np.int64)
        return every[self._lengths(every) >= least_ns]

    def _has_narrow(self, start_ns: int, end_ns: int, least_ns: int) -> bool:
        """Tell whether an event that lasts less touches [start, end), or one may.

        Of thousands of lines below each other most have none, and need no look at every bin.
        """
        first, last = (int(np.searchsorted(self.start_ns, at)) for at in (start_ns, end_ns))
        before = max(first - 1, 0)
        return len(self._long(before, last, least_ns)) < last - before

    def _lengths(self, positions: Ints) -> Ints:
        return self.end_ns[positions] - self.start_ns[positions]

    def _over_ns(self, begun: Ints, edges: Ints) -> Ints:
        """Measure by how much the event that began last before each edge reaches over it."""
        over_ns = np.zeros(len(edges), np.int64)
        some = np.flatnonzero(begun > 0)
        over_ns[some] = np.maximum(self.end_ns[begun[some] - 1] - edges[some], 0)
        return over_ns

    def _move_over_edges(self, busy: Ints, begun: Ints, edges: Ints, under_ns: int) -> None:
        """Give what shorter events than `under_ns` take beyond an edge to the bins beyond it.

        One event at most lies across an edge. Where it crosses several, what it moves out of a bin
        it also moved in, up to its part of that bin.
        """
        over_ns = self._over_ns(begun, edges)
        crossed = np.flatnonzero(over_ns)
        crossed = crossed[self._lengths(begun[crossed] - 1) < under_ns]
        column = self._totals.column[self.colour[begun[crossed] - 1]]
        enters, leaves = crossed < len(edges) - 1, crossed > 0
        busy[crossed[enters], column[enters]] += over_ns[crossed[enters]]
        busy[crossed[leaves] - 1, column[leaves]] -= over_ns[crossed[leaves]]

    def _narrow(self, busy: Ints, count: Ints, begun: Ints, long: Ints) -> LineBins:
        """Leave out the bins without anything narrow, and give the others their colour."""
        total_ns = busy.sum(axis=1)
        bins = np.flatnonzero((total_ns > 0) | (count > 0))
        colour = np.zeros(len(bins), np.int64)
        if len(bins):
            colour[:] = self._totals.codes[busy[bins].argmax(axis=1)]
        instants = np.flatnonzero(total_ns[bins] == 0)
        colour[instants] = self.colour[_first_outside(begun[bins[instants]], long)]
        return LineBins(bins, total_ns[bins], count[bins], colour)

    def _count(self, first: int, last: int) -> Ints:
        """Count the events of each colour from one position up to another."""
        counts = np.zeros(_COLOURS, np.int64)
        for at in range(first, last, _AT_ONCE):
            part = self.colour[at : min(at + _AT_ONCE, last)]
            counts += np.bincount(part, minlength=_COLOURS)
        return counts


def _by_length(start: Ints, end: Ints) -> tuple[tuple[int, NDArray[np.int32]], ...]:
    """Group the positions by the bits that the length takes, at least; 0 is left out.

    Beyond 53 bits rounding may take one more, which a search that looks at the lengths allows.
    """
    if len(start) > np.iinfo(np.int32).max:
        raise ValueError("a line holds at most 2**31 - 1 events")
    bits = np.empty(len(start), np.uint8)
    for at in range(0, len(start), _AT_ONCE):
        part = slice(at, at + _AT_ONCE)
        bits[part] = np.frexp((end[part] - start[part]).astype(np.float64))[1]
    order = np.argsort(bits, kind="stable").astype(np.int32)
    bounds = np.cumsum(np.bincount(bits, minlength=1))
    present = [(b, order[bounds[b - 1] : bounds[b]]) for b in range(1, len(bounds))]
    return tuple((b, positions) for b, positions in present if len(positions))


def _first_outside(positions: Ints, taken: Ints) -> Ints:
    """Move each position that is taken on to the first after it that is not; `taken` rises."""
    if not len(taken):
        return positions
    run_ends = np.flatnonzero(np.diff(taken, append=taken[-1] + 2) != 1)
    at = np.minimum(np.searchsorted(taken, positions), len(taken) - 1)
    after = taken[run_ends[np.searchsorted(run_ends, at)]] + 1
    moved: Ints = np.where(taken[at] == positions, after, positions)
    return moved
