"""How hotspots are written: tables, flame graphs, and files for other tools."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from gpusight.analysis.hotspots.flame_graph import flame_graph
from gpusight.errors import UsageError
from gpusight.render.renderer import Renderer
from gpusight.render.table_layout import TableOptions

if TYPE_CHECKING:
    from gpusight.analysis.hotspots.flame_graph import FlameGraph
    from gpusight.analysis.hotspots.stack_times import Hotspots
    from gpusight.results import TableResult


STACK_FORMATS = ("folded", "speedscope", "pprof")
"""What `draw` can write beyond pictures."""
_ENDINGS = {
    ".folded": "folded",
    ".speedscope": "speedscope",
    ".speedscope.json": "speedscope",
    ".pprof": "pprof",
    ".pb.gz": "pprof",
}


def stack_format(path: PurePath) -> str | None:
    """Return the format of stacks that the name of a file stands for; None for another file."""
    name = path.name.lower()
    return next((form for ending, form in _ENDINGS.items() if name.endswith(ending)), None)


def _table(hotspots: Hotspots) -> TableResult:
    return hotspots.table()


def _document(hotspots: Hotspots) -> dict[str, Any]:
    from gpusight.render.csv_json import json_document

    return json_document(hotspots.table())


def _graph(hotspots: Hotspots) -> FlameGraph:
    return hotspots.graph if hotspots.graph is not None else flame_graph(hotspots)


def draw_hotspots(hotspots: Hotspots, form: str) -> bytes:
    """Write a flame graph as a picture or page, or the stacks behind it for another tool."""
    graph = _graph(hotspots)
    if form == "folded":
        from gpusight.render.stack_formats import to_folded

        return to_folded(graph).encode("utf-8", "replace")
    if form == "speedscope":
        from gpusight.render.stack_formats import to_speedscope

        name = PurePath(str(hotspots.meta["path"])).name
        return to_speedscope(graph, name).encode("utf-8", "replace")
    if form == "pprof":
        from gpusight.render.stack_formats import to_pprof

        return to_pprof(graph)
    if form == "html":
        from gpusight.render.html.flame_page import flame_page

        return flame_page(graph, hotspots.table()).encode("utf-8", "replace")
    from gpusight.render.charts.draw_chart import CONVERTER_FONT, convert_svg
    from gpusight.render.charts.flame_svg import WIDTH, flame_svg

    if form == "svg":
        return flame_svg(graph).encode("utf-8", "replace")
    if form in {"png", "pdf"}:
        return convert_svg(flame_svg(graph, font=CONVERTER_FONT), form, WIDTH)
    forms = ("svg", "html", "png", "pdf", *STACK_FORMATS)
    raise UsageError(f"hotspots cannot be written as {form}", hint=f"formats: {', '.join(forms)}")


HOTSPOTS_RENDERER = Renderer(
    tables=_table,
    rows=_table,
    document=_document,
    long_lists=("rows",),
    draw=draw_hotspots,
    look=TableOptions(100, 20, rows_advice="all are in .frame", columns_advice="all are in .frame"),
)
