"""unfused-attention: scores, softmax and output are kernels of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import Framework, by_step, framework_of, step_evidence
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
from gpusight.rules.rule import CLEAN, RuleMatch, Threshold, TimelineRule
from gpusight.units import format_count, format_share, format_time

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import RuleVerdict


MIN_KERNEL_TIME_SHARE = Threshold(
    0.02,
    "part of the time of all kernels that those between the products take; below, fusing them "
    "changes nothing that can be seen",
)
_MATH_PATH = "_scaled_dot_product_attention_math"


class UnfusedAttention(TimelineRule):
    """Attention written out with separate kernels."""

    id = "unfused-attention"
    detects = (
        "Looks for a matrix product, a softmax and a matrix product in one stream with nothing "
        "between them but scaling, masking, dropout and copies; backward alike."
    )
    why = (
        "Each of these kernels writes and reads a matrix of sequence length squared for every "
        "head. A fused kernel keeps it in the SMs and launches once."
    )
    fix = "Call one fused attention instead of writing it out."
    code = """\
# in place of softmax(q @ k.transpose(-2, -1) * scale + mask) @ v
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
        "`gpusight kernels` shows flash, mem-efficient or cuDNN attention and no softmax; compare "
        "a loss curve, since the order of sums changes. Peak memory falls as well."
    )
    caveats = (
        "A program that needs the attention weights themselves, or a mask that fused kernels do "
        "not take, cannot use them. Short sequences gain launches, hardly GPU time."
    )
    estimate = (
        "Replay in which each attention is one kernel that takes as long as its matrix products "
        f"do now, {IN_HALF:g} of it in half precision, {RECOMPUTED:g} times as long in backward, "
        f"which computes the scores again, and costs the host {FUSED_LAUNCHES} launches; the "
        "kernels between the products, their launches and the host's work for these go. Products "
        "in FP32 on lanes whose result is cast to half precision take their time divided by the "
        "ratio of the GPU's peak rates."
    )
    thresholds: ClassVar = {
        "min_kernel_time_share": MIN_KERNEL_TIME_SHARE,
        "in_half": Threshold(
            IN_HALF,
            "part of the time of products in half precision: written out, they wait for the "
            "scores to be moved, as a head of 64 or 128 elements is too little arithmetic a byte",
        ),
        "recomputed": Threshold(RECOMPUTED, "products of backward without kept scores: 5 for 4"),
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
        return _match(context, rows, between)

    def locate(self, context: RuleContext, _: TimelineFinding) -> pl.DataFrame:
        """Find the kernels of each attention."""
        return groups(context, parts_of(context).attention.group)


def _match(context: RuleContext, rows: pl.DataFrame, between: pl.DataFrame) -> RuleMatch:
    attention = parts_of(context).attention
    count = len(attention.backward) / context.per_step
    share = total_ns(between) / kernel_ns(context)
    return RuleMatch(
        title=f"Attention written out: kernels between its products take {format_share(share)} of "
        "GPU time",
        evidence=(
            Evidence("attentions", count, "", by_step(context, "Attentions, forward and backward")),
            step_evidence(context, "kernels", rows.height, "", "Their kernels"),
            step_evidence(context, "attention_ns", total_ns(rows), "ns", "Time of these kernels"),
            step_evidence(
                context,
                "between_ns",
                total_ns(between),
                "ns",
                "Scale, mask, softmax and dropout between the products",
            ),
            Evidence("between_share", share, "share", "The same as a part of GPU time"),
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason="the kernels were measured; that a fused kernel takes as long as the "
        "products do now is assumed",
        change=(
            fuse_to_share(
                attention.group,
                attention.kept,
                # What each fused attention costs the host beyond one launch.
                np.full(len(attention.backward), (FUSED_LAUNCHES - 1) * launch_ns(context, rows)),
                _max_kernel_ns(context),
            ),
        ),
        fix=_fix(context, rows, between),
        code=framework_of(context.trace).choose(
            torch=UnfusedAttention.code,
            cuda=UnfusedAttention.cuda_code,
            jax=UnfusedAttention.jax_code,
        ),
        where=locations_of(context, between),
    )


def _max_kernel_ns(context: RuleContext) -> NDArray[np.float64]:
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
    each = format_count(round(rows.height / max(1, count)))
    number = format_count(round(count / context.per_step, 1))
    forward = between.filter(pl.col("phase").cast(pl.String).fill_null("") != "backward")
    seen = (
        f"{by_step(context, f'{number} attentions')}, of about {each} kernels each"
        f"{main_source_phrase(context, forward)}; what lies between the products takes "
        f"{by_step(context, format_time(total_ns(between) / context.per_step))}."
    )
    if framework_of(context.trace) is Framework.TORCH and _falls_back(context):
        return (
            f"{seen} scaled_dot_product_attention is called but falls back to its math path, which "
            "computes in FP32: give it half precision, contiguous q, k and v (heads before the "
            "sequence), a boolean or no mask (is_causal), and head sizes that are multiples of 8; "
            "`with torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION)` says what is in "
            "the way."
        )
    way = framework_of(context.trace).choose(
        torch="Call torch.nn.functional.scaled_dot_product_attention; it takes the mask, the scale "
        "and the dropout as arguments.",
        cuda="Use a fused attention kernel: cuDNN's, CUTLASS's or FlashAttention's.",
        jax="Call jax.nn.dot_product_attention; on Ampere and newer GPUs with implementation="
        '"cudnn" in half precision.',
    )
    return f"{seen} {way}"


def _falls_back(context: RuleContext) -> bool:
    if parts_of(context).attention.from_half.any():
        return True
    trace = context.trace
    if not trace.has("cpu_ops"):
        return False
    names = names_of(trace.table("cpu_ops", ["name"])["name"])
    return any(_MATH_PATH in name for name in names)
