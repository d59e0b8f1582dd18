"""Kernel summaries, and kernels beside the calls that launched them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.launch_columns import BLOCK, GRID
from gpusight.analyses.statistics import names_of
from gpusight.analyses.stats.owners import add_owner
from gpusight.analyses.stats.summary import (
    TIME_SUMMARY,
    rank_times,
    spread,
    summarise_times,
    time_headers,
)
from gpusight.analyses.stats.table import Cell
from gpusight.model.kernel_parts import parts_of

if TYPE_CHECKING:
    from gpusight.analyses.stats.arguments import Arguments
    from gpusight.model.trace import Trace

KERNEL_SUMMARY = {**time_headers(), "Name": Cell.TEXT}
KERNEL_GRID_SUMMARY = {
    **time_headers(),
    "GridXYZ": Cell.TEXT,
    "BlockXYZ": Cell.TEXT,
    "Name": Cell.TEXT,
}
EXEC_TRACE = {
    "API Start (ns)": Cell.WHOLE,
    "API Dur (ns)": Cell.WHOLE,
    "Queue Start (ns)": Cell.WHOLE,
    "Queue Dur (ns)": Cell.WHOLE,
    "Kernel Start (ns)": Cell.WHOLE,
    "Kernel Dur (ns)": Cell.WHOLE,
    "Total Dur (ns)": Cell.WHOLE,
    "PID": Cell.WHOLE,
    "TID": Cell.WHOLE,
    "DevId": Cell.WHOLE,
    "API Function": Cell.TEXT,
    "GridXYZ": Cell.TEXT,
    "BlockXYZ": Cell.TEXT,
    "Kernel Name": Cell.TEXT,
}
_PHASES = {
    "T": "Total Dur (ns)",
    "A": "API Dur (ns)",
    "Q": "Queue Dur (ns)",
    "K": "Kernel Dur (ns)",
}
EXEC_SUMMARY = {
    "PID": Cell.WHOLE,
    "TID": Cell.WHOLE,
    "DevId": Cell.WHOLE,
    "Count": Cell.WHOLE,
    "QCount": Cell.WHOLE,
    **{f"{phase}{header}": cell for phase in _PHASES for header, cell in TIME_SUMMARY.items()},
    "API Name": Cell.TEXT,
    "Kernel Name": Cell.TEXT,
}


def kernel_frame(trace: Trace, arguments: Arguments, columns: list[str]) -> pl.DataFrame:
    """Read these columns of every kernel, with its `label` and the `prefix` asked for."""
    frame = with_label(trace, arguments, columns)
    if not arguments.nvtx_name or not trace.has("ranges") or not trace.has("api_calls"):
        return frame.with_columns(pl.lit(None, dtype=pl.String).alias("prefix"))
    from gpusight.analyses import projection
    from gpusight.analyses.launches import find_launches

    launches = find_launches(trace, ("kernels",))
    inner = projection.innermost_ranges(projection.host_ranges(trace), launches)
    launch = launches.launch_of["kernels"]
    row = pl.Series(inner[launch] if len(inner) else launch, dtype=pl.Int64)
    row = row.zip_with(pl.Series(launch >= 0) & (row >= 0), pl.Series([None], dtype=pl.Int64))
    prefix = trace.table("ranges", ["name"]).get_column("name").gather(row).alias("prefix")
    return frame.with_columns(prefix)


def with_label(trace: Trace, arguments: Arguments, columns: list[str]) -> pl.DataFrame:
    """Read these columns of every kernel, with its name of the kind asked for as `label`.

    A capture without such names answers with what is nearest rather than with nothing.
    """
    wanted = arguments.kernel_name
    name = wanted if trace.has("kernels", wanted) else "name"
    frame = trace.table("kernels", [*columns, name]).rename({name: "label"})
    label = frame["label"]
    if name != "name" and label.null_count():
        whole = trace.table("kernels", ["name"])["name"].cast(pl.String)
        return frame.with_columns(label.cast(pl.String).fill_null(whole))
    if name == "name" and wanted == "base_name":
        bare = [parts_of(name)[1].base for name in names_of(label)]
        return frame.with_columns(
            pl.Series(bare, dtype=pl.String).gather(label.to_physical()).alias("label")
        )
    return frame


def full_name() -> pl.Expr:
    """Join prefix and label into what is printed."""
    prefix, label = pl.col("prefix").cast(pl.String), pl.col("label").cast(pl.String)
    return pl.when(prefix.is_null()).then(label).otherwise(prefix + "/" + label)


def summarise_kernels(trace: Trace, arguments: Arguments) -> pl.DataFrame:
    """Summarise kernels by what they are called, in the column `Name`."""
    frame = kernel_frame(trace, arguments, ["start_ns", "end_ns"])
    by = ["prefix", "label"] if arguments.nvtx_name else ["label"]
    summary = summarise_times(frame, by)
    if not arguments.nvtx_name:
        summary = summary.with_columns(pl.lit(None, dtype=pl.String).alias("prefix"))
    return summary.with_columns(full_name().alias("Name"))


def kernel_summary(trace: Trace, arguments: Arguments) -> pl.DataFrame:
    """cuda_gpu_kern_sum."""
    return rank_times(summarise_kernels(trace, arguments), ["Name"])


def kernel_grid_summary(trace: Trace, arguments: Arguments) -> pl.DataFrame:
    """cuda_gpu_kern_gb_sum."""
    frame = kernel_frame(trace, arguments, ["start_ns", "end_ns", *GRID, *BLOCK])
    summary = summarise_times(frame, ["prefix", "label", *GRID, *BLOCK])
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


def executions(trace: Trace, arguments: Arguments, columns: list[str]) -> pl.DataFrame:
    """Pair every kernel with the call that launched it, and split the time between them."""
    kernels = kernel_frame(
        trace, arguments, ["start_ns", "end_ns", "device", "process", "correlation", *columns]
    )
    calls = trace.table(
        "api_calls", ["start_ns", "end_ns", "thread", "process", "correlation", "symbol"]
    ).rename({"start_ns": "call_start_ns", "end_ns": "call_end_ns"})
    # Old captures do not say which process a kernel belongs to: then there is one.
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


def execution_trace(trace: Trace, arguments: Arguments) -> pl.DataFrame:
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


def execution_summary(trace: Trace, arguments: Arguments) -> pl.DataFrame:
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
    """Add the printed name of each call, worked out once for each function."""
    functions = calls.select("symbol").unique().with_columns(printed_symbol().alias(name))
    return calls.join(functions, on="symbol", how="left", maintain_order="left")
