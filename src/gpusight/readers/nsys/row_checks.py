"""Which rows of a raw table are kept.

Values as declared, inside their limits, ends after starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from gpusight.readers.frame_source import BYTE_LIMITS, DEVICE_LIMITS, TIME_LIMITS, is_inside
from gpusight.readers.nsys import raw_tables
from gpusight.readers.nsys.raw_tables import NOT_A_NUMBER, PAYLOADS
from gpusight.readers.nsys.table_mapping import Ends, RawTablePart

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_MAX_DURATION_NS = 30 * 86_400 * 10**9
"""No profiler records for longer than 30 days, so nothing in a capture lasts longer."""
_SPARE_NS = 10**9
"""How much later than the recorded end of the capture work may end, or a tenth of its length."""
_TEXTS = frozenset({"text", "jsonText", "name"})
_REALS = frozenset({"doubleValue", "floatValue"})
"""Raw columns that hold something else than whole numbers."""
_START, _END, _KIND = "start", "end", "eventType"
_ANY = (NOT_A_NUMBER + 1, -NOT_A_NUMBER - 1)
_LIMITS = {
    "start": TIME_LIMITS,
    "end": TIME_LIMITS,
    "timestamp": TIME_LIMITS,
    "deviceId": DEVICE_LIMITS,
    "bytes": BYTE_LIMITS,
}
"""Least and greatest values of raw columns."""


class RowCheck(NamedTuple):
    """A raw column without which a row cannot be used, and the values that it may have."""

    column: str
    low: int
    high: int


@dataclass(frozen=True)
class CheckedRows:
    """Which rows of a raw table count."""

    rows: int
    """Rows that count."""
    mask: pl.Series | None = None
    """True for each that does; None where all do."""
    warnings: tuple[str, ...] = ()
    damage: str = ""
    """Why the table cannot be used at all."""

    def of(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Give the rows that count."""
        return frame if self.mask is None else frame.filter(self.mask)


def checks_of(columns: Iterable[str], latest_ns: int | None = None) -> tuple[RowCheck, ...]:
    """Turn raw columns that required model columns are made of into checks.

    `latest_ns` is when the capture ended: no GPU work can have ended much later.
    """
    limits = _LIMITS
    if latest_ns is not None and latest_ns > 0:
        late_ns = latest_ns + max(latest_ns // 10, _SPARE_NS)
        limits = _LIMITS | {_END: (TIME_LIMITS[0], min(late_ns, TIME_LIMITS[1]))}
    return tuple(RowCheck(name, *limits.get(name, _ANY)) for name in dict.fromkeys(columns))


def as_declared(frame: pl.DataFrame) -> pl.DataFrame:
    """Give every raw column the type that nsys stores, whatever another program made of it."""
    return pl.DataFrame([_as_declared(series) for series in frame.get_columns()])


def _as_declared(series: pl.Series) -> pl.Series:
    if series.dtype == pl.Int64 and series.name not in _TEXTS | _REALS:
        return series
    if series.name in _TEXTS:
        return series.cast(pl.String)
    if series.name in _REALS:
        return series.cast(pl.Float64, strict=False)
    return whole_numbers(series)


def whole_numbers(series: pl.Series) -> pl.Series:
    """Give whole numbers as Int64; what is none becomes `NOT_A_NUMBER`, a NaN null."""
    if series.dtype.is_float():
        # Programs that rewrite an export turn integers with nulls into floats.
        series = series.fill_nan(None)
        fits = ((series == series.floor()) & (series.abs() < float(1 << 63))).fill_null(value=True)
        numbers = series.zip_with(fits, pl.Series([0.0], dtype=series.dtype)).cast(pl.Int64)
    elif series.dtype == pl.Null or series.dtype == pl.Boolean or series.dtype.is_integer():
        return series.cast(pl.Int64)
    else:
        numbers = pl.Series(series.name, [0], dtype=pl.Int64).new_from_index(0, len(series))
        fits = series.is_null()
        numbers = numbers.set(fits, None)
    wrong = None if series.name in PAYLOADS else NOT_A_NUMBER
    return numbers if fits.all() else numbers.set(~fits, wrong)


def without_wrong(frame: pl.DataFrame, table: str) -> tuple[pl.DataFrame, dict[str, str]]:
    """Make values that are not whole numbers null; gives a warning for each such column."""
    said = {}
    for series in frame.get_columns():
        if series.name in PAYLOADS:
            continue
        if series.dtype == pl.Int64 and series.min() == NOT_A_NUMBER:
            wrong = series == NOT_A_NUMBER
            count = int(wrong.sum())
            said[series.name] = (
                f"{table}: {count:,} of {len(series):,} values of {series.name}"
                f" {'is no whole number' if count == 1 else 'are not whole numbers'}, left out"
            )
            frame = frame.with_columns(series.set(wrong.fill_null(value=False), None))
    return frame, said


def keep_rows(part: RawTablePart, frame: pl.DataFrame, checks: Sequence[RowCheck]) -> CheckedRows:
    """Tell which rows of a part count; `frame` holds the columns of the checks."""
    checks, doubts = _with_credible_end(part, frame, checks)
    if all(_passes(frame, check) for check in checks) and _runs_forward(frame, checks):
        return CheckedRows(frame.height, warnings=doubts)
    reasons = frame.select(_first_problem(part, frame, checks).alias("reason")).to_series()
    mask = reasons.is_null()
    left_out = frame.height - int(mask.sum())
    warnings = [*doubts, *([_left_out(part.raw, reasons, left_out)] if left_out else [])]
    warnings += _endless(part, frame.filter(mask))
    damage = ""
    if left_out * 2 > frame.height:
        damage = f"{left_out:,} of {frame.height:,} rows cannot be used: {_counted(reasons)}"
    return CheckedRows(frame.height - left_out, mask if left_out else None, tuple(warnings), damage)


def _with_credible_end(
    part: RawTablePart, frame: pl.DataFrame, checks: Sequence[RowCheck]
) -> tuple[Sequence[RowCheck], tuple[str, ...]]:
    """Drop the end of the capture as a limit, with a warning, where most rows are later than it."""
    end = next((check for check in checks if check.column == _END), None)
    if end is None or int((frame.get_column(_END) > end.high).sum()) * 2 <= frame.height:
        return checks, ()
    doubt = f"{part.raw}: most rows are later than the end of the capture: some times are wrong"
    lifted = [check if check is not end else RowCheck(_END, *TIME_LIMITS) for check in checks]
    return lifted, (doubt,) if end.high < TIME_LIMITS[1] else ()


def _passes(frame: pl.DataFrame, check: RowCheck) -> bool:
    series = frame.get_column(check.column)
    high = min(raw_tables.FOREVER - 1, check.high) if check.column == _END else check.high
    return series.null_count() == 0 and (not len(series) or is_inside(series, check.low, high))


def _runs_forward(frame: pl.DataFrame, checks: Sequence[RowCheck]) -> bool:
    if not {_START, _END} <= {check.column for check in checks}:
        return True
    took = frame.get_column(_END) - frame.get_column(_START)
    return not len(took) or is_inside(took, 0, _MAX_DURATION_NS)


def _first_problem(part: RawTablePart, frame: pl.DataFrame, checks: Sequence[RowCheck]) -> pl.Expr:
    """Write, for each row, the first reason why it cannot be used; null where it can be."""
    problem: pl.Expr = pl.lit(None, pl.String)
    for check in reversed(checks):
        if check.column == _END:
            problem = _problem_of_end(part, frame, check, problem)
            continue
        column = pl.col(check.column)
        problem = (
            pl.when(column.is_null() | (column == NOT_A_NUMBER))
            .then(pl.lit(f"no number as {check.column}"))
            .when(~column.is_between(check.low, check.high))
            .then(pl.lit(f"{check.column} out of range"))
            .otherwise(problem)
        )
    return problem


def _problem_of_end(
    part: RawTablePart, frame: pl.DataFrame, check: RowCheck, otherwise: pl.Expr
) -> pl.Expr:
    start, end = pl.col(_START), pl.col(_END)
    # A mark is an instant, whatever stands as its end.
    mark = pl.col(_KIND) == raw_tables.NVTX_MARK if _KIND in frame.columns else pl.lit(value=False)
    needed = pl.lit(part.ends is Ends.NEEDED)
    return (
        pl.when(mark)
        .then(otherwise)
        .when((end == NOT_A_NUMBER) | (end.is_null() & needed))
        .then(pl.lit("no number as end"))
        .when(end.is_null() | ((end >= raw_tables.FOREVER) & ~needed))
        .then(otherwise)
        .when(end >= raw_tables.FOREVER)
        .then(pl.lit("end out of range"))
        .when(end < start)
        .then(pl.lit("end before they start"))
        .when(needed & (end > check.high))
        .then(pl.lit("an end after the capture ended"))
        .when(end - start > _MAX_DURATION_NS)
        .then(pl.lit("a duration over 30 days"))
        .otherwise(otherwise)
    )


def _left_out(table: str, reasons: pl.Series, left_out: int) -> str:
    return f"{table}: {left_out:,} of {len(reasons):,} rows left out: {_counted(reasons)}"


def _counted(reasons: pl.Series) -> str:
    counts = reasons.drop_nulls().value_counts().sort("count", "reason", descending=[True, False])
    return ", ".join(f"{count:,} {_says(str(why), count)}" for why, count in counts.iter_rows())


def _says(reason: str, count: int) -> str:
    """Put a reason behind its count: `1 has no number as end`, `2 end before they start`."""
    if reason == "end before they start":
        return reason if count != 1 else "ends before it starts"
    return f"{'has' if count == 1 else 'have'} {reason}"


def _endless(part: RawTablePart, frame: pl.DataFrame) -> list[str]:
    """Name calls without an end: they count with no time."""
    if part.ends is not Ends.LOST or _END not in frame.columns:
        return []
    end = frame.get_column(_END)
    count = end.null_count() + int((end >= raw_tables.FOREVER).sum())
    if not count:
        return []
    have = "has no end and counts" if count == 1 else "have no end and count"
    return [f"{part.raw}: {count:,} of {frame.height:,} rows {have} as 0 ns"]
