"""What every kind of rule can say, and how it states its thresholds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limit:
    """A threshold of a rule, with the reason for its value."""

    value: float
    why: str


@dataclass(frozen=True, slots=True)
class Clean:
    """The rule applies, and there is no such problem."""


CLEAN = Clean()
