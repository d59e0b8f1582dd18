"""tail-effect: the last wave of blocks leaves most of the GPU empty."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from gpusight.analysis.counters import kernel_quantities as q
from gpusight.analysis.counters import launch_quantities as shared
from gpusight.analysis.counters.kernel_limiter import busiest, steady_utilization
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.patterns.kernel_speedup import (
    MIN_SPEEDUP,
    busiest_unit_time,
    roof_limited,
    theoretical_occupancy,
    with_launch_overhead,
)
from gpusight.rules.rule import CLEAN, KernelRule, KernelRuleMatch, RuleNotApplicable, Threshold
from gpusight.units import format_mean

if TYPE_CHECKING:
    from gpusight.analysis.counters.profiled_launch import ProfiledLaunch
    from gpusight.rules.rule import RuleVerdict


MAX_MEMORY_SHARE = Threshold(
    0.75, "DRAM or L2 utilization from which a fuller last wave gains nothing"
)
MAX_PIPE_SHARE = Threshold(
    0.9, "the same for the units of each SM, which come closer to their peak"
)
MIN_SM_ACTIVE_SHARE = Threshold(
    0.8, "min. average share of the launch in which an SM should have warps"
)
UNEVEN_CODE = """\
__shared__ int item;
for (;;) {
  if (threadIdx.x == 0) item = atomicAdd(&next_item, 1);
  __syncthreads();
  if (item >= items) break;
  process(item);
  __syncthreads();
}
"""
MAX_WAVES = Threshold(
    10, "number of waves from which a partial last one is at most 10% of the time"
)


class TailEffect(KernelRule):
    """The last wave of blocks leaves most SMs idle."""

    id = "tail-effect"
    effort = "rewrite"
    detects = (
        "The grid is a little larger than a few full waves, or a few long blocks leave most SMs "
        "idle at the end."
    )
    why = (
        "Blocks run in waves. A partial last wave takes as long as a full one, with most SMs idle."
    )
    fix = (
        "Make the grid a whole number of waves, use smaller blocks, or launch one wave of blocks "
        "that loop over the work (persistent kernel)."
    )
    code = """\
int per_sm, sms;
cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel,
                                              threads, 0);
cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0);
kernel<<<per_sm * sms, threads>>>(...);   // one wave; in the kernel:
for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n;
     i += (size_t)gridDim.x * blockDim.x) { ... }
"""
    caveats = (
        "Blocks of very different duration do not run in waves. A kernel on another stream may "
        "use the idle SMs."
    )
    estimate = (
        "The waves that the grid fills over the whole waves it takes; limited by the idle warp "
        "slots, and no unit above its roofline. For uneven blocks, the share of the time in which "
        "SMs had work."
    )
    thresholds: ClassVar = {
        "max_waves": MAX_WAVES,
        "min_sm_active_share": MIN_SM_ACTIVE_SHARE,
        "max_memory_share": MAX_MEMORY_SHARE,
        "max_pipe_share": MAX_PIPE_SHARE,
    }
    helps = (shared.WAVES, shared.OCCUPANCY, shared.THEORETICAL_OCCUPANCY, q.SM_ACTIVE)
    single_kernels = True
    explains = frozenset({"latency-bound", "compute-bound", "memory-bound"})

    def check(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Compare the waves that the grid needs with those that it fills."""
        waves = launch.waves
        if waves is None:
            return RuleNotApplicable("not measured: number of waves", self.sections)
        if waves <= 1 or _near_roof(launch):
            return CLEAN
        verdicts = [_last_wave(launch, waves), _uneven(launch)]
        return next(
            (verdict for verdict in verdicts if isinstance(verdict, KernelRuleMatch)), CLEAN
        )


def _near_roof(launch: ProfiledLaunch) -> bool:
    """Return whether a unit is so busy that it hardly matters how full the SMs are."""
    common, own = busiest(launch, ("dram", "l2", "memory")), busiest(launch)
    return (
        common is not None and steady_utilization(launch, common[1]) >= MAX_MEMORY_SHARE.value
    ) or (own is not None and steady_utilization(launch, own[1]) >= MAX_PIPE_SHARE.value)


def _last_wave(launch: ProfiledLaunch, waves: float) -> RuleVerdict:
    """Find a last wave that is far from full, after few that were."""
    if waves >= MAX_WAVES.value:
        return CLEAN
    full_waves = math.ceil(waves)
    full = _fullness(launch)
    remaining = with_launch_overhead(
        launch, max(waves / full_waves, full or 0.0, busiest_unit_time(launch))
    )
    if remaining > 1 / MIN_SPEEDUP:
        return CLEAN
    return KernelRuleMatch(
        title=f"Tail effect: {format_mean(waves)} waves take as long as {full_waves}",
        time_share=remaining,
        estimate=f"{format_mean(waves)} waves instead of {full_waves}"
        + ("" if full is None else f"; {1 - full:.0%} of the warp slots were idle"),
        evidence=(
            Evidence("waves", waves, "", shared.WAVES.meaning),
            *launch.evidence(shared.OCCUPANCY, shared.THEORETICAL_OCCUPANCY, q.SM_ACTIVE),
        ),
        confidence=Confidence.MEDIUM if full is None else Confidence.HIGH,
        confidence_reason="idle warp slots were not measured"
        if full is None
        else "idle warp slots were measured",
    )


def _uneven(launch: ProfiledLaunch) -> RuleVerdict:
    """Find SMs that are idle for long although there are blocks enough: a few run much longer."""
    active = launch.get(q.SM_ACTIVE)
    if active is None or steady_utilization(launch, active) >= MIN_SM_ACTIVE_SHARE.value:
        return CLEAN
    remaining = roof_limited(launch, steady_utilization(launch, active))
    if remaining > 1 / MIN_SPEEDUP:
        return CLEAN
    return KernelRuleMatch(
        title=f"Load imbalance: SMs idle {1 - active:.0%} of the time",
        time_share=remaining,
        estimate="the same work balanced over the SMs",
        evidence=(
            *launch.evidence(q.SM_ACTIVE, shared.OCCUPANCY, shared.THEORETICAL_OCCUPANCY),
            Evidence("waves", launch.waves or 0.0, "", shared.WAVES.meaning),
        ),
        confidence=Confidence.HIGH,
        confidence_reason="SM idle time was measured",
        fix="Split long work items, start them first, or let blocks fetch items from a queue (an "
        "atomic counter).",
        code=UNEVEN_CODE,
    )


def _fullness(launch: ProfiledLaunch) -> float | None:
    """Return the part of the warp slots that were used, over the whole launch."""
    achieved, possible = launch.get(shared.OCCUPANCY), theoretical_occupancy(launch)
    active = launch.get(q.SM_ACTIVE)
    if achieved is None or not possible or active is None:
        return None
    return min(1.0, achieved / possible * active)
