"""Alignment against the textbook table, and the time it takes on sequences as steps have them."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from gpusight.comparison.launch_alignment import align, gaps

texts = st.text("abcd", max_size=14)


def longest(left: str, other: str) -> int:
    table = [[0] * (len(other) + 1) for _ in range(len(left) + 1)]
    for i, a in enumerate(left):
        for j, b in enumerate(other):
            table[i + 1][j + 1] = (
                table[i][j] + 1 if a == b else max(table[i][j + 1], table[i + 1][j])
            )
    return table[-1][-1]


@given(texts, texts)
def test_pairs_are_equal_rising_and_as_many_as_possible(left: str, other: str) -> None:
    pairs = align(left, other)
    assert all(left[i] == other[j] for i, j in pairs)
    assert [i for i, _ in pairs] == sorted({i for i, _ in pairs})
    assert [j for _, j in pairs] == sorted({j for _, j in pairs})
    assert len(pairs) == longest(left, other)


@given(texts, texts)
def test_the_other_way_round_gives_the_same_pairs(one: str, other: str) -> None:
    assert align(other, one) == [(j, i) for i, j in align(one, other)]


@given(texts, texts)
def test_gaps_are_what_lies_between_pairs(one: str, other: str) -> None:
    pairs = align(one, other)
    for left, right in gaps(pairs, len(one), len(other)):
        assert left
        assert right
        assert not {i for i, _ in pairs} & set(left)
        assert not {one[i] for i in left} & {other[j] for j in right}


def test_what_was_put_in_between_does_not_shift_the_rest() -> None:
    pairs = align(["norm", "gemm", "gelu"], ["norm", "cast", "gemm", "cast", "gelu"])
    assert pairs == [(0, 0), (1, 2), (2, 4)]


def test_two_steps_of_twenty_thousand_launches_take_no_time() -> None:
    layer = [f"kernel {i * i % 97}" for i in range(200)]
    before, after = layer * 100, [name for i, name in enumerate(layer * 100) if i % 9]
    start = time.process_time()
    assert len(align(before, after)) == len(after)
    assert time.process_time() - start < 2
