"""small-grid of an ncu report: the grid has too few blocks or warps for the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gpusight.analysis.counters import kernel_quantities as q
from gpusight.analysis.counters import launch_quantities as shared
from gpusight.analysis.counters.kernel_limiter import MEMORY_WAITS
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.patterns.kernel_speedup import (
    MIN_SPEEDUP,
    is_tensor_core_kernel,
    issue_rate,
    ready_share,
    roof_limited,
    with_launch_overhead,
)
from gpusight.rules.rule import CLEAN, KernelRule, KernelRuleMatch, RuleNotApplicable, Threshold
from gpusight.units import plural

if TYPE_CHECKING:
    from gpusight.analysis.counters.profiled_launch import ProfiledLaunch
    from gpusight.rules.rule import RuleVerdict


MIN_MEMORY_WAIT_SHARE = Threshold(
    0.5,
    "share of memory stalls from which a grid that reaches every SM is latency-bound, not small",
)


class SmallGridCounters(KernelRule):
    """The grid has too few blocks or warps for the GPU."""

    id = "small-grid"
    effort = "rewrite"
    detects = "The grid has fewer blocks than the GPU has SMs, or too few to fill the warp slots."
    why = (
        "A block runs on one SM. SMs without a block are idle, and SMs with one small block "
        "mostly stall."
    )
    fix = (
        "Use more blocks: fewer elements per thread, split-K reductions, batching; or fuse the "
        "kernel with its neighbors."
    )
    code = """\
int blocks = (n + threads - 1) / threads; // from the problem
// few long rows: several blocks per row, reduced afterwards
dim3 grid(rows, (columns + chunk - 1) / chunk);
"""
    caveats = (
        "A small problem stays small. Without more work, only batching, fusion or a concurrent "
        "kernel helps."
    )
    estimate = (
        "The same work on all SMs at full occupancy; not below the launch overhead of 1.5 µs, and "
        "no unit above its roofline."
    )
    thresholds: ClassVar = {"min_memory_wait_share": MIN_MEMORY_WAIT_SHARE}
    helps = (shared.REGISTERS, shared.SM_COUNT, shared.GRID_SIZE, q.ISSUED, shared.OCCUPANCY)
    single_kernels = True
    explains = frozenset({"latency-bound"})

    def check(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Compare the blocks of the grid with what the GPU holds at once."""
        grid, sms, blocks = launch.grid, launch.sm_count, launch.blocks_per_sm
        if grid is None or not sms or not blocks:
            return RuleNotApplicable("not measured: grid size and SM count", self.sections)
        idle = grid < sms
        # A grid that reaches every SM may be small on purpose, or not the bottleneck.
        waiting = sum(launch.stalls.get(reason, 0.0) for reason in MEMORY_WAITS)
        intended = is_tensor_core_kernel(launch) or waiting >= MIN_MEMORY_WAIT_SHARE.value
        if grid >= sms * blocks or (not idle and intended):
            return CLEAN
        remaining = _time_left(launch, grid, sms, blocks)
        if remaining > 1 / MIN_SPEEDUP:
            return CLEAN
        return KernelRuleMatch(
            title=f"Small grid: {grid:,} {plural('block', grid)} on {sms} SMs "
            f"(room for {sms * blocks:,})",
            time_share=remaining,
            estimate=(f"the work on {sms} SMs instead of {grid}" if idle else "the work on all SMs")
            + (f", with {blocks} blocks per SM" if blocks > 1 else ", with 1 block per SM")
            + (
                "; launch overhead is 1.5 µs"
                if remaining <= 2 * with_launch_overhead(launch, 0.0)
                else ""
            ),
            evidence=(
                Evidence("grid", grid, "", shared.GRID_SIZE.meaning),
                Evidence("sm_count", sms, "", shared.SM_COUNT.meaning),
                Evidence("blocks_per_sm", blocks, "", "Max. resident blocks per SM"),
                *launch.evidence(shared.WAVES, shared.OCCUPANCY, shared.SM_SHARE, q.SM_ACTIVE),
            ),
            confidence=Confidence.MEDIUM if idle and launch.busy else Confidence.LOW,
            confidence_reason="whether the work can be split into more blocks is unknown",
        )


def _time_left(launch: ProfiledLaunch, grid: int, sms: int, blocks: int) -> float:
    """Spread the same work over all SMs, and over the warps that each can hold."""
    spread = min(1.0, grid / sms)
    rate = issue_rate(launch)
    if rate is None or rate <= 0:
        return roof_limited(launch, spread)
    times = blocks / max(1.0, grid / sms)
    return roof_limited(launch, spread * rate / ready_share(rate, times))
