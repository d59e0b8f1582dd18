"""The aggregates that every table of calls shows, written once."""

from __future__ import annotations

import polars as pl

from gpusight.result import Field, Fmt

DURATION = (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns")

_FIELDS = (
    Field("total_ns", "Total", Fmt.TIME, "Sum of their durations"),
    Field("calls", "Calls", Fmt.COUNT, "How many"),
    Field("mean_ns", "Mean", Fmt.TIME, "Average duration"),
    Field("median_ns", "Median", Fmt.TIME, "Duration that half of them stay under"),
    Field("min_ns", "Min", Fmt.TIME, "Shortest"),
    Field("max_ns", "Max", Fmt.TIME, "Longest"),
    Field("stddev_ns", "StdDev", Fmt.TIME, "Sample standard deviation; 0 for a single one"),
)


def timing_fields(*shown: str) -> tuple[Field, ...]:
    """Declare what `timing` computes; only the keys in `shown` are in the default table."""
    return tuple(Field(f.key, f.label, f.fmt, f.meaning, f.key in shown) for f in _FIELDS)


def timing() -> list[pl.Expr]:
    """Aggregate `duration_ns`: count, total, mean, median, extremes and deviation."""
    values = pl.col("duration_ns")
    return [
        pl.len().cast(pl.Int64).alias("calls"),
        values.sum().alias("total_ns"),
        values.mean().alias("mean_ns"),
        values.median().alias("median_ns"),
        values.min().alias("min_ns"),
        values.max().alias("max_ns"),
        values.std().fill_null(0.0).alias("stddev_ns"),
    ]


def share_of(part: pl.Expr, whole: pl.Expr | int) -> pl.Expr:
    """Divide, giving null rather than infinity where the whole is nothing."""
    total = pl.lit(whole) if isinstance(whole, int) else whole
    return pl.when(total > 0).then(part / total)


def names_of(series: pl.Series) -> list[str]:
    """List the distinct strings that a name column can hold, in the order of its codes."""
    dtype = series.dtype
    return dtype.categories.to_list() if isinstance(dtype, pl.Enum) else []
