"""Profiles of JAX built by hand: an XSpace written field by field, as protobuf lays it out.

    space(plane("/device:GPU:0", line("Stream #7", event("gemm", 10, 5, correlation_id=3))))

Times of events are nanoseconds. Stats are written by the type of their value: whole numbers, real
numbers and texts, which the profiler stores once and refers to; `Inline` texts stand in the event.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple


class Inline(str):
    """A text that is written where it is used."""

    __slots__ = ()


class Event(NamedTuple):
    name: str
    offset_ns: float
    duration_ns: float
    stats: dict[str, Any]


class Line(NamedTuple):
    name: str
    number: int
    timestamp_ns: int
    events: tuple[Event | bytes, ...]


def event(name: str, offset_ns: float = 0, duration_ns: float = 0, **stats: Any) -> Event:
    return Event(name, offset_ns, duration_ns, stats)


def line(name: str, *events: Event | bytes, number: int = 1, timestamp_ns: int = 0) -> Line:
    return Line(name, number, timestamp_ns, events)


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def whole(number: int, value: int) -> bytes:
    """A number; protobuf leaves zeros out."""
    return varint(number << 3) + varint(value) if value else b""


def block(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


class Words:
    """Numbers texts as they come, from 1."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers) + 1)

    def entries(self, field: int) -> bytes:
        return b"".join(
            block(field, whole(1, number) + block(2, whole(1, number) + block(2, text.encode())))
            for text, number in self.numbers.items()
        )


def stat(words: Words, name: str, value: Any) -> bytes:
    head = whole(1, words(name))
    if isinstance(value, Inline):
        return head + block(5, value.encode())
    if isinstance(value, str):
        return head + varint(7 << 3) + varint(words(value))
    if isinstance(value, float):
        return head + varint(2 << 3 | 1) + struct.pack("<d", value)
    return head + varint(4 << 3) + varint(value)


def plane(
    name: str,
    *lines: Line,
    stats: dict[str, Any] | None = None,
    raw_stats: dict[int, int] | None = None,
    display: dict[str, str] | None = None,
) -> bytes:
    """`raw_stats` are numbers by numbers, as scopes are; `display` names events anew."""
    kinds, words = Words(), Words()
    drawn = b"".join(block(3, _line(each, kinds, words)) for each in lines)
    facts = b"".join(block(6, stat(words, k, v)) for k, v in (stats or {}).items())
    facts += b"".join(block(6, whole(1, k) + whole(4, v)) for k, v in (raw_stats or {}).items())
    named = b"".join(
        block(4, whole(1, kinds(long)) + block(2, block(2, long.encode()) + block(4, s.encode())))
        for long, s in (display or {}).items()
    )
    return block(
        1, block(2, name.encode()) + drawn + kinds.entries(4) + named + words.entries(5) + facts
    )


def _line(line: Line, kinds: Words, words: Words) -> bytes:
    events = b"".join(
        block(4, each if isinstance(each, bytes) else _event(each, kinds, words))
        for each in line.events
    )
    head = whole(1, line.number) + block(2, line.name.encode()) + whole(3, line.timestamp_ns)
    return head + events


def _event(event: Event, kinds: Words, words: Words) -> bytes:
    times = whole(2, round(event.offset_ns * 1000)) + whole(3, round(event.duration_ns * 1000))
    stats = b"".join(block(4, stat(words, k, v)) for k, v in event.stats.items())
    return whole(1, kinds(event.name)) + times + stats


def space(
    *planes: bytes, errors: tuple[str, ...] = (), warnings: tuple[str, ...] = (), host: str = ""
) -> bytes:
    texts = [(2, text) for text in errors] + [(3, text) for text in warnings]
    texts += [(4, host)] if host else []
    return b"".join([*planes, *(block(number, text.encode()) for number, text in texts)])
