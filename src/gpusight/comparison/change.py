"""By how much something changed between two sides, and how surely."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any


class Verdict(enum.Enum):
    """What can be claimed about a quantity."""

    LOWER = "lower"
    HIGHER = "higher"
    SAME = "same"
    """Any change is shown to be smaller than the least one that counts."""
    UNCLEAR = "unclear"
    """The spread is too large, or the captures too few, to tell."""
    APPEARED = "appeared"
    """It was not there before."""
    VANISHED = "vanished"


class Basis(enum.Enum):
    """What the interval of a change rests on."""

    REPEATS = "repeats"
    """Several captures a side: how much runs differ is known."""
    STEPS = "steps"
    """One capture a side: only how much steps of a run differ is known."""
    NONE = "none"
    """Single values: nothing tells how much they vary."""


@dataclass(frozen=True, slots=True)
class Change:
    """One quantity before and after; None where a side does not know it."""

    before: float | None
    after: float | None
    low: float | None
    """Lower end of the interval of the difference."""
    high: float | None
    verdict: Verdict
    basis: Basis

    @property
    def delta(self) -> float | None:
        """What was added; negative where it fell."""
        if self.before is None or self.after is None:
            return None
        return self.after - self.before

    @property
    def ratio(self) -> float | None:
        """The difference as a part of what was before."""
        return self.delta / self.before if self.delta is not None and self.before else None

    @property
    def claimed(self) -> bool:
        """Whether it can be said to have changed."""
        return self.verdict not in (Verdict.SAME, Verdict.UNCLEAR)

    def document(self) -> dict[str, Any]:
        """Give it as plain objects, for JSON."""
        return {
            "before": self.before,
            "after": self.after,
            "change": self.delta,
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
            "verdict": self.verdict.value,
            "basis": self.basis.value,
        }
