"""The tables of a joined timeline and report: kernels, and what has no partner."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.join.match import NO_NAME, NO_SHAPE
from gpusight.analyses.launch_columns import SHAPE, shape_texts, short_names
from gpusight.analyses.statistics import prevailing, share_of, weighed_mean, whole_sum
from gpusight.result import Field, Fmt, TableResult
from gpusight.units import format_share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analyses.join.launches import Joined

_TIME = "time_ns"
_NAMES = (
    Field("short_name", "Kernel", Fmt.NAME, "Readable label made from the name"),
    Field("name", "Full name", Fmt.NAME, "Name with template arguments", shown=False),
)
_SHAPE = (
    Field("grid", "Grid", Fmt.TEXT, "Blocks in x, y and z", shown=False),
    Field("block", "Block", Fmt.TEXT, "Threads of a block in x, y and z", shown=False),
)
KERNEL_FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Part of the window, in the timeline"),
    Field("total_ns", "Total", Fmt.TIME, "Sum of durations in the timeline"),
    Field("calls", "Calls", Fmt.COUNT, "Launches in the timeline", shown=False),
    Field("roof_share", "Of roof", Fmt.SHARE, "How near to the roofline: 1 is at the roof"),
    Field("gap_ns", "Above roof", Fmt.TIME, "Time that the roofline would not need: the ranking"),
    Field("bound", "Bound by", Fmt.TEXT, "`compute`, `memory` or `latency`"),
    Field("sm_share", "SM", Fmt.SHARE, "How busy the SMs were"),
    Field("memory_share", "Memory", Fmt.SHARE, "How busy the memory system was, caches included"),
    Field("dram_share", "DRAM", Fmt.SHARE, "How busy the GPU's memory was", shown=False),
    Field("occupancy", "Occup.", Fmt.SHARE, "Warps resident of those that fit", shown=False),
    Field("mean_ns", "Mean", Fmt.TIME, "Average duration in the timeline"),
    Field("measured_ns", "Measured", Fmt.TIME, "Average duration in the report"),
    Field("ratio", "Ratio", Fmt.REAL, "Measured over mean: other clocks, cold caches"),
    Field("measured", "Launches", Fmt.COUNT, "Measured launches that tell of it", shown=False),
    Field("exact", "In order", Fmt.COUNT, "Calls told by a measured launch in sequence", False),
    Field("tflop", "TFLOP", Fmt.REAL, "10¹² operations of all its calls", shown=False),
    Field("dram_bytes", "DRAM bytes", Fmt.BYTES, "Memory traffic of all its calls", shown=False),
    Field("kernel_share", "Of kernels", Fmt.SHARE, "Part of all kernel time", shown=False),
    *_SHAPE,
    Field("sentence", "In words", Fmt.NAME, "The row in words", shown=False),
    *_NAMES,
)
UNMEASURED_FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Part of the window"),
    Field("total_ns", "Total", Fmt.TIME, "Sum of durations in the timeline"),
    Field("calls", "Calls", Fmt.COUNT, "Launches in the timeline"),
    Field("why", "Why", Fmt.TEXT, "`not in the report`, or measured with another grid or block"),
    Field("other", "Measured with", Fmt.TEXT, "Grid and block that it was measured with", False),
    *_SHAPE,
    *_NAMES,
)
UNUSED_FIELDS = (
    Field("total_ns", "Total", Fmt.TIME, "Sum of durations in the report"),
    Field("calls", "Launches", Fmt.COUNT, "Measured launches"),
    Field("why", "Why", Fmt.TEXT, "`not in the timeline`, or there with another grid or block"),
    Field("other", "Ran with", Fmt.TEXT, "Grid and block that it has in the timeline", False),
    *_SHAPE,
    *_NAMES,
)
_WHY = {NO_NAME: "not in the {}", NO_SHAPE: "other grid or block"}


def kernel_rows(joined: Joined, window_ns: int, window: str) -> TableResult:
    """Sum up by kernel and shape what is measured, the most time above its roof first."""
    rows = joined.timeline
    everything = int(rows[_TIME].sum())
    known = prevailing(rows.filter(pl.col("launch").is_not_null()), ["key"], "bound", _TIME)
    time = pl.col(_TIME)
    frame = (
        known.group_by("key", maintain_order=True)
        .agg(
            *(pl.col(c).first() for c in ("name", "bound", *SHAPE)),
            time.sum().alias("total_ns"),
            pl.len().cast(pl.Int64).alias("calls"),
            time.mean().alias("mean_ns"),
            pl.col("measured_ns").mean(),
            pl.col("launch").n_unique().cast(pl.Int64).alias("measured"),
            pl.col("exact").sum().cast(pl.Int64),
            *(weighed_mean(c, _TIME) for c in _AVERAGED),
            *(whole_sum(c) for c in ("flops", "dram_bytes")),
        )
        .with_columns(
            share_of(pl.col("total_ns"), window_ns).alias("share"),
            share_of(pl.col("total_ns"), everything).alias("kernel_share"),
            share_of(pl.col("measured_ns"), pl.col("mean_ns")).alias("ratio"),
            (pl.col("total_ns") * (1 - pl.col("roof_share")).clip(0)).alias("gap_ns"),
            (pl.col("flops") / 1e12).alias("tflop"),
        )
        .sort(["gap_ns", "total_ns"], descending=True, nulls_last=True, maintain_order=True)
    )
    named = _named(frame)
    words = [_sentence(window, *row) for row in named.select(_TOLD).iter_rows()]
    named = named.with_columns(pl.Series("sentence", words, pl.String))
    ranked = named["gap_ns"].null_count() < named.height
    title = "Kernels by time above their roof" if ranked else "Kernels by time"
    return _table("kernels", title, KERNEL_FIELDS, named)


_AVERAGED = ("sm_share", "memory_share", "dram_share", "occupancy", "roof_share")
_TOLD = ("short_name", "share", "roof_share", "bound")


def _sentence(
    window: str, kernel: str, share: float | None, roof: float | None, bound: str | None
) -> str:
    of_time = "runs" if share is None else f"is {_percent(share)} of {window}"
    if roof is None:
        return f"{kernel} {of_time}; its distance to the roof was not measured"
    limit = f" ({bound}-bound)" if bound else ""
    return f"{kernel} {of_time} and at {_percent(roof)} of the roof{limit}"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 or share == 0 else format_share(share)


def unmeasured(joined: Joined, window_ns: int) -> TableResult:
    """List kernels of the timeline that the report does not tell of, the longest first."""
    frame = _partnerless(
        joined.timeline.filter(pl.col("launch").is_null()), joined.report, _TIME, "report"
    ).with_columns(share_of(pl.col("total_ns"), window_ns).alias("share"))
    title = "In the timeline, not measured"
    return _table("unmeasured", title, UNMEASURED_FIELDS, _named(frame))


def unused(joined: Joined) -> TableResult:
    """List measured launches that tell of no kernel of the timeline, the longest first."""
    rows = joined.report.filter(pl.col("why") != "")
    frame = _partnerless(rows, joined.timeline, "duration_ns", "timeline")
    return _table("unused", "Measured, not in the timeline", UNUSED_FIELDS, _named(frame))


def _partnerless(rows: pl.DataFrame, others: pl.DataFrame, time: str, side: str) -> pl.DataFrame:
    frame = (
        rows.group_by("key", maintain_order=True)
        .agg(
            *(pl.col(c).first() for c in ("name", "why", "kernel", *SHAPE)),
            pl.col(time).sum().alias("total_ns"),
            pl.len().cast(pl.Int64).alias("calls"),
        )
        .sort("total_ns", descending=True, maintain_order=True)
    )
    why = {code: text.format(side) for code, text in _WHY.items()}
    other = others.select(
        "kernel", pl.concat_str(shape_texts(), separator=" of ").alias("other")
    ).unique("kernel", keep="first")
    return frame.join(other, on="kernel", how="left", maintain_order="left").with_columns(
        pl.col("why").replace(why)
    )


def _named(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(
        pl.col("name").cast(pl.String), short_names(frame["name"]), *shape_texts()
    )


def _table(command: str, title: str, fields: Sequence[Field], frame: pl.DataFrame) -> TableResult:
    return TableResult(command, title, tuple(fields), frame.select([f.key for f in fields]))
