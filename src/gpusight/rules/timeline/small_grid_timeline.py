"""small-grid of a timeline: long kernels with fewer blocks than the GPU has SMs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import library_kernels, quoted_name, summed_locations, title_share
from gpusight.rules.locations import gpu_work
from gpusight.rules.patterns.fusable_kernels import parts_of
from gpusight.rules.patterns.kernel_groups import (
    FIXED_KERNEL_NS,
    MAX_BLOCKS_PER_SM,
    SPREAD,
    THREADS_TO_FILL_SM,
    kernel_ns,
    kernels_unseen,
    left_on_all,
    locations_of,
    main_source_phrase,
    norms_by_channel,
    scale_durations,
    sm_count,
    small_grids,
    total_ns,
)
from gpusight.rules.rule import (
    CLEAN,
    UNKNOWN_SMS,
    Framework,
    RuleMatch,
    RuleNotApplicable,
    Threshold,
    TimelineRule,
)
from gpusight.units import format_count

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import RuleVerdict


MIN_TIME_SHARE = Threshold(0.02, "share of the time in these kernels; less is not worth fixing")


class SmallGridTimeline(TimelineRule):
    """Kernels that leave SMs idle."""

    id = "small-grid"
    detects = (
        "Looks for kernels of 10 µs or more that run alone with at most half as many blocks as the "
        "GPU has SMs. Communication, final stages of larger kernels and batch normalization of "
        "`layout-transpose` are excluded."
    )
    why = "A block runs on one SM. SMs without a block are idle while the kernel runs."
    fix = (
        "Launch more blocks: larger batches, parallelism along another dimension, or several "
        "kernels at once on different streams."
    )
    code = """\
int blocks = (n + threads - 1) / threads;    // from the problem, not a constant
kernel<<<blocks, threads, 0, stream>>>(...); // independent small kernels: one stream each
"""
    library_code = """\
// one batched call instead of a loop over small GEMMs
cublasGemmStridedBatchedEx(handle, ...);
cublasSetStream(handle, stream);             // or independent calls on several streams
"""
    jax_code = """\
y = jax.vmap(f)(xs)              # one batched call instead of a loop over small ones
"""
    torch_code = """\
y = torch.bmm(a, b)              # one batched call instead of a loop over small ones
model = torch.compile(model)     # generated kernels use more blocks for reductions
"""
    snippets: ClassVar = {
        Framework.CUPY: """\
y = cp.matmul(a, b)              # one call for a batch instead of a loop over small ones
""",
        Framework.NUMBA: """\
blocks = (n + threads - 1) // threads          # from the problem, not a constant
kernel[blocks, threads](x)
""",
        Framework.JULIA: """\
@cuda threads=threads blocks=cld(n, threads) kernel(x)   # from the problem, not a constant
""",
    }
    verify = (
        "`gpusight kernels` shows larger grids and shorter kernels. `gpusight record --ncu` shows "
        "how many SMs are active."
    )
    caveats = (
        "A small problem has no more parallelism, such as a small model with batch size 1. Kernels "
        "with one large block per SM may have another limiter."
    )
    estimate = (
        f"Simulation in which the time beyond {FIXED_KERNEL_NS / 1000:g} µs shrinks as if the work "
        f"ran on all SMs, to {SPREAD:.0%} at least. Kernels other than GEMMs need "
        f"{format_count(THREADS_TO_FILL_SM)} threads per SM for that. An upper bound: there may be "
        "no more parallelism, or memory bandwidth may be the limit."
    )
    thresholds: ClassVar = {
        "max_blocks_per_sm": Threshold(
            MAX_BLOCKS_PER_SM, "blocks per SM; above it, one wave that is not quite full is normal"
        ),
        "fixed_kernel_ns": Threshold(
            FIXED_KERNEL_NS, "ns; shorter kernels are dominated by launch and memory latency"
        ),
        "min_time_share": MIN_TIME_SHARE,
        "threads_to_fill_sm": Threshold(
            THREADS_TO_FILL_SM,
            "threads that keep an SM busy, half of its maximum; with fewer, memory latency is not "
            "hidden",
        ),
        "spread": Threshold(
            SPREAD,
            "minimum share of the time that remains: one SM can use up to 1/40 of the memory "
            "bandwidth, so not even a single block gains more",
        ),
    }

    def check(self, context: RuleContext) -> RuleVerdict:
        """Compare blocks with SMs."""
        if (unseen := kernels_unseen(context)) is not None:
            return unseen
        sms = sm_count(context)
        if sms is None:
            return RuleNotApplicable(UNKNOWN_SMS)
        if not context.kernels["blocks"].count():
            return RuleNotApplicable("the capture has no grid sizes")
        # Batch normalization with few channels is a finding of layout-transpose.
        layout = norms_by_channel(context, parts_of(context).layout)["op"].implode()
        rows = small_grids(context, sms).filter(~pl.col("op").is_in(layout))
        if total_ns(rows) < MIN_TIME_SHARE.value * context.length_ns:
            return CLEAN
        share = total_ns(rows) / kernel_ns(context)
        blocks = round(float(np.median(rows["blocks"].to_numpy())))
        names = ", ".join(
            quoted_name(w.name) for w in summed_locations(rows, "kernel", "label")[:3]
        )
        time = context.time_per_step(total_ns(rows))
        is_amd = context.gpu is not None and context.gpu.vendor == "AMD"
        kind = "compute units" if is_amd else "SMs"
        few = "1 block" if blocks == 1 else f"{format_count(blocks)} blocks"
        return RuleMatch(
            title=f"Small grids: {few} for {sms} {kind} ({title_share(share)} of kernel time)",
            evidence=(
                Evidence("sm_count", sms, "", f"{kind}"),
                Evidence("blocks", blocks, "", "Blocks per kernel, median"),
                context.evidence("kernels", rows.height, "", "Kernels with small grids"),
                context.evidence("small_ns", total_ns(rows), "ns", "Time in these kernels"),
                Evidence("gpu_share", share, "share", "Share of kernel time"),
            ),
            confidence=Confidence.LOW,
            confidence_reason="an upper bound: it is unknown whether the work has more parallelism",
            change=(scale_durations(rows["op"].to_numpy(), left_on_all(rows, sms)),),
            fix=f"{names}{main_source_phrase(context, rows)}: {time}. {_way(context, rows)}",
            code=context.framework.choose(
                torch=SmallGridTimeline.torch_code,
                cuda=SmallGridTimeline.library_code
                if library_kernels(rows)
                else SmallGridTimeline.code,
                jax=SmallGridTimeline.jax_code,
            ),
            where=locations_of(context, rows),
        )

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find kernels, those that the finding names if any."""
        return gpu_work(context, finding, pl.col("kind") == "kernel")


def _way(context: RuleContext, rows: pl.DataFrame) -> str:
    """Return advice that fits: the grids of a library's kernels are not the program's to set."""
    in_library = "Batch small library calls into one, or run independent ones on several streams."
    return context.framework.choose(
        torch="Use larger batches, batch small operators into one (torch.bmm, torch.vmap), or "
        "apply torch.compile.",
        cuda=in_library if library_kernels(rows) else SmallGridTimeline.fix,
        jax="Use larger batches, or batch small operations with jax.vmap.",
    )
