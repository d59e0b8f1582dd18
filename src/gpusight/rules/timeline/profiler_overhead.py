"""profiler-overhead: the profiler slows down the program."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.corrected_trace import correction_of
from gpusight.analysis.ledger.idle_causes import without_loading
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.profiler_costs import estimate_overhead, recorded_events
from gpusight.analysis.replay.changes import without_host_time
from gpusight.analysis.replay.simulation import put
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import largest, summed_locations
from gpusight.rules.locations import idle_by_cause
from gpusight.rules.patterns.host_gaps import host_unknown, spent_before
from gpusight.rules.rule import CLEAN, RuleMatch, RuleNotApplicable, Threshold, TimelineRule
from gpusight.units import format_share

if TYPE_CHECKING:
    from gpusight.analysis.profiler_costs import EstimatedOverhead, Overhead
    from gpusight.analysis.replay.changes import Change
    from gpusight.analysis.replay.simulation import ReplayProgram
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import FindingLocation, RuleVerdict
    from gpusight.trace.intervals import Ints


MIN_OVERHEAD_SHARE = Threshold(0.01, "share of the time that the profiler must take")


class ProfilerOverhead(TimelineRule):
    """Time that the profiler adds."""

    id = "profiler-overhead"
    detects = (
        "Estimates what nsys, CUPTI and torch.profiler add per recorded event. For other tools, "
        "looks for overhead that they recorded (buffer flushes and requests)."
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
# or: gpusight record --steps 5-7 -- python train.py
"""
    verify = "The step time is close to that without a profiler."
    effort = "config"
    caveats = (
        "Overhead per event is estimated from other programs on one machine. Where steps are "
        "known, times are corrected instead, unless --pace is off."
    )
    estimate = (
        "Simulation without the estimated cost of each recorded event, or without the recorded "
        "overhead. Not a fix: the speed of the program without a profiler."
    )
    thresholds: ClassVar = {"min_overhead_share": MIN_OVERHEAD_SHARE}
    min_share = 0.01
    is_fix = False
    scenario = "remove overhead"

    def check(self, context: RuleContext) -> RuleVerdict:
        """Estimate what recording takes; for other tools, sum what they recorded of it."""
        if correction_of(context.trace) is not None:
            return RuleNotApplicable("times are corrected for the profiler's overhead")
        if (unknown := host_unknown(context)) is not None:
            return unknown
        before = spent_before(context)[:, IdleCause.PROFILER]
        calls = context.schedule.calls
        in_calls = context.hosts.spent(calls.host_thread, calls.start_ns, calls.end_ns)
        in_calls_ns = in_calls[:, IdleCause.PROFILER]
        recorded_ns = int(before.sum() + in_calls_ns.sum())
        estimate = estimate_overhead(context.schedule)
        if estimate is not None:
            return _estimated(context, recorded_ns, estimate)
        if recorded_ns < MIN_OVERHEAD_SHARE.value * context.length_ns:
            return CLEAN
        later = np.flatnonzero(before)
        changes = (without_host_time(later, before[later]), _shorter_calls(in_calls_ns))
        return RuleMatch(
            title=f"Profiler overhead: {context.time_per_step(recorded_ns)}",
            evidence=_evidence(context, recorded_ns, recorded_ns),
            confidence=Confidence.HIGH,
            confidence_reason="the profiler recorded its overhead",
            change=changes,
            fix=_fix(context, recorded_ns),
            where=_locations(context),
        )

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find idle time due to the profiler."""
        return idle_by_cause(context, finding, IdleCause.PROFILER)


def _estimated(context: RuleContext, recorded_ns: int, estimate: EstimatedOverhead) -> RuleVerdict:
    """Replay without what the tool usually takes: the same estimate as of corrected times."""
    events = recorded_events(context.schedule, estimate.weights)

    def without(overhead: Overhead) -> Change:
        return lambda program: overhead.removed_from(program, events)

    estimate = estimate.limited(lambda overhead: context.replay.run(without(overhead)).total_ns)
    unchanged_ns = context.replay.unchanged.total_ns
    middle_ns, low_ns, high_ns = (
        unchanged_ns - context.replay.run(without(overhead)).total_ns
        for overhead in (estimate.middle, estimate.low, estimate.high)
    )
    if middle_ns < MIN_OVERHEAD_SHARE.value * context.length_ns:
        return CLEAN
    low, high = (context.time_per_step(ns) for ns in (low_ns, high_ns))
    return RuleMatch(
        title=f"Profiler overhead: about {context.time_per_step(middle_ns)} (estimate)",
        evidence=(
            *_evidence(context, recorded_ns, middle_ns),
            context.evidence("low_ns", low_ns, "ns", "Lowest estimate of the overhead"),
            context.evidence("high_ns", high_ns, "ns", "Highest estimate of the overhead"),
            Evidence(
                "event_ns",
                estimate.middle.event_ns,
                "ns",
                f"Cost of a recorded event, usual for {estimate.tool}",
            ),
        ),
        confidence=Confidence.LOW,
        confidence_reason=f"estimated: {low} to {high}",
        change=(without(estimate.middle),),
        fix=_fix(context, middle_ns),
        where=_locations(context),
    )


def _shorter_calls(ns: Ints) -> Change:
    """Shorten the own time of calls."""
    calls = np.flatnonzero(ns)

    def change(program: ReplayProgram) -> ReplayProgram:
        own_ns = np.maximum(program.own_ns[calls] - ns[calls], 0)
        return program.changed(own_ns=put(program.own_ns, calls, own_ns))

    return change


def _evidence(context: RuleContext, recorded_ns: int, total_ns: int) -> tuple[Evidence, ...]:
    recorded = "Profiler overhead recorded on the launching threads"
    return (
        context.evidence("recorded_ns", recorded_ns, "ns", recorded),
        Evidence("share", total_ns / max(1, context.length_ns), "share", "Share of the time"),
    )


def _fix(context: RuleContext, total_ns: int) -> str:
    way = "Capture fewer steps after a warm-up, and trace only cuda and nvtx."
    if context.trace.meta.source.startswith("torch"):
        way = (
            "Record fewer steps, without shapes, memory and stacks, or use nsys, which has less "
            "overhead."
        )
    share = format_share(total_ns / max(1, context.length_ns))
    return (
        f"The profiler takes {share} of the time. Without it, findings about the host are smaller "
        f"by that much. {way}"
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
