"""NVTX ranges and annotations: their time on the host, and the GPU work launched inside them.

Launches are sorted once; those of each range are then found by bisection.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import DURATION, is_named, share_of, timing, timing_fields
from gpusight.analysis.launch_index import find_launches, runs_of_equal, stable_order
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import EVERYTHING, GPU_WORK, ResolvedSelection, Selection
from gpusight.core import native
from gpusight.results import Field, Fmt, NotApplicable, TableResult
from gpusight.trace.intervals import search

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gpusight.analysis.launch_index import LaunchIndex
    from gpusight.trace.intervals import Flags, Ints
    from gpusight.trace.trace import Trace

    Rows = NDArray[np.int32]
    """Row numbers; -1 stands for none."""


_TIMING = {f.key: f for f in timing_fields("total_ns", "calls", "mean_ns")}


def _on_host(key: str, label: str) -> Field:
    field = _TIMING[key]
    return replace(field, label=label, meaning=f"{field.meaning}, on the host")


FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Host time as part of the window; threads add up"),
    _on_host("total_ns", "Host"),
    Field("gpu_work_ns", "GPU work", Fmt.TIME, "GPU work launched by any thread while it was open"),
    Field(
        "gpu_total_ns",
        "Projected",
        Fmt.TIME,
        "From the first to the last GPU work launched by its thread, summed",
    ),
    Field("gpu_busy_ns", "GPU busy", Fmt.TIME, "GPU work launched by its thread", shown=False),
    Field("calls", "Count", Fmt.COUNT, "Executions of the range"),
    _on_host("mean_ns", "Host mean"),
    Field("gpu_mean_ns", "Mean span", Fmt.TIME, "GPU span of those with GPU work", shown=False),
    _on_host("median_ns", "Host median"),
    _on_host("min_ns", "Host min"),
    _on_host("max_ns", "Host max"),
    _on_host("stddev_ns", "Host stddev"),
    Field(
        "ops", "GPU ops", Fmt.COUNT, "Kernels, memcpys, memsets and graphs launched", shown=False
    ),
    Field("ops_each", "Ops each", Fmt.REAL, "GPU operations each time", shown=False),
    Field("threads", "Threads", Fmt.COUNT, "Threads that entered it", shown=False),
    Field("depth", "Depth", Fmt.COUNT, "Ranges around it, at the least", shown=False),
    Field("open", "Open", Fmt.COUNT, "How often it was never closed", shown=False),
    Field("kind", "Kind", Fmt.TEXT, "`push_pop` or `start_end`", shown=False),
    Field("domain", "Domain", Fmt.TEXT, "NVTX domain; empty for the default one", shown=False),
    Field("name", "Range", Fmt.NAME, "Text given by the program"),
)
BRIEF_FIELDS = tuple(f for f in FIELDS if f.key != "depth")

_KEYS = ["name", "domain", "kind"]
_ORDER = [True, *(False for _ in _KEYS)]
"""Longest first, then by the keys."""
# One number is grouped by faster than three names; a capture has few domains and three kinds.
_GROUP = (
    pl.col("name").to_physical().cast(pl.Int64) * (1 << 24)
    + pl.col("domain").to_physical().cast(pl.Int64).fill_null(0) * 4
    + pl.col("kind").to_physical().cast(pl.Int64)
).alias("group")
_COLUMNS = ["start_ns", "end_ns", *_KEYS, "open", "thread"]
_WORK = ("start_ns", "end_ns", "process", "correlation")
READS = {
    "ranges": (*_COLUMNS, "domain_key", "end_thread", "process", "source"),
    "api_calls": ("start_ns", "end_ns", "thread", "process", "correlation"),
    **dict.fromkeys(GPU_WORK, _WORK),
}
_PROJECTED = ("ops", "work_ns", "busy_ns", "span_ns")


def ranges(
    trace: Trace, selection: Selection = EVERYTHING, *, top: int | None = None
) -> TableResult | NotApplicable:
    """Sum up ranges by name, domain and kind, those with most host time first.

    With `top`, only so many and without their depth, which takes longest to find;
    `meta["range_names"]` counts them.
    """
    if not trace.has("ranges"):
        advice = advice_for(trace.meta)
        return NotApplicable("ranges", f"the capture has no {advice.ranges_name}", advice.ranges)
    scope = ResolvedSelection(trace, selection)
    trace.read_together(READS)
    fields = FIELDS if top is None else BRIEF_FIELDS
    columns = [*_COLUMNS, "depth"] if top is None else _COLUMNS
    rows = scope.host("ranges", columns, row_index="range").with_columns(DURATION, _GROUP)
    marks = int((rows["kind"] == "mark").sum())
    rows = rows.filter(pl.col("kind") != "mark") if marks else rows
    projected, gpu_notes = _projected(scope)
    range_names, shown = _longest(rows, top)
    if shown.height < projected.height:
        projected = projected[shown["range"]]
    frame = (
        shown.hstack(projected.get_columns())
        .lazy()
        .group_by("group")
        .agg(pl.col(_KEYS).first(), *timing(), *_aggregates(columns))
        .with_columns(*_derived(scope.window.length_ns))
        .sort("total_ns", *_KEYS, descending=_ORDER)
        .select([f.key for f in fields])
        .collect()
    )
    never_closed = int(rows["open"].fill_null(value=False).sum())
    return TableResult(
        "ranges",
        "Ranges by host time",
        fields,
        frame,
        meta={
            "ranges": rows.height,
            "range_names": range_names,
            "marks": marks,
            "window_ns": scope.window.length_ns,
        },
        notes=(
            *scope.notes,
            *gpu_notes,
            *_notes(frame, never_closed, marks, advice_for(trace.meta).marks_name),
        ),
    )


def _longest(rows: pl.DataFrame, top: int | None) -> tuple[int, pl.DataFrame]:
    """Count the groups, and keep the rows of those with most host time."""
    totals = rows.group_by("group").agg(
        pl.col("duration_ns").sum(), pl.col(_KEYS).first().cast(pl.String)
    )
    if top is None or totals.height <= top:
        return totals.height, rows
    # Among equals those that come first in the whole table too.
    keep = totals.sort("duration_ns", *_KEYS, descending=_ORDER)["group"].head(top)
    return totals.height, rows.filter(pl.col("group").is_in(keep.implode()))


def _projected(scope: ResolvedSelection) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return the GPU work of every range of the trace, or nulls and the reason."""
    projection = project_ranges(scope.trace)
    if isinstance(projection, NotApplicable):
        unknown = pl.repeat(None, scope.trace.row_count("ranges"), dtype=pl.Int64, eager=True)
        frame = pl.DataFrame([unknown.alias(column) for column in _PROJECTED])
        return frame, (f"GPU times are not known: {projection.reason}",)
    frame = projection.frame.select(
        "ops",
        "work_ns",
        pl.when(pl.col("launches") > 0).then("busy_ns").alias("busy_ns"),
        DURATION.alias("span_ns"),
    )
    notes = []
    if scope.selection.device is not None:
        notes.append("GPU times of ranges count the work on all GPUs")
    if projection.crossing:
        crossing = "ranges were closed by another thread: they are not projected onto the GPU"
        notes.append(f"{projection.crossing:,} {crossing}")
    return frame, tuple(notes)


def _aggregates(columns: list[str]) -> list[pl.Expr]:
    depth = [pl.col("depth").min()] if "depth" in columns else []
    return [
        *depth,
        pl.col("span_ns").sum().alias("gpu_total_ns"),
        pl.col("span_ns").mean().alias("gpu_mean_ns"),
        pl.col("work_ns").sum().alias("gpu_work_ns"),
        pl.col("busy_ns").sum().alias("gpu_busy_ns"),
        pl.col("span_ns").count().alias("projected"),
        pl.col("ops").sum(),
        pl.col("thread").n_unique().cast(pl.Int64).alias("threads"),
        pl.col("open").fill_null(value=False).sum().cast(pl.Int64),
    ]


def _derived(window_ns: int) -> list[pl.Expr]:
    launched = pl.col("projected") > 0
    return [
        share_of(pl.col("total_ns"), window_ns).alias("share"),
        *(pl.when(launched).then(key).alias(key) for key in ("gpu_total_ns", "gpu_busy_ns")),
        pl.when(pl.col("gpu_work_ns") > 0).then("gpu_work_ns").alias("gpu_work_ns"),
        (pl.col("ops") / pl.col("calls")).alias("ops_each"),
        pl.col(_KEYS).cast(pl.String),
    ]


def _notes(frame: pl.DataFrame, never_closed: int, marks: int, marks_name: str) -> tuple[str, ...]:
    notes = []
    if never_closed:
        notes.append(f"{never_closed:,} ranges were never closed: they end with the capture")
    elsewhere = frame.filter(pl.col("gpu_work_ns") > 2 * pl.col("gpu_busy_ns").fill_null(0)).height
    if elsewhere:
        notes.append(
            f"{elsewhere:,} ranges: most of the GPU work is launched by other threads; GPU work "
            "includes it, Projected does not"
        )
    if marks:
        notes.append(f"{marks:,} {marks_name} have no length and are not in the table")
    return tuple(notes)


# Projection -----------------------------------------------------------------------------------

_AT_ONCE = 1 << 16
_BLOCK = 64


@dataclass(frozen=True)
class SortedHostRanges:
    """Ranges that begin and end on one thread, sorted by thread, start, and longest first."""

    row: Rows
    """Row in `ranges`."""
    start_ns: Ints
    end_ns: Ints
    thread: Ints

    def keep(self, mask: Flags) -> SortedHostRanges:
        """Return those that the mask selects."""
        return SortedHostRanges(
            self.row[mask], self.start_ns[mask], self.end_ns[mask], self.thread[mask]
        )


@dataclass(frozen=True)
class ProjectedRanges:
    """GPU work of every push/pop and start/end range that begins and ends on one thread.

    `frame` has a row for each row of `ranges`: `launches` (API calls that launched GPU work),
    `ops` (GPU activities), `busy_ns` (sum of their durations), `start_ns` and `end_ns` (from the
    first one's start to the last one's end), all null for ranges that are not projected, the times
    also for those without GPU work; and `work_ns`, the time of GPU work that any thread of its
    process launched while the range was open.
    """

    frame: pl.DataFrame
    crossing: int
    """Ranges left out because another thread closed them."""


def host_ranges(
    trace: Trace,
    kinds: Sequence[str] = ("push_pop", "start_end"),
    ends: pl.Series | None = None,
    *,
    nvtx_only: bool = False,
) -> SortedHostRanges:
    """Select ranges of these kinds that one thread opened and closed; `ends` replaces `end_ns`."""
    frame = trace.table("ranges", ["start_ns", "end_ns", "kind", "thread", "end_thread", "source"])
    own = pl.col("end_thread").is_null() | (pl.col("end_thread") == pl.col("thread"))
    keep = is_named(frame.get_column("kind"), kinds.__contains__) & own
    if nvtx_only:
        keep &= pl.col("source").is_null()
    mask = frame.select(keep.fill_null(value=False)).to_series()
    row = mask.arg_true().to_numpy().astype(np.int32)
    owner = frame.get_column("thread").fill_null(-1).to_numpy()[row]
    order = stable_order(owner)
    row, owner = row[order], owner[order]
    start = frame.get_column("start_ns").to_numpy()[row]
    end = (frame.get_column("end_ns") if ends is None else ends).to_numpy()[row]
    tied = (start[1:] == start[:-1]) & (end[1:] > end[:-1]) & (owner[1:] == owner[:-1])
    if tied.any():  # of ranges that begin together, the outer ones come first
        order = np.lexsort((-end, start, owner))
        row, start, end, owner = row[order], start[order], end[order], owner[order]
    return SortedHostRanges(row, start, end, owner)


def slices(ranges: SortedHostRanges, launches: LaunchIndex) -> Iterator[tuple[slice, Ints, Ints]]:
    """Yield, for each run of launches, ranges of its thread and the launches that each holds.

    A few ranges at a time: temporaries that fit the processor's cache are several times faster.
    """
    bounds = {int(ranges.thread[lo]): (lo, hi) for lo, hi in runs_of_equal(ranges.thread)}
    for thread, lo, hi in launches.runs:
        begin, stop = bounds.get(thread, (0, 0))
        for chunk_start in range(begin, stop, _AT_ONCE):
            chunk = slice(chunk_start, min(chunk_start + _AT_ONCE, stop))
            first = lo + search(launches.start_ns[lo:hi], ranges.start_ns[chunk])
            after = lo + search(launches.end_ns[lo:hi], ranges.end_ns[chunk], side="right")
            yield chunk, first, np.maximum(first, after)


def project_ranges(trace: Trace) -> ProjectedRanges | NotApplicable:
    """Project every range onto the GPU work that was issued inside it."""
    advice = advice_for(trace.meta)
    for table, what in (("ranges", advice.ranges_name), ("api_calls", advice.calls_name)):
        if not trace.has(table):
            return NotApplicable("ranges", f"the capture holds no {what}")
    if not any(trace.has(table) for table in GPU_WORK):
        return NotApplicable("ranges", "the capture holds no GPU work")
    frame = trace.derive("projection-1", lambda: _project_all(trace))
    kind = trace.table("ranges", ["kind"]).get_column("kind")
    projected = frame.height - frame.get_column("launches").null_count()
    return ProjectedRanges(frame, int((kind != "mark").sum()) - projected)


def _project_all(trace: Trace) -> pl.DataFrame:
    launches = find_launches(trace)
    work = _work_by_any_thread(trace, launches)
    ranges = host_ranges(trace)
    frame = project(ranges, launches)
    del launches
    position = np.full(len(work), -1, dtype=np.int32)
    position[ranges.row] = np.arange(len(ranges.row), dtype=np.int32)
    del ranges
    rows = pl.Series(position)
    aligned = frame.select(pl.exclude("range").gather(rows.set(rows < 0, None)))
    return aligned.with_columns(work)


def _work_by_any_thread(trace: Trace, launches: LaunchIndex) -> pl.Series:
    """Sum, for each range, the GPU work launched in its process while it was open."""
    times = trace.table("ranges", ["start_ns", "end_ns", "process"])
    work = np.zeros(times.height, np.int64)
    owner = trace.table("api_calls", ["process"])["process"].fill_null(-1).to_numpy()[launches.call]
    processes = times["process"].fill_null(-1).to_numpy()
    order = np.argsort(launches.start_ns, kind="stable")
    for process in times["process"].fill_null(-1).unique():
        launched = order[owner[order] == process]
        before = _running(launches.busy_ns[launched])
        own = np.flatnonzero(processes == process)
        first, last = (
            np.searchsorted(launches.start_ns[launched], times[column].to_numpy()[own])
            for column in ("start_ns", "end_ns")
        )
        work[own] = before[last] - before[first]
    return pl.Series("work_ns", work)


def project(ranges: SortedHostRanges, launches: LaunchIndex) -> pl.DataFrame:
    """Compute the columns of `ProjectedRanges`, in the order of these ranges."""
    sums = _project_in_c(ranges, launches)
    if sums is None:
        sums = _project_with_numpy(ranges, launches)
    names = ("launches", "ops", "busy_ns", "start_ns", "end_ns")
    frame = pl.DataFrame({"range": ranges.row, **dict(zip(names, sums, strict=True))})
    launched = pl.col("launches") > 0
    return frame.with_columns(
        pl.when(launched).then(time).alias(time) for time in ("start_ns", "end_ns")
    )


def _no_sums(ranges: SortedHostRanges) -> Ints:
    """Make a row for each of launches, ops, busy time, first start and last end, all of nothing."""
    sums = np.zeros((5, len(ranges.row)), np.int64)
    sums[3], sums[4] = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    return sums


def _project_in_c(ranges: SortedHostRanges, launches: LaunchIndex) -> Ints | None:
    sums = _no_sums(ranges)
    bounds = {int(ranges.thread[lo]): (lo, hi) for lo, hi in runs_of_equal(ranges.thread)}
    for thread, lo, hi in launches.runs:
        begin, stop = bounds.get(thread, (0, 0))
        work = native.LaunchSums(
            launches.first_ns[lo:hi],
            launches.last_ns[lo:hi],
            launches.busy_ns[lo:hi],
            launches.ops[lo:hi],
        )
        times = (launches.start_ns[lo:hi], launches.end_ns[lo:hi])
        of_ranges = (ranges.start_ns[begin:stop], ranges.end_ns[begin:stop])
        if not native.project(times, work, *of_ranges, sums[:, begin:stop]):
            return None
    return sums


def _project_with_numpy(ranges: SortedHostRanges, launches: LaunchIndex) -> Ints:
    sums = _no_sums(ranges)
    count, ops, busy, start, end = sums
    ops_before, busy_before = _running(launches.ops), _running(launches.busy_ns)
    for chunk, first, after in slices(ranges, launches):
        count[chunk] += after - first
        ops[chunk] += ops_before[after] - ops_before[first]
        busy[chunk] += busy_before[after] - busy_before[first]
        launching = np.flatnonzero(after > first)
        lo, hi, at = first[launching], after[launching], launching + chunk.start
        start[at] = np.minimum(start[at], _extremes(launches.first_ns, lo, hi, np.minimum))
        end[at] = np.maximum(end[at], _extremes(launches.last_ns, lo, hi, np.maximum))
    return sums


def _running(values: NDArray[np.int32] | Ints) -> Ints:
    out = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=out[1:])
    return out


def _extremes(values: Ints, lo: Ints, hi: Ints, pick: np.ufunc) -> Ints:
    """Compute the minimum or maximum of `values[lo:hi]` for each pair, none of them empty.

    Constant time per pair: what lies in one block is reduced directly, longer ones are the end of
    a block, whole blocks (two overlapping powers of two) and the start of one.
    """
    out = np.empty(len(lo), dtype=np.int64)
    if not len(lo):
        return out
    base = int(lo.min())
    values, lo, hi = values[base : int(hi.max())], lo - base, hi - base
    left, right = lo // _BLOCK, (hi - 1) // _BLOCK
    short = np.flatnonzero(left == right)
    if len(short):
        pairs = np.stack((lo[short], hi[short]), axis=1).ravel()
        # One value more, so that the end of the values may bound a slice.
        out[short] = pick.reduceat(np.append(values, values[-1]), pairs)[::2]
    far = np.flatnonzero(left != right)
    if len(far):
        blocks = np.resize(values, (-(-len(values) // _BLOCK), _BLOCK))
        blocks.ravel()[len(values) :] = values[-1]
        upto = pick.accumulate(blocks, axis=1).ravel()
        onward = pick.accumulate(blocks[:, ::-1], axis=1)[:, ::-1].ravel()
        out[far] = pick(onward[lo[far]], upto[hi[far] - 1])
        wide = far[right[far] - left[far] > 1]
        between = _sparse(pick.reduce(blocks, axis=1), left[wide] + 1, right[wide], pick)
        out[wide] = pick(out[wide], between)
    return out


def _sparse(values: Ints, lo: Ints, hi: Ints, pick: np.ufunc) -> Ints:
    """Reduce `values[lo:hi]` for each pair from a table of powers of two, built level by level."""
    out = np.empty(len(lo), dtype=np.int64)
    level = np.frexp((hi - lo).astype(np.float64))[1] - 1
    table = values
    for power in range(int(level.max(initial=-1)) + 1):
        at = np.flatnonzero(level == power)
        out[at] = pick(table[lo[at]], table[hi[at] - (1 << power)])
        table = pick(table[: -(1 << power)], table[1 << power :])
    return out


# Nesting ------------------------------------------------------------------------------------------


def enclosing(ranges: SortedHostRanges) -> tuple[Ints, Ints]:
    """Find depth and parent (-1 at the top) of each range on its thread, whatever its domain.

    Where ranges only partly overlap (start/end ranges may), the shortest range around is the
    parent, which is what Nsight Systems takes.
    """
    parent, partly = _began_before(ranges)
    for lo, hi in runs_of_equal(ranges.thread) if partly.any() else ():
        if partly[lo:hi].any():
            around = _shortest_around(
                ranges.start_ns[lo:hi].tolist(), ranges.end_ns[lo:hi].tolist()
            )
            parent[lo:hi] = [-1 if p < 0 else lo + p for p in around]
    depth = np.zeros(len(parent), dtype=np.int64)
    deeper = np.flatnonzero(parent >= 0)
    above = parent[deeper]
    while len(deeper):
        depth[deeper] += 1
        above = parent[above]
        deeper, above = deeper[above >= 0], above[above >= 0]
    return depth, parent


def _shortest_around(starts: list[int], ends: list[int]) -> list[int]:
    """Sweep ranges in order of start; only threads whose ranges partly overlap come here."""
    active: list[int] = []
    parents: list[int] = []
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        active = [j for j in active if ends[j] >= start]
        around = [j for j in active if ends[j] >= end]
        parents.append(min(around, key=lambda j: (ends[j] - starts[j], -starts[j]), default=-1))
        active.append(i)
    return parents


def innermost_ranges(ranges: SortedHostRanges, launches: LaunchIndex) -> Rows:
    """Return, for each launch, the row in `ranges` of the range around it that began last."""
    out = np.full(len(launches.call), -1, dtype=np.int32)
    before, _ = _began_before(ranges)
    bounds = {int(ranges.thread[lo]): (lo, hi) for lo, hi in runs_of_equal(ranges.thread)}
    for thread, lo, hi in launches.runs:
        if thread not in bounds:
            continue
        first, after = bounds[thread]
        start = ranges.start_ns[first:after]
        at = first - 1 + np.searchsorted(start, launches.start_ns[lo:hi], "right")
        at[at < first] = -1
        open_ = np.flatnonzero((at >= 0) & (ranges.end_ns[at] < launches.end_ns[lo:hi]))
        while len(open_):  # one step outwards a round
            at[open_] = before[at[open_]]
            inside = (at[open_] < 0) | (ranges.end_ns[at[open_]] >= launches.end_ns[lo + open_])
            open_ = open_[~inside]
        out[lo:hi] = np.where(at >= 0, ranges.row[at], -1)
    return out


def _began_before(ranges: SortedHostRanges) -> tuple[Ints, Flags]:
    """Point each range to the last one before it, on its thread, that ends no earlier.

    Also returns which ranges began inside one that they outlive. Jumping over a range jumps over
    all that it jumped over, so the steps double.
    """
    n, start, end = len(ranges.row), ranges.start_ns, ranges.end_ns
    before = np.arange(-1, n - 1)
    before[[lo for lo, _ in runs_of_equal(ranges.thread)]] = -1
    partly = np.zeros(n, dtype=np.bool_)
    todo = np.flatnonzero((before >= 0) & (end[before] < end))
    while len(todo):
        passed = before[todo]
        partly[todo] |= end[passed] > start[todo]
        now = before[passed]
        before[todo] = now
        todo = todo[(now >= 0) & (end[now] < end[todo])]
    return before, partly
