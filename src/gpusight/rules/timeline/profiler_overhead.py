"""profiler-overhead: the profiler slows down the program."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.ledger.idle_causes import without_loading
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.profiler_correction import correction_of
from gpusight.analysis.replay.changes import without_host_time
from gpusight.analysis.replay.simulation import put
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import (
    largest,
    step_evidence,
    summed_locations,
    time_per_step,
)
from gpusight.rules.locations import idle_by_cause
from gpusight.rules.patterns.host_gaps import before_calls, host_unknown, spent_before
from gpusight.rules.rule import (
    CLEAN,
    FindingLocation,
    RuleMatch,
    RuleNotApplicable,
    Threshold,
    TimelineRule,
)
from gpusight.units import format_share, format_time

if TYPE_CHECKING:
    from gpusight.analysis.replay.changes import Change
    from gpusight.analysis.replay.simulation import ReplayProgram
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import RuleVerdict
    from gpusight.trace.intervals import Ints


NS_PER_OPERATOR = Threshold(
    1_000,
    "ns that torch.profiler adds per recorded operator, assumed: in six programs it was 0.7 to "
    "7.7 µs more than under nsys, one run each; near the minimum",
)
MIN_OVERHEAD_SHARE = Threshold(0.01, "share of host time that the profiler must take")


class ProfilerOverhead(TimelineRule):
    """Time that the profiler adds."""

    id = "profiler-overhead"
    detects = (
        "Looks for overhead that the profiler recorded (buffer flushes and requests), and "
        "estimates what torch.profiler adds per operator."
    )
    why = (
        "A profiler slows down the host, not the GPU. Under it, a program may look launch-bound, "
        "and findings about the host look larger than they are."
    )
    fix = (
        "Capture fewer steps after a warm-up, without stacks, shapes or memory unless needed. "
        "Trust step times measured without a profiler."
    )
    code = """\
schedule = torch.profiler.schedule(wait=5, warmup=3, active=3)
torch.profiler.profile(schedule=schedule, record_shapes=False, with_stack=False)
# or: gpusight record --steps 5:7 -- python train.py
"""
    verify = "The step time is close to that without a profiler."
    effort = "config"
    caveats = (
        "Overhead per call or operator is not recorded. It is estimated for torch.profiler only."
    )
    estimate = (
        "Simulation without the recorded overhead and, for torch.profiler, without 1 µs per "
        "operator. Not a fix: the speed of the program without a profiler."
    )
    thresholds: ClassVar = {
        "ns_per_operator": NS_PER_OPERATOR,
        "min_overhead_share": MIN_OVERHEAD_SHARE,
    }
    min_share = 0.01
    is_fix = False
    scenario = "remove overhead"

    def check(self, context: RuleContext) -> RuleVerdict:
        """Sum what was recorded, and what operators cost."""
        if correction_of(context.trace) is not None:
            return RuleNotApplicable("times are corrected for the profiler's overhead")
        if (unknown := host_unknown(context)) is not None:
            return unknown
        before = spent_before(context)
        calls = context.schedule.calls
        in_calls = context.hosts.spent(calls.host_thread, calls.start_ns, calls.end_ns)
        in_calls_ns = in_calls[:, IdleCause.PROFILER]
        # What an operator costs is part of the framework's time, and never all of it.
        operators_ns = np.minimum(
            _operator_counts(context) * int(NS_PER_OPERATOR.value),
            before[:, IdleCause.FRAMEWORK] // 2,
        )
        recorded_ns = int(before[:, IdleCause.PROFILER].sum() + in_calls_ns.sum())
        assumed_ns = int(operators_ns.sum())
        if recorded_ns + assumed_ns < MIN_OVERHEAD_SHARE.value * context.length_ns:
            return CLEAN
        before_ns = before[:, IdleCause.PROFILER] + operators_ns
        later = np.flatnonzero(before_ns)
        changes = (without_host_time(later, before_ns[later]), _shorter_calls(in_calls_ns))
        return _match(context, recorded_ns, assumed_ns, changes)

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find idle time due to the profiler."""
        return idle_by_cause(context, finding, IdleCause.PROFILER)


def _operator_counts(context: RuleContext) -> Ints:
    """Count the operators that began in the time before each call, on its thread."""
    schedule, trace = context.schedule, context.trace
    counts = np.zeros(len(schedule.calls), np.int64)
    if not trace.has("cpu_ops") or not trace.meta.source.startswith("torch"):
        return counts
    begun = trace.table("cpu_ops", ["start_ns", "thread"])
    starts, ends = before_calls(context)
    for number, (_, key) in enumerate(schedule.threads):
        own = np.flatnonzero(schedule.calls.thread == number)
        times = begun.filter(pl.col("thread") == key)["start_ns"].to_numpy()
        first, after = (np.searchsorted(times, t[own]) for t in (starts, ends))
        counts[own] = np.maximum(after - first, 0)
    return counts


def _shorter_calls(ns: Ints) -> Change:
    """Shorten the own time of calls."""
    calls = np.flatnonzero(ns)

    def change(program: ReplayProgram) -> ReplayProgram:
        own_ns = np.maximum(program.own_ns[calls] - ns[calls], 0)
        return program.changed(own_ns=put(program.own_ns, calls, own_ns))

    return change


def _match(
    context: RuleContext, recorded_ns: int, assumed_ns: int, changes: tuple[Change, ...]
) -> RuleMatch:
    total_ns = recorded_ns + assumed_ns
    share = total_ns / max(1, context.length_ns)
    evidence = [
        step_evidence(
            context,
            "recorded_ns",
            recorded_ns,
            "ns",
            "Profiler overhead recorded on the launching threads",
        ),
        Evidence("share", share, "share", "Share of the time"),
    ]
    if assumed_ns:
        meaning = (
            f"Operator recording, {format_time(NS_PER_OPERATOR.value, digits=3)} each (assumed)"
        )
        evidence.insert(1, step_evidence(context, "operators_ns", assumed_ns, "ns", meaning))
    about = "about " if assumed_ns else ""
    return RuleMatch(
        title=f"Profiler overhead: {about}{time_per_step(context, total_ns)}",
        evidence=tuple(evidence),
        confidence=Confidence.MEDIUM if assumed_ns else Confidence.HIGH,
        confidence_reason="the overhead per operator is assumed"
        if assumed_ns
        else "the profiler recorded its overhead",
        change=changes,
        fix=_fix(context, share),
        where=_locations(context),
    )


def _fix(context: RuleContext, share: float) -> str:
    way = "Capture fewer steps after a warm-up, and trace only cuda and nvtx."
    if context.trace.meta.source.startswith("torch"):
        way = (
            "Record fewer steps, without shapes, memory and stacks, or use nsys, which has less "
            "overhead."
        )
    return (
        f"The profiler takes {format_share(share)} of the launching thread's time. Without it, "
        f"findings about the host are smaller by that much. {way}"
    )


def _locations(context: RuleContext) -> tuple[FindingLocation, ...]:
    window = context.schedule
    if not context.trace.has("overheads"):
        return ()
    rows = context.trace.table("overheads", ["start_ns", "end_ns", "name"]).filter(
        pl.col("end_ns") > window.start_ns, pl.col("start_ns") < window.end_ns
    )
    rows = without_loading(rows).with_columns(
        (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns")
    )
    return largest(summed_locations(rows, "call", "name"))
