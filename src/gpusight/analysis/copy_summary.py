"""Memcpys and memsets by direction and kind of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.aggregates import DURATION, share_of, timing, timing_fields
from gpusight.analysis.gpu_time import computing
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import EVERYTHING, GPU_WORK, ResolvedSelection, Selection
from gpusight.results import Field, Fmt, NotApplicable, TableResult
from gpusight.trace.intervals import coverage

if TYPE_CHECKING:
    from gpusight.trace.trace import Trace


FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Part of all memcpy and memset time", shown=False),
    *timing_fields("calls", "total_ns"),
    Field("bytes", "Bytes", Fmt.BYTES, "Bytes moved"),
    Field("mean_bytes", "Mean bytes", Fmt.BYTES, "Mean bytes per operation", shown=False),
    Field("max_bytes", "Max bytes", Fmt.BYTES, "Largest", shown=False),
    Field("bandwidth_bytes_s", "Bandwidth", Fmt.RATE, "Sum of bytes / sum of durations"),
    Field("exposed_ns", "Exposed", Fmt.TIME, "Time not overlapped by a kernel on their GPU"),
    Field("hidden_ns", "Hidden", Fmt.TIME, "Time overlapped by a kernel", shown=False),
    Field("pageable", "Pageable", Fmt.FLAG, "Host memory was not pinned", shown=False),
    Field("src_kind", "From", Fmt.TEXT, "Kind of memory read"),
    Field("dst_kind", "To", Fmt.TEXT, "Kind of memory written"),
    Field("operation", "Operation", Fmt.TEXT, "Direction of a copy, or `Memset`"),
)

_KEYS = ["operation", "src_kind", "dst_kind"]
_GPU = ["start_ns", "end_ns", "device", "bytes"]


def copies(trace: Trace, selection: Selection = EVERYTHING) -> TableResult | NotApplicable:
    """Sum up memcpys and memsets by direction and kind of memory, the most expensive first."""
    if not (trace.has("copies") or trace.has("memsets")):
        reason = "the capture has no memcpys or memsets"
        # Where kernels were recorded, copies would have been too.
        hint = "" if trace.has("kernels") else advice_for(trace.meta).gpu
        return NotApplicable("copies", reason, hint)
    scope = ResolvedSelection(trace, selection)
    scope.prepare(*GPU_WORK)
    rows = _with_hidden(trace, operations(scope))
    size, total = pl.col("bytes"), pl.col("total_ns")
    pageable = [pl.col(key).eq_missing(pl.lit("Pageable")) for key in ("src_kind", "dst_kind")]
    frame = (
        rows.lazy()
        .with_columns(DURATION)
        .group_by(_KEYS)
        .agg(
            *timing(),
            pl.col("hidden_ns").sum(),
            size.mean().alias("mean_bytes"),
            size.max().alias("max_bytes"),
            size.sum(),
        )
        .with_columns(
            share_of(total, total.sum()).alias("share"),
            (total - pl.col("hidden_ns")).alias("exposed_ns"),
            share_of(size * 1e9, total).alias("bandwidth_bytes_s"),
            pl.any_horizontal(pageable).alias("pageable"),
        )
        .sort(["total_ns", *_KEYS], descending=[True, False, False, False])
        .select([f.key for f in FIELDS])
        .collect()
    )
    totals = {key: int(frame[key].sum()) for key in ("total_ns", "exposed_ns", "bytes")}
    return TableResult(
        "copies",
        "Memcpys and memsets by GPU time",
        FIELDS,
        frame,
        meta={"operations": rows.height, **totals},
        notes=scope.notes,
    )


def operations(scope: ResolvedSelection) -> pl.DataFrame:
    """Return the selected memcpys and memsets as one table, in order of start."""
    parts = []
    if scope.trace.has("copies"):
        frame = scope.gpu("copies", [*_GPU, "kind", "src_kind", "dst_kind"])
        parts.append(frame.rename({"kind": "operation"}))
    if scope.trace.has("memsets"):
        frame = scope.gpu("memsets", [*_GPU, "memory_kind"]).rename({"memory_kind": "dst_kind"})
        parts.append(frame.with_columns(operation=pl.lit("Memset"), src_kind=None))
    plain = [part.select(*_GPU, pl.col(_KEYS).cast(pl.String)) for part in parts]
    return pl.concat(plain).sort("start_ns", maintain_order=True)


def _with_hidden(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """Add how long kernels ran during each operation; all kernels count, selected or not."""
    parts = []
    for (device,), part in rows.group_by("device", maintain_order=True):
        busy = computing(trace, int(device))
        hidden = coverage(busy, part["start_ns"].to_numpy(), part["end_ns"].to_numpy())
        parts.append(part.with_columns(pl.Series("hidden_ns", hidden, pl.Int64)))
    empty = rows.with_columns(pl.lit(0, pl.Int64).alias("hidden_ns"))
    return pl.concat(parts) if parts else empty
