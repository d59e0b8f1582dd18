"""Lays out a strip chart: strips, plots, legends and headings become marks at pixels."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gpusight.render.cell_text import safe_text, shorten_end, shorten_middle
from gpusight.render.charts.chart_colors import slots_of
from gpusight.render.charts.chart_frame import (
    NOTE_LINE,
    PAD,
    SMALL_FONT,
    TITLE_FONT,
    ChartSize,
    FigureLegendEntry,
    axis_scale,
    band_names,
    lines_of,
    place_legend,
    stepped,
    text_width,
    wrapped,
)
from gpusight.render.charts.figure import (
    ChartStrip,
    StackSeries,
    StripAxis,
    StripHeading,
    StripLegend,
    StripPlot,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.render.charts.chart_frame import AxisScale
    from gpusight.render.charts.figure import (
        LegendEntry,
        Numbers,
        StripCells,
        StripChart,
        StripChartRow,
    )

    Points = tuple[tuple[float, float], ...]


FINE_FONT = 11.0
"""Size of letters inside cells."""


@dataclass(frozen=True, slots=True)
class BoxMark:
    """A filled rectangle, with what shows when it is pointed at."""

    left: float
    top: float
    width: float
    height: float
    slot: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class BoxesMark:
    """Many rectangles of one color, without a tooltip each."""

    slot: str
    boxes: tuple[tuple[float, float, float, float], ...]
    """Left, top, width and height of each."""


@dataclass(frozen=True, slots=True)
class ShadeMark:
    """A lightly shaded rectangle behind everything."""

    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class AreaMark:
    """A filled outline."""

    corners: Points
    slot: str


@dataclass(frozen=True, slots=True)
class LineMark:
    """A line through points."""

    points: Points
    slot: str = ""
    """Its color; that of the grid by default."""
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class TextMark:
    """A text on one line."""

    text: str
    x: float
    y: float
    look: str = ""
    """`title`, `strong`, `muted` or `fine`; empty for plain."""
    anchor: str = "start"
    """`start`, `middle` or `end`: which part of the text stands at `x`."""
    on: str = ""
    """Slot of the cell that it stands in: its letters are white or near black then."""


ChartMark: TypeAlias = "BoxMark | BoxesMark | ShadeMark | AreaMark | LineMark | TextMark"


@dataclass(frozen=True, slots=True)
class StripChartMarks:
    """A strip chart laid out at one width."""

    size: ChartSize
    marks: tuple[ChartMark, ...]
    """What lies behind comes first."""
    left: float
    right: float
    top: float
    bottom: float
    """Where its rows lie."""
    low: float
    high: float
    """Values at `left` and `right`."""


_LEGEND_SWATCH = 18.0
"""From the left edge of a color to its text."""
_SWATCH_PIXELS, _SWATCH_RISE = 11.0, 9.0
"""Size of a color, and how far above the base line of its text it begins."""
_LEGEND_LINE = 18.0
_LEGEND_COLUMN_GAP = 30.0
"""Between two columns."""
_LEGEND_VALUE_GAP = 12.0
"""Before a value."""
_FONT_MARGIN = 1.06
"""Bold letters, and those of some fonts, are so much wider."""


class LegendTable:
    """A legend laid out in columns between two edges."""

    def __init__(self, keys: StripLegend, left: float, room: float) -> None:
        self._keys = keys
        self._left = left
        self._widths = [self._widest_value(n) for n in range(len(keys.headings))]
        most = max((text_width(safe_text(key.name), SMALL_FONT) for key in keys.keys), default=0.0)
        whole = _LEGEND_SWATCH + most + sum(_LEGEND_VALUE_GAP + width for width in self._widths)
        fitting = max(1, int((room + _LEGEND_COLUMN_GAP) // (whole + _LEGEND_COLUMN_GAP)))
        self._columns = _in_columns(keys.keys, fitting)
        self._pitch = (room + _LEGEND_COLUMN_GAP) / max(len(self._columns), 1)
        self._width = min(self._pitch - _LEGEND_COLUMN_GAP, whole + 4 * _LEGEND_VALUE_GAP)

    @property
    def height(self) -> float:
        """How many pixels it takes."""
        return _LEGEND_LINE * (max(map(len, self._columns), default=0) + 1)

    def marks(self, top: float) -> Iterator[ChartMark]:
        """Draw it; numbers stand right-aligned below what they are."""
        values = sum(_LEGEND_VALUE_GAP + width for width in self._widths)
        room = self._width - _LEGEND_SWATCH - values
        letters = max(8, int(room / text_width("m", SMALL_FONT)))
        for number, column in enumerate(self._columns):
            left = self._left + number * self._pitch
            yield from self._values(self._keys.headings, left, top + SMALL_FONT, "muted")
            for row, key in enumerate(column, start=1):
                y = top + SMALL_FONT + row * _LEGEND_LINE
                name = shorten_middle(safe_text(key.name), letters)
                look = "strong" if key.heads else ""
                if key.color:
                    yield _swatch(left, y, key.color)
                yield TextMark(name, left + (_LEGEND_SWATCH if key.color else 0), y, look)
                yield from self._values(key.values, left, y, look)

    def _values(
        self, values: tuple[str, ...], left: float, y: float, look: str = ""
    ) -> Iterator[ChartMark]:
        x = left + self._width
        for value, width in reversed(list(zip(values, self._widths, strict=True))):
            yield TextMark(safe_text(value), x, y, look, "end")
            x -= width + _LEGEND_VALUE_GAP

    def _widest_value(self, number: int) -> float:
        texts = [self._keys.headings[number], *(key.values[number] for key in self._keys.keys)]
        return _FONT_MARGIN * max(text_width(safe_text(text), SMALL_FONT) for text in texts)


def _swatch(left: float, base_line: float, slot: str) -> BoxMark:
    """Draw the color of a legend entry."""
    return BoxMark(left, base_line - _SWATCH_RISE, _SWATCH_PIXELS, _SWATCH_PIXELS, slot)


def _in_columns(keys: Sequence[LegendEntry], most: int) -> list[list[LegendEntry]]:
    """Break keys into at most so many columns; what heads others never stands last in one."""
    columns: list[list[LegendEntry]] = []
    for rows in range(-(-len(keys) // most), len(keys) + 1):
        columns = [[]]
        for number, key in enumerate(keys, start=1):
            is_last = len(columns[-1]) == rows - 1 and number < len(keys)
            if len(columns[-1]) == rows or (is_last and key.heads and not key.color):
                columns.append([])
            columns[-1].append(key)
        if len(columns) <= most:
            break
    return columns if keys else []


_MIN_CELL_PIXELS = 0.4
"""Pixels of the narrowest cell: something was there."""
_CELL_GAP, _MIN_GAPPED_PIXELS = 0.7, 6.0
"""Cells of at least `_MIN_GAPPED_PIXELS` pixels leave so many to the next one."""
_MIN_TITLED_PIXELS = 2.5
"""Cells of at least so many pixels can be pointed at one by one."""
_MARGIN = 3.0
_NAME_GAP, _HALF_LETTER = 8.0, 4.0
"""From a name or tick label to what it names, and from the middle of letters to their base line."""
_CELL_FONT_MARGIN = 1.1
"""Some fonts are wider than others, and a label must stay in its cell in any of them."""
_MIN_LABEL_CHARACTERS = 5
"""Letters that a cut label has at least."""


@dataclass(frozen=True, slots=True)
class TimeAxisScale:
    """The axis that all rows share."""

    left: float
    right: float
    scale: AxisScale

    def x(self, value: float) -> float:
        """Give the pixel of a value, kept inside the rows."""
        place = min(max(self.scale.place(value), 0.0), 1.0)
        return self.left + place * (self.right - self.left)


def strip_marks(strip: ChartStrip, across: TimeAxisScale, top: float) -> Iterator[ChartMark]:
    """Draw the cells of a strip, and its name to the left."""
    if strip.name:
        letters = int((across.left - PAD - 6) / text_width("m", SMALL_FONT))
        name = shorten_middle(safe_text(strip.name), max(letters, 4))
        yield TextMark(
            name, across.left - _NAME_GAP, top + strip.height / 2 + _HALF_LETTER, anchor="end"
        )
    plain: dict[str, list[tuple[float, float, float, float]]] = defaultdict(list)
    marks: list[ChartMark] = []
    for number, slot in enumerate(strip.cells.colors):
        left, width = _place_cell(across, strip.cells.x[number], strip.cells.ends[number])
        tall = strip.height * (strip.cells.parts[number] if strip.cells.parts else 1.0)
        place = (left, top + strip.height - tall, width, tall)
        title = (
            safe_text(strip.cells.titles[number])
            if strip.cells.titles and width >= _MIN_TITLED_PIXELS
            else ""
        )
        if title:
            marks.append(BoxMark(*place, slot, title))
        else:
            plain[slot].append(place)
        if strip.height >= FINE_FONT and (text := _fitting_label(strip.cells, number, width)):
            middle, below = left + width / 2, top + strip.height / 2 + _HALF_LETTER
            marks.append(TextMark(text, middle, below, "fine", "middle", slot))
    yield from (BoxesMark(slot, tuple(places)) for slot, places in plain.items())
    yield from marks


def _place_cell(across: TimeAxisScale, start: float, end: float) -> tuple[float, float]:
    left = across.x(start)
    width = across.x(end) - left
    return left, max(width - _CELL_GAP if width >= _MIN_GAPPED_PIXELS else width, _MIN_CELL_PIXELS)


def _fitting_label(cells: StripCells, number: int, width: float) -> str:
    """Give what can be written inside a cell: its label, what stands for it, or its beginning."""
    label = safe_text(cells.labels[number]) if cells.labels else ""
    room = (width - 2 * _MARGIN) / _CELL_FONT_MARGIN
    if not label or text_width(label, FINE_FONT) <= room:
        return label
    if cells.brief:
        brief = safe_text(cells.brief[number])
        return brief if text_width(brief, FINE_FONT) <= room else ""
    letters = int(room / text_width("m", FINE_FONT))
    return shorten_end(label, letters) if letters >= _MIN_LABEL_CHARACTERS else ""


_PLOT_TICK_SPACING = 36.0
"""Pixels between two marks of the axis, about."""


def plot_marks(plot: StripPlot, across: TimeAxisScale, top: float) -> Iterator[ChartMark]:
    """Draw a plot whose upper edge lies at `top`."""
    floor, up, slots = top + plot.height, axis_scale(plot.y, 0.0, 1.0), slots_of(plot.series)

    def y_of(value: float) -> float:
        return floor - min(max(up.place(value), 0.0), 1.0) * plot.height

    def corners(xs: Numbers, ys: Numbers, *, steps: bool) -> Points:
        points = [(across.x(x), y_of(y)) for x, y in zip(xs, ys, strict=True)]
        return tuple(stepped(points) if steps else points)

    for tick in up.ticks(max(2, round(plot.height / _PLOT_TICK_SPACING))):
        y = y_of(tick.value)
        yield LineMark(((across.left, y), (across.right, y)))
        yield TextMark(tick.label, across.left - _NAME_GAP, y + _HALF_LETTER, "muted", "end")
    for series in plot.series:
        if not isinstance(series, StackSeries):
            line = corners(series.x, series.y, steps=series.steps)
            yield LineMark(line, slots[series.name], dashed=series.dashed)
            continue
        below: Numbers = (0.0,) * len(series.x)
        for part in series.parts:
            above = tuple(b + y for b, y in zip(below, part.y, strict=True))
            upper = corners(series.x, above, steps=series.steps)
            lower = corners(series.x, below, steps=series.steps)
            if any(part.y):
                yield AreaMark((*upper, *reversed(lower)), slots[part.name])
            below = above


_MAX_NAME_SHARE = 0.26
"""Part of the width that names of rows may take."""
_BEFORE_HEADING, _HEADING = 14.0, 20.0
_BEFORE_PLOT, _BEFORE_KEYS, _BEFORE_RULER = 8.0, 4.0, 5.0
_MIN_BAND_PIXELS = 0.2
"""Pixels of the narrowest band that is shaded."""
_BAND_NAMES = 18.0
_TICK, _TICK_LABEL, _AXIS_LABEL = 5.0, 19.0, 37.0
"""How far below the rows the marks of the axis end, and its texts stand."""
_HEADING_BOLD = 1.2
"""Bold letters with capitals are so much wider."""
_TICK_SPACING = 110.0
"""Pixels between two marks of the axis, about."""


def lay_out_strip_chart(chart: StripChart, width: float) -> StripChartMarks:
    """Lay a strip chart out; it becomes as tall as it needs to be."""
    return _StripChartLayout(chart, width).lay_out()


class _StripChartLayout:
    """A strip chart being laid out from the top down."""

    def __init__(self, chart: StripChart, width: float) -> None:
        self._chart = chart
        self._width = width
        self._room = width - 2 * PAD
        left, right = PAD + _gutter(chart, width), width - PAD - 8
        self._across = TimeAxisScale(left, right, axis_scale(chart.x, 0.0, 1.0))
        self._ticks = self._across.scale.ticks(max(3, round((right - left) / _TICK_SPACING)))
        self._stretches: list[tuple[float, float]] = []
        self._open_at: float | None = None
        self._strip_spans: dict[int, tuple[float, float]] = {}

    def lay_out(self) -> StripChartMarks:
        """Give everything, what lies behind first."""
        head, top = self._head()
        top += _BAND_NAMES if any(band.label for band in self._chart.bands) else 2.0
        rows, bottom = self._rows(top)
        notes = [line for n in self._chart.footnotes for line in wrapped(n, self._room, SMALL_FONT)]
        lines = [(line, bottom + n * NOTE_LINE) for n, line in enumerate(notes, start=1)]
        foot = [TextMark(line, PAD, y, "muted") for line, y in lines]
        height = bottom + len(notes) * NOTE_LINE + PAD
        background = (mark for stretch in self._stretches for mark in self._background(*stretch))
        names = self._band_names(top)
        across = self._across
        return StripChartMarks(
            ChartSize(self._width, height),
            (*background, *head, *names, *rows, *foot),
            across.left,
            across.right,
            top,
            bottom,
            across.scale.low,
            across.scale.high,
        )

    def _head(self) -> tuple[list[ChartMark], float]:
        title, y = lines_of(self._chart.title, self._room, TITLE_FONT, PAD + 1)
        subtitle, y = lines_of(self._chart.subtitle, self._room, SMALL_FONT, y - 2)
        marks: list[ChartMark] = [TextMark(text, PAD, at, "title") for text, at in title]
        marks += [TextMark(text, PAD, at, "muted") for text, at in subtitle]
        named = [
            FigureLegendEntry(safe_text(text), slot, "area") for slot, text in self._chart.legend
        ]
        keys, below = place_legend(named, self._width, y + 8, snug=True)
        for key in keys:
            text = TextMark(key.text, key.x + _LEGEND_SWATCH, key.y)
            marks += [_swatch(key.x, key.y, key.slot), text]
        return marks, below + 8 if keys else y

    def _background(self, top: float, bottom: float) -> Iterator[ChartMark]:
        """Draw what lies behind rows: bands and the grid."""
        for number, band in enumerate(self._chart.bands):
            start, end = self._across.x(band.start), self._across.x(band.end)
            if number % 2 == 0 and end - start > _MIN_BAND_PIXELS:
                yield ShadeMark(start, top, end - start, bottom - top)
        for tick in self._ticks:
            x = self._across.x(tick.value)
            yield LineMark(((x, top), (x, bottom)))

    def _band_names(self, top: float) -> Iterator[ChartMark]:
        across = self._across
        for text, x in band_names(self._chart.bands, across.x, across.left, across.right):
            yield TextMark(text, x, top - 6, "muted", "middle")

    # Rows -----------------------------------------------------------------------------------------

    def _rows(self, top: float) -> tuple[list[ChartMark], float]:
        marks: list[ChartMark] = []
        y = top
        for number, row in enumerate(self._chart.rows):
            drawn, end = self._row(row, y, is_first=number == 0)
            marks += drawn
            if isinstance(row, ChartStrip):
                self._strip_spans[number] = (end - row.height, end)
            self._note_stretch(row, y)
            y = end
        return [*marks, *self._joins()], y

    def _joins(self) -> Iterator[ChartMark]:
        """Draw lines between strips, from the lower edge of one to the upper edge of the other."""
        for join in self._chart.joins:
            start, end = self._strip_spans[join.upper][1], self._strip_spans[join.lower][0]
            across = (self._across.x(join.x), self._across.x(join.lower_x))
            yield LineMark(((across[0], start), (across[1], end)), "quiet")

    def _note_stretch(self, row: StripChartRow, top: float) -> None:
        """Remember where the grid goes: from the first row that has values down to its axis."""
        if isinstance(row, (ChartStrip, StripPlot)) and self._open_at is None:
            self._open_at = top
        elif isinstance(row, (StripAxis, StripLegend)) and self._open_at is not None:
            self._stretches.append((self._open_at, top + _BEFORE_RULER + _TICK))
            self._open_at = None

    def _row(
        self, row: StripChartRow, y: float, *, is_first: bool
    ) -> tuple[list[ChartMark], float]:
        """Draw a row below `y`; gives also where it ends."""
        if isinstance(row, StripHeading):
            y += 2.0 if is_first else _BEFORE_HEADING
            return list(_heading(row, y + SMALL_FONT + 2)), y + _HEADING
        if isinstance(row, ChartStrip):
            y += row.gap
            return list(strip_marks(row, self._across, y)), y + row.height
        if isinstance(row, StripPlot):
            y += _BEFORE_PLOT
            return list(plot_marks(row, self._across, y)), y + row.height
        if isinstance(row, StripAxis):
            y += _BEFORE_RULER
            return list(self._ruler(y)), y + _AXIS_LABEL + 4
        keys = LegendTable(row, PAD, self._room)
        y += _BEFORE_KEYS
        return list(keys.marks(y)), y + keys.height

    def _ruler(self, y: float) -> Iterator[ChartMark]:
        across = self._across
        for tick in self._ticks:
            half = text_width(tick.label, SMALL_FONT) / 2
            x = min(max(across.x(tick.value), PAD + half), self._width - half)
            yield TextMark(tick.label, x, y + _TICK_LABEL, "muted", "middle")
        label = safe_text(self._chart.x.label)
        yield TextMark(label, across.right, y + _AXIS_LABEL, "muted", "end")


def _heading(row: StripHeading, y: float) -> Iterator[ChartMark]:
    text = safe_text(row.text)
    if text:
        yield TextMark(text, PAD, y, "strong")
    behind = text_width(text, SMALL_FONT) * _HEADING_BOLD + 12 if text else 0.0
    if row.detail:
        yield TextMark(safe_text(row.detail), PAD + behind, y, "muted")


def _gutter(chart: StripChart, width: float) -> float:
    """Give the room to the left of the rows: for their names, and for the axes of plots."""
    names = [safe_text(row.name) for row in chart.rows if isinstance(row, ChartStrip)]
    axes = [axis_scale(row.y, 0.0, 1.0) for row in chart.rows if isinstance(row, StripPlot)]
    ticks = [tick.label for axis in axes for tick in axis.ticks(3)]
    named = _FONT_MARGIN * max((text_width(name, SMALL_FONT) for name in names), default=0.0)
    widest = _FONT_MARGIN * max((text_width(label, SMALL_FONT) for label in ticks), default=0.0)
    needed = max(min(named, _MAX_NAME_SHARE * width), widest)
    return needed + _NAME_GAP if needed else 0.0
