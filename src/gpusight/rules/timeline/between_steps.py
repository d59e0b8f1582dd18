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
from gpusight.rules.formatting import by_step, framework_of, largest, of_each_step
from gpusight.rules.locations import idle_by_cause
from gpusight.rules.patterns.host_gaps import (
    activity_before,
    at_most,
    events_of,
    host_unknown,
    named,
)
from gpusight.rules.patterns.host_stalls import (
    MAX_LAUNCHES_BETWEEN,
    MIN_STALL_NS,
    MIN_STALL_RATIO,
    host_work,
    launching_lane,
    waits,
)
from gpusight.rules.rule import CLEAN, RuleMatch, RuleNotApplicable, Threshold, TimelineRule
from gpusight.trace.intervals import Intervals, intersect
from gpusight.units import format_time

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.analysis.gpu_schedule import Ints
    from gpusight.analysis.replay.changes import Change
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.patterns.host_stalls import HostStalls
    from gpusight.rules.rule import FindingLocation, RuleVerdict


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
class _Other:
    """Host work that is no launching."""

    calls: Ints
    """Positions of the calls that it came before."""
    ns: Ints
    """Before each of them."""
    idle_ns: int
    """Of it, with nothing to do for the GPU."""
    spans: Intervals
    thread: int
    between_ns: int
    """Of the idle time, what lies between steps."""
    read: pl.DataFrame
    """Copies to the host that were asked for between steps: what that work looks at."""


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
        other = _other(context)
        least_ns = max(
            MIN_IDLE_SHARE.value * context.length_ns, LOOP_NS_PER_STEP.value * context.steps
        )
        if other.idle_ns - _profiler_ns(context, other) < least_ns:
            return CLEAN
        return _found(context, other)

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find idle time in which the host did something else than launch."""
        causes = (IdleCause.FRAMEWORK, IdleCause.OTHER, IdleCause.UNKNOWN, IdleCause.INPUT)
        return idle_by_cause(context, finding, *causes)


def _other(context: RuleContext) -> _Other:
    calls = context.schedule.calls
    work = host_work(context)
    telling = (work.between | _telling(context, work)) & (work.ns > 0)
    chosen = _own_cause(context, work, np.flatnonzero(telling))
    threads = calls.thread[chosen]
    return _Other(
        chosen,
        work.ns[chosen],
        work.of(chosen),
        Intervals.from_arrays(work.start_ns[chosen], work.end_ns[chosen]),
        int(np.bincount(threads).argmax()) if len(threads) else 0,
        work.of(chosen[work.between[chosen]]),
        _read_between(context, work),
    )


def _own_cause(context: RuleContext, work: HostStalls, chosen: Ints) -> Ints:
    """Leave out work on values that were read back, if it only costs because of that wait."""
    reads = waits(context).filter(pl.col("reads"), ~pl.col("large"))["calls"]
    before = _call_before(context)[chosen]
    after = np.isin(before, reads.explode().to_numpy())
    if not after.any():
        return chosen
    own = reads.filter(reads.list.eval(pl.element().is_in(before[after])).list.any())
    saved_ns = context.replay.run(without_waiting(own.explode().to_numpy())).saved_ns
    return chosen[~after] if saved_ns >= MIN_HIDDEN_SHARE.value * work.of(chosen[after]) else chosen


def _call_before(context: RuleContext) -> Ints:
    """Give the call before each one in its lane."""
    lane = context.schedule.calls.lane
    order = np.argsort(lane, kind="stable")
    before = np.full(len(lane), NONE, np.int64)
    same = lane[order][1:] == lane[order][:-1]
    before[order[1:]] = np.where(same, order[:-1], NONE)
    return before


def _read_between(context: RuleContext, work: HostStalls) -> pl.DataFrame:
    """Give the copies to the host that were asked for between steps."""
    calls = np.flatnonzero(work.between)
    return context.ops.filter(
        pl.col("kind") == "copy",
        pl.col("direction") == "Device-to-Host",
        pl.col("call").is_in(calls),
    )


def _without_reading(context: RuleContext, read: pl.DataFrame) -> tuple[Change, ...]:
    """Let copies, their calls and the waits for them go."""
    if read.is_empty():
        return ()
    issued = read["call"].unique().to_numpy()
    groups = waits(context)["calls"]
    waiting = groups.filter(groups.list.eval(pl.element().is_in(issued)).list.any()).explode()
    return free_calls(np.union1d(issued, waiting.to_numpy())), remove(read["op"].to_numpy())


def _telling(context: RuleContext, work: HostStalls) -> NDArray[np.bool_]:
    """Choose the long stretches that come again in most steps, or are long for a step."""
    calls = context.schedule.calls
    marks = calls.start_ns[calls.kind == CallKind.MARK][::2]
    at = np.flatnonzero(work.long)
    rows = pl.DataFrame(
        {
            "place": _places(context, at),
            "step": np.searchsorted(marks, calls.start_ns[at], side="right"),
        }
    )
    in_steps = rows.select(pl.col("step").n_unique().over("place"))["step"].to_numpy()
    telling = work.ns >= MIN_STEP_SHARE.value * context.length_ns / context.per_step
    telling[at[in_steps >= MIN_STEP_SHARE.value * context.steps]] = True
    return work.long & telling


def _places(context: RuleContext, calls: Ints) -> pl.Series:
    """Tell where in a step calls come: after which work of their lane, and before which."""
    lane = context.schedule.calls.lane
    issued = context.ops.filter(pl.col("call").is_not_null()).sort("call")
    own = issued.filter(pl.Series(lane[issued["call"]] == launching_lane(context)))
    names = own["name"].cast(pl.String)
    after = np.searchsorted(own["call"].to_numpy(), calls)
    around = [
        names.gather(optional(np.where((at >= 0) & (at < own.height), at, NONE)))
        for at in (after - 1, after)
    ]
    return pl.DataFrame([s.alias(str(n)) for n, s in enumerate(around)]).to_struct("place")


def _profiler_ns(context: RuleContext, other: _Other) -> int:
    """Measure what the profiler's own Python does there: it counts steps between them."""
    events = events_of(context, "python_calls", other.thread)
    codes = [c for c, name in enumerate(names_of(events["name"])) if _PROFILER.search(name)]
    own = events.filter(pl.col("name").to_physical().is_in(codes))
    spans = Intervals.from_arrays(own["start_ns"].to_numpy(), own["end_ns"].to_numpy())
    return intersect(spans, other.spans).length_ns


def _found(context: RuleContext, other: _Other) -> RuleMatch:
    doing = activity_before(context, other.calls, other.ns)
    where = largest(doing["range"], doing["operator"], doing["site"], doing["call"])
    longest = float(other.ns.max(initial=0))
    between = other.between_ns >= _MOSTLY * other.idle_ns
    what = "Host work between steps" if between else "Other host work"
    return RuleMatch(
        title=f"{what} keeps the GPU waiting for {of_each_step(context, other.idle_ns)}",
        evidence=(
            Evidence(
                "idle_ns",
                other.idle_ns / context.per_step,
                "ns",
                by_step(context, "Time in which the GPU waits for it"),
            ),
            Evidence(
                "between_ns",
                other.between_ns / context.per_step,
                "ns",
                by_step(context, "Of it, after one step and before the next"),
            ),
            Evidence(
                "host_ns",
                float(other.ns.sum()) / context.per_step,
                "ns",
                by_step(context, "Host work in these stretches"),
            ),
            Evidence("longest_ns", longest, "ns", "The longest stretch"),
            *_reading(context, other.read),
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason="whether that work can be moved or left out cannot be seen",
        change=(
            without_host_time(other.calls, other.ns),
            *_without_reading(context, other.read),
        ),
        min_ns=at_most(context, other.idle_ns + _reading_ns(context, other.read)),
        fix=_fix(context, where, float(other.ns.sum()), longest),
        code=framework_of(context.trace).choose(torch=BetweenSteps.code, cuda=_CUDA, jax=_JAX),
        where=where,
    )


def _reading(context: RuleContext, read: pl.DataFrame) -> tuple[Evidence, ...]:
    if read.is_empty():
        return ()
    each = read.height / context.per_step
    meaning = by_step(context, "Copies to the host between steps")
    return (Evidence("copies", each, "", meaning),)


def _reading_ns(context: RuleContext, read: pl.DataFrame) -> int:
    """Measure the calls that ask for copies and wait for them."""
    calls = context.calls.filter(pl.col("call").is_in(read["call"].unique()))
    return int(calls["duration_ns"].sum())


def _fix(
    context: RuleContext, where: tuple[FindingLocation, ...], host_ns: float, longest: float
) -> str:
    who = named(where, "range", "operator", "site") or named(where, "call")
    what = f"What runs there is {who}." if who else "No range or operator says what runs there."
    rare = (
        f" Most of it is in few places: the longest takes {format_time(longest)}."
        if longest > _RARE * host_ns / context.per_step
        else ""
    )
    return f"{what}{rare} Do it rarely, on another thread, or after the next step was launched."


_MOSTLY = 0.9
_RARE = 5
"""Times the mean from which on the longest gap stands out."""
_CUDA = """\
launch_step(i + 1, stream);                    // first keep the GPU busy
write_results(i);                              // then the host's own work
"""
_JAX = """\
next_state = train_step(state, batch)          # dispatched, not awaited
if step % 100 == 0:
    log(jax.device_get(metrics))               # of the step before
"""
