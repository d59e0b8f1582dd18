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
    unit: str = ""
    """What plain numbers are of, such as `FLOP/s`; shown with `k`, `M`, `G`, … before it."""
    names: tuple[str, ...] = ()
    """What stands at 0, 1, 2, … of an axis that measures nothing."""


@dataclass(frozen=True, slots=True)
class Part:
    """One layer of a stack."""

    name: str
    y: Numbers
    tone: Tone = Tone.SERIES
    colour: str = ""
    """Key of `render.palette` that it has the colour of, whatever its tone."""


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
    label: str = ""
    """Written along it; such a line needs no place in the legend."""
    label_at: float = 0.5
    """Where along the line the label stands, from 0 at its start to 1 at its end."""
    colour: str = ""
    """Key of `render.palette` that it has the colour of, whatever its tone."""


@dataclass(frozen=True, slots=True)
class Dots:
    """Points, each with a label of its own that shows when pointed at."""

    name: str
    x: Numbers
    y: Numbers
    labels: tuple[str, ...] = ()
    tone: Tone = Tone.SERIES
    sizes: Numbers = ()
    """Radius of each, in pixels; all alike by default."""
    names: tuple[str, ...] = ()
    """Written beside each where there is room, the largest first; empty for none."""
    details: tuple[tuple[tuple[str, str], ...], ...] = ()
    """For each, rows of two cells that show when pointed at."""


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars that lie in rows, from `x` to `ends`, which may be to its left."""

    name: str
    """Empty where their rows say what they are."""
    x: Numbers
    ends: Numbers
    y: Numbers
    """The row of each."""
    labels: tuple[str, ...] = ()
    """Written beside each; empty for none."""
    titles: tuple[str, ...] = ()
    """Shows when pointed at."""
    tone: Tone = Tone.SERIES
    faint: tuple[bool, ...] = ()
    """Which stand for something that went away."""
    joined: tuple[bool, ...] = ()
    """Which ends a thin line joins to the row below."""


Series: TypeAlias = "Stack | Line | Dots | Bars"


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
    footnotes: tuple[str, ...] = ()
    """Sentences below the picture: what it leaves out."""
    taller: float = 0.0
    """Pixels that it needs beyond the usual height."""

    def __post_init__(self) -> None:
        """Hold the promise that there is a y for every x, and a text for every dot."""
        for series in self.series:
            if isinstance(series, Dots):
                _check_each(series, series.labels, series.sizes, series.names, series.details)
            elif isinstance(series, Bars):
                given = (series.labels, series.titles, series.faint, series.joined)
                _check_each(series, *given)
            values = [p.y for p in series.parts] if isinstance(series, Stack) else [series.y]
            values += [series.ends] if isinstance(series, Bars) else []
            if any(len(y) != len(series.x) for y in values):
                raise ValueError(f"{series.name}: x and y differ in length")


def _check_each(series: Dots | Bars, *given: tuple[object, ...]) -> None:
    if any(values and len(values) != len(series.x) for values in given):
        raise ValueError(f"{series.name}: what is said of each differs in number from them")
