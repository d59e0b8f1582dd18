"""memory-bound: DRAM, L2 or L1 is the bottleneck."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gpusight.analysis.counters import kernel_quantities as q
from gpusight.analysis.counters import launch_quantities as shared
from gpusight.analysis.counters.kernel_limiter import (
    AT_ROOF,
    MEMORY,
    busiest,
    limiter,
    memory_unit,
    steady_utilization,
)
from gpusight.analysis.counters.profiled_launch import MEMORY_UNITS, UNIT_NAMES
from gpusight.rules.finding import Confidence
from gpusight.rules.patterns.kernel_speedup import roof_distance
from gpusight.rules.rule import CLEAN, KernelRule, KernelRuleMatch, RuleNotApplicable, Threshold

if TYPE_CHECKING:
    from gpusight.analysis.counters.profiled_launch import ProfiledLaunch
    from gpusight.rules.rule import RuleVerdict


ROOF = Threshold(
    AT_ROOF,
    "share of its peak from which a memory unit is at its roofline; copies reach 82 to 93% of DRAM",
)


_FEWER_BYTES = (
    "Move fewer bytes: fuse with neighboring kernels, use 16-bit types, keep reused data in "
    "registers or shared memory."
)
_COLD = "By default, Nsight Compute flushes the caches before each launch"
_FASTER = "the kernel can be faster in its program."
_CAVEATS = {
    True: f"{_COLD}. Clocks were locked while profiling: {_FASTER}",
    False: f"{_COLD}: {_FASTER} Clocks were not locked while profiling: durations vary.",
}
"""Instead of that of the rule, where the report shows whether clocks were locked."""


class MemoryBound(KernelRule):
    """DRAM, L2 or L1 is the bottleneck."""

    id = "memory-bound"
    effort = "rewrite"
    detects = (
        "A memory unit (DRAM, L2, L1) is busier than any other unit, and at 60% of its peak or "
        "more. DRAM is named from 85% of the busiest one on: its bytes pass L2 and L1 too."
    )
    why = (
        "Memory bandwidth limits the kernel. At the roofline it is as fast as this much traffic "
        "allows."
    )
    fix = f"{_FEWER_BYTES} Below the roofline, issue more and wider loads per thread."
    code = """\
// one 16-byte load per thread
float4 v = reinterpret_cast<const float4*>(in)[i];
"""
    caveats = (
        "By default, Nsight Compute flushes the caches before each launch and locks clocks to "
        "base: the kernel can be faster in its program."
    )
    estimate = "None at the roofline. Below it, the distance to 80% of the unit's peak."
    thresholds: ClassVar = {"roof": ROOF}
    helps = (shared.DRAM_SHARE, shared.L2_SHARE, shared.SM_SHARE)
    at_roofline = True

    def check(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Check whether memory limits the launch, and how far it is from the roofline."""
        bound = limiter(launch)
        if bound is None:
            return RuleNotApplicable("not measured: SM and memory utilization", self.sections)
        if bound != MEMORY:
            return CLEAN
        unit = memory_unit(launch)
        assert unit is not None
        name, share = unit
        reached = steady_utilization(launch, share)
        # Without the overhead of its launch, a short kernel is as near to its peak as a long one,
        # though over its whole duration it is not at the roofline.
        is_short = share < ROOF.value <= reached
        at_roof = reached >= ROOF.value
        remaining = 1.0 if at_roof else roof_distance(launch, share)
        confidence, reason = Confidence.HIGH, "measured"
        if not at_roof:
            confidence, reason = Confidence.LOW, "what keeps the unit below its peak is unknown"
        elif launch.get(q.SECTORS_NEEDED) is None:
            confidence = Confidence.MEDIUM
            reason = "excess sectors were not measured: collect SourceCounters"
        return KernelRuleMatch(
            title=f"{UNIT_NAMES[name]} {share:.0%} ({reached:.0%} without launch overhead)"
            if is_short
            else f"At the {UNIT_NAMES[name]} roofline ({share:.0%})"
            if at_roof
            else f"Limited by {UNIT_NAMES[name]} ({share:.0%} of peak)",
            time_share=remaining,
            estimate=("no gain unless the kernel moves fewer bytes" + _passed(launch, name))
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
            fix="" if remaining < 1 else _FEWER_BYTES,
            caveats="" if launch.clocks_locked is None else _CAVEATS[launch.clocks_locked],
            at_roofline=not is_short,
        )


def _passed(launch: ProfiledLaunch, name: str) -> str:
    """Explain why DRAM is named where a cache that its bytes pass is busier."""
    unit = busiest(launch, MEMORY_UNITS)
    if unit is None or unit[0] == name:
        return ""
    return f"; {UNIT_NAMES[unit[0]]} ({unit[1]:.0%}) moves the same bytes"
