"""Dimensions of parallel jobs, from the groups of their collectives."""

from __future__ import annotations

import json

import msgspec
import pytest

from gpusight.analysis.ranks.parallelism import parallelism
from gpusight.analysis.ranks.rank_digest import (
    CollectiveKey,
    RankCollectives,
    RankDigest,
)
from tests.analysis.ranks.jobs import digest, step

MB = 1_000_000
Row = tuple[str, list[int] | None, int]


def job(rows: dict[int, list[Row]], steps: int = 3) -> list[RankDigest]:
    """Ranks whose steps have these collectives: kind, ranks of the group, and bytes."""
    made = []
    for rank, own in rows.items():
        keys = tuple(
            CollectiveKey(
                kind, size, str(ranks), json.dumps(ranks) if ranks else None, "gpu kernel"
            )
            for kind, ranks, size in own
        )
        count = len(own) * steps
        numbers = tuple(place // max(1, len(own)) for place in range(count))
        none = (None,) * count
        key = tuple(place % len(own) for place in range(count))
        zero = (0,) * count
        table = RankCollectives(keys, key, none, none, none, zero, zero, zero, numbers)
        parts = [step(number, number * 10, number * 10 + 10) for number in range(steps)]
        made.append(msgspec.structs.replace(digest(rank, [], parts), collectives=table))
    return made


ALL = [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ({r: [("all_reduce", ALL, MB)] for r in ALL}, {"DP": [ALL]}),
        (
            {r: [("all_gather", ALL, MB), ("reduce_scatter", ALL, MB)] for r in ALL},
            {"FSDP": [ALL]},
        ),
        (
            {
                r: [
                    ("all_reduce", [r // 2 * 2, r // 2 * 2 + 1], MB),
                    ("all_reduce", [r % 2, r % 2 + 2], MB),
                ]
                for r in ALL
            },
            {"DP": [[0, 2], [1, 3]], "TP": [[0, 1], [2, 3]]},
        ),
        (
            {r: [("all_to_all", ALL, MB), ("all_reduce", ALL[:2], MB)] for r in ALL[:2]},
            {"DP": [[0, 1]], "EP": [ALL]},
        ),
        (
            {r: [("send", None, MB), ("all_reduce", [r, r + 2], MB)] for r in ALL[:2]},
            {"DP": [[0, 2], [1, 3]], "PP": []},
        ),
        ({r: [("all_reduce", None, MB)] for r in ALL}, {}),
        # A loss that all ranks reduce is no dimension of its own.
        (
            {r: [("all_reduce", ALL, 4), ("all_reduce", [r, (r + 2) % 4], MB)] for r in ALL},
            {"DP": [[0, 2], [1, 3]]},
        ),
    ],
)  # fmt: skip
def test_dimensions_are_named(
    rows: dict[int, list[Row]], expected: dict[str, list[list[int]]]
) -> None:
    groups = {axis.kind: [list(ranks) for ranks in axis.groups] for axis in parallelism(job(rows))}
    assert groups == expected
