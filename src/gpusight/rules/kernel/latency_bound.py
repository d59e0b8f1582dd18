"""latency-bound: no unit is busy, and warps stall."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from gpusight.analysis.counters import kernel_quantities as q
from gpusight.analysis.counters import launch_quantities as shared
from gpusight.analysis.counters.kernel_limiter import (
    LATENCY,
    MAX_OVERHEAD_CORRECTION,
    RUNNING,
    SATURATED,
    limiter,
    overhead,
    waits_left,
)
from gpusight.analysis.counters.profiled_launch import UNIT_NAMES, UNIT_QUANTITIES
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.kernel.uncoalesced_access import load_cycles
from gpusight.rules.patterns.kernel_speedup import ATTAINABLE, SHARED_WAITS, roof_limited, time_left
from gpusight.rules.rule import CLEAN, KernelRule, KernelRuleMatch, RuleNotApplicable, Threshold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analysis.counters.profiled_launch import ProfiledLaunch
    from gpusight.rules.rule import RuleVerdict


HIDDEN_WAIT_SHARE = Threshold(0.5, "share of the largest stall that a fix is assumed to hide")
LAUNCH_OVERHEAD = "Grid launch and drain take most of the time"
SHUFFLE_FIX = (
    "Reduce or scan within each warp with shuffles, and synchronize once: one row per warp, or one "
    "value per warp through shared memory."
)
SHUFFLE_CODE = """\
for (int d = 16; d; d /= 2)               // no barrier, no memory
  sum += __shfl_down_sync(0xffffffff, sum, d);
if (lane == 0) part[warp] = sum;          // then one __syncthreads()
"""
OVERHEAD_WHY = "Starting and draining a grid takes 1 to 2 µs, whatever its blocks do."
OVERHEAD_FIX = (
    "Do more per launch: fuse the kernel with its neighbors, or process several inputs at once. A "
    "CUDA graph shortens the gaps between such kernels, not the kernels."
)
OVERHEAD_CODE = """\
first<<<grid, block, 0, stream>>>(in, tmp);   // two launches, a round trip through memory
second<<<grid, block, 0, stream>>>(tmp, out);
both<<<grid, block, 0, stream>>>(in, out);    // one launch: tmp stays in registers
"""
MAX_REASONS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class WarpStall:
    """A stall reason and its fix."""

    what: str
    """What warps stall on."""
    fix: str


STALLS: dict[str, WarpStall] = {
    "long_scoreboard": WarpStall(
        "global or local memory",
        "Keep more loads in flight: issue several independent loads before the first use "
        "(unrolling, 16-byte vector loads, cp.async or TMA into shared memory), or keep reused "
        "data in shared memory or registers.",
    ),
    "short_scoreboard": WarpStall(
        "shared memory or XU",
        "Load from shared memory earlier and wider. Replace slow functions (division, sin, exp) by "
        "intrinsics (__fdividef, __sinf, __expf) where precision allows.",
    ),
    "barrier": WarpStall(
        "barriers",
        "Balance the work between barriers, use smaller blocks (several per SM), or __syncwarp() "
        "where a warp is enough.",
    ),
    "wait": WarpStall(
        "fixed-latency dependencies",
        "Increase instruction-level parallelism: several accumulators, unrolled loops.",
    ),
    "math_pipe_throttle": WarpStall(
        "a busy math pipe",
        "Mix pipes, or issue fewer instructions on the busy one (FP32 instead of FP64, Tensor "
        "Cores, strength reduction).",
    ),
    "mio_throttle": WarpStall(
        "the MIO queue",
        "Issue fewer and wider shared-memory instructions, and fewer XU instructions.",
    ),
    "lg_throttle": WarpStall(
        "the LSU queue",
        "Issue fewer and wider loads and stores: float4 instead of four floats, no spills.",
    ),
    "tex_throttle": WarpStall(
        "the texture queue", "Issue fewer texture or surface accesses; use global loads."
    ),
    "drain": WarpStall(
        "store drain at exit",
        "Write full, aligned sectors; give each block more work, so that fewer blocks exit.",
    ),
    "membar": WarpStall(
        "memory fences",
        "Use the narrowest fence that is correct (block, not device or system), less often.",
    ),
    "no_instruction": WarpStall(
        "instruction cache misses", "Reduce code size: less unrolling, fewer far branches."
    ),
    "imc_miss": WarpStall(
        "constant cache misses",
        "Read values that differ between threads with global loads, not from __constant__.",
    ),
    "branch_resolving": WarpStall(
        "branch resolution",
        "Reduce branches in the inner loop: unroll it, use conditional assignments.",
    ),
    "dispatch_stall": WarpStall("dispatch", "Rarely the bottleneck: see the next stall reason."),
    "sleeping": WarpStall("__nanosleep", "Sleep for a shorter time, or use a barrier instead."),
    "gmma": WarpStall(
        "WGMMA results", "Keep more WGMMAs in flight: deeper pipelines, larger tiles."
    ),
    "warpgroup_arrive": WarpStall(
        "warp-group arrival", "Keep more WGMMAs in flight: deeper pipelines, larger tiles."
    ),
    "misc": WarpStall("other reasons", "See the instructions in the source view."),
}


class LatencyBound(KernelRule):
    """No unit is busy, and warps stall."""

    id = "latency-bound"
    effort = "rewrite"
    detects = (
        "Neither the SMs nor memory are busy: warps stall, and there are too few of them to hide "
        "the latency."
    )
    why = (
        "No unit is near its peak: warps stall, and too few others are ready to issue or to load "
        "data meanwhile."
    )
    fix = (
        "Address the largest stall reason: more independent work in flight per thread, or more "
        "warps."
    )
    code = """\
// four independent loads in flight instead of one
float a0 = p[i], a1 = p[i + n], a2 = p[i + 2 * n], a3 = p[i + 3 * n];
sum += (a0 + a1) + (a2 + a3);
// several independent chains instead of one
for (int k = 0; k < 4; ++k) node[k] = next[node[k]];
"""
    caveats = (
        "A chain of dependent instructions cannot hide its own latency, only that of other warps."
    )
    estimate = (
        "Half of the largest stall is hidden, up to 90% of the busiest unit. Barriers between "
        "shared-memory accesses: without both, and with half of the instructions."
    )
    thresholds: ClassVar = {"hidden_wait_share": HIDDEN_WAIT_SHARE}
    helps = (shared.SM_SHARE, shared.MEMORY_SHARE, q.WARP_STATES)

    def check(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Check that no unit is busy, and find the largest stall reason."""
        bound = limiter(launch)
        if bound is None:
            return RuleNotApplicable("not measured: SM and memory utilization", self.sections)
        if bound != LATENCY:
            return CLEAN
        waits = [(r, s) for r, s in launch.stalls.items() if r not in RUNNING and r in STALLS]
        reasons = sorted(waits, key=lambda pair: (pair[0] == "misc", -pair[1]))
        match = _stall_match(launch, reasons) if reasons else _match_without_stalls(launch)
        if overhead(launch) >= MAX_OVERHEAD_CORRECTION:
            match = replace(
                match,
                title=LAUNCH_OVERHEAD,
                why=OVERHEAD_WHY,
                fix=OVERHEAD_FIX,
                code=OVERHEAD_CODE,
            )
        if reasons and _is_shared_reduction(launch, reasons[0][0]):
            match = replace(
                match,
                time_share=_with_warp_shuffles(launch),
                estimate="warp shuffles: no barriers, no shared memory, half of the instructions",
                fix=SHUFFLE_FIX,
                code=SHUFFLE_CODE,
            )
        return match


def _stall_match(launch: ProfiledLaunch, reasons: Sequence[tuple[str, float]]) -> KernelRuleMatch:
    reason, share = reasons[0]
    cycles = load_cycles(launch, launch.get(q.LOAD_REQUESTS))
    latency = Evidence("load_cycles", cycles or 0.0, "cycle", "Average latency of a global load")
    return KernelRuleMatch(
        title=f"{q.stall_name(reason)} {share:.0%} ({STALLS[reason].what})",
        time_share=roof_limited(launch, 1 - share * HIDDEN_WAIT_SHARE.value),
        estimate=f"{HIDDEN_WAIT_SHARE.value:.0%} of the largest stall hidden; no unit above "
        f"{ATTAINABLE:.0%} of its peak",
        evidence=(
            *(
                Evidence(
                    f"stall_{name}",
                    part,
                    "share",
                    f"{q.stall_name(name)}: warp time stalled on {STALLS[name].what}",
                )
                for name, part in reasons[:MAX_REASONS_SHOWN]
            ),
            *launch.evidence(shared.SM_SHARE, shared.MEMORY_SHARE, shared.OCCUPANCY, q.WARPS),
            *([] if cycles is None else [latency]),
            *launch.evidence(shared.WAVES),
        ),
        confidence=Confidence.LOW,
        confidence_reason="how much of a stall can be hidden is assumed",
        fix=STALLS[reason].fix,
    )


def _match_without_stalls(launch: ProfiledLaunch) -> KernelRuleMatch:
    highest = max(launch.busy.values(), default=0.0)
    totals = (shared.SM_SHARE, shared.MEMORY_SHARE)
    is_whole = all(launch.get(total) is not None for total in totals)
    units = sorted(launch.busy, key=lambda unit: -launch.busy[unit])
    measured = f"; measured: {', '.join(UNIT_NAMES[unit] for unit in units)}"
    of_units = () if is_whole else (UNIT_QUANTITIES[u] for u in units if u in UNIT_QUANTITIES)
    return KernelRuleMatch(
        title=f"Latency-bound: no unit above {highest:.0%}"
        if is_whole
        else f"Latency-bound: no measured unit above {highest:.0%}",
        time_share=roof_limited(launch, 1 - HIDDEN_WAIT_SHARE.value),
        estimate=f"{HIDDEN_WAIT_SHARE.value:.0%} of the stalls hidden; no unit above "
        f"{ATTAINABLE:.0%} of its peak" + ("" if is_whole else measured),
        evidence=launch.evidence(*totals, *of_units, shared.OCCUPANCY),
        confidence=Confidence.LOW,
        confidence_reason="warp stalls were not measured: collect WarpStateStats",
    )


def _is_shared_reduction(launch: ProfiledLaunch, reason: str) -> bool:
    """Return whether warps stall on barriers between accesses to a busy shared memory."""
    l1_share, shared_share = launch.busy.get("l1_data", 0.0), launch.get(q.SHARED_SHARE) or 0.0
    return (
        reason == "barrier"
        and l1_share >= SATURATED
        and shared_share >= HIDDEN_WAIT_SHARE.value * l1_share
    )


def _with_warp_shuffles(launch: ProfiledLaunch) -> float:
    """Return the time that remains with shuffles within warps instead of shared memory."""
    shared_share, units = launch.get(q.SHARED_SHARE) or 0.0, ("l1_data", "l1", "lsu")
    after = {unit: max(0.0, launch.busy.get(unit, 0.0) - shared_share) for unit in units}
    after |= {u: launch.busy.get(u, 0.0) * HIDDEN_WAIT_SHARE.value for u in ("issue", "alu", "sm")}
    stays = waits_left(launch, dict.fromkeys(("barrier", *SHARED_WAITS), 1.0))
    remaining = time_left(launch, after, waits_left=stays)
    return 1.0 if remaining is None else remaining
