"""Who held memory at the peak and over time, and allocations that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import share_of
from gpusight.analysis.attribution.nested_intervals import optional
from gpusight.analysis.memory import memory_holders
from gpusight.analysis.memory.allocations import BEFORE, ROW, AllocationSource, changes
from gpusight.analysis.memory.device_memory import allocated_at, reserved_at, thin
from gpusight.analysis.memory.memory_holders import WHO, AllocationMoments
from gpusight.results import Field, Fmt, TableResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analysis.memory.allocations import AllocationHistory, MemoryBlocks
    from gpusight.analysis.memory.device_memory import MemoryPoints, MemoryView
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


_WHO_FIELDS = (
    Field("op", "Operator", Fmt.NAME, "Operator that took it, or the CUDA call", shown=False),
    Field("outer_op", "Called by", Fmt.NAME, "Outermost operator around that", shown=False),
    Field("module", "Module", Fmt.NAME, "Module of the model that ran", shown=False),
    Field("site", "Code", Fmt.NAME, "Innermost Python call outside the framework", shown=False),
    Field("range", "Range", Fmt.NAME, "Innermost range that was open", shown=False),
)
PEAK_FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Part of the peak"),
    Field("bytes", "Bytes", Fmt.BYTES, "Bytes held at the peak; they sum to it"),
    Field("blocks", "Blocks", Fmt.COUNT, "Blocks they lie in; null when not recorded one by one"),
    Field("holder", "Holder", Fmt.NAME, "Who took them"),
    *_WHO_FIELDS,
)
BLOCK_FIELDS = (
    Field("bytes", "Bytes", Fmt.BYTES, "Size of the block"),
    Field("allocated_ns", "Taken", Fmt.TIME, "When; null before the capture or its history began"),
    Field("freed_ns", "Freed", Fmt.TIME, "When; null when it was still held at the end"),
    Field("holder", "Holder", Fmt.NAME, "Who took it"),
    *_WHO_FIELDS,
    Field("memory_kind", "Kind", Fmt.TEXT, "Kind of memory", shown=False),
    Field("address", "Address", Fmt.ID, "Address", shown=False),
    Field("stack", "Python stack", Fmt.NAME, "Python calls, innermost first", shown=False),
)
HELD_BEFORE = "held before the capture"
UNKNOWN = "unknown: the capture does not tell"
NOT_RECORDED = "not recorded: the events do not add up to it"
STATIC = "static variables of CUDA modules"
LARGEST = 100
"""Single blocks that are listed."""


def find_holders(trace: Trace, blocks: MemoryBlocks, origin: AllocationSource) -> pl.DataFrame:
    """Say who took each block: `WHO`, and all of it as the text `holder`."""
    find = {
        AllocationSource.FRAMEWORK: _framework,
        AllocationSource.DRIVER: _driver,
        AllocationSource.SNAPSHOT: _snapshot,
    }[origin]
    who = find(trace, blocks)
    kinds = _events(trace, blocks, ["memory_kind"])["memory_kind"].cast(pl.String)
    return who.with_columns(
        pl.when(kinds.is_in(["Device Static", "Managed Static"]))
        .then(pl.lit(STATIC))
        .otherwise(pl.coalesce(_who_text(), _stand_in(blocks)))
        .alias("holder")
    )


def by_holder(view: MemoryView, holders_of: pl.DataFrame) -> TableResult:
    """Sum what was held at the peak by who held it; the rows sum to the peak."""
    history = view.history
    assert history.blocks is not None, "nobody can be named without blocks"
    held = history.blocks.held_after(view.peak_event)
    rows = holders_of[held].with_columns(pl.Series("bytes", history.blocks.bytes[held]))
    frame = rows.group_by("holder").agg(
        pl.col("bytes").sum(), pl.len().cast(pl.Int64).alias("blocks"), *_common(WHO)
    )
    before = max(history.unlisted_start, 0)
    rest = view.peak_bytes - int(frame["bytes"].sum()) - before
    frame = _with_unlisted(_with_unlisted(frame, HELD_BEFORE, before), NOT_RECORDED, rest)
    frame = frame.with_columns(share_of(pl.col("bytes"), view.peak_bytes).alias("share"))
    frame = frame.sort(["bytes", "holder"], descending=[True, False])
    return TableResult(
        "peak",
        "Memory held at the peak",
        PEAK_FIELDS,
        frame.select(f.key for f in PEAK_FIELDS),
        meta={"not_recorded_bytes": rest},
    )


def largest_blocks(trace: Trace, view: MemoryView, holders_of: pl.DataFrame) -> TableResult:
    """List the largest single blocks held at the peak."""
    history = view.history
    blocks = history.blocks
    assert blocks is not None, "nobody can be named without blocks"
    held = blocks.held_after(view.peak_event)
    chosen = held[np.argsort(-blocks.bytes[held], kind="stable")][:LARGEST]
    few = blocks.chosen(chosen)
    none = len(history)
    events = _events(trace, few, ["address", "memory_kind"])
    frame = holders_of[chosen].with_columns(
        pl.Series("bytes", few.bytes),
        _times(history.times, np.where(few.began == BEFORE, none, few.began), "allocated_ns"),
        _times(history.times, few.ended, "freed_ns"),
        events["memory_kind"].cast(pl.String),
        _either(events["address"], _final(trace, few, "address")),
        pl.Series("stack", _stacks(trace, few, history.origin), pl.List(pl.String)),
    )
    title = "Largest blocks held at the peak"
    more = f": the first {len(chosen)} of {len(held):,}" if len(held) > len(chosen) else ""
    rows = frame.select(f.key for f in BLOCK_FIELDS)
    return TableResult("blocks", title + more, BLOCK_FIELDS, rows)


# Who ----------------------------------------------------------------------------------------------


def _framework(trace: Trace, blocks: MemoryBlocks) -> pl.DataFrame:
    return memory_holders.from_framework(trace, _moments(trace, blocks))


def _driver(trace: Trace, blocks: MemoryBlocks) -> pl.DataFrame:
    events = _events(trace, blocks, ["time_ns", "process", "correlation"])
    inside = pl.Series(blocks.began != BEFORE)
    return memory_holders.from_driver(
        trace, events.select(pl.when(inside).then(pl.all()).otherwise(None).name.keep())
    )


def _snapshot(trace: Trace, blocks: MemoryBlocks) -> pl.DataFrame:
    events = _events(trace, blocks, ["time_ns", "device", "callchain"])
    ours = memory_holders.from_chains(trace, "memory_events", events["callchain"])
    older = memory_holders.from_chains(trace, "memory_blocks", _final(trace, blocks, "callchain"))
    # A snapshot's annotations are told apart by device, not by thread.
    times = events["time_ns"].fill_null(-1).to_numpy()
    return pl.DataFrame(
        {
            **{column: _either(ours[column], older[column]) for column in memory_holders.NAMED},
            "module": memory_holders.no_texts(len(blocks)),
            "range": memory_holders.ranges_of(trace, "domain_key", times, events["device"]),
        }
    ).select(WHO)


def _moments(trace: Trace, blocks: MemoryBlocks) -> AllocationMoments:
    events = _events(trace, blocks, ["time_ns", "thread", "process"])
    return AllocationMoments(
        events["time_ns"].fill_null(-1).to_numpy(), events["thread"], events["process"]
    )


def _events(trace: Trace, blocks: MemoryBlocks, columns: list[str]) -> pl.DataFrame:
    """Give the events that took blocks; null where there is none."""
    table = trace.table("memory_events", columns)
    return table.select(pl.all().gather(optional(blocks.row)))


def _final(trace: Trace, blocks: MemoryBlocks, column: str) -> pl.Series:
    """Give a column of the blocks of a snapshot that no event took; null for the others."""
    return trace.table("memory_blocks", [column])[column].gather(optional(blocks.state))


def _either(first: pl.Series, second: pl.Series) -> pl.Series:
    return first.zip_with(first.is_not_null(), second)


def _who_text() -> pl.Expr:
    """Write who took a block as one text: modules and ranges without their numbers."""
    module = pl.col("module").str.replace(r"_\d+$", "")
    ranges = pl.col("range").str.replace(r"[\s_#:.-]*\d+$", "")
    inner = pl.concat_str(pl.lit(" › "), pl.col("op").str.strip_prefix("aten::"))
    nested = pl.when(pl.col("op") != pl.col("outer_op")).then(inner).otherwise(pl.lit(""))
    op = pl.concat_str(pl.coalesce("outer_op", "op"), nested.fill_null(""))
    parts = [op, module, "site", pl.when(pl.col("site").is_null()).then(ranges)]
    text = pl.concat_str(parts, separator=" · ", ignore_nulls=True)
    return pl.when(text != "").then(text)


def _stand_in(blocks: MemoryBlocks) -> pl.Series:
    before = pl.Series(blocks.began == BEFORE)
    texts = pl.select(pl.when(before).then(pl.lit(HELD_BEFORE)).otherwise(pl.lit(UNKNOWN)))
    return texts.to_series()


# Rows ---------------------------------------------------------------------------------------------


def _common(columns: tuple[str, ...]) -> list[pl.Expr]:
    """Keep what all rows of a group agree on."""
    return [pl.when(pl.col(c).n_unique() == 1).then(pl.col(c).first()).alias(c) for c in columns]


def _with_unlisted(frame: pl.DataFrame, holder: str, size: int) -> pl.DataFrame:
    """Add bytes of which no block is known to a holder's row, or as one of its own."""
    if size == 0:
        return frame
    mine = pl.col("holder") == holder
    listed = int(frame.filter(mine)["bytes"].sum())
    total = pl.Series([listed + size], dtype=pl.Int64)
    row = pl.DataFrame({"holder": [holder], "bytes": total})
    return pl.concat([frame.filter(~mine), row], how="diagonal")


def _times(times: Ints, events: Ints, name: str) -> pl.Series:
    """Look up when events happened; the count of events stands for none."""
    at = optional(np.where(events < len(times), events, -1))
    return pl.Series(name, times).gather(at)


def _stacks(trace: Trace, blocks: MemoryBlocks, origin: AllocationSource) -> list[list[str]]:
    if origin is AllocationSource.FRAMEWORK:
        return memory_holders.python_stacks(trace, _moments(trace, blocks))
    if origin is AllocationSource.DRIVER:
        return [[] for _ in range(len(blocks))]
    chains = _events(trace, blocks, ["callchain"])["callchain"]
    ours = memory_holders.python_frames(trace, "memory_events", chains)
    older = memory_holders.python_frames(trace, "memory_blocks", _final(trace, blocks, "callchain"))
    return [mine or theirs for mine, theirs in zip(ours, older, strict=True)]


TIMELINE_FIELDS = (
    Field("time_ns", "Time", Fmt.TIME, "When"),
    Field("allocated_bytes", "In use", Fmt.BYTES, "In use from then on"),
    Field("reserved_bytes", "Reserved", Fmt.BYTES, "Held from the driver; null when not recorded"),
    Field(
        "held_bytes",
        "By holder",
        Fmt.BYTES,
        "In use by each of `meta.timeline_holders`, in their order; they sum to what is in use",
        shown=False,
    ),
)
REST = "everything else"
_MOST_HOLDERS = 5
_LEAST_SHARE = 0.02


def memory_over_time(
    view: MemoryView, holders: pl.Series | None, peak: TableResult | None
) -> TableResult:
    """Thin a view out; `holders` names who took each block, `peak` is the table of them."""
    points = thin(view)
    allocated, reserved = allocated_at(view.history, points), reserved_at(view.history, points)
    names: list[str] = []
    held: list[Ints] = []
    if holders is not None and peak is not None:
        names = _largest(peak)
        held = [_level(view.history, holders, name, points) for name in names]
        rest = allocated - sum(held, np.zeros_like(allocated))
        if rest.any() or not names:
            names, held = [*names, REST], [*held, rest]
    frame = pl.DataFrame(
        {
            "time_ns": points.times,
            "allocated_bytes": allocated,
            "reserved_bytes": pl.Series(
                reserved if reserved is not None else [None] * len(points), dtype=pl.Int64
            ),
            "held_bytes": _lists(held, len(points)),
        }
    )
    return TableResult(
        "timeline", "Memory over time", TIMELINE_FIELDS, frame, meta={"timeline_holders": names}
    )


def _largest(peak: TableResult) -> list[str]:
    """Name what was held before, then the largest holders at the peak."""
    shown = peak.frame.filter(pl.col("share") >= _LEAST_SHARE)["holder"].to_list()
    first = [HELD_BEFORE] if HELD_BEFORE in shown else []
    others = [name for name in shown if name not in {HELD_BEFORE, NOT_RECORDED}]
    return [*first, *others[:_MOST_HOLDERS]]


def _level(history: AllocationHistory, holders: pl.Series, name: str, points: MemoryPoints) -> Ints:
    """Follow what one holder had."""
    assert history.blocks is not None, "nobody can be named without blocks"
    mine = history.blocks.chosen(np.flatnonzero((holders == name).to_numpy()))
    start = int(mine.bytes[mine.began == BEFORE].sum())
    if name == HELD_BEFORE:
        start += max(history.unlisted_start, 0)
    levels = start + np.cumsum(changes(mine, len(history)))
    return np.append(levels, start)[points.events]


def _lists(columns: Sequence[Ints], rows: int) -> pl.Series:
    if not columns:
        return pl.Series([None] * rows, dtype=pl.List(pl.Int64))
    table = np.stack(columns, axis=1)
    return pl.Series(table, dtype=pl.Array(pl.Int64, len(columns))).cast(pl.List(pl.Int64))


FAILURE_FIELDS = (
    Field("time_ns", "When", Fmt.TIME, "When it failed"),
    Field("bytes", "Asked for", Fmt.BYTES, "Size that could not be had"),
    Field("allocated_bytes", "In use", Fmt.BYTES, "In use at that moment"),
    Field("reserved_bytes", "Reserved", Fmt.BYTES, "Held from the driver at that moment"),
    Field("unused_bytes", "Unused", Fmt.BYTES, "Reserved but not in use, in too small pieces"),
    Field("op", "Operator", Fmt.NAME, "Operator that asked"),
    Field("outer_op", "Called by", Fmt.NAME, "Outermost operator around that", shown=False),
    Field("site", "Code", Fmt.NAME, "Innermost Python call outside the framework"),
    Field("stack", "Python stack", Fmt.NAME, "Python calls, innermost first", shown=False),
)


def failures(trace: Trace, view: MemoryView, events: pl.DataFrame) -> TableResult | None:
    """List the allocations that failed; None when none did."""
    failed = events.filter(pl.col("operation").cast(pl.String) == "out_of_memory")
    if failed.is_empty():
        return None
    history = view.history
    rows = optional(failed[ROW].cast(pl.Int64).to_numpy())
    chains = trace.table("memory_events", ["callchain"])["callchain"].gather(rows)
    last = [history.last_before(time + 1) for time in failed["time_ns"].to_list()]
    frame = failed.select("time_ns", "bytes").with_columns(
        pl.Series("allocated_bytes", [history.allocated_after(e) for e in last], pl.Int64),
        pl.Series("reserved_bytes", [history.reserved_after(e) for e in last], pl.Int64),
        *memory_holders.from_chains(trace, "memory_events", chains).get_columns(),
        pl.Series("stack", memory_holders.python_frames(trace, "memory_events", chains)),
    )
    frame = frame.with_columns(
        (pl.col("reserved_bytes") - pl.col("allocated_bytes")).alias("unused_bytes")
    )
    return TableResult(
        "out_of_memory",
        "Allocations that failed for want of memory",
        FAILURE_FIELDS,
        frame.select(f.key for f in FAILURE_FIELDS),
    )
