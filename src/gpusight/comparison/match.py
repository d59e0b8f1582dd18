"""Which kernels of two sides belong together: by name, else by the role that they play.

A kernel is a row of a digest: one name in one range. Launches of one name in one range belong
together. What is left over is matched by place (`roles`). A name that is then left on both sides
has moved to another range, and what is still left appeared or vanished.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from gpusight.comparison.kernel_rows import REST, both_sides
from gpusight.comparison.outcome import Match
from gpusight.comparison.roles import replaced, unplaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpusight.comparison.digest import Digest
    from gpusight.comparison.kernel_rows import KernelRows, Key, Row, Shares, Sides

Parts: TypeAlias = "tuple[Mapping[int, float], ...]"
"""For each capture: position in `Digest.kernels` -> part of its launches."""
_FEW = 3
"""Kernels of a row that are named by the first of them; more are named by their category."""


@dataclass(frozen=True, slots=True)
class Matched:
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
    match: Match
    before: Parts
    """Over all `Matched` the parts of a row sum to 1."""
    after: Parts


class _Group(NamedTuple):
    """Rows that belong together, with the part of their launches that does."""

    match: Match
    before: Shares
    after: Shares


def match_kernels(before: Sequence[Digest], after: Sequence[Digest]) -> list[Matched]:
    """Say which kernels belong together; the most expensive first."""
    sides = both_sides(before, after)
    groups = [_Group(Match.ROLE, *pair) for pair in replaced(*sides)]
    groups += [_Group(Match.ROLE, *pair) for pair in unplaced(*sides, *_left(sides, groups))]
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


def _fate(before: Shares, after: Shares) -> Match:
    if (before and after) or any(name == REST for _, name in {**before, **after}):
        return Match.NAME
    return Match.VANISHED if before else Match.APPEARED


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


def _rows(sides: Sides, groups: Iterable[_Group]) -> list[Matched]:
    """Describe the groups, the most expensive first."""
    costly = [(max(sides[0].ns(one.before), sides[1].ns(one.after)), one) for one in groups]
    rows = [(cost, _matched(sides, group)) for cost, group in costly]
    rows.sort(key=lambda row: (-row[0], row[1].before_names, row[1].after_names))
    return [row for _, row in rows]


def _matched(sides: Sides, group: _Group) -> Matched:
    both = (sides[0], group.before), (sides[1], group.after)
    called = [_called(one) for one in both]
    return Matched(
        before_names=_dearest(_name, both[0]),
        after_names=_dearest(_name, both[1]),
        short=" -> ".join(dict.fromkeys(one for one in called if one)),
        category=_dearest(_category, *both)[0],
        ranges=tuple(one for one in _dearest(_range, *both) if one),
        match=group.match,
        before=_parts(*both[0]),
        after=_parts(*both[1]),
    )


def _name(_: Key, row: Row) -> dict[str, float]:
    return row.names


def _category(_: Key, row: Row) -> dict[str, float]:
    return {row.category: row.ns}


def _label(key: Key, row: Row) -> dict[str, float]:
    return {row.short if key[1] != REST else "(other kernels)": row.ns}


def _range(_: Key, row: Row) -> dict[str, float]:
    return row.ranges


def _dearest(
    what: Callable[[Key, Row], dict[str, float]], *both: tuple[KernelRows, Shares]
) -> tuple[str, ...]:
    """List what the rows of a group have, the most expensive first."""
    found: defaultdict[str, float] = defaultdict(float)
    for side, shares in both:
        for key, part in shares.items():
            for one, ns in what(key, side.rows[key]).items():
                found[one] += ns * part
    return tuple(sorted(found, key=lambda one: (-found[one], one)))


def _called(one: tuple[KernelRows, Shares]) -> str:
    """Name the rows of one side in a few words; nothing where there are none."""
    labels, categories = _dearest(_label, one), _dearest(_category, one)
    if len(labels) > _FEW and len(categories) == 1:
        return f"{categories[0]} ({len(labels)} kernels)"
    return f"{labels[0]} +{len(labels) - 1}" if len(labels) > 1 else "".join(labels)


def _parts(side: KernelRows, shares: Shares) -> Parts:
    found: list[dict[int, float]] = [{} for _ in range(side.captures)]
    for key, part in shares.items():
        for capture, position in side.rows[key].at:
            found[capture][position] = part
    return tuple(found)
