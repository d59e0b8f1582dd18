"""From the events of a native report to raw tables, GPU metrics among them, in one pass."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from gpusight.readers import protobuf_wire
from gpusight.readers.nsys import native_fields
from gpusight.readers.nsys.native_container import PayloadEvents, read_batch
from gpusight.readers.nsys.native_fields import column_expression, read_columns
from gpusight.readers.protobuf_columns import MessageCursor, value_counts
from gpusight.readers.protobuf_wire import WireError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpusight.readers.nsys.native_container import BlockBatch, EventBlock, NsysContainer
    from gpusight.readers.nsys.native_fields import ChainTableFields, EventTableFields
    from gpusight.readers.protobuf_columns import Int64, MessageBuffer


class ClassColumn(NamedTuple):
    """The class of each event of a payload, and the cursor that has read so far."""

    values: Int64
    cursor: MessageCursor


Classes: TypeAlias = "dict[int, ClassColumn]"
"""Payload -> class of each of its events."""

_NO_CLASS = -1


@dataclass
class EventCensus:
    """What the events are, without their values."""

    rows: Counter[str] = field(default_factory=Counter)
    """Table -> rows. A table of call chains counts the events that have one."""
    unknown_payloads: Counter[int] = field(default_factory=Counter)
    unknown_classes: Counter[int] = field(default_factory=Counter)
    generic: Counter[int] = field(default_factory=Counter)
    """Generic event type -> events."""

    def add(self, other: EventCensus) -> None:
        """Add the counts of another part of the file."""
        self.rows += other.rows
        self.unknown_payloads += other.unknown_payloads
        self.unknown_classes += other.unknown_classes
        self.generic += other.generic


@dataclass
class TableRows:
    """The rows that one batch adds to a table."""

    frame: pl.DataFrame
    numbered: int = 0
    """How many numbers of the file-wide count these events use up."""


def read_classes(batch: BlockBatch) -> Classes:
    """Read the field that distinguishes the tables of one payload."""
    classes: Classes = {}
    for payload, events in batch.payloads.items():
        path = native_fields.CLASS_PATHS.get(payload)
        if path is None:
            continue
        values = np.full(len(events.start), _NO_CLASS, np.int64)
        cursor = MessageCursor(batch.buffer, *events)
        class_field = cursor.integers(int(path))
        if class_field is not None:
            values[class_field.rows] = class_field.values
        classes[payload] = ClassColumn(values, cursor)
    return classes


def _events_of(
    table: EventTableFields, batch: BlockBatch, classes: Classes
) -> PayloadEvents | None:
    """Return the events that are rows of the table; None if there are none."""
    events = batch.payloads.get(table.payload)
    if events is None or not table.class_path:
        return events
    is_row = np.isin(classes[table.payload].values, sorted(table.classes))
    if is_row.all():
        return events
    rows = np.flatnonzero(is_row)
    return PayloadEvents(events.start[rows], events.end[rows]) if len(rows) else None


def take_census(batch: BlockBatch, classes: Classes) -> EventCensus:
    """Count the events of a batch by table."""
    census = EventCensus()
    for payload, events in batch.payloads.items():
        if payload not in native_fields.TABLES_OF_PAYLOAD:
            census.unknown_payloads[payload] += len(events.start)
            continue
        tables = native_fields.TABLES_OF_PAYLOAD[payload]
        if payload in classes:
            counts = value_counts(classes[payload].values)
            for table in tables:
                census.rows[table.name] += sum(counts.pop(number, 0) for number in table.classes)
            census.unknown_classes += Counter(counts)
        elif tables[0].required:
            decoded = read_columns(batch.buffer, *events, tables[0].paths)
            census.rows[tables[0].name] += _table_rows(tables[0], decoded).frame.height
        else:
            census.rows[tables[0].name] += len(events.start)
        _count_chains(payload, batch, classes, census)
    if len(batch.generic.start):
        types = MessageCursor(batch.buffer, *batch.generic).integers(1)
        census.generic += Counter(value_counts(types.values) if types is not None else {})
    return census


def _count_chains(payload: int, batch: BlockBatch, classes: Classes, census: EventCensus) -> None:
    """Count the events that have a call chain, by the table of chains that they go to."""
    chains = native_fields.CHAINS_OF_PAYLOAD.get(payload, ())
    if not chains:
        return
    column = classes.get(payload)
    cursor = column.cursor if column else MessageCursor(batch.buffer, *batch.payloads[payload])
    spans = cursor.spans(chains[0].frames)
    if spans is None:
        return
    for chain in chains:
        if column is None:
            census.rows[chain.name] += len(spans.start)
        else:
            table_classes = sorted(native_fields.BY_NAME[chain.events].classes)
            has_chain = np.isin(column.values[spans.rows], table_classes)
            census.rows[chain.name] += int(np.count_nonzero(has_chain))


def decode_batch(
    batch: BlockBatch, classes: Classes, wanted: Iterable[str], types: MetricTypes
) -> dict[str, TableRows]:
    """Decode the wanted tables from a batch."""
    rows: dict[str, TableRows] = {}
    for name in wanted:
        table = native_fields.BY_NAME.get(name)
        chain = native_fields.CHAINS_BY_NAME.get(name)
        if table is not None:
            events = _events_of(table, batch, classes)
            if events is not None:
                decoded = read_columns(batch.buffer, *events, table.paths)
                rows[name] = _table_rows(table, decoded)
        elif chain is not None:
            owner = native_fields.BY_NAME[chain.events]
            events = _events_of(owner, batch, classes)
            if events is not None:
                rows[name] = _chain_rows(batch.buffer, events, chain, owner)
        elif name == "GPU_METRICS" and len(batch.generic.start):
            rows[name] = TableRows(read_metrics(batch.buffer, batch.generic, types))
    return rows


def _named_columns(paths: dict[str, str], decoded: pl.DataFrame) -> dict[str, pl.Expr]:
    """Name decoded fields as columns of a table; fields that no event has are left out."""
    expressions = {
        column: column_expression(path, decoded.columns) for column, path in paths.items()
    }
    return {column: value for column, value in expressions.items() if value is not None}


def _table_rows(table: EventTableFields, decoded: pl.DataFrame) -> TableRows:
    frame = decoded.select(**(_named_columns(table.columns, decoded) or {"#": pl.col("#")}))
    # A frame of constants alone would have one row, whatever its source.
    if frame.height != decoded.height or (table.required and table.required not in frame.columns):
        frame = frame.clear()
    elif table.required:
        frame = frame.filter(pl.col(table.required).is_not_null())
    if not table.id_column:
        return TableRows(frame)
    if not table.numbered:
        number = pl.int_range(1, pl.len() + 1)
        return TableRows(frame.with_columns(number.alias(table.id_column)), frame.height)
    if table.numbered not in decoded.columns:
        number = pl.lit(table.unnumbered, pl.Int64)
        return TableRows(frame.with_columns(number.alias(table.id_column)))
    is_numbered = decoded[table.numbered].is_not_null()
    running = is_numbered.cum_sum().cast(pl.Int64)
    number = pl.when(is_numbered).then(running).otherwise(table.unnumbered)
    return TableRows(frame.with_columns(number.alias(table.id_column)), int(is_numbered.sum()))


def _chain_rows(
    buffer: MessageBuffer, events: PayloadEvents, chain: ChainTableFields, table: EventTableFields
) -> TableRows:
    """Decode the call-chain frames of the events of one table."""
    levels = MessageCursor(buffer, *events).repeated_spans(chain.frames)
    count = len(events.start)
    if not levels:
        return TableRows(pl.DataFrame(), 0 if table.numbered else count)
    # The frames of all events, each event's together and in order.
    numbers = np.arange(count, dtype=np.int64)
    rows = np.concatenate([numbers[spans.rows] for spans in levels])
    depth = np.repeat(np.arange(len(levels), dtype=np.int64), [len(s.start) for s in levels])
    order = np.argsort(rows, kind="stable")
    rows, depth = rows[order], depth[order]
    start = np.concatenate([spans.start for spans in levels])[order]
    end = np.concatenate([spans.end for spans in levels])[order]
    if table.numbered:
        first = np.concatenate([[True], rows[1:] != rows[:-1]])
        ids = np.cumsum(first, dtype=np.int64)
        used = int(ids[-1])
    else:
        ids, used = rows + 1, count
    decoded = read_columns(buffer, start, end, native_fields.FRAME_PATHS)
    columns = _named_columns(native_fields.FRAME_COLUMNS, decoded)
    frame = decoded.select(id=pl.Series(ids), stackDepth=pl.Series(depth), **columns)
    return TableRows(frame, used)


BATCH_BYTES = 1_500_000
"""Decompressed bytes decoded at once: arrays of such a batch fit a core's cache."""
_MAX_WORKERS = 2  # more only wait for each other: much of the work holds Python's lock
_WARM_UP_BYTES = 30 << 20

_TEXT_COLUMNS = {
    (table.name, column)
    for table in native_fields.EVENT_TABLES
    for column, path in table.columns.items()
    if ":text" in path or column in table.texts
}
_REAL_COLUMNS = {
    (table.name, column)
    for table in native_fields.EVENT_TABLES
    for column, path in table.columns.items()
    if ":f" in path
}


def table_columns(name: str) -> tuple[str, ...]:
    """List the columns of a table that is made from events; none for any other."""
    if name in native_fields.BY_NAME:
        return tuple(native_fields.BY_NAME[name].columns)
    if name in native_fields.CHAINS_BY_NAME:
        return native_fields.CHAIN_COLUMNS
    return native_fields.GPU_METRICS_COLUMNS if name == "GPU_METRICS" else ()


def run_pass(
    container: NsysContainer, wanted: frozenset[str], types: MetricTypes, *, count: bool
) -> tuple[EventCensus | None, dict[str, pl.DataFrame]]:
    """Decode the wanted tables; with `count`, count the rows of all tables too."""

    def decode(
        blocks: Sequence[EventBlock],
    ) -> tuple[int, EventCensus | None, dict[str, TableRows]]:
        batch = read_batch([container.inflate(block) for block in blocks], has_generic=has_generic)
        classes = read_classes(batch)
        rows = decode_batch(batch, classes, wanted, types)
        return batch.total, take_census(batch, classes) if count else None, rows

    has_generic = bool(types)
    total = 0
    census = EventCensus()
    parts: dict[str, list[TableRows]] = {name: [] for name in wanted}
    # Once it has freed a large allocation, glibc stops returning smaller ones to the system;
    # without this a third of the time goes into page faults. Other C libraries are not affected.
    np.empty(_WARM_UP_BYTES, np.uint8)
    workers = min(_MAX_WORKERS, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:
        for events, counts, rows in pool.map(decode, _batches(container.raw.event_blocks)):
            total += events
            if counts is not None:
                census.add(counts)
            for name, part in rows.items():
                parts[name].append(part)
    named, generic = container.raw.event_count, container.raw.generic_event_count
    # Whether the first count includes generic events is not known for every version.
    if total not in (named, named + generic):
        raise WireError(f"it names {named} events but holds {total}")
    if count and generic and sum(census.generic.values()) != generic:
        raise WireError(f"it does not hold the {generic} generic events that it names")
    tables = {name: _assemble(name, table_parts) for name, table_parts in parts.items()}
    return census if count else None, tables


def _batches(blocks: Sequence[EventBlock]) -> Iterator[list[EventBlock]]:
    batch: list[EventBlock] = []
    size = 0
    for block in blocks:
        batch.append(block)
        size += block.inflated
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _assemble(name: str, parts: list[TableRows]) -> pl.DataFrame:
    """Join the parts of a table, number its rows through, and add the columns that are NULL."""
    frames = []
    chain = native_fields.CHAINS_BY_NAME.get(name)
    table = native_fields.BY_NAME.get(chain.events if chain else name)
    id_column = "id" if chain else table.id_column if table else ""
    base = 0
    for part in parts:
        frame = part.frame
        if id_column and base and id_column in frame.columns:
            moved = pl.when(pl.col(id_column) > 0).then(pl.col(id_column) + base)
            frame = frame.with_columns(moved.otherwise(pl.col(id_column)).alias(id_column))
        base += part.numbered
        if frame.height:
            frames.append(frame)
    columns = table_columns(name)
    if not frames:
        return pl.DataFrame(schema={column: _dtype(name, column) for column in columns})
    joined = pl.concat(frames, how="diagonal", rechunk=False)
    if table is not None and id_column in joined.columns:
        joined = joined.with_columns(pl.col(id_column) + (table.first_number - 1))
    missing = [
        pl.lit(None, _dtype(name, column)).alias(column)
        for column in columns
        if column not in joined.columns
    ]
    return joined.with_columns(missing).select(columns)


def _dtype(table: str, column: str) -> type[pl.DataType]:
    if (table, column) in _TEXT_COLUMNS:
        return pl.String
    if table == native_fields.NVTX_PAYLOADS.name and column == "binaryData":
        return pl.Binary
    return pl.Float64 if (table, column) in _REAL_COLUMNS else pl.Int64


# GPU metrics, sampled in generic events ---------------------------------------------------------

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
        """Return whether events of this type are samples that can be decoded."""
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
            tuple(
                MetricField(*(protobuf_wire.integer(field, number) or 0 for number in (1, 2, 3, 8)))
                for field in protobuf_wire.children(message, 3)
            ),
        )
    return types


def read_metrics(buffer: MessageBuffer, events: PayloadEvents, types: MetricTypes) -> pl.DataFrame:
    """Return the rows of GPU_METRICS that these generic events hold, in file order."""
    cursor = MessageCursor(buffer, events.start, events.end)
    type_ids, times, records = cursor.integers(1), cursor.integers(2), cursor.spans(3)
    if type_ids is None or times is None or records is None:
        return pl.DataFrame()
    if not all(isinstance(field.rows, slice) for field in (type_ids, times, records)):
        raise WireError("a generic event lacks its type, time or data")
    parts = []
    for type_id in np.unique(type_ids.values).tolist():
        kind = types.get(type_id)
        if kind is None or not kind.is_metrics:
            continue
        rows = np.flatnonzero(type_ids.values == type_id)
        values = _record_values(buffer, records.start[rows], records.end[rows], kind)
        samples, metrics = values.shape
        time = np.repeat(times.values[rows], metrics)
        columns = {
            "event": np.repeat(rows, metrics),
            "rawTimestamp": time,
            "timestamp": time,
            "typeId": np.full(samples * metrics, kind.type_id, np.int64),
            "metricId": np.tile(np.arange(metrics, dtype=np.int64), samples),
            "value": values.reshape(-1),
        }
        parts.append(pl.DataFrame(columns))
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
        raise WireError("a metric sample is shorter than its type")
    values = np.empty((len(start), len(kind.fields)), np.int64)
    for index, metric in enumerate(kind.fields):
        unused = np.uint64(64 - 8 * metric.size)
        words = buffer.words(start + metric.offset)
        values[:, index] = ((words << unused) >> unused).view(np.int64)
    return values
