"""What of a comparison is worth a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.analyses.ledger.labels import COMPUTE
from gpusight.comparison.limit import GPU, gpu_part, in_words
from gpusight.comparison.wording import listed, signed
from gpusight.units import format_share

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpusight.comparison.change import Change
    from gpusight.comparison.outcome import Comparison, Entry

WORTH_NAMING = 0.1
"""Part of a change from which on an entry of it is named."""
FAR_MORE = 2.0
"""Times the change of the whole from which on one of a part is far more."""
_MOST_ENTRIES = 4


def whole(found: Comparison) -> tuple[str, Change]:
    """Give what GPU work and idle time sum to: the step, unless much lies between steps."""
    name = "the time from step to step" if found.is_apart else "the step"
    return name, found.headline.change


def each(found: Comparison) -> str:
    """Say what a time of work or waiting is a mean of."""
    return "from step to step" if found.is_apart else "a step"


def matters(found: Comparison, change: Change) -> bool:
    """Tell whether a change is a part of that of the whole that is worth a sentence."""
    delta, of = abs(change.delta or 0.0), whole(found)[1]
    asked = WORTH_NAMING * abs(of.delta or 0.0) if of.claimed else 0.0
    return delta >= max(asked, found.least * (of.before or 0.0))


def entries(found: Comparison, rows: Iterable[Entry], of: float | None) -> str:
    """Name the claimed entries that make up most of a change, with their own."""
    least = max(abs(of or 0.0) * WORTH_NAMING, found.least * (whole(found)[1].before or 0.0) / 2)
    claimed = ((one.entry, one.change) for one in rows if one.change.claimed)
    return told((name, change) for name, change in claimed if abs(change.delta or 0.0) >= least)


def told(changes: Iterable[tuple[str, Change]]) -> str:
    """List changes by name."""
    return listed((f"{name} {signed(change.delta)}" for name, change in changes), _MOST_ENTRIES)


def colon(text: str) -> str:
    """Add a list to a sentence, where there is any."""
    return f": {text}" if text else ""


def limit_said(found: Comparison) -> str:
    """Say what holds the step up."""
    was, now = found.before.limit, found.after.limit
    old, new = _named(found, was, "before"), _named(found, now, "after")
    if was != now:
        return f"{new} became the limit instead of {old}"
    if now == GPU:
        return f"{new} still is the limit"
    return f"{new} was the limit before and still is"


def _named(found: Comparison, what: str, side: str) -> str:
    """Call a limit by its name; GPU work that is no computing also by what it is."""
    if what != GPU:
        return in_words(what)
    part = gpu_part({one.entry: getattr(one.change, side) or 0.0 for one in found.ledger})
    return in_words(GPU) if part == COMPUTE else f"{in_words(GPU)} (mostly {in_words(part)})"


def busy_said(found: Comparison) -> str:
    """Say how busy the GPU was and is."""
    shares = (format_share(side.busy_share) for side in (found.before, found.after))
    return f"GPU busy {' -> '.join(shares)}"
