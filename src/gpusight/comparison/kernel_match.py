"""Which kernels of two sides belong together: by name, else by how many launches they share."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from gpusight.analysis.join.launch_matching import normal_name
from gpusight.comparison.comparison_result import KernelMatch
from gpusight.comparison.launch_alignment import FUSIBLE, LaunchPairs, StepLaunch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpusight.comparison.digest import Digest, KernelDigest, Series
    from gpusight.comparison.launch_alignment import Pairs


Key: TypeAlias = "tuple[str, str]"
"""Place and name; a name that only one side has in the spelling that all tools share.

The place is the range; it is empty outside of ranges, and where ranges tell nothing.
"""
Shares: TypeAlias = "dict[Key, float]"
"""Rows, and the part of their launches that is meant."""
Sides: TypeAlias = "tuple[ComparedKernels, ComparedKernels]"

REST = ""
"""Name of the row that sums up what a digest does not name."""
MOST_LAUNCHES = 20_000
"""A longer order is not looked at."""
_OTHER_RANGES = 0.05
"""With more than this part of the time in ranges that the other side lacks, ranges were changed."""
_COUNTS = re.compile(r"\d+x\d+|(?<![A-Za-z0-9])\d+|(?=[a-f]*\d)[0-9a-f]{6,}")
_PRECISION = re.compile(r"(?<![A-Za-z0-9])(?:b?f16|t?f32|f64|fp[48]|i8)(?![A-Za-z0-9])")
_SPACES = re.compile(r"\s+")


@dataclass(slots=True)
class KernelRow:
    """One name in one place, over the captures of a side."""

    short: str
    category: str
    ranges: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Time a step in each range, mean over the captures."""
    names: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Time a step under each name, as the captures spell it."""
    calls: float = 0.0
    """Launches a step, likewise."""
    at: list[tuple[int, int]] = field(default_factory=list)
    """Captures, and its positions there."""

    @property
    def ns(self) -> float:
        """Time a step."""
        return sum(self.ranges.values())

    @property
    def mean_ns(self) -> float:
        """Time of one launch."""
        return self.ns / self.calls if self.calls else 0.0

    @property
    def stem(self) -> str:
        """What people call it, without tiles, numbers that count, and precision."""
        return _SPACES.sub(" ", _PRECISION.sub("", _COUNTS.sub("", self.short))).strip()


class ComparedKernels:
    """All rows of the captures of a side, and one step of theirs in order."""

    def __init__(self, digests: Sequence[Digest], key: Callable[[KernelDigest], Key]) -> None:
        self.captures = len(digests)
        self.rows: dict[Key, KernelRow] = {}
        self.ranges: defaultdict[str, float] = defaultdict(float)
        """Time a step."""
        for capture, digest in enumerate(digests):
            for position, kernel in enumerate(digest.kernels):
                row = self.rows.setdefault(key(kernel), KernelRow(kernel.short, kernel.category))
                ns = _mean(kernel.ns, digest.blocks) / len(digests)
                row.ranges[kernel.range or ""] += ns
                row.names[kernel.name] += ns
                self.ranges[kernel.range or ""] += ns
                row.calls += _mean(kernel.calls, digest.blocks) / len(digests)
                row.at.append((capture, position))
        self.order = _order(digests, key)
        """Empty where no capture tells it."""
        self.launches = Counter(self.order)

    def ns(self, shares: Shares) -> float:
        """Time a step."""
        return sum(self.rows[key].ns * part for key, part in shares.items())


def both_sides(before: Sequence[Digest], after: Sequence[Digest]) -> Sides:
    """Give the rows of both sides: by range, unless ranges were added, renamed or taken away."""
    ours, theirs = ({row.name for one in side for row in one.kernels} for side in (before, after))
    same = ours & theirs

    def in_range(kernel: KernelDigest) -> Key:
        return kernel.range or "", anywhere(kernel)[1]

    def anywhere(kernel: KernelDigest) -> Key:
        return "", kernel.name if kernel.name in same else _spelled(kernel.name)

    sides = ComparedKernels(before, in_range), ComparedKernels(after, in_range)
    if all(_within(one, other) for one, other in (sides, sides[::-1])):
        return sides
    return ComparedKernels(before, anywhere), ComparedKernels(after, anywhere)


def _within(one: ComparedKernels, other: ComparedKernels) -> bool:
    """Whether nearly all work is in ranges that the other side has too."""
    outside = sum(ns for name, ns in one.ranges.items() if name not in other.ranges)
    return outside <= _OTHER_RANGES * sum(one.ranges.values())


@lru_cache(maxsize=16_384)
def _spelled(name: str) -> str:
    return normal_name(name)


def _mean(series: Series, blocks: tuple[int, ...]) -> float:
    """Mean a step; a block counts as often as it has steps."""
    return float(np.average(series, weights=blocks))


def _order(digests: Sequence[Digest], key: Callable[[KernelDigest], Key]) -> list[Key]:
    """Give the launches of a step, from the capture that has most steps to choose it from."""
    known = [one for one in digests if 0 < len(one.order) <= MOST_LAUNCHES]
    if not known:
        return []
    chosen = max(known, key=lambda one: one.steps)
    keys = [key(kernel) for kernel in chosen.kernels]
    return [keys[at] for at in chosen.order if keys[at][1] != REST]


Node: TypeAlias = "tuple[int, Key]"
"""Side, 0 or 1, and row."""

_LEAST_REPLACED = 0.1
"""A kernel that both sides have is kept, not replaced, below this part of its launches."""
_LEAST_FOUND = 0.5
"""A kernel of one side must share this part of its launches, or it appeared or vanished."""
_ALIKE = 1.5
"""Launches of one row are of one size while their mean time changes by no more than this."""


def replaced(before: ComparedKernels, after: ComparedKernels) -> list[tuple[Shares, Shares]]:
    """Group rows by the places of their launches in a step; none where an order is not known."""
    if not before.order or not after.order:
        return []
    sides = before, after
    pairs = LaunchPairs(_launches(before, after), _launches(after, before)).roles
    pairs = _strong(pairs, sides)
    shared = _shared(pairs, sides)
    return [_shares(group, shared, sides) for group in _groups(pairs, sides)]


def unplaced(
    before: ComparedKernels, after: ComparedKernels, left: Shares, right: Shares
) -> list[tuple[Shares, Shares]]:
    """Group rows that were not found by place: those of one kind in one range.

    Where no place is known, also those of one category in it.
    """
    found = []
    for by_stem in (True, False):
        ours, theirs = (
            _kinds(side, other, shares, rest, by_stem=by_stem)
            for side, other, shares, rest in (
                (before, after, left, right),
                (after, before, right, left),
            )
        )
        for kind in sorted(ours.keys() & theirs.keys()):
            found.append((ours[kind], theirs[kind]))
            left = {key: part for key, part in left.items() if key not in ours[kind]}
            right = {key: part for key, part in right.items() if key not in theirs[kind]}
    return found


# By place -----------------------------------------------------------------------------------------


def _launches(side: ComparedKernels, other: ComparedKernels) -> list[StepLaunch]:
    """Describe the launches of a step, in order."""
    known = {}
    for key, count in side.launches.items():
        row, common = side.rows[key], key in other.rows
        fewer = other.launches[key] <= _LEAST_FOUND * count and row.category in FUSIBLE
        known[key] = StepLaunch(
            *key, row.stem, row.category, row.mean_ns, common, gave_way=fewer or not common
        )
    return [known[key] for key in side.order]


def _strong(pairs: Pairs, sides: Sides) -> Pairs:
    """Drop what rows share by chance, until none is left."""
    while True:
        shared = _shared(pairs, sides)
        weak = {node for node, count in shared.items() if not _enough(node, count, sides)}
        if not weak:
            return pairs
        pairs = [pair for pair in pairs if weak.isdisjoint(_ends(pair, sides))]


def _ends(pair: tuple[int, int], sides: Sides) -> tuple[Node, Node]:
    """Give the rows of two launches."""
    return (0, sides[0].order[pair[0]]), (1, sides[1].order[pair[1]])


def _shared(pairs: Pairs, sides: Sides) -> Counter[Node]:
    """Count the launches of each row that stand beside others."""
    launches = ((at, one) for at in (0, 1) for one in {pair[at] for pair in pairs})
    return Counter((at, sides[at].order[one]) for at, one in launches)


def _enough(node: Node, count: int, sides: Sides) -> bool:
    side, key = node
    least = _LEAST_REPLACED if key in sides[1 - side].rows else _LEAST_FOUND
    return count >= least * sides[side].launches[key]


def _groups(pairs: Pairs, sides: Sides) -> list[set[Node]]:
    """Join every row with the one that it shares most launches with."""
    best: dict[Node, tuple[tuple[float, float, str], Node]] = {}
    for ends, count in Counter(_ends(pair, sides) for pair in pairs).items():
        for node, partner in (ends, ends[::-1]):
            row = sides[partner[0]].rows[partner[1]]
            rank = (count, row.ns, "\0".join(partner[1]))
            best[node] = max(best.get(node, (rank, partner)), (rank, partner))
    links = [(node, partner) for node, (_, partner) in best.items()]
    links += [((0, key), (1, key)) for _, key in best if _whole(key, sides)]
    return _connected(links)


def _whole(key: Key, sides: Sides) -> bool:
    """Whether a row that both sides have must not be split by number of launches.

    Where the mean time of a launch changed, those that were replaced may be the long ones.
    """
    rows = [one.rows.get(key) for one in sides]
    if rows[0] is None or rows[1] is None:
        return False
    means = [row.mean_ns for row in rows if row is not None]
    return max(means) > _ALIKE * min(means)


def _connected(links: Iterable[tuple[Node, Node]]) -> list[set[Node]]:
    groups: dict[Node, set[Node]] = {}
    for one, other in links:
        joined = groups.get(one, {one}) | groups.get(other, {other})
        groups.update(dict.fromkeys(joined, joined))
    return list({id(group): group for group in groups.values()}.values())


def _shares(group: set[Node], shared: Counter[Node], sides: Sides) -> tuple[Shares, Shares]:
    """Say which part of each row of a group belongs to it; the rest kept its name."""
    found: tuple[Shares, Shares] = ({}, {})
    for node in group:
        side, key = node
        split = key in sides[1 - side].rows and not _whole(key, sides)
        found[side][key] = _replaced_part(node, shared[node], sides) if split else 1.0
    return found


def _replaced_part(node: Node, shared: int, sides: Sides) -> float:
    """Give the part of a row that was replaced: all that the other side lacks, if mostly found."""
    side, key = node
    own, other = sides[side].launches[key], sides[1 - side].launches[key]
    return (own - other if shared >= _LEAST_FOUND * (own - other) else shared) / own


# Without a place ----------------------------------------------------------------------------------


def _kinds(
    side: ComparedKernels, other: ComparedKernels, shares: Shares, rest: Shares, *, by_stem: bool
) -> dict[tuple[str, ...], Shares]:
    """Sort rows by place and what they are; those whose name is left on the other side moved."""
    names = {name for _, name in rest}
    ordered = bool(side.order and other.order) and not by_stem
    found: defaultdict[tuple[str, ...], Shares] = defaultdict(dict)
    for key, part in shares.items():
        if key[1] in names or key[1] == REST or (ordered and side.launches[key]):
            continue
        row = side.rows[key]
        found[key[0], row.category, row.stem if by_stem else ""][key] = part
    return found


Parts: TypeAlias = "tuple[Mapping[int, float], ...]"
"""For each capture: position in `Digest.kernels` -> part of its launches."""
_FEW = 3
"""Kernels of a row that are named by the first of them; more are named by their category."""


@dataclass(frozen=True, slots=True)
class MatchedKernels:
    """Kernels of either side that belong together."""

    before_names: tuple[str, ...]
    """Full names, the most expensive first; none where it appeared."""
    after_names: tuple[str, ...]
    short: str
    """What people call it; `old -> new` where it was replaced."""
    category: str
    """Of the most expensive kernel."""
    ranges: tuple[str, ...]
    """The most expensive first; launches outside of ranges have none."""
    match: KernelMatch
    before: Parts
    """Over all `MatchedKernels` the parts of a row sum to 1."""
    after: Parts


class _Group(NamedTuple):
    """Rows that belong together, with the part of their launches that does."""

    match: KernelMatch
    before: Shares
    after: Shares


def match_kernels(before: Sequence[Digest], after: Sequence[Digest]) -> list[MatchedKernels]:
    """Say which kernels belong together; the most expensive first."""
    sides = both_sides(before, after)
    groups = [_Group(KernelMatch.ROLE, *pair) for pair in replaced(*sides)]
    groups += [_Group(KernelMatch.ROLE, *pair) for pair in unplaced(*sides, *_left(sides, groups))]
    groups += _by_name(_left(sides, groups))
    return _rows(sides, _joined(groups))


def _left(sides: Sides, groups: Iterable[_Group]) -> tuple[Shares, Shares]:
    """Give the part of each row that no group has yet."""
    left: tuple[Shares, Shares] = (
        dict.fromkeys(sides[0].rows, 1.0),
        dict.fromkeys(sides[1].rows, 1.0),
    )
    for group in groups:
        for shares, taken in zip(left, (group.before, group.after), strict=True):
            for key, part in taken.items():
                shares[key] -= part
    before, after = ({key: part for key, part in one.items() if part > 0} for one in left)
    return before, after


def _by_name(left: tuple[Shares, Shares]) -> list[_Group]:
    """Group by name, whatever the range; alone on its side, a name appeared or vanished."""
    named: defaultdict[str, tuple[Shares, Shares]] = defaultdict(lambda: ({}, {}))
    for side, shares in enumerate(left):
        for key, part in shares.items():
            named[key[1]][side][key] = part
    return [_Group(_fate(*both), *both) for both in named.values()]


def _fate(before: Shares, after: Shares) -> KernelMatch:
    if (before and after) or any(name == REST for _, name in {**before, **after}):
        return KernelMatch.NAME
    return KernelMatch.VANISHED if before else KernelMatch.APPEARED


def _joined(groups: Iterable[_Group]) -> list[_Group]:
    """Join groups of the same names in different ranges."""
    found: dict[object, _Group] = {}
    for group in groups:
        names = (frozenset(name for _, name in one) for one in (group.before, group.after))
        into = found.setdefault((group.match, *names), _Group(group.match, {}, {}))
        into.before.update(group.before)
        into.after.update(group.after)
    return list(found.values())


# Rows of the answer -------------------------------------------------------------------------------


def _rows(sides: Sides, groups: Iterable[_Group]) -> list[MatchedKernels]:
    """Describe the groups, the most expensive first."""
    costly = [(max(sides[0].ns(one.before), sides[1].ns(one.after)), one) for one in groups]
    rows = [(cost, _matched(sides, group)) for cost, group in costly]
    rows.sort(key=lambda row: (-row[0], row[1].before_names, row[1].after_names))
    return [row for _, row in rows]


def _matched(sides: Sides, group: _Group) -> MatchedKernels:
    both = (sides[0], group.before), (sides[1], group.after)
    called = [_called(one) for one in both]
    return MatchedKernels(
        before_names=_dearest(_name, both[0]),
        after_names=_dearest(_name, both[1]),
        short=" -> ".join(dict.fromkeys(one for one in called if one)),
        category=_dearest(_category, *both)[0],
        ranges=tuple(one for one in _dearest(_range, *both) if one),
        match=group.match,
        before=_parts(*both[0]),
        after=_parts(*both[1]),
    )


def _name(_: Key, row: KernelRow) -> dict[str, float]:
    return row.names


def _category(_: Key, row: KernelRow) -> dict[str, float]:
    return {row.category: row.ns}


def _label(key: Key, row: KernelRow) -> dict[str, float]:
    return {row.short if key[1] != REST else "(other kernels)": row.ns}


def _range(_: Key, row: KernelRow) -> dict[str, float]:
    return row.ranges


def _dearest(
    what: Callable[[Key, KernelRow], dict[str, float]], *both: tuple[ComparedKernels, Shares]
) -> tuple[str, ...]:
    """List what the rows of a group have, the most expensive first."""
    found: defaultdict[str, float] = defaultdict(float)
    for side, shares in both:
        for key, part in shares.items():
            for one, ns in what(key, side.rows[key]).items():
                found[one] += ns * part
    return tuple(sorted(found, key=lambda one: (-found[one], one)))


def _called(one: tuple[ComparedKernels, Shares]) -> str:
    """Name the rows of one side in a few words; nothing where there are none."""
    labels, categories = _dearest(_label, one), _dearest(_category, one)
    if len(labels) > _FEW and len(categories) == 1:
        return f"{categories[0]} ({len(labels)} kernels)"
    return f"{labels[0]} +{len(labels) - 1}" if len(labels) > 1 else "".join(labels)


def _parts(side: ComparedKernels, shares: Shares) -> Parts:
    found: list[dict[int, float]] = [{} for _ in range(side.captures)]
    for key, part in shares.items():
        for capture, position in side.rows[key].at:
            found[capture][position] = part
    return tuple(found)
