"""tail-effect: the last wave of blocks leaves most of the GPU empty."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from gpusight.analysis.counters import kernel_quantities as q
from gpusight.analysis.counters import launch_quantities as shared
from gpusight.analysis.counters.kernel_limiter import busiest, steady
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.patterns.kernel_speedup import (
    MIN_SPEEDUP,
    limited,
    needed,
    roof_limited,
    theoretical,
)
from gpusight.rules.rule import (
    CLEAN,
    KernelRule,
    KernelRuleMatch,
    RuleNotApplicable,
    RuleVerdict,
    Threshold,
)

if TYPE_CHECKING:
    from gpusight.analysis.counters.profiled_launch import ProfiledLaunch


MAX_MEMORY_SHARE = Threshold(
    0.75, "share of DRAM or L2 from which on a fuller last wave has nothing left to gain"
)
MAX_PIPE_SHARE = Threshold(
    0.9, "the same for what each SM has of its own, which comes nearer to its peak"
)
MIN_SM_ACTIVE_SHARE = Threshold(
    0.8, "least part of the launch in which an SM should have warps, on average"
)
UNEVEN_CODE = """\
__shared__ int piece;
for (;;) {
  if (threadIdx.x == 0) piece = atomicAdd(&next_piece, 1);
  __syncthreads();
  if (piece >= pieces) break;
  work_on(piece);
  __syncthreads();
}
"""
MAX_WAVES = Threshold(
    10, "waves from which on a last one that is not full is at most a tenth of the time"
)


class TailEffect(KernelRule):
    """The last wave of blocks leaves most of the GPU empty."""

    id = "tail-effect"
    detects = (
        "The grid fills the GPU a little more often than a whole number of times, and only a few "
        "times; or a few blocks run so long that most SMs are idle at the end."
    )
    why = "Blocks run in waves. The last one takes as long as a full one, with most SMs idle."
    fix = (
        "Make the grid a whole number of waves, or blocks smaller so that the last wave is short; "
        "or launch one wave of blocks that loop over the work (a persistent kernel)."
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
        "Blocks of very different length do not run in waves. Another kernel on another stream may "
        "use the SMs that the last wave leaves free."
    )
    estimate = (
        "The waves that the grid fills over the whole waves it takes; no more than the places for "
        "warps that were empty, and no unit beyond its roof. Of uneven blocks, the part of the "
        "time in which SMs had work."
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
            return RuleNotApplicable("not measured: how many waves the grid makes", self.sections)
        if waves <= 1 or _near_roof(launch):
            return CLEAN
        verdicts = [_last_wave(launch, waves), _uneven(launch)]
        return next(
            (verdict for verdict in verdicts if isinstance(verdict, KernelRuleMatch)), CLEAN
        )


def _near_roof(launch: ProfiledLaunch) -> bool:
    """Return whether a unit is so busy that it hardly matters how full the SMs are."""
    common, own = busiest(launch, ("dram", "l2", "memory")), busiest(launch)
    return (common is not None and steady(launch, common[1]) >= MAX_MEMORY_SHARE.value) or (
        own is not None and steady(launch, own[1]) >= MAX_PIPE_SHARE.value
    )


def _last_wave(launch: ProfiledLaunch, waves: float) -> RuleVerdict:
    """Find a last wave that is far from full, after few that were."""
    if waves >= MAX_WAVES.value:
        return CLEAN
    full_waves = math.ceil(waves)
    full = _fullness(launch)
    remaining = limited(launch, max(waves / full_waves, full or 0.0, needed(launch)))
    if remaining > 1 / MIN_SPEEDUP:
        return CLEAN
    return KernelRuleMatch(
        title=f"{waves:.2f} waves of blocks take the time of {full_waves}",
        time_share=remaining,
        estimate=f"{waves:.2f} waves in place of {full_waves}"
        + ("" if full is None else f"; {1 - full:.0%} of the places for warps were empty"),
        evidence=(
            Evidence("waves", waves, "", shared.WAVES.meaning),
            *launch.evidence(shared.OCCUPANCY, shared.THEORETICAL_OCCUPANCY, q.SM_ACTIVE),
        ),
        confidence=Confidence.MEDIUM if full is None else Confidence.HIGH,
        confidence_reason="how full the SMs were was not measured"
        if full is None
        else "the empty places were measured",
    )


def _uneven(launch: ProfiledLaunch) -> RuleVerdict:
    """Find SMs that are idle for long although there are blocks enough: a few run much longer."""
    active = launch.get(q.SM_ACTIVE)
    if active is None or steady(launch, active) >= MIN_SM_ACTIVE_SHARE.value:
        return CLEAN
    remaining = roof_limited(launch, steady(launch, active))
    if remaining > 1 / MIN_SPEEDUP:
        return CLEAN
    return KernelRuleMatch(
        title=f"SMs are idle for {1 - active:.0%} of the time: a few blocks run much longer",
        time_share=remaining,
        estimate="the same work spread evenly over the SMs",
        evidence=(
            *launch.evidence(q.SM_ACTIVE, shared.OCCUPANCY, shared.THEORETICAL_OCCUPANCY),
            Evidence("waves", launch.waves or 0.0, "", shared.WAVES.meaning),
        ),
        confidence=Confidence.HIGH,
        confidence_reason="the time in which SMs were idle was measured",
        fix="Cut the long pieces of work up, start them first, or let blocks fetch pieces from a "
        "queue (an atomic counter) until there are none.",
        code=UNEVEN_CODE,
    )


def _fullness(launch: ProfiledLaunch) -> float | None:
    """Return the part of the warp slots that were used, over the whole launch."""
    achieved, possible = launch.get(shared.OCCUPANCY), theoretical(launch)
    active = launch.get(q.SM_ACTIVE)
    if achieved is None or not possible or active is None:
        return None
    return min(1.0, achieved / possible * active)
