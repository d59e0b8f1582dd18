"""A native report: decoded here, or, where that does not add up, by an installed nsys.

The native reader checks itself and stops at the first contradiction. NVIDIA's own nsys may still
know better, if one is on the PATH and new enough for the file: then it exports the report into the
cache folder, never beside the report, and the export is read instead.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import polars as pl
from isal import isal_zlib

from gpusight.capture.tools import installed_version, on_path
from gpusight.capture.versions import Version
from gpusight.errors import CacheError, UndecodableReportError
from gpusight.readers.cache import DamagedRecordError, Record, read_record, write_record
from gpusight.readers.cache_folder import check_place, lock, open_entry
from gpusight.readers.identity import file_status, identity
from gpusight.readers.nsys.rep.tables import RepTables
from gpusight.readers.nsys.sqlite import SqliteTables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpusight.readers.cache_folder import Folder
    from gpusight.readers.nsys.raw import Only, RawTables

_T = TypeVar("_T")
_EXPORT_SECONDS = 3600
_EXPORT, _CHECKSUM = "export.sqlite", "export.record"
_BLOCK_BYTES = 1 << 24


class ReportTables:
    """The tables of a native report, whoever decodes them."""

    source = "nsys-rep"

    def __init__(self, path: Path, *, cache: bool = True) -> None:
        self.path = path
        self._cache = cache
        self._reason: UndecodableReportError | None = None
        self._held = contextlib.ExitStack()
        """The export: a scratch folder, or a lock that keeps it from leaving the cache."""
        self._remade = False
        try:
            self._tables: RawTables = RepTables(path)
        except UndecodableReportError as error:
            self._tables = self._exported(error)

    def tables(self) -> frozenset[str]:
        """Name every table that has rows."""
        return self._ask(lambda tables: tables.tables())

    def columns(self, table: str) -> frozenset[str]:
        """Name the columns of a table; none when there is no such table."""
        return self._ask(lambda tables: tables.columns(table))

    def row_count(self, table: str, only: Only | None = None) -> int:
        """Count the rows of a table, or those of some."""
        return self._ask(lambda tables: tables.row_count(table, only))

    def is_empty(self, table: str, only: Only | None = None) -> bool:
        """Tell whether a table has no rows, or none of those."""
        return self._ask(lambda tables: tables.is_empty(table, only))

    def read(
        self,
        table: str,
        columns: Sequence[str],
        only: Only | None = None,
        *,
        marked: bool = False,
    ) -> pl.DataFrame:
        """Read columns in file order."""
        return self._ask(lambda tables: tables.read(table, columns, only, marked=marked))

    def close(self) -> None:
        """Give the file back."""
        self._tables.close()
        self._held.close()

    def preload(self, tables: Sequence[str]) -> None:
        """Decode these tables in one pass."""
        self._ask(lambda own: own.preload(tables))

    def warnings(self) -> list[str]:
        """Name tables that were not read."""
        return self._ask(lambda tables: tables.warnings())

    def notes(self) -> list[str]:
        """Say what is not decoded, and who decoded the rest."""
        notes = self._ask(lambda tables: tables.notes())
        if self._reason is not None:
            notes.append(f"read through the installed nsys, because natively {self._reason.why}")
        if self._remade:
            notes.append("the export in the cache was damaged and was made again")
        return notes

    def _ask(self, question: Callable[[RawTables], _T]) -> _T:
        try:
            return question(self._tables)
        except UndecodableReportError as error:
            self._tables = self._exported(error)
            return question(self._tables)

    def _exported(self, error: UndecodableReportError) -> RawTables:
        """Let nsys export the report; without one that can, the native reader's error stands."""
        nsys = on_path("nsys")
        if nsys is None or not _new_enough(nsys, error.version):
            raise error
        export = self._cached_export(nsys) if self._cache else None
        if export is None:
            self._held.close()
            scratch = self._held.enter_context(tempfile.TemporaryDirectory(prefix="gpusight-"))
            export = Path(scratch) / _EXPORT
            if not _export(nsys, self.path, export):
                self._held.close()
                raise error
        self._reason = error
        return SqliteTables(export)

    def _cached_export(self, nsys: str) -> Path | None:
        """Find the export in the cache or make it there; None where the cache cannot be used."""
        try:
            check_place(self.path)
            files = file_status(self.path)
            entry = self._held.enter_context(open_entry(identity(self.path, files), make=True))
            if not self._held.enter_context(lock(entry, alone=False)):
                return None
            if not _is_intact(entry):
                self._remade = entry.is_file(_EXPORT)
                part = entry.new_part(".sqlite")
                made = _export(nsys, self.path, entry.path / part)
                if not made or file_status(self.path) != files:
                    entry.delete(part)
                    return None
                _keep(entry, part)
        except (CacheError, OSError, pl.exceptions.PolarsError):
            # The cache says itself why it is not used; the export is made elsewhere.
            return None
        return entry.path / _EXPORT


def _is_intact(entry: Folder) -> bool:
    """Tell whether the export of the cache is there, as it was written."""
    try:
        kept = read_record(entry, _CHECKSUM).frame.row(0)
        return kept == _checksum(entry, _EXPORT)
    except (FileNotFoundError, DamagedRecordError):
        return False


def _keep(entry: Folder, part: str) -> None:
    """Give an export its name, after its checksum: one without the other does not count."""
    size, crc = _checksum(entry, part)
    write_record(entry, _CHECKSUM, Record(pl.DataFrame({"bytes": [size], "crc": [crc]}), ()))
    entry.replace(part, _EXPORT)


def _checksum(entry: Folder, name: str) -> tuple[int, int]:
    size = crc = 0
    with os.fdopen(entry.open(name, os.O_RDONLY), "rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            size += len(block)
            crc = isal_zlib.crc32(block, crc)
    return size, crc


def _new_enough(nsys: str, needed: str) -> bool:
    """Compare versions: an older nsys refuses newer reports."""
    have, want = installed_version(nsys), Version.parse(needed)
    return isinstance(have, Version) and (want is None or have >= want)


def _export(nsys: str, report: Path, target: Path) -> bool:
    """Let nsys export the report; False if it fails, and then the native reader's error stands."""
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
