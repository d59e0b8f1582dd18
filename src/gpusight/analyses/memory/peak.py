"""Who held memory at the peak: every byte of it, by holder and by block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.attribution.nested import optional
from gpusight.analyses.memory import holders, stacks
from gpusight.analyses.memory.blocks import BEFORE
from gpusight.analyses.memory.history import Origin
from gpusight.analyses.memory.holders import WHO, Moments
from gpusight.analyses.statistics import share_of
from gpusight.result import Field, Fmt, TableResult

if TYPE_CHECKING:
    from gpusight.analyses.memory.blocks import Blocks, Ints
    from gpusight.analyses.memory.view import View
    from gpusight.model.trace import Trace

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


def find_holders(trace: Trace, blocks: Blocks, origin: Origin) -> pl.DataFrame:
    """Say who took each block: `WHO`, and all of it as the text `holder`."""
    find = {
        Origin.FRAMEWORK: _framework,
        Origin.DRIVER: _driver,
        Origin.SNAPSHOT: _snapshot,
    }[origin]
    who = find(trace, blocks)
    kinds = _events(trace, blocks, ["memory_kind"])["memory_kind"].cast(pl.String)
    return who.with_columns(
        pl.when(kinds.is_in(["Device Static", "Managed Static"]))
        .then(pl.lit(STATIC))
        .otherwise(pl.coalesce(_who_text(), _stand_in(blocks)))
        .alias("holder")
    )


def by_holder(view: View, holders_of: pl.DataFrame) -> TableResult:
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


def largest_blocks(trace: Trace, view: View, holders_of: pl.DataFrame) -> TableResult:
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


def _framework(trace: Trace, blocks: Blocks) -> pl.DataFrame:
    return holders.from_framework(trace, _moments(trace, blocks))


def _driver(trace: Trace, blocks: Blocks) -> pl.DataFrame:
    events = _events(trace, blocks, ["time_ns", "process", "correlation"])
    inside = pl.Series(blocks.began != BEFORE)
    return holders.from_driver(
        trace, events.select(pl.when(inside).then(pl.all()).otherwise(None).name.keep())
    )


def _snapshot(trace: Trace, blocks: Blocks) -> pl.DataFrame:
    events = _events(trace, blocks, ["time_ns", "device", "callchain"])
    ours = stacks.from_chains(trace, "memory_events", events["callchain"])
    older = stacks.from_chains(trace, "memory_blocks", _final(trace, blocks, "callchain"))
    # A snapshot's annotations are told apart by device, not by thread.
    times = events["time_ns"].fill_null(-1).to_numpy()
    return pl.DataFrame(
        {
            **{column: _either(ours[column], older[column]) for column in stacks.NAMED},
            "module": holders.no_texts(len(blocks)),
            "range": holders.ranges_of(trace, "domain_key", times, events["device"]),
        }
    ).select(WHO)


def _moments(trace: Trace, blocks: Blocks) -> Moments:
    events = _events(trace, blocks, ["time_ns", "thread", "process"])
    return Moments(events["time_ns"].fill_null(-1).to_numpy(), events["thread"], events["process"])


def _events(trace: Trace, blocks: Blocks, columns: list[str]) -> pl.DataFrame:
    """Give the events that took blocks; null where there is none."""
    table = trace.table("memory_events", columns)
    return table.select(pl.all().gather(optional(blocks.row)))


def _final(trace: Trace, blocks: Blocks, column: str) -> pl.Series:
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


def _stand_in(blocks: Blocks) -> pl.Series:
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


def _stacks(trace: Trace, blocks: Blocks, origin: Origin) -> list[list[str]]:
    if origin is Origin.FRAMEWORK:
        return holders.python_stacks(trace, _moments(trace, blocks))
    if origin is Origin.DRIVER:
        return [[] for _ in range(len(blocks))]
    chains = _events(trace, blocks, ["callchain"])["callchain"]
    ours = stacks.python_frames(trace, "memory_events", chains)
    older = stacks.python_frames(trace, "memory_blocks", _final(trace, blocks, "callchain"))
    return [mine or theirs for mine, theirs in zip(ours, older, strict=True)]
