"""Process groups that captures do not name: ranks of one leave a collective together.

Without groups, the sequences of all ranks are aligned, and a tensor parallel all-reduce of two
ranks seems to be one of all of them. Ranks that were in it together end at the same moment in
every step, but for their clocks; those of other groups do not.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpusight.analysis.ranks.rank_digest import RankDigest
    from gpusight.trace.intervals import Ints

    Floats = NDArray[np.float64]

_MIN_REPEATS = 4
"""Steps in which the ends of a collective are compared."""
_MAX_RANKS = 256
"""Ranks that are compared in pairs."""
_TOLERANCE = 3.5
"""Usual deviations by which the ends of one group may differ."""
_MIN_TOLERANCE_NS = 10_000.0
"""Who waited notices the end later: by some microseconds, which depend on who was last."""


@dataclass(frozen=True)
class _Place:
    """A collective of the step: its instances, and how the ends of each two ranks differ."""

    instances: list[int]
    ranks: Ints
    median_ns: Floats
    """Rank by rank."""
    spread_ns: Floats


def split_by_ends(
    digests: Sequence[RankDigest], instances: Sequence[dict[int, int]]
) -> list[dict[int, int]]:
    """Split collectives that seem to be of all ranks where ends show that groups ran them."""
    places = [_place(digests, instances, own) for own in _by_place(digests, instances)]
    compared = [place for place in places if place is not None]
    groups = _groups(compared, len(digests)) if compared else []
    if all(len(own) == 1 for own in groups):
        return list(instances)
    # What is left out is in steps that not all ranks have.
    return [
        {rank: instances[at][rank] for rank in members}
        for place, own in zip(compared, groups, strict=True)
        for at in place.instances
        for members in own
    ]


def _by_place(
    digests: Sequence[RankDigest], instances: Sequence[dict[int, int]]
) -> list[list[int]]:
    """Gather the instances of steps by their place in the step."""
    seen: dict[int, int] = defaultdict(int)
    places: dict[tuple[int, frozenset[int]], list[int]] = defaultdict(list)
    for at, instance in enumerate(instances):
        first = min(instance)
        step = digests[first].collectives.step[instance[first]]
        if step is not None and len(instance) > 1:
            places[seen[step], frozenset(instance)].append(at)
            seen[step] += 1
    return list(places.values())


def _place(
    digests: Sequence[RankDigest], instances: Sequence[dict[int, int]], own: list[int]
) -> _Place | None:
    ranks = sorted(instances[own[0]])
    if len(own) < _MIN_REPEATS or not 2 < len(ranks) <= _MAX_RANKS:
        return None
    ends = np.array(
        [[digests[rank].collectives.end_ns[instances[at][rank]] for rank in ranks] for at in own]
    )
    apart = (ends[:, :, None] - ends[:, None, :]).astype(np.float64)
    median = np.median(apart, axis=0)
    spread = np.median(np.abs(apart - median), axis=0)
    return _Place(own, np.array(ranks, np.int64), median, spread)


def _groups(places: Sequence[_Place], count: int) -> list[list[list[int]]]:
    """Return the groups of each place; one of all ranks where they do not divide evenly.

    The steadiest pairs come first. What the clocks of two ranks differ follows from them, and later
    pairs must agree.
    """
    tolerance_ns = max(_MIN_TOLERANCE_NS, _TOLERANCE * float(np.median(_nearest(places))))
    clocks = _Clocks(count)
    together = [_Sets(count) for _ in places]
    pairs = sorted(
        (float(place.spread_ns[a, b]), number, a, b)
        for number, place in enumerate(places)
        for a, b in zip(*np.nonzero(np.triu(place.spread_ns <= tolerance_ns, 1)), strict=True)
    )
    for _, number, a, b in pairs:
        place = places[number]
        first, second = int(place.ranks[a]), int(place.ranks[b])
        if clocks.agree(first, second, float(place.median_ns[a, b]), tolerance_ns):
            together[number].join(first, second)
    return [
        _even(sets.members(place.ranks.tolist()))
        for place, sets in zip(places, together, strict=True)
    ]


def _nearest(places: Sequence[_Place]) -> list[float]:
    """Return, by place and rank, how steady its steadiest pair is: one of its group."""
    steadiest = []
    for place in places:
        others = place.spread_ns + np.diag(np.full(len(place.ranks), np.inf))
        steadiest += others.min(axis=1).tolist()
    return steadiest


def _even(groups: list[list[int]]) -> list[list[int]]:
    sizes = {len(group) for group in groups}
    return (
        groups
        if len(sizes) == 1 and sizes != {1}
        else [sorted(rank for group in groups for rank in group)]
    )


class _Sets:
    """Ranks that belong together."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def root(self, rank: int) -> int:
        while self._parent[rank] != rank:
            rank = self._parent[rank]
        return rank

    def join(self, first: int, second: int) -> None:
        self._parent[self.root(second)] = self.root(first)

    def members(self, ranks: list[int]) -> list[list[int]]:
        groups: dict[int, list[int]] = defaultdict(list)
        for rank in ranks:
            groups[self.root(rank)].append(rank)
        return list(groups.values())


class _Clocks:
    """What clocks differ, from pair to pair of ranks."""

    def __init__(self, count: int) -> None:
        self._set = list(range(count))
        self._offset_ns = np.zeros(count)

    def agree(self, first: int, second: int, apart_ns: float, tolerance_ns: float) -> bool:
        """Return whether a difference of ends is that of the clocks; the first one defines it."""
        if self._set[first] == self._set[second]:
            known = self._offset_ns[first] - self._offset_ns[second]
            return bool(abs(known - apart_ns) <= tolerance_ns)
        moved = self._offset_ns[first] - apart_ns - self._offset_ns[second]
        old = self._set[second]
        for rank, number in enumerate(self._set):
            if number == old:
                self._set[rank] = self._set[first]
                self._offset_ns[rank] += moved
        return True
