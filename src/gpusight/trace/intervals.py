"""Half-open [start, end) spans of int64 nanoseconds: set arithmetic and nesting.

This is the only place where spans are merged, cut, measured or nested. An `Intervals` is kept in
one canonical form (sorted, disjoint, nothing empty, nothing touching), so two sets of the same
instants are always equal and every operation is a handful of NumPy passes: O(n log n), no Python
loop per interval. Lengths are taken in uint64, where the difference of any two int64 is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import polars as pl

from gpusight.core import native

if TYPE_CHECKING:
    from numpy.typing import NDArray

Reals: TypeAlias = "NDArray[np.float64]"
Flags: TypeAlias = "NDArray[np.bool_]"
Ints: TypeAlias = "NDArray[np.int64]"
"""Times, lengths, row numbers: the type of most columns."""

_INT64_MAX = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """A set of instants, as sorted, disjoint, non-empty and non-touching [start, end) spans."""

    starts: Ints
    """Where each span begins, rising."""
    ends: Ints
    """Where each span has ended, rising; an end never equals the next start."""

    def __post_init__(self) -> None:
        """Refuse spans out of canonical form and protect the arrays from later writes."""
        starts, ends = _as_int64(self.starts), _as_int64(self.ends)
        if starts.shape != ends.shape or starts.ndim != 1:
            raise ValueError("starts and ends must be two one-dimensional arrays of equal length")
        if np.any(starts >= ends) or np.any(starts[1:] <= ends[:-1]):
            raise ValueError("spans overlap, touch or are empty: use Intervals.from_arrays")
        object.__setattr__(self, "starts", _read_only(starts))
        object.__setattr__(self, "ends", _read_only(ends))

    @classmethod
    def empty(cls) -> Intervals:
        """Return the set without any instant."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64))

    @classmethod
    def from_arrays(cls, starts: Ints, ends: Ints) -> Intervals:
        """Unite spans in any order; overlaps merge, empty and reversed ones do not count."""
        united = native.unite(_as_int64(starts), _as_int64(ends))
        return cls._united(starts, ends) if united is None else cls(*united)

    @classmethod
    def _united(cls, starts: Ints, ends: Ints) -> Intervals:
        first, last = _valid_spans(starts, ends)
        if first.size == 0:
            return cls.empty()
        order = np.argsort(first, kind="stable")
        first = first[order]
        reach = np.maximum.accumulate(last[order])
        # A span opens a new group only beyond everything before it: touching spans merge.
        opens = np.flatnonzero(first[1:] > reach[:-1]) + 1
        closes = np.append(opens - 1, first.size - 1)
        return cls(first[np.insert(opens, 0, 0)], reach[closes])

    @property
    def length_ns(self) -> int:
        """Total length; exact even for the whole int64 range."""
        return int(_distance(self.starts, self.ends).sum(dtype=np.uint64))

    def __len__(self) -> int:
        """Count the spans."""
        return int(self.starts.size)

    def __eq__(self, other: object) -> bool:
        """Compare the instants: canonical form makes that a comparison of the arrays."""
        if not isinstance(other, Intervals):
            return NotImplemented
        return np.array_equal(self.starts, other.starts) and np.array_equal(self.ends, other.ends)

    def __hash__(self) -> int:
        """Hash by content; the arrays cannot change."""
        return hash((self.starts.tobytes(), self.ends.tobytes()))


def union(a: Intervals, b: Intervals) -> Intervals:
    """Return the instants in a, in b or in both."""
    return Intervals.from_arrays(
        np.concatenate((a.starts, b.starts)), np.concatenate((a.ends, b.ends))
    )


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Return the instants in both a and b."""
    # A common span starts where one side starts inside the other, and ends likewise. Spans of
    # canonical sets never touch, so these starts and ends pair up in sorted order.
    starts = (a.starts[contains(b, a.starts)], b.starts[contains(a, b.starts)])
    ends = (a.ends[_inside(b, a.ends, "left")], b.ends[_inside(a, b.ends, "left")])
    return Intervals(distinct(*starts), distinct(*ends))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Return the instants in a that are not in b."""
    if len(a) == 0:
        return a
    return intersect(a, gaps(b, int(a.starts[0]), int(a.ends[-1])))


def gaps(a: Intervals, window_start: int, window_end: int) -> Intervals:
    """Return the instants of [window_start, window_end) that are not in a."""
    inside = clip(a, window_start, window_end)
    return Intervals.from_arrays(
        np.insert(inside.ends, 0, window_start), np.append(inside.starts, window_end)
    )


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """Return the instants of a that lie in [start, end)."""
    return Intervals.from_arrays(
        np.clip(a.starts, start, max(start, end)), np.clip(a.ends, start, max(start, end))
    )


def coverage(a: Intervals, starts: Ints, ends: Ints) -> Ints:
    """Count the nanoseconds of each query span [start, end) that a covers.

    Empty and reversed queries count 0. A count beyond int64 is reported as the largest int64.
    """
    first, last = _as_int64(starts), _as_int64(ends)
    covered = _covered_before(a, np.maximum(first, last)) - _covered_before(a, first)
    capped: Ints = np.minimum(covered, np.uint64(_INT64_MAX)).astype(np.int64)
    return capped


def distinct(*times: Ints) -> Ints:
    """Return the distinct values of several arrays, rising."""
    # np.unique hashes them, which takes ten times as long where most are distinct.
    values: Ints = np.sort(np.concatenate(times), kind="stable")
    return values[np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])]


def contains(a: Intervals, times: Ints) -> Flags:
    """Return for each time whether it is an instant of a."""
    return _inside(a, _as_int64(times), "right")


def _inside(a: Intervals, times: Ints, side: Literal["left", "right"]) -> Flags:
    """Return whether each time is in a; on the left side, the instant just before it."""
    found = native.inside(a.starts, a.ends, times, right=side == "right")
    return _searched_inside(a, times, side) if found is None else found


def _searched_inside(a: Intervals, times: Ints, side: Literal["left", "right"]) -> Flags:
    begun = np.searchsorted(a.starts, times, side=side)
    inside: Flags = begun > np.searchsorted(a.ends, times, side=side)
    return inside


def search(values: Ints, times: Ints, side: Literal["left", "right"] = "left") -> Ints:
    """Find where times would be among rising values, as `numpy.searchsorted` does.

    Where times rise as well, as those of two tables do, each is found next to the one before.
    """
    found = native.search(values, times, right=side == "right")
    return np.searchsorted(values, times, side=side) if found is None else found


def _covered_before(a: Intervals, times: Ints) -> NDArray[np.uint64]:
    """Measure how much of a lies before each time."""
    if len(a) == 0:
        return np.zeros(times.shape, np.uint64)
    covered = np.zeros(len(a) + 1, np.uint64)
    np.cumsum(_distance(a.starts, a.ends), out=covered[1:])
    begun = search(a.starts, times, side="right")
    # The last span begun may reach past the time: that part is not before it.
    reach = a.ends[np.maximum(begun - 1, 0)]
    beyond = _distance(np.minimum(times, reach), reach)
    return covered[begun] - np.where(begun > 0, beyond, np.uint64(0))


def _distance(low: Ints, high: Ints) -> NDArray[np.uint64]:
    """Subtract int64 arrays with low <= high; modulo 2**64 the unsigned result is exact."""
    return high.astype(np.uint64) - low.astype(np.uint64)


def _valid_spans(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    first, last = _as_int64(starts), _as_int64(ends)
    keep = first < last
    return first[keep], last[keep]


def _as_int64(values: Ints) -> Ints:
    """Convert integers of any width; refuse floats, whose nanoseconds are already rounded."""
    array = np.asarray(values)
    if array.size == 0:
        return np.empty(array.shape, np.int64)
    return array.astype(np.int64, casting="same_kind", copy=False)


def _read_only(array: Ints) -> Ints:
    view = array.view()
    view.setflags(write=False)
    return view


# Nesting ----------------------------------------------------------------------------------------


def number(keys: pl.Series) -> Ints:
    """Number keys from 0 in rising order; searching the distinct ones is faster than a sort."""
    codes: Ints = np.searchsorted(keys.unique().sort().to_numpy(), keys.to_numpy())
    return codes


def stable_argsort(codes: Ints) -> Ints:
    """Sort by small whole numbers, keeping the order within: 16 bits are sorted by radix."""
    fits = len(codes) and codes.min() >= 0 and codes.max() < 1 << 16
    return np.argsort(codes.astype(np.uint16) if fits else codes, kind="stable")


RANGES_NEED = ("start_ns", "end_ns", "kind", "thread", "domain_key")
"""Columns of `ranges` that decide how they nest."""
CALLS_NEED = ("start_ns", "end_ns", "thread")
"""Columns of tables of calls that decide how those nest."""


def nest(starts: Ints, ends: Ints, groups: Ints) -> tuple[Ints, Ints]:
    """Find how deep each interval lies and which row encloses it, within its group.

    Intervals of a group are a stack's pushes and pops: an interval's depth is how many were open
    when it began, its parent the one opened last among them (-1 at the top). One that ends exactly
    when another begins does not enclose it.
    """
    n = len(starts)
    order = outer_first(starts, ends, groups)
    start, end, group = starts[order], ends[order], groups[order]
    # Doubling makes room for an instantaneous interval to close just after it opened.
    depth_sorted = _open_before(2 * start, 2 * end + (end == start), group)
    depth = np.empty(n, dtype=np.int64)
    depth[order] = depth_sorted
    parent = np.full(n, -1, dtype=np.int64)
    parent[order] = _parents(depth_sorted, order, group)
    return depth, parent


def outer_first(starts: Ints, ends: Ints, groups: Ints) -> Ints:
    """Order by group, then start; longer first among equal starts, so that the outer one leads."""
    if bool((starts[1:] >= starts[:-1]).all()):
        order = stable_argsort(groups)
        start, end = starts[order], ends[order]
        tie = (start[1:] == start[:-1]) & (end[1:] > end[:-1])
        if not tie.any():
            return order
    return np.lexsort((-ends, starts, groups))


def _open_before(opens: Ints, closes: Ints, groups: Ints) -> Ints:
    """Count, for each opening, the intervals of its group that opened before and are open still."""
    still_open = np.empty(len(opens), dtype=np.int64)
    bounds = np.flatnonzero(np.diff(groups)) + 1
    for lo, hi in zip(np.r_[0, bounds], np.r_[bounds, len(opens)], strict=True):
        closed = np.searchsorted(np.sort(closes[lo:hi]), opens[lo:hi], side="right")
        still_open[lo:hi] = np.arange(hi - lo) - closed
    return still_open


def _parents(depth: Ints, rows: Ints, group: Ints) -> Ints:
    """Return, for each interval, the last one before it, one level up in the same group."""
    parents = np.full(len(depth), -1, dtype=np.int64)
    if not len(depth):
        return parents
    by_depth = stable_argsort(depth)
    levels, firsts = np.unique(depth[by_depth], return_index=True)
    spans = dict(zip(levels.tolist(), np.split(by_depth, firsts[1:]), strict=True))
    for level, members in spans.items():
        above = spans.get(level - 1)
        if above is None:
            continue
        position = np.searchsorted(above, members) - 1
        candidate = above[np.maximum(position, 0)]
        inside = (position >= 0) & (group[candidate] == group[members])
        parents[members] = np.where(inside, rows[candidate], -1)
    return parents


def nest_ranges(ranges: pl.DataFrame) -> list[pl.Series]:
    """Return `depth` and `parent` of a table of ranges; only push/pop ranges nest.

    Each nests on its own thread and domain. The others have depth 0 and no parent.
    """
    nested = ranges.with_row_index("row").filter(pl.col("kind") == "push_pop")
    rows = nested.get_column("row").to_numpy().astype(np.int64)
    groups = number(nested.get_column("thread").fill_null(0))
    if nested.get_column("domain_key").n_unique() > 1:
        domains = number(nested.get_column("domain_key").fill_null(0))
        groups = groups * (int(domains.max()) + 1) + domains
    depth, parent = nest(
        nested.get_column("start_ns").to_numpy(), nested.get_column("end_ns").to_numpy(), groups
    )
    depths = np.zeros(ranges.height, dtype=np.int64)
    parents = np.full(ranges.height, -1, dtype=np.int64)
    depths[rows] = depth
    parents[rows] = np.where(parent >= 0, rows[parent], -1)
    column = pl.Series("parent", parents)
    return [pl.Series("depth", depths), column.set(column < 0, None)]


def nest_calls(calls: pl.DataFrame) -> list[pl.Series]:
    """Return `depth` and `parent` of calls that nest on their thread."""
    depth, parent = nest(
        calls.get_column("start_ns").to_numpy(),
        calls.get_column("end_ns").to_numpy(),
        number(calls.get_column("thread").fill_null(0)),
    )
    column = pl.Series("parent", parent)
    return [pl.Series("depth", depth), column.set(column < 0, None)]
