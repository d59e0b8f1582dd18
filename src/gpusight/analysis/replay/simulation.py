"""A window as a program of calls and GPU activities with costs and waits, and its simulation."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpusight.analysis.gpu_schedule import NONE, ScheduleTiming

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.trace.intervals import Ints

    Flags = NDArray[np.bool_]


class CallWait(enum.IntEnum):
    """What a call waits for before it returns."""

    NOTHING = 0
    DEVICE = 1
    """What was issued so far on the GPU that `ReplayProgram.target` names."""
    STREAM = 2
    """What was issued so far on the stream that `ReplayProgram.target` names."""
    OP = 3
    """The GPU activity that `ReplayProgram.target` names."""


class LatencyBase(enum.IntEnum):
    """What the launch latency of a GPU activity is counted from."""

    CALL_END = 0
    CALL_START = 1
    FIXED = 2
    """It starts at its measured time, whatever happens: it was issued before the window."""
    STREAM = 3
    """No call is known: only the order of its stream holds it."""


@dataclass(frozen=True)
class ReplayProgram:
    """Costs and dependencies; arrays by position in `GpuSchedule.calls` and `GpuSchedule.ops`.

    A call starts `gap_ns` after the one before it on its host thread, and not before the activity
    `after_op` has ended; it ends after `own_ns`, and not before what it waits for has ended and
    `tail_ns` have passed. A GPU activity starts `latency_ns` after its call, `stream_gap_ns` after
    the one before it in its stream and `needs_gap_ns` after the one it depends on.
    """

    start_ns: int
    end_ns: int
    """Measured end of the window."""

    host_thread: Ints
    """`ApiCalls.host_thread`: threads that hand work to each other and wait for it count as one."""
    gap_ns: Ints
    movable_ns: Ints
    """Part of the gap that is work of the framework or of launching: it goes when launches do."""
    own_ns: Ints
    mergeable: Flags
    """A call that goes when what it launches does: no allocation, no loading of code."""
    mark: Flags
    """No call: a step starts or ends there."""
    wait: Ints
    """`CallWait`."""
    target: Ints
    tail_ns: Ints
    after_op: Ints
    after_ns: Ints

    call: Ints
    """Position of the call that issues an activity; for one without a call, of the next call."""
    stream: Ints
    """`GpuOps.stream_id`: unlike stream numbers of CUDA, unique across processes and contexts."""
    device: Ints
    engine: Ints
    """Copy engine of its GPU and direction, one copy at a time; `NONE` for what is no copy."""
    duration_ns: Ints
    inside: NDArray[np.float64]
    """Part of its measured duration that lies in the window."""
    latency_base: Ints
    """`LatencyBase`."""
    latency_ns: Ints
    stream_gap_ns: Ints
    needs: Ints
    needs_gap_ns: Ints
    gone: Flags
    """Activities that a change removed."""

    trailing_ns: int
    """Time from the last end of anything to the end of the window."""
    counted: Flags
    """Calls whose ends count for the window's length."""

    def changed(self, **arrays: NDArray[np.generic]) -> ReplayProgram:
        """Return a program that differs in these arrays."""
        return replace(self, **arrays)  # type: ignore[arg-type]


def put(values: Ints, where: Ints, new: Ints | int) -> Ints:
    """Return a copy of an array with some values changed."""
    changed = values.copy()
    changed[where] = new
    return changed


def marked(flags: Flags, where: Ints) -> Flags:
    """Return a copy of flags with some of them set."""
    changed = flags.copy()
    changed[where] = True
    return changed


def run_program(program: ReplayProgram) -> ScheduleTiming:
    """Simulate a program: compute when every call and every GPU activity starts and ends.

    Only calls that issue or wait for GPU activities need the simulation. The others take their time
    on the host, so a sum along their thread places them.
    """
    simulated = (program.wait != CallWait.NOTHING) | (program.after_op != NONE)
    simulated[program.call[program.call < len(simulated)]] = True
    host_ns, previous = _host_time(program, simulated)
    # The calls in between count for the gap before the next simulated one.
    gap_ns = host_ns - program.own_ns - np.where(previous == NONE, 0, host_ns[previous])
    call_start, call_end, gpu = _simulate(program, np.flatnonzero(simulated), gap_ns)
    rest = np.flatnonzero(~simulated)
    before = previous[rest]
    since = np.where(before == NONE, program.start_ns, call_end[before] - host_ns[before])
    call_end[rest] = since + host_ns[rest]
    call_start[rest] = call_end[rest] - program.own_ns[rest]
    op_start, op_end = np.array(gpu.op_start_ns, np.int64), np.array(gpu.op_end_ns, np.int64)
    last_ns = max(
        int(call_end[program.counted].max(initial=program.start_ns)),
        int(op_end[~program.gone].max(initial=program.start_ns)),
    )
    end_ns = last_ns + program.trailing_ns
    return ScheduleTiming(op_start, op_end, call_start, call_end, program.start_ns, end_ns)


def _host_time(program: ReplayProgram, simulated: Flags) -> tuple[Ints, Ints]:
    """Sum up what calls and their gaps take along each thread, without any wait.

    Returns, for each call, that time up to its end, and the simulated call before it on its thread
    (`NONE` for the first).
    """
    order = np.argsort(program.host_thread, kind="stable")
    thread = program.host_thread[order]
    place = np.arange(len(order))
    first = np.maximum.accumulate(np.where(np.diff(thread, prepend=-1) != 0, place, 0))
    cost_ns = (program.gap_ns + program.own_ns)[order]
    total_ns = np.cumsum(cost_ns)
    host_ns, previous = np.empty_like(cost_ns), np.empty_like(order)
    # The sum runs on across threads: what those before took is taken off.
    host_ns[order] = total_ns - (total_ns - cost_ns)[first]
    latest = np.maximum.accumulate(np.where(simulated[order], place, NONE))
    earlier = np.append(NONE, latest)[: len(order)]
    previous[order] = np.where(earlier >= first, order[earlier], NONE)
    return host_ns, previous


def _simulate(program: ReplayProgram, calls: Ints, gap_ns: Ints) -> tuple[Ints, Ints, _GpuStreams]:
    """Go through these calls in order; the GPU activities that they issue start when they can."""
    gpu = _GpuStreams(program)
    issue_order = np.argsort(program.call, kind="stable")
    # Calls issue slices of this list one after the other.
    ops: list[int] = issue_order.tolist()
    issued = np.searchsorted(program.call[issue_order], calls, side="right").tolist()
    thread_end = [program.start_ns] * (int(program.host_thread.max(initial=-1)) + 1)
    call_start, call_end = [0] * len(gap_ns), [0] * len(gap_ns)
    # Reading single elements is several times faster in lists than in arrays.
    host_thread, gap, own = program.host_thread.tolist(), gap_ns.tolist(), program.own_ns.tolist()
    after_op, after_ns = program.after_op.tolist(), program.after_ns.tolist()
    wait, target, tail = program.wait.tolist(), program.target.tolist(), program.tail_ns.tolist()
    first = 0
    for call, last in zip(calls.tolist(), issued, strict=True):
        thread = host_thread[call]
        start = thread_end[thread] + gap[call]
        if after_op[call] >= 0:
            start = max(start, gpu.op_end_ns[after_op[call]] + after_ns[call])
        end = start + own[call]
        if first < last:
            gpu.issue(ops[first:last], end)
            first = last
        if wait[call]:
            end = max(end, gpu.done_ns(wait[call], target[call]) + tail[call])
        call_start[call] = start
        call_end[call] = thread_end[thread] = end
    gpu.issue(ops[first:], program.start_ns)
    return np.array(call_start, np.int64), np.array(call_end, np.int64), gpu


_DEVICE, _STREAM = int(CallWait.DEVICE), int(CallWait.STREAM)


class _GpuStreams:
    """The streams of all GPUs during a simulation, and when activities issued so far run."""

    def __init__(self, program: ReplayProgram) -> None:
        base = program.latency_base
        after_call = (base == LatencyBase.CALL_END) | (base == LatencyBase.CALL_START)
        # A latency counted from the start of a call is one from its end, less what the call takes.
        own_ns = np.append(program.own_ns, 0)[program.call]
        earliest = program.latency_ns - np.where(base == LatencyBase.CALL_START, own_ns, 0)
        earliest = np.where(base == LatencyBase.STREAM, program.start_ns, earliest)
        self.op_start_ns, self.op_end_ns = [0] * len(base), [0] * len(base)
        self._stream_end_ns = [program.start_ns] * (int(program.stream.max(initial=-1)) + 1)
        self._device_streams: dict[int, list[int]] = {}
        for device in np.unique(program.device).tolist():
            streams = np.unique(program.stream[program.device == device])
            self._device_streams[device] = streams.tolist()
        self._stream: list[int] = program.stream.tolist()
        self._gap_ns: list[int] = program.stream_gap_ns.tolist()
        self._after_call: list[bool] = after_call.tolist()
        self._earliest_ns: list[int] = earliest.tolist()
        """From the end of the call where `_after_call`, else a time."""
        self._needs: list[int] = program.needs.tolist()
        self._needs_gap_ns: list[int] = program.needs_gap_ns.tolist()
        self._duration_ns: list[int] = program.duration_ns.tolist()
        self._gone: list[bool] = program.gone.tolist()

    def issue(self, ops: list[int], call_end_ns: int) -> None:
        """Let activities start as soon as they can, once the call that issues them has ended."""
        op_end_ns, stream_end_ns = self.op_end_ns, self._stream_end_ns
        for op in ops:
            stream = self._stream[op]
            if self._gone[op]:
                self.op_start_ns[op] = op_end_ns[op] = stream_end_ns[stream]
                continue
            start = stream_end_ns[stream] + self._gap_ns[op]
            launched = self._earliest_ns[op]
            if self._after_call[op]:
                launched += call_end_ns
            if launched > start:
                start = launched
            needs = self._needs[op]
            if needs >= 0:
                start = max(start, op_end_ns[needs] + self._needs_gap_ns[op])
            self.op_start_ns[op] = start
            op_end_ns[op] = stream_end_ns[stream] = start + self._duration_ns[op]

    def done_ns(self, wait: int, target: int) -> int:
        """Return when that which a call waits for has ended."""
        if wait == _DEVICE:
            return max(self._stream_end_ns[stream] for stream in self._device_streams[target])
        return self._stream_end_ns[target] if wait == _STREAM else self.op_end_ns[target]
