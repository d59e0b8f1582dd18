"""A window as a program of calls and GPU work with costs and waits, and its simulation."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from gpusight.analysis.gpu_schedule import NONE, ScheduleTiming

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gpusight.trace.intervals import Ints

    Flags = NDArray[np.bool_]


class CallWait(enum.IntEnum):
    """What a call waits for before it returns."""

    NOTHING = 0
    DEVICE = 1
    """What was issued so far on the GPU that `ReplayProgram.target` names."""
    QUEUE = 2
    """What was issued so far on the queue that `ReplayProgram.target` names."""
    OP = 3
    """The piece of work that `ReplayProgram.target` names."""


class LatencyBase(enum.IntEnum):
    """From where the launch latency of a piece of work is counted."""

    CALL_END = 0
    CALL_START = 1
    FIXED = 2
    """It began at its measured time, whatever happens: it was issued before the window."""
    QUEUE = 3
    """No call is known: only the order of its queue holds it."""


@dataclass(frozen=True)
class ReplayProgram:
    """Costs and dependencies; arrays by position in `GpuSchedule.calls` and `GpuSchedule.ops`.

    A call begins `gap_ns` after the one before it in its lane, not before the work `after_op` has
    ended; it ends after `own_ns`, not before what it waits for has ended and `tail_ns` have passed.
    Work begins `latency_ns` after its call, `queue_gap_ns` after the work before it in its queue
    and `needs_gap_ns` after the work it depends on.
    """

    start_ns: int
    end_ns: int
    """Measured end of the window."""

    lane: Ints
    gap_ns: Ints
    movable_ns: Ints
    """Part of the gap that is work of the framework or of launching: it goes when launches do."""
    own_ns: Ints
    mergeable: Flags
    """A call that goes when what it launches does: no allocation, no loading of code."""
    mark: Flags
    """No call: a step begins or ends there."""
    wait: Ints
    """`CallWait`."""
    target: Ints
    tail_ns: Ints
    after_op: Ints
    after_ns: Ints

    call: Ints
    """Position of the call that issues a piece of work; for work without one, of the next call."""
    queue: Ints
    device: Ints
    engine: Ints
    """What does copies of its direction on its GPU, one at a time; `NONE` for other work."""
    duration_ns: Ints
    inside: NDArray[np.float64]
    """Part of it that lies in the window, by its measured duration."""
    bound: Ints
    """`LatencyBase`."""
    latency_ns: Ints
    queue_gap_ns: Ints
    needs: Ints
    needs_gap_ns: Ints
    gone: Flags
    """Work that no longer exists."""

    trailing_ns: int
    """Time from the last end of anything to the end of the window."""
    counted: Flags
    """Calls whose ends count for the window's length."""

    def changed(self, **arrays: NDArray[np.generic]) -> ReplayProgram:
        """Make a program that differs in these arrays."""
        return replace(self, **arrays)  # type: ignore[arg-type]


def put(values: Ints, where: Ints, new: Ints | int) -> Ints:
    """Copy an array with some values changed."""
    changed = values.copy()
    changed[where] = new
    return changed


def marked(flags: Flags, where: Ints) -> Flags:
    """Copy flags with some of them set."""
    changed = flags.copy()
    changed[where] = True
    return changed


_DEVICE, _QUEUE = int(CallWait.DEVICE), int(CallWait.QUEUE)


class _Chain(NamedTuple):
    """Calls lane by lane, with their costs added up along each lane."""

    order: Ints
    """Positions of calls, lane by lane."""
    spent_ns: Ints
    """Time of a lane up to and with each call, waits apart; by position."""
    before: Ints
    """The active call before each one in its lane, `NONE` for the first; by position."""


def run_program(program: ReplayProgram) -> ScheduleTiming:
    """Say when every call and every piece of work begins and ends."""
    active = _active(program)
    chain = _chain(program, active)
    starts, ends, op_start, op_end = _loop(program, active, chain)
    call_start, call_end = _all_calls(program, chain, active, starts, ends)
    last = [program.start_ns]
    if program.counted.any():
        last.append(int(call_end[program.counted].max()))
    there = op_end[~program.gone]
    if len(there):
        last.append(int(there.max()))
    end = max(last) + program.trailing_ns
    return ScheduleTiming(op_start, op_end, call_start, call_end, program.start_ns, end)


def _active(program: ReplayProgram) -> Flags:
    """Tell which calls issue work or wait; the others only take time."""
    active: Flags = (program.wait != CallWait.NOTHING) | (program.after_op != NONE)
    inside = program.call < len(active)
    active[program.call[inside]] = True
    return active


def _chain(program: ReplayProgram, active: Flags) -> _Chain:
    order = np.argsort(program.lane, kind="stable")
    cost = (program.gap_ns + program.own_ns)[order]
    spent = np.empty_like(cost)
    spent[order] = np.cumsum(cost)
    lane = program.lane[order]
    first = np.concatenate(([True], lane[1:] != lane[:-1]))[: len(lane)]
    # The sum runs on across lanes: what the lanes before took is taken off.
    base = np.maximum.accumulate(np.where(first, np.arange(len(lane)), 0))
    spent[order] -= (np.cumsum(cost) - cost)[base]
    marked = np.where(active[order], np.arange(len(lane)), NONE)
    seen = np.maximum.accumulate(marked) if len(marked) else marked
    earlier = np.concatenate(([NONE], seen[:-1]))[: len(lane)]
    before = np.empty_like(order)
    before[order] = np.where(earlier >= base, order[earlier], NONE)
    return _Chain(order, spent, before)


def _loop(
    program: ReplayProgram, active: Flags, chain: _Chain
) -> tuple[list[int], list[int], Ints, Ints]:
    """Go through the active calls in order; what they issue begins when it can."""
    which = np.flatnonzero(active)
    calls = _listed(program, chain, which)
    work, upto = _issued(program, which)
    op_start, op_end = [0] * len(work), [0] * len(work)
    lane_end = [program.start_ns] * (int(program.lane.max(initial=-1)) + 1)
    queue_end = [program.start_ns] * (int(program.queue.max(initial=0)) + 1)
    issue = _issuer(op_start, op_end, queue_end)
    done = _waiter(_queues_of_devices(program), op_end, queue_end)
    starts, ends = [0] * len(which), [0] * len(which)
    at = 0
    for i, (lane, gap, own, wait, target, tail, after, after_ns) in enumerate(calls):
        begun = lane_end[lane] + gap
        if after >= 0 and op_end[after] + after_ns > begun:
            begun = op_end[after] + after_ns
        ended = begun + own
        if at < upto[i]:
            issue(work[at : upto[i]], ended)
            at = upto[i]
        if wait:
            ended = max(ended, done(wait, target) + tail)
        starts[i] = begun
        ends[i] = lane_end[lane] = ended
    issue(work[at:], program.start_ns)
    return starts, ends, np.array(op_start, np.int64), np.array(op_end, np.int64)


def _issuer(
    op_start: list[int], op_end: list[int], queue_end: list[int]
) -> Callable[[list[_Work], int], None]:
    """Make the function that lets work begin as soon as it can, once its call has ended."""

    def issue(some: list[_Work], ended: int) -> None:
        for op, stream, duration, relative, offset, gap, needs, needs_gap, gone in some:
            ready = queue_end[stream] + gap
            allowed = ended + offset if relative else offset
            if allowed > ready:
                ready = allowed
            if needs >= 0 and op_end[needs] + needs_gap > ready:
                ready = op_end[needs] + needs_gap
            if gone:
                op_start[op] = op_end[op] = queue_end[stream]
            else:
                op_start[op] = ready
                op_end[op] = queue_end[stream] = ready + duration

    return issue


def _waiter(
    queues: dict[int, list[int]], op_end: list[int], queue_end: list[int]
) -> Callable[[int, int], int]:
    """Make the function that says when that which a call waits for has ended."""

    def done(wait: int, target: int) -> int:
        if wait == _DEVICE:
            return max(queue_end[queue] for queue in queues[target])
        return queue_end[target] if wait == _QUEUE else op_end[target]

    return done


_Call: TypeAlias = "tuple[int, int, int, int, int, int, int, int]"
_Work: TypeAlias = "tuple[int, int, int, bool, int, int, int, int, bool]"


def _listed(program: ReplayProgram, chain: _Chain, which: Ints) -> list[_Call]:
    """Give the active calls as plain numbers; what lies between them is part of their gaps."""
    before = chain.before[which]
    base = np.where(before >= 0, chain.spent_ns[before], 0)
    gap = chain.spent_ns[which] - program.own_ns[which] - base
    rest = (
        program.own_ns,
        program.wait,
        program.target,
        program.tail_ns,
        program.after_op,
        program.after_ns,
    )
    columns = (program.lane[which], gap, *(a[which] for a in rest))
    return list(zip(*(c.tolist() for c in columns), strict=True))


def _issued(program: ReplayProgram, which: Ints) -> tuple[list[_Work], list[int]]:
    """Give work in the order in which it is issued, and up to where each call issues."""
    order = np.argsort(program.call, kind="stable")
    call = program.call[order]
    own = np.append(program.own_ns, 0)[np.minimum(call, len(program.own_ns))]
    bound = program.bound[order]
    # A latency counted from the start of a call is one from its end, less what the call takes.
    offset = program.latency_ns[order] - np.where(bound == LatencyBase.CALL_START, own, 0)
    offset = np.where(bound == LatencyBase.QUEUE, program.start_ns, offset)
    columns = (
        order,
        program.queue[order],
        program.duration_ns[order],
        (bound == LatencyBase.CALL_END) | (bound == LatencyBase.CALL_START),
        offset,
        program.queue_gap_ns[order],
        program.needs[order],
        program.needs_gap_ns[order],
        program.gone[order],
    )
    upto = np.searchsorted(call, which, side="right")
    return list(zip(*(c.tolist() for c in columns), strict=True)), upto.tolist()


def _queues_of_devices(program: ReplayProgram) -> dict[int, list[int]]:
    """List the queues of each GPU."""
    device = np.full(int(program.queue.max(initial=-1)) + 1, NONE, np.int64)
    device[program.queue] = program.device
    queues: dict[int, list[int]] = {}
    for queue, of in enumerate(device.tolist()):
        queues.setdefault(of, []).append(queue)
    return queues


def _all_calls(
    program: ReplayProgram, chain: _Chain, active: Flags, starts: list[int], ends: list[int]
) -> tuple[Ints, Ints]:
    """Place the calls that only take time after the active one before them."""
    call_end = np.full(len(active), program.start_ns, np.int64)
    call_end[active] = ends
    known = chain.before >= 0
    since = np.where(known, chain.before, 0)
    passed = chain.spent_ns - np.where(known, chain.spent_ns[since], 0) if len(since) else since
    base = np.where(known, call_end[since], program.start_ns) if len(since) else since
    end = np.where(active, call_end, base + passed)
    start = end - program.own_ns
    start[active] = starts
    return start, end
