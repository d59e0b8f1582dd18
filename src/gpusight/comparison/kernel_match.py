"""Which kernels of two sides belong together: by name, else by how many launches they share."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from gpusight.comparison.comparison_result import KernelMatch
from gpusight.comparison.launch_alignment import FUSIBLE, LaunchPairs, StepLaunch
from gpusight.naming.kernel_names import distinguish
from gpusight.naming.name_parts import normal_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpusight.comparison.digest import Digest, KernelDigest, Series
    from gpusight.comparison.launch_alignment import Pairs


Key: TypeAlias = "tuple[str, str]"
"""Place and name; a name that only one side has in the spelling that all tools share.

The place is the range; it is empty outside of ranges, and where ranges do not distinguish launches.
"""
Shares: TypeAlias = "dict[Key, float]"
"""Rows, and the part of their launches that is meant."""
Sides: TypeAlias = "tuple[ComparedKernels, ComparedKernels]"

REST = ""
"""Name of the row of all kernels that a digest does not name."""
MAX_LAUNCHES = 20_000
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
    label: str
    """Short name that no other kernel of both sides has."""
    category: str
    ranges: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Time per step in each range, mean over the captures."""
    names: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Time per step under each name, as the captures spell it."""
    calls: float = 0.0
    """Launches per step, likewise."""
    positions: list[tuple[int, int]] = field(default_factory=list)
    """Captures, and its positions there."""

    @property
    def ns(self) -> float:
        """Time per step."""
        return sum(self.ranges.values())

    @property
    def mean_ns(self) -> float:
        """Time of one launch."""
        return self.ns / self.calls if self.calls else 0.0

    @property
    def stem(self) -> str:
        """Short name without tile sizes, numbers that count, and precision."""
        return _SPACES.sub(" ", _PRECISION.sub("", _COUNTS.sub("", self.short))).strip()


class ComparedKernels:
    """All rows of the captures of a side, and one step of theirs in order."""

    def __init__(
        self,
        digests: Sequence[Digest],
        key: Callable[[KernelDigest], Key],
        labels: Mapping[str, str],
    ) -> None:
        self.captures = len(digests)
        self.rows: dict[Key, KernelRow] = {}
        self.ranges: defaultdict[str, float] = defaultdict(float)
        """Time per step."""
        for capture, digest in enumerate(digests):
            for position, kernel in enumerate(digest.kernels):
                own_row = KernelRow(kernel.short, labels[kernel.name], kernel.category)
                row = self.rows.setdefault(key(kernel), own_row)
                ns = _mean(kernel.ns, digest.blocks) / len(digests)
                row.ranges[kernel.range or ""] += ns
                row.names[kernel.name] += ns
                self.ranges[kernel.range or ""] += ns
                row.calls += _mean(kernel.calls, digest.blocks) / len(digests)
                row.positions.append((capture, position))
        self.order: list[Key] = []
        """Launches of a step, of the capture with the most steps; empty where no capture has it."""
        if ordered := [digest for digest in digests if 0 < len(digest.order) <= MAX_LAUNCHES]:
            longest = max(ordered, key=lambda digest: digest.steps)
            keys = [key(kernel) for kernel in longest.kernels]
            self.order = [keys[at] for at in longest.order if keys[at][1] != REST]
        self.launches = Counter(self.order)

    def ns(self, shares: Shares) -> float:
        """Time per step."""
        return sum(self.rows[key].ns * part for key, part in shares.items())


def both_sides(before: Sequence[Digest], after: Sequence[Digest]) -> Sides:
    """Collect the rows of both sides: by range, unless ranges were added, renamed or removed."""
    before_names, after_names = (
        {row.name for digest in side for row in digest.kernels} for side in (before, after)
    )
    shared_names = before_names & after_names
    labels = distinguish(
        {row.name: row.short for digest in (*before, *after) for row in digest.kernels}
    )

    def in_range(kernel: KernelDigest) -> Key:
        return kernel.range or "", anywhere(kernel)[1]

    def anywhere(kernel: KernelDigest) -> Key:
        return "", kernel.name if kernel.name in shared_names else _spelled(kernel.name)

    sides = ComparedKernels(before, in_range, labels), ComparedKernels(after, in_range, labels)
    for side, other in (sides, sides[::-1]):
        outside = sum(ns for name, ns in side.ranges.items() if name not in other.ranges)
        if outside > _OTHER_RANGES * sum(side.ranges.values()):
            break
    else:
        return sides
    return ComparedKernels(before, anywhere, labels), ComparedKernels(after, anywhere, labels)


_spelled = lru_cache(maxsize=16_384)(normal_name)


def _mean(series: Series, blocks: tuple[int, ...]) -> float:
    """Mean per step; a block is weighted by its steps."""
    return float(np.average(series, weights=blocks))


Node: TypeAlias = "tuple[int, Key]"
"""Side, 0 or 1, and row."""

_MIN_REPLACED = 0.1
"""A kernel that both sides have is kept, not replaced, below this part of its launches."""
_MIN_SHARED = 0.5
"""A kernel of one side must share this part of its launches, or it appeared or vanished."""
_MAX_RATIO = 1.5
"""Launches of one row are of one size while their mean time changes by no more than this."""


def replaced(before: ComparedKernels, after: ComparedKernels) -> list[tuple[Shares, Shares]]:
    """Group rows by the positions of their launches in a step; none where the order is unknown."""
    if not before.order or not after.order:
        return []
    sides = before, after
    pairs = LaunchPairs(_launches(before, after), _launches(after, before)).roles
    pairs = _strong(pairs, sides)
    shared = _count_paired(pairs, sides)
    return [_shares(group, shared, sides) for group in _groups(pairs, sides)]


def unplaced(
    before: ComparedKernels, after: ComparedKernels, before_left: Shares, after_left: Shares
) -> list[tuple[Shares, Shares]]:
    """Group rows that were not matched by place: those of one kind in one range.

    Where no place is known, also those of one category in it.
    """
    groups = []
    for by_stem in (True, False):
        before_kinds, after_kinds = (
            _kinds(side, other, shares, other_left, by_stem=by_stem)
            for side, other, shares, other_left in (
                (before, after, before_left, after_left),
                (after, before, after_left, before_left),
            )
        )
        for kind in sorted(before_kinds.keys() & after_kinds.keys()):
            groups.append((before_kinds[kind], after_kinds[kind]))
            before_left = {
                key: part for key, part in before_left.items() if key not in before_kinds[kind]
            }
            after_left = {
                key: part for key, part in after_left.items() if key not in after_kinds[kind]
            }
    return groups


# By place -----------------------------------------------------------------------------------------


def _launches(side: ComparedKernels, other: ComparedKernels) -> list[StepLaunch]:
    """Describe the launches of a step, in order."""
    launches = {}
    for key, count in side.launches.items():
        row, common = side.rows[key], key in other.rows
        fewer = other.launches[key] <= _MIN_SHARED * count and row.category in FUSIBLE
        launches[key] = StepLaunch(
            *key, row.stem, row.category, row.mean_ns, common, gave_way=fewer or not common
        )
    return [launches[key] for key in side.order]


def _strong(pairs: Pairs, sides: Sides) -> Pairs:
    """Drop what rows share by chance, until none is left."""
    while True:
        weak = set()
        for (side, key), count in _count_paired(pairs, sides).items():
            least = _MIN_REPLACED if key in sides[1 - side].rows else _MIN_SHARED
            if count < least * sides[side].launches[key]:
                weak.add((side, key))
        if not weak:
            return pairs
        pairs = [pair for pair in pairs if weak.isdisjoint(_ends(pair, sides))]


def _ends(pair: tuple[int, int], sides: Sides) -> tuple[Node, Node]:
    """Return the rows of two launches."""
    return (0, sides[0].order[pair[0]]), (1, sides[1].order[pair[1]])


def _count_paired(pairs: Pairs, sides: Sides) -> Counter[Node]:
    """Count the launches of each row that are paired with others."""
    launches = ((side, position) for side in (0, 1) for position in {pair[side] for pair in pairs})
    return Counter((side, sides[side].order[position]) for side, position in launches)


def _groups(pairs: Pairs, sides: Sides) -> list[set[Node]]:
    """Join every row with the one that it shares most launches with."""
    closest: dict[Node, tuple[tuple[float, float, str], Node]] = {}
    for ends, count in Counter(_ends(pair, sides) for pair in pairs).items():
        for node, partner in (ends, ends[::-1]):
            row = sides[partner[0]].rows[partner[1]]
            rank = (count, row.ns, "\0".join(partner[1]))
            closest[node] = max(closest.get(node, (rank, partner)), (rank, partner))
    links = [(node, partner) for node, (_, partner) in closest.items()]
    links += [((0, key), (1, key)) for _, key in closest if _whole(key, sides)]
    groups: dict[Node, set[Node]] = {}
    for node, partner in links:
        connected = groups.get(node, {node}) | groups.get(partner, {partner})
        groups.update(dict.fromkeys(connected, connected))
    return list({id(group): group for group in groups.values()}.values())


def _whole(key: Key, sides: Sides) -> bool:
    """Whether a row that both sides have must not be split by number of launches.

    Where the mean time of a launch changed, those that were replaced may be the long ones.
    """
    means = [side.rows[key].mean_ns for side in sides if key in side.rows]
    return len(means) == 2 and max(means) > _MAX_RATIO * min(means)


def _shares(group: set[Node], shared: Counter[Node], sides: Sides) -> tuple[Shares, Shares]:
    """Return the part of each row of a group that belongs to it; the rest kept its name.

    Of a row that both sides have, all that the other side lacks, if mostly shared.
    """
    parts: tuple[Shares, Shares] = ({}, {})
    for node in group:
        side, key = node
        parts[side][key] = 1.0
        if key in sides[1 - side].rows and not _whole(key, sides):
            launches = sides[side].launches[key]
            more = launches - sides[1 - side].launches[key]
            count = more if shared[node] >= _MIN_SHARED * more else shared[node]
            parts[side][key] = count / launches
    return parts


# Without a place ----------------------------------------------------------------------------------


def _kinds(
    side: ComparedKernels,
    other: ComparedKernels,
    shares: Shares,
    other_left: Shares,
    *,
    by_stem: bool,
) -> dict[tuple[str, ...], Shares]:
    """Sort rows by place and what they are; those whose name is left on the other side moved."""
    names = {name for _, name in other_left}
    ordered = bool(side.order and other.order) and not by_stem
    kinds: defaultdict[tuple[str, ...], Shares] = defaultdict(dict)
    for key, part in shares.items():
        if key[1] in names or key[1] == REST or (ordered and side.launches[key]):
            continue
        row = side.rows[key]
        kinds[key[0], row.category, row.stem if by_stem else ""][key] = part
    return kinds


Parts: TypeAlias = "tuple[Mapping[int, float], ...]"
"""For each capture: position in `Digest.kernels` -> part of its launches."""
_MAX_NAMED = 3
"""Kernels of a row that are named by the first of them; more are named by their category."""


@dataclass(frozen=True, slots=True)
class MatchedKernels:
    """Kernels of either side that belong together."""

    before_names: tuple[str, ...]
    """Full names, the most expensive first; none where it appeared."""
    after_names: tuple[str, ...]
    short: str
    """Short name; `old -> new` where it was replaced."""
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
    """Match the kernels of both sides; the most expensive first."""
    sides = both_sides(before, after)
    groups = [_Group(KernelMatch.ROLE, *pair) for pair in replaced(*sides)]
    groups += [_Group(KernelMatch.ROLE, *pair) for pair in unplaced(*sides, *_left(sides, groups))]
    groups += _by_name(_left(sides, groups))
    joined: dict[object, _Group] = {}  # the same names in different ranges are one row
    for group in groups:
        names = (frozenset(name for _, name in shares) for shares in (group.before, group.after))
        target = joined.setdefault((group.match, *names), _Group(group.match, {}, {}))
        target.before.update(group.before)
        target.after.update(group.after)
    rows = [
        (max(sides[0].ns(group.before), sides[1].ns(group.after)), _match_group(sides, group))
        for group in joined.values()
    ]
    rows.sort(key=lambda row: (-row[0], row[1].before_names, row[1].after_names))
    return [row for _, row in rows]


def _left(sides: Sides, groups: Iterable[_Group]) -> tuple[Shares, Shares]:
    """Return the part of each row that no group has yet."""
    rest: tuple[Shares, Shares] = (
        dict.fromkeys(sides[0].rows, 1.0),
        dict.fromkeys(sides[1].rows, 1.0),
    )
    for group in groups:
        for shares, group_shares in zip(rest, (group.before, group.after), strict=True):
            for key, part in group_shares.items():
                shares[key] -= part
    before, after = ({key: part for key, part in shares.items() if part > 0} for shares in rest)
    return before, after


def _by_name(unmatched: tuple[Shares, Shares]) -> list[_Group]:
    """Group by name, whatever the range; alone on its side, a name appeared or vanished."""
    named: defaultdict[str, tuple[Shares, Shares]] = defaultdict(lambda: ({}, {}))
    for side, shares in enumerate(unmatched):
        for key, part in shares.items():
            named[key[1]][side][key] = part
    groups = []
    for name, (before, after) in named.items():
        match = KernelMatch.VANISHED if before else KernelMatch.APPEARED
        if (before and after) or name == REST:
            match = KernelMatch.NAME
        groups.append(_Group(match, before, after))
    return groups


def _match_group(sides: Sides, group: _Group) -> MatchedKernels:
    both = (sides[0], group.before), (sides[1], group.after)
    labels = [_label(*side) for side in both]
    return MatchedKernels(
        before_names=_by_cost(lambda _, row: row.names, both[0]),
        after_names=_by_cost(lambda _, row: row.names, both[1]),
        short=" -> ".join(dict.fromkeys(label for label in labels if label)),
        category=_by_cost(_category, *both)[0],
        ranges=tuple(name for name in _by_cost(lambda _, row: row.ranges, *both) if name),
        match=group.match,
        before=_parts(*both[0]),
        after=_parts(*both[1]),
    )


def _category(_: Key, row: KernelRow) -> dict[str, float]:
    return {row.category: row.ns}


def _by_cost(
    what: Callable[[Key, KernelRow], dict[str, float]], *both: tuple[ComparedKernels, Shares]
) -> tuple[str, ...]:
    """List what the rows of a group have, the most expensive first."""
    cost_ns: defaultdict[str, float] = defaultdict(float)
    for side, shares in both:
        for key, part in shares.items():
            for text, ns in what(key, side.rows[key]).items():
                cost_ns[text] += ns * part
    return tuple(sorted(cost_ns, key=lambda text: (-cost_ns[text], text)))


def _label(side: ComparedKernels, shares: Shares) -> str:
    """Name the rows of one side in a few words; nothing where there are none."""
    categories = _by_cost(_category, (side, shares))
    labels = _by_cost(
        lambda key, row: {row.label if key[1] != REST else "(other kernels)": row.ns},
        (side, shares),
    )
    if len(labels) > _MAX_NAMED and len(categories) == 1:
        return f"{categories[0]} ({len(labels)} kernels)"
    return f"{labels[0]} +{len(labels) - 1}" if len(labels) > 1 else "".join(labels)


def _parts(side: ComparedKernels, shares: Shares) -> Parts:
    parts: list[dict[int, float]] = [{} for _ in range(side.captures)]
    for key, part in shares.items():
        for capture, position in side.rows[key].positions:
            parts[capture][position] = part
    return tuple(parts)
