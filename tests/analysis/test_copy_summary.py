"""Copies and fills by direction, and how GPUs spent their time."""

from __future__ import annotations

import pytest

from gpusight.analysis.copy_summary import copies
from gpusight.analysis.gpu_time import gpu_time
from gpusight.analysis.selection import Selection
from gpusight.results import NotApplicable, TableResult
from gpusight.trace.trace import Trace
from tests.shared import SHARED, needs_shared, opened
from tests.traces import Rows, build_trace

# time        0    10   20   30   40   50   60   70   80
# kernel           [---------)         [----)              GPU 0
# kernel      [--------------------------------------)     GPU 1
# h2d         [---------)                                  10 of 20 hidden
# h2d                             [----)                   nothing hidden
# memset                                    [----)         nothing hidden
KERNELS: Rows = [
    {"start_ns": 10, "end_ns": 30, "name": "k"},
    {"start_ns": 50, "end_ns": 60, "name": "k"},
    {"start_ns": 0, "end_ns": 80, "name": "k", "device": 1},
]
COPIES: Rows = [
    {"start_ns": 0, "end_ns": 20, "bytes": 100},
    {"start_ns": 40, "end_ns": 50, "bytes": 50},
    {"start_ns": 2, "end_ns": 3, "bytes": 7, "src_kind": "Pageable"},
]
MEMSETS: Rows = [{"start_ns": 60, "end_ns": 70, "bytes": 64}]


def rows(trace: Trace, selection: Selection | None = None) -> list[dict[str, object]]:
    result = copies(trace, selection or Selection())
    assert isinstance(result, TableResult)
    return result.rows()


def test_operations_are_summed_by_direction_and_kind_of_memory() -> None:
    result = rows(build_trace(copies=COPIES, memsets=MEMSETS, kernels=KERNELS))
    keys = ("operation", "src_kind", "dst_kind", "calls", "total_ns", "bytes", "pageable")
    assert [tuple(r[k] for k in keys) for r in result] == [
        ("Host-to-Device", "Pinned", "Device", 2, 30, 150, False),
        ("Memset", None, "Device", 1, 10, 64, False),
        ("Host-to-Device", "Pageable", "Device", 1, 1, 7, True),
    ]
    assert result[0]["bandwidth_bytes_s"] == 150 / 30 * 1e9
    assert (result[0]["mean_bytes"], result[0]["max_bytes"]) == (75, 100)


def test_time_beside_kernels_of_the_same_gpu_is_hidden() -> None:
    result = rows(build_trace(copies=COPIES, memsets=MEMSETS, kernels=KERNELS))
    assert [(r["hidden_ns"], r["exposed_ns"]) for r in result] == [(10, 20), (0, 10), (0, 1)]


def test_a_copy_of_no_length_has_no_rate() -> None:
    assert rows(build_trace(copies=[{"bytes": 5}]))[0]["bandwidth_bytes_s"] is None


def test_no_copies_is_said() -> None:
    assert isinstance(copies(build_trace(kernels=KERNELS)), NotApplicable)


def split(trace: Trace, selection: Selection | None = None) -> list[tuple[object, ...]]:
    result = gpu_time(trace, selection or Selection())
    assert isinstance(result, TableResult)
    for row in result.rows():
        parts = ("busy", "other", "idle")  # copies without a kernel are busy time
        assert sum(row[f"{p}_ns"] for p in parts) == row["window_ns"]
    keys = ("device", "busy_ns", "copy_only_ns", "other_ns", "idle_ns", "streams")
    return [tuple(row[k] for k in keys) for row in result.rows()]


def test_every_nanosecond_of_a_gpu_has_one_place() -> None:
    trace = build_trace(copies=COPIES, memsets=MEMSETS, kernels=KERNELS, devices=[{}, {}])
    assert split(trace) == [(0, 60, 30, 0, 20, 1), (1, 80, 0, 0, 0, 1)]


def test_work_from_outside_the_selection_is_neither_busy_nor_idle() -> None:
    trace = build_trace(
        kernels=[
            {"start_ns": 10, "end_ns": 20, "name": "mine", "correlation": 1},
            {"start_ns": 20, "end_ns": 25, "name": "theirs", "correlation": 2},
        ],
        api_calls=[{"start_ns": 1, "correlation": 1}, {"start_ns": 90, "correlation": 2}],
        ranges=[{"start_ns": 0, "end_ns": 40, "name": "step"}],
    )
    assert split(trace, Selection(within="step")) == [(0, 10, 0, 5, 25, 1)]


def test_concurrency_counts_kernels_while_any_runs() -> None:
    both = [{"start_ns": 0, "end_ns": 10, "name": "k", "stream": s} for s in (1, 2)]
    result = gpu_time(build_trace(kernels=both))
    assert isinstance(result, TableResult)
    assert result.rows()[0]["concurrency"] == 2.0
    assert result.rows()[0]["streams"] == 2


def test_a_whole_graph_is_busy_time() -> None:
    trace = build_trace(graph_launches=[{"start_ns": 0, "end_ns": 10}])
    assert split(trace) == [(0, 10, 0, 0, 0, 1)]


def test_no_gpu_work_is_said() -> None:
    result = gpu_time(build_trace(api_calls=[{}]))
    assert isinstance(result, NotApplicable)


@needs_shared
@pytest.mark.parametrize(
    ("name", "busy"),
    [
        ("gpt_small_train", 0.85),
        ("gpt_small_train_bf16_fused", 0.25),
        ("conv", 0.55),
        ("dataload", 0.10),
        ("healthy", 0.96),
    ],
)
def test_the_planted_truths_are_found(name: str, busy: float) -> None:
    result = gpu_time(opened(SHARED / "nsys" / f"{name}.sqlite"))
    assert isinstance(result, TableResult)
    assert result.rows()[0]["busy_share"] == pytest.approx(busy, abs=0.01)


@needs_shared
def test_pageable_copies_stand_out() -> None:
    result = rows(opened(SHARED / "nsys" / "pageable.sqlite"))
    assert [(r["operation"], r["pageable"], r["calls"]) for r in result[:2]] == [
        ("Device-to-Host", True, 10),
        ("Host-to-Device", True, 10),
    ]


def test_a_gpu_without_a_name_is_named_where_only_one_fits() -> None:
    unnamed = {"name": "", "compute_major": 9, "compute_minor": 4, "sm_count": 304}
    for size, name in ((206_141_652_992, "AMD MI300X"), (5, None)):
        device = {**unnamed, "memory_bytes": size}
        result = gpu_time(build_trace(kernels=[{"end_ns": 5, "name": "k"}], devices=[device]))
        assert isinstance(result, TableResult)
        assert result.rows()[0]["name"] == name
