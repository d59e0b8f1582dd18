"""A comparison as one self-contained HTML page.

Waterfall, reasons, every table; and the verdict of a gate for notebooks.
"""

from __future__ import annotations

import base64
from dataclasses import astuple, replace
from importlib import resources
from typing import TYPE_CHECKING

from gpusight.comparison.gate_check import CheckStatus
from gpusight.render import comparison_tables, gate_view
from gpusight.render.charts.chart_colors import DARK, LIGHT
from gpusight.render.charts.chart_frame import NARROW, WIDE, ChartSize, size_of
from gpusight.render.charts.ledger_charts import waterfall
from gpusight.render.charts.svg_charts import css_of, inline_svg, to_svg
from gpusight.render.comparison_tables import comparison_sections
from gpusight.render.html.html_parts import html_notes, html_page, html_prose, html_text
from gpusight.units import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.comparison.comparison_result import Comparison
    from gpusight.comparison.gate_check import Gate
    from gpusight.render.comparison_tables import (
        ComparisonCell,
        ComparisonColumn,
        ComparisonRow,
        ComparisonSection,
    )


_RIGHT = ' style="text-align:right"'
_LEFT = ' style="text-align:left"'
_MAX_ROWS = 200
"""Rows of each table; a page has room, but a browser has its limits."""
_BAR_PIXELS = 120
_HEAD = 30.0
"""Pixels that a picture needs for its title; a narrow one, for more lines of the legend."""


def comparison_to_page(comparison: Comparison, *, limit: int | None = None) -> str:
    """Write a page of its own; `limit` is what `Section.shown` takes."""
    dark = f"@media (prefers-color-scheme: dark) {{{css_of(DARK)}}}"
    title = comparison_tables.comparison_headline(comparison)
    styles = f"{css_of(LIGHT)}\n{dark}\n{comparison_styles()}"
    return html_page(
        title, comparison.title, comparison_body(comparison, limit=limit), styles=styles
    )


def comparison_body(comparison: Comparison, *, limit: int | None = None, level: int = 2) -> str:
    """Write what stands on the page below its title, for others; headings are of this level."""
    parts = _parts(comparison, limit, level)
    return "\n".join((*_sides(comparison), _pictures(comparison), *parts))


def comparison_styles() -> str:
    """Give the styles of that, but for those of every page and picture."""
    return resources.files(__package__ or "").joinpath("comparison.css").read_text(encoding="utf-8")


def comparison_fragment(comparison: Comparison, *, limit: int | None) -> str:
    """Write it for a notebook: the picture as an image, so that no style of it gets out."""
    if comparison.headline.change.delta is None:
        return "\n".join(_parts(comparison, limit, 2))
    svg = base64.b64encode(to_svg(waterfall(comparison)).encode()).decode()
    label = html_text(comparison_tables.comparison_headline(comparison))
    image = f'<img alt="{label}" style="max-width:100%" src="data:image/svg+xml;base64,{svg}">'
    return "\n".join((image, *_parts(comparison, limit, 2)))


def _sides(comparison: Comparison) -> Iterator[str]:
    for name, side in (("before", comparison.before), ("after", comparison.after)):
        yield f'<p class="sides"><b>{name}</b> {html_text(comparison_tables.side_line(side))}</p>'


def _pictures(comparison: Comparison) -> str:
    """Draw the waterfall in two sizes; the page shows the one that fits its screen."""
    if comparison.headline.change.delta is None:
        return ""
    figure = waterfall(comparison)
    bare = replace(figure, title="", subtitle="")
    label = html_text(f"{figure.title}. {figure.subtitle}")
    wide, narrow = size_of(bare, WIDE), size_of(bare, NARROW)
    sizes = {
        "wide": ChartSize(wide.width, wide.height - _HEAD),
        "narrow": ChartSize(narrow.width, narrow.height + _HEAD),
    }
    drawn = (
        inline_svg(bare, size, name=f"pic {name}", label=label) for name, size in sizes.items()
    )
    return f'<figure class="picture">{"".join(drawn)}</figure>'


def _parts(comparison: Comparison, limit: int | None, level: int) -> Iterator[str]:
    verdict, *reasons = comparison.explanation or (
        comparison_tables.comparison_headline(comparison),
    )
    yield f'<p class="verdict">{_sentence(verdict)}</p>'
    if reasons:
        told = "".join(f"<li>{_sentence(reason)}</li>" for reason in reasons)
        yield f'<ul class="reasons">{told}</ul>'
    yield from html_notes(comparison.notes)
    for section in comparison_sections(comparison):
        yield from _section(section, limit, f"h{level}")
    yield f'<p class="small">{html_text(comparison_tables.mark_legend(comparison))}</p>'


def _sentence(sentence: str) -> str:
    """Show a sentence; an arrow is not broken at the end of a line."""
    arrow = html_text(comparison_tables.ARROW)
    return html_prose(sentence).replace(arrow, f'<span class="arrow">{arrow}</span>')


def _section(section: ComparisonSection, limit: int | None, heading: str) -> Iterator[str]:
    rows = section.shown(limit, _MAX_ROWS)
    yield f"<{heading}>{html_text(section.title)}</{heading}>"
    if not rows:
        yield f'<p class="small">{html_text(section.quiet)}</p>'
        return
    yield '<div class="report"><table><thead><tr>'
    for column in (c for c in section.columns if not c.detail):
        kind = ' class="extra"' if column.extra else ""
        tag = "th" if column.heading else "td"  # nothing is no heading
        yield f"<{tag}{kind}{_side(column)}>{html_text(column.heading)}</{tag}>"
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


def _kind(row: ComparisonRow) -> str:
    return (
        "total"
        if row.total
        else "unsure"
        if row.tone is comparison_tables.ChangeTone.UNSURE
        else ""
    )


def _side(column: ComparisonColumn) -> str:
    return _RIGHT if column.right else _LEFT


def _cells(section: ComparisonSection, row: ComparisonRow) -> Iterator[str]:
    cells = list(zip(section.columns, row.cells, strict=True))
    details = [
        f"{html_text(column.heading.lower())} {html_text(str(cell))}"
        for column, cell in cells
        if column.detail and cell != MISSING
    ]
    below = f"<small>{', '.join(details)}</small>" if details else ""
    for column, cell in cells:
        if not column.detail:
            yield _cell(column, cell, row, below if column.name else "")


def _cell(column: ComparisonColumn, cell: ComparisonCell, row: ComparisonRow, below: str) -> str:
    look = "name" if column.name else row.tone.value if column.toned else ""
    more = ("quoted" if column.quoted else "", "extra" if column.extra else "")
    kinds = " ".join(filter(None, (look, *more)))
    named = f' class="{kinds}"' if kinds else ""
    parts = (cell,) if isinstance(cell, str) else cell
    own = html_prose if column.name and not column.quoted else html_text
    shown = f"<br><i>{html_text(comparison_tables.ARROW)}</i> ".join(map(own, parts))
    return f"<td{named}{_side(column)}>{shown}{below}</td>"


def _bar(row: ComparisonRow, largest: float) -> str:
    if row.total or not row.delta or not largest:
        return "<td></td>"
    width = max(1, round(_BAR_PIXELS * abs(row.delta) / largest))
    kind = "good" if row.delta < 0 else "bad"
    return f'<td class="delta {kind}"><span style="width:{width}px"></span></td>'


_GATE_LEFT = {0, len(astuple(gate_view.HEADINGS)) - 1}
"""The metric and the status; numbers stand at the right."""


def gate_fragment(gate: Gate) -> str:
    """Write a verdict as HTML without styles of its own."""
    return "\n".join(_gate_lines(gate))


def _gate_lines(gate: Gate) -> Iterator[str]:
    yield f"<p><b>{html_text(gate_view.verdict(gate))}</b></p>"
    for label, names in gate_view.sides(gate):
        yield f"<p>{label}: {html_text(names)}</p>"
    yield f"<table><thead>{_gate_row(astuple(gate_view.HEADINGS), 'th')}</thead><tbody>"
    for check in gate.checks:
        yield _gate_row(astuple(gate_view.gate_row(check)), "td")
    yield "</tbody></table>"
    for metrics, status, reason in gate_view.reasons(gate):
        yield f"<p>{html_text(f'{metrics} {status.value}: {reason}')}</p>"
    if gate.comparison is not None and gate.having(CheckStatus.FAILED):
        told = "".join(f"<li>{html_prose(one)}</li>" for one in gate.comparison.explanation)
        yield f"<ul>{told}</ul>"
    notes = (*gate_view.accepted(gate), *gate.notes, *gate_view.hints(gate))
    yield from (f"<p><i>{html_prose(one)}</i></p>" for one in notes)


def _gate_row(cells: tuple[str, ...], tag: str) -> str:
    aligned = ("left" if n in _GATE_LEFT else "right" for n in range(len(cells)))
    made = (
        f'<{tag} style="text-align:{side}">{html_text(cell)}</{tag}>'
        for side, cell in zip(aligned, cells, strict=True)
    )
    return f"<tr>{''.join(made)}</tr>"
