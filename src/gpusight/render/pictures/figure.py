"""What a picture shows, in base units and free of any drawing library.

A figure is made from a result by a module of this package named after the command, such as
`memory.py`; `draw` turns it into the bytes of a file.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from gpusight.result import Fmt

Numbers: TypeAlias = "tuple[float, ...]"


class Tone(enum.Enum):
    """How a series is coloured."""

    SERIES = "series"
    """The next colour of the palette."""
    STRONG = "strong"
    """Like the text, for a line over filled areas."""
    QUIET = "quiet"
    """Grey, for what is of less interest: the rest."""
    PALE = "pale"
    """Lighter grey, for what was there all along."""


@dataclass(frozen=True, slots=True)
class Axis:
    """What one direction of the picture measures."""

    label: str
    fmt: Fmt
    """Which unit the base-unit values are shown in."""
    log: bool = False
    """Show decades rather than equal steps; values from zero down are left out."""
    low: float | None = None
    high: float | None = None
    """Where it begins and ends; what the data needs by default."""


@dataclass(frozen=True, slots=True)
class Part:
    """One layer of a stack."""

    name: str
    y: Numbers
    tone: Tone = Tone.SERIES


@dataclass(frozen=True, slots=True)
class Stack:
    """Filled areas upon each other, the first at the bottom; one part is a plain filled area."""

    name: str
    """What they are together."""
    x: Numbers
    parts: tuple[Part, ...]
    steps: bool = False
    """Keep each value until the next x, rather than draw straight lines between."""


@dataclass(frozen=True, slots=True)
class Line:
    """Values joined by a line."""

    name: str
    x: Numbers
    y: Numbers
    tone: Tone = Tone.SERIES
    steps: bool = False
    """Keep each value until the next x."""
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Dots:
    """Points, each with a label of its own that shows when pointed at."""

    name: str
    x: Numbers
    y: Numbers
    labels: tuple[str, ...] = ()
    tone: Tone = Tone.SERIES


Series: TypeAlias = "Stack | Line | Dots"


@dataclass(frozen=True, slots=True)
class Band:
    """A stretch along the x axis, shaded lightly behind the data; every other one is."""

    start: float
    end: float
    label: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A level across the picture, such as a limit."""

    y: float
    label: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A point that is called out by name."""

    x: float
    y: float
    label: str
    detail: tuple[tuple[str, str], ...] = ()
    """Rows of two cells that show when pointed at."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One picture."""

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    subtitle: str = ""
    bands: tuple[Band, ...] = ()
    rules: tuple[Rule, ...] = ()
    marks: tuple[Mark, ...] = ()

    def __post_init__(self) -> None:
        """Hold the promise that there is a y for every x."""
        for series in self.series:
            values = [p.y for p in series.parts] if isinstance(series, Stack) else [series.y]
            if any(len(y) != len(series.x) for y in values):
                raise ValueError(f"{series.name}: x and y differ in length")
