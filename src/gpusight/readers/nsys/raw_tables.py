"""What the four forms of an nsys capture share.

Raw tables, string ids, and the words for CUPTI's numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import polars as pl

from gpusight.readers.name_columns import encode_names, gather_names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


NOT_A_NUMBER = -(1 << 63)
"""Stands in a column of whole numbers for text, bytes or a fraction; null means no value."""

PAYLOADS = frozenset({"int64Value", "uint64Value", "int32Value", "uint32Value"})
"""Columns of programs' own numbers, of which each may occur: there nothing stands for another."""


class RowFilter(NamedTuple):
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

    def row_count(self, table: str, only: RowFilter | None = None) -> int:
        """Count the rows of a table, or those of some; 0 when there is no such table."""
        ...

    def is_empty(self, table: str, only: RowFilter | None = None) -> bool:
        """Tell whether a table has no rows, or none of those, cheaply."""
        ...

    def read(
        self,
        table: str,
        columns: Sequence[str],
        only: RowFilter | None = None,
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


MISSING = "[name missing from capture]"


class StringTable:
    """The capture's string table, read once and only when a name is asked for."""

    def __init__(self, raw: RawTables) -> None:
        self._raw = raw
        self._table: pl.DataFrame | None = None

    def texts(self, ids: pl.Series) -> pl.Series:
        """Look up the text of each id; null where the id is null or unknown."""
        frame = pl.DataFrame({"id": ids.cast(pl.Int64, strict=False)}).join(
            self._strings(), on="id", how="left", maintain_order="left"
        )
        return frame.get_column("value")

    def names(self, ids: pl.Series, change: Callable[[str], str] | None = None) -> pl.Series:
        """Encode a column of ids as an Enum of the texts that occur, each passed through `change`.

        Null stays null; an id that the capture does not explain becomes `MISSING`.
        """
        used = ids.unique().drop_nulls()
        texts = self.texts(used).fill_null(MISSING)
        if change is not None:
            texts = pl.Series([change(t) for t in texts.to_list()], dtype=pl.String)
        return gather_names(encode_names(texts), used, ids)

    def _strings(self) -> pl.DataFrame:
        if self._table is None:
            if {"id", "value"} <= self._raw.columns("StringIds"):
                # A program that rewrites an export may store numbers as text, and text as numbers.
                rows = self._raw.read("StringIds", ["id", "value"]).select(
                    pl.col("id").cast(pl.Int64, strict=False), pl.col("value").cast(pl.String)
                )
                self._table = rows.unique("id", keep="first")
            else:
                self._table = pl.DataFrame(schema={"id": pl.Int64, "value": pl.String})
        return self._table


def decode_text(raw: pl.Series) -> pl.Series:
    """Turn bytes into text, replacing what is not UTF-8."""
    if raw.dtype != pl.Binary:  # no rows: ADBC then has no type to report
        return pl.Series(raw.name, [], dtype=pl.String)
    try:
        return raw.cast(pl.String)
    except pl.exceptions.PolarsError:
        distinct = raw.unique()
        texts = [None if v is None else v.decode("utf-8", "replace") for v in distinct.to_list()]
        lookup = pl.DataFrame({"raw": distinct, "text": pl.Series(texts, dtype=pl.String)})
        rows = pl.DataFrame({"raw": raw}).join(
            lookup, on="raw", how="left", maintain_order="left", nulls_equal=True
        )
        return rows.get_column("text").alias(raw.name)


COPY_KINDS = {
    0: "Unknown",
    1: "Host-to-Device",
    2: "Device-to-Host",
    3: "Host-to-Array",
    4: "Array-to-Host",
    5: "Array-to-Array",
    6: "Array-to-Device",
    7: "Device-to-Array",
    8: "Device-to-Device",
    9: "Host-to-Host",
    10: "Peer-to-Peer",
    11: "Unified Host-to-Device",
    12: "Unified Device-to-Host",
    13: "Unified Device-to-Device",
}
MEMORY_KINDS = {
    0: "Pageable",
    1: "Pinned",
    2: "Device",
    3: "Array",
    4: "Managed",
    5: "Device Static",
    6: "Managed Static",
    7: "Unknown",
}
MIGRATION_CAUSES = {
    0: "unknown",
    1: "user prefetch",
    2: "page fault",
    3: "speculative prefetch",
    4: "eviction",
    5: "access counters",
}
ACCESS_KINDS = {0: "unknown", 1: "read", 2: "write", 3: "atomic", 4: "prefetch"}
SYNC_KINDS = {0: "unknown", 1: "event", 2: "stream waits for event", 3: "stream", 4: "context"}
MEMORY_OPERATIONS = {0: "allocation", 1: "deallocation"}
SEVERITIES = {0: "information", 1: "information", 2: "warning", 3: "error", 4: "information"}
RANGE_KINDS = {34: "mark", 59: "push_pop", 60: "start_end", 70: "push_pop", 71: "start_end"}

OS_CALL = 27
"""Class of a call; 31 and 32 mark when the profiler began and stopped watching."""

NVTX_CATEGORY, NVTX_MARK, NVTX_DOMAIN = 33, 34, 75

PROCESS_SHIFT = 1 << 24
"""A global thread id over this is its process: machine, virtual machine and pid, in 40 bits."""
PROCESS_MASK = (1 << 40) - 1
PID_MASK = (1 << 24) - 1
NO_PROCESS = -144_115_188_075_855_872
THREE_BYTES = 1 << 24
FOREVER = 1 << 60
"""No capture lasts this long: a later end marks a range that was never closed."""

# TARGET_INFO_SYSTEM_ENV also holds the environment, host and user; only these rows are ever read.
SYSTEM_FACTS = {
    "NvDriverVersion": "driver_version",
    "CudaDriverVersion": "cuda_version",
    "OsDescription": "os",
    "CpuDescription": "cpu",
}
