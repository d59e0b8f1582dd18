"""Calls of the operating system's runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.stats.summary import rank_times, summarise_times, time_headers
from gpusight.analyses.stats.table import Cell

if TYPE_CHECKING:
    from gpusight.analyses.stats.arguments import Arguments
    from gpusight.model.trace import Trace

OS_SUMMARY = {**time_headers("Num Calls"), "Name": Cell.TEXT}


def os_summary(trace: Trace, arguments: Arguments) -> pl.DataFrame:
    """osrt_sum."""
    del arguments
    calls = trace.table("os_calls", ["start_ns", "end_ns", "name"])
    summary = summarise_times(calls, ["name"], count="Num Calls")
    return rank_times(summary.with_columns(pl.col("name").cast(pl.String).alias("Name")), ["Name"])
