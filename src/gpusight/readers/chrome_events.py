"""The events of a Chrome trace, in chunks of whole JSON objects of bounded size."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from gpusight.errors import CaptureError, DamagedCaptureError, NotACaptureError
from gpusight.sniff import BOM

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpusight.readers.file_blocks import FileBlocks


NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding text that is no JSON, or nests beyond all reason, raises."""
_MAX_BRACKETS = 4_000_000
"""In what is scanned at a time: real events have a hundredth of it."""
_GUESSES = 6
_WINDOW = 1 << 16
"""How far from the end of a chunk its last object is searched first."""
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_LAST = re.compile(rb"\}\s*,?\s*\]")
# A string that the buffer cuts off reaches to its end: nothing inside it is a bracket.
_TOKENS = re.compile(rb'"(?:[^"\\]+|\\.)*(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)


class JsonChunk(NamedTuple):
    """Positions of whole objects in a buffer, and what follows them."""

    ends: list[tuple[int, int]]
    """First byte and last-plus-one of each object."""
    rest: int
    """Where the text after them begins."""
    closed: bool
    """The list ends there."""


def guess_ends(buffer: bytes, *, last: bool) -> Iterator[tuple[int, int]]:
    """Yield likely ends of the last whole object, the latest first, and where the rest begins."""
    pattern = _LAST if last else _BETWEEN
    matches = [m.span() for m in pattern.finditer(buffer, max(0, len(buffer) - _WINDOW))]
    for start, end in matches[: -_GUESSES - 1 : -1]:
        yield start + 1, end


_NOT_NUMBERS = re.compile(rb"(:\s*)-?(?:inf|nan|infinity)\b", re.IGNORECASE)
_BAD_ESCAPES = re.compile(rb'\\(?!["\\/bfnrtu])')


def repaired(text: bytes) -> bytes:
    """Undo what profilers have been seen to write that is not JSON.

    Numbers that are none (`inf`), backslashes of Windows paths, bytes that are not UTF-8.
    """
    text = text.decode("utf-8", "replace").encode()
    return _BAD_ESCAPES.sub(rb"\\\\", _NOT_NUMBERS.sub(rb"\1null", text))


_CHUNK_BYTES = 1 << 19
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


class ExactChromeEvent(msgspec.Struct, gc=False):
    """One event of a trace whose times have more digits than a double keeps."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: msgspec.Raw = _NULL
    dur: msgspec.Raw = _NULL
    args: msgspec.Raw = _NO_ARGS


class EventReader:
    """Reads a trace from its first byte to its last, once."""

    def __init__(self, path: Path, blocks: FileBlocks, decoder: Any = None) -> None:
        self._path = path
        self._blocks = blocks
        # Without a decoder of the caller's, the first event times decide which struct is used.
        self._decoder: Any = decoder or msgspec.json.Decoder(list[ChromeEvent])
        self._settled = decoder is not None
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
        blocks = iter(self._blocks)
        waiting = [self._read_head(blocks)]
        closed, size, min_size = False, len(waiting[0]), _CHUNK_BYTES
        for block in blocks:
            waiting.append(block)
            size += len(block)
            if closed and size > _MAX_HEAD_BYTES:
                break
            if closed or size < min_size:
                continue
            buffer = b"".join(waiting)
            events, rest, closed = self._cut(buffer)
            waiting = [buffer[rest:].lstrip()]
            size = len(waiting[0])
            min_size = max(_CHUNK_BYTES, 2 * size)
            if min_size > _MAX_EVENT_BYTES and not closed:
                raise self._endless()
            yield events
        tail = b"".join(waiting)
        if not closed:
            events, tail = self._finish(tail)
            yield events
        self._read_tail(tail)

    def _endless(self) -> DamagedCaptureError:
        return DamagedCaptureError(
            f"{self._path} is damaged",
            why="it has an event without an end",
            hint="copy or export it again",
        )

    # Around the events ---------------------------------------------------------------------------

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
        raise self._no_events(buffer)

    def _no_events(self, text: bytes) -> CaptureError:
        if self._blocks.problem or _object(text) is None:
            return DamagedCaptureError(
                f"{self._path} is cut off or damaged",
                why="it has no list of events (traceEvents)",
                hint="copy or export it again",
            )
        return NotACaptureError(
            f"{self._path} is JSON, but not a trace",
            why="it has no list of events (traceEvents)",
            hint="export one with: prof.export_chrome_trace('trace.json.gz')",
        )

    def _read_tail(self, tail: bytes) -> None:
        if self.cut_off:
            return
        tail = tail.strip()
        if not tail or tail == b"}":
            return
        rest = _object(b'{"":0' + tail)
        if rest is None or "traceEvents" in rest:
            self.left_over = True
        else:
            self.about |= {k: v for k, v in rest.items() if k}

    # The events ----------------------------------------------------------------------------------

    def _cut(self, buffer: bytes) -> tuple[list[Any], int, bool]:
        """Decode the whole events of a buffer; return them, where the rest begins, if it ended."""
        for end, rest in guess_ends(buffer, last=False):
            events = self._try(buffer[:end])
            if events is not None:
                return events, rest, False
        chunk = self._scan(buffer)
        return self._decode_each(buffer, chunk), chunk.rest, chunk.closed

    def _scan(self, buffer: bytes) -> JsonChunk:
        """Find every whole object of a list from the start of one, the slow and certain way."""
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
                    return JsonChunk(ends, match.end(), closed=True)
                if depth == 0:
                    ends.append((start, match.end()))
        rest = ends[-1][1] if ends else 0
        comma = re.match(rb"\s*,", buffer[rest : rest + 64]) if ends else None
        return JsonChunk(ends, rest + comma.end() if comma else rest, closed=False)

    def _finish(self, buffer: bytes) -> tuple[list[Any], bytes]:
        for end, rest in guess_ends(buffer, last=True):
            events = self._try(buffer[:end])
            if events is not None:
                return events, buffer[rest:]
        chunk = self._scan(buffer)
        self.cut_off = not chunk.closed
        return self._decode_each(buffer, chunk), buffer[chunk.rest :]

    def _decode_each(self, buffer: bytes, chunk: JsonChunk) -> list[Any]:
        """Decode the objects of a chunk; those that cannot be decoded are left out and counted."""
        if not chunk.ends:
            return []
        events = self._try(buffer[chunk.ends[0][0] : chunk.ends[-1][1]])
        if events is not None:
            return events
        decoded = [self._try(repaired(buffer[start:end])) for start, end in chunk.ends]
        self.unreadable += decoded.count(None)
        return [event for events in decoded if events is not None for event in events]

    def _try(self, text: bytes) -> list[Any] | None:
        try:
            return self._decode(b"[%b]" % text)
        except NOT_JSON:
            return None

    def _decode(self, text: bytes) -> list[Any]:
        events: list[Any] = self._decoder.decode(text)
        if not self._settled and self._needs_exact(events, text):
            self._decoder = msgspec.json.Decoder(list[ExactChromeEvent])
            self.exact = True
            return self._decoder.decode(text)  # type: ignore[no-any-return]
        return events

    def _needs_exact(self, events: list[Any], text: bytes) -> bool:
        """Return, by the first events with a time, whether doubles would round the times."""
        times = [e.ts for e in events if isinstance(e.ts, float) and e.ts]
        self._settled = bool(times)
        return bool(times) and max(times) >= _EXACT_BELOW and bool(_FRACTION.search(text))


def _object(text: bytes) -> dict[str, Any] | None:
    for attempt in (text, repaired(text)):
        try:
            value = msgspec.json.decode(attempt)
        except NOT_JSON:
            continue
        return value if isinstance(value, dict) else None
    return None
