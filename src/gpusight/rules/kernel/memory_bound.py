"""memory-bound: DRAM, L2 or L1 sets the pace."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gpusight.analysis.counters import kernel_quantities as q
from gpusight.analysis.counters import launch_quantities as shared
from gpusight.analysis.counters.kernel_limiter import AT_ROOF, MEMORY, limiter, memory_unit, steady
from gpusight.analysis.counters.profiled_launch import UNIT_NAMES
from gpusight.rules.finding import Confidence
from gpusight.rules.patterns.kernel_speedup import roof_distance
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


ROOF = Threshold(
    AT_ROOF,
    "share of its peak from which on a memory unit is at its roof: copies reach 82 to 93% of DRAM",
)


class MemoryBound(KernelRule):
    """DRAM, L2 or L1 sets the pace."""

    id = "memory-bound"
    detects = (
        "A unit of the memory system (DRAM, L2, L1) is busier than any other, or warps wait for "
        "memory although the GPU is full of them."
    )
    why = (
        "The launch cannot be faster than its bytes can be moved. At the roof it is as fast as "
        "this much traffic allows."
    )
    fix = (
        "Move fewer bytes: fuse with the kernels before and after, use 16-bit types, read once and "
        "keep in registers or shared memory. Below the roof: more and wider loads under way in "
        "each thread."
    )
    code = """\
@torch.compile                            # fuses elementwise chains
def step(x): ...
// four values a thread in one access
float4 v = reinterpret_cast<const float4*>(in)[i];
"""
    caveats = (
        "Nsight Compute empties the caches before each launch and may hold the clocks down: the "
        "same kernel can be faster in its program."
    )
    estimate = (
        "None at the roof; below it, the distance to 80% of the unit's peak, where a roof begins."
    )
    thresholds: ClassVar = {"roof": ROOF}
    helps = (shared.DRAM_SHARE, shared.L2_SHARE, shared.SM_SHARE)
    tells_roof = True

    def check(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Check whether a memory unit is the memory_unit, and how far from its roof."""
        bound = limiter(launch)
        if bound is None:
            return RuleNotApplicable("not measured: how busy SMs and memory were", self.sections)
        if bound != MEMORY:
            return CLEAN
        unit = memory_unit(launch)
        assert unit is not None
        name, share = unit
        at_roof = steady(launch, share) >= ROOF.value
        remaining = 1.0 if at_roof else roof_distance(launch, share)
        confidence, reason = Confidence.HIGH, "measured"
        if not at_roof:
            confidence, reason = Confidence.LOW, "what keeps the unit from its peak is not known"
        elif launch.get(q.SECTORS_NEEDED) is None:
            confidence = Confidence.MEDIUM
            reason = "whether all of the traffic is needed was not measured: collect SourceCounters"
        return KernelRuleMatch(
            title=f"at its roof: {UNIT_NAMES[name]} {share:.0%} busy"
            if at_roof
            else f"{UNIT_NAMES[name]} sets the pace, at {share:.0%} of its peak",
            time_share=remaining,
            estimate="nothing to gain but by moving fewer bytes"
            if at_roof
            else f"the same traffic at {AT_ROOF:.0%} of the unit's peak",
            evidence=launch.evidence(
                shared.DRAM_SHARE,
                shared.L2_SHARE,
                q.L1_ELAPSED,
                shared.SM_SHARE,
                shared.DRAM_BYTES,
                shared.OCCUPANCY,
            ),
            confidence=confidence,
            confidence_reason=reason,
        )
