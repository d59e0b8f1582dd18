"""What a capture is, what it contains and what is missing."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.aggregates import names_of, table_of
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.steps.step_list import known_pace
from gpusight.hardware.gpu_lookup import listed_gpu, table_name
from gpusight.results import Composite, Fact, Field, Fmt, NotApplicable, TableResult
from gpusight.trace.schema import TABLES
from gpusight.units import format_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpusight.trace.trace import Meta, Trace


_NAMED_BY = ("device", "name", "sm_count", "memory_bytes", "compute_major", "compute_minor")
"""Columns of `devices` that name a GPU, or find it in the GPU table."""
DEVICE_FIELDS = (
    Field("device", "GPU", Fmt.ID, "The GPU's number in the capture"),
    Field("name", "Name", Fmt.NAME, "Marketing name"),
    Field("compute_capability", "CC", Fmt.TEXT, "Compute capability; gfx version of AMD GPUs"),
    Field("sm_count", "SMs", Fmt.COUNT, "Streaming multiprocessors; compute units of AMD GPUs"),
    Field("clock_hz", "Clock Hz", Fmt.REAL, "Highest SM clock, in Hz", shown=False),
    Field("memory_bytes", "Memory", Fmt.BYTES, "Memory"),
    Field("memory_bandwidth", "Bandwidth", Fmt.RATE, "Peak memory bandwidth"),
    Field("l2_bytes", "L2", Fmt.BYTES, "L2 cache", shown=False),
    Field("from_table", "From GPU table", Fmt.TEXT, "Values that were not captured"),
)
CONTENT_FIELDS = (
    Field("table", "Table", Fmt.TEXT, "Table of the model"),
    Field("rows", "Rows", Fmt.COUNT, "Rows in this capture"),
    Field("meaning", "Each row", Fmt.NAME, "Contents of a row"),
)
MISSING_FIELDS = (
    Field("what", "Missing", Fmt.TEXT, "Data that the capture lacks"),
    Field("tells", "Needed for", Fmt.NAME, "What it is needed for"),
    Field("option", "How", Fmt.NAME, "How to capture it next time"),
    Field("native", "Or", Fmt.NAME, "The profiler's own option for it", shown=False),
)
PROCESS_FIELDS = (
    Field("pid", "PID", Fmt.ID, "The operating system's number"),
    Field("name", "Process", Fmt.NAME, "Executable, file name only"),
    Field("cpu_ops", "Operators", Fmt.COUNT, "Operators it ran, where recorded"),
    Field("api_calls", "API calls", Fmt.COUNT, "CUDA API calls it made"),
    Field("ranges", "Ranges", Fmt.COUNT, "Ranges and marks it opened"),
    Field("kernels", "Kernels", Fmt.COUNT, "Kernels it launched"),
    Field("profiles", "Launches", Fmt.COUNT, "Profiled launches, in reports of ncu"),
)
GROUP_FIELDS = (
    Field("group", "Group", Fmt.TEXT, "Name of the process group"),
    Field("description", "Called", Fmt.NAME, "The program's name for it"),
    Field("backend", "Backend", Fmt.TEXT, "Library it communicates through"),
    Field("size", "Ranks", Fmt.COUNT, "Ranks in it"),
    Field("ranks", "Which", Fmt.NAME, "The ranks, as JSON"),
)
MESSAGE_FIELDS = (
    Field("severity", "Severity", Fmt.TEXT, "Warning or error"),
    Field("text", "Message", Fmt.NAME, "Message of the profiler"),
)
RULE_FIELDS = (
    Field("section", "Section", Fmt.TEXT, "Section of the report with the rule"),
    Field("rule", "Rule", Fmt.TEXT, "Identifier of the profiler's own rule", shown=False),
    Field("title", "Rule", Fmt.NAME, "The profiler's name for it"),
    Field("launches", "Launches", Fmt.COUNT, "Launches that it was applied to"),
    Field("advised", "Advice", Fmt.COUNT, "Launches with advice or a warning"),
)
STACK_SOURCES = {
    "gpusight": "samples of `gpusight record`",
    "nsys-python": "Python samples of nsys",
    "nsys-cpu": "CPU samples of nsys",
    "nsys-cuda-backtrace": "backtraces of CUDA calls",
    "nsys-osrt-backtrace": "backtraces of OS runtime calls",
    "torch-stack": "Python stacks of torch.profiler",
    "folded": "folded stacks",
    "speedscope": "a speedscope profile",
    "perf": "samples of perf",
}
"""Where stacks come from, in words."""
DEF_LINES = (
    "the profiler recorded the line of each `def`, not the line of each call: rows are functions"
)
"""Note on lines of `python_calls`."""
CHAIN_SOURCES = {"os_calls": "nsys-osrt-backtrace", "api_calls": "nsys-cuda-backtrace"}
"""Those of calls, by the table of the calls."""
_ADVICE = ("optimization", "warning", "error")
_LAST_SECOND = 253_402_300_799
"""Of the year 9999, where dates end; a clock that shows more was never set."""


def info(trace: Trace) -> Composite:
    """Describe a capture; of its events only the process columns and names of ranges are read."""
    sections = [_devices(trace), _processes(trace), *_groups(trace), *_rules(trace)]
    contents = [
        {"table": name, "rows": trace.row_count(name), "meaning": table.meaning}
        for name, table in TABLES.items()
        if trace.has(name)
    ]
    facts = (*_facts(trace.meta), *_measured_facts(trace), _pace_fact(trace), _stacks_fact(trace))
    sections.append(table_of("contents", "Contents", CONTENT_FIELDS, contents))
    sections.append(_missing(trace))
    messages = serious_messages(trace)
    if messages.height:
        sections.append(TableResult("messages", "Profiler warnings", MESSAGE_FIELDS, messages))
    return Composite(
        "info",
        "About this capture",
        tuple(f for f in facts if f.value is not None),
        tuple(sections),
        notes=trace.meta.notes,
    )


def _facts(meta: Meta) -> tuple[Fact, ...]:
    tool = meta.tool if meta.tool_version is None else f"{meta.tool} {meta.tool_version}"
    started = meta.start_utc_ns
    if started is not None and 0 <= started // 10**9 <= _LAST_SECOND:
        date = datetime.fromtimestamp(started // 10**9, timezone.utc)
        start_utc = date.strftime("%Y-%m-%d %H:%M:%S UTC")
    else:
        start_utc = None
    return (
        Fact("tool", "Captured with", tool, Fmt.TEXT, "Profiler that wrote the capture"),
        Fact("source", "Format", meta.source, Fmt.TEXT, "Format of the file"),
        Fact("schema_version", "Schema", meta.schema_version, Fmt.TEXT, "Version of its layout"),
        Fact("start_utc", "Started", start_utc, Fmt.TEXT, "Start of the capture"),
        Fact("duration_ns", "Duration", meta.duration_ns, Fmt.TIME, "Length of the capture"),
        Fact("driver_version", "Driver", meta.driver_version, Fmt.TEXT, "NVIDIA driver"),
        Fact("cuda_version", "CUDA", meta.cuda_version, Fmt.TEXT, "CUDA version"),
        Fact("os", "System", meta.os, Fmt.TEXT, "Operating system"),
        Fact("cpu", "CPU", meta.cpu, Fmt.TEXT, "Processor of the host"),
        Fact("rank", "Rank", meta.rank, Fmt.ID, "Number of this process in its job"),
        Fact("world_size", "World size", meta.world_size, Fmt.COUNT, "Processes of that job"),
        Fact("backend", "Backend", meta.backend, Fmt.TEXT, "Library they communicate through"),
    )


def _pace_fact(trace: Trace) -> Fact:
    """Return the step time without the profiler that was stored with the capture."""
    pace = known_pace(trace)
    step = None if pace is None else f"{format_time(pace.mean_ns, digits=3)}/step, {pace.text}"
    return Fact("pace", "Without profiler", step, Fmt.TEXT, "Step time without the profiler")


def _stacks_fact(trace: Trace) -> Fact:
    """Name what recorded stacks of host threads."""
    sources = [STACK_SOURCES[source] for source in stack_sources(trace)]
    return Fact("stacks", "Stacks", ", ".join(sources) or None, Fmt.TEXT, "Stacks of the host")


def stack_sources(trace: Trace) -> tuple[str, ...]:
    """Return which kinds of stacks a capture has: keys of `STACK_SOURCES`."""
    sources: list[str] = []
    if trace.has("stack_samples"):
        sources += names_of(trace.table("stack_samples", ["source"])["source"])
    if trace.has("python_calls") or trace.has("cpu_ops", "stack"):
        sources.append("torch-stack")
    if trace.has("cpu_samples", "callchain") and trace.has("callchains"):
        sources.append("nsys-cpu")
    if trace.has("callchains"):
        chains = set(names_of(trace.table("callchains", ["source"])["source"]))
        sources += [source for table, source in CHAIN_SOURCES.items() if table in chains]
    return tuple(source for source in STACK_SOURCES if source in sources)


def _measured_facts(trace: Trace) -> list[Fact]:
    """Count what was measured, in reports of launches."""
    if not trace.has("profiles"):
        return []
    rows = trace.table("profiles", ["name", "duration_ns"])
    timed = rows["duration_ns"].null_count() < rows.height
    metrics = trace.table("counters", ["metric"])["metric"].n_unique()
    total_ns = float(rows["duration_ns"].sum()) if timed else None
    return [
        Fact("launches", "Launches", rows.height, Fmt.COUNT, "Launches that were measured"),
        Fact("kernel_names", "Kernels", rows["name"].n_unique(), Fmt.COUNT, "Different kernels"),
        Fact("metrics", "Metrics", metrics, Fmt.COUNT, "Different metrics"),
        Fact(
            "total_ns", "GPU time", total_ns, Fmt.TIME, "Time of all launches, each measured alone"
        ),
    ]


def _rules(trace: Trace) -> list[TableResult | NotApplicable]:
    """Count the results of the profiler's own rules, in reports that hold some."""
    if not trace.has("rule_results"):
        return []
    names = ["section", "rule", "title", "kind"]
    frame = trace.table("rule_results", ["launch", *names]).with_columns(
        pl.col(names).cast(pl.String)
    )
    launch = pl.col("launch")
    counted = frame.group_by("section", "rule", "title", maintain_order=True).agg(
        launch.n_unique().cast(pl.Int64).alias("launches"),
        launch.filter(pl.col("kind").is_in(_ADVICE)).n_unique().cast(pl.Int64).alias("advised"),
    )
    keys = [f.key for f in RULE_FIELDS]
    return [TableResult("rules", "Rules of Nsight Compute", RULE_FIELDS, counted.select(keys))]


def _devices(trace: Trace) -> TableResult | NotApplicable:
    if not trace.has("devices"):
        return NotApplicable("devices", "the capture does not describe its GPUs")
    rows = [_device(row) for row in trace.devices.iter_rows(named=True)]
    return table_of("devices", "GPUs", DEVICE_FIELDS, rows)


def _device(row: dict[str, Any]) -> dict[str, Any]:
    gpu = listed_gpu(row)
    listed: dict[str, Any] = {}
    if gpu:
        cc, clock = gpu.compute_capability, gpu.boost_clock_mhz
        bandwidth = gpu.memory_bandwidth_bytes_s
        listed = {
            "name": table_name(gpu),
            "compute_capability": f"{cc[0]}.{cc[1]}" if cc else gpu.gfx,
            "sm_count": gpu.sm_count,
            "clock_hz": None if clock is None else round(clock * 1e6),
            "memory_bytes": gpu.memory_bytes,
            "memory_bandwidth": None if bandwidth is None else round(bandwidth),
            "l2_bytes": gpu.l2_bytes,
        }
    major = row["compute_major"]
    # ROCm reports a part of the gfx version in place of a compute capability.
    has_capability = major is not None and (gpu is None or gpu.gfx is None)
    numbers = ("sm_count", "clock_hz", "memory_bytes", "memory_bandwidth", "l2_bytes")
    captured = {
        "name": row["name"] or None,
        "compute_capability": f"{major}.{row['compute_minor'] or 0}" if has_capability else None,
        **{key: row[key] or None for key in numbers},
    }
    filled = [k for k, v in captured.items() if v is None and listed.get(k) is not None]
    return {
        "device": row["device"],
        **captured,
        **{k: listed[k] for k in filled},
        "from_table": ", ".join(filled) or None,
    }


def _processes(trace: Trace) -> TableResult | NotApplicable:
    """Count what each process did; those that did nothing are not shown."""
    frame = trace.table("processes", ["process", "pid", "name"]).with_columns(
        pl.col("name").cast(pl.String)
    )
    counted = ["profiles"] if trace.has("profiles") else ["api_calls", "ranges", "kernels"]
    if trace.has("cpu_ops"):
        counted.insert(0, "cpu_ops")
    trace.prepare(*counted)
    for table in counted:
        keys = trace.table(table, ["process"])["process"] if trace.has(table) else None
        counts = {} if keys is None else dict(keys.value_counts().iter_rows())
        frame = frame.with_columns(
            pl.Series(table, [counts.get(key, 0) for key in frame["process"]], pl.Int64)
        )
    active = frame.filter(pl.sum_horizontal(counted) > 0)
    if active.is_empty():
        return NotApplicable("processes", advice_for(trace.meta).no_processes)
    fields = tuple(f for f in PROCESS_FIELDS if f.key in active.columns)
    return TableResult("processes", "Processes", fields, active.select([f.key for f in fields]))


def _groups(trace: Trace) -> list[TableResult | NotApplicable]:
    """List the groups of ranks, in captures of jobs that have some."""
    if not trace.has("process_groups"):
        return []
    keys = [f.key for f in GROUP_FIELDS]
    frame = trace.table("process_groups", keys)
    names = [f.key for f in GROUP_FIELDS if f.fmt is not Fmt.COUNT]
    frame = frame.with_columns(pl.col(names).cast(pl.String))
    return [TableResult("process_groups", "Process groups", GROUP_FIELDS, frame)]


def _missing(trace: Trace) -> TableResult:
    advice = advice_for(trace.meta)
    absent = [w for w in advice.wanted if w.absent(trace)]
    if trace.has("graph_launches") and advice.graph_nodes is not None:
        absent = [advice.graph_nodes, *(w for w in absent if w.table != "kernels")]
    rows = [
        {"what": w.what, "tells": w.tells, "option": w.option, "native": w.native or None}
        for w in absent
    ]
    *others, option, native = MISSING_FIELDS
    fields = (*others, replace(option, label=advice.option_label), native)
    return table_of("missing", "Missing data, and how to record it", fields, rows)


def serious_messages(trace: Trace) -> pl.DataFrame:
    """Return the profiler's warnings and errors about the capture, each text once."""
    frame = trace.table("diagnostics", ["severity", "text"]).with_columns(
        pl.col("severity").cast(pl.String)
    )
    serious = frame.filter(pl.col("severity").is_in(["warning", "error"]))
    texts = [" ".join(text.split()) for text in serious["text"]]
    return serious.with_columns(pl.Series("text", texts, pl.String)).unique(maintain_order=True)


def device_names(trace: Trace) -> dict[int, str | None]:
    """Name every GPU of the capture; None where neither its driver nor the GPU table can."""
    rows = trace.table("devices", _NAMED_BY).iter_rows(named=True)
    return {row["device"]: row["name"] or table_name(listed_gpu(row)) for row in rows}


def names_of_used(trace: Trace, devices: Iterable[int | None]) -> str | None:
    """Name the GPUs of these numbers, each once; None where no name is known."""
    names = device_names(trace)
    used = sorted({device for device in devices if device is not None})
    return ", ".join(dict.fromkeys(name for n in used if (name := names.get(n)))) or None
