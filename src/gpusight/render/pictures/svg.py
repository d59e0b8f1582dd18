"""Pictures as SVG, written by hand: text stays text, nothing is loaded, both themes are inside."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from gpusight.render.palette import text_on
from gpusight.render.pictures.bars import FAINT
from gpusight.render.pictures.board import Board
from gpusight.render.pictures.board_svg import board_body
from gpusight.render.pictures.figure_svg import figure_body
from gpusight.render.pictures.frame import SMALL, TITLE, Size, lay_out, size_of
from gpusight.render.pictures.ink import FINE
from gpusight.render.pictures.rows import paint
from gpusight.render.pictures.svg_parts import escaped
from gpusight.render.pictures.theme import DARK, LIGHT, OWN_SLOTS, colours_of, css_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpusight.render.pictures.figure import Figure
    from gpusight.render.pictures.theme import Theme

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', Arial, sans-serif"


def to_svg(picture: Figure | Board) -> str:
    """Write a picture as a file of its own: light, or dark where the viewer prefers that."""
    size = Size(picture.width, 0) if isinstance(picture, Board) else size_of(picture)
    drawn = _drawn(picture, size, pointed=False)
    colours = colours_of(picture)
    dark = f"@media (prefers-color-scheme:dark){{{css_of(DARK, colours)}}}"
    style = f"<style>{escape(css_of(LIGHT, colours) + dark, quote=False)}</style>"
    background = '<rect class="bg" width="100%" height="100%"/>'
    label = escaped(f"{picture.title}. {picture.subtitle}")
    wide, tall = drawn.size.width, drawn.size.height
    own = f' xmlns="http://www.w3.org/2000/svg" width="{wide:g}" height="{tall:g}"'
    return drawn.svg("pic", label, own, style + background) + "\n"


def inline_svg(picture: Figure | Board, size: Size, *, name: str, label: str) -> str:
    """Write a picture as a part of a page that has the styles; `label` says it in words.

    A board takes its width from `size`, and the height that it then needs.
    """
    return _drawn(picture, size, pointed=True).svg(name, label, ' tabindex="0"', "")


def css_of(theme: Theme, colours: Iterable[str] = ()) -> str:
    """Write a theme as the styles of a picture's parts; `colours` are keys of the palette."""
    rules = {
        ".bg": f"fill:{theme.background}",
        ".pic text": f"fill:{theme.text};font-family:{_FONT};font-size:{SMALL:g}px",
        ".pic text.title": f"font-size:{TITLE:g}px;font-weight:600",
        ".pic text.muted": f"fill:{theme.muted}",
        ".pic text.strong": "font-weight:600",
        ".pic text.fine": f"font-size:{FINE:g}px",
        ".plate": f"fill:{theme.background};fill-opacity:.88",
        ".grid": f"stroke:{theme.grid};stroke-width:1;fill:none",
        ".band": f"fill:{theme.band}",
        ".rule": f"stroke:{theme.mark};stroke-width:1;stroke-dasharray:2 3",
        ".mark": f"fill:{theme.mark};stroke:{theme.background};stroke-width:1.5",
        ".drop": f"stroke:{theme.mark};stroke-width:1;stroke-opacity:.55",
        ".cursor": f"stroke:{theme.muted};stroke-width:1",
        ".target": "fill:transparent",
        ".dot": f"fill-opacity:.85;stroke:{theme.background};stroke-width:1",
        ".faint": f"fill-opacity:{FAINT}",
        ".leader": f"stroke:{theme.muted};stroke-width:.75;fill:none",
        ".pic text.halo": f"paint-order:stroke;stroke:{theme.background};stroke-width:3px;"
        "stroke-linejoin:round",
    }
    for slot in (*OWN_SLOTS, *colours):
        colour, name = theme.colour(slot), css_name(slot)
        rules[f".fill-{name}"] = f"fill:{colour}"
        rules[f".line-{name}"] = f"stroke:{colour};fill:none;stroke-width:1.75"
        if slot not in OWN_SLOTS:
            rules[f".pic text.on-{name}"] = f"fill:{text_on(colour)}"
    return "".join(f"{name}{{{rule}}}" for name, rule in rules.items())


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A picture laid out and written, but for the element around it."""

    size: Size
    ends: dict[str, float]
    """Where its axis of x begins and ends, in pixels and in values: the page's script asks."""
    body: str

    def svg(self, name: str, label: str, more: str, before: str) -> str:
        box = f"0 0 {self.size.width:g} {self.size.height:g}"
        data = "".join(f' data-{key}="{value!r}"' for key, value in self.ends.items())
        start = f'<svg class="{name}" viewBox="{box}" role="img" aria-label="{label}"{more}{data}>'
        return f"{start}{before}{self.body}</svg>"


def _drawn(picture: Figure | Board, size: Size, *, pointed: bool) -> _Drawn:
    if isinstance(picture, Board):
        laid = paint(picture, size.width)
        ends = {"left": laid.left, "right": laid.right, "low": laid.low, "high": laid.high}
        return _Drawn(laid.size, {**ends, "log": 0}, "".join(board_body(laid)))
    frame = lay_out(picture, size)
    low, high = frame.across.low, frame.across.high
    ends = {"left": frame.left, "right": frame.right, "low": low, "high": high}
    log = int(frame.across.axis.log)
    return _Drawn(size, {**ends, "log": log}, "".join(figure_body(frame, pointed=pointed)))
