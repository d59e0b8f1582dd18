"""Finding the events inside decompressed blocks.

A block is { 1*: event, 2*: generic event }, and blocks put one after the other are again such a
message. Following the lengths from event to event would cost a Python step for each. Instead, all
places that look like the start of an event are found at once, and those that no other place leads
to are dropped. What remains is proved to be the chain of events: each one ends where the next
begins, from the first byte to the last. Only where that proof fails is the chain walked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpusight.readers.protobuf import wire
from gpusight.readers.protobuf.sweep import Buffer, Cursor, value_counts
from gpusight.readers.protobuf.wire import WireError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.readers.protobuf.sweep import Int64

_EVENT_TAG, _GENERIC_TAG = 0x0A, 0x12
_TYPE_TAG = 0x08  # field 1, the event's type, comes first in every event
_MAX_ROUNDS = 8
_MAX_EVENTS_A_BLOCK = 1 << 16  # nsys writes at most 7000


class Events(NamedTuple):
    """Some events of one payload: where their payload messages lie, in file order."""

    start: Int64
    end: Int64


class Batch(NamedTuple):
    """The events of a few consecutive blocks."""

    buffer: Buffer
    payloads: dict[int, Events]
    generic: Events
    total: int


def read_batch(parts: list[bytes], *, has_generic: bool) -> Batch:
    """Find the events in the decompressed messages of consecutive blocks."""
    buffer = Buffer(parts)
    content = buffer.bytes[: buffer.size]
    tags = content == _EVENT_TAG
    if has_generic:
        tags |= content == _GENERIC_TAG
    tag_at, start, end = _frame(buffer, tags, _MAX_EVENTS_A_BLOCK * len(parts))
    _check_block_bounds(parts, tag_at, buffer.size)
    generic = buffer.bytes[tag_at] == _GENERIC_TAG
    if not generic.any():
        return Batch(buffer, _by_payload(buffer, start, end), _none(), len(start))
    ordinary = ~generic
    payloads = _by_payload(buffer, start[ordinary], end[ordinary])
    return Batch(buffer, payloads, Events(start[generic], end[generic]), len(start))


def _by_payload(buffer: Buffer, start: Int64, end: Int64) -> dict[int, Events]:
    """Open each event = { 1: type, N: payload } and sort the events by N."""
    if not len(start):
        return {}
    numbers, spans = Cursor(buffer, start, end).last_spans(above=1)
    first = int(numbers[0])
    if (numbers == first).all():
        return {first: Events(spans.start, spans.end)}
    groups: dict[int, Events] = {}
    for number in value_counts(numbers):
        rows = np.flatnonzero(numbers == number)
        groups[number] = Events(spans.start[rows], spans.end[rows])
    return groups


def _frame(buffer: Buffer, tags: NDArray[np.bool_], most: int) -> tuple[Int64, Int64, Int64]:
    """Give the position of each event's tag, and start and end of its message."""
    if np.count_nonzero(tags) > 4 * most:
        return _walk(buffer, most)  # made to waste memory, or nothing but line feeds
    at, start, end = _candidates(buffer, np.flatnonzero(tags))
    if len(at) > most:
        return _walk(buffer, most)
    reached = np.zeros(buffer.size + 1, np.bool_)
    for _ in range(_MAX_ROUNDS):
        if _is_chain(at, end, buffer.size):
            return at, start, end
        reached[:] = False
        reached[0] = True
        reached[end] = True
        keep = reached[at]
        if keep.all():
            break
        at, start, end = at[keep], start[keep], end[keep]
    return _walk(buffer, most)


def _candidates(buffer: Buffer, at: Int64) -> tuple[Int64, Int64, Int64]:
    """Keep the places that could be an event: tag, length, then the tag of its type."""
    data = buffer.bytes
    at = at[(data[at + 1] >= 0x80) | (data[at + 2] == _TYPE_TAG)]
    rows, length, size = buffer.lengths(at + 1)
    at = at[rows]
    start = at + 1 + size
    room = np.maximum(buffer.size - start, 0).view(np.uint64)
    keep = np.flatnonzero((length <= room) & (start < buffer.size))
    at, start = at[keep], start[keep]
    end = start + length[keep].view(np.int64)
    keep = np.flatnonzero(data[start] == _TYPE_TAG)
    return (at, start, end) if len(keep) == len(at) else (at[keep], start[keep], end[keep])


def _is_chain(at: Int64, end: Int64, size: int) -> bool:
    if not len(at):
        return size == 0
    return bool(at[0] == 0 and end[-1] == size and (at[1:] == end[:-1]).all())


def _walk(buffer: Buffer, most: int) -> tuple[Int64, Int64, Int64]:
    """Follow the lengths one by one: for events that do not start with their type."""
    data = buffer.bytes.tobytes()
    found: list[tuple[int, int, int]] = []
    at = 0
    while at < buffer.size:
        if data[at] not in (_EVENT_TAG, _GENERIC_TAG):
            raise WireError("an event block holds something that is no event")
        start, end = wire.read_span(data, at + 1, buffer.size)
        found.append((at, start, end))
        if len(found) > most:
            raise WireError("a block holds more events than nsys ever writes")
        at = end
    columns = np.array(found, np.int64).reshape(-1, 3)
    return columns[:, 0].copy(), columns[:, 1].copy(), columns[:, 2].copy()


def _check_block_bounds(parts: list[bytes], tag_at: Int64, size: int) -> None:
    """Make sure that no event reaches from one block into the next."""
    bounds = np.cumsum([0, *(len(part) for part in parts)])[:-1]
    bounds = bounds[bounds < size]
    place = np.searchsorted(tag_at, bounds)
    if (place >= len(tag_at)).any() or (tag_at[place] != bounds).any():
        raise WireError("an event reaches beyond its block")


def _none() -> Events:
    empty = np.zeros(0, np.int64)
    return Events(empty, empty)
