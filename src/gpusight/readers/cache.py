"""Columns already read, kept in the user's cache folder so that the next command is quick.

Every column is a file of its own: a command that needs other columns adds to what is there. Frames
that analyses derived from large tables are kept beside them. The folder is named after the
capture's identity (size, times, a sample of its bytes) and the version of the model, so a changed
capture or a newer gpusight never meets stale data. Files are written by a thread of their own,
replaced atomically, and may be deleted at any time. Nothing is ever written beside the capture.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import time
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import polars as pl

from gpusight._version import __version__
from gpusight.model.schema import TABLES
from gpusight.model.trace import Outline
from gpusight.readers.nsys.pending import beside

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpusight.model.trace import Meta, TraceSource

_LAYOUT = 5
"""Raise when what a reader puts into a column changes meaning."""
_SAMPLE_BYTES = 1 << 16
_WORTH_ROWS = 50_000
"""Smaller tables are read again as fast as they are found in a cache."""
_WORTH_S = 0.1
"""Unless it took this long, as the processes of a large capture do."""
_DEFAULT_LIMIT_BYTES = 20_000_000_000
_DERIVED = "derived"
_OUTLINE = "outline.json"


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
    digest = hashlib.sha256(f"gpusight {__version__} {_LAYOUT}".encode())
    # A log beside a SQLite file is part of what is read.
    for file in sorted(path.iterdir()) if path.is_dir() else [path, *beside(path)]:
        if not file.is_file():
            continue
        status = file.stat()
        digest.update(os.fsencode(file.name))
        digest.update(f"\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
        with file.open("rb") as handle:
            digest.update(handle.read(_SAMPLE_BYTES))
            handle.seek(max(0, status.st_size - _SAMPLE_BYTES))
            digest.update(handle.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:32]


_open: weakref.WeakSet[CachedSource] = weakref.WeakSet()


def flush_caches() -> None:
    """Wait until everything that any open capture put into the cache is written."""
    for source in list(_open):
        source.flush()


class CachedSource:
    """A source whose large tables are remembered between commands."""

    def __init__(self, source: TraceSource, path: Path) -> None:
        self._source = source
        self._path = path
        self._folder = cache_dir() / identity(path)
        self._costly = False
        """Reading even one small table takes a walk through the whole file."""
        self._usable = True
        self._writer: ThreadPoolExecutor | None = None
        self._writing: list[Future[None]] = []
        _open.add(self)

    @property
    def meta(self) -> Meta:
        """What is known about the capture as a whole."""
        known = self.outline()
        return self._source.meta if known is None else known.meta

    def outline(self) -> Outline | None:
        """Say what is in the file, from an earlier walk through it where there was one."""
        return self._outline

    @cached_property
    def _outline(self) -> Outline | None:
        file = self._folder / _OUTLINE
        kept = _read_outline(file)
        if kept is not None:
            self._costly = True  # else nobody had kept it
            # The capture may lie elsewhere now: what it is called is not part of its identity.
            return msgspec.structs.replace(kept, meta=self._renamed(kept.meta))
        began = time.perf_counter()
        outline = self._source.outline()
        if outline is not None and time.perf_counter() - began > _WORTH_S:
            self._costly = True
            self._write({file: outline})
        return outline

    def _renamed(self, meta: Meta) -> Meta:
        return msgspec.structs.replace(meta, path=str(self._path))

    def has(self, table: str) -> bool:
        """Tell whether the table has rows."""
        known = self.outline()
        return self._source.has(table) if known is None else known.rows.get(table, 0) > 0

    def has_column(self, table: str, column: str) -> bool:
        """Tell whether the capture can fill this column."""
        known = self.outline()
        if known is None:
            return self._source.has_column(table, column)
        return column in known.columns.get(table, ())

    def row_count(self, table: str) -> int:
        """Count rows."""
        known = self.outline()
        if known is not None:
            return known.rows.get(table, 0)
        for column in TABLES[table].column_names:
            kept = self._read(table, column)
            if kept is not None:
                return len(kept)
        return self._source.row_count(table)

    def prepare(self, tables: Iterable[str]) -> None:
        """Pass on what is coming, but for tables of which there is something here already."""
        self._source.prepare([t for t in tables if not (self._folder / t).is_dir()])

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Take columns from the cache, read the others and keep them."""
        kept = {c: self._read(table, c) for c in columns}
        missing = [c for c, series in kept.items() if series is None]
        if missing:
            began = time.perf_counter()
            fresh = self._source.load(table, missing)
            slow = time.perf_counter() - began > _WORTH_S
            if any(s is not None and len(s) != fresh.height for s in kept.values()):
                return self._source.load(table, columns)
            if slow or self._costly or fresh.height >= _WORTH_ROWS:
                self._write({self._file(table, s.name): s.to_frame() for s in fresh.get_columns()})
            kept.update({c: fresh.get_column(c) for c in missing})
        return pl.DataFrame([kept[c] for c in columns])

    def holds(self, table: str, columns: Sequence[str]) -> bool:
        """Tell whether all these columns are in the cache."""
        return self._usable and all(self._file(table, c).exists() for c in columns)

    def recall(self, key: str) -> pl.DataFrame | None:
        """Find a frame that was derived before."""
        return _read_frame(self._file(_DERIVED, key)) if self._usable else None

    def remember(self, key: str, frame: pl.DataFrame) -> None:
        """Keep a frame that was derived from the capture."""
        self._write({self._file(_DERIVED, key): frame})

    def warnings(self) -> tuple[str, ...]:
        """Name rows and values that reading has left out so far."""
        return self._source.warnings()

    def close(self) -> None:
        """Give the capture back."""
        self._source.close()

    def flush(self) -> None:
        """Wait until everything is written; the interpreter does so at its end."""
        while self._writing:
            self._writing.pop().result()

    def _file(self, table: str, column: str) -> Path:
        return self._folder / table / f"{column}.arrow"

    def _read(self, table: str, column: str) -> pl.Series | None:
        frame = _read_frame(self._file(table, column)) if self._usable else None
        if frame is None or frame.columns != [column]:
            return None
        series = frame.get_column(column)
        return series if TABLES[table].column(column).accepts(series.dtype) else None

    def _write(self, frames: Mapping[Path, pl.DataFrame | Outline]) -> None:
        if not self._usable:
            return
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="gpusight-cache")
        self._writing.append(self._writer.submit(self._write_now, frames))

    def _write_now(self, frames: Mapping[Path, pl.DataFrame | Outline]) -> None:
        try:
            for file, frame in frames.items():
                file.parent.mkdir(parents=True, exist_ok=True)
                _write_atomically(frame, file)
            _trim(self._folder)
        except (OSError, UnicodeEncodeError, pl.exceptions.PolarsError):
            # A full disk, a read-only home, a path that is not UTF-8: costs speed, never an answer.
            self._usable = False


def _read_frame(file: Path) -> pl.DataFrame | None:
    if not file.exists():
        return None
    try:
        return pl.read_ipc(file)
    except (pl.exceptions.PolarsError, OSError):
        # A cache may be damaged or vanish at any time; the capture itself is still there.
        return None


def _read_outline(file: Path) -> Outline | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Outline)
    except (OSError, msgspec.MsgspecError):
        return None


def _write_atomically(frame: pl.DataFrame | Outline, file: Path) -> None:
    handle, name = tempfile.mkstemp(dir=file.parent, suffix=".part")
    os.close(handle)
    part = Path(name)
    try:
        if isinstance(frame, Outline):
            part.write_bytes(msgspec.json.encode(frame))
        else:
            frame.write_ipc(part, compression="uncompressed")
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def _trim(keep: Path) -> None:
    """Delete the captures least recently added to, beyond the size limit."""
    chosen = os.environ.get("GPUSIGHT_CACHE_BYTES", "")
    limit = int(chosen) if chosen.isdecimal() else _DEFAULT_LIMIT_BYTES
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
