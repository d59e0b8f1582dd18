"""dependency-stall: launched kernels wait for other streams, or for host functions.

Three cases are distinguished. The GPU is idle, and the next activity waits for another stream or
GPU. The GPU is idle, and the activity is behind a host function in its stream. Or the GPU is not
idle, but two streams wait for each other in turns with kernels that could run concurrently.
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
from gpusight.analysis.replay.schedule_waits import ids_of_streams
from gpusight.analysis.replay.simulation import LatencyBase, put
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import called_from, largest, summed_locations
from gpusight.rules.locations import idle_gaps, named_by_work
from gpusight.rules.patterns.kernel_groups import sm_count
from gpusight.rules.rule import CLEAN, RuleMatch, RuleNotApplicable, Threshold, TimelineRule
from gpusight.units import format_share

if TYPE_CHECKING:
    from gpusight.analysis.replay.changes import Change
    from gpusight.analysis.replay.simulation import ReplayProgram
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import RuleVerdict
    from gpusight.trace.intervals import Flags, Ints


MIN_STALL_NS = Threshold(
    10_000, "ns; kernels of one stream start within a few microseconds of each other anyway"
)
MIN_HANDOVERS = Threshold(
    4, "handovers per step between two streams and back; fewer may be true dependencies"
)
MAX_COMBINED_BLOCKS_PER_SM = Threshold(
    1.0,
    "blocks per SM of two kernels together, up to which they run concurrently. Kernels that fill "
    "the GPU gain little: GEMMs with 1.9 blocks per SM each took at most 8% less time without "
    "their waits",
)
_HOST_FUNCTION = r"LaunchHostFunc|StreamAddCallback"
"""Calls that put a function of the host into a stream."""


@dataclass(frozen=True)
class StreamStalls:
    """Delayed activities of one GPU, and what they waited for; arrays have one entry for each."""

    device: int
    op: Ints
    """Position in `GpuSchedule.ops`."""
    ns: Ints
    """How long."""
    needs: Ints
    """The activity that it waited for; `NONE` where that is not known."""
    function: Flags
    """It was behind a host function in its stream."""

    @property
    def total_ns(self) -> int:
        """Sum of the waits."""
        return int(self.ns.sum())

    def only(self, mask: Flags) -> StreamStalls:
        """Return some of them."""
        return StreamStalls(
            self.device, self.op[mask], self.ns[mask], self.needs[mask], self.function[mask]
        )

    def change(self, context: RuleContext) -> tuple[Change, ...]:
        """Start the activities without waiting."""
        behind = self.op[self.function]
        return without_needs(self.op[~self.function]), _without_function(context, behind)


def stalls_in_idle(context: RuleContext) -> StreamStalls:
    """Find the GPU that was idle longest although activities were launched, and these."""
    stalls = []
    for account_ in account(context.schedule, context.hosts):
        spans, gaps = account_.spans, account_.gaps
        idle = np.flatnonzero(spans.gap >= 0)
        gap = spans.gap[idle]
        op = gaps.op[gap]
        start_ns = np.maximum(spans.start_ns[idle], gaps.launched_ns[gap])
        waited_ns = np.where(gaps.queued[gap], spans.end_ns[idle] - start_ns, 0)
        long = (op != NONE) & (waited_ns >= MIN_STALL_NS.value)
        stalls.append((account_.device, op[long], waited_ns[long]))
    device, ops, waited = max(stalls, key=lambda stall: int(stall[2].sum()))
    needs = context.replay.program.needs[ops]
    function = (needs == NONE) & _behind_functions(context, ops)
    return StreamStalls(device, ops, waited, needs, function)


def stalls_in_turns(context: RuleContext) -> StreamStalls:
    """Find kernels of streams that take turns, though two of them would fit on the GPU at once.

    A kernel waited for one of another stream, which had itself waited for the first one's stream.
    """
    ops, needs = context.schedule.ops, context.replay.program.needs
    waiting = np.flatnonzero(needs != NONE)
    other = needs[waiting]
    back = needs[other]
    turns = (back != NONE) & (ops.stream_id[back] == ops.stream_id[waiting])
    turns &= (ops.stream_id[other] != ops.stream_id[waiting]) & (ops.device == context.device)[
        waiting
    ]
    waiting, other = waiting[turns], other[turns]
    fits = _fit_together(context, waiting, other)
    waiting, other = waiting[fits], other[fits]
    schedule = context.schedule
    # When they were launched and their own stream was free.
    before, call = _before(context)[waiting], schedule.ops.call[waiting]
    free_ns = np.where(before != NONE, schedule.ops.end_ns[before], schedule.start_ns)
    launched_ns = np.where(call != NONE, schedule.calls.end_ns[call], schedule.start_ns)
    ready_ns: Ints = np.maximum(free_ns, launched_ns)
    waited_ns = ops.end_ns[other] - np.maximum(ops.start_ns[other], ready_ns)
    long = waited_ns >= MIN_STALL_NS.value
    if np.count_nonzero(long) < MIN_HANDOVERS.value * context.per_step:
        long[:] = False
    waiting, other, waited_ns = waiting[long], other[long], waited_ns[long]
    return StreamStalls(context.device, waiting, waited_ns, other, np.zeros(len(waiting), np.bool_))


def _fit_together(context: RuleContext, first: Ints, second: Ints) -> Flags:
    """Return which pairs are kernels that fit on the GPU together; communication never does."""
    sms = sm_count(context)
    if sms is None or not len(first):
        return np.zeros(len(first), np.bool_)
    computes = (pl.col("kind") == "kernel") & (pl.col("category") != "communication")
    # Activities of unknown size count as filling the GPU.
    blocks = pl.when(computes).then("blocks").otherwise(None).fill_null(1 << 31)
    size = context.ops.select(blocks.cast(pl.Int64)).to_series().to_numpy()
    fits: Flags = size[first] + size[second] <= MAX_COMBINED_BLOCKS_PER_SM.value * sms
    return fits


def _before(context: RuleContext) -> Ints:
    """Return the activity before each in its stream, `NONE` for the first."""
    ops = context.schedule.ops
    order = np.lexsort((ops.start_ns, ops.stream_id))
    before = np.full(len(ops), NONE, np.int64)
    same = ops.stream_id[order][1:] == ops.stream_id[order][:-1]
    before[order[1:][same]] = order[:-1][same]
    return before


def _behind_functions(context: RuleContext, ops: Ints) -> Flags:
    """Return which activities have a host function between them and the launch before.

    The stream of a host function is not recorded. What began on time was not behind one.
    """
    schedule = context.schedule
    names = context.calls.filter(pl.col("name").cast(pl.String).str.contains(_HOST_FUNCTION))
    before = _before(context)[ops]
    call, earlier = schedule.ops.call[ops], schedule.ops.call[before]
    known = (before != NONE) & (call != NONE) & (earlier != NONE)
    if not names.height or not known.any():
        return np.zeros(len(ops), np.bool_)
    # Numbers that increase by thread, and within a thread by position.
    host_thread = schedule.calls.host_thread * len(schedule.calls)
    functions = np.sort((host_thread + np.arange(len(host_thread)))[names["call"].to_numpy()])
    between = np.searchsorted(functions, host_thread[call] + call) > np.searchsorted(
        functions, host_thread[call] + earlier
    )
    behind: Flags = known & between
    return behind


def _without_function(context: RuleContext, ops: Ints) -> Change:
    """Let activities follow their launch and the activity before with typical latencies."""
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
    0.02, "share of the time that launched kernels are stalled; less is noise"
)
MIN_EXPLAINED_SHARE = Threshold(
    0.5, "share of the stalls whose cause the capture shows, needed to blame streams"
)


class DependencyStall(TimelineRule):
    """Kernels stalled by another stream, or by a host function in their own."""

    id = "dependency-stall"
    detects = (
        "Looks for GPU idle time in which the next kernel is already launched. It waits for an "
        "event, for another stream or GPU, or for a host function. Also for two streams that "
        "alternate although their kernels are small enough to run concurrently."
    )
    why = (
        "Streams that wait for each other are serialized. The GPU is idle from the end of the "
        "awaited kernel until the waiting stream continues, and as long as another GPU takes."
    )
    fix = (
        "Record the event right after the kernel that produces the data. Wait for it right before "
        "the kernel that needs it. Remove waits that no data dependency needs."
    )
    code = """\
produced = torch.cuda.Event()
with torch.cuda.stream(side):
    y = produce(x)
    produced.record(side)  # not after all other work of `side`
independent(z)  # runs concurrently
torch.cuda.current_stream().wait_event(produced)
consume(y)
"""
    verify = "`gpusight ledger` shows less `idle/queued`."
    caveats = (
        "Another process on the same GPU, which the capture does not show, delays kernels in the "
        "same way. So do graphics and clock changes. A true dependency cannot be removed, only "
        "overlapped. The stream of a host function is not recorded: kernels that start late after "
        "one are assumed to wait for it."
    )
    estimate = (
        "Simulation in which these kernels wait for no other stream and no host function: an upper "
        "bound, since some of the waits are needed."
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
            return RuleNotApplicable("no GPU activity is linked to its launch")
        min_stall_ns = MIN_STALL_SHARE.value * context.length_ns
        idle, turns = stalls_in_idle(context), stalls_in_turns(context)
        if turns.total_ns >= max(min_stall_ns, idle.total_ns):
            return _match(context, turns, _TURNS)
        if idle.total_ns < min_stall_ns:
            return CLEAN
        known = idle.only((idle.needs != NONE) | idle.function)
        if known.total_ns < MIN_EXPLAINED_SHARE.value * idle.total_ns:
            share = format_share(idle.total_ns / max(1, context.length_ns))
            return RuleNotApplicable(
                f"launched kernels are stalled {share} of the time, and the capture does not show "
                "why: another process on the GPU, or a wait that was not recorded"
            )
        by_functions = known.ns[known.function].sum() * 2 > known.total_ns
        return _match(context, known, _FUNCTIONS if by_functions else _STREAMS)

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find idle time in which launched kernels waited, those that are named if any."""
        idle = idle_gaps(context, (IdleCause.QUEUED,), any_gpu=True)
        gaps = named_by_work(context, idle)
        labels = [location.name for location in finding.where if location.kind == "kernel"]
        meant = gaps.filter(pl.col("name").is_in(labels))
        return meant if meant.height else gaps


@dataclass(frozen=True)
class _Case:
    """The texts of one case."""

    title: str
    share: str
    confidence: str
    fix: str
    torch: str
    cuda: str


def _match(context: RuleContext, stalls: StreamStalls, case: _Case) -> RuleMatch:
    rows = _stalled_rows(context, stalls)
    sums = rows.group_by("by", maintain_order=True).agg(pl.col("queued_ns").sum())
    by = sums.sort("queued_ns", descending=True)["by"][0]
    share = stalls.total_ns / max(1, context.length_ns)
    return RuleMatch(
        title=case.title.format(context.time_per_step(stalls.total_ns)),
        evidence=(
            Evidence("queued_share", share, "share", case.share.format(f"GPU {stalls.device}")),
            context.evidence("waits", len(stalls.op), "", "Stalled kernels and copies"),
            Evidence("longest_ns", float(stalls.ns.max()), "ns", "Longest stall"),
        ),
        confidence=Confidence.LOW,
        confidence_reason=case.confidence,
        change=stalls.change(context),
        measured_ns=stalls.total_ns,
        fix=f"{context.count_per_step(len(stalls.op), 'stall')}; most time: {by}. {case.fix}",
        code=context.framework.choose(torch=case.torch, cuda=case.cuda, jax=_JAX),
        where=largest(
            summed_locations(rows, "kernel", "label", "queued_ns"),
            summed_locations(rows, "stream", "by", "queued_ns"),
            *called_from(context, rows, "queued_ns").values(),
        ),
    )


def _stalled_rows(context: RuleContext, stalls: StreamStalls) -> pl.DataFrame:
    """Return the delayed activities, with a text of what each waited for in `by`."""
    names = dict(
        ids_of_streams(context.schedule)
        .select("stream_id", pl.col("stream").cast(pl.String))
        .rows()
    )
    stream = pl.col("stream_id").replace_strict(names, default="?", return_dtype=pl.String)
    ops_with_streams = context.ops.with_columns(stream.alias("stream"))
    first, second = ops_with_streams[stalls.op], ops_with_streams[np.maximum(stalls.needs, 0)]
    waiting = pl.format("stream {} ({}) waiting for ", first["stream"], first["label"])
    other = pl.format("stream {} ({})", second["stream"], second["label"])
    by_function = pl.lit(pl.Series(stalls.function))
    return first.with_columns(
        pl.Series("queued_ns", stalls.ns),
        (waiting + pl.when(by_function).then(pl.lit("a host function")).otherwise(other)).alias(
            "by"
        ),
    )


_BOUND = "an upper bound: the capture does not show which waits are needed"
_JAX = "export XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true\n"
_STREAMS = _Case(
    title="GPU idle waiting for other streams: {}",
    share="Share of the time in which {} is idle with the next kernel launched",
    confidence=_BOUND,
    fix=DependencyStall.fix,
    torch=DependencyStall.code,
    cuda="""\
produce<<<grid, block, 0, side>>>(y);
cudaEventRecord(produced, side);  // not after all other work of `side`
independent<<<grid, block, 0, main>>>(z);  // runs concurrently
cudaStreamWaitEvent(main, produced, 0);
consume<<<grid, block, 0, main>>>(y);
""",
)
_TURNS = _Case(
    title="Streams serialized instead of concurrent: {}",
    share="Share of the time in which a launched kernel of {} waits for a small kernel",
    confidence=f"{_BOUND}, and concurrent kernels share caches and memory bandwidth",
    fix="Two of these kernels fit on the GPU at once. Remove waits that no data dependency needs, "
    "and wait only where the streams join.",
    torch="""\
with torch.cuda.stream(first):
    a = chain_a(x)  # without waiting for `second`
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
_FUNCTIONS = _Case(
    title="GPU idle waiting for host functions: {}",
    share="Share of the time in which {} is idle with the next kernel launched",
    confidence="an upper bound: the capture shows neither the streams of the functions nor whether "
    "the kernels need them",
    fix="The stream is blocked while a host function runs, and its thread may wait for a CPU core "
    "or for the GIL. Launch it on a side stream that waits for an event, or wait for the event on "
    "a thread of the program.",
    torch="""\
done.record()  # torch.cuda.Event(), after the kernels
pool.submit(lambda: (done.synchronize(), report()))  # a thread, not the stream
""",
    cuda="""\
cudaEventRecord(done, compute);
cudaStreamWaitEvent(side, done, 0);
cudaLaunchHostFunc(side, report, data);  // `compute` continues
""",
)
