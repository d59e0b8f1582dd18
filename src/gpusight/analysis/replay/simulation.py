"""A window as a program of calls and GPU activities with costs and waits, and its simulation."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gpusight.analysis.gpu_schedule import NONE, ScheduleTiming
from gpusight.core import native

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.trace.intervals import Flags, Ints, Reals


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
    inside: Reals
    """Part of its measured duration that lies in the window."""
    latency_base: Ints
    """`LatencyBase`."""
    latency_ns: Ints
    stream_gap_ns: Ints
    needs: Ints
    needs_gap_ns: Ints
    removed: Flags
    """Activities that a change removed."""

    trailing_ns: int
    """Time from the last end of anything to the end of the window."""
    counted: Flags
    """Calls whose ends count for the window's length."""
    gpu_share: float = 1.0
    """Share of the GPU's time that is left for this program: other processes keep the rest."""

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
    """Simulate a program: compute when every call and every GPU activity starts and ends."""
    compiled = native.replay(
        (
            *(program.host_thread, program.gap_ns, program.own_ns, program.wait, program.target),
            *(program.tail_ns, program.after_op, program.after_ns),
        ),
        (
            *(np.argsort(program.call, kind="stable"), program.call, program.stream),
            *(program.stream_gap_ns, program.duration_ns, program.needs, program.needs_gap_ns),
            *(program.latency_base, program.latency_ns),
        ),
        program.removed,
        program.start_ns,
        _streams_of_devices(program),
    )
    call_start, call_end, op_start, op_end = _simulated(program) if compiled is None else compiled
    last_ns = max(
        int(call_end[program.counted].max(initial=program.start_ns)),
        int(op_end[~program.removed].max(initial=program.start_ns)),
    )
    end_ns = last_ns + program.trailing_ns
    return ScheduleTiming(op_start, op_end, call_start, call_end, program.start_ns, end_ns)


def _streams_of_devices(program: ReplayProgram) -> tuple[Ints, Ints]:
    """Return the streams of every GPU, as pairs."""
    streams = int(program.stream.max(initial=-1)) + 1
    pairs = np.unique(program.device * streams + program.stream)
    return pairs // max(streams, 1), pairs % max(streams, 1)


def _simulated(program: ReplayProgram) -> tuple[Ints, Ints, Ints, Ints]:
    """Return starts and ends of calls, then of GPU activities.

    Only calls that wait change the pace of their thread. From one to the next, sums along the
    threads place all calls, and what they issue runs as soon as its stream is free.
    """
    host_ns = _host_time(program)
    waiting = np.flatnonzero((program.wait != CallWait.NOTHING) | (program.after_op != NONE))
    gpu = _GpuStreams(program, host_ns, waits=len(waiting))
    delay_ns = gpu.delay_ns
    thread = program.host_thread[waiting].tolist()
    done_host_ns, own = host_ns[waiting].tolist(), program.own_ns[waiting].tolist()
    after_op, after_ns = program.after_op[waiting].tolist(), program.after_ns[waiting].tolist()
    wait, target = program.wait[waiting].tolist(), program.target[waiting].tolist()
    tail = program.tail_ns[waiting].tolist()
    delays = [0] * len(thread)
    """How late each of these calls started, against the host's own time."""
    left = [0] * len(thread)
    """How late its thread was when it returned."""
    for number, issued in enumerate(gpu.issued_by(waiting)):
        late = delay_ns[thread[number]]
        if after_op[number] >= 0:
            # What the calls before this one issue decides when it starts.
            gpu.issue_until(issued[0])
            starts_ns = gpu.end_of(after_op[number]) + after_ns[number]
            late = max(late, starts_ns + own[number] - done_host_ns[number])
            delay_ns[thread[number]] = late
        gpu.issue_until(issued[1])
        delays[number] = late
        if wait[number]:
            end_ns = gpu.done_ns(wait[number], target[number]) + tail[number]
            late = max(late, end_ns - done_host_ns[number])
            delay_ns[thread[number]] = late
        left[number] = late
    gpu.issue_until(len(program.call))
    call_start, call_end = _call_times(program, host_ns, waiting, delays, left)
    return call_start, call_end, *gpu.times()


def _host_time(program: ReplayProgram) -> Ints:
    """Sum up what calls and their gaps take along each thread, without any wait.

    Returns, for each call, that time up to its end.
    """
    order = np.argsort(program.host_thread, kind="stable")
    cost_ns = (program.gap_ns + program.own_ns)[order]
    total_ns = np.cumsum(cost_ns)
    host_ns = np.empty_like(cost_ns)
    # The sum runs on across threads: what those before took is taken off.
    host_ns[order] = total_ns - (total_ns - cost_ns)[_first_of_thread(program.host_thread[order])]
    return host_ns


def _first_of_thread(thread: Ints) -> Ints:
    """Return for each call, in order of threads, the place of the first of its thread."""
    positions = np.arange(len(thread))
    first: Ints = np.maximum.accumulate(np.where(np.diff(thread, prepend=-1) != 0, positions, 0))
    return first


def _call_times(
    program: ReplayProgram, host_ns: Ints, waiting: Ints, delays: list[int], left: list[int]
) -> tuple[Ints, Ints]:
    """Place calls on the time axis: their host time, and the delay of the last wait before."""
    order = np.argsort(program.host_thread, kind="stable")
    number = np.full(len(order), NONE, np.int64)
    number[waiting] = np.arange(len(waiting))
    positions = np.arange(len(order))
    latest = np.maximum.accumulate(np.where(number[order] != NONE, positions, NONE))
    earlier = np.append(NONE, latest)[: len(order)]
    known = earlier >= _first_of_thread(program.host_thread[order])
    before = np.full(len(order), NONE, np.int64)
    before[order] = np.where(known, number[order][earlier], NONE)
    late = np.append(np.array(left, np.int64), program.start_ns)[before]
    late[waiting] = delays
    call_start = late + host_ns - program.own_ns
    late[waiting] = left
    return call_start, late + host_ns


_DEVICE, _STREAM = int(CallWait.DEVICE), int(CallWait.STREAM)
_SHORT = 48
"""So few activities are simulated one by one: NumPy takes longer than that to begin."""


class _GpuStreams:
    """The streams of all GPUs during a simulation, and when activities issued so far run.

    Activities are numbered in the order in which they are issued.
    """

    def __init__(self, program: ReplayProgram, host_ns: Ints, waits: int) -> None:
        order = np.argsort(program.call, kind="stable")
        self._order = order
        self._call = program.call[order]
        base, removed = program.latency_base[order], program.removed[order]
        after_call = (base == LatencyBase.CALL_END) | (base == LatencyBase.CALL_START)
        # A latency counted from the start of a call is one from its end, less what the call takes.
        own_ns = np.append(program.own_ns, 0)[self._call]
        earliest = program.latency_ns[order] - np.where(base == LatencyBase.CALL_START, own_ns, 0)
        earliest = np.where(base == LatencyBase.STREAM, program.start_ns, earliest)
        earliest = earliest + np.where(after_call, np.append(host_ns, 0)[self._call], 0)
        # What is removed starts and ends where its stream is.
        self._earliest_ns = np.where(removed, _NEVER_NS, earliest)
        """From the delay of the thread, where that counts; else a time."""
        threads = int(program.host_thread.max(initial=-1)) + 1
        self.delay_ns = [program.start_ns] * threads + [0]
        """How late each thread is; the last one is for activities that no call holds."""
        thread = np.append(program.host_thread, threads)[self._call]
        self._thread = np.where(after_call & ~removed, thread, threads)
        self._stream = program.stream[order]
        self._gap_ns = np.where(removed, 0, program.stream_gap_ns[order])
        self._duration_ns = np.where(removed, 0, program.duration_ns[order])
        needs = np.where(removed, NONE, program.needs[order])
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        self._position = position
        self._needs = np.where(needs >= 0, position[needs], NONE)
        self._needs_gap_ns = program.needs_gap_ns[order]
        self._needing = np.append(0, np.cumsum(needs >= 0))
        self._start_ns, self._end_ns = [0] * len(order), [0] * len(order)
        self._columns: list[Any] = [
            *(self._stream, self._gap_ns, self._earliest_ns, self._thread, self._duration_ns),
            *(self._needs, self._needs_gap_ns),
        ]
        """For the simulation one by one; reading single elements is several times faster in lists
        than in arrays."""
        self._as_lists = waits * _SHORT > len(order)
        if self._as_lists:
            self._columns = [column.tolist() for column in self._columns]
        self._stream_end_ns = [program.start_ns] * (int(program.stream.max(initial=-1)) + 1)
        self._device_streams: dict[int, list[int]] = {}
        for device, stream in zip(*_streams_of_devices(program), strict=True):
            self._device_streams.setdefault(int(device), []).append(int(stream))
        self._next = 0

    def issued_by(self, calls: Ints) -> list[tuple[int, int]]:
        """Return how many activities were issued before each of these calls, and with it."""
        before, after = (np.searchsorted(self._call, calls, side).tolist() for side in _SIDES)
        return list(zip(before, after, strict=True))

    def end_of(self, op: int) -> int:
        """Return when an activity ends; 0 where it was not issued yet."""
        end_ns: int = self._end_ns[self._position[op]]
        return end_ns

    def issue_until(self, last: int) -> None:
        """Let activities up to this number start as soon as they can."""
        first, self._next = self._next, last
        if first == last:
            return
        if last - first < _SHORT or self._needing[last] > self._needing[first]:
            self._issue_one_by_one(first, last)
            return
        part = slice(first, last)
        delay_ns = np.array(self.delay_ns, np.int64)[self._thread[part]]
        ready_ns = self._earliest_ns[part] + delay_ns
        stream, gap_ns = self._stream[part], self._gap_ns[part]
        duration_ns, end_ns = self._duration_ns[part], np.empty_like(ready_ns)
        for number in np.unique(stream).tolist():
            rows = np.flatnonzero(stream == number)
            end_ns[rows] = _run_in_turn(
                self._stream_end_ns[number], gap_ns[rows], ready_ns[rows], duration_ns[rows]
            )
            self._stream_end_ns[number] = int(end_ns[rows[-1]])
        self._start_ns[part], self._end_ns[part] = (end_ns - duration_ns).tolist(), end_ns.tolist()

    def _issue_one_by_one(self, first: int, last: int) -> None:
        columns, offset = self._columns, 0
        if not self._as_lists:
            columns, offset = [column[first:last].tolist() for column in columns], first
        streams, gap_ns, earliest_ns, thread, duration_ns, needs, needs_gap_ns = columns
        stream_end_ns, delay_ns, end_ns = self._stream_end_ns, self.delay_ns, self._end_ns
        for at in range(first - offset, last - offset):
            stream = streams[at]
            start = stream_end_ns[stream] + gap_ns[at]
            ready = earliest_ns[at] + delay_ns[thread[at]]
            if ready > start:
                start = ready
            if needs[at] >= 0:
                start = max(start, end_ns[needs[at]] + needs_gap_ns[at])
            self._start_ns[at + offset] = start
            end_ns[at + offset] = stream_end_ns[stream] = start + duration_ns[at]

    def done_ns(self, wait: int, target: int) -> int:
        """Return when that which a call waits for has ended."""
        if wait == _DEVICE:
            return max(self._stream_end_ns[stream] for stream in self._device_streams[target])
        return self._stream_end_ns[target] if wait == _STREAM else self.end_of(target)

    def times(self) -> tuple[Ints, Ints]:
        """Return when activities start and end, by position in `GpuSchedule.ops`."""
        start_ns, end_ns = np.array(self._start_ns, np.int64), np.array(self._end_ns, np.int64)
        return start_ns[self._position], end_ns[self._position]


def _run_in_turn(free_ns: int, gap_ns: Ints, ready_ns: Ints, duration_ns: Ints) -> Ints:
    """Return when the activities of one stream end, which is free from a time on.

    Each starts when it is ready and the gap after the one before it is over. Less the sum of gaps
    and durations so far, these ends are a running maximum.
    """
    spent_ns = np.cumsum(gap_ns + duration_ns)
    slack_ns = ready_ns + duration_ns - spent_ns
    slack_ns[0] = max(slack_ns[0], free_ns)
    ends: Ints = np.maximum.accumulate(slack_ns) + spent_ns
    return ends


_SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")
_NEVER_NS = -(1 << 60)
"""Before any time."""


def owners(program: ReplayProgram) -> Ints:
    """Return for each call the next one of its thread with an effect, itself included; or `NONE`.

    What the host does before small calls, such as queries, it does for that one.
    """
    n = len(program.gap_ns)
    acts = (program.wait != CallWait.NOTHING) | ~program.mergeable
    acts[program.call[program.call < n]] = True
    order = np.argsort(program.host_thread, kind="stable")
    at = np.where(acts[order], np.arange(n), n)
    following = np.minimum.accumulate(at[::-1])[::-1]
    next_acting = np.append(order, NONE)[following]
    same = (next_acting >= 0) & (program.host_thread[next_acting] == program.host_thread[order])
    owner = np.full(n, NONE, np.int64)
    owner[order[same]] = next_acting[same]
    return owner
