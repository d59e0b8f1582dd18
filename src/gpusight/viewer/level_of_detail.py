"""Events and samples of a line, summed up for any bins without walking over all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from gpusight.trace.intervals import Ints, Reals


_COLORS = 256
_MIN_BLOCK = 64
_EXACT_NS = 1 << 53
"""Sums of whole numbers below this are exact in floating point, in which they are ten times as
fast."""
_AT_ONCE = 1 << 20
"""Events that are summed up or counted in one go."""


@dataclass(frozen=True, slots=True, eq=False)
class ColorTotals:
    """Sums by color up to every so many events; what lies between is added up when needed.

    A full sum for each event and color would take many times the events' own memory; this takes at
    most four bytes an event and is as exact.
    """

    start_ns: Ints
    end_ns: Ints
    color: NDArray[np.uint8]
    codes: Ints
    """Colors that occur, rising; sums have a column for each."""
    column: Ints
    """For each of 256 colors, its column."""
    block: int
    """Events from one kept sum to the next."""
    kept_ns: Ints
    """Sums of all events before each block, by color."""

    @classmethod
    def of(cls, start_ns: Ints, end_ns: Ints, color: NDArray[np.uint8]) -> ColorTotals:
        """Sum up events block by block."""
        # The colors that occur, rising.
        occurs = np.zeros(_COLORS, np.bool_)
        occurs[color] = True
        codes = np.flatnonzero(occurs)
        column = np.zeros(_COLORS, np.int64)
        column[codes] = np.arange(len(codes))
        # Blocks of two events for each color keep the sums at 8 / 2 bytes an event.
        block = max(_MIN_BLOCK, 2 * len(codes))
        kept = np.zeros((-(-len(start_ns) // block) + 1, len(codes)), np.int64)
        totals = cls(start_ns, end_ns, color, codes, column, block, kept)
        for first in range(0, len(start_ns), _AT_ONCE):
            events = np.arange(first, min(first + _AT_ONCE, len(start_ns)))
            totals._add(kept, events // block + 1, events)
        np.cumsum(kept, axis=0, out=kept)
        return totals

    @property
    def nbytes(self) -> int:
        """Bytes that the sums take, without the events."""
        return self.kept_ns.nbytes

    def between(self, cuts: Ints) -> Ints:
        """Sum up the events from each cut to the next, by color; cuts are positions and rise."""
        if cuts[-1] - cuts[0] <= len(cuts) * self.block:
            sums = np.zeros((len(cuts) - 1, len(self.codes)), np.int64)
            bins = np.repeat(np.arange(len(cuts) - 1), np.diff(cuts))
            return self._add(sums, bins, np.arange(cuts[0], cuts[-1]))
        blocks = cuts // self.block
        rest = cuts - blocks * self.block
        events = np.arange(rest.sum()) + np.repeat(cuts - np.cumsum(rest), rest)
        rows = np.repeat(np.arange(len(cuts)), rest)
        return np.diff(self._add(self.kept_ns[blocks], rows, events), axis=0)

    def _add(self, sums: Ints, rows: Ints, events: Ints) -> Ints:
        """Add the time of events to the rows of the sums that they belong to."""
        cells = rows * len(self.codes) + self.column[self.color[events]]
        lengths, cells_ns = self.end_ns[events] - self.start_ns[events], sums.reshape(-1)
        # They do not overlap, so that all of them together are no longer than the line.
        if len(events) and int(self.end_ns[-1]) - int(self.start_ns[0]) < _EXACT_NS:
            cells_ns += np.bincount(cells, lengths, len(cells_ns)).astype(np.int64)
        else:
            np.add.at(cells_ns, cells, lengths)
        return sums


_Codes: TypeAlias = "NDArray[np.uint8]"


@dataclass(frozen=True, slots=True)
class LineBins:
    """What is too narrow to be drawn alone; bins without any of it are left out."""

    bin: Ints
    busy_ns: Ints
    """Time of the bin that the narrow events take."""
    count: Ints
    """Narrow events that begin in the bin."""
    color: Ints
    """What most of `busy_ns` is, the lower code of equals; where all of a bin's are instants, the
    color of the first."""


class EventLine:
    """Events that do not overlap, in order of start: answers take O(bins log events).

    It keeps 21 bytes an event and at most 4 for the sums; the arrays given are not copied.
    """

    def __init__(
        self,
        start_ns: Ints,
        end_ns: Ints,
        color: _Codes,
        by_length: tuple[tuple[int, NDArray[np.int32]], ...],
        totals: ColorTotals,
    ) -> None:
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.color = color
        self._by_length = by_length
        self._totals = totals

    @classmethod
    def of(cls, start_ns: Ints, end_ns: Ints, color: _Codes) -> EventLine:
        """Take events that begin no earlier than the one before them ends, the first first."""
        start = np.asarray(start_ns, np.int64)
        end = np.asarray(end_ns, np.int64)
        codes = np.asarray(color, np.uint8)
        if not len(start) == len(end) == len(codes):
            raise ValueError("start_ns, end_ns and color must be of equal length")
        if bool((end < start).any()) or bool((start[1:] < end[:-1]).any()):
            raise ValueError("events of a line must not overlap and must be in order: use pack")
        return cls(start, end, codes, _by_length(start, end), ColorTotals.of(start, end, codes))

    def __len__(self) -> int:
        """Count the events."""
        return len(self.start_ns)

    @property
    def nbytes(self) -> int:
        """Bytes that it keeps, the arrays it was given among them."""
        arrays = self.start_ns.nbytes + self.end_ns.nbytes + self.color.nbytes
        return (
            arrays + self._totals.nbytes + sum(positions.nbytes for _, positions in self._by_length)
        )

    def slices(self, start_ns: int, end_ns: int, least_ns: int) -> Ints:
        """Return positions of events that touch [start, end) and last `least_ns` or longer.

        They come in order. At least 1 ns is requested: an instant is never a slice.
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
        np.subtract.at(busy, (home, self._totals.column[self.color[long]]), self._lengths(long))
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
        """Sum up [start, end) for each of 256 colors: time inside, and events that touch it.

        An instant touches it when it lies inside, at the start or after it.
        """
        edges = np.array([start_ns, max(start_ns, end_ns)], np.int64)
        begun = np.searchsorted(self.start_ns, edges, side="left")
        busy = self._totals.between(begun)
        self._move_over_edges(busy, begun, edges, np.iinfo(np.int64).max)
        inside = np.zeros(_COLORS, np.int64)
        inside[self._totals.codes] = busy[0]
        first = min(int(np.searchsorted(self.end_ns, start_ns, side="right")), int(begun[0]))
        last = int(begun[1])
        counts = np.zeros(_COLORS, np.int64)
        for at in range(first, last, _AT_ONCE):
            part = self.color[at : min(at + _AT_ONCE, last)]
            counts += np.bincount(part, minlength=_COLORS)
        return inside, counts

    def at(self, time_ns: int, within_ns: int) -> int | None:
        """Return the position of the event at a time, else of the nearest that close; None if none.

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
        """Return the positions from `first` up to `last` whose events last at least so long."""
        by_bits = [
            positions[slice(*np.searchsorted(positions, np.array([first, last], np.int32)))]
            for bits, positions in self._by_length
            if bits >= least_ns.bit_length()
        ]
        if not by_bits:
            return np.empty(0, np.int64)
        positions_found: Ints = np.sort(np.concatenate(by_bits)).astype(np.int64)
        return positions_found[self._lengths(positions_found) >= least_ns]

    def _has_narrow(self, start_ns: int, end_ns: int, least_ns: int) -> bool:
        """Return whether an event that lasts less touches [start, end), or one may.

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
        begun_before = np.flatnonzero(begun > 0)
        over_ns[begun_before] = np.maximum(
            self.end_ns[begun[begun_before] - 1] - edges[begun_before], 0
        )
        return over_ns

    def _move_over_edges(self, busy: Ints, begun: Ints, edges: Ints, under_ns: int) -> None:
        """Return what shorter events than `under_ns` take beyond an edge to the bins beyond it.

        One event at most lies across an edge. Where it crosses several, what it moves out of a bin
        it also moved in, up to its part of that bin.
        """
        over_ns = self._over_ns(begun, edges)
        crossed = np.flatnonzero(over_ns)
        crossed = crossed[self._lengths(begun[crossed] - 1) < under_ns]
        column = self._totals.column[self.color[begun[crossed] - 1]]
        enters, leaves = crossed < len(edges) - 1, crossed > 0
        busy[crossed[enters], column[enters]] += over_ns[crossed[enters]]
        busy[crossed[leaves] - 1, column[leaves]] -= over_ns[crossed[leaves]]

    def _narrow(self, busy: Ints, count: Ints, begun: Ints, long: Ints) -> LineBins:
        """Leave out the bins without anything narrow, and give the others their color."""
        total_ns = busy.sum(axis=1)
        bins = np.flatnonzero((total_ns > 0) | (count > 0))
        color = np.zeros(len(bins), np.int64)
        if len(bins):
            color[:] = self._totals.codes[busy[bins].argmax(axis=1)]
        instants = np.flatnonzero(total_ns[bins] == 0)
        color[instants] = self.color[_first_outside(begun[bins[instants]], long)]
        return LineBins(bins, total_ns[bins], count[bins], color)


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


_BLOCK = 64
"""Values that are reduced beforehand."""
_MAX_DIRECT_VALUES = 200_000
"""Values that are looked at one by one."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockReducer:
    """An array, and what each block of it comes to.

    A stretch of many values is what is left of its first block, whole blocks, and what it takes of
    the last. Sums are never differences of larger ones, so that few values are as exact as many.
    """

    how: np.ufunc
    """`numpy.minimum`, `numpy.maximum` or `numpy.add`."""
    nothing: float
    """What a stretch without a value comes to."""
    values: NDArray[Any]
    blocks: Reals

    @classmethod
    def of(cls, how: np.ufunc, nothing: float, values: NDArray[Any]) -> BlockReducer:
        """Reduce the blocks of an array; a short one needs none."""
        blocks = np.empty(0)
        if len(values) > _MAX_DIRECT_VALUES:
            blocks = how.reduceat(values, np.arange(0, len(values), _BLOCK)).astype(np.float64)
        return cls(how, nothing, values, blocks)

    def over(self, first: Ints, after: Ints) -> Reals:
        """Reduce the stretches from `first` up to `after`."""
        if int((after - first).sum()) <= _MAX_DIRECT_VALUES:
            return self._each(self.values, first, after)
        first_block, end_block = -(-first // _BLOCK), after // _BLOCK
        head = np.minimum(first_block * _BLOCK, after)
        tail = np.maximum(end_block * _BLOCK, head)
        reduced = self._each(self.values, first, head)
        reduced = self.how(
            reduced, self._each(self.blocks, first_block, np.maximum(end_block, first_block))
        )
        total: Reals = self.how(reduced, self._each(self.values, tail, after))
        return total

    def _each(self, values: NDArray[Any], first: Ints, after: Ints) -> Reals:
        """Reduce stretches by looking at all that is in them."""
        reduced = np.full(len(first), self.nothing)
        nonempty = np.flatnonzero(after > first)
        if len(nonempty):
            size = after[nonempty] - first[nonempty]
            begins = np.cumsum(size) - size
            at = np.arange(int(size.sum())) + np.repeat(first[nonempty] - begins, size)
            reduced[nonempty] = self.how.reduceat(values[at], begins)
        return reduced


class SampleBins(NamedTuple):
    """Values bin by bin; bins of which nothing is known are left out."""

    bin: Ints
    low: Reals
    high: Reals
    mean: Reals


class SampledValues:
    """Values at moments that rise.

    A value either holds until the next one, as the memory in use does, or covers the time since
    the one before, as counters do that are read out again and again.
    """

    def __init__(self, times_ns: Ints, values: NDArray[Any], *, holds: bool) -> None:
        self.times_ns = times_ns
        self.values = values
        self.holds = holds
        self._low = BlockReducer.of(np.minimum, np.inf, values)
        self._high = BlockReducer.of(np.maximum, -np.inf, values)
        lasts = np.diff(times_ns).astype(np.float64)
        self._sum = BlockReducer.of(np.add, 0.0, values[:-1] * lasts if holds else values)

    @classmethod
    def of(cls, times_ns: Ints, values: NDArray[Any], holds: bool) -> SampledValues:
        """Take samples in order of time; what is no finite number is no sample."""
        times, values = np.asarray(times_ns, np.int64), np.asarray(values)
        if len(times) != len(values):
            raise ValueError("times_ns and values must be of equal length")
        if bool((times[1:] < times[:-1]).any()):
            raise ValueError("samples must be in order of time")
        known = np.isfinite(values)
        if not bool(known.all()):
            times, values = times[known], values[known]
        return cls(times, values, holds=holds)

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.times_ns)

    @property
    def nbytes(self) -> int:
        """Bytes that it keeps, the arrays it was given among them."""
        sums = self._sum.values.nbytes if self.holds else 0
        blocks = sum(reducer.blocks.nbytes for reducer in (self._low, self._high, self._sum))
        return self.times_ns.nbytes + self.values.nbytes + sums + blocks

    def bins(self, edges: Ints) -> SampleBins:
        """Return the values in the bins between the edges.

        Where values hold, a bin begins with the one that holds at its start, and its mean is
        weighed by time. Otherwise its mean is that of the samples in it; a bin without any has the
        value before it if another sample follows, and else is left out.
        """
        cuts = np.searchsorted(self.times_ns, edges, side="left")
        columns = self._held(edges, cuts) if self.holds else self._sampled(cuts)
        known = np.flatnonzero(np.isfinite(columns[0]))
        return SampleBins(known, *(column[known] for column in columns))

    def _sampled(self, cuts: Ints) -> tuple[Reals, Reals, Reals]:
        """Return lowest, highest and mean of the samples from each cut to the next."""
        none = np.flatnonzero((cuts[1:] == cuts[:-1]) & (cuts[1:] > 0) & (cuts[1:] < len(self)))
        first, after = cuts[:-1].copy(), cuts[1:]
        first[none] -= 1
        mean = self._sum.over(first, after) / np.maximum(after - first, 1)
        return self._low.over(first, after), self._high.over(first, after), mean

    def _held(self, edges: Ints, cuts: Ints) -> tuple[Reals, Reals, Reals]:
        """Return lowest, highest and mean of what holds from each edge to the next."""
        begun = np.searchsorted(self.times_ns, edges[:-1], side="right")
        first = np.maximum(np.minimum(cuts[:-1], begun - 1), 0)
        after = np.maximum(cuts[1:], begun)
        mean = np.zeros(len(after))
        known = np.flatnonzero(after)
        held = np.maximum(begun[known] - 1, 0)
        mean[known] = self._mean(edges[:-1][known], edges[1:][known], held, after[known] - 1)
        return self._low.over(first, after), self._high.over(first, after), mean

    def _mean(self, start: Ints, end: Ints, held: Ints, last: Ints) -> Reals:
        """Weigh values by how long they hold: from the one at the start up to the last."""
        start = np.maximum(start, self.times_ns[held])
        single = held == last
        until = self.times_ns[np.where(single, held, held + 1)]
        total = self.values[held] * (until - start).astype(np.float64)
        total += self._sum.over(np.minimum(held + 1, last), last)
        total += self.values[last] * (end - self.times_ns[last]).astype(np.float64)
        mean: Reals = np.where(single, self.values[held], total / np.maximum(end - start, 1))
        return mean
