"""A source whose tables are whole frames, for files that are read in one pass."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from gpusight.readers.name_columns import concat_names, encode_names
from gpusight.trace.schema import TABLES
from gpusight.trace.schema_columns import ColumnKind, TraceColumn
from gpusight.trace.trace import Meta, Outline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import Self


EPOCH_NS = 10**18
"""A clock that shows more counts from 1970: that was so in 2001."""

_LATEST = 1 << 61
"""Beyond any clock, the nanoseconds since 1970 included, and beyond any size in bytes."""
MAX_DURATION_NS = 30 * 86_400 * 10**9
"""No profiler records for longer than 30 days, so no event lasts longer."""
TIME_LIMITS, DEVICE_LIMITS, BYTE_LIMITS = (-_LATEST, _LATEST), (-(1 << 20), 1 << 20), (0, _LATEST)
_COUNT_LIMITS = (0, 1 << 32)
_COUNTS = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers_per_thread")


class FrameSource:
    """Serves tables from frames that `read` builds when the first of them is used.

    A frame holds the columns that the file fills, in any order and any fitting type: text becomes
    an Enum, rows are sorted, columns that are missing are null.
    """

    def __init__(self, read: Callable[[], tuple[Meta, dict[str, pl.DataFrame]]]) -> None:
        self._read = read

    @classmethod
    def of(cls, meta: Meta, frames: dict[str, pl.DataFrame]) -> Self:
        """Serve frames that are there already."""
        return cls(lambda: (meta, frames))

    @cached_property
    def _contents(self) -> tuple[Meta, dict[str, pl.DataFrame]]:
        meta, frames = self._read()
        return meta, {t: as_table(t, f) for t, f in frames.items() if f.height}

    @property
    def meta(self) -> Meta:
        """What is known about the capture as a whole."""
        return self._contents[0]

    def outline(self) -> Outline:
        """Return what is in the file."""
        meta, frames = self._contents
        return Outline(
            meta=meta,
            rows={t: f.height for t, f in frames.items()},
            columns={t: [c for c in f.columns if self.has_column(t, c)] for t, f in frames.items()},
        )

    def has(self, table: str) -> bool:
        """Return whether the table has rows."""
        return table in self._contents[1]

    def has_column(self, table: str, column: str) -> bool:
        """Return whether the capture can fill this column."""
        frame = self._contents[1].get(table)
        return (
            frame is not None
            and column in frame.columns
            and frame.get_column(column).null_count() < frame.height
        )

    def row_count(self, table: str) -> int:
        """Count rows."""
        frame = self._contents[1].get(table)
        return 0 if frame is None else frame.height

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Return these columns."""
        frame = self._contents[1].get(table)
        if frame is None:
            return pl.DataFrame([TABLES[table].column(c).empty() for c in columns])
        return frame.select(columns)

    def prepare(self, tables: Iterable[str]) -> None:
        """Do nothing: all tables are read together."""

    def warnings(self) -> tuple[str, ...]:
        """Return none: the pass over the file put its warnings in `meta`."""
        return ()

    def close(self) -> None:
        """Do nothing: no file is open."""


def as_table(name: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame as the schema declares its table: types, order of columns and rows."""
    table = TABLES[name]
    unknown = set(frame.columns) - set(table.column_names)
    assert not unknown, f"{name} has no columns {unknown}"
    stored = [c for c in table.columns if not c.derived]
    full = pl.DataFrame(
        [as_column(c, frame.get_column(c.name)) for c in stored if c.name in frame.columns]
    )
    key = table.sort_column
    order = time_order(full.get_column(key)) if key in full.columns else None
    full = full if order is None else full[order]
    missing = [c.nulls(full.height) for c in stored if c.name not in full.columns]
    return full.hstack(missing).select([c.name for c in stored])


def as_column(column: TraceColumn, series: pl.Series) -> pl.Series:
    """Cast a series to the type that its column is declared with."""
    if column.kind is ColumnKind.NAME:
        return series if isinstance(series.dtype, pl.Enum) else encode_names(series.cast(pl.String))
    return series.cast(column.dtype_for([]))


def time_order(times: pl.Series) -> pl.Series | None:
    """Return the order of rows by time, ties in file order; None if they are sorted."""
    if times.is_sorted():
        return None
    frame = times.to_frame("time").with_row_index("row")
    return frame.sort("time", maintain_order=True).get_column("row")


def concat_tables(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """Concatenate frames of the same columns, however their names are encoded."""
    columns = []
    for column in frames[0].columns:
        parts = [frame.get_column(column) for frame in frames]
        joined = concat_names(parts) if isinstance(parts[0].dtype, pl.Enum) else pl.concat(parts)
        columns.append(joined.alias(column))
    return pl.DataFrame(columns)


def limits_of(column: TraceColumn) -> tuple[int, int] | None:
    """Return the smallest and largest valid value of a column; None if any is valid."""
    if column.kind is ColumnKind.TIME:
        return TIME_LIMITS
    if column.name == "device":
        return DEVICE_LIMITS
    if column.unit == "bytes":
        return BYTE_LIMITS
    return _COUNT_LIMITS if column.name in _COUNTS else None


def within_limits(column: TraceColumn, series: pl.Series) -> tuple[pl.Series, int]:
    """Make values outside the limits null; return how many there were."""
    limits = limits_of(column)
    if limits is None or series.dtype != pl.Int64 or series.is_empty():
        return series, 0
    if is_inside(series, *limits):
        return series, 0
    outside = ~series.is_between(*limits).fill_null(value=True)
    return series.set(outside, None), int(outside.sum())


def is_inside(series: pl.Series, low: int, high: int) -> bool:
    """Return whether all values lie within limits; False if there are none."""
    least, most = series.min(), series.max()
    return isinstance(least, int) and isinstance(most, int) and low <= least <= most <= high
