"""A capture with other times: that of the host for the GPU's clock, those without a profiler."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from gpusight.trace.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import polars as pl

    from gpusight.trace.trace import Meta, Outline, Trace

TIMES = ("start_ns", "end_ns", "time_ns")
"""Columns that hold moments of the capture."""


class MoveTimes(Protocol):
    """Moves the times of a table."""

    def __call__(self, table: str, columns: Sequence[str]) -> pl.DataFrame | None:
        """Return these columns moved, in the order of the rows; None where the table stays."""
        ...


class MovedSource:
    """Serves the tables of a trace with moved times, in the order of those."""

    def __init__(self, trace: Trace, move: MoveTimes) -> None:
        self.trace = trace
        self._move = move
        self._orders: dict[str, pl.Series | None] = {}

    @cached_property
    def meta(self) -> Meta:
        """What is known about the capture as a whole."""
        return self.trace.meta

    def outline(self) -> Outline | None:
        """Return nothing: the trace knows its tables."""
        return None

    def has(self, table: str) -> bool:
        """Return whether the table has rows."""
        return self.trace.has(table)

    def has_column(self, table: str, column: str) -> bool:
        """Return whether the capture can fill this column."""
        return self.trace.has(table, column)

    def row_count(self, table: str) -> int:
        """Count rows."""
        return self.trace.row_count(table)

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read these columns, times moved, in order of the moved start."""
        frame = self.trace.table(table, columns)
        order = self._order(table)
        if order is None:
            return frame
        times = [column for column in columns if column in TIMES]
        moved = self._move(table, times) if times else None
        return (frame if moved is None else frame.with_columns(moved))[order]

    def _order(self, table: str) -> pl.Series | None:
        """Return the rows of a table in order of time; None where they do not change."""
        if table not in self._orders:
            key = TABLES[table].sort_column
            moved = None if key is None else self._move(table, [key])
            order = None if moved is None else moved.to_series().arg_sort()
            self._orders[table] = order
        return self._orders[table]

    def recorded_row(self, table: str, row: int) -> int:
        """Return the row of the trace that a row of a moved table is."""
        order = self._order(table)
        return row if order is None else int(order[row])

    def prepare(self, tables: Iterable[str]) -> None:
        """Announce which tables will be read."""
        self.trace.prepare(*tables)

    def warnings(self) -> tuple[str, ...]:
        """Return warnings about rows and values left out so far."""
        return self.trace.losses

    def close(self) -> None:
        """Leave the trace open: who opened it closes it."""
