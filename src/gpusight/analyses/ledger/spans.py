"""The time of one GPU, cut into spans in which one thing holds: a piece of work runs, or none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpusight.analyses.attribution.call_sites import first_known
from gpusight.analyses.ledger.causes import Cause
from gpusight.analyses.ledger.labels import Rank
from gpusight.analyses.schedule.schedule import NONE, CallKind, Timing
from gpusight.model.intervals import distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.analyses.ledger.hosts import HostTime
    from gpusight.analyses.ledger.labels import Labels
    from gpusight.analyses.schedule.schedule import Ints, Schedule

_QUEUED_NS = 10_000
"""What was launched and still takes this long to begin did not wait for the launch alone."""
_SLOW = 3
"""Launches that take this many times the usual did not only take their way to the GPU."""
_LEAST_LATENCY_NS = 5_000


def measured(schedule: Schedule) -> Timing:
    """Give the times of a schedule as they were measured."""
    ops, calls = schedule.ops, schedule.calls
    return Timing(
        ops.start_ns,
        ops.end_ns,
        calls.start_ns,
        calls.end_ns,
        schedule.start_ns,
        schedule.end_ns,
    )


@dataclass(frozen=True)
class Spans:
    """Spans of the window of one GPU, in order, without gaps."""

    start_ns: Ints
    end_ns: Ints
    op: Ints
    """The piece of work that the span counts for; `NONE` where nothing ran."""
    gap: Ints
    """Number of the gap that an idle span is part of; `NONE` where something ran."""

    def __len__(self) -> int:
        """Count them."""
        return len(self.start_ns)

    @property
    def length_ns(self) -> Ints:
        """How long each one is."""
        lengths: Ints = self.end_ns - self.start_ns
        return lengths

    @property
    def idle(self) -> Spans:
        """Those in which nothing ran."""
        at = np.flatnonzero(self.gap >= 0)
        return Spans(self.start_ns[at], self.end_ns[at], self.op[at], self.gap[at])

    def cut(self, times: Ints) -> Spans:
        """Cut spans in two at these moments."""
        if not len(self):
            return self
        inside = times[(times > self.start_ns[0]) & (times < self.end_ns[-1])]
        starts = distinct(self.start_ns, inside)
        at = np.searchsorted(self.start_ns, starts, side="right") - 1
        ends = np.append(starts[1:], self.end_ns[-1])
        return Spans(starts, ends, self.op[at], self.gap[at])


@dataclass(frozen=True)
class Gaps:
    """Times in which nothing ran on a GPU, and what is known of the work that ended them."""

    start_ns: Ints
    lane: Ints
    """Of the call that launched that work, or of the last one before; `NONE` if not known."""
    launched_ns: Ints
    """When that call had returned; the end of the gap where no work ended it."""
    queued: NDArray[np.bool_]
    """What passed from then on was more than the launch's way to the GPU."""
    op: Ints
    """The work that ended the gap; `NONE` at the end of the window."""

    def spent(self, hosts: HostTime, idle: Spans) -> Ints:
        """Give the ns of each cause of idle spans, one row a span."""
        until = self.until(idle)
        spent = hosts.spent(self.lane[idle.gap], idle.start_ns, until)
        spent[np.arange(len(idle)), self.rest(idle)] += idle.end_ns - until
        return spent

    def until(self, idle: Spans) -> Ints:
        """Give when the host had done its part, in each idle span."""
        until: Ints = np.clip(self.launched_ns[idle.gap], idle.start_ns, idle.end_ns)
        return until

    def rest(self, idle: Spans) -> Ints:
        """Give the cause of what is left of each idle span then."""
        return np.where(self.queued[idle.gap], int(Cause.QUEUED), int(Cause.LAUNCHING))


def spans_of(schedule: Schedule, timing: Timing, labels: Labels, device: int) -> tuple[Spans, Gaps]:
    """Cut the window of a GPU into spans."""
    own = _in_order(schedule, timing, labels, device)
    ranks = labels.ranks
    layers = [_Layer.of(timing, own[ranks[own] == rank]) for rank in Rank]
    edges = np.array([timing.start_ns, max(timing.start_ns, timing.end_ns)])
    cuts = distinct(edges, *(edge for one in layers for edge in one.edges))
    op = first_known([one.running(cuts[:-1]) for one in layers])
    idle = op == NONE
    gap = np.where(idle, np.cumsum(idle) - 1, NONE)
    spans = Spans(cuts[:-1], cuts[1:], op, gap)
    return spans, _gaps(schedule, timing, own, cuts[:-1][idle], cuts[1:][idle])


def _in_order(schedule: Schedule, timing: Timing, labels: Labels, device: int) -> Ints:
    """Give the work of a GPU in order of start; the order of rows decides nothing."""
    own = np.flatnonzero(schedule.ops.device == device)
    own = own[np.argsort(timing.op_start_ns[own], kind="stable")]
    start = timing.op_start_ns[own]
    if not (start[1:] == start[:-1]).any():
        return own
    call = schedule.ops.call[own]
    issued = np.where(call == NONE, NONE, np.append(timing.call_end_ns, NONE)[call])
    keys = (issued, labels.order[own], timing.op_end_ns[own], start)
    return own[np.lexsort(keys)]


@dataclass(frozen=True)
class _Layer:
    """Work of one rank; where pieces overlap, the one that began first keeps its time."""

    start_ns: Ints
    end_ns: Ints
    op: Ints

    @classmethod
    def of(cls, timing: Timing, ops: Ints) -> _Layer:
        start = np.clip(timing.op_start_ns[ops], timing.start_ns, timing.end_ns)
        end = np.clip(timing.op_end_ns[ops], timing.start_ns, timing.end_ns)
        reached = np.maximum.accumulate(end)
        start[1:] = np.maximum(start[1:], reached[:-1])
        kept = start < end
        return cls(start[kept], end[kept], ops[kept])

    @property
    def edges(self) -> tuple[Ints, Ints]:
        return self.start_ns, self.end_ns

    def running(self, times: Ints) -> Ints:
        """Give what runs at each time; `NONE` for nothing."""
        if not len(self.op):
            return np.full(len(times), NONE, np.int64)
        at = np.searchsorted(self.start_ns, times, side="right") - 1
        return np.where((at >= 0) & (times < self.end_ns[at]), self.op[at], NONE)


def _gaps(schedule: Schedule, timing: Timing, own: Ints, start: Ints, end: Ints) -> Gaps:
    """Find what ended each gap, who launched it and when."""
    calls, ops = schedule.calls, schedule.ops
    after = np.searchsorted(timing.op_start_ns[own], end, side="left")
    ended = after < len(own)
    op = np.where(ended, np.append(own, NONE)[np.minimum(after, len(own))], NONE)
    call = np.where(ended, ops.call[op] if len(ops) else NONE, _last_call(schedule, own))
    known = call != NONE
    lane = np.where(known, calls.lane[call] if len(calls) else NONE, NONE)
    returned = np.where(known & ended, timing.call_end_ns[call] if len(calls) else end, end)
    inside = _inside_graph(schedule, timing, own, call, start) & ended
    if len(ops):
        # Work carried over from before the window had been launched, whoever did it.
        returned = np.where(ended & ops.carried[op] | inside, np.minimum(returned, start), returned)
    waited = end - np.maximum(returned, start)
    slow = end - returned > max(_LEAST_LATENCY_NS, _SLOW * _usual_latency(schedule, timing, own))
    queued = np.where(returned <= start, slow | (waited > _QUEUED_NS), slow & (waited > _QUEUED_NS))
    return Gaps(start, lane, returned, queued | inside, op)


def _inside_graph(
    schedule: Schedule, timing: Timing, own: Ints, call: Ints, start: Ints
) -> NDArray[np.bool_]:
    """Tell which gaps lie between two pieces of work of one graph: its launch had begun to act."""
    if not len(schedule.calls):
        return np.zeros(len(call), np.bool_)
    calls = schedule.ops.call[own]
    began = np.full(len(schedule.calls) + 1, np.iinfo(np.int64).max)
    began[calls[::-1]] = timing.op_start_ns[own][::-1]  # written backwards: the first stays
    graph = schedule.calls.kind[call] == CallKind.GRAPH
    inside: NDArray[np.bool_] = (call != NONE) & graph & (began[call] < start)
    return inside


def _last_call(schedule: Schedule, own: Ints) -> int:
    """Give the last call that launched work for the GPU."""
    called = schedule.ops.call[own]
    called = called[called != NONE]
    return int(called[-1]) if len(called) else NONE


def _usual_latency(schedule: Schedule, timing: Timing, own: Ints) -> float:
    """Give the median time from the end of a launch to work that waited for nothing else."""
    ops = schedule.ops
    by_queue = own[np.argsort(ops.queue[own], kind="stable")]
    queue, end = ops.queue[by_queue], timing.op_end_ns[by_queue]
    free = np.append(np.iinfo(np.int64).min, end[:-1])
    free[np.append(True, np.diff(queue) != 0)[: len(free)]] = np.iinfo(np.int64).min
    call = ops.call[by_queue]
    called = call != NONE
    returned = timing.call_end_ns[call[called]]
    latency = (timing.op_start_ns[by_queue[called]] - returned)[returned >= free[called]]
    return float(np.median(np.maximum(latency, 0))) if len(latency) else 0.0
