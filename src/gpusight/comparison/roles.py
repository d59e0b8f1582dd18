"""Which rows of kernels took each other's place, judged by how many launches they share.

Each row goes with the one that it shares most launches with, and so belongs to one group only: a
name that is everywhere does not join what else it touches.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, TypeAlias

from gpusight.comparison.kernel_rows import REST
from gpusight.comparison.launch_pairs import FUSIBLE, Launch, LaunchPairs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpusight.comparison.alignment import Pairs
    from gpusight.comparison.kernel_rows import KernelRows, Key, Shares, Sides

Node: TypeAlias = "tuple[int, Key]"
"""Side, 0 or 1, and row."""

_LEAST_REPLACED = 0.1
"""A kernel that both sides have is kept, not replaced, below this part of its launches."""
_LEAST_FOUND = 0.5
"""A kernel of one side must share this part of its launches, or it appeared or vanished."""
_ALIKE = 1.5
"""Launches of one row are of one size while their mean time changes by no more than this."""


def replaced(before: KernelRows, after: KernelRows) -> list[tuple[Shares, Shares]]:
    """Group rows by the places of their launches in a step; none where an order is not known."""
    if not before.order or not after.order:
        return []
    sides = before, after
    pairs = LaunchPairs(_launches(before, after), _launches(after, before)).roles
    pairs = _strong(pairs, sides)
    shared = _shared(pairs, sides)
    return [_shares(group, shared, sides) for group in _groups(pairs, sides)]


def unplaced(
    before: KernelRows, after: KernelRows, left: Shares, right: Shares
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


def _launches(side: KernelRows, other: KernelRows) -> list[Launch]:
    """Describe the launches of a step, in order."""
    known = {}
    for key, count in side.launches.items():
        row, common = side.rows[key], key in other.rows
        fewer = other.launches[key] <= _LEAST_FOUND * count and row.category in FUSIBLE
        known[key] = Launch(
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
    side: KernelRows, other: KernelRows, shares: Shares, rest: Shares, *, by_stem: bool
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
