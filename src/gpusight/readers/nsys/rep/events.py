"""From the events of a batch of blocks to pieces of the raw tables.

A batch is decoded on its own, so batches run in parallel. What needs the whole file (numbers that
run through it, row counts) is left as a count per batch, and put together by `passes`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from gpusight.readers.nsys.rep import fields
from gpusight.readers.nsys.rep.frames import Events
from gpusight.readers.nsys.rep.metrics import read_metrics
from gpusight.readers.nsys.rep.paths import column_expression, read_columns
from gpusight.readers.protobuf.sweep import Cursor, value_counts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpusight.readers.nsys.rep.fields import ChainTable, EventTable
    from gpusight.readers.nsys.rep.frames import Batch
    from gpusight.readers.nsys.rep.metrics import MetricTypes
    from gpusight.readers.protobuf.sweep import Buffer, Int64


class ClassColumn(NamedTuple):
    """The class of each event of a payload, and the cursor that has read so far."""

    values: Int64
    cursor: Cursor


Classes: TypeAlias = "dict[int, ClassColumn]"
"""Payload -> class of each of its events."""

_NO_CLASS = -1


@dataclass
class Census:
    """What the events are, without their values."""

    events: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    """Table -> rows. A table of call chains counts the events that have one."""
    unknown_payloads: Counter[int] = field(default_factory=Counter)
    unknown_classes: Counter[int] = field(default_factory=Counter)
    generic: Counter[int] = field(default_factory=Counter)
    """Generic event type -> events."""

    def add(self, other: Census) -> None:
        """Add the counts of another part of the file."""
        self.events += other.events
        self.rows += other.rows
        self.unknown_payloads += other.unknown_payloads
        self.unknown_classes += other.unknown_classes
        self.generic += other.generic


@dataclass
class Piece:
    """The rows that one batch adds to a table."""

    frame: pl.DataFrame
    numbered: int = 0
    """How many numbers of the file-wide count these events use up."""


def read_classes(batch: Batch) -> Classes:
    """Read the field that tells the tables of one payload apart."""
    classes: Classes = {}
    for payload, events in batch.payloads.items():
        path = fields.CLASS_PATHS.get(payload)
        if path is None:
            continue
        values = np.full(len(events.start), _NO_CLASS, np.int64)
        cursor = Cursor(batch.buffer, *events)
        found = cursor.integers(int(path))
        if found is not None:
            values[found.rows] = found.values
        classes[payload] = ClassColumn(values, cursor)
    return classes


def _events_of(table: EventTable, batch: Batch, classes: Classes) -> Events | None:
    """Pick the events that are rows of the table; None when there are none."""
    events = batch.payloads.get(table.payload)
    if events is None or not table.class_path:
        return events
    mine = np.isin(classes[table.payload].values, sorted(table.classes))
    if mine.all():
        return events
    rows = np.flatnonzero(mine)
    return Events(events.start[rows], events.end[rows]) if len(rows) else None


def take_census(batch: Batch, classes: Classes) -> Census:
    """Count the events of a batch by table."""
    census = Census(events=batch.total)
    for payload, events in batch.payloads.items():
        if payload not in fields.TABLES_OF_PAYLOAD:
            census.unknown_payloads[payload] += len(events.start)
            continue
        tables = fields.TABLES_OF_PAYLOAD[payload]
        if payload in classes:
            _count_by_class(tables, value_counts(classes[payload].values), census)
        else:
            census.rows[tables[0].name] += _row_count(tables[0], batch.buffer, events)
        _count_chains(payload, batch, classes, census)
    if len(batch.generic.start):
        types = Cursor(batch.buffer, *batch.generic).integers(1)
        census.generic += Counter(value_counts(types.values) if types is not None else {})
    return census


def _count_by_class(tables: Sequence[EventTable], counts: dict[int, int], census: Census) -> None:
    for table in tables:
        census.rows[table.name] += sum(counts.pop(number, 0) for number in table.classes)
    census.unknown_classes += Counter(counts)


def _row_count(table: EventTable, buffer: Buffer, events: Events) -> int:
    if not table.required:
        return len(events.start)
    return _table_piece(table, read_columns(buffer, *events, table.paths)).frame.height


def _count_chains(payload: int, batch: Batch, classes: Classes, census: Census) -> None:
    """Count the events that have a call chain, by the table of chains that they go to."""
    chains = fields.CHAINS_OF_PAYLOAD.get(payload, ())
    if not chains:
        return
    sort = classes.get(payload)
    cursor = sort.cursor if sort is not None else Cursor(batch.buffer, *batch.payloads[payload])
    spans = cursor.spans(chains[0].frames)
    if spans is None:
        return
    for chain in chains:
        mine = fields.BY_NAME[chain.events].classes
        if sort is None:
            census.rows[chain.name] += len(spans.start)
        else:
            of_mine = np.isin(sort.values[spans.rows], sorted(mine))
            census.rows[chain.name] += int(np.count_nonzero(of_mine))


def decode_batch(
    batch: Batch, classes: Classes, wanted: Iterable[str], types: MetricTypes
) -> dict[str, Piece]:
    """Decode the wanted tables from a batch."""
    pieces: dict[str, Piece] = {}
    for name in wanted:
        table = fields.BY_NAME.get(name)
        chain = fields.CHAINS_BY_NAME.get(name)
        if table is not None:
            events = _events_of(table, batch, classes)
            if events is not None:
                decoded = read_columns(batch.buffer, *events, table.paths)
                pieces[name] = _table_piece(table, decoded)
        elif chain is not None:
            owner = fields.BY_NAME[chain.events]
            events = _events_of(owner, batch, classes)
            if events is not None:
                pieces[name] = _chain_piece(batch.buffer, events, chain, owner)
        elif name == "GPU_METRICS" and len(batch.generic.start):
            pieces[name] = Piece(read_metrics(batch.buffer, batch.generic, types))
    return pieces


def build_frame(table: EventTable, frame: pl.DataFrame) -> pl.DataFrame:
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


def _keep_required(table: EventTable, frame: pl.DataFrame) -> pl.DataFrame:
    if not table.required:
        return frame
    if table.required not in frame.columns:
        return frame.clear()
    return frame.filter(pl.col(table.required).is_not_null())


def _table_piece(table: EventTable, decoded: pl.DataFrame) -> Piece:
    frame = _keep_required(table, build_frame(table, decoded))
    if not table.id_column:
        return Piece(frame)
    if not table.numbered:
        return Piece(
            frame.with_columns(pl.int_range(1, pl.len() + 1).alias(table.id_column)), frame.height
        )
    if table.numbered not in decoded.columns:
        empty = pl.lit(table.unnumbered, pl.Int64).alias(table.id_column)
        return Piece(frame.with_columns(empty))
    has = decoded[table.numbered].is_not_null()
    number = pl.when(has).then(has.cum_sum().cast(pl.Int64)).otherwise(table.unnumbered)
    return Piece(frame.with_columns(number.alias(table.id_column)), int(has.sum()))


def _chain_piece(buffer: Buffer, events: Events, chain: ChainTable, table: EventTable) -> Piece:
    """Decode the call-chain frames of the events of one table."""
    rows, depth, start, end = _chain_spans(Cursor(buffer, *events), chain.frames)
    count = len(events.start)
    if not len(rows):
        return Piece(pl.DataFrame(), 0 if table.numbered else count)
    if table.numbered:
        first = np.concatenate([[True], rows[1:] != rows[:-1]])
        ids = np.cumsum(first, dtype=np.int64)
        used = int(ids[-1])
    else:
        ids, used = rows + 1, count
    decoded = read_columns(buffer, start, end, fields.FRAME_PATHS)
    columns = {
        column: expression
        for column, path in fields.FRAME_COLUMNS.items()
        if (expression := column_expression(path, decoded.columns)) is not None
    }
    result = decoded.select(id=pl.Series(ids), stackDepth=pl.Series(depth), **columns)
    return Piece(result, used)


def _chain_spans(cursor: Cursor, number: int) -> tuple[Int64, Int64, Int64, Int64]:
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
