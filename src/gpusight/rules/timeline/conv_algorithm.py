"""conv-algorithm: convolutions run with an algorithm that others beat."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import by_step, framework_of, step_evidence, summed_locations
from gpusight.rules.locations import each_op
from gpusight.rules.patterns.fp32_gemms import MIN_TENSOR_CORE_SHARE, slow_convolutions
from gpusight.rules.patterns.kernel_groups import (
    kernel_ns,
    kernels_unseen,
    locations_of,
    main_source_phrase,
    scale_durations,
    total_ns,
)
from gpusight.rules.rule import CLEAN, RuleMatch, Threshold, TimelineRule
from gpusight.units import format_share, format_time

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import RuleVerdict


MIN_KERNEL_TIME_SHARE = Threshold(
    0.05, "part of the time of all kernels; odd layers always run somewhat slowly"
)
REMAINING_SHARE = Threshold(
    0.5, "part of the time that is left: a well chosen algorithm takes half, or less"
)


class ConvAlgorithm(TimelineRule):
    """A slow algorithm for convolutions."""

    id = "conv-algorithm"
    detects = (
        "Looks for convolutions that are lowered to a matrix in memory (im2col), run by kernels "
        "for depthwise or grouped layers without a library, or, while other convolutions of the "
        "program use tensor cores, on ordinary lanes or by FFT, with the transposes beside them."
    )
    why = (
        "A library has many algorithms for one convolution, with times that differ by a factor. "
        "It chooses by a rule of thumb unless it may try them."
    )
    fix = "Let the library try its algorithms, and give it shapes and types that fast ones take."
    code = """\
torch.backends.cudnn.benchmark = True                     # shapes that stay the same
model = model.to(memory_format=torch.channels_last)
with torch.autocast("cuda", dtype=torch.bfloat16):
    output = model(images.to(memory_format=torch.channels_last))
"""
    cuda_code = """\
// try them once: cudnnFindConvolutionForwardAlgorithmEx, or autotuning of the graph API
cudnnSetConvolutionMathType(conv, CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION);
"""
    jax_code = """\
# XLA tries algorithms by default; autotuning off is this flag at 0
# XLA_FLAGS=--xla_gpu_autotune_level=4
"""
    verify = (
        "`gpusight kernels` shows other kernels for the same layers, and `gpusight compare` "
        "shorter ones. The first steps try algorithms: leave them out."
    )
    caveats = (
        "Depthwise layers and layers with few channels have little arithmetic: none of their "
        "algorithms is near the GPU's rate. Trying costs time whenever a shape is new."
    )
    estimate = (
        f"Replay in which these kernels take {REMAINING_SHARE.value:g} of their "
        "time. No other algorithm "
        "was measured."
    )
    thresholds: ClassVar = {
        "min_kernel_time_share": MIN_KERNEL_TIME_SHARE,
        "remaining_share": REMAINING_SHARE,
        "min_tensor_core_share": Threshold(
            MIN_TENSOR_CORE_SHARE,
            "part of the time of convolutions on tensor cores that shows they may be",
        ),
    }

    def check(self, context: RuleContext) -> RuleVerdict:
        """Sum convolutions by slow algorithms."""
        if (unseen := kernels_unseen(context)) is not None:
            return unseen
        rows = slow_convolutions(context.kernels)
        if total_ns(rows) < MIN_KERNEL_TIME_SHARE.value * kernel_ns(context):
            return CLEAN
        return _match(context, rows)

    def locate(self, context: RuleContext, _: TimelineFinding) -> pl.DataFrame:
        """Find the slow convolutions."""
        return each_op(context, slow_convolutions(context.kernels))


def _match(context: RuleContext, rows: pl.DataFrame) -> RuleMatch:
    share = total_ns(rows) / kernel_ns(context)
    convolutions = context.kernels.filter(pl.col("category") == "convolution")
    return RuleMatch(
        title=f"Convolutions by slow algorithms take {format_share(share)} of GPU time",
        evidence=(
            step_evidence(
                context, "slow_ns", total_ns(rows), "ns", "Time of convolutions by slow algorithms"
            ),
            Evidence("gpu_share", share, "share", "The same as a part of GPU time"),
            step_evidence(context, "kernels", rows.height, "", "Their kernels"),
            step_evidence(
                context, "convolution_ns", total_ns(convolutions), "ns", "Time of all convolutions"
            ),
        ),
        confidence=Confidence.LOW,
        confidence_reason="that another algorithm takes half the time is assumed",
        change=(
            scale_durations(rows["op"].to_numpy(), np.full(rows.height, REMAINING_SHARE.value)),
        ),
        fix=_fix(context, rows),
        code=framework_of(context.trace).choose(
            torch=ConvAlgorithm.code, cuda=ConvAlgorithm.cuda_code, jax=ConvAlgorithm.jax_code
        ),
        where=locations_of(context, rows),
    )


def _fix(context: RuleContext, rows: pl.DataFrame) -> str:
    names = ", ".join(f"`{w.name}`" for w in summed_locations(rows, "kernel", "label")[:3])
    time = by_step(context, format_time(total_ns(rows) / context.per_step))
    way = framework_of(context.trace).choose(
        torch="Set torch.backends.cudnn.benchmark where shapes stay the same, use channels_last "
        "and autocast, and numbers of channels that are multiples of 8.",
        cuda="Let cuDNN find the fastest algorithm and allow it tensor cores; use NHWC and numbers "
        "of channels that are multiples of 8.",
        jax="Leave XLA's autotuning on, and use NHWC, bfloat16 and numbers of channels that are "
        "multiples of 8.",
    )
    return f"{names}{main_source_phrase(context, rows)}: {time}. {way}"
