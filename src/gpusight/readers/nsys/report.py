"""A native report: decoded here, or, where that does not add up, by an installed nsys.

The native reader checks itself and stops at the first contradiction. NVIDIA's own nsys may still
know better, if one is on the PATH and new enough for the file: then it exports the report into the
cache folder, never beside the report, and the export is read instead.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gpusight.capture.tools import installed_version
from gpusight.capture.versions import Version
from gpusight.errors import UndecodableReportError
from gpusight.readers.cache import cache_dir, identity
from gpusight.readers.nsys.rep.tables import RepTables
from gpusight.readers.nsys.sqlite import SqliteTables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import polars as pl

    from gpusight.readers.nsys.raw import Only, RawTables

_T = TypeVar("_T")
_EXPORT_SECONDS = 3600


class ReportTables:
    """The tables of a native report, whoever decodes them."""

    source = "nsys-rep"

    def __init__(self, path: Path, *, cache: bool = True) -> None:
        self.path = path
        self._cache = cache
        self._reason: UndecodableReportError | None = None
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
        return notes

    def _ask(self, question: Callable[[RawTables], _T]) -> _T:
        try:
            return question(self._tables)
        except UndecodableReportError as error:
            self._tables = self._exported(error)
            return question(self._tables)

    def _exported(self, error: UndecodableReportError) -> RawTables:
        """Let nsys export the report; without one that can, the native reader's error stands."""
        nsys = shutil.which("nsys")
        if nsys is None or not _new_enough(nsys, error.version):
            raise error
        export = self._export_folder() / "export.sqlite"
        if not export.exists() and not _export(nsys, self.path, export):
            raise error
        self._reason = error
        return SqliteTables(export)

    def _export_folder(self) -> Path:
        if self._cache:
            return cache_dir() / identity(self.path)
        # Kept on the object, so that it goes when the report does.
        self._scratch = tempfile.TemporaryDirectory(prefix="gpusight-")
        return Path(self._scratch.name)


def _new_enough(nsys: str, needed: str) -> bool:
    """Compare versions: an older nsys refuses newer reports."""
    have, want = installed_version(nsys), Version.parse(needed)
    return isinstance(have, Version) and (want is None or have >= want)


def _export(nsys: str, report: Path, target: Path) -> bool:
    """Export into a folder of its own, then move the finished file into place."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            written = Path(folder) / "export.sqlite"
            command = [nsys, "export", "--type", "sqlite", "--force-overwrite", "true"]
            subprocess.run(
                [*command, "-o", str(written), str(report.resolve())],
                capture_output=True,
                timeout=_EXPORT_SECONDS,
                check=True,
            )
            written.replace(target)
    except (OSError, subprocess.SubprocessError):
        return False
    return True
