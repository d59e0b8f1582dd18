"""Chrome traces: valid JSON, nothing lost, slices nest, arrows have two ends."""

from __future__ import annotations

import io
import json
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest

import gpusight as gs
from gpusight.analysis.ranks.aligned_ranks import align_ranks
from gpusight.analysis.selection import Selection
from gpusight.render import chrome_export
from gpusight.render.chrome_export import ExportSummary, write_chrome_trace
from tests.analysis.ranks.jobs import MS, NONE, Delay, job_traces
from tests.shared import EVERY_SQLITE, name, opened
from tests.traces import Rows, build_trace

if TYPE_CHECKING:
    from pathlib import Path

    from gpusight.trace.trace import Trace

    Event = dict[str, Any]


def export(trace: Trace, selection: Selection | None = None) -> tuple[list[Event], ExportSummary]:
    out = io.BytesIO()
    summary = write_chrome_trace(trace, out, selection or Selection())
    assert summary.bytes_written == len(out.getvalue())
    document = json.loads(out.getvalue())
    assert document["displayTimeUnit"] == "ns"
    events: list[Event] = document["traceEvents"]
    assert len(events) == summary.events
    return events, summary


def events_of(trace: Trace, phase: str, selection: Selection | None = None) -> list[Event]:
    return [e for e in export(trace, selection)[0] if e["ph"] == phase]


def ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def assert_slices_nest(events: list[Event]) -> None:
    tracks = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            tracks[e["pid"], e["tid"]].append((ns(e["ts"]), -ns(e["ts"]) - ns(e["dur"])))
    for track, spans in tracks.items():
        open_ends: list[int] = []
        for start, minus_end in sorted(spans):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or -minus_end <= open_ends[-1], track
            open_ends.append(-minus_end)


def assert_arrows_have_two_ends(events: list[Event]) -> None:
    ends = Counter((e["id"], e["ph"]) for e in events if e["ph"] in "sf")
    assert set(ends.values()) <= {1}
    assert {i for i, phase in ends if phase == "s"} == {i for i, phase in ends if phase == "f"}


CALLS: Rows = [
    {"start_ns": 1_000, "end_ns": 3_500, "correlation": 1},
    {"start_ns": 1_200, "end_ns": 3_000, "name": "cuLaunchKernel", "api": "driver"},
]
KERNEL = {
    "start_ns": 1_234_567,
    "end_ns": 1_234_570,
    "name": 'void mine<"x">(int)',
    "correlation": 1,
    "registers_per_thread": 32,
    **dict.fromkeys(("grid_x", "grid_y", "grid_z"), 2),
    **dict.fromkeys(("block_x", "block_y", "block_z"), 4),
}


def test_a_kernel_with_its_launch_and_the_arrow_between_them() -> None:
    trace = build_trace(
        api_calls=CALLS,
        kernels=[KERNEL],
        devices=[{}],
        processes=[{"process": 1, "pid": 4242}],
        threads=[{"thread": 11, "process": 1, "tid": 4243, "name": "main"}],
    )
    events, summary = export(trace)
    kernel = next(e for e in events if e.get("cat") == "kernel")
    call = next(e for e in events if e["name"] == "cudaLaunchKernel")
    assert (ns(kernel["ts"]), ns(kernel["dur"])) == (1_234_567, 3)
    assert kernel["args"]["name"] == 'void mine<"x">(int)'
    assert kernel["args"]["grid"] == [2, 2, 2]
    assert kernel["args"]["registers per thread"] == 32
    assert kernel["args"]["graph node"] is None
    assert (call["pid"], call["tid"], call["args"]["correlation"]) == (4242, 4243, 1)
    start, end = (next(e for e in events if e["ph"] == p) for p in "sf")
    assert (start["pid"], start["tid"], start["ts"]) == (call["pid"], call["tid"], call["ts"])
    assert (end["pid"], end["tid"], end["ts"]) == (kernel["pid"], kernel["tid"], kernel["ts"])
    assert (start["id"], end["bp"]) == (end["id"], "e")
    assert summary.counts["kernels"] == 1
    assert summary.counts["flow_ends"] == 2


def test_tracks_have_names() -> None:
    trace = build_trace(
        api_calls=CALLS,
        kernels=[KERNEL],
        ranges=[{"end_ns": 9_000, "name": "step"}],
        devices=[{}],
        processes=[{"process": 1, "pid": 4242, "name": "python3"}],
        threads=[{"thread": 11, "process": 1, "tid": 4243, "name": "main"}],
    )
    named = [e for e in events_of(trace, "M") if e["name"] in ("process_name", "thread_name")]
    assert [e["args"]["name"] for e in named] == [
        "python3 4242",
        "GPU 0 NVIDIA H200",
        "main 4243",
        "main 4243 · NVTX",
        "stream 7",
    ]


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [(0, "0.000"), (7, "0.007"), (-7, "-0.007"), (-1_000, "-1.000"), (9_007_199_254_740_993, None)],
)
def test_times_are_exact(time_ns: int, text: str | None) -> None:
    out = io.BytesIO()
    write_chrome_trace(build_trace(kernels=[{"start_ns": time_ns, "name": "k"}]), out)
    match = re.search(rb'"ts":([-\d.]+)', out.getvalue())
    assert match is not None
    assert match[1].decode() == (text or f"{time_ns // 1000}.{time_ns % 1000:03d}")


def test_names_that_json_must_escape() -> None:
    nasty = 'quote " backslash \\ newline \n tab \t nul \0 bell \x07 é 🚀 </script>'
    trace = build_trace(ranges=[{"end_ns": 5, "name": nasty}], kernels=[{"name": nasty}])
    events, _ = export(trace)
    assert next(e["name"] for e in events if e.get("cat") == "nvtx") == nasty
    assert next(e["args"]["name"] for e in events if e.get("cat") == "kernel") == nasty


def test_kernels_that_overlap_on_one_stream_go_to_tracks_beside_each_other() -> None:
    overlapping = [{"start_ns": s, "end_ns": s + 15, "name": "k"} for s in (0, 10, 20, 30)]
    slices = events_of(build_trace(kernels=overlapping), "X")
    assert_slices_nest(slices)
    assert len({e["tid"] for e in slices}) == 2


def test_ranges_that_do_not_nest_go_to_tracks_beside_each_other() -> None:
    crossing = [{"start_ns": s, "end_ns": s + 15, "name": "r"} for s in (0, 10)]
    nested = [{"start_ns": s, "end_ns": 40 - s, "name": "r", "domain": "d"} for s in (0, 5, 10)]
    slices = events_of(build_trace(ranges=[*crossing, *nested]), "X")
    assert_slices_nest(slices)
    assert len({e["tid"] for e in slices}) == 3


def test_start_end_ranges_are_pairs_that_may_overlap() -> None:
    crossing = [
        {"start_ns": s, "end_ns": s + 15, "name": "r", "kind": "start_end"} for s in (0, 10)
    ]
    events, summary = export(build_trace(ranges=crossing))
    pairs = defaultdict(list)
    for e in events:
        if e["ph"] in "be":
            pairs[e["id"]].append((e["ph"], ns(e["ts"])))
    assert list(pairs.values()) == [[("b", 0), ("e", 15)], [("b", 10), ("e", 25)]]
    assert summary.counts["start_end_ranges"] == 4


def test_marks_are_instants() -> None:
    (mark,) = events_of(build_trace(ranges=[{"start_ns": 9, "name": "m", "kind": "mark"}]), "i")
    assert (mark["name"], ns(mark["ts"])) == ("m", 9)


def test_memory_and_metrics_are_counters() -> None:
    trace = build_trace(
        memory_events=[
            {"time_ns": 1, "bytes": 100},
            {"time_ns": 2, "bytes": 50},
            {"time_ns": 3, "bytes": 100, "operation": "deallocation"},
        ],
        gpu_metrics=[
            {"time_ns": 1, "metric": "SMs Active", "value": 12.5},
            {"time_ns": 2, "metric": "SMs Active", "value": float("nan")},
        ],
    )
    counters = [(e["name"], e["args"]["value"]) for e in events_of(trace, "C")]
    assert counters == [
        ("SMs Active", 12.5),
        ("Memory in bytes: Device", 100),
        ("Memory in bytes: Device", 150),
        ("Memory in bytes: Device", 50),
    ]


def test_a_selection_exports_its_part_only() -> None:
    trace = build_trace(
        api_calls=[{"start_ns": 1, "end_ns": 2, "correlation": 1}, {"start_ns": 50}],
        kernels=[
            {"start_ns": 3, "end_ns": 5, "name": "in", "correlation": 1},
            {"start_ns": 60, "end_ns": 65, "name": "out", "correlation": 2},
        ],
        ranges=[{"end_ns": 10, "name": "step"}, {"start_ns": 40, "end_ns": 90, "name": "later"}],
    )
    slices = events_of(trace, "X", Selection(within="step"))
    assert sorted(e["name"] for e in slices) == ["cudaLaunchKernel", "in", "step"]


def test_an_empty_trace_is_an_empty_list() -> None:
    assert export(build_trace())[0] == []


def test_batches_join_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome_export, "BATCH_ROWS", 3)
    many: Rows = [{"start_ns": i * 10, "end_ns": i * 10 + 5, "name": f"k{i}"} for i in range(10)]
    slices = events_of(build_trace(kernels=many), "X")
    assert [e["args"]["name"] for e in slices] == [f"k{i}" for i in range(10)]


@pytest.mark.parametrize("path", EVERY_SQLITE, ids=name)
def test_every_capture_exports_whole(path: Path) -> None:
    trace = opened(path)
    events, summary = export(trace)
    assert_slices_nest(events)
    assert_arrows_have_two_ends(events)
    for table in ("kernels", "copies", "memsets", "api_calls", "os_calls", "graph_launches"):
        assert summary.counts.get(table, 0) == trace.row_count(table)
    ranges = summary.counts.get("ranges", 0) + summary.counts.get("marks", 0)
    assert ranges + summary.counts.get("start_end_ranges", 0) // 2 == trace.row_count("ranges")


# Several ranks ------------------------------------------------------------------------------------


def test_ranks_are_one_timeline_with_arrows_between_collectives(tmp_path: Path) -> None:
    traces = job_traces(lambda rank, _: Delay(host_ns=3 * MS) if rank == 2 else NONE)
    job = gs.ranks(traces).answer
    (path,) = gs.export(align_ranks(job, traces), tmp_path / "job.json", to="chrome")
    document = json.loads(path.read_text())
    events = document["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {pid: names[pid].split()[:2] for pid in range(4)} == {
        pid: ["Rank", str(pid)] for pid in range(4)
    }
    flows = [e for e in events if e.get("cat") == "collective"]
    assert len(flows) == 4 * 12
    first = [e for e in flows if e["id"] == 0]
    assert [e["ph"] for e in first] == ["s", "t", "t", "f"]
    assert first[-1]["pid"] % 10 == 2, "the late rank is the last to arrive"
    assert [e["ts"] for e in first] == sorted(e["ts"] for e in first)
    slices = {(e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] == "X"}
    assert {(e["pid"], e["tid"], e["ts"]) for e in flows} <= slices
    assert len(document["otherData"]["ranks"]) == 4
