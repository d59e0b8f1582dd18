"""GPU work in order of time, with what launched it."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

import pytest

from gpusight.analysis.launch_list import FIELDS, list_launches
from gpusight.analysis.selection import Selection
from gpusight.cli import options
from gpusight.cli.commands import launches as command
from gpusight.errors import UsageError
from gpusight.pace import AS_RECORDED
from gpusight.render.table_layout import TableOptions
from gpusight.render.terminal_tables import to_plain
from gpusight.results import NotApplicable, TableResult
from gpusight.trace.trace import Trace
from tests.shared import DATA, opened
from tests.traces import Rows, build_trace

CALLS: Rows = [
    {"start_ns": 10, "end_ns": 14, "correlation": 1},
    {"start_ns": 20, "end_ns": 50, "correlation": 2, "name": "cudaMemcpyAsync"},
]
KERNELS: Rows = [
    {"start_ns": 40, "end_ns": 60, "name": "void mine<float>(int)", "correlation": 1, "op": 5},
    {"start_ns": 70, "end_ns": 71, "name": "other", "correlation": 9, "stream": 8, "device": 1},
]
WORK: dict[str, Rows] = {
    "kernels": KERNELS,
    "copies": [{"start_ns": 30, "end_ns": 38, "correlation": 2, "bytes": 4}],
    "memsets": [{"start_ns": 65, "end_ns": 66}],
    "api_calls": CALLS,
    "cpu_ops": [{"start_ns": 5, "end_ns": 15, "name": "aten::mm", "op": 5}],
    "ranges": [{"start_ns": 8, "end_ns": 30, "name": "forward"}],
}


def table(trace: Trace, selection: Selection | None = None, **more: Any) -> TableResult:
    result = list_launches(trace, selection or Selection(), **more)
    assert isinstance(result, TableResult)
    return result


def columns(result: TableResult, *keys: str) -> list[tuple[Any, ...]]:
    return list(result.frame.select(keys).iter_rows())


def shown(result: TableResult) -> list[str]:
    return [f.key for f in result.fields if f.shown]


def test_work_of_all_kinds_in_order_of_time() -> None:
    result = table(build_trace(None, **WORK))
    assert columns(result, "start_ns", "duration_ns", "kind", "name") == [
        (30, 8, "copy", "[copy Host-to-Device]"),
        (40, 20, "kernel", "void mine<float>(int)"),
        (65, 1, "memset", "[memset]"),
        (70, 1, "kernel", "other"),
    ]
    assert result.meta == {
        "work": 4,
        "duration_ns": 30,
        "found": {"op id": 1, "call": 0, "time": 0, "none": 3},
    }
    assert result.notes == ("2 GPU activities have no launching call in the capture",)


def test_delays_run_from_the_start_and_from_the_end_of_the_call() -> None:
    """Below zero: the GPU began while the call was still running."""
    result = table(build_trace(None, **WORK))
    assert columns(result, "call", "delay_ns", "queue_ns") == [
        ("cudaMemcpyAsync", 10, -20),
        ("cudaLaunchKernel", 30, 26),
        (None, None, None),
        (None, None, None),
    ]


def test_causes_are_named() -> None:
    row = table(build_trace(None, **WORK)).rows()[1]
    assert (row["op"], row["found"], row["range"]) == ("aten::mm", "op id", "forward")
    assert (row["module"], row["call_site"], row["in_graph"]) == (None, None, False)
    assert (row["device"], row["stream"], row["correlation"]) == (0, 7, 1)
    assert len(row) == len(FIELDS)


def test_the_two_causes_that_tell_most_are_shown() -> None:
    numbers = ["start_ns", "duration_ns", "delay_ns", "short_name"]
    assert shown(table(build_trace(None, **WORK))) == [*numbers, "op", "range"]
    bare = build_trace(kernels=KERNELS, api_calls=CALLS)
    assert shown(table(bare)) == [*numbers, "call"]
    assert shown(table(build_trace(kernels=KERNELS))) == [*numbers, "call"]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("mine", ["void mine<float>(int)"]),
        ("MINE", ["void mine<float>(int)"]),
        ("void*", ["void mine<float>(int)"]),
        ("o*", ["other"]),
        ("copy", ["[copy Host-to-Device]"]),
        ("[copy Host-to-Device]", ["[copy Host-to-Device]"]),
        ("/^void mine|^oth/", ["void mine<float>(int)", "other"]),
        ("regex:THER", None),
        ("*e*", ["[copy Host-to-Device]", "void mine<float>(int)", "[memset]", "other"]),
    ],
)
def test_work_by_name(pattern: str, names: list[str] | None) -> None:
    if names is None:
        with pytest.raises(UsageError, match="no GPU work matches"):
            list_launches(build_trace(None, **WORK), kernel=pattern)
        return
    result = table(build_trace(None, **WORK), kernel=pattern)
    assert result.frame["name"].to_list() == names


def test_a_name_that_nothing_has() -> None:
    with pytest.raises(UsageError, match="no GPU work matches 'nope'"):
        list_launches(build_trace(None, **WORK), kernel="nope")


def test_selections() -> None:
    trace = build_trace(None, **WORK)
    assert columns(table(trace, Selection(device=1)), "name") == [("other",)]
    inside = table(trace, Selection(within="forward"))
    assert columns(inside, "name") == [("[copy Host-to-Device]",), ("void mine<float>(int)",)]
    apart = build_trace(None, **{**WORK, "ranges": [{"start_ns": 500, "end_ns": 600, "name": "x"}]})
    nothing = table(apart, Selection(within="x"), kernel="mine")
    assert nothing.frame.height == 0


@pytest.mark.parametrize(
    ("source", "hint"), [("nsys-sqlite", "nsys profile"), ("torch-chrome", "ProfilerActivity.CUDA")]
)
def test_no_gpu_work_is_explained(source: str, hint: str) -> None:
    result = list_launches(build_trace({"source": source}, api_calls=CALLS))
    assert isinstance(result, NotApplicable)
    assert hint in result.hint


def test_graphs_are_mentioned() -> None:
    by_node = table(opened(DATA / "graph_node.sqlite"))
    assert by_node.notes[0].startswith("360 GPU activities ran inside CUDA graphs")
    whole = table(opened(DATA / "graph.sqlite"), Selection(within="replay"))
    assert set(whole.frame["kind"]) == {"graph"}
    assert whole.frame["in_graph"].any() is False
    assert [n for n in whole.notes if "traced per graph" in n]


def test_who_launched_a_kernel_of_a_backward_pass() -> None:
    trace = opened(DATA / "torch_checkpoint.json.gz")
    result = table(trace, kernel="sgemm")
    assert result.frame.height > 10
    assert set(result.frame["kind"]) == {"kernel"}
    assert result.frame["call_site"].null_count() == 0
    assert {"w.py(13): blk", "w.py(14): forward"} >= set(result.frame["call_site"])


@pytest.mark.parametrize("capture", ["torch_checkpoint.json.gz", "dataload.sqlite"])
def test_the_default_table_fits_a_screen(capture: str) -> None:
    text = to_plain(table(opened(DATA / capture)), TableOptions(width=80, limit=20))
    assert max(map(len, text.splitlines())) <= 80
    assert "Duration" in text


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    parser = ArgumentParser()
    command.add_arguments(parser)
    options.add_common(parser)
    path = str(DATA / "torch_checkpoint.json.gz")
    args = [path, "--kernel", "[copy*", "--format", "json", "--no-cache", "--quiet"]
    assert command.run(parser.parse_args(args)) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["kind"] for row in document["rows"]} == {"copy"}
    assert document["meta"]["work"] == len(document["rows"]) == 6
    named = document["meta"]["headline"]
    assert document["meta"]["window"] == named["text"]
    assert (named["steps"], named["recorded_step_ns"] > named["step_ns"]) == (2, True)
    assert AS_RECORDED in document["meta"]["notes"]
    assert command.run(parser.parse_args([*args, "--window", "all"])) == 0
    assert json.loads(capsys.readouterr().out)["meta"]["work"] == 9
