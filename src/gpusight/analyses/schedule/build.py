"""Lays the GPU work and the API calls of a window out as a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.key_index import KeyIndex
from gpusight.analyses.schedule.handover import lanes
from gpusight.analyses.schedule.kinds import kind_of
from gpusight.analyses.schedule.schedule import NONE, CallKind, Calls, OpKind, Ops, Schedule
from gpusight.analyses.statistics import names_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpusight.analyses.schedule.schedule import Ints
    from gpusight.model.trace import Trace

    Mark = tuple[int, int, int]

_CUDA = ("runtime", "driver")
QUEUE = ["device", "process", "context", "stream"]
"""What tells streams apart."""
_OP_COLUMNS = ["start_ns", "end_ns", *QUEUE, "correlation"]
_CALL_COLUMNS = ["start_ns", "end_ns", "name", "api", "thread", "process", "correlation"]


def build(
    trace: Trace,
    start_ns: int,
    end_ns: int,
    *,
    process: int | None = None,
    marks: Sequence[Mark] = (),
) -> Schedule:
    """Lay out what ran from `start_ns` to `end_ns`, of one process or of all.

    `marks` are moments of threads (time, process, thread) that the schedule keeps, such as the
    beginnings and ends of steps.
    """
    calls = _calls(trace, process, start_ns, end_ns)
    laid, threads = _laid_out(calls.filter("outer"), marks)
    ops = _ops(trace, process, start_ns, end_ns)
    called = _position(trace, ops, calls, laid)
    return Schedule(trace, start_ns, end_ns, _as_arrays(ops, called, start_ns), laid, threads)


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
) -> tuple[Calls, tuple[tuple[int, int], ...]]:
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
    laid = Calls(start, end, lanes(thread, processes, kind, start, end), thread, kind, row)
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


def _position(trace: Trace, ops: pl.DataFrame, calls: pl.DataFrame, laid: Calls) -> Ints:
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


def _as_arrays(ops: pl.DataFrame, called: Ints, start_ns: int) -> Ops:
    def column(name: str) -> Ints:
        values: Ints = ops[name].cast(pl.Int64).to_numpy()
        return values

    start = column("start_ns")
    carried: NDArray[np.bool_] = (called == _ELSEWHERE) | ((called == NONE) & (start < start_ns))
    return Ops(
        start,
        column("end_ns"),
        column("device"),
        column("queue"),
        np.where(called >= 0, called, NONE),
        column("kind"),
        column("row"),
        carried,
    )
