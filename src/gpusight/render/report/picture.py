"""Pictures inside a report, in both themes; the page's script shows the values pointed at."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from gpusight.render.cells import shorten_middle
from gpusight.render.palette import COLOURS, HOST
from gpusight.render.pictures.page import both_sizes, pointed_data, safe_json
from gpusight.render.pictures.svg import css_of
from gpusight.render.pictures.theme import DARK, LIGHT, OWN_SLOTS, css_name

if TYPE_CHECKING:
    from gpusight.render.pictures.board import Board
    from gpusight.render.pictures.figure import Figure
    from gpusight.render.pictures.theme import Theme

_LONGEST = 160
_SELECTOR = re.compile(r"([^{}]+)\{")
_KEYS = (*COLOURS, *(f"host/{number}" for number in range(len(HOST))))
"""Every colour that a picture may ask the palette for."""


def picture(drawn: Figure | Board) -> str:
    """Draw a picture for wide screens and for narrow ones."""
    data = safe_json(_cut(pointed_data(drawn)))
    return (
        f'<figure class="picture">{both_sizes(drawn)}<div class="tip" hidden></div>'
        f'<script type="application/json" class="figure-data">{data}</script></figure>'
    )


def _cut(data: dict[str, Any]) -> dict[str, Any]:
    """Cut names that a hostile capture may have made long without end."""
    series = [{**one, "name": shorten_middle(one["name"], _LONGEST)} for one in data["series"]]
    marks = [
        {
            **mark,
            "label": shorten_middle(mark["label"], _LONGEST),
            "rows": [[shorten_middle(cell, _LONGEST) for cell in row] for row in mark["rows"]],
        }
        for mark in data["marks"]
    ]
    return {**data, "series": series, "marks": marks}


def styles() -> str:
    """Write the colours of pictures: dark on screens where the system or the reader says so."""
    dark = _theme(DARK)
    system = scoped(dark, ":root:not([data-theme=light])")
    return (
        f"{_theme(LIGHT)}\n@media screen and (prefers-color-scheme:dark){{{system}}}\n"
        f"@media screen{{{scoped(dark, ':root[data-theme=dark]')}}}\n"
    )


def scoped(css: str, scope: str) -> str:
    """Let rules hold only within a scope."""
    return _SELECTOR.sub(lambda found: f"{scope} {found[1]}{{", css)


def _theme(theme: Theme) -> str:
    swatches = "".join(
        f".key-{css_name(slot)}{{background:{theme.colour(slot)}}}" for slot in (*OWN_SLOTS, *_KEYS)
    )
    return css_of(theme, _KEYS) + swatches
