"""CUDA API calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.statistics import DURATION
from gpusight.analyses.stats.kernels import add_printed, printed_symbol
from gpusight.analyses.stats.owners import add_owner, add_thread_name
from gpusight.analyses.stats.summary import rank_times, summarise_times, time_headers
from gpusight.analyses.stats.table import Cell

if TYPE_CHECKING:
    from gpusight.analyses.stats.arguments import Arguments
    from gpusight.model.trace import Trace

API_SUMMARY = {**time_headers("Num Calls"), "Name": Cell.TEXT}
API_TRACE = {
    "Start (ns)": Cell.WHOLE,
    "Duration (ns)": Cell.WHOLE,
    "Name": Cell.TEXT,
    "Result": Cell.WHOLE,
    "CorrID": Cell.WHOLE,
    "Pid": Cell.WHOLE,
    "Tid": Cell.WHOLE,
    "T-Pri": Cell.WHOLE,
    "Thread Name": Cell.TEXT,
}


def cuda_calls(trace: Trace, columns: list[str]) -> pl.DataFrame:
    """Read calls of the CUDA runtime and driver; libraries on top of them have other reports."""
    frame = trace.table("api_calls", [*columns, "api"])
    api = pl.col("api").cast(pl.String)
    return frame.filter(api.is_null() | api.is_in(["runtime", "driver"])).drop("api")


def api_summary(trace: Trace, arguments: Arguments) -> pl.DataFrame:
    """cuda_api_sum."""
    del arguments
    calls = cuda_calls(trace, ["start_ns", "end_ns", "symbol"])
    summary = summarise_times(calls, ["symbol"], count="Num Calls")
    return rank_times(summary.with_columns(printed_symbol().alias("Name")), ["Name"])


def api_trace(trace: Trace, arguments: Arguments) -> pl.DataFrame:
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
    calls = add_owner(trace, add_printed(calls, "Name"), "Pid", "Tid")
    return _add_priority(trace, add_thread_name(trace, calls, "Thread Name"))


def _add_priority(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    name = "T-Pri"
    threads = trace.table("threads", ["thread", "priority"]).rename({"priority": name})
    return calls.join(threads.unique("thread"), on="thread", how="left", maintain_order="left")
