"""Columns already read, kept in the user's cache folder so that the next command is quick.

Every column is a file of its own: a command that needs other columns adds to what is there. The
folder is named after the capture's identity (size, times, a sample of its bytes) and the version of
the model, so a changed capture or a newer gpusight never meets stale data. Files are replaced
atomically and may be deleted at any time. Nothing is ever written beside the capture.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from gpusight.model.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpusight.model.trace import Meta, TraceSource

_LAYOUT = 1
"""Raise when what a reader puts into a column changes meaning."""
_SAMPLE_BYTES = 1 << 16
_WORTH_ROWS = 50_000
"""Smaller tables are read again as fast as they are found in a cache."""
_DEFAULT_LIMIT_BYTES = 20_000_000_000


def cache_dir() -> Path:
    """Where columns are kept: `GPUSIGHT_CACHE_DIR`, else the platform's own cache folder."""
    chosen = os.environ.get("GPUSIGHT_CACHE_DIR")
    if chosen:
        return Path(chosen)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "gpusight"


class CacheInfo(NamedTuple):
    """What the cache holds."""

    folder: Path
    captures: int
    bytes: int


def cache_info() -> CacheInfo:
    """Count what the cache holds."""
    entries = _entries()
    return CacheInfo(cache_dir(), len(entries), sum(_size(e) for e in entries))


def clear_cache() -> CacheInfo:
    """Delete everything the cache holds, and say what that was."""
    before = cache_info()
    for entry in _entries():
        shutil.rmtree(entry, ignore_errors=True)
    return before


def identity(path: Path) -> str:
    """Name a capture by what it is, without reading all of it."""
    digest = hashlib.sha256(f"gpusight {_LAYOUT}".encode())
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if not file.is_file():
            continue
        status = file.stat()
        digest.update(f"{file.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
        with file.open("rb") as handle:
            digest.update(handle.read(_SAMPLE_BYTES))
            handle.seek(max(0, status.st_size - _SAMPLE_BYTES))
            digest.update(handle.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:32]


class CachedSource:
    """A source whose large tables are remembered between commands."""

    def __init__(self, source: TraceSource, path: Path) -> None:
        self._source = source
        self._folder = cache_dir() / identity(path)
        self._usable = True

    @property
    def meta(self) -> Meta:
        """What is known about the capture as a whole."""
        return self._source.meta

    def has(self, table: str) -> bool:
        """Tell whether the table has rows."""
        return self._source.has(table)

    def has_column(self, table: str, column: str) -> bool:
        """Tell whether the capture can fill this column."""
        return self._source.has_column(table, column)

    def row_count(self, table: str) -> int:
        """Count rows."""
        for column in TABLES[table].column_names:
            kept = self._read(table, column)
            if kept is not None:
                return len(kept)
        return self._source.row_count(table)

    def prepare(self, tables: Iterable[str]) -> None:
        """Pass on what is coming, unless it is all here already."""
        self._source.prepare([t for t in tables if not (self._folder / t).is_dir()])

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Take columns from the cache, read the others and keep them."""
        kept = {c: self._read(table, c) for c in columns}
        missing = [c for c, series in kept.items() if series is None]
        if missing:
            fresh = self._source.load(table, missing)
            if fresh.height >= _WORTH_ROWS:
                self._keep(table, fresh)
            kept.update({c: fresh.get_column(c) for c in missing})
        return pl.DataFrame([kept[c] for c in columns])

    def _file(self, table: str, column: str) -> Path:
        return self._folder / table / f"{column}.arrow"

    def _read(self, table: str, column: str) -> pl.Series | None:
        file = self._file(table, column)
        if not self._usable or not file.exists():
            return None
        try:
            series = pl.read_ipc(file).get_column(column)
        except (pl.exceptions.PolarsError, OSError):
            # A cache may be damaged or vanish at any time; the capture itself is still there.
            return None
        return series if TABLES[table].column(column).accepts(series.dtype) else None

    def _keep(self, table: str, frame: pl.DataFrame) -> None:
        if not self._usable:
            return
        try:
            (self._folder / table).mkdir(parents=True, exist_ok=True)
            for series in frame.get_columns():
                _write_atomically(series, self._file(table, series.name))
            _trim(self._folder)
        except OSError:
            # A full disk or a read-only home costs speed, never an answer.
            self._usable = False


def _write_atomically(series: pl.Series, file: Path) -> None:
    handle, name = tempfile.mkstemp(dir=file.parent, suffix=".part")
    os.close(handle)
    part = Path(name)
    try:
        series.to_frame().write_ipc(part, compression="uncompressed")
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def _trim(keep: Path) -> None:
    """Delete the captures least recently added to, beyond the size limit."""
    limit = int(os.environ.get("GPUSIGHT_CACHE_BYTES", _DEFAULT_LIMIT_BYTES))
    entries = sorted(_entries(), key=lambda e: e.stat().st_mtime, reverse=True)
    total = 0
    for entry in entries:
        total += _size(entry)
        if total > limit and entry != keep:
            shutil.rmtree(entry, ignore_errors=True)


def _entries() -> list[Path]:
    folder = cache_dir()
    return [e for e in folder.iterdir() if e.is_dir()] if folder.is_dir() else []


def _size(entry: Path) -> int:
    return sum(f.stat().st_size for f in entry.rglob("*") if f.is_file())
