"""exposed-communication: collectives that do not overlap with compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.replay.changes import own_stream
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import called_from, is_training, largest, summed_locations
from gpusight.rules.locations import gpu_work
from gpusight.rules.patterns import memcpys
from gpusight.rules.rule import CLEAN, RuleMatch, RuleNotApplicable, Threshold, TimelineRule
from gpusight.units import format_share

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.patterns.memcpys import ExposedTime
    from gpusight.rules.rule import RuleVerdict
    from gpusight.trace.intervals import Intervals


MIN_EXPOSED_SHARE = Threshold(
    0.01, "share of the time with exposed communication; less is not worth overlapping"
)
SHARDED = ("allgather", "all_gather", "reducescatter", "reduce_scatter")
"""Collectives of sharded training (FSDP, ZeRO), in lower case."""
REPLICATED = ("allreduce", "all_reduce")
"""The same of replicated training (DDP)."""


class ExposedCommunication(TimelineRule):
    """Collectives without overlap."""

    id = "exposed-communication"
    detects = (
        "Looks for communication kernels (NCCL, RCCL, NVSHMEM, custom all-reduce) that run while "
        "no other kernel does."
    )
    why = (
        "Communication that overlaps with compute costs little. Exposed communication adds to "
        "every step, and grows with the number of GPUs."
    )
    fix = (
        "Start collectives as soon as their data is ready, in large enough chunks, and overlap "
        "them with compute."
    )
    code = """\
model = DistributedDataParallel(
    model,
    bucket_cap_mb=100,
    gradient_as_bucket_view=True,
    static_graph=True,
)
with model.no_sync():  # during gradient accumulation
    loss.backward()
"""
    verify = (
        "`gpusight ledger` shows less `communication`. Compare the traces of all ranks to find "
        "stragglers."
    )
    caveats = (
        "A collective ends when the slowest rank has joined. Time that looks like communication "
        "may be waiting for a straggler, which the capture of one rank does not show. Tensor "
        "parallelism needs each result at once, so there is little to overlap."
    )
    estimate = (
        "Simulation with the collectives on their own stream and nothing waiting for them. An "
        "upper bound: the last collectives have no compute left to overlap with."
    )
    effort = "config"
    thresholds: ClassVar = {
        "min_exposed_share": MIN_EXPOSED_SHARE,
        "min_delay_ns": memcpys.MIN_DELAY_NS,
    }

    def check(self, context: RuleContext) -> RuleVerdict:
        """Measure the time in which only communication kernels run."""
        if context.kernels.is_empty():
            if (context.ops["kind"] == "graph").any():
                return RuleNotApplicable("CUDA graphs traced as one event: kernels not visible")
            return RuleNotApplicable("no kernels in the capture")
        rows = context.kernels.filter(pl.col("category") == "communication")
        if rows.is_empty():
            return CLEAN
        exposed = memcpys.most_exposed(context, rows, _covers(context))
        if exposed.ns < MIN_EXPOSED_SHARE.value * context.length_ns:
            return CLEAN
        return _match(context, rows, exposed)

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find communication kernels, those that the finding names if any."""
        return gpu_work(context, finding, pl.col("category") == "communication")


def _covers(context: RuleContext) -> dict[int, Intervals]:
    """Return the times in which other work of each GPU hides communication, as in the ledger."""
    return memcpys.computing(context, or_copying=True)


def _match(context: RuleContext, rows: pl.DataFrame, exposed: ExposedTime) -> RuleMatch:
    exposed_ns = memcpys.not_covered(rows, _covers(context))
    rows = rows.with_columns(pl.Series("exposed_ns", exposed_ns, pl.Int64))
    trace = context.trace
    has_names = trace.has("collectives")
    names = names_of(trace.table("collectives", ["name"])["name"]) if has_names else []
    texts = " ".join([*names, *rows["label"].unique().drop_nulls()]).lower()
    torch_fix, torch_code = _torch_way(context, texts)
    took_ns = int(rows["duration_ns"].sum())
    hidden_share = 1 - int(rows["exposed_ns"].sum()) / max(1, took_ns)
    top = summed_locations(rows, "kernel", "label", "exposed_ns")[0]
    share = (top.ns or 0.0) / max(1, int(rows["exposed_ns"].sum()))
    summary = f"{format_share(share)} of it is {top.name}"
    called = f", called as {', '.join(names[:3])}" if names else ""
    advice = context.framework.choose(
        torch=torch_fix,
        cuda="Issue collectives on their own stream as soon as their data is ready. Group small "
        "ones (ncclGroupStart), and overlap them with independent kernels.",
        jax="Let XLA overlap them: XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true, and "
        "larger combine thresholds.",
    )
    late = "If one rank is a straggler, fix that rank first: compare the traces of all ranks."
    return RuleMatch(
        title=f"Exposed communication: {context.time_per_step(exposed.ns)}",
        evidence=(
            Evidence(
                "exposed_share",
                exposed.ns / max(1, context.length_ns),
                "share",
                f"Share of the time with exposed communication on GPU {exposed.device}",
            ),
            context.evidence("collectives", rows.height, "", "Communication kernels"),
            context.evidence("took_ns", took_ns, "ns", "Time in communication kernels"),
            Evidence(
                "hidden_share", hidden_share, "share", "Share of it that overlaps with compute"
            ),
            *_sent(context),
        ),
        confidence=Confidence.LOW,
        confidence_reason="an upper bound: the capture of one rank shows neither stragglers nor "
        "which kernels need the results",
        measured_ns=exposed.ns,
        change=(own_stream(rows["op"].to_numpy()), memcpys.not_waiting_for(context, rows)),
        fix=f"{summary}{called}. {advice} {late}",
        code=context.framework.choose(torch=torch_code, cuda=_CUDA, jax=_JAX),
        where=largest(
            summed_locations(rows, "kernel", "label", "exposed_ns"),
            *called_from(context, rows, "exposed_ns").values(),
        ),
    )


def _sent(context: RuleContext) -> tuple[Evidence, ...]:
    """Return the input size of the collectives, where it was recorded."""
    trace, schedule = context.trace, context.schedule
    if not trace.has("collectives", "in_bytes"):
        return ()
    table = trace.table("collectives", ["start_ns", "side", "in_bytes"]).filter(
        pl.col("start_ns") >= schedule.start_ns, pl.col("start_ns") < schedule.end_ns
    )
    sides = table.group_by(pl.col("side").cast(pl.String)).agg(pl.col("in_bytes").sum())
    in_bytes = max(sides["in_bytes"].to_list(), default=0)
    if not in_bytes:
        return ()
    return (context.evidence("in_bytes", in_bytes, "byte", "Input of collectives"),)


def _torch_way(context: RuleContext, collectives: str) -> tuple[str, str]:
    """Return advice and code by the collectives: DDP and FSDP are for training only."""
    if is_training(context):
        if any(word in collectives for word in SHARDED):
            return _FSDP, _FSDP_CODE
        if any(word in collectives for word in REPLICATED):
            return _DDP, ExposedCommunication.code
        return _OTHER, _ALL_TO_ALL_CODE
    return _PARALLEL, _ASYNC_CODE


_DDP = (
    "With DistributedDataParallel: larger buckets (bucket_cap_mb) for many short collectives, "
    "smaller ones if the last waits for the whole backward pass. Set gradient_as_bucket_view=True "
    "and static_graph=True. Use no_sync() during gradient accumulation. A BF16 compression hook "
    "halves the traffic."
)
_FSDP = (
    "With FSDP: prefetch (backward_prefetch=BACKWARD_PRE, forward_prefetch=True; "
    "set_modules_to_forward_prefetch with fully_shard) and wrap larger units. Where memory allows, "
    "keep parameters gathered (reshard_after_forward=False) or shard within a node only "
    "(HYBRID_SHARD)."
)
_PARALLEL = (
    "With tensor parallelism: use fewer ranks or larger batches, a one-shot all-reduce over "
    "NVLink, or asynchronous collectives that overlap with the next independent GEMM."
)
_OTHER = (
    "Start sends and all-to-alls asynchronously, and overlap them with independent kernels: an "
    "interleaved schedule for pipeline parallelism, shared experts for expert parallelism."
)
_ASYNC_CODE = """\
work = torch.distributed.all_reduce(partial, async_op=True)
other = independent(x)  # overlaps with the all-reduce
work.wait()
"""
_ALL_TO_ALL_CODE = """\
work = torch.distributed.all_to_all_single(received, sent, async_op=True)
other = shared_experts(x)  # overlaps with the all-to-all
work.wait()
"""
_FSDP_CODE = """\
model = FSDP(
    model,
    backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
    forward_prefetch=True,
    limit_all_gathers=True,
)
"""
_CUDA = """\
cudaEventRecord(ready, compute);
cudaStreamWaitEvent(sending, ready, 0);
ncclAllReduce(data, data, n, ncclFloat, ncclSum, comm, sending);
next_kernel<<<grid, block, 0, compute>>>();  // overlaps
"""
_JAX = "export XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true\n"
