"""Output files: complete under their name, or not there at all.

What is written goes to a temporary file in the same folder, is flushed to the disk and then
renamed. Whatever happens before that (a full disk, an exception, `kill -9`), the file that had the
name keeps its content. Only the standard library is used: recorders inside a program import this.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
from typing import TYPE_CHECKING, BinaryIO

from gpusight.errors import GpusightError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

PART_SUFFIX = ".part"
_NAME_CHARACTERS = 40
"""Characters of the final name in the temporary one: no file system takes more than 255 bytes."""
_STREAMS = re.compile(r"/dev/(?:stdin|stdout|stderr|fd/\d+)|/proc/(?:self|\d+)/fd/\d+")
"""Open streams by name; through a shell redirection one may be a regular file."""
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
"""Errors of file systems that cannot flush a file to the disk."""
_SYSTEM_ERROR = re.compile(r"\(os error (\d{1,4})\)")
_SQLITE_ERRORS = {"disk is full": errno.ENOSPC, "disk I/O error": errno.EIO}
"""How libraries that are not Python report that the system refused to write."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a full disk; SQLite reports EIO for that too."""


def check_output(path: Path) -> None:
    """Refuse a path that cannot be written to, before any work is done for it."""
    if _is_stream(path):
        return
    if path.is_symlink():
        raise UsageError(
            f"{path} is a symbolic link",
            why="gpusight does not write through links",
            hint="name the file that it points to, or remove the link",
        )
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint="pass a file name")
    if path.exists() and not os.access(path, os.W_OK):
        raise cannot_write(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def cannot_write(path: Path, error: OSError) -> GpusightError:
    """Return the error for a file that could not be written."""
    hint = "make room, or choose another place with -o" if error.errno in _FULL else ""
    return GpusightError(f"cannot write {path}", why=error.strerror or str(error), hint=hint)


def write_file(path: Path, chunks: bytes | Iterable[bytes]) -> int:
    """Write a file that replaces the one of this name once it is complete; return its bytes."""
    size = 0
    with replacing(path) as stream:
        for chunk in (chunks,) if isinstance(chunks, bytes) else chunks:
            size += stream.write(chunk)
    return size


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes its name, in place of an earlier one, once it is complete.

    Devices, pipes and open streams (`/dev/stdout`, `/dev/fd/63`) have nothing to replace and are
    written to directly.
    """
    if _is_stream(path):
        with _reporting(path), path.open("wb") as stream:
            yield stream
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    with staged(path) as part, os.fdopen(os.open(part, flags, 0o666), "wb") as stream:
        with contextlib.suppress(FileNotFoundError):  # keep the mode of the file that it replaces
            part.chmod(stat.S_IMODE(path.stat().st_mode))
        yield stream


@contextlib.contextmanager
def staged(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield a temporary path next to `path`; what is made there gets the name at the end.

    Without `replace`, a file that has the name by then stays, and `FileExistsError` is reported.
    """
    part = path.with_name(f".{path.name[:_NAME_CHARACTERS]}.{os.urandom(6).hex()}{PART_SUFFIX}")
    with _reporting(path):
        try:
            if replace:
                check_output(path)
            yield part
            _sync(part)
            _rename(part, path, replace=replace)
        finally:
            _discard(part)


@contextlib.contextmanager
def staged_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder whose files go to the folder `path` once all of them are complete.

    A folder that does not exist yet appears whole. In one that does, each file is replaced whole.
    """
    if not path.is_dir():
        with staged(path, replace=False) as part:
            part.mkdir(parents=True)
            yield part
        return
    part = path / f".gpusight.{os.urandom(6).hex()}{PART_SUFFIX}"
    with _reporting(path):
        try:
            part.mkdir()
            yield part
            files = sorted(part.iterdir())
            for file in files:
                check_output(path / file.name)
                _sync(file)
            for file in files:
                file.replace(path / file.name)
        finally:
            _discard(part)


def _is_stream(path: Path) -> bool:
    if _STREAMS.fullmatch(str(path.absolute())):
        return True
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


@contextlib.contextmanager
def _reporting(path: Path) -> Iterator[None]:
    """Report in one line why the system, or a library, could not write a file."""
    try:
        yield
    except (BrokenPipeError, GpusightError):
        raise
    except BaseException as error:  # a panic of Polars is no Exception
        system_error = _system_error(error)
        if system_error is None:
            raise
        raise cannot_write(path, system_error) from error


def _system_error(error: BaseException) -> OSError | None:
    """Read the system's error out of the text of a library's; None where it has none."""
    if isinstance(error, OSError) and error.errno is not None:
        return error
    text = str(error)
    match = _SYSTEM_ERROR.search(text)
    code = next((code for words, code in _SQLITE_ERRORS.items() if words in text), None)
    code = int(match[1]) if match else code
    if code is not None:
        return OSError(code, os.strerror(code))
    return error if isinstance(error, OSError) else None


def _sync(part: Path) -> None:
    """Flush a file to the disk before it gets its name: a power failure must not empty it."""
    for file in part.iterdir() if part.is_dir() else (part,):
        with file.open("rb") as stream:
            try:
                os.fsync(stream.fileno())
            except OSError as error:
                if error.errno not in _NO_SYNC:
                    raise


def _rename(part: Path, path: Path, *, replace: bool) -> None:
    if replace:
        part.replace(path)
        return
    if part.is_file() and hasattr(os, "link"):
        try:
            os.link(part, path)  # unlike a rename, this fails where something has the name
        except FileExistsError:
            raise
        except OSError:
            pass  # a file system without hard links
        else:
            return
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    part.rename(path)


def _discard(part: Path) -> None:
    if part.is_dir():
        shutil.rmtree(part)
    else:
        part.unlink(missing_ok=True)
