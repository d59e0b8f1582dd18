"""layout-transpose: NCHW/NHWC transposes around convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import title_share
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
from gpusight.rules.rule import CLEAN, RuleMatch, RuleVerdict, Threshold, TimelineRule
from gpusight.units import format_count

if TYPE_CHECKING:
    from gpusight.analysis.replay.changes import Change
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding


MIN_KERNEL_TIME_SHARE = Threshold(
    MIN_LAYOUT_SHARE,
    "share of kernel time; a few tensors at the edges of a model are always transposed",
)


class LayoutTranspose(TimelineRule):
    """NCHW tensors, NHWC convolutions."""

    id = "layout-transpose"
    detects = (
        "Looks for kernels that transpose tensors between NCHW and NHWC, as cuDNN runs them "
        "around convolutions. Also for NCHW batch normalization with one block per channel where "
        "channels are few."
    )
    why = (
        "Tensor Core convolutions use NHWC. With NCHW tensors, cuDNN transposes the input and the "
        "weights before each convolution and the output after it: memory traffic and launches "
        "without any FLOPs. NCHW batch normalization uses one block per channel, which leaves SMs "
        "idle where channels are few."
    )
    fix = "Use channels_last (NHWC) for the model and its input."
    code = """\
model = model.to(memory_format=torch.channels_last)
images = images.to(memory_format=torch.channels_last)     # when copied to the GPU
"""
    cuda_code = """\
cudnnSetTensor4dDescriptor(x, CUDNN_TENSOR_NHWC, type, n, c, h, w);
cudnnSetFilter4dDescriptor(f, type, CUDNN_TENSOR_NHWC, k, c, r, s);
"""
    jax_code = """\
y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
"""
    verify = (
        "`gpusight kernels` shows no nchw→nhwc kernels. A remaining one comes from an operator "
        "that falls back to NCHW: look at its neighbors."
    )
    caveats = (
        "Layer norm, group norm and some pooling operators are slower in NHWC. Operators that "
        "support only NCHW bring the transposes back."
    )
    estimate = (
        "Simulation without these kernels and their launches. The host time before them belongs to "
        "the convolution and remains. Batch normalization of few channels speeds up as if spread "
        "over all SMs. All other kernels keep their time."
    )
    effort = "one line"
    thresholds: ClassVar = {
        "min_kernel_time_share": MIN_KERNEL_TIME_SHARE,
        "max_blocks_per_sm": Threshold(
            MAX_BLOCKS_PER_SM, "blocks per SM up to which channels are few"
        ),
        "fixed_kernel_ns": Threshold(
            FIXED_KERNEL_NS, "ns that a normalization takes at any grid size"
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
    norm_time = context.evidence(
        "norm_ns", total_ns(norms), "ns", "Time in NCHW batch normalization with few blocks"
    )
    title = f"NCHW/NHWC transposes ({title_share(share)} of kernel time)"
    if norms.height:
        norm_share = title_share(total_ns(norms) / kernel_ns(context))
        title = f"NCHW transposes ({title_share(share)} of kernel time), batch norm ({norm_share})"
    convolutions = context.kernels.filter(pl.col("category") == "convolution")
    count = context.count_per_step(rows.height, "transpose")
    summary = f"{count} take {context.time_per_step(total_ns(rows))}"
    if norms.height:
        blocks = format_count(round(float(np.median(norms["blocks"].to_numpy()))))
        time = context.time_per_step(total_ns(norms))
        summary += (
            f". Batch normalization with {blocks} blocks (median, one per channel) takes {time}"
        )
    way = context.framework.choose(
        torch="Convert the model and its input to torch.channels_last once. Convolutions, batch "
        "normalization, activations and pooling keep the layout.",
        cuda="Use NHWC tensor and filter descriptors in cuDNN, and keep NHWC between layers.",
        jax="Use NHWC images and HWIO kernels in conv_general_dilated.",
        other="Use NHWC images and filters, and keep NHWC between layers.",
    )
    return RuleMatch(
        title=title,
        evidence=(
            context.evidence("transposes", rows.height, "", "Transposes"),
            context.evidence("transpose_ns", total_ns(rows), "ns", "Time in transposes"),
            Evidence("gpu_share", share, "share", "Share of kernel time"),
            context.evidence(
                "convolution_ns", total_ns(convolutions), "ns", "Time in convolutions"
            ),
            *([norm_time] if norms.height else []),
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason="the kernels were measured; assumes that no other kernel becomes slower",
        change=(without_kernels(rows["op"].to_numpy()), *_spread(context, norms)),
        fix=f"{summary}. {way}",
        where=locations_of(context, pl.concat((rows, norms))),
    )


def _spread(context: RuleContext, norms: pl.DataFrame) -> tuple[Change, ...]:
    """Spread batch normalization over all SMs."""
    sms = sm_count(context)
    if norms.is_empty() or sms is None:
        return ()
    return (scale_durations(norms["op"].to_numpy(), left_on_all(norms, sms)),)
