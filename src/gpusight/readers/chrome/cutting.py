"""Cuts a list of JSON objects into pieces of whole objects, wherever the bytes happen to end.

A place that looks like the end of an object (`}` then a comma and `{`, or `]`) may lie inside a
string or a nested list. The decoder tells: what stands before such a place is a valid list exactly
when the place is what it looks like. Only where several guesses fail is the text scanned properly.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Decode = Callable[[bytes], list["T"]]

T = TypeVar("T")

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding text that is no JSON, or nests beyond all reason, raises."""
_MOST_BRACKETS = 4_000_000
"""In what is scanned at a time: real events have a hundredth of it."""
_GUESSES = 6
_WINDOW = 1 << 16
"""How far from the end of a piece its last object is looked for at first."""
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_LAST = re.compile(rb"\}\s*,?\s*\]")
# A string that the buffer cuts off reaches to its end: nothing inside it is a bracket.
_TOKENS = re.compile(rb'"(?:[^"\\]+|\\.)*(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)


class TooManyBracketsError(ValueError):
    """Text that is nearly all brackets: no trace, and a scan of it would take minutes."""


class Piece(NamedTuple):
    """Where whole objects stand in a buffer, and what follows them."""

    ends: list[tuple[int, int]]
    """First byte and last-plus-one of each object."""
    rest: int
    """Where the text after them begins."""
    closed: bool
    """The list ends there."""


def guesses(buffer: bytes, *, last: bool) -> Iterator[tuple[int, int]]:
    """Give likely ends of the last whole object, the latest first, and where the rest begins."""
    pattern = _LAST if last else _BETWEEN
    found = [m.span() for m in pattern.finditer(buffer, max(0, len(buffer) - _WINDOW))]
    for start, end in found[: -_GUESSES - 1 : -1]:
        yield start + 1, end


def scan(buffer: bytes) -> Piece:
    """Find every whole object of a list from the start of one, the slow and certain way."""
    ends: list[tuple[int, int]] = []
    depth, began = 0, 0
    for count, match in enumerate(_TOKENS.finditer(buffer)):
        if count > _MOST_BRACKETS:
            raise TooManyBracketsError
        token = buffer[match.start()]
        if token in b"{[":
            began = match.start() if depth == 0 else began
            depth += 1
        elif token in b"}]":
            depth -= 1
            if depth < 0:
                return Piece(ends, match.end(), closed=True)
            if depth == 0:
                ends.append((began, match.end()))
    return Piece(ends, _after(buffer, ends), closed=False)


def _after(buffer: bytes, ends: list[tuple[int, int]]) -> int:
    if not ends:
        return 0
    rest = ends[-1][1]
    comma = re.match(rb"\s*,", buffer[rest : rest + 64])
    return rest + comma.end() if comma else rest


_NOT_NUMBERS = re.compile(rb"(:\s*)-?(?:inf|nan|infinity)\b", re.IGNORECASE)
_BAD_ESCAPES = re.compile(rb'\\(?!["\\/bfnrtu])')


def repaired(text: bytes) -> bytes:
    """Undo what profilers have been seen to write that is not JSON.

    Numbers that are none (`inf`), backslashes of Windows paths, bytes that are not UTF-8.
    """
    text = text.decode("utf-8", "replace").encode()
    return _BAD_ESCAPES.sub(rb"\\\\", _NOT_NUMBERS.sub(rb"\1null", text))


def decode_each(buffer: bytes, piece: Piece, decode: Decode[T]) -> tuple[list[T], int]:
    """Decode the objects of a piece; those that cannot be are left out and counted."""
    if not piece.ends:
        return [], 0
    try:
        return decode(b"[%b]" % buffer[piece.ends[0][0] : piece.ends[-1][1]]), 0
    except NOT_JSON:
        return _one_by_one([buffer[start:end] for start, end in piece.ends], decode)


def _one_by_one(texts: list[bytes], decode: Decode[T]) -> tuple[list[T], int]:
    decoded = [_repair_and_decode(text, decode) for text in texts]
    return [event for events in decoded for event in events], decoded.count([])


def _repair_and_decode(text: bytes, decode: Decode[T]) -> list[T]:
    try:
        return decode(b"[%b]" % repaired(text))
    except NOT_JSON:
        return []
