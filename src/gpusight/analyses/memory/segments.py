"""What of the memory that a framework reserved was free when a snapshot was taken, and where."""

from __future__ import annotations

import polars as pl

from gpusight.analyses.memory.history import HELD
from gpusight.analyses.statistics import share_of
from gpusight.result import Field, Fmt, TableResult
from gpusight.units import format_bytes

RESERVED_FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Part of all reserved memory"),
    Field("bytes", "Bytes", Fmt.BYTES, "Bytes"),
    Field("blocks", "Blocks", Fmt.COUNT, "Blocks it lies in"),
    Field("largest_bytes", "Largest", Fmt.BYTES, "The largest of those blocks"),
    Field("part", "Part", Fmt.TEXT, "What it is; the parts sum to what is reserved"),
)
SEGMENT_FIELDS = (
    Field("used_share", "Used", Fmt.SHARE, "Part of the segment in use"),
    Field("bytes", "Size", Fmt.BYTES, "Size of the segment"),
    Field("used_bytes", "In use", Fmt.BYTES, "In use, blocks that wait to be freed included"),
    Field("free_bytes", "Free", Fmt.BYTES, "Not in use"),
    Field("largest_free_bytes", "Largest free", Fmt.BYTES, "The largest allocation it could take"),
    Field("blocks", "Blocks", Fmt.COUNT, "Blocks in use"),
    Field("kind", "Pool", Fmt.TEXT, "`small` or `large`"),
    Field("stream", "Stream", Fmt.ID, "CUDA stream that alone can use it"),
    Field("expandable", "Grows", Fmt.FLAG, "Whether the segment can grow", shown=False),
    Field("address", "Address", Fmt.ID, "Address", shown=False),
)
SPARSE = 0.5
"""A segment with less in use than this holds back memory for little."""


def reserved_parts(blocks: pl.DataFrame) -> TableResult:
    """Split what is reserved into what is used, lost by rounding, and free in which way."""
    held = pl.col("state").cast(pl.String).is_in(HELD)
    asked = pl.col("requested_bytes").fill_null(pl.col("bytes"))
    occupied = held.any().over("segment")
    pending = pl.col("state").cast(pl.String) == "pending_free"
    parts = [
        _part(blocks, "asked for by the program", held & ~pending, asked),
        _part(blocks, "freed, but a stream may still use it", pending, asked),
        _part(blocks, "rounding: given beyond what was asked", held, pl.col("bytes") - asked),
        _part(blocks, "free between used blocks", ~held & occupied, pl.col("bytes")),
        _part(blocks, "free in unused segments", ~held & ~occupied, pl.col("bytes")),
    ]
    frame = pl.concat(parts).filter(pl.col("bytes") != 0)
    total = int(frame["bytes"].sum())
    frame = frame.with_columns(share_of(pl.col("bytes"), total).alias("share"))
    return TableResult(
        "reserved",
        "Reserved memory at the end",
        RESERVED_FIELDS,
        frame.select(f.key for f in RESERVED_FIELDS),
    )


def _part(blocks: pl.DataFrame, name: str, which: pl.Expr, size: pl.Expr) -> pl.DataFrame:
    rows = blocks.filter(which).select(size.alias("bytes")).filter(pl.col("bytes") != 0)
    return rows.select(
        pl.col("bytes").sum(),
        pl.len().cast(pl.Int64).alias("blocks"),
        pl.col("bytes").max().alias("largest_bytes"),
        pl.lit(name).alias("part"),
    )


def segments(blocks: pl.DataFrame) -> TableResult:
    """List the segments, those that hold back most first."""
    held = pl.col("state").cast(pl.String).is_in(HELD)
    size = pl.col("segment_bytes").first()
    used = pl.col("bytes").filter(held).sum()
    frame = (
        blocks.group_by("segment", maintain_order=True)
        .agg(
            size.alias("bytes"),
            used.alias("used_bytes"),
            (size - used).alias("free_bytes"),
            pl.col("bytes").filter(~held).max().fill_null(0).alias("largest_free_bytes"),
            held.sum().cast(pl.Int64).alias("blocks"),
            pl.col("segment_kind").cast(pl.String).first().alias("kind"),
            pl.col("stream").first(),
            pl.col("expandable").first(),
        )
        .with_columns(
            share_of(pl.col("used_bytes"), pl.col("bytes")).alias("used_share"),
            pl.col("segment").alias("address"),
        )
        .sort(["free_bytes", "address"], descending=[True, False])
    )
    title = "Segments, by what is free in them" + _sparse(frame)
    return TableResult(
        "segments", title, SEGMENT_FIELDS, frame.select(f.key for f in SEGMENT_FIELDS)
    )


def _sparse(frame: pl.DataFrame) -> str:
    """Say how much lies idle in segments that hold little."""
    sparse = frame.filter(pl.col("used_share") < SPARSE)
    if sparse.is_empty():
        return ""
    free = format_bytes(int(sparse["free_bytes"].sum()))
    return f": {sparse.height:,} of {frame.height:,} under half used, {free} free"
