"""Asks how long a window would have taken if something had been different."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpusight.analyses.ledger.causes import Cause
from gpusight.analyses.replay.calibrate import calibrate
from gpusight.analyses.replay.run import run

if TYPE_CHECKING:
    from gpusight.analyses.ledger.hosts import HostTime
    from gpusight.analyses.replay.changes import Change
    from gpusight.analyses.replay.program import Program
    from gpusight.analyses.schedule.schedule import Ints, Schedule, Timing

_MOVABLE = (Cause.FRAMEWORK, Cause.LAUNCHING)


@dataclass(frozen=True)
class Outcome:
    """How long a replayed window took, and when everything ran."""

    total_ns: int
    saved_ns: int
    """Against the replay without any change; below 0 where it became longer."""
    timing: Timing


class Replay:
    """A window that can be replayed with changes."""

    def __init__(self, schedule: Schedule, hosts: HostTime) -> None:
        self.schedule = schedule
        self.hosts = hosts
        found = calibrate(schedule)
        self.program: Program = found.program.changed(movable_ns=self._movable(found.program))
        """Costs and dependencies as measured."""
        self.launch_latency_ns = found.latency_ns
        """Usual time from the end of a launch call to the beginning of its work."""
        self.queue_gap_ns = found.queue_gap_ns
        """Usual time between pieces of work of one stream."""
        self.measured_ns = schedule.length_ns
        self.unchanged = self._outcome(run(self.program), None)
        typical = run(found.typical)
        self.typical_ns = typical.end_ns - typical.start_ns
        """Length when every latency, gap and tail is the usual one."""

    @property
    def error(self) -> float:
        """How far the replay with usual latencies misses what was measured, as a part of it."""
        return abs(self.typical_ns - self.measured_ns) / max(1, self.measured_ns)

    def run(self, *changes: Change) -> Outcome:
        """Replay the window with these changes, one applied after the other."""
        program = self.program
        for change in changes:
            program = change(program)
        return self._outcome(run(program), self.unchanged)

    def hosts_of(self, outcome: Outcome) -> HostTime:
        """Say what the host did at every instant of a replay."""
        calls, timing = self.schedule.calls, outcome.timing
        order = np.argsort(calls.lane, kind="stable")
        lane = np.repeat(calls.lane[order], 2)
        before = np.stack((calls.start_ns[order], calls.end_ns[order]), axis=1).reshape(-1)
        after = np.stack((timing.call_start_ns[order], timing.call_end_ns[order]), axis=1).reshape(
            -1
        )
        return self.hosts.moved(*self._with_beginnings(lane, before, after))

    def _with_beginnings(self, lane: Ints, before: Ints, after: Ints) -> tuple[Ints, Ints, Ints]:
        """Let each lane begin with the window."""
        _, first = np.unique(lane, return_index=True)
        start = self.schedule.start_ns
        return (
            np.insert(lane, first, lane[first]),
            np.insert(before, first, start),
            np.insert(after, first, start),
        )

    def _outcome(self, timing: Timing, unchanged: Outcome | None) -> Outcome:
        total = timing.end_ns - timing.start_ns
        saved = 0 if unchanged is None else unchanged.total_ns - total
        return Outcome(total, saved, timing)

    def _movable(self, program: Program) -> Ints:
        """Measure the part of the gap before each call that is the framework's or launching."""
        calls = self.schedule.calls
        gap = np.maximum(program.gap_ns, 0)
        spent = self.hosts.spent(calls.lane, calls.start_ns - gap, calls.start_ns)
        movable: Ints = spent[:, list(_MOVABLE)].sum(axis=1)
        return movable
