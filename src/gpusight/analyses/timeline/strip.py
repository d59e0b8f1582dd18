"""A track together with what it shows: the lines of a family, the samples of a series."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpusight.analyses.timeline.family import Family
    from gpusight.analyses.timeline.ledger_strip import LedgerSpans
    from gpusight.analyses.timeline.series_tracks import Levels, Sampled
    from gpusight.analyses.timeline.window import Track


Events: TypeAlias = "Family | LedgerSpans"
"""Events on numbered lines."""
Values: TypeAlias = "Sampled | Levels"
"""Values over time on numbered lines."""


@dataclass(frozen=True, slots=True)
class Strip:
    """One track and where its lines come from."""

    track: Track
    source: Events | Values | None
    """None while it is still being computed."""
    first: int = 0
    """Number of its outermost line in the source."""
    device: int | None = None
    """GPU that it is about; None where that is not known, or it is about the host."""


def distinct(keys: Iterable[str]) -> list[str]:
    """Tell equal keys apart by a number: the second `gpu0/stream7` is `gpu0/stream7.2`."""
    seen: Counter[str] = Counter()
    apart = []
    for key in keys:
        seen[key] += 1
        apart.append(key if seen[key] == 1 else f"{key}.{seen[key]}")
    return apart
