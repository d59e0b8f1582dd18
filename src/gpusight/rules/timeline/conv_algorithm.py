"""conv-algorithm: convolutions use a slow algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import quoted_name, summed_locations, title_share
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
from gpusight.rules.rule import CLEAN, RuleMatch, RuleVerdict, Threshold, TimelineRule

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding


MIN_KERNEL_TIME_SHARE = Threshold(
    0.05, "share of kernel time; a few unusual layers are slow in any model"
)
REMAINING_SHARE = Threshold(
    0.5, "share of the time that remains: a good algorithm takes half or less"
)


class ConvAlgorithm(TimelineRule):
    """A slow algorithm for convolutions."""

    id = "conv-algorithm"
    detects = (
        "Looks for convolutions lowered to GEMMs in memory (im2col), and for depthwise or grouped "
        "convolutions outside cuDNN. Where other convolutions use Tensor Cores, also for those on "
        "CUDA cores or by FFT, with their transposes."
    )
    why = (
        "cuDNN has many algorithms for each convolution, and their times differ by a factor. "
        "Without benchmarking it picks one by heuristics."
    )
    fix = (
        "Enable cuDNN benchmarking, and use layouts, shapes and types that fast algorithms support."
    )
    code = """\
torch.backends.cudnn.benchmark = True                     # for fixed shapes
model = model.to(memory_format=torch.channels_last)
with torch.autocast("cuda", dtype=torch.bfloat16):
    output = model(images.to(memory_format=torch.channels_last))
"""
    cuda_code = """\
// benchmark once: cudnnFindConvolutionForwardAlgorithmEx, or autotuning of the graph API
cudnnSetConvolutionMathType(conv, CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION);
"""
    jax_code = """\
# XLA autotunes by default; 0 turns it off
# XLA_FLAGS=--xla_gpu_autotune_level=4
"""
    verify = (
        "`gpusight kernels` shows other kernels for the same layers, `gpusight compare` shorter "
        "ones. Skip the first steps, which benchmark algorithms."
    )
    caveats = (
        "Depthwise layers and layers with few channels have low arithmetic intensity: no algorithm "
        "comes near peak FLOP/s. Benchmarking takes time for each new shape."
    )
    estimate = (
        f"Simulation in which these kernels take {REMAINING_SHARE.value:.0%} of their time. No "
        "other algorithm was measured."
    )
    effort = "one line"
    thresholds: ClassVar = {
        "min_kernel_time_share": MIN_KERNEL_TIME_SHARE,
        "remaining_share": REMAINING_SHARE,
        "min_tensor_core_share": Threshold(
            MIN_TENSOR_CORE_SHARE,
            "share of convolution time on Tensor Cores that shows that the program allows them",
        ),
    }

    def check(self, context: RuleContext) -> RuleVerdict:
        """Sum convolutions by slow algorithms."""
        if (unseen := kernels_unseen(context)) is not None:
            return unseen
        rows = slow_convolutions(context.kernels)
        if total_ns(rows) < MIN_KERNEL_TIME_SHARE.value * kernel_ns(context):
            return CLEAN
        share = total_ns(rows) / kernel_ns(context)
        convolutions = context.kernels.filter(pl.col("category") == "convolution")
        names = ", ".join(
            quoted_name(w.name) for w in summed_locations(rows, "kernel", "label")[:3]
        )
        time = context.time_per_step(total_ns(rows))
        way = context.framework.choose(
            torch="Set torch.backends.cudnn.benchmark = True for fixed shapes. Use channels_last, "
            "autocast, and channel counts that are multiples of 8.",
            cuda="Benchmark cuDNN's algorithms once and allow Tensor Cores. Use NHWC and channel "
            "counts that are multiples of 8.",
            jax="Keep XLA autotuning on. Use NHWC, bfloat16 and channel counts that are multiples "
            "of 8.",
        )
        return RuleMatch(
            title=f"Slow convolution algorithms ({title_share(share)} of kernel time)",
            evidence=(
                context.evidence(
                    "slow_ns", total_ns(rows), "ns", "Time in slow convolution algorithms"
                ),
                Evidence("gpu_share", share, "share", "Share of kernel time"),
                context.evidence("kernels", rows.height, "", "Kernels"),
                context.evidence(
                    "convolution_ns", total_ns(convolutions), "ns", "Time of all convolutions"
                ),
            ),
            confidence=Confidence.LOW,
            confidence_reason="assumes that another algorithm takes half the time",
            change=(
                scale_durations(rows["op"].to_numpy(), np.full(rows.height, REMAINING_SHARE.value)),
            ),
            fix=f"{names}{main_source_phrase(context, rows)}: {time}. {way}",
            where=locations_of(context, rows),
        )

    def locate(self, context: RuleContext, _: TimelineFinding) -> pl.DataFrame:
        """Find the slow convolutions."""
        return each_op(context, slow_convolutions(context.kernels))
