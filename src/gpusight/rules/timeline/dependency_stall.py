"""What holds up work that was launched in time: other streams, or functions of the host.

Three ways are told apart. The GPU is idle, and the work waits for work of another stream or GPU.
The GPU is idle, and the work stands behind a function of the host in its stream. Or the GPU is not
idle, but two streams wait for each other in turns with kernels that would fit beside each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.gpu_schedule import NONE
from gpusight.analysis.ledger.device_ledger import account
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.replay.changes import without_needs
from gpusight.analysis.replay.schedule_waits import queues_of_streams
from gpusight.analysis.replay.simulation import LatencyBase, put
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import (
    by_step,
    framework_of,
    largest,
    of_each_step,
    summed_locations,
    times_text,
)
from gpusight.rules.locations import idle_gaps, named_by_work
from gpusight.rules.patterns.host_gaps import called_from
from gpusight.rules.patterns.kernel_groups import sm_count
from gpusight.rules.rule import CLEAN, RuleMatch, RuleNotApplicable, Threshold, TimelineRule
from gpusight.units import format_share

if TYPE_CHECKING:
    from gpusight.analysis.gpu_schedule import Ints
    from gpusight.analysis.replay.changes import Change
    from gpusight.analysis.replay.simulation import Flags, ReplayProgram
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import RuleVerdict


MIN_STALL_NS = Threshold(
    10_000, "ns; work of one stream follows its forerunner within a few microseconds anyway"
)
MIN_HANDOVERS = Threshold(
    4,
    "times a step that two streams hand over to each other and back; fewer may be one piece of "
    "work that another one needs",
)
MAX_COMBINED_BLOCKS_PER_SM = Threshold(
    1.0,
    "blocks of two kernels together for each SM, up to which they fit beside each other. Kernels "
    "that fill the GPU gain little from running at once: with 1.9 blocks of each for an SM, "
    "products without their waits took 8% less at best",
)
_HOST_FUNCTION = r"LaunchHostFunc|StreamAddCallback"
"""Calls that put a function of the host into a stream."""


@dataclass(frozen=True)
class StreamStalls:
    """Work of one GPU that was held up, and by what; arrays have one entry for each."""

    device: int
    op: Ints
    """Position in `GpuSchedule.ops`."""
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

    def only(self, which: Flags) -> StreamStalls:
        """Keep some."""
        return StreamStalls(
            self.device, self.op[which], self.ns[which], self.needs[which], self.function[which]
        )

    def change(self, context: RuleContext) -> tuple[Change, ...]:
        """Let them begin without waiting."""
        behind = self.op[self.function]
        return without_needs(self.op[~self.function]), _without_function(context, behind)


def stalls_in_idle(context: RuleContext) -> StreamStalls:
    """Find the GPU that was idle longest although work for it was launched, and that work."""
    found = []
    for one in account(context.schedule, context.hosts):
        idle = np.flatnonzero(one.spans.gap >= 0)
        op = one.gaps.op[one.spans.gap[idle]]
        start = np.maximum(one.spans.start_ns[idle], one.gaps.launched_ns[one.spans.gap[idle]])
        waited = np.where(one.gaps.queued[one.spans.gap[idle]], one.spans.end_ns[idle] - start, 0)
        some = (op != NONE) & (waited >= MIN_STALL_NS.value)
        found.append((one.device, op[some], waited[some]))
    device, ops, waited = max(found, key=lambda each: int(each[2].sum()))
    needs = context.replay.program.needs[ops]
    function = (needs == NONE) & _behind_functions(context, ops)
    return StreamStalls(device, ops, waited, needs, function)


def stalls_in_turns(context: RuleContext) -> StreamStalls:
    """Find kernels of streams that take turns, though two of them would fit on the GPU at once.

    A kernel waited for one of another stream, which had itself waited for the first one's stream.
    """
    ops, needs = context.schedule.ops, context.replay.program.needs
    held = np.flatnonzero(needs != NONE)
    other = needs[held]
    back = needs[other]
    turns = (back != NONE) & (ops.queue[back] == ops.queue[held])
    turns &= (ops.queue[other] != ops.queue[held]) & (ops.device == context.device)[held]
    held, other = held[turns], other[turns]
    fits = _fit_together(context, held, other)
    held, other = held[fits], other[fits]
    waited = ops.end_ns[other] - np.maximum(ops.start_ns[other], _ready_ns(context, held))
    long = waited >= MIN_STALL_NS.value
    held, other, waited = held[long], other[long], waited[long]
    if len(held) < MIN_HANDOVERS.value * context.per_step:
        held, other, waited = held[:0], other[:0], waited[:0]
    return StreamStalls(context.device, held, waited, other, np.zeros(len(held), np.bool_))


def _fit_together(context: RuleContext, first: Ints, second: Ints) -> Flags:
    """Tell kernels that would leave room for each other; communication is no such kernel."""
    sms = sm_count(context)
    if sms is None or not len(first):
        return np.zeros(len(first), np.bool_)
    computes = (pl.col("kind") == "kernel") & (pl.col("category") != "communication")
    # Work of which that is not known counts as filling the GPU.
    blocks = pl.when(computes).then("blocks").otherwise(None).fill_null(1 << 31)
    size = context.ops.select(blocks.cast(pl.Int64)).to_series().to_numpy()
    fits: Flags = size[first] + size[second] <= MAX_COMBINED_BLOCKS_PER_SM.value * sms
    return fits


def _ready_ns(context: RuleContext, ops: Ints) -> Ints:
    """Say when work was launched and its own stream was free."""
    schedule = context.schedule
    before, call = _before(context)[ops], schedule.ops.call[ops]
    free = np.where(before != NONE, schedule.ops.end_ns[before], schedule.start_ns)
    launched = np.where(call != NONE, schedule.calls.end_ns[call], schedule.start_ns)
    ready: Ints = np.maximum(free, launched)
    return ready


def _before(context: RuleContext) -> Ints:
    """Give the work before each in its stream, `NONE` for the first."""
    ops = context.schedule.ops
    order = np.lexsort((ops.start_ns, ops.queue))
    before = np.full(len(ops), NONE, np.int64)
    same = ops.queue[order][1:] == ops.queue[order][:-1]
    before[order[1:][same]] = order[:-1][same]
    return before


def _behind_functions(context: RuleContext, ops: Ints) -> Flags:
    """Tell work between whose launch and the one before in its stream a function was put in.

    A capture does not say into which stream. Work that began on time did not stand behind it.
    """
    schedule = context.schedule
    names = context.calls.filter(pl.col("name").cast(pl.String).str.contains(_HOST_FUNCTION))
    before = _before(context)[ops]
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


def _without_function(context: RuleContext, ops: Ints) -> Change:
    """Let work follow its launch and its forerunner as work usually does."""
    latency_ns, gap_ns = context.replay.launch_latency_ns, context.replay.stream_gap_ns

    def change(program: ReplayProgram) -> ReplayProgram:
        called = ops[program.latency_base[ops] == LatencyBase.CALL_END]
        gap = np.minimum(program.stream_gap_ns[ops], gap_ns)
        latency = np.minimum(program.latency_ns[called], latency_ns)
        return program.changed(
            stream_gap_ns=put(program.stream_gap_ns, ops, gap),
            latency_ns=put(program.latency_ns, called, latency),
        )

    return change


MIN_STALL_SHARE = Threshold(
    0.02, "part of the time that launched work is held up; below, it is noise"
)
MIN_EXPLAINED_SHARE = Threshold(
    0.5, "part of that time whose work waited for work that the capture shows, to blame streams"
)


class DependencyStall(TimelineRule):
    """Work held up by another stream, or by a function of the host in its own."""

    id = "dependency-stall"
    detects = (
        "Looks for time in which a GPU is idle although its next work has been launched: it waits "
        "for an event, for work of another stream or GPU, or for a function of the host in its "
        "stream. Also for two streams that wait for each other in turns with kernels small enough "
        "to run at once."
    )
    why = (
        "Streams that wait for each other run one after the other. The GPU has nothing to do from "
        "the end of what is waited for until the waiting stream goes on, and all the time that the "
        "other GPU takes."
    )
    fix = (
        "Record the event right behind the work that produces the data, wait for it right before "
        "the work that needs it, and drop waits that nothing needs."
    )
    code = """\
produced = torch.cuda.Event()
with torch.cuda.stream(side):
    y = produce(x)
    produced.record(side)  # not behind everything else in `side`
independent(z)  # runs beside it
torch.cuda.current_stream().wait_event(produced)
consume(y)
"""
    verify = "`gpusight ledger` shows less `idle/queued`."
    caveats = (
        "Work of another program on the same GPU, which this capture does not show, delays "
        "launches in the same way; so do graphics and clock changes. A true dependency cannot be "
        "removed, only given something to run beside. Into which stream a host function was put "
        "is not recorded: work that began late behind one is taken to have waited for it."
    )
    estimate = (
        "Replay in which these pieces of work wait for no other stream and no host function: an "
        "upper bound, for a part of the waits is needed."
    )
    thresholds: ClassVar = {
        "min_stall_share": MIN_STALL_SHARE,
        "min_stall_ns": MIN_STALL_NS,
        "min_explained_share": MIN_EXPLAINED_SHARE,
        "min_handovers": MIN_HANDOVERS,
        "max_combined_blocks_per_sm": MAX_COMBINED_BLOCKS_PER_SM,
    }

    def check(self, context: RuleContext) -> RuleVerdict:
        """Look at the gaps that end with work launched before, and at streams that take turns."""
        if not np.any(context.schedule.ops.call != NONE):
            return RuleNotApplicable("no GPU work is linked to the call that launched it")
        least = MIN_STALL_SHARE.value * context.length_ns
        idle, turns = stalls_in_idle(context), stalls_in_turns(context)
        if turns.total_ns >= max(least, idle.total_ns):
            return _found(context, turns, _TURNS)
        if idle.total_ns < least:
            return CLEAN
        known = idle.only((idle.needs != NONE) | idle.function)
        if known.total_ns < MIN_EXPLAINED_SHARE.value * idle.total_ns:
            share = format_share(idle.total_ns / max(1, context.length_ns))
            return RuleNotApplicable(
                f"launched work waited {share} of the time for nothing that the capture shows: "
                "another program on the GPU, or a wait that was not recorded"
            )
        most = known.ns[known.function].sum() * 2 > known.total_ns
        return _found(context, known, _FUNCTIONS if most else _STREAMS)

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find idle time in which launched work waited, before the kernels that are named."""
        idle = idle_gaps(context, (IdleCause.QUEUED,), any_gpu=True)
        gaps = named_by_work(context, idle)
        labels = [place.name for place in finding.where if place.kind == "kernel"]
        meant = gaps.filter(pl.col("name").is_in(labels))
        return meant if meant.height else gaps


@dataclass(frozen=True)
class _Way:
    """How work is held up, in words."""

    title: str
    share: str
    confidence: str
    fix: str
    torch: str
    cuda: str


def _found(context: RuleContext, held: StreamStalls, way: _Way) -> RuleMatch:
    rows = _rows(context, held)
    top = rows.group_by("by", maintain_order=True).agg(pl.col("queued_ns").sum())
    by = top.sort("queued_ns", descending=True)["by"][0]
    share = held.total_ns / max(1, context.length_ns)
    return RuleMatch(
        title=way.title.format(of_each_step(context, held.total_ns)),
        evidence=(
            Evidence("queued_share", share, "share", way.share.format(f"GPU {held.device}")),
            Evidence(
                "waits",
                len(held.op) / context.per_step,
                "",
                by_step(context, "Pieces of work held up"),
            ),
            Evidence("longest_ns", float(held.ns.max()), "ns", "Longest time of one of them"),
        ),
        confidence=Confidence.LOW,
        confidence_reason=way.confidence,
        change=held.change(context),
        fix=f"Most of it is {by}, {times_text(context, len(held.op))} in all. {way.fix}",
        code=framework_of(context.trace).choose(torch=way.torch, cuda=way.cuda),
        where=largest(
            summed_locations(rows, "kernel", "label", "queued_ns"),
            summed_locations(rows, "stream", "by", "queued_ns"),
            *called_from(context, rows, "queued_ns").values(),
        ),
    )


def _rows(context: RuleContext, held: StreamStalls) -> pl.DataFrame:
    """Give the work that waited, with who waited for what in words."""
    names = dict(
        queues_of_streams(context.schedule).select("queue", pl.col("stream").cast(pl.String)).rows()
    )
    queue = pl.col("queue").replace_strict(names, default="?", return_dtype=pl.String)
    every = context.ops.with_columns(queue.alias("stream"))
    first, second = every[held.op], every[np.maximum(held.needs, 0)]
    waiting = pl.format("stream {} ({}) waiting for ", first["stream"], first["label"])
    other = pl.format("stream {} ({})", second["stream"], second["label"])
    by_function = pl.lit(pl.Series(held.function))
    return first.with_columns(
        pl.Series("queued_ns", held.ns),
        (waiting + pl.when(by_function).then(pl.lit("a host function")).otherwise(other)).alias(
            "by"
        ),
    )


_BOUND = "an upper bound: which of the waits are needed cannot be seen"
_STREAMS = _Way(
    title="Launched work waits {} for other streams",
    share="Part of the time in which {} is idle and its next work is launched",
    confidence=_BOUND,
    fix=DependencyStall.fix,
    torch=DependencyStall.code,
    cuda="""\
produce<<<grid, block, 0, side>>>(y);
cudaEventRecord(produced, side);  // not behind all else in `side`
independent<<<grid, block, 0, main>>>(z);  // runs beside it
cudaStreamWaitEvent(main, produced, 0);
consume<<<grid, block, 0, main>>>(y);
""",
)
_TURNS = _Way(
    title="Streams take turns for {}, with kernels that leave SMs empty",
    share="Part of the time in which launched work of {} waits for a kernel of few blocks",
    confidence=f"{_BOUND}, and beside each other kernels share caches and memory",
    fix="Two such kernels fit on the GPU at once. Drop the waits that no data needs, and wait only "
    "where the streams meet.",
    torch="""\
with torch.cuda.stream(first):
    a = chain_a(x)  # all of it, without waiting for `second`
with torch.cuda.stream(second):
    b = chain_b(y)
torch.cuda.current_stream().wait_stream(first)  # once, where both are needed
torch.cuda.current_stream().wait_stream(second)
""",
    cuda="""\
for (int i = 0; i < n; ++i) a<<<grid, block, 0, first>>>(x);
for (int i = 0; i < n; ++i) b<<<grid, block, 0, second>>>(y);
cudaEventRecord(done, second);
cudaStreamWaitEvent(first, done, 0);  // once, where both are needed
""",
)
_FUNCTIONS = _Way(
    title="Launched work waits {} for host functions in its stream",
    share="Part of the time in which {} is idle and its next work is launched",
    confidence="an upper bound: whether the work needs what the functions do cannot be seen, nor "
    "into which stream they were put",
    fix="The stream stands still while such a function runs, and the thread that runs it may have "
    "to wait for a processor or for the lock of Python. Put it into a stream of its own that waits "
    "for an event, or let a thread of the program wait for the event.",
    torch="""\
done.record()  # torch.cuda.Event(), behind the work
pool.submit(lambda: (done.synchronize(), report()))  # a thread, not the stream
""",
    cuda="""\
cudaEventRecord(done, compute);
cudaStreamWaitEvent(side, done, 0);
cudaLaunchHostFunc(side, report, data);  // `compute` goes on
""",
)
