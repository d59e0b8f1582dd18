"""How much memory was in use over time, from whichever source recorded it.

A framework's trace states the totals after each event. A snapshot states what is held at its end,
from which the events are walked backwards, as the oldest of them may be lost. A driver's records
have no totals: what they took and gave back is summed up.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.memory.blocks import BEFORE, Blocks, changes, pair

if TYPE_CHECKING:
    from gpusight.analyses.memory.blocks import Flags, Ints

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


class Origin(enum.Enum):
    """Who recorded the events, which decides what they mean."""

    FRAMEWORK = "framework"
    SNAPSHOT = "snapshot"
    DRIVER = "driver"


@dataclass(frozen=True)
class History:
    """The level of one GPU's memory (or the host's) after each event."""

    origin: Origin
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
    blocks: Blocks | None
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


def _recorded_by(events: pl.DataFrame) -> Origin:
    """Tell whether a framework's allocator or the driver recorded these events."""
    framework = events["allocator"].null_count() < events.height
    return Origin.FRAMEWORK if framework else Origin.DRIVER


def from_events(events: pl.DataFrame) -> History:
    """Build the history of a trace's events (of one place), with their row numbers as `row`."""
    origin = _recorded_by(events)
    if origin is Origin.FRAMEWORK:
        events = events.filter(pl.col("allocator").is_not_null())
    events = events.filter(_is(*_TAKES, *_GIVES))
    if events["allocated_bytes"].null_count() == 0 and events.height:
        return _from_totals(events, origin)
    return _from_sums(events, origin)


def from_snapshot(events: pl.DataFrame, final: pl.DataFrame) -> History:
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
    return History(
        Origin.SNAPSHOT,
        times,
        start + np.cumsum(moved),
        start_reserved + np.cumsum(grown),
        start,
        start_reserved,
        np.where(taken, sizes, 0),
        blocks,
    )


def _from_totals(events: pl.DataFrame, origin: Origin) -> History:
    times, taken, sizes = _arrays(events)
    process = _numbers(events, "process")
    signed = np.where(taken, sizes, -sizes)
    start, allocated = _joined(_numbers(events, "allocated_bytes"), signed, process)
    reserved = events["reserved_bytes"].fill_null(strategy="forward").fill_null(0).to_numpy()
    known = bool(reserved.any())
    # What was reserved before the first event is not told; the events rarely change it.
    first_reserved, levels = _joined(reserved, np.zeros_like(reserved), process)
    return History(
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


def _from_sums(events: pl.DataFrame, origin: Origin) -> History:
    times, taken, sizes = _arrays(events)
    count = len(times)
    if not _addressed(events):
        levels = np.cumsum(np.where(taken, sizes, -sizes))
        start = max(0, -int(levels.min(initial=0)))
        taken_bytes = np.where(taken, sizes, 0)
        return History(
            origin, times, start + levels, None, start, None, taken_bytes, None, totals_known=False
        )
    blocks = _pair(events, taken, sizes)
    # The driver's records of what was held before the capture began come first, with time 0.
    held = int((times <= 0).sum()) if origin is Origin.DRIVER else 0
    blocks = blocks.from_event(held)
    moved = changes(blocks, count - held)
    start = int(blocks.bytes[blocks.began == BEFORE].sum())
    return History(
        origin,
        times[held:],
        start + np.cumsum(moved),
        None,
        start,
        None,
        np.where(taken, sizes, 0)[held:],
        blocks,
    )


def _with_older(blocks: Blocks, events: pl.DataFrame, final: pl.DataFrame, count: int) -> Blocks:
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


def _pair(events: pl.DataFrame, taken: Flags, sizes: Ints) -> Blocks:
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
    return Blocks(blocks.bytes, place[blocks.began], place[blocks.ended], blocks.row, blocks.state)


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
