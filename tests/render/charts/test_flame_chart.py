"""Flame graphs as pictures and pages: well-formed, and names are never markup."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

import gpusight as gs
from gpusight.analysis.hotspots.flame_graph import FlameGraph, FlameNode, flame_graph
from gpusight.render.charts.figure import ChartStrip
from gpusight.render.charts.flame_chart import flame_figure
from gpusight.render.charts.svg_charts import to_svg
from gpusight.render.html.flame_page import flame_page, frame_columns
from tests.analysis.hotspots.stack_traces import loader_trace

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '</script><script>alert(1)</script>"&<b>'


def hostile_graph(before: float | None = None) -> FlameGraph:
    root = FlameNode(HOSTILE, -1, 10, 4, is_library=False, before=before, file=HOSTILE, line=3)
    inner = FlameNode("inner", 0, 6, 6, is_library=True, before=before)
    return FlameGraph("GPU idle time", HOSTILE, "ns", (root, inner), HOSTILE if before else "")


def test_boxes_are_as_wide_as_their_values() -> None:
    root = ET.fromstring(to_svg(flame_figure(hostile_graph())))
    boxes = [box for box in root.findall(f"{SVG}rect") if "fill-host" in str(box.get("class"))]
    widths = [float(box.get("width", "0")) for box in boxes]
    assert widths[0] > 1100
    assert widths[1] == pytest.approx(0.6 * widths[0], abs=1)


@pytest.mark.parametrize("before", [None, 3.0])
def test_hostile_names_stay_text(before: float | None) -> None:
    graph = hostile_graph(before)
    svg = to_svg(flame_figure(graph))
    assert ET.fromstring(svg) is not None
    assert "<script" not in svg
    table = gs.hotspots(loader_trace()).answer.table()
    page = flame_page(graph, table)
    assert "<script>alert" not in page
    assert page.count("<script") == 2


def test_a_picture_of_a_difference_is_red_where_time_grew() -> None:
    svg = to_svg(flame_figure(hostile_graph(before=1.0)))
    assert re.search(r'<rect class="fill-idle-synchronizing-of-4-[123]"', svg)


def test_a_capture_that_takes_less_than_before_is_narrower() -> None:
    figure = flame_figure(hostile_graph(before=20.0))
    outermost = next(row.cells for row in figure.rows if isinstance(row, ChartStrip))
    assert figure.x.high == 20
    assert list(outermost.ends) == [10]
    assert outermost.colors == ("compute/matmul@2",)


def test_siblings_stand_side_by_side_below_their_parent() -> None:
    nodes = (
        FlameNode("root", -1, 10, 1, is_library=False),
        FlameNode("short", 0, 3, 3, is_library=True),
        FlameNode("long", 0, 6, 6, is_library=False),
        FlameNode("leaf", 2, 6, 6, is_library=False),
    )
    rows = flame_figure(FlameGraph("Idle", "", "ns", nodes)).rows
    cells = [row.cells for row in rows if isinstance(row, ChartStrip)]
    assert [c.labels for c in cells] == [("root",), ("long", "short"), ("leaf",)]
    assert [c.x for c in cells] == [(0,), (0, 6), (0,)]
    assert [c.ends for c in cells] == [(10,), (6, 9), (6,)]


def test_columns_of_a_page_are_a_tree() -> None:
    graph = flame_graph(gs.hotspots(loader_trace()).answer)
    columns = frame_columns(graph)
    assert all(parent < at for at, parent in enumerate(columns["parent"]))
    assert sum(
        columns["host"][at] for at, parent in enumerate(columns["parent"]) if parent < 0
    ) == (graph.total)
    assert len(columns["name"]) == len(columns["library"]) == len(graph.nodes)
