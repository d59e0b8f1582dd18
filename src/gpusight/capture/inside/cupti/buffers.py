"""The buffers that CUPTI fills, and where what they held is kept until the end."""

from __future__ import annotations

import ctypes
import mmap
import tempfile
import threading
from collections import Counter, deque
from typing import TYPE_CHECKING

from gpusight.capture.inside.cupti.layouts import LAYOUTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

    from gpusight.capture.inside.cupti.texts import Texts
    from gpusight.capture.inside.cupti.walk import Walker

BUFFER_BYTES = 4 << 20
"""Some 20,000 kernels. CUPTI holds a few for each thread; pages not written take no memory."""
_IN_MEMORY = 16
"""Buffers kept in memory; when there are more, they go to a temporary file that has no name."""
_TEXTS = {kind: layout.texts for kind, layout in LAYOUTS.items() if layout.texts}


class Buffers:
    """Lends buffers to CUPTI and keeps a copy of what comes back.

    CUPTI calls on threads of its own and in the middle of the program's CUDA calls, so nothing here
    waits for a lock: the garbage collector may run in any of these lines, free something on the
    GPU, and so have CUPTI call again on the same thread.
    """

    def __init__(self, walker: Walker, texts: Texts) -> None:
        self._walker = walker
        self._texts = texts
        self._free: list[int] = []
        self._memory: dict[int, mmap.mmap] = {}
        self._recent: deque[bytearray] = deque()
        self._writing = threading.Lock()
        self._lengths: list[int] = []
        self._file: IO[bytes] | None = None
        self._forgotten = False
        self.counts: Counter[int] = Counter()
        """Records of each kind."""
        self.lost_bytes = 0
        """Of buffers in which a record of unknown length lay, what came after it."""
        self._unkept_bytes, self._unkept_why = 0, ""

    def request(self) -> tuple[int, int]:
        """Give the address and the size of an empty buffer."""
        try:
            return self._free.pop(), BUFFER_BYTES
        except IndexError:
            memory = mmap.mmap(-1, BUFFER_BYTES)
            address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            self._memory[address] = memory
            return address, BUFFER_BYTES

    def complete(self, address: int, valid: int) -> None:
        """Keep the first `valid` bytes of a buffer, and have it back."""
        try:
            if valid and not self._forgotten:
                self._keep(bytearray(memoryview(self._memory[address])[: valid // 8 * 8]))
        finally:
            self._free.append(address)
        if len(self._recent) > _IN_MEMORY and self._writing.acquire(blocking=False):
            try:
                self._write_recent()
            finally:
                self._writing.release()

    def _keep(self, records: bytearray) -> None:
        places, end = self._walker.places(records)
        for kind, offsets in _TEXTS.items():
            if kind in places:
                self._texts.keep(records, places[kind], offsets)
        self.counts.update({kind: len(found) for kind, found in places.items()})
        self.lost_bytes += len(records) - end
        del records[end:]
        self._recent.append(records)

    @property
    def unkept(self) -> str:
        """Say what there was no place for, if anything."""
        if not self._unkept_bytes:
            return ""
        return f"{self._unkept_bytes} bytes of records could not be kept: {self._unkept_why}"

    def _write_recent(self) -> None:
        while self._recent:
            records = self._recent.popleft()
            try:
                self._append(records)
                self._lengths.append(len(records))
            except OSError as error:  # a full disk: the program's memory is no place for the rest
                self._unkept_bytes += len(records)
                self._unkept_why = str(error)

    def _append(self, records: bytearray) -> None:
        """Write behind what was kept; where an earlier one was cut off, over what it left."""
        if self._file is None:  # unbuffered: a fork must not find anything to write a second time
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by `close`
        self._file.seek(sum(self._lengths))
        left = memoryview(records)
        while left:
            left = left[self._file.write(left) :]

    def contents(self) -> Iterator[bytearray]:
        """Give what each buffer held, in the order in which they came back."""
        if self._file is not None:
            self._file.seek(0)
            for length in self._lengths:
                yield bytearray(self._file.read(length))
        yield from self._recent

    def forget(self) -> None:
        """Keep nothing any more: in a forked child the file is the parent's."""
        self._forgotten = True
        self._recent.clear()
        self._lengths.clear()
        self.counts.clear()

    def close(self) -> None:
        """Give the space back."""
        if self._file is not None:
            self._file.close()
        self._recent.clear()
