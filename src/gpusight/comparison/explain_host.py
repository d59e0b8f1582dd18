"""What the host did differently, in sentences.

Ranges, calls, copies, and what no longer overlaps.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from gpusight.analysis.gpu_schedule import CallKind, kind_of
from gpusight.analysis.ledger.ledger_entries import COMMUNICATION, COPY
from gpusight.comparison.named_metrics import crosses
from gpusight.comparison.phrases import (
    FAR_MORE,
    GPU,
    WORTH_NAMING,
    bottleneck_phrase,
    copy_name,
    difference,
    from_to,
    in_one_unit,
    listed,
    shown,
    signed,
    whole,
)
from gpusight.comparison.significance import ChangeVerdict
from gpusight.results import Fmt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusight.comparison.comparison_result import CallChange, Comparison
    from gpusight.comparison.significance import MeasuredChange


_MAX_RANGES_NAMED = 3
_LONGEST = 60
_PLAIN = re.compile(r"[\w.:/#-]+\Z")


def host_ranges(found: Comparison) -> Iterator[str]:
    """Name the ranges that changed most."""
    told = [f"{_name(row)} {signed(row.host_ns.delta)}" for row in changed(found)]
    if told:
        yield f"On the host: range {listed(told[:_MAX_RANGES_NAMED])}{_hidden(found)}."


def _hidden(found: Comparison) -> str:
    """Say that the host got done earlier, or later, and the GPU set the pace even so."""
    name, of = whole(found)
    moved = sum(row.host_ns.delta or 0.0 for row in changed(found))
    if found.after.limit != GPU or abs(moved) <= FAR_MORE * abs(of.delta or 0.0):
        return ""
    how = f"did not follow ({difference(of)})"
    if of.claimed and (of.delta or 0.0) * moved > 0:
        how = f"followed by {signed(of.delta)} only"
    return f"; {name} {how}, because {bottleneck_phrase(found)}"


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


_MAX_ACTIVITIES_NAMED = 3
_LEAST = 1.0
"""Calls a step that are worth a sentence, where they were there before."""
_HOLD_UP = frozenset({CallKind.SYNC, CallKind.ALLOCATE, CallKind.FREE})


class _Done(NamedTuple):
    name: str
    calls: MeasuredChange
    ns: MeasuredChange


def host_activity(found: Comparison) -> Iterator[str]:
    """Name what is new, gone, or done more or less often, those of most calls first."""
    rows = sorted(filter(_is_told, _rows(found)), key=lambda one: -abs(one.calls.delta or 0.0))
    each = "a step" if all(found.before.steps) else "in the window"
    for verdict, words in _WORDS.items():
        mine = [
            _activity_phrase(one, each)
            for one in rows[:_MAX_ACTIVITIES_NAMED]
            if one.calls.verdict is verdict
        ]
        if mine:
            yield f"{words} on the host: {'; '.join(mine)}."


_WORDS = {
    ChangeVerdict.APPEARED: "New",
    ChangeVerdict.VANISHED: "No longer",
    ChangeVerdict.HIGHER: "More often",
    ChangeVerdict.LOWER: "Less often",
}


def _rows(found: Comparison) -> Iterator[_Done]:
    for call in found.api:
        if call.calls is not None and kind_of(call.name) in _HOLD_UP:
            yield _Done(call.name, call.calls, call.host_ns)
    for copy in found.copies:
        if copy.calls is not None and any(crosses(copy.operation, up=up) for up in (True, False)):
            yield _Done(f"copies {copy_name(copy)}", copy.calls, copy.ns)


def _is_told(one: _Done) -> bool:
    """Tell whether it came, went, or is done at least once more or less a step."""
    came = one.calls.verdict in (ChangeVerdict.APPEARED, ChangeVerdict.VANISHED)
    return one.calls.claimed and (came or abs(one.calls.delta or 0.0) >= _LEAST)


def _activity_phrase(one: _Done, each: str) -> str:
    took = f" ({signed(one.ns.delta)})" if one.ns.claimed else ""
    return f"{one.name} {from_to(one.calls, Fmt.COUNT)} {each}{took}"


_ALIKE = 0.1
"""Up to this part a difference counts as none here."""


class _Own(NamedTuple):
    """What work costs and moves itself, whatever runs beside it; mean over GPUs."""

    before: float
    after: float

    @property
    def alike(self) -> bool:
        return self.before > 0 and abs(self.after - self.before) <= self.before * _ALIKE


def exposures(found: Comparison) -> Iterator[str]:
    """Say where copies and communication changed their place, or copies their speed."""
    if len(found.before.gpus) != len(found.after.gpus):
        return
    gpus = max(len(found.before.gpus), 1)
    copies = [one for one in found.copies if one.bytes_before or one.bytes_after]
    kernels = [one.ns for one in found.kernels if one.category == COMMUNICATION]
    moved = _claimed(found, COPY)
    took = _own((one.ns for one in copies), gpus)
    if moved and took.alike:
        yield _place("Copies", moved, took)
    elif moved and took.before and took.after:
        size = _Own(sum(c.bytes_before for c in copies), sum(c.bytes_after for c in copies))
        if size.alike:
            yield _speed(size, took)
    moved, took = _claimed(found, COMMUNICATION), _own(kernels, gpus)
    if moved and took.alike:
        yield _place("Kernels that communicate", moved, took)


def _claimed(found: Comparison, group: str) -> float:
    """Give by how much a group of the ledger surely changed; 0 where that does not matter."""
    every = (*found.ledger, *found.between)
    mine = [one.change for one in every if f"{one.entry}/".startswith(f"{group}/")]
    moved = sum(one.delta or 0.0 for one in mine if one.claimed)
    return moved if abs(moved) >= found.least * (found.step.before or 0.0) else 0.0


def _own(rows: Iterable[MeasuredChange], gpus: int) -> _Own:
    every = list(rows)
    return _Own(
        sum(x.before or 0.0 for x in every) / gpus, sum(x.after or 0.0 for x in every) / gpus
    )


def _place(name: str, moved: float, took: _Own) -> str:
    where = "now run beside computation" if moved < 0 else "no longer run beside computation"
    times = in_one_unit(shown(took.before), shown(took.after), " -> ")
    how = "less" if moved < 0 else "more"
    alone = f"{shown(abs(moved))} {how} of it with nothing beside"
    return f"{name} {where}: they take as long ({times} a step), {alone}."


def _speed(size: _Own, took: _Own) -> str:
    how = "less" if took.after < took.before else "more"
    times = in_one_unit(shown(took.before), shown(took.after), " -> ")
    amount = shown(size.after, Fmt.BYTES)
    return f"Copies move as much as before ({amount} a step) in {how} time: {times}."
