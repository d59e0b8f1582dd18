"""layout-transpose: tensors are laid out anew around convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import by_step, framework_of, step_evidence
from gpusight.rules.locations import runs
from gpusight.rules.patterns.fusable_kernels import parts_of
from gpusight.rules.patterns.kernel_groups import (
    FIXED_KERNEL_NS,
    MAX_BLOCKS_PER_SM,
    MIN_LAYOUT_SHARE,
    kernel_ns,
    kernels_unseen,
    left_on_all,
    locations_of,
    marked_work,
    norms_by_channel,
    scale_durations,
    sm_count,
    total_ns,
    without_kernels,
)
from gpusight.rules.rule import CLEAN, RuleMatch, Threshold, TimelineRule
from gpusight.units import format_count, format_share, format_time

if TYPE_CHECKING:
    from gpusight.analysis.replay.changes import Change
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import RuleVerdict


MIN_KERNEL_TIME_SHARE = Threshold(
    MIN_LAYOUT_SHARE,
    "part of the time of all kernels; a few tensors at the edges of a model are always laid "
    "out anew",
)


class LayoutTranspose(TimelineRule):
    """Channels first outside, channels last inside."""

    id = "layout-transpose"
    detects = (
        "Looks for kernels that only turn tensors from channels first (NCHW) to channels last "
        "(NHWC) or back, as cuDNN runs them around its convolutions, and for batch normalisation "
        "beside them that has a block for each of few channels."
    )
    why = (
        "Tensor cores want channels last. Given channels first, the library turns the input and "
        "the weights before each convolution and the output after it: memory traffic and launches "
        "that compute nothing. Batch normalisation of channels first takes one block for each "
        "channel, which leaves SMs empty where channels are few."
    )
    fix = "Keep the model and its input channels last throughout."
    code = """\
model = model.to(memory_format=torch.channels_last)
images = images.to(memory_format=torch.channels_last)     # where batches are moved to the GPU
"""
    cuda_code = """\
cudnnSetTensor4dDescriptor(x, CUDNN_TENSOR_NHWC, type, n, c, h, w);
cudnnSetFilter4dDescriptor(f, type, CUDNN_TENSOR_NHWC, k, c, r, s);
"""
    jax_code = """\
y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
"""
    verify = (
        "`gpusight kernels` shows no nchw→nhwc any more. One that stays comes from an operation "
        "that falls back to channels first: look at its neighbours."
    )
    caveats = (
        "Layer and group normalisation and some poolings are slower channels last. Operators that "
        "know only channels first bring the transposes back."
    )
    estimate = (
        "Replay without these kernels and their launches; the host's work before them is that of "
        "the convolution and stays. Batch normalisation of few channels shrinks as if its work "
        "were spread over all SMs; everything else takes the time that it takes now."
    )
    thresholds: ClassVar = {
        "min_kernel_time_share": MIN_KERNEL_TIME_SHARE,
        "max_blocks_per_sm": Threshold(
            MAX_BLOCKS_PER_SM, "blocks for each SM up to which channels are few"
        ),
        "fixed_kernel_ns": Threshold(
            FIXED_KERNEL_NS, "ns that a normalisation takes however it is spread"
        ),
    }

    def check(self, context: RuleContext) -> RuleVerdict:
        """Sum the kernels that change layouts."""
        if (unseen := kernels_unseen(context)) is not None:
            return unseen
        rows = marked_work(context, parts_of(context).layout)
        share = total_ns(rows) / kernel_ns(context)
        return CLEAN if share < MIN_KERNEL_TIME_SHARE.value else _match(context, rows, share)

    def locate(self, context: RuleContext, _: TimelineFinding) -> pl.DataFrame:
        """Find kernels that change the layout, those one after another as one."""
        return runs(context, pl.lit(pl.Series(parts_of(context).layout)))


def _match(context: RuleContext, rows: pl.DataFrame, share: float) -> RuleMatch:
    norms = norms_by_channel(context, parts_of(context).layout)
    norm_time = step_evidence(
        context,
        "norm_ns",
        total_ns(norms),
        "ns",
        "Time of batch normalisation with a block for each of few channels",
    )
    title = f"Layout changes around convolutions take {format_share(share)} of GPU time"
    if norms.height:
        norm_share = format_share(total_ns(norms) / kernel_ns(context))
        title = (
            f"Layout changes take {format_share(share)} of GPU time, "
            f"slow batch norm of channels first {norm_share}"
        )
    convolutions = context.kernels.filter(pl.col("category") == "convolution")
    return RuleMatch(
        title=title,
        evidence=(
            step_evidence(context, "transposes", rows.height, "", "Transposes"),
            step_evidence(context, "transpose_ns", total_ns(rows), "ns", "Time of these kernels"),
            Evidence("gpu_share", share, "share", "The same as a part of GPU time"),
            step_evidence(
                context,
                "convolution_ns",
                total_ns(convolutions),
                "ns",
                "Time of the convolutions themselves",
            ),
            *([norm_time] if norms.height else []),
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason="the kernels were measured; that nothing else becomes slower is assumed",
        change=(without_kernels(rows["op"].to_numpy()), *_spread(context, norms)),
        fix=_fix(context, rows, norms),
        code=framework_of(context.trace).choose(
            torch=LayoutTranspose.code,
            cuda=LayoutTranspose.cuda_code,
            jax=LayoutTranspose.jax_code,
        ),
        where=locations_of(context, pl.concat((rows, norms))),
    )


def _spread(context: RuleContext, norms: pl.DataFrame) -> tuple[Change, ...]:
    """Spread batch normalization over all SMs."""
    sms = sm_count(context)
    if norms.is_empty() or sms is None:
        return ()
    return (scale_durations(norms["op"].to_numpy(), left_on_all(norms, sms)),)


def _fix(context: RuleContext, rows: pl.DataFrame, norms: pl.DataFrame) -> str:
    count = format_count(round(rows.height / context.per_step))
    time = format_time(total_ns(rows) / context.per_step)
    seen = by_step(context, f"{count} layout changes take {time}")
    if norms.height:
        blocks = format_count(round(float(np.median(norms["blocks"].to_numpy()))))
        time = format_time(total_ns(norms) / context.per_step)
        seen += (
            f", and batch normalisation in {blocks} blocks (median), one for each channel, {time}"
        )
    way = framework_of(context.trace).choose(
        torch="Put the model and its input into torch.channels_last once; the layout then passes "
        "through convolutions, batch normalisation, activations and pooling.",
        cuda="Describe tensors and filters to cuDNN as NHWC and keep them so between layers.",
        jax="Keep images and kernels channels last (NHWC, HWIO) in conv_general_dilated.",
    )
    return f"{seen}. {way}"
