"""What the four forms of an nsys capture have in common.

SQLite export, Parquet folder, Arrow folder and native report all hold the same tables, named and
laid out as `nsys export --type sqlite` writes them. Each form implements `RawTables`; one mapping
(`gpusight.readers.nsys.tables`) turns any of them into the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import polars as pl


NOT_A_NUMBER = -(1 << 63)
"""Stands in a column of whole numbers for text, bytes or a fraction; null means no value."""

PAYLOADS = frozenset({"int64Value", "uint64Value", "int32Value", "uint32Value"})
"""Columns of programs' own numbers, of which each may occur: there nothing stands for another."""


class Only(NamedTuple):
    """Rows whose column has one of these values."""

    column: str
    values: tuple[int, ...] | tuple[str, ...]
    or_unknown: bool = False
    """Also rows whose column has no value, or none of the right type, so that they are counted."""


class RawTables(Protocol):
    """The tables of one nsys capture, under the names of nsys's own SQLite export."""

    path: Path
    source: str
    """`nsys-sqlite`, `nsys-parquet`, `nsys-arrow` or `nsys-rep`."""

    def tables(self) -> frozenset[str]:
        """Name every table that the capture has."""
        ...

    def columns(self, table: str) -> frozenset[str]:
        """Name the columns of a table; none when there is no such table."""
        ...

    def row_count(self, table: str, only: Only | None = None) -> int:
        """Count the rows of a table, or those of some; 0 when there is no such table."""
        ...

    def is_empty(self, table: str, only: Only | None = None) -> bool:
        """Tell whether a table has no rows, or none of those, cheaply."""
        ...

    def read(
        self,
        table: str,
        columns: Sequence[str],
        only: Only | None = None,
        *,
        marked: bool = False,
    ) -> pl.DataFrame:
        """Read these columns in file order; `only` leaves out rows while reading.

        Integers arrive as Int64, reals as Float64, text as String with invalid UTF-8 replaced. For
        what is no whole number among integers stands null, or `NOT_A_NUMBER` if asked for.
        """
        ...

    def close(self) -> None:
        """Give the file back; what was read stays readable."""
        ...

    def preload(self, tables: Sequence[str]) -> None:
        """Hear which tables will be read, so that one pass over the file can serve them all."""
        ...

    def notes(self) -> list[str]:
        """Say what of the file this reader does not decode."""
        ...

    def warnings(self) -> list[str]:
        """Name tables that the file has but that were not read."""
        ...
