"""Builds the schedule of a window from a trace, with work handed from thread to thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.gpu_schedule import (
    NONE,
    ApiCalls,
    CallKind,
    GpuOps,
    GpuSchedule,
    OpKind,
    kind_of,
)
from gpusight.analysis.launch_index import KeyIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace

    Mark = tuple[int, int, int]


_SILENCE_NS = 50_000
"""The shortest wait that counts: a hand-over itself takes some microseconds."""
_COVERED = 0.5
"""The least part of the silence that the other thread fills."""
_MOST_CALLS = 0.5
"""The least part of the other thread's calls that must lie in such silences."""
_MOST_THREADS = 48
"""Threads that are compared, those with the most calls first."""


def lanes(thread: Ints, process: Ints, kind: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """Give the lane of each call; calls are in order of start.

    `thread` counts from 0, `process` is that of each thread.
    """
    lane = thread.copy()
    rows = _by_thread(thread)
    launching = [t for t, at in rows.items() if np.isin(kind[at], _LAUNCHES).any()]
    # A thread that only pins memory or watches hands nothing over, however long it is silent.
    giving = [t for t, at in rows.items() if np.isin(kind[at], _GIVERS).any()]
    taken: set[int] = set()
    for giver in giving:
        for taker in launching:
            if giver in taken or taker in taken or taker == giver:
                continue
            if process[taker] == process[giver]:
                inside = _handed_over(rows[giver], rows[taker], kind, start_ns, end_ns)
                if np.count_nonzero(inside) >= _MOST_CALLS * len(inside):
                    lane[rows[taker][inside]] = giver
                    taken.add(taker)
    return lane


_LAUNCHES = (CallKind.LAUNCH, CallKind.GRAPH)
_GIVERS = (*_LAUNCHES, CallKind.MARK)


def _by_thread(thread: Ints) -> dict[int, Ints]:
    """Give the calls of each thread; a thread that marks steps, else the first, comes first."""
    counts = np.bincount(thread)
    busiest = np.argsort(-counts, kind="stable")[:_MOST_THREADS]
    rows = {int(t): np.flatnonzero(thread == t) for t in busiest if counts[t]}
    return dict(sorted(rows.items(), key=lambda item: int(item[1][0])))


def _handed_over(
    giver: Ints, taker: Ints, kind: Ints, start_ns: Ints, end_ns: Ints
) -> NDArray[np.bool_]:
    """Tell which calls of one thread lie in silences of the other that they explain."""
    inside = np.zeros(len(taker), np.bool_)
    stops, resumes = end_ns[giver[:-1]], start_ns[giver[1:]]
    silent = resumes - stops >= _SILENCE_NS
    stops, resumes = stops[silent], resumes[silent]
    first = np.searchsorted(start_ns[taker], stops)
    after = np.searchsorted(start_ns[taker], resumes)
    some = after > first
    stops, resumes, first, after = (a[some] for a in (stops, resumes, first, after))
    if not len(first):
        return inside
    starts, ends = start_ns[taker], end_ns[taker]
    # The one thread is silent from before the other stops until it has stopped.
    before = np.where(first > 0, ends[np.maximum(first - 1, 0)], stops)
    filled = ends[after - 1] - starts[first]
    launches = np.concatenate(([0], np.cumsum(np.isin(kind[taker], _LAUNCHES))))
    holds = (
        (before <= stops)
        & (ends[after - 1] <= resumes)
        & (filled >= _COVERED * (resumes - stops))
        & (launches[after] > launches[first])
    )
    edges = np.zeros(len(taker) + 1, np.int64)
    np.add.at(edges, first[holds], 1)
    np.add.at(edges, after[holds], -1)
    return np.cumsum(edges[:-1]) > 0


_CUDA = ("runtime", "driver")
QUEUE = ["device", "process", "context", "stream"]
"""What tells streams apart."""
_OP_COLUMNS = ["start_ns", "end_ns", *QUEUE, "correlation"]
_CALL_COLUMNS = ["start_ns", "end_ns", "name", "api", "thread", "process", "correlation"]


def build_schedule(
    trace: Trace,
    start_ns: int,
    end_ns: int,
    *,
    process: int | None = None,
    marks: Sequence[Mark] = (),
) -> GpuSchedule:
    """Lay out what ran from `start_ns` to `end_ns`, of one process or of all.

    `marks` are moments of threads (time, process, thread) that the schedule keeps, such as the
    beginnings and ends of steps.
    """
    calls = _calls(trace, process, start_ns, end_ns)
    laid, threads = _laid_out(calls.filter("outer"), marks)
    ops = _ops(trace, process, start_ns, end_ns)
    called = _position(trace, ops, calls, laid)
    return GpuSchedule(trace, start_ns, end_ns, _as_arrays(ops, called, start_ns), laid, threads)


def _calls(trace: Trace, process: int | None, start_ns: int, end_ns: int) -> pl.DataFrame:
    """Give the calls of CUDA that ran in the window, and which are not inside another one."""
    frame = trace.table("api_calls", _CALL_COLUMNS).with_row_index("row")
    frame = frame.filter(
        pl.col("start_ns") < end_ns,
        pl.col("end_ns") > start_ns,
        pl.col("api").is_null() | pl.col("api").cast(pl.String).is_in(_CUDA),
    )
    if process is not None:
        frame = frame.filter(pl.col("process") == process)
    own = ["process", "thread"]
    ended = pl.col("end_ns").cum_max().shift(1).over(own)
    frame = frame.with_columns((pl.col("start_ns") >= ended.fill_null(_EARLIEST)).alias("outer"))
    around = pl.when("outer").then("row").forward_fill().over(own)
    # Of calls that run across an end of the window the part inside counts.
    inside = pl.col("start_ns", "end_ns").clip(start_ns, end_ns)
    return frame.with_columns(around.alias("around"), inside)


_EARLIEST = np.iinfo(np.int64).min


def _laid_out(
    calls: pl.DataFrame, marks: Sequence[Mark]
) -> tuple[ApiCalls, tuple[tuple[int, int], ...]]:
    kinds = [int(kind_of(name)) for name in names_of(calls["name"])]
    codes = calls["name"].to_physical().to_numpy()
    calls = calls.select(
        "start_ns",
        "end_ns",
        pl.col("process", "thread").fill_null(NONE),
        pl.Series("kind", np.array(kinds, np.int64)[codes] if len(codes) else [], pl.Int64),
        pl.col("row").cast(pl.Int64),
    )
    moments = pl.DataFrame(
        [(t, t, p, th, int(CallKind.MARK), NONE) for t, p, th in marks],
        schema=calls.schema,
        orient="row",
    )
    # A mark stands before the call that begins at the same moment.
    nodes = pl.concat([moments, calls]).sort("start_ns", maintain_order=True)
    pairs = nodes.select("process", "thread").unique(maintain_order=True).with_row_index("number")
    number = nodes.join(pairs, on=["process", "thread"], maintain_order="left")["number"]
    thread = number.cast(pl.Int64).to_numpy()
    start, end, kind, row = (nodes[c].to_numpy() for c in ("start_ns", "end_ns", "kind", "row"))
    processes = pairs["process"].to_numpy()
    laid = ApiCalls(start, end, lanes(thread, processes, kind, start, end), thread, kind, row)
    return laid, tuple(pairs.select("process", "thread").iter_rows())


def _ops(trace: Trace, process: int | None, start_ns: int, end_ns: int) -> pl.DataFrame:
    """Give the GPU work that ran in the window, in order of start."""
    # Work of no length counts for what it is, where it lies inside.
    ran = (pl.col("start_ns") < end_ns) & (
        (pl.col("end_ns") > start_ns) | (pl.col("start_ns") >= start_ns)
    )
    if process is not None:
        ran &= pl.col("process").is_null() | (pl.col("process") == process)
    parts = [
        trace.table(kind.table, _OP_COLUMNS)
        .with_row_index("row")
        .filter(ran)
        .with_columns(pl.lit(int(kind), pl.Int64).alias("kind"))
        for kind in OpKind
        if trace.has(kind.table) or kind is OpKind.KERNEL
    ]
    ops = pl.concat(parts) if len(parts) == 1 else pl.concat(parts).sort("start_ns", "kind", "row")
    queues = ops.select(QUEUE).unique().sort(QUEUE).with_row_index("queue")
    return ops.join(queues, on=QUEUE, how="left", nulls_equal=True, maintain_order="left")


_ELSEWHERE = NONE - 1
"""Stands for a call that is not laid out: it was made before the window."""


def _position(trace: Trace, ops: pl.DataFrame, calls: pl.DataFrame, laid: ApiCalls) -> Ints:
    """Give the position of the call that issued each piece of work.

    `NONE` where no call is known, `_ELSEWHERE` where the call is not among those laid out.
    """
    index = KeyIndex(calls["process"], calls["correlation"])
    key = pl.when(pl.col("correlation") > 0).then("correlation")
    correlation = ops.select(key.alias("correlation"))["correlation"]
    found = index.find(ops["process"], correlation)
    positions = np.full(trace.row_count("api_calls") + 1, _ELSEWHERE, np.int64)
    called = laid.row >= 0
    positions[laid.row[called]] = np.flatnonzero(called)
    around = calls["around"].cast(pl.Int64).fill_null(NONE).to_numpy()
    position = np.full(ops.height, NONE, np.int64)
    inside = np.flatnonzero(found >= 0)
    position[inside] = positions[around[found[inside]]]
    lost = np.flatnonzero((found < 0) & correlation.is_not_null().to_numpy())
    if len(lost) and trace.has("api_calls"):
        every = trace.table("api_calls", ["process", "correlation"])
        before = KeyIndex(every["process"], every["correlation"])
        known = before.find(ops["process"][lost], correlation[lost]) >= 0
        position[lost[known]] = _ELSEWHERE
    return position


def _as_arrays(ops: pl.DataFrame, called: Ints, start_ns: int) -> GpuOps:
    def column(name: str) -> Ints:
        values: Ints = ops[name].cast(pl.Int64).to_numpy()
        return values

    start = column("start_ns")
    carried: NDArray[np.bool_] = (called == _ELSEWHERE) | ((called == NONE) & (start < start_ns))
    return GpuOps(
        start,
        column("end_ns"),
        column("device"),
        column("queue"),
        np.where(called >= 0, called, NONE),
        column("kind"),
        column("row"),
        carried,
    )
