"""What a capture is, what it holds, and what it does not.

Shows no environment, command line, host or user name: processes appear by executable and number,
messages of the profiler lose their home directories.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.model.hardware import find_gpu
from gpusight.model.schema import TABLES
from gpusight.result import Composite, Fact, Field, Fmt, NotApplicable, TableResult

if TYPE_CHECKING:
    from gpusight.model.hardware import Gpu
    from gpusight.model.trace import Meta, Trace

DEVICE_FIELDS = (
    Field("device", "GPU", Fmt.ID, "The GPU's number in the capture"),
    Field("name", "Name", Fmt.NAME, "Marketing name"),
    Field("compute_capability", "CC", Fmt.TEXT, "Compute capability"),
    Field("sm_count", "SMs", Fmt.COUNT, "Streaming multiprocessors"),
    Field("clock_hz", "Clock Hz", Fmt.REAL, "Highest SM clock, in Hz", shown=False),
    Field("memory_bytes", "Memory", Fmt.BYTES, "Memory"),
    Field("memory_bandwidth", "Bandwidth", Fmt.RATE, "Peak memory bandwidth"),
    Field("l2_bytes", "L2", Fmt.BYTES, "L2 cache", shown=False),
    Field("from_table", "Not captured", Fmt.TEXT, "Values taken from gpusight's GPU table instead"),
)
CONTENT_FIELDS = (
    Field("table", "Table", Fmt.TEXT, "Table of the model"),
    Field("rows", "Rows", Fmt.COUNT, "Rows in this capture; 0 when it has none"),
    Field("meaning", "One row is", Fmt.NAME, "What a row of the table is"),
)
MISSING_FIELDS = (
    Field("what", "Not captured", Fmt.TEXT, "What the capture does not hold"),
    Field("tells", "It would tell", Fmt.NAME, "What could be answered with it"),
    Field("option", "Option of nsys profile", Fmt.NAME, "How to capture it next time"),
)
PROCESS_FIELDS = (
    Field("pid", "PID", Fmt.ID, "The operating system's number"),
    Field("name", "Process", Fmt.NAME, "Executable, file name only"),
    Field("api_calls", "API calls", Fmt.COUNT, "CUDA API calls it made"),
    Field("ranges", "Ranges", Fmt.COUNT, "NVTX ranges and marks it made"),
    Field("kernels", "Kernels", Fmt.COUNT, "Kernels it launched"),
)
MESSAGE_FIELDS = (
    Field("severity", "Severity", Fmt.TEXT, "Warning or error"),
    Field("text", "Message", Fmt.NAME, "What the profiler said"),
)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Something worth capturing: where it would be, what it tells, how to get it."""

    tables: tuple[str, ...]
    what: str
    tells: str
    option: str


_WANTED = (
    _Wanted(("kernels",), "GPU kernels", "where GPU time goes", "--trace=cuda"),
    _Wanted(("api_calls",), "CUDA API calls", "what the host waited for", "--trace=cuda"),
    _Wanted(("ranges",), "NVTX ranges", "which step or layer costs what", "--trace=cuda,nvtx"),
    _Wanted(("os_calls",), "OS calls", "whether the host read, slept or waited", "--trace=osrt"),
    _Wanted(("cpu_samples",), "CPU samples", "what host code ran", "--sample=process-tree"),
    _Wanted(("memory_events",), "GPU memory use", "peaks and leaks", "--cuda-memory-usage=true"),
    _Wanted(("gpu_metrics",), "GPU metrics", "how full the GPU was", "--gpu-metrics-devices=all"),
)
_GRAPH_NODES = _Wanted(
    ("kernels",), "kernels inside CUDA graphs", "what the graphs spend", "--cuda-graph-trace=node"
)


def info(trace: Trace) -> Composite:
    """Describe a capture; of its events only the process columns are read."""
    sections = [_devices(trace), _processes(trace), _contents(trace), _missing(trace)]
    messages = serious_messages(trace)
    if messages.height:
        sections.append(
            TableResult("messages", "What the profiler warned about", MESSAGE_FIELDS, messages)
        )
    return Composite(
        "info",
        "About this capture",
        _facts(trace.meta),
        tuple(sections),
        notes=trace.meta.notes,
    )


def _facts(meta: Meta) -> tuple[Fact, ...]:
    tool = meta.tool if meta.tool_version is None else f"{meta.tool} {meta.tool_version}"
    facts = (
        Fact("tool", "Captured with", tool, Fmt.TEXT, "Program that made the capture"),
        Fact("source", "Form", meta.source, Fmt.TEXT, "Form of the file"),
        Fact("schema_version", "Schema", meta.schema_version, Fmt.TEXT, "Version of its layout"),
        Fact("start_utc", "Started", _utc(meta.start_utc_ns), Fmt.TEXT, "When capturing began"),
        Fact("duration_ns", "Duration", meta.duration_ns, Fmt.TIME, "How long it lasted"),
        Fact("driver_version", "Driver", meta.driver_version, Fmt.TEXT, "NVIDIA driver"),
        Fact("cuda_version", "CUDA", meta.cuda_version, Fmt.TEXT, "CUDA version"),
        Fact("os", "System", meta.os, Fmt.TEXT, "Operating system"),
        Fact("cpu", "CPU", meta.cpu, Fmt.TEXT, "Processor of the host"),
    )
    return tuple(fact for fact in facts if fact.value is not None)


def _utc(start_ns: int | None) -> str | None:
    if start_ns is None:
        return None
    return datetime.fromtimestamp(start_ns // 10**9, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _devices(trace: Trace) -> TableResult | NotApplicable:
    if not trace.has("devices"):
        return NotApplicable("devices", "the capture does not describe its GPUs")
    rows = [_device(row) for row in trace.devices.iter_rows(named=True)]
    return _table("devices", "GPUs", DEVICE_FIELDS, rows)


def _device(row: dict[str, Any]) -> dict[str, Any]:
    gpu = find_gpu(row["name"], sm_count=row["sm_count"], memory_bytes=row["memory_bytes"])
    listed = _listed(gpu) if gpu else {}
    major, minor = row["compute_major"], row["compute_minor"]
    captured = {
        "compute_capability": None if major is None else f"{major}.{minor or 0}",
        **{k: row[k] or None for k in ("sm_count", "clock_hz", "memory_bytes")},
        **{k: row[k] or None for k in ("memory_bandwidth", "l2_bytes")},
    }
    filled = [k for k, v in captured.items() if v is None and listed.get(k) is not None]
    return {
        "device": row["device"],
        "name": row["name"],
        **captured,
        **{k: listed[k] for k in filled},
        "from_table": ", ".join(filled) or None,
    }


def _listed(gpu: Gpu) -> dict[str, Any]:
    cc, clock = gpu.compute_capability, gpu.boost_clock_mhz
    bandwidth = gpu.memory_bandwidth_bytes_s
    return {
        "compute_capability": f"{cc[0]}.{cc[1]}" if cc else None,
        "sm_count": gpu.sm_count,
        "clock_hz": None if clock is None else round(clock * 1e6),
        "memory_bytes": gpu.memory_bytes,
        "memory_bandwidth": None if bandwidth is None else round(bandwidth),
        "l2_bytes": gpu.l2_bytes,
    }


def _processes(trace: Trace) -> TableResult | NotApplicable:
    """Count what each process did; those that did nothing are not shown."""
    frame = trace.table("processes", ["process", "pid", "name"]).with_columns(
        pl.col("name").cast(pl.String)
    )
    counted = ("api_calls", "ranges", "kernels")
    trace.prepare(*counted)
    for table in counted:
        keys = trace.table(table, ["process"])["process"] if trace.has(table) else None
        counts = {} if keys is None else dict(keys.value_counts().iter_rows())
        frame = frame.with_columns(
            pl.Series(table, [counts.get(key, 0) for key in frame["process"]], pl.Int64)
        )
    active = frame.filter(pl.sum_horizontal(counted) > 0)
    if active.is_empty():
        return NotApplicable("processes", "no process of the capture used CUDA or NVTX")
    return TableResult(
        "processes", "Processes", PROCESS_FIELDS, active.select([f.key for f in PROCESS_FIELDS])
    )


def _contents(trace: Trace) -> TableResult:
    rows = [
        {"table": name, "rows": trace.row_count(name), "meaning": table.meaning}
        for name, table in sorted(TABLES.items(), key=lambda item: not trace.has(item[0]))
    ]
    return _table("contents", "Contents", CONTENT_FIELDS, rows)


def _missing(trace: Trace) -> TableResult:
    absent = [w for w in _WANTED if not any(trace.has(table) for table in w.tables)]
    if trace.has("graph_launches"):
        absent = [_GRAPH_NODES, *(w for w in absent if w.tables != ("kernels",))]
    rows = [{"what": w.what, "tells": w.tells, "option": w.option} for w in absent]
    return _table("missing", "What to capture next time", MISSING_FIELDS, rows)


def serious_messages(trace: Trace) -> pl.DataFrame:
    """Give the profiler's warnings and errors about the capture, each text once."""
    frame = trace.table("diagnostics", ["severity", "text"]).with_columns(
        pl.col("severity").cast(pl.String)
    )
    serious = frame.filter(pl.col("severity").is_in(["warning", "error"]))
    texts = [" ".join(text.split()) for text in serious["text"]]
    return serious.with_columns(pl.Series("text", texts, pl.String)).unique(maintain_order=True)


def _table(
    command: str, title: str, fields: tuple[Field, ...], rows: list[dict[str, Any]]
) -> TableResult:
    keys = [f.key for f in fields]
    text = {f.key: pl.String for f in fields if f.fmt in (Fmt.NAME, Fmt.TEXT)}
    numbers = {k: pl.Float64 if k == "clock_hz" else pl.Int64 for k in keys if k not in text}
    schema = {key: text.get(key) or numbers[key] for key in keys}
    return TableResult(command, title, fields, pl.DataFrame(rows, schema=schema))
