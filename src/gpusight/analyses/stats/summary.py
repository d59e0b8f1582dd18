"""The statistics that every summary report shares."""

from __future__ import annotations

import polars as pl

from gpusight.analyses.statistics import DURATION, share_of
from gpusight.analyses.stats.table import Cell

TIME_SUMMARY = {
    "Avg (ns)": Cell.TENTHS,
    "Med (ns)": Cell.TENTHS,
    "Min (ns)": Cell.WHOLE,
    "Max (ns)": Cell.WHOLE,
    "StdDev (ns)": Cell.TENTHS,
}


def time_headers(count: str = "Instances") -> dict[str, Cell]:
    """Give the headings that a summary of times starts with; `count` is what a row counts."""
    return {
        "Time (%)": Cell.TENTHS,
        "Total Time (ns)": Cell.WHOLE,
        count: Cell.WHOLE,
        **TIME_SUMMARY,
    }


def spread(value: pl.Expr, prefix: str = "", unit: str = "ns") -> list[pl.Expr]:
    """Average, median, extremes and sample deviation; a single value deviates by nothing."""
    return [
        value.mean().alias(f"{prefix}Avg ({unit})"),
        value.median().alias(f"{prefix}Med ({unit})"),
        value.min().alias(f"{prefix}Min ({unit})"),
        value.max().alias(f"{prefix}Max ({unit})"),
        value.std(ddof=1).fill_null(0.0).alias(f"{prefix}StdDev ({unit})"),
    ]


def summarise_times(
    frame: pl.DataFrame | pl.LazyFrame, by: list[str], *, count: str = "Instances"
) -> pl.DataFrame:
    """Summarise `start_ns`..`end_ns` for each group; unsorted, without the share of time."""
    time = pl.col("time")
    return (
        frame.lazy()
        .select(*by, DURATION.alias("time"))
        .group_by(by)
        .agg(time.sum().alias("Total Time (ns)"), pl.len().alias(count), *spread(time))
        .collect()
    )


def rank_times(summary: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """Add each group's share of the time listed and put the largest first, ties by name."""
    total = pl.col("Total Time (ns)")
    share = share_of(100 * total, total.sum()).fill_null(0.0)
    return summary.with_columns(share.alias("Time (%)")).sort(
        "Total Time (ns)", *names, descending=[True] + [False] * len(names)
    )
