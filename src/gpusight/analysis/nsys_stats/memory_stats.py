"""nsys stats reports about memcpys, memsets and unified memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.aggregates import DURATION
from gpusight.analysis.nsys_stats.stats_reports import (
    StatsCell,
    each,
    rank_times,
    spread,
    summarize_times,
    time_headers,
)

if TYPE_CHECKING:
    from gpusight.analysis.nsys_stats.stats_reports import ReportArguments
    from gpusight.trace.trace import Trace


MEMORY_TIME = {**time_headers("Count"), "Operation": StatsCell.TEXT}
MEMORY_SIZE = {
    "Total (MB)": StatsCell.MEGA,
    "Count": StatsCell.WHOLE,
    **each(StatsCell.MEGA, "Avg (MB)", "Med (MB)", "Min (MB)", "Max (MB)", "StdDev (MB)"),
    "Operation": StatsCell.TEXT,
}
MEMSET = "[CUDA memset]"


def copy_name() -> pl.Expr:
    """Name a copy after its direction."""
    return pl.format("[CUDA memcpy {}]", pl.col("kind").cast(pl.String))


def throughput(size: pl.Expr, time_ns: pl.Expr) -> pl.Expr:
    """Compute bytes per second as nsys does: with an integer division of a second by the time."""
    return pl.when(time_ns > 0).then(size * (1_000_000_000 // time_ns))


def memory_operations(trace: Trace, columns: list[str]) -> pl.DataFrame:
    """Read these columns of memcpys and memsets, with `kind` null for a memset."""
    parts = []
    if trace.has("copies"):
        copies = trace.table("copies", [*columns, "kind"])
        parts.append(copies.with_columns(pl.col("kind").cast(pl.String)))
    if trace.has("memsets"):
        memsets = trace.table("memsets", columns)
        parts.append(memsets.with_columns(pl.lit(None, dtype=pl.String).alias("kind")))
    return pl.concat(parts)


def _operation() -> pl.Expr:
    return copy_name().fill_null(pl.lit(MEMSET)).alias("Operation")


def summarize_memory(trace: Trace, count: str) -> pl.DataFrame:
    """Summarize memcpys and memsets by time, in the column `Operation`."""
    frame = memory_operations(trace, ["start_ns", "end_ns"])
    return summarize_times(frame, ["kind"], count=count).with_columns(_operation())


def memory_time_summary(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """cuda_gpu_mem_time_sum."""
    del arguments
    return rank_times(summarize_memory(trace, "Count"), ["Operation"])


def memory_size_summary(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """cuda_gpu_mem_size_sum."""
    del arguments
    size = pl.col("bytes")
    summary = (
        memory_operations(trace, ["bytes"])
        .group_by("kind")
        .agg(size.sum().alias("Total (MB)"), pl.len().alias("Count"), *spread(size, unit="MB"))
    )
    return summary.with_columns(_operation()).sort(
        "Total (MB)", "Operation", descending=[True, False]
    )


PAGE_SUMMARY = {
    "Virtual Address": StatsCell.HEX,
    "HtoD Migration size (MB)": StatsCell.MEGA,
    "DtoH Migration size (MB)": StatsCell.MEGA,
    "CPU Page Faults": StatsCell.WHOLE,
    " GPU Page Faults": StatsCell.WHOLE,  # nsys prints this blank
    "Migration Throughput (MB/s)": StatsCell.MEGA,
}
TOTALS = {
    **each(StatsCell.MEGA, "Total HtoD Migration Size (MB)", "Total DtoH Migration Size (MB)"),
    **each(StatsCell.WHOLE, "Total CPU Page Faults", "Total GPU PageFaults"),
    **each(StatsCell.HEX, "Minimum Virtual Address", "Maximum Virtual Address"),
}
CPU_FAULTS = {
    "CPU Page Faults": StatsCell.WHOLE,
    "CPU Instruction Address": StatsCell.TEXT,
    "Source File": StatsCell.TEXT,
    "Source Line": StatsCell.WHOLE,
}
_TO_DEVICE = "Unified Host-to-Device"
_TO_HOST = "Unified Device-to-Host"


def _migrations(trace: Trace) -> pl.DataFrame:
    """Read the copies that moved pages between host and device."""
    columns = ["start_ns", "end_ns", "bytes", "kind", "virtual_address"]
    if not trace.has("copies"):
        return pl.DataFrame(schema={**dict.fromkeys(columns, pl.Int64), "kind": pl.String})
    copies = trace.table("copies", columns).with_columns(pl.col("kind").cast(pl.String))
    return copies.filter(pl.col("kind").is_in([_TO_DEVICE, _TO_HOST]))


def _faults(trace: Trace, side: str) -> pl.DataFrame:
    faults = trace.table("page_faults", ["side", "address", "faults"])
    return faults.filter(pl.col("side").cast(pl.String) == side)


def _bytes_of(kind: str) -> pl.Expr:
    """Sum the bytes moved this way; null where none were."""
    size = pl.col("bytes").filter(pl.col("kind") == kind)
    return pl.when(size.len() > 0).then(size.sum())


def page_summary(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """um_sum."""
    moved = (
        _migrations(trace)
        .group_by(pl.col("virtual_address").alias("address"))
        .agg(
            _bytes_of(_TO_DEVICE).alias("HtoD Migration size (MB)"),
            _bytes_of(_TO_HOST).alias("DtoH Migration size (MB)"),
            throughput(pl.col("bytes").sum(), DURATION.sum()).alias("Migration Throughput (MB/s)"),
        )
    )
    cpu = _faults(trace, "cpu").group_by("address").agg(pl.len().alias("CPU Page Faults"))
    gpu = (
        _faults(trace, "gpu")
        .group_by("address")
        .agg(pl.col("faults").sum().alias(" GPU Page Faults"))
    )
    pages = moved.join(cpu, on="address", how="full", coalesce=True)
    pages = pages.join(gpu, on="address", how="full", coalesce=True)
    ranked = pages.rename({"address": "Virtual Address"}).sort(
        "Migration Throughput (MB/s)",
        "CPU Page Faults",
        "Virtual Address",
        descending=[True, True, False],
        nulls_last=True,
    )
    return ranked if arguments.rows < 0 else ranked.head(arguments.rows)


def totals(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """um_total_sum."""
    del arguments
    moved, cpu, gpu = _migrations(trace), _faults(trace, "cpu"), _faults(trace, "gpu")
    addresses = [
        frame.get_column(column).drop_nulls()
        for frame, column in ((moved, "virtual_address"), (cpu, "address"), (gpu, "address"))
    ]
    # Without addresses from every source the extent of the pages is not known.
    known = all(len(series) for series in addresses)
    extent = pl.concat(addresses) if known else pl.Series([None], dtype=pl.Int64)
    size = moved.select(_bytes_of(_TO_DEVICE).alias("in"), _bytes_of(_TO_HOST).alias("out"))
    row = [
        size.item(0, "in"),
        size.item(0, "out"),
        cpu.height,
        gpu.get_column("faults").sum() if gpu.height else None,
        extent.min(),
        extent.max(),
    ]
    return pl.DataFrame([row], schema=dict.fromkeys(TOTALS, pl.Int64), orient="row")


def cpu_faults(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """um_cpu_page_faults_sum."""
    del arguments
    faults = trace.table("page_faults", ["side", "symbol", "source_file", "source_line"])
    columns = {
        "CPU Instruction Address": pl.col("symbol").cast(pl.String),
        "Source File": pl.col("source_file").cast(pl.String),
        "Source Line": pl.col("source_line"),
    }
    return (
        faults.filter(pl.col("side").cast(pl.String) == "cpu")
        .group_by(expression.alias(header) for header, expression in columns.items())
        .agg(pl.len().alias("CPU Page Faults"))
        .sort("CPU Page Faults", *columns, descending=[True, False, False, False])
        .select(*CPU_FAULTS)
    )
