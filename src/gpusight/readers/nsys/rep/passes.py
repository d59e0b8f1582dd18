"""One pass over all event blocks: decompress, find the events, decode, put together."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from gpusight.readers.nsys.rep import fields
from gpusight.readers.nsys.rep.events import Census, Piece, decode_batch, read_classes, take_census
from gpusight.readers.nsys.rep.frames import read_batch
from gpusight.readers.protobuf.wire import WireError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.readers.nsys.rep.container import Block, Container
    from gpusight.readers.nsys.rep.metrics import MetricTypes

BATCH_BYTES = 1_500_000
"""Decompressed bytes decoded at once: arrays of such a batch fit a core's cache."""
_MAX_WORKERS = 2  # more only wait for each other: much of the work holds Python's lock
_WARM_UP_BYTES = 30 << 20

_TEXT_COLUMNS = {
    (table.name, column)
    for table in fields.EVENT_TABLES
    for column, path in table.columns.items()
    if ":text" in path or column in table.texts
}
_REAL_COLUMNS = {
    (table.name, column)
    for table in fields.EVENT_TABLES
    for column, path in table.columns.items()
    if ":f" in path
}


class PassResult(NamedTuple):
    """What one pass found."""

    census: Census | None
    tables: dict[str, pl.DataFrame]


def table_columns(name: str) -> tuple[str, ...]:
    """Name the columns of a table that is made from events; none for any other."""
    if name in fields.BY_NAME:
        return tuple(fields.BY_NAME[name].columns)
    if name in fields.CHAINS_BY_NAME:
        return fields.CHAIN_COLUMNS
    return fields.GPU_METRICS_COLUMNS if name == "GPU_METRICS" else ()


def run_pass(
    container: Container, wanted: frozenset[str], types: MetricTypes, *, count: bool
) -> PassResult:
    """Decode the wanted tables and, if asked to, count the rows of all of them."""

    def decode(blocks: Sequence[Block]) -> tuple[int, Census | None, dict[str, Piece]]:
        batch = read_batch([container.inflate(block) for block in blocks], has_generic=has_generic)
        classes = read_classes(batch)
        pieces = decode_batch(batch, classes, wanted, types)
        return batch.total, take_census(batch, classes) if count else None, pieces

    has_generic = bool(types)
    total = 0
    census = Census()
    pieces: dict[str, list[Piece]] = {name: [] for name in wanted}
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


def _batches(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    batch: list[Block] = []
    size = 0
    for block in blocks:
        batch.append(block)
        size += block.inflated
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _check_event_count(container: Container, total: int, census: Census | None) -> None:
    named = container.raw.event_count
    generic = container.raw.generic_event_count
    # Whether the first count includes generic events is not known for every version.
    if total not in (named, named + generic):
        raise WireError(f"it names {named} events but holds {total}")
    if census is not None and generic and sum(census.generic.values()) != generic:
        raise WireError(f"it does not hold the {generic} generic events that it names")


def _assemble(name: str, pieces: list[Piece]) -> pl.DataFrame:
    """Join the pieces of a table, run its numbers through, and add the columns that are NULL."""
    frames = []
    base = 0
    table = fields.BY_NAME.get(name)
    number = "id" if name in fields.CHAINS_BY_NAME else table.id_column if table else ""
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
    chain = fields.CHAINS_BY_NAME.get(name)
    return fields.BY_NAME[chain.events if chain else name].first_number


def _dtype(table: str, column: str) -> type[pl.DataType]:
    if (table, column) in _TEXT_COLUMNS:
        return pl.String
    return pl.Float64 if (table, column) in _REAL_COLUMNS else pl.Int64
