"""SQLite exports with changes still in a log: detected, and applied to a private copy."""

from __future__ import annotations

import os
import shlex
import shutil
import sqlite3
import struct
from typing import TYPE_CHECKING

from gpusight.errors import CaptureError, DamagedCaptureError
from gpusight.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO


_MAX_COPIED_BYTES = 16 << 30
"""Larger captures are not copied: settling them is left to the user."""
_WAL_MAGIC = (0x377F0682, 0x377F0683)
_WAL_HEADER, _FRAME_HEADER = 32, 24
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")


def log_files(path: Path) -> list[Path]:
    """List the log and the journal of a SQLite file, where there are any."""
    path = path.resolve()
    logs = (path.with_name(f"{path.name}-{kind}") for kind in ("wal", "journal"))
    return [file for file in logs if file.exists()]


def is_pending(path: Path) -> bool:
    """Return whether a SQLite file has logs with changes that SQLite would apply."""
    pending = False
    for file in log_files(path):  # each is checked, or refused
        if not file.is_file():  # opening a pipe would block
            raise CaptureError(f"{file} is not a regular file", hint="move it elsewhere")
        with file.open("rb") as opened:
            is_log = file.name.endswith("-wal")
            pending |= _is_log(opened) if is_log else _is_journal(opened, file)
    return pending


def settled_copy(path: Path, folder: Path) -> Path:
    """Copy a SQLite file and its logs into a folder, and let SQLite apply the logs to the copy."""
    database = path.resolve()
    files = [database, *log_files(database)]
    before = [_state(file) for file in files]
    _check_room(path, sum(size for size, _ in before), folder)
    copy = folder / "capture.sqlite"
    for file in files:
        shutil.copyfile(file, folder / file.name.replace(database.name, copy.name, 1))
    if [_state(file) for file in files] != before:
        raise CaptureError(
            f"{path} is being written to",
            why="it changed while it was copied",
            hint="close the program that has it open, then try again",
        )
    try:
        connection = sqlite3.connect(copy)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        raise DamagedCaptureError(
            f"{path} cannot be read", why=f"the changes next to it do not match it: {error}"
        ) from error
    return copy


def _is_log(file: IO[bytes]) -> bool:
    """Return whether a write-ahead log has a committed transaction of its current generation."""
    head = file.read(_WAL_HEADER)
    if len(head) < _WAL_HEADER or struct.unpack(">I", head[:4])[0] not in _WAL_MAGIC:
        return False
    (page_bytes,) = struct.unpack(">I", head[8:12])
    while len(frame := file.read(_FRAME_HEADER)) == _FRAME_HEADER and frame[8:16] == head[16:24]:
        if any(frame[4:8]):  # the size of the file after a commit
            return True
        file.seek(page_bytes, os.SEEK_CUR)
    return False


def _is_journal(file: IO[bytes], path: Path) -> bool:
    if file.read(len(_JOURNAL_MAGIC)) != _JOURNAL_MAGIC:
        return False
    file.seek(-len(_JOURNAL_MAGIC), os.SEEK_END)
    if file.tell() and file.read() == _JOURNAL_MAGIC:
        # SQLite would look for the journals of the others, and might delete what it finds.
        raise CaptureError(
            f"{path} belongs to a transaction over several databases",
            hint="open the database with the program that wrote it, which completes it",
        )
    return True


def _state(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def _check_room(path: Path, needed: int, folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    # The log goes into the copy, so that for a moment its pages are there twice.
    if needed <= _MAX_COPIED_BYTES and 2 * needed <= free:
        return
    why = (
        f"a copy takes {format_bytes(2 * needed)}, {folder.parent} has {format_bytes(free)}"
        if needed <= _MAX_COPIED_BYTES
        else f"gpusight copies up to {format_bytes(_MAX_COPIED_BYTES)} to apply them"
    )
    command = shlex.join(["sqlite3", str(path), "PRAGMA wal_checkpoint(TRUNCATE)"])
    raise CaptureError(
        f"{path} has changes next to it that are not in the file yet",
        why=why,
        hint=f"apply them to the file, or to a copy of all of it: {command}",
    )
