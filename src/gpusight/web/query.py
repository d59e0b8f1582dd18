"""Numbers and texts out of the query of a request; what makes no sense is refused with a reason."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpusight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

FURTHEST_NS = 2**62
"""Times beyond this, 146 years, are a mistake."""
_LONGEST_NUMBER = 40
_LONGEST_SHOWN = 40


class Query:
    """The parameters of a request."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def text(self, name: str, most: int) -> str:
        """Give a text of at most so many characters."""
        if name not in self._given:
            raise UsageError(f"{name} is missing")
        text = self._given[name]
        if len(text) > most:
            raise UsageError(f"{name} is too long", why=f"it may have {most:,} characters")
        return text

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """Give a whole number; a fraction, which a page may compute, is cut off."""
        if default is not None and name not in self._given:
            return default
        text = self.text(name, _LONGEST_NUMBER)
        value = read_whole(text)
        if value is None or not low <= value <= high:
            shown = text[:_LONGEST_SHOWN]
            raise UsageError(f"{name} is {shown!r}, not a number from {low:,} to {high:,}")
        return value

    def time(self, name: str) -> int:
        """Give a time in nanoseconds from the capture's origin; it may lie before that."""
        return self.whole(name, -FURTHEST_NS, FURTHEST_NS)

    def stretch(self) -> tuple[int, int]:
        """Give the stretch of time from `start` to `end`."""
        start, end = self.time("start"), self.time("end")
        if end <= start:
            raise UsageError("end is not after start")
        return start, end

    def names(self, name: str, most: int, longest: int) -> list[str]:
        """Give a list separated by commas."""
        parts = self.text(name, most * (longest + 1)).split(",")
        kept = list(dict.fromkeys(part for part in parts if part))
        if len(kept) > most:
            raise UsageError(f"{name} has {len(kept):,} names", why=f"at most {most:,} at once")
        return kept


def read_whole(text: str) -> int | None:
    """Read a whole number, or the whole part of another; None for anything else."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        return None
    return math.floor(value) if math.isfinite(value) else None
