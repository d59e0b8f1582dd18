"""A source whose failures name the file, and that notices a file that changes while read."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from isal import isal_zlib

from gpusight._version import __version__
from gpusight.errors import (
    CaptureError,
    DamagedCaptureError,
    GpusightError,
    is_unexpected,
    reason_of,
)
from gpusight.sniff import STACKS_SUFFIX
from gpusight.trace.trace import TraceSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import polars as pl

    from gpusight.trace.trace import Meta, Outline


_LAYOUT = 9
"""Raise when what a reader puts into a column changes meaning, as frames do that count as code of a
library (`naming/source_files.py`)."""
_WHOLE_BYTES = 16_000_000
_BLOCK_BYTES = 1 << 16
_SAMPLES = 32
_TICK_NS, _COARSE_TICK_NS = 50_000_000, 2_500_000_000
"""How far apart two changes surely differ in time; coarse where a disk keeps whole seconds."""
_LOGS = ("-wal", "-journal", STACKS_SUFFIX)
"""Endings of files next to a capture that hold a part of it: of SQLite, and sampled stacks."""


class FileStatus(NamedTuple):
    """What distinguishes versions of a file."""

    name: str
    device: int
    inode: int
    bytes: int
    modified_ns: int
    changed_ns: int


def file_status(path: Path) -> tuple[FileStatus, ...]:
    """List the files of a capture with their status; no file is opened."""
    path = path.resolve()  # SQLite looks for logs next to the file itself, not next to a link
    if path.is_dir():
        # The reader of folders knows which files are tables; it imports what only it needs.
        from gpusight.readers.nsys.export_folder import table_files

        files = sorted(table_files(path).values())
    else:
        logs = (Path(f"{path}{suffix}") for suffix in _LOGS)
        files = [path, *(log for log in logs if (status := _status(log)) and status.bytes)]
    return tuple(status for file in files if (status := _status(file)) is not None)


def capture_identity(path: Path, files: Sequence[FileStatus]) -> str:
    """Return a hash that identifies a capture by the status of its files and their content."""
    digest = hashlib.sha256(f"gpusight {__version__} {_LAYOUT}".encode())
    path = path.resolve()
    folder = path if path.is_dir() else path.parent
    read_all = sum(file.bytes for file in files) <= _WHOLE_BYTES
    samples = max(4, _SAMPLES // max(1, len(files)))
    for file in files:
        digest.update(os.fsencode(file.name))
        digest.update(repr(file[1:]).encode())
        blocks = -(-file.bytes // _BLOCK_BYTES)
        if not read_all and not _is_fresh(file) and blocks > samples:
            indices: Iterable[int] = (i * (blocks - 1) // (samples - 1) for i in range(samples))
        else:
            indices = range(blocks)
        location = folder / file.name
        # Not every file of a folder need be regular, and opening a pipe would wait for its writer.
        if stat.S_ISREG(location.stat().st_mode):
            with location.open("rb", buffering=0) as handle:
                for index in indices:
                    handle.seek(index * _BLOCK_BYTES)
                    crc = isal_zlib.crc32(handle.read(_BLOCK_BYTES))
                    digest.update(crc.to_bytes(4, "little"))
    return digest.hexdigest()[:32]


def _status(file: Path) -> FileStatus | None:
    try:
        status = file.stat()
    except OSError:
        # Missing or not accessible: opening it raises the error for the user.
        return None
    device, inode, size = status.st_dev, status.st_ino, status.st_size
    return FileStatus(file.name, device, inode, size, status.st_mtime_ns, status.st_ctime_ns)


def _is_fresh(file: FileStatus) -> bool:
    """Return whether the file may change without its times changing, or has future times."""
    newest = max(file.modified_ns, file.changed_ns)
    tick_ns = _TICK_NS if newest % 1_000_000_000 else _COARSE_TICK_NS
    return time.time_ns() - newest < tick_ns


MAX_DEVICES = 256
"""More than the GPUs, or parts of GPUs, of any machine: each costs analyses some time."""


@contextlib.contextmanager
def reading(path: Path, table: str = "") -> Iterator[None]:
    """Turn any exception of a reader into an error that names the capture, and the table if any."""
    try:
        yield
    except GpusightError:
        raise
    except BaseException as error:  # a panic of Polars is no Exception
        if not is_unexpected(error):
            raise
        raise _capture_error(path, table, error) from error


def _capture_error(path: Path, table: str, error: BaseException) -> CaptureError:
    what, where = f"{path} cannot be read", f"table {table}: " if table else ""
    if isinstance(error, MemoryError):
        hint = "close other programs, or record fewer steps"
        return CaptureError(what, why=f"{where}not enough memory", hint=hint)
    if isinstance(error, PermissionError):
        return CaptureError(what, why="permission denied", hint="check its access rights")
    if isinstance(error, OSError):
        why = f"{where}{error.strerror or error}"
        return CaptureError(what, why=why, hint="check the disk, or copy it")
    hint = "copy or capture it again; --debug shows where reading failed"
    return DamagedCaptureError(what, why=where + reason_of(error), hint=hint)


class GuardedSource(TraceSource):
    """A source whose every failure names the capture; one that changes meanwhile is a failure."""

    def __init__(self, source: TraceSource, path: Path, files: tuple[FileStatus, ...]) -> None:
        self._source = source
        self._path = path
        self._files = files
        self.check()

    def check(self) -> None:
        """Raise if the capture is no longer what it was when it was opened."""
        if file_status(self._path) != self._files:
            raise DamagedCaptureError(
                f"{self._path} changed while it was read",
                why="the results would mix two versions",
                hint="run again when no program writes to it",
            )

    @contextlib.contextmanager
    def _reading(self, table: str = "") -> Iterator[None]:
        """Read from the file; what was read while the file changed is refused."""
        try:
            with reading(self._path, table):
                yield
        except CaptureError:
            self.check()  # a changed file explains any other error
            raise
        self.check()

    @property
    def meta(self) -> Meta:
        """What is known about the capture as a whole."""
        with reading(self._path):
            return self._source.meta

    def outline(self) -> Outline | None:
        """Return what is in the file, if knowing that takes a pass over all of it; else None."""
        with self._reading():
            return self._source.outline()

    def has(self, table: str) -> bool:
        """Return whether the table has rows, without reading them."""
        with reading(self._path, table):
            return self._source.has(table)

    def has_column(self, table: str, column: str) -> bool:
        """Return whether the capture can fill this column."""
        with reading(self._path, table):
            return self._source.has_column(table, column)

    def row_count(self, table: str) -> int:
        """Count rows without reading them."""
        with self._reading(table):
            return self._source.row_count(table)

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read these columns."""
        with self._reading(table):
            frame = self._source.load(table, columns)
        if "device" in columns and frame.get_column("device").n_unique() > MAX_DEVICES:
            raise DamagedCaptureError(
                f"{self._path} is damaged",
                why=f"table {table} names more than {MAX_DEVICES} GPUs",
                hint="copy or capture it again",
            )
        return frame

    def prepare(self, tables: Iterable[str]) -> None:
        """Pass on which tables will be read."""
        with reading(self._path):
            self._source.prepare(tables)

    def warnings(self) -> tuple[str, ...]:
        """Return warnings about rows and values left out so far."""
        with reading(self._path):
            return self._source.warnings()

    def close(self) -> None:
        """Close the file; what was read stays readable."""
        with reading(self._path):
            self._source.close()
