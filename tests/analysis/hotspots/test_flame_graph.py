"""Flame graphs: trees of frames whose sums are those of the table."""

from __future__ import annotations

from dataclasses import replace

import pytest

import gpusight as gs
from gpusight.analysis.hotspots.flame_graph import (
    FlameGraph,
    FlameNode,
    compare_flames,
    compared_hotspots,
    flame_graph,
)
from gpusight.render.charts.flame_chart import flame_figure, gone_text
from gpusight.render.charts.svg_charts import to_svg
from tests.analysis.hotspots.stack_traces import MS, loader_trace


@pytest.mark.parametrize("by", ["line", "function", "module", "package", "stack", "range"])
@pytest.mark.parametrize("of", ["idle", "gpu", "host", "launches"])
def test_a_node_is_the_sum_of_its_own_and_of_those_within(by: str, of: str) -> None:
    graph = flame_graph(gs.hotspots(loader_trace(), by=by, of=of).answer)
    for at, node in enumerate(graph.nodes):
        inside = sum(n.value for n in graph.nodes if n.parent == at)
        assert node.value == node.own + inside
        assert node.parent < at
    assert graph.total == sum(node.own for node in graph.nodes) > 0


def test_frames_are_named_by_function_and_file() -> None:
    graph = flame_graph(gs.hotspots(loader_trace(), by="stack").answer)
    paths = [" > ".join(n.name for n in graph.path(at)) for at in range(len(graph.nodes))]
    assert "main (train.py) > collate (train.py) > decode (decoder.py)" in paths
    lines = flame_graph(gs.hotspots(loader_trace(), by="line").answer)
    assert "collate (train.py:88)" in {node.name for node in lines.nodes}


def test_modules_that_follow_each_other_are_one() -> None:
    graph = flame_graph(gs.hotspots(loader_trace(), by="module").answer)
    names = [node.name for node in graph.nodes]
    assert sorted(names) == ["json.decoder", "model", "torch.nn.modules.linear", "train"]


def test_a_difference_is_per_step() -> None:
    old = gs.hotspots(loader_trace(8)).answer
    new = gs.hotspots(loader_trace(4)).answer
    graph = compared_hotspots(new, old).graph
    assert graph is not None
    collate = next(node for node in graph.nodes if node.name.startswith("collate"))
    assert (round(collate.value), round(collate.before or 0)) == (12 * MS, 12 * MS)
    assert graph.window == "per step"


def test_frames_that_are_gone_are_named_without_those_inside_them() -> None:
    before = FlameGraph(
        "Idle",
        "",
        "ns",
        (
            FlameNode("main", -1, 9 * MS, 0, is_library=False),
            FlameNode("decode", 0, 3 * MS, 3 * MS, is_library=False),
            FlameNode("collate", 0, 6 * MS, 0, is_library=False),
            FlameNode("parse", 2, 6 * MS, 6 * MS, is_library=True),
        ),
    )
    after = replace(before, nodes=(replace(before.nodes[0], value=2 * MS, own=2 * MS),))
    graph = compare_flames(after, before, 1, 1, "old")
    assert [node.name for node in graph.gone] == ["collate", "decode"]
    assert graph.total == 2 * MS
    assert gone_text(graph) == "gone: collate 6.000 ms, decode 3.000 ms"
    assert "gone: collate" in to_svg(flame_figure(graph))
    assert gone_text(compare_flames(before, after, 1, 1, "new")) == ""


def test_nothing_to_show_is_said() -> None:
    with pytest.raises(gs.GpusightError, match="nothing to show"):
        flame_graph(gs.hotspots(loader_trace(), of="memory").answer)
