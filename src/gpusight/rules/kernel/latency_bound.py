"""latency-bound: no unit is busy, and warps wait."""

from __future__ import annotations

from dataclasses import dataclass
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
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.kernel.uncoalesced_access import load_cycles
from gpusight.rules.patterns.kernel_speedup import ATTAINABLE, SHARED_WAITS, roof_limited, time_left
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


HIDDEN_WAIT_SHARE = Threshold(0.5, "part of the foremost wait that a fix is taken to hide")
STARTED = "starting and draining a grid takes most of it"
LADDER_FIX = (
    "Reduce or scan within each warp, by shuffles, and meet at a barrier once: a row for each "
    "warp, or one value of each warp through shared memory."
)
LADDER_CODE = """\
for (int d = 16; d; d /= 2)               // no barrier, no memory
  sum += __shfl_down_sync(0xffffffff, sum, d);
if (lane == 0) part[warp] = sum;          // then one __syncthreads()
"""
MAX_REASONS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class WarpStall:
    """A reason for which warps stall, and what to do about it."""

    what: str
    """What warps wait for, as the end of a sentence."""
    fix: str


STALLS: dict[str, WarpStall] = {
    "long_scoreboard": WarpStall(
        "data from global or local memory",
        "Have more loads under way: issue several independent loads before the first use "
        "(unrolling, 16-byte vector loads, cp.async or TMA into shared memory), or keep what is "
        "read again in shared memory or registers.",
    ),
    "short_scoreboard": WarpStall(
        "shared memory or special functions",
        "Read from shared memory earlier than the value is needed, with wider loads; replace slow "
        "functions (division, sin, exp) by fast ones (__fdividef, __sinf, __expf) where the "
        "precision allows.",
    ),
    "barrier": WarpStall(
        "the other warps of their block, at a barrier",
        "Let warps reach __syncthreads() together: even out the work between barriers, use smaller "
        "blocks (several for each SM), or __syncwarp() where a warp is enough.",
    ),
    "wait": WarpStall(
        "the fixed latency of their own last instruction",
        "Give each thread independent work to interleave: several accumulators, unrolled loops.",
    ),
    "math_pipe_throttle": WarpStall(
        "an arithmetic pipe that is busy",
        "Use a mix of pipes, or fewer instructions on the busy one (FP32 for FP64, tensor cores, "
        "strength reduction).",
    ),
    "mio_throttle": WarpStall(
        "the queue of shared memory and special functions",
        "Issue fewer and wider shared-memory instructions, and fewer special functions.",
    ),
    "lg_throttle": WarpStall(
        "the queue of global and local memory",
        "Issue fewer and wider loads and stores: float4 for four floats, no spills.",
    ),
    "tex_throttle": WarpStall(
        "the queue of the texture unit",
        "Issue fewer texture or surface accesses; read through ordinary loads.",
    ),
    "drain": WarpStall(
        "their last stores, before they can end",
        "Write with whole, aligned sectors; let each block do more, so that fewer blocks end.",
    ),
    "membar": WarpStall(
        "a memory fence",
        "Use the narrowest fence that is right (block rather than device or system), less often.",
    ),
    "no_instruction": WarpStall(
        "instructions, which are not in the instruction cache",
        "Make the code smaller: less unrolling, fewer branches that jump far.",
    ),
    "imc_miss": WarpStall(
        "constants, which are not in the constant cache",
        "Read values that differ between threads through ordinary loads, not from __constant__.",
    ),
    "branch_resolving": WarpStall(
        "the target of a branch",
        "Have fewer branches in the inner loop: unroll it, use conditional assignments.",
    ),
    "dispatch_stall": WarpStall("the dispatcher", "Rarely in the way: look at the next reason."),
    "sleeping": WarpStall(
        "the end of their own __nanosleep",
        "Sleep for a shorter time, or wait on a barrier instead.",
    ),
    "gmma": WarpStall(
        "the tensor cores to finish a warp-group product",
        "Have more products under way: deeper pipelines, larger tiles.",
    ),
    "warpgroup_arrive": WarpStall(
        "their warp group", "Have more products under way: deeper pipelines, larger tiles."
    ),
    "misc": WarpStall("something else", "Look at the instructions in the source view."),
}


class LatencyBound(KernelRule):
    """No unit is busy, and warps wait."""

    id = "latency-bound"
    detects = (
        "Neither the SMs nor the memory system are busy: warps wait, each for its own reason, and "
        "there are too few of them to hide it."
    )
    why = "Time passes in which nothing is issued and nothing is moved."
    fix = (
        "Look at what warps wait for: have more independent work under way in each thread, or more "
        "warps."
    )
    code = """\
// four independent loads under way instead of one
float a0 = p[i], a1 = p[i + n], a2 = p[i + 2 * n], a3 = p[i + 3 * n];
sum += (a0 + a1) + (a2 + a3);
// several independent chains in place of one
for (int k = 0; k < 4; ++k) node[k] = next[node[k]];
"""
    caveats = (
        "A chain in which each step needs the one before cannot be hidden within itself, only "
        "behind others."
    )
    estimate = (
        "Half of the foremost wait is hidden, up to 90% of the busiest unit. Of barriers between "
        "steps in shared memory: without both, and with half of the instructions."
    )
    thresholds: ClassVar = {"hidden_wait_share": HIDDEN_WAIT_SHARE}
    helps = (shared.SM_SHARE, shared.MEMORY_SHARE, q.WARP_STATES)

    def check(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Check that no unit is busy, and find what warps wait for."""
        bound = limiter(launch)
        if bound is None:
            return RuleNotApplicable("not measured: how busy SMs and memory were", self.sections)
        if bound != LATENCY:
            return CLEAN
        highest = max(launch.busy.values(), default=0.0)
        reasons = _reasons(launch)
        if not reasons:
            return _without_reasons(launch, highest)
        reason, share = reasons[0]
        ladder = _is_ladder(launch, reason)
        remaining = (
            _without_ladder(launch)
            if ladder
            else roof_limited(launch, 1 - share * HIDDEN_WAIT_SHARE.value)
        )
        cycles = load_cycles(launch, launch.get(q.LOAD_REQUESTS))
        meaning = "Wait for one global load, on average"
        load = Evidence("load_cycles", cycles or 0.0, "cycle", meaning)
        return KernelRuleMatch(
            title=f"as short as a launch gets; {STARTED}"
            if overhead(launch) >= MAX_OVERHEAD_CORRECTION
            else f"no unit above {highest:.0%}; warps wait {share:.0%} of the time for "
            + STALLS[reason].what,
            time_share=remaining,
            estimate="within a warp, by shuffles: no barriers, no shared memory, half of the "
            "instructions"
            if ladder
            else f"{HIDDEN_WAIT_SHARE.value:.0%} of the foremost wait hidden; no unit beyond "
            f"{ATTAINABLE:.0%} of its peak",
            evidence=(
                *(
                    Evidence(
                        f"stall_{name}", part, "share", f"Warps that waited for {STALLS[name].what}"
                    )
                    for name, part in reasons[:MAX_REASONS_SHOWN]
                ),
                *launch.evidence(shared.SM_SHARE, shared.MEMORY_SHARE, shared.OCCUPANCY, q.WARPS),
                *([] if cycles is None else [load]),
                *launch.evidence(shared.WAVES),
            ),
            confidence=Confidence.LOW,
            confidence_reason="how much of a wait can be hidden is a guess",
            fix=LADDER_FIX if ladder else STALLS[reason].fix,
            code=LADDER_CODE if ladder else "",
        )


def _is_ladder(launch: ProfiledLaunch, reason: str) -> bool:
    """Return whether warps stall on barriers between accesses to a busy shared memory."""
    pipe, in_shared = launch.busy.get("l1_data", 0.0), launch.get(q.SHARED_SHARE) or 0.0
    return reason == "barrier" and pipe >= SATURATED and in_shared >= HIDDEN_WAIT_SHARE.value * pipe


def _without_ladder(launch: ProfiledLaunch) -> float:
    """Return the time that remains with shuffles within warps instead of shared memory."""
    in_shared, units = launch.get(q.SHARED_SHARE) or 0.0, ("l1_data", "l1", "lsu")
    after = {unit: max(0.0, launch.busy.get(unit, 0.0) - in_shared) for unit in units}
    after |= {u: launch.busy.get(u, 0.0) * HIDDEN_WAIT_SHARE.value for u in ("issue", "alu", "sm")}
    stays = waits_left(launch, dict.fromkeys(("barrier", *SHARED_WAITS), 1.0))
    remaining = time_left(launch, after, waits_left=stays)
    return 1.0 if remaining is None else remaining


def _reasons(launch: ProfiledLaunch) -> list[tuple[str, float]]:
    """Return the stall reasons, the most frequent first; `misc` last."""
    waits = [(r, s) for r, s in launch.stalls.items() if r not in RUNNING and r in STALLS]
    return sorted(waits, key=lambda pair: (pair[0] == "misc", -pair[1]))


def _without_reasons(launch: ProfiledLaunch, highest: float) -> KernelRuleMatch:
    remaining = roof_limited(launch, 1 - HIDDEN_WAIT_SHARE.value)
    return KernelRuleMatch(
        title=f"as short as a launch gets; {STARTED}"
        if overhead(launch) >= MAX_OVERHEAD_CORRECTION
        else f"no unit above {highest:.0%}: warps wait",
        time_share=remaining,
        estimate="twice as fast at most; what warps wait for was not measured",
        evidence=launch.evidence(shared.SM_SHARE, shared.MEMORY_SHARE, shared.OCCUPANCY),
        confidence=Confidence.LOW,
        confidence_reason="what warps waited for was not measured: collect WarpStateStats",
    )
