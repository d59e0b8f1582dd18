"""What holds up work that was launched in time: other streams, or functions of the host.

Three ways are told apart. The GPU is idle, and the work waits for work of another stream or GPU.
The GPU is idle, and the work stands behind a function of the host in its stream. Or the GPU is not
idle, but two streams wait for each other in turns with kernels that would fit beside each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.ledger.ledger import account
from gpusight.analyses.replay.changes import without_needs
from gpusight.analyses.replay.program import Bound, put
from gpusight.analyses.schedule.schedule import NONE
from gpusight.findings.timeline.few_blocks import sm_count
from gpusight.findings.verdict import Limit

if TYPE_CHECKING:
    from gpusight.analyses.replay.changes import Change
    from gpusight.analyses.replay.program import Flags, Program
    from gpusight.analyses.schedule.schedule import Ints
    from gpusight.findings.timeline.timeline import Timeline

LONG_NS = Limit(
    10_000, "ns; work of one stream follows its forerunner within a few microseconds anyway"
)
TURNS = Limit(
    4,
    "times a step that two streams hand over to each other and back; fewer may be one piece of "
    "work that another one needs",
)
ROOM = Limit(
    1.0,
    "blocks of two kernels together for each SM, up to which they fit beside each other. Kernels "
    "that fill the GPU gain little from running at once: with 1.9 blocks of each for an SM, "
    "products without their waits took 8% less at best",
)
_HOST_FUNCTION = r"LaunchHostFunc|StreamAddCallback"
"""Calls that put a function of the host into a stream."""


@dataclass(frozen=True)
class Holdups:
    """Work of one GPU that was held up, and by what; arrays have one entry for each."""

    device: int
    op: Ints
    """Position in `Schedule.ops`."""
    ns: Ints
    """How long."""
    needs: Ints
    """The work that it waited for; `NONE` where that is not known."""
    function: Flags
    """It stood behind a function of the host."""

    @property
    def total_ns(self) -> int:
        """How long all of them waited."""
        return int(self.ns.sum())

    def only(self, which: Flags) -> Holdups:
        """Keep some."""
        return Holdups(
            self.device, self.op[which], self.ns[which], self.needs[which], self.function[which]
        )

    def change(self, timeline: Timeline) -> tuple[Change, ...]:
        """Let them begin without waiting."""
        behind = self.op[self.function]
        return without_needs(self.op[~self.function]), _without_function(timeline, behind)


def in_idle(timeline: Timeline) -> Holdups:
    """Find the GPU that was idle longest although work for it was launched, and that work."""
    found = []
    for one in account(timeline.schedule, timeline.hosts):
        idle = np.flatnonzero(one.spans.gap >= 0)
        op = one.gaps.op[one.spans.gap[idle]]
        start = np.maximum(one.spans.start_ns[idle], one.gaps.launched_ns[one.spans.gap[idle]])
        waited = np.where(one.gaps.queued[one.spans.gap[idle]], one.spans.end_ns[idle] - start, 0)
        some = (op != NONE) & (waited >= LONG_NS.value)
        found.append((one.device, op[some], waited[some]))
    device, ops, waited = max(found, key=lambda each: int(each[2].sum()))
    needs = timeline.replay.program.needs[ops]
    function = (needs == NONE) & _behind_functions(timeline, ops)
    return Holdups(device, ops, waited, needs, function)


def in_turns(timeline: Timeline) -> Holdups:
    """Find kernels of streams that take turns, though two of them would fit on the GPU at once.

    A kernel waited for one of another stream, which had itself waited for the first one's stream.
    """
    ops, needs = timeline.schedule.ops, timeline.replay.program.needs
    held = np.flatnonzero(needs != NONE)
    other = needs[held]
    back = needs[other]
    turns = (back != NONE) & (ops.queue[back] == ops.queue[held])
    turns &= (ops.queue[other] != ops.queue[held]) & (ops.device == timeline.device)[held]
    held, other = held[turns], other[turns]
    fits = _fit_together(timeline, held, other)
    held, other = held[fits], other[fits]
    waited = ops.end_ns[other] - np.maximum(ops.start_ns[other], _ready_ns(timeline, held))
    long = waited >= LONG_NS.value
    held, other, waited = held[long], other[long], waited[long]
    if len(held) < TURNS.value * timeline.per_step:
        held, other, waited = held[:0], other[:0], waited[:0]
    return Holdups(timeline.device, held, waited, other, np.zeros(len(held), np.bool_))


def _fit_together(timeline: Timeline, first: Ints, second: Ints) -> Flags:
    """Tell kernels that would leave room for each other; communication is no such kernel."""
    sms = sm_count(timeline)
    if sms is None or not len(first):
        return np.zeros(len(first), np.bool_)
    computes = (pl.col("kind") == "kernel") & (pl.col("category") != "communication")
    # Work of which that is not known counts as filling the GPU.
    blocks = pl.when(computes).then("blocks").otherwise(None).fill_null(1 << 31)
    size = timeline.ops.select(blocks.cast(pl.Int64)).to_series().to_numpy()
    fits: Flags = size[first] + size[second] <= ROOM.value * sms
    return fits


def _ready_ns(timeline: Timeline, ops: Ints) -> Ints:
    """Say when work was launched and its own stream was free."""
    schedule = timeline.schedule
    before, call = _before(timeline)[ops], schedule.ops.call[ops]
    free = np.where(before != NONE, schedule.ops.end_ns[before], schedule.start_ns)
    launched = np.where(call != NONE, schedule.calls.end_ns[call], schedule.start_ns)
    ready: Ints = np.maximum(free, launched)
    return ready


def _before(timeline: Timeline) -> Ints:
    """Give the work before each in its stream, `NONE` for the first."""
    ops = timeline.schedule.ops
    order = np.lexsort((ops.start_ns, ops.queue))
    before = np.full(len(ops), NONE, np.int64)
    same = ops.queue[order][1:] == ops.queue[order][:-1]
    before[order[1:][same]] = order[:-1][same]
    return before


def _behind_functions(timeline: Timeline, ops: Ints) -> Flags:
    """Tell work between whose launch and the one before in its stream a function was put in.

    A capture does not say into which stream. Work that began on time did not stand behind it.
    """
    schedule = timeline.schedule
    names = timeline.calls.filter(pl.col("name").cast(pl.String).str.contains(_HOST_FUNCTION))
    before = _before(timeline)[ops]
    call, earlier = schedule.ops.call[ops], schedule.ops.call[before]
    known = (before != NONE) & (call != NONE) & (earlier != NONE)
    if not names.height or not known.any():
        return np.zeros(len(ops), np.bool_)
    # Numbers that grow by lane, and within a lane by position.
    lane = schedule.calls.lane * len(schedule.calls)
    functions = np.sort((lane + np.arange(len(lane)))[names["call"].to_numpy()])
    between = np.searchsorted(functions, lane[call] + call) > np.searchsorted(
        functions, lane[call] + earlier
    )
    behind: Flags = known & between
    return behind


def _without_function(timeline: Timeline, ops: Ints) -> Change:
    """Let work follow its launch and its forerunner as work usually does."""
    latency_ns, gap_ns = timeline.replay.launch_latency_ns, timeline.replay.queue_gap_ns

    def change(program: Program) -> Program:
        called = ops[program.bound[ops] == Bound.CALL_END]
        gap = np.minimum(program.queue_gap_ns[ops], gap_ns)
        latency = np.minimum(program.latency_ns[called], latency_ns)
        return program.changed(
            queue_gap_ns=put(program.queue_gap_ns, ops, gap),
            latency_ns=put(program.latency_ns, called, latency),
        )

    return change
