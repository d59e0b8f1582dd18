"""nsys stats reports about other libraries than CUDA: MPI, OpenMP, OpenACC, graphics, video."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.nsys_stats.stats_reports import (
    StatsCell,
    rank_times,
    summarize_times,
    time_headers,
)

if TYPE_CHECKING:
    from gpusight.analysis.nsys_stats.stats_reports import ReportArguments
    from gpusight.trace.trace import Trace


_CALLS = "Num Calls"
COUNTED = {**time_headers("Count"), "Name": StatsCell.TEXT}
CALLED = {**time_headers(_CALLS), "Name": StatsCell.TEXT}
MARKED = {**time_headers(), "Range": StatsCell.TEXT}
MPI = {**time_headers(), "Source": StatsCell.TEXT, "Name": StatsCell.TEXT}
VIDEO = {**time_headers(_CALLS), "Event Type": StatsCell.TEXT, "Name": StatsCell.TEXT}


def _summary(
    trace: Trace, source: str, category: str = "", *, count: str = "Instances", name: str = "Name"
) -> pl.DataFrame:
    """Sum up what one library did, by category and name."""
    columns = ["start_ns", "end_ns", "name", "category", "source"]
    rows = trace.table("ranges", columns).filter(pl.col("source").cast(pl.String) == source)
    if category:
        rows = rows.filter(pl.col("category").cast(pl.String) == category)
    summary = summarize_times(rows, ["category", "name"], count=count)
    texts = summary.with_columns(pl.col("category", "name").cast(pl.String))
    return rank_times(texts.rename({"name": name}), [name])


def mpi(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """mpi_event_sum; a wait for several requests counts once, not once per request."""
    del arguments
    return _summary(trace, "MPI").rename({"category": "Source"})


def openmp(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """openmp_sum."""
    del arguments
    return _summary(trace, "OpenMP", count="Count")


def openacc(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """openacc_sum."""
    del arguments
    return _summary(trace, "OpenACC", count=_CALLS)


def vulkan_calls(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """vulkan_api_sum."""
    del arguments
    return _summary(trace, "Vulkan", "calls", count=_CALLS)


def vulkan_markers(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """vulkan_marker_sum."""
    del arguments
    return _summary(trace, "Vulkan", "markers", name="Range")


def opengl_markers(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """opengl_khr_range_sum."""
    del arguments
    return _summary(trace, "OpenGL", "markers", name="Range")


def direct3d_11_markers(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """dx11_pix_sum."""
    del arguments
    return _summary(trace, "Direct3D 11", "markers", name="Range")


def direct3d_12_markers(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """dx12_pix_sum."""
    del arguments
    return _summary(trace, "Direct3D 12", "markers", name="Range")


def video(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """nvvideo_api_sum."""
    del arguments
    return _summary(trace, "video", count=_CALLS).rename({"category": "Event Type"})
