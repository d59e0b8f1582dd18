"""NVTX ranges on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.statistics import DURATION
from gpusight.analyses.stats.owners import add_owner
from gpusight.analyses.stats.summary import rank_times, summarise_times, time_headers
from gpusight.analyses.stats.table import Cell

if TYPE_CHECKING:
    from gpusight.analyses.projection import HostRanges
    from gpusight.analyses.stats.arguments import Arguments
    from gpusight.model.trace import Trace

RANGE_SUMMARY = {**time_headers(), "Range": Cell.TEXT}
STYLED_SUMMARY = {**time_headers(), "Style": Cell.TEXT, "Range": Cell.TEXT}
PUSH_POP_TRACE = {
    "Start (ns)": Cell.WHOLE,
    "End (ns)": Cell.WHOLE,
    "Duration (ns)": Cell.WHOLE,
    "DurChild (ns)": Cell.WHOLE,
    "DurNonChild (ns)": Cell.WHOLE,
    "Name": Cell.TEXT,
    "PID": Cell.WHOLE,
    "TID": Cell.WHOLE,
    "Lvl": Cell.WHOLE,
    "NumChild": Cell.WHOLE,
    "RangeId": Cell.WHOLE,
    "ParentId": Cell.WHOLE,
    "RangeStack": Cell.TEXT,
    "NameTree": Cell.TEXT,
}
STYLES = {"push_pop": "PushPop", "start_end": "StartEnd"}
KINDS = tuple(STYLES)


def range_ends(trace: Trace, kinds: tuple[str, ...] = (*KINDS, "mark")) -> pl.Series:
    """Give every range's end; one never closed ends with the last of these kinds, as in nsys."""
    frame = trace.table("ranges", ["start_ns", "end_ns", "open", "kind"])
    closed = pl.when(pl.col("open").fill_null(value=False)).then("start_ns").otherwise("end_ns")
    last = closed.filter(pl.col("kind").cast(pl.String).is_in(kinds)).max()
    end = pl.when(pl.col("open").fill_null(value=False)).then(pl.max_horizontal("start_ns", last))
    return frame.select(end.otherwise("end_ns").alias("end_ns")).to_series()


def label() -> pl.Expr:
    """Name a range as nsys does: domain, colon, text, whether or not the domain has a name."""
    domain = pl.col("domain").cast(pl.String).fill_null("")
    return pl.format("{}:{}", domain, pl.col("name").cast(pl.String))


def style() -> pl.Expr:
    """Name the kind of a range as nsys does."""
    return pl.col("kind").cast(pl.String).replace_strict(STYLES, default=None)


def range_ids(trace: Trace) -> pl.Series:
    """Number ranges as the capture does where it tells, else in order of start from 1."""
    if trace.has("ranges", "record"):
        return trace.table("ranges", ["record"]).get_column("record")
    return pl.int_range(1, trace.row_count("ranges") + 1, eager=True).alias("record")


def _summarise(trace: Trace, kinds: tuple[str, ...]) -> pl.DataFrame:
    frame = trace.table("ranges", ["start_ns", "name", "domain", "kind"])
    frame = frame.with_columns(range_ends(trace)).filter(
        pl.col("kind").cast(pl.String).is_in(kinds)
    )
    summary = summarise_times(frame, ["name", "domain", "kind"])
    named = summary.with_columns(label().alias("Range"), style().alias("Style"))
    return rank_times(named, ["Range", "Style"])


def styled_summary(trace: Trace, arguments: Arguments) -> pl.DataFrame:
    """nvtx_sum."""
    del arguments
    return _summarise(trace, KINDS)


def push_pop_summary(trace: Trace, arguments: Arguments) -> pl.DataFrame:
    """nvtx_pushpop_sum."""
    del arguments
    return _summarise(trace, ("push_pop",))


def start_end_summary(trace: Trace, arguments: Arguments) -> pl.DataFrame:
    """nvtx_startend_sum."""
    del arguments
    return _summarise(trace, ("start_end",))


def push_pop_trace(trace: Trace, arguments: Arguments) -> pl.DataFrame:
    """nvtx_pushpop_trace."""
    from gpusight.analyses.projection import host_ranges

    del arguments
    ranges = host_ranges(trace, ("push_pop",), range_ends(trace, ("push_pop",)))
    frame = add_tree(ranges, describe(trace, ranges, ["name", "domain", "process", "thread"]))
    frame = add_stack(trace, frame).with_columns(
        pl.col("start_ns").alias("Start (ns)"),
        pl.col("end_ns").alias("End (ns)"),
        DURATION.alias("Duration (ns)"),
        (DURATION - pl.col("DurChild (ns)")).alias("DurNonChild (ns)"),
        label().alias("Name"),
        pl.concat_str(pl.lit("--").repeat_by("Lvl").list.join(""), label()).alias("NameTree"),
    )
    return add_owner(trace, frame.sort("start_ns", "row"))


def describe(trace: Trace, ranges: HostRanges, columns: list[str]) -> pl.DataFrame:
    """Read these columns of these ranges, with their `row` and times."""
    frame = trace.table("ranges", columns)[ranges.row]
    return frame.with_columns(
        pl.Series("row", ranges.row),
        pl.Series("start_ns", ranges.start_ns),
        pl.Series("end_ns", ranges.end_ns),
    )


def add_tree(ranges: HostRanges, frame: pl.DataFrame) -> pl.DataFrame:
    """Add level, parent and children of each range among these, whatever its domain."""
    import numpy as np

    from gpusight.analyses.projection import enclosing

    depth, parent = enclosing(ranges)
    inner = np.flatnonzero(parent >= 0)
    inside = np.zeros(len(parent), dtype=np.int64)
    np.add.at(inside, parent[inner], ranges.end_ns[inner] - ranges.start_ns[inner])
    children = np.bincount(parent[inner], minlength=len(parent))
    return frame.with_columns(
        pl.Series("Lvl", depth),
        pl.Series("NumChild", children),
        pl.Series("DurChild (ns)", inside),
        pl.when(pl.lit(pl.Series(parent >= 0))).then(pl.lit(pl.Series(parent))).alias("parent"),
    )


def add_stack(trace: Trace, frame: pl.DataFrame) -> pl.DataFrame:
    """Add each range's id, that of the range around it, and those from the outermost inwards."""
    ids = range_ids(trace).gather(frame.get_column("row")).alias("RangeId")
    frame = frame.with_columns(ids)
    parents = frame.get_column("RangeId").gather(frame.get_column("parent"))
    return frame.with_columns(parents.alias("ParentId"), _stacks(frame))


def _stacks(frame: pl.DataFrame) -> pl.Series:
    """Write one level of all ranges at a time."""
    own = pl.format(":{}", "RangeId").alias("RangeStack")
    stacks = frame.select("Lvl", "parent", own).with_row_index("at").cast({"at": pl.Int64})
    levels = [part.sort("at") for part in stacks.partition_by("Lvl")]
    levels.sort(key=lambda part: int(part.item(0, "Lvl")))
    for level in range(1, len(levels)):
        above = levels[level - 1].select(pl.col("at").alias("parent"), outer="RangeStack")
        here = levels[level].join(above, on="parent", how="left", maintain_order="left")
        levels[level] = here.with_columns(RangeStack=pl.col("outer") + pl.col("RangeStack")).drop(
            "outer"
        )
    return pl.concat(levels or [stacks]).sort("at").get_column("RangeStack")
