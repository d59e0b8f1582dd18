"""small-grid of a timeline: long kernels with fewer blocks than the GPU has SMs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import by_step, framework_of, step_evidence, summed_locations
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
from gpusight.rules.rule import CLEAN, RuleMatch, RuleNotApplicable, Threshold, TimelineRule
from gpusight.units import format_count, format_share, format_time

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import RuleVerdict


MIN_TIME_SHARE = Threshold(
    0.02, "part of the judged time that they take; below, filling SMs gives nothing"
)


class SmallGridTimeline(TimelineRule):
    """Kernels that leave SMs empty."""

    id = "small-grid"
    detects = (
        "Looks for kernels of 10 µs and more with at most half as many blocks as the GPU has SMs, "
        "that run alone; communication, the last stages of larger work and batch normalisation "
        "that `layout-transpose` speaks of are left out."
    )
    why = "A block runs on one SM. SMs without a block do nothing while such a kernel runs."
    fix = (
        "Give these kernels more blocks: larger batches, work split along another dimension, or "
        "several of them at once in different streams."
    )
    code = """\
int blocks = (n + threads - 1) / threads;    // from the problem, not a constant
kernel<<<blocks, threads, 0, stream>>>(...); // small ones side by side: a stream each
"""
    torch_code = """\
y = torch.bmm(a, b)              # one batched call in place of a loop over small ones
model = torch.compile(model)     # generated kernels split reductions over more blocks
"""
    verify = (
        "`gpusight kernels` shows larger grids and shorter kernels; `gpusight record --ncu` on one "
        "of them shows how many SMs are active."
    )
    caveats = (
        "A small problem stays small: batch 1 of a small model has no more work to give. Kernels "
        "with one large block for each SM may be limited by something else."
    )
    estimate = (
        f"Replay in which what they take beyond {FIXED_KERNEL_NS / 1000:g} µs "
        "shrinks as if the work were "
        f"spread over all SMs, with {format_count(THREADS_TO_FILL_SM)} threads on each but for "
        f"products, to {SPREAD:g} at least. An upper bound: the work may be all there is, or "
        "memory the limit."
    )
    thresholds: ClassVar = {
        "max_blocks_per_sm": Threshold(
            MAX_BLOCKS_PER_SM,
            "blocks for each SM; above, one wave that is not quite full is ordinary",
        ),
        "fixed_kernel_ns": Threshold(
            FIXED_KERNEL_NS, "ns; shorter kernels are mostly the latency of a launch and of memory"
        ),
        "min_time_share": MIN_TIME_SHARE,
        "threads_to_fill_sm": Threshold(
            THREADS_TO_FILL_SM,
            "threads that keep an SM busy, half of what it holds: one smaller block mostly waits "
            "for memory",
        ),
        "spread": Threshold(
            SPREAD,
            "part of the time that is left at least: one SM can draw up to a fortieth of the "
            "memory's bandwidth, so not even one block gains more",
        ),
    }

    def check(self, context: RuleContext) -> RuleVerdict:
        """Compare blocks with SMs."""
        if (unseen := kernels_unseen(context)) is not None:
            return unseen
        sms = sm_count(context)
        if sms is None:
            return RuleNotApplicable("it is not known how many SMs the GPU has")
        if not context.kernels["blocks"].count():
            return RuleNotApplicable("the capture has no grid sizes")
        # Batch normalization with few channels is a finding of layout-transpose.
        layout = norms_by_channel(context, parts_of(context).layout)["op"].implode()
        rows = small_grids(context, sms).filter(~pl.col("op").is_in(layout))
        if total_ns(rows) < MIN_TIME_SHARE.value * context.length_ns:
            return CLEAN
        return _match(context, rows, sms)

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find kernels, those that the finding names if any."""
        return gpu_work(context, finding, pl.col("kind") == "kernel")


def _match(context: RuleContext, rows: pl.DataFrame, sms: int) -> RuleMatch:
    share = total_ns(rows) / kernel_ns(context)
    blocks = round(float(np.median(rows["blocks"].to_numpy())))
    names = ", ".join(f"`{w.name}`" for w in summed_locations(rows, "kernel", "label")[:3])
    time = by_step(context, format_time(total_ns(rows) / context.per_step))
    is_amd = context.gpu is not None and context.gpu.vendor == "AMD"
    kind = "compute units" if is_amd else "SMs"
    return RuleMatch(
        title=f"Kernels with too few blocks for {sms} {kind} (median {format_count(blocks)}) take "
        f"{format_share(share)} of GPU time",
        evidence=(
            Evidence("sm_count", sms, "", f"{kind} of the GPU"),
            Evidence("blocks", blocks, "", "Blocks of these kernels, median"),
            step_evidence(context, "kernels", rows.height, "", "Kernels"),
            step_evidence(context, "small_ns", total_ns(rows), "ns", "Time of these kernels"),
            Evidence("gpu_share", share, "share", "The same as a part of GPU time"),
        ),
        confidence=Confidence.LOW,
        confidence_reason="whether the work can be cut into more blocks is not known",
        change=(scale_durations(rows["op"].to_numpy(), left_on_all(rows, sms)),),
        fix=f"{names}{main_source_phrase(context, rows)}: {time}. {SmallGridTimeline.fix}",
        code=framework_of(context.trace).choose(
            torch=SmallGridTimeline.torch_code, cuda=SmallGridTimeline.code
        ),
        where=locations_of(context, rows),
    )
