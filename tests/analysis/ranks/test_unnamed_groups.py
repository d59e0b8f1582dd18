"""Process groups without a name: ranks that leave collectives together."""

from __future__ import annotations

import numpy as np
import pytest

from gpusight.analysis.ranks.match_collectives import match_collectives
from gpusight.analysis.ranks.rank_digest import RankDigest, StepDigest
from tests.analysis.ranks.jobs import Collective, digest, step

US, MS = 1_000, 1_000_000
PAIRS = {"inner": [[0, 1], [2, 3]], "outer": [[0, 2], [1, 3]]}
ALL = [[0, 1, 2, 3]]


def job(order: list[list[list[int]]], steps: int, seed: int, late_ns: int = 0) -> list[RankDigest]:
    """Simulate steps of collectives of these groups; rank 3 is late before the first of each."""
    random = np.random.default_rng(seed)
    clocks = random.integers(0, 50 * MS, 4)
    now = np.zeros(4)
    rows: list[list[Collective]] = [[] for _ in range(4)]
    for number in range(steps):
        now[3] += late_ns
        for groups in order:
            now += random.normal(MS, 60 * US, 4)
            for group in groups:
                end = now[group].max() + 50 * US
                for rank in group:
                    start, own_end = (
                        int(t + clocks[rank]) for t in (now[rank], end + random.gamma(2, 500))
                    )
                    rows[rank].append(Collective(start, own_end, step=number))
                now[group] = end
    return [digest(rank, own, numbered_steps(steps)) for rank, own in enumerate(rows)]


def numbered_steps(count: int) -> list[StepDigest]:
    return [step(number, number * 10 * MS, (number + 1) * 10 * MS) for number in range(count)]


@pytest.mark.parametrize("late_ns", [0, 2 * MS])
@pytest.mark.parametrize("seed", range(4))
def test_groups_are_those_that_end_together(seed: int, late_ns: int) -> None:
    """A rank that is late by the same time in every step moves its group by a constant."""
    order = [PAIRS["inner"], PAIRS["outer"], PAIRS["inner"]]
    matched = match_collectives(job(order, 8, seed, late_ns))
    found = [frozenset(np.flatnonzero(row).tolist()) for row in matched.present]
    expected = [frozenset(group) for groups in order for group in groups] * 8
    assert sorted(map(sorted, found)) == sorted(map(sorted, expected))


@pytest.mark.parametrize("seed", range(4))
def test_a_group_of_all_ranks_stays_one(seed: int) -> None:
    matched = match_collectives(job([ALL, ALL], 8, seed, 2 * MS))
    assert len(matched) == 16
    assert matched.present.all()


def test_too_few_steps_tell_nothing() -> None:
    assert len(match_collectives(job([PAIRS["inner"]], 3, 1))) == 3


def test_step_numbers_decide_where_ends_do_not() -> None:
    """Rank 3 shares no group with rank 0; its capture begins one step later."""
    ranks = job([PAIRS["inner"]], 8, 2)
    table = ranks[3].collectives
    columns = (table.start_ns[1:], table.end_ns[1:], range(1, 8))
    later = [Collective(start, end, step=n) for start, end, n in zip(*columns, strict=True)]
    matched = match_collectives([*ranks[:3], digest(3, later, numbered_steps(8)[1:])])
    rows = matched.row[matched.present[:, 3]]
    assert rows[:, 3].tolist() == list(range(7))
    assert (rows[:, 2] == rows[:, 3] + 1).all()
