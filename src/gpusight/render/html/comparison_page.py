"""A comparison as one self-contained HTML page.

Waterfall, reasons, every table; and the outcome of a gate for notebooks.
"""

from __future__ import annotations

import base64
from dataclasses import astuple, replace
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

from gpusight.comparison.gate_check import CheckStatus
from gpusight.render import comparison_tables, gate_view
from gpusight.render.cell_text import html_text
from gpusight.render.charts.chart_colors import DARK, LIGHT
from gpusight.render.charts.chart_frame import NARROW, WIDE, ChartSize, size_of
from gpusight.render.charts.ledger_charts import waterfall
from gpusight.render.charts.svg_charts import css_of, inline_svg, to_svg
from gpusight.render.comparison_tables import comparison_sections
from gpusight.render.html.html_templates import html_page, html_prose, markup, render
from gpusight.units import MISSING

if TYPE_CHECKING:
    from markupsafe import Markup

    from gpusight.comparison.comparison_result import Comparison
    from gpusight.comparison.gate_check import Gate
    from gpusight.render.comparison_tables import (
        ComparisonColumn,
        ComparisonRow,
        ComparisonSection,
    )


_MAX_ROWS = 200
"""Rows of each table; a page has room, but a browser has its limits."""
_BAR_PIXELS = 120
_HEAD = 30.0
"""Pixels that a picture needs for its title; a narrow one, for more lines of the legend."""


def comparison_to_page(comparison: Comparison, *, limit: int | None = None) -> str:
    """Write a page of its own; `limit` is what `ComparisonSection.shown` takes."""
    dark = f"@media (prefers-color-scheme: dark) {{{css_of(DARK)}}}"
    title = comparison_tables.comparison_headline(comparison)
    styles = f"{css_of(LIGHT)}\n{dark}\n{comparison_styles()}"
    return html_page(
        title, comparison.title, comparison_body(comparison, limit=limit), styles=styles
    )


def comparison_body(comparison: Comparison, *, limit: int | None = None, level: int = 2) -> Markup:
    """Write what stands on the page below its title, for others; headings are of this level."""
    sides = (("before", comparison.before), ("after", comparison.after))
    lines = [(name, comparison_tables.side_line(side)) for name, side in sides]
    charts = markup(_charts(comparison))
    return _render(comparison, limit, level=level, sides=lines, charts=charts, image="")


def comparison_styles() -> str:
    """Give the styles of that, but for those of every page and picture."""
    return resources.files(__package__ or "").joinpath("comparison.css").read_text(encoding="utf-8")


def comparison_fragment(comparison: Comparison, *, limit: int | None) -> Markup:
    """Write it for a notebook: the picture as an image, so that no style of it gets out."""
    image = ""
    if comparison.headline.change.delta is not None:
        image = base64.b64encode(to_svg(waterfall(comparison)).encode()).decode()
    return _render(comparison, limit, level=2, sides=(), charts=None, image=image)


def _charts(comparison: Comparison) -> str:
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
    return "".join(
        inline_svg(bare, size, name=f"pic {name}", label=label) for name, size in sizes.items()
    )


def _render(comparison: Comparison, limit: int | None, **values: object) -> Markup:
    headline = comparison_tables.comparison_headline(comparison)
    verdict, *reasons = comparison.explanation or (headline,)
    return render(
        "comparison.html",
        **values,
        label=headline,
        verdict=verdict,
        reasons=reasons,
        notes=comparison.notes,
        sections=[
            (section, _shown_rows(section, limit)) for section in comparison_sections(comparison)
        ],
        legend=comparison_tables.mark_legend(comparison),
        arrow=comparison_tables.ARROW,
        sentence=_sentence,
    )


def _sentence(sentence: str) -> Markup:
    """Show a sentence; an arrow is not broken at the end of a line."""
    arrow = html_text(comparison_tables.ARROW)
    return markup(str(html_prose(sentence)).replace(arrow, f'<span class="arrow">{arrow}</span>'))


class _ShownRow(NamedTuple):
    """A row of a table as the page has it."""

    row: ComparisonRow
    kind: str
    cells: list[tuple[ComparisonColumn, tuple[str, ...]]]
    details: list[str]
    """Cells of columns that stand below the name."""
    bar_pixels: int


def _shown_rows(section: ComparisonSection, limit: int | None) -> list[_ShownRow]:
    rows = section.shown(limit, _MAX_ROWS)
    largest = max((abs(row.delta or 0.0) for row in rows if not row.total), default=0.0)
    return [_shown_row(section, row, largest) for row in rows]


def _shown_row(section: ComparisonSection, row: ComparisonRow, largest: float) -> _ShownRow:
    cells = list(zip(section.columns, row.cells, strict=True))
    details = [
        f"{column.heading.lower()} {cell}"
        for column, cell in cells
        if column.detail and cell != MISSING
    ]
    unsure = row.tone is comparison_tables.ChangeTone.UNSURE
    pixels = 0
    if not row.total and row.delta and largest:
        pixels = max(1, round(_BAR_PIXELS * abs(row.delta) / largest))
    return _ShownRow(
        row,
        "total" if row.total else "unsure" if unsure else "",
        [(c, (cell,) if isinstance(cell, str) else cell) for c, cell in cells if not c.detail],
        details,
        pixels,
    )


def gate_fragment(gate: Gate) -> Markup:
    """Write a gate as HTML without styles of its own."""
    failed = gate.comparison if gate.having(CheckStatus.FAILED) else None
    return render(
        "gate.html",
        verdict=gate_view.verdict(gate),
        sides=gate_view.sides(gate),
        headings=astuple(gate_view.headings(gate.checks)),
        checks=[astuple(row) for row in gate_view.gate_rows(gate.checks)],
        reasons=gate_view.reasons(gate),
        explanation=failed.explanation if failed is not None else (),
        notes=(
            *gate_view.accepted(gate, gate_view.PYTHON),
            *gate_view.notes(gate),
            *gate_view.hints(gate, gate_view.PYTHON),
        ),
    )
