"""What a chart shows, in base units and free of any drawing library.

A `Figure` has one plot; a `StripChart` has rows that share one time axis. `draw` turns either into
the bytes of a file.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from gpusight.results import Fmt


Numbers: TypeAlias = "tuple[float, ...]"


_DOT_RADIUS = 4.5
"""Radius of a dot without a size, in pixels."""


class SeriesTone(enum.Enum):
    """How a series is colored."""

    SERIES = "series"
    """The next color of the palette."""
    STRONG = "strong"
    """Like the text, for a line over filled areas."""
    QUIET = "quiet"
    """Gray, for what is of less interest: the rest."""
    PALE = "pale"
    """Lighter gray, for what was there all along."""


@dataclass(frozen=True, slots=True)
class ChartAxis:
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
class StackPart:
    """One layer of a stack."""

    name: str
    y: Numbers
    tone: SeriesTone = SeriesTone.SERIES
    color: str = ""
    """Key of `render.palette` that it has the color of, whatever its tone."""


@dataclass(frozen=True, slots=True)
class StackSeries:
    """Filled areas upon each other, the first at the bottom; one part is a plain filled area."""

    name: str
    """What they are together."""
    x: Numbers
    parts: tuple[StackPart, ...]
    steps: bool = False
    """Keep each value until the next x, rather than draw straight lines between."""


@dataclass(frozen=True, slots=True)
class LineSeries:
    """Values joined by a line."""

    name: str
    x: Numbers
    y: Numbers
    tone: SeriesTone = SeriesTone.SERIES
    steps: bool = False
    """Keep each value until the next x."""
    dashed: bool = False
    label: str = ""
    """Written along it; such a line needs no place in the legend."""
    label_at: float = 0.5
    """Where along the line the label stands, from 0 at its start to 1 at its end."""
    color: str = ""
    """Key of `render.palette` that it has the color of, whatever its tone."""


@dataclass(frozen=True, slots=True)
class DotSeries:
    """Points, each with a label of its own that shows when pointed at."""

    name: str
    x: Numbers
    y: Numbers
    labels: tuple[str, ...] = ()
    tone: SeriesTone = SeriesTone.SERIES
    sizes: Numbers = ()
    """Radius of each, in pixels; all alike by default."""
    names: tuple[str, ...] = ()
    """Written next to each where there is room, the largest first; empty for none."""
    details: tuple[tuple[tuple[str, str], ...], ...] = ()
    """For each, rows of two cells that show when pointed at."""

    def radius(self, number: int) -> float:
        """Give the radius of a dot, in pixels."""
        return self.sizes[number] if self.sizes else _DOT_RADIUS


@dataclass(frozen=True, slots=True)
class BarSeries:
    """Bars that lie in rows, from `x` to `ends`, which may be to its left."""

    name: str
    """Empty where their rows name them."""
    x: Numbers
    ends: Numbers
    y: Numbers
    """The row of each."""
    labels: tuple[str, ...] = ()
    """Written next to each; empty for none."""
    titles: tuple[str, ...] = ()
    """Shows when pointed at."""
    tone: SeriesTone = SeriesTone.SERIES
    faint: tuple[bool, ...] = ()
    """Which stand for something that went away."""
    joined: tuple[bool, ...] = ()
    """Which ends a thin line joins to the row below."""


Series: TypeAlias = "StackSeries | LineSeries | DotSeries | BarSeries"


@dataclass(frozen=True, slots=True)
class ShadedBand:
    """A stretch along the x axis, shaded lightly behind the data; every other one is."""

    start: float
    end: float
    label: str = ""


@dataclass(frozen=True, slots=True)
class LevelLine:
    """A level across the picture, such as a limit."""

    y: float
    label: str


@dataclass(frozen=True, slots=True)
class PointLabel:
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
    x: ChartAxis
    y: ChartAxis
    series: tuple[Series, ...]
    subtitle: str = ""
    bands: tuple[ShadedBand, ...] = ()
    rules: tuple[LevelLine, ...] = ()
    marks: tuple[PointLabel, ...] = ()
    footnotes: tuple[str, ...] = ()
    """Sentences below the picture: what it leaves out."""
    taller: float = 0.0
    """Pixels that it needs beyond the usual height."""
    panel: Figure | None = None
    """A plot to its right, below it on a narrow screen, for dots that have a y only; in its place
    where it has no dots itself.

    They are spread sideways so that none covers another, and named in a column."""

    def __post_init__(self) -> None:
        """Hold the promise that there is a y for every x, and a text for every dot."""
        for series in self.series:
            if isinstance(series, DotSeries):
                _check_each(series, series.labels, series.sizes, series.names, series.details)
            elif isinstance(series, BarSeries):
                given = (series.labels, series.titles, series.faint, series.joined)
                _check_each(series, *given)
            values = [p.y for p in series.parts] if isinstance(series, StackSeries) else [series.y]
            values += [series.ends] if isinstance(series, BarSeries) else []
            if any(len(y) != len(series.x) for y in values):
                raise ValueError(f"{series.name}: x and y differ in length")


def _check_each(series: DotSeries | BarSeries, *given: tuple[object, ...]) -> None:
    if any(values and len(values) != len(series.x) for values in given):
        raise ValueError(f"{series.name}: labels and values differ in number")


STRIP_CHART_WIDTH = 1040.0
"""Pixels across, for a page or a slide."""


@dataclass(frozen=True, slots=True)
class StripCells:
    """Rectangles side by side, each in a color of its own; one entry of each field a cell."""

    x: Numbers
    ends: Numbers
    colors: tuple[str, ...]
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
        """Check that every field is filled for every cell, or for none."""
        optional = (self.parts, self.labels, self.brief, self.titles)
        given = (self.ends, self.colors, *(values for values in optional if values))
        if any(len(values) != len(self.x) for values in given):
            raise ValueError("cells and their fields differ in number")


@dataclass(frozen=True, slots=True)
class StripHeading:
    """A line of text over the rows that it is about."""

    text: str
    detail: str = ""
    """Stands behind it, less loud."""


@dataclass(frozen=True, slots=True)
class ChartStrip:
    """Cells in a row."""

    name: str
    """Stands to its left; empty for none."""
    cells: StripCells
    height: float = 15.0
    gap: float = 3.0
    """Pixels between it and the row above."""


@dataclass(frozen=True, slots=True)
class StripPlot:
    """Areas and lines in a row, with an axis of their own."""

    y: ChartAxis
    series: tuple[StackSeries | LineSeries, ...]
    height: float = 110.0
    name: str = ""
    """What distinguishes its values from those of other rows, where the page shows them all."""


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """What a color stands for, with numbers."""

    color: str
    """Empty where no color stands for all of it."""
    name: str
    values: tuple[str, ...] = ()
    heads: bool = False
    """Whether it is the sum of those that follow."""


@dataclass(frozen=True, slots=True)
class StripLegend:
    """A legend of the rows above it, in columns."""

    keys: tuple[LegendEntry, ...]
    headings: tuple[str, ...] = ()
    """What the values are."""


@dataclass(frozen=True, slots=True)
class StripAxis:
    """The shared axis, marked and labeled; it is that of the strips and plots above it."""


@dataclass(frozen=True, slots=True)
class StripJoin:
    """A line from a moment of one strip to a moment of a lower one."""

    upper: int
    lower: int
    """Positions in the rows of the picture."""
    x: float
    lower_x: float


StripChartRow: TypeAlias = "StripHeading | ChartStrip | StripPlot | StripAxis | StripLegend"


@dataclass(frozen=True, slots=True)
class StripChart:
    """One picture of rows."""

    title: str
    x: ChartAxis
    rows: tuple[StripChartRow, ...]
    subtitle: str = ""
    legend: tuple[tuple[str, str], ...] = ()
    """Colors that occur in several rows, and what they stand for; stands above them."""
    bands: tuple[ShadedBand, ...] = ()
    joins: tuple[StripJoin, ...] = ()
    footnotes: tuple[str, ...] = ()
    """Sentences below the picture: how to read it, and what it leaves out."""
    width: float = STRIP_CHART_WIDTH
    """Pixels across in a file of its own; a page has its own widths."""
