"""Which capture this is, and whether it stays the same while it is read.

A capture is known by the status of its files (device, inode, size, both times, to the nanosecond)
and by their content: all of it up to 16 MB, samples beyond. The time of the last status change
(`ctime`) moves with every write and nobody can set it back, so that a file changed in its middle
with its old `mtime` put back is another capture. Clocks tick: a file written a moment ago may
change again without its times doing so, hence all of its content counts, whatever its size.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from isal import isal_zlib

from gpusight._version import __version__
from gpusight.errors import DamagedCaptureError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_LAYOUT = 6
"""Raise when what a reader puts into a column changes meaning."""
_WHOLE_BYTES = 16_000_000
_BLOCK_BYTES = 1 << 16
_SAMPLES = 32
_TICK_NS, _COARSE_TICK_NS = 50_000_000, 2_500_000_000
"""How far apart two changes surely differ in time; coarse where a disk keeps whole seconds."""
_LOGS = ("-wal", "-journal")
"""Files beside a SQLite database that hold a part of it."""


class FileStatus(NamedTuple):
    """What tells one version of a file from the next."""

    name: str
    device: int
    inode: int
    bytes: int
    modified_ns: int
    changed_ns: int


def file_status(path: Path) -> tuple[FileStatus, ...]:
    """List the files of a capture with their status; no file is opened."""
    path = path.resolve()  # SQLite looks for logs beside the file itself, not beside a link to it
    if path.is_dir():
        # The reader of folders knows which files are tables; it imports what only it needs.
        from gpusight.readers.nsys.folder import table_files

        files = sorted(table_files(path).values())
    else:
        logs = (Path(f"{path}{suffix}") for suffix in _LOGS)
        files = [path, *(log for log in logs if _bytes(log))]
    return tuple(status for file in files if (status := _status(file)) is not None)


def identity(path: Path, files: Sequence[FileStatus]) -> str:
    """Name a capture after what it is, from the status of its files and their content."""
    digest = hashlib.sha256(f"gpusight {__version__} {_LAYOUT}".encode())
    path = path.resolve()
    folder = path if path.is_dir() else path.parent
    whole = sum(file.bytes for file in files) <= _WHOLE_BYTES
    samples = max(4, _SAMPLES // max(1, len(files)))
    for file in files:
        digest.update(os.fsencode(file.name))
        digest.update(repr(file[1:]).encode())
        blocks = -(-file.bytes // _BLOCK_BYTES)
        if not whole and not _is_fresh(file) and blocks > samples:
            places: Iterable[int] = (i * (blocks - 1) // (samples - 1) for i in range(samples))
        else:
            places = range(blocks)
        for crc in _checksums(folder / file.name, places):
            digest.update(crc.to_bytes(4, "little"))
    return digest.hexdigest()[:32]


def check_unchanged(path: Path, files: tuple[FileStatus, ...]) -> None:
    """Raise if a capture is no longer what it was when its status was taken."""
    if file_status(path) != files:
        raise DamagedCaptureError(
            f"{path} changed while it was read",
            why="numbers of two versions of it would be mixed",
            hint="run again when nothing writes to it",
        )


def _status(file: Path) -> FileStatus | None:
    try:
        found = file.stat()
    except OSError:
        # Missing, or not for us to see: opening it gives the error that says so.
        return None
    return FileStatus(
        file.name, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    )


def _bytes(file: Path) -> int:
    status = _status(file)
    return 0 if status is None else status.bytes


def _is_fresh(file: FileStatus) -> bool:
    """Tell whether the file may change without its times changing, or has times of the future."""
    newest = max(file.modified_ns, file.changed_ns)
    tick_ns = _TICK_NS if newest % 1_000_000_000 else _COARSE_TICK_NS
    return time.time_ns() - newest < tick_ns


def _checksums(file: Path, places: Iterable[int]) -> Iterator[int]:
    # Not every file of a folder need be regular, and opening a pipe would wait for its writer.
    if not stat.S_ISREG(file.stat().st_mode):
        return
    with file.open("rb", buffering=0) as handle:
        for place in places:
            handle.seek(place * _BLOCK_BYTES)
            yield isal_zlib.crc32(handle.read(_BLOCK_BYTES))
