"""Which work of one stream waited for work of another.

Events say so where the capture has them: a stream was told to wait for an event, and the event was
recorded into another stream behind some work. Where it does not say, work that began later than
its launch and its own stream explain, and just when work of another stream ended, waited for that:
for an event, for a copy engine, or for room on the GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.key_index import KeyIndex
from gpusight.analyses.schedule.schedule import NONE, CallKind

if TYPE_CHECKING:
    from gpusight.analyses.replay.program import Flags
    from gpusight.analyses.schedule.schedule import Ints, Schedule

_JUST_NS = 5_000
"""Work that began within this time after the end of other work began because of it."""


def waits_between_streams(schedule: Schedule, late: Flags) -> tuple[Ints, Ints]:
    """Give for each piece of work the one it depends on, and the time from its end."""
    ops = schedule.ops
    needs = np.full(len(ops), NONE, np.int64)
    if len(np.unique(ops.queue)) > 1:
        by_time = _just_ended(schedule, late)
        needs = _by_events(schedule)
        needs = np.where(by_time >= 0, by_time, needs)
    known = needs >= 0
    gap = np.where(known, ops.start_ns - ops.end_ns[needs], 0)
    # Work that began before the other ended did not wait for it, whatever the events seem to say.
    needs[known & (gap < 0)] = NONE
    return needs, np.where(late & (needs >= 0), gap, np.minimum(gap, _JUST_NS))


def _just_ended(schedule: Schedule, late: Flags) -> Ints:
    """Find the work of another queue of the device that ended just before late work began."""
    ops = schedule.ops
    found = np.full(len(ops), NONE, np.int64)
    rows = np.flatnonzero(late)
    by_end = np.argsort(ops.end_ns, kind="stable")
    ends = ops.end_ns[by_end]
    at = np.searchsorted(ends, ops.start_ns[rows], side="right") - 1
    # The last to end may be of the same queue or another device: look back a little.
    for _ in range(4):
        other = by_end[np.maximum(at, 0)]
        fits = (
            (at >= 0)
            & (found[rows] == NONE)
            & (ops.queue[other] != ops.queue[rows])
            & (ops.device[other] == ops.device[rows])
            & (ops.start_ns[rows] - ops.end_ns[other] <= _JUST_NS)
            & _issued_before(schedule, other, rows)
        )
        found[rows[fits]] = other[fits]
        at = at - 1
    return found


def _issued_before(schedule: Schedule, first: Ints, second: Ints) -> Flags:
    """Tell which work was issued before other work, so that it can be waited for."""
    call = schedule.ops.call
    earlier: Flags = (call[first] >= 0) & (call[first] < call[second])
    return earlier


def _by_events(schedule: Schedule) -> Ints:
    """Follow events from where they were recorded to the stream that was told to wait."""
    trace, ops = schedule.trace, schedule.ops
    needs = np.full(len(ops), NONE, np.int64)
    if not (trace.has("event_records") and trace.has("syncs") and trace.has("syncs", "event")):
        return needs
    rows = trace.table("api_calls", ["process", "correlation"])
    index = KeyIndex(rows["process"], rows["correlation"])
    position = np.full(rows.height + 1, NONE, np.int64)
    called = schedule.calls.row >= 0
    position[schedule.calls.row[called]] = np.flatnonzero(called)
    records = _events(schedule, "event_records", index, position)
    waits = _events(schedule, "syncs", index, position)
    kind = schedule.calls.kind
    waits = waits.filter(pl.Series(kind[waits["call"].to_numpy()] == CallKind.WAIT_EVENT))
    paired = waits.sort("call").join_asof(
        records.sort("call"),
        on="call",
        by=["process", "event"],
        suffix="_recorded",
        check_sortedness=False,
    )
    paired = paired.drop_nulls("queue_recorded")
    ahead = _last_issued(ops.call, ops.queue, paired["call_recorded"], paired["queue_recorded"])
    waiting = _next_issued(ops.call, ops.queue, paired["call"], paired["queue"])
    both = (ahead >= 0) & (waiting >= 0)
    needs[waiting[both]] = ahead[both]
    return needs


def _events(schedule: Schedule, table: str, index: KeyIndex, position: Ints) -> pl.DataFrame:
    """Give events with the call that recorded or awaited them and the number of their queue."""
    trace = schedule.trace
    columns = ["process", "context", "stream", "correlation", "event"]
    frame = trace.table(table, columns)
    call = position[index.find(frame["process"], frame["correlation"])]
    frame = frame.with_columns(pl.Series("call", call)).with_columns(
        pl.col("call").alias("call_recorded")
    )
    frame = frame.filter(pl.col("call") >= 0).drop_nulls("event")
    return frame.join(queues_of_streams(schedule), on=["process", "context", "stream"], how="left")


def queues_of_streams(schedule: Schedule) -> pl.DataFrame:
    """Give the number of each stream that did work."""
    ops, trace = schedule.ops, schedule.trace
    keys = ["process", "context", "stream"]
    parts = []
    for number, table in enumerate(("kernels", "copies", "memsets", "graph_launches")):
        here = ops.kind == number
        if here.any():
            frame = trace.table(table, keys)[ops.row[here]]
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
