"""fp64-heavy: double-precision arithmetic sets the pace."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gpusight.analysis.counters import kernel_quantities as q
from gpusight.analysis.counters.kernel_limiter import SATURATED, waits_left
from gpusight.analysis.counters.profiled_launch import SCHEDULERS, WARP
from gpusight.hardware.sm_limits import SM_LIMITS
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.patterns.kernel_speedup import is_worth, limit_sentence, time_left
from gpusight.rules.rule import CLEAN, KernelRule, KernelRuleMatch, Threshold

if TYPE_CHECKING:
    from gpusight.analysis.counters.profiled_launch import ProfiledLaunch
    from gpusight.hardware.sm_limits import SmLimits
    from gpusight.rules.rule import RuleVerdict


MIN_FP64_SHARE = Threshold(
    0.2, "min. utilization of the FP64 pipe; below it, FP64 is not the bottleneck"
)
REMAINING_INSTRUCTIONS = Threshold(
    0.5,
    "share of the instructions that remains in float: math functions take half as many or fewer",
)
DEFAULT_FP64_RATIO = Threshold(0.5, "FP64 to FP32 rate where the GPU is unknown: that of HPC GPUs")
_WAITS = ("math_pipe_throttle", "wait", "short_scoreboard", "dispatch_stall")


class Fp64Heavy(KernelRule):
    """The FP64 pipe is the bottleneck."""

    id = "fp64-heavy"
    effort = "one line"
    detects = "The FP64 pipe is the busiest one, or warps stall on it."
    why = (
        "FP64 runs at half the FP32 rate on HPC GPUs, and at 1/32 or 1/64 on all others. A "
        "literal such as 1.0 or a call of sin() makes an expression double."
    )
    fix = (
        "Use float where precision allows: literals with an f suffix, sinf() instead of sin(), no "
        "double accumulators; or double for sums only."
    )
    code = """\
float y = x * 1.5f + 0.5f;                // 1.5 would make it double
float s = sinf(x);                        // not sin(x)
// find accidents: nvcc -Xptxas -warn-double-usage
"""
    caveats = (
        "Some results need double precision. Compensated (Kahan) sums in FP32 are often enough."
    )
    estimate = (
        "The FP64 work moves to the FP32 pipe, at the ratio of their peak rates. Other "
        "instructions (conversions, math functions) shrink to half at most. Issue slots and "
        "other units keep their load."
    )
    thresholds: ClassVar = {
        "min_fp64_share": MIN_FP64_SHARE,
        "remaining_instructions": REMAINING_INSTRUCTIONS,
        "default_fp64_ratio": DEFAULT_FP64_RATIO,
    }
    needs = (q.FP64,)
    helps = (q.FP64_OPERATIONS, q.INSTRUCTIONS, q.ISSUE, q.WARP_STATES)
    explains = frozenset({"compute-bound", "latency-bound"})

    def check(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Check whether the FP64 pipe limits the launch."""
        busy = launch.busy.get("fp64", 0.0)
        if busy < MIN_FP64_SHARE.value:
            return CLEAN
        ratio = fp64_rate(launch)
        kept = _instructions_kept(launch)
        after = {unit: launch.busy.get(unit, 0.0) * kept for unit in ("alu", "xu")}
        after |= {"fp64": 0.0, "fma": launch.busy.get("fma", 0.0) + busy * ratio, "sm": 0.0}
        # Stalls only matter where the pipe is not saturated.
        stays = None if busy >= SATURATED else waits_left(launch, dict.fromkeys(_WAITS, 1 - ratio))
        remaining = time_left(launch, after, waits_left=stays)
        if not is_worth(remaining):
            return CLEAN
        return KernelRuleMatch(
            title=f"FP64 pipe {busy:.0%} busy (1/{1 / ratio:.0f} of the FP32 rate)",
            time_share=remaining,
            estimate=f"the same arithmetic in FP32, at {1 / ratio:.0f}x the rate; "
            + limit_sentence(launch, after, remaining),
            evidence=(
                *launch.evidence(q.FP64, q.FP64_OPERATIONS, q.FMA, q.XU, q.ISSUE),
                Evidence("fp64_to_fp32_rate", ratio, "", "FP64 to FP32 peak rate of the GPU"),
            ),
            confidence=Confidence.MEDIUM,
            confidence_reason="whether the results need double precision is unknown",
        )


def _instructions_kept(launch: ProfiledLaunch) -> float:
    """Return the part of the instructions that remain: what is not FP64 arithmetic serves it."""
    operations, instructions = launch.get(q.FP64_OPERATIONS), launch.get(q.INSTRUCTIONS)
    if operations is not None and instructions:
        return max(REMAINING_INSTRUCTIONS.value, min(1.0, operations / WARP / instructions))
    issue, listed = launch.busy.get("issue"), _listed_sm(launch)
    if not issue or listed is None or not listed.fp64_cores:
        return 1.0
    issued = launch.busy.get("fp64", 0.0) * listed.fp64_cores / (SCHEDULERS * WARP)
    return max(REMAINING_INSTRUCTIONS.value, min(1.0, issued / issue))


def fp64_rate(launch: ProfiledLaunch) -> float:
    """Return the FP64 rate of the GPU over its FP32 rate."""
    if launch.gpu is not None and launch.gpu.vector.fp64 and launch.gpu.vector.fp32:
        return launch.gpu.vector.fp64 / launch.gpu.vector.fp32
    listed = _listed_sm(launch)
    if listed is not None and listed.fp64_cores:
        return listed.fp64_cores / listed.fp32_cores
    return DEFAULT_FP64_RATIO.value


def _listed_sm(launch: ProfiledLaunch) -> SmLimits | None:
    """Find the SM in the table: of one that is not there a capture states limits, but no rates."""
    return None if launch.sm is None else SM_LIMITS.get(launch.sm.compute_capability)
