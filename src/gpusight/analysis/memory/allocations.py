"""Allocations over time.

Pairs allocations with frees, levels in use, free parts of reserved segments.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import share_of
from gpusight.results import Field, Fmt, TableResult
from gpusight.units import format_bytes

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray

    from gpusight.trace.intervals import Ints

    Flags: TypeAlias = NDArray[np.bool_]


BEFORE = -1
"""Stands for the event that took a block of which only the end was recorded."""


@dataclass(frozen=True)
class MemoryBlocks:
    """Blocks of memory, held after event `began` until event `ended`."""

    bytes: Ints
    began: Ints
    """Number of the event that took it; BEFORE when it was held from the start."""
    ended: Ints
    """Number of the event that gave it back; the count of events when none did."""
    row: Ints
    """Row of `memory_events` that took it; -1 when there is none."""
    state: Ints
    """Row of `memory_blocks` that shows it, for blocks known only from there; else -1."""

    def __len__(self) -> int:
        """Count the blocks."""
        return len(self.bytes)

    def held_after(self, event: int) -> Ints:
        """Number the blocks that were held right after an event (BEFORE: from the start)."""
        held: Ints = np.flatnonzero((self.began <= event) & (self.ended > event))
        return held

    def chosen(self, numbers: Ints) -> MemoryBlocks:
        """Give some of the blocks, by number."""
        return MemoryBlocks(
            self.bytes[numbers],
            self.began[numbers],
            self.ended[numbers],
            self.row[numbers],
            self.state[numbers],
        )

    def with_held(self, sizes: Ints, state: Ints, events: int) -> MemoryBlocks:
        """Add blocks that were held from the first event to the last."""
        none = np.full(len(sizes), BEFORE)
        return MemoryBlocks(
            np.concatenate((self.bytes, sizes)),
            np.concatenate((self.began, none)),
            np.concatenate((self.ended, np.full(len(sizes), events))),
            np.concatenate((self.row, none)),
            np.concatenate((self.state, state)),
        )

    def from_event(self, first: int) -> MemoryBlocks:
        """Forget the first events: what they took was held from the start."""
        kept = self.chosen(np.flatnonzero(self.ended >= first))
        began, ended = np.maximum(kept.began - first, BEFORE), kept.ended - first
        return MemoryBlocks(kept.bytes, began, ended, kept.row, kept.state)


def pair(rows: Ints, taken: Flags, sizes: Ints, address: Ints, process: Ints) -> MemoryBlocks:
    """Pair each allocation with the next event at its address, in the order of the events.

    `rows` are the events' numbers in `memory_events`. Where an address is taken twice in a row, the
    release between was lost: the first block ends when the second begins. A release that comes
    first at its address ends a block that was held from the start.
    """
    count = len(rows)
    several = count and np.ptp(process)
    order = np.lexsort((address, process)) if several else np.argsort(address, kind="stable")
    same = (address[order][1:] == address[order][:-1]) & (process[order][1:] == process[order][:-1])
    following = np.full(count, count)
    following[order[:-1][same]] = order[1:][same]
    first = np.ones(count, dtype=np.bool_)
    first[order[1:][same]] = False
    begun, early = np.flatnonzero(taken), np.flatnonzero(first & ~taken)
    return MemoryBlocks(
        sizes[np.concatenate((begun, early))],
        np.concatenate((begun, np.full(len(early), BEFORE))),
        np.concatenate((following[begun], early)),
        np.concatenate((rows[begun], np.full(len(early), -1))),
        np.full(len(begun) + len(early), -1),
    )


def changes(blocks: MemoryBlocks, events: int) -> Ints:
    """Give by how many bytes each event changed what is held."""
    delta = np.zeros(events, dtype=np.int64)
    begins, ends = blocks.began > BEFORE, blocks.ended < events
    # No event takes two blocks, nor gives two back: plain indexing adds everything up.
    delta[blocks.began[begins]] += blocks.bytes[begins]
    delta[blocks.ended[ends]] -= blocks.bytes[ends]
    return delta


COLUMNS = (
    "time_ns",
    "device",
    "process",
    "operation",
    "memory_kind",
    "address",
    "bytes",
    "allocator",
    "allocated_bytes",
    "reserved_bytes",
)
"""What of `memory_events` decides the levels."""
ROW = "row"
"""Column with the number of a row in its whole table."""
HELD = ("active", "pending_free")
"""States of a block that nobody else can have: freed but awaited by a stream counts as in use."""
_TAKES = ("allocation",)
_GIVES = ("deallocation",)
_GROWS = ("segment_allocation", "segment_map")
_SHRINKS = ("segment_deallocation", "segment_unmap")
_HOST_KINDS = ("Host", "Pageable", "Pinned")


class AllocationSource(enum.Enum):
    """Who recorded the events, which decides what they mean."""

    FRAMEWORK = "framework"
    SNAPSHOT = "snapshot"
    DRIVER = "driver"


@dataclass(frozen=True)
class AllocationHistory:
    """The level of one GPU's memory (or the host's) after each event."""

    origin: AllocationSource
    times: Ints
    """When each event happened, rising."""
    allocated: Ints
    """Bytes in use after each event."""
    reserved: Ints | None
    """Bytes held from the driver after each event; None where the capture does not say."""
    start_allocated: int
    start_reserved: int | None
    """Levels before the first event."""
    takes: Ints
    """Sizes of the allocations, 0 for other events."""
    blocks: MemoryBlocks | None
    """None when the events have no addresses, so that no release tells what it gave back."""
    totals_known: bool = True
    """Whether what was held before the first event is known, rather than the least it can be."""

    def __len__(self) -> int:
        """Count the events."""
        return len(self.times)

    def allocated_after(self, event: int) -> int:
        """Give the bytes in use after an event; BEFORE is the start."""
        return self.start_allocated if event == BEFORE else int(self.allocated[event])

    def reserved_after(self, event: int) -> int | None:
        """Give the bytes held from the driver after an event."""
        if self.reserved is None:
            return None
        return self.start_reserved if event == BEFORE else int(self.reserved[event])

    def last_before(self, time_ns: int) -> int:
        """Number the last event before a time; BEFORE when there is none."""
        return int(np.searchsorted(self.times, time_ns, side="left")) - 1

    @property
    def unlisted_start(self) -> int:
        """Bytes held from the start of which no event tells anything."""
        if self.blocks is None:
            return self.start_allocated
        return self.start_allocated - int(self.blocks.bytes[self.blocks.began == BEFORE].sum())


def on_gpu() -> pl.Expr:
    """Select the events about memory of a GPU, rather than of the host."""
    host = pl.col("memory_kind").cast(pl.String).is_in(_HOST_KINDS).fill_null(value=False)
    return pl.col("device").is_not_null() & ~host


def _recorded_by(events: pl.DataFrame) -> AllocationSource:
    """Tell whether a framework's allocator or the driver recorded these events."""
    framework = events["allocator"].null_count() < events.height
    return AllocationSource.FRAMEWORK if framework else AllocationSource.DRIVER


def from_events(events: pl.DataFrame) -> AllocationHistory:
    """Build the history of a trace's events (of one place), with their row numbers as `row`."""
    origin = _recorded_by(events)
    if origin is AllocationSource.FRAMEWORK:
        events = events.filter(pl.col("allocator").is_not_null())
    events = events.filter(_is(*_TAKES, *_GIVES))
    if events["allocated_bytes"].null_count() == 0 and events.height:
        return _from_totals(events, origin)
    return _from_sums(events, origin)


def from_snapshot(events: pl.DataFrame, final: pl.DataFrame) -> AllocationHistory:
    """Build the history that ends in a snapshot's blocks (`memory_blocks` of one GPU).

    Both have the numbers of their rows as `row`.
    """
    events = events.filter(_is(*_TAKES, *_GIVES, *_GROWS, *_SHRINKS))
    times, taken, sizes = _arrays(events)
    count = len(times)
    blocks = _with_older(_pair(events, taken, sizes), events, final, count)
    moved = changes(blocks, count)
    grown = sizes * (_mask(events, *_GROWS).astype(np.int64) - _mask(events, *_SHRINKS))
    held = _held_at_end(events, final)
    segments = final.unique(["segment"])["segment_bytes"].sum()
    start, start_reserved = held - int(moved.sum()), int(segments) - int(grown.sum())
    return AllocationHistory(
        AllocationSource.SNAPSHOT,
        times,
        start + np.cumsum(moved),
        start_reserved + np.cumsum(grown),
        start,
        start_reserved,
        np.where(taken, sizes, 0),
        blocks,
    )


def _from_totals(events: pl.DataFrame, origin: AllocationSource) -> AllocationHistory:
    times, taken, sizes = _arrays(events)
    process = _numbers(events, "process")
    signed = np.where(taken, sizes, -sizes)
    start, allocated = _joined(_numbers(events, "allocated_bytes"), signed, process)
    reserved = events["reserved_bytes"].fill_null(strategy="forward").fill_null(0).to_numpy()
    known = bool(reserved.any())
    # What was reserved before the first event is not told; the events rarely change it.
    first_reserved, levels = _joined(reserved, np.zeros_like(reserved), process)
    return AllocationHistory(
        origin,
        times,
        allocated,
        levels if known else None,
        start,
        first_reserved if known else None,
        np.where(taken, sizes, 0),
        _pair(events, taken, sizes) if _addressed(events) else None,
    )


def _joined(totals: Ints, change: Ints, process: Ints) -> tuple[int, Ints]:
    """Add up what each process states as its total: the start, and the level after each event."""
    start, moved = 0, np.zeros(len(totals), dtype=np.int64)
    for each in np.unique(process):
        mine = np.flatnonzero(process == each)
        first = int(totals[mine[0]] - change[mine[0]])
        moved[mine] = np.diff(totals[mine], prepend=first)
        start += first
    return start, start + np.cumsum(moved)


def _from_sums(events: pl.DataFrame, origin: AllocationSource) -> AllocationHistory:
    times, taken, sizes = _arrays(events)
    count = len(times)
    if not _addressed(events):
        levels = np.cumsum(np.where(taken, sizes, -sizes))
        start = max(0, -int(levels.min(initial=0)))
        taken_bytes = np.where(taken, sizes, 0)
        return AllocationHistory(
            origin, times, start + levels, None, start, None, taken_bytes, None, totals_known=False
        )
    blocks = _pair(events, taken, sizes)
    # The driver's records of what was held before the capture began come first, with time 0.
    held = int((times <= 0).sum()) if origin is AllocationSource.DRIVER else 0
    blocks = blocks.from_event(held)
    moved = changes(blocks, count - held)
    start = int(blocks.bytes[blocks.began == BEFORE].sum())
    return AllocationHistory(
        origin,
        times[held:],
        start + np.cumsum(moved),
        None,
        start,
        None,
        np.where(taken, sizes, 0)[held:],
        blocks,
    )


def _with_older(
    blocks: MemoryBlocks, events: pl.DataFrame, final: pl.DataFrame, count: int
) -> MemoryBlocks:
    """Add the blocks of a snapshot that no event mentions: they are older than the history."""
    older = final.filter(_held()).join(
        events.filter(_is(*_TAKES, *_GIVES)), on="address", how="anti"
    )
    return blocks.with_held(_asked(older).to_numpy(), _numbers(older, ROW), count)


def _held_at_end(events: pl.DataFrame, final: pl.DataFrame) -> int:
    """Sum up what a snapshot shows in use, in the sizes that its events give where they do."""
    last = events.filter(_is(*_TAKES, *_GIVES)).unique("address", keep="last", maintain_order=True)
    taken = last.filter(_is(*_TAKES)).select("address", pl.col("bytes").alias("taken_bytes"))
    held = final.filter(_held()).join(taken, on="address", how="left", maintain_order="left")
    return int(held["taken_bytes"].fill_null(_asked(held)).sum())


def _asked(final: pl.DataFrame) -> pl.Series:
    """Give what the program asked for, which is what events count too; else the rounded size."""
    return final.select(pl.col("requested_bytes").fill_null(pl.col("bytes"))).to_series()


def _pair(events: pl.DataFrame, taken: Flags, sizes: Ints) -> MemoryBlocks:
    """Pair the events that name an address."""
    named = np.flatnonzero(
        events["address"].is_not_null() & events.select(_is(*_TAKES, *_GIVES)).to_series()
    )
    few = events[named]
    blocks = pair(
        _numbers(few, ROW),
        taken[named],
        sizes[named],
        _numbers(few, "address"),
        _numbers(few, "process"),
    )
    # Back from numbers among the named events to numbers among all; the end stays the end.
    place = np.append(named, [events.height, BEFORE])
    return MemoryBlocks(
        blocks.bytes, place[blocks.began], place[blocks.ended], blocks.row, blocks.state
    )


def _arrays(events: pl.DataFrame) -> tuple[Ints, Flags, Ints]:
    return events["time_ns"].to_numpy(), _mask(events, *_TAKES), events["bytes"].to_numpy()


def _addressed(events: pl.DataFrame) -> bool:
    return events["address"].null_count() < max(events.height, 1)


def _numbers(frame: pl.DataFrame, column: str) -> Ints:
    numbers: Ints = frame[column].cast(pl.Int64).fill_null(-1).to_numpy()
    return numbers


def _held() -> pl.Expr:
    return pl.col("state").cast(pl.String).is_in(HELD)


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
SPARSE = 0.5
"""A segment with less in use than this holds back memory for little."""


def reserved_parts(blocks: pl.DataFrame) -> TableResult:
    """Split what is reserved into what is used, lost by rounding, and free in which way."""
    held = pl.col("state").cast(pl.String).is_in(HELD)
    asked = pl.col("requested_bytes").fill_null(pl.col("bytes"))
    occupied = held.any().over("segment")
    pending = pl.col("state").cast(pl.String) == "pending_free"
    parts = [
        _part(blocks, "asked for by the program", held & ~pending, asked),
        _part(blocks, "freed, but a stream may still use it", pending, asked),
        _part(blocks, "rounding: given beyond what was asked", held, pl.col("bytes") - asked),
        _part(blocks, "free between used blocks", ~held & occupied, pl.col("bytes")),
        _part(blocks, "free in unused segments", ~held & ~occupied, pl.col("bytes")),
    ]
    frame = pl.concat(parts).filter(pl.col("bytes") != 0)
    total = int(frame["bytes"].sum())
    frame = frame.with_columns(share_of(pl.col("bytes"), total).alias("share"))
    return TableResult(
        "reserved",
        "Reserved memory at the end",
        RESERVED_FIELDS,
        frame.select(f.key for f in RESERVED_FIELDS),
    )


def _part(blocks: pl.DataFrame, name: str, which: pl.Expr, size: pl.Expr) -> pl.DataFrame:
    rows = blocks.filter(which).select(size.alias("bytes")).filter(pl.col("bytes") != 0)
    return rows.select(
        pl.col("bytes").sum(),
        pl.len().cast(pl.Int64).alias("blocks"),
        pl.col("bytes").max().alias("largest_bytes"),
        pl.lit(name).alias("part"),
    )


def segments(blocks: pl.DataFrame) -> TableResult:
    """List the segments, those that hold back most first."""
    held = pl.col("state").cast(pl.String).is_in(HELD)
    size = pl.col("segment_bytes").first()
    used = pl.col("bytes").filter(held).sum()
    frame = (
        blocks.group_by("segment", maintain_order=True)
        .agg(
            size.alias("bytes"),
            used.alias("used_bytes"),
            (size - used).alias("free_bytes"),
            pl.col("bytes").filter(~held).max().fill_null(0).alias("largest_free_bytes"),
            held.sum().cast(pl.Int64).alias("blocks"),
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
    title = "Segments, by what is free in them" + _sparse(frame)
    return TableResult(
        "segments", title, SEGMENT_FIELDS, frame.select(f.key for f in SEGMENT_FIELDS)
    )


def _sparse(frame: pl.DataFrame) -> str:
    """Say how much lies idle in segments that hold little."""
    sparse = frame.filter(pl.col("used_share") < SPARSE)
    if sparse.is_empty():
        return ""
    free = format_bytes(int(sparse["free_bytes"].sum()))
    return f": {sparse.height:,} of {frame.height:,} under half used, {free} free"
