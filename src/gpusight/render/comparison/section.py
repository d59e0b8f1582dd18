"""One table of texts of a comparison, and which of its rows are shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from gpusight.render.comparison.words import Tone

Cell: TypeAlias = "str | tuple[str, str]"
"""A text, or what was before and what took its place."""
SMALL = 0.001
"""Changes below this part of the step are left out where nobody asks for all."""
ROWS = 20
"""Rows of a table where nobody says how many."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    heading: str
    name: bool = False
    """A text that may be cut to fit; others are numbers or short words."""
    quoted: bool = False
    """A name from the capture, not a word of ours."""
    right: bool = True
    units: bool = False
    """Numbers with units, which are to stand below each other."""
    toned: bool = False
    """Coloured by whether the change is welcome."""
    extra: bool = False
    """Left out where there is little room."""
    beneath: bool = False
    """A sentence: on a screen it gets lines of its own, below the row."""
    detail: bool = False
    """Of an extra one: what is said of the name, below it where a table can do that."""


@dataclass(frozen=True, slots=True)
class Row:
    """One thing before and after."""

    cells: tuple[Cell, ...]
    tone: Tone
    delta: float | None
    """By how much it changed, in base units."""
    total: bool = False
    """The sum of those above."""


@dataclass(frozen=True, slots=True)
class Section:
    """One table."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    bars: bool = False
    """Draw how large the changes are."""
    small: float | None = None
    """Changes below this are of no interest; None where all are."""
    whole: bool = False
    """Few rows, of which none may be missing."""

    @property
    def quiet(self) -> str:
        """What is said where no row is of interest."""
        return f"none of {len(self.rows):,} changed by {100 * SMALL:g}% of the step"

    def shown(self, limit: int | None, most: int = ROWS) -> tuple[Row, ...]:
        """Give the rows to show: so many, 0 for all; None for up to `most` that are of interest."""
        if self.whole:
            return self.rows
        totals = tuple(row for row in self.rows if row.total)
        rows = [row for row in self.rows if not row.total]
        kept = rows[:limit] if limit else rows
        if limit is None and self.small is not None:
            kept = [row for row in rows[:most] if abs(row.delta or 0.0) >= self.small]
        return (*kept, *totals)
