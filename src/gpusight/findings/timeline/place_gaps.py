"""Holes in the work of a GPU: the idle time that a finding is about, and what the host did then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.ledger.ledger import account
from gpusight.analyses.schedule.schedule import NONE, OpKind
from gpusight.findings.timeline.place_events import CANDIDATES, none
from gpusight.model.intervals import Intervals, coverage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analyses.ledger.causes import Cause
    from gpusight.analyses.ledger.ledger import Account
    from gpusight.findings.timeline.timeline import Timeline

_AFTER_NS = 100_000
"""A hole that begins this soon after a call is the one that the call leaves."""
IDLE = "GPU idle"


def holes(timeline: Timeline, causes: Sequence[Cause], *, any_gpu: bool = False) -> pl.DataFrame:
    """Give the stretches in which the judged GPU had nothing to do for some of these causes.

    With `any_gpu`, those of the GPU that lost most by them. Their weight is the time of these
    causes; `op` is the position of the work that ended them.
    """
    accounts = account(timeline.schedule, timeline.hosts)
    every = [
        _of_account(timeline, one, causes)
        for one in accounts
        if any_gpu or one.device == timeline.device
    ]
    return max(every, key=lambda frame: int(frame["weight_ns"].sum()))


def _of_account(timeline: Timeline, own: Account, causes: Sequence[Cause]) -> pl.DataFrame:
    idle = own.spans.idle
    frame = pl.DataFrame(
        {
            "start_ns": idle.start_ns,
            "end_ns": idle.end_ns,
            "weight_ns": own.gaps.spent(timeline.hosts, idle)[:, list(causes)].sum(axis=1),
            "op": own.gaps.op[idle.gap],
        }
    )
    return frame.filter(pl.col("weight_ns") > 0).with_columns(
        pl.lit(IDLE).alias("name"),
        pl.lit(None, pl.String).alias("table"),
        pl.lit(None, pl.Int64).alias("row"),
    )


def named_by(gaps: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Name holes by the events that the host was in; those in none are left out.

    Where several events touch a hole, the one that most of it lies in counts.
    """
    found = [
        _touched(gaps, part.sort("start_ns"))
        for _, part in events.group_by("name", "table", maintain_order=True)
    ]
    if not found:
        return none()
    return (
        pl.concat(found)
        .sort("shared_ns", descending=True, maintain_order=True)
        .unique("gap", keep="first", maintain_order=True)
        .select(list(CANDIDATES))
    )


def _touched(gaps: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Find for each hole the last event to begin before it ends, if that reaches into it.

    Of a hole that is mostly something else the part inside the event is shown.
    """
    last = np.searchsorted(events["start_ns"].to_numpy(), gaps["end_ns"].to_numpy()) - 1
    at = np.maximum(last, 0)
    low = pl.max_horizontal("start_ns", pl.lit(events["start_ns"].gather(at)))
    high = pl.min_horizontal("end_ns", pl.lit(events["end_ns"].gather(at)))
    mostly = 2 * pl.col("weight_ns") >= pl.col("end_ns") - pl.col("start_ns")
    return (
        gaps.with_row_index("gap")
        .with_columns(
            (high - low).alias("shared_ns"),
            pl.when(mostly).then("start_ns").otherwise(low).alias("start_ns"),
            pl.when(mostly).then("end_ns").otherwise(high).alias("end_ns"),
            *(events[c].gather(at).alias(c) for c in ("name", "table", "row")),
        )
        .filter(pl.Series(last >= 0), pl.col("shared_ns") > 0)
    )


def named_by_work(timeline: Timeline, gaps: pl.DataFrame) -> pl.DataFrame:
    """Name holes by the work that ended them."""
    ended = gaps.filter(pl.col("op") != NONE)
    ops, at = timeline.schedule.ops, ended["op"].to_numpy()
    tables = pl.Series([kind.table for kind in OpKind], dtype=pl.String)
    return ended.with_columns(
        timeline.ops["label"].gather(at).alias("name"),
        tables.gather(ops.kind[at]).alias("table"),
        pl.Series("row", ops.row[at], pl.Int64),
    ).select(list(CANDIDATES))


def with_holes(gaps: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Let calls last until the hole is over that they leave, so that both are seen."""
    if gaps.is_empty() or calls.is_empty():
        return calls
    starts, ends = (gaps[c].to_numpy() for c in ("start_ns", "end_ns"))
    # The last hole that had begun when the call was over.
    at = np.searchsorted(starts, calls["end_ns"].to_numpy() + _AFTER_NS, side="right") - 1
    reaches = (at >= 0) & (ends[np.maximum(at, 0)] > calls["start_ns"].to_numpy())
    until = np.where(reaches, ends[np.maximum(at, 0)], 0)
    return calls.with_columns(pl.max_horizontal("end_ns", pl.Series(until)).alias("end_ns"))


def with_idle(gaps: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Weigh events by the idle time in them; those without any are left out.

    Of the same idle time a short event tells more than a long one around it.
    """
    idle = Intervals.from_arrays(gaps["start_ns"].to_numpy(), gaps["end_ns"].to_numpy())
    inside = coverage(idle, events["start_ns"].to_numpy(), events["end_ns"].to_numpy())
    idle_ns, length_ns = pl.col("weight_ns"), pl.col("end_ns") - pl.col("start_ns")
    return (
        events.with_columns(pl.Series("weight_ns", inside, pl.Int64))
        .filter(idle_ns > 0)
        .with_columns((idle_ns * (idle_ns / length_ns)).alias("telling"))
    )
