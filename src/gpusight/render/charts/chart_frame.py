"""Where things go in a chart.

Axis ticks, limits of the data, legend, and the rectangle that is left.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from gpusight import units
from gpusight.render.cell_text import display_width, safe_text, shorten_middle
from gpusight.render.charts.chart_colors import slots
from gpusight.render.charts.figure import BarSeries, DotSeries, StackSeries
from gpusight.results import Fmt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpusight.render.charts.figure import (
        ChartAxis,
        Figure,
        LineSeries,
        Numbers,
        PointLabel,
        ShadedBand,
    )


_SCALED: dict[Fmt, Callable[[float | None], str]] = {
    Fmt.TIME: units.format_time,
    Fmt.BYTES: units.format_bytes,
    Fmt.RATE: units.format_rate,
}
_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
_DENSER = 0.75
"""A step may be this much finer than requested, when it is rounder."""
_THOUSAND = 1000.0
_SI = ("", "k", "M", "G", "T", "P", "E")
_MAX_TICKS = 100
_MAX_FINE_DECADES = 2.2
"""An axis of fewer decades is divided at 2 and 5 as well."""


@dataclass(frozen=True, slots=True)
class AxisTick:
    """A mark on an axis."""

    value: float
    label: str


@dataclass(frozen=True, slots=True)
class AxisScale:
    """An axis with its ends: turns values into fractions of its length."""

    axis: ChartAxis
    low: float
    high: float

    def place(self, value: float) -> float:
        """Give where a value lies, from 0 at the low end to 1 at the high one."""
        if self.axis.log:
            low, high = math.log10(self.low), math.log10(self.high)
            return (math.log10(max(value, self.low)) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, about: int) -> list[AxisTick]:
        """Mark the axis at about so many round values, or at all of its names."""
        if self.axis.names:
            return [AxisTick(n, safe_text(name)) for n, name in enumerate(self.axis.names)]
        if self.axis.log:
            return list(self._decades(about))
        largest = max(abs(self.low), abs(self.high))
        factor, unit = unit_of(self.axis.fmt, largest, self.axis.unit)
        step = _round_step((self.high - self.low) / factor / max(about, 1))
        first = math.ceil(self.low / factor / step - 1e-9)
        last = math.floor(self.high / factor / step + 1e-9)
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        if round(step, decimals) != step:  # 2.5 needs one more decimal than 2
            decimals += 1
        numbers = [n * step for n in range(first, min(last, first + _MAX_TICKS) + 1)]
        return [AxisTick(n * factor, _label(n, decimals, unit)) for n in numbers]

    def _decades(self, about: int) -> Iterator[AxisTick]:
        low, high = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        stride = max(1, math.ceil((high - low) / max(about, 1)))
        # Where there are few decades, they are divided.
        digits = (1, 2, 5) if math.log10(self.high / self.low) < _MAX_FINE_DECADES else (1,)
        for power in range(low - 1, high + 1) if len(digits) > 1 else range(low, high + 1, stride):
            for digit in digits:
                value = digit * 10.0**power
                if self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9):
                    factor, unit = unit_of(self.axis.fmt, value, self.axis.unit)
                    decimals = max(0, -math.floor(math.log10(value / factor) + 1e-9))
                    yield AxisTick(value, _label(value / factor, decimals, unit))


def axis_scale(axis: ChartAxis, low: float, high: float) -> AxisScale:
    """Fit an axis to the data, or to the ends it was given; never of no length."""
    first = low if axis.low is None else axis.low
    last = high if axis.high is None else axis.high
    if axis.log:
        first = first if first > 0 else (last / 1000 if last > 0 else 1.0)
        return AxisScale(axis, first, last if last > first else first * 10)
    return AxisScale(axis, first, last if last > first else first + (abs(first) or 1.0))


def unit_of(fmt: Fmt, largest: float, unit: str = "") -> tuple[float, str]:
    """Choose the unit that a whole axis is shown in, by its largest value: factor and name."""
    if unit:
        steps = math.floor(math.log10(max(largest, 1.0)) / 3 + 1e-9)
        steps = min(steps, len(_SI) - 1)
        return _THOUSAND**steps, _SI[steps] + unit
    if fmt is Fmt.SHARE:
        return 0.01, "%"
    show = _SCALED.get(fmt)
    if show is None:
        return 1.0, ""
    return units.unit_of(show, largest)


def _round_step(rough: float) -> float:
    if not rough > 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next(n for n in _ROUND if n * power >= rough * _DENSER) * power


def _label(number: float, decimals: int, unit: str) -> str:
    text = f"{number:,.{decimals}f}"
    if unit == "%":
        return text + unit
    return f"{text} {unit}" if unit else text


_HEADROOM = 1.12
"""Room above the data, for the label of its highest point."""
_LETTER = 0.55
"""Width of a letter in units of its size, on average and rather too wide."""
SMALL_FONT = 12.0
TITLE_FONT = 17.0
"""Sizes of letters."""
PAD = 16.0
_LEGEND_LINE = 19.0
_LEGEND_SWATCH = 18.0
_COLUMN_GAP = 22.0
NOTE_LINE = 17.0
_TWO_COLUMNS = 700.0
"""With this much room a legend has two columns, whatever that cuts off its names."""
_MAX_KEY_CHARACTERS = 72
BAR_LABEL_GAP = 6.0
"""Between a bar and its label."""
_MIN_PLOT_SHARE = 0.45
"""Part of the width that labels of bars leave to the plot."""


@dataclass(frozen=True, slots=True)
class ChartSize:
    """Width and height in pixels."""

    width: float
    height: float


WIDE = ChartSize(1040, 520)
NARROW = ChartSize(390, 500)
"""For a page, a file or a slide; and for a telephone."""


NARROW_PIXELS = 600.0
"""A picture below this width is for a telephone."""
_PANEL_SHARE = 0.3
"""Part of the width that a panel takes."""
_PANEL_HEIGHT = 250.0
"""Height of a panel below the plot, with its heading."""
_PANEL_GAP = 20.0
_DOT_GAP = 1.0
_MAX_SPREAD = 0.45
"""Part of a panel's width over which its dots are spread; the rest is for their names."""


def size_of(figure: Figure, usual: ChartSize = WIDE) -> ChartSize:
    """Give the size of a picture, as tall as it needs to be."""
    has_both = figure.panel is not None and _has_dots(figure)
    below = _PANEL_HEIGHT if has_both and usual.width < NARROW_PIXELS else 0.0
    return ChartSize(usual.width, usual.height + figure.taller + below)


def _has_dots(figure: Figure) -> bool:
    """Return whether a plot that has a panel shows anything itself: lines alone say nothing."""
    return any(isinstance(series, DotSeries) and series.x for series in figure.series)


@dataclass(frozen=True, slots=True)
class FigureLegendEntry:
    """An entry of the legend."""

    text: str
    slot: str
    shape: str
    """`area`, `line`, `dashed` or `dots`."""
    x: float = 0.0
    y: float = 0.0


@dataclass(frozen=True, slots=True)
class ChartFrame:
    """A figure laid out: everything but its marks."""

    figure: Figure
    size: ChartSize
    left: float
    right: float
    top: float
    bottom: float
    across: AxisScale
    up: AxisScale
    x_ticks: tuple[AxisTick, ...]
    y_ticks: tuple[AxisTick, ...]
    keys: tuple[FigureLegendEntry, ...]
    title: tuple[tuple[str, float], ...]
    subtitle: tuple[tuple[str, float], ...]
    footnotes: tuple[tuple[str, float], ...]
    """Lines of text, and where each stands."""
    start: float = PAD
    """Where its heading begins: the left edge of the picture, or of a panel in it."""
    panel: ChartFrame | None = None
    names_left: float | None = None
    """Where the column of names begins; None where names stand next to their dots."""

    @property
    def plots(self) -> list[ChartFrame]:
        """The plots that are drawn; one that has no dots is left out where its panel has some."""
        if self.panel is None:
            return [self]
        return [self, self.panel] if _has_dots(self.figure) else [self.panel]

    def x(self, value: float) -> float:
        """Give the pixel of a value across, kept inside the plot."""
        return self.left + _clip(self.across.place(value)) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Give the pixel of a value upwards, kept inside the plot."""
        return self.bottom - _clip(self.up.place(value)) * (self.bottom - self.top)

    @property
    def has_x_grid(self) -> bool:
        """Values are read downwards: over decades, and where the rows have names."""
        return self.figure.x.log or bool(self.figure.y.names)

    @property
    def band_names(self) -> Iterator[tuple[str, float]]:
        """Give the names of bands that fit next to each other and the axis label, and where."""
        label = text_width(safe_text(self.figure.y.label), SMALL_FONT)
        taken = max(self.left, self.start + label + 10) if label else self.left
        return band_names(self.figure.bands, self.x, taken, self.right)


def band_names(
    bands: Iterable[ShadedBand], x: Callable[[float], float], left: float, right: float
) -> Iterator[tuple[str, float]]:
    """Give the names of bands that fit next to each other, and where they go."""
    free = left - 1
    for band in bands:
        text = safe_text(band.label)
        middle = (x(band.start) + x(band.end)) / 2
        half = text_width(text, SMALL_FONT) / 2
        if text and middle - half > free and middle + half <= right + 8:
            free = middle + half + 10
            yield text, middle


@dataclass(frozen=True, slots=True)
class LabelPosition:
    """Where a mark and its label go."""

    x: float
    y: float
    text: str
    left: float
    top: float
    width: float
    height: float
    """The plate that the label stands on."""


def place_mark(frame: ChartFrame, mark: PointLabel) -> LabelPosition:
    """Put the label of a mark above it, on the side with more room, inside the plot."""
    x, y = frame.x(mark.x), frame.y(mark.y)
    text = safe_text(mark.label)
    width, height = text_width(text, SMALL_FONT) * 1.06 + 10, SMALL_FONT + 7
    left = x + 8 if x < (frame.left + frame.right) / 2 else x - 8 - width
    left = min(max(left, frame.left), frame.right - width)
    return LabelPosition(x, y, text, left, max(y - height - 5, frame.top), width, height)


def scales(figure: Figure) -> tuple[AxisScale, AxisScale]:
    """Fit both axes to everything that is drawn."""
    across = axis_scale(figure.x, *_limits(_all_x(figure), log=figure.x.log))
    low, high = _limits(_all_y(figure), log=figure.y.log)
    if figure.y.log:
        return across, axis_scale(figure.y, low, high * 2)
    return across, axis_scale(figure.y, min(low, 0.0), high * _HEADROOM)


def legend_entries(figure: Figure) -> list[FigureLegendEntry]:
    """List what the legend names, a stack from its top down."""
    slot = slots(figure)
    entries: dict[str, FigureLegendEntry] = {}
    beside = figure.panel.series if figure.panel is not None else ()
    for series in (*figure.series, *beside):
        if isinstance(series, StackSeries):
            for part in reversed(series.parts):
                entries.setdefault(
                    part.name, FigureLegendEntry(key_text(part.name), slot[part.name], "area")
                )
        elif series.x and (shape := _shape(series)):
            entries.setdefault(
                series.name, FigureLegendEntry(key_text(series.name), slot[series.name], shape)
            )
    if beside:  # a class has its place in the legend, also where only the panel has it
        return [entries[name] for name in slot if name in entries]
    return list(entries.values())


def _shape(series: LineSeries | DotSeries | BarSeries) -> str:
    """Give what a series looks like in the legend; nothing where it needs no name there."""
    if isinstance(series, BarSeries):
        return "area" if series.name else ""
    if isinstance(series, DotSeries):
        return "dots"
    return "" if series.label else "dashed" if series.dashed else "line"


def key_text(name: str) -> str:
    """Give a name as a legend has room for it."""
    return shorten_middle(safe_text(name), _MAX_KEY_CHARACTERS)


def lay_out_figure(figure: Figure, size: ChartSize) -> ChartFrame:
    """Lay a figure out."""
    across, up = scales(figure)
    room = size.width - 2 * PAD
    title, head = lines_of(figure.title, room, TITLE_FONT, PAD + 1)
    subtitle, head = lines_of(figure.subtitle, room, SMALL_FONT, head - 2)
    placed, below = place_legend(legend_entries(figure), size.width, head + 8)
    y_ticks = tuple(up.ticks(5))
    left = PAD + max((text_width(t.label, SMALL_FONT) for t in y_ticks), default=0) + 8
    right = min(size.width - PAD - 14, _bar_label_room(figure, across, left, size.width))
    notes = [line for note in figure.footnotes for line in wrapped(note, room, SMALL_FONT)]
    bottom = size.height - PAD - 2 * SMALL_FONT - 10 - len(notes) * NOTE_LINE
    footnotes = [(t, bottom + 42 + n * NOTE_LINE) for n, t in enumerate(notes, start=1)]
    top, panel = below + 26, None
    if figure.panel is not None and not _has_dots(figure):
        panel = _lay_out_panel(figure.panel, size, PAD, top, bottom)
    elif figure.panel is not None and size.width < NARROW_PIXELS:
        panel_top = bottom - _PANEL_HEIGHT + 76
        panel = _lay_out_panel(figure.panel, size, PAD, panel_top, bottom + 30)
        bottom -= _PANEL_HEIGHT
    elif figure.panel is not None:
        right -= size.width * _PANEL_SHARE
        panel = _lay_out_panel(figure.panel, size, right + _PANEL_GAP, top, bottom)
    x_ticks = tuple(across.ticks(max(3, round((right - left) / 110))))
    return ChartFrame(
        figure, size, left, right, top, bottom, across, up, x_ticks, y_ticks, placed,
        title, subtitle, tuple(footnotes), panel=panel,
    )  # fmt: skip


def _lay_out_panel(
    figure: Figure, size: ChartSize, start: float, top: float, bottom: float
) -> ChartFrame:
    """Lay a panel out from `start` to the right edge of the picture."""
    _, up = scales(figure)
    y_ticks = tuple(up.ticks(5))
    left = start + max((text_width(t.label, SMALL_FONT) for t in y_ticks), default=0) + 8
    right = size.width - PAD
    across = AxisScale(figure.x, 0.0, right - left)
    frame = ChartFrame(
        figure, size, left, right, top, bottom, across, up, (), y_ticks, (), (), (), (), start
    )
    series, width = _spread_dots(frame)
    return replace(frame, figure=replace(figure, series=series), names_left=left + width + 16)


def _spread_dots(frame: ChartFrame) -> tuple[tuple[DotSeries, ...], float]:
    """Place dots as far left as they fit without covering a larger one; gives the width taken."""
    groups = [series for series in frame.figure.series if isinstance(series, DotSeries)]
    dots = [(s.radius(n), g, n) for g, s in enumerate(groups) for n in range(len(s.x))]
    widest = max((dot[0] for dot in dots), default=0.0)
    most = (frame.right - frame.left) * _MAX_SPREAD
    placed: list[tuple[float, float, float]] = []
    across = [[0.0] * len(series.x) for series in groups]
    for rim, group, number in sorted(dots, key=lambda dot: -dot[0]):
        y = frame.y(groups[group].y[number])
        x = first = widest + 6
        while x + rim < most and any(
            math.hypot(x - x1, y - y1) < rim + other + _DOT_GAP for x1, y1, other in placed
        ):
            x += 2
        x = x if x + rim < most else first
        placed.append((x, y, rim))
        across[group][number] = x
    spread = tuple(replace(s, x=tuple(xs)) for s, xs in zip(groups, across, strict=True))
    return spread, max((x + rim for x, _, rim in placed), default=0.0)


def _bar_label_room(figure: Figure, across: AxisScale, left: float, width: float) -> float:
    """Give how far the plot may reach so that labels fit behind their bars, if that leaves one."""
    most = width
    for bars in figure.series:
        if isinstance(bars, BarSeries) and bars.labels:
            for start, end, label in zip(bars.x, bars.ends, bars.labels, strict=True):
                part = max(across.place(start), across.place(end), 1e-9)
                room = width - left - BAR_LABEL_GAP - 4 - text_width(safe_text(label), SMALL_FONT)
                most = min(most, left + room / part)
    return max(most, left + _MIN_PLOT_SHARE * (width - left))


def text_width(text: str, size: float) -> float:
    """Estimate how wide a text is."""
    return display_width(text) * size * _LETTER


def lines_of(
    text: str, room: float, size: float, top: float
) -> tuple[tuple[tuple[str, float], ...], float]:
    """Break a text into lines below `top`; gives them with their places, and where they end."""
    height = size + 6
    lines = wrapped(text, room, size)
    placed = tuple((line, top + size + number * height) for number, line in enumerate(lines))
    return placed, top + len(lines) * height


def wrapped(text: str, room: float, size: float) -> list[str]:
    """Break a text into lines that fit."""
    return textwrap.wrap(safe_text(text), max(12, int(room / (size * _LETTER))))


def place_legend(
    entries: list[FigureLegendEntry], width: float, top: float, *, snug: bool = False
) -> tuple[tuple[FigureLegendEntry, ...], float]:
    """Place the legend in columns above the plot, where it covers nothing; gives where it ends.

    Columns share the width, unless they are to be `snug`: no wider than the widest needs.
    """
    if not entries:
        return (), top
    room = width - 2 * PAD
    widest = (
        max(_LEGEND_SWATCH + text_width(entry.text, SMALL_FONT) for entry in entries) + _COLUMN_GAP
    )
    fitting = int((room + _COLUMN_GAP) // widest)
    columns = min(max(fitting, 2 if room > _TWO_COLUMNS else 1), len(entries))
    longest = max(8, int((room / columns - _LEGEND_SWATCH - 8) / SMALL_FONT / _LETTER))
    rows = -(-len(entries) // columns)
    pitch = min(room / columns, widest) if snug else room / columns
    placed = []
    for number, key in enumerate(entries):
        column, row = divmod(number, rows)
        x, y = PAD + column * pitch, top + SMALL_FONT + row * _LEGEND_LINE
        placed.append(
            FigureLegendEntry(shorten_middle(key.text, longest), key.slot, key.shape, x, y)
        )
    return tuple(placed), top + SMALL_FONT + (rows - 1) * _LEGEND_LINE


def _limits(values: Iterable[float], *, log: bool) -> tuple[float, float]:
    usable = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
    return (min(usable), max(usable)) if usable else (0.0, 1.0)


def _all_x(figure: Figure) -> Iterator[float]:
    for series in figure.series:
        yield from series.x
        yield from series.ends if isinstance(series, BarSeries) else ()
    yield from (mark.x for mark in figure.marks)


def _all_y(figure: Figure) -> Iterator[float]:
    for series in figure.series:
        yield from totals(series) if isinstance(series, StackSeries) else series.y
    yield from (mark.y for mark in figure.marks)
    yield from (rule.y for rule in figure.rules)


def stepped(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Add a corner between points, so that each value is kept until the next."""
    corners = points[:1]
    for (_, before), (x, y) in pairwise(points):
        corners += [(x, before), (x, y)]
    return corners


def totals(stack: StackSeries) -> Numbers:
    """Add up the parts of a stack."""
    return tuple(map(sum, zip(*(part.y for part in stack.parts), strict=True)))


def _clip(place: float) -> float:
    return min(max(place, 0.0), 1.0)
