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
_QUEUE = ["process", "context", "stream"]
_OP_COLUMNS = ["start_ns", "end_ns", "device", *_QUEUE, "correlation"]
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
    calls = _calls(trace, process)
    kept = calls.filter(
        pl.col("outer"), pl.col("start_ns") >= start_ns, pl.col("start_ns") < end_ns
    )
    laid, threads = _laid_out(kept, marks)
    ops = _ops(trace, process)
    called = _position(trace, ops, calls, laid)
    return Schedule(trace, start_ns, end_ns, _chosen(ops, called, start_ns, end_ns), laid, threads)


def _calls(trace: Trace, process: int | None) -> pl.DataFrame:
    """Give the calls of CUDA with their rows, and which of them are not inside another one."""
    frame = trace.table("api_calls", _CALL_COLUMNS).with_row_index("row")
    frame = frame.filter(pl.col("api").is_null() | pl.col("api").cast(pl.String).is_in(_CUDA))
    if process is not None:
        frame = frame.filter(pl.col("process") == process)
    own = ["process", "thread"]
    ended = pl.col("end_ns").cum_max().shift(1).over(own)
    frame = frame.with_columns((pl.col("start_ns") >= ended.fill_null(_EARLIEST)).alias("outer"))
    around = pl.when("outer").then("row").forward_fill().over(own)
    return frame.with_columns(around.alias("around"))


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
    laid = Calls(start, end, lanes(thread, kind, start, end), thread, kind, row)
    return laid, tuple(pairs.select("process", "thread").iter_rows())


def _ops(trace: Trace, process: int | None) -> pl.DataFrame:
    """Give all GPU work, in order of start."""
    parts = []
    for kind in OpKind:
        if trace.has(kind.table):
            frame = trace.table(kind.table, _OP_COLUMNS).with_row_index("row")
            parts.append(frame.with_columns(pl.lit(int(kind), pl.Int64).alias("kind")))
    if not parts:
        nothing = trace.table("kernels", _OP_COLUMNS).with_row_index("row")
        parts = [nothing.with_columns(pl.lit(0, pl.Int64).alias("kind"))]
    ops = pl.concat(parts) if len(parts) == 1 else pl.concat(parts).sort("start_ns", "kind", "row")
    if process is not None:
        ops = ops.filter(pl.col("process").is_null() | (pl.col("process") == process))
    return ops.with_columns(pl.struct(_QUEUE).rank("dense").cast(pl.Int64).alias("queue") - 1)


def _position(trace: Trace, ops: pl.DataFrame, calls: pl.DataFrame, laid: Calls) -> Ints:
    """Give the position of the call that issued each piece of work.

    `NONE` where no call is known, `NONE - 1` where the call is not among those laid out.
    """
    index = KeyIndex(calls["process"], calls["correlation"])
    correlation = pl.when(pl.col("correlation") > 0).then("correlation")
    found = index.find(ops["process"], ops.select(correlation)["correlation"])
    around = calls["around"].cast(pl.Int64).fill_null(NONE).to_numpy()
    positions = np.full(trace.row_count("api_calls") + 1, NONE - 1, np.int64)
    called = laid.row >= 0
    positions[laid.row[called]] = np.flatnonzero(called)
    if not len(around):
        return np.full(ops.height, NONE, np.int64)
    return np.where(found >= 0, positions[around[found]], NONE)


def _chosen(ops: pl.DataFrame, called: Ints, start_ns: int, end_ns: int) -> Ops:
    """Keep the work that ran in the window."""
    start, end = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
    ran = (start < end_ns) & (end > start_ns)
    # Work of no length counts for what it is, where it lies inside.
    ran |= (start == end) & (start >= start_ns) & (start < end_ns)

    def column(name: str) -> Ints:
        values: Ints = ops[name].cast(pl.Int64).to_numpy()[ran]
        return values

    before: NDArray[np.bool_] = (called[ran] < NONE) | (
        (called[ran] == NONE) & (start[ran] < start_ns)
    )
    return Ops(
        start[ran],
        end[ran],
        column("device"),
        column("queue"),
        np.where(called[ran] >= 0, called[ran], NONE),
        column("kind"),
        column("row"),
        before,
    )
