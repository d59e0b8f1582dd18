"""From the events of a native report to raw tables, in one pass over all event blocks."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from gpusight.readers.nsys import native_fields
from gpusight.readers.nsys.native_blocks import PayloadEvents, read_batch, read_metrics
from gpusight.readers.nsys.native_fields import column_expression, read_columns
from gpusight.readers.protobuf_columns import MessageCursor, value_counts
from gpusight.readers.protobuf_wire import WireError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpusight.readers.nsys.native_blocks import BlockBatch, MetricTypes
    from gpusight.readers.nsys.native_container import EventBlock, NsysContainer
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

    events: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    """Table -> rows. A table of call chains counts the events that have one."""
    unknown_payloads: Counter[int] = field(default_factory=Counter)
    unknown_classes: Counter[int] = field(default_factory=Counter)
    generic: Counter[int] = field(default_factory=Counter)
    """Generic event type -> events."""

    def add(self, other: EventCensus) -> None:
        """Add the counts of another part of the file."""
        self.events += other.events
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
    """Read the field that tells the tables of one payload apart."""
    classes: Classes = {}
    for payload, events in batch.payloads.items():
        path = native_fields.CLASS_PATHS.get(payload)
        if path is None:
            continue
        values = np.full(len(events.start), _NO_CLASS, np.int64)
        cursor = MessageCursor(batch.buffer, *events)
        found = cursor.integers(int(path))
        if found is not None:
            values[found.rows] = found.values
        classes[payload] = ClassColumn(values, cursor)
    return classes


def _events_of(
    table: EventTableFields, batch: BlockBatch, classes: Classes
) -> PayloadEvents | None:
    """Pick the events that are rows of the table; None when there are none."""
    events = batch.payloads.get(table.payload)
    if events is None or not table.class_path:
        return events
    mine = np.isin(classes[table.payload].values, sorted(table.classes))
    if mine.all():
        return events
    rows = np.flatnonzero(mine)
    return PayloadEvents(events.start[rows], events.end[rows]) if len(rows) else None


def take_census(batch: BlockBatch, classes: Classes) -> EventCensus:
    """Count the events of a batch by table."""
    census = EventCensus(events=batch.total)
    for payload, events in batch.payloads.items():
        if payload not in native_fields.TABLES_OF_PAYLOAD:
            census.unknown_payloads[payload] += len(events.start)
            continue
        tables = native_fields.TABLES_OF_PAYLOAD[payload]
        if payload in classes:
            _count_by_class(tables, value_counts(classes[payload].values), census)
        else:
            census.rows[tables[0].name] += _row_count(tables[0], batch.buffer, events)
        _count_chains(payload, batch, classes, census)
    if len(batch.generic.start):
        types = MessageCursor(batch.buffer, *batch.generic).integers(1)
        census.generic += Counter(value_counts(types.values) if types is not None else {})
    return census


def _count_by_class(
    tables: Sequence[EventTableFields], counts: dict[int, int], census: EventCensus
) -> None:
    for table in tables:
        census.rows[table.name] += sum(counts.pop(number, 0) for number in table.classes)
    census.unknown_classes += Counter(counts)


def _row_count(table: EventTableFields, buffer: MessageBuffer, events: PayloadEvents) -> int:
    if not table.required:
        return len(events.start)
    return _table_piece(table, read_columns(buffer, *events, table.paths)).frame.height


def _count_chains(payload: int, batch: BlockBatch, classes: Classes, census: EventCensus) -> None:
    """Count the events that have a call chain, by the table of chains that they go to."""
    chains = native_fields.CHAINS_OF_PAYLOAD.get(payload, ())
    if not chains:
        return
    sort = classes.get(payload)
    cursor = (
        sort.cursor if sort is not None else MessageCursor(batch.buffer, *batch.payloads[payload])
    )
    spans = cursor.spans(chains[0].frames)
    if spans is None:
        return
    for chain in chains:
        mine = native_fields.BY_NAME[chain.events].classes
        if sort is None:
            census.rows[chain.name] += len(spans.start)
        else:
            of_mine = np.isin(sort.values[spans.rows], sorted(mine))
            census.rows[chain.name] += int(np.count_nonzero(of_mine))


def decode_batch(
    batch: BlockBatch, classes: Classes, wanted: Iterable[str], types: MetricTypes
) -> dict[str, TableRows]:
    """Decode the wanted tables from a batch."""
    pieces: dict[str, TableRows] = {}
    for name in wanted:
        table = native_fields.BY_NAME.get(name)
        chain = native_fields.CHAINS_BY_NAME.get(name)
        if table is not None:
            events = _events_of(table, batch, classes)
            if events is not None:
                decoded = read_columns(batch.buffer, *events, table.paths)
                pieces[name] = _table_piece(table, decoded)
        elif chain is not None:
            owner = native_fields.BY_NAME[chain.events]
            events = _events_of(owner, batch, classes)
            if events is not None:
                pieces[name] = _chain_piece(batch.buffer, events, chain, owner)
        elif name == "GPU_METRICS" and len(batch.generic.start):
            pieces[name] = TableRows(read_metrics(batch.buffer, batch.generic, types))
    return pieces


def build_frame(table: EventTableFields, frame: pl.DataFrame) -> pl.DataFrame:
    """Name the decoded fields as the table's columns; fields that no event has are left out."""
    columns = {
        column: expression
        for column, path in table.columns.items()
        if (expression := column_expression(path, frame.columns)) is not None
    }
    if not columns:
        columns["#"] = pl.col("#")
    result = frame.select(**columns)
    # A frame of constants alone would have one row, whatever its source.
    return result if result.height == frame.height else result.clear()


def _keep_required(table: EventTableFields, frame: pl.DataFrame) -> pl.DataFrame:
    if not table.required:
        return frame
    if table.required not in frame.columns:
        return frame.clear()
    return frame.filter(pl.col(table.required).is_not_null())


def _table_piece(table: EventTableFields, decoded: pl.DataFrame) -> TableRows:
    frame = _keep_required(table, build_frame(table, decoded))
    if not table.id_column:
        return TableRows(frame)
    if not table.numbered:
        return TableRows(
            frame.with_columns(pl.int_range(1, pl.len() + 1).alias(table.id_column)), frame.height
        )
    if table.numbered not in decoded.columns:
        empty = pl.lit(table.unnumbered, pl.Int64).alias(table.id_column)
        return TableRows(frame.with_columns(empty))
    has = decoded[table.numbered].is_not_null()
    number = pl.when(has).then(has.cum_sum().cast(pl.Int64)).otherwise(table.unnumbered)
    return TableRows(frame.with_columns(number.alias(table.id_column)), int(has.sum()))


def _chain_piece(
    buffer: MessageBuffer, events: PayloadEvents, chain: ChainTableFields, table: EventTableFields
) -> TableRows:
    """Decode the call-chain frames of the events of one table."""
    rows, depth, start, end = _chain_spans(MessageCursor(buffer, *events), chain.frames)
    count = len(events.start)
    if not len(rows):
        return TableRows(pl.DataFrame(), 0 if table.numbered else count)
    if table.numbered:
        first = np.concatenate([[True], rows[1:] != rows[:-1]])
        ids = np.cumsum(first, dtype=np.int64)
        used = int(ids[-1])
    else:
        ids, used = rows + 1, count
    decoded = read_columns(buffer, start, end, native_fields.FRAME_PATHS)
    columns = {
        column: expression
        for column, path in native_fields.FRAME_COLUMNS.items()
        if (expression := column_expression(path, decoded.columns)) is not None
    }
    result = decoded.select(id=pl.Series(ids), stackDepth=pl.Series(depth), **columns)
    return TableRows(result, used)


def _chain_spans(cursor: MessageCursor, number: int) -> tuple[Int64, Int64, Int64, Int64]:
    """Collect the repeated messages of all events, each event's together and in order."""
    found = cursor.repeated_spans(number)
    if not found:
        empty = np.zeros(0, np.int64)
        return empty, empty, empty, empty
    everyone = np.arange(len(cursor.tags), dtype=np.int64)
    row = np.concatenate([everyone[spans.rows] for spans in found])
    depth = np.repeat(np.arange(len(found), dtype=np.int64), [len(s.start) for s in found])
    order = np.argsort(row, kind="stable")
    start = np.concatenate([spans.start for spans in found])[order]
    end = np.concatenate([spans.end for spans in found])[order]
    return row[order], depth[order], start, end


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


class PassResult(NamedTuple):
    """What one pass found."""

    census: EventCensus | None
    tables: dict[str, pl.DataFrame]


def table_columns(name: str) -> tuple[str, ...]:
    """Name the columns of a table that is made from events; none for any other."""
    if name in native_fields.BY_NAME:
        return tuple(native_fields.BY_NAME[name].columns)
    if name in native_fields.CHAINS_BY_NAME:
        return native_fields.CHAIN_COLUMNS
    return native_fields.GPU_METRICS_COLUMNS if name == "GPU_METRICS" else ()


def run_pass(
    container: NsysContainer, wanted: frozenset[str], types: MetricTypes, *, count: bool
) -> PassResult:
    """Decode the wanted tables and, if asked to, count the rows of all of them."""

    def decode(
        blocks: Sequence[EventBlock],
    ) -> tuple[int, EventCensus | None, dict[str, TableRows]]:
        batch = read_batch([container.inflate(block) for block in blocks], has_generic=has_generic)
        classes = read_classes(batch)
        pieces = decode_batch(batch, classes, wanted, types)
        return batch.total, take_census(batch, classes) if count else None, pieces

    has_generic = bool(types)
    total = 0
    census = EventCensus()
    pieces: dict[str, list[TableRows]] = {name: [] for name in wanted}
    _keep_memory()
    workers = min(_MAX_WORKERS, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:
        for events, part, found in pool.map(decode, _batches(container.raw.event_blocks)):
            total += events
            if part is not None:
                census.add(part)
            for name, piece in found.items():
                pieces[name].append(piece)
    _check_event_count(container, total, census if count else None)
    tables = {name: _assemble(name, parts) for name, parts in pieces.items()}
    return PassResult(census if count else None, tables)


def _keep_memory() -> None:
    """Make the C library reuse memory between batches.

    Once it has freed a large allocation, glibc stops returning smaller ones to the system; without
    this a third of the time goes into page faults. Other C libraries are not affected.
    """
    np.empty(_WARM_UP_BYTES, np.uint8)


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


def _check_event_count(container: NsysContainer, total: int, census: EventCensus | None) -> None:
    named = container.raw.event_count
    generic = container.raw.generic_event_count
    # Whether the first count includes generic events is not known for every version.
    if total not in (named, named + generic):
        raise WireError(f"it names {named} events but holds {total}")
    if census is not None and generic and sum(census.generic.values()) != generic:
        raise WireError(f"it does not hold the {generic} generic events that it names")


def _assemble(name: str, pieces: list[TableRows]) -> pl.DataFrame:
    """Join the pieces of a table, run its numbers through, and add the columns that are NULL."""
    frames = []
    base = 0
    table = native_fields.BY_NAME.get(name)
    number = "id" if name in native_fields.CHAINS_BY_NAME else table.id_column if table else ""
    for piece in pieces:
        frame = piece.frame
        if number and base and number in frame.columns:
            moved = pl.when(pl.col(number) > 0).then(pl.col(number) + base)
            frame = frame.with_columns(moved.otherwise(pl.col(number)).alias(number))
        base += piece.numbered
        if frame.height:
            frames.append(frame)
    columns = table_columns(name)
    if not frames:
        return pl.DataFrame(schema={column: _dtype(name, column) for column in columns})
    whole = pl.concat(frames, how="diagonal", rechunk=False)
    if number and number in whole.columns:
        whole = whole.with_columns(pl.col(number) + (_first_number(name) - 1))
    missing = [
        pl.lit(None, _dtype(name, column)).alias(column)
        for column in columns
        if column not in whole.columns
    ]
    return whole.with_columns(missing).select(columns)


def _first_number(name: str) -> int:
    chain = native_fields.CHAINS_BY_NAME.get(name)
    return native_fields.BY_NAME[chain.events if chain else name].first_number


def _dtype(table: str, column: str) -> type[pl.DataType]:
    if (table, column) in _TEXT_COLUMNS:
        return pl.String
    return pl.Float64 if (table, column) in _REAL_COLUMNS else pl.Int64
