"""Which work of one stream waited for work of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.gpu_schedule import NONE, QUEUE, CallKind, OpKind
from gpusight.analysis.launch_index import KeyIndex

if TYPE_CHECKING:
    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.analysis.replay.simulation import Flags
    from gpusight.trace.intervals import Ints


_JUST_NS = 5_000
"""Work that began within this time after the end of other work began because of it."""
_DRAINING_NS = 50_000
"""How long the last blocks of a kernel may run while blocks of another one have begun."""


def waits_between_streams(schedule: GpuSchedule, late: Flags) -> tuple[Ints, Ints]:
    """Give for each piece of work the one it depends on, and the time from its end."""
    ops = schedule.ops
    needs = np.full(len(ops), NONE, np.int64)
    gap = np.zeros(len(ops), np.int64)
    if len(np.unique(ops.queue)) < 2:
        return needs, gap
    told, by_time = _by_events(schedule), _ending(schedule, late)
    # Work that began before the other ended did not wait for it, whatever the events seem to say.
    told[(told >= 0) & (ops.start_ns < ops.end_ns[told])] = NONE
    needs = np.where(by_time >= 0, by_time, told)
    known = needs >= 0
    gap[known] = ops.start_ns[known] - ops.end_ns[needs[known]]
    return needs, np.where(late, gap, np.minimum(gap, _JUST_NS))


def _ending(schedule: GpuSchedule, late: Flags) -> Ints:
    """Find the work of another queue of the device whose end let late work begin.

    It ended just before; or its last blocks were still running, when room was made by its others.
    """
    ops = schedule.ops
    found = np.full(len(ops), NONE, np.int64)
    rows = np.flatnonzero(late)
    by_end = np.argsort(ops.end_ns, kind="stable")
    at = np.searchsorted(ops.end_ns[by_end], ops.start_ns[rows], side="right")
    # The nearest end may be of the same queue or of another device: look a little further.
    for step in (-1, -2, -3, -4, 0, 1, 2, 3):
        near = np.clip(at + step, 0, len(by_end) - 1)
        other = by_end[near]
        since = ops.start_ns[rows] - ops.end_ns[other]
        fits = (
            (near == at + step)
            & (found[rows] == NONE)
            & (ops.queue[other] != ops.queue[rows])
            & (ops.device[other] == ops.device[rows])
            & (since <= _JUST_NS)
            & (since >= -_DRAINING_NS)
            & (ops.start_ns[other] < ops.start_ns[rows])
            & _issued_before(schedule, other, rows)
        )
        fits &= (since >= 0) | (
            (ops.kind[other] == OpKind.KERNEL) & (ops.kind[rows] == OpKind.KERNEL)
        )
        found[rows[fits]] = other[fits]
    return found


def _issued_before(schedule: GpuSchedule, first: Ints, second: Ints) -> Flags:
    """Tell which work was issued before other work, so that it can be waited for."""
    call = schedule.ops.call
    earlier: Flags = (call[first] >= 0) & (call[first] < call[second])
    return earlier


def _by_events(schedule: GpuSchedule) -> Ints:
    """Follow events from where they were recorded to the stream that was told to wait."""
    ops = schedule.ops
    needs = np.full(len(ops), NONE, np.int64)
    if not _has_events(schedule):
        return needs
    told = np.flatnonzero(schedule.calls.kind == CallKind.WAIT_EVENT)
    paired = _paired(schedule, told)
    ahead = _last_issued(ops.call, ops.queue, paired["call_recorded"], paired["queue_recorded"])
    waiting = _next_issued(ops.call, ops.queue, paired["call"], paired["queue"])
    both = (ahead >= 0) & (waiting >= 0)
    needs[waiting[both]] = ahead[both]
    return needs


def recorded_before(schedule: GpuSchedule, calls: Ints) -> Ints:
    """Give the work behind which the event was recorded that calls wait for; `NONE` if not told."""
    ops = schedule.ops
    work = np.full(len(calls), NONE, np.int64)
    if _has_events(schedule):
        paired = _paired(schedule, calls)
        ahead = _last_issued(ops.call, ops.queue, paired["call_recorded"], paired["queue_recorded"])
        work[np.searchsorted(calls, paired["call"].to_numpy())] = ahead
    return work


def _has_events(schedule: GpuSchedule) -> bool:
    trace = schedule.trace
    return trace.has("event_records") and trace.has("syncs") and trace.has("syncs", "event")


def _paired(schedule: GpuSchedule, calls: Ints) -> pl.DataFrame:
    """Join calls that wait for an event to the last record of that event before them."""
    rows = schedule.trace.table("api_calls", ["process", "correlation"])
    index = KeyIndex(rows["process"], rows["correlation"])
    position = np.full(rows.height + 1, NONE, np.int64)
    called = schedule.calls.row >= 0
    position[schedule.calls.row[called]] = np.flatnonzero(called)
    records = _events(schedule, "event_records", index, position)
    waits = _events(schedule, "syncs", index, position)
    waits = waits.filter(pl.col("call").is_in(pl.Series(calls).implode()))
    paired = waits.sort("call").join_asof(
        records.sort("call"),
        on="call",
        by=["process", "event"],
        suffix="_recorded",
        check_sortedness=False,
    )
    return paired.drop_nulls("queue_recorded").unique("call", keep="last", maintain_order=True)


def _events(schedule: GpuSchedule, table: str, index: KeyIndex, position: Ints) -> pl.DataFrame:
    """Give events with the call that recorded or awaited them and the number of their queue."""
    trace = schedule.trace
    columns = ["device", "process", "context", "stream", "correlation", "event"]
    frame = trace.table(table, columns)
    call = position[index.find(frame["process"], frame["correlation"])]
    frame = frame.with_columns(pl.Series("call", call)).with_columns(
        pl.col("call").alias("call_recorded")
    )
    frame = frame.filter(pl.col("call") >= 0).drop_nulls("event")
    return frame.join(queues_of_streams(schedule), on=QUEUE, how="left")


def queues_of_streams(schedule: GpuSchedule) -> pl.DataFrame:
    """Give the number of each stream that did work."""
    ops, trace = schedule.ops, schedule.trace
    parts = []
    for kind in OpKind:
        here = ops.kind == kind
        if here.any():
            frame = trace.table(kind.table, QUEUE)[ops.row[here]]
            parts.append(frame.with_columns(pl.Series("queue", ops.queue[here])))
    known: pl.DataFrame = pl.concat(parts).unique()
    return known


def _last_issued(call: Ints, queue: Ints, moments: pl.Series, queues: pl.Series) -> Ints:
    """Find the last work issued on a queue before a call."""
    order = np.lexsort((call, queue))
    keys = queue[order] * _WIDE + call[order]
    wanted = queues.to_numpy().astype(np.int64) * _WIDE + moments.to_numpy()
    at = np.searchsorted(keys, wanted) - 1
    fits = (at >= 0) & (queue[order[np.maximum(at, 0)]] == queues.to_numpy())
    return np.where(fits, order[np.maximum(at, 0)], NONE)


def _next_issued(call: Ints, queue: Ints, moments: pl.Series, queues: pl.Series) -> Ints:
    """Find the first work issued on a queue after a call."""
    known = queues.fill_null(NONE).to_numpy().astype(np.int64)
    order = np.lexsort((call, queue))
    keys = queue[order] * _WIDE + call[order]
    at = np.searchsorted(keys, known * _WIDE + moments.to_numpy(), side="right")
    inside = np.minimum(at, len(order) - 1)
    fits = (at < len(order)) & (queue[order[inside]] == known)
    return np.where(fits, order[inside], NONE)


_WIDE = 1 << 32
