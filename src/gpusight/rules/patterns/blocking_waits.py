"""Where the host waits for the GPU: synchronizing calls, and copies that block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.rules.patterns.host_gaps import issues
from gpusight.rules.patterns.memcpys import MIN_COPY_BYTES
from gpusight.rules.rule import Threshold

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext


MIN_COPY_WAIT_SHARE = Threshold(
    0.5,
    "part of a wait that a large copy itself must take to be what is waited for; below, the host "
    "waits for the work before it, and a faster copy changes little",
)
_PLACES = ("range", "operator", "site", "name")


def waits(timeline: RuleContext) -> pl.DataFrame:
    """Give the waits for the GPU, a row each, in order of start.

    A value that is read back is a copy and a synchronising call after it: one wait. Columns:
    `calls` (positions), `start_ns`, `waited_ns`, `step` (calls after a step count to it),
    `copies` (it waits for a copy of its own), `large` (mostly for one that other rules look at,
    not for the work before it), `reads` (for a copy to the host),
    `at_edge` (nothing was launched before it in its step, or nothing after it), and the `range`,
    `operator`, `site` and `name` of its first call.
    """
    calls = _with_launches(timeline)
    blocking = pl.col("waits") & pl.col("kind").cast(pl.String).is_in(["sync", "copy"])
    return (
        calls.filter(blocking)
        .group_by("lane", "issued", maintain_order=True)
        .agg(
            pl.col("call").alias("calls"),
            pl.col("start_ns", "step", "launched", "to_launch", *_PLACES).first(),
            pl.col("waited_ns").sum(),
            (pl.col("last_kind") == "copy").any().alias("copies"),
            (pl.col("last_bytes") > MIN_COPY_BYTES.value).any().alias("large"),
            pl.col("last_duration_ns").max(),
            pl.col("reads").fill_null(value=False).any(),
        )
        .filter(pl.col("waited_ns") > 0)
        .with_columns(
            ((pl.col("launched") == 0) | (pl.col("to_launch") == 0)).alias("at_edge"),
            pl.col("large")
            & (pl.col("last_duration_ns") >= MIN_COPY_WAIT_SHARE.value * pl.col("waited_ns")),
        )
        .sort("start_ns")
    )


def _with_launches(timeline: RuleContext) -> pl.DataFrame:
    """Give calls with what was issued before them, and launched before and after in their step."""
    sizes = (
        timeline.ops.filter(pl.col("kind") == "copy", pl.col("call").is_not_null())
        .group_by("call")
        .agg(
            pl.col("bytes").sum(),
            pl.col("duration_ns").sum().alias("copied_ns"),
            (pl.col("direction") == "Device-to-Host").any().alias("to_host"),
        )
    )
    own = ["lane", "step"]
    launch = pl.col("kind").cast(pl.String).is_in(["launch", "graph"]).cast(pl.Int64)
    return (
        timeline.calls.join(sizes, on="call", how="left", maintain_order="left")
        .with_columns(
            pl.col("bytes", "copied_ns").fill_null(0),
            pl.col("to_host").fill_null(value=False),
            # What comes between two steps comes after the first of them.
            pl.col("step").forward_fill().over("lane").fill_null(-1),
            issues().cast(pl.Int64).cum_sum().over("lane").alias("issued"),
        )
        .with_columns(
            launch.cum_sum().over(own).alias("launched"),
            _last("kind", pl.String).alias("last_kind"),
            _last("bytes", pl.Int64).alias("last_bytes"),
            _last("copied_ns", pl.Int64).alias("last_duration_ns"),
            _last("to_host", pl.Boolean).alias("reads"),
        )
        .with_columns((launch.sum().over(own) - pl.col("launched")).alias("to_launch"))
    )


def _last(column: str, dtype: type[pl.DataType]) -> pl.Expr:
    """Give the value of the last call of the lane that put work on a GPU."""
    return pl.when(issues()).then(pl.col(column).cast(dtype)).forward_fill().over("lane")
