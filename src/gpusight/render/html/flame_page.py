"""A flame graph as a page of its own: search, zoom, copy as text; and its hotspots as a table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpusight._version import __version__
from gpusight.analysis.hotspots.flame_graph import flame_graph
from gpusight.render.cell_text import safe_text, shorten_middle
from gpusight.render.charts.chart_page import MAX_PAGE_ROWS, safe_json
from gpusight.render.charts.flame_chart import gone_text
from gpusight.render.html.html_templates import ReportSection, markup, render, to_html
from gpusight.render.html.report_assets import asset_text, report_styles
from gpusight.results import NotApplicable

if TYPE_CHECKING:
    from gpusight.analysis.hotspots.flame_graph import FlameGraph
    from gpusight.analysis.hotspots.stack_times import Hotspots
    from gpusight.results import TableResult


_MAX_NAME_CHARACTERS = 160
_SECTION_ROWS = 20
_MAX_NODES = 20_000
"""Frames that a page holds; narrower ones belong to the one around them."""


def flame_page(graph: FlameGraph, table: TableResult) -> str:
    """Write the page."""
    page = render(
        "flame_page.html",
        title=graph.title,
        subtitle=graph.window,
        versus=graph.versus,
        gone=gone_text(graph),
        flame=markup(safe_json(frame_columns(graph))),
        table=to_html(table, limit=MAX_PAGE_ROWS),
        styles=markup(report_styles()),
        script=markup(asset_text("report.js")),
        version=__version__,
    )
    return f"{page}\n"


def hotspots_section(hotspots: Hotspots | NotApplicable) -> ReportSection | None:
    """Write the section of a report; None where no stacks were recorded, or the GPU is not idle."""
    if isinstance(hotspots, NotApplicable) or not hotspots.meta["idle_ns"]:
        return None
    graph = replace(flame_graph(hotspots), window="")
    body = render(
        "report_hotspots.html",
        flame=markup(safe_json(frame_columns(graph))),
        table=to_html(replace(hotspots.table(), title="By line", window=""), limit=_SECTION_ROWS),
    )
    return ReportSection("hotspots", "Idle GPU time by line of code", body, "Lines of code")


def frame_columns(graph: FlameGraph) -> dict[str, Any]:
    """Give the frames in columns, as the script reads them; the widest, if there are many."""
    nodes = graph.nodes
    wide = sorted(range(len(nodes)), key=lambda at: -max(nodes[at].value, nodes[at].before or 0.0))
    # A frame is never wider than the one around it, so the widest form a tree of their own.
    kept = sorted(wide[:_MAX_NODES])
    place = {at: number for number, at in enumerate(kept)} | {-1: -1}
    kept = [at for at in kept if nodes[at].parent in place]
    place = {at: number for number, at in enumerate(kept)} | {-1: -1}
    names: dict[str, int] = {}
    name = [names.setdefault(_shown(nodes[at].name), len(names)) for at in kept]
    before = [nodes[at].before for at in kept]
    return {
        "names": list(names),
        "name": name,
        "parent": [place[nodes[at].parent] for at in kept],
        "calls": [0] * len(kept),
        "host": [round(nodes[at].value) for at in kept],
        "gpu": None,
        "smaller": [0] * len(kept),
        "unit": graph.unit,
        "noun": "frame",
        "library": [nodes[at].is_library for at in kept],
        "before": None if not graph.versus else [round(value or 0) for value in before],
    }


def _shown(name: str) -> str:
    return shorten_middle(safe_text(name), _MAX_NAME_CHARACTERS)
