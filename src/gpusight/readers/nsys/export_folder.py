"""nsys exports made of Parquet or Arrow: a folder with one file a table, or one Arrow file."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import polars as pl

from gpusight.errors import DamagedCaptureError, NotACaptureError
from gpusight.readers.file_blocks import max_unpacked_bytes
from gpusight.readers.nsys.columnar_files import (
    CONTINUATION,
    StreamSpan,
    arrow_bytes,
    find_streams,
    parquet_bytes,
)
from gpusight.readers.nsys.raw_tables import (
    NOT_A_NUMBER,
    PAYLOAD_EVENTS,
    REAL_COLUMNS,
    RawTables,
    decode_text,
    whole_numbers,
)
from gpusight.readers.protobuf_wire import WireError
from gpusight.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpusight.readers.nsys.raw_tables import RowFilter


SUFFIXES = {".parquet": "nsys-parquet", ".arrow": "nsys-arrow", ".feather": "nsys-arrow"}

_SPARE_ROWS, _ROWS_A_BYTE = 1_000_000, 16
"""Rows that a table may have, and further ones for each byte of its file: events differ in their
times, so that the tables of nsys take several bytes a row."""


def table_files(folder: Path) -> dict[str, Path]:
    """List the files of a folder that may be tables, by table name."""
    return {f.stem: f for f in sorted(folder.iterdir()) if f.suffix.lower() in SUFFIXES}


class FolderTables(RawTables):
    """The tables of an nsys export to Parquet or Arrow."""

    def __init__(
        self, path: Path, files: dict[str, Path], spans: dict[str, StreamSpan] | None = None
    ) -> None:
        self.path = path
        # Reading a pipe or a device under the name of a table would block, or never end.
        self._files = {table: file for table, file in files.items() if file.is_file()}
        self._irregular = sorted(file.name for file in files.values() if not file.is_file())
        if not self._files:
            raise NotACaptureError(
                f"{path} has no table", why=f"{self._irregular[0]} is not a regular file"
            )
        self._spans = spans or {}
        first = next(iter(self._files.values()))
        self.source = "nsys-arrow" if spans else SUFFIXES[first.suffix.lower()]
        self._schemas: dict[str, dict[str, pl.DataType]] = {}
        self._counted: set[str] = set()

    @classmethod
    def from_arrow_file(cls, path: Path) -> FolderTables:
        """Open a single-file Arrow export."""
        spans = find_streams(path)
        if not spans:
            raise NotACaptureError(f"{path} has Arrow data, but no nsys table")
        return cls(path, dict.fromkeys(spans, path), spans)

    def tables(self) -> frozenset[str]:
        """List every table of the export."""
        return frozenset(self._files)

    def columns(self, table: str) -> frozenset[str]:
        """List the columns of a table; none if there is no such table."""
        return frozenset(self._schema(table)) if table in self._files else frozenset()

    def row_count(self, table: str, only: RowFilter | None = None) -> int:
        """Count the rows of a table, or those of some."""
        if table not in self._files:
            return 0
        return int(self._collect(table, self._rows(table, only).select(pl.len())).item())

    def read(
        self,
        table: str,
        columns: Sequence[str],
        only: RowFilter | None = None,
        *,
        marked: bool = False,
    ) -> pl.DataFrame:
        """Read columns in file order, with the types that a SQLite export gives."""
        frame = self._collect(table, self._rows(table, only).select(list(columns)))
        try:
            return pl.DataFrame([_plain(s, marked=marked) for s in frame.get_columns()])
        except pl.exceptions.PolarsError as error:
            raise self._damaged(table, error) from error

    def payloads(self) -> pl.DataFrame:
        """Return the NVTX events with a binary payload."""
        table, columns = "NVTX_EVENTS", list(PAYLOAD_EVENTS)
        if not set(columns) <= self.columns(table):
            return pl.DataFrame(schema=PAYLOAD_EVENTS)
        rows = self._rows(table, None).filter(pl.col("binaryData").is_not_null())
        frame = self._collect(table, rows.select(columns))
        return frame.cast(PAYLOAD_EVENTS, strict=False)  # type: ignore[arg-type]

    def warnings(self) -> list[str]:
        """Return warnings about files that look like tables but are none."""
        return [f"{name} is not a regular file and was not read" for name in self._irregular]

    def _schema(self, table: str) -> dict[str, pl.DataType]:
        if table not in self._schemas:
            self._check_rows(table)
            try:
                self._schemas[table] = dict(self._scan(table).collect_schema())
            except (pl.exceptions.PolarsError, OSError) as error:
                raise self._damaged(table, error) from error
        return self._schemas[table]

    def _check_rows(self, table: str) -> None:
        """Refuse a table that takes more memory than its file warrants."""
        if table in self._counted:
            return
        file = self._files[table]
        size = file.stat().st_size
        try:
            if self.source == "nsys-parquet":
                unpacked_bytes = parquet_bytes(file)
            else:
                unpacked_bytes = arrow_bytes(file, *self._spans.get(table, ()))
        except (WireError, OSError) as error:
            raise self._damaged(table, error) from error
        if unpacked_bytes > max_unpacked_bytes(size):
            growth = f"it would expand to {format_bytes(unpacked_bytes)}"
            raise self._damaged(table, ValueError(growth))
        rows = int(self._collect(table, self._scan(table).select(pl.len())).item())
        if rows > _SPARE_ROWS + _ROWS_A_BYTE * size:
            raise self._damaged(table, ValueError(f"{rows:,} rows in a file of its size"))
        self._counted.add(table)

    def _rows(self, table: str, only: RowFilter | None) -> pl.LazyFrame:
        self._check_rows(table)
        rows = self._scan(table)
        if only is None:
            return rows
        column, kind = pl.col(only.column), self._schema(table)[only.column]
        unknown = column.is_null() & only.or_unknown
        if kind.is_float():
            unknown |= (column.is_nan() | (column != column.floor())) & only.or_unknown
        if kind == pl.Null or (isinstance(only.values[0], int) and not kind.is_numeric()):
            return rows if only.or_unknown else rows.clear()
        return rows.filter(column.is_in(list(only.values)) | unknown)

    def _scan(self, table: str) -> pl.LazyFrame:
        file, span = self._files[table], self._spans.get(table)
        if self.source == "nsys-parquet":
            return pl.scan_parquet(file)
        try:
            with file.open("rb") as handle:
                if span is not None:
                    handle.seek(span.start)
                    return pl.read_ipc_stream(io.BytesIO(handle.read(span.end - span.start))).lazy()
                is_stream = handle.read(4) == CONTINUATION
            return pl.read_ipc_stream(file).lazy() if is_stream else pl.scan_ipc(file)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise self._damaged(table, error) from error

    def _collect(self, table: str, frame: pl.LazyFrame) -> pl.DataFrame:
        try:
            return frame.collect()
        except (pl.exceptions.PolarsError, OSError) as error:
            raise self._damaged(table, error) from error

    def _damaged(self, table: str, error: Exception) -> DamagedCaptureError:
        kind = "parquetdir" if self.source == "nsys-parquet" else "arrowdir"
        return DamagedCaptureError(
            f"{self._files[table]} cannot be read",
            why=str(error).splitlines()[0] if str(error) else type(error).__name__,
            hint=f"export the report again: nsys export --type {kind} X.nsys-rep",
        )


def _plain(series: pl.Series, *, marked: bool) -> pl.Series:
    dtype = series.dtype
    if dtype == pl.UInt64:
        # SQLite has no unsigned type, so nsys's own export stores the same 64 bits as signed.
        return series.reinterpret(signed=True)
    if dtype.is_float() and series.name in REAL_COLUMNS:
        return series.cast(pl.Float64)
    if dtype.is_numeric() or dtype in (pl.Boolean, pl.Null):
        numbers = whole_numbers(series)
        return numbers if marked else numbers.set(numbers == NOT_A_NUMBER, None)
    return decode_text(series) if dtype == pl.Binary else series.cast(pl.String)
