"""What stands behind a click: facts of one event, and links to those that belong to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpusight.analysis.attribution.work_causes import attribute
from gpusight.analysis.range_summary import ProjectedRanges, project_ranges
from gpusight.analysis.selection import GPU_WORK
from gpusight.errors import UsageError
from gpusight.readers.open import open_trace
from gpusight.render.cell_text import show
from gpusight.trace.trace import Trace
from gpusight.viewer.event_details import KINDS, EventDescription, event_details
from gpusight.viewer.event_facts import causes_of_work
from gpusight.viewer.related_events import children, launched_inside
from tests.shared import DATA, opened
from tests.traces import build_trace

CAUSES = ("call", "op", "forward_op", "range", "module", "call_site")
GRID = {"grid_x": 128, "grid_y": 2, "grid_z": 1, "block_x": 256, "block_y": 1, "block_z": 1}
SHAPE = {**GRID, "registers_per_thread": 64, "static_shared_bytes": 0, "dynamic_shared_bytes": 1024}


def kernel(start: int, end: int, **columns: Any) -> dict[str, Any]:
    return {"start_ns": start, "end_ns": end, "name": "ampere_sgemm_128x64_tn", **columns}


def program() -> Trace:
    """Two launches inside `outer` and `inner`, a copy on the same stream, one more on another."""
    call = {"name": "cudaLaunchKernel"}
    return build_trace(
        devices=[{"device": 0, "compute_major": 9, "compute_minor": 0, "sm_count": 132}],
        processes=[{"process": 1, "pid": 4242}],
        threads=[{"thread": 11, "process": 1, "tid": 4242, "name": "main"}],
        ranges=[
            {"start_ns": 0, "end_ns": 1_000, "name": "outer"},
            {"start_ns": 10, "end_ns": 60, "name": "inner"},
            {"start_ns": 12, "end_ns": 14, "name": "innermost"},
            {"start_ns": 70, "end_ns": 90, "name": "inner"},
        ],
        api_calls=[
            {"start_ns": 20, "end_ns": 30, "correlation": 1, **call},
            {"start_ns": 40, "end_ns": 50, "correlation": 2, **call},
            {"start_ns": 65, "end_ns": 66, "correlation": 3, "name": "cudaMemcpyAsync"},
            {"start_ns": 72, "end_ns": 80, "correlation": 4, **call},
        ],
        kernels=[
            kernel(100, 300, correlation=1, **SHAPE),
            kernel(300, 400, correlation=2, **SHAPE),
            kernel(350, 450, correlation=4, stream=8),
        ],
        copies=[
            {
                "start_ns": 500,
                "end_ns": 1_500,
                "correlation": 3,
                "bytes": 1_000_000,
                "kind": "Device-to-Host",
                "src_kind": "Device",
                "dst_kind": "Pageable",
            }
        ],
    )


def facts(details: EventDescription) -> dict[str, Any]:
    return {fact.key: fact.value for section in details.sections for fact in section.facts}


def shown(details: EventDescription) -> dict[str, str]:
    every = [fact for section in details.sections for fact in section.facts]
    return {fact.key: show(fact.value, fact.fmt) for fact in every}


# Work ---------------------------------------------------------------------------------------------


def test_a_kernel_with_all_that_is_known_of_it() -> None:
    details = event_details(program(), "kernels", 0)
    assert (details.kind, details.title) == ("Kernel", "ampere_sgemm_128x64_tn")
    assert shown(details) == {
        "duration_ns": "200 ns",
        "start_ns": "100 ns",
        "end_ns": "300 ns",
        "short_name": "gemm f32 tn 128x64",
        "category": "matmul",
        "precision": "fp32",
        "tensor_core": "no",
        "grid": "128 × 2 × 1",
        "block": "256 × 1 × 1",
        "registers_per_thread": "64",
        "static_shared_bytes": "0 B",
        "dynamic_shared_bytes": "1.024 kB",
        "occupancy": "50.0%",
        "limiters": "registers",
        "waves": "48.5%",
        "queued_ns": "70 ns",
        "launch_ns": "10 ns",
        "device": "0 (NVIDIA H200)",
        "stream": "7",
        "context": "1",
        "process": "python3 (4242)",
        "correlation": "1",
        "against": "2 × the median of 3 launches",
        "median_ns": "100 ns",
        "rank": "longest of 3",
        "total_ns": "400 ns",
    }
    assert list(details.links) == [
        ("launched by", "api_calls", 0),
        ("in range", "ranges", 1),
        ("in range", "ranges", 0),
        ("next on stream", "kernels", 1),
    ]


def test_what_the_capture_does_not_tell_is_left_out() -> None:
    trace = build_trace(kernels=[{"start_ns": 5, "end_ns": 9, "name": "k", "stream": 7}])
    values = facts(event_details(trace, "kernels", 0))
    assert not set(values) & {
        "grid",
        "block",
        "occupancy",
        "limiters",
        "queued_ns",
        "rank",
        "graph",
    }
    assert None not in values.values()


def test_a_copy_with_its_bandwidth_and_neighbors() -> None:
    details = event_details(program(), "copies", 0)
    assert (details.kind, details.title) == ("Copy", "Device-to-Host")
    values = shown(details)
    assert (values["rate"], values["bytes"]) == ("1.000 TB/s", "1.000 MB")
    assert (values["src_kind"], values["dst_kind"]) == ("Device", "Pageable")
    assert values["queued_ns"] == "434 ns"
    assert details.links[-1] == ("previous on stream", "kernels", 1)


def test_work_in_a_graph_is_not_said_to_have_queued() -> None:
    trace = build_trace(
        api_calls=[{"start_ns": 0, "end_ns": 5, "name": "cudaGraphLaunch", "correlation": 9}],
        kernels=[kernel(10, 20, correlation=9, graph_node=3, graph=1)],
    )
    values = facts(event_details(trace, "kernels", 0))
    assert "queued_ns" not in values
    assert (values["graph"], values["graph_node"], values["launch_ns"]) == (1, 3, 5)


def test_fills_and_graphs_have_no_names_of_their_own() -> None:
    trace = build_trace(
        memsets=[{"start_ns": 0, "end_ns": 8, "bytes": 64, "value": 0}],
        graph_launches=[{"start_ns": 0, "end_ns": 8, "graph": 4}],
    )
    fill, graph = (event_details(trace, table, 0) for table in ("memsets", "graph_launches"))
    assert (fill.kind, fill.title, facts(fill)["bytes"]) == ("Memset", "Memset", 64)
    assert (graph.kind, graph.title, facts(graph)["graph"]) == ("CUDA graph", "CUDA graph", 4)


@pytest.mark.parametrize(
    "name",
    [
        "dataload.sqlite",
        "graph_node.sqlite",
        "gpt_tiny_osrt.sqlite",
        "operators.json.gz",
        "torch_checkpoint.json.gz",
        "torch_odd.json.gz",
        "jax_small.xplane.pb",
    ],
)
def test_causes_are_those_that_looking_at_everything_gives(name: str) -> None:
    trace = opened(DATA / name)
    whole = attribute(trace).frames
    for table in (table for table in GPU_WORK if trace.has(table)):
        rows = range(0, trace.row_count(table), max(1, trace.row_count(table) // 12))
        for row in rows:
            wanted = whole[table].row(row, named=True)
            details = causes_of_work(trace, table, row)
            assert details.in_graph == wanted["in_graph"]
            for column in CAUSES:
                assert details.rows.get(column) == wanted[column], (table, row, column)


# The host -----------------------------------------------------------------------------------------


def test_a_launch_with_what_it_launched() -> None:
    details = event_details(program(), "api_calls", 1)
    assert (details.kind, details.title) == ("API call", "cudaLaunchKernel")
    assert (facts(details)["work"], facts(details)["gpu_ns"]) == (1, 100)
    assert list(details.links) == [
        ("in range", "ranges", 1),
        ("in range", "ranges", 0),
        ("launched", "kernels", 1),
        ("previous on thread", "api_calls", 0),
        ("next on thread", "api_calls", 2),
    ]


def test_of_many_launched_pieces_the_first_are_linked_and_all_counted() -> None:
    trace = build_trace(
        api_calls=[{"start_ns": 0, "end_ns": 5, "name": "cudaGraphLaunch", "correlation": 9}],
        kernels=[kernel(10 * n, 10 * n + 5, correlation=9) for n in range(1, 31)],
    )
    details = event_details(trace, "api_calls", 0)
    assert [link.row for link in details.links if link.relation == "launched"] == list(range(20))
    assert (facts(details)["work"], facts(details)["gpu_ns"]) == (30, 150)


def test_a_range_with_what_happens_inside() -> None:
    details = event_details(program(), "ranges", 0)
    values = facts(details)
    assert (values["work"], values["gpu_ns"], values["first_ns"], values["last_ns"]) == (
        4,
        1400,
        100,
        1500,
    )
    assert values["children"] == 2
    inner = event_details(program(), "ranges", 1)
    assert (facts(inner)["work"], facts(inner)["children"]) == (2, 1)
    assert ("in range", "ranges", 0) in inner.links
    assert ("next on thread", "ranges", 3) in inner.links


def test_an_operator_knows_its_forward_one_and_what_surrounds_it() -> None:
    trace = build_trace(
        cpu_ops=[
            {"start_ns": 0, "end_ns": 10, "name": "aten::mm", "sequence": 5},
            {"start_ns": 50, "end_ns": 90, "name": "MmBackward0", "sequence": 5,
             "forward_thread": 1, "thread": 12},
            {"start_ns": 60, "end_ns": 80, "name": "aten::mm", "thread": 12},
        ],
        ranges=[{"start_ns": 40, "end_ns": 100, "name": "backward", "thread": 12}],
        api_calls=[{"start_ns": 65, "end_ns": 70, "thread": 12, "correlation": 1}],
        kernels=[kernel(80, 100, correlation=1)],
    )  # fmt: skip
    details = event_details(trace, "cpu_ops", 2)
    assert ("in operator", "cpu_ops", 1) in details.links
    assert ("forward operator", "cpu_ops", 0) in details.links
    assert ("in range", "ranges", 0) in details.links
    assert ("launched", "kernels", 0) in details.links


def test_nothing_is_said_of_launches_where_calls_are_not_known() -> None:
    trace = build_trace(
        ranges=[{"start_ns": 0, "end_ns": 100, "name": "step"}], kernels=[kernel(10, 20)]
    )
    assert "work" not in facts(event_details(trace, "ranges", 0))


@pytest.mark.parametrize("name", ["dataload.sqlite", "gpt_tiny_osrt.sqlite"])
def test_work_of_ranges_is_that_of_the_projection(name: str) -> None:
    trace = opened(DATA / name)
    projected = project_ranges(trace)
    assert isinstance(projected, ProjectedRanges)
    wanted = projected.frame.select("ops", "busy_ns")
    for row in range(0, wanted.height, max(1, wanted.height // 40)):
        details = launched_inside(trace, "ranges", row)
        assert (len(details), details.busy_ns) == wanted.row(row)


def test_children_are_those_that_name_it_as_their_parent() -> None:
    trace = opened(DATA / "operators.json.gz")
    parents = trace.table("cpu_ops", ["parent"])["parent"].to_list()
    for row in range(0, len(parents), len(parents) // 60):
        assert children(trace, "cpu_ops", row) == parents.count(row)


# Counters -----------------------------------------------------------------------------------------


def report() -> Trace:
    measured = [
        ("sm__throughput.avg.pct_of_peak_sustained_elapsed", 40.0),
        ("sm__warps_active.avg.pct_of_peak_sustained_active", 25.0),
        ("smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio", 6.0),
        ("smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio", 1.0),
        ("smsp__average_warps_issue_stalled_selected_per_issue_active.ratio", 1.0),
    ]
    return build_trace(
        {"path": "report.ncu-rep"},
        profiles=[
            {"launch": n, "kind": "kernel", "name": "ampere_sgemm_128x64_tn", "duration_ns": t,
             **GRID} for n, t in ((3, 210.0), (4, 110.0))
        ],
        counters=[
            {"launch": launch, "metric": metric, "value": value + launch - 3}
            for launch in (3, 4) for metric, value in measured
        ],
    )  # fmt: skip


def test_counters_are_those_of_the_launch_that_matches() -> None:
    values = facts(event_details(program(), "kernels", 1, report=report()))
    assert (values["launch"], values["measured_ns"]) == (4, 110.0)
    assert values["measured_sm_share"] == pytest.approx(0.41)
    assert values["measured_occupancy"] == pytest.approx(0.26)
    assert values["stall"] == "Stall Long Scoreboard"
    assert values["stall_share"] == pytest.approx(7 / 11)
    assert "measured_memory_share" not in values


def test_a_kernel_that_was_not_measured_has_no_counters() -> None:
    details = event_details(program(), "kernels", 2, report=report())
    assert "Measured with counters" not in [section.title for section in details.sections]


# Everything ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["dataload.nsys-rep", "graph.sqlite", "odd_cpu.sqlite", "torch_odd.json.gz",
     "jax_graph.trace.json.gz", "healthy.json.gz"],
)  # fmt: skip
def test_every_event_can_be_looked_at(name: str) -> None:
    trace = open_trace(DATA / Path(name), cache=False)
    for table in (table for table in KINDS if trace.has(table)):
        rows = trace.row_count(table)
        for row in {0, rows // 2, rows - 1}:
            details = event_details(trace, table, row)
            assert details.title
            assert None not in facts(details).values()
            assert all(0 <= link.row < trace.row_count(link.table) for link in details.links)
            assert (table, row) not in [link[1:] for link in details.links]


def test_hostile_names_stay_as_they_are() -> None:
    name = "</script><img src=x onerror=alert(1)>"
    trace = build_trace(kernels=[{"end_ns": 1, "name": name}], ranges=[{"end_ns": 9, "name": name}])
    assert (
        event_details(trace, "kernels", 0).title == event_details(trace, "ranges", 0).title == name
    )


@pytest.mark.parametrize(
    ("table", "row", "message"),
    [
        ("devices", 0, "no events in 'devices'"),
        ("nonsense", 0, "no events in 'nonsense'"),
        ("kernels", 3, "no row 3 in kernels"),
        ("kernels", -1, "no row -1 in kernels"),
        ("os_calls", 0, "no row 0 in os_calls"),
    ],
)
def test_what_is_no_event_is_refused(table: str, row: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        event_details(program(), table, row)
