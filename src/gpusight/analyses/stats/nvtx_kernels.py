"""Kernels by the NVTX ranges around their launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.launches import find_launches
from gpusight.analyses.projection import host_ranges, slices
from gpusight.analyses.stats.kernels import with_label
from gpusight.analyses.stats.nvtx import KINDS, label, range_ends, style
from gpusight.analyses.stats.nvtx_gpu import READS
from gpusight.analyses.stats.owners import add_owner
from gpusight.analyses.stats.summary import TIME_SUMMARY, spread
from gpusight.analyses.stats.table import Cell
from gpusight.model.ordering import number, stable_argsort

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gpusight.analyses.launches import Launches
    from gpusight.analyses.projection import HostRanges
    from gpusight.analyses.stats.arguments import Arguments
    from gpusight.model.trace import Trace

    Ints = NDArray[np.int64]

RANGE_KERNELS = {
    "NVTX Range": Cell.TEXT,
    "Style": Cell.TEXT,
    "PID": Cell.WHOLE,
    "TID": Cell.WHOLE,
    "NVTX Inst": Cell.WHOLE,
    "Kern Inst": Cell.WHOLE,
    "Total Time (ns)": Cell.WHOLE,
    **TIME_SUMMARY,
    "Kernel Name": Cell.TEXT,
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
        """Give the first kernel of each range that no earlier range of its group holds."""
        apart = self.group * (int(self.after.max(initial=0)) + 1)
        reached = np.maximum.accumulate(self.after + apart)
        return np.maximum(self.first, np.append(0, reached)[:-1] - apart)

    def chunks(self) -> Iterator[slice]:
        """Cut between groups so that no piece has many more pairs than fit in memory at ease."""
        pairs = np.cumsum(self.after - self.first)
        ends = np.flatnonzero(np.append(self.group[1:] != self.group[:-1], True)) + 1
        lo = 0
        while lo < len(pairs):
            limit = (pairs[lo - 1] if lo else 0) + _PAIRS_AT_ONCE
            full = np.searchsorted(pairs[ends - 1], limit, "right")
            hi = max(ends[max(full - 1, 0)], ends[np.searchsorted(ends, lo, "right")])
            yield slice(lo, int(hi))
            lo = int(hi)


def range_kernels(trace: Trace, arguments: Arguments) -> pl.DataFrame:
    """nvtx_kern_sum: a kernel counts for every range around its launch, not the innermost only."""
    name = arguments.kernel_name if trace.has("kernels", arguments.kernel_name) else "name"
    trace.read_together({**READS, "kernels": (*READS["kernels"], name)})
    kernels = with_label(trace, arguments, ["start_ns", "end_ns"])
    launches = find_launches(trace, ("kernels",))
    order, begins = _by_launch(launches)
    work = kernels.select(
        (pl.col("end_ns") - pl.col("start_ns")).alias("time"), pl.col("label").alias("kernel")
    )[order]
    spans = _spans(trace, host_ranges(trace, ends=range_ends(trace, KINDS)), launches, begins)
    frame = pl.concat([_inside(trace, work, spans), _outside(trace, work, spans, launches, begins)])
    frame = add_owner(trace, frame).with_columns(
        pl.when(pl.col("kind").is_not_null()).then(label()).alias("NVTX Range"),
        style().alias("Style"),
        pl.col("kernel").cast(pl.String).alias("Kernel Name"),
    )
    by = ["NVTX Range", "Style", "PID", "TID", "Total Time (ns)", "Kernel Name"]
    return frame.sort(by, descending=[c == "Total Time (ns)" for c in by], nulls_last=False)


def _by_launch(launches: Launches) -> tuple[Ints, Ints]:
    """Order kernels by launch, those without one first, and say where each launch's begin."""
    launch = launches.launch_of["kernels"]
    counts = np.bincount(launch + 1, minlength=len(launches.call) + 1)
    return np.argsort(launch, kind="stable"), np.cumsum(counts)


def _spans(trace: Trace, ranges: HostRanges, launches: Launches, begins: Ints) -> _Spans:
    rows, firsts, afters = [], [], []
    for mine, first, after in slices(ranges, launches):
        held = after > first
        rows.append(ranges.row[mine][held])
        firsts.append(begins[first[held]])
        afters.append(begins[after[held]])
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
        part = _codes(owners.get_column(column))
        code = _dense(code * (int(part.max(initial=0)) + 1) + part)
    return code


def _codes(values: pl.Series) -> Ints:
    if values.dtype == pl.Enum:
        return values.to_physical().cast(pl.Int64).fill_null(-1).to_numpy() + 1
    return number(values.fill_null(-1))


def _dense(code: Ints) -> Ints:
    """Renumber so that every number occurs; by counting where the numbers are not too large."""
    if int(code.max(initial=0)) > 8 * len(code) + 1_000_000:
        return np.unique(code, return_inverse=True)[1]
    return (np.cumsum(np.bincount(code) > 0) - 1)[code]


def _inside(trace: Trace, work: pl.DataFrame, spans: _Spans) -> pl.DataFrame:
    """Summarise the kernels of each group of ranges."""
    fresh = spans.fresh()
    parts = [_pairs(work, spans, fresh, piece) for piece in (*spans.chunks(), slice(0))]
    summary = pl.concat(parts)
    _, first = np.unique(spans.group, return_index=True)
    owners = trace.table("ranges", _OWNERS)[spans.row[first]]
    return pl.concat([owners[summary.get_column("group")], summary.drop("group")], how="horizontal")


def _pairs(work: pl.DataFrame, spans: _Spans, fresh: Ints, piece: slice) -> pl.DataFrame:
    """Pair each range with each of its kernels, and summarise by group and kernel."""
    first, count = spans.first[piece], spans.after[piece] - spans.first[piece]
    ahead = np.cumsum(count) - count
    kernel = np.repeat(first - ahead, count) + np.arange(int(count.sum()))
    pairs = work[kernel].with_columns(
        pl.Series("group", np.repeat(spans.group[piece].astype(np.int32), count)),
        pl.Series("range", np.repeat(spans.row[piece].astype(np.int32), count)),
        # A kernel inside ranges inside ranges of one name is several pairs but one kernel.
        pl.Series("new", kernel >= np.repeat(fresh[piece], count), dtype=pl.Boolean),
    )
    return _summarise(pairs, ["group"], pl.col("range").n_unique(), pl.col("new").sum())


def _outside(
    trace: Trace, work: pl.DataFrame, spans: _Spans, launches: Launches, begins: Ints
) -> pl.DataFrame:
    """Summarise the kernels that were launched outside of every range, thread by thread."""
    around = np.zeros(work.height + 1, dtype=np.int64)
    np.add.at(around, spans.first, 1)
    np.add.at(around, spans.after, -1)
    bare = np.flatnonzero(np.cumsum(around)[:-1] == 0)
    launch = np.searchsorted(begins, bare, "right") - 1
    owners = trace.table("api_calls", ["process", "thread"])
    call = pl.Series(launches.call[launch] if len(launches.call) else launch, dtype=pl.Int64)
    call = call.zip_with(pl.Series(launch >= 0), pl.Series([None], dtype=pl.Int64))
    frame = work[bare].with_columns(owners.select(pl.all().gather(call)))
    summary = _summarise(frame, ["process", "thread"], pl.lit(0), pl.len())
    ranges = trace.table("ranges", _OWNERS).clear()
    return pl.concat([ranges, summary], how="diagonal").select(*_OWNERS, pl.exclude(_OWNERS))


def _summarise(
    frame: pl.DataFrame, by: list[str], ranges: pl.Expr, kernels: pl.Expr
) -> pl.DataFrame:
    time = pl.col("time")
    return frame.group_by(*by, "kernel").agg(
        ranges.cast(pl.Int64).alias("NVTX Inst"),
        kernels.cast(pl.Int64).alias("Kern Inst"),
        time.sum().alias("Total Time (ns)"),
        *spread(time),
    )
