"""Sections of a report with a chart: timeline, utilization, memory, roofline, occupancy."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpusight.errors import MissingDataError
from gpusight.render.cell_text import shorten_middle
from gpusight.render.charts.chart_colors import (
    COLORS,
    DARK,
    HOST_COLORS,
    LIGHT,
    OWN_SLOTS,
    css_name,
)
from gpusight.render.charts.chart_page import both_sizes, pointed_data, safe_json
from gpusight.render.charts.kernel_charts import roofline_figure
from gpusight.render.charts.svg_charts import css_of
from gpusight.render.charts.timeline_chart import timeline_figure
from gpusight.render.charts.usage_charts import memory_figure, utilisation_figure
from gpusight.render.html import html_parts
from gpusight.render.html.html_parts import html_text
from gpusight.results import NotApplicable, TableResult

if TYPE_CHECKING:
    from gpusight.render.charts.chart_colors import ChartTheme
    from gpusight.render.charts.figure import Figure, StripChart
    from gpusight.results import Composite


_MAX_NAME_CHARACTERS = 160
_SELECTOR = re.compile(r"([^{}]+)\{")
_KEYS = (*COLORS, *(f"host/{number}" for number in range(len(HOST_COLORS))))
"""Every colour that a picture may ask the palette for."""


def chart_html(drawn: Figure | StripChart) -> str:
    """Draw a picture for wide screens and for narrow ones."""
    data = safe_json(_cut(pointed_data(drawn)))
    return (
        f'<figure class="picture">{both_sizes(drawn)}<div class="tip" hidden></div>'
        f'<script type="application/json" class="figure-data">{data}</script></figure>'
    )


def _cut(data: dict[str, Any]) -> dict[str, Any]:
    """Cut names that a hostile capture may have made long without end."""
    series = [
        {**one, "name": shorten_middle(one["name"], _MAX_NAME_CHARACTERS)} for one in data["series"]
    ]
    marks = [
        {
            **mark,
            "label": shorten_middle(mark["label"], _MAX_NAME_CHARACTERS),
            "rows": [
                [shorten_middle(cell, _MAX_NAME_CHARACTERS) for cell in row] for row in mark["rows"]
            ],
        }
        for mark in data["marks"]
    ]
    return {**data, "series": series, "marks": marks}


def chart_styles() -> str:
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


def _theme(theme: ChartTheme) -> str:
    swatches = "".join(
        f".key-{css_name(slot)}{{background:{theme.colour(slot)}}}" for slot in (*OWN_SLOTS, *_KEYS)
    )
    return css_of(theme, _KEYS) + swatches


_TIMELINE_FACTS = ("busy_share", "busiest", "least_busy", "longest_idle_ns", "longest_idle_at_ns")


def timeline_section(found: Composite | NotApplicable) -> html_parts.ReportSection | None:
    """Write the section; None where nothing has a time."""
    if isinstance(found, NotApplicable):
        return None
    what = next((fact.value for fact in found.facts if fact.key == "what"), "")
    told = f"What the GPU and its host did{f' in {what}' if what else ''}."
    return html_parts.ReportSection(
        "timeline", "Timeline", html_parts.lead(told) + chart_html(timeline_figure(found))
    )


def utilisation_section(found: Composite | NotApplicable) -> html_parts.ReportSection | None:
    """Write the section; None where no GPU worked."""
    if isinstance(found, NotApplicable):
        return None
    parts = (
        html_parts.lead("How busy the GPU was over time, by what it did."),
        html_parts.facts_list(found, _TIMELINE_FACTS),
        chart_html(utilisation_figure(found)),
    )
    return html_parts.ReportSection("utilisation", "Utilisation", "\n".join(parts))


_MEMORY_FACTS = (
    "peak_bytes",
    "peak_ns",
    "peak_share",
    "reserved_max_bytes",
    "fragmentation_at_peak",
    "growth_per_step_bytes",
    "allocations",
)
_HOLDERS = 16


def memory_section(found: Composite | NotApplicable) -> html_parts.ReportSection | None:
    """Write the section; None where no memory was recorded."""
    if isinstance(found, NotApplicable):
        return None
    parts = (
        html_parts.lead(f"{found.title}."),
        html_parts.facts_list(found, _MEMORY_FACTS),
        chart_html(memory_figure(found)),
        _holders(found),
    )
    return html_parts.ReportSection("memory", "Memory", "\n".join(parts))


def _holders(found: Composite) -> str:
    table = next((s for s in found.sections if s.command == "peak"), None)
    if not isinstance(table, TableResult) or table.frame.is_empty():
        return ""
    columns = html_parts.shown_columns(table)
    return f"<h3>{html_text(table.title)}</h3>" + html_parts.html_table(
        table, columns, limit=_HOLDERS
    )


_ROOFLINE_FACTS = (
    "roof_share",
    "compute_time_share",
    "memory_time_share",
    "latency_time_share",
    "roofs_from",
)
_MAX_ROOFLINE_ROWS = 24
_MAX_DOTS = 300


def roofline_section(
    found: Composite | NotApplicable, *, key: str, title: str
) -> html_parts.ReportSection | None:
    """Write the section; None where nothing was counted."""
    if isinstance(found, NotApplicable):
        return None
    lead = "Kernels under the roofs of their GPU: one that lies on a roof cannot be faster."
    tables = [s for s in found.sections if isinstance(s, TableResult)][:1]
    parts = (
        html_parts.lead(lead),
        html_parts.facts_list(found, _ROOFLINE_FACTS),
        _drawn(found),
        *(
            html_parts.html_table(one, html_parts.shown_columns(one), limit=_MAX_ROOFLINE_ROWS)
            for one in tables
        ),
    )
    return html_parts.ReportSection(key, title, "\n".join(parts), "Roofline")


def _drawn(found: Composite) -> str:
    """Draw the roofline, or say why no kernel can be placed under it."""
    shown, left_out = _foremost(found)
    try:
        drawn = chart_html(roofline_figure(shown))
    except MissingDataError as error:
        return f'<p class="absent">{html_text(str(error))}.</p>'
    told = f"The {_MAX_DOTS} kernels with most time are drawn; {left_out:,} more are not."
    return drawn + html_parts.report_notes([told] if left_out else [])


def _foremost(found: Composite) -> tuple[Composite, int]:
    """Leave out of the picture what nobody could tell apart, so that the page stays small."""
    table = found.sections[0]
    if not isinstance(table, TableResult) or table.frame.height <= _MAX_DOTS:
        return found, 0
    cut = replace(table, frame=table.frame.head(_MAX_DOTS))
    return replace(found, sections=(cut, *found.sections[1:])), table.frame.height - _MAX_DOTS


_OCCUPANCY_FACTS = ("theoretical", "achieved", "launches", "total_ns")
_OCCUPANCY_COLUMNS = ("limiters", "kernels", "advice")
_MAX_OCCUPANCY_ROWS = 12


def occupancy_section(
    found: Composite | NotApplicable, *, key: str, title: str
) -> html_parts.ReportSection | None:
    """Write the section; None where it cannot be worked out."""
    if isinstance(found, NotApplicable):
        return None
    tables = [s for s in found.sections if isinstance(s, TableResult) and s.frame.height]
    parts = (
        html_parts.lead("Warps that kernels have on an SM, of those that it can hold."),
        html_parts.facts_list(found, _OCCUPANCY_FACTS),
        *(_occupancy_table(one) for one in tables if one.command in _OCCUPANCY_COLUMNS),
    )
    return html_parts.ReportSection(key, title, "\n".join(parts), "Occupancy")


def _occupancy_table(table: TableResult) -> str:
    columns = html_parts.shown_columns(table)
    return f"<h3>{html_text(table.title)}</h3>" + html_parts.html_table(
        table, columns, limit=_MAX_OCCUPANCY_ROWS
    )
