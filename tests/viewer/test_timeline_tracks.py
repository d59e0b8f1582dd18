"""Which tracks a capture has, what they are called, and in what order they stand."""

from __future__ import annotations

import pytest

from gpusight.errors import MissingDataError
from gpusight.viewer.timeline_view import ViewerTimeline
from tests.traces import Rows, build_trace

MIB = 1 << 20


def fields_of(timeline: ViewerTimeline, *fields: str) -> list[tuple[object, ...]]:
    return [tuple(getattr(track, field) for field in fields) for track in timeline.tracks]


def test_gpus_come_first_then_processes_each_with_its_threads() -> None:
    trace = build_trace(
        devices=[{"name": "NVIDIA H200"}, {"name": "NVIDIA H200"}],
        processes=[{"pid": 4711, "name": "python3"}],
        threads=[{"tid": 4711, "name": "python3"}, {"thread": 12, "tid": 4712, "name": "loader"}],
        kernels=[
            {"start_ns": 10, "end_ns": 20, "name": "gemm", "device": 1},
            {"start_ns": 10, "end_ns": 20, "name": "gemm"},
        ],
        gpu_metrics=[{"time_ns": 5, "metric": "SMs Active [Throughput %]", "value": 7.0}],
        memory_events=[{"time_ns": 3, "bytes": MIB, "address": 1}],
        gpu_ranges=[{"start_ns": 9, "end_ns": 30, "name": "step", "kind": "annotation"}],
        ranges=[
            {"start_ns": 0, "end_ns": 90, "name": "step"},
            {"start_ns": 1, "end_ns": 80, "name": "epoch", "kind": "start_end"},
            {"start_ns": 2, "end_ns": 2, "name": "saved", "kind": "mark"},
        ],
        cpu_ops=[{"start_ns": 1, "end_ns": 8, "name": "aten::mm"}],
        python_calls=[{"start_ns": 1, "end_ns": 9, "name": "train.py(3): step"}],
        collectives=[{"start_ns": 1, "end_ns": 9, "name": "allreduce", "side": "host"}],
        api_calls=[{"start_ns": 2, "end_ns": 4, "correlation": 5}],
        syncs=[{"start_ns": 2, "end_ns": 4, "correlation": 5}],
        os_calls=[{"start_ns": 2, "end_ns": 4, "name": "poll", "thread": 12}],
        overheads=[{"start_ns": 2, "end_ns": 4, "name": "flush", "thread": 12}],
    )
    gpu, host = ("GPU 0 · NVIDIA H200", ""), ("python3 (pid 4711)", "python3 (4711)")
    loader = ("python3 (pid 4711)", "loader (4712)")
    assert fields_of(ViewerTimeline(trace), "key", "kind", "name", "group", "thread") == [
        ("gpu0/ledger", "ledger", "Ledger", *gpu),
        ("gpu0/stream7", "stream", "Stream 7", *gpu),
        ("gpu0/ranges", "ranges", "Annotations", *gpu),
        ("gpu0/metric", "metric", "SMs Active [Throughput %]", *gpu),
        ("gpu0/memory", "memory", "Memory", *gpu),
        ("gpu1/ledger", "ledger", "Ledger", "GPU 1 · NVIDIA H200", ""),
        ("gpu1/stream7", "stream", "Stream 7", "GPU 1 · NVIDIA H200", ""),
        ("p0/t0/ranges", "ranges", "NVTX ranges", *host),
        ("p0/t0/ranges.overlapping", "ranges", "NVTX ranges, not nested", *host),
        ("p0/t0/ops", "ops", "Operators", *host),
        ("p0/t0/python", "python", "Python", *host),
        ("p0/t0/collectives", "collectives", "Collectives", *host),
        ("p0/t0/api", "api", "CUDA calls", *host),
        ("p0/t0/syncs", "syncs", "Synchronization", *host),
        ("p0/t1/os", "os", "OS calls", *loader),
        ("p0/t1/overhead", "overhead", "Profiler overhead", *loader),
    ]


def test_the_stream_with_most_gpu_time_and_the_thread_with_most_calls_come_first() -> None:
    trace = build_trace(
        kernels=[
            {"start_ns": 0, "end_ns": 5, "name": "a", "stream": 7},
            {"start_ns": 0, "end_ns": 50, "name": "a", "stream": 13},
        ],
        api_calls=[{"thread": 1}, {"thread": 2}, {"thread": 2, "start_ns": 1}],
        ranges=[{"thread": 1, "name": "r", "start_ns": n} for n in range(5)],
    )
    assert fields_of(ViewerTimeline(trace), "key", "thread", "events") == [
        ("gpu0/ledger", "", 0),
        ("gpu0/stream13", "", 1),
        ("gpu0/stream7", "", 1),
        ("p0/t0/api", "Thread 2", 2),
        ("p0/t1/ranges", "Thread 1", 5),
        ("p0/t1/api", "Thread 1", 1),
    ]


STREAMS: dict[str, tuple[Rows, list[str]]] = {
    "named by the program": ([{"stream": 13}], ["Stream 13 · fast lane"]),
    "of two processes": (
        [{"process": 1, "end_ns": 2}, {"process": 2}],
        ["Stream 7 · python3 (pid 1), context 1", "Stream 7 · python3 (pid 2), context 1"],
    ),
    "of two contexts": (
        [{"process": None, "context": 1, "end_ns": 2}, {"process": None, "context": 2}],
        ["Stream 7 · context 1", "Stream 7 · context 2"],
    ),
    "not told": ([{"stream": None, "process": None, "context": None}], ["No stream"]),
}


@pytest.mark.parametrize("case", STREAMS)
def test_streams_are_named_so_that_they_can_be_told_apart(case: str) -> None:
    rows, names = STREAMS[case]
    trace = build_trace(
        kernels=[{"name": "k", **row} for row in rows],
        processes=[{"process": n, "pid": n} for n in (1, 2)],
        streams=[{"stream": 13, "name": "fast lane"}],
    )
    streams = [t for t in ViewerTimeline(trace).tracks if t.kind == "stream"]
    assert [t.name for t in streams] == names
    assert len({t.key for t in streams}) == len(names)


def test_work_whose_table_does_not_tell_its_context_stands_with_the_other_work_of_its_stream() -> (
    None
):
    trace = build_trace(
        kernels=[{"name": "k", "end_ns": 9}],
        memsets=[{"context": None, "process": None, "start_ns": 10, "end_ns": 12}],
    )
    assert fields_of(ViewerTimeline(trace), "key", "events")[1:] == [("gpu0/stream7", 2)]


def test_migrations_of_unified_memory_have_a_track_of_their_own() -> None:
    trace = build_trace(
        copies=[{"kind": "Unified Host-to-Device", "end_ns": 5}, {"start_ns": 9, "end_ns": 10}]
    )
    assert fields_of(ViewerTimeline(trace), "key", "name")[1:] == [
        ("gpu0/unified", "Unified memory"),
        ("gpu0/stream7", "Stream 7"),
    ]


def test_annotations_over_several_streams_say_which() -> None:
    trace = build_trace(
        gpu_ranges=[
            {"name": "step", "kind": kind, "stream": stream, "end_ns": 9}
            for stream in (7, 20)
            for kind in ("annotation", "module")
        ]
    )
    assert {t.name for t in ViewerTimeline(trace).tracks} == {
        *("Annotations of stream 7", "Annotations of stream 20"),
        *("Modules of stream 7", "Modules of stream 20"),
    }


def test_what_waited_stands_on_the_thread_of_the_call_that_waited() -> None:
    trace = build_trace(
        api_calls=[{"name": "cudaStreamSynchronize", "correlation": 8, "thread": 12}],
        syncs=[{"correlation": 8}, {"correlation": 9}],
    )
    assert fields_of(ViewerTimeline(trace), "kind", "thread", "events") == [
        ("api", "Thread 12", 1),
        ("syncs", "Thread 12", 1),
        ("syncs", "thread not recorded", 1),
    ]


def test_the_gpu_side_of_a_collective_is_a_kernel_already() -> None:
    trace = build_trace(
        collectives=[
            {"name": "allreduce", "side": "host", "end_ns": 5},
            {"name": "allreduce", "side": "gpu", "thread": None, "start_ns": 7, "end_ns": 9},
        ]
    )
    timeline = ViewerTimeline(trace)
    assert fields_of(timeline, "kind", "events") == [("collectives", 1)]
    assert timeline.spot("collectives", 1) is None


def test_a_series_tells_its_unit_and_where_its_scale_ends() -> None:
    trace = build_trace(
        gpu_metrics=[
            *({"time_ns": n, "metric": "DRAM Read [Throughput %]", "value": n} for n in range(9)),
            *({"time_ns": n, "metric": "Warps in Flight [Avg]", "value": n} for n in range(3)),
        ],
        memory_events=[
            {"bytes": MIB, "allocated_bytes": MIB, "reserved_bytes": 8 * MIB, "time_ns": 2},
            {"bytes": MIB, "allocated_bytes": MIB, "device": None, "time_ns": 3},
        ],
    )
    assert fields_of(ViewerTimeline(trace), "key", "lines", "events", "series", "unit", "high") == [
        ("gpu0/metric", 1, 9, True, "%", 100.0),
        ("gpu0/metric.2", 1, 3, True, "", 2.0),
        ("gpu0/memory", 2, 1, True, "bytes", 8.0 * MIB),
        ("host/memory", 1, 1, True, "bytes", 1.0 * MIB),
    ]


@pytest.mark.parametrize(("sampled", "unit"), [(1_665_000_000.0, "Hz"), (1_665.0, "MHz")])
def test_a_clock_is_in_what_it_was_sampled_in_whatever_its_name_says(
    sampled: float, unit: str
) -> None:
    name = "GPC Clock Frequency [MHz]"
    trace = build_trace(gpu_metrics=[{"time_ns": 1, "metric": name, "value": sampled}])
    [track] = fields_of(ViewerTimeline(trace), "name", "unit", "high")
    assert track == ("GPC Clock Frequency", unit, sampled)


def test_the_capture_reaches_from_the_first_event_to_the_last_end() -> None:
    trace = build_trace(
        kernels=[{"start_ns": 50, "end_ns": 60, "name": "k"}],
        ranges=[{"start_ns": 40, "end_ns": 90, "name": "r"}, {"start_ns": 45, "name": "s"}],
        memory_events=[{"bytes": MIB, "address": 1}],  # held before the capture began: time 0
    )
    timeline = ViewerTimeline(trace)
    assert (timeline.start_ns, timeline.end_ns) == (40, 90)


def test_a_capture_of_nothing_but_memory_reaches_from_its_first_event_to_its_last() -> None:
    events = [{"time_ns": n, "bytes": MIB, "address": n} for n in (5, 7)]
    timeline = ViewerTimeline(build_trace(memory_events=events))
    assert (timeline.start_ns, timeline.end_ns) == (5, 7)


def test_hundreds_of_threads_and_streams_are_all_there() -> None:
    trace = build_trace(
        kernels=[{"start_ns": n, "name": "k", "stream": n} for n in range(400)],
        os_calls=[{"start_ns": n, "name": "poll", "thread": n} for n in range(300)],
    )
    tracks = ViewerTimeline(trace).tracks
    assert len({track.key for track in tracks}) == len(tracks) == 1 + 400 + 300


def test_a_capture_without_any_time_is_refused_in_the_words_of_its_tool() -> None:
    meta = {"source": "ncu-report", "tool": "Nsight Compute"}
    trace = build_trace(meta, profiles=[{"launch": 0, "kind": "kernel", "name": "gemm"}])
    with pytest.raises(MissingDataError, match=r"no timeline.*one by one"):
        ViewerTimeline(trace)


def test_sizes_that_no_memory_has_are_noted_and_all_else_is_shown() -> None:
    trace = build_trace(
        kernels=[{"name": "k", "end_ns": 5}],
        memory_events=[{"bytes": 1 << 60, "address": 1, "time_ns": 2}],
    )
    timeline = ViewerTimeline(trace)
    assert [track.kind for track in timeline.tracks] == ["ledger", "stream"]
    assert "memory is not shown" in timeline.notes[0]
