"""Boards as SVG: ink becomes elements, in the styles of every other picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.render.pictures.ink import Area, Box, Boxes, Shade, Stroke
from gpusight.render.pictures.svg_parts import escaped, moves_of, path_tag, tag, text_tag
from gpusight.render.pictures.theme import css_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.render.pictures.ink import Ink, Painting, Words

_ROUND = 20.0
"""Boxes of at least so many pixels have round corners."""


def board_body(painting: Painting) -> Iterator[str]:
    """Write what a board laid out is drawn with, and the line that follows the pointer."""
    yield from map(_element, painting.ink)
    yield tag(
        "line", "cursor", x1=0, x2=0, y1=painting.top, y2=painting.bottom, visibility="hidden"
    )


def _element(ink: Ink) -> str:
    if isinstance(ink, Box):
        return _box(ink)
    if isinstance(ink, Boxes):
        return path_tag(
            "".join(_rectangle(*box) for box in ink.boxes), f"fill-{css_name(ink.slot)}"
        )
    if isinstance(ink, Shade):
        return tag("rect", "band", x=ink.left, y=ink.top, width=ink.width, height=ink.height)
    if isinstance(ink, Area):
        return path_tag(moves_of(_rounded(ink.corners)) + "Z", f"fill-{css_name(ink.slot)}")
    if isinstance(ink, Stroke):
        kind = f"line-{css_name(ink.slot)}" if ink.slot else "grid"
        return path_tag(moves_of(_rounded(ink.points)), kind, dashed=ink.dashed)
    return _words(ink)


def _box(box: Box) -> str:
    title = f"<title>{escaped(box.title)}</title>" if box.title else ""
    place = {"x": box.left, "y": box.top, "width": box.width, "height": box.height}
    shape = place | ({"rx": 2.0} if box.width >= _ROUND and box.height >= _ROUND else {})
    return tag("rect", f"fill-{css_name(box.slot)}", title, **shape)


def _rectangle(left: float, top: float, width: float, height: float) -> str:
    wide, tall = (f"{round(length, 1):g}" for length in (width, height))
    return f"M{round(left, 1):g} {round(top, 1):g}h{wide}v{tall}h-{wide}z"


def _words(words: Words) -> str:
    look = f"fine on-{css_name(words.on)}" if words.on else words.look
    return text_tag(words.text, words.x, words.y, look, words.anchor)


def _rounded(points: tuple[tuple[float, float], ...]) -> Iterator[tuple[float, float]]:
    return ((round(x, 1), round(y, 1)) for x, y in points)
