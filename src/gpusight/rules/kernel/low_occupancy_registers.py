"""low-occupancy-registers: registers of each thread keep warps off the SMs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gpusight.rules.patterns.kernel_speedup import (
    MAX_LOW_OCCUPANCY,
    OCCUPANCY_ESTIMATE,
    OCCUPANCY_HELPS,
    OCCUPANCY_NEEDS,
    check_occupancy_limit,
)
from gpusight.rules.rule import KernelRule, RuleVerdict, Threshold

if TYPE_CHECKING:
    from gpusight.analysis.counters.profiled_launch import ProfiledLaunch


MAX_WARP_GAIN = Threshold(
    4,
    "times the warps that fewer registers are taken to allow: a quarter of them is left where "
    "values that are held for long are read later instead",
)


class LowOccupancyRegisters(KernelRule):
    """Registers of each thread keep warps off the SMs."""

    id = "low-occupancy-registers"
    detects = (
        "Each thread uses so many registers that few warps fit an SM, and the schedulers often "
        "find none that is ready."
    )
    why = (
        "While a warp waits for memory or for its own last result, the scheduler needs another "
        "one. With few warps there is none, and cycles pass empty."
    )
    fix = (
        "Let the compiler use fewer registers, or let each thread do less: shorter unrolled loops, "
        "fewer values held at once, a kernel split in two."
    )
    code = """\
// 4 blocks of 256 threads on an SM: at most 64 registers a thread
__global__ void __launch_bounds__(256, 4) kernel(...)
// or for a whole file: nvcc -maxrregcount=64
#pragma unroll 4                          // instead of a full unroll
"""
    caveats = (
        "Kernels with enough independent instructions in each thread hide waits with few warps, "
        "and lose by spills when registers are taken from them. Try it, and look for "
        "register-spill."
    )
    estimate = OCCUPANCY_ESTIMATE
    thresholds: ClassVar = {
        "max_low_occupancy": MAX_LOW_OCCUPANCY,
        "max_warp_gain": MAX_WARP_GAIN,
    }
    needs = OCCUPANCY_NEEDS
    helps = OCCUPANCY_HELPS
    single_kernels = True
    explains = frozenset({"latency-bound"})

    def check(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Find registers to be the one limit, and waits that more warps would hide."""
        return check_occupancy_limit(
            launch,
            "registers",
            at_most=MAX_WARP_GAIN.value,
            what="registers",
        )
