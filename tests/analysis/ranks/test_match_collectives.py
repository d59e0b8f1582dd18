"""Which collectives of different ranks are the same one."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gpusight.analysis.ranks.match_collectives import ABSENT, clock_offsets, match_collectives
from tests.analysis.ranks.jobs import MS, Collective, digest

KINDS = ("all_gather", "reduce_scatter", "all_reduce")


def sequence(rank: int, steps: int, seed: int = 0) -> list[Collective]:
    """Build the collectives of a job on the clock of a rank: the same three in every step."""
    chance = random.Random(seed)  # the same for all ranks: they leave together
    made, end_ns = [], 0
    for number in range(steps):
        for place, kind in enumerate(KINDS):
            end_ns += chance.randint(3 * MS, 9 * MS)
            start_ns = end_ns - MS - (rank * 7 + place) % 3 * MS // 4
            offset_ns = rank * 50 * MS
            made.append(Collective(start_ns + offset_ns, end_ns + offset_ns, kind, 64, step=number))
    return made


def pairs(*ranks: list[Collective]) -> list[tuple[int, ...]]:
    matched = match_collectives([digest(rank, own) for rank, own in enumerate(ranks)])
    return [tuple(row) for row in matched.row.tolist()]


def test_equal_sequences_match_in_order() -> None:
    assert pairs(sequence(0, 4), sequence(1, 4)) == [(n, n) for n in range(12)]


@pytest.mark.parametrize("missing", [1, 3, 4, 6])
def test_captures_that_begin_later_are_aligned(missing: int) -> None:
    """One step less is the same sequence again: ends decide."""
    expected = [(n + missing, n) for n in range(30 - missing)]
    assert pairs(sequence(0, 10), sequence(1, 10)[missing:]) == expected
    assert pairs(sequence(0, 10)[missing:], sequence(1, 10)) == [(b, a) for a, b in expected]


def test_a_capture_that_ends_earlier_is_aligned() -> None:
    assert pairs(sequence(0, 10), sequence(1, 10)[:-5]) == [(n, n) for n in range(25)]


def test_collectives_missing_in_the_middle_are_left_out() -> None:
    own = sequence(1, 10)
    del own[10:12]
    expected = [(n, n) for n in range(10)] + [(n, n - 2) for n in range(12, 30)]
    assert pairs(sequence(0, 10), own) == expected


def test_different_bytes_do_not_match() -> None:
    first, second = (
        [Collective(at * MS, at * MS + MS, bytes=size, step=0) for at, size in enumerate(sizes)]
        for sizes in ((1, 2, 3, 4), (1, 9, 3, 4))
    )
    assert pairs(first, second) == [(0, 0), (2, 2), (3, 3)]


@pytest.mark.parametrize("column", ["sequence", "operation"])
def test_numbers_decide_where_all_have_them(column: str) -> None:
    def numbered(first: int) -> list[Collective]:
        return [Collective(n * MS, n * MS + 5, **{column: n}) for n in range(first, first + 4)]  # type: ignore[arg-type]

    assert pairs(numbered(3), numbered(5)) == [(2, 0), (3, 1)]


def test_groups_match_apart() -> None:
    def rank(groups: list[str]) -> list[Collective]:
        return [Collective(n * MS, n * MS + 5, group=group) for n, group in enumerate(groups)]

    assert sorted(pairs(rank(["tp", "dp"]), rank(["dp", "tp"]))) == [(0, 1), (1, 0)]
    matched = match_collectives([digest(0, rank(["a"])), digest(1, rank(["b"]))])
    assert (len(matched), matched.unmatched) == (0, 2)


def test_ranks_without_a_collective_are_absent() -> None:
    def rank(*groups: str) -> list[Collective]:
        return [Collective(n * MS, n * MS + 5, group=group) for n, group in enumerate(groups)]

    assert pairs(rank("x", "all"), rank("x", "all"), rank("all")) == [
        (0, 0, ABSENT),
        (1, 1, 0),
    ]


def test_sends_and_receives_are_no_collectives_of_a_group() -> None:
    own = [Collective(0, 5, "send"), Collective(10, 15, "recv")]
    assert pairs(own, own) == []


def test_unrelated_sequences_do_not_match() -> None:
    first = [Collective(n * MS, n * MS + 5, bytes=n) for n in range(8)]
    second = [Collective(n * MS, n * MS + 5, bytes=100 + n) for n in range(8)]
    assert pairs(first, second) == []


def test_clocks_follow_from_rank_to_rank() -> None:
    present = np.array([[True, True, False], [False, True, True]])
    ends = np.array([[10, 110, 0], [0, 220, 1220]])
    assert clock_offsets(present, ends).tolist() == [0, 100, 1100]
