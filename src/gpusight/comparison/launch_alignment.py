"""Which launches of a step correspond to launches of another version of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    Stretch: TypeAlias = tuple[list[int], list[int]]
    """Launches before and after, in order."""


Pairs: TypeAlias = "list[tuple[int, int]]"
"""Positions in the one and in the other sequence, both rising."""


def align(before: Sequence[Hashable], after: Sequence[Hashable]) -> Pairs:
    """Pair up as many equal items as possible without crossing.

    `align(b, a)` gives the pairs of `align(a, b)` the other way round, ties included.
    """
    codes = {item: code for code, item in enumerate(sorted({*before, *after}, key=repr))}
    left, right = [codes[item] for item in before], [codes[item] for item in after]
    swapped = (len(left), left) > (len(right), right)
    if swapped:
        left, right = right, left
    shorter = min(len(left), len(right))
    prefix = next((i for i in range(shorter) if left[i] != right[i]), shorter)
    rest = shorter - prefix
    suffix = next((i for i in range(rest) if left[-1 - i] != right[-1 - i]), rest)
    middle = _longest(left[prefix : len(left) - suffix], right[prefix : len(right) - suffix])
    pairs = [(i, i) for i in range(prefix)]
    pairs += [(i + prefix, j + prefix) for i, j in middle]
    pairs += [(len(left) - i, len(right) - i) for i in range(suffix, 0, -1)]
    return [(j, i) for i, j in pairs] if swapped else pairs


def gaps(pairs: Pairs, before_count: int, after_count: int) -> list[tuple[range, range]]:
    """Return the gaps between pairs, where both sequences (of these lengths) have something."""
    edges = [(-1, -1), *pairs, (before_count, after_count)]
    between = ((range(i + 1, k), range(j + 1, n)) for (i, j), (k, n) in pairwise(edges))
    return [(left, right) for left, right in between if left and right]


def _longest(left: list[int], right: list[int]) -> Pairs:
    """Find a longest common subsequence.

    Bit j of `rows[i]` is 0 where the first i items of `left` share more with the first j + 1 of
    `right` than with the first j.
    """
    places: dict[int, int] = {}
    for j, item in enumerate(right):
        places[item] = places.get(item, 0) | (1 << j)
    full = (1 << len(right)) - 1
    rows = [full]
    for item in left:
        row = rows[-1]
        shared = row & places.get(item, 0)
        rows.append(((row + shared) | (row - shared)) & full if shared else row)
    pairs: Pairs = []
    i, j = len(left), len(right)
    while i and j:  # read the pairs off the rows, from the end
        if rows[i] >> (j - 1) & 1:
            j -= 1
            continue
        i -= 1
        if rows[i] >> (j - 1) & 1:
            j -= 1
            pairs.append((i, j))
    return pairs[::-1]


FUSIBLE = frozenset(
    {
        "elementwise",
        "copy",
        "reduction",
        "softmax",
        "normalization",
        "optimizer",
        "generated",
    }
)
"""Categories whose work compilers put into other kernels, and what they put it into."""
_MAJORITY = 0.5
"""Part of the time that is most of it."""


class StepLaunch(NamedTuple):
    """A launch: the same for all of its name in its place."""

    place: str
    """Its range; one word for all where ranges do not distinguish launches."""
    name: str
    stem: str
    """Short name without what differs between builds and precisions."""
    category: str
    ns: float
    """Mean over the launches of its name in its range."""
    common: bool
    """Whether the other side has this name in this place."""
    gave_way: bool
    """Whether the other side lacks it, or most of its launches where these can be fused."""


class LaunchPairs:
    """Launches of other names at the same place; one launch may stand for several."""

    def __init__(self, before: Sequence[StepLaunch], after: Sequence[StepLaunch]) -> None:
        self._sides = before, after
        self._step_ns = [sum(launch.ns for launch in side) for side in self._sides]
        self._anchors = align(
            [_kind_key(launch) for launch in before], [_kind_key(launch) for launch in after]
        )
        """Paired launches, of whatever name; no two pairs cross."""
        self._taken: tuple[set[int], set[int]] = (set(), set())
        """Launches that need no partner any more."""
        self.roles: Pairs = []
        self._keep_names()
        before_taken, after_taken = self._taken
        self._replace(
            (i, j) for i, j in self._anchors if i not in before_taken and j not in after_taken
        )
        self._in_order()
        self._pair_groups()

    def _keep_names(self) -> None:
        """Set launches aside whose name both sides have in a place, as often as they both do.

        Paired launches first.
        """
        before, after = self._sides
        same = [(i, j) for i, j in self._anchors if _name_key(before[i]) == _name_key(after[j])]
        counts = [Counter(map(_name_key, side)) for side in self._sides]
        for number, (side, taken) in enumerate(zip(self._sides, self._taken, strict=True)):
            quota = counts[0] & counts[1]
            for i in dict.fromkeys([*(pair[number] for pair in same), *range(len(side))]):
                if quota[_name_key(side[i])] > 0:
                    quota[_name_key(side[i])] -= 1
                    taken.add(i)

    def _in_order(self) -> None:
        """Pair launches of one category in one range: in order, and what is left over by rank.

        Not where little of a stretch pairs up: there other kernels do the work in another way.
        """
        before, after = self._sides
        anchors: Pairs = []
        for left, right in self._stretches():
            tokens = [_role_key(before[i]) for i in left], [_role_key(after[j]) for j in right]
            in_order = [(left[i], right[j]) for i, j in align(*tokens)]
            before_groups = _group(zip(tokens[0], left, strict=True))
            after_groups = _group(zip(tokens[1], right, strict=True))
            by_rank = _by_rank(before_groups, after_groups, in_order)
            rebuilt = self._rebuilt((left, right), [*in_order, *by_rank])
            kept = [(i, j) for i, j in in_order if before[i].place not in rebuilt]
            anchors += kept
            kept += [(i, j) for i, j in by_rank if before[i].place not in rebuilt]
            self._replace(kept)
        self._anchors = sorted({*self._anchors, *anchors})

    def _rebuilt(self, stretch: Stretch, pairs: Pairs) -> set[str]:
        """Name the ranges where both sides have launches without partner, one of them mostly."""
        unpaired = [
            _without(side, positions, {pair[number] for pair in pairs})
            for number, (side, positions) in enumerate(zip(self._sides, stretch, strict=True))
        ]
        places = unpaired[0].keys() & unpaired[1].keys()
        return {place for place in places if max(part[place] for part in unpaired) > _MAJORITY}

    def _pair_groups(self) -> None:
        """Join what is left of a range between two neighbors by the most expensive launches.

        What both sides have by name is mostly just called more or less: it stays out.
        """
        for stretch in self._stretches():
            before_places, after_places = (
                _group((side[i].place, i) for i in positions if side[i].gave_way)
                for side, positions in zip(self._sides, stretch, strict=True)
            )
            for place in before_places.keys() & after_places.keys():
                left, right = before_places[place], after_places[place]
                if not self._credible(left, right):
                    continue
                hub = _costliest(self._sides[0], left), _costliest(self._sides[1], right)
                self._replace({*((i, hub[1]) for i in left), *((hub[0], j) for j in right)})

    def _credible(self, left: list[int], right: list[int]) -> bool:
        """Whether a position is evidence: not if it is most of a step, unless it can be fused."""
        both = tuple(zip(self._sides, (left, right), self._step_ns, strict=True))
        if any(
            sum(side[i].ns for i in positions) <= _MAJORITY * step_ns
            for side, positions, step_ns in both
        ):
            return True
        return all(side[i].category in FUSIBLE for side, positions, _ in both for i in positions)

    def _stretches(self) -> list[Stretch]:
        """Return the free launches between neighboring anchors, where both sides have some."""
        before, after = self._taken
        between = gaps(self._anchors, *map(len, self._sides))
        free = (
            ([i for i in left if i not in before], [j for j in right if j not in after])
            for left, right in between
        )
        return [(left, right) for left, right in free if left and right]

    def _replace(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Note roles; two names that both sides have did not replace each other."""
        before, after = self._sides
        kept = [(i, j) for i, j in pairs if not (before[i].common and after[j].common)]
        self.roles += kept
        for number, taken in enumerate(self._taken):
            taken.update(pair[number] for pair in kept)


def _name_key(launch: StepLaunch) -> Hashable:
    return launch.place, launch.name


def _kind_key(launch: StepLaunch) -> Hashable:
    return launch.place, launch.category, launch.stem


def _role_key(launch: StepLaunch) -> Hashable:
    return launch.place, launch.category


def _without(
    side: Sequence[StepLaunch], positions: Iterable[int], paired: set[int]
) -> dict[str, float]:
    """Return the part of the time without a partner, for ranges that have such launches."""
    total: defaultdict[str, float] = defaultdict(float)
    alone: defaultdict[str, float] = defaultdict(float)
    for i in positions:
        total[side[i].place] += side[i].ns
        if i not in paired:
            alone[side[i].place] += side[i].ns
    return {place: ns / total[place] if total[place] else 1.0 for place, ns in alone.items()}


def _costliest(side: Sequence[StepLaunch], positions: Iterable[int]) -> int:
    return max(positions, key=lambda i: (side[i].ns, side[i].name, -i))


def _group(launches: Iterable[tuple[Hashable, int]]) -> dict[Hashable, list[int]]:
    """Group launches by key, in order."""
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for key, i in launches:
        groups[key].append(i)
    return groups


def _by_rank(
    left: dict[Hashable, list[int]], right: dict[Hashable, list[int]], paired: Pairs
) -> Pairs:
    """Pair launches without a partner with one of the same token, in proportion."""
    partnered = {i for i, _ in paired}, {j for _, j in paired}
    pairs: set[tuple[int, int]] = set()
    for token in left.keys() & right.keys():
        before_group, after_group = left[token], right[token]
        n, m = len(before_group), len(after_group)
        pairs |= {
            (i, after_group[rank * m // n])
            for rank, i in enumerate(before_group)
            if i not in partnered[0]
        }
        pairs |= {
            (before_group[rank * n // m], j)
            for rank, j in enumerate(after_group)
            if j not in partnered[1]
        }
    return sorted(pairs)
