"""Intervals that enclose each other, checked against the plain definition."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusight.analysis.attribution import nested_intervals
from gpusight.analysis.attribution.nested_intervals import NONE, NestedIntervals

Interval = tuple[int, int, int | None]
INTERVALS = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 12), st.sampled_from([1, 1, 2, None])).map(
        lambda i: (min(i[:2]), max(i[:2]), i[2])
    ),
    max_size=14,
)
QUERIES = st.lists(
    st.tuples(st.integers(-1, 14), st.sampled_from([1, 2, 3, None])), min_size=1, max_size=8
)


def laid_out(intervals: list[Interval]) -> NestedIntervals:
    starts = np.array([i[0] for i in intervals], dtype=np.int64)
    ends = np.array([i[1] for i in intervals], dtype=np.int64)
    return NestedIntervals.of(starts, ends, pl.Series([i[2] for i in intervals], dtype=pl.Int64))


def parents(nested: NestedIntervals) -> list[int]:
    """Give the row around each row."""
    outer = nested.rows_at(nested.outer)
    rows = np.empty(len(outer), dtype=np.int64)
    rows[nested.rows] = outer
    return [int(row) for row in rows]


def with_a_stack(nested: NestedIntervals) -> list[int]:
    """Do what PyTorch does: push each interval, after taking off what cannot hold it."""
    out, stacks = [], dict[int, list[int]]()
    for at in range(len(nested.rows)):
        stack = stacks.setdefault(int(nested.threads[at]), [])
        start, end = nested.starts[at], nested.ends[at]
        while stack and (start >= nested.ends[stack[-1]] or end > nested.ends[stack[-1]]):
            stack.pop()
        out.append(stack[-1] if stack else NONE)
        stack.append(at)
    return out


@pytest.mark.parametrize("steps", [32, 0])
@settings(max_examples=100, deadline=None)
@given(intervals=INTERVALS, queries=QUERIES)
def test_it_is_what_a_stack_gives(
    steps: int, intervals: list[Interval], queries: list[tuple[int, int | None]]
) -> None:
    """However the intervals lie; without any steps outwards, all is found by halving."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nested_intervals, "_MAX_STEPS", steps)
        nested = laid_out(intervals)
        outer = with_a_stack(nested)
        assert nested.outer.tolist() == outer
        places = nested.innermost(
            np.array([time for time, _ in queries]),
            pl.Series([t for _, t in queries], dtype=pl.Int64),
        )
        rows = nested.rows_at(places)
    for (time, thread), row in zip(queries, rows, strict=True):
        open_ = [i for i in intervals if i[2] == thread and i[0] <= time < i[1]]
        if thread is None or not open_:
            assert row == NONE
        else:
            latest = max(start for start, _, _ in open_)
            assert intervals[row] == min((i for i in open_ if i[0] == latest), key=lambda i: i[1])


@settings(max_examples=50, deadline=None)
@given(intervals=INTERVALS, seed=st.integers(0, 100))
def test_sums_and_marks_follow_the_tree(intervals: list[Interval], seed: int) -> None:
    nested = laid_out(intervals)
    outer = with_a_stack(nested)
    random = np.random.default_rng(seed)
    values = random.integers(0, 9, len(outer))
    marked = random.random(len(outer)) < 0.4
    totals, inside, nearest = values.copy(), np.zeros_like(values), []
    for at, start in enumerate(outer):
        around = start
        if around >= 0:
            inside[around] += values[at]
        while around >= 0:
            totals[around] += values[at]
            around = outer[around]
        here = at
        while here >= 0 and not marked[here]:
            here = outer[here]
        nearest.append(here)
    assert nested.totals(values).tolist() == totals.tolist()
    assert nested.inside(values).tolist() == inside.tolist()
    assert nested.nearest(marked).tolist() == nearest


def test_one_that_outlives_another_is_not_inside_it() -> None:
    # a [-----)
    # b    [-----)      began in a, ends after it
    # c      [)         began while both were open
    # d        [-)      began when only b was
    assert parents(laid_out([(0, 6, 1), (3, 9, 1), (5, 6, 1), (7, 9, 1)])) == [-1, -1, 1, 1]


def test_what_begins_together_encloses_by_length_and_threads_are_apart() -> None:
    rows: list[Interval] = [(0, 5, 1), (0, 9, 1), (0, 9, 2), (1, 2, 2), (1, 2, None)]
    assert parents(laid_out(rows)) == [1, -1, -1, 2, -1]


def test_a_stack_of_a_million_is_no_matter() -> None:
    """Each inside the one before, then one that outlives them all, then as many on end."""
    n = 500_000
    down = np.arange(n)
    starts = np.concatenate([down, [n], n + 1 + down])
    ends = np.concatenate([4 * n - down, [5 * n], np.full(n, 4 * n)])
    nested = NestedIntervals.of(starts, ends, pl.Series(np.zeros(len(starts), dtype=np.int64)))
    assert nested.outer[n - 1] == n - 2
    assert nested.outer[n] == NONE
    assert nested.last[0] == n - 1
    assert nested.totals(np.ones(len(starts), dtype=np.int64))[n] == n + 1
    assert nested.innermost(np.array([4 * n - 1, 5 * n - 1]), pl.Series([0, 0])).tolist() == [
        2 * n,
        n,
    ]


def test_times_at_both_ends_of_the_clock() -> None:
    far = 1 << 61
    nested = laid_out([(-far, far, 1), (0, 5, 1), (-far, 3, 2), (1, 2, 2)])
    assert parents(nested) == [-1, 0, -1, 2]
    threads = pl.Series([1, 1, 2, 2])
    places = nested.innermost(np.array([far - 1, 4, 1, 3]), threads)
    assert nested.rows_at(places).tolist() == [0, 1, 3, NONE]


def test_nothing_is_nothing() -> None:
    nested = laid_out([])
    empty = np.array([], dtype=np.int64)
    assert nested.totals(empty).tolist() == nested.inside(empty).tolist() == []
    assert nested.nearest(empty.astype(np.bool_)).tolist() == []
    assert nested.innermost(np.array([3]), pl.Series([1])).tolist() == [NONE]
