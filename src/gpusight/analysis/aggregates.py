"""The aggregates and columns that tables of calls share: count, total, mean, median, share."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from gpusight.core.sums import sum_groups
from gpusight.results import Field, Fmt, TableResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


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


def timing_by_name(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    """Aggregate `start_ns` to `end_ns` by a column of names: its `code`, and `timing`'s columns."""
    codes = rows.get_column(name).to_physical()
    groups = len(names_of(rows.get_column(name)))
    sums = sum_groups(codes, rows.get_column("start_ns"), rows.get_column("end_ns"), groups)
    if sums is not None:
        return sums.with_columns(pl.col("code").cast(codes.dtype))
    frame = rows.lazy().select(pl.col(name).to_physical().alias("code"), DURATION)
    return frame.group_by("code").agg(timing()).collect()


_INT64 = pl.Int64()
_DTYPES: dict[Fmt, pl.DataType] = {
    Fmt.NAME: pl.String(),
    Fmt.TEXT: pl.String(),
    Fmt.FLAG: pl.Boolean(),
    Fmt.ID: _INT64,
    Fmt.SHARE: pl.Float64(),
    Fmt.REAL: pl.Float64(),
}


def schema_of(
    fields: Iterable[Field],
    numbers: pl.DataType = _INT64,
    *,
    counts: pl.DataType | None = None,
) -> dict[str, pl.DataType]:
    """Return the column types of these fields; `numbers` is that of counts, times and bytes.

    `counts` is that of counts where it differs.
    """
    types = _DTYPES if counts is None else {**_DTYPES, Fmt.COUNT: counts}
    return {f.key: types.get(f.fmt, numbers) for f in fields}


def table_of(
    command: str,
    title: str,
    fields: tuple[Field, ...],
    rows: Sequence[Mapping[str, object]],
    numbers: pl.DataType = _INT64,
) -> TableResult:
    """Make a table of rows that have at least the keys of `fields`."""
    schema = schema_of(fields, numbers)
    values = [{key: row[key] for key in schema} for row in rows]
    return TableResult(command, title, fields, pl.DataFrame(values, schema=schema))


def share_of(part: pl.Expr, whole: pl.Expr | int) -> pl.Expr:
    """Divide; null rather than infinity where `whole` is 0."""
    total = pl.lit(whole) if isinstance(whole, int) else whole
    # By a single value Polars multiplies with the reciprocal, but not always: the last digit would
    # differ from run to run. By a column, which the sum makes of it, it divides exactly.
    return pl.when(total > 0).then(part / (total + part * 0))


def names_of(series: pl.Series) -> list[str]:
    """Return the distinct strings of a name column, in the order of its codes."""
    dtype = series.dtype
    return dtype.categories.to_list() if isinstance(dtype, pl.Enum) else []


def is_named(names: pl.Series, wanted: Callable[[str], object]) -> pl.Series:
    """Return which rows have a wanted name, looking at each distinct one once."""
    rows = names.to_physical()
    # Of a stretch of a long capture with many names, only those that occur are looked at.
    if isinstance(names.dtype, pl.Enum) and len(names.dtype.categories) > _MANY_NAMES:
        used = rows.unique().drop_nulls()
        texts = zip(used.to_list(), names.dtype.categories.gather(used).to_list(), strict=True)
        return _is_code(rows, [code for code, text in texts if wanted(text)])
    return _is_code(rows, [code for code, text in enumerate(names_of(names)) if wanted(text)])


def _is_code(rows: pl.Series, codes: list[int]) -> pl.Series:
    """Look codes up as `is_in` does, which costs ten times as much where there are few rows."""
    if len(codes) > 1:
        return rows.is_in(codes)
    return rows == codes[0] if codes else rows != rows


_MANY_NAMES = 1_000
"""From here on, finding out which names occur is cheaper than looking at all of them."""


def kept(frame: pl.DataFrame, mask: pl.Series) -> pl.DataFrame:
    """Keep rows as `filter` does; rows that lie together are not copied, nor is the whole frame."""
    first, count = mask.arg_max(), int(mask.sum())
    if not count or first is None:
        return frame.clear()
    together = frame.slice(first, count)
    return together if mask.slice(first, count).sum() == count else frame.filter(mask)


def weighed_mean(column: str, weight: str = "duration_ns") -> pl.Expr:
    """Average over rows weighted by time; unweighted where no time was measured."""
    value, time = pl.col(column), pl.col(weight)
    weights = time.filter(value.is_not_null()).sum()
    weighted = (value * time).sum() / weights
    return pl.when(weights > 0).then(weighted).otherwise(value.mean()).alias(column)


def average(frame: pl.DataFrame, column: str, weight: str = "duration_ns") -> float | None:
    """Average over all rows weighted by time; None where a value or every time is unknown."""
    if frame[column].null_count() or not frame[weight].sum():
        return None
    mean: float = frame.select(weighed_mean(column, weight)).item()
    return mean


def prevailing(
    frame: pl.DataFrame, by: Sequence[str], column: str, weight: str = "duration_ns"
) -> pl.DataFrame:
    """Set `column` of every row to the value that holds for most of its group's time."""
    time = pl.col(weight).fill_null(0.0).sum().alias("_time")
    most = (
        frame.filter(pl.col(column).is_not_null())
        .group_by(*by, column)
        .agg(time)
        .sort(["_time", column], descending=[True, False])
        .unique(by, keep="first", maintain_order=True)
        .drop("_time")
    )
    rest = frame.drop(column)
    return rest.join(most, on=list(by), how="left", nulls_equal=True, maintain_order="left")


def whole_sum(column: str) -> pl.Expr:
    """Sum; null when a value is unknown, since the sum of the rest would mislead."""
    value = pl.col(column)
    return pl.when(value.null_count() == 0).then(value.sum()).alias(column)


def is_filled(frame: pl.DataFrame, column: str) -> bool:
    """Return whether a column has a value; true for a frame without rows."""
    return frame.is_empty() or frame[column].null_count() < frame.height


def shown_if_filled(fields: Iterable[Field], frame: pl.DataFrame) -> tuple[Field, ...]:
    """Hide columns that hold nothing."""
    return tuple(replace(f, shown=f.shown and is_filled(frame, f.key)) for f in fields)
