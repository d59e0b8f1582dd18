"""Changes that turn a program into another one: set durations, remove or fuse activities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from gpusight.analysis.gpu_schedule import NONE
from gpusight.analysis.replay.simulation import (
    CallWait,
    LatencyBase,
    ReplayProgram,
    marked,
    owners,
    put,
)

if TYPE_CHECKING:
    from gpusight.trace.intervals import Flags, Ints


Change: TypeAlias = Callable[[ReplayProgram], ReplayProgram]

GRAPH_LAUNCH_NS = 20_000
"""What one launch of a CUDA graph costs the host."""
ASYNC_COPY_NS = 8_000
"""What a copy costs the host that it does not wait for."""


def set_duration(ops: Ints, duration_ns: Ints) -> Change:
    """Let GPU activities take these durations, where they are shorter than their own."""

    def change(program: ReplayProgram) -> ReplayProgram:
        # Of an activity that lies in the window in part, the same part of the new duration does.
        inside = program.inside[ops]
        new_ns = np.where(inside < 1, inside * duration_ns, duration_ns).astype(np.int64)
        shorter = np.minimum(program.duration_ns[ops], np.maximum(new_ns, 0))
        return program.changed(duration_ns=put(program.duration_ns, ops, shorter))

    return change


def without_waiting(calls: Ints) -> Change:
    """Let calls that wait for the GPU return at once."""

    def change(program: ReplayProgram) -> ReplayProgram:
        waiting = calls[program.wait[calls] != CallWait.NOTHING]
        return program.changed(
            wait=put(program.wait, waiting, int(CallWait.NOTHING)),
            tail_ns=put(program.tail_ns, waiting, 0),
        )

    return change


def free_calls(calls: Ints) -> Change:
    """Let calls cost nothing and wait for nothing."""

    def change(program: ReplayProgram) -> ReplayProgram:
        returned = without_waiting(calls)(program)
        return returned.changed(own_ns=put(returned.own_ns, calls, 0))

    return change


def without_host_time(calls: Ints, ns: Ints) -> Change:
    """Let the host spend so much less time before each of these calls."""

    def change(program: ReplayProgram) -> ReplayProgram:
        gap = np.minimum(program.gap_ns[calls], np.maximum(program.gap_ns[calls] - ns, 0))
        return program.changed(
            gap_ns=put(program.gap_ns, calls, gap),
            movable_ns=put(program.movable_ns, calls, np.minimum(program.movable_ns[calls], gap)),
        )

    return change


@dataclass(frozen=True)
class GraphLaunches:
    """Lets everything that the host launches between two waits of a step be one graph launch.

    Host work that is not launching stays: input, allocation, what calls take that wait. So do
    launches of graphs, a segment with a single launch, and one that costs less than a graph's. A
    replay applies it after all other changes: graphs launch what these leave.
    """

    launch_ns: int
    kept: Ints | None
    """Calls whose time before them stays."""
    gap_ns: int | None = None
    """The most that is between kernels of a graph; None where streams keep their gaps."""
    spans_steps: bool = False
    """A graph may hold several steps, where nothing waits between them."""
    outside: Ints | None = None
    """Calls that no graph contains; they stay as they are, with the time before them."""

    def __call__(self, program: ReplayProgram) -> ReplayProgram:
        """Return the program with graph launches."""
        mergeable = program.mergeable.copy()
        if self.outside is not None:
            mergeable[self.outside] = False
        for calls in (self.kept, self.outside):
            if calls is not None:
                program = program.changed(movable_ns=put(program.movable_ns, calls, 0))
        n = len(program.gap_ns)
        plain = (program.wait == CallWait.NOTHING) & mergeable
        launches = np.zeros(n, np.bool_)
        called = np.isin(program.latency_base, (LatencyBase.CALL_END, LatencyBase.CALL_START))
        launches[program.call[called & ~program.removed]] = True
        launches &= plain
        ends = program.wait != CallWait.NOTHING
        ends = ends if self.spans_steps else ends | program.mark
        segment = _segments(program.host_thread, ends)
        cost = np.where(plain, program.own_ns, 0) + program.movable_ns
        segment_ns = np.bincount(segment, cost, minlength=n)
        worth = (np.bincount(segment, launches, minlength=n) > 1) & (segment_ns > self.launch_ns)
        merged = worth[segment]
        _, first = np.unique(np.where(launches & merged, segment, n), return_index=True)
        first = first[(launches & merged)[first]]
        own = np.where(plain & merged, 0, program.own_ns)
        movable = np.where(merged, np.minimum(program.movable_ns, np.maximum(program.gap_ns, 0)), 0)
        graphs = program.changed(
            own_ns=put(own, first, self.launch_ns),
            gap_ns=program.gap_ns - movable,
            movable_ns=np.where(merged, 0, program.movable_ns),
        )
        if self.gap_ns is None:
            return graphs
        in_graph = np.append(plain & merged, [False])[program.call]
        return set_gap(np.flatnonzero(in_graph), self.gap_ns)(graphs)


def as_graphs(
    *,
    launch_ns: int = GRAPH_LAUNCH_NS,
    kept: Ints | None = None,
    gap_ns: int | None = None,
    spans_steps: bool = False,
    outside: Ints | None = None,
) -> Change:
    """Let all launches between two waits of a step be one graph launch (`GraphLaunches`)."""
    return GraphLaunches(launch_ns, kept, gap_ns, spans_steps, outside)


def _segments(thread: Ints, ends: Flags) -> Ints:
    """Number the segments of threads between calls that wait; such a call ends its segment."""
    order = np.argsort(thread, kind="stable")
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (thread[order][1:] != thread[order][:-1]) | ends[order][:-1]
    segment = np.empty(len(order), np.int64)
    segment[order] = np.cumsum(begins) - 1
    return segment


def fuse(groups: Ints, duration_ns: Ints) -> Change:
    """Let each group of GPU activities become one: its first, with a duration of the group.

    `groups` holds the group of each activity, counting from 0, or `NONE`. The other activities,
    their launches and the host's work for these go.
    """

    def change(program: ReplayProgram) -> ReplayProgram:
        members = np.flatnonzero((groups >= 0) & ~program.removed)
        if not len(members):
            return program
        members = members[np.lexsort((program.call[members], groups[members]))]
        group = groups[members]
        leads = np.concatenate(([True], group[1:] != group[:-1]))
        first, rest = members[leads], members[~leads]
        before = np.add.reduceat(program.duration_ns[members], np.flatnonzero(leads))
        duration = np.minimum(duration_ns[group[leads]], before)
        merged = program.changed(
            duration_ns=put(program.duration_ns, first, duration),
            removed=marked(program.removed, rest),
        )
        return _without_launches(merged, rest)

    return change


def remove(ops: Ints) -> Change:
    """Let GPU activities vanish, with their launches and the host's work for these."""

    def change(program: ReplayProgram) -> ReplayProgram:
        return _without_launches(program.changed(removed=marked(program.removed, ops)), ops)

    return change


def _without_launches(program: ReplayProgram, ops: Ints) -> ReplayProgram:
    """Remove the calls that only issued activities that are removed, and the host's way to them."""
    n = len(program.gap_ns)
    used = np.zeros(n + 1, np.bool_)
    used[program.call[~program.removed]] = True
    calls = np.unique(program.call[ops])
    calls = calls[calls < n]
    calls = calls[~used[calls] & (program.wait[calls] == CallWait.NOTHING)]
    dropped = _leading_to(program, calls)
    saved = np.minimum(program.movable_ns[dropped], np.maximum(program.gap_ns[dropped], 0))
    own = np.where(program.mergeable[dropped], 0, program.own_ns[dropped])
    return program.changed(
        own_ns=put(program.own_ns, dropped, own),
        gap_ns=put(program.gap_ns, dropped, program.gap_ns[dropped] - saved),
        movable_ns=put(program.movable_ns, dropped, 0),
    )


def _leading_to(program: ReplayProgram, calls: Ints) -> Ints:
    """Return calls and the small ones since the last call of their thread with an effect."""
    leading: Ints = np.flatnonzero(np.isin(owners(program), calls))
    return leading


def own_stream(ops: Ints) -> Change:
    """Run GPU activities concurrently with the rest; nothing waits for them.

    Copies of one direction still follow each other: a GPU has one engine for them. Others keep the
    order of their stream.
    """

    def change(program: ReplayProgram) -> ReplayProgram:
        streams = int(program.stream.max(initial=-1)) + 1
        engines = int(program.engine.max(initial=-1)) + 1
        engine = program.engine[ops]
        own = np.where(engine >= 0, streams + engine, streams + engines + program.stream[ops])
        free = program.changed(
            stream=put(program.stream, ops, own),
            needs=np.where(np.isin(program.needs, ops), NONE, program.needs),
        )
        calls = np.unique(program.call[ops])
        calls = calls[calls < len(program.gap_ns)]
        waiting = calls[program.wait[calls] == CallWait.OP]
        awaited = np.flatnonzero((program.wait == CallWait.OP) & np.isin(program.target, ops))
        returned = without_waiting(np.union1d(waiting, awaited))(free)
        cost = np.minimum(returned.own_ns[waiting], ASYNC_COPY_NS)
        return returned.changed(own_ns=put(returned.own_ns, waiting, cost))

    return change


def without_needs(ops: Ints) -> Change:
    """Let GPU activities start without waiting for other streams."""

    def change(program: ReplayProgram) -> ReplayProgram:
        return program.changed(needs=put(program.needs, ops, NONE))

    return change


def set_gap(ops: Ints, gap_ns: int) -> Change:
    """Let GPU activities follow the one before them in their stream after at most this gap."""

    def change(program: ReplayProgram) -> ReplayProgram:
        gap = np.minimum(program.stream_gap_ns[ops], gap_ns)
        return program.changed(stream_gap_ns=put(program.stream_gap_ns, ops, gap))

    return change


def more_launches(calls: Ints, count: Ints | int, *, host_ns: int, gpu_ns: int) -> Change:
    """Let each of these calls be followed by further small launches, as casts are.

    Each costs the host `host_ns` and the GPU `gpu_ns`.
    """

    def change(program: ReplayProgram) -> ReplayProgram:
        added = np.broadcast_to(np.asarray(count, np.int64), calls.shape)
        issued = np.zeros(len(program.gap_ns) + 1, np.int64)
        issued[calls] = added
        _, first = np.unique(program.call, return_index=True)
        first_of_call = marked(np.zeros(len(program.call), np.bool_), first)
        more = np.where(first_of_call & ~program.removed, issued[program.call], 0) * gpu_ns
        return program.changed(
            own_ns=put(program.own_ns, calls, program.own_ns[calls] + added * host_ns),
            duration_ns=program.duration_ns + more,
        )

    return change
