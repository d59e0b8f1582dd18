"""Host work that launches nothing: long stretches between two calls of the launching thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.attribution.nested import Nested
from gpusight.analyses.ledger.causes import Cause
from gpusight.analyses.replay.program import put
from gpusight.analyses.schedule.schedule import NONE, CallKind
from gpusight.analyses.statistics import names_of
from gpusight.analyses.steps.phase_names import phase_of
from gpusight.findings.timeline.host import before_calls, spent_before
from gpusight.findings.timeline.once import once
from gpusight.findings.timeline.repetition import FEW
from gpusight.findings.verdict import Limit
from gpusight.model.intervals import Intervals, coverage, gaps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.analyses.replay.changes import Change
    from gpusight.analyses.replay.program import Program
    from gpusight.analyses.schedule.schedule import Ints
    from gpusight.findings.timeline.timeline import Timeline

LONG = Limit(1e6, "ns between two calls from which on it is no longer the way to the next launch")
UNUSUAL = Limit(
    20,
    "times what the host usually needs from one launch to the next that such a stretch must be, "
    "too, if it is below 5 ms",
)
_ALWAYS_NS = 5e6
LAUNCHES = Limit(
    0.1,
    "part of the launches that lie between steps from which on the ranges mark parts of steps: "
    "what is between them is then as much the step's own",
)
_OWN = [Cause.FRAMEWORK, Cause.OTHER, Cause.UNKNOWN]


@dataclass(frozen=True)
class HostWork:
    """The host's own work before calls: no input, no waiting, not the profiler's."""

    ns: Ints
    """Before each call, by position."""
    idle_ns: Ints
    """Of it, with nothing running on the GPU that works longest."""
    start_ns: Ints
    end_ns: Ints
    long: NDArray[np.bool_]
    """It is a stretch of the launching lane much longer than the way to a launch."""
    between: NDArray[np.bool_]
    """It comes after one step and before the next, on the lane of the steps."""

    @property
    def apart(self) -> NDArray[np.bool_]:
        """Tell which of it is not for launching."""
        return self.long | self.between

    def of(self, calls: Ints) -> int:
        """Add up the time before these calls in which the GPU had nothing to do."""
        return int(self.idle_ns[calls].sum())


@once
def host_work(timeline: Timeline) -> HostWork:
    """Measure the host's own work before each call."""
    calls = timeline.schedule.calls
    start, end = before_calls(timeline)
    own = spent_before(timeline)[:, _OWN].sum(axis=1)
    # What the replay knows to be a silent wait for the GPU is no work.
    own = np.minimum(own, np.maximum(timeline.replay.program.gap_ns, 0))
    lane = launching_lane(timeline)
    limit = np.clip(UNUSUAL.value * _usual_ns(timeline, own, lane), LONG.value, _ALWAYS_NS)
    idle = np.minimum(own, coverage(_idle(timeline), start, end))
    long = (own >= limit) & (calls.lane == lane)
    at = np.flatnonzero(long & (own < _ALWAYS_NS))
    long[at[_on_its_way(timeline, at, (start[at] + end[at]) // 2)]] = False
    return HostWork(own, idle, start, end, long, _between(timeline))


def _usual_ns(timeline: Timeline, own: Ints, lane: int) -> float:
    """Give the host's own time from one launch of a lane to the next, median.

    From one call to the next where launches are so few that the other work of a step is between
    any two of them.
    """
    calls = timeline.schedule.calls
    at = np.flatnonzero(calls.lane == lane)
    spent = np.cumsum(own[at])[np.isin(calls.kind[at], (CallKind.LAUNCH, CallKind.GRAPH))]
    if len(spent) > max(1, FEW.value * timeline.steps):
        return float(np.median(np.diff(spent)))
    some = own[own > 0]
    return float(np.median(some)) if len(some) else 0.0


def _on_its_way(timeline: Timeline, calls: Ints, middle_ns: Ints) -> NDArray[np.bool_]:
    """Tell which stretches lie, for the most part, in a range of the optimizer that goes on.

    It walks all parameters before it launches anything, which takes milliseconds with many of
    them: that is the way to a launch, and goes with it.
    """
    schedule = timeline.schedule
    ranges = timeline.trace.table("ranges", ["start_ns", "end_ns", "name", "thread"])
    names = names_of(ranges["name"])
    telling = [code for code, name in enumerate(names) if phase_of(name) == "optimizer"]
    ranges = ranges.filter(pl.col("name").to_physical().is_in(telling))
    keys = pl.Series([thread for _, thread in schedule.threads], dtype=pl.Int64)
    threads = keys.gather(schedule.calls.thread[calls])
    nested = Nested.of(ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy(), ranges["thread"])
    first, last = (
        nested.innermost(times, threads) for times in (middle_ns, schedule.calls.start_ns[calls])
    )
    same: NDArray[np.bool_] = (first >= 0) & (first == last)
    return same


def _between(timeline: Timeline) -> NDArray[np.bool_]:
    """Tell which calls come after a step and up to the beginning of the next one."""
    calls = timeline.schedule.calls
    marks = np.flatnonzero(calls.kind == CallKind.MARK)
    if len(marks) < _TWO_STEPS:
        return np.zeros(len(calls), np.bool_)
    edges = np.zeros(len(calls) + 1, np.int64)
    edges[marks[1:-1:2] + 1] += 1
    edges[marks[2::2] + 1] -= 1
    between: NDArray[np.bool_] = np.cumsum(edges[:-1]) > 0
    between &= calls.lane == calls.lane[marks[0]]
    launches = np.isin(calls.kind, (CallKind.LAUNCH, CallKind.GRAPH))
    held = np.count_nonzero(between & launches)
    return between & (held <= LAUNCHES.value * np.count_nonzero(launches))


_TWO_STEPS = 4
"""Marks of two steps."""


def launching_lane(timeline: Timeline) -> int:
    """Give the lane that puts most work on GPUs."""
    issued = timeline.schedule.ops.call
    lanes = timeline.schedule.calls.lane[issued[issued != NONE]]
    return int(np.bincount(lanes).argmax()) if len(lanes) else NONE


def _idle(timeline: Timeline) -> Intervals:
    schedule, ops = timeline.schedule, timeline.schedule.ops
    own = ops.device == timeline.device
    busy = Intervals.from_arrays(ops.start_ns[own], ops.end_ns[own])
    return gaps(busy, schedule.start_ns, schedule.end_ns)


def keeping_host_work(calls: Ints) -> Change:
    """Let the time before these calls stay when launches become a graph."""

    def change(program: Program) -> Program:
        return program.changed(movable_ns=put(program.movable_ns, calls, 0))

    return change
