"""alloc-churn: every step calls cudaMalloc and cudaFree."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import polars as pl

from gpusight.analysis.gpu_schedule import CallKind
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.replay.changes import free_calls
from gpusight.rules.finding import Confidence
from gpusight.rules.formatting import called_from, largest, named, summed_locations
from gpusight.rules.locations import idle_gaps, of_calls, with_idle_gaps
from gpusight.rules.patterns.host_gaps import host_unknown, idle_ns
from gpusight.rules.rule import CLEAN, Framework, RuleMatch, Threshold, TimelineRule

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import FindingLocation, RuleVerdict


MIN_STEP_SHARE = Threshold(
    0.5, "share of the steps that must allocate or free memory; fewer indicate warm-up"
)
MIN_REALLOCATIONS = Threshold(
    3,
    "allocations after the first launch and the first free, or of each in a single step, where "
    "fewer than two steps are known; fewer are setup and teardown",
)
MIN_UNCACHED_RATIO = Threshold(
    0.5, "calls per kernel launch above which no caching allocator is at work"
)
_KINDS = ("allocate", "free")
MAX_POOLED_NS = Threshold(
    20_000, "ns; a shorter cudaMallocAsync or cudaFreeAsync was served by its memory pool"
)


class AllocChurn(TimelineRule):
    """Allocations and frees of the driver inside steps."""

    id = "alloc-churn"
    detects = (
        "Looks for steps after warm-up that call cudaMalloc, cudaFree, cuMemMap, cudaHostAlloc or "
        "similar functions."
    )
    why = (
        "Each call takes the driver tens to hundreds of microseconds. cudaFree also synchronizes: "
        "it waits for all work on the GPU."
    )
    fix = (
        "Allocate once and reuse the memory: use a caching allocator, or allocate buffers before "
        "the loop."
    )
    code = """\
# no torch.cuda.empty_cache() in the loop; for varying sizes:
#   PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python script.py
buffer = torch.empty(shape, device="cuda")     # once, before the loop
torch.matmul(a, b, out=buffer)
"""
    cuda_code = """\
cudaMemPool_t pool; cudaDeviceGetDefaultMemPool(&pool, device);
uint64_t keep = UINT64_MAX;
cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep);
cudaMallocAsync(&buffer, bytes, stream);       // instead of cudaMalloc
cudaFreeAsync(buffer, stream);                 // does not synchronize
"""
    jax_code = """\
# XLA_PYTHON_CLIENT_PREALLOCATE=true (the default)
step = jax.jit(step, donate_argnums=0)
"""
    snippets: ClassVar = {
        Framework.CUPY: """\
cp.cuda.set_allocator(cp.cuda.MemoryPool().malloc)   # the default; no free_all_blocks in the loop
cp.add(a, b, out=buffer)                       # into an array that exists already
""",
        Framework.NUMBA: """\
buffer = cuda.device_array(shape, np.float32)  # once, before the loop
kernel[blocks, threads](x, buffer)
""",
        Framework.JULIA: """\
buffer = CUDA.zeros(Float32, n)                # once, before the loop
buffer .= a .+ b                               # in place; no CUDA.reclaim() in the loop
""",
    }
    verify = "`gpusight api` shows no cudaMalloc or cudaFree after the first steps."
    caveats = (
        "Near the memory limit, the caching allocator must free and reallocate. Then reduce memory "
        "use instead: a smaller batch, or activation checkpointing."
    )
    removes_work = True
    estimate = (
        "Simulation in which these calls take no time and do not synchronize. Slowdown of other "
        "calls is not included. Measured on an H200 with four programs: the fix saved 1.0x to 1.7x "
        "of the estimate under nsys, 0.6x to 1.3x without a profiler."
    )
    effort = "config"
    thresholds: ClassVar = {
        "min_step_share": MIN_STEP_SHARE,
        "min_reallocations": MIN_REALLOCATIONS,
        "min_uncached_ratio": MIN_UNCACHED_RATIO,
        "max_pooled_ns": MAX_POOLED_NS,
    }

    def check(self, context: RuleContext) -> RuleVerdict:
        """Count the calls that allocate or free memory, step by step."""
        if (unknown := host_unknown(context)) is not None:
            return unknown
        if context.steps > 1 or (context.steps and _ran_before(context)):
            rows = _in_steps(context)
        else:
            rows = _without_steps(context)
        return CLEAN if rows.is_empty() else _match(context, rows)

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find calls that allocate or free memory, with the gap that follows."""
        rows = context.calls.filter(pl.col("kind").cast(pl.String).is_in(_KINDS))
        names = [location.name for location in finding.where if location.kind == "call"]
        meant = rows.filter(pl.col("name").cast(pl.String).is_in(names))
        calls = of_calls(context, meant if meant.height else rows, "name")
        return with_idle_gaps(idle_gaps(context, tuple(IdleCause)), calls)


def _slow() -> pl.Expr:
    """Leave out calls that a pool serves at once: that is the fix, not the problem."""
    pooled = pl.col("name").str.contains("Async")
    return ~pooled | (pl.col("duration_ns") >= MAX_POOLED_NS.value)


def _ran_before(context: RuleContext) -> bool:
    """Return whether kernels ran before the window: what it allocates is not for its first ones."""
    first_ns = context.trace.table("kernels", ["start_ns"])["start_ns"].min()
    return isinstance(first_ns, int) and first_ns < context.schedule.start_ns


def _in_steps(context: RuleContext) -> pl.DataFrame:
    rows = context.calls_of(CallKind.ALLOCATE, CallKind.FREE)
    rows = rows.filter(pl.col("step").is_not_null(), _slow())
    regular = rows["step"].n_unique() > MIN_STEP_SHARE.value * context.steps
    if context.steps == 1:  # a single step may let a cache grow
        counts = [rows.filter(pl.col("kind").cast(pl.String) == k).height for k in _KINDS]
        regular = min(counts) >= MIN_REALLOCATIONS.value
    return rows if regular else rows.clear()


def _without_steps(context: RuleContext) -> pl.DataFrame:
    """Return the calls from the first free after a launch on."""
    kind = pl.col("kind").cast(pl.String)
    launched = (kind == "launch").cum_sum() > 0
    freed = (launched & (kind == "free")).cum_sum() > 0
    rows = context.calls.with_columns(freed.over("host_thread").alias("freed")).filter(
        pl.col("freed"), kind.is_in(_KINDS), _slow()
    )
    # What a program frees at its end it does not allocate again.
    last = pl.col("call").filter(kind == "allocate").max().over("host_thread")
    rows = rows.filter(pl.col("call") <= last)
    allocations = rows.filter(kind == "allocate").height
    return rows if allocations >= MIN_REALLOCATIONS.value else rows.clear()


def _match(context: RuleContext, rows: pl.DataFrame) -> RuleMatch:
    where = largest(*called_from(context, rows).values(), summed_locations(rows, "call", "name"))
    spent_ns = float(rows["duration_ns"].sum())
    count = context.count_per_step(rows.height, "" if context.focus.steps else "call")
    return RuleMatch(
        title=f"{_call_names(rows)}: {count}",
        evidence=(
            context.evidence("calls", rows.height, "", "Allocation and free calls"),
            context.evidence("calls_ns", spent_ns, "ns", "Host time in these calls"),
            context.evidence(
                "waited_ns",
                int(rows["waited_ns"].sum()),
                "ns",
                "Host time blocked on the GPU in these calls",
            ),
        ),
        confidence=Confidence.HIGH,
        confidence_reason="the calls and the GPU idle time were measured",
        change=(free_calls(rows["call"].to_numpy()),),
        measured_ns=min(spent_ns, idle_ns(context, IdleCause.ALLOCATING)),
        fix=_fix(context, rows, where),
        where=where,
        effort=context.framework.choose(torch="config", cuda="rewrite", jax="config"),
    )


def _call_names(rows: pl.DataFrame) -> str:
    """Name the most frequent calls of both kinds: `cudaMalloc/cudaFree`."""
    counts = (
        rows.group_by("kind", "name").len().sort("len", "name", descending=[True, False])
    ).unique("kind", keep="first", maintain_order=True)
    return "/".join(counts.sort(pl.col("kind").cast(pl.String))["name"].to_list())


def _fix(context: RuleContext, rows: pl.DataFrame, where: tuple[FindingLocation, ...]) -> str:
    calls = [w.name for w in where if w.kind == "call"]
    source = named(where, "site", "operator") or named(where, "range")
    summary = f"Most time is in {' and '.join(calls[:2])}" + (
        f", called in {source}." if source else "."
    )
    on_host = any("Host" in name for name in calls)
    pinned = " Keep pinned buffers for the whole run." if on_host else ""
    launches = context.calls_of(CallKind.LAUNCH).height
    uncached = rows.height >= MIN_UNCACHED_RATIO.value * max(1, launches)
    return f"{summary}{pinned} " + context.framework.choose(
        torch="Nearly every tensor calls the driver, as with PYTORCH_NO_CUDA_MEMORY_CACHING=1: "
        "unset it."
        if uncached
        else "Remove torch.cuda.empty_cache() from the loop. Make sure that "
        "PYTORCH_NO_CUDA_MEMORY_CACHING is not set. For varying sizes, set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
        cuda="Allocate before the loop, or use cudaMallocAsync with a memory pool that keeps its "
        "memory (release threshold).",
        jax="Keep XLA_PYTHON_CLIENT_PREALLOCATE=true, and donate buffers (donate_argnums).",
        other="Allocate arrays before the loop and write into them, or keep the "
        "memory pool of the framework enabled.",
    )
