"""The events of a Chrome trace, in chunks of whole JSON objects of bounded size."""

from __future__ import annotations

import re
import threading
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from gpusight.core.library import core_library
from gpusight.errors import DamagedCaptureError, NotACaptureError
from gpusight.readers.chrome_scan import (
    NOT_JSON,
    FilePlace,
    ScannedEvents,
    event_columns,
    in_turn,
)
from gpusight.readers.file_blocks import reading_bytes
from gpusight.sniff import BOM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gpusight.readers.file_blocks import FileBlocks, PlainFile


_MAX_BRACKETS = 4_000_000
"""In what is scanned at a time: real events have a hundredth of it."""
_GUESSES = 6
_WINDOW = 1 << 16
"""How far from the end of a chunk its last object is searched first."""
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_NEXT = re.compile(rb'\}\s*,(?=\s*\{\s*"(?:ph|cat|name|pid|tid|ts|dur|args)"\s*:)')
_LAST = re.compile(rb"\}\s*,?\s*\]")
# A string that the buffer cuts off reaches to its end: nothing inside it is a bracket.
_TOKENS = re.compile(rb'"(?:[^"\\]+|\\.)*(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)


_NOT_NUMBERS = re.compile(rb"(:\s*)-?(?:inf|nan|infinity)\b", re.IGNORECASE)
_BAD_ESCAPES = re.compile(rb'\\(?!["\\/bfnrtu])')


def repaired(text: bytes) -> bytes:
    """Undo what profilers have been seen to write that is not JSON.

    Numbers that are none (`inf`), backslashes of Windows paths, bytes that are not UTF-8.
    """
    text = text.decode("utf-8", "replace").encode()
    return _BAD_ESCAPES.sub(rb"\\\\", _NOT_NUMBERS.sub(rb"\1null", text))


_CHUNK_BYTES = 1 << 19
_SCANNED_BYTES = 1 << 22
"""Of JSON that the compiled core decodes at a time."""
_MAX_ODD = 4
"""Texts that the core cannot decode before no more are given to it."""
_AHEAD_BYTES = 1 << 23
"""Of JSON in a file that a thread decodes at a time."""
_MAX_STRETCHES = 16
"""How often threads begin again after a part of which they were not sure."""
_MAX_EVENT_BYTES = 1 << 27
_MAX_HEAD_BYTES = 1 << 26
_MAX_KEYS = 16
"""Places that only look like the beginning of the events: no head has as many."""
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*(?=\[)')
_FRACTION = re.compile(rb'"ts"\s*:\s*\d+\.\d*[1-9]')
_EXACT_BELOW = float(1 << 43)
"""Microseconds below which a double still resolves nanoseconds."""
_NO_ARGS = msgspec.Raw(b"{}")
_NULL = msgspec.Raw(b"null")


class ChromeEvent(msgspec.Struct, gc=False):
    """One event; its arguments stay text until they are needed."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: float | str | None = None
    dur: float | str | None = None
    args: msgspec.Raw = _NO_ARGS


class ExactChromeEvent(ChromeEvent, gc=False):
    """One event of a trace whose times have more digits than a double keeps."""

    ts: msgspec.Raw = _NULL  # type: ignore[assignment]
    dur: msgspec.Raw = _NULL  # type: ignore[assignment]


_Sorted = TypeVar("_Sorted")
Sort: TypeAlias = "Callable[[ScannedEvents, Callable[[bytes], list[Any]]], _Sorted | None]"
"""Sorts events that the core decoded, given what turns JSON into events; None where it cannot."""


class _PartOfFile(NamedTuple):
    """Events of a part of a file, and where it lies."""

    begin: int
    end: int
    events: Any
    closed: bool


class EventReader:
    """Reads a trace from its first byte to its last, once."""

    def __init__(self, path: Path, blocks: FileBlocks, decoder: Any = None) -> None:
        self._path = path
        self._blocks = blocks
        # Without a decoder of the caller's, the first event times decide which struct is used.
        self._decoder: Any = decoder or msgspec.json.Decoder(list[ChromeEvent])
        self._settled = decoder is not None
        self._uses_core = decoder is None and core_library() is not None
        self._odd = 0
        self._stretches = _MAX_STRETCHES
        self._at = 0
        """Up to where the file was read; of a compressed one, its content."""
        self._waiting = b""
        """What was read beyond."""
        self._closed = False
        """The list of events ended."""
        self.exact = False
        """Events are `ExactChromeEvent`."""
        self.about: dict[str, Any] = {}
        """Keys of the file next to `traceEvents`, complete at the end."""
        self.unreadable = 0
        """Events left out because they are not JSON."""
        self.cut_off = False
        """The file ends before the list of events does."""
        self.left_over = False
        """Something follows the list of events that belongs to no trace."""

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield events, about half a megabyte of JSON at a time."""
        self._uses_core = False
        events: Iterator[list[Any]] = self.chunks(lambda _events, _decode: None)
        yield from events

    def chunks(self, sort: Sort[_Sorted]) -> Iterator[list[Any] | _Sorted]:
        """Yield events in parts: sorted where the core decoded them, else as they are."""
        blocks = self._counted()
        self._waiting = self._read_head(blocks)
        self._at -= len(self._waiting)
        file = self._blocks.plain_file() if self._uses_core else None
        is_open = True
        while is_open:
            is_open = False
            for events in self._one_by_one(blocks, sort):
                yield events
                is_open = file is not None and not self._closed and self._reads_ahead(file)
                if is_open:
                    break
            if file is not None and is_open:
                yield from self._ahead(file, sort)
                blocks, self._waiting = file.blocks(self._at), b""
        self.cut_off = not self._closed
        if self._closed and (tail := self._waiting.strip()) not in (b"", b"}"):
            about = _object(b'{"":0' + tail)
            if about is None or "traceEvents" in about:
                self.left_over = True
            else:
                self.about |= {key: value for key, value in about.items() if key}

    def _counted(self) -> Iterator[bytes]:
        for block in self._blocks:
            self._at += len(block)
            yield block

    def _one_by_one(
        self, blocks: Iterator[bytes], sort: Sort[_Sorted]
    ) -> Iterator[list[Any] | _Sorted]:
        """Yield events as blocks come; what is left at the end waits."""
        at, waiting, size = self._at, [self._waiting], len(self._waiting)
        min_size = self._least_bytes(size)
        for block in blocks:
            waiting.append(block)
            size += len(block)
            if self._closed and size > _MAX_HEAD_BYTES:
                break
            if self._closed or size < min_size:
                continue
            buffer = b"".join(waiting)
            events, rest, self._closed = self._cut(buffer, sort, last=False)
            self._waiting = buffer[rest:].lstrip()
            at += len(buffer) - len(self._waiting)
            self._at = at
            waiting, size = [self._waiting], len(self._waiting)
            min_size = self._least_bytes(size)
            if min_size > _MAX_EVENT_BYTES and not self._closed:
                raise self._endless()
            yield events
        self._waiting = b"".join(waiting)
        if not self._closed:
            events, rest, self._closed = self._cut(self._waiting, sort, last=True)
            self._waiting = self._waiting[rest:]
            yield events

    def _least_bytes(self, waiting: int) -> int:
        """Return how much to decode at a time."""
        scans = self._uses_core and self._settled
        return max(_SCANNED_BYTES if scans else _CHUNK_BYTES, 2 * waiting)

    def _reads_ahead(self, file: PlainFile) -> bool:
        """Return whether threads should decode what follows."""
        wanted = self._uses_core and self._settled and self._stretches > 0
        return wanted and file.size - self._at > _AHEAD_BYTES

    def _ahead(self, file: PlainFile, sort: Sort[_Sorted]) -> Iterator[list[Any] | _Sorted]:
        """Yield events that two threads decode, up to a part that one of them is not sure about.

        Where a part begins is a guess, which counts if the part before it ends there.
        """
        self._stretches -= 1
        starts = range(self._at, file.size, _AHEAD_BYTES)
        memory = threading.local()

        def scan(start: int) -> _PartOfFile | None:
            if not hasattr(memory, "buffer"):
                memory.buffer = memoryview(bytearray(_AHEAD_BYTES + _WINDOW))
                memory.columns = event_columns(len(memory.buffer))
            text = memory.buffer[: file.read_into(memory.buffer, start)]
            begin = 0 if start == starts[0] else _next_event(text, 0)
            end = len(text) if start == starts[-1] else _next_event(text, _AHEAD_BYTES)
            if begin is None or end is None:
                return None
            events = ScannedEvents.of(
                text[begin:end],
                exact=self.exact,
                columns=memory.columns,
                place=FilePlace(file, start + begin),
            )
            if events is None:
                return None
            chunk = self._sorted(events, sort)
            begin += start
            return _PartOfFile(begin, begin + events.used, chunk, events.closed)

        with reading_bytes(file.size) as progress:
            for part in in_turn(scan, starts):
                if part is None or part.begin != self._at or self._closed:
                    break
                self._at, self._closed = part.end, part.closed
                progress.done_bytes = part.end
                yield part.events

    def _sorted(self, events: ScannedEvents, sort: Sort[_Sorted]) -> list[Any] | _Sorted:
        chunk = sort(events, self.decoded)
        return self.decoded(events.text) if chunk is None else chunk

    def _endless(self) -> DamagedCaptureError:
        return DamagedCaptureError(
            f"{self._path} is damaged",
            why="it has an event without an end",
            hint="copy or export it again",
        )

    def _read_head(self, blocks: Iterator[bytes]) -> bytes:
        """Read up to the first event; return what was read beyond."""
        buffer = next(blocks, b"").removeprefix(BOM).lstrip()
        if buffer.startswith(b"["):
            return buffer[1:]
        searched = tried = 0
        while tried < _MAX_KEYS and searched <= _MAX_HEAD_BYTES:
            for match in islice(_EVENTS_KEY.finditer(buffer, max(0, searched - 64)), _MAX_KEYS):
                tried += 1
                # Only outside of strings and other values does this make a whole object.
                head = _object(buffer[: match.end()] + b"0}")
                if head is not None:
                    self.about = {k: v for k, v in head.items() if k != "traceEvents"}
                    return buffer[match.end() + 1 :]
            searched = len(buffer)
            block = next(blocks, b"")
            if not block:
                break
            buffer += block
        why = "it has no list of events (traceEvents)"
        if self._blocks.problem or _object(buffer) is None:
            raise DamagedCaptureError(
                f"{self._path} is cut off or damaged", why=why, hint="copy or export it again"
            )
        raise NotACaptureError(
            f"{self._path} is JSON, but not a trace",
            why=why,
            hint="export one with: prof.export_chrome_trace('trace.json.gz')",
        )

    def decoded(self, text: bytes) -> list[Any]:
        """Decode the JSON of events that the core has decoded already."""
        events: list[Any] = self._decoder.decode(b"[%b]" % text)
        return events

    def _cut(
        self, buffer: bytes, sort: Sort[_Sorted], *, last: bool
    ) -> tuple[list[Any] | _Sorted, int, bool]:
        """Decode the whole events of a buffer; return them, where the rest begins, if it ended."""
        if self._uses_core and self._settled:
            scanned = ScannedEvents.of(buffer, exact=self.exact)
            if scanned is not None and scanned.closed >= last:
                return self._sorted(scanned, sort), scanned.used, scanned.closed
            self._odd += 1
            self._uses_core = self._odd < _MAX_ODD
        pattern = _LAST if last else _BETWEEN
        matches = [m.span() for m in pattern.finditer(buffer, max(0, len(buffer) - _WINDOW))]
        for start, end in matches[: -_GUESSES - 1 : -1]:  # likely ends, the latest first
            events = self._try(buffer[: start + 1])
            if events is not None:
                return events, end, last
        ends, rest, closed = self._scan(buffer)
        return self._decode_each(buffer, ends), rest, closed

    def _scan(self, buffer: bytes) -> tuple[list[tuple[int, int]], int, bool]:
        """Find every whole object of a list from the start of one, the slow and certain way.

        Returns where each begins and ends, where the rest begins, and if the list ends there.
        """
        ends: list[tuple[int, int]] = []
        depth = start = 0
        for count, match in enumerate(_TOKENS.finditer(buffer)):
            if count > _MAX_BRACKETS:
                raise self._endless()
            token = buffer[match.start()]
            if token in b"{[":
                start = match.start() if depth == 0 else start
                depth += 1
            elif token in b"}]":
                depth -= 1
                if depth < 0:
                    return ends, match.end(), True
                if depth == 0:
                    ends.append((start, match.end()))
        rest = ends[-1][1] if ends else 0
        comma = re.match(rb"\s*,", buffer[rest : rest + 64]) if ends else None
        return ends, rest + comma.end() if comma else rest, False

    def _decode_each(self, buffer: bytes, ends: list[tuple[int, int]]) -> list[Any]:
        """Decode objects of a buffer; those that cannot be decoded are left out and counted."""
        if not ends:
            return []
        events = self._try(buffer[ends[0][0] : ends[-1][1]])
        if events is not None:
            return events
        decoded = [self._try(repaired(buffer[start:end])) for start, end in ends]
        self.unreadable += decoded.count(None)
        return [event for events in decoded if events is not None for event in events]

    def _try(self, text: bytes) -> list[Any] | None:
        """Decode events; None if they are not JSON."""
        text = b"[%b]" % text
        try:
            events: list[Any] = self._decoder.decode(text)
            if not self._settled:
                # The first events with a time show whether doubles would round it.
                times = [e.ts for e in events if isinstance(e.ts, float) and e.ts]
                self._settled = bool(times)
                if times and max(times) >= _EXACT_BELOW and _FRACTION.search(text):
                    self.exact = True
                    self._decoder = msgspec.json.Decoder(list[ExactChromeEvent])
                    events = self._decoder.decode(text)
        except NOT_JSON:
            return None
        return events


def _next_event(text: memoryview, start: int) -> int | None:
    """Find where an event seems to begin, just behind the comma before it."""
    found = _NEXT.search(text, start, start + _WINDOW)
    return found.end() if found else None


def _object(text: bytes) -> dict[str, Any] | None:
    for attempt in (text, repaired(text)):
        try:
            value = msgspec.json.decode(attempt)
        except NOT_JSON:
            continue
        return value if isinstance(value, dict) else None
    return None
