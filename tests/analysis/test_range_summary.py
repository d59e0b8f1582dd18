"""Ranges by name, on the host and projected onto the GPU."""

from __future__ import annotations

import polars as pl
import pytest

from gpusight.analysis.copy_summary import copies
from gpusight.analysis.kernel_summary import kernels
from gpusight.analysis.range_summary import ranges
from gpusight.analysis.selection import Selection
from gpusight.results import NotApplicable, TableResult
from gpusight.trace.trace import Trace
from tests.shared import DATA, SHARED, needs_shared, opened
from tests.traces import Rows, build_trace

# time        0    10   20   30   40   50   60   70   80   90   100
# step        [-----------------------)                              thread 11
# forward     [---------)                                            thread 11, launches 1
# backward              [-------------)                              thread 11, waits for 12
# call            1            2                                     2 comes from thread 12
# kernel                   [1-------)[2--------------)
CALLS: Rows = [
    {"start_ns": 8, "end_ns": 10, "correlation": 1},
    {"start_ns": 30, "end_ns": 32, "correlation": 2, "thread": 12},
]
KERNELS: Rows = [
    {"start_ns": 25, "end_ns": 45, "name": "k", "correlation": 1},
    {"start_ns": 45, "end_ns": 75, "name": "k", "correlation": 2},
]
RANGES: Rows = [
    {"start_ns": 0, "end_ns": 48, "name": "step", "depth": 0},
    {"start_ns": 0, "end_ns": 20, "name": "forward", "depth": 1},
    {"start_ns": 20, "end_ns": 48, "name": "backward", "depth": 1},
]


def table(trace: Trace, selection: Selection | None = None) -> TableResult:
    result = ranges(trace, selection or Selection())
    assert isinstance(result, TableResult)
    return result


def test_host_time_gpu_span_and_gpu_work_of_each_range() -> None:
    rows = table(build_trace(api_calls=CALLS, kernels=KERNELS, ranges=RANGES)).rows()
    keys = ("name", "calls", "total_ns", "gpu_total_ns", "gpu_busy_ns", "gpu_work_ns", "ops")
    assert [tuple(row[k] for k in keys) for row in rows] == [
        ("step", 1, 48, 20, 20, 50, 1),
        ("backward", 1, 28, None, None, 30, 0),
        ("forward", 1, 20, 20, 20, 20, 1),
    ]


def test_shares_are_of_the_window() -> None:
    result = table(build_trace(api_calls=CALLS, kernels=KERNELS, ranges=RANGES))
    assert result.meta["window_ns"] == 75
    assert result.rows()[0]["share"] == 48 / 75


def test_repeated_ranges_are_summed_by_name_domain_and_kind() -> None:
    trace = build_trace(
        ranges=[
            {"start_ns": 0, "end_ns": 10, "name": "a"},
            {"start_ns": 20, "end_ns": 50, "name": "a"},
            {"start_ns": 0, "end_ns": 5, "name": "a", "domain": "NCCL"},
            {"start_ns": 0, "end_ns": 7, "name": "a", "kind": "start_end"},
        ]
    )
    result = table(trace)
    keys = ("domain", "kind", "calls", "total_ns", "mean_ns", "min_ns", "max_ns")
    assert [tuple(row[k] for k in keys) for row in result.rows()] == [
        ("", "push_pop", 2, 40, 20, 10, 30),
        ("", "start_end", 1, 7, 7, 7, 7),
        ("NCCL", "push_pop", 1, 5, 5, 5, 5),
    ]
    assert result.notes == ("GPU times are not known: the capture holds no CUDA API calls",)


def test_marks_and_ranges_never_closed_are_mentioned() -> None:
    trace = build_trace(
        api_calls=CALLS,
        kernels=KERNELS,
        ranges=[
            *RANGES,
            {"start_ns": 5, "name": "here", "kind": "mark"},
            {"start_ns": 60, "end_ns": 90, "name": "late", "open": True},
        ],
    )
    result = table(trace)
    assert {row["name"]: row["open"] for row in result.rows()}["late"] == 1
    assert result.meta["marks"] == 1
    assert result.notes[0] == "1 ranges were never closed: they end with the capture"
    assert result.notes[-1] == "1 NVTX marks have no length and are not in the table"


def test_work_launched_by_other_threads_is_mentioned() -> None:
    """A backward pass: the main thread waits in its range while another one launches."""
    trace = build_trace(
        api_calls=[{"start_ns": 10, "end_ns": 12, "correlation": 1, "thread": 22}],
        kernels=[{"start_ns": 20, "end_ns": 60, "correlation": 1, "name": "k"}],
        ranges=[{"start_ns": 0, "end_ns": 100, "name": "backward", "thread": 11}],
    )
    result = table(trace)
    (row,) = result.rows()
    assert (row["gpu_work_ns"], row["gpu_busy_ns"]) == (40, None)
    assert result.notes[0].startswith("1 ranges: most of the GPU work is launched by other")


def test_within_shows_the_range_and_what_is_inside() -> None:
    trace = build_trace(api_calls=CALLS, kernels=KERNELS, ranges=RANGES)
    rows = table(trace, Selection(within="backward")).rows()
    assert [row["name"] for row in rows] == ["backward"]


def test_no_ranges_is_explained() -> None:
    result = ranges(build_trace(kernels=KERNELS))
    assert isinstance(result, NotApplicable)
    assert "nvtx" in result.hint


def test_gpu_work_is_what_the_same_selection_finds() -> None:
    trace = opened(DATA / "dataload.sqlite")
    row = next(r for r in table(trace).rows() if r["name"] == "forward")
    inside = [f(trace, Selection(within="forward")) for f in (kernels, copies)]
    assert row["gpu_work_ns"] == sum(
        part.meta["total_ns"] for part in inside if isinstance(part, TableResult)
    )


@needs_shared
@pytest.mark.parametrize("name", ["gpt_small_forward", "gpt_small_train", "resnet18_infer"])
def test_the_numbers_are_those_of_nsys(name: str) -> None:
    ours = table(opened(SHARED / "nsys" / f"{name}.sqlite")).frame
    theirs = pl.read_csv(SHARED / "nsys_reference" / f"{name}.nvtx_gpu_proj_sum.csv")
    theirs = theirs.with_columns(pl.col("Range").str.strip_prefix(":"))
    joined = ours.join(theirs, left_on="name", right_on="Range", validate="1:1")
    assert joined.height == theirs.height
    assert joined["gpu_total_ns"].to_list() == joined["Total Proj Time (ns)"].to_list()
    assert joined["total_ns"].to_list() == joined["Total Range Time (ns)"].to_list()
    assert joined["ops"].to_list() == joined["Total GPU Ops"].to_list()


def test_marks_of_pytorch_are_no_nvtx() -> None:
    marked: Rows = [{"name": "here", "kind": "mark"}, {"name": "step", "end_ns": 5}]
    assert table(build_trace({"source": "torch-chrome"}, ranges=marked)).notes == (
        "GPU times are not known: the capture holds no API calls",
        "1 marks have no length and are not in the table",
    )


def test_equal_ranges_come_by_name_also_where_only_some_are_kept() -> None:
    names = [f"layer_{number:02}" for number in range(40)]
    rows: Rows = [
        {"start_ns": 10 * number, "end_ns": 10 * number + 5, "name": name}
        for number, name in enumerate(reversed(names))
    ]
    trace = build_trace(ranges=rows)
    assert table(trace).frame["name"].to_list() == names
    brief = ranges(trace, top=6)
    assert isinstance(brief, TableResult)
    assert brief.frame["name"].to_list() == names[:6]
