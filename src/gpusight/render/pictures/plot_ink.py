"""The ink of a plot in a board: areas upon each other and lines, over an axis of their own."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from gpusight.render.pictures.figure import Stack
from gpusight.render.pictures.ink import Area, Stroke, Words
from gpusight.render.pictures.theme import slots_of
from gpusight.render.pictures.ticks import scale

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.render.pictures.board import Plot
    from gpusight.render.pictures.figure import Line, Numbers
    from gpusight.render.pictures.ink import Ink, Points
    from gpusight.render.pictures.strip_ink import Across

_TICK = 36.0
"""Pixels between two marks of the axis, about."""


def plot_ink(plot: Plot, across: Across, top: float) -> Iterator[Ink]:
    """Draw a plot whose upper edge lies at `top`."""
    yield from _Drawn(plot, across, top).ink()


class _Drawn:
    """A plot being drawn."""

    def __init__(self, plot: Plot, across: Across, top: float) -> None:
        self._plot = plot
        self._across = across
        self._floor = top + plot.height
        self._up = scale(plot.y, 0.0, 1.0)
        self._slots = slots_of(plot.series)

    def ink(self) -> Iterator[Ink]:
        for tick in self._up.ticks(max(2, round(self._plot.height / _TICK))):
            y = self._y(tick.value)
            yield Stroke(((self._across.left, y), (self._across.right, y)))
            yield Words(tick.label, self._across.left - 8, y + 4, "muted", "end")
        for series in self._plot.series:
            yield from self._stack(series) if isinstance(series, Stack) else self._line(series)

    def _stack(self, stack: Stack) -> Iterator[Ink]:
        below: Numbers = (0.0,) * len(stack.x)
        for part in stack.parts:
            above = tuple(b + y for b, y in zip(below, part.y, strict=True))
            ceiling = self._corners(stack.x, above, steps=stack.steps)
            floor = self._corners(stack.x, below, steps=stack.steps)
            if any(part.y):
                yield Area((*ceiling, *reversed(floor)), self._slots[part.name])
            below = above

    def _line(self, line: Line) -> Iterator[Ink]:
        corners = self._corners(line.x, line.y, steps=line.steps)
        yield Stroke(corners, self._slots[line.name], dashed=line.dashed)

    def _corners(self, xs: Numbers, ys: Numbers, *, steps: bool) -> Points:
        points = [(self._across.x(x), self._y(y)) for x, y in zip(xs, ys, strict=True)]
        if not steps:
            return tuple(points)
        turned = points[:1]
        for (_, before), (x, y) in pairwise(points):
            turned += [(x, before), (x, y)]
        return tuple(turned)

    def _y(self, value: float) -> float:
        return self._floor - min(max(self._up.place(value), 0.0), 1.0) * self._plot.height
