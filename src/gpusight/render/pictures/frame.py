"""Where things go in a picture: limits of the data, legend, and the rectangle that is left."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusight.render.cells import display_width, safe_text, shorten_middle
from gpusight.render.pictures.figure import Bars, Dots, Stack
from gpusight.render.pictures.theme import slots
from gpusight.render.pictures.ticks import Scale, Tick, scale

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpusight.render.pictures.figure import Band, Figure, Line, Mark, Numbers

_HEADROOM = 1.12
"""Room above the data, for the label of its highest point."""
_LETTER = 0.55
"""Width of a letter in units of its size, on average and rather too wide."""
SMALL = 12.0
TITLE = 17.0
"""Sizes of letters."""
PAD = 16.0
_LINE = 19.0
_SWATCH = 18.0
_COLUMN_GAP = 22.0
NOTE_LINE = 17.0
_TWO_COLUMNS = 700.0
"""With this much room a legend has two columns, whatever that cuts off its names."""
_LONGEST_KEY = 72
BESIDE = 6.0
"""Between a bar and its label."""
_LEAST_PLOT = 0.45
"""Part of the width that labels of bars leave to the plot."""


@dataclass(frozen=True, slots=True)
class Size:
    """Width and height in pixels."""

    width: float
    height: float


WIDE = Size(1040, 520)
NARROW = Size(390, 500)
"""For a page, a file or a slide; and for a telephone."""


def size_of(figure: Figure, usual: Size = WIDE) -> Size:
    """Give the size of a picture, as tall as it needs to be."""
    return Size(usual.width, usual.height + figure.taller)


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of the legend."""

    text: str
    slot: str
    shape: str
    """`area`, `line`, `dashed` or `dots`."""
    x: float = 0.0
    y: float = 0.0


@dataclass(frozen=True, slots=True)
class Frame:
    """A figure laid out: everything but the ink."""

    figure: Figure
    size: Size
    left: float
    right: float
    top: float
    bottom: float
    across: Scale
    up: Scale
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    keys: tuple[Key, ...]
    title: tuple[tuple[str, float], ...]
    subtitle: tuple[tuple[str, float], ...]
    footnotes: tuple[tuple[str, float], ...]
    """Lines of text, and where each stands."""

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
        """Give the names of bands that fit beside each other, and where they go."""
        return band_names(self.figure.bands, self.x, self.left, self.right)


def band_names(
    bands: Iterable[Band], x: Callable[[float], float], left: float, right: float
) -> Iterator[tuple[str, float]]:
    """Give the names of bands that fit beside each other, and where they go."""
    free = left - 1
    for band in bands:
        text = safe_text(band.label)
        middle = (x(band.start) + x(band.end)) / 2
        half = text_width(text, SMALL) / 2
        if text and middle - half > free and middle + half <= right + 8:
            free = middle + half + 10
            yield text, middle


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a mark and its label go."""

    x: float
    y: float
    text: str
    left: float
    top: float
    width: float
    height: float
    """The plate that the label stands on."""


def place_mark(frame: Frame, mark: Mark) -> Spot:
    """Put the label of a mark above it, on the side with more room, inside the plot."""
    x, y = frame.x(mark.x), frame.y(mark.y)
    text = safe_text(mark.label)
    width, height = text_width(text, SMALL) * 1.06 + 10, SMALL + 7
    left = x + 8 if x < (frame.left + frame.right) / 2 else x - 8 - width
    left = min(max(left, frame.left), frame.right - width)
    return Spot(x, y, text, left, max(y - height - 5, frame.top), width, height)


def scales(figure: Figure) -> tuple[Scale, Scale]:
    """Fit both axes to everything that is drawn."""
    across = scale(figure.x, *_limits(_all_x(figure), log=figure.x.log))
    low, high = _limits(_all_y(figure), log=figure.y.log)
    if figure.y.log:
        return across, scale(figure.y, low, high * 2)
    return across, scale(figure.y, min(low, 0.0), high * _HEADROOM)


def keys(figure: Figure) -> list[Key]:
    """List what the legend names, a stack from its top down."""
    slot = slots(figure)
    found: dict[str, Key] = {}
    for series in figure.series:
        if isinstance(series, Stack):
            for part in reversed(series.parts):
                found.setdefault(part.name, Key(key_text(part.name), slot[part.name], "area"))
        elif series.x and (shape := _shape(series)):
            found.setdefault(series.name, Key(key_text(series.name), slot[series.name], shape))
    return list(found.values())


def _shape(series: Line | Dots | Bars) -> str:
    """Give what a series looks like in the legend; nothing where it needs no name there."""
    if isinstance(series, Bars):
        return "area" if series.name else ""
    if isinstance(series, Dots):
        return "dots"
    return "" if series.label else "dashed" if series.dashed else "line"


def key_text(name: str) -> str:
    """Give a name as a legend has room for it."""
    return shorten_middle(safe_text(name), _LONGEST_KEY)


def lay_out(figure: Figure, size: Size) -> Frame:
    """Lay a figure out."""
    across, up = scales(figure)
    room = size.width - 2 * PAD
    title, head = lines_of(figure.title, room, TITLE, PAD + 1)
    subtitle, head = lines_of(figure.subtitle, room, SMALL, head - 2)
    placed, below = place_keys(keys(figure), size.width, head + 8)
    y_ticks = tuple(up.ticks(5))
    left = PAD + max((text_width(t.label, SMALL) for t in y_ticks), default=0) + 8
    right = min(size.width - PAD - 14, _room_beside(figure, across, left, size.width))
    x_ticks = tuple(across.ticks(max(3, round((right - left) / 110))))
    notes = [line for note in figure.footnotes for line in wrapped(note, room, SMALL)]
    bottom = size.height - PAD - 2 * SMALL - 10 - len(notes) * NOTE_LINE
    footnotes = [(t, bottom + 42 + n * NOTE_LINE) for n, t in enumerate(notes, start=1)]
    return Frame(
        figure, size, left, right, below + 26, bottom, across, up, x_ticks, y_ticks, placed,
        title, subtitle, tuple(footnotes),
    )  # fmt: skip


def _room_beside(figure: Figure, across: Scale, left: float, width: float) -> float:
    """Give how far the plot may reach so that labels fit behind their bars, if that leaves one."""
    most = width
    for bars in figure.series:
        if isinstance(bars, Bars) and bars.labels:
            for start, end, label in zip(bars.x, bars.ends, bars.labels, strict=True):
                part = max(across.place(start), across.place(end), 1e-9)
                room = width - left - BESIDE - 4 - text_width(safe_text(label), SMALL)
                most = min(most, left + room / part)
    return max(most, left + _LEAST_PLOT * (width - left))


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


def place_keys(
    entries: list[Key], width: float, top: float, *, snug: bool = False
) -> tuple[tuple[Key, ...], float]:
    """Place the legend in columns above the plot, where it covers nothing; gives where it ends.

    Columns share the width, unless they are to be `snug`: no wider than the widest needs.
    """
    if not entries:
        return (), top
    room = width - 2 * PAD
    widest = max(_SWATCH + text_width(entry.text, SMALL) for entry in entries) + _COLUMN_GAP
    fitting = int((room + _COLUMN_GAP) // widest)
    columns = min(max(fitting, 2 if room > _TWO_COLUMNS else 1), len(entries))
    longest = max(8, int((room / columns - _SWATCH - 8) / SMALL / _LETTER))
    rows = -(-len(entries) // columns)
    pitch = min(room / columns, widest) if snug else room / columns
    placed = []
    for number, key in enumerate(entries):
        column, row = divmod(number, rows)
        x, y = PAD + column * pitch, top + SMALL + row * _LINE
        placed.append(Key(shorten_middle(key.text, longest), key.slot, key.shape, x, y))
    return tuple(placed), top + SMALL + (rows - 1) * _LINE


def _limits(values: Iterable[float], *, log: bool) -> tuple[float, float]:
    usable = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
    return (min(usable), max(usable)) if usable else (0.0, 1.0)


def _all_x(figure: Figure) -> Iterator[float]:
    for series in figure.series:
        yield from series.x
        yield from series.ends if isinstance(series, Bars) else ()
    yield from (mark.x for mark in figure.marks)


def _all_y(figure: Figure) -> Iterator[float]:
    for series in figure.series:
        yield from totals(series) if isinstance(series, Stack) else series.y
    yield from (mark.y for mark in figure.marks)
    yield from (rule.y for rule in figure.rules)


def totals(stack: Stack) -> Numbers:
    """Add up the parts of a stack."""
    return tuple(map(sum, zip(*(part.y for part in stack.parts), strict=True)))


def _clip(place: float) -> float:
    return min(max(place, 0.0), 1.0)
