"""Unified memory: pages moved and faults taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.statistics import DURATION
from gpusight.analyses.stats.memory import throughput
from gpusight.analyses.stats.table import Cell

if TYPE_CHECKING:
    from gpusight.analyses.stats.arguments import Arguments
    from gpusight.model.trace import Trace

PAGE_SUMMARY = {
    "Virtual Address": Cell.HEX,
    "HtoD Migration size (MB)": Cell.MEGA,
    "DtoH Migration size (MB)": Cell.MEGA,
    "CPU Page Faults": Cell.WHOLE,
    " GPU Page Faults": Cell.WHOLE,  # nsys prints this blank
    "Migration Throughput (MB/s)": Cell.MEGA,
}
TOTALS = {
    "Total HtoD Migration Size (MB)": Cell.MEGA,
    "Total DtoH Migration Size (MB)": Cell.MEGA,
    "Total CPU Page Faults": Cell.WHOLE,
    "Total GPU PageFaults": Cell.WHOLE,
    "Minimum Virtual Address": Cell.HEX,
    "Maximum Virtual Address": Cell.HEX,
}
CPU_FAULTS = {
    "CPU Page Faults": Cell.WHOLE,
    "CPU Instruction Address": Cell.TEXT,
    "Source File": Cell.TEXT,
    "Source Line": Cell.WHOLE,
}
_TO_DEVICE = "Unified Host-to-Device"
_TO_HOST = "Unified Device-to-Host"


def _migrations(trace: Trace) -> pl.DataFrame:
    """Read the copies that moved pages between host and device."""
    columns = ["start_ns", "end_ns", "bytes", "kind", "virtual_address"]
    if not trace.has("copies"):
        whole = {"kind": pl.String}
        return pl.DataFrame(schema={c: whole.get(c, pl.Int64) for c in columns})
    copies = trace.table("copies", columns).with_columns(pl.col("kind").cast(pl.String))
    return copies.filter(pl.col("kind").is_in([_TO_DEVICE, _TO_HOST]))


def _faults(trace: Trace, side: str) -> pl.DataFrame:
    faults = trace.table("page_faults", ["side", "address", "faults"])
    return faults.filter(pl.col("side").cast(pl.String) == side)


def _bytes_of(kind: str) -> pl.Expr:
    """Sum the bytes moved this way; null where none were."""
    size = pl.col("bytes").filter(pl.col("kind") == kind)
    return pl.when(size.len() > 0).then(size.sum())


def page_summary(trace: Trace, arguments: Arguments) -> pl.DataFrame:
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


def totals(trace: Trace, arguments: Arguments) -> pl.DataFrame:
    """um_total_sum."""
    del arguments
    moved, cpu, gpu = _migrations(trace), _faults(trace, "cpu"), _faults(trace, "gpu")
    seen = [
        frame.get_column(column).drop_nulls()
        for frame, column in ((moved, "virtual_address"), (cpu, "address"), (gpu, "address"))
    ]
    # Without addresses from every source the extent of the pages is not known.
    known = all(len(s) for s in seen)
    extent = pl.concat(seen) if known else pl.Series([None], dtype=pl.Int64)
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


def cpu_faults(trace: Trace, arguments: Arguments) -> pl.DataFrame:
    """um_cpu_page_faults_sum."""
    del arguments
    faults = trace.table("page_faults", ["side", "symbol", "source_file", "source_line"])
    place = {
        "CPU Instruction Address": pl.col("symbol").cast(pl.String),
        "Source File": pl.col("source_file").cast(pl.String),
        "Source Line": pl.col("source_line"),
    }
    return (
        faults.filter(pl.col("side").cast(pl.String) == "cpu")
        .group_by(expression.alias(header) for header, expression in place.items())
        .agg(pl.len().alias("CPU Page Faults"))
        .sort("CPU Page Faults", *place, descending=[True, False, False, False])
        .select(*CPU_FAULTS)
    )
