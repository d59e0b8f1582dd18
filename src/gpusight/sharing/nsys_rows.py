"""Tables of an nsys capture in pieces, so that a copy needs no more memory than one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.errors import DamagedCaptureError
from gpusight.readers.nsys.sqlite import SqliteTables

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.readers.nsys.raw import RawTables


class SqlitePieces(SqliteTables):
    """An SQLite export that can be read by spans of rows, one after the other."""

    def pieces(self, table: str, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Read columns in file order, some rows at a time."""
        spans = super()._row_spans(table)
        for first, last in spans:
            rows = f"rowid BETWEEN {first} AND {last}" if len(spans) > 1 else "1"
            yield self._piece(table, columns, rows)

    def _piece(self, table: str, columns: Sequence[str], rows: str) -> pl.DataFrame:
        types = {column: self._types[table][column] for column in columns}
        try:
            return self._read(table, types, rows, exact=False)
        except (DamagedCaptureError, pl.exceptions.PolarsError):
            # A column that mixes types, which only casts straighten out.
            return self._read(table, types, rows, exact=True)

    def _row_spans(self, table: str) -> list[tuple[int, int]]:
        """Say that a read is one span: who asks for all of a table here wants little of it."""
        del table
        return [(0, 0)]


def pieces_of(raw: RawTables, table: str, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Read columns in file order, some rows at a time where the form of the capture allows."""
    if isinstance(raw, SqlitePieces):
        yield from raw.pieces(table, columns)
    else:
        yield raw.read(table, columns)
