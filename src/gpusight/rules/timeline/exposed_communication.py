"""exposed-communication: collectives that nothing computes beside."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.replay.changes import own_stream
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import (
    called_from,
    framework_of,
    largest,
    of_each_step,
    step_evidence,
    summed_locations,
)
from gpusight.rules.locations import gpu_work
from gpusight.rules.patterns import memcpys
from gpusight.rules.rule import CLEAN, RuleMatch, RuleNotApplicable, Threshold, TimelineRule
from gpusight.units import format_share

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.patterns.memcpys import ExposedTime
    from gpusight.rules.rule import RuleVerdict


MIN_EXPOSED_SHARE = Threshold(
    0.01, "part of the time in which a GPU only communicates; below, hiding it gains nothing"
)
SHARDED = ("allgather", "all_gather", "reducescatter", "reduce_scatter")
"""What sharded training (FSDP, ZeRO) sends, in lower case."""


class ExposedCommunication(TimelineRule):
    """Collectives with nothing beside them."""

    id = "exposed-communication"
    detects = (
        "Looks for kernels that communicate with other GPUs (NCCL, RCCL, NVSHMEM and those of "
        "inference servers) while no other kernel runs."
    )
    why = (
        "Communication that runs beside the computation costs little. What stands alone adds to "
        "every step, and grows with the number of GPUs."
    )
    fix = (
        "Start collectives as soon as their data is ready, in pieces that are large enough, and "
        "let the rest of the step run beside them."
    )
    code = """\
model = DistributedDataParallel(
    model,
    bucket_cap_mb=100,
    gradient_as_bucket_view=True,
    static_graph=True,
)
with model.no_sync():  # while gradients are accumulated
    loss.backward()
"""
    verify = (
        "`gpusight ledger` shows less `communication`; compare the traces of all ranks for one "
        "that arrives late."
    )
    caveats = (
        "A collective ends when the slowest rank has joined: what looks like slow communication "
        "may be waiting for another GPU, which the capture of one rank cannot tell. Tensor "
        "parallelism needs each result at once; there is little to overlap with."
    )
    estimate = (
        "Replay with the collectives on a queue of their own, nothing waiting for them: an upper "
        "bound, for the last of them have nothing left to run beside."
    )
    thresholds: ClassVar = {
        "min_exposed_share": MIN_EXPOSED_SHARE,
        "min_delay_ns": memcpys.MIN_DELAY_NS,
    }

    def check(self, context: RuleContext) -> RuleVerdict:
        """Measure the time in which only communication kernels run."""
        if context.kernels.is_empty():
            if (context.ops["kind"] == "graph").any():
                return RuleNotApplicable(
                    "CUDA graphs were traced as a whole: their kernels are not visible"
                )
            return RuleNotApplicable("no kernels were captured")
        rows = context.kernels.filter(pl.col("category") == "communication")
        if rows.is_empty():
            return CLEAN
        exposed = memcpys.most_exposed(context, rows)
        if exposed.ns < MIN_EXPOSED_SHARE.value * context.length_ns:
            return CLEAN
        return _match(context, rows, exposed)

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find communication kernels, those that the finding names if any."""
        return gpu_work(context, finding, pl.col("category") == "communication")


def _match(context: RuleContext, rows: pl.DataFrame, exposed: ExposedTime) -> RuleMatch:
    exposed_ns = memcpys.not_covered(rows, memcpys.computing(context))
    rows = rows.with_columns(pl.Series("exposed_ns", exposed_ns, pl.Int64))
    trace = context.trace
    has_names = trace.has("collectives")
    names = names_of(trace.table("collectives", ["name"])["name"]) if has_names else []
    sharded = any(
        word in text.lower()
        for text in [*names, *rows["label"].unique().drop_nulls()]
        for word in SHARDED
    )
    return RuleMatch(
        title=f"Collectives run {of_each_step(context, exposed.ns)} with nothing beside them",
        evidence=_evidence(context, rows, exposed),
        confidence=Confidence.LOW,
        confidence_reason="an upper bound: the capture of one rank does not tell waiting for "
        "others from sending, nor what the results are needed for",
        change=(own_stream(rows["op"].to_numpy()), memcpys.not_waiting_for(context, rows)),
        fix=_fix(context, rows, names, sharded=sharded),
        code=framework_of(trace).choose(
            torch=_FSDP_CODE if sharded else ExposedCommunication.code, cuda=_CUDA, jax=_JAX
        ),
        where=largest(
            summed_locations(rows, "kernel", "label", "exposed_ns"),
            *called_from(context, rows, "exposed_ns").values(),
        ),
    )


def _evidence(
    context: RuleContext, rows: pl.DataFrame, exposed: ExposedTime
) -> tuple[Evidence, ...]:
    took_ns = int(rows["duration_ns"].sum())
    hidden_share = 1 - int(rows["exposed_ns"].sum()) / max(1, took_ns)
    return (
        Evidence(
            "exposed_share",
            exposed.ns / max(1, context.length_ns),
            "share",
            f"Part of the time in which GPU {exposed.device} only communicates",
        ),
        step_evidence(context, "collectives", rows.height, "", "Communication kernels"),
        step_evidence(context, "took_ns", took_ns, "ns", "Time of them"),
        Evidence("hidden_share", hidden_share, "share", "Part of that with a kernel beside"),
        *_sent(context),
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
    return (step_evidence(context, "in_bytes", in_bytes, "byte", "Given to collectives"),)


def _fix(context: RuleContext, rows: pl.DataFrame, names: list[str], *, sharded: bool) -> str:
    top = summed_locations(rows, "kernel", "label", "exposed_ns")[0]
    share = (top.ns or 0.0) / max(1, int(rows["exposed_ns"].sum()))
    seen = f"Most of it ({format_share(share)}) is {top.name}"
    called = f", asked for as {', '.join(names[:3])}" if names else ""
    advice = framework_of(context.trace).choose(
        torch=_FSDP if sharded else _DDP,
        cuda="Issue collectives on a stream of their own as soon as their data is ready; group "
        "small ones (ncclGroupStart), and let independent kernels run beside them.",
        jax="Let XLA overlap them: XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true, and "
        "larger combine thresholds.",
    )
    late = "If one rank is always last to join, fix that rank first: compare the ranks' traces."
    return f"{seen}{called}. {advice} {late}"


_DDP = (
    "With DistributedDataParallel: larger buckets (bucket_cap_mb) where collectives are many and "
    "short, smaller ones where the last waits for the whole backward pass; "
    "gradient_as_bucket_view=True; static_graph=True; no_sync() while gradients are accumulated; a "
    "bf16 compression hook halves what is sent."
)
_FSDP = (
    "With FSDP: prefetch (backward_prefetch=BACKWARD_PRE, forward_prefetch=True; "
    "set_modules_to_forward_prefetch with fully_shard), wrap larger units, keep parameters "
    "gathered (reshard_after_forward=False) where memory allows, shard within a node only "
    "(HYBRID_SHARD)."
)
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
next_kernel<<<grid, block, 0, compute>>>();  // beside it
"""
_JAX = "export XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true\n"
