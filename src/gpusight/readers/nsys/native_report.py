"""A native report (`.nsys-rep`, `.qdrep`) as raw tables: decoded here, or by an installed nsys."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import polars as pl
from isal import isal_zlib

from gpusight.errors import CacheError, UndecodableReportError, UsageError
from gpusight.readers.guarded_source import capture_identity, file_status
from gpusight.readers.nsys import native_fields
from gpusight.readers.nsys.native_container import NsysContainer
from gpusight.readers.nsys.native_events import metric_types, run_pass, table_columns
from gpusight.readers.nsys.native_info import InfoTables
from gpusight.readers.nsys.raw_tables import RawTables
from gpusight.readers.protobuf_wire import WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from typing_extensions import Self

    from gpusight.readers.cache_folder import CacheFolder
    from gpusight.readers.nsys.native_events import EventCensus
    from gpusight.readers.nsys.raw_tables import RowFilter


_EVENT_TABLES = frozenset(
    {*native_fields.BY_NAME, *native_fields.CHAINS_BY_NAME, "GPU_METRICS"},
)
_ALWAYS_SMALL = frozenset({"DIAGNOSTIC_EVENT", "PROCESSES"})
"""Tables of a few rows that nearly everyone needs: decoded while counting, to save a pass."""
_OVERHEAD_TYPE_SINCE = (2025, 5, 2)


class RepTables(RawTables):
    """The tables of one `.nsys-rep` or `.qdrep` file, decoded when first read.

    Decoding goes through the whole file: `preload` the tables that will be needed together.
    Raises `DamagedCaptureError` when the file contradicts itself, now or in any later call.
    """

    source = "nsys-rep"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._container = NsysContainer(path)
        self.path = self._container.path
        self._tables: dict[str, pl.DataFrame] = {}
        self._census: EventCensus | None = None
        with self._checked():
            self._types = metric_types(self._container.raw.header)
            self._info = InfoTables(self._container, self._types)

    def __enter__(self) -> Self:
        """Use as a context manager to close the file at the end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Close the file; tables already decoded stay readable."""
        self._container.close()

    @property
    def version(self) -> str:
        """Version of the nsys that recorded the file."""
        return self._container.version

    def preload(self, tables: Iterable[str]) -> None:
        """Decode these tables in one pass over the file; those it does not have are ignored."""
        wanted = frozenset(tables) & _EVENT_TABLES - self._tables.keys()
        if wanted:
            self._run(wanted)

    def tables(self) -> frozenset[str]:
        """List every table that has rows."""
        with self._checked():
            small = {name for name in self._info.names if self._info.read(name).height}
        return frozenset(small | {name for name in _EVENT_TABLES if self._has_events(name)})

    def columns(self, table: str) -> frozenset[str]:
        """List the columns of a table; none if there is no such table."""
        if table in _EVENT_TABLES:
            return frozenset(table_columns(table)) if self._has_events(table) else frozenset()
        return frozenset(self._small(table).columns)

    def row_count(self, table: str, only: RowFilter | None = None) -> int:
        """Count the rows of a table, or those of some; 0 when there is no such table."""
        if only is not None:
            return 0 if self.is_empty(table) else self.read(table, [only.column], only).height
        if table in self._tables:
            return self._tables[table].height
        if table not in _EVENT_TABLES:
            return self._small(table).height
        if not self._has_events(table):
            return 0
        if table in native_fields.CHAINS_BY_NAME:
            return self._read(table).height
        if table == "GPU_METRICS":
            counts = self._counts().generic
            kinds = [self._types[number] for number in counts if number in self._types]
            return sum(counts[kind.type_id] * len(kind.fields) for kind in kinds if kind.is_metrics)
        return self._counts().rows[table]

    def is_empty(self, table: str, only: RowFilter | None = None) -> bool:
        """Return whether a table has no rows, or none of those; takes one pass over the file."""
        if only is not None:
            return self.row_count(table, only) == 0
        if table in _EVENT_TABLES:
            return not self._has_events(table)
        return not self._small(table).height

    def read(
        self,
        table: str,
        columns: Sequence[str],
        only: RowFilter | None = None,
        *,
        marked: bool = False,
    ) -> pl.DataFrame:
        """Read these columns in file order; `only` leaves out rows."""
        del marked  # every value has the type of its field
        frame = self._read(table) if table in _EVENT_TABLES else self._small(table)
        needed = [*columns, only.column] if only is not None else columns
        unknown = [column for column in needed if column not in frame.columns]
        if unknown:
            raise UsageError(f"{self.path}: table {table} has no column {', '.join(unknown)}")
        if only is not None:
            is_unknown = pl.col(only.column).is_null() & only.or_unknown
            frame = frame.filter(pl.col(only.column).is_in(only.values) | is_unknown)
        return frame.select(columns)

    def payloads(self) -> pl.DataFrame:
        """Return the NVTX events with a binary payload."""
        return self._read(native_fields.NVTX_PAYLOADS.name)

    def notes(self) -> list[str]:
        """Return notes on what of the file is not decoded."""
        census = self._counts()
        notes = []
        for payload, count in sorted(census.unknown_payloads.items()):
            what = native_fields.NOT_EXPORTED.get(payload, f"events of unknown kind {payload}")
            notes.append(f"{count} {what} are not decoded")
        for number, count in sorted(census.unknown_classes.items()):
            if number not in native_fields.CLASSES_WITHOUT_TABLE:
                notes.append(f"{count} trace events of unknown class {number} are not decoded")
        other = sum(
            count
            for number, count in census.generic.items()
            if number not in self._types or not self._types[number].is_metrics
        )
        if other:
            notes.append(f"{other} generic events that are not GPU metrics are not decoded")
        return notes

    @contextlib.contextmanager
    def _checked(self) -> Iterator[None]:
        """Turn any contradiction in the bytes into the error that names the way out."""
        try:
            yield
        except WireError as error:
            raise self._container.damaged(str(error)) from error

    def _run(self, wanted: frozenset[str]) -> None:
        count = self._census is None
        if count:
            wanted |= _ALWAYS_SMALL - self._tables.keys()
        with self._checked():
            census, tables = run_pass(self._container, wanted, self._types, count=count)
        if census is not None:
            self._census = census
        if "PROFILER_OVERHEAD" in tables:
            # Which of two columns the field is depends on the version that recorded the file.
            numbers = self.version.partition("-")[0].split(".")
            version = tuple(int(number) for number in numbers if number.isdecimal())
            unused = "returnValue" if version >= _OVERHEAD_TYPE_SINCE else "overheadType"
            null_column = pl.lit(None, pl.Int64).alias(unused)
            tables["PROFILER_OVERHEAD"] = tables["PROFILER_OVERHEAD"].with_columns(null_column)
        self._tables |= tables

    def _counts(self) -> EventCensus:
        if self._census is None:
            self._run(frozenset())
        assert self._census is not None
        return self._census

    def _has_events(self, table: str) -> bool:
        if table == "GPU_METRICS":
            counts = self._counts().generic
            return any(n in self._types and self._types[n].is_metrics for n in counts)
        return self._counts().rows[table] > 0

    def _read(self, table: str) -> pl.DataFrame:
        self.preload([table])
        return self._tables[table]

    def _small(self, table: str) -> pl.DataFrame:
        if table not in self._info.names:
            return pl.DataFrame()
        with self._checked():
            return self._info.read(table)


_T = TypeVar("_T")
_EXPORT_SECONDS = 3600
_EXPORT, _CHECKSUM = "export.sqlite", "export.record"
_BLOCK_BYTES = 1 << 24


class ReportTables(RawTables):
    """The tables of a native report, decoded here or by an installed nsys."""

    source = "nsys-rep"

    def __init__(self, path: Path, *, cache: bool = True) -> None:
        self.path = path
        self._cache = cache
        self._reason: UndecodableReportError | None = None
        self._export_stack = contextlib.ExitStack()
        """Holds the export: a scratch folder, or a lock that keeps it in the cache."""
        self._remade = False
        try:
            self._tables: RawTables = RepTables(path)
        except UndecodableReportError as error:
            self._tables = self._exported(error)

    def tables(self) -> frozenset[str]:
        """List every table that has rows."""
        return self._try(lambda tables: tables.tables())

    def columns(self, table: str) -> frozenset[str]:
        """List the columns of a table; none if there is no such table."""
        return self._try(lambda tables: tables.columns(table))

    def row_count(self, table: str, only: RowFilter | None = None) -> int:
        """Count the rows of a table, or those of some."""
        return self._try(lambda tables: tables.row_count(table, only))

    def is_empty(self, table: str, only: RowFilter | None = None) -> bool:
        """Return whether a table has no rows, or none of those."""
        return self._try(lambda tables: tables.is_empty(table, only))

    def read(
        self,
        table: str,
        columns: Sequence[str],
        only: RowFilter | None = None,
        *,
        marked: bool = False,
    ) -> pl.DataFrame:
        """Read columns in file order."""
        return self._try(lambda tables: tables.read(table, columns, only, marked=marked))

    def payloads(self) -> pl.DataFrame:
        """Return the NVTX events with a binary payload."""
        return self._try(lambda tables: tables.payloads())

    def close(self) -> None:
        """Close the file."""
        self._tables.close()
        self._export_stack.close()

    def preload(self, tables: Sequence[str]) -> None:
        """Decode these tables in one pass."""
        self._try(lambda own: own.preload(tables))

    def warnings(self) -> list[str]:
        """Return warnings about tables that were not read."""
        return self._try(lambda tables: tables.warnings())

    def notes(self) -> list[str]:
        """Return notes on what is not decoded, and on how the rest was."""
        notes = self._try(lambda tables: tables.notes())
        if self._reason is not None:
            notes.append(f"read through the installed nsys, because natively {self._reason.why}")
        if self._remade:
            notes.append("the export in the cache was damaged and was replaced")
        return notes

    def _try(self, call: Callable[[RawTables], _T]) -> _T:
        """Call the native reader; where it fails, the tables of an export by nsys."""
        try:
            return call(self._tables)
        except UndecodableReportError as error:
            self._tables = self._exported(error)
            return call(self._tables)

    def _exported(self, error: UndecodableReportError) -> RawTables:
        """Let nsys export the report; without an nsys that can, raise the native reader's error."""
        # Rarely needed: this reader decodes what it knows.
        from gpusight.readers.nsys.sqlite_export import SqliteTables
        from gpusight.recording.tools import ToolVersion, installed_version, on_path

        nsys = on_path("nsys")
        if nsys is None:
            raise error
        installed, needed = installed_version(nsys), ToolVersion.parse(error.version)
        # An older nsys refuses newer reports.
        if not isinstance(installed, ToolVersion) or (needed is not None and installed < needed):
            raise error
        export = self._cached_export(nsys) if self._cache else None
        if export is None:
            self._export_stack.close()
            scratch = self._export_stack.enter_context(
                tempfile.TemporaryDirectory(prefix="gpusight-")
            )
            export = Path(scratch) / _EXPORT
            if not _export(nsys, self.path, export):
                self._export_stack.close()
                raise error
        self._reason = error
        return SqliteTables(export)

    def _cached_export(self, nsys: str) -> Path | None:
        """Find the export in the cache or make it there; None where the cache cannot be used."""
        from gpusight.readers.cache_folder import check_cache_folder, lock_entry, open_entry
        from gpusight.readers.column_cache import CacheRecord, write_record

        try:
            check_cache_folder(self.path)
            files = file_status(self.path)
            entry = self._export_stack.enter_context(
                open_entry(capture_identity(self.path, files), make=True)
            )
            if not self._export_stack.enter_context(lock_entry(entry, alone=False)):
                return None
            if not _is_intact(entry):
                self._remade = entry.is_file(_EXPORT)
                part = entry.new_part(".sqlite")
                made = _export(nsys, self.path, entry.path / part)
                if not made or file_status(self.path) != files:
                    entry.delete(part)
                    return None
                # The checksum comes first: one without the other does not count.
                size, crc = _checksum(entry, part)
                checksum = pl.DataFrame({"bytes": [size], "crc": [crc]})
                write_record(entry, _CHECKSUM, CacheRecord(checksum, ()))
                entry.replace(part, _EXPORT)
        except (CacheError, OSError, pl.exceptions.PolarsError):
            # The cache reports itself why it is not used; the export is made elsewhere.
            return None
        return entry.path / _EXPORT


def _is_intact(entry: CacheFolder) -> bool:
    """Return whether the export is in the cache as it was written."""
    from gpusight.readers.column_cache import DamagedRecordError, read_record

    try:
        return read_record(entry, _CHECKSUM).frame.row(0) == _checksum(entry, _EXPORT)
    except (FileNotFoundError, DamagedRecordError):
        return False


def _checksum(entry: CacheFolder, name: str) -> tuple[int, int]:
    size = crc = 0
    with os.fdopen(entry.open(name, os.O_RDONLY), "rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            size += len(block)
            crc = isal_zlib.crc32(block, crc)
    return size, crc


def _export(nsys: str, report: Path, target: Path) -> bool:
    """Let nsys export the report; return False if it fails."""
    command = [nsys, "export", "--type", "sqlite", "--force-overwrite", "true"]
    try:
        subprocess.run(
            [*command, "-o", str(target), str(report.resolve())],
            capture_output=True,
            timeout=_EXPORT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return target.is_file()
