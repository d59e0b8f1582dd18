"""NVTX ranges projected onto the GPU work that was issued inside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.launches import find_launches
from gpusight.analyses.projection import host_ranges, project
from gpusight.analyses.stats.nvtx import (
    KINDS,
    add_stack,
    add_tree,
    describe,
    label,
    range_ends,
    style,
)
from gpusight.analyses.stats.owners import add_owner
from gpusight.analyses.stats.summary import TIME_SUMMARY, spread
from gpusight.analyses.stats.table import Cell

if TYPE_CHECKING:
    from gpusight.analyses.stats.arguments import Arguments
    from gpusight.model.trace import Trace

PROJECTION_TRACE = {
    "Name": Cell.TEXT,
    "Projected Start (ns)": Cell.WHOLE,
    "Projected Duration (ns)": Cell.WHOLE,
    "Orig Start (ns)": Cell.WHOLE,
    "Orig Duration (ns)": Cell.WHOLE,
    "Style": Cell.TEXT,
    "PID": Cell.WHOLE,
    "TID": Cell.WHOLE,
    "NumGPUOps": Cell.WHOLE,
    "Lvl": Cell.WHOLE,
    "NumChild": Cell.WHOLE,
    "RangeId": Cell.WHOLE,
    "ParentId": Cell.WHOLE,
    "RangeStack": Cell.TEXT,
}
PROJECTION_SUMMARY = {
    "Range": Cell.TEXT,
    "Style": Cell.TEXT,
    "Total Proj Time (ns)": Cell.WHOLE,
    "Total Range Time (ns)": Cell.WHOLE,
    "Range Instances": Cell.WHOLE,
    **{f"Proj {header}": cell for header, cell in TIME_SUMMARY.items()},
    "Total GPU Ops": Cell.WHOLE,
    "Avg GPU Ops": Cell.TENTHS,
    "Avg Range Lvl": Cell.TENTHS,
    "Avg Num Child": Cell.TENTHS,
}
_TRACED = ("kernels", "copies", "memsets")
"""What nsys projects onto: it leaves graphs that were traced whole aside."""
_NAMED = ["name", "domain", "kind"]
READS = {
    "ranges": (*_NAMED, "start_ns", "end_ns", "open", "thread", "end_thread"),
    "api_calls": ("start_ns", "end_ns", "thread", "process", "correlation"),
    **dict.fromkeys(_TRACED, ("start_ns", "end_ns", "process", "correlation")),
}


def _projected(trace: Trace, columns: list[str]) -> pl.DataFrame:
    """Read the ranges that hold GPU work, with their projection and their place in the stack."""
    trace.read_together(READS)
    ranges = host_ranges(trace, ends=range_ends(trace, KINDS))
    done = project(ranges, find_launches(trace, _TRACED)).select(
        pl.col("launches").alias("NumGPUOps"),
        pl.col("start_ns").alias("Projected Start (ns)"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("Projected Duration (ns)"),
    )
    held = done.get_column("NumGPUOps") > 0
    ranges = ranges.keep(held.to_numpy())
    frame = describe(trace, ranges, columns)
    return add_tree(ranges, frame.hstack(done.filter(held)))


def projection_trace(trace: Trace, arguments: Arguments) -> pl.DataFrame:
    """nvtx_gpu_proj_trace."""
    del arguments
    placed = _projected(trace, [*_NAMED, "process", "thread"])
    frame = add_stack(trace, placed).with_columns(
        label().alias("Name"),
        style().alias("Style"),
        pl.col("start_ns").alias("Orig Start (ns)"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("Orig Duration (ns)"),
    )
    return add_owner(trace, frame).sort("RangeId", maintain_order=True)


def projection_summary(trace: Trace, arguments: Arguments) -> pl.DataFrame:
    """nvtx_gpu_proj_sum."""
    del arguments
    time = pl.col("Projected Duration (ns)")
    summary = (
        _projected(trace, _NAMED)
        .group_by(_NAMED)
        .agg(
            time.sum().alias("Total Proj Time (ns)"),
            (pl.col("end_ns") - pl.col("start_ns")).sum().alias("Total Range Time (ns)"),
            pl.len().alias("Range Instances"),
            *spread(time, "Proj "),
            pl.col("NumGPUOps").sum().alias("Total GPU Ops"),
            pl.col("NumGPUOps").mean().alias("Avg GPU Ops"),
            pl.col("Lvl").mean().alias("Avg Range Lvl"),
            pl.col("NumChild").mean().alias("Avg Num Child"),
        )
    )
    return summary.with_columns(label().alias("Range"), style().alias("Style")).sort(
        "Total Proj Time (ns)", "Range", "Style", descending=[True, False, False]
    )
