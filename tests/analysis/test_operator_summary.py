"""Operators: what they cost in themselves and with what they called, as PyTorch counts it."""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import gpusight as gs
from gpusight.analysis.api_summary import api_calls
from gpusight.analysis.launch_list import list_launches
from gpusight.analysis.operator_summary import BY, has_gpu_work, ops
from gpusight.analysis.selection import Selection
from gpusight.cli import options
from gpusight.cli.commands import ops as command
from gpusight.errors import UsageError
from gpusight.readers.open import open_trace
from gpusight.render.markdown_tables import to_markdown
from gpusight.render.table_layout import TableOptions
from gpusight.render.terminal_tables import to_plain
from gpusight.results import NotApplicable, TableResult
from gpusight.trace.trace import Trace
from tests.shared import DATA, EVERY_TORCH_TRACE, SHARED, name, needs_shared, opened
from tests.traces import Rows, build_trace

MAIN, AUTOGRAD = 11, 12


def table(trace: Trace, selection: Selection | None = None, by: str = "name") -> TableResult:
    result = ops(trace, selection or Selection(), by=by)
    assert isinstance(result, TableResult)
    return result


def columns(result: TableResult, *keys: str) -> list[tuple[Any, ...]]:
    return list(result.frame.select(keys).iter_rows())


# time       0    10   20   30   40   50   60   70   80   90   100
# step       [----------------------------------------------)          an annotation
# linear       [-----------------------)
# mm              [--------------)
# launch             [--)                   1, by mm
# fill                                        [--------)
# launch                                         [-)         2, by fill
# kernel                                                       [1----)[2-)
CALLS: Rows = [
    {"start_ns": 16, "end_ns": 22, "correlation": 1},
    {"start_ns": 66, "end_ns": 70, "correlation": 2},
]
OPS: Rows = [
    {"start_ns": 4, "end_ns": 52, "name": "linear", "op": 1, "shapes": "[[4,8],[8]]"},
    {"start_ns": 10, "end_ns": 40, "name": "mm", "op": 2, "shapes": "[[4,8]]"},
    {"start_ns": 60, "end_ns": 78, "name": "fill", "op": 3},
]
KERNELS: Rows = [
    {"start_ns": 80, "end_ns": 92, "name": "gemm", "correlation": 1, "op": 2},
    {"start_ns": 92, "end_ns": 96, "name": "zero", "correlation": 2, "op": 3},
]
STEP: Rows = [{"start_ns": 0, "end_ns": 94, "name": "ProfilerStep#3"}]
TIMES = ("name", "calls", "self_cpu_ns", "cpu_ns", "self_gpu_ns", "gpu_ns")


def test_times_in_itself_and_with_what_it_called() -> None:
    trace = build_trace(cpu_ops=OPS, api_calls=CALLS, kernels=KERNELS, ranges=STEP)
    result = table(trace)
    assert columns(result, *TIMES) == [
        ("mm", 1, 24, 30, 12, 12),
        ("fill", 1, 14, 18, 4, 4),
        ("ProfilerStep*", 1, 28, 94, 0, 16),
        ("linear", 1, 18, 48, 0, 12),
    ]
    assert columns(result, "share", "kind", "kernel", "shapes")[:2] == [
        (12 / 16, "operator", "gemm", "[[4,8]]"),
        (4 / 16, "operator", "zero", None),
    ]
    assert result.meta == {
        "operators": 3,
        "self_cpu_ns": 84,
        "api_self_cpu_ns": 10,
        "overhead_ns": 0,
        "work": 2,
        "gpu_ns": 16,
        "outside": 0,
        "outside_ns": 0,
        "found": {"op id": 2, "call": 0, "time": 0, "none": 0},
    }
    assert result.notes == ()


def test_totals_of_steps_have_a_column_per_step() -> None:
    result = gs.ops(DATA / "healthy.json.gz").answer
    assert result.title == "Operators by GPU time, totals"
    assert {f.key: f.shown for f in result.fields}["gpu_step_ns"]
    row = result.rows()[0]
    assert row["gpu_step_ns"] == pytest.approx(row["self_gpu_ns"] / 3)


def test_means_and_shares() -> None:
    again = [
        {**row, "start_ns": row["start_ns"] + 100, "end_ns": row["end_ns"] + 100} for row in OPS
    ]
    numbered = [{**row, "op": row["op"] + 10} for row in again]
    trace = build_trace(cpu_ops=[*OPS, *numbered], api_calls=CALLS, kernels=KERNELS)
    row = table(trace).rows()[0]
    assert (row["name"], row["calls"], row["work"]) == ("mm", 2, 1)
    assert (row["cpu_mean_ns"], row["gpu_mean_ns"]) == (30, 6)
    assert row["cpu_share"] == pytest.approx(54 / (54 + 36 + 32))
    assert row["kernel_share"] == 1


def test_an_operator_alone_inside_one_of_its_name_is_one_with_it() -> None:
    # to      [-----------------)        to      [-----------------)
    # to        [-------------)          to        [------)
    # copy        [----)                 view               [--)
    alone: Rows = [
        {"start_ns": 0, "end_ns": 20, "name": "to", "op": 1},
        {"start_ns": 2, "end_ns": 18, "name": "to", "op": 2},
        {"start_ns": 4, "end_ns": 10, "name": "copy", "op": 3},
    ]
    beside: Rows = [
        {"start_ns": 100, "end_ns": 120, "name": "to", "op": 4},
        {"start_ns": 102, "end_ns": 110, "name": "to", "op": 5},
        {"start_ns": 112, "end_ns": 116, "name": "view", "op": 6},
    ]
    kernels = [{"start_ns": 200, "end_ns": 207, "name": "k", "correlation": 9, "op": 2}]
    one = columns(table(build_trace(cpu_ops=alone, kernels=kernels)), *TIMES)
    two = columns(table(build_trace(cpu_ops=beside)), *TIMES[:4])
    assert one == [("to", 1, 14, 20, 7, 7), ("copy", 1, 6, 6, 0, 0)]
    assert two == [("to", 2, 16, 28), ("view", 1, 4, 4)]


def test_shapes_of_what_is_one_are_those_of_the_outer() -> None:
    rows: Rows = [
        {"start_ns": 0, "end_ns": 20, "name": "to", "shapes": "[[1]]"},
        {"start_ns": 2, "end_ns": 18, "name": "to", "shapes": "[[2]]"},
    ]
    result = table(build_trace(cpu_ops=rows), by="shapes")
    assert columns(result, "name", "shapes", "calls", "self_cpu_ns") == [("to", "[[1]]", 1, 20)]


def test_by_shapes_tells_inputs_apart() -> None:
    rows: Rows = [
        {"start_ns": 0, "end_ns": 9, "name": "mm", "shapes": "[[4]]"},
        {"start_ns": 10, "end_ns": 15, "name": "mm", "shapes": "[[8]]"},
        {"start_ns": 20, "end_ns": 26, "name": "mm", "shapes": "[[8]]"},
        {"start_ns": 30, "end_ns": 31, "name": "mm"},
    ]
    trace = build_trace(cpu_ops=rows)
    apart = table(trace, by="shapes")
    assert columns(apart, "shapes", "calls", "cpu_ns") == [
        ("[[8]]", 2, 11),
        ("[[4]]", 1, 9),
        (None, 1, 1),
    ]
    assert columns(table(trace), "shapes", "calls") == [("[[8]]", 4)]


def test_operators_that_serve_the_profiler_are_not_there() -> None:
    rows = [*OPS, {"start_ns": 45, "end_ns": 50, "name": "profiler::_record_function_exit"}]
    trace = build_trace(cpu_ops=rows, api_calls=CALLS)
    assert ("linear", 18) in columns(table(trace), "name", "self_cpu_ns")
    assert len(table(trace).frame) == 3


def test_overhead_of_the_profiler_is_nobodys_own_time() -> None:
    """It is taken away from what ran on its thread; of no known thread, from the main thread's."""
    machine: dict[str, Rows] = {
        "processes": [{"process": 1, "pid": 100}],
        "threads": [{"thread": MAIN, "tid": 100}, {"thread": AUTOGRAD, "tid": 101}],
    }
    rows: Rows = [
        {"start_ns": 0, "end_ns": 50, "name": "a"},
        {"start_ns": 0, "end_ns": 50, "name": "b", "thread": AUTOGRAD},
    ]
    spent: Rows = [
        {"start_ns": 10, "end_ns": 30, "name": "request", "thread": 999, "process": 9},
        {"start_ns": 40, "end_ns": 45, "name": "flush", "thread": AUTOGRAD},
    ]
    result = table(build_trace(None, cpu_ops=rows, overheads=spent, **machine))
    assert sorted(columns(result, "name", "self_cpu_ns")) == [("a", 30), ("b", 45)]
    assert result.meta["overhead_ns"] == 25


def test_annotations_hold_the_work_that_no_operator_launched() -> None:
    trace = build_trace(
        cpu_ops=OPS,
        ranges=STEP,
        api_calls=[
            {"start_ns": 90, "end_ns": 91, "correlation": 1},
            {"start_ns": 98, "end_ns": 99, "correlation": 2},
        ],
        kernels=[{"start_ns": 95, "end_ns": 98, "name": "k", "correlation": c} for c in (1, 2, 7)],
    )
    result = table(trace)
    assert columns(result, "name", "kind", "self_gpu_ns")[0] == ("ProfilerStep*", "annotation", 3)
    assert (result.meta["outside"], result.meta["outside_ns"]) == (2, 6)
    (note,) = result.notes
    assert note.startswith("GPU activities launched outside of all operators and annotations: 2 (6")


def test_work_matched_by_time_is_said() -> None:
    kernels = [{key: value for key, value in k.items() if key != "op"} for k in KERNELS]
    result = table(build_trace(cpu_ops=OPS, api_calls=CALLS, kernels=kernels))
    assert columns(result, "name", "self_gpu_ns")[:2] == [("mm", 12), ("fill", 4)]
    (note,) = result.notes
    assert note.startswith("GPU activities without operator id: 2 of 2; each counts for the")


def test_memory_is_counted_while_an_operator_was_open() -> None:
    taken = {"allocator": "framework", "device": 0}
    trace = build_trace(
        cpu_ops=OPS,
        memory_events=[
            {"time_ns": 12, "bytes": 100, **taken},
            {"time_ns": 30, "bytes": 30, "operation": "deallocation", "thread": AUTOGRAD, **taken},
            {"time_ns": 45, "bytes": 7, **taken},
            {"time_ns": 46, "bytes": 999, "memory_kind": "Host", "allocator": "framework"},
            {"time_ns": 47, "bytes": 999, "device": 0},
        ],
    )
    sums = {row[0]: row[1:] for row in columns(table(trace), "name", "self_gpu_bytes", "gpu_bytes")}
    assert sums == {"linear": (7, 77), "mm": (70, 70), "fill": (0, 0)}
    assert table(build_trace(cpu_ops=OPS)).frame["gpu_bytes"].null_count() == 3


def test_flops_are_those_the_profiler_counted() -> None:
    rows = [OPS[0], {**OPS[1], "flops": 3000}, OPS[2]]
    result = table(build_trace(cpu_ops=rows, api_calls=CALLS, kernels=KERNELS))
    assert columns(result, "name", "flops", "flops_per_s")[:2] == [
        ("mm", 3000, 3000 * 1e9 / 12),
        ("fill", None, None),
    ]


def test_a_selection_counts_what_began_in_it_and_what_was_launched_in_it() -> None:
    ranges = [{"start_ns": 55, "end_ns": 80, "name": "late"}]
    trace = build_trace(cpu_ops=OPS, api_calls=CALLS, kernels=KERNELS, ranges=ranges)
    result = table(trace, Selection(within="late"))
    assert columns(result, "name", "share", "self_gpu_ns") == [("fill", 1.0, 4), ("late", 0.0, 0)]
    assert "api_self_cpu_ns" not in result.meta


def test_a_device_and_a_process_can_be_selected() -> None:
    kernels = [KERNELS[0], {**KERNELS[1], "device": 1}]
    rows = [*OPS, {"start_ns": 0, "end_ns": 9, "name": "other", "process": 2, "thread": 21}]
    processes = [{"process": p, "pid": 100 + p} for p in (1, 2)]
    trace = build_trace(cpu_ops=rows, api_calls=CALLS, kernels=kernels, processes=processes)
    on_one = {r[0]: r[1] for r in columns(table(trace, Selection(device=1)), "name", "self_gpu_ns")}
    assert on_one == {"fill": 4, "mm": 0, "linear": 0, "other": 0}
    assert columns(table(trace, Selection(process="102")), "name", "gpu_ns") == [("other", 0)]


def test_without_gpu_work_the_host_decides() -> None:
    result = table(build_trace(cpu_ops=OPS))
    assert result.title == "Operators by CPU time"
    assert columns(result, "name", "self_gpu_ns", "share") == [
        ("mm", None, None),
        ("linear", None, None),
        ("fill", None, None),
    ]
    shown = {f.key for f in result.fields if f.shown}
    assert "cpu_share" in shown
    assert not shown & {"share", "self_gpu_ns", "gpu_ns"}


def test_odd_operators_are_survived() -> None:
    """They cross, have no thread, no length, no key of their own."""
    rows: Rows = [
        {"start_ns": 0, "end_ns": 20, "name": "a", "thread": None, "op": 1},
        {"start_ns": 5, "end_ns": 15, "name": "b", "op": 1},
        {"start_ns": 10, "end_ns": 30, "name": "c", "op": 1},
        {"start_ns": 12, "end_ns": 12, "name": "d"},
    ]
    result = table(build_trace(cpu_ops=rows, api_calls=CALLS, kernels=KERNELS))
    sums = {row[0]: row[1:] for row in columns(result, *TIMES[:5])}
    assert sums == {
        "a": (1, 20, 20, 0),
        "b": (1, 10, 10, 0),
        "c": (1, 14, 20, 12),
        "d": (1, 0, 0, 0),
    }


# Places ------------------------------------------------------------------------------------------

PYTHON: Rows = [
    {"start_ns": 0, "end_ns": 98, "name": "train.py(1): main"},
    {"start_ns": 2, "end_ns": 56, "name": "nn.Module: Net_0"},
    {"start_ns": 3, "end_ns": 54, "name": "nn.Module: Linear_0"},
    {"start_ns": 8, "end_ns": 50, "name": "torch/nn/functional.py(4): linear"},
    {"start_ns": 58, "end_ns": 59, "name": "nn.Module: Net_0"},
]
PLACED = build_trace(cpu_ops=OPS, api_calls=CALLS, kernels=KERNELS, python_calls=PYTHON)


def test_by_module() -> None:
    result = table(PLACED, by="module")
    assert columns(result, *TIMES) == [
        ("Net", 2, 4, 55, 0, 12),
        ("Linear", 1, 51, 51, 12, 12),
    ]
    assert columns(result, "path", "depth", "modules", "kind") == [
        ("Net", 0, 1, "module"),
        ("Net / Linear", 1, 1, "module"),
    ]
    assert result.fields[-1].label == "Module"
    assert result.notes == (
        "GPU activities launched outside of all modules: 1 (4 ns); not in the table",
    )


def nest(*calls: tuple[int, int, str]) -> Rows:
    return [{"start_ns": a, "end_ns": b, "name": f"nn.Module: {name}"} for a, b, name in calls]


def test_modules_are_a_tree_by_class_and_path() -> None:
    # Two blocks of two linear layers each, called in two steps; then a loss.
    step = [
        (0, 50, "Net_0"),
        *((2, 20, "Block_0"), (3, 8, "Linear_0"), (9, 19, "Linear_1")),
        *((22, 40, "Block_1"), (23, 28, "Linear_2"), (29, 39, "Linear_3")),
        (60, 65, "Loss_0"),
    ]
    again = [(start + 100, end + 100, name) for start, end, name in step]
    result = table(build_trace(cpu_ops=OPS, python_calls=nest(*step, *again)), by="module")
    assert columns(result, "path", "depth", "modules", "calls", "self_cpu_ns", "cpu_ns") == [
        ("Net", 0, 1, 2, 28, 100),
        ("Net / Block", 1, 2, 4, 12, 72),
        ("Net / Block / Linear.1", 2, 2, 4, 40, 40),
        ("Net / Block / Linear.0", 2, 2, 4, 20, 20),
        ("Loss", 0, 1, 2, 10, 10),
    ]
    text = to_plain(result, TableOptions(width=100))
    assert any(row.endswith("      Linear.1") for row in text.splitlines())


def test_markdown_indents_the_tree() -> None:
    text = to_markdown(table(PLACED, by="module"))
    assert "| `Net` |" in text
    assert "| &emsp;`Linear` |" in text


def test_modules_nested_without_end_are_answered_at_once() -> None:
    deep = nest(*((at, 9_000 - at, f"M_{at}") for at in range(4_000)))
    result = table(build_trace(cpu_ops=OPS, python_calls=deep), by="module")
    assert result.frame.height == 4_000
    assert result.frame["depth"].max() == 3_999
    assert result.frame["path"].str.len_chars().max() < 5_000  # type: ignore[operator]


def test_by_function() -> None:
    result = table(PLACED, by="function")
    assert columns(result, *TIMES) == [("train.py(1): main", 1, 98, 98, 16, 16)]
    assert columns(result, "kind", "kernel", "kernel_share") == [("function", "gemm", 0.75)]
    assert result.fields[-1].label == "Function"


def test_python_calls_have_the_line_of_their_def_only() -> None:
    result = table(PLACED, by="line")
    assert result.frame.equals(table(PLACED, by="function").frame)
    assert result.fields[-1].label == "Function"
    assert "the line of each `def`, not the line of each call" in result.notes[0]


def test_work_selected_inside_a_module_belongs_to_it_though_it_began_before() -> None:
    ranges = [{"start_ns": 12, "end_ns": 30, "name": "attention"}]
    rows: dict[str, Rows] = {"cpu_ops": OPS, "api_calls": CALLS, "kernels": KERNELS}
    trace = build_trace(None, **rows, python_calls=PYTHON, ranges=ranges)
    result = table(trace, Selection(within="attention"), by="module")
    assert columns(result, *TIMES) == [("Net", 0, 0, 0, 0, 12), ("Linear", 0, 0, 0, 12, 12)]
    assert columns(result, "share", "gpu_mean_ns") == [(0.0, None), (1.0, None)]


def test_lines_of_older_traces() -> None:
    rows = [{**OPS[0], "stack": "a.py(1): f;b.py(2): g"}, OPS[1], {**OPS[2], "stack": "b.py(2): g"}]
    trace = build_trace(cpu_ops=rows, api_calls=CALLS, kernels=KERNELS)
    result = table(trace, by="line")
    assert columns(result, *TIMES) == [
        ("a.py(1): f", 2, 48, None, 12, None),
        ("b.py(2): g", 1, 18, None, 4, None),
    ]
    assert columns(result, "kind") == [("line",), ("line",)]
    assert result.fields[-1].label == "Line"
    assert result.notes[0].startswith("the capture has the Python stack of each operator, but no")


def test_functions_of_older_traces_sum_up_their_lines() -> None:
    rows = [{**OPS[0], "stack": "a.py(1): f"}, OPS[1], {**OPS[2], "stack": "a.py(2): f"}]
    trace = build_trace(cpu_ops=rows, api_calls=CALLS, kernels=KERNELS)
    result = table(trace, by="function")
    assert columns(result, *TIMES) == [("a.py: f", 3, 66, None, 16, None)]
    assert len(table(trace, by="line").frame) == 2


def test_call_lines_in_stacks_are_preferred_to_def_lines() -> None:
    rows = [{**OPS[0], "stack": "train.py(7): main"}, *OPS[1:]]
    trace = build_trace(cpu_ops=rows, api_calls=CALLS, kernels=KERNELS, python_calls=PYTHON)
    assert columns(table(trace, by="line"), "name", "kind") == [("train.py(7): main", "line")]
    assert columns(table(trace, by="function"), "name") == [("train.py(1): main",)]


@pytest.mark.parametrize(
    ("by", "hint"),
    [
        ("module", "with_stack=True"),
        ("function", "with_stack=True"),
        ("line", "with_stack=True"),
        ("shapes", "record_shapes=True"),
    ],
)
def test_what_was_not_recorded_is_explained(by: str, hint: str) -> None:
    rows = [{"start_ns": 0, "end_ns": 5, "name": "mm"}]
    result = ops(build_trace({"source": "torch-chrome"}, cpu_ops=rows), by=by)
    assert isinstance(result, NotApplicable)
    assert hint in result.hint


def test_python_calls_without_a_module() -> None:
    result = ops(build_trace(cpu_ops=OPS, python_calls=PYTHON[:1]), by="module")
    assert isinstance(result, NotApplicable)
    assert result.reason == "no Python call in the capture is a module"


# Captures without operators ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "rows", "hint"),
    [
        ("nsys-sqlite", {"ranges": STEP}, "gpusight ranges FILE"),
        ("nsys-sqlite", {}, "torch.profiler"),
        ("torch-chrome", {"kernels": KERNELS}, "ProfilerActivity.CPU"),
    ],
)
def test_no_operators_is_explained(source: str, rows: dict[str, Rows], hint: str) -> None:
    result = ops(build_trace({"source": source}, **rows))
    assert isinstance(result, NotApplicable)
    assert result.reason == "the capture has no framework operators"
    assert hint in result.hint


TOTALS: Rows = [
    {"name": "mm", "side": "host", "calls": 2, "self_gpu_ns": 30, "gpu_ns": 30, "self_cpu_ns": 5},
    {"name": "gemm", "side": "gpu", "calls": 2, "self_gpu_ns": 30, "gpu_ns": 30},
    {"name": "add", "side": "host", "calls": 4, "self_gpu_ns": 10, "gpu_ns": 12, "self_cpu_ns": 9},
]


def test_printed_totals_are_shown_as_they_are() -> None:
    result = table(build_trace(op_totals=TOTALS))
    assert columns(result, "name", "calls", "self_gpu_ns", "gpu_ns", "share", "gpu_mean_ns") == [
        ("mm", 2, 30, 30, 0.75, 15.0),
        ("add", 4, 10, 12, 0.25, 3.0),
    ]
    assert result.meta == {"operators": 6, "gpu_ns": 40}
    assert result.notes[1].startswith("1 rows of kernels")


@pytest.mark.parametrize(
    ("below", "gpu", "cpu", "basis"),
    [
        ([], 0.75, 5 / 14, "the CPU time of its rows and the GPU time of its rows"),
        (
            ["Self CPU time total: 50ns", "Self CUDA time total: 0.060us"],
            0.5,
            0.1,
            "the totals printed below the table (50 ns of CPU time, 60 ns of GPU time)",
        ),
        (
            ["Self CPU time total: 0.000us", "Self XPU time total: 1.5e3"],
            0.75,
            5 / 14,
            "the CPU time of its rows and the GPU time of its rows",
        ),
        (
            ["CUDA time total: 1.698ms", "Self XPU time total: 0.060us"],
            0.5,
            5 / 14,
            "the totals printed below the table (60 ns of GPU time) and the CPU time of its rows",
        ),
    ],
)
def test_shares_are_of_the_totals_below_the_table(
    below: list[str], gpu: float, cpu: float, basis: str
) -> None:
    trace = build_trace(op_totals=TOTALS, diagnostics=[{"text": text} for text in below])
    result = table(trace)
    row = result.rows()[0]
    assert (row["share"], row["cpu_share"]) == pytest.approx((gpu, cpu))
    assert result.notes[0] == f"shares are relative to {basis}"


def test_shares_are_those_that_a_cut_table_prints() -> None:
    path = DATA / "torch_odd_shapes_averages.txt"
    rows, _ = printed(path)
    mm = next(r for r in rows if r["Name"] == "aten::mm")
    ours = table(opened(path), by="shapes").rows()[0]
    assert ours["name"] == "aten::mm"
    assert f"{ours['share']:.2%}" == mm["Self CUDA %"] == "15.27%"
    assert f"{ours['cpu_share']:.2%}" == mm["Self CPU %"]


def test_a_printed_table_and_the_trace_of_the_same_run_say_the_same() -> None:
    path = DATA / "gpt_small_forward_key_averages.txt"
    traced = {r["name"]: r for r in table(of_the_same_run(path)).rows()}
    rows = [r for r in table(opened(path)).rows() if r["name"] in traced]
    assert len(rows) > 30
    for row in rows:
        traced_row = traced[row["name"]]
        assert row["calls"] == traced_row["calls"]
        assert row["self_gpu_ns"] == pytest.approx(traced_row["self_gpu_ns"], abs=500)
        assert row["self_cpu_ns"] == pytest.approx(traced_row["self_cpu_ns"], abs=500)


@pytest.mark.parametrize(
    ("selection", "by"),
    [
        (Selection(within="x"), "name"),
        (Selection(), "shapes"),
        (Selection(), "module"),
        (Selection(), "function"),
        (Selection(), "line"),
    ],
)
def test_printed_totals_cannot_be_taken_apart(selection: Selection, by: str) -> None:
    result = ops(build_trace(op_totals=TOTALS), selection, by=by)
    assert isinstance(result, NotApplicable)
    assert "totals" in result.reason


def test_totals_printed_by_shapes_are_summed_unless_asked_for() -> None:
    rows = [
        {"name": "mm", "calls": 1, "self_gpu_ns": 30, "shapes": "[[4]]"},
        {"name": "mm", "calls": 3, "self_gpu_ns": 10, "shapes": "[[8]]"},
    ]
    trace = build_trace(op_totals=rows)
    keys = ("shapes", "calls", "self_gpu_ns", "gpu_ns")
    assert columns(table(trace), *keys) == [("[[8]]", 4, 40, None)]
    assert columns(table(trace, by="shapes"), *keys) == [
        ("[[4]]", 1, 30, None),
        ("[[8]]", 3, 10, None),
    ]


def test_totals_of_the_host_alone() -> None:
    rows = [
        {"name": "mm", "calls": 2, "self_cpu_ns": 5},
        {"name": "add", "calls": 1, "self_cpu_ns": 9},
    ]
    result = table(build_trace(op_totals=rows))
    assert columns(result, "name", "self_cpu_ns") == [("add", 9), ("mm", 5)]
    assert result.frame["cpu_share"].to_list() == pytest.approx([9 / 14, 5 / 14])
    assert result.meta["gpu_ns"] is None


def test_only_known_groupings() -> None:
    with pytest.raises(UsageError, match="'size'"):
        ops(build_trace(cpu_ops=OPS), by="size")


# As PyTorch counts -------------------------------------------------------------------------------

AVERAGES = [
    path
    for folder in (DATA, SHARED / "torch")
    for path in sorted(folder.glob("*_key_averages.txt"))
    if path.with_name(path.name.replace("_key_averages.txt", ".json.gz")).exists()
]
_PRINTED = {
    "Self CPU": "self_cpu_ns",
    "CPU total": "cpu_ns",
    "Self CUDA": "self_gpu_ns",
    "CUDA total": "gpu_ns",
}
_UNITS = {"us": 1, "ms": 1e3, "s": 1e6}
_REQUEST = "Activity Buffer Request"
_CUT = "..."
_MOVED = {
    "Memcpy DtoD (Device -> Device)": "[copy Device-to-Device]",
    "Memset (Device)": "[memset]",
}


def of_the_same_run(path: Path) -> Trace:
    return open_trace(
        path.with_name(path.name.replace("_key_averages.txt", ".json.gz")), cache=False
    )


def printed(path: Path) -> tuple[list[dict[str, str]], dict[str, str]]:
    """Read the rows of a printed table, and the totals below it."""
    lines = path.read_text(encoding="utf-8").splitlines()
    headings = re.split(r"\s{2,}", lines[1].strip())
    end = next(i for i, line in enumerate(lines) if i > 2 and line.startswith("---"))
    rows = [dict(zip(headings, re.split(r"\s{2,}", x.strip()), strict=True)) for x in lines[3:end]]
    return rows, dict(line.split(": ") for line in lines[end + 1 :] if ": " in line)


def on_the_host(row: dict[str, str]) -> bool:
    return row["CPU total"] != "0.000us"


def as_printed(ns: float, like: str) -> str:
    """Print a time in the unit, and with the digits, of another."""
    unit = re.sub(r"[\d.]", "", like)
    return f"{ns / 1000 / _UNITS[unit]:.3f}{unit}"


def counted_twice(trace: Trace, rows: list[dict[str, str]]) -> dict[str, float]:
    """Give the GPU time that PyTorch counts a second time in some operators' totals.

    It gives the profiler's first request for memory a kernel, though that launches none, and so
    counts this kernel again in all that encloses the request.
    """
    given = next((r["Self CUDA"] for r in rows if r["Name"] == _REQUEST), "0.000us")
    if given == "0.000us":
        return {}
    first = trace.overheads["start_ns"][0]
    around = trace.cpu_ops.filter(pl.col("start_ns") <= first, pl.col("end_ns") > first)
    return dict.fromkeys(around["name"].cast(pl.String), float(given.removesuffix("us")) * 1000)


@pytest.mark.parametrize("path", AVERAGES, ids=name)
def test_every_operator_of_the_printed_table_agrees(path: Path) -> None:
    """To the last digit: times in itself, totals, calls."""
    rows, _ = printed(path)
    trace = of_the_same_run(path)
    ours = {r["name"]: r for r in table(trace).rows()}
    twice = counted_twice(trace, rows)
    theirs = [r for r in rows if r["Name"] in ours and on_the_host(r)]
    assert len(theirs) > 20
    for row in theirs:
        own = ours[row["Name"]]
        own["gpu_ns"] += twice.get(row["Name"], 0)
        assert row["# of Calls"] == str(own["calls"])
        assert {p: row[p] for p in _PRINTED} == {
            p: as_printed(own[key], row[p]) for p, key in _PRINTED.items()
        }


@pytest.mark.parametrize("path", AVERAGES, ids=name)
def test_the_other_rows_and_both_totals_agree(path: Path) -> None:
    """Calls of CUDA, kernels and copies; what is left are annotations and the profiler's own."""
    rows, totals = printed(path)
    trace = of_the_same_run(path)
    result, calls, work = table(trace), api_calls(trace), list_launches(trace)
    assert isinstance(calls, TableResult)
    assert isinstance(work, TableResult)
    named = {r["name"]: (r["calls"], r["total_ns"]) for r in calls.rows()}
    sums = work.frame.group_by("name").agg(pl.len(), pl.col("duration_ns").sum()).rows()
    left = {r["Name"] for r in rows} - set(result.frame["name"])
    for row in rows:
        count, heading = int(row["# of Calls"]), "CPU total" if on_the_host(row) else "Self CUDA"
        key = _MOVED.get(row["Name"], row["Name"].removesuffix(_CUT))
        like = [named[key]] if key in named else [s[1:] for s in sums if s[0].startswith(key)]
        if (count, row[heading]) in [(n, as_printed(ns, row[heading])) for n, ns in like]:
            left.discard(row["Name"])
    known = {"[memory]", _REQUEST, *trace.gpu_ranges["name"].cast(pl.String)}
    assert left <= {n[:52] + _CUT if len(n) > 55 else n for n in known}
    meta = result.meta
    host = meta["self_cpu_ns"] + meta["api_self_cpu_ns"] + meta["overhead_ns"]
    for key, ns in (("Self CPU time total", host), ("Self CUDA time total", meta["gpu_ns"])):
        assert as_printed(ns, totals[key]) == totals[key]


@pytest.mark.parametrize("by", ["name", "shapes"])
def test_every_number_of_pytorch_is_ours(by: str) -> None:
    """All operators of a run with steps, checkpoints, a DataLoader and a backward in Python."""
    truth = json.loads((DATA / "torch_checkpoint_averages.json").read_text(encoding="utf-8"))
    result = table(opened(DATA / "torch_checkpoint.json.gz"), by=by)
    keys = (
        "calls",
        "self_cpu_ns",
        "cpu_ns",
        "self_gpu_ns",
        "gpu_ns",
        "self_gpu_bytes",
        "gpu_bytes",
    )
    ours: dict[tuple[str, bool, str], list[int]] = {}
    for row in result.rows():
        shapes = json.loads(row["shapes"] or "[]") if by == "shapes" else []
        # PyTorch shows a list of tensors as nothing.
        flat = [s if all(isinstance(n, int) for n in s) else [] for s in shapes]
        key = (row["name"], row["kind"] == "annotation", str(flat))
        sums = ours.setdefault(key, [0] * len(keys))
        ours[key] = [a + row[k] for a, k in zip(sums, keys, strict=True)]
    theirs = {(r[0], r[1], str(r[9] if by == "shapes" else [])): r[2:9] for r in truth[by]}
    assert ours == theirs


def test_both_totals_of_that_run_agree() -> None:
    truth = json.loads((DATA / "torch_checkpoint_averages.json").read_text(encoding="utf-8"))
    meta = table(opened(DATA / "torch_checkpoint.json.gz")).meta
    host = meta["self_cpu_ns"] + meta["api_self_cpu_ns"] + meta["overhead_ns"]
    assert (host, meta["gpu_ns"]) == (truth["self_cpu_total_ns"], truth["self_gpu_total_ns"])


@needs_shared
@pytest.mark.parametrize("path", EVERY_TORCH_TRACE, ids=name)
def test_no_time_is_lost_or_made(path: Path) -> None:
    """Own times add up to what ran; a total is never less than what is its own."""
    trace = opened(path)
    result = ops(trace)
    if isinstance(result, NotApplicable):
        assert not trace.has("cpu_ops")
        return
    frame, meta = result.frame, result.meta
    if has_gpu_work(trace):
        assert frame["work"].sum() + meta["outside"] == meta["work"]
        assert frame["self_gpu_ns"].sum() + meta["outside_ns"] == meta["gpu_ns"]
        assert (frame["gpu_ns"] >= frame["self_gpu_ns"]).all()
    assert (frame["self_cpu_ns"] >= 0).all()
    assert (frame["calls"] > 0).all()


# How it is shown ---------------------------------------------------------------------------------


@pytest.mark.parametrize("by", BY)
def test_the_default_table_fits_a_screen(by: str) -> None:
    trace = opened(DATA / "torch_checkpoint.json.gz")
    text = to_plain(table(trace, by=by), TableOptions(width=80, limit=20))
    assert max(map(len, text.splitlines())) <= 80
    assert "Self GPU" in text


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    parser = ArgumentParser()
    command.add_arguments(parser)
    options.add_common(parser)
    path = str(DATA / "torch_checkpoint.json.gz")
    args = [path, "--by", "module", "--format", "json", "--top", "2", "--no-cache", "--quiet"]
    assert command.run(parser.parse_args(args)) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["kind"] for row in document["rows"]] == ["module", "module"]
    assert document["meta"]["work"] == 192  # of 288, without the step of warm-up
    assert [row["depth"] for row in document["rows"]] == [0, 1]
    assert pl.DataFrame(document["rows"])["gpu_ns"].is_sorted(descending=True)
