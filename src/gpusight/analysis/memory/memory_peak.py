"""Who held memory at the peak and over time, and allocations that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import share_of
from gpusight.analysis.attribution.nested_intervals import optional
from gpusight.analysis.attribution.work_causes import HostMoments
from gpusight.analysis.memory import memory_holders
from gpusight.analysis.memory.allocations import BEFORE, ROW, AllocationSource
from gpusight.analysis.memory.device_memory import allocated_at, reserved_at, thin
from gpusight.analysis.memory.memory_holders import WHO
from gpusight.results import Field, Fmt, TableResult
from gpusight.units import format_bytes, format_share

if TYPE_CHECKING:
    from gpusight.analysis.memory.allocations import AllocationHistory, MemoryBlocks
    from gpusight.analysis.memory.device_memory import MemoryPoints, MemoryView
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


_WHO_FIELDS = (
    Field("op", "Operator", Fmt.NAME, "Operator or CUDA call that allocated it", shown=False),
    Field("outer_op", "Called by", Fmt.NAME, "Outermost operator around that", shown=False),
    Field("module", "Module", Fmt.NAME, "Module of the model that ran", shown=False),
    Field("site", "Code", Fmt.NAME, "Innermost Python call outside the framework", shown=False),
    Field("range", "Range", Fmt.NAME, "Innermost range that was open", shown=False),
)
PEAK_FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Part of the peak"),
    Field("bytes", "Bytes", Fmt.BYTES, "Bytes held at the peak; they sum to it"),
    Field("blocks", "Blocks", Fmt.COUNT, "Blocks; null where not recorded individually"),
    Field("holder", "Allocated by", Fmt.NAME, "Operator, module and line of code"),
    *_WHO_FIELDS,
)
BLOCK_FIELDS = (
    Field("bytes", "Bytes", Fmt.BYTES, "Size of the block"),
    Field("allocated_ns", "Allocated", Fmt.TIME, "Time; null before the capture or its history"),
    Field("freed_ns", "Freed", Fmt.TIME, "Time; null where it is still allocated at the end"),
    Field("holder", "Allocated by", Fmt.NAME, "Operator, module and line of code"),
    *_WHO_FIELDS,
    Field("memory_kind", "Kind", Fmt.TEXT, "Kind of memory", shown=False),
    Field("address", "Address", Fmt.ID, "Address", shown=False),
    Field("stack", "Python stack", Fmt.NAME, "Python calls, innermost first", shown=False),
)
GROUP_FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Part of the peak"),
    Field("total_bytes", "Total", Fmt.BYTES, "Sum of the sizes of its blocks"),
    Field("blocks", "Blocks", Fmt.COUNT, "Blocks of this size and allocation site"),
    Field("bytes", "Each", Fmt.BYTES, "Size of each block; null for small groups together"),
    Field("holder", "Allocated by", Fmt.NAME, "Operator, module and line of code"),
)
HELD_BEFORE = "allocated before the capture"
UNKNOWN = "unknown: not in the capture"
NOT_RECORDED = "not recorded: the events do not add up to it"
STATIC = "static variables of CUDA modules"
_MIN_GROUP_SHARE = 0.001
"""Share of the peak below which groups of blocks are summed up in one row."""
_MAX_BLOCKS = 100
"""Single blocks that are listed."""


def find_holders(trace: Trace, blocks: MemoryBlocks, origin: AllocationSource) -> pl.DataFrame:
    """Return who allocated each block: the columns `WHO`, and all of it as the text `holder`."""
    if origin is AllocationSource.FRAMEWORK:
        processes = _events(trace, blocks, ["process"])["process"]
        who = memory_holders.from_framework(trace, _moments(trace, blocks), processes)
    elif origin is AllocationSource.DRIVER:
        events = _events(trace, blocks, ["time_ns", "process", "correlation"])
        known = pl.when(pl.Series(blocks.began != BEFORE)).then(pl.all()).name.keep()
        who = memory_holders.from_driver(trace, events.select(known))
    else:
        who = _snapshot(trace, blocks)
    kinds = _events(trace, blocks, ["memory_kind"])["memory_kind"].cast(pl.String)
    return who.with_columns(
        pl.when(kinds.is_in(["Device Static", "Managed Static"]))
        .then(pl.lit(STATIC))
        .when(_holder_text() != "")
        .then(_holder_text())
        .when(pl.Series(blocks.began == BEFORE))
        .then(pl.lit(HELD_BEFORE))
        .otherwise(pl.lit(UNKNOWN))
        .alias("holder")
    )


def by_holder(view: MemoryView, holders_of: pl.DataFrame) -> TableResult:
    """Sum the memory in use at the peak by who allocated it; the rows sum to the peak."""
    history = view.history
    assert history.blocks is not None, "the owner of memory is not known without blocks"
    held = history.blocks.held_after(view.peak_event)
    rows = holders_of[held].with_columns(pl.Series("bytes", history.blocks.bytes[held]))
    frame = rows.group_by("holder").agg(
        pl.col("bytes").sum(),
        pl.len().cast(pl.Int64).alias("blocks"),
        # What all blocks of the holder agree on.
        *(pl.when(pl.col(c).n_unique() == 1).then(pl.col(c).first()).alias(c) for c in WHO),
    )
    before = max(history.unlisted_start, 0)
    rest = view.peak_bytes - int(frame["bytes"].sum()) - before
    frame = _with_unlisted(_with_unlisted(frame, HELD_BEFORE, before), NOT_RECORDED, rest)
    frame = frame.with_columns(share_of(pl.col("bytes"), view.peak_bytes).alias("share"))
    frame = frame.sort(["bytes", "holder"], descending=[True, False])
    return TableResult(
        "peak",
        "Memory at the peak by allocation site",
        PEAK_FIELDS,
        frame.select(f.key for f in PEAK_FIELDS),
        meta={"not_recorded_bytes": rest},
    )


def block_groups(view: MemoryView, holders_of: pl.DataFrame) -> TableResult:
    """Count the blocks in use at the peak by size and by who allocated them."""
    history = view.history
    assert history.blocks is not None, "the owner of memory is not known without blocks"
    held = history.blocks.held_after(view.peak_event)
    total = pl.col("bytes") * pl.col("blocks")
    frame = (
        holders_of[held]
        .select("holder", pl.Series("bytes", history.blocks.bytes[held]))
        .group_by("holder", "bytes")
        .agg(pl.len().cast(pl.Int64).alias("blocks"))
        .with_columns(total.alias("total_bytes"))
        .with_columns(share_of(pl.col("total_bytes"), view.peak_bytes).alias("share"))
        .sort(["total_bytes", "bytes", "holder"], descending=[True, True, False])
    )
    # Groups that hold next to nothing become one row: a driver lists variables of 20 bytes.
    is_small = (pl.col("share") < _MIN_GROUP_SHARE).fill_null(value=False)
    small = frame.filter(is_small)
    if small.height > 1:
        label = f"{small.height:,} groups below {format_share(_MIN_GROUP_SHARE)} each"
        row = small.select(
            pl.lit(label).alias("holder"),
            pl.lit(None, frame.schema["bytes"]).alias("bytes"),
            pl.col("blocks", "total_bytes", "share").sum(),
        )
        frame = pl.concat([frame.filter(~is_small), row.select(frame.columns)])
    size = format_bytes(int(history.blocks.bytes[held].sum()))
    return TableResult(
        "block_groups",
        f"Blocks at the peak, by size and allocation site: {len(held):,} blocks, {size}",
        GROUP_FIELDS,
        frame.select(f.key for f in GROUP_FIELDS),
    )


def largest_blocks(trace: Trace, view: MemoryView, holders_of: pl.DataFrame) -> TableResult:
    """List the largest single blocks in use at the peak."""
    history = view.history
    assert history.blocks is not None, "the owner of memory is not known without blocks"
    held = history.blocks.held_after(view.peak_event)
    chosen = held[np.argsort(-history.blocks.bytes[held], kind="stable")][:_MAX_BLOCKS]
    blocks = history.blocks.chosen(chosen)
    times = pl.Series(history.times)
    freed = optional(np.where(blocks.ended < len(times), blocks.ended, -1))
    events = _events(trace, blocks, ["address", "memory_kind"])
    frame = holders_of[chosen].with_columns(
        pl.Series("bytes", blocks.bytes),
        times.gather(optional(blocks.began)).alias("allocated_ns"),
        times.gather(freed).alias("freed_ns"),
        events["memory_kind"].cast(pl.String),
        _either(events["address"], _final(trace, blocks, "address")),
        pl.Series("stack", _stacks(trace, blocks, history.origin), pl.List(pl.String)),
    )
    title = "Largest blocks at the peak"
    if len(held) > len(chosen):
        title += f": {len(chosen)} of {len(held):,}"
    return TableResult("blocks", title, BLOCK_FIELDS, frame.select(f.key for f in BLOCK_FIELDS))


# Who ----------------------------------------------------------------------------------------------


def _snapshot(trace: Trace, blocks: MemoryBlocks) -> pl.DataFrame:
    events = _events(trace, blocks, ["time_ns", "device", "callchain"])
    newer = memory_holders.from_chains(trace, "memory_events", events["callchain"])
    older = memory_holders.from_chains(trace, "memory_blocks", _final(trace, blocks, "callchain"))
    # A snapshot's annotations are by device, not by thread.
    times = events["time_ns"].fill_null(-1).to_numpy()
    return pl.DataFrame(
        {
            **{column: _either(newer[column], older[column]) for column in memory_holders.NAMED},
            "module": memory_holders.no_texts(len(blocks)),
            "range": memory_holders.ranges_of(trace, "domain_key", times, events["device"]),
        }
    ).select(WHO)


def _moments(trace: Trace, blocks: MemoryBlocks) -> HostMoments:
    events = _events(trace, blocks, ["time_ns", "thread"])
    return HostMoments(events["time_ns"].fill_null(-1).to_numpy(), events["thread"])


def _events(trace: Trace, blocks: MemoryBlocks, columns: list[str]) -> pl.DataFrame:
    """Return the events that allocated blocks; null where there is none."""
    table = trace.table("memory_events", columns)
    return table.select(pl.all().gather(optional(blocks.row)))


def _final(trace: Trace, blocks: MemoryBlocks, column: str) -> pl.Series:
    """Return a column of a snapshot's blocks that no event allocated; null for the others."""
    return trace.table("memory_blocks", [column])[column].gather(optional(blocks.state))


def _either(first: pl.Series, second: pl.Series) -> pl.Series:
    return first.zip_with(first.is_not_null(), second)


def _holder_text() -> pl.Expr:
    """Write who allocated a block as one text: modules and ranges without their numbers."""
    module = pl.col("module").str.replace(r"_\d+$", "")
    ranges = pl.col("range").str.replace(r"[\s_#:.-]*\d+$", "")
    inner = pl.concat_str(pl.lit(" › "), pl.col("op").str.strip_prefix("aten::"))
    nested = pl.when(pl.col("op") != pl.col("outer_op")).then(inner).otherwise(pl.lit(""))
    op = pl.concat_str(pl.coalesce("outer_op", "op"), nested.fill_null(""))
    parts = [op, module, "site", pl.when(pl.col("site").is_null()).then(ranges)]
    return pl.concat_str(parts, separator=" · ", ignore_nulls=True)


# Rows ---------------------------------------------------------------------------------------------


def _with_unlisted(frame: pl.DataFrame, holder: str, size: int) -> pl.DataFrame:
    """Add bytes without a known block to a holder's row, or as a row of their own."""
    if size == 0:
        return frame
    is_holder = pl.col("holder") == holder
    listed = int(frame.filter(is_holder)["bytes"].sum())
    total = pl.Series([listed + size], dtype=pl.Int64)
    row = pl.DataFrame({"holder": [holder], "bytes": total})
    return pl.concat([frame.filter(~is_holder), row], how="diagonal")


def _stacks(trace: Trace, blocks: MemoryBlocks, origin: AllocationSource) -> list[list[str]]:
    if origin is AllocationSource.FRAMEWORK:
        return memory_holders.python_stacks(trace, _moments(trace, blocks))
    if origin is AllocationSource.DRIVER:
        return [[] for _ in range(len(blocks))]
    chains = _events(trace, blocks, ["callchain"])["callchain"]
    newer = memory_holders.python_frames(trace, "memory_events", chains)
    older = memory_holders.python_frames(trace, "memory_blocks", _final(trace, blocks, "callchain"))
    return [stack or other for stack, other in zip(newer, older, strict=True)]


TIMELINE_FIELDS = (
    Field("time_ns", "Time", Fmt.TIME, "When"),
    Field("allocated_bytes", "In use", Fmt.BYTES, "In use from then on"),
    Field(
        "reserved_bytes", "Reserved", Fmt.BYTES, "Reserved from the driver; null where not recorded"
    ),
    Field(
        "held_bytes",
        "By allocation site",
        Fmt.BYTES,
        "In use by each of `meta.timeline_holders`, in their order; they sum to what is in use",
        shown=False,
    ),
)
REST = "everything else"
_MAX_HOLDERS = 5
_MIN_HOLDER_SHARE = 0.02


def memory_over_time(
    view: MemoryView, holders: pl.Series | None, peak: TableResult | None
) -> TableResult:
    """Sample the levels of a view; `holders` names who allocated each block, `peak` sums them."""
    points = thin(view)
    allocated, reserved = allocated_at(view.history, points), reserved_at(view.history, points)
    names: list[str] = []
    held_bytes = pl.Series([None] * len(points), dtype=pl.List(pl.Int64))
    if holders is not None and peak is not None:
        # What was in use before the capture, then the largest holders at the peak.
        shown = peak.frame.filter(pl.col("share") >= _MIN_HOLDER_SHARE)["holder"].to_list()
        others = [name for name in shown if name not in {HELD_BEFORE, NOT_RECORDED}]
        names = [*([HELD_BEFORE] if HELD_BEFORE in shown else []), *others[:_MAX_HOLDERS]]
        levels = [_level(view.history, holders, name, points) for name in names]
        rest = allocated - sum(levels, np.zeros_like(allocated))
        if rest.any() or not names:
            names, levels = [*names, REST], [*levels, rest]
        dtype = pl.Array(pl.Int64, len(levels))
        held_bytes = pl.Series(np.stack(levels, axis=1), dtype=dtype).cast(pl.List(pl.Int64))
    frame = pl.DataFrame(
        {
            "time_ns": points.times,
            "allocated_bytes": allocated,
            "reserved_bytes": pl.Series(
                reserved if reserved is not None else [None] * len(points), dtype=pl.Int64
            ),
            "held_bytes": held_bytes,
        }
    )
    return TableResult(
        "timeline", "Memory over time", TIMELINE_FIELDS, frame, meta={"timeline_holders": names}
    )


def _level(history: AllocationHistory, holders: pl.Series, name: str, points: MemoryPoints) -> Ints:
    """Return the bytes of one holder at points."""
    assert history.blocks is not None, "the owner of memory is not known without blocks"
    blocks = history.blocks.chosen(np.flatnonzero((holders == name).to_numpy()))
    start = blocks.start_bytes()
    if name == HELD_BEFORE:
        start += max(history.unlisted_start, 0)
    levels = start + np.cumsum(blocks.changes(len(history)))
    return np.append(levels, start)[points.events]


FAILURE_FIELDS = (
    Field("time_ns", "When", Fmt.TIME, "When it failed"),
    Field("bytes", "Requested", Fmt.BYTES, "Size that was not available"),
    Field("allocated_bytes", "In use", Fmt.BYTES, "In use at that moment"),
    Field("reserved_bytes", "Reserved", Fmt.BYTES, "Reserved from the driver at that time"),
    Field("unused_bytes", "Unused", Fmt.BYTES, "Reserved but not in use, in too small blocks"),
    Field("op", "Operator", Fmt.NAME, "Operator that requested it"),
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
        "Out-of-memory errors",
        FAILURE_FIELDS,
        frame.select(f.key for f in FAILURE_FIELDS),
    )
