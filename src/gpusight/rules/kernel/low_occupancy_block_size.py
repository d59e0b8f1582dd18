"""low-occupancy-block-size: blocks of this size cannot fill an SM, or not their own warps."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gpusight.analysis.counters import kernel_quantities as q
from gpusight.analysis.counters import launch_quantities as shared
from gpusight.analysis.counters.profiled_launch import SM_UNITS, WARP
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.patterns.kernel_speedup import (
    MAX_LOW_OCCUPANCY,
    MIN_SPEEDUP,
    OCCUPANCY_ESTIMATE,
    OCCUPANCY_HELPS,
    OCCUPANCY_NEEDS,
    check_occupancy_limit,
    is_worth,
    limit_sentence,
    roof_limited,
    theoretical_occupancy,
    time_left,
)
from gpusight.rules.rule import CLEAN, KernelRule, KernelRuleMatch, Threshold

if TYPE_CHECKING:
    from gpusight.analysis.counters.profiled_launch import ProfiledLaunch
    from gpusight.rules.rule import RuleVerdict


MAX_WARP_GAIN = Threshold(8, "max. factor of warps that another block size may allow")
STARTING_CYCLES = Threshold(
    250, "SM cycles per block below which block launch dominates; one block launch takes 100 to 200"
)
MIN_SUPPLIED_SHARE = Threshold(
    0.75, "ratio of achieved to theoretical occupancy from which block launch keeps up"
)
USUAL_BLOCK = Threshold(256, "block size that small blocks are compared with")
MIN_WARP_FILL = Threshold(
    0.85, "min. share of the warp slots of a block that its threads should fill"
)


class LowOccupancyBlockSize(KernelRule):
    """Blocks of this size cannot fill an SM, or their own warps."""

    id = "low-occupancy-block-size"
    effort = "one line"
    detects = (
        "Blocks are too small to fill an SM, or so small that block launch dominates; too large "
        "to fill the rest of an SM; or not a multiple of 32."
    )
    why = (
        "An SM holds 16 to 32 blocks: with one warp each, that is a quarter or half of its warp "
        "slots. Launching a block takes 100 to 200 cycles. A partial warp costs as much as a full "
        "one."
    )
    fix = "Use blocks of 128 to 256 threads, a multiple of 32 that divides the threads per SM."
    code = """\
int threads = 256;                        // was 32
int blocks = (n + threads - 1) / threads;
kernel<<<blocks, threads>>>(...);
// or let the runtime choose
cudaOccupancyMaxPotentialBlockSize(&grid, &threads, kernel, 0, 0);
"""
    caveats = "A kernel that depends on its block size (a reduction, a tile) has to change with it."
    estimate = (
        OCCUPANCY_ESTIMATE
        + " Blocks of 256 threads need fewer block launches, full warps fewer instructions."
    )
    thresholds: ClassVar = {
        "max_low_occupancy": MAX_LOW_OCCUPANCY,
        "max_warp_gain": MAX_WARP_GAIN,
        "starting_cycles": STARTING_CYCLES,
        "min_supplied_share": MIN_SUPPLIED_SHARE,
        "usual_block": USUAL_BLOCK,
        "min_warp_fill": MIN_WARP_FILL,
    }
    needs = OCCUPANCY_NEEDS
    helps = OCCUPANCY_HELPS
    single_kernels = True
    explains = frozenset({"latency-bound", "compute-bound", "divergence"})

    def check(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Look for limits that small blocks run into, and take the one that costs most."""
        limit = "warps" if launch.fit and launch.fit.limiters == ("warps",) else "blocks"
        by_limit = check_occupancy_limit(
            launch, limit, at_most=MAX_WARP_GAIN.value, what=f"block size {launch.block}"
        )
        verdicts = (by_limit, _starting(launch), _partial_warps(launch))
        matches = [verdict for verdict in verdicts if isinstance(verdict, KernelRuleMatch)]
        return min(matches, key=lambda match: match.time_share or 1.0, default=by_limit)


def _starting(launch: ProfiledLaunch) -> RuleVerdict:
    """Find SMs that spend their time on block launches."""
    cycles = _cycles_per_block(launch)
    if cycles is None or cycles >= STARTING_CYCLES.value or launch.block is None:
        return CLEAN
    achieved, possible = launch.get(shared.OCCUPANCY), theoretical_occupancy(launch)
    supplied = achieved / possible if achieved is not None and possible else 0.0
    if supplied >= MIN_SUPPLIED_SHARE.value:
        return CLEAN
    fewer = USUAL_BLOCK.value / launch.block
    remaining = roof_limited(launch, 1 / fewer)
    if remaining > 1 / MIN_SPEEDUP:
        return CLEAN
    return KernelRuleMatch(
        title=f"Block launch overhead: {launch.grid:,} blocks of {launch.block}",
        time_share=remaining,
        estimate=f"{fewer:.0f}x fewer blocks, of {USUAL_BLOCK.value:.0f} threads; no unit above "
        "its roofline",
        evidence=(
            Evidence("cycles_per_block", cycles, "cycle", "SM cycles per block"),
            *launch.evidence(shared.OCCUPANCY, shared.THEORETICAL_OCCUPANCY, shared.WAVES),
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason="block launch as the bottleneck is inferred",
    )


def _cycles_per_block(launch: ProfiledLaunch) -> float | None:
    """Return the cycles of an SM per block; None where there are few blocks, or unknown."""
    clock, waves = launch.get(shared.SM_CLOCK_HZ), launch.waves
    if not clock or not waves or waves < 2 or not launch.duration_ns:
        return None
    if not launch.grid or not launch.sm_count:
        return None
    return launch.duration_ns * 1e-9 * clock * launch.sm_count / launch.grid


def _partial_warps(launch: ProfiledLaunch) -> RuleVerdict:
    """Find blocks whose last warp is far from full."""
    if launch.block is None or launch.warps_per_block is None:
        return CLEAN
    filled = launch.block / (launch.warps_per_block * WARP)
    if filled >= MIN_WARP_FILL.value:
        return CLEAN
    after = {unit: launch.busy[unit] * filled for unit in SM_UNITS if unit in launch.busy}
    remaining = time_left(launch, after)
    if not is_worth(remaining):
        return CLEAN
    return KernelRuleMatch(
        title=f"Block size {launch.block}: warps {filled:.0%} full",
        time_share=remaining,
        estimate=f"full warps need {filled:.0%} of the instructions; "
        + limit_sentence(launch, after, remaining),
        evidence=(
            Evidence("block", launch.block, "", shared.BLOCK_SIZE.meaning),
            *launch.evidence(q.THREADS_PER_INSTRUCTION, q.ISSUE, shared.SM_SHARE),
        ),
        confidence=Confidence.HIGH,
        confidence_reason="the block size is known",
    )
