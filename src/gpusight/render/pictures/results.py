"""Which answers can be drawn, and by what: for commands and for results in Python alike."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from gpusight.errors import UsageError
from gpusight.render.pictures import draw

if TYPE_CHECKING:
    from gpusight.render.pictures.board import Board
    from gpusight.render.pictures.figure import Figure
    from gpusight.result import Composite


class _Drawn(NamedTuple):
    """How an answer is drawn."""

    module: str
    """In this package, with a function of its name and `_figure`."""
    needs: str
    """Section that the picture is made of."""
    points: tuple[str, ...] = ()
    """Sections that nobody reads as tables: they are the picture."""


_DRAWN = {
    "memory": _Drawn("memory", "timeline", ("timeline",)),
    "roofline": _Drawn("roofline", "roofs"),
    "occupancy": _Drawn("occupancy", "block_sizes"),
    "orion": _Drawn("orion", "series", ("series",)),
    "utilisation": _Drawn("utilisation", "bins", ("metrics", "steps")),
    "timeline": _Drawn("timeline", "slices", ("slices", "sums", "points")),
}


def figure_of(result: Composite) -> Figure | Board:
    """Give the picture of an answer; raises where it has none."""
    drawn = _DRAWN.get(result.command)
    if drawn is None or drawn.needs not in {section.command for section in result.sections}:
        known = ", ".join(sorted({"compare", "ledger", *_DRAWN}))
        raise UsageError(f"{result.title} has no picture", hint=f"what has: {known}")
    module = importlib.import_module(f"{__package__}.{drawn.module}")
    figure: Figure | Board = getattr(module, f"{drawn.module}_figure")(result)
    return figure


def without_points(result: Composite) -> Composite:
    """Leave out the sections that hold the points of the picture."""
    points = _DRAWN[result.command].points if result.command in _DRAWN else ()
    return replace(result, sections=tuple(s for s in result.sections if s.command not in points))


def draw_result(result: Composite, form: str) -> bytes:
    """Draw an answer; a page has its other tables below the picture."""
    return draw(figure_of(result), form, result=without_points(result))
