"""Nested intervals of many threads: what encloses what, vectorized."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.trace.intervals import number

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray

    from gpusight.trace.intervals import Ints

    Mask: TypeAlias = NDArray[np.bool_]


NONE = -1
"""Stands for no row and no place."""
_STEPS = 32
"""Steps outwards before the rest is searched by halving: real stacks are rarely deeper."""
_WIDE = 1 << 62
_LEAST = np.iinfo(np.int64).min


def optional(rows: Ints) -> pl.Series:
    """Give rows as a column, null where there is none."""
    column = pl.Series(rows, dtype=pl.Int64)
    return column.set(column < 0, None)


@dataclass(frozen=True)
class NestedIntervals:
    """Intervals laid out so that what is open at a time, and what encloses what, can be asked.

    Places are positions in that order, rows are positions in what the intervals were made of.
    """

    rows: Ints
    starts: Ints
    ends: Ints
    threads: Ints
    """Number of each place's thread, rising."""
    known: pl.Series
    """The threads' keys, in the order of their numbers."""

    @classmethod
    def of(cls, starts: Ints, ends: Ints, threads: pl.Series) -> NestedIntervals:
        """Lay intervals out; those without a thread share one of their own."""
        keys = threads.fill_null(_LEAST)
        codes = number(keys)
        order = _outer_first(starts, ends, codes)
        return cls(order, starts[order], ends[order], codes[order], keys.unique().sort())

    @cached_property
    def outer(self) -> Ints:
        """The place of what encloses each place, -1 at the top."""
        # What only lasts an instant is not inside what ends at that instant.
        need = np.maximum(self.ends, self.starts + 1)
        outer = np.arange(-1, len(self.rows) - 1)
        outer[self._firsts] = NONE
        todo = np.flatnonzero((outer >= 0) & (self.ends[outer] < need))
        for _ in range(_STEPS):
            # What the one before jumped over is jumped over at once, so the steps double.
            outer[todo] = outer[outer[todo]]
            at = outer[todo]
            todo = todo[(at >= 0) & (self.ends[at] < need[todo])]
            if not len(todo):
                return outer
        outer[todo] = self._search(todo, need[todo], self.threads[todo])
        return outer

    @cached_property
    def last(self) -> Ints:
        """The last place inside each place, itself where it encloses nothing."""
        last = np.arange(len(self.rows))
        inner = np.flatnonzero(self.outer >= 0)
        last[self.outer[inner]] = inner  # written in order: the last one inside stays
        while True:
            further = last[last]
            if np.array_equal(further, last):
                return last
            last = further

    def totals(self, values: Ints) -> Ints:
        """Sum the values of each place and of all that lies inside it."""
        running = np.zeros(len(values) + 1, dtype=np.int64)
        np.cumsum(values, out=running[1:])
        return running[self.last + 1] - running[:-1]

    def inside(self, values: Ints) -> Ints:
        """Sum the values of what lies directly inside each place."""
        sums = np.zeros(len(values), dtype=np.int64)
        inner = np.flatnonzero(self.outer >= 0)
        np.add.at(sums, self.outer[inner], values[inner])
        return sums

    def nearest(self, marked: Mask) -> Ints:
        """Find the innermost marked place at or around each place, -1 where there is none."""
        at = np.where(marked, np.arange(len(marked)), self.outer)
        # A marked place points to itself, so following pointers of pointers stops there.
        while True:
            further = np.where(at >= 0, at[at], NONE)
            if np.array_equal(further, at):
                return at
            at = further

    def innermost(self, times: Ints, threads: pl.Series) -> Ints:
        """Find the place that was open at each time on each thread, the last one to have begun.

        A thread that is null was not recorded: nothing is open there. -1 stands for nothing.
        """
        codes = self._codes(threads)
        if not len(self.rows):
            return np.full(len(times), NONE, dtype=np.int64)
        keys, wanted = joint_keys(self.threads, self.starts, codes, times)
        at = np.searchsorted(keys, wanted, side="right") - 1
        at[(at >= 0) & (self.threads[at] != codes)] = NONE
        return self._climb(at, times, codes)

    def rows_at(self, places: Ints) -> Ints:
        """Give the rows of places; -1 stays -1."""
        if not len(self.rows):
            return places
        return np.where(places >= 0, self.rows[places], NONE)

    def places(self) -> Ints:
        """Give the place of every row."""
        places = np.empty(len(self.rows), dtype=np.int64)
        places[self.rows] = np.arange(len(self.rows))
        return places

    @property
    def _firsts(self) -> Ints:
        """The first place of each thread."""
        return np.flatnonzero(np.diff(self.threads, prepend=NONE))

    def _codes(self, threads: pl.Series) -> Ints:
        """Number threads as here; -1 for those without intervals."""
        known = self.known.to_numpy()
        keys = threads.fill_null(_LEAST).to_numpy()
        if not len(known):
            return np.full(len(keys), NONE, dtype=np.int64)
        codes = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        return np.where((known[codes] == keys) & (keys != _LEAST), codes, NONE)

    def _climb(self, at: Ints, times: Ints, codes: Ints) -> Ints:
        """Step outwards until what a place stands for is open at its time."""
        todo = np.flatnonzero((at >= 0) & (self.ends[at] <= times))
        for _ in range(_STEPS):
            if not len(todo):
                return at
            at[todo] = self.outer[at[todo]]
            here = at[todo]
            todo = todo[(here >= 0) & (self.ends[here] <= times[todo])]
        at[todo] = self._search(at[todo], times[todo] + 1, codes[todo])
        return at

    def _search(self, before: Ints, reach: Ints, codes: Ints) -> Ints:
        """Find the last place before each, on the same thread, that ends at `reach` or later."""
        found = _last_reaching(self.ends, before, reach)
        return np.where((found >= 0) & (self.threads[found] == codes), found, NONE)


def _outer_first(starts: Ints, ends: Ints, codes: Ints) -> Ints:
    """Order by thread and start; longer first among equal starts, so that the outer one leads."""
    keys, _ = joint_keys(codes, starts, codes[:0], starts[:0])
    order = np.argsort(keys, kind="stable")
    key, end = keys[order], ends[order]
    if ((key[1:] == key[:-1]) & (end[1:] > end[:-1])).any():
        return np.lexsort((-ends, keys))
    return order


def joint_keys(codes: Ints, times: Ints, more_codes: Ints, more_times: Ints) -> tuple[Ints, Ints]:
    """Make one number of a group and a time, for two sets at once; it rises with both."""
    every = (times, more_times)
    low = min((int(t.min()) for t in every if len(t)), default=0)
    span = max((int(t.max()) for t in every if len(t)), default=0) - low + 1
    if span * (int(codes.max(initial=0)) + 1) < _WIDE:
        return codes * span + (times - low), more_codes * span + (more_times - low)
    # Times too far apart for one number keep their order when they are counted through instead.
    distinct = np.unique(np.concatenate(every))
    ranks, more_ranks = (np.searchsorted(distinct, t) for t in every)
    return codes * len(distinct) + ranks, more_codes * len(distinct) + more_ranks


def _last_reaching(values: Ints, before: Ints, reach: Ints) -> Ints:
    """Find, for each pair, the last position before `before` whose value is at least `reach`.

    Goes up a tree of maxima until a block to the left reaches, then down into its right-most part
    that does: twice the logarithm of the number of values, whatever they are.
    """
    levels = [values]
    while len(levels[-1]) > 1:
        top = levels[-1]
        top = np.append(top, _LEAST) if len(top) % 2 else top
        levels[-1] = top
        levels.append(np.maximum(top[::2], top[1::2]))
    node, height = before.copy(), np.full(len(before), NONE, dtype=np.int64)
    for level, maxima in enumerate(levels):
        odd = np.flatnonzero((height < 0) & (node % 2 == 1))
        reaches = maxima[node[odd] - 1] >= reach[odd]
        node[odd[reaches]] -= 1
        height[odd[reaches]] = level
        searching = height < 0
        node[searching] //= 2
    for level in range(len(levels) - 1, 0, -1):
        down = np.flatnonzero(height == level)
        right = 2 * node[down] + 1
        node[down] = np.where(levels[level - 1][right] >= reach[down], right, right - 1)
        height[down] = level - 1
    return np.where(height >= 0, node, NONE)
