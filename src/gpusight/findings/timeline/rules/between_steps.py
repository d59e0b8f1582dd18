"""between-steps: the host does other things than launching, between steps or inside them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analyses.replay.changes import without_host_time
from gpusight.analyses.schedule.schedule import CallKind
from gpusight.analyses.statistics import names_of
from gpusight.findings.finding import Confidence, Evidence
from gpusight.findings.timeline.framework import framework_of
from gpusight.findings.timeline.host import (
    at_most,
    doing_before,
    events_of,
    host_unknown,
    named,
)
from gpusight.findings.timeline.rule import Absent, Found, Rule
from gpusight.findings.timeline.stalls import LAUNCHES, LONG, UNUSUAL, host_work
from gpusight.findings.timeline.texts import by_step, largest, of_each_step
from gpusight.findings.verdict import CLEAN, Limit
from gpusight.model.intervals import Intervals, intersect
from gpusight.units import format_time

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.analyses.schedule.schedule import Ints
    from gpusight.findings.timeline.rule import Verdict, Where
    from gpusight.findings.timeline.stalls import HostWork
    from gpusight.findings.timeline.timeline import Timeline

LEAST = Limit(0.02, "part of the time that the GPU waits for such work; below, it is noise")
OFTEN = Limit(
    0.5,
    "part of the steps that must hold a long stretch, or part of a step that a rare one must take: "
    "the rest is a hiccup of the machine",
)
LOOP = Limit(20_000, "ns a step that the loop itself takes")
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


class BetweenSteps(Rule):
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
    afterwards = (
        "`gpusight steps` shows less time from the end of a step to the next one, `gpusight "
        "ledger` less `idle/framework` and `idle/other`."
    )
    misleads = (
        "Ranges that mark only a part of each step leave the rest between them: then this is the "
        "step's own time. A stretch without names may be work that the step needs."
    )
    estimate = "Replay without the host's own time in these stretches; calls and waits stay."
    limits: ClassVar = {
        "LEAST": LEAST,
        "LOOP": LOOP,
        "OFTEN": OFTEN,
        "LONG": LONG,
        "UNUSUAL": UNUSUAL,
        "LAUNCHES": LAUNCHES,
    }
    least_share = 0.02

    def check(self, timeline: Timeline) -> Verdict:
        """Measure the host's own time between the marks of steps, and in long stretches."""
        if (unknown := host_unknown(timeline)) is not None:
            return unknown
        if timeline.steps < 2:
            return Absent("fewer than two steps are known")
        other = _other(timeline)
        least_ns = max(LEAST.value * timeline.length_ns, LOOP.value * timeline.steps)
        if other.idle_ns - _profiler_ns(timeline, other) < least_ns:
            return CLEAN
        return _found(timeline, other)


def _other(timeline: Timeline) -> _Other:
    calls = timeline.schedule.calls
    work = host_work(timeline)
    chosen = np.flatnonzero((work.between | _telling(timeline, work)) & (work.ns > 0))
    threads = calls.thread[chosen]
    return _Other(
        chosen,
        work.ns[chosen],
        work.of(chosen),
        Intervals.from_arrays(work.start_ns[chosen], work.end_ns[chosen]),
        int(np.bincount(threads).argmax()) if len(threads) else 0,
        work.of(np.flatnonzero(work.between)),
    )


def _telling(timeline: Timeline, work: HostWork) -> NDArray[np.bool_]:
    """Choose the long stretches that come again in most steps, or are long for a step."""
    calls = timeline.schedule.calls
    marks = calls.start_ns[calls.kind == CallKind.MARK][::2]
    step = np.searchsorted(marks, calls.start_ns, side="right")
    often = len(np.unique(step[work.long])) >= OFTEN.value * timeline.steps
    lasting = work.ns >= OFTEN.value * timeline.length_ns / timeline.per_step
    return work.long & (lasting | often)


def _profiler_ns(timeline: Timeline, other: _Other) -> int:
    """Measure what the profiler's own Python does there: it counts steps between them."""
    events = events_of(timeline, "python_calls", other.thread)
    codes = [c for c, name in enumerate(names_of(events["name"])) if _PROFILER.search(name)]
    own = events.filter(pl.col("name").to_physical().is_in(codes))
    spans = Intervals.from_arrays(own["start_ns"].to_numpy(), own["end_ns"].to_numpy())
    return intersect(spans, other.spans).length_ns


def _found(timeline: Timeline, other: _Other) -> Found:
    doing = doing_before(timeline, other.calls, other.ns)
    where = largest(doing["range"], doing["operator"], doing["site"], doing["call"])
    longest = float(other.ns.max(initial=0))
    between = other.between_ns >= _MOSTLY * other.idle_ns
    what = "Host work between steps" if between else "Other host work"
    return Found(
        title=f"{what} keeps the GPU waiting for {of_each_step(timeline, other.idle_ns)}",
        evidence=(
            Evidence(
                "idle_ns",
                other.idle_ns / timeline.per_step,
                "ns",
                by_step(timeline, "Time in which the GPU waits for it"),
            ),
            Evidence(
                "between_ns",
                other.between_ns / timeline.per_step,
                "ns",
                by_step(timeline, "Of it, after one step and before the next"),
            ),
            Evidence(
                "host_ns",
                float(other.ns.sum()) / timeline.per_step,
                "ns",
                by_step(timeline, "Host work in these stretches"),
            ),
            Evidence("longest_ns", longest, "ns", "The longest stretch"),
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason="whether that work can be moved or left out cannot be seen",
        change=(without_host_time(other.calls, other.ns),),
        least_ns=at_most(timeline, other.idle_ns),
        fix=_fix(timeline, where, float(other.ns.sum()), longest),
        code=framework_of(timeline.trace).choose(torch=BetweenSteps.code, cuda=_CUDA, jax=_JAX),
        where=where,
    )


def _fix(timeline: Timeline, where: tuple[Where, ...], host_ns: float, longest: float) -> str:
    who = named(where, "range", "operator", "site") or named(where, "call")
    what = f"What runs there is {who}." if who else "No range or operator says what runs there."
    rare = (
        f" Most of it is in few places: the longest takes {format_time(longest)}."
        if longest > _RARE * host_ns / timeline.per_step
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
