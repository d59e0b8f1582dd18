"""GPU work of each host range: launches are sorted once, then counted by bisection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.launch_index import (
    LaunchIndex,
    find_launches,
    stable_order,
    stretches,
    tables_with_rows,
)
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import GPU_WORK
from gpusight.results import NotApplicable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace

    Rows = NDArray[np.int32]
    """Row numbers; -1 stands for none."""


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

    def keep(self, mask: NDArray[np.bool_]) -> SortedHostRanges:
        """Keep some of them."""
        return SortedHostRanges(
            self.row[mask], self.start_ns[mask], self.end_ns[mask], self.thread[mask]
        )


@dataclass(frozen=True)
class ProjectedRanges:
    """GPU work of every push/pop and start/end range that begins and ends on one thread.

    `frame` has a row for each row of `ranges`: `launches` (API calls that put work on a GPU),
    `ops`, `busy_ns` (durations of the work, summed), `start_ns` and `end_ns` (from the first
    work's start to the last one's end), all null for ranges that are not projected, the times also
    for those without work; and `work_ns`, the work that any thread of its process launched while
    the range was open.
    """

    frame: pl.DataFrame
    crossing: int
    """Ranges left out because another thread closed them."""


# Ranges over launches -------------------------------------------------------------------------


def host_ranges(
    trace: Trace, kinds: Sequence[str] = ("push_pop", "start_end"), ends: pl.Series | None = None
) -> SortedHostRanges:
    """Select ranges of these kinds that one thread opened and closed; `ends` replaces `end_ns`."""
    frame = trace.table("ranges", ["start_ns", "end_ns", "kind", "thread", "end_thread"])
    kind, thread = pl.col("kind").cast(pl.String), pl.col("thread")
    keep = kind.is_in(kinds) & (pl.col("end_thread").is_null() | (pl.col("end_thread") == thread))
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
    """Give, lane by lane, which ranges are on its thread and the launches that each holds.

    A few ranges at a time: temporaries that fit the processor's cache are several times faster.
    """
    bounds = {int(ranges.thread[lo]): (lo, hi) for lo, hi in stretches(ranges.thread)}
    for thread, lo, hi in launches.lanes:
        begin, stop = bounds.get(thread, (0, 0))
        for at in range(begin, stop, _AT_ONCE):
            mine = slice(at, min(at + _AT_ONCE, stop))
            first = lo + np.searchsorted(launches.start_ns[lo:hi], ranges.start_ns[mine], "left")
            after = lo + np.searchsorted(launches.end_ns[lo:hi], ranges.end_ns[mine], "right")
            yield mine, first, np.maximum(first, after)


def project_ranges(trace: Trace) -> ProjectedRanges | NotApplicable:
    """Project every range onto the GPU work that was issued inside it."""
    called = advice_for(trace.meta)
    for table, what in (("ranges", called.ranges_name), ("api_calls", called.calls_name)):
        if not trace.has(table):
            return NotApplicable("ranges", f"the capture holds no {what}")
    if not tables_with_rows(trace, GPU_WORK):
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
    at = np.full(len(work), -1, dtype=np.int32)
    at[ranges.row] = np.arange(len(ranges.row), dtype=np.int32)
    del ranges
    rows = pl.Series(at)
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
        mine = np.flatnonzero(processes == process)
        first, last = (
            np.searchsorted(launches.start_ns[launched], times[column].to_numpy()[mine])
            for column in ("start_ns", "end_ns")
        )
        work[mine] = before[last] - before[first]
    return pl.Series("work_ns", work)


def project(ranges: SortedHostRanges, launches: LaunchIndex) -> pl.DataFrame:
    """Give what `ProjectedRanges` holds, in the order of these ranges."""
    n = len(ranges.row)
    count, ops, busy = (np.zeros(n, dtype=np.int64) for _ in range(3))
    start = np.full(n, np.iinfo(np.int64).max, dtype=np.int64)
    end = np.full(n, np.iinfo(np.int64).min, dtype=np.int64)
    ops_before, busy_before = _running(launches.ops), _running(launches.busy_ns)
    for mine, first, after in slices(ranges, launches):
        count[mine] += after - first
        ops[mine] += ops_before[after] - ops_before[first]
        busy[mine] += busy_before[after] - busy_before[first]
        some = np.flatnonzero(after > first)
        lo, hi, at = first[some], after[some], some + mine.start
        start[at] = np.minimum(start[at], _extremes(launches.first_ns, lo, hi, np.minimum))
        end[at] = np.maximum(end[at], _extremes(launches.last_ns, lo, hi, np.maximum))
    frame = pl.DataFrame(
        {
            "range": ranges.row,
            "launches": count,
            "ops": ops,
            "busy_ns": busy,
            "start_ns": start,
            "end_ns": end,
        }
    )
    held = pl.col("launches") > 0
    return frame.with_columns(
        pl.when(held).then("start_ns").alias("start_ns"),
        pl.when(held).then("end_ns").alias("end_ns"),
    )


def _running(values: NDArray[np.int32] | Ints) -> Ints:
    out = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=out[1:])
    return out


def _extremes(values: Ints, lo: Ints, hi: Ints, pick: np.ufunc) -> Ints:
    """Take the least or greatest of `values[lo:hi]` for each pair, none of them empty.

    Constant work a pair however long it is: what lies in one block is reduced directly, longer
    ones are the end of a block, whole blocks (two overlapping powers of two) and the start of one.
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
        whole = _sparse(pick.reduce(blocks, axis=1), left[wide] + 1, right[wide], pick)
        out[wide] = pick(out[wide], whole)
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
    for lo, hi in stretches(ranges.thread) if partly.any() else ():
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
    """Give, for each launch, the row in `ranges` of the range around it that began last."""
    out = np.full(len(launches.call), -1, dtype=np.int32)
    before, _ = _began_before(ranges)
    bounds = {int(ranges.thread[lo]): (lo, hi) for lo, hi in stretches(ranges.thread)}
    for thread, lo, hi in launches.lanes:
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


def _began_before(ranges: SortedHostRanges) -> tuple[Ints, NDArray[np.bool_]]:
    """Point each range to the last one before it, on its thread, that ends no earlier.

    Also tells which ranges began inside one that they outlive. Jumping over a range jumps over all
    that it jumped over, so the steps double.
    """
    n, start, end = len(ranges.row), ranges.start_ns, ranges.end_ns
    before = np.arange(-1, n - 1)
    before[[lo for lo, _ in stretches(ranges.thread)]] = -1
    partly = np.zeros(n, dtype=np.bool_)
    todo = np.flatnonzero((before >= 0) & (end[before] < end))
    while len(todo):
        passed = before[todo]
        partly[todo] |= end[passed] > start[todo]
        now = before[passed]
        before[todo] = now
        todo = todo[(now >= 0) & (end[now] < end[todo])]
    return before, partly
