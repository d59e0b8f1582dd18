"""The buffers that CUPTI fills, the records in them, and the strings that records point to."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import tempfile
import threading
from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING

from gpusight.recording.inside.cupti_library import LAYOUTS, RecordLayout, RecordReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Any

    from gpusight.recording.inside.cupti_library import Cupti


BUFFER_BYTES = 4 << 20
"""Some 20,000 kernels. CUPTI holds a few for each thread; pages not written take no memory."""
_IN_MEMORY = 16
"""Buffers kept in memory; when there are more, they go to a temporary file that has no name."""
_TEXTS = {kind: layout.texts for kind, layout in LAYOUTS.items() if layout.texts}


class CuptiBuffers:
    """Gives buffers to CUPTI and keeps a copy of what comes back.

    CUPTI calls on threads of its own and in the middle of the program's CUDA calls, so nothing here
    waits for a lock: the garbage collector may run in any of these lines, free something on the
    GPU, and so have CUPTI call again on the same thread.
    """

    def __init__(self, walker: BufferWalker, texts: StringIds) -> None:
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
        """Return the address and the size of an empty buffer."""
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
        positions, end = self._walker.positions(records)
        for kind, offsets in _TEXTS.items():
            if kind in positions:
                self._texts.keep(records, positions[kind], offsets)
        self.counts.update({kind: len(starts) for kind, starts in positions.items()})
        self.lost_bytes += len(records) - end
        del records[end:]
        self._recent.append(records)

    @property
    def unkept(self) -> str:
        """Describe the records that there was no space for, if any."""
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
        rest = memoryview(records)
        while rest:
            rest = rest[self._file.write(rest) :]

    def contents(self) -> Iterator[bytearray]:
        """Yield what each buffer held, in the order in which they came back."""
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
        """Free the space."""
        if self._file is not None:
            self._file.close()
        self._recent.clear()


_WORD = 4
_ALIGNMENT = 8
"""Records begin, and addresses in them lie, at multiples of this."""


class BufferWalker:
    """Splits buffers into records.

    Records follow each other without gaps; the library knows how long one of a kind is.
    """

    def __init__(self, cupti: Cupti) -> None:
        self._cupti = cupti
        self._words: dict[int, int] = {}
        self._readers: dict[int, RecordReader] = {}

    def rows(self, buffer: bytearray) -> Iterator[tuple[RecordLayout, list[tuple[Any, ...]]]]:
        """Yield the rows of each kind that we read, in the order of the buffer."""
        for kind, starts in self.positions(buffer)[0].items():
            if kind in self._readers:
                row = self._readers[kind].row
                yield LAYOUTS[kind], [row(buffer, start) for start in starts]

    def positions(self, buffer: bytearray) -> tuple[dict[int, list[int]], int]:
        """List where the records of each kind begin, and where what can be read ends."""
        words = memoryview(buffer)[: len(buffer) // _ALIGNMENT * _ALIGNMENT].cast("I")
        positions: dict[int, list[int]] = defaultdict(list)
        sizes, word, end = self._words, 0, len(words)
        while word < end:
            kind = words[word]
            size = sizes.get(kind) or self._learn(kind, buffer, word)
            if not size:
                break
            positions[kind].append(word * _WORD)
            word += size
        return positions, word * _WORD

    def _learn(self, kind: int, buffer: bytearray, word: int) -> int:
        """Query CUPTI how long a record of this kind is, in words; 0 where it does not know."""
        start = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        size = self._cupti.record_size(start, len(buffer), word * _WORD)
        if not size or size % _ALIGNMENT or kind == 0:
            return 0
        self._words[kind] = size // _WORD
        if kind in LAYOUTS:
            self._readers[kind] = LAYOUTS[kind].reader(size)
        return self._words[kind]


class StringIds:
    """Numbers every text once, as the table `StringIds` does; 0 is no text."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._unused = itertools.count(1)

    def number(self, text: str) -> int:
        """Return a text's number."""
        return self._of(text.encode("utf-8", "surrogateescape"))

    def keep(self, buffer: bytearray, starts: list[int], offsets: tuple[int, ...]) -> None:
        """Replace the addresses of texts in these records by the texts' numbers.

        CUPTI promises the texts only until it has its buffer back, and the same address may hold
        another text later.
        """
        words, read, numbers = memoryview(buffer).cast("q"), ctypes.string_at, self._numbers
        for offset in offsets:
            for start in starts:
                word = (start + offset) // _ALIGNMENT
                address = words[word]
                if address:
                    text = read(address)
                    words[word] = numbers.get(text) or self._of(text)

    def items(self) -> list[tuple[int, str]]:
        """List all numbers and texts."""
        return [(number, text.decode("utf-8", "replace")) for text, number in self._numbers.items()]

    def _of(self, text: bytes) -> int:
        known = self._numbers.get(text)
        # Two threads may call at once: the first to answer counts, and a number is lost.
        return known or self._numbers.setdefault(text, next(self._unused))
