"""compute-bound: a pipe of the SMs is the bottleneck."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gpusight.analysis.counters import kernel_quantities as q
from gpusight.analysis.counters import launch_quantities as shared
from gpusight.analysis.counters.kernel_limiter import (
    AT_ROOF,
    COMPUTE,
    SATURATED,
    busiest,
    limiter,
    steady_utilization,
)
from gpusight.analysis.counters.profiled_launch import (
    MEMORY_UNITS,
    SM_UNITS,
    UNIT_NAMES,
    UNIT_QUANTITIES,
    WARP,
)
from gpusight.rules.finding import Confidence
from gpusight.rules.patterns.kernel_speedup import ATTAINABLE, roof_distance, with_launch_overhead
from gpusight.rules.rule import CLEAN, KernelRule, KernelRuleMatch, RuleNotApplicable, Threshold

if TYPE_CHECKING:
    from gpusight.analysis.counters.profiled_launch import ProfiledLaunch
    from gpusight.rules.rule import RuleVerdict


ROOF = Threshold(
    AT_ROOF,
    "share of its peak from which a pipe has nothing to gain; pure FMA loops reach 85 to 98%",
)

MIN_XU_SHARE = Threshold(
    0.1,
    "utilization of the XU pipe from which on special functions and divisions, which run there, "
    "are worth replacing",
)

TABLE = """\
__shared__ float table[ENTRIES];          // one copy per block
for (int i = threadIdx.x; i < ENTRIES; i += blockDim.x)
  table[i] = constants[i];
__syncthreads();
y += table[index];                        // one wavefront per bank
"""


_FLOP_PIPES = ("fma", "fp64", "fp16", "tensor")
"""Pipes whose peak is a roofline in FLOP/s."""
_LSU_CODE = """\
// one load instead of four
float4 v = reinterpret_cast<const float4*>(in)[i];
// register tile: each value that is loaded is used 4 times
for (int r = 0; r < 4; ++r)
  for (int c = 0; c < 4; ++c) sum[r][c] += a[r] * b[c];
"""
_FAST_MATH_CODE = """\
// nvcc -use_fast_math, or one by one
y = __expf(x); z = __fdividef(a, b);
float r = 1.0f / b;                       // once, outside the loop
"""
_FAST_MATH = (
    (
        "Compute fewer special functions and divisions: fast math functions where precision "
        "allows, loop invariants hoisted, a better algorithm."
    ),
    _FAST_MATH_CODE,
    "computes less",
)
_ADVICE = {
    "xu": _FAST_MATH,
    "lsu": (
        (
            "Issue fewer loads and stores: wider ones (float4), register tiles that reuse each "
            "loaded value, warp shuffles instead of shared memory, no spills."
        ),
        _LSU_CODE,
        "issues fewer loads and stores",
    ),
}
"""Fix, code and what would gain, for units that are busy with something else than additions and
multiplications."""


class ComputeBound(KernelRule):
    """A pipe of the SMs is the bottleneck."""

    id = "compute-bound"
    effort = "rewrite"
    detects = "The schedulers or a pipe of the SMs are busier than any other unit."
    why = (
        "Instruction throughput limits the kernel: it is as fast as this many instructions of "
        "this kind allow."
    )
    fix = (
        "Compute less, or on a faster unit: a better algorithm, Tensor Cores, lower precision, "
        "loop invariants hoisted, larger register tiles with less address arithmetic per result."
    )
    code = """\
float scale = alpha / norm;  // loop invariants: outside the loop
// matmuls on Tensor Cores: cuBLAS, CUTLASS, or WMMA
wmma::mma_sync(sum, a, b, sum);
"""
    caveats = (
        "Address arithmetic and loop counters keep a pipe busy too. The source view shows the "
        "instructions."
    )
    estimate = "None from 80% of the unit's peak on. Below it, the distance to that."
    thresholds: ClassVar = {"roof": ROOF, "min_xu_share": MIN_XU_SHARE}
    helps = (shared.SM_SHARE, shared.DRAM_SHARE, q.ISSUE, q.FMA)
    at_roofline = True

    def check(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Check whether a pipe of the SMs is the busiest unit, and how far from its roofline."""
        bound = limiter(launch)
        if bound is None:
            return RuleNotApplicable("not measured: SM and memory utilization", self.sections)
        unit = busiest(launch, SM_UNITS)
        if bound != COMPUTE or unit is None:
            return CLEAN
        name, share = unit
        if name == "constants":
            return _divergent_constants(launch, share)
        at_roof = steady_utilization(launch, share) >= ROOF.value
        remaining = 1.0 if at_roof else roof_distance(launch, share)
        confidence, reason = Confidence.HIGH, "measured"
        if not at_roof:
            confidence, reason = Confidence.LOW, "what keeps the unit below its peak is unknown"
        elif launch.get(q.THREADS_PER_INSTRUCTION) is None:
            confidence = Confidence.MEDIUM
            reason = "active threads per warp were not measured: collect WarpStateStats"
        elif busiest(launch, (*MEMORY_UNITS, "memory")) is None:
            confidence, reason = Confidence.MEDIUM, "memory utilization was not measured"
        has_special = launch.busy.get("xu", 0.0) >= MIN_XU_SHARE.value
        usual = _FAST_MATH if has_special else ("", "", "computes less")
        text, code, fewer = _ADVICE.get(name, usual)
        pipe = UNIT_NAMES[name]
        busy = f"{pipe[0].upper()}{pipe[1:]} {share:.0%} busy"
        quantity = UNIT_QUANTITIES.get(name, shared.SM_SHARE)
        pipes = [p for p in _FLOP_PIPES if p != name and launch.busy.get(p, 0.0) >= SATURATED]
        also = "".join(f", {UNIT_NAMES[p]} {launch.busy[p]:.0%}" for p in pipes)
        others = (shared.SM_SHARE, q.ISSUE, q.FMA, q.ALU, q.FP64, q.XU, q.TENSOR, shared.DRAM_SHARE)
        return KernelRuleMatch(
            title=f"{busy}{also}" if at_roof else f"Limited by {UNIT_NAMES[name]} ({share:.0%})",
            time_share=remaining,
            estimate=f"no gain unless the kernel {fewer}"
            if at_roof
            else f"the same instructions at {AT_ROOF:.0%} of the unit's peak",
            evidence=launch.evidence(*dict.fromkeys((quantity, *others))),
            confidence=confidence,
            confidence_reason=reason,
            fix=text,
            code=code,
            at_roofline=any(launch.busy.get(p, 0.0) >= ROOF.value for p in _FLOP_PIPES),
        )


def _divergent_constants(launch: ProfiledLaunch, share: float) -> KernelRuleMatch:
    """Match constants that threads of a warp read at different addresses, one after the other."""
    others = max(
        (s for unit, s in launch.busy.items() if unit not in {"constants", "sm"}), default=0
    )
    return KernelRuleMatch(
        title=f"Divergent constant reads: constant cache {share:.0%} busy",
        time_share=with_launch_overhead(launch, max(1 / WARP, others / ATTAINABLE)),
        estimate="one read instead of 32; no other unit above its roofline",
        evidence=launch.evidence(q.CONSTANTS, shared.SM_SHARE, q.ISSUE, shared.DRAM_SHARE),
        confidence=Confidence.LOW,
        confidence_reason="how many addresses a warp reads at once is unknown",
        fix="Use __constant__ only for values that all threads of a warp read together. Put lookup "
        "tables into shared memory, or read them with global loads.",
        code=TABLE,
    )
