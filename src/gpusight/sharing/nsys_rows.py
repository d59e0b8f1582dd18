"""Tables of an nsys capture in pieces, so that a copy needs no more memory than one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.readers.nsys.sqlite import SqliteTables

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import polars as pl

    from gpusight.readers.nsys.raw import RawTables


def pieces_of(raw: RawTables, table: str, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Read columns in file order, some rows at a time where the form of the capture allows."""
    if isinstance(raw, SqliteTables):
        yield from raw.pieces(table, columns)
    else:
        yield raw.read(table, columns)
