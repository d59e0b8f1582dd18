"""gpu-shared: another process of the capture runs on the same GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.replay import window_replay
from gpusight.rules.context import memoize, process_names
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import title_share
from gpusight.rules.locations import each_op
from gpusight.rules.patterns.kernel_groups import scale_durations
from gpusight.rules.rule import CLEAN, FindingLocation, RuleMatch, Threshold, TimelineRule
from gpusight.trace.intervals import Intervals, clip, coverage

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import RuleVerdict
    from gpusight.trace.intervals import Ints


MIN_SHARED_SHARE = Threshold(
    0.05, "share of the time in which activities of both processes run at once"
)
SLICE_SHARE = Threshold(
    window_replay.SLICE_SHARE,
    "share of the GPU that a process gets while another one runs: the driver alternates",
)


class GpuShared(TimelineRule):
    """Two processes on one GPU."""

    id = "gpu-shared"
    detects = (
        "Looks for GPU activities of other processes in the capture that run on the same GPU at "
        "the same time."
    )
    why = (
        "Without MPS, the driver gives the GPU to one process at a time, in slices of about a "
        "millisecond. Kernels of both take longer, and step times vary."
    )
    fix = "Give each process a GPU of its own, or let them share it through MPS or MIG."
    code = """\
CUDA_VISIBLE_DEVICES=1 python other.py         # another GPU
nvidia-cuda-mps-control -d                     # or: run kernels of both at once
"""
    is_neutral = True
    verify = "`gpusight info` lists one process per GPU."
    caveats = (
        "Programs that share a GPU on purpose, such as inference servers, trade latency for "
        "throughput. Processes outside the capture are not seen."
    )
    estimate = (
        "Simulation in which a kernel takes half of the time that it shares with another process. "
        "This assumes that the driver alternates between both."
    )
    effort = "config"
    thresholds: ClassVar = {"min_shared_share": MIN_SHARED_SHARE, "slice_share": SLICE_SHARE}
    min_share = None

    def check(self, context: RuleContext) -> RuleVerdict:
        """Measure how long activities of other processes run along with those of this one."""
        others = context.other_processes
        if others.is_empty():
            return CLEAN
        shared_ns = _shared_ns(context)
        rows = context.ops.filter(pl.col("device") == context.device)
        own = Intervals.from_arrays(*(rows[c].to_numpy() for c in ("start_ns", "end_ns")))
        window = context.schedule.start_ns, context.schedule.end_ns
        own, theirs = clip(own, *window), clip(_spans(others), *window)
        both_ns = int(coverage(own, theirs.starts, theirs.ends).sum())
        if both_ns < MIN_SHARED_SHARE.value * context.length_ns:
            return CLEAN
        at = np.flatnonzero(shared_ns)
        duration_ns = np.maximum(context.ops["duration_ns"].to_numpy()[at], 1)
        left = 1 - SLICE_SHARE.value * np.minimum(shared_ns[at] / duration_ns, 1.0)
        share = both_ns / context.length_ns
        names = process_names(context)
        return RuleMatch(
            title=f"Another process uses the GPU in {title_share(share)} of the time",
            evidence=(
                Evidence("shared_share", share, "share", "Time in which both use the GPU"),
                context.evidence(
                    "other_ns",
                    int(coverage(theirs, *(np.array([t]) for t in window))[0]),
                    "ns",
                    "GPU time of other processes",
                ),
                Evidence("processes", len(names), "", "Other processes on this GPU"),
            ),
            confidence=Confidence.LOW,
            confidence_reason="the capture does not show how the GPU is divided",
            change=(scale_durations(at, left), window_replay.alone_on_gpu),
            fix=f"{', '.join(names)} also {'run' if len(names) > 1 else 'runs'} on GPU "
            f"{context.device}. Give each process a GPU of its own, or start MPS, so that kernels "
            "of both run at once.",
            where=tuple(FindingLocation("process", name) for name in names),
        )

    def locate(self, context: RuleContext, _: TimelineFinding) -> pl.DataFrame:
        """Find the activities that share the GPU."""
        shared = np.flatnonzero(_shared_ns(context))
        return each_op(context, context.ops.filter(pl.col("op").is_in(shared.tolist())))


def _spans(rows: pl.DataFrame) -> Intervals:
    return Intervals.from_arrays(*(rows[c].to_numpy() for c in ("start_ns", "end_ns")))


@memoize
def _shared_ns(context: RuleContext) -> Ints:
    """Return how long activities of other processes ran during each activity."""
    ops = context.schedule.ops
    on_gpu = ops.device == context.device
    shared: Ints = coverage(_spans(context.other_processes), ops.start_ns, ops.end_ns)
    return np.where(on_gpu, shared, 0)
