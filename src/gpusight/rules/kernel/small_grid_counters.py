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
    limited,
    ready,
    roof_limited,
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


MIN_MEMORY_WAIT_SHARE = Threshold(
    0.5,
    "part of their time that warps wait for memory, from which on a grid that reaches every SM is "
    "latency-bound rather than small",
)


class SmallGridCounters(KernelRule):
    """The grid has too few blocks or warps for the GPU."""

    id = "small-grid"
    detects = (
        "The grid has fewer blocks than the GPU has SMs, or too few for the warps that they hold."
    )
    why = (
        "A block runs on one SM. SMs without a block do nothing, and SMs with one small block wait "
        "most of the time."
    )
    fix = (
        "Cut the work into more blocks: fewer elements a thread, split the reduction (split-k), "
        "take several problems in one launch (batching); or fuse the kernel with its neighbours."
    )
    code = """\
int blocks = (n + threads - 1) / threads; // from the problem
// few long rows: several blocks for each, added up afterwards
dim3 grid(rows, (columns + chunk - 1) / chunk);
"""
    caveats = (
        "A small problem stays small: when there is no more work, only batching, fusing or running "
        "beside another kernel helps."
    )
    estimate = (
        "The same work on all SMs, each with the blocks that it holds; not below the 1.5 µs that "
        "any launch takes, and no unit beyond its roof."
    )
    thresholds: ClassVar = {"min_memory_wait_share": MIN_MEMORY_WAIT_SHARE}
    helps = (shared.REGISTERS, shared.SM_COUNT, shared.GRID_SIZE, q.ISSUED, shared.OCCUPANCY)
    single_kernels = True
    explains = frozenset({"latency-bound"})

    def check(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Compare the blocks of the grid with what the GPU holds at once."""
        grid, sms, blocks = launch.grid, launch.sm_count, launch.blocks_per_sm
        if grid is None or not sms or not blocks:
            return RuleNotApplicable(
                "not measured: blocks of the grid and SMs of the GPU", self.sections
            )
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
            title=f"{grid:,} block{'s' if grid != 1 else ''} for {sms} SMs that hold "
            f"{sms * blocks:,}",
            time_share=remaining,
            estimate=(f"the work on {sms} SMs instead of {grid}" if idle else "the work on all SMs")
            + f", with {blocks} blocks on each"
            + ("; starting a grid takes 1.5 µs" if remaining <= 2 * limited(launch, 0.0) else ""),
            evidence=(
                Evidence("grid", grid, "", shared.GRID_SIZE.meaning),
                Evidence("sm_count", sms, "", shared.SM_COUNT.meaning),
                Evidence("blocks_per_sm", blocks, "", "Blocks that fit an SM at once"),
                *launch.evidence(shared.WAVES, shared.OCCUPANCY, shared.SM_SHARE, q.SM_ACTIVE),
            ),
            confidence=Confidence.MEDIUM if idle and launch.busy else Confidence.LOW,
            confidence_reason="whether the work can be cut into more blocks is not known",
        )


def _time_left(launch: ProfiledLaunch, grid: int, sms: int, blocks: int) -> float:
    """Spread the same work over all SMs, and over the warps that each can hold."""
    spread = min(1.0, grid / sms)
    rate = issue_rate(launch)
    if rate is None or rate <= 0:
        return roof_limited(launch, spread)
    times = blocks / max(1.0, grid / sms)
    return roof_limited(launch, spread * rate / ready(rate, times))
