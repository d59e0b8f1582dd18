"""Decoded columns of a capture, kept on disk for the next command and checksummed."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import re
import struct
import time
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import polars as pl
from isal import isal_zlib

from gpusight.errors import CacheError, is_unexpected, reason_of
from gpusight.readers.cache_folder import (
    check_cache_folder,
    limit_bytes,
    lock_entry,
    open_entry,
    trim_cache,
)
from gpusight.trace.schema import TABLES
from gpusight.trace.trace import Outline, TraceSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from gpusight.readers.cache_folder import CacheFolder
    from gpusight.trace.trace import Meta


_MIN_CACHED_ROWS = 50_000
"""Smaller tables are read again as fast as they are found in a cache."""
_MIN_CACHED_S = 0.1
"""Unless it took this long, as the processes of a large capture do."""
_OUTLINE = "outline.record"


class DamagedRecordError(Exception):
    """A file of the cache is not what was written."""


class CacheRecord(NamedTuple):
    """A cached frame and the warnings of the reader that made it."""

    frame: pl.DataFrame
    warnings: tuple[str, ...]


_SEAL = struct.Struct("<8sQII")
"""Magic, bytes of the file, bytes of the warnings, CRC-32 of all else and of the file's name."""
_MAGIC = b"GPUSIGHT"
_ARROW_END = b"ARROW1"
_END = struct.Struct("<i6s")
"""How an Arrow file ends: the length of its footer, and magic."""


def write_record(entry: CacheFolder, name: str, record: CacheRecord) -> None:
    """Write a file of the cache under another name, then rename it.

    An Arrow file is found from its end, and may hold anything before its footer: there the warnings
    and the checksum go.
    """
    part = entry.new_part()
    try:
        with os.fdopen(entry.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL), "w+b") as file:
            record.frame.write_ipc(file, compression="uncompressed")
            file.flush()
            end = file.seek(0, os.SEEK_END)
            file.seek(end - _END.size)
            tail_bytes = _END.unpack(file.read(_END.size))[0] + _END.size
            file.seek(end - tail_bytes)
            tail = file.read(tail_bytes)
            file.seek(end - tail_bytes)
            warnings = msgspec.json.encode(record.warnings)
            size = end + len(warnings) + _SEAL.size
            file.write(warnings + _SEAL.pack(_MAGIC, size, len(warnings), 0) + tail)
            file.flush()
            seal_at = size - tail_bytes - _SEAL.size
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                crc = _checksum(entry, name, content, seal_at)
            file.seek(seal_at)
            file.write(_SEAL.pack(_MAGIC, size, len(warnings), crc))
        entry.replace(part, name)
    finally:
        entry.delete(part)


def read_record(entry: CacheFolder, name: str) -> CacheRecord:
    """Read a file of the cache; raises FileNotFoundError, or DamagedRecordError."""
    try:
        with os.fdopen(entry.open(name, os.O_RDONLY), "rb") as file:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                warnings = _check(entry, name, content)
            return CacheRecord(pl.read_ipc(file), warnings)
    except FileNotFoundError:
        raise
    except (
        OSError,
        ValueError,
        struct.error,
        msgspec.MsgspecError,
        pl.exceptions.PolarsError,
    ) as e:
        raise DamagedRecordError(name) from e


def _check(entry: CacheFolder, name: str, content: mmap.mmap) -> tuple[str, ...]:
    """Compare the checksum; return the warnings."""
    size = len(content)
    footer_bytes, end = _END.unpack_from(content, size - _END.size)
    seal_at = size - _END.size - footer_bytes - _SEAL.size
    if end != _ARROW_END or footer_bytes < 0 or seal_at < 0:
        raise DamagedRecordError(name)
    magic, full, warnings_bytes, crc = _SEAL.unpack_from(content, seal_at)
    if (magic, full) != (_MAGIC, size) or crc != _checksum(entry, name, content, seal_at):
        raise DamagedRecordError(name)
    text = content[seal_at - warnings_bytes : seal_at]
    return msgspec.json.decode(text, type=tuple[str, ...])


def _checksum(entry: CacheFolder, name: str, content: mmap.mmap, seal_at: int) -> int:
    """Return the CRC-32 of all but the checksum itself, and of the file's name and entry."""
    crc = isal_zlib.crc32(f"{entry.path.name}/{name}".encode())
    with memoryview(content) as view:
        crc = isal_zlib.crc32(view[: seal_at + _SEAL.size - 4], crc)
        return isal_zlib.crc32(view[seal_at + _SEAL.size :], crc)


_open: weakref.WeakSet[CachedSource] = weakref.WeakSet()


def flush_caches() -> tuple[str, ...]:
    """Wait until all columns of open captures are written; return why some could not be."""
    failures: dict[str, None] = {}
    for source in list(_open):
        source.flush()
        failures.update(dict.fromkeys(source.failures))
    return tuple(failures)


class CachedSource(TraceSource):
    """A source whose large tables are remembered between commands."""

    def __init__(self, source: TraceSource, path: Path, name: str) -> None:
        self._source = source
        self._path = path
        self._name = name
        """The capture's identity."""
        self._limit = limit_bytes()
        self._costly = False
        """Reading even one small table takes a pass over the whole file."""
        self._refused = ""
        self._damaged: set[str] = set()
        self._failure = ""
        self.failures: tuple[str, ...] = ()
        """Why the cache could not be written to, once that is known for sure."""
        self._source_used = False
        """Something was read from the capture itself."""
        self._warnings: dict[str, dict[str, None]] = {}
        """Warnings of the reader, by table, derived frame or outline."""
        self._writer: ThreadPoolExecutor | None = None
        self._writing: list[Future[None]] = []
        _open.add(self)
        try:
            check_cache_folder(path)
        except CacheError as error:
            self._refused = error.why

    @property
    def meta(self) -> Meta:
        """What is known about the capture as a whole."""
        outline = self.outline()
        return self._source.meta if outline is None else outline.meta

    def outline(self) -> Outline | None:
        """Return what is in the file, from the cache if an earlier pass over it is there."""
        return self._outline

    @cached_property
    def _outline(self) -> Outline | None:
        record = self._read(_OUTLINE)
        if record is not None:
            self._add_warnings(_OUTLINE, record.warnings)
            try:
                cached = msgspec.json.decode(record.frame.item(0, "outline"), type=Outline)
            except (msgspec.MsgspecError, pl.exceptions.PolarsError):
                self._damaged.add(_OUTLINE)
            else:
                self._costly = True  # else it would not have been cached
                # The capture may have another path now, which is not part of its identity.
                meta = msgspec.structs.replace(cached.meta, path=str(self._path))
                return msgspec.structs.replace(cached, meta=meta)
        began = time.perf_counter()
        with self._collecting_warnings(_OUTLINE):
            outline = self._source.outline()
        slow = time.perf_counter() - began > _MIN_CACHED_S or _OUTLINE in self._damaged
        if outline is not None and slow:
            self._costly = True
            # The path may be no valid text, and the cache does not depend on it.
            meta = msgspec.structs.replace(outline.meta, path="")
            text = msgspec.json.encode(msgspec.structs.replace(outline, meta=meta)).decode()
            frame = pl.DataFrame({"outline": [text]})
            self._write({_OUTLINE: CacheRecord(frame, tuple(self._warnings[_OUTLINE]))})
        return outline

    def has(self, table: str) -> bool:
        """Return whether the table has rows."""
        outline = self.outline()
        return self._source.has(table) if outline is None else outline.rows.get(table, 0) > 0

    def has_column(self, table: str, column: str) -> bool:
        """Return whether the capture can fill this column."""
        outline = self.outline()
        if outline is None:
            return self._source.has_column(table, column)
        return column in outline.columns.get(table, ())

    def row_count(self, table: str) -> int:
        """Count rows."""
        outline = self.outline()
        if outline is not None:
            return outline.rows.get(table, 0)
        names = self._names()
        for column in TABLES[table].column_names:
            series = self._column(table, column) if _file(table, column) in names else None
            if series is not None:
                return len(series)
        with self._collecting_warnings(table):
            return self._source.row_count(table)

    def prepare(self, tables: Iterable[str]) -> None:
        """Pass on which tables are coming, except those with columns in the cache."""
        cached = {name.partition(".")[0] for name in self._names() if name.endswith(".column")}
        self._source.prepare([table for table in tables if table not in cached])

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Return columns from the cache; read the others and cache them."""
        cached = {c: self._column(table, c) for c in columns}
        missing = [c for c, series in cached.items() if series is None]
        if missing:
            began = time.perf_counter()
            with self._collecting_warnings(table):
                fresh = self._source.load(table, missing)
            slow = time.perf_counter() - began > _MIN_CACHED_S
            if any(s is not None and len(s) != fresh.height for s in cached.values()):
                self._damaged |= {_file(table, c) for c, s in cached.items() if s is not None}
                fresh = self._source.load(table, columns)
                cached, missing = {}, list(columns)
            damaged = any(_file(table, c) in self._damaged for c in missing)
            if slow or damaged or self._costly or fresh.height >= _MIN_CACHED_ROWS:
                warnings = tuple(self._warnings.get(table, ()))
                self._write(
                    {
                        _file(table, series.name): CacheRecord(series.to_frame(), warnings)
                        for series in fresh.get_columns()
                    }
                )
            cached.update({c: fresh.get_column(c) for c in missing})
        return pl.DataFrame([cached[c] for c in columns])

    @contextlib.contextmanager
    def _collecting_warnings(self, table: str) -> Iterator[None]:
        """Record which warnings a table brought, to repeat them when it comes from the cache."""
        before = set(self._source_warnings())
        yield
        self._source_used = True
        self._add_warnings(table, (w for w in self._source_warnings() if w not in before))

    def _source_warnings(self) -> tuple[str, ...]:
        # A source that has read nothing yet may need a pass over the file to know its warnings.
        return self._source.warnings() if self._source_used else ()

    def _add_warnings(self, origin: str, warnings: Iterable[str]) -> None:
        self._warnings.setdefault(origin, {}).update(dict.fromkeys(warnings))

    def warnings(self) -> tuple[str, ...]:
        """Return warnings about rows and values left out, now or when the cache was filled."""
        recorded = (warning for warnings in self._warnings.values() for warning in warnings)
        return tuple(dict.fromkeys((*self._source_warnings(), *recorded)))

    def notes(self) -> tuple[str, ...]:
        """Return why the cache was not used, in part or at all."""
        notes = [f"cache not used: {self._refused}"] if self._refused else []
        if self._damaged:
            files = "1 file" if len(self._damaged) == 1 else f"{len(self._damaged)} files"
            notes.append(f"cache damaged: ignored {files} and read the capture again")
        return (*notes, *self.failures)

    def holds(self, table: str, columns: Sequence[str]) -> bool:
        """Return whether all these columns are in the cache."""
        return {_file(table, c) for c in columns} <= self._names()

    def recall(self, key: str) -> pl.DataFrame | None:
        """Find a frame that was derived before."""
        record = self._read(_derived(key))
        if record is None:
            return None
        self._add_warnings(_derived(key), record.warnings)
        return record.frame

    def remember(self, key: str, frame: pl.DataFrame) -> None:
        """Keep a frame that was derived from the capture."""
        self._write({_derived(key): CacheRecord(frame, self.warnings())})

    def close(self) -> None:
        """Close the capture."""
        self._source.close()

    def flush(self) -> None:
        """Wait until everything is written; the interpreter does so at its end."""
        while self._writing:
            self._writing.pop().result()
        if self._failure:
            self.failures = (f"cache not written: {self._failure}",)

    def _names(self) -> frozenset[str]:
        """List the files of the entry that can be read."""
        if self._refused:
            return frozenset()
        try:
            with open_entry(self._name) as entry:
                return frozenset(entry.names()) - self._damaged
        except (CacheError, OSError):
            return frozenset()  # `_read` records why

    def _read(self, name: str) -> CacheRecord | None:
        if self._refused or name in self._damaged:
            return None
        try:
            with open_entry(self._name) as entry:
                return read_record(entry, name)
        except FileNotFoundError:
            return None
        except DamagedRecordError:
            self._damaged.add(name)
        except CacheError as error:
            self._refused = error.why
        except OSError as error:
            self._refused = error.strerror or str(error)
        return None

    def _column(self, table: str, column: str) -> pl.Series | None:
        record = self._read(_file(table, column))
        if record is None:
            return None
        frame = record.frame
        if frame.columns != [column] or not TABLES[table].column(column).accepts(frame.dtypes[0]):
            self._damaged.add(_file(table, column))
            return None
        self._add_warnings(table, record.warnings)
        return frame.get_column(column)

    def _write(self, records: Mapping[str, CacheRecord]) -> None:
        if self._refused or self._failure:
            return
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="gpusight-cache")
        self._writing.append(self._writer.submit(self._write_now, records))

    def _write_now(self, records: Mapping[str, CacheRecord]) -> None:
        try:
            with (
                open_entry(self._name, make=True) as entry,
                lock_entry(entry, alone=False) as locked,
            ):
                for name, record in records.items() if locked else ():
                    write_record(entry, name, record)
            trim_cache(self._name, self._limit)
        except FileNotFoundError:
            # Another process emptied the cache meanwhile. What is not there is read again.
            return
        except CacheError as error:
            self._failure = error.why
        except (OSError, ValueError, pl.exceptions.PolarsError) as error:
            text = getattr(error, "strerror", None) or str(error)
            self._failure = re.sub(r" \(os error \d+\)", "", text.partition("\n")[0])
        except BaseException as error:  # a panic of Polars is no Exception
            if not is_unexpected(error):
                raise
            self._failure = reason_of(error)


def _file(table: str, column: str) -> str:
    return f"{table}.{column}.column"


def _derived(key: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", key):
        key = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return f"{key}.derived"
