"""What the GPU did and what it waited for, in sentences.

Both sum to the time from one step to the next, so a change of one that this does not follow must
be found in the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.analyses.ledger.causes import IDLE
from gpusight.comparison.change import Verdict
from gpusight.comparison.hosts import by_more_than
from gpusight.comparison.telling import (
    FAR_MORE,
    busy_said,
    colon,
    each,
    entries,
    limit_said,
    matters,
    told,
    whole,
)
from gpusight.comparison.wording import difference, from_to, is_how, joined, shown, signed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.comparison.change import Change
    from gpusight.comparison.outcome import Comparison

_TAKES_BACK = 0.25
"""Part of a change from which on what goes the other way is worth a sentence."""
_MOST_NAMED = 2
"""Entries, and ranges, that a sentence begins with."""
_NO_PHASE = frozenset({"other", "unknown"})


# Work --------------------------------------------------------------------------------------------


def work(found: Comparison) -> Iterator[str]:
    """Say how the work of the GPU changed, whether or not the step did."""
    busy, kernels = found.metric("busy").change, found.metric("kernel_time").change
    if kernels.claimed and not found.headline.change.claimed:
        numbers = f"{from_to(kernels)} ({difference(kernels)})"
        yield f"Kernel time {is_how(kernels)} even so: {numbers} a step."
    named = _of_step(found, busy.delta, idle=False)
    if busy.claimed and matters(found, busy):
        text = f"GPU work {is_how(busy)}: {from_to(busy)} ({difference(busy)}) {each(found)}"
        yield f"{text}{colon(named)}{_phases(found)}."
    elif named and not busy.claimed:
        yield f"{_unclaimed('GPU work', busy)}, but of its parts: {named} a step."


def _unclaimed(name: str, change: Change) -> str:
    """Say that no change of a whole is claimed."""
    if change.verdict is Verdict.SAME:
        return f"{name[0].upper()}{name[1:]} as a whole is the same ({from_to(change)})"
    return f"No change of {name} as a whole can be claimed ({from_to(change)})"


def _of_step(found: Comparison, of: float | None, *, idle: bool) -> str:
    """Name the entries of the step; what lies between steps has a sentence of its own."""
    rows = (one for one in found.ledger if one.entry.startswith(f"{IDLE}/") == idle)
    return entries(found, rows, of)


def _phases(found: Comparison) -> str:
    """Name the phases that changed by what matters to the step."""
    least = found.least * (found.step.before or 0.0)
    every = [(name, change) for name, change in found.phases if name not in _NO_PHASE]
    mine = [(n, c) for n, c in every if c.claimed and abs(c.delta or 0.0) >= least]
    mine.sort(key=lambda one: -abs(one[1].delta or 0.0))
    return f"; by phase {told(mine)}" if mine else ""


# Waiting -----------------------------------------------------------------------------------------


def waiting(found: Comparison) -> Iterator[str]:
    """Say what became of the time that the GPU waits, and what that did to the step."""
    busy, idle = found.metric("busy").change, found.metric("idle").change
    did, waited = busy.delta or 0.0, idle.delta or 0.0
    named = _of_step(found, waited if idle.claimed else None, idle=True)
    if not idle.claimed:
        if named:
            yield f"{_unclaimed('idle time', idle)}, but of its parts: {named} a step."
        elif busy.claimed and not whole(found)[1].claimed:
            yield f"{_unclaimed('idle time', idle)}; {limit_said(found)} ({busy_said(found)})."
    elif busy.claimed and did * waited < 0 and _TAKES_BACK * abs(did) <= abs(waited) <= abs(did):
        yield _taken_back(found, did, idle)
    elif matters(found, idle):
        numbers = f"{from_to(idle)} ({difference(idle)}) {each(found)}"
        text = f"Idle time of the GPU {is_how(idle)}: {numbers}"
        yield f"{text}{colon(named)}; {limit_said(found)} ({busy_said(found)})."


def _taken_back(found: Comparison, did: float, idle: Change) -> str:
    """Say that work and waiting changed against each other.

    That idle time changed for sure means as much as that work and the whole did not change alike.
    """
    name, of = whole(found)
    delta, fell = of.delta or 0.0, did < 0
    far = abs(delta) * FAR_MORE
    mine = _what_moved(found, far, fell=fell)[:_MOST_NAMED]
    more = "far more" if mine or abs(did) >= far else "more"
    moved = joined([*(mine or ["GPU work"]), *by_more_than(found, far, fell=fell)[:_MOST_NAMED]])
    what, how = ("fell", "longer") if fell else ("rose", "less")
    named = _of_step(found, idle.delta, idle=True)
    waited = f"{shown(abs(idle.delta or 0.0))} {how}{f' ({named})' if named else ''}"
    return (
        f"{moved} {what} by {more} than {name} ({signed(delta)}), because {limit_said(found)}: "
        f"the GPU idles {waited}, {busy_said(found)}."
    )


def _what_moved(found: Comparison, far: float, *, fell: bool) -> list[str]:
    """Name the entries of GPU work that changed by more than `far`, with their change."""
    return [
        f"{one.entry} ({signed(one.change.delta)})"
        for one in found.ledger
        if one.change.claimed
        and not one.entry.startswith(f"{IDLE}/")
        and ((one.change.delta or 0.0) < 0) == fell
        and abs(one.change.delta or 0.0) > far
        and matters(found, one.change)
    ]
