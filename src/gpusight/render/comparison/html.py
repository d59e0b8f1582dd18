"""A comparison as one HTML page that needs nothing else: the picture, the reasons, every table."""

from __future__ import annotations

import base64
from dataclasses import replace
from importlib import resources
from typing import TYPE_CHECKING

from gpusight.render.comparison import words
from gpusight.render.comparison.picture import waterfall
from gpusight.render.comparison.sections import sections
from gpusight.render.diagnosis.page import notes, page, prose, text
from gpusight.render.pictures.frame import NARROW, WIDE, Size, size_of
from gpusight.render.pictures.svg import css_of, inline_svg, to_svg
from gpusight.render.pictures.theme import DARK, LIGHT
from gpusight.units import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.comparison.outcome import Comparison
    from gpusight.render.comparison.section import Cell, Column, Row, Section

_RIGHT = ' style="text-align:right"'
_LEFT = ' style="text-align:left"'
_ROWS = 200
"""Rows of each table; a page has room, but a browser has its limits."""
_BAR_PIXELS = 120
_HEAD = 30.0
"""Pixels that a picture needs for its title; a narrow one, for more lines of the legend."""


def to_page(comparison: Comparison, *, limit: int | None = None) -> str:
    """Write a page of its own; `limit` is what `Section.shown` takes."""
    dark = f"@media (prefers-color-scheme: dark) {{{css_of(DARK)}}}"
    title = words.headline(comparison)
    styles = f"{css_of(LIGHT)}\n{dark}\n{own_styles()}"
    return page(title, comparison.title, to_body(comparison, limit=limit), styles=styles)


def to_body(comparison: Comparison, *, limit: int | None = None, level: int = 2) -> str:
    """Write what stands on the page below its title, for others; headings are of this level."""
    parts = _parts(comparison, limit, level)
    return "\n".join((*_sides(comparison), _pictures(comparison), *parts))


def own_styles() -> str:
    """Give the styles of that, but for those of every page and picture."""
    return resources.files(__package__ or "").joinpath("page.css").read_text(encoding="utf-8")


def to_fragment(comparison: Comparison, *, limit: int | None) -> str:
    """Write it for a notebook: the picture as an image, so that no style of it gets out."""
    if comparison.headline.change.delta is None:
        return "\n".join(_parts(comparison, limit, 2))
    svg = base64.b64encode(to_svg(waterfall(comparison)).encode()).decode()
    label = text(words.headline(comparison))
    image = f'<img alt="{label}" style="max-width:100%" src="data:image/svg+xml;base64,{svg}">'
    return "\n".join((image, *_parts(comparison, limit, 2)))


def _sides(comparison: Comparison) -> Iterator[str]:
    for name, side in (("before", comparison.before), ("after", comparison.after)):
        yield f'<p class="sides"><b>{name}</b> {text(words.side(side))}</p>'


def _pictures(comparison: Comparison) -> str:
    """Draw the waterfall in two sizes; the page shows the one that fits its screen."""
    if comparison.headline.change.delta is None:
        return ""
    figure = waterfall(comparison)
    bare = replace(figure, title="", subtitle="")
    label = text(f"{figure.title}. {figure.subtitle}")
    wide, narrow = size_of(bare, WIDE), size_of(bare, NARROW)
    sizes = {
        "wide": Size(wide.width, wide.height - _HEAD),
        "narrow": Size(narrow.width, narrow.height + _HEAD),
    }
    drawn = (
        inline_svg(bare, size, name=f"pic {name}", label=label) for name, size in sizes.items()
    )
    return f'<figure class="picture">{"".join(drawn)}</figure>'


def _parts(comparison: Comparison, limit: int | None, level: int) -> Iterator[str]:
    verdict, *reasons = comparison.explanation or (words.headline(comparison),)
    yield f'<p class="verdict">{_told(verdict)}</p>'
    if reasons:
        told = "".join(f"<li>{_told(reason)}</li>" for reason in reasons)
        yield f'<ul class="reasons">{told}</ul>'
    yield from notes(comparison.notes)
    for section in sections(comparison):
        yield from _section(section, limit, f"h{level}")
    yield f'<p class="small">{text(words.marks(comparison))}</p>'


def _told(sentence: str) -> str:
    """Show a sentence; an arrow is not broken at the end of a line."""
    arrow = text(words.ARROW)
    return prose(sentence).replace(arrow, f'<span class="arrow">{arrow}</span>')


def _section(section: Section, limit: int | None, heading: str) -> Iterator[str]:
    rows = section.shown(limit, _ROWS)
    yield f"<{heading}>{text(section.title)}</{heading}>"
    if not rows:
        yield f'<p class="small">{text(section.quiet)}</p>'
        return
    yield '<div class="report"><table><thead><tr>'
    for column in (c for c in section.columns if not c.detail):
        kind = ' class="extra"' if column.extra else ""
        tag = "th" if column.heading else "td"  # nothing is no heading
        yield f"<{tag}{kind}{_side(column)}>{text(column.heading)}</{tag}>"
    yield ("<td></td>" if section.bars else "") + "</tr></thead><tbody>"
    largest = max((abs(row.delta or 0.0) for row in rows if not row.total), default=0.0)
    for row in rows:
        shown = "".join(_cells(section, row))
        bar = _bar(row, largest) if section.bars else ""
        yield f'<tr class="{_kind(row)}">{shown}{bar}</tr>'
    yield "</tbody></table></div>"
    left_out = len(section.rows) - len(rows)
    if left_out:
        yield f'<p class="small">… and {left_out:,} more</p>'


def _kind(row: Row) -> str:
    return "total" if row.total else "unsure" if row.tone is words.Tone.UNSURE else ""


def _side(column: Column) -> str:
    return _RIGHT if column.right else _LEFT


def _cells(section: Section, row: Row) -> Iterator[str]:
    cells = list(zip(section.columns, row.cells, strict=True))
    details = [
        f"{text(column.heading.lower())} {text(str(cell))}"
        for column, cell in cells
        if column.detail and cell != MISSING
    ]
    below = f"<small>{', '.join(details)}</small>" if details else ""
    for column, cell in cells:
        if not column.detail:
            yield _cell(column, cell, row, below if column.name else "")


def _cell(column: Column, cell: Cell, row: Row, below: str) -> str:
    look = "name" if column.name else row.tone.value if column.toned else ""
    more = ("quoted" if column.quoted else "", "extra" if column.extra else "")
    kinds = " ".join(filter(None, (look, *more)))
    named = f' class="{kinds}"' if kinds else ""
    parts = (cell,) if isinstance(cell, str) else cell
    own = prose if column.name and not column.quoted else text
    shown = f"<br><i>{text(words.ARROW)}</i> ".join(map(own, parts))
    return f"<td{named}{_side(column)}>{shown}{below}</td>"


def _bar(row: Row, largest: float) -> str:
    if row.total or not row.delta or not largest:
        return "<td></td>"
    width = max(1, round(_BAR_PIXELS * abs(row.delta) / largest))
    kind = "good" if row.delta < 0 else "bad"
    return f'<td class="delta {kind}"><span style="width:{width}px"></span></td>'
