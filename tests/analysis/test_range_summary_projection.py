"""Ranges projected onto GPU work, against comparing every range with every call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusight.analysis import range_summary
from gpusight.analysis.launch_index import find_launches
from gpusight.analysis.range_summary import (
    SortedHostRanges,
    enclosing,
    host_ranges,
    innermost_ranges,
    project_ranges,
)
from gpusight.results import NotApplicable
from gpusight.trace.trace import Trace
from tests.traces import Rows, build_trace

# time     0    10   20   30   40   50   60   70   80   90
# outer    [------------------------)
# inner         [----)
# call        1    2       3             4
# kernel            [1)         [2---) [3)
# copy                       [2)               [4-)
CALLS: Rows = [
    {"start_ns": 5, "end_ns": 7, "correlation": 1},
    {"start_ns": 12, "end_ns": 15, "correlation": 2},
    {"start_ns": 30, "end_ns": 32, "correlation": 3},
    {"start_ns": 60, "end_ns": 62, "correlation": 4},
]
KERNELS: Rows = [
    {"start_ns": 18, "end_ns": 22, "name": "a", "correlation": 1},
    {"start_ns": 40, "end_ns": 48, "name": "b", "correlation": 2},
    {"start_ns": 52, "end_ns": 56, "name": "c", "correlation": 3},
]
COPIES: Rows = [
    {"start_ns": 34, "end_ns": 37, "correlation": 2},
    {"start_ns": 75, "end_ns": 80, "correlation": 4},
]
RANGES: Rows = [
    {"start_ns": 0, "end_ns": 50, "name": "outer"},
    {"start_ns": 10, "end_ns": 20, "name": "inner"},
]


def projected(trace: Trace) -> list[dict[str, Any]]:
    """Give the ranges that are projected, each with its row."""
    result = project_ranges(trace)
    assert not isinstance(result, NotApplicable)
    rows = result.frame.with_row_index("range").drop("work_ns")
    return rows.filter(pl.col("launches").is_not_null()).to_dicts()


def test_a_range_holds_the_work_of_its_calls_whenever_it_ran() -> None:
    trace = build_trace(api_calls=CALLS, kernels=KERNELS, copies=COPIES, ranges=RANGES)
    assert projected(trace) == [
        {"range": 0, "launches": 3, "ops": 4, "busy_ns": 19, "start_ns": 18, "end_ns": 56},
        {"range": 1, "launches": 1, "ops": 2, "busy_ns": 11, "start_ns": 34, "end_ns": 48},
    ]


def test_a_range_without_work_has_no_place_on_the_gpu() -> None:
    ranges = [{"start_ns": 90, "end_ns": 95, "name": "idle"}]
    (row,) = projected(build_trace(api_calls=CALLS, kernels=KERNELS, ranges=ranges))
    assert (row["launches"], row["start_ns"], row["end_ns"]) == (0, None, None)


def test_a_call_that_reaches_out_of_the_range_is_not_inside() -> None:
    ranges = [
        {"start_ns": 5, "end_ns": 7, "name": "exact"},
        {"start_ns": 6, "end_ns": 20, "name": "late"},
        {"start_ns": 12, "end_ns": 14, "name": "short"},
    ]
    rows = projected(build_trace(api_calls=CALLS, kernels=KERNELS, ranges=ranges))
    assert [r["launches"] for r in rows] == [1, 1, 0]


def test_ranges_closed_by_another_thread_are_left_out() -> None:
    ranges = [
        {"start_ns": 0, "end_ns": 50, "name": "x", "kind": "start_end", "end_thread": 99},
        {"start_ns": 0, "end_ns": 50, "name": "y", "kind": "start_end", "end_thread": 11},
        {"start_ns": 3, "name": "m", "kind": "mark"},
    ]
    trace = build_trace(api_calls=CALLS, kernels=KERNELS, ranges=ranges)
    assert [row["range"] for row in projected(trace)] == [1]
    result = project_ranges(trace)
    assert not isinstance(result, NotApplicable)
    assert result.crossing == 1


def test_whole_graphs_count_as_one_operation() -> None:
    graphs = [{"start_ns": 100, "end_ns": 150, "correlation": 1}]
    (row,) = projected(build_trace(api_calls=CALLS, graph_launches=graphs, ranges=RANGES[:1]))
    assert (row["launches"], row["ops"], row["busy_ns"]) == (1, 1, 50)


def test_kernels_of_a_graph_come_from_one_launch() -> None:
    kernels = [{"start_ns": s, "end_ns": s + 5, "name": "k", "correlation": 1} for s in (9, 20, 15)]
    (row,) = projected(build_trace(api_calls=CALLS, kernels=kernels, ranges=RANGES[:1]))
    assert (row["launches"], row["ops"], row["start_ns"], row["end_ns"]) == (1, 3, 9, 25)


def test_the_outermost_of_calls_that_share_a_correlation_counts() -> None:
    calls = [
        {"start_ns": 5, "end_ns": 9, "correlation": 1, "name": "cudaLaunchKernel"},
        {"start_ns": 6, "end_ns": 8, "correlation": 1, "name": "cuLaunchKernel"},
    ]
    launches = find_launches(build_trace(api_calls=calls, kernels=KERNELS))
    assert launches.call.tolist() == [0]


def test_correlations_are_per_process() -> None:
    calls = [{**CALLS[0], "process": p, "thread": p} for p in (1, 2)]
    kernels = [{**KERNELS[0], "process": 2}]
    ranges = [{"end_ns": 50, "name": "r", "process": p, "thread": p} for p in (1, 2)]
    rows = projected(build_trace(api_calls=calls, kernels=kernels, ranges=ranges))
    assert [r["ops"] for r in rows] == [0, 1]


def test_work_that_names_no_process_matches_by_correlation() -> None:
    kernels = [{**KERNELS[0], "process": None}]
    (row,) = projected(build_trace(api_calls=CALLS, kernels=kernels, ranges=RANGES[:1]))
    assert row["ops"] == 1


def test_far_apart_correlations_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpusight.analysis.launch_index._DENSE", 0)
    far = 10**12
    calls = [{**c, "correlation": c["correlation"] * far} for c in CALLS]
    kernels = [{**k, "correlation": k["correlation"] * far} for k in KERNELS]
    kernels.append({"start_ns": 99, "end_ns": 99, "name": "lost", "correlation": 7})
    launches = find_launches(build_trace(api_calls=calls, kernels=kernels))
    assert launches.launch_of["kernels"].tolist() == [0, 1, 2, -1]


@pytest.mark.parametrize("absent", ["ranges", "api_calls", "kernels"])
def test_what_is_missing_is_said(absent: str) -> None:
    tables = {"api_calls": CALLS, "kernels": KERNELS, "ranges": RANGES}
    del tables[absent]
    assert isinstance(project_ranges(build_trace(None, **tables)), NotApplicable)


# Against brute force ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    calls: list[dict[str, Any]]
    kernels: list[dict[str, Any]]
    copies: list[dict[str, Any]]
    ranges: list[dict[str, Any]]

    def trace(self) -> Trace:
        tables = {
            "api_calls": self.calls,
            "kernels": self.kernels,
            "copies": self.copies,
            "ranges": self.ranges,
        }
        return build_trace(None, **{name: rows for name, rows in tables.items() if rows})


def intervals(longest: int) -> st.SearchStrategy[dict[str, int]]:
    return st.builds(
        lambda start, length: {"start_ns": start, "end_ns": start + length},
        st.integers(0, 60),
        st.integers(0, longest),
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw calls, work and ranges of two processes with two threads each, overlapping at will."""
    owners = st.sampled_from([(1, 11), (1, 12), (2, 21), (2, 22)])

    def owned(row: dict[str, int]) -> dict[str, int]:
        process, thread = draw(owners)
        return {**row, "process": process, "thread": thread}

    calls = [
        {**owned(row), "correlation": number}
        for number, row in enumerate(draw(st.lists(intervals(6), min_size=1, max_size=25)))
    ]
    issued = [(c["process"], c["correlation"]) for c in calls]

    def work(row: dict[str, int]) -> dict[str, Any]:
        process, correlation = draw(st.sampled_from([*issued, (1, 999), (2, 0)]))
        return {**row, "process": process, "correlation": correlation}

    kernels = [{**work(r), "name": "k"} for r in draw(st.lists(intervals(9), min_size=1))]
    copies = [work(r) for r in draw(st.lists(intervals(9)))]
    kinds = st.sampled_from(["push_pop", "start_end"])
    ranges = [
        {**owned(r), "name": "r", "kind": draw(kinds)}
        for r in draw(st.lists(intervals(50), min_size=1, max_size=25))
    ]
    return Case(calls, kernels, copies, ranges)


def holds(outer: dict[str, Any], inner: dict[str, Any]) -> bool:
    same = outer["thread"] == inner["thread"]
    inside = outer["start_ns"] <= inner["start_ns"] and inner["end_ns"] <= outer["end_ns"]
    return bool(same and inside)


def brute(case: Case, ranges: list[dict[str, Any]]) -> list[dict[str, Any]]:
    work = [*case.kernels, *case.copies]

    def issued(call: dict[str, Any]) -> list[dict[str, Any]]:
        key = (call["process"], call["correlation"])
        return [w for w in work if (w["process"], w["correlation"]) == key]

    rows = []
    for number, outer in enumerate(ranges):
        inside = [issued(c) for c in case.calls if holds(outer, c) and issued(c)]
        ops = [w for each in inside for w in each]
        rows.append(
            {
                "range": number,
                "launches": len(inside),
                "ops": len(ops),
                "busy_ns": sum(w["end_ns"] - w["start_ns"] for w in ops),
                "start_ns": min((w["start_ns"] for w in ops), default=None),
                "end_ns": max((w["end_ns"] for w in ops), default=None),
            }
        )
    return rows


@given(cases())
@settings(max_examples=50, deadline=None)
def test_projection_is_that_of_comparing_everything(case: Case) -> None:
    ordered = sorted(case.ranges, key=lambda r: r["start_ns"])
    assert projected(case.trace()) == brute(case, ordered)


@given(cases())
@settings(max_examples=40, deadline=None)
def test_the_innermost_range_began_last(case: Case) -> None:
    trace = case.trace()
    launches = find_launches(trace)
    inner = innermost_ranges(host_ranges(trace), launches)
    calls = trace.api_calls.to_dicts()
    ranges = list(enumerate(trace.ranges.to_dicts()))
    for call, row in zip(launches.call.tolist(), inner.tolist(), strict=True):
        around = [(r["start_ns"], -r["end_ns"]) for _, r in ranges if holds(r, calls[call])]
        result = (ranges[row][1]["start_ns"], -ranges[row][1]["end_ns"]) if row >= 0 else None
        assert result == max(around, default=None)


@given(st.lists(st.integers(0, 200), min_size=2, max_size=60, unique=True), st.randoms())
@settings(max_examples=40, deadline=None)
def test_the_parent_is_the_shortest_range_around(points: list[int], random: Any) -> None:
    random.shuffle(points)
    pairs = sorted(sorted(p) for p in zip(points[::2], points[1::2], strict=False))
    starts, ends = (np.array(x, dtype=np.int64) for x in zip(*pairs, strict=True))
    rows = np.arange(len(pairs), dtype=np.int32)
    depth, parent = enclosing(SortedHostRanges(rows, starts, ends, np.zeros_like(starts)))
    for i, (start, end) in enumerate(pairs):
        around = [(e - s, -s, j) for j, (s, e) in enumerate(pairs) if s < start and e > end]
        expected = min(around)[2] if around else -1
        assert parent[i] == expected
        assert depth[i] == (depth[expected] + 1 if around else 0)


@given(st.integers(1, 900), st.integers(0, 2**32 - 1))
@settings(max_examples=15, deadline=None)
def test_extremes_are_those_of_the_slices(size: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    values = random.integers(-1000, 1000, size)
    lo = random.integers(0, size, 50)
    hi = np.minimum(lo + 1 + random.integers(0, size, 50), size)
    for pick in (np.minimum, np.maximum):
        expected = [pick.reduce(values[a:b]) for a, b in zip(lo, hi, strict=True)]
        assert range_summary._extremes(values, lo, hi, pick).tolist() == expected


def test_nothing_is_read_but_what_is_needed() -> None:
    from tests.traces import build_source

    source = build_source(api_calls=CALLS, kernels=KERNELS, ranges=RANGES)
    project_ranges(Trace(source))
    needed = {"start_ns", "end_ns", "process", "thread", "correlation", "kind", "end_thread"}
    needed |= {"source"}  # ranges of MPI, OpenMP and others are no NVTX ranges
    assert {column for _, column in source.loads} == needed


def test_rows_are_in_the_order_of_the_ranges() -> None:
    threads = [12, 11, 12, 11]
    ranges = [
        {"start_ns": i, "end_ns": 90, "name": "r", "thread": t} for i, t in enumerate(threads)
    ]
    result = project_ranges(build_trace(api_calls=CALLS, kernels=KERNELS, ranges=ranges))
    assert not isinstance(result, NotApplicable)
    # Threads 11 and 12: only the first launched anything.
    assert result.frame.get_column("launches").to_list() == [0, 3, 0, 3]
    assert result.frame.schema["start_ns"] == pl.Int64


def test_marks_alone_are_not_projected() -> None:
    marks = [{"start_ns": 3, "name": "m", "kind": "mark"}]
    result = project_ranges(build_trace(api_calls=CALLS, kernels=KERNELS, ranges=marks))
    assert not isinstance(result, NotApplicable)
    assert result.frame.get_column("launches").to_list() == [None]
