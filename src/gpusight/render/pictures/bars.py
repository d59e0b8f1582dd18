"""Where the bars of a picture lie, with what is written beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusight.render.cells import safe_text
from gpusight.render.pictures.figure import Bars
from gpusight.render.pictures.frame import BESIDE, SMALL, text_width
from gpusight.render.pictures.theme import slots

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.render.pictures.frame import Frame

FAINT = 0.42
"""How much of its colour a faint bar keeps."""
_THICK = 0.66
"""Part of a row that its bar takes."""
_LEAST = 1.5
"""Pixels of the shortest bar: something was there."""


@dataclass(frozen=True, slots=True)
class Placed:
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
        return self.top + self.height / 2 + SMALL * 0.36


def placed_bars(frame: Frame) -> Iterator[Placed]:
    """Place every bar of a figure."""
    slot = slots(frame.figure)
    for bars in frame.figure.series:
        if isinstance(bars, Bars):
            yield from (_placed(frame, bars, n, slot[bars.name]) for n in range(len(bars.x)))


def _placed(frame: Frame, bars: Bars, number: int, slot: str) -> Placed:
    start, end = frame.x(bars.x[number]), frame.x(bars.ends[number])
    middle, row = frame.y(bars.y[number]), _row(frame)
    left, width = min(start, end), max(abs(end - start), _LEAST)
    text = safe_text(bars.labels[number]) if bars.labels else ""
    text_at, anchor = _beside(frame, left, left + width, text_width(text, SMALL))
    thick = row * _THICK
    joined = bool(bars.joined) and bars.joined[number]
    return Placed(
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


def _beside(frame: Frame, left: float, right: float, width: float) -> tuple[float, str]:
    """Place a text behind its bar, else before it, else as far to the right as it goes."""
    if right + BESIDE + width <= frame.size.width - 2:
        return right + BESIDE, "start"
    if left - BESIDE - width >= frame.left:
        return left - BESIDE, "end"
    return frame.size.width - 2, "end"


def _row(frame: Frame) -> float:
    return frame.y(0.0) - frame.y(1.0)
