"""Reports that put kernels, memory operations and API calls side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.statistics import DURATION
from gpusight.analyses.stats.api import cuda_calls
from gpusight.analyses.stats.kernels import (
    add_printed,
    full_name,
    kernel_frame,
    summarise_kernels,
)
from gpusight.analyses.stats.memory import MEMSET, copy_name, summarise_memory, throughput
from gpusight.analyses.stats.owners import add_device_label
from gpusight.analyses.stats.summary import rank_times, summarise_times, time_headers
from gpusight.analyses.stats.table import Cell

if TYPE_CHECKING:
    from gpusight.analyses.stats.arguments import Arguments
    from gpusight.model.trace import Trace

GPU_SUMMARY = {**time_headers(), "Category": Cell.TEXT, "Operation": Cell.TEXT}
GPU_TRACE = {
    "Start (ns)": Cell.WHOLE,
    "Duration (ns)": Cell.WHOLE,
    "CorrId": Cell.WHOLE,
    "GrdX": Cell.WHOLE,
    "GrdY": Cell.WHOLE,
    "GrdZ": Cell.WHOLE,
    "BlkX": Cell.WHOLE,
    "BlkY": Cell.WHOLE,
    "BlkZ": Cell.WHOLE,
    "Reg/Trd": Cell.WHOLE,
    "StcSMem (MB)": Cell.MEGA,
    "DymSMem (MB)": Cell.MEGA,
    "Bytes (MB)": Cell.MEGA,
    "Throughput (MB/s)": Cell.MEGA,
    "SrcMemKd": Cell.TEXT,
    "DstMemKd": Cell.TEXT,
    "Device": Cell.TEXT,
    "Ctx": Cell.WHOLE,
    "GreenCtx": Cell.WHOLE,
    "Strm": Cell.WHOLE,
    "Name": Cell.TEXT,
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
_WORK = ["start_ns", "end_ns", "device", "context", "green_context", "stream", "correlation"]


def _summaries(trace: Trace, arguments: Arguments) -> list[pl.DataFrame]:
    parts = []
    if trace.has("kernels"):
        kernels = summarise_kernels(trace, arguments).rename({"Name": "Operation"})
        parts.append(_in_category(kernels, "CUDA_KERNEL"))
    if trace.has("copies") or trace.has("memsets"):
        parts.append(_in_category(summarise_memory(trace, "Instances"), "MEMORY_OPER"))
    return parts


def _in_category(summary: pl.DataFrame, category: str) -> pl.DataFrame:
    columns = [h for h in GPU_SUMMARY if h not in ("Time (%)", "Category", "Operation")]
    return summary.select(*columns, pl.lit(category).alias("Category"), "Operation")


def gpu_summary(trace: Trace, arguments: Arguments) -> pl.DataFrame:
    """cuda_gpu_sum."""
    return rank_times(pl.concat(_summaries(trace, arguments)), ["Category", "Operation"])


def api_gpu_summary(trace: Trace, arguments: Arguments) -> pl.DataFrame:
    """cuda_api_gpu_sum."""
    parts = _summaries(trace, arguments)
    if trace.has("api_calls"):
        calls = cuda_calls(trace, ["start_ns", "end_ns", "symbol"])
        # Unlike in cuda_api_sum, versions of one function are one row.
        calls = add_printed(calls, "Operation")
        parts.append(_in_category(summarise_times(calls, ["Operation"]), "CUDA_API"))
    return rank_times(pl.concat(parts), ["Category", "Operation"])


def gpu_trace(trace: Trace, arguments: Arguments) -> pl.DataFrame:
    """cuda_gpu_trace."""
    parts = []
    if trace.has("kernels"):
        kernels = kernel_frame(trace, arguments, [*_WORK, *_LAUNCH])
        launch = [pl.col(column).alias(header) for column, header in _LAUNCH.items()]
        parts.append(_rows(kernels, [*launch, full_name().alias("Name")]))
    if trace.has("copies"):
        copies = trace.table("copies", [*_WORK, "bytes", "kind", "src_kind", "dst_kind"])
        kinds = [_text("src_kind", "SrcMemKd"), _text("dst_kind", "DstMemKd")]
        parts.append(_rows(copies, [*_moved(), *kinds, copy_name().alias("Name")]))
    if trace.has("memsets"):
        fills = trace.table("memsets", [*_WORK, "bytes", "memory_kind"])
        kind = _text("memory_kind", "SrcMemKd")
        parts.append(_rows(fills, [*_moved(), kind, pl.lit(MEMSET).alias("Name")]))
    rows = pl.concat(parts).sort("Start (ns)", maintain_order=True)
    return add_device_label(trace, rows, "Device")


def _rows(frame: pl.DataFrame, columns: list[pl.Expr]) -> pl.DataFrame:
    """Give the columns of the trace; what this kind of work does not have stays null."""
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
        pl.lit(None, dtype=pl.String if cell is Cell.TEXT else pl.Int64).alias(header)
        for header, cell in GPU_TRACE.items()
        if header not in have and header != "Device"
    ]
    rows = frame.select("device", *common, *columns, *absent)
    return rows.select("device", *(h for h in GPU_TRACE if h != "Device"))


def _text(column: str, header: str) -> pl.Expr:
    return pl.col(column).cast(pl.String).alias(header)


def _moved() -> list[pl.Expr]:
    return [
        pl.col("bytes").alias("Bytes (MB)"),
        throughput(pl.col("bytes"), DURATION).alias("Throughput (MB/s)"),
    ]
