"""Decoding the same field of many protobuf messages at once: numbers and texts as columns."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from gpusight.readers.protobuf_wire import BYTES, FIXED32, FIXED64, VARINT, WireError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.trace.intervals import Flags, Ints, Reals

    Int64: TypeAlias = Ints
    UInt64: TypeAlias = NDArray[np.uint64]
    Rows: TypeAlias = Ints | slice


PADDING = 64
_ALL = slice(None)
_END = np.uint64(0xFFFFFFFFFFFFFFFF)  # above every tag: the message has no field left
_MAX_ROUNDS = 1 << 16  # fields in one message; real ones stay far below
_MAX_COUNTED_RANGE = 1 << 16
_FIXED_WIDTH = {FIXED64: 8, FIXED32: 4}

_U = np.uint64
_TOP_BITS = _U(0x8080808080808080)
_LENGTH_STOPS = _U(0x8080808080)  # five bytes hold any length below 32 GiB
_LOWEST_TO_SIZE = _U(0x0102030405060708)


class FieldValues(NamedTuple):
    """Where a field was found: which messages (all when a slice) and its value in each."""

    rows: Rows
    values: Ints | Reals


class ByteSpans(NamedTuple):
    """Byte ranges in a buffer, and the messages that they belong to."""

    rows: Rows
    start: Int64
    end: Int64


class MessageBuffer:
    """Decompressed bytes, readable as one 64-bit word at any position."""

    def __init__(self, parts: list[bytes]) -> None:
        self.size = sum(len(part) for part in parts)
        padding = PADDING - self.size % 8
        self.bytes = np.frombuffer(b"".join([*parts, bytes(padding)]), np.uint8)
        self._words = self.bytes.view(np.dtype("<u8"))

    def words(self, at: Int64) -> UInt64:
        """Load the eight bytes that start at each position, little-endian."""
        index = at >> 3
        shift = ((at & 7) << 3).view(np.uint64)
        low = self._words.take(index)
        low >>= shift
        index += 1
        high = self._words.take(index)
        high <<= _U(64) - shift  # a shift by 64 yields 0, which is what alignment needs
        low |= high
        return low

    def varints(self, at: Int64) -> tuple[UInt64, Int64]:
        """Decode the varint at each position; return values and sizes in bytes."""
        return _varints(self, self.words(at), at, 8)

    def lengths(self, at: Int64) -> tuple[Int64, UInt64, Int64]:
        """Decode varints that are short enough for a length; return rows, values and sizes."""
        words = self.words(at)
        rows = np.flatnonzero(~words & _LENGTH_STOPS)
        values, size = _varints(self, words[rows], at[rows], 8)
        return rows, values, size


def _varints(buffer: MessageBuffer, words: UInt64, at: Int64, loaded: int) -> tuple[UInt64, Int64]:
    """Decode varints whose first `loaded` bytes are in `words`; longer ones are loaded again."""
    if not (words & _U(0x80)).any():
        return words & _U(0x7F), np.ones(len(words), np.int64)
    lowest, size = _ends(words, loaded)
    lowest -= _U(1)
    values = _compact(words & lowest)
    long = np.flatnonzero(size == 0)
    if len(long):
        values[long], size[long] = _long_varints(buffer, at[long])
    return values, size


def _ends(words: UInt64, loaded: int) -> tuple[UInt64, Int64]:
    """Find the last byte of each varint: its top bit alone, and the size; 0 if not loaded."""
    stops = ~words
    stops &= _TOP_BITS >> _U(64 - 8 * loaded)
    lowest = -stops
    lowest &= stops
    sizes = lowest >> _U(7)
    sizes *= _LOWEST_TO_SIZE
    sizes >>= _U(56)
    return lowest, sizes.view(np.int64)


def _compact(words: UInt64) -> UInt64:
    """Close the gap of one bit between the seven-bit groups of each word."""
    for low, high, shift in _COMPACTION:
        upper = words & high
        upper >>= shift
        words &= low
        words |= upper
    return words


_COMPACTION = (
    (_U(0x007F007F007F007F), _U(0x7F007F007F007F00), _U(1)),
    (_U(0x00003FFF00003FFF), _U(0x3FFF00003FFF0000), _U(2)),
    (_U(0x000000000FFFFFFF), _U(0x0FFFFFFF00000000), _U(4)),
)


def _long_varints(buffer: MessageBuffer, at: Int64) -> tuple[UInt64, Int64]:
    """Decode varints of up to ten bytes: negative numbers and ids with high bits."""
    words, tail = buffer.words(at), buffer.words(at + 8)
    lowest, sizes = _ends(words, 8)
    short = sizes != 0
    values = _compact(words & (lowest - _U(1)))
    ninth, tenth = tail & _U(0xFF), (tail >> _U(8)) & _U(0xFF)
    ten = ninth >= 0x80
    if (~short & ten & (tenth >= 0x80)).any():
        raise WireError("a number is longer than ten bytes")
    high = ((ninth & _U(0x7F)) << _U(56)) | np.where(ten, tenth << _U(63), _U(0))
    values = np.where(short, values, values | high)
    return values, np.where(short, sizes, 9 + ten.astype(np.int64))


def value_counts(values: Ints | Reals) -> dict[int, int]:
    """Count how often each number occurs."""
    if not len(values):
        return {}
    low, high = int(values.min()), int(values.max())
    if high - low < _MAX_COUNTED_RANGE:
        counts = np.bincount((values - low).astype(np.int64))
        different = np.flatnonzero(counts)
        return dict(zip((different + low).tolist(), counts[different].tolist(), strict=True))
    different, counts = np.unique(values, return_counts=True)
    return dict(zip(different.tolist(), counts.tolist(), strict=True))


class MessageCursor:
    """A position in each of many messages, always in front of a field or at the end."""

    def __init__(self, buffer: MessageBuffer, start: Int64, end: Int64) -> None:
        self._buffer = buffer
        self._at = start.copy()
        self._end = end
        self._words = np.zeros(len(start), np.uint64)
        self.tags = np.zeros(len(start), np.uint64)
        self._peek(_ALL)

    def integers(self, number: int) -> FieldValues | None:
        """Take a varint field, as signed 64-bit numbers."""
        tag = number << 3 | VARINT
        rows = self._rows_at(tag)
        if rows is None:
            return None
        at, values, size = self._varints_behind(tag, rows)
        self._move(rows, at + size)
        return FieldValues(rows, values.view(np.int64))

    def reals(self, number: int, kind: int) -> FieldValues | None:
        """Take a fixed-width floating point field."""
        tag = number << 3 | kind
        rows = self._rows_at(tag)
        if rows is None:
            return None
        at = self._at[rows] + _tag_size(tag)
        width = _FIXED_WIDTH[kind]
        if (at > self._end[rows] - width).any():
            raise WireError("a floating point number is cut off")
        words = self._buffer.words(at)
        if kind == FIXED32:
            values = words.astype(np.uint32).view(np.float32).astype(np.float64)
        else:
            values = words.view(np.float64)
        self._move(rows, at + width)
        return FieldValues(rows, values)

    def spans(self, number: int) -> ByteSpans | None:
        """Take a length-delimited field: text, bytes or a message."""
        tag = number << 3 | BYTES
        rows = self._rows_at(tag)
        if rows is None:
            return None
        at, length, size = self._varints_behind(tag, rows)
        return self._span_from(rows, at + size, length)

    def repeated_spans(self, number: int) -> list[ByteSpans]:
        """Take a repeated field: first the first one of each message, then the second ones…"""
        tag = number << 3 | BYTES
        rounds: list[ByteSpans] = []
        rows = self._rows_at(tag)
        while rows is not None:
            at, length, size = self._varints_behind(tag, rows)
            rounds.append(self._span_from(rows, at + size, length))
            if len(rounds) > _MAX_ROUNDS:
                raise WireError("a message has too many fields")
            rows = _narrow(rows, self.tags[rows] == tag)
        return rounds

    def last_spans(self, above: int) -> tuple[Int64, ByteSpans]:
        """Return number and position of the first field above this number; do not move on."""
        self._skip_below((above + 1) << 3)
        tags = self.tags
        if not ((tags & _U(7)) == BYTES).all():
            raise WireError("an event has no payload")
        at = self._at + _tag_sizes(tags)
        self._check(_ALL, at)
        length, size = self._buffer.varints(at)
        at += size
        return (tags >> _U(3)).view(np.int64), self._span_at(_ALL, at, length)

    def _span_from(self, rows: Rows, start: Int64, length: UInt64) -> ByteSpans:
        spans = self._span_at(rows, start, length)
        self._move(rows, spans.end)
        return spans

    def _span_at(self, rows: Rows, start: Int64, length: UInt64) -> ByteSpans:
        self._check(rows, start)
        if (length > (self._end[rows] - start).view(np.uint64)).any():
            raise WireError("a length points beyond its message")
        return ByteSpans(rows, start, start + length.view(np.int64))

    def _varints_behind(self, tag: int, rows: Rows) -> tuple[Int64, UInt64, Int64]:
        """Decode the varint that follows this tag, mostly from the word already loaded."""
        used = _tag_size(tag)
        words = self._words[rows] >> _U(8 * used)
        at = self._at[rows] + used
        values, size = _varints(self._buffer, words, at, 8 - used)
        return at, values, size

    def _rows_at(self, tag: int) -> Rows | None:
        """Find the messages whose next field is this one, skipping fields before it."""
        self._skip_below(tag & ~7)
        return _narrow(_ALL, self.tags == tag)

    def _skip_below(self, tag: int) -> None:
        rows = _narrow(_ALL, self.tags < tag)
        for _ in range(_MAX_ROUNDS):
            if rows is None:
                return
            self._skip(rows)
            rows = _narrow(rows, self.tags[rows] < tag)
        raise WireError("a message has too many fields")

    def _skip(self, rows: Rows) -> None:
        """Step over the field in front of these cursors, by wire type."""
        tags = self.tags[rows]
        tag = int(tags[0])
        if tag & 7 == VARINT and (tags == tag).all():  # by far the most frequent case
            used = _tag_size(tag)
            words = self._words[rows] >> _U(8 * used)
            at = self._at[rows] + used
            if (words & _U(0x80)).any():
                _, size = _ends(words, 8 - used)
                long = np.flatnonzero(size == 0)
                if len(long):
                    _, size[long] = _long_varints(self._buffer, at[long])
                at += size
            else:
                at += 1
            self._move(rows, at)
            return
        kinds = tags & _U(7)
        if (kinds == tag & 7).all():
            self._skip_kind(rows, tag & 7)
            return
        index = np.arange(len(self.tags), dtype=np.int64) if isinstance(rows, slice) else rows
        for kind in np.unique(kinds).tolist():
            self._skip_kind(index[kinds == kind], kind)

    def _skip_kind(self, rows: Rows, kind: int) -> None:
        at = self._at[rows] + _tag_sizes(self.tags[rows])
        self._check(rows, at)
        if kind in _FIXED_WIDTH:
            self._move(rows, at + _FIXED_WIDTH[kind])
        elif kind in (VARINT, BYTES):
            value, size = self._buffer.varints(at)
            at += size
            if kind == BYTES:
                self._span_from(rows, at, value)
            else:
                self._move(rows, at)
        else:
            raise WireError("a field has an impossible wire type")

    def _move(self, rows: Rows, at: Int64) -> None:
        self._at[rows] = at
        self._peek(rows)

    def _check(self, rows: Rows, at: Int64) -> None:
        if (at > self._end[rows]).any():
            raise WireError("a field reaches beyond its message")

    def _peek(self, rows: Rows) -> None:
        """Load the word in front of each cursor and read its tag."""
        at, end = self._at[rows], self._end[rows]
        if (at > end).any():
            raise WireError("a field reaches beyond its message")
        words = self._buffer.words(at)
        over = at == end
        ended = bool(over.any())
        if ended:
            words[over] = 0  # whatever follows belongs to another message
        tags = words & _U(0xFF)
        two = tags >= 0x80
        if two.any():
            second = (words >> _U(8)) & _U(0xFF)
            if (two & (second >= 0x80)).any():
                tags, _ = _varints(self._buffer, words, at, 8)
            else:
                tags = np.where(two, (tags & _U(0x7F)) | (second << _U(7)), tags)
        if ended:
            tags[over] = _END
        self._words[rows] = words
        self.tags[rows] = tags


def _narrow(rows: Rows, keep: Flags) -> Rows | None:
    """Keep some of these rows; None when no row is left."""
    if not keep.any():
        return None
    if keep.all():
        return rows
    return np.flatnonzero(keep) if isinstance(rows, slice) else rows[keep]


def _tag_size(tag: int) -> int:
    return (max(tag.bit_length(), 1) + 6) // 7


def _tag_sizes(tags: UInt64) -> Int64:
    sizes = np.ones(len(tags), np.int64)
    for bits in (7, 14, 21, 28):
        more = tags >= (1 << bits)
        if not more.any():
            break
        sizes += more
    return sizes


_SEED = _U(secrets.randbits(64))
_FACTOR = _U(secrets.randbits(64) | 1)
_MIX = _U(0x9E3779B97F4A7C15)
_MIN_VECTORIZED_ROWS = 64
_MAX_HASHED_BYTES = 1 << 12  # longer texts are rare; hashing them would take a round per word


def text_column(buffer: MessageBuffer, start: Int64, end: Int64) -> pl.Series:
    """Build the column of the texts at these positions; invalid UTF-8 is replaced."""
    if len(start) < _MIN_VECTORIZED_ROWS:
        return _python_strings(buffer, start, end)
    length = end - start
    long = length > _MAX_HASHED_BYTES
    if long.any():  # the few long texts one by one, the others together
        short, rest = np.flatnonzero(~long), np.flatnonzero(long)
        texts = _python_strings(buffer, start[rest], end[rest])
        texts = pl.concat([text_column(buffer, start[short], end[short]), texts])
        index = np.empty(len(start), np.int64)
        index[np.concatenate([short, rest])] = np.arange(len(start), dtype=np.int64)
        return texts.gather(pl.Series(index))
    first, code = _distinct(_hashes(buffer, start, length))
    distinct = _strings(buffer, start[first], end[first])
    if len(first) == len(start):
        return distinct
    return distinct.gather(pl.Series(code.astype(np.uint32)))


def bytes_column(buffer: MessageBuffer, start: Int64, end: Int64) -> pl.Series:
    """Build the column of the bytes at these positions."""
    data = buffer.bytes
    spans = zip(start.tolist(), end.tolist(), strict=True)
    return pl.Series([data[first:last].tobytes() for first, last in spans], dtype=pl.Binary)


def _hashes(buffer: MessageBuffer, start: Int64, length: Int64) -> UInt64:
    """Hash each text, eight bytes a round, for all texts that are still not over."""
    hashes = length.view(np.uint64) * _MIX + _SEED
    rows: Int64 | slice = slice(None)
    at, remaining = start, length
    while len(at):
        words = buffer.words(at)
        short = remaining < 8
        if short.any():
            missing = np.maximum(8 - remaining, 0).view(np.uint64) << _U(3)
            words = (words << missing) >> missing  # only the text's own bytes
        mixed = (hashes[rows] ^ words) * _FACTOR
        hashes[rows] = mixed ^ (mixed >> _U(32))
        more = np.flatnonzero(remaining > 8)
        rows = more if isinstance(rows, slice) else rows[more]
        at, remaining = at[more] + 8, remaining[more] - 8
    hashes *= _MIX
    return hashes ^ (hashes >> _U(29))


def _distinct(hashes: UInt64) -> tuple[Int64, Int64]:
    """Return the first row of each distinct hash, and each row's index among those.

    A hash table in NumPy: every row writes its number into its slot, one of them wins, and rows
    with the winner's hash are done. The others try again in another slot.
    """
    n = len(hashes)
    bits = max(n.bit_length() + 1, 4)
    table = np.zeros(1 << bits, np.int64)
    owner = np.empty(n, np.int64)
    rows = np.arange(n, dtype=np.int64)
    keys = hashes
    while len(rows):
        slot = (keys >> _U(64 - bits)).view(np.int64)
        table[slot[::-1]] = rows[::-1]  # the first row of a slot wins
        winner = table[slot]
        same = hashes[winner] == hashes[rows]
        owner[rows[same]] = winner[same]
        rows = rows[~same]
        keys = (keys[~same] ^ (keys[~same] >> _U(7))) * _MIX
    is_first = np.zeros(n, np.bool_)
    is_first[owner] = True
    first = np.flatnonzero(is_first)
    index = np.empty(n, np.int64)
    index[first] = np.arange(len(first), dtype=np.int64)
    return first, index[owner]


def _strings(buffer: MessageBuffer, start: Int64, end: Int64) -> pl.Series:
    """Copy texts out, joined by NUL, and let Polars take them apart."""
    length = end - start + 1
    bounds = np.cumsum(length)
    total = int(bounds[-1])
    index = np.repeat(start - (bounds - length), length)
    index += np.arange(total, dtype=np.int64)
    joined = buffer.bytes[index]
    joined[bounds - 1] = 0
    if total - np.count_nonzero(joined) != len(start):
        return _python_strings(buffer, start, end)  # a text holds a NUL of its own
    text = joined[:-1].tobytes().decode("utf-8", "replace")
    return pl.Series([text], dtype=pl.String).str.split("\0").explode()


def _python_strings(buffer: MessageBuffer, start: Int64, end: Int64) -> pl.Series:
    data = buffer.bytes
    texts = [
        data[first:last].tobytes().decode("utf-8", "replace")
        for first, last in zip(start.tolist(), end.tolist(), strict=True)
    ]
    return pl.Series(texts, dtype=pl.String)
