"""Calibrates a program from a schedule, and replays it with changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpusight.analysis.gpu_schedule import NONE, CallKind, OpKind
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.replay.call_waits import find_waits
from gpusight.analysis.replay.simulation import LatencyBase, ReplayProgram, put, run_program
from gpusight.analysis.replay.stream_dependencies import waits_between_streams

if TYPE_CHECKING:
    from gpusight.analysis.gpu_schedule import ApiCalls, GpuOps, GpuSchedule, ScheduleTiming
    from gpusight.analysis.ledger.idle_causes import HostTime
    from gpusight.analysis.replay.changes import Change
    from gpusight.analysis.replay.simulation import Flags
    from gpusight.trace.intervals import Ints


LATENCY_NS = 2_000
"""Launch latency where the capture shows none."""
QUEUE_GAP_NS = 1_200
"""Gap between pieces of work of a stream where the capture shows none."""
_LONGEST_LATENCY_NS = 100_000
_LONGEST_GAP_NS = 20_000
"""What takes longer than these has another reason than the launch or the stream: where most work
waits for something, the median must not take that for usual."""
_UNEXPLAINED_NS = 10_000
"""Work that begins this much later than its launch and its stream allow waited for something."""
_LONG_CALL_NS = 50_000
"""Calls without a name of their own that take this long do more than prepare a launch."""
_ISSUED_EARLY_NS = 2_000
"""Work issued this long before the work ahead of it ended did not wait for its launch."""


@dataclass(frozen=True)
class ReplayCalibration:
    """A program, and the medians that it was made with."""

    program: ReplayProgram
    typical: ReplayProgram
    """The same with a median for every latency, gap and tail."""
    latency_ns: int
    queue_gap_ns: int


def calibrate(schedule: GpuSchedule) -> ReplayCalibration:
    """Read a program off a schedule."""
    ops, calls = schedule.ops, schedule.calls
    waits = find_waits(schedule)
    issue = _issue_order(ops, calls)
    edges = _Edges(ops, calls, issue, waits.inside, schedule.start_ns)
    needs, needs_gap = _needs(schedule, edges)
    duration = _inside(schedule, ops.end_ns) - _inside(schedule, ops.start_ns)
    program = ReplayProgram(
        start_ns=schedule.start_ns,
        end_ns=schedule.end_ns,
        lane=calls.lane,
        gap_ns=calls.start_ns - schedule.before_calls - waits.silent_ns,
        movable_ns=np.zeros(len(calls), np.int64),
        own_ns=waits.own_ns,
        mergeable=_mergeable(calls),
        mark=calls.kind == CallKind.MARK,
        wait=waits.wait,
        target=waits.target,
        tail_ns=waits.tail_ns,
        after_op=waits.after_op,
        after_ns=waits.after_ns,
        call=issue,
        queue=ops.queue,
        device=ops.device,
        engine=_engines(schedule),
        duration_ns=duration,
        inside=duration / np.maximum(ops.end_ns - ops.start_ns, 1),
        bound=edges.bound,
        latency_ns=edges.latency_ns,
        queue_gap_ns=edges.queue_gap_ns,
        needs=needs,
        needs_gap_ns=needs_gap,
        gone=np.zeros(len(ops), np.bool_),
        trailing_ns=_trailing(schedule),
        counted=_counted(schedule),
    )
    program = _freed(program, np.flatnonzero((needs >= 0) & edges.late))
    typical = program.changed(
        latency_ns=edges.typical_latency_ns,
        queue_gap_ns=edges.typical_gap_ns,
        tail_ns=waits.typical_tail_ns,
        needs_gap_ns=np.where(needs >= 0, edges.gap_median_ns, 0),
    )
    return ReplayCalibration(program, typical, edges.latency_median_ns, edges.gap_median_ns)


def _freed(program: ReplayProgram, waited: Ints) -> ReplayProgram:
    """Give work that waited for other work the usual latency: the wait is on another edge."""
    usual = np.minimum(program.latency_ns[waited], LATENCY_NS)
    gap = np.minimum(program.queue_gap_ns[waited], QUEUE_GAP_NS)
    return program.changed(
        latency_ns=put(program.latency_ns, waited, usual),
        queue_gap_ns=put(program.queue_gap_ns, waited, gap),
    )


def _engines(schedule: GpuSchedule) -> Ints:
    """Number the copy engines: one for each GPU and direction."""
    ops = schedule.ops
    engine = np.full(len(ops), NONE, np.int64)
    copies = np.flatnonzero(ops.kind == OpKind.COPY)
    if len(copies):
        kind = schedule.trace.table("copies", ["kind"])["kind"].to_physical().to_numpy()
        ways = np.stack((ops.device[copies], kind[ops.row[copies]].astype(np.int64)))
        engine[copies] = np.unique(ways, axis=1, return_inverse=True)[1].reshape(-1)
    return engine


def _inside(schedule: GpuSchedule, times: Ints) -> Ints:
    """Keep times to the window: work that begins before it or outlasts it counts in part."""
    return np.clip(times, schedule.start_ns, schedule.end_ns)


_STAYING = (CallKind.ALLOCATE, CallKind.FREE, CallKind.SYNC, CallKind.GRAPH)


def _mergeable(calls: ApiCalls) -> Flags:
    """Tell calls that launch, or that take too little to be anything else."""
    stays = np.isin(calls.kind, _STAYING)
    long = (calls.kind == CallKind.OTHER) & (calls.end_ns - calls.start_ns > _LONG_CALL_NS)
    mergeable: Flags = ~(stays | long)
    return mergeable


def _counted(schedule: GpuSchedule) -> Flags:
    """Tell which calls the window's length counts.

    Those up to the last mark: what steps issue after the window's own is not its time. And those of
    lanes that issue work or mark steps: a thread that pins memory or watches goes its own way, and
    its calls would hold the window where it was whatever the others do.
    """
    calls, ops = schedule.calls, schedule.ops
    marks = np.flatnonzero(calls.kind == CallKind.MARK)
    called = np.flatnonzero(calls.kind != CallKind.MARK)
    lanes = calls.lane[np.concatenate((marks, ops.call[ops.call != NONE]))]
    # Marks on a thread that calls nothing stay where they were, whatever the others do.
    counted: Flags = np.isin(calls.lane, lanes) & np.isin(calls.lane, calls.lane[called])
    if len(marks):
        counted[int(marks[-1]) + 1 :] = False
    return counted


def _trailing(schedule: GpuSchedule) -> int:
    """Measure what is left of the window after the last end of anything."""
    ends = (schedule.calls.end_ns[_counted(schedule)], schedule.ops.end_ns)
    last = max(int(e.max(initial=schedule.start_ns)) for e in ends)
    return max(0, schedule.end_ns - last)


def _issue_order(ops: GpuOps, calls: ApiCalls) -> Ints:
    """Give the call that issues each piece of work; without one, the next call in time."""
    following = np.searchsorted(calls.start_ns, ops.start_ns)
    issue: Ints = np.where(ops.call >= 0, ops.call, np.where(ops.carried, 0, following))
    return issue


class _Edges:
    """What held each piece of work, and by how much."""

    def __init__(
        self, ops: GpuOps, calls: ApiCalls, issue: Ints, inside: Flags, start_ns: int
    ) -> None:
        self._ops = ops
        called = ops.call >= 0
        call = np.where(called, ops.call, 0)
        begun = calls.start_ns[call] if len(calls) else np.zeros(len(ops), np.int64)
        ended = calls.end_ns[call] if len(calls) else begun
        self.issued_ns = np.where(inside, begun, ended)
        self.before_end_ns, same_call = _before_in_queue(ops, issue)
        self.first = self.before_end_ns == _NEVER
        group = np.where(inside, 4, ops.kind)
        since_call = ops.start_ns - self.issued_ns
        since_queue = np.where(self.first, 0, ops.start_ns - self.before_end_ns)
        free = called & (self.first | (self.before_end_ns <= self.issued_ns)) & ~same_call
        behind = ~self.first & (
            (self.issued_ns <= self.before_end_ns - _ISSUED_EARLY_NS) | ~called | same_call
        )
        free &= since_call < _LONGEST_LATENCY_NS
        behind &= since_queue < _LONGEST_GAP_NS
        latency = _by_group(group, since_call, free, LATENCY_NS)
        gap = _by_group(same_call.astype(np.int64), since_queue, behind, QUEUE_GAP_NS)
        self.latency_median_ns = int(np.median(since_call[free])) if free.any() else LATENCY_NS
        self.gap_median_ns = int(np.median(since_queue[behind])) if behind.any() else QUEUE_GAP_NS
        gap = np.where(self.first, 0, gap)
        self.typical_latency_ns, self.typical_gap_ns = latency, gap
        by_queue = ~self.first & (self.before_end_ns + gap >= self.issued_ns + latency)
        by_queue |= ~self.first & (~called | same_call)
        self.unexplained_ns: Ints = np.where(by_queue, since_queue - gap, since_call - latency)
        # The edge that held keeps what was measured; the other one must not hold in its place.
        self.latency_ns = np.where(by_queue, np.minimum(latency, since_call), since_call)
        self.queue_gap_ns = np.where(by_queue, since_queue, np.minimum(gap, since_queue))
        self.bound = np.where(inside, int(LatencyBase.CALL_START), int(LatencyBase.CALL_END))
        self._place_without_call(called, start_ns)
        self.late = (self.unexplained_ns > _UNEXPLAINED_NS) & (self.bound != LatencyBase.FIXED)

    def _place_without_call(self, called: Flags, start_ns: int) -> None:
        """Work without a call follows its queue; the first of a queue stays where it was."""
        ops = self._ops
        self.bound[~called] = LatencyBase.QUEUE
        self.bound[~called & self.first] = LatencyBase.FIXED
        for latency in (self.latency_ns, self.typical_latency_ns):
            latency[~called] = np.maximum(ops.start_ns[~called], start_ns)


_NEVER = -(1 << 60)


def _before_in_queue(ops: GpuOps, issue: Ints) -> tuple[Ints, Flags]:
    """Give the end of the work before each in its queue, and whether one call issued both."""
    order = np.lexsort((ops.start_ns, issue, ops.queue))
    queue, end, call = ops.queue[order], ops.end_ns[order], ops.call[order]
    follows = np.concatenate(([False], queue[1:] == queue[:-1]))[: len(order)]
    before = np.where(follows, np.concatenate(([0], end[:-1]))[: len(order)], _NEVER)
    same = follows & (call >= 0) & (np.concatenate(([NONE], call[:-1]))[: len(order)] == call)
    before_end, same_call = np.empty_like(ops.end_ns), np.empty(len(ops), np.bool_)
    before_end[order], same_call[order] = before, same
    return before_end, same_call


def _by_group(group: Ints, values: Ints, seen: Flags, default: int) -> Ints:
    """Give the median of what was seen of each group; of all where a group was never seen."""
    overall = int(np.median(values[seen])) if seen.any() else default
    result = np.full(len(values), overall, np.int64)
    for one in np.unique(group):
        of_group = group == one
        if (of_group & seen).any():
            result[of_group] = int(np.median(values[of_group & seen]))
    return result


def _needs(schedule: GpuSchedule, edges: _Edges) -> tuple[Ints, Ints]:
    """Find the work of other queues that a piece of work waited for."""
    return waits_between_streams(schedule, edges.late)


_MOVABLE = (IdleCause.FRAMEWORK, IdleCause.LAUNCHING)


@dataclass(frozen=True)
class ReplayResult:
    """How long a replayed window took, and when everything ran."""

    total_ns: int
    saved_ns: int
    """Against the replay without any change; below 0 where it became longer."""
    timing: ScheduleTiming


class Replay:
    """A window that can be replayed with changes."""

    def __init__(self, schedule: GpuSchedule, hosts: HostTime) -> None:
        self.schedule = schedule
        self.hosts = hosts
        found = calibrate(schedule)
        self.program: ReplayProgram = found.program.changed(movable_ns=self._movable(found.program))
        """Costs and dependencies as measured."""
        self.launch_latency_ns = found.latency_ns
        """Usual time from the end of a launch call to the beginning of its work."""
        self.queue_gap_ns = found.queue_gap_ns
        """Usual time between pieces of work of one stream."""
        self.measured_ns = schedule.length_ns
        self.unchanged = self._outcome(run_program(self.program), None)
        typical = run_program(found.typical)
        self.typical_ns = typical.end_ns - typical.start_ns
        """Length when every latency, gap and tail is the usual one."""

    @property
    def error(self) -> float:
        """How far the replay with usual latencies misses what was measured, as a part of it."""
        return abs(self.typical_ns - self.measured_ns) / max(1, self.measured_ns)

    def run(self, *changes: Change) -> ReplayResult:
        """Replay the window with these changes, one applied after the other."""
        program = self.program
        for change in changes:
            program = change(program)
        return self._outcome(run_program(program), self.unchanged)

    def hosts_of(self, outcome: ReplayResult) -> HostTime:
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

    def _outcome(self, timing: ScheduleTiming, unchanged: ReplayResult | None) -> ReplayResult:
        total = timing.end_ns - timing.start_ns
        saved = 0 if unchanged is None else unchanged.total_ns - total
        return ReplayResult(total, saved, timing)

    def _movable(self, program: ReplayProgram) -> Ints:
        """Measure the part of the gap before each call that is the framework's or launching."""
        calls = self.schedule.calls
        gap = np.maximum(program.gap_ns, 0)
        spent = self.hosts.spent(calls.lane, calls.start_ns - gap, calls.start_ns)
        movable: Ints = spent[:, list(_MOVABLE)].sum(axis=1)
        return movable
