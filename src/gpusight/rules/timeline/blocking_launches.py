"""blocking-launches: every launch waits for its kernel, as with CUDA_LAUNCH_BLOCKING=1."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.replay import schedule_waits
from gpusight.analysis.replay.changes import without_waiting
from gpusight.analysis.replay.simulation import LatencyBase, put
from gpusight.analysis.replay.window_replay import LATENCY_NS
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import called_from, largest, summed_locations, title_share
from gpusight.rules.locations import idle_gaps, of_calls, with_idle_gaps
from gpusight.rules.patterns.host_gaps import host_unknown
from gpusight.rules.rule import CLEAN, RuleMatch, RuleVerdict, Threshold, TimelineRule

if TYPE_CHECKING:
    from gpusight.analysis.replay.changes import Change
    from gpusight.analysis.replay.simulation import ReplayProgram
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding


MIN_KERNEL_NS = Threshold(
    schedule_waits.BLOCKING_KERNEL_NS,
    "ns; a shorter kernel may end before its launch returns without any blocking, since profilers "
    "make calls longer",
)
MIN_BLOCKED_SHARE = Threshold(
    schedule_waits.BLOCKING_SHARE,
    "share of the launches that return after their kernel ended; without blocking, few do",
)
MIN_LAUNCHES = Threshold(
    schedule_waits.BLOCKING_LAUNCHES, "launches of such kernels; fewer prove nothing"
)


class BlockingLaunches(TimelineRule):
    """Launches that wait for their kernels."""

    id = "blocking-launches"
    detects = (
        "Looks for launch calls that return only after their kernel ended, for nearly all kernels "
        "of 20 µs or more."
    )
    why = (
        "With CUDA_LAUNCH_BLOCKING=1, a setting for debugging, each launch waits for its kernel. "
        "Host and GPU work in turns, and the GPU is idle between any two kernels."
    )
    fix = "Unset CUDA_LAUNCH_BLOCKING, then record again: other findings may change."
    code = """\
unset CUDA_LAUNCH_BLOCKING
grep -rn CUDA_LAUNCH_BLOCKING .        # scripts, Dockerfiles and os.environ set it too
"""
    is_neutral = True
    verify = "`gpusight api` shows launch calls of a few microseconds, whatever their kernels take."
    caveats = (
        "Debuggers and compute-sanitizer serialize launches as well. A profiler that replays "
        "kernels does too."
    )
    estimate = (
        "Simulation in which no launch waits. It takes the host the measured time from its call to "
        f"the start of its kernel, less {LATENCY_NS / 1000:.0f} µs launch latency. Host work "
        "between launches remains."
    )
    effort = "config"
    thresholds: ClassVar = {
        "min_kernel_ns": MIN_KERNEL_NS,
        "min_blocked_share": MIN_BLOCKED_SHARE,
        "min_launches": MIN_LAUNCHES,
    }
    min_share = None
    removes_work = True

    def check(self, context: RuleContext) -> RuleVerdict:
        """Compare the end of launch calls with the end of their kernels."""
        if (unknown := host_unknown(context)) is not None:
            return unknown
        launches = _launches(context)
        long = launches.filter(pl.col("duration_ns") >= MIN_KERNEL_NS.value)
        share = float(long["blocked"].mean() or 0.0)  # type: ignore[arg-type]
        if long.height < MIN_LAUNCHES.value or share < MIN_BLOCKED_SHARE.value:
            return CLEAN
        rows = launches.filter("blocked")
        waited_ns = float(rows["waited_ns"].sum())
        calls = context.calls.filter(pl.col("call").is_in(rows["call"].implode()))
        return RuleMatch(
            title=f"Launches block until their kernel ends: {context.time_per_step(waited_ns)}",
            evidence=(
                Evidence(
                    "blocked_share", share, "share", "Launches that return after their kernel"
                ),
                context.evidence("launches", rows.height, "", "Blocking launches"),
                context.evidence(
                    "waited_ns", waited_ns, "ns", "Host time from kernel start to return"
                ),
            ),
            confidence=Confidence.HIGH,
            confidence_reason="calls and kernels were measured",
            change=(_without_blocking(rows),),
            fix=f"{context.count_per_step(rows.height, 'launch')}, "
            f"{title_share(share)} of those of longer kernels, return after their kernel ended, "
            "as with CUDA_LAUNCH_BLOCKING=1. Unset it in the shell, the scripts and the program, "
            "then record again: other findings may change.",
            code=BlockingLaunches.code
            + context.framework.choose(
                torch='assert os.environ.get("CUDA_LAUNCH_BLOCKING") != "1"   # at the start\n',
                cuda="",
                jax="",
            ),
            where=largest(
                *called_from(context, calls).values(), summed_locations(calls, "call", "name")
            ),
            also=("launch-bound", "graph-candidate", "host-bound"),
        )

    def locate(self, context: RuleContext, _: TimelineFinding) -> pl.DataFrame:
        """Find blocking launches, with the gap that follows."""
        rows = _launches(context).filter("blocked")
        calls = context.calls.filter(pl.col("call").is_in(rows["call"].implode()))
        return with_idle_gaps(
            idle_gaps(context, tuple(IdleCause)), of_calls(context, calls, "name")
        )


def _launches(context: RuleContext) -> pl.DataFrame:
    """Return the kernels of launch calls: when they ended, and whether the call had returned."""
    calls = context.calls.filter(pl.col("kind").cast(pl.String) == "launch")
    ends = calls.select(
        "call", pl.col("start_ns").alias("called_ns"), pl.col("end_ns").alias("returned_ns")
    )
    launched = context.kernels.select("op", "call", "start_ns", "end_ns", "duration_ns")
    return launched.join(ends, on="call").with_columns(
        (pl.col("returned_ns") >= pl.col("end_ns")).alias("blocked"),
        (pl.col("returned_ns") - pl.col("start_ns")).clip(lower_bound=0).alias("waited_ns"),
        (pl.col("start_ns") - pl.col("called_ns") - LATENCY_NS).alias("launch_ns"),
    )


def _without_blocking(rows: pl.DataFrame) -> Change:
    """Let launches return at once; their kernels start when their stream is free."""
    ops = rows["op"].to_numpy()
    # Nothing is queued ahead of a kernel, so that it starts when its launch is prepared.
    launches = rows.group_by("call").agg(pl.col("launch_ns").min().clip(lower_bound=0))
    calls, launch_ns = (launches[column].to_numpy() for column in ("call", "launch_ns"))

    def change(program: ReplayProgram) -> ReplayProgram:
        program = without_waiting(calls)(program)
        own_ns = np.minimum(program.own_ns[calls], launch_ns)
        return program.changed(
            own_ns=put(program.own_ns, calls, own_ns),
            latency_ns=put(program.latency_ns, ops, LATENCY_NS),
            latency_base=put(program.latency_base, ops, int(LatencyBase.CALL_END)),
        )

    return change
