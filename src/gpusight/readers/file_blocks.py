"""The bytes of a file in blocks, decompressed on the way; small text files as a whole.

Passes over files announce themselves here too, for the progress that commands show.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from gpusight.errors import DamagedCaptureError, GpusightError, NotACaptureError, UsageError
from gpusight.sniff import GZIP, XZ, ZSTANDARD
from gpusight.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType
    from typing import IO


BLOCK_BYTES = 1 << 19
_PACKED_BYTES = 1 << 18
"""Compressed bytes read at a time: as many are lost where the file is damaged."""
_INFLATED_BYTES = 1 << 22
"""Inflated at a time: the parser lets go of the interpreter only every few milliseconds."""
_AHEAD = 2
"""Pieces of that size that may be ready before the parser needs them."""
_GZIP_FORMAT = 31
_FREE_BYTES, _MAX_RATIO = 1 << 28, 200
"""A compressed file may grow to the first in any case, beyond it this many times; text of
profilers shrinks five- to fiftyfold."""
_XZ_MEMORY_BYTES = 1 << 28
"""What decompressing a file may take; `xz -9` takes a quarter."""
_ZSTD_WINDOW_LOG = 27
"""The same for Zstandard: 128 MiB, which `zstd` itself does not exceed without `--long`."""


def max_unpacked_bytes(size: int) -> int:
    """Return the bytes to which a file of this size may grow."""
    return max(_FREE_BYTES, _MAX_RATIO * size)


# Progress of reading ------------------------------------------------------------------------------

_MIN_RATE_SECONDS = 1.0
"""What was read in less time gives no rate worth showing."""


class ReadProgress:
    """One pass over a file, or over a table in it."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.done_bytes = 0
        self._began_s = time.monotonic()

    def __str__(self) -> str:
        """Return the part that is done, the rate, and the seconds left; empty until known."""
        seconds, done = time.monotonic() - self._began_s, min(self.done_bytes, self.total_bytes)
        if not done or seconds < _MIN_RATE_SECONDS:
            return ""
        left_s = seconds * (self.total_bytes - done) / done
        rate = f"{done / seconds / 1e6:.0f} MB/s"
        return f"{done / self.total_bytes:.0%}, {rate}, {left_s:.0f} s left"


_RUNNING: list[ReadProgress] = []


@contextlib.contextmanager
def reading_bytes(total_bytes: int) -> Iterator[ReadProgress]:
    """Announce a pass over so many bytes; who reads them counts them."""
    progress = ReadProgress(total_bytes)
    _RUNNING.append(progress)
    try:
        yield progress
    finally:
        _RUNNING.remove(progress)


def progress_text() -> str:
    """Describe the pass that began last; empty where there is none."""
    running = _RUNNING[-1:]  # a thread that reads may end meanwhile
    return str(running[0]) if running else ""


# Blocks -------------------------------------------------------------------------------------------


class FileBlocks:
    """Blocks of a file's decompressed content; `problem` is why they end early, if they do."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.problem: str | None = None

    def __iter__(self) -> Iterator[bytes]:
        """Yield block after block; never more than a few are in memory."""
        size = self._path.stat().st_size
        with self._path.open("rb") as file, reading_bytes(size) as progress:
            for block in self._unpacked_blocks(file):
                progress.done_bytes = file.tell()
                yield block

    def plain_file(self) -> PlainFile | None:
        """Give the file to be read from any place; None where it is compressed."""
        file = PlainFile(self._path)
        head = bytearray(len(XZ))
        file.read_into(memoryview(head), 0)
        return None if bytes(head).startswith((GZIP, XZ, ZSTANDARD)) else file

    def _unpacked_blocks(self, file: IO[bytes]) -> Iterator[bytes]:
        head = file.read(len(XZ))
        file.seek(0)
        if head.startswith(GZIP):
            yield from self._bounded(_ahead(self._inflated(file)))
        elif head.startswith((XZ, ZSTANDARD)):
            yield from self._bounded(self._unpacked(file, is_xz=head.startswith(XZ)))
        else:
            yield from iter(lambda: file.read(BLOCK_BYTES), b"")

    def _bounded(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """Raise if a small file turns out to hold more than any profiler writes."""
        limit = max_unpacked_bytes(self._path.stat().st_size)
        size = 0
        for block in blocks:
            size += len(block)
            if size > limit:
                raise DamagedCaptureError(
                    f"{self._path} cannot be unpacked",
                    why=f"it expands more than {_MAX_RATIO} times, to over {format_bytes(limit)}",
                    hint="if you trust it, unpack it first",
                )
            yield block

    def _unpacked(self, file: IO[bytes], *, is_xz: bool) -> Iterator[bytes]:
        """Decompress xz and Zstandard."""
        import lzma

        zstd = zstd_module()
        try:
            if is_xz:
                yield from _xz(file)
            else:
                limit = {zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
                with zstd.ZstdFile(file, options=limit) as stream:
                    yield from iter(lambda: stream.read(BLOCK_BYTES), b"")
        except (lzma.LZMAError, zstd.ZstdError, EOFError) as error:
            self.problem = f"its compressed data ends early or is damaged ({error})"

    def _inflated(self, file: IO[bytes]) -> Iterator[bytes]:
        """Decompress gzip; the data before damage or a missing end still counts."""
        from isal import isal_zlib

        member = isal_zlib.decompressobj(_GZIP_FORMAT)
        waiting = b""
        while True:
            # Input that did not fit into the last block comes before new input.
            waiting = waiting or file.read(_PACKED_BYTES)
            if member.eof and waiting:
                member = isal_zlib.decompressobj(_GZIP_FORMAT)
            if not waiting:
                self.problem = None if member.eof else "its compressed data ends early"
                return
            try:
                block = member.decompress(waiting, _INFLATED_BYTES)
            except isal_zlib.IsalError as error:  # type: ignore[misc]
                self.problem = f"its compressed data is damaged ({error})"
                return
            waiting = member.unused_data.lstrip(b"\0") if member.eof else member.unconsumed_tail
            if block:
                yield block


class PlainFile:
    """A file that several threads read from any place.

    Mapping it would be shorter, but the process ends (SIGBUS) when the file is truncated meanwhile.
    """

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self.close = weakref.finalize(self, os.close, self._handle)
        """Closes the file; done at the end at the latest."""
        self.path = path
        self.size = os.fstat(self._handle).st_size
        self._turn = threading.Lock()

    def read_into(self, target: memoryview, at: int) -> int:
        """Fill a buffer with what begins at a place; return how much there is."""
        done = 0
        while done < len(target):
            if hasattr(os, "preadv"):
                count = os.preadv(self._handle, [target[done:]], at + done)
            else:
                with self._turn:
                    os.lseek(self._handle, at + done, os.SEEK_SET)
                    part = os.read(self._handle, len(target) - done)
                count = len(part)
                target[done : done + count] = part
            if not count:
                break
            done += count
        return done

    def read(self, at: int, length: int) -> memoryview:
        """Read a part that was there before."""
        part = memoryview(bytearray(length))
        if self.read_into(part, at) < length:
            raise DamagedCaptureError(
                f"{self.path} became shorter while it was read",
                hint="run again when no program writes to it",
            )
        return part

    def blocks(self, at: int) -> Iterator[bytes]:
        """Yield block after block from a place on."""
        while at < self.size:
            block = bytes(self.read(at, min(BLOCK_BYTES, self.size - at)))
            yield block
            at += len(block)


def zstd_module() -> ModuleType:
    """Import Zstandard: the standard library's own from Python 3.14, before that its backport."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


def head_of(path: Path, length: int) -> bytes:
    """Return the first decompressed bytes of a file; fewer if there are no more."""
    head = b""
    for block in FileBlocks(path):
        head += block
        if len(head) >= length:
            break
    return head[:length]


def _xz(file: IO[bytes]) -> Iterator[bytes]:
    """Decompress concatenated xz streams within a limit on memory."""
    import lzma

    waiting = b""
    while waiting := waiting or file.read(_PACKED_BYTES):
        stream = lzma.LZMADecompressor(memlimit=_XZ_MEMORY_BYTES)
        while not stream.eof:
            block = stream.decompress(waiting, BLOCK_BYTES)
            waiting = b""
            if block:
                yield block
            elif stream.needs_input and not stream.eof:
                waiting = file.read(_PACKED_BYTES)
                if not waiting:
                    raise EOFError("it is cut off")
        waiting = stream.unused_data.lstrip(b"\0")


def _ahead(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Inflate on a thread of its own, a few pieces ahead; cut them to blocks that fit a cache."""
    with ThreadPoolExecutor(1, thread_name_prefix="gpusight-inflate") as pool:
        ready = deque(pool.submit(next, pieces, None) for _ in range(_AHEAD))
        while (piece := ready.popleft().result()) is not None:
            ready.append(pool.submit(next, pieces, None))
            for start in range(0, len(piece), BLOCK_BYTES):
                yield piece[start : start + BLOCK_BYTES]


_MAX_KERNEL_INFO_BYTES = 1 << 28
"""A file of a million kernels has a fifth of this."""
_MAX_TIMINGS_BYTES = 1 << 26
"""Ten times what a million timings take."""


def read_kernel_info(path: Path) -> str:
    """Read a kernel-info file; refuse binary or huge ones."""
    content = _start_of(path, _MAX_KERNEL_INFO_BYTES + 1, NotACaptureError)
    if len(content) > _MAX_KERNEL_INFO_BYTES or b"\0" in content:
        why = "it is far too large" if len(content) > _MAX_KERNEL_INFO_BYTES else "it is not text"
        raise NotACaptureError(f"{path} is not a kernel-info file", why=why)
    return content.decode("utf-8", "replace")


def _start_of(path: Path, length: int, failure: type[GpusightError]) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(length)
    except OSError as error:
        raise failure(f"cannot read {path}", why=error.strerror or str(error)) from error


def read_timings_file(path: Path) -> str:
    """Read a CSV file of timings; refuse binary or huge ones."""
    content = _start_of(path, _MAX_TIMINGS_BYTES + 1, UsageError)
    if len(content) > _MAX_TIMINGS_BYTES or b"\0" in content:
        raise UsageError(f"{path} holds no timings", why="it is not a CSV file of a few megabytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:  # an old spreadsheet's, where µ is one byte
        return content.decode("cp1252", "replace")
