"""Kernels by name."""

from __future__ import annotations

import subprocess
import sys

import polars as pl
import pytest

from gpusight.analysis.kernel_summary import busy_ns, graph_notes, kernels, short_names_by_shape
from gpusight.analysis.selection import Selection, TimeWindow
from gpusight.results import NotApplicable, TableResult
from gpusight.trace.trace import Trace
from tests.shared import DATA, SHARED, needs_shared, opened
from tests.traces import Rows, build_source, build_trace

GEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_ffma_execute_kernel__5x_cublas"
KERNELS: Rows = [
    {"start_ns": 0, "end_ns": 10, "name": GEMM, "correlation": 1},
    {"start_ns": 10, "end_ns": 40, "name": GEMM, "correlation": 2},
    {"start_ns": 30, "end_ns": 90, "name": "mine<float>(int)", "correlation": 3, "stream": 8},
    {"start_ns": 95, "end_ns": 95, "name": "empty", "correlation": 4},
]


def table(trace: Trace, selection: Selection | None = None) -> TableResult:
    result = kernels(trace, selection or Selection())
    assert isinstance(result, TableResult)
    return result


def test_rows_are_summed_by_name_and_sorted_by_time() -> None:
    rows = table(build_trace(kernels=KERNELS)).rows()
    assert [(r["name"], r["calls"], r["total_ns"], r["share"]) for r in rows] == [
        ("mine<float>(int)", 1, 60, 0.6),
        (GEMM, 2, 40, 0.4),
        ("empty", 1, 0, 0.0),
    ]


def test_each_row_has_its_statistics_and_what_the_name_tells() -> None:
    row = table(build_trace(kernels=KERNELS)).rows()[1]
    assert row["mean_ns"] == row["median_ns"] == 20
    assert (row["min_ns"], row["max_ns"]) == (10, 30)
    assert row["stddev_ns"] == pytest.approx(14.142, abs=1e-3)
    assert (row["category"], row["precision"], row["tensor_core"]) == ("matmul", "fp32", False)
    assert len(row["short_name"]) < len(GEMM)


def test_meta_tells_the_time_at_least_one_kernel_ran() -> None:
    meta = table(build_trace(kernels=KERNELS)).meta
    assert meta == {"kernels": 4, "kernel_names": 3, "total_ns": 100, "any_gpu_busy_ns": 90}


def test_overlapping_and_contained_kernels_are_busy_once() -> None:
    spans = pl.DataFrame({"start_ns": [0, 1, 8, 20, 25], "end_ns": [10, 2, 12, 30, 30]})
    assert busy_ns(spans) == 12 + 10


def test_only_three_columns_are_read() -> None:
    source = build_source(kernels=KERNELS)
    table(Trace(source))
    assert {c for t, c in source.loads if t == "kernels"} == {"start_ns", "end_ns", "name"}


def test_numpy_is_not_needed() -> None:
    code = "import sys, gpusight.analysis.kernel_summary; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_selection_without_kernels_is_an_empty_table_that_says_so() -> None:
    trace = build_trace(
        kernels=KERNELS,
        api_calls=[{"start_ns": 99, "correlation": c} for c in (1, 2, 3, 4)],
        ranges=[{"start_ns": 0, "end_ns": 50, "name": "quiet"}],
    )
    result = table(trace, Selection(within="quiet"))
    assert result.frame.height == 0
    assert result.notes == ("no kernels were launched in the selection",)


@pytest.mark.parametrize(
    ("rows", "reason", "hint"),
    [
        ({}, "no GPU kernels", "--trace=cuda"),
        ({"api_calls": [{}]}, "API calls but no kernels", "gpusight info FILE"),
        ({"graph_launches": [{}]}, "1 CUDA graph launches", "--cuda-graph-trace=node"),
    ],
)
def test_no_kernels_is_explained(rows: dict[str, Rows], reason: str, hint: str) -> None:
    result = kernels(build_trace(None, **rows))
    assert isinstance(result, NotApplicable)
    assert reason in result.reason
    assert hint in result.hint


def test_kernels_hidden_in_graphs_are_mentioned() -> None:
    notes = table(build_trace(kernels=KERNELS, graph_launches=[{}, {}])).notes
    assert len(notes) == 1
    assert notes[0].startswith("2 CUDA graph launches were traced per graph")


@pytest.mark.parametrize(
    ("end_us", "start"),
    [
        (9, "2 CUDA graph launches are outside the window"),
        (30, "1 CUDA graph launch was traced per graph: its kernels are not"),
        (80, "2 CUDA graph launches were traced per graph: their kernels are not"),
    ],
)
def test_graphs_outside_the_window_hide_no_kernels_of_it(end_us: int, start: str) -> None:
    graphs = [{"start_ns": at, "end_ns": at + 10_000} for at in (20_000, 40_000)]
    trace = build_trace(kernels=KERNELS, graph_launches=graphs)
    (note,) = graph_notes(trace, TimeWindow(0, end_us * 1_000))
    assert note.startswith(start)


def test_a_graph_traced_by_node_shows_its_kernels() -> None:
    result = table(opened(DATA / "graph_node.sqlite"), Selection(within="replay"))
    assert result.meta["kernels"] == 360


@needs_shared
@pytest.mark.parametrize("name", ["gpt_small_forward", "gpt_small_train", "resnet18_infer"])
def test_the_numbers_are_those_of_nsys(name: str) -> None:
    ours = table(opened(SHARED / "nsys" / f"{name}.sqlite")).frame
    theirs = pl.read_csv(SHARED / "nsys_reference" / f"{name}.cuda_gpu_kern_sum.csv")
    joined = ours.join(theirs, left_on="name", right_on="Name", validate="1:1")
    assert joined.height == theirs.height == ours.height
    assert joined["total_ns"].to_list() == joined["Total Time (ns)"].to_list()
    assert joined["calls"].to_list() == joined["Instances"].to_list()
    assert joined["median_ns"].to_list() == joined["Med (ns)"].to_list()
    deviation = (joined["stddev_ns"] - joined["StdDev (ns)"]).abs().max()
    assert isinstance(deviation, float)
    assert deviation <= 0.051


CUT = "void at::native::vectorized_elementwise_kernel<4, at..."
TOTALS: Rows = [
    {"name": "aten::mm", "side": "host", "calls": 5, "self_gpu_ns": 90, "self_cpu_ns": 7},
    {"name": "step", "side": "host", "calls": 1, "self_cpu_ns": 9},
    {"name": GEMM, "side": "gpu", "calls": 3, "self_gpu_ns": 60},
    {"name": CUT, "side": "gpu", "calls": 4, "self_gpu_ns": 30},
    {"name": CUT, "side": "gpu", "calls": 1, "self_gpu_ns": 10},
    {"name": "step", "side": "gpu", "calls": 1, "self_gpu_ns": 400},
    {"name": "ProfilerStep*", "side": "gpu", "calls": 1, "self_gpu_ns": 500},
    {"name": "Optimizer.step#AdamW.step", "side": "gpu", "calls": 1, "self_gpu_ns": 300},
    {"name": "nccl:all_reduce", "side": "gpu", "calls": 1, "self_gpu_ns": 300},
    {"name": "Memcpy DtoD (Device -> Device)", "side": "gpu", "calls": 1, "self_gpu_ns": 20},
    {"name": "Memset (Device)", "side": "gpu", "calls": 1, "self_gpu_ns": 20},
]
AVERAGES = {"source": "torch-key-averages", "tool": "torch.profiler"}


def test_a_table_of_totals_shows_the_kernels_it_lists() -> None:
    result = table(build_trace(AVERAGES, op_totals=TOTALS))
    picked = [(r["name"], r["calls"], r["total_ns"], r["mean_ns"]) for r in result.rows()]
    assert picked == [(GEMM, 3, 60, 20.0), (CUT, 4, 30, 7.5), (CUT, 1, 10, 10.0)]
    first = result.rows()[0]
    assert (first["share"], first["category"], first["precision"]) == (0.6, "matmul", "fp32")
    assert (first["median_ns"], first["min_ns"], first["max_ns"]) == (None, None, None)
    assert result.meta["total_ns"] == 100
    own, cut = result.notes
    assert "the profiler's own totals" in own
    assert cut.startswith("the table truncates 2 names")


def test_a_kernel_may_be_named_as_the_operator_that_launched_it() -> None:
    rows: Rows = [
        {"name": "triton_poi_fused_add_0", "side": "host", "calls": 3, "self_gpu_ns": 40},
        {"name": "triton_poi_fused_add_0", "side": "gpu", "calls": 5, "self_gpu_ns": 60},
        {"name": "mine", "side": "host", "calls": 2, "self_gpu_ns": 30},
        {"name": "mine", "side": "gpu", "calls": 2, "self_gpu_ns": 30},
        # A mark around the one kernel that it launched.
        {"name": "around", "side": "host", "calls": 1, "self_gpu_ns": 20},
        {"name": "around", "side": "gpu", "calls": 1, "self_gpu_ns": 20},
        {"name": "inside", "side": "gpu", "calls": 1, "self_gpu_ns": 20},
    ]
    result = table(build_trace(AVERAGES, op_totals=rows))
    assert [(r["name"], r["calls"]) for r in result.rows()] == [
        ("triton_poi_fused_add_0", 5),
        ("mine", 2),
        ("inside", 1),
    ]


@pytest.mark.parametrize(
    "wait", ["Context Sync", "Stream Sync", "Event Sync", "Stream Wait Event", "Unknown Sync"]
)
def test_waits_are_not_kernels(wait: str) -> None:
    rows = [*TOTALS, {"name": wait, "side": "gpu", "calls": 1, "self_gpu_ns": 1}]
    names = table(build_trace(AVERAGES, op_totals=rows)).frame["name"].to_list()
    assert names == [GEMM, CUT, CUT]


def test_what_took_longer_than_all_the_gpu_did_is_a_mark() -> None:
    rows = [*TOTALS, {"name": "forward", "side": "gpu", "calls": 1, "self_gpu_ns": 900}]
    below = [{"text": "Self CPU time total: 17ns"}, {"text": "Self CUDA time total: 0.140us"}]
    result = table(build_trace(AVERAGES, op_totals=rows, diagnostics=below))
    assert "forward" not in result.frame["name"].to_list()
    assert any(note.startswith("the table is truncated") for note in result.notes)


def test_a_table_of_totals_lists_the_kernels_of_the_trace_of_the_same_run() -> None:
    """With synchronization events, annotations and compiled code; names are cut."""
    listed = table(opened(DATA / "torch_odd_averages.txt"))
    traced = table(opened(DATA / "torch_odd.json.gz"))
    assert listed.meta["kernels"] == traced.meta["kernels"] == 687
    assert listed.meta["kernel_names"] == traced.meta["kernel_names"]
    assert listed.meta["total_ns"] == pytest.approx(traced.meta["total_ns"], abs=1_000)
    calls, traced_calls = listed.frame["calls"].to_list(), traced.frame["calls"].to_list()
    assert sorted(calls) == sorted(traced_calls)
    assert not any("lacks rows" in note for note in listed.notes)


def test_totals_cannot_be_divided() -> None:
    absent = kernels(build_trace(AVERAGES, op_totals=TOTALS), Selection(device=0))
    assert isinstance(absent, NotApplicable)
    assert "export_chrome_trace" in absent.hint


def test_totals_of_a_cpu_list_no_kernel() -> None:
    absent = kernels(build_trace(AVERAGES, op_totals=TOTALS[:2]))
    assert isinstance(absent, NotApplicable)
    assert "ProfilerActivity.CUDA" in absent.hint


@needs_shared
def test_a_real_table_of_totals_adds_up_to_what_it_says_itself() -> None:
    result = table(opened(SHARED / "torch" / "gpt_small_train_key_averages.txt"))
    # "Self CUDA time total: 119.988ms", of which 1.801 ms are copies and a little is not listed.
    assert 0.97 * 118.187e6 < result.meta["total_ns"] <= 118.187e6
    assert result.rows()[0]["category"] == "matmul"


def test_kernels_of_several_shapes_get_the_grid_or_block_that_differs() -> None:
    shapes = {
        "grid_x": [64, 64, 8, 1],
        "grid_y": [4, 1, 1, 1],
        "grid_z": [1, 1, 1, 1],
        "block_x": [128, 128, 256, 32],
        "block_y": [1, 1, 1, 1],
        "block_z": [1, 1, 1, None],
    }
    frame = pl.DataFrame({"name": ["a", "a", "b", "b"], **shapes})
    frame = frame.with_columns(pl.col("name").cast(pl.Enum(["a", "b"])))
    assert short_names_by_shape(frame).to_list() == [
        "a grid 64x4",
        "a grid 64",
        "b grid 8 block 256",
        "b grid 1 block ?",
    ]
    assert short_names_by_shape(frame.filter(pl.col("grid_y") == 4)).to_list() == ["a"]


def test_two_kernels_never_have_the_same_short_name() -> None:
    names = ["void k<4, float>(int)", "void k<8, float>(int)", "void k<8, double>(int)"]
    rows: Rows = [{"start_ns": at, "end_ns": at + 1, "name": name} for at, name in enumerate(names)]
    result = kernels(build_trace(kernels=rows))
    assert isinstance(result, TableResult)
    assert result.frame["short_name"].n_unique() == 3
    assert result.frame["name"].to_list() == names
