"""Profiles of JAX: two of our own beside the traces that JAX wrote of the same runs; built ones.

`jax_small` trains a small network three times without CUDA graphs and without Python tracing, and
tunes it meanwhile; `jax_graph` runs the same network as a CUDA graph, with Python tracing.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gpusight.errors import CaptureError, DamagedCaptureError, GpusightError, NotACaptureError
from gpusight.readers.jax import host_events
from gpusight.readers.jax.jax_profile import xplane_source
from gpusight.readers.open import open_trace
from gpusight.trace.trace import Trace
from tests.readers.jax.xspaces import Inline, block, event, line, plane, space, varint, whole
from tests.shared import DATA

CAPTURES = ("jax_small", "jax_graph")
LAUNCH = "regs:32 static_shared:64 dynamic_shared:100 grid:4,2,1 block:128,1,1 occ_pct:50"


def opened(name: str) -> Trace:
    return open_trace(DATA / f"{name}.xplane.pb", cache=False)


def exported(name: str) -> list[dict[str, Any]]:
    """Events of the Chrome trace of the same run, with times in nanoseconds."""
    document = json.loads(gzip.decompress((DATA / f"{name}.trace.json.gz").read_bytes()))
    events = document["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"
    }
    return [
        {
            "plane": processes[e["pid"]],
            "line": threads[e["pid"], e["tid"]],
            "name": e["name"],
            "start_ns": round(e["ts"] * 1000),
            "end_ns": round((e["ts"] + e["dur"]) * 1000),
            "args": e.get("args", {}),
        }
        for e in events
        if e.get("ph") == "X"
    ]


def on_gpu(name: str, detail: str) -> list[dict[str, Any]]:
    return [e for e in exported(name) if e["plane"] == "/device:GPU:0" and detail in e["args"]]


def on_host(name: str) -> list[dict[str, Any]]:
    return [e for e in exported(name) if e["plane"] == "/host:CPU"]


def build(tmp_path: Path, *planes: bytes, **about: Any) -> Trace:
    path = tmp_path / "built.xplane.pb"
    path.write_bytes(space(*planes, **about))
    trace = open_trace(path, cache=False)
    trace.validate()
    return trace


def rows(frame: pl.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return frame.select(columns).rows()


# Against what JAX itself exported ---------------------------------------------------------------


@pytest.mark.parametrize("name", CAPTURES)
def test_every_table_keeps_to_the_schema(name: str) -> None:
    opened(name).validate()


@pytest.mark.parametrize("name", CAPTURES)
def test_kernels_are_those_of_the_exported_trace(name: str) -> None:
    theirs = [
        (
            e["start_ns"],
            e["end_ns"],
            e["name"],
            int(e["args"]["correlation_id"]),
            int(e["line"].split("#")[1].split("(")[0]),
            f"$${1}",
        )
        for e in on_gpu(name, "kernel_details")
    ]
    kernels = opened(name).kernels
    ours = kernels.select(
        "start_ns", "end_ns", pl.col("name").cast(pl.String), "correlation", "stream", "context"
    ).rows()
    assert sorted((*row[:5], f"$${row[5]}") for row in ours) == sorted(theirs)
    assert len(ours) > 40


@pytest.mark.parametrize("name", CAPTURES)
def test_launch_parameters_are_read_out_of_the_details(name: str) -> None:
    kernels = opened(name).kernels
    written = [
        f"regs:{r['registers_per_thread']} static_shared:{r['static_shared_bytes']} "
        f"dynamic_shared:{r['dynamic_shared_bytes']} "
        f"grid:{r['grid_x']},{r['grid_y']},{r['grid_z']} "
        f"block:{r['block_x']},{r['block_y']},{r['block_z']} "
        f"occ_pct:{r['occupancy'] * 100:g}"
        for r in kernels.iter_rows(named=True)
    ]
    theirs = [e["args"]["kernel_details"] for e in on_gpu(name, "kernel_details")]
    assert Counter(written) == Counter(theirs)


def test_kernels_of_a_graph_name_it() -> None:
    kernels = opened("jax_graph").kernels
    theirs = Counter(
        (int(e["args"]["cuda_graph_id"]), int(e["args"]["cuda_graph_node_id"]))
        for e in on_gpu("jax_graph", "cuda_graph_node_id")
    )
    ours = kernels.filter(pl.col("graph").is_not_null()).select("graph", "graph_node").rows()
    assert Counter(ours) == theirs
    assert 0 < len(ours) < kernels.height


@pytest.mark.parametrize("name", CAPTURES)
def test_copies_and_fills_are_those_of_the_exported_trace(name: str) -> None:
    trace = opened(name)
    theirs = {
        detail: sorted(
            (e["start_ns"], e["end_ns"], e["args"][detail]) for e in on_gpu(name, detail)
        )
        for detail in ("memcpy_details", "Memset_details")
    }
    copied = "kind_src:{src_kind} kind_dst:{dst_kind} size:{bytes} dest:0 async:1"
    filled = "kind:{memory_kind} num_bytes:{bytes} async:1"
    copies = [
        (r["start_ns"], r["end_ns"], copied.format(**r).lower())
        for r in trace.copies.iter_rows(named=True)
    ]
    fills = [
        (r["start_ns"], r["end_ns"], filled.format(**r).lower())
        for r in (trace.memsets.iter_rows(named=True) if trace.has("memsets") else ())
    ]
    assert copies == theirs["memcpy_details"]
    assert fills == theirs["Memset_details"]


def test_directions_of_copies() -> None:
    kinds = opened("jax_small").copies["kind"].cast(pl.String).value_counts().rows()
    named = Counter(e["name"] for e in on_gpu("jax_small", "memcpy_details"))
    assert dict(kinds) == {
        "Host-to-Device": named["MemcpyH2D"],
        "Device-to-Host": named["MemcpyD2H"],
        # The trace only says "other"; the kinds of memory on both sides tell.
        "Host-to-Host": named["MemcpyOther"],
    }


def test_python_calls_are_those_of_the_exported_trace() -> None:
    theirs = sorted(
        (e["start_ns"], e["end_ns"], host_events.python_name(e["name"]))
        for e in on_host("jax_graph")
        if e["name"].startswith("$")
    )
    calls = opened("jax_graph").python_calls
    assert sorted(rows(calls, "start_ns", "end_ns", "name")) == theirs
    assert "profiler.py(385): __init__" in calls["name"].cast(pl.String).to_list()


def test_steps_and_annotations_are_ranges() -> None:
    trace = opened("jax_small")
    ranges = trace.ranges
    assert Counter(ranges["name"].cast(pl.String)) == {
        "train#0": 1,
        "train#1": 1,
        "train#2": 1,
        "to device": 3,
        "prepared": 3,
        "my::op": 3,
        "load batch": 3,
    }
    theirs = sorted(
        (e["start_ns"], e["end_ns"])
        for e in on_host("jax_small")
        if e["name"] in {"train", "to device", "prepared", "my::op", "load batch"}
    )
    assert sorted(rows(ranges, "start_ns", "end_ns")) == theirs
    steps = ranges.filter(pl.col("payload_int").is_not_null())
    assert steps["payload_int"].to_list() == [0, 1, 2]
    parents = {ranges["name"][p] for p in ranges["parent"].drop_nulls()}
    assert parents == {"train#0", "train#1", "train#2", "to device"}


@pytest.mark.parametrize("name", CAPTURES)
def test_no_host_event_is_lost(name: str) -> None:
    trace = opened(name)
    tables = ("python_calls", "api_calls", "ranges", "cpu_ops", "overheads")
    marks = [e for e in on_host(name) if e["name"].startswith("ThreadpoolListener::")]
    assert sum(trace.row_count(t) for t in tables) + len(marks) == len(on_host(name))
    assert (f"not read: {len(marks):,} marks of thread pools" in trace.meta.notes) == bool(marks)


@pytest.mark.parametrize("name", CAPTURES)
def test_driver_calls_lead_to_the_work_they_issued(name: str) -> None:
    trace = opened(name)
    calls = trace.api_calls
    theirs = sorted(
        int(e["args"]["correlation_id"]) for e in on_host(name) if "device_id" in e["args"]
    )
    assert calls["correlation"].drop_nulls().sort().to_list() == theirs
    function = dict(rows(calls.filter(pl.col("correlation").is_not_null()), "correlation", "name"))
    assert {function[c] for c in trace.copies["correlation"]} <= {
        "cuMemcpyHtoDAsync",
        "cuMemcpyDtoHAsync",
    }
    launches = {"cuLaunchKernel"} if name == "jax_small" else {"cuLaunchKernel", "cuGraphLaunch"}
    assert {function[c] for c in trace.kernels["correlation"]} == launches
    assert calls["symbol"].null_count() == 0
    assert any("names driver calls after" in n for n in trace.meta.notes)
    assert set(calls["process"]) == set(trace.kernels["process"]) == set(trace.processes["process"])


def test_memory_taken_by_the_framework() -> None:
    events = opened("jax_small").memory_events
    assert Counter(rows(events, "device", "memory_kind")) == {(0, "Device"): 56, (None, "Host"): 18}
    assert set(events["operation"]) == {"allocation", "deallocation"}
    assert events["bytes"].min() == 256
    held: dict[int, int] = {}
    for operation, address, size in rows(events.filter(device=0), "operation", "address", "bytes"):
        if operation == "allocation":
            held[address] = size
        elif address in held:
            assert held.pop(address) == size


def test_modules_and_operations_are_laid_over_the_work() -> None:
    trace = opened("jax_small")
    ranges = trace.gpu_ranges
    work = [e for e in exported("jax_small") if e["args"].get("hlo_module") == "jit_net"]
    modules = ranges.filter(kind="module", name="jit_net")
    assert modules.height == 3
    assert modules["start_ns"].min() == min(e["start_ns"] for e in work)
    assert modules["end_ns"].max() == max(e["end_ns"] for e in work)
    operators = ranges.filter(kind="operator")
    executions = {e["args"]["scope_range_id"] for e in on_gpu("jax_small", "hlo_op")}
    assert operators.height == len(executions)
    paths = ranges.filter(kind="annotation")["name"].unique().to_list()
    assert "jit(net)/jvp(jit(net))/encoder/dot_general" in paths


def test_what_is_known_about_the_machine_and_the_program() -> None:
    trace = opened("jax_small")
    assert trace.meta.tool == "JAX profiler"
    assert trace.meta.tool_version == "0.11.2"
    assert trace.meta.source == "jax-xplane"
    assert trace.meta.cuda_version == "13.0"
    assert trace.meta.start_utc_ns == 1794726206352015859
    assert trace.meta.duration_ns == 178_622_997
    assert rows(trace.devices, "device", "name", "sm_count", "compute_major", "compute_minor") == [
        (0, "NVIDIA H200", 132, 9, 0)
    ]
    assert rows(trace.devices, "clock_hz", "memory_bytes", "memory_bandwidth") == [
        (1_980_000_000, 150_109_880_320, 4_814_304_000_000)
    ]
    assert rows(trace.processes, "process", "pid") == [(802, 802)]
    assert sorted(trace.streams["stream"]) == [14, 15, 16, 18]


def test_threads_are_those_of_the_exported_trace() -> None:
    threads = opened("jax_small").threads
    document = gzip.decompress((DATA / "jax_small.trace.json.gz").read_bytes())
    theirs = [
        (e["tid"], e["args"]["name"])
        for e in json.loads(document)["traceEvents"]
        if e.get("name") == "thread_name" and e["pid"] == 701
    ]
    assert sorted(rows(threads, "tid", "name")) == sorted(theirs)
    assert threads["thread"].is_unique().all()


def test_a_compressed_profile_reads_the_same(tmp_path: Path) -> None:
    packed = tmp_path / "x.xplane.pb.gz"
    packed.write_bytes(gzip.compress((DATA / "jax_graph.xplane.pb").read_bytes()))
    assert open_trace(packed, cache=False).kernels.equals(opened("jax_graph").kernels)


# Built profiles: what our captures do not hold --------------------------------------------------


def test_a_kernel_with_everything(tmp_path: Path) -> None:
    trace = build(
        tmp_path,
        plane(
            "/device:GPU:2",
            line(
                "Stream #7(Compute)",
                event(
                    "gemm",
                    10.4,
                    5.2,
                    correlation_id=3,
                    context_id=Inline("$$4"),
                    cuda_graph_id=5,
                    cuda_graph_node_id=6,
                    theoretical_occupancy_pct=50.0,
                    kernel_details=LAUNCH,
                ),
                timestamp_ns=1000,
            ),
            stats={"process_id": 99},
        ),
    )
    (row,) = trace.kernels.to_dicts()
    expected = {
        "start_ns": 1010,
        "end_ns": 1016,
        "device": 2,
        "context": 4,
        "stream": 7,
        "correlation": 3,
        "process": 99,
        "name": "gemm",
        "grid_x": 4,
        "grid_y": 2,
        "grid_z": 1,
        "block_x": 128,
        "registers_per_thread": 32,
        "static_shared_bytes": 64,
        "dynamic_shared_bytes": 100,
        "shared_bytes": 164,
        "graph": 5,
        "graph_node": 6,
        "occupancy": 0.5,
    }
    assert {key: row[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("name", "detail", "kind", "devices"),
    [
        ("MemcpyH2D", "kind_src:pageable kind_dst:device size:8 dest:1", "Host-to-Device", None),
        ("MemcpyP2P", "kind_src:device kind_dst:device size:8 dest:3", "Peer-to-Peer", (1, 3)),
        ("MemcpyOther", "kind_src:pinned kind_dst:pageable size:8 dest:1", "Host-to-Host", None),
        ("MemcpyOther", "kind_src:array kind_dst:device size:8 dest:1", "Unknown", None),
        ("MemcpyD2D", "kind:Unknown size:8 dest:1 async:1", "Device-to-Device", None),
    ],
)
def test_copies(
    tmp_path: Path, name: str, detail: str, kind: str, devices: tuple[int, int] | None
) -> None:
    stream = line("Stream #1(Memcpy)", event(name, 0, 4, memcpy_details=detail))
    copies = build(tmp_path, plane("/device:GPU:1", stream)).copies
    expected = (8, kind, *(devices or (None, None)))
    assert rows(copies, "bytes", "kind", "src_device", "dst_device") == [expected]


def test_work_that_no_table_is_made_of_is_said(tmp_path: Path) -> None:
    trace = build(
        tmp_path,
        plane(
            "/device:GPU:0",
            line(
                "Stream #1",
                event("kernel", 0, 1),
                event("MemcpyH2D", 2, 1),
                event("MemcpyH2D", 3, 1, memcpy_details="kind_src:pinned kind_dst:device"),
                event("UM_BYTES_TRANSFER_HTOD", 4, 1),
                event("Memory device", 5, 1, MemoryResidency_details="kind:device num_bytes:4"),
                whole(1, 777) + whole(2, 5000),  # a kind that nothing names
                whole(1, 1) + whole(5, 12),  # a count, without a time
            ),
            line("Launch Stats", event("x", 0, 1), number=2),
        ),
        plane("#Chip TPU Non-Core HLO Ops#", line("x", event("y", 0, 1))),
    )
    assert rows(trace.kernels, "name") == [("kernel",)]
    assert not trace.has("copies")
    assert trace.meta.notes == (
        "not read: 1 lifetimes of memory",
        "not read: 1 unified-memory events",
        "not read: 2 memcpys and memsets of unknown size",
        "not read: lines 'Launch Stats' of /device:GPU:0",
        "not read: 2 events of /device:GPU:0 without a name of their own",
        "not read: planes '#Chip TPU Non-Core HLO Ops#'",
    )


def test_a_graph_traced_as_a_whole_is_one_launch(tmp_path: Path) -> None:
    run = event("CudaGraphExec:9", 10, 20, correlation_id=4, cuda_graph_id=9, cuda_graph_exec_id=9)
    trace = build(tmp_path, plane("/device:GPU:0", line("Stream #1(CudaGraph)", run)))
    assert not trace.has("kernels")
    assert rows(
        trace.graph_launches, "start_ns", "end_ns", "correlation", "graph", "graph_exec"
    ) == [(10, 30, 4, 9, 9)]


def test_samples_and_overhead_of_a_device(tmp_path: Path) -> None:
    trace = build(
        tmp_path,
        plane(
            "/device:GPU:0",
            line("_counters_", event("power_mw", 5, 0, power_mw=700.5), event("power_mw", 9)),
            line("CUPTI overhead", event("BUFFER_FLUSH", 1, 2), number=2),
        ),
        plane("/host:CPU", line("Host Threads/9", event("RESOURCE", 4, 2), number=9)),
    )
    assert rows(trace.gpu_metrics, "time_ns", "device", "metric", "value") == [
        (5, 0, "power_mw", 700.5)
    ]
    assert rows(trace.overheads, "start_ns", "end_ns", "name", "thread") == [
        (1, 3, "BUFFER_FLUSH", None),
        (4, 6, "RESOURCE", 1),
    ]


def test_on_a_tpu_operations_are_the_work_and_loops_enclose_it(tmp_path: Path) -> None:
    trace = build(
        tmp_path,
        plane(
            "/device:TPU:1",
            line("Steps", event("12", 0, 100), number=1),
            line("XLA Modules", event("jit_step(7)", 0, 90), number=2),
            line(
                "XLA Ops",
                event("%while.1 = while(...)", 0, 80),
                event("fusion.1", 10, 20),
                event("fusion.2", 40, 30),
                event("copy.3", 80, 10),
                number=3,
            ),
            line("Async XLA Ops", event("copy-start", 5, 60), number=4),
            stats={
                "device_type_string": "TPU v5",
                "peak_hbm_bw_gigabytes_per_second": 2765.0,
                "dropped_traces": 3,
            },
            display={"%while.1 = while(...)": "while.1"},
        ),
    )
    assert rows(trace.kernels, "start_ns", "end_ns", "name", "device") == [
        (10, 30, "fusion.1", 1),
        (40, 70, "fusion.2", 1),
        (80, 90, "copy.3", 1),
    ]
    assert sorted(rows(trace.gpu_ranges, "kind", "name", "start_ns", "end_ns")) == [
        ("annotation", "step#12", 0, 100),
        ("module", "jit_step(7)", 0, 90),
        ("operator", "copy-start", 5, 65),
        ("operator", "while.1", 0, 80),
    ]
    assert rows(trace.devices, "device", "name", "memory_bandwidth") == [
        (1, "TPU v5", 2_765_000_000_000)
    ]
    assert rows(trace.diagnostics, "severity", "text") == [
        ("warning", "3 records of /device:TPU:1 were dropped")
    ]


def test_lines_that_were_drawn_beside_streams_are_no_second_work(tmp_path: Path) -> None:
    trace = build(
        tmp_path,
        plane(
            "/device:GPU:0",
            line("Stream #7(Compute)", event("k", 0, 9, hlo_module="m", hlo_op="fusion")),
            line("XLA Ops", event("fusion", 0, 9), number=2),
        ),
    )
    assert trace.row_count("kernels") == 1
    assert rows(trace.gpu_ranges, "kind", "name") == [("operator", "fusion"), ("module", "m")]


def test_executions_are_told_by_scopes_or_else_by_runs(tmp_path: Path) -> None:
    def work(start: int, module: str, **scope: int) -> Any:
        return event("k", start, 5, hlo_module=module, hlo_op="op", **scope)

    scoped = plane(
        "/device:GPU:0",
        line(
            "Stream #1",
            work(0, "m", scope_range_id=11),
            work(10, "m", scope_range_id=12),
            work(20, "m", scope_range_id=21),
        ),
    )
    scopes = plane("/host:__ScopeRangeCallStack__", raw_stats={11: 1, 12: 1, 21: 2})
    result = build(tmp_path, scopes, scoped).gpu_ranges
    assert rows(result.filter(kind="module"), "start_ns", "end_ns") == [(0, 15), (20, 25)]
    assert result.filter(kind="operator").height == 3

    plain = plane("/device:GPU:0", line("Stream #1", work(0, "m"), work(10, "m"), work(20, "n")))
    result = build(tmp_path, plain).gpu_ranges
    assert rows(result.filter(kind="module"), "name", "start_ns", "end_ns") == [
        ("m", 0, 15),
        ("n", 20, 25),
    ]


def test_annotations_are_what_the_runtime_did_not_make(tmp_path: Path) -> None:
    host = plane(
        "/host:CPU",
        line(
            "python",
            event("epoch", 0, 100),
            event("$train.py:3 step", 5, 90),
            event("my annotation", 10, 50, batch=3),
            event("PjitFunction(f)", 20, 30),
            event("inside the runtime", 25, 5),
            event("has a source", 61, 5, _src="runtime.cc"),
            event("TfrtCpuExecutable::Execute", 70, 5),
            event("instant", 80, 0),
            number=-5,
        ),
        line("tf_XLAEigen/77", event("pool work", 0, 10), number=77),
        line("loader/3", event("load", 1, 9), number=78),
        line("Host Threads/12/NVTX", event("NVTX:from nvtx", 3, 4), number=12),
    )
    trace = build(tmp_path, host)
    assert rows(trace.ranges, "name", "start_ns", "end_ns", "depth") == [
        ("epoch", 0, 100, 0),
        ("load", 1, 10, 0),
        ("from nvtx", 3, 7, 0),
        ("my annotation", 10, 60, 1),
    ]
    assert trace.cpu_ops["name"].to_list() == [
        "pool work",
        "PjitFunction(f)",
        "inside the runtime",
        "has a source",
        "TfrtCpuExecutable::Execute",
        "instant",
    ]
    assert rows(trace.python_calls, "name") == [("train.py(3): step",)]
    assert trace.threads["tid"].to_list() == [(1 << 32) - 5, 77, 78, 12]


def test_lines_of_one_id_are_one_thread(tmp_path: Path) -> None:
    call = event("cuMemAlloc_v2", 1, 2, device_id=0, correlation_id=8)
    trace = build(
        tmp_path,
        plane("/host:CUPTI", line("Host Threads/5", call, number=5)),
        plane("/host:CPU", line("python3", event("note", 0, 9), number=5)),
    )
    assert rows(trace.threads, "thread", "tid", "name") == [(1, 5, "python3")]
    assert set(trace.api_calls["thread"]) == set(trace.ranges["thread"]) == {1}
    assert rows(trace.api_calls, "name", "symbol", "api") == [
        ("cuMemAlloc", "cuMemAlloc_v2", "driver")
    ]


def test_times_since_1970_count_from_the_start_of_the_profile(tmp_path: Path) -> None:
    start = 1_700_000_000_000_000_000
    stream = line("Stream #1", event("k", 7, 1), timestamp_ns=start + 100)
    task = plane("Task Environment", stats={"profile_start_time": start})
    trace = build(tmp_path, plane("/device:GPU:0", stream), task)
    assert rows(trace.kernels, "start_ns", "end_ns") == [(107, 108)]
    assert trace.meta.start_utc_ns == start
    alone = build(tmp_path, plane("/device:GPU:0", stream))
    assert rows(alone.kernels, "start_ns", "end_ns") == [(7, 8)]
    assert alone.meta.start_utc_ns == start + 100


def test_the_profilers_complaints_name_no_machine(tmp_path: Path) -> None:
    trace = build(
        tmp_path,
        plane("/host:CPU", line("python", event("x", 0, 1))),
        errors=("node-7.lab failed",),
        warnings=("Detected GPU events dropped on other.lab: 5 events dropped on node-7.",),
        host="node-7.lab",
    )
    assert rows(trace.diagnostics, "severity", "text") == [
        ("error", "this host failed"),
        ("warning", "Detected GPU events dropped on this host: 5 events dropped on this host."),
    ]


def test_fields_in_any_order_and_unknown_ones_are_read(tmp_path: Path) -> None:
    odd = varint(15 << 3 | 5) + b"\0\0\0\0" + whole(3, 5000) + whole(2, 10_000) + whole(1, 1)
    stream = line("Stream #1", event("k", 0, 1), odd + block(30, b"later"))
    kernels = build(tmp_path, plane("/device:GPU:0", stream)).kernels
    assert rows(kernels, "name", "start_ns", "end_ns") == [("k", 0, 1), ("k", 10, 15)]


def test_a_profile_without_a_process_still_links_its_calls(tmp_path: Path) -> None:
    trace = build(
        tmp_path,
        plane("/device:GPU:0", line("Stream #1", event("k", 10, 5, correlation_id=1))),
        plane("/host:CPU", line("python", event("k", 0, 5, correlation_id=1, device_id=0))),
    )
    assert not trace.has("processes")
    assert rows(trace.api_calls, "name", "process", "correlation") == [("cuLaunchKernel", None, 1)]
    assert trace.meta.tool == "XLA profiler"


def test_amd_calls_are_named_as_hip_does(tmp_path: Path) -> None:
    trace = build(
        tmp_path,
        plane("/device:GPU:0", line("Stream #1", event("k", 1)), stats={"device_vendor": "AMD"}),
        plane("/host:CPU", line("python", event("k", 0, 5, correlation_id=1, device_id=0))),
    )
    assert rows(trace.api_calls, "name", "api") == [("hipLaunchKernel", "runtime")]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("$train.py:12 step", "train.py(12): step"),
        ("$<frozen os>:5 a b", "<frozen os>(5): a b"),
        ("$builtins len", "<built-in function len>"),
        ("$jaxlib.utils safe_zip", "<built-in function jaxlib.utils.safe_zip>"),
        ("$<unknown> get", "<built-in method get>"),
        ("$", "?"),
    ],
)
def test_names_of_python_calls(written: str, read: str) -> None:
    assert host_events.python_name(written) == read


@pytest.mark.parametrize(
    ("written", "detail", "read"),
    [
        ("void gemm<4>(float*)", "", "cuLaunchKernel"),
        ("cuGraphLaunch (CudaGraph:30)", "", "cuGraphLaunch"),
        ("cuMemHostAlloc", "", "cuMemHostAlloc"),
        ("MemcpyH2D", "size:4 async:1", "cuMemcpyHtoDAsync"),
        ("MemcpyP2P", "size:4 async:0", "cuMemcpyPeer"),
        ("Memset", "num_bytes:4 async:1", "cuMemsetAsync"),
        ("HostRegister", "", "cuMemHostRegister"),
        ("custom_kernel", "", "cuLaunchKernel"),
    ],
)
def test_names_of_driver_calls(written: str, detail: str, read: str) -> None:
    assert host_events.api_name(written, detail, vendor="Nvidia") == read


# Files that are something else, or broken -------------------------------------------------------


def packet(*content: bytes) -> bytes:
    return block(1, b"".join(content))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            packet(block(6, b"clocks"), whole(10, 1)) + packet(whole(8, 5), whole(10, 1)),
            "is a Perfetto trace (protobuf)",
        ),
        (block(1, block(1, b"node") + block(2, b"MatMul")), "is not a capture"),
        (block(1, whole(1, 3) + whole(2, 4)), "is not a capture"),
        (b"\nhello, this is a text file\n", "is not a capture"),
        (b"\n\0\n\0", "is not a capture"),
        (b"\n", "is not a capture"),
        (b"", "is not a capture"),
        (block(1, block(2, b"\xff\xfe")), "is not a capture"),
    ],
)
def test_other_files_are_named_or_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.pb"
    path.write_bytes(content)
    with pytest.raises(NotACaptureError, match=r"x\.pb is") as raised:
        xplane_source(path)
    assert message in str(raised.value)
    assert raised.value.hint


def test_a_cut_profile_is_damaged_wherever_it_was_cut(tmp_path: Path) -> None:
    whole_file = (DATA / "jax_graph.xplane.pb").read_bytes()
    path = tmp_path / "cut.xplane.pb"
    for length in (40, 1000, len(whole_file) // 2, len(whole_file) - 1):
        path.write_bytes(whole_file[:length])
        with pytest.raises(DamagedCaptureError, match="is cut off"):
            xplane_source(path)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (line("Stream #1", b"\x0f"), "wire type"),
        (line("Stream #1", whole(1, 1) + b"\x22\x7f"), "beyond its event"),
        (line("Stream #1", event("k"), whole(1, 1) * 5000), "too many fields"),
    ],
)
def test_contradictions_are_one_line(tmp_path: Path, broken: Any, message: str) -> None:
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(space(plane("/device:GPU:0", line("Stream #2", event("k")), broken)))
    with pytest.raises(DamagedCaptureError, match=message) as raised:
        open_trace(path, cache=False).validate()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "odd",
    [
        line("Stream #1", event("k", 0, -5)),
        line("Stream #1", event("k", 0, (1 << 63) - 1)),
        line("Stream #1", whole(1, 1) + whole(2, (1 << 63) - 1)),
        line("Stream #1", event("k"), timestamp_ns=-(1 << 62)),
    ],
)
def test_events_without_a_usable_time_are_left_out_and_counted(tmp_path: Path, odd: Any) -> None:
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(space(plane("/device:GPU:0", line("Stream #2", event("k")), odd)))
    trace = open_trace(path, cache=False)
    trace.validate()
    assert trace.kernels.height == 1
    text = "1 of 2 events of /device:GPU:0 left out: no usable time or duration"
    assert trace.warnings == (text,)
    path.write_bytes(space(plane("/device:GPU:0", line("Stream #2", event("k")), odd, odd)))
    with pytest.raises(DamagedCaptureError, match="2 of 3 events of /device:GPU:0 have no usable"):
        open_trace(path, cache=False).has("kernels")


@pytest.mark.parametrize(
    "content",
    [
        lambda: block(1, block(2, b"/host:CPU") + block(3, b"") * 300_000),
        lambda: block(1, block(2, b"/host:CPU")) * 70_000,
        lambda: space(plane("/host:CPU", line("x", event("y"), *[b""] * 500_000))),
    ],
    ids=["lines", "planes", "events"],
)
def test_files_made_to_waste_memory_are_refused(
    tmp_path: Path, content: Callable[[], bytes]
) -> None:
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(content())
    with pytest.raises(DamagedCaptureError):
        Trace(xplane_source(path)).validate()


def test_a_compressed_file_that_never_ends_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpusight.readers.jax.jax_profile._MAX_UNPACKED_BYTES", 1 << 20)
    path = tmp_path / "x.pb.gz"
    path.write_bytes(gzip.compress(b"\n" + bytes(5 << 20)))
    with pytest.raises(CaptureError, match="gzip -d"):
        xplane_source(path)


def test_changed_bytes_raise_nothing_else(tmp_path: Path) -> None:
    content = (DATA / "jax_graph.xplane.pb").read_bytes()
    chance = random.Random(5)
    path = tmp_path / "x.xplane.pb"
    outcomes: Counter[bool] = Counter()
    for _ in range(60):
        changed = bytearray(content)
        for _ in range(chance.randrange(1, 6)):
            changed[chance.randrange(len(changed))] = chance.choice((0, 0x22, 0x7F, 0x80, 0xFF))
        path.write_bytes(changed)
        try:
            Trace(xplane_source(path)).validate()
            outcomes[True] += 1
        except GpusightError as error:
            assert "\n" not in str(error)  # noqa: PT017
            outcomes[False] += 1
    assert outcomes[True]
    assert outcomes[False]
