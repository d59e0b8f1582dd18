"""A flame graph as strips: an icicle, the outermost frames on top; width is the value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.render.cell_text import safe_text
from gpusight.render.charts.chart_colors import HOST_COLORS
from gpusight.render.charts.figure import ChartAxis, ChartStrip, StripAxis, StripCells, StripChart
from gpusight.results import Fmt
from gpusight.units import format_bytes, format_count, format_share, format_time

if TYPE_CHECKING:
    from gpusight.analysis.hotspots.flame_graph import FlameGraph, FlameNode


WIDTH = 1200.0
_ROW = 19.0
_MIN_WIDTH = 0.4
"""Pixels of the narrowest frame that is drawn."""
_MAX_ROWS = 120
_MAX_GONE = 4
_FORMATS = {"ns": Fmt.TIME, "bytes": Fmt.BYTES}
_OWN, _LIBRARY = "2", "1"
"""Quarters of a color: frames of libraries are paler."""
_MORE, _LESS, _SAME = "idle/synchronizing", "compute/matmul", "quiet@1"
"""Colors of what takes longer than in the other capture, of what takes less, and of the rest."""


def flame_figure(graph: FlameGraph) -> StripChart:
    """Draw a flame graph; compared with another capture, colors show the change."""
    words = [_format_value(graph.total, graph.unit), graph.window]
    words += [f"compared with {graph.versus}"] if graph.versus else []
    words += [gone_text(graph)]
    legend = ((f"{_MORE}@3", "more than before"), (f"{_LESS}@3", "less")) if graph.versus else ()
    axis = ChartAxis("", _FORMATS.get(graph.unit, Fmt.COUNT), low=0.0, high=_width(graph))
    return StripChart(
        graph.title,
        axis,
        (*(ChartStrip("", cells, _ROW, gap=1.0) for cells in _rows(graph)), StripAxis()),
        subtitle=" · ".join(filter(None, words)),
        legend=legend,
        width=WIDTH,
    )


def gone_text(graph: FlameGraph) -> str:
    """Name what only the other capture has: nothing is left of it that could be drawn."""
    gone = graph.gone
    named = [
        f"{safe_text(n.name)} {_format_value(n.before or 0.0, graph.unit)}"
        for n in gone[:_MAX_GONE]
    ]
    named += [f"{len(gone) - _MAX_GONE} more"] if len(gone) > _MAX_GONE else []
    return f"gone: {', '.join(named)}" if gone else ""


def _width(graph: FlameGraph) -> float:
    """Return the larger one of two captures, so that a smaller one looks smaller."""
    before = sum(node.before or 0.0 for node in graph.nodes if node.parent < 0)
    return max(graph.total, before) or 1.0


def _rows(graph: FlameGraph) -> list[StripCells]:
    """Put frames below the one around them, the widest first; gives the cells of each depth."""
    inside: dict[int, list[int]] = {}
    for at, node in enumerate(graph.nodes):
        inside.setdefault(node.parent, []).append(at)
    narrowest = _MIN_WIDTH * _width(graph) / WIDTH
    rows: list[list[tuple[float, FlameNode]]] = []
    outer = [(-1, 0.0)]
    while outer and len(rows) < _MAX_ROWS:
        drawn: list[tuple[int, float]] = []
        for parent, left in outer:
            start = left
            for at in sorted(inside.get(parent, ()), key=lambda n: (-graph.nodes[n].value, n)):
                if graph.nodes[at].value >= narrowest:
                    drawn.append((at, start))
                    start += graph.nodes[at].value
        rows += [[(start, graph.nodes[at]) for at, start in drawn]] if drawn else []
        outer = drawn
    return [_cells(graph, row) for row in rows]


def _cells(graph: FlameGraph, row: list[tuple[float, FlameNode]]) -> StripCells:
    return StripCells(
        x=tuple(start for start, _ in row),
        ends=tuple(start + node.value for start, node in row),
        colors=tuple(_color(graph, node) for _, node in row),
        labels=tuple(node.name for _, node in row),
        titles=tuple(_title(graph, node) for _, node in row),
    )


def _title(graph: FlameGraph, node: FlameNode) -> str:
    share = format_share(node.value / graph.total)
    words = f"{node.name}: {_format_value(node.value, graph.unit)}, {share}"
    if node.before is not None:
        words += f"; before {_format_value(node.before, graph.unit)}"
    if node.file is not None:
        words += f"; {node.file}" + (f":{node.line}" if node.line is not None else "")
    return words


def _format_value(value: float, unit: str) -> str:
    if unit == "ns":
        return format_time(value)
    return format_bytes(value) if unit == "bytes" else format_count(round(value))


def _color(graph: FlameGraph, node: FlameNode) -> str:
    if graph.versus:
        before = node.before or 0.0
        change = (node.value - before) / max(node.value, before, 1e-9)
        strength = min(3, round(abs(change) * 3))
        return f"{_MORE if change > 0 else _LESS}@{strength}" if strength else _SAME
    number = sum(map(ord, node.name)) % len(HOST_COLORS)
    return f"host/{number}@{_LIBRARY if node.is_library else _OWN}"
