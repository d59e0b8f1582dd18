"""The events of a Chrome trace, a bounded number at a time, and what stands around them."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from gpusight.errors import CaptureError, DamagedCaptureError, NotACaptureError
from gpusight.readers.chrome import cutting

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpusight.readers.blocks import Blocks

_PIECE_BYTES = 1 << 19
_LONGEST_EVENT = 1 << 27
_LONGEST_HEAD = 1 << 26
_MOST_KEYS = 16
"""Places that only look like the beginning of the events: no head has as many."""
_BOM = b"\xef\xbb\xbf"
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*(?=\[)')
_FRACTION = re.compile(rb'"ts"\s*:\s*\d+\.\d*[1-9]')
_EXACT_BELOW = float(1 << 43)
"""Microseconds below which a double still tells nanoseconds apart."""
_NO_ARGS = msgspec.Raw(b"{}")
_NULL = msgspec.Raw(b"null")


class Event(msgspec.Struct, gc=False):
    """One event; its arguments stay text until someone asks for them."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: float | str | None = None
    dur: float | str | None = None
    args: msgspec.Raw = _NO_ARGS


class ExactEvent(msgspec.Struct, gc=False):
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

    def __init__(self, path: Path, blocks: Blocks, decoder: Any = None) -> None:
        self._path = path
        self._blocks = blocks
        # Who brings a decoder gets what that makes of events; ours depends on their times.
        self._decoder: Any = decoder or msgspec.json.Decoder(list[Event])
        self._settled = decoder is not None
        self.exact = False
        """Events are `ExactEvent`."""
        self.about: dict[str, Any] = {}
        """What the file says beside the events, known in full at the end."""
        self.unreadable = 0
        """Events left out because they are not JSON."""
        self.cut_off = False
        """The file ends before the list of events does."""
        self.left_over = False
        """Something follows the list of events that belongs to no trace."""

    def __iter__(self) -> Iterator[list[Any]]:
        """Give events, about half a megabyte of them at a time."""
        blocks = iter(self._blocks)
        waiting = [self._read_head(blocks)]
        closed, size, enough = False, len(waiting[0]), _PIECE_BYTES
        for block in blocks:
            waiting.append(block)
            size += len(block)
            if closed and size > _LONGEST_HEAD:
                break
            if closed or size < enough:
                continue
            buffer = b"".join(waiting)
            events, rest, closed = self._cut(buffer)
            waiting = [buffer[rest:].lstrip()]
            size = len(waiting[0])
            enough = max(_PIECE_BYTES, 2 * size)
            if enough > _LONGEST_EVENT and not closed:
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
            why="it holds an event without end",
            hint="copy or export it again",
        )

    # Around the events ---------------------------------------------------------------------------

    def _read_head(self, blocks: Iterator[bytes]) -> bytes:
        """Read up to the first event; gives what was read beyond."""
        buffer = next(blocks, b"").removeprefix(_BOM).lstrip()
        if buffer.startswith(b"["):
            return buffer[1:]
        looked = tried = 0
        while tried < _MOST_KEYS and looked <= _LONGEST_HEAD:
            for match in islice(_EVENTS_KEY.finditer(buffer, max(0, looked - 64)), _MOST_KEYS):
                tried += 1
                # Only outside of strings and other values does this make a whole object.
                head = _object(buffer[: match.end()] + b"0}")
                if head is not None:
                    self.about = {k: v for k, v in head.items() if k != "traceEvents"}
                    return buffer[match.end() + 1 :]
            looked = len(buffer)
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
        """Decode the whole events of a buffer; gives where the rest begins, and whether it ends."""
        for end, rest in cutting.guesses(buffer, last=False):
            events = self._try(buffer[:end])
            if events is not None:
                return events, rest, False
        piece = self._scan(buffer)
        return self._decode_each(buffer, piece), piece.rest, piece.closed

    def _scan(self, buffer: bytes) -> cutting.Piece:
        try:
            return cutting.scan(buffer)
        except cutting.TooManyBracketsError as error:
            raise self._endless() from error

    def _finish(self, buffer: bytes) -> tuple[list[Any], bytes]:
        for end, rest in cutting.guesses(buffer, last=True):
            events = self._try(buffer[:end])
            if events is not None:
                return events, buffer[rest:]
        piece = self._scan(buffer)
        self.cut_off = not piece.closed
        return self._decode_each(buffer, piece), buffer[piece.rest :]

    def _decode_each(self, buffer: bytes, piece: cutting.Piece) -> list[Any]:
        events, bad = cutting.decode_each(buffer, piece, self._decode)
        self.unreadable += bad
        return events

    def _try(self, text: bytes) -> list[Any] | None:
        try:
            return self._decode(b"[%b]" % text)
        except cutting.NOT_JSON:
            return None

    def _decode(self, text: bytes) -> list[Any]:
        events: list[Any] = self._decoder.decode(text)
        if not self._settled and self._needs_exact(events, text):
            self._decoder = msgspec.json.Decoder(list[ExactEvent])
            self.exact = True
            return self._decoder.decode(text)  # type: ignore[no-any-return]
        return events

    def _needs_exact(self, events: list[Any], text: bytes) -> bool:
        """Tell, by the first events with a time, whether doubles would round the times."""
        times = [e.ts for e in events if isinstance(e.ts, float) and e.ts]
        self._settled = bool(times)
        return bool(times) and max(times) >= _EXACT_BELOW and bool(_FRACTION.search(text))


def _object(text: bytes) -> dict[str, Any] | None:
    for attempt in (text, cutting.repaired(text)):
        try:
            value = msgspec.json.decode(attempt)
        except cutting.NOT_JSON:
            continue
        return value if isinstance(value, dict) else None
    return None
