"""Reading single protobuf messages: for the few small ones next to the events."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator


Message: TypeAlias = "dict[int, list[int | bytes]]"
"""Field number -> its values in file order; varints and fixed-width numbers are unsigned."""

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
NUMBER = -1
"""Stands for the start of a field that holds a number."""
_MAX_FIELDS = 1 << 24
_FIXED_SIZE = {FIXED64: 8, FIXED32: 4}


class WireError(ValueError):
    """The bytes do not follow the format."""


def read_varint(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """Return the unsigned 64-bit number at `at` and the position behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            raise WireError("a number is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise WireError("a number is longer than ten bytes")


def read_span(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """Return start and end of the length-prefixed bytes at `at`."""
    if at < end and (length := data[at]) < 0x80:  # nearly all are, so no call for them
        at += 1
    else:
        length, at = read_varint(data, at, end)
    if length > end - at:
        raise WireError("a length points beyond its surroundings")
    return at, at + length


def parse(data: bytes | memoryview) -> Message:
    """Split one message into its fields."""
    message: Message = {}
    for count, (number, start, value) in enumerate(fields(data, 0, len(data))):
        if count >= _MAX_FIELDS:
            raise WireError("a message has too many fields")
        values = message.setdefault(number, [])
        values.append(value if start == NUMBER else bytes(data[start:value]))
    return message


def fields(data: bytes | memoryview, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the fields of one message: number, start and end; or `NUMBER` and the value."""
    while at < end:
        tag = data[at]
        at += 1
        if tag >= 0x80:
            tag, at = read_varint(data, at - 1, end)
        kind = tag & 7
        if kind == BYTES:
            start, at = read_span(data, at, end)
            yield tag >> 3, start, at
        elif kind == VARINT:
            value, at = read_varint(data, at, end)
            yield tag >> 3, NUMBER, value
        elif kind in _FIXED_SIZE:
            start, at = at, at + _FIXED_SIZE[kind]
            if at > end:
                raise WireError("a fixed-width number is cut off")
            yield tag >> 3, NUMBER, int.from_bytes(data[start:at], "little")
        else:
            raise WireError(f"wire type {kind} does not exist")


def signed(value: int) -> int:
    """Read an unsigned 64-bit number as the signed one that SQLite stores."""
    return value - (1 << 64) if value >> 63 else value


def wrapped(value: int) -> int:
    """Reduce a sum to signed 64 bits, as the arithmetic that made it would."""
    return signed(value & 0xFFFFFFFFFFFFFFFF)


def integer(message: Message, number: int) -> int | None:
    """Return a number field, signed; None when absent."""
    for value in reversed(message.get(number, ())):
        if isinstance(value, int):
            return signed(value)
    return None


def text(message: Message, number: int) -> str | None:
    """Return a text field with invalid UTF-8 replaced; None when absent."""
    for value in reversed(message.get(number, ())):
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
    return None


def children(message: Message, number: int) -> list[Message]:
    """Parse each message held by a repeated field."""
    return [parse(value) for value in message.get(number, ()) if isinstance(value, bytes)]


def child(message: Message, number: int) -> Message:
    """Parse the message held by a single field; empty when absent."""
    messages = children(message, number)
    return messages[-1] if messages else {}
