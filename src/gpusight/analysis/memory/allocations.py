"""Allocations over time: blocks from allocation to free, memory in use, reserved segments."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import share_of
from gpusight.results import Field, Fmt, TableResult
from gpusight.units import format_bytes

if TYPE_CHECKING:
    from gpusight.trace.intervals import Flags, Ints


BEFORE = -1
"""The event that allocated a block of which only the free was recorded."""


@dataclass(frozen=True)
class MemoryBlocks:
    """Blocks of memory, in use after event `began` until event `ended`."""

    bytes: Ints
    began: Ints
    """Number of the event that allocated it; BEFORE when it was in use from the start."""
    ended: Ints
    """Number of the event that freed it; the count of events when none did."""
    row: Ints
    """Row of `memory_events` that allocated it; -1 when there is none."""
    state: Ints
    """Row of `memory_blocks` that shows it, for blocks known only from there; else -1."""

    def __len__(self) -> int:
        """Count the blocks."""
        return len(self.bytes)

    def held_after(self, event: int) -> Ints:
        """Return the numbers of the blocks in use right after an event (BEFORE: at the start)."""
        held: Ints = np.flatnonzero((self.began <= event) & (self.ended > event))
        return held

    def chosen(self, numbers: Ints) -> MemoryBlocks:
        """Return some of the blocks, by number."""
        return MemoryBlocks(
            self.bytes[numbers],
            self.began[numbers],
            self.ended[numbers],
            self.row[numbers],
            self.state[numbers],
        )

    def from_event(self, first: int) -> MemoryBlocks:
        """Drop the first events: their allocations were in use from the start."""
        kept = self.chosen(np.flatnonzero(self.ended >= first))
        began, ended = np.maximum(kept.began - first, BEFORE), kept.ended - first
        return MemoryBlocks(kept.bytes, began, ended, kept.row, kept.state)

    def start_bytes(self) -> int:
        """Return the bytes in use at the start."""
        return int(self.bytes[self.began == BEFORE].sum())

    def changes(self, events: int) -> Ints:
        """Return by how many bytes each event changed the memory in use."""
        delta = np.zeros(events, dtype=np.int64)
        begins, ends = self.began > BEFORE, self.ended < events
        # No event allocates or frees two blocks, so plain indexing is enough.
        delta[self.began[begins]] += self.bytes[begins]
        delta[self.ended[ends]] -= self.bytes[ends]
        return delta


def _pair(rows: Ints, allocates: Flags, sizes: Ints, address: Ints, process: Ints) -> MemoryBlocks:
    """Pair each allocation with the next event at its address, in the order of the events.

    `rows` are the events' numbers in `memory_events`. Where an address is allocated twice in a row,
    the free between was lost: the first block ends when the second begins. A free that comes first
    at its address ends a block that was in use from the start.
    """
    count = len(rows)
    several = count and np.ptp(process)
    order = np.lexsort((address, process)) if several else np.argsort(address, kind="stable")
    same = (address[order][1:] == address[order][:-1]) & (process[order][1:] == process[order][:-1])
    following = np.full(count, count)
    following[order[:-1][same]] = order[1:][same]
    first = np.ones(count, dtype=np.bool_)
    first[order[1:][same]] = False
    allocations, early_frees = np.flatnonzero(allocates), np.flatnonzero(first & ~allocates)
    return MemoryBlocks(
        sizes[np.concatenate((allocations, early_frees))],
        np.concatenate((allocations, np.full(len(early_frees), BEFORE))),
        np.concatenate((following[allocations], early_frees)),
        np.concatenate((rows[allocations], np.full(len(early_frees), -1))),
        np.full(len(allocations) + len(early_frees), -1),
    )


COLUMNS = (
    "time_ns", "device", "process", "operation", "memory_kind", "address", "bytes", "allocator",
    "allocated_bytes", "reserved_bytes",
)  # fmt: skip
"""Columns of `memory_events` that the levels are computed from."""
ROW = "row"
"""Column with the number of a row in its whole table."""
_IN_USE = pl.col("state").cast(pl.String).is_in(["active", "pending_free"])
"""Blocks of a snapshot in use, those included that were freed but a stream may still use."""
_REQUESTED = pl.col("requested_bytes").fill_null(pl.col("bytes"))
"""Bytes that the program requested, which is what events count too; else the rounded size."""
_ALLOCATES, _FREES = "allocation", "deallocation"
_GROWS = ("segment_allocation", "segment_map")
_SHRINKS = ("segment_deallocation", "segment_unmap")
_HOST_KINDS = ("Host", "Pageable", "Pinned")


class AllocationSource(enum.Enum):
    """What recorded the events, which decides what they mean."""

    FRAMEWORK = "framework"
    SNAPSHOT = "snapshot"
    DRIVER = "driver"


@dataclass(frozen=True)
class AllocationHistory:
    """The memory in use on one GPU (or the host) after each event."""

    origin: AllocationSource
    times: Ints
    """When each event happened, sorted."""
    allocated: Ints
    """Bytes in use after each event."""
    reserved: Ints | None
    """Bytes reserved from the driver after each event; None where not recorded."""
    start_allocated: int
    start_reserved: int | None
    """Levels before the first event."""
    takes: Ints
    """Sizes of the allocations, 0 for other events."""
    blocks: MemoryBlocks | None
    """None when the events have no addresses, so that frees cannot be paired."""
    totals_known: bool = True
    """Whether the level before the first event is known, rather than the least it can be."""

    def __len__(self) -> int:
        """Count the events."""
        return len(self.times)

    def allocated_after(self, event: int) -> int:
        """Return the bytes in use after an event; BEFORE is the start."""
        return self.start_allocated if event == BEFORE else int(self.allocated[event])

    def reserved_after(self, event: int) -> int | None:
        """Return the bytes reserved from the driver after an event."""
        if self.reserved is None:
            return None
        return self.start_reserved if event == BEFORE else int(self.reserved[event])

    def last_before(self, time_ns: int) -> int:
        """Return the number of the last event before a time; BEFORE when there is none."""
        return int(np.searchsorted(self.times, time_ns, side="left")) - 1

    @property
    def unlisted_start(self) -> int:
        """Bytes in use at the start that no block accounts for."""
        return self.start_allocated - (0 if self.blocks is None else self.blocks.start_bytes())


def on_gpu() -> pl.Expr:
    """Select the events about memory of a GPU, rather than of the host."""
    host = pl.col("memory_kind").cast(pl.String).is_in(_HOST_KINDS).fill_null(value=False)
    return pl.col("device").is_not_null() & ~host


def from_events(events: pl.DataFrame) -> AllocationHistory:
    """Build the history of events (of one GPU or the host), with their row numbers as `row`."""
    origin = AllocationSource.DRIVER
    if events["allocator"].null_count() < events.height:
        origin = AllocationSource.FRAMEWORK
        events = events.filter(pl.col("allocator").is_not_null())
    events = events.filter(_is(_ALLOCATES, _FREES))
    if events["allocated_bytes"].null_count() == 0 and events.height:
        return _from_totals(events, origin)
    return _from_sums(events, origin)


def from_snapshot(events: pl.DataFrame, final: pl.DataFrame) -> AllocationHistory:
    """Build the history that ends in a snapshot's blocks (`memory_blocks` of one GPU).

    Both have the numbers of their rows as `row`.
    """
    events = events.filter(_is(_ALLOCATES, _FREES, *_GROWS, *_SHRINKS))
    times, allocates, sizes = _arrays(events)
    block_events = events.filter(_is(_ALLOCATES, _FREES))
    in_use = final.filter(_IN_USE)
    # Blocks that no event mentions are older than the history.
    older = in_use.join(block_events, on="address", how="anti")
    mentioned, count = _blocks(events, allocates, sizes), older.height
    blocks = MemoryBlocks(
        np.append(mentioned.bytes, older.select(_REQUESTED).to_series().to_numpy()),
        np.append(mentioned.began, np.full(count, BEFORE)),
        np.append(mentioned.ended, np.full(count, len(times))),
        np.append(mentioned.row, np.full(count, -1)),
        np.append(mentioned.state, _numbers(older, ROW)),
    )
    # Blocks in use at the end, in the sizes of their events where there are any.
    last = block_events.unique("address", keep="last", maintain_order=True)
    last = last.filter(_is(_ALLOCATES)).select("address", pl.col("bytes").alias("event_bytes"))
    sized = in_use.join(last, on="address", how="left", maintain_order="left")
    end = int(sized.select(pl.col("event_bytes").fill_null(_REQUESTED)).to_series().sum())
    end_reserved = int(final.unique(["segment"])["segment_bytes"].sum())
    changes = blocks.changes(len(times))
    grown = sizes * (_mask(events, *_GROWS).astype(np.int64) - _mask(events, *_SHRINKS))
    start, start_reserved = end - int(changes.sum()), end_reserved - int(grown.sum())
    return AllocationHistory(
        AllocationSource.SNAPSHOT,
        times,
        start + np.cumsum(changes),
        start_reserved + np.cumsum(grown),
        start,
        start_reserved,
        np.where(allocates, sizes, 0),
        blocks,
    )


def _from_totals(events: pl.DataFrame, origin: AllocationSource) -> AllocationHistory:
    """Build the history of events that state the total of their process."""
    times, allocates, sizes = _arrays(events)
    process = _numbers(events, "process")
    signed = np.where(allocates, sizes, -sizes)
    start, allocated = _sum_totals(_numbers(events, "allocated_bytes"), signed, process)
    totals = events["reserved_bytes"].fill_null(strategy="forward").fill_null(0).to_numpy()
    known = bool(totals.any())
    # What was reserved before the first event is not recorded; the events rarely change it.
    start_reserved, reserved = _sum_totals(totals, np.zeros_like(totals), process)
    return AllocationHistory(
        origin,
        times,
        allocated,
        reserved if known else None,
        start,
        start_reserved if known else None,
        np.where(allocates, sizes, 0),
        _blocks(events, allocates, sizes) if _has_addresses(events) else None,
    )


def _sum_totals(totals: Ints, change: Ints, process: Ints) -> tuple[int, Ints]:
    """Sum the totals that each process states: at the start, and after each event."""
    start, changes = 0, np.zeros(len(totals), dtype=np.int64)
    for key in np.unique(process):
        rows = np.flatnonzero(process == key)
        first = int(totals[rows[0]] - change[rows[0]])
        changes[rows] = np.diff(totals[rows], prepend=first)
        start += first
    return start, start + np.cumsum(changes)


def _from_sums(events: pl.DataFrame, origin: AllocationSource) -> AllocationHistory:
    """Build the history of events without totals."""
    times, allocates, sizes = _arrays(events)
    takes = np.where(allocates, sizes, 0)
    if not _has_addresses(events):
        levels = np.cumsum(np.where(allocates, sizes, -sizes))
        start = max(0, -int(levels.min(initial=0)))
        return AllocationHistory(
            origin, times, start + levels, None, start, None, takes, None, totals_known=False
        )
    # The driver's records of what was in use before the capture come first, with time 0.
    first = int((times <= 0).sum()) if origin is AllocationSource.DRIVER else 0
    blocks = _blocks(events, allocates, sizes).from_event(first)
    start = blocks.start_bytes()
    allocated = start + np.cumsum(blocks.changes(len(times) - first))
    return AllocationHistory(
        origin, times[first:], allocated, None, start, None, takes[first:], blocks
    )


def _blocks(events: pl.DataFrame, allocates: Flags, sizes: Ints) -> MemoryBlocks:
    """Pair the events that have an address."""
    addressed = np.flatnonzero(
        events["address"].is_not_null() & events.select(_is(_ALLOCATES, _FREES)).to_series()
    )
    rows = events[addressed]
    blocks = _pair(
        _numbers(rows, ROW),
        allocates[addressed],
        sizes[addressed],
        _numbers(rows, "address"),
        _numbers(rows, "process"),
    )
    # Back to numbers among all events; the end stays the end.
    number = np.append(addressed, [events.height, BEFORE])
    return replace(blocks, began=number[blocks.began], ended=number[blocks.ended])


def _arrays(events: pl.DataFrame) -> tuple[Ints, Flags, Ints]:
    """Return times, which events are allocations, and sizes."""
    return events["time_ns"].to_numpy(), _mask(events, _ALLOCATES), events["bytes"].to_numpy()


def _has_addresses(events: pl.DataFrame) -> bool:
    return events["address"].null_count() < max(events.height, 1)


def _numbers(frame: pl.DataFrame, column: str) -> Ints:
    numbers: Ints = frame[column].cast(pl.Int64).fill_null(-1).to_numpy()
    return numbers


def _is(*operations: str) -> pl.Expr:
    return pl.col("operation").cast(pl.String).is_in(operations)


def _mask(events: pl.DataFrame, *operations: str) -> Flags:
    mask: Flags = events.select(_is(*operations)).to_series().to_numpy()
    return mask


RESERVED_FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Part of all reserved memory"),
    Field("bytes", "Bytes", Fmt.BYTES, "Bytes"),
    Field("blocks", "Blocks", Fmt.COUNT, "Blocks it lies in"),
    Field("largest_bytes", "Largest", Fmt.BYTES, "The largest of those blocks"),
    Field("part", "Part", Fmt.TEXT, "What it is; the parts sum to what is reserved"),
)
SEGMENT_FIELDS = (
    Field("used_share", "Used", Fmt.SHARE, "Part of the segment in use"),
    Field("bytes", "Size", Fmt.BYTES, "Size of the segment"),
    Field("used_bytes", "In use", Fmt.BYTES, "In use, blocks that wait to be freed included"),
    Field("free_bytes", "Free", Fmt.BYTES, "Not in use"),
    Field("largest_free_bytes", "Largest free", Fmt.BYTES, "The largest allocation it could take"),
    Field("blocks", "Blocks", Fmt.COUNT, "Blocks in use"),
    Field("kind", "Pool", Fmt.TEXT, "`small` or `large`"),
    Field("stream", "Stream", Fmt.ID, "CUDA stream that alone can use it"),
    Field("expandable", "Grows", Fmt.FLAG, "Whether the segment can grow", shown=False),
    Field("address", "Address", Fmt.ID, "Address", shown=False),
)
_MAX_SPARSE_SHARE = 0.5
"""A segment with less in use is counted as sparse."""


def reserved_parts(blocks: pl.DataFrame) -> TableResult:
    """Split reserved memory into what is used, lost by rounding, and free."""
    size = pl.col("bytes")
    occupied = _IN_USE.any().over("segment")
    pending = pl.col("state").cast(pl.String) == "pending_free"
    parts = [
        blocks.filter(condition)
        .select(part_bytes.alias("bytes"))
        .filter(size != 0)
        .select(
            size.sum(),
            pl.len().cast(pl.Int64).alias("blocks"),
            size.max().alias("largest_bytes"),
            pl.lit(name).alias("part"),
        )
        for name, condition, part_bytes in (
            ("requested by the program", _IN_USE & ~pending, _REQUESTED),
            ("freed, but a stream may still use it", pending, _REQUESTED),
            ("rounding: allocated beyond the request", _IN_USE, size - _REQUESTED),
            ("free between used blocks", ~_IN_USE & occupied, size),
            ("free in unused segments", ~_IN_USE & ~occupied, size),
        )
    ]
    frame = pl.concat(parts).filter(size != 0)
    frame = frame.with_columns(share_of(size, int(frame["bytes"].sum())).alias("share"))
    return TableResult(
        "reserved",
        "Reserved memory at the end",
        RESERVED_FIELDS,
        frame.select(f.key for f in RESERVED_FIELDS),
    )


def segments(blocks: pl.DataFrame) -> TableResult:
    """List the segments, those with most free memory first."""
    size = pl.col("segment_bytes").first()
    used = pl.col("bytes").filter(_IN_USE).sum()
    frame = (
        blocks.group_by("segment", maintain_order=True)
        .agg(
            size.alias("bytes"),
            used.alias("used_bytes"),
            (size - used).alias("free_bytes"),
            pl.col("bytes").filter(~_IN_USE).max().fill_null(0).alias("largest_free_bytes"),
            _IN_USE.sum().cast(pl.Int64).alias("blocks"),
            pl.col("segment_kind").cast(pl.String).first().alias("kind"),
            pl.col("stream").first(),
            pl.col("expandable").first(),
        )
        .with_columns(
            share_of(pl.col("used_bytes"), pl.col("bytes")).alias("used_share"),
            pl.col("segment").alias("address"),
        )
        .sort(["free_bytes", "address"], descending=[True, False])
    )
    title = "Segments, by what is free in them"
    sparse = frame.filter(pl.col("used_share") < _MAX_SPARSE_SHARE)
    if sparse.height:
        free = format_bytes(int(sparse["free_bytes"].sum()))
        title += f": {sparse.height:,} of {frame.height:,} under half used, {free} free"
    return TableResult(
        "segments", title, SEGMENT_FIELDS, frame.select(f.key for f in SEGMENT_FIELDS)
    )
