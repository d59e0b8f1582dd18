"""API calls by function."""

from __future__ import annotations

import polars as pl
import pytest

from gpusight.analysis.api_summary import api_calls
from gpusight.analysis.selection import Selection
from gpusight.results import NotApplicable, TableResult
from gpusight.trace.trace import Trace
from tests.shared import SHARED, needs_shared, opened
from tests.traces import Rows, build_trace


def table(trace: Trace, selection: Selection | None = None) -> TableResult:
    result = api_calls(trace, selection or Selection())
    assert isinstance(result, TableResult)
    return result


CALLS = [
    {"start_ns": 0, "end_ns": 30, "name": "cudaLaunchKernel", "thread": 11},
    {"start_ns": 30, "end_ns": 40, "name": "cudaLaunchKernel", "thread": 12},
    {"start_ns": 50, "end_ns": 60, "name": "cuLaunchKernel", "api": "driver"},
    {"start_ns": 60, "end_ns": 110, "name": "cudaMalloc", "return_value": 2},
]


def test_rows_are_summed_by_function_and_sorted_by_time() -> None:
    rows = table(build_trace(api_calls=CALLS)).rows()
    picked = [(r["name"], r["api"], r["calls"], r["total_ns"], r["share"]) for r in rows]
    assert picked == [
        ("cudaMalloc", "runtime", 1, 50, 0.5),
        ("cudaLaunchKernel", "runtime", 2, 40, 0.4),
        ("cuLaunchKernel", "driver", 1, 10, 0.1),
    ]
    assert [r["threads"] for r in rows] == [1, 2, 1]


@pytest.mark.parametrize(
    ("name", "value", "errors"),
    [
        ("cudaMalloc", 2, 1),
        ("cudaMalloc", 0, 0),
        ("cudaEventQuery", 600, 0),
        ("cudaStreamQuery", 34, 0),
        ("cuEventQuery", 600, 0),
        ("cudaEventQuery", 700, 1),
        ("hipEventQuery", 600, 0),
        ("hipMalloc", 2, 1),
        ("cudaLaunchKernel", 600, 1),
    ],
)
def test_what_counts_as_a_failure(name: str, value: int | None, errors: int) -> None:
    trace = build_trace(api_calls=[{"name": name, "return_value": value}])
    assert table(trace).rows()[0]["errors"] == errors


def test_failures_are_unknown_where_no_return_value_was_kept() -> None:
    calls: Rows = [{"name": "cudaMalloc", "return_value": None}]
    result = table(build_trace(api_calls=calls))
    assert result.rows()[0]["errors"] is None
    assert result.meta["errors"] is None
    kept = table(build_trace(api_calls=[*calls, {"name": "cudaFree"}]))
    assert {r["name"]: r["errors"] for r in kept.rows()} == {"cudaMalloc": 0, "cudaFree": 0}


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("nsys-rep", "capture with: gpusight record … (nsys profile --trace=cuda,nvtx …)"),
        ("torch-chrome", "ProfilerActivity.CUDA"),
        ("jax-xplane", "jax.profiler.trace"),
        ("torch-key-averages", "export_chrome_trace"),
    ],
)
def test_no_calls_comes_with_the_remedy_of_the_tool(source: str, hint: str) -> None:
    absent = api_calls(build_trace({"source": source}, cpu_ops=[{"name": "aten::mm"}]))
    assert isinstance(absent, NotApplicable)
    assert hint in absent.hint


def test_libraries_have_shares_of_their_own_as_they_contain_cuda_calls() -> None:
    library = {"start_ns": 0, "end_ns": 100, "name": "cudnnConvolutionForward", "api": "cudnn"}
    result = table(build_trace(api_calls=[library, *CALLS]))
    shares = {r["name"]: r["share"] for r in result.rows()}
    assert shares["cudnnConvolutionForward"] == 1.0
    assert shares["cudaMalloc"] == 0.5
    assert "do not add the two up" in result.notes[0]


def test_only_calls_inside_the_range_count() -> None:
    trace = build_trace(api_calls=CALLS, ranges=[{"start_ns": 25, "end_ns": 55, "name": "step"}])
    rows = table(trace, Selection(within="step")).rows()
    assert {r["name"]: r["calls"] for r in rows} == {"cudaLaunchKernel": 1, "cuLaunchKernel": 1}


def test_no_calls_is_said() -> None:
    assert isinstance(api_calls(build_trace()), NotApplicable)


@needs_shared
@pytest.mark.parametrize("name", ["gpt_small_forward", "gpt_small_train", "resnet18_infer"])
def test_the_numbers_are_those_of_nsys(name: str) -> None:
    ours = table(opened(SHARED / "nsys" / f"{name}.sqlite")).frame
    theirs = pl.read_csv(SHARED / "nsys_reference" / f"{name}.cuda_api_sum.csv")
    key = pl.col("Name").str.replace(r"_v\d+$", "")
    joined = ours.join(theirs.with_columns(key), left_on="name", right_on="Name", validate="1:1")
    assert joined.height == theirs.height == ours.height
    assert joined["total_ns"].to_list() == joined["Total Time (ns)"].to_list()
    assert joined["calls"].to_list() == joined["Num Calls"].to_list()


def test_equal_calls_come_by_name_and_then_by_library() -> None:
    apis = ("runtime", "driver", "cublas", "cudnn", "nvtx")
    calls = [
        {"start_ns": 10 * number, "end_ns": 10 * number + 5, "name": "create", "api": api}
        for number, api in enumerate(apis)
    ]
    assert table(build_trace(api_calls=calls)).frame["api"].to_list() == sorted(apis)
