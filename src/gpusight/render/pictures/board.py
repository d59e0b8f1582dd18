"""Pictures made of rows above each other that share one axis of time: strips, plots, headings.

A `Figure` has one plot; a `Board` has as many rows as there is to show: the bars of a ledger, the
streams of a timeline, how busy each GPU was. Like a figure it says what to show, at any width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from gpusight.render.pictures.figure import Axis, Band, Line, Numbers, Stack

WIDTH = 1040.0
"""Pixels across, for a page or a slide."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Rectangles side by side, each in a colour of its own; one entry of each field a cell."""

    x: Numbers
    ends: Numbers
    colours: tuple[str, ...]
    """Keys of `render.palette`."""
    parts: Numbers = ()
    """How much of the row's height each takes, from its floor up; all of it by default."""
    labels: tuple[str, ...] = ()
    """Written inside where there is room; empty for none."""
    brief: tuple[str, ...] = ()
    """Written where a label has no room; without it labels are cut to what fits."""
    titles: tuple[str, ...] = ()
    """Shows when pointed at; empty for none."""

    def __post_init__(self) -> None:
        """Hold the promise that every field says something of every cell, or nothing at all."""
        optional = (self.parts, self.labels, self.brief, self.titles)
        given = (self.ends, self.colours, *(values for values in optional if values))
        if any(len(values) != len(self.x) for values in given):
            raise ValueError("what is said of cells differs in number from them")


@dataclass(frozen=True, slots=True)
class Heading:
    """A line of text over the rows that it is about."""

    text: str
    detail: str = ""
    """Stands behind it, less loud."""


@dataclass(frozen=True, slots=True)
class Strip:
    """Cells in a row."""

    name: str
    """Stands to its left; empty for none."""
    cells: Cells
    height: float = 15.0
    gap: float = 3.0
    """Pixels between it and the row above."""


@dataclass(frozen=True, slots=True)
class Plot:
    """Areas and lines in a row, with an axis of their own."""

    y: Axis
    series: tuple[Stack | Line, ...]
    height: float = 110.0
    name: str = ""
    """What tells its values from those of other rows, where the page shows them all."""


@dataclass(frozen=True, slots=True)
class Key:
    """What a colour stands for, with numbers."""

    colour: str
    """Empty where no colour stands for all of it."""
    name: str
    values: tuple[str, ...] = ()
    heads: bool = False
    """Whether it is the sum of those that follow."""


@dataclass(frozen=True, slots=True)
class Keys:
    """A legend of the rows above it, in columns."""

    keys: tuple[Key, ...]
    headings: tuple[str, ...] = ()
    """What the values are."""


@dataclass(frozen=True, slots=True)
class Ruler:
    """The shared axis, marked and labelled; it is that of the strips and plots above it."""


Row: TypeAlias = "Heading | Strip | Plot | Ruler | Keys"


@dataclass(frozen=True, slots=True)
class Board:
    """One picture of rows."""

    title: str
    x: Axis
    rows: tuple[Row, ...]
    subtitle: str = ""
    legend: tuple[tuple[str, str], ...] = ()
    """Colours that occur in several rows, and what they stand for; stands above them."""
    bands: tuple[Band, ...] = ()
    footnotes: tuple[str, ...] = ()
    """Sentences below the picture: how to read it, and what it leaves out."""
    width: float = WIDTH
    """Pixels across in a file of its own; a page has its own widths."""
