"""low-occupancy-registers: registers of each thread keep warps off the SMs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gpusight.analysis.occupancy.block_occupancy import MAX_REGISTER_GAIN
from gpusight.rules.patterns.kernel_speedup import (
    MAX_LOW_OCCUPANCY,
    OCCUPANCY_ESTIMATE,
    OCCUPANCY_HELPS,
    OCCUPANCY_NEEDS,
    check_occupancy_limit,
)
from gpusight.rules.rule import KernelRule, Threshold

if TYPE_CHECKING:
    from gpusight.analysis.counters.profiled_launch import ProfiledLaunch
    from gpusight.rules.rule import RuleVerdict


MAX_WARP_GAIN = Threshold(
    MAX_REGISTER_GAIN, "max. factor of warps that fewer registers are assumed to allow"
)


class LowOccupancyRegisters(KernelRule):
    """Registers per thread limit occupancy."""

    id = "low-occupancy-registers"
    effort = "one line"
    detects = (
        "Registers per thread limit the resident warps, and the schedulers often find no eligible "
        "warp."
    )
    why = (
        "While a warp stalls, the scheduler needs another eligible warp. With few resident warps "
        "there is none, and issue slots stay empty."
    )
    fix = (
        "Limit registers with __launch_bounds__, one block per SM more at a time: too few spill "
        "to local memory, which is slower. Or do less per thread: shorter unrolled loops, fewer "
        "live values, a kernel split in two."
    )
    code = """\
// 3 blocks of 256 threads per SM instead of 2: at most 80 registers
__global__ void __launch_bounds__(256, 3) kernel(...)
// then 4, as long as nvcc -Xptxas -v shows 0 bytes spill stores
#pragma unroll 4                          // instead of a full unroll
"""
    caveats = (
        "Kernels with high instruction-level parallelism hide latency with few warps, and slow "
        "down when registers spill. Try it, and check register-spill."
    )
    estimate = OCCUPANCY_ESTIMATE
    thresholds: ClassVar = {"max_low_occupancy": MAX_LOW_OCCUPANCY, "max_warp_gain": MAX_WARP_GAIN}
    needs = OCCUPANCY_NEEDS
    helps = OCCUPANCY_HELPS
    single_kernels = True
    explains = frozenset({"latency-bound"})

    def check(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Find registers as the only limiter, and stalls that more warps would hide."""
        return check_occupancy_limit(
            launch, "registers", at_most=MAX_WARP_GAIN.value, what="registers"
        )
