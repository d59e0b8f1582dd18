"""Texts inside the plot: names beside dots where there is room, and labels along lines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from gpusight.render.cells import safe_text
from gpusight.render.pictures.figure import Dots, Line
from gpusight.render.pictures.frame import SMALL, text_width

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.render.pictures.frame import Frame

RADIUS = 4.5
"""Radius of a dot that says nothing of its size."""
_HEIGHT = SMALL + 2
_ABOVE = 5.0
"""How far above a line its label stands."""
_MOST, _FEW = 16, 7
"""Names in a wide picture, and in a narrow one."""
_NARROW = 600.0
_WIDER = 1.1
"""Some fonts are wider than others, and a name must not run into a dot in any of them."""
_PIECE = 4.0
_PLACES = (0.5, 0.65, 0.35, 0.8, 0.73, 0.58, 0.42, 0.27, 0.2, 0.88, 0.12)
"""Where else along a line its label may stand."""
_FURTHER = (4.0, 14.0, 26.0, 40.0)
"""Distances from a dot's rim at which room for its name is looked for."""
_LEADER = 10.0
"""From this distance on a thin line leads from the name to its dot."""
_DIRECTIONS = ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (-1, -1), (1, 1), (-1, 1))


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in pixels."""

    left: float
    top: float
    width: float
    height: float

    def meets(self, other: Box) -> bool:
        """Tell whether the two have a pixel in common."""
        return (
            self.left < other.left + other.width
            and other.left < self.left + self.width
            and self.top < other.top + other.height
            and other.top < self.top + self.height
        )


@dataclass(frozen=True, slots=True)
class Written:
    """A name beside a dot, and the thin line between the two where they are apart."""

    text: str
    box: Box
    leader: tuple[float, float, float, float] | None
    """From x, y to x, y."""


@dataclass(frozen=True, slots=True)
class Along:
    """A label along a line: where it begins, and how far it is turned, in degrees."""

    text: str
    x: float
    y: float
    angle: float


def radius(dots: Dots, number: int) -> float:
    """Give the radius of a dot."""
    return dots.sizes[number] if dots.sizes else RADIUS


def line_labels(frame: Frame) -> list[Along]:
    """Place the labels of all lines that have one, where they cover no dot if that can be."""
    taken = list(_rims(frame))
    placed = []
    for line in _lines(frame):
        if line.label and len(line.x) > 1:
            options = [_along(frame, line, at) for at in (line.label_at, *_PLACES)]
            placed.append(min(options, key=lambda option: _covered(frame, option, taken)))
            taken += _pieces(placed[-1])
    return placed


def _covered(frame: Frame, label: Along, taken: list[Box]) -> int:
    """Count the pieces of a label that would lie on something, or outside."""
    return sum(not _is_free(frame, piece, taken) for piece in _pieces(label))


def _lines(frame: Frame) -> Iterator[Line]:
    return (series for series in frame.figure.series if isinstance(series, Line))


def _along(frame: Frame, line: Line, share: float) -> Along:
    """Lay a label along a line; `share` is how far along its middle lies."""
    corners = _corners(frame, line)
    steps = [math.dist(a, b) for a, b in pairwise(corners)]
    ends = list(accumulate(steps))
    place = share * ends[-1]
    number = next((n for n, end in enumerate(ends) if end >= place), len(steps) - 1)
    (x0, y0), (x1, y1) = corners[number], corners[number + 1]
    part = (place - ends[number] + steps[number]) / (steps[number] or 1.0)
    angle = math.atan2(y1 - y0, x1 - x0)
    text = safe_text(line.label)
    width = text_width(text, SMALL)
    # The middle of the text lies over the place, a little off the line.
    x = x0 + (x1 - x0) * part - math.cos(angle) * width / 2 + math.sin(angle) * _ABOVE
    y = y0 + (y1 - y0) * part - math.sin(angle) * width / 2 - math.cos(angle) * _ABOVE
    return Along(text, x, y, math.degrees(angle))


def _corners(frame: Frame, line: Line) -> list[tuple[float, float]]:
    return [(frame.x(x), frame.y(y)) for x, y in zip(line.x, line.y, strict=True)]


def dot_names(frame: Frame) -> list[Written]:
    """Place names beside the largest dots, where they cover nothing; others have none."""
    taken = [*_rims(frame), *(box for label in line_labels(frame) for box in _pieces(label))]
    strokes = list(_strokes(frame))
    placed: list[Written] = []
    for x, y, rim, text in _foremost(frame):
        options = list(_options(x, y, rim, text))
        # A name may cross a line rather than be missing, but not hide a dot or another name.
        clear = (w for w in options if _is_free(frame, w.box, [*taken, *strokes]))
        found = next(clear, None) or next(
            (w for w in options if _is_free(frame, w.box, taken)), None
        )
        if found is not None:
            placed.append(found)
            taken.append(found.box)
    return placed


def _foremost(frame: Frame) -> list[tuple[float, float, float, str]]:
    """Choose which dots to name: the largest, and of those with one name the largest of them."""
    most = _FEW if frame.size.width < _NARROW else _MOST
    largest: dict[str, tuple[float, float, float, str]] = {}
    for dot in sorted(_named(frame), key=lambda dot: -dot[2]):
        largest.setdefault(dot[3], dot)
    return list(largest.values())[:most]


def _strokes(frame: Frame) -> Iterator[Box]:
    """Cover solid lines with small boxes."""
    for line in _lines(frame):
        for (x0, y0), (x1, y1) in pairwise([] if line.dashed else _corners(frame, line)):
            count = max(1, round(math.dist((x0, y0), (x1, y1)) / _PIECE))
            for number in range(count + 1):
                part = number / count
                x, y = x0 + (x1 - x0) * part, y0 + (y1 - y0) * part
                yield Box(x - _PIECE / 2, y - _PIECE / 2, _PIECE, _PIECE)


def _named(frame: Frame) -> Iterator[tuple[float, float, float, str]]:
    for dots in _all_dots(frame):
        for number, (x, y, name) in enumerate(zip(dots.x, dots.y, dots.names, strict=False)):
            if name:
                yield frame.x(x), frame.y(y), radius(dots, number), safe_text(name)


def _all_dots(frame: Frame) -> Iterator[Dots]:
    return (series for series in frame.figure.series if isinstance(series, Dots))


def _rims(frame: Frame) -> Iterator[Box]:
    for dots in _all_dots(frame):
        for number, (x, y) in enumerate(zip(dots.x, dots.y, strict=True)):
            rim = radius(dots, number)
            yield Box(frame.x(x) - rim, frame.y(y) - rim, 2 * rim, 2 * rim)


def _pieces(label: Along) -> Iterator[Box]:
    """Cut what a turned label covers into small boxes along it."""
    length = text_width(label.text, SMALL)
    count = max(1, round(length / _HEIGHT))
    turn = math.radians(label.angle)
    for number in range(count):
        at = (number + 0.5) * length / count
        x, y = label.x + at * math.cos(turn), label.y + at * math.sin(turn)
        yield Box(x - _HEIGHT / 2, y - _HEIGHT, _HEIGHT, _HEIGHT)


def _options(x: float, y: float, rim: float, text: str) -> Iterator[Written]:
    """Give the places a name could have, the best first."""
    width = text_width(text, SMALL) * _WIDER
    for further in _FURTHER:
        for right, down in _DIRECTIONS:
            away = (rim + further) * (0.75 if right and down else 1.0)
            at_x, at_y = x + right * away, y + down * away
            left = at_x - width * (0.5 if not right else 0 if right > 0 else 1)
            top = at_y - _HEIGHT * (0.5 if not down else 0 if down > 0 else 1)
            leader = None
            if further >= _LEADER:
                near = rim * (0.75 if right and down else 1.0)
                leader = (x + right * near, y + down * near, at_x, at_y)
            yield Written(text, Box(left, top, width, _HEIGHT), leader)


def _is_free(frame: Frame, box: Box, taken: list[Box]) -> bool:
    inside = (
        box.left >= frame.left
        and box.left + box.width <= frame.right
        and box.top >= frame.top
        and box.top + box.height <= frame.bottom
    )
    return inside and not any(box.meets(other) for other in taken)
