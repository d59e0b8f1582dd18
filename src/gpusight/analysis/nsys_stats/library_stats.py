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
    from collections.abc import Callable

    from gpusight.analysis.nsys_stats.stats_reports import ReportArguments
    from gpusight.trace.trace import Trace


_CALLS = "Num Calls"
COUNTED = {**time_headers("Count"), "Name": StatsCell.TEXT}
CALLED = {**time_headers(_CALLS), "Name": StatsCell.TEXT}
MARKED = {**time_headers(), "Range": StatsCell.TEXT}
MPI = {**time_headers(), "Source": StatsCell.TEXT, "Name": StatsCell.TEXT}
VIDEO = {**time_headers(_CALLS), "Event Type": StatsCell.TEXT, "Name": StatsCell.TEXT}


def _summary(
    source: str,
    category: str = "",
    *,
    count: str = "Instances",
    name: str = "Name",
    category_as: str = "category",
) -> Callable[[Trace, ReportArguments], pl.DataFrame]:
    """Make the report that sums up what one library did, by category and name."""

    def report(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
        del arguments
        columns = ["start_ns", "end_ns", "name", "category", "source"]
        rows = trace.table("ranges", columns).filter(pl.col("source").cast(pl.String) == source)
        if category:
            rows = rows.filter(pl.col("category").cast(pl.String) == category)
        summary = summarize_times(rows, ["category", "name"], count=count)
        texts = summary.with_columns(pl.col("category", "name").cast(pl.String))
        return rank_times(texts.rename({"name": name}), [name]).rename({"category": category_as})

    return report


mpi = _summary("MPI", category_as="Source")
"""A wait for several requests counts once, not once per request."""
openmp = _summary("OpenMP", count="Count")
openacc = _summary("OpenACC", count=_CALLS)
vulkan_calls = _summary("Vulkan", "calls", count=_CALLS)
vulkan_markers = _summary("Vulkan", "markers", name="Range")
opengl_markers = _summary("OpenGL", "markers", name="Range")
direct3d_11_markers = _summary("Direct3D 11", "markers", name="Range")
direct3d_12_markers = _summary("Direct3D 12", "markers", name="Range")
video = _summary("video", count=_CALLS, category_as="Event Type")
