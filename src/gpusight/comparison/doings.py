"""What the host began or stopped doing: calls that wait or allocate, and copies, in a sentence.

Such calls cost little themselves and much in what they hold up, so their number counts too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpusight.analyses.schedule.kinds import kind_of
from gpusight.analyses.schedule.schedule import CallKind
from gpusight.comparison.change import Verdict
from gpusight.comparison.metrics import crosses
from gpusight.comparison.wording import copy_name, from_to, signed
from gpusight.result import Fmt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.comparison.change import Change
    from gpusight.comparison.outcome import Comparison

_MOST = 3
_LEAST = 1.0
"""Calls a step that are worth a sentence, where they were there before."""
_HOLD_UP = frozenset({CallKind.SYNC, CallKind.ALLOCATE, CallKind.FREE})


class _Done(NamedTuple):
    name: str
    calls: Change
    ns: Change


def doings(found: Comparison) -> Iterator[str]:
    """Name what is new, gone, or done more or less often, those of most calls first."""
    rows = sorted(filter(_is_told, _rows(found)), key=lambda one: -abs(one.calls.delta or 0.0))
    each = "a step" if all(found.before.steps) else "in the window"
    for verdict, words in _WORDS.items():
        mine = [_told(one, each) for one in rows[:_MOST] if one.calls.verdict is verdict]
        if mine:
            yield f"{words} on the host: {'; '.join(mine)}."


_WORDS = {
    Verdict.APPEARED: "New",
    Verdict.VANISHED: "No longer",
    Verdict.HIGHER: "More often",
    Verdict.LOWER: "Less often",
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
    came = one.calls.verdict in (Verdict.APPEARED, Verdict.VANISHED)
    return one.calls.claimed and (came or abs(one.calls.delta or 0.0) >= _LEAST)


def _told(one: _Done, each: str) -> str:
    took = f" ({signed(one.ns.delta)})" if one.ns.claimed else ""
    return f"{one.name} {from_to(one.calls, Fmt.COUNT)} {each}{took}"
