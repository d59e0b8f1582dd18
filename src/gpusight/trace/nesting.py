"""Depth and parent of nested intervals, for all threads at once, without a loop per interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from gpusight.trace.intervals import Ints


def number(keys: pl.Series) -> Ints:
    """Number keys from 0 in their order; a search among the distinct ones is faster than a sort."""
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
    """Take, for each interval, the last one before it that lies one level up in the same group."""
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
        _groups(nested),
    )
    depths = np.zeros(ranges.height, dtype=np.int64)
    parents = np.full(ranges.height, -1, dtype=np.int64)
    depths[rows] = depth
    parents[rows] = np.where(parent >= 0, rows[parent], -1)
    column = pl.Series("parent", parents)
    return [pl.Series("depth", depths), column.set(column < 0, None)]


def nest_calls(calls: pl.DataFrame) -> list[pl.Series]:
    """Give `depth` and `parent` of calls that nest on their thread."""
    depth, parent = nest(
        calls.get_column("start_ns").to_numpy(),
        calls.get_column("end_ns").to_numpy(),
        number(calls.get_column("thread").fill_null(0)),
    )
    column = pl.Series("parent", parent)
    return [pl.Series("depth", depth), column.set(column < 0, None)]


def _groups(ranges: pl.DataFrame) -> Ints:
    """Number the threads, and their domains where there are several."""
    codes = number(ranges.get_column("thread").fill_null(0))
    if ranges.get_column("domain_key").n_unique() <= 1:
        return codes
    domains = number(ranges.get_column("domain_key").fill_null(0))
    return codes * (int(domains.max()) + 1) + domains
