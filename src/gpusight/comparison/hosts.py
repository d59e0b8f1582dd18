"""Ranges of the host whose time changed: what it did before and after, in sentences.

Only the outermost ranges of a step are named, so that no time is told twice.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpusight.comparison.limit import GPU
from gpusight.comparison.telling import FAR_MORE, WORTH_NAMING, limit_said, whole
from gpusight.comparison.wording import difference, listed, signed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.comparison.outcome import CallChange, Comparison

_MOST = 3
_LONGEST = 60
_PLAIN = re.compile(r"[\w.:/#-]+\Z")


def host_ranges(found: Comparison) -> Iterator[str]:
    """Name the ranges that changed most."""
    told = [f"{_name(row)} {signed(row.host_ns.delta)}" for row in changed(found)]
    if told:
        yield f"On the host: range {listed(told[:_MOST])}{_hidden(found)}."


def _hidden(found: Comparison) -> str:
    """Say that the host got done earlier, or later, and the GPU set the pace even so."""
    name, of = whole(found)
    moved = sum(row.host_ns.delta or 0.0 for row in changed(found))
    if found.after.limit != GPU or abs(moved) <= FAR_MORE * abs(of.delta or 0.0):
        return ""
    how = f"did not follow ({difference(of)})"
    if of.claimed and (of.delta or 0.0) * moved > 0:
        how = f"followed by {signed(of.delta)} only"
    return f"; {name} {how}, because {limit_said(found)}"


def changed(found: Comparison) -> list[CallChange]:
    """Give the outermost ranges with a claimed change that matters, the largest first."""
    of = whole(found)[1]
    before = of.before or 0.0
    part = WORTH_NAMING * (abs(of.delta or 0.0) if of.claimed else before)
    least = max(part, found.least * before)
    claimed = [row for row in found.ranges if row.outer and row.name and row.host_ns.claimed]
    return [row for row in claimed if abs(row.host_ns.delta or 0.0) >= least]


def by_more_than(found: Comparison, delta: float, *, fell: bool) -> list[str]:
    """Name those that fell, or rose, by more than `delta`, with their change in brackets."""
    mine = [row for row in changed(found) if ((row.host_ns.delta or 0.0) < 0) == fell]
    return [
        f"the range {_name(row)} on the host ({signed(row.host_ns.delta)})"
        for row in mine
        if abs(row.host_ns.delta or 0.0) > delta
    ]


def _name(row: CallChange) -> str:
    """Write a name so that it stands out from the sentence."""
    text = row.name.replace("`", "'")
    name = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    return name if _PLAIN.match(name) else repr(name)
