"""compute-bound: the SMs' pipes set the pace."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gpusight.analysis.counters import kernel_quantities as q
from gpusight.analysis.counters import launch_quantities as shared
from gpusight.analysis.counters.kernel_limiter import AT_ROOF, COMPUTE, busiest, limiter, steady
from gpusight.analysis.counters.profiled_launch import SM_UNITS, UNIT_NAMES, WARP
from gpusight.rules.finding import Confidence
from gpusight.rules.patterns.kernel_speedup import ATTAINABLE, limited, roof_distance
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
    "share of its peak from which on a pipe is at its roof: loops of nothing but multiply-adds "
    "reach 85 to 98%",
)

TABLE = """\
__shared__ float table[ENTRIES];          // a copy for the block
for (int i = threadIdx.x; i < ENTRIES; i += blockDim.x)
  table[i] = constants[i];
__syncthreads();
y += table[index];                        // a step for each bank
"""


class ComputeBound(KernelRule):
    """The SMs' pipes set the pace."""

    id = "compute-bound"
    detects = "The schedulers or a pipe of the SMs are busier than any other unit."
    why = (
        "The launch cannot be faster than its instructions can be issued and computed. At the roof "
        "it is as fast as this much arithmetic allows."
    )
    fix = (
        "Compute less, or on a faster unit: a better algorithm, tensor cores, shorter formats, "
        "fast versions of functions, loop invariants moved out."
    )
    code = """\
// nvcc -use_fast_math, or one by one
y = __expf(x); z = __fdividef(a, b);
float r = 1.0f / b;                       // once, outside the loop
"""
    caveats = (
        "A pipe that is busy with address arithmetic or loop counters is busy too: see the source "
        "view for what the instructions are."
    )
    estimate = (
        "None at the roof; below it, the distance to 80% of the unit's peak, where a roof begins."
    )
    thresholds: ClassVar = {"roof": ROOF}
    helps = (shared.SM_SHARE, shared.DRAM_SHARE, q.ISSUE, q.FMA)
    tells_roof = True

    def check(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Check whether a pipe of the SMs is the busiest unit, and how far from its roof."""
        bound = limiter(launch)
        if bound is None:
            return RuleNotApplicable("not measured: how busy SMs and memory were", self.sections)
        unit = busiest(launch, SM_UNITS)
        if bound != COMPUTE or unit is None:
            return CLEAN
        name, share = unit
        if name == "constants":
            return _divergent_constants(launch, share)
        at_roof = steady(launch, share) >= ROOF.value
        remaining = 1.0 if at_roof else roof_distance(launch, share)
        confidence, reason = Confidence.HIGH, "measured"
        if not at_roof:
            confidence, reason = Confidence.LOW, "what keeps the unit from its peak is not known"
        elif launch.get(q.THREADS_PER_INSTRUCTION) is None:
            confidence = Confidence.MEDIUM
            reason = "whether all threads take part was not measured: collect WarpStateStats"
        return KernelRuleMatch(
            title=f"at its roof: {UNIT_NAMES[name]} {share:.0%} busy"
            if at_roof
            else f"{UNIT_NAMES[name]} set the pace, at {share:.0%} of their peak"
            if name in {"issue", "sm", "tensor"}
            else f"{UNIT_NAMES[name]} sets the pace, at {share:.0%} of its peak",
            time_share=remaining,
            estimate="nothing to gain but by computing less"
            if at_roof
            else f"the same arithmetic at {AT_ROOF:.0%} of the unit's peak",
            evidence=launch.evidence(
                shared.SM_SHARE, q.ISSUE, q.FMA, q.ALU, q.FP64, q.XU, q.TENSOR, shared.DRAM_SHARE
            ),
            confidence=confidence,
            confidence_reason=reason,
        )


def _divergent_constants(launch: ProfiledLaunch, share: float) -> KernelRuleMatch:
    """Match constants that threads of a warp read at different addresses, one after the other."""
    others = max(
        (s for unit, s in launch.busy.items() if unit not in {"constants", "sm"}), default=0
    )
    return KernelRuleMatch(
        title=f"threads of a warp read different constants: {UNIT_NAMES['constants']} {share:.0%} "
        "busy",
        time_share=limited(launch, max(1 / WARP, others / ATTAINABLE)),
        estimate="one read in place of 32; no other unit beyond its roof",
        evidence=launch.evidence(q.CONSTANTS, shared.SM_SHARE, q.ISSUE, shared.DRAM_SHARE),
        confidence=Confidence.LOW,
        confidence_reason="how many addresses a warp reads at once is not known",
        fix="Keep __constant__ for values that all threads read at the same time. Put tables that "
        "each thread indexes for itself into shared memory, or read them through ordinary loads.",
        code=TABLE,
    )
