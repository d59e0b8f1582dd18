"""nsys stats reports about NVTX ranges, on the host and projected to the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import DURATION, is_named, names_of
from gpusight.analysis.launch_index import find_launches
from gpusight.analysis.nsys_stats.cuda_stats import with_label
from gpusight.analysis.nsys_stats.stats_reports import (
    TIME_SUMMARY,
    StatsCell,
    add_owner,
    each,
    rank_times,
    spread,
    summarize_times,
    time_headers,
    times_headed,
)
from gpusight.analysis.range_summary import enclosing, host_ranges, project, slices
from gpusight.core.sums import sum_range_kernels
from gpusight.trace.intervals import number, stable_argsort

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpusight.analysis.launch_index import LaunchIndex
    from gpusight.analysis.nsys_stats.stats_reports import ReportArguments
    from gpusight.analysis.range_summary import SortedHostRanges
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


RANGE_SUMMARY = {**time_headers(), "Range": StatsCell.TEXT}
STYLED_SUMMARY = {**time_headers(), "Style": StatsCell.TEXT, "Range": StatsCell.TEXT}
PUSH_POP_TRACE = {
    **each(
        StatsCell.WHOLE,
        "Start (ns)",
        "End (ns)",
        "Duration (ns)",
        "DurChild (ns)",
        "DurNonChild (ns)",
    ),
    "Name": StatsCell.TEXT,
    **each(StatsCell.WHOLE, "PID", "TID", "Lvl", "NumChild", "RangeId", "ParentId"),
    **each(StatsCell.TEXT, "RangeStack", "NameTree"),
}
STYLES = {"push_pop": "PushPop", "start_end": "StartEnd"}
KINDS = tuple(STYLES)
IS_NVTX = pl.col("source").is_null()
"""Whether a range is one of NVTX, not a call or region of another library that nsys traced."""


def range_ends(trace: Trace, kinds: tuple[str, ...] = (*KINDS, "mark")) -> pl.Series:
    """Return every range's end; one never closed ends with the last of these kinds, as in nsys."""
    frame = trace.table("ranges", ["start_ns", "end_ns", "open", "kind", "source"])
    if not frame.get_column("open").any():
        return frame.get_column("end_ns")
    closed = pl.when(pl.col("open").fill_null(value=False)).then("start_ns").otherwise("end_ns")
    last = closed.filter(is_named(frame.get_column("kind"), kinds.__contains__), IS_NVTX).max()
    end = pl.when(pl.col("open").fill_null(value=False)).then(pl.max_horizontal("start_ns", last))
    return frame.select(end.otherwise("end_ns").alias("end_ns")).to_series()


def nvtx_ranges(trace: Trace, kinds: tuple[str, ...] = KINDS) -> SortedHostRanges:
    """Select the ranges of NVTX that one thread opened and closed."""
    return host_ranges(trace, kinds, range_ends(trace, kinds), nvtx_only=True)


def label() -> pl.Expr:
    """Name a range as nsys does: domain, colon, text, whether or not the domain has a name."""
    domain = pl.col("domain").cast(pl.String).fill_null("")
    return pl.format("{}:{}", domain, pl.col("name").cast(pl.String))


def style() -> pl.Expr:
    """Name the kind of a range as nsys does."""
    return pl.col("kind").cast(pl.String).replace_strict(STYLES, default=None)


def _summary(kinds: tuple[str, ...]) -> Callable[[Trace, ReportArguments], pl.DataFrame]:
    """Make the report that sums up ranges of these kinds."""

    def report(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
        del arguments
        frame = trace.table("ranges", ["start_ns", "name", "domain", "kind", "source"])
        chosen = is_named(frame.get_column("kind"), kinds.__contains__)
        frame = frame.with_columns(range_ends(trace)).filter(chosen, IS_NVTX)
        summary = summarize_times(frame, ["name", "domain", "kind"])
        named = summary.with_columns(label().alias("Range"), style().alias("Style"))
        return rank_times(named, ["Range", "Style"])

    return report


styled_summary = _summary(KINDS)
push_pop_summary = _summary(("push_pop",))
start_end_summary = _summary(("start_end",))


def push_pop_trace(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """nvtx_pushpop_trace."""
    del arguments
    ranges = nvtx_ranges(trace, ("push_pop",))
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


def describe(trace: Trace, ranges: SortedHostRanges, columns: list[str]) -> pl.DataFrame:
    """Read these columns of these ranges, with their `row` and times."""
    frame = trace.table("ranges", columns)[ranges.row]
    return frame.with_columns(
        pl.Series("row", ranges.row),
        pl.Series("start_ns", ranges.start_ns),
        pl.Series("end_ns", ranges.end_ns),
    )


def add_tree(ranges: SortedHostRanges, frame: pl.DataFrame) -> pl.DataFrame:
    """Add level, parent and children of each range among these, whatever its domain."""
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
    """Add each range's id, that of the range around it, and those from the outermost inwards.

    Ids are those of the capture where it has some, else ranges are numbered from 1.
    """
    if trace.has("ranges", "record"):
        ids = trace.table("ranges", ["record"])["record"]
    else:
        ids = pl.int_range(1, trace.row_count("ranges") + 1, eager=True)
    frame = frame.with_columns(ids.gather(frame["row"]).alias("RangeId"))
    parents = frame.get_column("RangeId").gather(frame.get_column("parent"))
    # Stacks are written for one level of all ranges at a time.
    own = pl.format(":{}", "RangeId").alias("RangeStack")
    stacks = frame.select("Lvl", "parent", own).with_row_index("at").cast({"at": pl.Int64})
    levels = [part.sort("at") for part in stacks.partition_by("Lvl")]
    levels.sort(key=lambda part: int(part.item(0, "Lvl")))
    for level in range(1, len(levels)):
        above = levels[level - 1].select(pl.col("at").alias("parent"), outer="RangeStack")
        here = levels[level].join(above, on="parent", how="left", maintain_order="left")
        whole = here.with_columns(RangeStack=pl.col("outer") + pl.col("RangeStack"))
        levels[level] = whole.drop("outer")
    stack = pl.concat(levels or [stacks]).sort("at").get_column("RangeStack")
    return frame.with_columns(parents.alias("ParentId"), stack)


PROJECTION_TRACE = {
    "Name": StatsCell.TEXT,
    **each(
        StatsCell.WHOLE,
        "Projected Start (ns)",
        "Projected Duration (ns)",
        "Orig Start (ns)",
        "Orig Duration (ns)",
    ),
    "Style": StatsCell.TEXT,
    **each(StatsCell.WHOLE, "PID", "TID", "NumGPUOps", "Lvl", "NumChild", "RangeId", "ParentId"),
    "RangeStack": StatsCell.TEXT,
}
PROJECTION_SUMMARY = {
    **each(StatsCell.TEXT, "Range", "Style"),
    **each(StatsCell.WHOLE, "Total Proj Time (ns)", "Total Range Time (ns)", "Range Instances"),
    **{f"Proj {header}": cell for header, cell in TIME_SUMMARY.items()},
    "Total GPU Ops": StatsCell.WHOLE,
    **each(StatsCell.TENTHS, "Avg GPU Ops", "Avg Range Lvl", "Avg Num Child"),
}
_TRACED = ("kernels", "copies", "memsets")
"""What nsys projects onto: not graphs that were traced as a whole."""
_NAMED = ["name", "domain", "kind"]
READS = {
    "ranges": (*_NAMED, "start_ns", "end_ns", "open", "thread", "end_thread", "source"),
    "api_calls": ("start_ns", "end_ns", "thread", "process", "correlation"),
    **dict.fromkeys(_TRACED, ("start_ns", "end_ns", "process", "correlation")),
}


def _projected(trace: Trace, columns: list[str]) -> pl.DataFrame:
    """Read the ranges that launched GPU work, with their projection, level and children."""
    trace.read_together(READS)
    ranges = nvtx_ranges(trace)
    projected = project(ranges, find_launches(trace, _TRACED)).select(
        pl.col("launches").alias("NumGPUOps"),
        pl.col("start_ns").alias("Projected Start (ns)"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("Projected Duration (ns)"),
    )
    launching = projected["NumGPUOps"] > 0
    ranges = ranges.keep(launching.to_numpy())
    frame = describe(trace, ranges, columns)
    return add_tree(ranges, frame.hstack(projected.filter(launching)))


def projection_trace(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """nvtx_gpu_proj_trace."""
    del arguments
    placed = _projected(trace, [*_NAMED, "process", "thread"])
    frame = add_stack(trace, placed).with_columns(
        label().alias("Name"),
        style().alias("Style"),
        pl.col("start_ns").alias("Orig Start (ns)"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("Orig Duration (ns)"),
    )
    return add_owner(trace, frame).sort("RangeId", maintain_order=True)


def projection_summary(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """nvtx_gpu_proj_sum."""
    del arguments
    time = pl.col("Projected Duration (ns)")
    summary = (
        _projected(trace, _NAMED)
        .group_by(_NAMED)
        .agg(
            time.sum().alias("Total Proj Time (ns)"),
            (pl.col("end_ns") - pl.col("start_ns")).sum().alias("Total Range Time (ns)"),
            pl.len().alias("Range Instances"),
            *spread(time, "Proj "),
            pl.col("NumGPUOps").sum().alias("Total GPU Ops"),
            pl.col("NumGPUOps").mean().alias("Avg GPU Ops"),
            pl.col("Lvl").mean().alias("Avg Range Lvl"),
            pl.col("NumChild").mean().alias("Avg Num Child"),
        )
    )
    return summary.with_columns(label().alias("Range"), style().alias("Style")).sort(
        "Total Proj Time (ns)", "Range", "Style", descending=[True, False, False]
    )


RANGE_KERNELS = {
    **each(StatsCell.TEXT, "NVTX Range", "Style"),
    **each(StatsCell.WHOLE, "PID", "TID", "NVTX Inst", "Kern Inst", "Total Time (ns)"),
    **TIME_SUMMARY,
    "Kernel Name": StatsCell.TEXT,
}
_PAIRS_AT_ONCE = 1_000_000
_OWNERS = ["name", "domain", "kind", "process", "thread"]


@dataclass(frozen=True)
class _Spans:
    """Which kernels, in order of launch, each range holds; sorted by group, then by kernel."""

    group: Ints
    """Ranges of one name, domain, kind and thread share a group."""
    row: Ints
    first: Ints
    after: Ints

    def fresh(self) -> Ints:
        """Return the first kernel of each range that no earlier range of its group holds."""
        apart = self.group * (int(self.after.max(initial=0)) + 1)
        reached = np.maximum.accumulate(self.after + apart)
        return np.maximum(self.first, np.append(0, reached)[:-1] - apart)

    def chunks(self) -> Iterator[slice]:
        """Cut between groups so that no chunk has many more pairs than `_PAIRS_AT_ONCE`."""
        pairs = np.cumsum(self.after - self.first)
        ends = np.flatnonzero(np.append(self.group[1:] != self.group[:-1], True)) + 1
        lo = 0
        while lo < len(pairs):
            limit = (pairs[lo - 1] if lo else 0) + _PAIRS_AT_ONCE
            full = np.searchsorted(pairs[ends - 1], limit, "right")
            hi = max(ends[max(full - 1, 0)], ends[np.searchsorted(ends, lo, "right")])
            yield slice(lo, int(hi))
            lo = int(hi)


def range_kernels(trace: Trace, arguments: ReportArguments) -> pl.DataFrame:
    """nvtx_kern_sum: a kernel counts for every range around its launch, not the innermost only."""
    name = arguments.kernel_name if trace.has("kernels", arguments.kernel_name) else "name"
    trace.read_together({**READS, "kernels": (*READS["kernels"], name)})
    kernels = with_label(trace, arguments, ["start_ns", "end_ns"])
    launches = find_launches(trace, ("kernels",))
    # Kernels in order of launch, those without one first, and where each launch's begin.
    launch = launches.launch_of["kernels"]
    order = np.argsort(launch, kind="stable")
    begins = np.cumsum(np.bincount(launch + 1, minlength=len(launches.call) + 1))
    work = kernels.select(
        (pl.col("end_ns") - pl.col("start_ns")).alias("time"), pl.col("label").alias("kernel")
    )[order]
    spans = _spans(trace, nvtx_ranges(trace), launches, begins)
    frame = pl.concat([_inside(trace, work, spans), _outside(trace, work, spans, launches, begins)])
    frame = add_owner(trace, frame).with_columns(
        pl.when(pl.col("kind").is_not_null()).then(label()).alias("NVTX Range"),
        style().alias("Style"),
        pl.col("kernel").cast(pl.String).alias("Kernel Name"),
    )
    by = ["NVTX Range", "Style", "PID", "TID", "Total Time (ns)", "Kernel Name"]
    return frame.sort(by, descending=[c == "Total Time (ns)" for c in by], nulls_last=False)


def _spans(trace: Trace, ranges: SortedHostRanges, launches: LaunchIndex, begins: Ints) -> _Spans:
    rows, firsts, afters = [], [], []
    for chunk, first, after in slices(ranges, launches):
        launching = after > first
        rows.append(ranges.row[chunk][launching])
        firsts.append(begins[first[launching]])
        afters.append(begins[after[launching]])
    none = [np.empty(0, dtype=np.int64)]
    row: Ints = np.concatenate(rows or none)
    begin: Ints = np.concatenate(firsts or none)
    end: Ints = np.concatenate(afters or none)
    group = _group_codes(trace, row)
    order = stable_argsort(group)
    return _Spans(group[order], row[order].astype(np.int64), begin[order], end[order])


def _group_codes(trace: Trace, row: Ints) -> Ints:
    """Number ranges by name, domain, kind and thread, without gaps."""
    owners = trace.table("ranges", _OWNERS)[row]
    code = np.zeros(len(row), dtype=np.int64)
    for column in ("name", "domain", "kind", "thread"):
        values = owners[column]
        if values.dtype == pl.Enum:
            part = values.to_physical().cast(pl.Int64).fill_null(-1).to_numpy() + 1
        else:
            part = number(values.fill_null(-1))
        code = _dense(code * (int(part.max(initial=0)) + 1) + part)
    return code


def _dense(code: Ints) -> Ints:
    """Renumber so that every number occurs; by counting where the numbers are not too large."""
    if int(code.max(initial=0)) > 8 * len(code) + 1_000_000:
        return np.unique(code, return_inverse=True)[1]
    return (np.cumsum(np.bincount(code) > 0) - 1)[code]


def _inside(trace: Trace, work: pl.DataFrame, spans: _Spans) -> pl.DataFrame:
    """Summarize the kernels of each group of ranges."""
    fresh = spans.fresh()
    summary = _range_kernels_in_c(work, spans, fresh)
    if summary is None:
        chunks = (*spans.chunks(), slice(0))
        summary = pl.concat([_pairs(work, spans, fresh, chunk) for chunk in chunks])
    _, first = np.unique(spans.group, return_index=True)
    owners = trace.table("ranges", _OWNERS)[spans.row[first]]
    return pl.concat([owners[summary.get_column("group")], summary.drop("group")], how="horizontal")


def _range_kernels_in_c(work: pl.DataFrame, spans: _Spans, fresh: Ints) -> pl.DataFrame | None:
    """Do what `_pairs` does for each chunk, without making pairs."""
    kernel, time = work.get_column("kernel"), work.get_column("time")
    if not isinstance(kernel.dtype, pl.Enum) or kernel.null_count():
        return None
    columns = (spans.group, spans.row, spans.first, spans.after, fresh)
    codes, names = kernel.to_physical().to_numpy(), names_of(kernel)
    sums = sum_range_kernels(columns, codes, time.to_numpy(), len(names))
    if sums is None:
        return None
    name = pl.Series(names, dtype=pl.String).gather(sums.get_column("kernel")).cast(kernel.dtype)
    return sums.select(
        pl.col("group").cast(pl.Int32),
        name.alias("kernel"),
        pl.col("ranges").alias("NVTX Inst"),
        pl.col("kernels").alias("Kern Inst"),
        *times_headed(),
    )


def _pairs(work: pl.DataFrame, spans: _Spans, fresh: Ints, chunk: slice) -> pl.DataFrame:
    """Pair each range with each of its kernels, and summarize by group and kernel."""
    first, count = spans.first[chunk], spans.after[chunk] - spans.first[chunk]
    ahead = np.cumsum(count) - count
    kernel = np.repeat(first - ahead, count) + np.arange(int(count.sum()))
    pairs = work[kernel].with_columns(
        pl.Series("group", np.repeat(spans.group[chunk].astype(np.int32), count)),
        pl.Series("range", np.repeat(spans.row[chunk].astype(np.int32), count)),
        # A kernel inside ranges inside ranges of one name is several pairs but one kernel.
        pl.Series("new", kernel >= np.repeat(fresh[chunk], count), dtype=pl.Boolean),
    )
    return _summarize_range_kernels(
        pairs, ["group"], pl.col("range").n_unique(), pl.col("new").sum()
    )


def _outside(
    trace: Trace, work: pl.DataFrame, spans: _Spans, launches: LaunchIndex, begins: Ints
) -> pl.DataFrame:
    """Summarize the kernels that were launched outside of every range, thread by thread."""
    around = np.zeros(work.height + 1, dtype=np.int64)
    np.add.at(around, spans.first, 1)
    np.add.at(around, spans.after, -1)
    bare = np.flatnonzero(np.cumsum(around)[:-1] == 0)
    launch = np.searchsorted(begins, bare, "right") - 1
    owners = trace.table("api_calls", ["process", "thread"])
    call = pl.Series(launches.call[launch] if len(launches.call) else launch, dtype=pl.Int64)
    call = call.zip_with(pl.Series(launch >= 0), pl.Series([None], dtype=pl.Int64))
    frame = work[bare].with_columns(owners.select(pl.all().gather(call)))
    summary = _summarize_range_kernels(frame, ["process", "thread"], pl.lit(0), pl.len())
    ranges = trace.table("ranges", _OWNERS).clear()
    return pl.concat([ranges, summary], how="diagonal").select(*_OWNERS, pl.exclude(_OWNERS))


def _summarize_range_kernels(
    frame: pl.DataFrame, by: list[str], ranges: pl.Expr, kernels: pl.Expr
) -> pl.DataFrame:
    time = pl.col("time")
    return frame.group_by(*by, "kernel").agg(
        ranges.cast(pl.Int64).alias("NVTX Inst"),
        kernels.cast(pl.Int64).alias("Kern Inst"),
        time.sum().alias("Total Time (ns)"),
        *spread(time),
    )
