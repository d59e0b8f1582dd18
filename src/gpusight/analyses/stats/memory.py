"""GPU copies and fills, by time and by size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.stats.summary import rank_times, spread, summarise_times, time_headers
from gpusight.analyses.stats.table import Cell

if TYPE_CHECKING:
    from gpusight.analyses.stats.arguments import Arguments
    from gpusight.model.trace import Trace

MEMORY_TIME = {**time_headers("Count"), "Operation": Cell.TEXT}
MEMORY_SIZE = {
    "Total (MB)": Cell.MEGA,
    "Count": Cell.WHOLE,
    "Avg (MB)": Cell.MEGA,
    "Med (MB)": Cell.MEGA,
    "Min (MB)": Cell.MEGA,
    "Max (MB)": Cell.MEGA,
    "StdDev (MB)": Cell.MEGA,
    "Operation": Cell.TEXT,
}
MEMSET = "[CUDA memset]"


def copy_name() -> pl.Expr:
    """Name a copy after its direction."""
    return pl.format("[CUDA memcpy {}]", pl.col("kind").cast(pl.String))


def throughput(size: pl.Expr, time_ns: pl.Expr) -> pl.Expr:
    """Bytes a second, with the whole number of such times in a second that nsys multiplies by."""
    return pl.when(time_ns > 0).then(size * (1_000_000_000 // time_ns))


def memory_operations(trace: Trace, columns: list[str]) -> pl.DataFrame:
    """Read these columns of copies and fills, with `kind` null for a fill."""
    parts = []
    if trace.has("copies"):
        copies = trace.table("copies", [*columns, "kind"])
        parts.append(copies.with_columns(pl.col("kind").cast(pl.String)))
    if trace.has("memsets"):
        fills = trace.table("memsets", columns)
        parts.append(fills.with_columns(pl.lit(None, dtype=pl.String).alias("kind")))
    return pl.concat(parts)


def _operation() -> pl.Expr:
    return copy_name().fill_null(pl.lit(MEMSET)).alias("Operation")


def summarise_memory(trace: Trace, count: str) -> pl.DataFrame:
    """Summarise copies and fills by time, in the column `Operation`."""
    frame = memory_operations(trace, ["start_ns", "end_ns"])
    return summarise_times(frame, ["kind"], count=count).with_columns(_operation())


def memory_time_summary(trace: Trace, arguments: Arguments) -> pl.DataFrame:
    """cuda_gpu_mem_time_sum."""
    del arguments
    return rank_times(summarise_memory(trace, "Count"), ["Operation"])


def memory_size_summary(trace: Trace, arguments: Arguments) -> pl.DataFrame:
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
