"""Sections of a report with a chart: timeline, utilization, memory, roofline, occupancy."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

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
from gpusight.render.charts.usage_charts import memory_figure, utilization_figure
from gpusight.render.html.html_templates import ReportSection, markup, render, shown_columns
from gpusight.results import NotApplicable, TableResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from gpusight.render.charts.chart_colors import ChartTheme
    from gpusight.render.charts.figure import Figure, StripChart
    from gpusight.results import Composite


_MAX_NAME_CHARACTERS = 160
_SELECTOR = re.compile(r"([^{}]+)\{")
_KEYS = (*COLORS, *(f"host/{number}" for number in range(len(HOST_COLORS))))
"""Every color of the palette that a picture may use."""


class DrawnChart(NamedTuple):
    """A chart for wide screens and for narrow ones, and what pointing at it shows."""

    svg: Markup
    data: Markup


def draw_chart(figure: Figure | StripChart) -> DrawnChart:
    """Draw a picture for a page that has `chart_styles`."""
    data = pointed_data(figure)
    series = [
        {**series, "name": shorten_middle(series["name"], _MAX_NAME_CHARACTERS)}
        for series in data["series"]
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
    return DrawnChart(
        markup(both_sizes(figure)), markup(safe_json({**data, "series": series, "marks": marks}))
    )


def _section(
    lead: str,
    *,
    result: Composite | None = None,
    facts: Sequence[str] = (),
    drawn: DrawnChart | None = None,
    undrawn: str = "",
    notes: Sequence[str] = (),
    tables: Sequence[tuple[str, TableResult]] = (),
    rows: int = 0,
) -> Markup:
    """Write a sentence, `facts` of the result, a chart or why there is none, and tables."""
    return render(
        "report_chart.html",
        intro=lead,
        result=result,
        facts_shown=facts,
        drawn=drawn,
        undrawn=undrawn,
        noted=notes,
        tables=[(title, table, shown_columns(table)) for title, table in tables],
        rows=rows,
    )


def chart_styles() -> str:
    """Write the colors of pictures: dark where the system or the reader chooses it."""
    dark = _theme(DARK)
    system = scoped(dark, ":root:not([data-theme=light])")
    return (
        f"{_theme(LIGHT)}\n@media screen and (prefers-color-scheme:dark){{{system}}}\n"
        f"@media screen{{{scoped(dark, ':root[data-theme=dark]')}}}\n"
    )


def scoped(css: str, scope: str) -> str:
    """Let rules hold only within a scope."""
    return _SELECTOR.sub(lambda match: f"{scope} {match[1]}{{", css)


def _theme(theme: ChartTheme) -> str:
    swatches = "".join(
        f".key-{css_name(slot)}{{background:{theme.color(slot)}}}" for slot in (*OWN_SLOTS, *_KEYS)
    )
    return css_of(theme, _KEYS) + swatches


_TIMELINE_FACTS = ("busy_share", "busiest", "least_busy", "longest_idle_ns", "longest_idle_at_ns")


def timeline_section(page: Composite | NotApplicable) -> ReportSection | None:
    """Write the section; None where nothing has a time."""
    if isinstance(page, NotApplicable):
        return None
    what = next((fact.value for fact in page.facts if fact.key == "what"), "")
    lead = f"GPU and host activity{f' in {what}' if what else ''}."
    return ReportSection(
        "timeline", "Timeline", _section(lead, drawn=draw_chart(timeline_figure(page)))
    )


def utilization_section(page: Composite | NotApplicable) -> ReportSection | None:
    """Write the section; None where no GPU worked."""
    if isinstance(page, NotApplicable):
        return None
    lead = "GPU utilization over time, by kind of work."
    drawn = draw_chart(utilization_figure(page))
    body = _section(lead, result=page, facts=_TIMELINE_FACTS, drawn=drawn)
    return ReportSection("utilization", "Utilization", body)


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


def memory_section(page: Composite | NotApplicable) -> ReportSection | None:
    """Write the section; None where no memory was recorded."""
    if isinstance(page, NotApplicable):
        return None
    holders = [s for s in page.sections if isinstance(s, TableResult) and s.command == "peak"][:1]
    body = _section(
        f"{page.title}.",
        result=page,
        facts=_MEMORY_FACTS,
        drawn=draw_chart(memory_figure(page)),
        tables=[(table.title, table) for table in holders if not table.frame.is_empty()],
        rows=_HOLDERS,
    )
    return ReportSection("memory", "Memory", body)


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
    page: Composite | NotApplicable, *, key: str, title: str
) -> ReportSection | None:
    """Write the section, or in it why no kernel can be placed; None where nothing was counted."""
    if isinstance(page, NotApplicable):
        return None
    shown, left_out = _top_kernels(page)
    drawn, undrawn, notes = None, "", []
    try:
        drawn = draw_chart(roofline_figure(shown))
    except MissingDataError as error:
        undrawn = str(error)
    if drawn is not None and left_out:
        notes = [f"Top {_MAX_DOTS} kernels by time are drawn; {left_out:,} more are not."]
    body = _section(
        "Achieved vs. peak FLOP/s. A kernel on the roofline runs at the limit of its GPU.",
        result=page,
        facts=_ROOFLINE_FACTS,
        drawn=drawn,
        undrawn=undrawn,
        notes=notes,
        tables=[("", s) for s in page.sections if isinstance(s, TableResult)][:1],
        rows=_MAX_ROOFLINE_ROWS,
    )
    return ReportSection(key, title, body, "Roofline")


def _top_kernels(page: Composite) -> tuple[Composite, int]:
    """Draw only the kernels with most time, so that the page stays small."""
    table = page.sections[0]
    if not isinstance(table, TableResult) or table.frame.height <= _MAX_DOTS:
        return page, 0
    cut = replace(table, frame=table.frame.head(_MAX_DOTS))
    return replace(page, sections=(cut, *page.sections[1:])), table.frame.height - _MAX_DOTS


_OCCUPANCY_FACTS = ("theoretical", "achieved", "launches", "total_ns")
_OCCUPANCY_COLUMNS = ("limiters", "kernels", "advice")
_MAX_OCCUPANCY_ROWS = 12


def occupancy_section(
    page: Composite | NotApplicable, *, key: str, title: str
) -> ReportSection | None:
    """Write the section; None where it cannot be worked out."""
    if isinstance(page, NotApplicable):
        return None
    tables = [s for s in page.sections if isinstance(s, TableResult) and s.frame.height]
    body = _section(
        "Active warps per SM, as a share of the maximum.",
        result=page,
        facts=_OCCUPANCY_FACTS,
        tables=[(t.title, t) for t in tables if t.command in _OCCUPANCY_COLUMNS],
        rows=_MAX_OCCUPANCY_ROWS,
    )
    return ReportSection(key, title, body, "Occupancy")
