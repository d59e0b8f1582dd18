"""Tables of an nsys capture in pieces, so that a copy needs no more memory than one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.errors import DamagedCaptureError
from gpusight.readers.nsys.sqlite import Span, SqliteTables, Wrong

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.readers.nsys.raw import RawTables


class SqlitePieces(SqliteTables):
    """An SQLite export that can be read by spans of rows, one after the other."""

    def pieces(self, table: str, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Read columns in file order, some rows at a time."""
        types = {column: self._affinity(table, column) for column in columns}
        self._check_texts(table, types)
        for span in super()._row_spans(table):
            yield self._piece(table, types, span)

    def _piece(self, table: str, types: dict[str, str], span: Span) -> pl.DataFrame:
        try:
            return self._read(table, types, span.rows, Wrong.NONE)
        except (DamagedCaptureError, pl.exceptions.PolarsError):
            # A column that mixes types, which only casts straighten out.
            return self._read(table, types, span.rows, Wrong.NULL)

    def _row_spans(self, table: str) -> list[Span]:
        """Say that a read is one span: who asks for all of a table here wants little of it."""
        del table
        return [Span("1", self._most_rows)]


def pieces_of(raw: RawTables, table: str, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Read columns in file order, some rows at a time where the form of the capture allows."""
    if isinstance(raw, SqlitePieces):
        yield from raw.pieces(table, columns)
    else:
        yield raw.read(table, columns)
