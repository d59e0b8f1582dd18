"""alloc-churn: every step allocates memory from the driver and frees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import polars as pl

from gpusight.analysis.gpu_schedule import CallKind
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.replay.changes import free_calls
from gpusight.rules.finding import Confidence
from gpusight.rules.formatting import (
    called_from,
    framework_of,
    largest,
    named,
    of_each_step,
    step_evidence,
    summed_locations,
    times_text,
)
from gpusight.rules.locations import idle_gaps, of_calls, with_idle_gaps
from gpusight.rules.patterns.host_gaps import host_unknown
from gpusight.rules.rule import CLEAN, RuleMatch, Threshold, TimelineRule

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import FindingLocation, RuleVerdict


MIN_STEP_SHARE = Threshold(
    0.5, "part of the steps that must take or give back memory; fewer are a program that warms up"
)
MIN_REALLOCATIONS = Threshold(
    3,
    "allocations after work was launched and memory given back, where fewer than two steps are "
    "known; fewer are the beginning and the end of a program",
)
MAX_POOLED_NS = Threshold(
    20_000, "ns up to which cudaMallocAsync and cudaFreeAsync were served by their pool"
)


class AllocChurn(TimelineRule):
    """Allocations and frees of the driver inside steps."""

    id = "alloc-churn"
    detects = (
        "Looks for steps that call cudaMalloc, cudaFree, cuMemMap, cudaHostAlloc and the like, "
        "beyond warm-up."
    )
    why = (
        "Such a call takes the driver tens to hundreds of microseconds, and cudaFree waits until "
        "the GPU is done with everything before."
    )
    fix = (
        "Take memory once and use it again: leave it to a caching allocator, or allocate buffers "
        "before the loop."
    )
    code = """\
# no torch.cuda.empty_cache() in the loop; with sizes that vary:
#   PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py
buffer = torch.empty(shape, device="cuda")     # once, before the loop
torch.matmul(a, b, out=buffer)
"""
    verify = "`gpusight api` shows no cudaMalloc or cudaFree after the first steps."
    caveats = (
        "A program close to the GPU's memory frees its cache because it has to: then less memory "
        "(smaller batch, checkpointing) is the fix."
    )
    estimate = (
        "Replay in which these calls cost nothing and wait for nothing; what they slow down around "
        "them is not counted. Four programs on one H200, a run each: the fix gave 1.0 to 1.7 times "
        "as much under nsys, 0.6 to 1.3 times without it."
    )
    thresholds: ClassVar = {
        "min_step_share": MIN_STEP_SHARE,
        "min_reallocations": MIN_REALLOCATIONS,
        "max_pooled_ns": MAX_POOLED_NS,
    }

    def check(self, context: RuleContext) -> RuleVerdict:
        """Count the calls that allocate or free memory, step by step."""
        if (unknown := host_unknown(context)) is not None:
            return unknown
        rows = _in_steps(context) if context.steps > 1 else _without_steps(context)
        return CLEAN if rows.is_empty() else _match(context, rows)

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find calls that allocate or free memory, with the gap that follows."""
        rows = context.calls.filter(pl.col("kind").cast(pl.String).is_in(["allocate", "free"]))
        names = [place.name for place in finding.where if place.kind == "call"]
        meant = rows.filter(pl.col("name").cast(pl.String).is_in(names))
        calls = of_calls(context, meant if meant.height else rows, "name")
        return with_idle_gaps(idle_gaps(context, tuple(IdleCause)), calls)


def _slow() -> pl.Expr:
    """Leave out calls that a pool serves at once: that is the fix, not the problem."""
    pooled = pl.col("name").str.contains("Async")
    return ~pooled | (pl.col("duration_ns") >= MAX_POOLED_NS.value)


def _in_steps(context: RuleContext) -> pl.DataFrame:
    rows = context.calls_of(CallKind.ALLOCATE, CallKind.FREE)
    rows = rows.filter(pl.col("step").is_not_null(), _slow())
    regular = rows["step"].n_unique() > MIN_STEP_SHARE.value * context.steps
    return rows if regular else rows.clear()


def _without_steps(context: RuleContext) -> pl.DataFrame:
    """Return the calls from the first free after a launch on."""
    kind = pl.col("kind").cast(pl.String)
    launched = (kind == "launch").cum_sum() > 0
    freed = (launched & (kind == "free")).cum_sum() > 0
    rows = context.calls.with_columns(freed.over("lane").alias("freed")).filter(
        pl.col("freed"), kind.is_in(["allocate", "free"]), _slow()
    )
    # What a program frees at its end it does not allocate again.
    last = pl.col("call").filter(kind == "allocate").max().over("lane")
    rows = rows.filter(pl.col("call") <= last)
    allocations = rows.filter(kind == "allocate").height
    return rows if allocations >= MIN_REALLOCATIONS.value else rows.clear()


def _match(context: RuleContext, rows: pl.DataFrame) -> RuleMatch:
    where = largest(*called_from(context, rows).values(), summed_locations(rows, "call", "name"))
    spent_ns = float(rows["duration_ns"].sum())
    return RuleMatch(
        title=f"Memory is taken or given back {times_text(context, rows.height)}, "
        f"{of_each_step(context, spent_ns)}",
        evidence=(
            step_evidence(context, "calls", rows.height, "", "Calls that take or give back memory"),
            step_evidence(context, "calls_ns", spent_ns, "ns", "Time the host spends in them"),
            step_evidence(
                context,
                "waited_ns",
                int(rows["waited_ns"].sum()),
                "ns",
                "Of it, waiting for the GPU",
            ),
        ),
        confidence=Confidence.HIGH,
        confidence_reason="the calls and what the GPU waited for were measured",
        change=(free_calls(rows["call"].to_numpy()),),
        fix=_fix(context, where),
        code=framework_of(context.trace).choose(torch=AllocChurn.code, cuda=_CUDA, jax=_JAX),
        where=where,
    )


def _fix(context: RuleContext, where: tuple[FindingLocation, ...]) -> str:
    calls = [w.name for w in where if w.kind == "call"]
    source = named(where, "site", "operator") or named(where, "range")
    seen = f"Seen: {' and '.join(calls[:2])}" + (f" in {source}." if source else ".")
    on_host = any("Host" in name for name in calls)
    pinned = " Keep pinned buffers for the whole run." if on_host else ""
    return f"{seen}{pinned} " + framework_of(context.trace).choose(
        torch="Remove torch.cuda.empty_cache() from the loop, make sure that "
        "PYTORCH_NO_CUDA_MEMORY_CACHING is not set, and let the allocator grow its segments "
        "(PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True) where sizes vary.",
        cuda="Allocate before the loop, or use cudaMallocAsync with a pool that keeps its memory.",
        jax="Leave XLA_PYTHON_CLIENT_PREALLOCATE on, and donate buffers (donate_argnums).",
    )


_CUDA = """\
cudaMemPool_t pool; cudaDeviceGetDefaultMemPool(&pool, device);
uint64_t keep = UINT64_MAX;
cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep);
cudaMallocAsync(&buffer, bytes, stream);       // in place of cudaMalloc
cudaFreeAsync(buffer, stream);                 // does not wait
"""
_JAX = """\
# XLA_PYTHON_CLIENT_PREALLOCATE=true (the default)
train_step = jax.jit(train_step, donate_argnums=0)
"""
