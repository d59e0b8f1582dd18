"""unfused-attention: scores, softmax and output are separate kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import title_share
from gpusight.rules.locations import groups
from gpusight.rules.patterns.fp32_gemms import targets
from gpusight.rules.patterns.fusable_kernels import FUSED_LAUNCHES, IN_HALF, RECOMPUTED, parts_of
from gpusight.rules.patterns.kernel_groups import (
    fuse_to_share,
    kernel_ns,
    kernels_unseen,
    launch_ns,
    locations_of,
    main_source_phrase,
    marked_work,
    total_ns,
)
from gpusight.rules.rule import CLEAN, Framework, RuleMatch, RuleVerdict, Threshold, TimelineRule
from gpusight.units import format_mean

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.trace.intervals import Reals


MIN_KERNEL_TIME_SHARE = Threshold(
    0.02, "share of kernel time between the GEMMs; below it, fusing has no visible effect"
)
_MATH_PATH = "_scaled_dot_product_attention_math"


class UnfusedAttention(TimelineRule):
    """Attention in separate kernels."""

    id = "unfused-attention"
    detects = (
        "Looks for GEMM, softmax, GEMM in one stream with only scaling, masking, dropout and "
        "copies in between, forward or backward."
    )
    why = (
        "Each kernel reads and writes a matrix of sequence length squared per head. A fused kernel "
        "keeps it in shared memory and launches once."
    )
    fix = "Use fused attention (FlashAttention, scaled_dot_product_attention)."
    code = """\
# instead of softmax(q @ k.transpose(-2, -1) * scale + mask) @ v
out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
"""
    cuda_code = """\
// cuDNN's graph API (SDPA node), CUTLASS example 41 or FlashAttention:
// scores stay in shared memory, one launch for all heads
"""
    jax_code = """\
out = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
"""
    verify = (
        "`gpusight kernels` shows flash, mem-efficient or cuDNN attention and no softmax. Compare "
        "results, since the order of sums changes. Peak memory drops too."
    )
    caveats = (
        "Programs that need the attention weights, or a mask that fused kernels do not support, "
        "cannot use them. Short sequences save launches, but little GPU time."
    )
    estimate = (
        "Simulation in which each attention is one kernel that takes as long as its GEMMs now. In "
        f"half precision it takes {IN_HALF:.0%} of that; backward takes {RECOMPUTED:g}x, since it "
        f"recomputes the scores. It costs the host {FUSED_LAUNCHES} launches. The kernels between "
        "the GEMMs, their launches and their host time are removed. For FP32 GEMMs on CUDA cores "
        "whose result is cast to half precision, the time is divided by the ratio of peak FLOP/s."
    )
    effort = "one line"
    thresholds: ClassVar = {
        "min_kernel_time_share": MIN_KERNEL_TIME_SHARE,
        "in_half": Threshold(
            IN_HALF,
            "share of the time of half-precision GEMMs that remains: unfused, they are "
            "memory-bound, since a head of 64 or 128 elements has low arithmetic intensity",
        ),
        "recomputed": Threshold(
            RECOMPUTED, "5 GEMMs instead of 4 in a backward pass that recomputes the scores"
        ),
    }
    scenario = "fuse attention"

    def check(self, context: RuleContext) -> RuleVerdict:
        """Find attention by its sequence of kernels."""
        if (unseen := kernels_unseen(context)) is not None:
            return unseen
        attention = parts_of(context).attention
        rows = marked_work(context, attention.group >= 0)
        between = rows.filter(pl.col("category").fill_null("") != "matmul")
        if total_ns(between) < MIN_KERNEL_TIME_SHARE.value * kernel_ns(context):
            return CLEAN
        attention = parts_of(context).attention
        count = context.step_count(len(attention.backward))
        share = total_ns(between) / kernel_ns(context)
        return RuleMatch(
            title=f"Unfused attention ({title_share(share)} of kernel time)",
            evidence=(
                Evidence(
                    "attentions",
                    count,
                    "",
                    context.by_step("Attention calls, forward and backward"),
                ),
                context.evidence("kernels", rows.height, "", "Attention kernels"),
                context.evidence("attention_ns", total_ns(rows), "ns", "Time in attention"),
                context.evidence(
                    "between_ns",
                    total_ns(between),
                    "ns",
                    "Time in scale, mask, softmax and dropout",
                ),
                Evidence("between_share", share, "share", "Share of kernel time in these"),
            ),
            confidence=Confidence.MEDIUM,
            confidence_reason="the kernels were measured; assumes that a fused kernel takes as "
            "long as the GEMMs now",
            change=(
                fuse_to_share(
                    attention.group,
                    attention.kept,
                    # What each fused attention costs the host beyond one launch.
                    np.full(
                        len(attention.backward), (FUSED_LAUNCHES - 1) * launch_ns(context, rows)
                    ),
                    _max_kernel_ns(context),
                ),
            ),
            fix=_fix(context, rows, between),
            effort=context.framework.choose(torch="one line", cuda="rewrite", jax="one line"),
            where=locations_of(context, between),
        )

    def locate(self, context: RuleContext, _: TimelineFinding) -> pl.DataFrame:
        """Find the kernels of each attention."""
        return groups(context, parts_of(context).attention.group)


def _max_kernel_ns(context: RuleContext) -> Reals:
    """Return the most that each GEMM takes in a fused kernel: in half precision where it can."""
    attention, gpu = parts_of(context).attention, context.gpu
    max_ns = np.full(len(attention.kept), np.inf)
    half = next((t for t in targets(gpu) if t.casts), None) if gpu is not None else None
    if half is not None:
        ops = np.flatnonzero(attention.from_half)
        duration_ns = context.ops["duration_ns"].to_numpy()[ops]
        max_ns[ops] = duration_ns * half.left(duration_ns) * attention.kept[ops]
    return max_ns


def _fix(context: RuleContext, rows: pl.DataFrame, between: pl.DataFrame) -> str:
    count = len(parts_of(context).attention.backward)
    each = format_mean(round(rows.height / max(1, count)))
    forward = between.filter(pl.col("phase").cast(pl.String).fill_null("") != "backward")
    summary = (
        f"{context.count_per_step(count, 'attention call')} of about {each} kernels each"
        f"{main_source_phrase(context, forward)}. The kernels between the GEMMs take "
        f"{context.time_per_step(total_ns(between))}."
    )
    if context.framework is Framework.TORCH and _falls_back(context):
        return (
            f"{summary} scaled_dot_product_attention falls back to its FP32 math backend. Use half "
            "precision, contiguous q, k and v (heads before sequence), a boolean mask or "
            "is_causal, and head sizes that are multiples of 8. With "
            "`torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION)` PyTorch reports what "
            "prevents the fused kernel."
        )
    way = context.framework.choose(
        torch="Use torch.nn.functional.scaled_dot_product_attention. It supports masks, scale and "
        "dropout.",
        cuda="Use a fused attention kernel of cuDNN, CUTLASS or FlashAttention.",
        jax="Use jax.nn.dot_product_attention, on Ampere and newer GPUs with implementation="
        '"cudnn" in half precision.',
    )
    return f"{summary} {way}"


def _falls_back(context: RuleContext) -> bool:
    if parts_of(context).attention.from_half.any():
        return True
    trace = context.trace
    if not trace.has("cpu_ops"):
        return False
    names = names_of(trace.table("cpu_ops", ["name"])["name"])
    return any(_MATH_PATH in name for name in names)
