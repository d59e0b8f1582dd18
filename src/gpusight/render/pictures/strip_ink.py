"""The ink of a strip: cells, and labels inside those that have room."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusight.render.cells import safe_text, shorten_end, shorten_middle
from gpusight.render.pictures.frame import PAD, SMALL, text_width
from gpusight.render.pictures.ink import FINE, Box, Boxes, Words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.render.pictures.board import Cells, Strip
    from gpusight.render.pictures.ink import Ink
    from gpusight.render.pictures.ticks import Scale

_LEAST = 0.4
"""Pixels of the narrowest cell: something was there."""
_APART, _FROM = 0.7, 6.0
"""Cells of at least `_FROM` pixels leave so many to the next one."""
_TOLD = 2.5
"""Cells of at least so many pixels can be pointed at one by one."""
_MARGIN = 3.0
_WIDER = 1.1
"""Some fonts are wider than others, and a label must stay in its cell in any of them."""
_FEWEST = 5
"""Letters that a cut label has at least."""


@dataclass(frozen=True, slots=True)
class Across:
    """The axis that all rows share."""

    left: float
    right: float
    scale: Scale

    def x(self, value: float) -> float:
        """Give the pixel of a value, kept inside the rows."""
        place = min(max(self.scale.place(value), 0.0), 1.0)
        return self.left + place * (self.right - self.left)


def strip_ink(strip: Strip, across: Across, top: float) -> Iterator[Ink]:
    """Draw the cells of a strip, and its name to the left."""
    if strip.name:
        letters = int((across.left - PAD - 6) / text_width("m", SMALL))
        name = shorten_middle(safe_text(strip.name), max(letters, 4))
        yield Words(name, across.left - 8, top + strip.height / 2 + 4, anchor="end")
    yield from _cells(strip.cells, across, top, strip.height)


def _cells(cells: Cells, across: Across, top: float, height: float) -> Iterator[Ink]:
    """Draw those that tell something one by one, all others of a colour together."""
    plain: dict[str, list[tuple[float, float, float, float]]] = defaultdict(list)
    told: list[Ink] = []
    for number, slot in enumerate(cells.colours):
        left, width = _placed(across, cells.x[number], cells.ends[number])
        tall = height * (cells.parts[number] if cells.parts else 1.0)
        place = (left, top + height - tall, width, tall)
        title = safe_text(cells.titles[number]) if cells.titles and width >= _TOLD else ""
        if title:
            told.append(Box(*place, slot, title))
        else:
            plain[slot].append(place)
        if height >= FINE and (text := _fitting(cells, number, width)):
            middle, below = left + width / 2, top + height / 2 + 4
            told.append(Words(text, middle, below, "fine", "middle", slot))
    yield from (Boxes(slot, tuple(places)) for slot, places in plain.items())
    yield from told


def _placed(across: Across, start: float, end: float) -> tuple[float, float]:
    left = across.x(start)
    width = across.x(end) - left
    return left, max(width - _APART if width >= _FROM else width, _LEAST)


def _fitting(cells: Cells, number: int, width: float) -> str:
    """Give what can be written inside a cell: its label, what stands for it, or its beginning."""
    label = safe_text(cells.labels[number]) if cells.labels else ""
    room = (width - 2 * _MARGIN) / _WIDER
    if not label or text_width(label, FINE) <= room:
        return label
    if cells.brief:
        brief = safe_text(cells.brief[number])
        return brief if text_width(brief, FINE) <= room else ""
    letters = int(room / text_width("m", FINE))
    return shorten_end(label, letters) if letters >= _FEWEST else ""
