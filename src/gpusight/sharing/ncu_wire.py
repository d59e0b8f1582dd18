"""Protobuf messages taken apart and put together again, field by field."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpusight.readers.protobuf.wire import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    WireError,
    read_span,
    read_varint,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_SIZES = {FIXED64: 8, FIXED32: 4}


class Field(NamedTuple):
    """Where a field lies: its tag, what it holds, and whether that is bytes or a number."""

    number: int
    first: int
    """Where its tag begins."""
    start: int
    end: int
    is_bytes: bool


def fields_of(data: bytes) -> Iterator[Field]:
    """Find the fields of a message."""
    at, end = 0, len(data)
    while at < end:
        first = at
        tag, at = read_varint(data, at, end)
        kind = tag & 7
        if kind == BYTES:
            start, at = read_span(data, at, end)
            yield Field(tag >> 3, first, start, at, is_bytes=True)
            continue
        start = at
        if kind == VARINT:
            _, at = read_varint(data, at, end)
        elif kind in _SIZES:
            at += _SIZES[kind]
            if at > end:
                raise WireError("a fixed-width number is cut off")
        else:
            raise WireError(f"wire type {kind} does not exist")
        yield Field(tag >> 3, first, start, at, is_bytes=False)


def varint(value: int) -> bytes:
    """Write a number; one below zero as the unsigned one that has the same bits."""
    value &= (1 << 64) - 1
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def number(field: int, value: int) -> bytes:
    """Write a field that holds a number."""
    return varint(field << 3 | VARINT) + varint(value)


def block(field: int, content: bytes) -> bytes:
    """Write a field that holds a text or a message."""
    return varint(field << 3 | BYTES) + varint(len(content)) + content
