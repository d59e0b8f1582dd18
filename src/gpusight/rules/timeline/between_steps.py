"""between-steps: the host does other things than launching, between steps or inside them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.nested_intervals import optional
from gpusight.analysis.gpu_schedule import NONE, CallKind
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.replay.changes import free_calls, remove, without_host_time, without_waiting
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import (
    framework_of,
    largest,
    named,
    of_each_step,
    step_evidence,
)
from gpusight.rules.locations import idle_by_cause
from gpusight.rules.patterns.host_gaps import (
    MAX_LAUNCHES_BETWEEN,
    MIN_STALL_NS,
    MIN_STALL_RATIO,
    activity_before,
    at_most,
    host_unknown,
    host_work,
    launching_lane,
    waits,
)
from gpusight.rules.rule import CLEAN, RuleMatch, RuleNotApplicable, Threshold, TimelineRule
from gpusight.trace.intervals import Intervals, intersect
from gpusight.units import format_time

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.analysis.replay.changes import Change
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.patterns.host_gaps import HostStalls
    from gpusight.rules.rule import FindingLocation, RuleVerdict
    from gpusight.trace.intervals import Ints


MIN_IDLE_SHARE = Threshold(
    0.02, "part of the time that the GPU waits for such work; below, it is noise"
)
MIN_STEP_SHARE = Threshold(
    0.5,
    "part of the steps that must hold a long stretch, in the same place, or part of a step that a "
    "rare one must take: the rest are hiccups of the machine",
)
LOOP_NS_PER_STEP = Threshold(20_000, "ns a step that the loop itself takes")
MIN_HIDDEN_SHARE = Threshold(
    0.5,
    "part of host work right after values were read back that must be hidden once nobody waits for "
    "them: then the wait is the cause (host-sync), for the GPU could go on meanwhile",
)
_PROFILER = re.compile(r"(?:^|/)torch/profiler/|ProfilerStep|profiler_util")


@dataclass(frozen=True)
class _OtherWork:
    """Host work that does not launch anything."""

    calls: Ints
    """Positions of the calls that it came before."""
    ns: Ints
    """Before each of them."""
    idle_ns: int
    """The part of it with the GPU idle."""
    spans: Intervals
    thread: int
    between_ns: int
    """The part of the idle time between steps."""
    read: pl.DataFrame
    """Copies to the host between steps, which that work needs."""


class BetweenSteps(TimelineRule):
    """Host work that launches nothing, between steps or in the middle of them."""

    id = "between-steps"
    detects = (
        "Looks for host work that keeps the GPU waiting and is neither input nor launching: what "
        "comes after one step and before the next (logging, checkpoints, validation), and "
        "stretches of a millisecond or more inside steps."
    )
    why = (
        "Nothing is launched meanwhile. Once the work issued before is done the GPU stands still "
        "until the next launch."
    )
    fix = (
        "Do it rarely, on another thread, or while the GPU still works on what was launched before."
    )
    code = """\
if step % 100 == 0:                            # not every step
    executor.submit(write_log, step, metrics)  # another thread
# checkpoints: torch.distributed.checkpoint.async_save(state, checkpoint_id=path)
"""
    verify = (
        "`gpusight steps` shows less time from the end of a step to the next one, `gpusight "
        "ledger` less `idle/framework` and `idle/other`."
    )
    caveats = (
        "Ranges that mark only a part of each step leave the rest between them: then this is the "
        "step's own time. A stretch without names may be work that the step needs."
    )
    estimate = (
        "Replay without the host's own time in these stretches and without the copies to the host "
        "that are asked for between steps, which go with it; other calls and waits stay."
    )
    thresholds: ClassVar = {
        "min_idle_share": MIN_IDLE_SHARE,
        "loop_ns_per_step": LOOP_NS_PER_STEP,
        "min_step_share": MIN_STEP_SHARE,
        "min_hidden_share": MIN_HIDDEN_SHARE,
        "min_stall_ns": MIN_STALL_NS,
        "min_stall_ratio": MIN_STALL_RATIO,
        "max_launches_between": MAX_LAUNCHES_BETWEEN,
    }
    min_share = 0.02

    def check(self, context: RuleContext) -> RuleVerdict:
        """Measure the host's own time between the marks of steps, and in long stretches."""
        if (unknown := host_unknown(context)) is not None:
            return unknown
        if context.steps < 2:
            return RuleNotApplicable("fewer than two steps are known")
        other = _other_work(context)
        min_idle_ns = max(
            MIN_IDLE_SHARE.value * context.length_ns, LOOP_NS_PER_STEP.value * context.steps
        )
        if other.idle_ns - _profiler_ns(context, other) < min_idle_ns:
            return CLEAN
        return _match(context, other)

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find idle time in which the host did something else than launch."""
        causes = (IdleCause.FRAMEWORK, IdleCause.OTHER, IdleCause.UNKNOWN, IdleCause.INPUT)
        return idle_by_cause(context, finding, *causes)


def _other_work(context: RuleContext) -> _OtherWork:
    work = host_work(context)
    candidates = (work.between | _regular_stalls(context, work)) & (work.ns > 0)
    calls = _without_reads(context, work, np.flatnonzero(candidates))
    threads = context.schedule.calls.thread[calls]
    return _OtherWork(
        calls,
        work.ns[calls],
        work.of(calls),
        Intervals.from_arrays(work.start_ns[calls], work.end_ns[calls]),
        int(np.bincount(threads).argmax()) if len(threads) else 0,
        work.of(calls[work.between[calls]]),
        context.ops.filter(
            pl.col("kind") == "copy",
            pl.col("direction") == "Device-to-Host",
            pl.col("call").is_in(np.flatnonzero(work.between)),
        ),
    )


def _without_reads(context: RuleContext, work: HostStalls, calls: Ints) -> Ints:
    """Leave out work on values that were read back, if the wait for them is the cause."""
    reads = waits(context).filter(pl.col("reads"), ~pl.col("large"))["calls"]
    lane = context.schedule.calls.lane
    order = np.argsort(lane, kind="stable")
    same_lane = lane[order][1:] == lane[order][:-1]
    call_before = np.full(len(lane), NONE, np.int64)
    call_before[order[1:]] = np.where(same_lane, order[:-1], NONE)
    before = call_before[calls]
    after_read = np.isin(before, reads.explode().to_numpy())
    if not after_read.any():
        return calls
    read = reads.filter(reads.list.eval(pl.element().is_in(before[after_read])).list.any())
    saved_ns = context.replay.run(without_waiting(read.explode().to_numpy())).saved_ns
    if saved_ns >= MIN_HIDDEN_SHARE.value * work.of(calls[after_read]):
        return calls[~after_read]
    return calls


def _without_reading(context: RuleContext, read: pl.DataFrame) -> tuple[Change, ...]:
    """Remove copies, their calls and the waits for them."""
    if read.is_empty():
        return ()
    issued = read["call"].unique().to_numpy()
    groups = waits(context)["calls"]
    waiting = groups.filter(groups.list.eval(pl.element().is_in(issued)).list.any()).explode()
    return free_calls(np.union1d(issued, waiting.to_numpy())), remove(read["op"].to_numpy())


def _regular_stalls(context: RuleContext, work: HostStalls) -> NDArray[np.bool_]:
    """Choose the long stalls that come in most steps, or that are long for a step."""
    calls = context.schedule.calls
    marks = calls.start_ns[calls.kind == CallKind.MARK][::2]
    long = np.flatnonzero(work.long)
    step = np.searchsorted(marks, calls.start_ns[long], side="right")
    rows = pl.DataFrame({"place": _places(context, long), "step": step})
    in_steps = rows.select(pl.col("step").n_unique().over("place"))["step"].to_numpy()
    chosen = work.ns >= MIN_STEP_SHARE.value * context.length_ns / context.per_step
    chosen[long[in_steps >= MIN_STEP_SHARE.value * context.steps]] = True
    return work.long & chosen


def _places(context: RuleContext, calls: Ints) -> pl.Series:
    """Return the activities that the thread launched before and after each call."""
    lane = context.schedule.calls.lane
    issued = context.ops.filter(pl.col("call").is_not_null()).sort("call")
    launched = issued.filter(pl.Series(lane[issued["call"]] == launching_lane(context)))
    names = launched["name"].cast(pl.String)
    after = np.searchsorted(launched["call"].to_numpy(), calls)
    around = [
        names.gather(optional(np.where((at >= 0) & (at < launched.height), at, NONE)))
        for at in (after - 1, after)
    ]
    return pl.DataFrame([s.alias(str(n)) for n, s in enumerate(around)]).to_struct("place")


def _profiler_ns(context: RuleContext, other: _OtherWork) -> int:
    """Measure the profiler's own Python functions in that work: it counts steps between them."""
    schedule = context.schedule
    events = context.trace.table("python_calls", ["start_ns", "end_ns", "name", "thread"]).filter(
        pl.col("thread") == schedule.threads[other.thread][1],
        pl.col("end_ns") > pl.col("start_ns"),
        pl.col("end_ns") > schedule.start_ns,
        pl.col("start_ns") < schedule.end_ns,
    )
    codes = [c for c, name in enumerate(names_of(events["name"])) if _PROFILER.search(name)]
    own = events.filter(pl.col("name").to_physical().is_in(codes))
    spans = Intervals.from_arrays(own["start_ns"].to_numpy(), own["end_ns"].to_numpy())
    return intersect(spans, other.spans).length_ns


def _match(context: RuleContext, other: _OtherWork) -> RuleMatch:
    activity = activity_before(context, other.calls, other.ns)
    where = largest(activity["range"], activity["operator"], activity["site"], activity["call"])
    longest_ns = float(other.ns.max(initial=0))
    between = other.between_ns >= 0.9 * other.idle_ns
    what = "Host work between steps" if between else "Other host work"
    copies = step_evidence(
        context, "copies", other.read.height, "", "Copies to the host between steps"
    )
    reading = context.calls.filter(pl.col("call").is_in(other.read["call"].unique()))
    reading_ns = int(reading["duration_ns"].sum())
    return RuleMatch(
        title=f"{what} keeps the GPU waiting for {of_each_step(context, other.idle_ns)}",
        evidence=(
            step_evidence(
                context, "idle_ns", other.idle_ns, "ns", "Time in which the GPU waits for it"
            ),
            step_evidence(
                context,
                "between_ns",
                other.between_ns,
                "ns",
                "Of it, after one step and before the next",
            ),
            step_evidence(context, "host_ns", other.ns.sum(), "ns", "Host work in these stretches"),
            Evidence("longest_ns", longest_ns, "ns", "The longest stretch"),
            *([] if other.read.is_empty() else [copies]),
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason="whether that work can be moved or left out cannot be seen",
        change=(
            without_host_time(other.calls, other.ns),
            *_without_reading(context, other.read),
        ),
        min_ns=at_most(context, other.idle_ns + reading_ns),
        fix=_fix(context, where, float(other.ns.sum()), longest_ns),
        code=framework_of(context.trace).choose(torch=BetweenSteps.code, cuda=_CUDA, jax=_JAX),
        where=where,
    )


def _fix(
    context: RuleContext, where: tuple[FindingLocation, ...], host_ns: float, longest_ns: float
) -> str:
    who = named(where, "range", "operator", "site") or named(where, "call")
    what = f"What runs there is {who}." if who else "No range or operator says what runs there."
    rare = ""
    if longest_ns > _MIN_RARE_RATIO * host_ns / context.per_step:
        rare = f" Most of it is in few places: the longest takes {format_time(longest_ns)}."
    return f"{what}{rare} Do it rarely, on another thread, or after the next step was launched."


_MIN_RARE_RATIO = 5
"""Ratio of the longest stall to the mean of a step from which on it stands out."""
_CUDA = """\
launch_step(i + 1, stream);                    // first keep the GPU busy
write_results(i);                              // then the host's own work
"""
_JAX = """\
next_state = train_step(state, batch)          # dispatched, not awaited
if step % 100 == 0:
    log(jax.device_get(metrics))               # of the step before
"""
