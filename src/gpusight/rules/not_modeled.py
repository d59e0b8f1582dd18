"""What a capture shows that the replay does not model: predictions may be off by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.ledger.idle_causes import is_waiting
from gpusight.rules.context import process_names
from gpusight.rules.formatting import time_per_step
from gpusight.rules.patterns.host_gaps import launching_thread
from gpusight.rules.timeline.gil_contention import MIN_WAIT_SHARE, is_python, lock_waits
from gpusight.trace.intervals import Intervals, clip, intersect, subtract, union
from gpusight.units import format_share

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext

MIN_OTHERS_SHARE = 0.01
"""Share of the time that another process, or a collective, must have to be named."""
MIN_PREEMPTED_SHARE = 0.05
"""Share of the time that the launching thread must be off the CPU without waiting."""
MIN_DRIFT = 0.05
"""Part by which the same kernels must take longer in slow steps than in fast ones."""
_MIN_STEPS = 5
"""Steps that show whether kernels drift."""
_LONG_NS = 20_000
"""Shorter kernels vary for other reasons than clocks."""


def not_modeled(context: RuleContext) -> tuple[str, ...]:
    """Return a line for each condition; most captures show none."""
    lines = (
        _other_processes(context),
        _other_ranks(context),
        _gil(context),
        _preemption(context),
        _clocks(context),
    )
    return tuple(line for line in lines if line)


def _other_processes(context: RuleContext) -> str:
    sharing = context.replay.sharing
    if sharing is None or sharing.others_share < MIN_OTHERS_SHARE:
        return ""
    names = ", ".join(process_names(context)) or "another process"
    share = format_share(sharing.others_share)
    return f"{names} on the same GPU: simulations keep its share, {share} of the time"


def _other_ranks(context: RuleContext) -> str:
    collectives = context.kernels.filter(pl.col("category") == "communication")
    if int(collectives["duration_ns"].sum()) < MIN_OTHERS_SHARE * context.length_ns:
        return ""
    return "other ranks: collectives keep their measured durations, with the time that ranks wait"


def _gil(context: RuleContext) -> str:
    if not context.trace.has("os_calls") or not is_python(context):
        return ""
    waited_ns = int(lock_waits(context)["duration_ns"].sum())
    if waited_ns < MIN_WAIT_SHARE.value * context.length_ns:
        return ""
    waits = time_per_step(context, waited_ns)
    return f"Python threads that hold the GIL: the launching thread waits for it {waits}, as now"


def _preemption(context: RuleContext) -> str:
    """Measure how long the launching thread was off the CPU outside of calls that wait."""
    trace, schedule = context.trace, context.schedule
    if not trace.has("thread_switches"):
        return ""
    calls = schedule.calls
    on_thread = np.flatnonzero(calls.host_thread == launching_thread(context))
    threads = [schedule.threads[at][1] for at in np.unique(calls.thread[on_thread])]
    switches = trace.table("thread_switches", ["time_ns", "scheduled_in", "thread"])
    on = pl.col("scheduled_in")
    off = switches.filter(pl.col("thread").is_in(threads)).sort("time_ns")
    off = off.with_columns(pl.col("time_ns").shift(-1).over("thread").alias("until_ns"))
    off = off.filter(~on).drop_nulls("until_ns")
    if off.is_empty():
        return ""
    window = schedule.start_ns, schedule.end_ns
    spans = Intervals.from_arrays(off["time_ns"].to_numpy(), off["until_ns"].to_numpy())
    waiting = on_thread[context.replay.program.wait[on_thread] != 0]
    waits = Intervals.from_arrays(calls.start_ns[waiting], calls.end_ns[waiting])
    if trace.has("os_calls"):
        os_calls = trace.table("os_calls", ["start_ns", "end_ns", "name", "thread"])
        os_calls = os_calls.filter(pl.col("thread").is_in(threads))
        named = os_calls["name"].cast(pl.String).unique().to_list()
        names = [name for name in named if is_waiting(name)]
        blocked = os_calls.filter(pl.col("name").cast(pl.String).is_in(names))
        starts, ends = (blocked[column].to_numpy() for column in ("start_ns", "end_ns"))
        waits = union(waits, Intervals.from_arrays(starts, ends))
    off_ns = subtract(clip(spans, *window), intersect(spans, waits)).length_ns
    if off_ns < MIN_PREEMPTED_SHARE * context.length_ns:
        return ""
    lost = time_per_step(context, off_ns)
    return f"other threads that compete for the CPU: the launching thread is off it {lost}"


def _clocks(context: RuleContext) -> str:
    """Compare the GPU time of steps that run the same long kernels."""
    if context.replay.sharing is not None:  # other processes explain it better
        return ""
    long = context.kernels.filter(
        pl.col("duration_ns") >= _LONG_NS, pl.col("category") != "communication"
    ).drop_nulls("step")
    steps = long.group_by("step").agg(
        pl.col("duration_ns").sum(),
        pl.struct("name", "blocks", "threads").hash().sum().alias("same"),
    )
    # Steps of other shapes take other times for other reasons.
    usual = steps.filter(pl.col("same") == pl.col("same").mode().first())
    if usual.height < _MIN_STEPS:
        return ""
    low, high = (float(usual["duration_ns"].quantile(q) or 0.0) for q in (0.1, 0.9))
    if high < (1 + MIN_DRIFT) * low:
        return ""
    longer = format_share(high / low - 1)
    causes = "GPU clocks under load, or processes that the capture lacks"
    return f"{causes}: the same kernels take {longer} longer in some steps than in others"
