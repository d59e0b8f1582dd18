"""nsys stats reports about CUDA API calls, kernels, GPU activities and OS runtime calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.aggregates import DURATION, names_of
from gpusight.analysis.nsys_stats.memory_stats import (
    MEMSET,
    copy_name,
    summarize_memory,
    throughput,
)
from gpusight.analysis.nsys_stats.stats_reports import (
    TIME_SUMMARY,
    StatsCell,
    add_device_label,
    add_owner,
    add_thread,
    each,
    rank_times,
    spread,
    summarize_times,
    time_headers,
)
from gpusight.trace.schema_gpu import BLOCK, GRID

if TYPE_CHECKING:
    from gpusight.analysis.nsys_stats.stats_reports import ReportArguments
    from gpusight.trace.trace import Trace


KERNEL_SUMMARY = {**time_headers(), "Name": StatsCell.TEXT}
KERNEL_GRID_SUMMARY = {
    **time_headers(),
    **each(StatsCell.TEXT, "GridXYZ", "BlockXYZ", "Name"),
}
EXEC_TRACE = {
    **each(
        StatsCell.WHOLE,
        "API Start (ns)",
        "API Dur (ns)",
        "Queue Start (ns)",
        "Queue Dur (ns)",
        "Kernel Start (ns)",
        "Kernel Dur (ns)",
        "Total Dur (ns)",
        "PID",
        "TID",
        "DevId",
    ),
    **each(StatsCell.TEXT, "API Function", "GridXYZ", "BlockXYZ", "Kernel Name"),
}
_PHASES = {
    "T": "Total Dur (ns)",
    "A": "API Dur (ns)",
    "Q": "Queue Dur (ns)",
    "K": "Kernel Dur (ns)",
}
EXEC_SUMMARY = {
    **each(StatsCell.WHOLE, "PID", "TID", "DevId", "Count", "QCount"),
    **{f"{phase}{header}": cell for phase in _PHASES for header, cell in TIME_SUMMARY.items()},
    **each(StatsCell.TEXT, "API Name", "Kernel Name"),
}


_DEVICES = ["device", "cuda_device"]
_PRINTED_DEVICE = pl.coalesce("cuda_device", "device").alias("device")
"""nsys prints the number of a GPU in its process, whatever CUDA_VISIBLE_DEVICES makes of it."""


def kernel_frame(trace: Trace, arguments: ReportArguments, columns: list[str]) -> pl.DataFrame:
    """Read these columns of every kernel, with its `label` and its `prefix`, an NVTX range."""
    frame = with_label(trace, arguments, columns)
    if not arguments.nvtx_name or not trace.has("ranges") or not trace.has("api_calls"):
        return frame.with_columns(pl.lit(None, dtype=pl.String).alias("prefix"))
    from gpusight.analysis.launch_index import find_launches
    from gpusight.analysis.range_summary import host_ranges, innermost_ranges

    launches = find_launches(trace, ("kernels",))
    inner = innermost_ranges(host_ranges(trace, nvtx_only=True), launches)
    launch = launches.launch_of["kernels"]
    row = pl.Series(inner[launch] if len(inner) else launch, dtype=pl.Int64)
    row = row.zip_with(pl.Series(launch >= 0) & (row >= 0), pl.Series([None], dtype=pl.Int64))
    prefix = trace.table("ranges", ["name"]).get_column("name").gather(row).alias("prefix")
    return frame.with_columns(prefix)


def with_label(trace: Trace, arguments: ReportArguments, columns: list[str]) -> pl.DataFrame:
    """Read these columns of every kernel, with the kind of name in `arguments` as `label`.

    A capture without such names gives the nearest that it has. Names that nsys cannot demangle,
    such as those of Julia, are printed mangled.
    """
    wanted = arguments.kernel_name
    if trace.has("kernels", "recorded_name") and wanted != "mangled_name":
        return _recorded_label(trace, wanted, columns)
    name = wanted if trace.has("kernels", wanted) else "name"
    frame = trace.table("kernels", [*columns, name]).rename({name: "label"})
    label = frame["label"]
    if name != "name" and label.null_count():
        full = trace.table("kernels", ["name"])["name"].cast(pl.String)
        return frame.with_columns(label.cast(pl.String).fill_null(full))
    if name == "name" and wanted == "base_name":
        from gpusight.naming.name_parts import parts_of

        base = [parts_of(name)[1].base for name in names_of(label)]
        return frame.with_columns(
            pl.Series(base, dtype=pl.String).gather(label.to_physical()).alias("label")
        )
    return frame


def _recorded_label(trace: Trace, wanted: str, columns: list[str]) -> pl.DataFrame:
    frame = trace.table("kernels", [*columns, "recorded_name"]).rename({"recorded_name": "label"})
    if wanted != "base_name" or not trace.has("kernels", "base_name"):
        return frame
    base = trace.table("kernels", ["base_name"])["base_name"]
    # One lookup for each name, of which there are far fewer than kernels.
    mangled = [code for code, text in enumerate(names_of(frame["label"])) if text[:2] == "_Z"]
    if not mangled:
        return frame.with_columns(base.alias("label"))
    recorded = frame["label"].to_physical().is_in(mangled)
    labels = frame["label"].cast(pl.String).zip_with(recorded, base.cast(pl.String))
    return frame.with_columns(labels.alias("label"))


def full_name() -> pl.Expr:
    """Join prefix and label into the printed name."""
    prefix, label = pl.col("prefix").cast(pl.String), pl.col("label").cast(pl.String)
    return pl.when(prefix.is_null()).then(label).otherwise(prefix + "/" + label)


def summarize_kernels(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """Summarize kernels by printed name, in the column `Name`."""
    frame = kernel_frame(trace, arguments, ["start_ns", "end_ns"])
    by = ["prefix", "label"] if arguments.nvtx_name else ["label"]
    summary = summarize_times(frame, by)
    if not arguments.nvtx_name:
        summary = summary.with_columns(pl.lit(None, dtype=pl.String).alias("prefix"))
    return summary.with_columns(full_name().alias("Name"))


def kernel_summary(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """cuda_gpu_kern_sum."""
    return rank_times(summarize_kernels(trace, arguments), ["Name"])


def kernel_grid_summary(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """cuda_gpu_kern_gb_sum."""
    frame = kernel_frame(trace, arguments, ["start_ns", "end_ns", *GRID, *BLOCK])
    summary = summarize_times(frame, ["prefix", "label", *GRID, *BLOCK])
    summary = summary.with_columns(
        _dimensions(GRID).alias("GridXYZ"),
        _dimensions(BLOCK).alias("BlockXYZ"),
        full_name().alias("Name"),
    )
    return rank_times(summary, ["GridXYZ", "BlockXYZ", "Name"])


def _dimensions(columns: tuple[str, str, str]) -> pl.Expr:
    return pl.concat_str(
        [pl.col(c).cast(pl.String).str.pad_start(4) for c in columns], separator=" "
    )


def executions(trace: Trace, arguments: ReportArguments, columns: list[str]) -> pl.DataFrame:
    """Pair every kernel with the call that launched it: API, queue and kernel time."""
    wanted = ["start_ns", "end_ns", *_DEVICES, "process", "correlation", *columns]
    kernels = kernel_frame(trace, arguments, wanted).with_columns(_PRINTED_DEVICE)
    calls = trace.table(
        "api_calls", ["start_ns", "end_ns", "thread", "process", "correlation", "symbol"]
    ).rename({"start_ns": "call_start_ns", "end_ns": "call_end_ns"})
    # Old captures, of one process, do not record which process a kernel belongs to.
    on = ["correlation"] + ["process"] * trace.has("kernels", "process")
    if "process" not in on:
        kernels = kernels.drop("process")
    queue = pl.col("start_ns") - pl.col("call_end_ns")
    end = pl.max_horizontal("end_ns", "call_end_ns")
    return kernels.join(calls, on=on, how="inner", maintain_order="left").with_columns(
        (pl.col("call_end_ns") - pl.col("call_start_ns")).alias("API Dur (ns)"),
        pl.when(queue >= 0).then(queue).alias("Queue Dur (ns)"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("Kernel Dur (ns)"),
        (end - pl.col("call_start_ns")).alias("Total Dur (ns)"),
    )


def execution_trace(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """cuda_kern_exec_trace."""
    frame = add_printed(executions(trace, arguments, [*GRID, *BLOCK]), "API Function")
    queued = pl.col("Queue Dur (ns)").is_not_null()
    frame = frame.with_columns(
        pl.col("call_start_ns").alias("API Start (ns)"),
        pl.when(queued).then("call_end_ns").alias("Queue Start (ns)"),
        pl.col("start_ns").alias("Kernel Start (ns)"),
        pl.col("device").alias("DevId"),
        _dimensions(GRID).alias("GridXYZ"),
        _dimensions(BLOCK).alias("BlockXYZ"),
        full_name().alias("Kernel Name"),
    )
    return add_owner(trace, frame.sort("API Start (ns)", "Kernel Start (ns)", maintain_order=True))


def execution_summary(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """cuda_kern_exec_sum."""
    spreads = [e for phase, column in _PHASES.items() for e in spread(pl.col(column), phase)]
    by = ["process", "thread", "device", "API Name", "prefix", "label"]
    frame = (
        add_printed(executions(trace, arguments, []), "API Name")
        .group_by(by)
        .agg(pl.len().alias("Count"), pl.col("Queue Dur (ns)").count().alias("QCount"), *spreads)
        .with_columns(pl.col("device").alias("DevId"), full_name().alias("Kernel Name"))
    )
    names = ["PID", "TID", "DevId", "API Name", "Kernel Name"]
    return add_owner(trace, frame).sort(
        "TAvg (ns)", *names, descending=[True] + [False] * len(names)
    )


def printed_symbol() -> pl.Expr:
    """Drop a version suffix of four digits, the only ones that nsys drops."""
    return pl.col("symbol").cast(pl.String).str.replace(r"_v\d{4}$", "")


def add_printed(calls: pl.DataFrame, name: str) -> pl.DataFrame:
    """Add the printed name of each call, computed once per function."""
    functions = calls.select("symbol").unique().with_columns(printed_symbol().alias(name))
    return calls.join(functions, on="symbol", how="left", maintain_order="left")


API_SUMMARY = {**time_headers("Num Calls"), "Name": StatsCell.TEXT}
API_TRACE = {
    **each(StatsCell.WHOLE, "Start (ns)", "Duration (ns)"),
    "Name": StatsCell.TEXT,
    **each(StatsCell.WHOLE, "Result", "CorrID", "Pid", "Tid", "T-Pri"),
    "Thread Name": StatsCell.TEXT,
}


def cuda_calls(trace: Trace, columns: list[str]) -> pl.DataFrame:
    """Read calls of the CUDA runtime and driver, not of libraries on top of them."""
    frame = trace.table("api_calls", [*columns, "api"])
    api = pl.col("api").cast(pl.String)
    return frame.filter(api.is_null() | api.is_in(["runtime", "driver"])).drop("api")


def api_summary(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """cuda_api_sum."""
    del arguments
    calls = cuda_calls(trace, ["start_ns", "end_ns", "symbol"])
    summary = summarize_times(calls, ["symbol"], count="Num Calls")
    return rank_times(summary.with_columns(printed_symbol().alias("Name")), ["Name"])


def api_trace(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """cuda_api_trace."""
    del arguments
    calls = cuda_calls(
        trace,
        ["start_ns", "end_ns", "symbol", "return_value", "correlation", "process", "thread"],
    ).with_columns(
        pl.col("start_ns").alias("Start (ns)"),
        DURATION.alias("Duration (ns)"),
        pl.col("return_value").alias("Result"),
        pl.col("correlation").alias("CorrID"),
    )
    return add_thread(trace, add_owner(trace, add_printed(calls, "Name"), "Pid", "Tid"))


GPU_SUMMARY = {**time_headers(), "Category": StatsCell.TEXT, "Operation": StatsCell.TEXT}
GPU_TRACE = {
    **each(
        StatsCell.WHOLE,
        "Start (ns)",
        "Duration (ns)",
        "CorrId",
        "GrdX",
        "GrdY",
        "GrdZ",
        "BlkX",
        "BlkY",
        "BlkZ",
        "Reg/Trd",
    ),
    **each(StatsCell.MEGA, "StcSMem (MB)", "DymSMem (MB)", "Bytes (MB)", "Throughput (MB/s)"),
    **each(StatsCell.TEXT, "SrcMemKd", "DstMemKd", "Device"),
    **each(StatsCell.WHOLE, "Ctx", "GreenCtx", "Strm"),
    "Name": StatsCell.TEXT,
}
_LAUNCH = {
    "grid_x": "GrdX",
    "grid_y": "GrdY",
    "grid_z": "GrdZ",
    "block_x": "BlkX",
    "block_y": "BlkY",
    "block_z": "BlkZ",
    "registers_per_thread": "Reg/Trd",
    "static_shared_bytes": "StcSMem (MB)",
    "dynamic_shared_bytes": "DymSMem (MB)",
}
_WORK = ["start_ns", "end_ns", *_DEVICES, "context", "green_context", "stream", "correlation"]


def _summaries(trace: Trace, arguments: ReportArguments) -> list[pl.DataFrame]:
    parts = []
    if trace.has("kernels"):
        kernels = summarize_kernels(trace, arguments).rename({"Name": "Operation"})
        parts.append(_in_category(kernels, "CUDA_KERNEL"))
    if trace.has("copies") or trace.has("memsets"):
        parts.append(_in_category(summarize_memory(trace, "Instances"), "MEMORY_OPER"))
    return parts


def _in_category(summary: pl.DataFrame, category: str) -> pl.DataFrame:
    columns = [h for h in GPU_SUMMARY if h not in ("Time (%)", "Category", "Operation")]
    return summary.select(*columns, pl.lit(category).alias("Category"), "Operation")


def gpu_summary(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """cuda_gpu_sum."""
    return rank_times(pl.concat(_summaries(trace, arguments)), ["Category", "Operation"])


def api_gpu_summary(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """cuda_api_gpu_sum."""
    parts = _summaries(trace, arguments)
    if trace.has("api_calls"):
        calls = cuda_calls(trace, ["start_ns", "end_ns", "symbol"])
        # Unlike in cuda_api_sum, versions of one function are one row.
        calls = add_printed(calls, "Operation")
        parts.append(_in_category(summarize_times(calls, ["Operation"]), "CUDA_API"))
    return rank_times(pl.concat(parts), ["Category", "Operation"])


def gpu_trace(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """cuda_gpu_trace."""
    parts = []
    if trace.has("kernels"):
        kernels = kernel_frame(trace, arguments, [*_WORK, *_LAUNCH])
        launch = [pl.col(column).alias(header) for column, header in _LAUNCH.items()]
        parts.append(_rows(kernels, [*launch, full_name().alias("Name")]))
    if trace.has("copies"):
        copies = trace.table("copies", [*_WORK, "bytes", "kind", "src_kind", "dst_kind"])
        kinds = [_text("src_kind", "SrcMemKd"), _text("dst_kind", "DstMemKd")]
        parts.append(_rows(copies, [*_bytes_columns(), *kinds, copy_name().alias("Name")]))
    if trace.has("memsets"):
        memsets = trace.table("memsets", [*_WORK, "bytes", "memory_kind"])
        kind = _text("memory_kind", "SrcMemKd")
        parts.append(_rows(memsets, [*_bytes_columns(), kind, pl.lit(MEMSET).alias("Name")]))
    rows = pl.concat(parts).sort("Start (ns)", maintain_order=True)
    return add_device_label(trace, rows, "Device")


def _rows(frame: pl.DataFrame, columns: list[pl.Expr]) -> pl.DataFrame:
    """Return the columns of the trace; those that this kind of activity lacks are null."""
    common = [
        pl.col("start_ns").alias("Start (ns)"),
        DURATION.alias("Duration (ns)"),
        pl.col("correlation").alias("CorrId"),
        # 0 stands for none: migrations of unified memory belong to no context or stream.
        pl.col("context").replace(0, None).alias("Ctx"),
        pl.col("green_context").replace(0, None).alias("GreenCtx"),
        pl.when(pl.col("context") != 0).then("stream").alias("Strm"),
    ]
    have = {e.meta.output_name() for e in [*common, *columns]}
    absent = [
        pl.lit(None, dtype=pl.String if cell is StatsCell.TEXT else pl.Int64).alias(header)
        for header, cell in GPU_TRACE.items()
        if header not in have and header != "Device"
    ]
    rows = frame.select(_PRINTED_DEVICE, *common, *columns, *absent)
    return rows.select("device", *(h for h in GPU_TRACE if h != "Device"))


def _text(column: str, header: str) -> pl.Expr:
    return pl.col(column).cast(pl.String).alias(header)


def _bytes_columns() -> list[pl.Expr]:
    return [
        pl.col("bytes").alias("Bytes (MB)"),
        throughput(pl.col("bytes"), DURATION).alias("Throughput (MB/s)"),
    ]


OS_SUMMARY = {**time_headers("Num Calls"), "Name": StatsCell.TEXT}


def os_summary(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """osrt_sum."""
    del arguments
    calls = trace.table("os_calls", ["start_ns", "end_ns", "name"])
    summary = summarize_times(calls, ["name"], count="Num Calls")
    return rank_times(summary.with_columns(pl.col("name").cast(pl.String).alias("Name")), ["Name"])
