"""Texts of many events as one column, without a Python object for each.

NVTX captures repeat few texts millions of times, so equal texts of a batch are found first (by a
64-bit hash of their bytes, seeded anew in each process) and only the different ones are copied.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.readers.protobuf.sweep import Buffer, Int64, UInt64

_U = np.uint64
_SEED = _U(secrets.randbits(64))
_FACTOR = _U(secrets.randbits(64) | 1)
_MIX = _U(0x9E3779B97F4A7C15)
_FEW = 64
_MAX_HASHED_BYTES = 1 << 12  # longer texts are rare; hashing them would take a round per word


def text_column(buffer: Buffer, start: Int64, end: Int64) -> pl.Series:
    """Build the column of the texts at these positions; invalid UTF-8 is replaced."""
    if len(start) < _FEW:
        return _python_strings(buffer, start, end)
    length = end - start
    long = length > _MAX_HASHED_BYTES
    if long.any():
        return _by_length(buffer, start, end, long)
    first, code = _distinct(_hashes(buffer, start, length))
    distinct = _strings(buffer, start[first], end[first])
    if len(first) == len(start):
        return distinct
    return distinct.gather(pl.Series(code.astype(np.uint32)))


def _by_length(buffer: Buffer, start: Int64, end: Int64, long: NDArray[np.bool_]) -> pl.Series:
    """Treat the few long texts one by one, the others together."""
    short, rest = np.flatnonzero(~long), np.flatnonzero(long)
    texts = _python_strings(buffer, start[rest], end[rest])
    texts = pl.concat([text_column(buffer, start[short], end[short]), texts])
    place = np.empty(len(start), np.int64)
    place[np.concatenate([short, rest])] = np.arange(len(start), dtype=np.int64)
    return texts.gather(pl.Series(place))


def _hashes(buffer: Buffer, start: Int64, length: Int64) -> UInt64:
    """Hash each text, eight bytes a round, for all texts that are still not over."""
    hashes = length.view(np.uint64) * _MIX + _SEED
    rows: Int64 | slice = slice(None)
    at, left = start, length
    while len(at):
        words = buffer.words(at)
        short = left < 8
        if short.any():
            missing = np.maximum(8 - left, 0).view(np.uint64) << _U(3)
            words = (words << missing) >> missing  # only the text's own bytes
        mixed = (hashes[rows] ^ words) * _FACTOR
        hashes[rows] = mixed ^ (mixed >> _U(32))
        more = np.flatnonzero(left > 8)
        rows = more if isinstance(rows, slice) else rows[more]
        at, left = at[more] + 8, left[more] - 8
    hashes *= _MIX
    return hashes ^ (hashes >> _U(29))


def _distinct(hashes: UInt64) -> tuple[Int64, Int64]:
    """Give the first row of each different hash, and each row's place among those.

    A hash table in NumPy: every row writes its number into its slot, one of them wins, and rows
    with the winner's hash are done. The others try again in another slot.
    """
    n = len(hashes)
    bits = max(n.bit_length() + 1, 4)
    table = np.zeros(1 << bits, np.int64)
    owner = np.empty(n, np.int64)
    rows = np.arange(n, dtype=np.int64)
    left = hashes
    while len(rows):
        slot = (left >> _U(64 - bits)).view(np.int64)
        table[slot[::-1]] = rows[::-1]  # the first row of a slot wins
        winner = table[slot]
        same = hashes[winner] == hashes[rows]
        owner[rows[same]] = winner[same]
        rows = rows[~same]
        left = (left[~same] ^ (left[~same] >> _U(7))) * _MIX
    is_first = np.zeros(n, np.bool_)
    is_first[owner] = True
    first = np.flatnonzero(is_first)
    place = np.empty(n, np.int64)
    place[first] = np.arange(len(first), dtype=np.int64)
    return first, place[owner]


def _strings(buffer: Buffer, start: Int64, end: Int64) -> pl.Series:
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
    whole = joined[:-1].tobytes().decode("utf-8", "replace")
    return pl.Series([whole], dtype=pl.String).str.split("\0").explode()


def _python_strings(buffer: Buffer, start: Int64, end: Int64) -> pl.Series:
    data = buffer.bytes
    texts = [
        data[first:last].tobytes().decode("utf-8", "replace")
        for first, last in zip(start.tolist(), end.tolist(), strict=True)
    ]
    return pl.Series(texts, dtype=pl.String)
