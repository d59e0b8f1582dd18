"""Calibrates a program from a schedule, and replays it with changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpusight.analysis.gpu_schedule import NONE, CallKind, OpKind
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.replay.changes import GraphLaunches
from gpusight.analysis.replay.schedule_waits import (
    AT_ONCE_NS,
    NEVER,
    CallWaits,
    waits_between_streams,
)
from gpusight.analysis.replay.simulation import LatencyBase, ReplayProgram, put, run_program
from gpusight.trace.intervals import Intervals, intersect

if TYPE_CHECKING:
    from gpusight.analysis.gpu_schedule import ApiCalls, GpuOps, GpuSchedule, ScheduleTiming
    from gpusight.analysis.ledger.host_threads import HostTime
    from gpusight.analysis.replay.changes import Change
    from gpusight.trace.intervals import Flags, Ints


LATENCY_NS = 2_000
"""Launch latency where the capture shows none."""
STREAM_GAP_NS = 1_200
"""Gap between activities of a stream where the capture shows none."""
SLICE_SHARE = 0.5
"""Share of the GPU that a process gets while another one has work: the driver alternates."""
_MAX_LATENCY_NS = 100_000
_MAX_GAP_NS = 20_000
"""What takes longer than these has another reason than the launch or the stream: where most
activities wait for something, the median must not take that for usual."""
_UNEXPLAINED_NS = 10_000
"""Activities that start this much later than launch and stream allow waited for something."""
_LONG_CALL_NS = 50_000
"""Calls without a name of their own that take this long do more than prepare a launch."""
_ISSUED_EARLY_NS = 2_000
"""What was issued this long before the activity ahead of it ended did not wait for its launch."""


@dataclass(frozen=True)
class ReplayCalibration:
    """A program, and the medians that it was made with."""

    program: ReplayProgram
    typical: ReplayProgram
    """The same with a median for every latency, gap and tail."""
    latency_ns: int
    stream_gap_ns: int


def calibrate(schedule: GpuSchedule) -> ReplayCalibration:
    """Derive a program from a schedule."""
    ops, calls = schedule.ops, schedule.calls
    start_ns, end_ns = schedule.start_ns, schedule.end_ns
    waits = CallWaits(schedule)
    # Without a call of its own, an activity comes with the next call in time.
    following = np.searchsorted(calls.start_ns, ops.start_ns)
    issue = np.where(ops.call >= 0, ops.call, np.where(ops.carried, 0, following))
    issue = _no_later_than_followers(ops, issue)
    starts = _StartReasons(ops, calls, issue, waits.inside, start_ns)
    needs, needs_gap = waits_between_streams(schedule, starts.late)
    duration = np.clip(ops.end_ns, start_ns, end_ns) - np.clip(ops.start_ns, start_ns, end_ns)
    counted = _counted(schedule)
    last_ns = max(
        int(calls.end_ns[counted].max(initial=start_ns)), int(ops.end_ns.max(initial=start_ns))
    )
    # What waited for another activity has the usual latency: the wait is on another edge.
    held = (needs >= 0) & (ops.start_ns - ops.end_ns[needs] <= AT_ONCE_NS)
    waited = np.flatnonzero(held & starts.late)
    latency = np.minimum(starts.latency_ns[waited], LATENCY_NS)
    gap = np.minimum(starts.stream_gap_ns[waited], STREAM_GAP_NS)
    program = ReplayProgram(
        start_ns=start_ns,
        end_ns=end_ns,
        host_thread=calls.host_thread,
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
        stream=ops.stream_id,
        device=ops.device,
        engine=_copy_engines(schedule),
        duration_ns=duration,
        inside=duration / np.maximum(ops.end_ns - ops.start_ns, 1),
        latency_base=starts.latency_base,
        latency_ns=put(starts.latency_ns, waited, latency),
        stream_gap_ns=put(starts.stream_gap_ns, waited, gap),
        needs=needs,
        needs_gap_ns=needs_gap,
        removed=np.zeros(len(ops), np.bool_),
        trailing_ns=max(0, end_ns - last_ns),
        counted=counted,
    )
    typical = program.changed(
        latency_ns=starts.typical_latency_ns,
        stream_gap_ns=starts.typical_gap_ns,
        tail_ns=waits.typical_tail_ns(),
        needs_gap_ns=np.where(needs >= 0, starts.gap_median_ns, 0),
    )
    return ReplayCalibration(program, typical, starts.latency_median_ns, starts.gap_median_ns)


def _no_later_than_followers(ops: GpuOps, issue: Ints) -> Ints:
    """Issue activities without a call no later than what comes after them in their stream.

    The host may be hundreds of launches ahead: what was launched before the recording still runs
    when calls of the recording have launched what is behind it.
    """
    order = np.lexsort((ops.start_ns, ops.stream_id))[::-1]
    unknown = (ops.call[order] < 0) & ~ops.carried[order]
    if not unknown.any():
        return issue
    last = len(issue) + int(issue.max(initial=0)) + 1
    called = np.where(unknown, last, issue[order])
    # Streams lie one after the other: each is lowered, so that its minimum begins anew.
    stream = np.cumsum(np.diff(ops.stream_id[order], prepend=-1) != 0)
    earliest = np.minimum.accumulate(called - stream * (last + 1)) + stream * (last + 1)
    limited = issue.copy()
    limited[order] = np.where(unknown, np.minimum(issue[order], earliest), issue[order])
    return limited


def _copy_engines(schedule: GpuSchedule) -> Ints:
    """Number the copy engines: one for each GPU and direction."""
    ops = schedule.ops
    engine = np.full(len(ops), NONE, np.int64)
    copies = np.flatnonzero(ops.kind == OpKind.COPY)
    if len(copies):
        kind = schedule.trace.table("copies", ["kind"])["kind"].to_physical().to_numpy()
        directions = np.stack((ops.device[copies], kind[ops.row[copies]].astype(np.int64)))
        engine[copies] = np.unique(directions, axis=1, return_inverse=True)[1].reshape(-1)
    return engine


_STAYING = (CallKind.ALLOCATE, CallKind.FREE, CallKind.SYNC, CallKind.GRAPH)


def _mergeable(calls: ApiCalls) -> Flags:
    """Return which calls launch, or take too little to be anything else."""
    stays = np.isin(calls.kind, _STAYING)
    long = (calls.kind == CallKind.OTHER) & (calls.end_ns - calls.start_ns > _LONG_CALL_NS)
    mergeable: Flags = ~(stays | long)
    return mergeable


def _counted(schedule: GpuSchedule) -> Flags:
    """Return which calls the window's length counts.

    Those up to the last mark: what steps issue after the window's own is not its time. And those of
    threads that issue GPU activities or mark steps: a thread that pins memory or watches goes its
    own way, and its calls would hold the window where it was whatever the others do.
    """
    calls, ops = schedule.calls, schedule.ops
    marks = np.flatnonzero(calls.kind == CallKind.MARK)
    called = np.flatnonzero(calls.kind != CallKind.MARK)
    threads = calls.host_thread[np.concatenate((marks, ops.call[ops.call != NONE]))]
    # Marks on a thread that calls nothing stay where they were, whatever the others do.
    counted: Flags = np.isin(calls.host_thread, threads) & np.isin(
        calls.host_thread, calls.host_thread[called]
    )
    if len(marks):
        last = int(marks[-1])
        # A last step that ends with its GPU work ends with it in a replay too.
        counted[last] &= calls.start_ns[last] != ops.end_ns.max(initial=NEVER)
        counted[last + 1 :] = False
    return counted


class _StartReasons:
    """What held each GPU activity, its launch or its stream, and by how much.

    `inside` are those that ran while their call did: their latency counts from the call's start.
    """

    def __init__(
        self, ops: GpuOps, calls: ApiCalls, issue: Ints, inside: Flags, start_ns: int
    ) -> None:
        called = ops.call >= 0
        call = np.where(called, ops.call, 0)
        call_start = calls.start_ns[call] if len(calls) else np.zeros(len(ops), np.int64)
        call_end = calls.end_ns[call] if len(calls) else call_start
        issued_ns = np.where(inside, call_start, call_end)
        before_end_ns, same_call = _before_in_stream(ops, issue)
        first = before_end_ns == NEVER
        since_call = ops.start_ns - issued_ns
        since_stream = np.where(first, 0, ops.start_ns - before_end_ns)
        by_launch = called & (first | (before_end_ns <= issued_ns)) & ~same_call
        by_launch &= since_call < _MAX_LATENCY_NS
        behind = ~first & ((issued_ns <= before_end_ns - _ISSUED_EARLY_NS) | ~called | same_call)
        behind &= since_stream < _MAX_GAP_NS
        self.latency_median_ns = _median(since_call[by_launch], LATENCY_NS)
        self.gap_median_ns = _median(since_stream[behind], STREAM_GAP_NS)
        kind = np.where(inside, len(OpKind), ops.kind)
        latency = _group_medians(kind, since_call, by_launch, self.latency_median_ns)
        gap = _group_medians(same_call, since_stream, behind, self.gap_median_ns)
        gap = np.where(first, 0, gap)
        by_stream = ~first & ((before_end_ns + gap >= issued_ns + latency) | ~called | same_call)
        unexplained_ns = np.where(by_stream, since_stream - gap, since_call - latency)
        # The edge that held keeps what was measured; the other one must not hold in its place.
        self.latency_ns = np.where(by_stream, np.minimum(latency, since_call), since_call)
        self.stream_gap_ns = np.where(by_stream, since_stream, np.minimum(gap, since_stream))
        self.typical_latency_ns, self.typical_gap_ns = latency, gap
        self.latency_base = np.where(inside, LatencyBase.CALL_START, LatencyBase.CALL_END)
        # Without a call, activities follow their stream; the first of a stream stays where it was.
        self.latency_base[~called] = LatencyBase.STREAM
        self.latency_base[~called & first] = LatencyBase.FIXED
        for measured in (self.latency_ns, self.typical_latency_ns):
            measured[~called] = np.maximum(ops.start_ns[~called], start_ns)
        self.late = (unexplained_ns > _UNEXPLAINED_NS) & (self.latency_base != LatencyBase.FIXED)


def _before_in_stream(ops: GpuOps, issue: Ints) -> tuple[Ints, Flags]:
    """Return the end of the activity before each in its stream, and whether one call issued both.

    `NEVER` for the first of a stream.
    """
    order = np.lexsort((ops.start_ns, issue, ops.stream_id))
    before_end, same_call = np.full(len(ops), NEVER, np.int64), np.zeros(len(ops), np.bool_)
    before, after = order[:-1], order[1:]
    follows = ops.stream_id[before] == ops.stream_id[after]
    before, after = before[follows], after[follows]
    before_end[after] = ops.end_ns[before]
    same_call[after] = (ops.call[after] >= 0) & (ops.call[before] == ops.call[after])
    return before_end, same_call


def _median(values: Ints, default: int) -> int:
    return int(np.median(values)) if len(values) else default


def _group_medians(group: Ints | Flags, values: Ints, observed: Flags, overall: int) -> Ints:
    """Return for each value the median of those seen of its group; `overall` where none was."""
    medians = np.full(len(values), overall, np.int64)
    for number in np.unique(group):
        members = group == number
        medians[members] = _median(values[members & observed], overall)
    return medians


@dataclass(frozen=True)
class ReplayResult:
    """How long a replayed window took, and when everything ran."""

    total_ns: int
    saved_ns: int
    """Against the replay without any change; below 0 where it became longer."""
    timing: ScheduleTiming


@dataclass(frozen=True)
class GpuSharing:
    """What other processes do on the GPU, and go on doing whatever changes in this one."""

    device: int
    others_share: float
    """Share of the window in which the GPU works for others."""
    own_share: float
    """Share of this program's GPU time in which the GPU works for it: in the rest, time slices of
    others interrupt its kernels."""

    @classmethod
    def of(cls, device: int, own: Intervals, others: Intervals, length_ns: int) -> GpuSharing:
        """Measure how processes share a GPU whose driver alternates between them."""
        sliced_ns = (1 - SLICE_SHARE) * intersect(own, others).length_ns
        return cls(
            device,
            (others.length_ns - sliced_ns) / max(1, length_ns),
            1 - sliced_ns / max(1, own.length_ns),
        )

    @property
    def gpu_share(self) -> float:
        """Share of the GPU that is left: no less than a process gets when all always have work."""
        return 1 - min(self.others_share, 1 - SLICE_SHARE)


def alone_on_gpu(program: ReplayProgram) -> ReplayProgram:
    """Change: no other process uses the GPU."""
    return replace(program, gpu_share=1.0)


class Replay:
    """A window that can be replayed with changes."""

    def __init__(
        self, schedule: GpuSchedule, hosts: HostTime, sharing: GpuSharing | None = None
    ) -> None:
        self.schedule = schedule
        self.hosts = hosts
        self.sharing = sharing
        calibration = calibrate(schedule)
        calls, program = schedule.calls, calibration.program
        gap_ns = np.maximum(program.gap_ns, 0)
        in_gap = hosts.spent(calls.host_thread, calls.start_ns - gap_ns, calls.start_ns)
        movable_ns = in_gap[:, [IdleCause.FRAMEWORK, IdleCause.LAUNCHING]].sum(axis=1)
        self.program: ReplayProgram = replace(
            program,
            movable_ns=movable_ns,
            gpu_share=1.0 if sharing is None else sharing.gpu_share,
        )
        """Costs and dependencies as measured."""
        self.launch_latency_ns = calibration.latency_ns
        """Usual time from the end of a launch call to the start of its activity."""
        self.stream_gap_ns = calibration.stream_gap_ns
        """Usual time between activities of one stream."""
        self.measured_ns = schedule.length_ns
        timing = run_program(self.program)
        self.unchanged = ReplayResult(timing.end_ns - timing.start_ns, 0, timing)
        typical = run_program(calibration.typical)
        self.typical_ns = typical.end_ns - typical.start_ns
        """Length when every latency, gap and tail is the usual one."""

    @property
    def error(self) -> float:
        """How far the replay with usual latencies misses what was measured, as a part of it."""
        return abs(self.typical_ns - self.measured_ns) / max(1, self.measured_ns)

    def run(self, *changes: Change) -> ReplayResult:
        """Replay the window with these changes, one applied after the other, graphs last."""
        program = self.program
        for change in sorted(changes, key=lambda change: isinstance(change, GraphLaunches)):
            program = change(program)
        timing = run_program(program)
        total_ns = timing.end_ns - timing.start_ns
        if self.sharing is not None and program.gpu_share < 1:
            # Other processes keep their share of the GPU, however close own kernels follow.
            alone_ns = self._busy_ns(timing, self.sharing.device) * self.sharing.own_share
            total_ns = max(total_ns, round(alone_ns / program.gpu_share))
            timing = replace(timing, end_ns=timing.start_ns + total_ns)
        return ReplayResult(total_ns, self.unchanged.total_ns - total_ns, timing)

    def _busy_ns(self, timing: ScheduleTiming, device: int) -> int:
        ops = np.flatnonzero(self.schedule.ops.device == device)
        return Intervals.from_arrays(timing.op_start_ns[ops], timing.op_end_ns[ops]).length_ns

    def busy_ns(self, result: ReplayResult) -> int:
        """Return how long the GPU with most work was busy in a replay."""
        devices = np.unique(self.schedule.ops.device).tolist()
        return max((self._busy_ns(result.timing, device) for device in devices), default=0)

    def hosts_of(self, result: ReplayResult) -> HostTime:
        """Return what the host did at every instant of a replay."""
        calls, timing = self.schedule.calls, result.timing
        order = np.argsort(calls.host_thread, kind="stable")
        thread = np.repeat(calls.host_thread[order], 2)
        before, after = (
            np.stack((start[order], end[order]), axis=1).reshape(-1)
            for start, end in (
                (calls.start_ns, calls.end_ns),
                (timing.call_start_ns, timing.call_end_ns),
            )
        )
        # Each thread starts with the window.
        _, first = np.unique(thread, return_index=True)
        start_ns = self.schedule.start_ns
        return self.hosts.moved(
            np.insert(thread, first, thread[first]),
            np.insert(before, first, start_ns),
            np.insert(after, first, start_ns),
        )
