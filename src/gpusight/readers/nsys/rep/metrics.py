"""Generic events that carry sampled GPU metrics.

The stream header describes each type of generic event as a packed record: for each metric its
name, offset and size. An event is one sample, and gives one row for each metric.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from gpusight.readers.protobuf import wire
from gpusight.readers.protobuf.sweep import Cursor
from gpusight.readers.protobuf.wire import WireError

if TYPE_CHECKING:
    from gpusight.readers.nsys.rep.frames import Events
    from gpusight.readers.nsys.rep.paths import Numbers
    from gpusight.readers.protobuf.sweep import Buffer, Int64

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


def metric_types(header: wire.Message) -> MetricTypes:
    """Read the types of generic events from the stream header."""
    sources = sorted(
        number
        for source in wire.children(header, 13)
        if (number := wire.integer(source, 1)) is not None
    )
    types: MetricTypes = {}
    for message in wire.children(header, 14):
        type_id = wire.integer(message, 1) or 0
        below = [source for source in sources if source <= type_id]
        types[type_id] = MetricType(
            type_id,
            below[-1] if below else None,
            wire.integer(message, 2) or 0,
            tuple(_field(child) for child in wire.children(message, 3)),
        )
    return types


def _field(message: wire.Message) -> MetricField:
    numbers = (wire.integer(message, number) or 0 for number in (1, 2, 3, 8))
    return MetricField(*numbers)


def read_metrics(buffer: Buffer, events: Events, types: MetricTypes) -> pl.DataFrame:
    """Give the rows of GPU_METRICS that these generic events hold, in file order."""
    cursor = Cursor(buffer, events.start, events.end)
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


def _record_values(buffer: Buffer, start: Int64, end: Int64, kind: MetricType) -> Int64:
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
