"""Flame graphs as pictures and pages: well-formed, and names are never markup."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

import gpusight as gs
from gpusight.analysis.hotspots.flame_graph import FlameGraph, FlameNode, flame_graph
from gpusight.render.charts.flame_svg import WIDTH, flame_svg
from gpusight.render.html.flame_page import flame_page, frame_columns
from tests.analysis.hotspots.stack_traces import loader_trace

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '</script><script>alert(1)</script>"&<b>'


def hostile_graph(before: float | None = None) -> FlameGraph:
    root = FlameNode(HOSTILE, -1, 10, 4, is_library=False, before=before, file=HOSTILE, line=3)
    inner = FlameNode("inner", 0, 6, 6, is_library=True, before=before)
    return FlameGraph("GPU idle time", HOSTILE, "ns", (root, inner), HOSTILE if before else "")


def test_boxes_are_as_wide_as_their_values() -> None:
    root = ET.fromstring(flame_svg(hostile_graph()))
    boxes = root.findall(f"{SVG}g/{SVG}rect")
    widths = [float(box.get("width", "0")) for box in boxes]
    assert widths[0] == pytest.approx(WIDTH - 32, abs=1)
    assert widths[1] == pytest.approx(0.6 * (WIDTH - 32), abs=1)


@pytest.mark.parametrize("before", [None, 3.0])
def test_hostile_names_stay_text(before: float | None) -> None:
    graph = hostile_graph(before)
    svg = flame_svg(graph)
    assert ET.fromstring(svg) is not None
    assert "<script" not in svg
    table = gs.hotspots(loader_trace()).answer.table()
    page = flame_page(graph, table)
    assert "<script>alert" not in page
    assert page.count("<script") == 2


def test_a_picture_of_a_difference_is_red_where_time_grew() -> None:
    svg = flame_svg(hostile_graph(before=1.0))
    assert re.search(r'class="more[123]"', svg)


def test_columns_of_a_page_are_a_tree() -> None:
    graph = flame_graph(gs.hotspots(loader_trace()).answer)
    columns = frame_columns(graph)
    assert all(parent < at for at, parent in enumerate(columns["parent"]))
    assert sum(
        columns["host"][at] for at, parent in enumerate(columns["parent"]) if parent < 0
    ) == (graph.total)
    assert len(columns["name"]) == len(columns["library"]) == len(graph.nodes)
