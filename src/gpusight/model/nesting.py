"""Depth and parent of nested intervals, for all threads at once, without a loop per interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

NEEDS = ("start_ns", "end_ns", "kind", "thread", "domain_key")
"""Columns of `ranges` that decide how they nest."""


def nest(
    starts: NDArray[np.int64], ends: NDArray[np.int64], groups: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find how deep each interval lies and which row encloses it, within its group.

    Intervals of a group are a stack's pushes and pops: an interval's depth is how many were open
    when it began, its parent the one opened last among them (-1 at the top). One that ends exactly
    when another begins does not enclose it.
    """
    n = len(starts)
    # Longer first among equal starts, so that the outer one comes before the inner one.
    order = np.lexsort((-ends, starts, groups))
    start, group = starts[order], groups[order]
    # Doubling makes room for an instantaneous interval to close just after it opened.
    close = 2 * ends[order] + (ends[order] == start)
    by_close = np.lexsort((close, group))
    closed = _count_closed(2 * start, close[by_close], group, group[by_close])
    first_of_group = np.searchsorted(group, group, side="left")
    depth_sorted = (np.arange(n) - first_of_group) - closed
    depth = np.empty(n, dtype=np.int64)
    depth[order] = depth_sorted
    parent = np.full(n, -1, dtype=np.int64)
    parent[order] = _parents(depth_sorted, order, group)
    return depth, parent


def _count_closed(
    opens: NDArray[np.int64],
    closes: NDArray[np.int64],
    open_groups: NDArray[np.int64],
    close_groups: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Count, for each opening, the closings of its group at or before it."""
    counts = np.zeros(len(opens), dtype=np.int64)
    bounds = np.flatnonzero(np.diff(close_groups)) + 1
    for lo, hi in zip(np.r_[0, bounds], np.r_[bounds, len(closes)], strict=True):
        counts[lo:hi] = np.searchsorted(closes[lo:hi], opens[lo:hi], side="right")
    assert np.array_equal(open_groups, close_groups)
    return counts


def _parents(
    depth: NDArray[np.int64], rows: NDArray[np.int64], group: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Take, for each interval, the last one before it that lies one level up in the same group."""
    parents = np.full(len(depth), -1, dtype=np.int64)
    if not len(depth):
        return parents
    by_depth = np.argsort(depth, kind="stable")
    levels, firsts = np.unique(depth[by_depth], return_index=True)
    spans = dict(zip(levels.tolist(), np.split(by_depth, firsts[1:]), strict=True))
    for level, members in spans.items():
        above = spans.get(level - 1)
        if above is None:
            continue
        at = np.searchsorted(above, members) - 1
        candidate = above[np.maximum(at, 0)]
        inside = (at >= 0) & (group[candidate] == group[members])
        parents[members] = np.where(inside, rows[candidate], -1)
    return parents


def nest_ranges(ranges: pl.DataFrame) -> list[pl.Series]:
    """Give `depth` and `parent` of a table of ranges; only push/pop ranges nest.

    Each nests on its own thread and domain. The others have depth 0 and no parent.
    """
    nested = ranges.with_row_index("row").filter(pl.col("kind") == "push_pop")
    rows = nested.get_column("row").to_numpy().astype(np.int64)
    depth, parent = nest(
        nested.get_column("start_ns").to_numpy(),
        nested.get_column("end_ns").to_numpy(),
        _groups(nested).to_numpy(),
    )
    depths = np.zeros(ranges.height, dtype=np.int64)
    parents = np.full(ranges.height, -1, dtype=np.int64)
    depths[rows] = depth
    parents[rows] = np.where(parent >= 0, rows[parent], -1)
    column = pl.Series("parent", parents)
    return [pl.Series("depth", depths), column.set(column < 0, None)]


def _groups(ranges: pl.DataFrame) -> pl.Series:
    thread = ranges.get_column("thread").fill_null(0)
    if ranges.get_column("domain_key").n_unique() <= 1:
        return thread
    return ranges.select(pl.struct("thread", "domain_key").rank("dense").cast(pl.Int64)).to_series()
