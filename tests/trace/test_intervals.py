"""Interval arithmetic against sets of integers; depth and parent against a plain stack."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusight.trace.intervals import (
    Intervals,
    clip,
    contains,
    coverage,
    gaps,
    intersect,
    nest,
    subtract,
    union,
)

if TYPE_CHECKING:
    from random import Random

MIN, MAX = np.iinfo(np.int64).min, np.iinfo(np.int64).max

point = st.integers(-12, 30)
span = st.tuples(point, point)
spans = st.lists(span, max_size=12)
Spans = list[tuple[int, int]]


def build(pairs: Spans) -> Intervals:
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Intervals.from_arrays(table[:, 0], table[:, 1])


def instants(pairs: Spans) -> set[int]:
    return {instant for start, end in pairs for instant in range(start, end)}


def content(a: Intervals) -> set[int]:
    return instants(list(zip(a.starts.tolist(), a.ends.tolist(), strict=True)))


def assert_canonical(a: Intervals) -> None:
    assert a.starts.dtype == a.ends.dtype == np.int64
    assert np.all(a.starts < a.ends)
    assert np.all(a.ends[:-1] < a.starts[1:])


@pytest.mark.parametrize(
    ("given_spans", "expected"),
    [
        ([], []),
        ([(5, 5), (7, 3)], []),
        ([(0, 2), (2, 4)], [(0, 4)]),
        ([(6, 9), (0, 2), (1, 4)], [(0, 4), (6, 9)]),
        ([(0, 10), (2, 3), (11, 12)], [(0, 10), (11, 12)]),
    ],
)
def test_from_arrays(given_spans: Spans, expected: Spans) -> None:
    built = build(given_spans)
    assert list(zip(built.starts.tolist(), built.ends.tolist(), strict=True)) == expected


@given(spans)
def test_from_arrays_is_the_set_of_its_instants(pairs: Spans) -> None:
    built = build(pairs)
    assert_canonical(built)
    assert content(built) == instants(pairs)
    assert built.length_ns == len(instants(pairs))


@given(spans, st.randoms())
def test_order_does_not_matter(pairs: Spans, random: Random) -> None:
    shuffled = list(pairs)
    random.shuffle(shuffled)
    assert build(shuffled) == build(pairs)
    assert hash(build(shuffled)) == hash(build(pairs))


@given(spans)
def test_from_arrays_is_idempotent(pairs: Spans) -> None:
    once = build(pairs)
    assert Intervals.from_arrays(once.starts, once.ends) == once
    assert union(once, once) == once
    assert intersect(once, once) == once
    assert subtract(once, once) == Intervals.empty()


@given(spans, spans)
def test_set_operations_equal_the_model(left: Spans, right: Spans) -> None:
    a, b = build(left), build(right)
    in_a, in_b = instants(left), instants(right)
    for result, expected in (
        (union(a, b), in_a | in_b),
        (intersect(a, b), in_a & in_b),
        (subtract(a, b), in_a - in_b),
    ):
        assert_canonical(result)
        assert content(result) == expected


@given(spans, spans)
def test_laws(left: Spans, right: Spans) -> None:
    a, b = build(left), build(right)
    common = intersect(a, b)
    assert union(a, b) == union(b, a)
    assert common == intersect(b, a)
    assert union(a, b).length_ns == a.length_ns + b.length_ns - common.length_ns
    assert intersect(subtract(a, b), b) == Intervals.empty()
    assert union(subtract(a, b), common) == a


@given(spans, point, point)
def test_gaps_and_the_set_fill_the_window(pairs: Spans, start: int, end: int) -> None:
    a = build(pairs)
    window = build([(start, end)])
    free = gaps(a, start, end)
    inside = clip(a, start, end)
    assert_canonical(free)
    assert union(free, inside) == window
    assert intersect(free, inside) == Intervals.empty()
    assert free.length_ns + inside.length_ns == window.length_ns
    assert inside == intersect(a, window)


@given(spans, spans)
def test_coverage_equals_the_model(pairs: Spans, queries: Spans) -> None:
    table = np.array(queries, dtype=np.int64).reshape(-1, 2)
    covered = coverage(build(pairs), table[:, 0], table[:, 1])
    assert covered.dtype == np.int64
    assert covered.tolist() == [len(instants(pairs) & set(range(*query))) for query in queries]


@given(spans, st.lists(point, max_size=20))
def test_contains_equals_the_model(pairs: Spans, times: list[int]) -> None:
    inside = contains(build(pairs), np.array(times, dtype=np.int64))
    assert inside.tolist() == [time in instants(pairs) for time in times]


def test_the_whole_int64_range_does_not_overflow() -> None:
    everything = build([(MIN, MAX)])
    middle = build([(-5, 5)])
    assert everything.length_ns == 2**64 - 1
    assert intersect(everything, middle) == middle
    assert subtract(everything, middle).length_ns == 2**64 - 1 - 10
    assert gaps(middle, MIN, MAX) == build([(MIN, -5), (5, MAX)])
    assert clip(everything, -3, 4) == build([(-3, 4)])
    assert coverage(everything, np.array([MIN, -1, 0]), np.array([MAX, MAX, MIN])).tolist() == [
        MAX,
        MAX,
        0,
    ]
    assert contains(everything, np.array([MIN, 0, MAX])).tolist() == [True, True, False]


def test_values_cannot_be_changed_after_the_fact() -> None:
    built = build([(0, 4)])
    with pytest.raises(ValueError, match="read-only"):
        built.starts[0] = 1


@pytest.mark.parametrize("pairs", [[(0, 4), (4, 6)], [(3, 3)], [(5, 6), (0, 1)]])
def test_the_constructor_takes_only_canonical_spans(pairs: Spans) -> None:
    table = np.array(pairs, dtype=np.int64)
    with pytest.raises(ValueError, match="from_arrays"):
        Intervals(table[:, 0], table[:, 1])


def test_the_constructor_needs_as_many_starts_as_ends() -> None:
    with pytest.raises(ValueError, match="equal length"):
        Intervals(np.array([0]), np.array([1, 2]))


def test_floats_are_refused() -> None:
    with pytest.raises(TypeError):
        Intervals.from_arrays(np.array([0.5]), np.array([2.5]))


def test_narrow_integers_are_widened() -> None:
    small = Intervals.from_arrays(
        np.array([1], np.int32),
        np.array([3], np.int32),
    )
    assert small == build([(1, 3)])
    assert (small == "not intervals") is False


def test_a_million_spans_take_no_python_loop() -> None:
    starts = np.arange(1_000_000, dtype=np.int64) * 10
    a = Intervals.from_arrays(starts[::-1], starts[::-1] + 4)
    b = Intervals.from_arrays(starts + 2, starts + 8)
    assert len(a) == 1_000_000
    assert intersect(a, b).length_ns == 2_000_000
    assert subtract(a, b).length_ns == 2_000_000
    assert coverage(a, starts, starts + 10).sum() == 4_000_000


@st.composite
def stacks(draw: st.DrawFn) -> list[tuple[int, int, int, int, int]]:
    """Push and pop at increasing times; rows are (start, end, group, depth, parent)."""
    rows: list[list[int]] = []
    for group in range(draw(st.integers(1, 3))):
        open_rows: list[int] = []
        for time, push in enumerate(draw(st.lists(st.booleans(), max_size=30))):
            if push:
                rows.append([time, -1, group, len(open_rows), open_rows[-1] if open_rows else -1])
                open_rows.append(len(rows) - 1)
            elif open_rows:
                rows[open_rows.pop()][1] = time
        for row in open_rows:
            rows[row][1] = 1000 - rows[row][3]
    return [(a, b, c, d, e) for a, b, c, d, e in rows]


@given(stacks(), st.randoms())
def test_equals_a_stack(rows: list[tuple[int, int, int, int, int]], random: object) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    columns = np.array([rows[i] for i in order], dtype=np.int64).reshape(len(rows), 5)
    depth, parent = nest(columns[:, 0], columns[:, 1], columns[:, 2])
    assert depth.tolist() == columns[:, 3].tolist()
    position = {row: i for i, row in enumerate(order)}
    assert parent.tolist() == [position.get(int(p), -1) for p in columns[:, 4]]


def test_touching_and_instant_ranges() -> None:
    starts = np.array([0, 10, 10, 15], dtype=np.int64)
    ends = np.array([10, 20, 10, 15], dtype=np.int64)
    depth, parent = nest(starts, ends, np.zeros(4, dtype=np.int64))
    # [0,10) touches [10,20); the instants at 10 and 15 lie inside [10,20).
    assert depth.tolist() == [0, 0, 1, 1]
    assert parent.tolist() == [-1, -1, 1, 1]
