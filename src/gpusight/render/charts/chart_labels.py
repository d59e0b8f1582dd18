"""Bars with their labels, names next to dots where there is room, and labels along lines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from gpusight.render.cell_text import safe_text, shorten_middle
from gpusight.render.charts.chart_colors import slots
from gpusight.render.charts.chart_frame import (
    BAR_LABEL_GAP,
    NARROW_PIXELS,
    SMALL_FONT,
    text_width,
)
from gpusight.render.charts.figure import BarSeries, DotSeries, LineSeries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.render.charts.chart_frame import ChartFrame


FAINT = 0.42
"""How much of its color a faint bar keeps."""
_BAR_HEIGHT_SHARE = 0.66
"""Part of a row that its bar takes."""
_MIN_BAR_PIXELS = 1.5
"""Pixels of the shortest bar: something was there."""


@dataclass(frozen=True, slots=True)
class PlacedBar:
    """One bar, in pixels."""

    left: float
    top: float
    width: float
    height: float
    slot: str
    faint: bool
    title: str
    text: str
    text_at: float
    anchor: str
    """`start` where the text begins there, `end` where it ends."""
    joint: tuple[float, float, float] | None
    """A line down to the next row: its x, and where it begins and ends."""

    @property
    def baseline(self) -> float:
        """Where the text stands."""
        return self.top + self.height / 2 + SMALL_FONT * 0.36


def placed_bars(frame: ChartFrame) -> Iterator[PlacedBar]:
    """Place every bar of a figure."""
    slot = slots(frame.figure)
    for bars in frame.figure.series:
        if isinstance(bars, BarSeries):
            yield from (_place_bar(frame, bars, n, slot[bars.name]) for n in range(len(bars.x)))


def _place_bar(frame: ChartFrame, bars: BarSeries, number: int, slot: str) -> PlacedBar:
    start, end = frame.x(bars.x[number]), frame.x(bars.ends[number])
    middle, row = frame.y(bars.y[number]), frame.y(0.0) - frame.y(1.0)
    left, width = min(start, end), max(abs(end - start), _MIN_BAR_PIXELS)
    text = safe_text(bars.labels[number]) if bars.labels else ""
    text_at, anchor = _bar_label_place(frame, left, left + width, text_width(text, SMALL_FONT))
    thick = row * _BAR_HEIGHT_SHARE
    joined = bool(bars.joined) and bars.joined[number]
    return PlacedBar(
        left=left,
        top=middle - thick / 2,
        width=width,
        height=thick,
        slot=slot,
        faint=bool(bars.faint) and bars.faint[number],
        title=safe_text(bars.titles[number]) if bars.titles else "",
        text=text,
        text_at=text_at,
        anchor=anchor,
        joint=(end, middle + thick / 2, middle + row - thick / 2) if joined else None,
    )


def _bar_label_place(
    frame: ChartFrame, left: float, right: float, width: float
) -> tuple[float, str]:
    """Place a text behind its bar, else before it, else as far to the right as it goes."""
    if right + BAR_LABEL_GAP + width <= frame.size.width - 2:
        return right + BAR_LABEL_GAP, "start"
    if left - BAR_LABEL_GAP - width >= frame.left:
        return left - BAR_LABEL_GAP, "end"
    return frame.size.width - 2, "end"


_HEIGHT = SMALL_FONT + 2
_ABOVE = 5.0
"""How far above a line its label stands."""
_MAX_NAMES_WIDE, _MAX_NAMES_NARROW = 16, 7
"""Names in a wide picture, and in a narrow one."""
_FONT_MARGIN = 1.1
"""Some fonts are wider than others, and a name must not run into a dot in any of them."""
_LABEL_BOX_PIXELS = 4.0
_PLACES = (0.5, 0.65, 0.35, 0.8, 0.73, 0.58, 0.42, 0.27, 0.2, 0.88, 0.12)
"""Where else along a line its label may stand."""
_FURTHER = (4.0, 14.0, 26.0, 40.0, 56.0, 76.0)
"""Distances from a dot's rim at which room for its name is looked for."""
_COST_OF_LINE, _COST_OF_LEADER = 2.0, 90.0
"""Pixels that a name is rather further away than lie on a line, for each pixel, or lead across."""
_LEADER = 10.0
"""From this distance on a thin line leads from the name to its dot."""
_DIRECTIONS = ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (-1, -1), (1, 1), (-1, 1))


@dataclass(frozen=True, slots=True)
class LabelBox:
    """A rectangle in pixels."""

    left: float
    top: float
    width: float
    height: float

    def meets(self, other: LabelBox) -> bool:
        """Return whether the two have a pixel in common."""
        return (
            self.left < other.left + other.width
            and other.left < self.left + self.width
            and self.top < other.top + other.height
            and other.top < self.top + self.height
        )


@dataclass(frozen=True, slots=True)
class DotLabel:
    """A name next to a dot, and the thin line between the two where they are apart."""

    text: str
    box: LabelBox
    leader: tuple[float, float, float, float] | None
    """From x, y to x, y."""
    away: float = 0.0
    """Pixels between the two."""
    anchor: str = "start"
    """Which end of the text is at that end of its box: fonts differ in width."""


@dataclass(frozen=True, slots=True)
class LineLabel:
    """A label along a line: where it begins, and how far it is turned, in degrees."""

    text: str
    x: float
    y: float
    angle: float


def line_labels(frame: ChartFrame) -> list[LineLabel]:
    """Place the labels of all lines that have one, where they cover no dot if that can be."""
    taken = list(_rims(frame))
    placed = []
    for line in _lines(frame):
        if line.label and len(line.x) > 1:
            options = [_along(frame, line, at) for at in (line.label_at, *_PLACES)]
            placed.append(min(options, key=lambda option: _count_covered(frame, option, taken)))
            taken += _label_boxes(placed[-1])
    return placed


def _count_covered(frame: ChartFrame, label: LineLabel, taken: list[LabelBox]) -> int:
    """Count the parts of a label that would cover something, or lie outside."""
    return sum(not _is_free(frame, piece, taken) for piece in _label_boxes(label))


def _lines(frame: ChartFrame) -> Iterator[LineSeries]:
    return (series for series in frame.figure.series if isinstance(series, LineSeries))


def _along(frame: ChartFrame, line: LineSeries, share: float) -> LineLabel:
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
    width = text_width(text, SMALL_FONT)
    # The middle of the text lies over the place, a little off the line.
    x = x0 + (x1 - x0) * part - math.cos(angle) * width / 2 + math.sin(angle) * _ABOVE
    y = y0 + (y1 - y0) * part - math.sin(angle) * width / 2 - math.cos(angle) * _ABOVE
    return LineLabel(text, x, y, math.degrees(angle))


def _corners(frame: ChartFrame, line: LineSeries) -> list[tuple[float, float]]:
    return [(frame.x(x), frame.y(y)) for x, y in zip(line.x, line.y, strict=True)]


def dot_names(frame: ChartFrame) -> list[DotLabel]:
    """Place names next to the largest dots, where they cover nothing; others have none."""
    if frame.names_left is not None:
        return _column_of_names(frame, frame.names_left)
    rims = list(_rims(frame))
    taken = [*rims, *(box for label in line_labels(frame) for box in _label_boxes(label))]
    strokes = list(_strokes(frame))
    placed: list[DotLabel] = []
    leaders: list[LabelBox] = []
    for x, y, rim, text in _largest_dots(frame):
        # A name may lie on a line rather than be missing, but not on a dot or another name.
        free = [w for w in _options(x, y, rim, text) if _is_free(frame, w.box, taken)]
        others = [box for box in taken if not _holds(box, x, y)]
        label = min(free, key=lambda w: _cost(w, strokes, leaders, others), default=None)
        if label is not None:
            placed.append(label)
            taken.append(label.box)
            leaders += _leader_boxes(label)
    return placed


def _cost(
    label: DotLabel, strokes: list[LabelBox], leaders: list[LabelBox], others: list[LabelBox]
) -> float:
    """Rate a place of a name, in pixels: how far away, and what it or its leader lies on."""
    covered = sum(label.box.meets(stroke) for stroke in (*strokes, *leaders)) * _LABEL_BOX_PIXELS
    hit = any(piece.meets(box) for piece in _leader_boxes(label) for box in others)
    return label.away + _COST_OF_LINE * covered + _COST_OF_LEADER * hit


def _holds(box: LabelBox, x: float, y: float) -> bool:
    return box.left <= x <= box.left + box.width and box.top <= y <= box.top + box.height


def _leader_boxes(label: DotLabel) -> list[LabelBox]:
    """Cover the line from a name to its dot with small boxes."""
    if label.leader is None:
        return []
    x0, y0, x1, y1 = label.leader
    return list(_stroke((x0, y0), (x1, y1)))


def _column_of_names(frame: ChartFrame, left: float) -> list[DotLabel]:
    """Write the names of a panel's largest dots below each other, each as level as it can be."""
    fitting = int((frame.right - left) / text_width("x", SMALL_FONT) / _FONT_MARGIN)
    highest = min((frame.y(rule.y) for rule in frame.figure.rules), default=frame.top)
    room = frame.bottom - highest
    dots = sorted(_largest_dots(frame)[: int(room // _HEIGHT)], key=lambda dot: dot[1])
    tops: list[float] = []
    for _, y, _, _ in dots:
        below = tops[-1] + _HEIGHT if tops else highest
        tops.append(max(y - _HEIGHT / 2, below))
    # What was pushed below the plot is pushed up again, from the last name on.
    lowest = frame.bottom - _HEIGHT
    for number in reversed(range(len(tops))):
        tops[number] = min(tops[number], lowest)
        lowest = tops[number] - _HEIGHT
    labels = []
    for (x, y, rim, text), top in zip(dots, tops, strict=True):
        short = shorten_middle(text, max(fitting, 8))
        width = text_width(short, SMALL_FONT) * _FONT_MARGIN
        leader = (x + rim + 1, y, left - 3, top + _HEIGHT / 2)
        labels.append(DotLabel(short, LabelBox(left, top, width, _HEIGHT), leader))
    return labels


def _largest_dots(frame: ChartFrame) -> list[tuple[float, float, float, str]]:
    """Choose which dots to name: the largest, and of those with one name the largest of them."""
    most = _MAX_NAMES_NARROW if frame.size.width < NARROW_PIXELS else _MAX_NAMES_WIDE
    largest: dict[str, tuple[float, float, float, str]] = {}
    for dot in sorted(_named_dots(frame), key=lambda dot: -dot[2]):
        largest.setdefault(dot[3], dot)
    return list(largest.values())[:most]


def _strokes(frame: ChartFrame) -> Iterator[LabelBox]:
    """Cover lines with small boxes."""
    for line in _lines(frame):
        for start, end in pairwise(_corners(frame, line)):
            yield from _stroke(start, end)


def _stroke(start: tuple[float, float], end: tuple[float, float]) -> Iterator[LabelBox]:
    count = max(1, round(math.dist(start, end) / _LABEL_BOX_PIXELS))
    for number in range(count + 1):
        part = number / count
        x, y = start[0] + (end[0] - start[0]) * part, start[1] + (end[1] - start[1]) * part
        half = _LABEL_BOX_PIXELS / 2
        yield LabelBox(x - half, y - half, _LABEL_BOX_PIXELS, _LABEL_BOX_PIXELS)


def _named_dots(frame: ChartFrame) -> Iterator[tuple[float, float, float, str]]:
    for dots in _all_dots(frame):
        for number, (x, y, name) in enumerate(zip(dots.x, dots.y, dots.names, strict=False)):
            if name:
                yield frame.x(x), frame.y(y), dots.radius(number), safe_text(name)


def _all_dots(frame: ChartFrame) -> Iterator[DotSeries]:
    return (series for series in frame.figure.series if isinstance(series, DotSeries))


def _rims(frame: ChartFrame) -> Iterator[LabelBox]:
    for dots in _all_dots(frame):
        for number, (x, y) in enumerate(zip(dots.x, dots.y, strict=True)):
            rim = dots.radius(number)
            yield LabelBox(frame.x(x) - rim, frame.y(y) - rim, 2 * rim, 2 * rim)


def _label_boxes(label: LineLabel) -> Iterator[LabelBox]:
    """Cut what a turned label covers into small boxes along it."""
    length = text_width(label.text, SMALL_FONT)
    count = max(1, round(length / _HEIGHT))
    turn = math.radians(label.angle)
    for number in range(count):
        at = (number + 0.5) * length / count
        x, y = label.x + at * math.cos(turn), label.y + at * math.sin(turn)
        yield LabelBox(x - _HEIGHT / 2, y - _HEIGHT, _HEIGHT, _HEIGHT)


def _options(x: float, y: float, rim: float, text: str) -> Iterator[DotLabel]:
    """Give the places a name could have, the best first."""
    width = text_width(text, SMALL_FONT) * _FONT_MARGIN
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
            anchor = "start" if right > 0 else "end" if right < 0 else "middle"
            yield DotLabel(text, LabelBox(left, top, width, _HEIGHT), leader, further, anchor)


def _is_free(frame: ChartFrame, box: LabelBox, taken: list[LabelBox]) -> bool:
    inside = (
        box.left >= frame.left
        and box.left + box.width <= frame.right
        and box.top >= frame.top
        and box.top + box.height <= frame.bottom
    )
    return inside and not any(box.meets(other) for other in taken)
