"""Boards as PNG and PDF: ink becomes shapes and texts of Matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpusight.render.cells import safe_text
from gpusight.render.palette import text_on
from gpusight.render.pictures.frame import SMALL, TITLE
from gpusight.render.pictures.ink import FINE, Area, Box, Boxes, Shade, Stroke
from gpusight.render.pictures.theme import LIGHT

if TYPE_CHECKING:
    from gpusight.render.pictures.ink import Ink, Painting, Points, Words

_SIZES = {"title": TITLE, "fine": FINE}
_WEIGHTS = {"title": "bold", "strong": "bold"}
_ANCHORS = {"start": "left", "middle": "center", "end": "right"}
_WIDER = 0.93
"""Matplotlib's letters are wider than those of most browsers."""


def draw_board(canvas: Any, painting: Painting, point: float) -> None:
    """Draw a board laid out onto a canvas of its size; `point` is a pixel in points."""
    ground = canvas.add_axes((0, 0, 1, 1), facecolor="none")
    ground.set(xlim=(0, painting.size.width), ylim=(painting.size.height, 0))
    ground.axis("off")
    pen = _Pen(ground, point)
    for number, ink in enumerate(painting.ink):
        pen.draw(ink, 1 + number / len(painting.ink))


class _Pen:
    """Draws ink, what comes later over what came before."""

    def __init__(self, ground: Any, point: float) -> None:
        self._ground = ground
        self._point = point

    def draw(self, ink: Ink, order: float) -> None:
        if isinstance(ink, Box):
            boxes = ((ink.left, ink.top, ink.width, ink.height),)
            self._fill(tuple(map(_corners, boxes)), LIGHT.colour(ink.slot), order)
        elif isinstance(ink, Boxes):
            self._fill(tuple(map(_corners, ink.boxes)), LIGHT.colour(ink.slot), order)
        elif isinstance(ink, Shade):
            place = (ink.left, ink.top, ink.width, ink.height)
            self._fill((_corners(place),), LIGHT.band, order)
        elif isinstance(ink, Area):
            self._fill((ink.corners,), LIGHT.colour(ink.slot), order)
        elif isinstance(ink, Stroke):
            self._stroke(ink, order)
        else:
            self._write(ink, order)

    def _fill(self, outlines: tuple[Points, ...], colour: str, order: float) -> None:
        from matplotlib.collections import PolyCollection

        shapes = PolyCollection(outlines, facecolors=colour, linewidths=0, zorder=order)
        self._ground.add_collection(shapes, autolim=False)

    def _stroke(self, stroke: Stroke, order: float) -> None:
        xs, ys = zip(*stroke.points, strict=True)
        width = 1.75 if stroke.slot else 1.0
        self._ground.plot(
            xs,
            ys,
            color=LIGHT.colour(stroke.slot) if stroke.slot else LIGHT.grid,
            linestyle=(0, (6, 4)) if stroke.dashed else "-",
            linewidth=width * self._point,
            solid_joinstyle="round",
            zorder=order,
        )

    def _write(self, words: Words, order: float) -> None:
        colour = LIGHT.muted if words.look == "muted" else LIGHT.text
        self._ground.text(
            words.x,
            words.y,
            safe_text(words.text),
            color=text_on(LIGHT.colour(words.on)) if words.on else colour,
            ha=_ANCHORS[words.anchor],
            va="baseline",
            fontsize=_SIZES.get(words.look, SMALL) * self._point * _WIDER,
            fontweight=_WEIGHTS.get(words.look, "normal"),
            zorder=order,
        )


def _corners(box: tuple[float, float, float, float]) -> Points:
    left, top, width, height = box
    right, bottom = left + width, top + height
    return ((left, top), (right, top), (right, bottom), (left, bottom))
