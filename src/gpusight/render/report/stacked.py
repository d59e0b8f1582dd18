"""A whole and its parts as one bar, with a legend that gives the numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusight.render.diagnosis.page import text
from gpusight.render.report.markup import paint

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the whole."""

    name: str
    colour: str
    """Key of the palette."""
    share: float
    told: str
    """What shows when it is pointed at."""


def bar(pieces: Sequence[Piece], label: str) -> str:
    """Draw the parts end to end; `label` says the same in words."""
    inside = "".join(
        f'<span style="width:{100 * piece.share:.4f}%;background:{paint(piece.colour)}" '
        f'title="{text(piece.told)}"></span>'
        for piece in pieces
        if piece.share > 0
    )
    return f'<div class="stack" role="img" aria-label="{text(label)}">{inside}</div>'
