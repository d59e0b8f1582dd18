"""Finding the events inside decompressed blocks, and the GPU metrics sampled in generic events."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from gpusight.readers import protobuf_wire
from gpusight.readers.protobuf_columns import MessageBuffer, MessageCursor, value_counts
from gpusight.readers.protobuf_wire import WireError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.readers.nsys.native_fields import Numbers
    from gpusight.readers.protobuf_columns import Int64


_EVENT_TAG, _GENERIC_TAG = 0x0A, 0x12
_TYPE_TAG = 0x08  # field 1, the event's type, comes first in every event
_MAX_ROUNDS = 8
_MAX_EVENTS_A_BLOCK = 1 << 16  # nsys writes at most 7000


class PayloadEvents(NamedTuple):
    """Some events of one payload: where their payload messages lie, in file order."""

    start: Int64
    end: Int64


class BlockBatch(NamedTuple):
    """The events of a few consecutive blocks."""

    buffer: MessageBuffer
    payloads: dict[int, PayloadEvents]
    generic: PayloadEvents
    total: int


def read_batch(parts: list[bytes], *, has_generic: bool) -> BlockBatch:
    """Find the events in the decompressed messages of consecutive blocks."""
    buffer = MessageBuffer(parts)
    content = buffer.bytes[: buffer.size]
    tags = content == _EVENT_TAG
    if has_generic:
        tags |= content == _GENERIC_TAG
    tag_at, start, end = _frame(buffer, tags, _MAX_EVENTS_A_BLOCK * len(parts))
    _check_block_bounds(parts, tag_at, buffer.size)
    generic = buffer.bytes[tag_at] == _GENERIC_TAG
    if not generic.any():
        return BlockBatch(buffer, _by_payload(buffer, start, end), _none(), len(start))
    ordinary = ~generic
    payloads = _by_payload(buffer, start[ordinary], end[ordinary])
    return BlockBatch(buffer, payloads, PayloadEvents(start[generic], end[generic]), len(start))


def _by_payload(buffer: MessageBuffer, start: Int64, end: Int64) -> dict[int, PayloadEvents]:
    """Open each event = { 1: type, N: payload } and sort the events by N."""
    if not len(start):
        return {}
    numbers, spans = MessageCursor(buffer, start, end).last_spans(above=1)
    first = int(numbers[0])
    if (numbers == first).all():
        return {first: PayloadEvents(spans.start, spans.end)}
    groups: dict[int, PayloadEvents] = {}
    for number in value_counts(numbers):
        rows = np.flatnonzero(numbers == number)
        groups[number] = PayloadEvents(spans.start[rows], spans.end[rows])
    return groups


def _frame(buffer: MessageBuffer, tags: NDArray[np.bool_], most: int) -> tuple[Int64, Int64, Int64]:
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


def _candidates(buffer: MessageBuffer, at: Int64) -> tuple[Int64, Int64, Int64]:
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


def _walk(buffer: MessageBuffer, most: int) -> tuple[Int64, Int64, Int64]:
    """Follow the lengths one by one: for events that do not start with their type."""
    data = buffer.bytes.tobytes()
    found: list[tuple[int, int, int]] = []
    at = 0
    while at < buffer.size:
        if data[at] not in (_EVENT_TAG, _GENERIC_TAG):
            raise WireError("an event block holds something that is no event")
        start, end = protobuf_wire.read_span(data, at + 1, buffer.size)
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


def _none() -> PayloadEvents:
    empty = np.zeros(0, np.int64)
    return PayloadEvents(empty, empty)


_MAX_FIELD_BYTES = 8
_UNSIGNED_TYPE = 1


class MetricField(NamedTuple):
    """One metric inside the record of its type."""

    name_id: int
    offset: int
    size: int
    kind: int


class MetricType(NamedTuple):
    """One type of generic event."""

    type_id: int
    source_id: int | None
    name_id: int
    fields: tuple[MetricField, ...]

    @property
    def is_metrics(self) -> bool:
        """Tell whether events of this type are samples that we can decode."""
        return bool(self.fields) and all(
            field.kind == _UNSIGNED_TYPE and 1 <= field.size <= _MAX_FIELD_BYTES
            for field in self.fields
        )


MetricTypes: TypeAlias = "dict[int, MetricType]"


def metric_types(header: protobuf_wire.Message) -> MetricTypes:
    """Read the types of generic events from the stream header."""
    sources = sorted(
        number
        for source in protobuf_wire.children(header, 13)
        if (number := protobuf_wire.integer(source, 1)) is not None
    )
    types: MetricTypes = {}
    for message in protobuf_wire.children(header, 14):
        type_id = protobuf_wire.integer(message, 1) or 0
        below = [source for source in sources if source <= type_id]
        types[type_id] = MetricType(
            type_id,
            below[-1] if below else None,
            protobuf_wire.integer(message, 2) or 0,
            tuple(_field(child) for child in protobuf_wire.children(message, 3)),
        )
    return types


def _field(message: protobuf_wire.Message) -> MetricField:
    numbers = (protobuf_wire.integer(message, number) or 0 for number in (1, 2, 3, 8))
    return MetricField(*numbers)


def read_metrics(buffer: MessageBuffer, events: PayloadEvents, types: MetricTypes) -> pl.DataFrame:
    """Give the rows of GPU_METRICS that these generic events hold, in file order."""
    cursor = MessageCursor(buffer, events.start, events.end)
    type_ids, times, records = cursor.integers(1), cursor.integers(2), cursor.spans(3)
    if type_ids is None or times is None or records is None:
        return pl.DataFrame()
    found = (type_ids.rows, times.rows, records.rows)
    if not all(isinstance(rows, slice) for rows in found):
        raise WireError("a generic event lacks its type, time or data")
    parts = []
    for type_id in np.unique(type_ids.values).tolist():
        kind = types.get(type_id)
        if kind is None or not kind.is_metrics:
            continue
        rows = np.flatnonzero(type_ids.values == type_id)
        values = _record_values(buffer, records.start[rows], records.end[rows], kind)
        parts.append(_metric_rows(rows, times.values[rows], kind, values))
    if not parts:
        return pl.DataFrame()
    frame = pl.concat(parts)
    if len(parts) > 1:
        frame = frame.sort("event", maintain_order=True)
    return frame.drop("event")


def _record_values(buffer: MessageBuffer, start: Int64, end: Int64, kind: MetricType) -> Int64:
    """Cut each record into its numbers: one row a sample, one column a metric."""
    size = max(field.offset + field.size for field in kind.fields)
    if min(field.offset for field in kind.fields) < 0 or (end - start < size).any():
        raise WireError("a metric sample is shorter than its type says")
    values = np.empty((len(start), len(kind.fields)), np.int64)
    for index, field in enumerate(kind.fields):
        unused = np.uint64(64 - 8 * field.size)
        words = buffer.words(start + field.offset)
        values[:, index] = ((words << unused) >> unused).view(np.int64)
    return values


def _metric_rows(
    rows: Int64,
    times: Numbers,
    kind: MetricType,
    values: Int64,
) -> pl.DataFrame:
    samples, metrics = values.shape
    time = np.repeat(times, metrics)
    return pl.DataFrame(
        {
            "event": np.repeat(rows, metrics),
            "rawTimestamp": time,
            "timestamp": time,
            "typeId": np.full(samples * metrics, kind.type_id, np.int64),
            "metricId": np.tile(np.arange(metrics, dtype=np.int64), samples),
            "value": values.reshape(-1),
        }
    )
