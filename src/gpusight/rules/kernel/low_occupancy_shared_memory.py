"""low-occupancy-shared-memory: shared memory of each block keeps blocks off the SMs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gpusight.analysis.occupancy.block_occupancy import MAX_SHARED_GAIN
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


MAX_BLOCK_GAIN = Threshold(
    MAX_SHARED_GAIN,
    "max. factor of blocks that less shared memory is assumed to allow: smaller tiles, fewer "
    "stages, 16-bit data",
)


class LowOccupancySharedMemory(KernelRule):
    """Shared memory per block limits occupancy."""

    id = "low-occupancy-shared-memory"
    effort = "config"
    detects = (
        "Shared memory per block limits the resident blocks, and the schedulers often find no "
        "eligible warp."
    )
    why = (
        "While a warp stalls, the scheduler needs another eligible warp. With few resident warps "
        "there is none, and issue slots stay empty."
    )
    fix = (
        "Allocate less shared memory (only what is used, smaller tiles, fewer pipeline stages, "
        "16-bit data), or use more threads per tile."
    )
    code = """\
size_t bytes = threads * sizeof(float);   // what is used, no more
kernel<<<blocks, threads, bytes>>>(...);
// raise the shared-memory carveout
cudaFuncSetAttribute(kernel,
                     cudaFuncAttributePreferredSharedMemoryCarveout,
                     cudaSharedmemCarveoutMaxShared);
"""
    caveats = (
        "Large tiles save memory traffic. Kernels with several loads in flight per warp hide "
        "latency with few warps."
    )
    estimate = OCCUPANCY_ESTIMATE
    thresholds: ClassVar = {
        "max_low_occupancy": MAX_LOW_OCCUPANCY,
        "max_block_gain": MAX_BLOCK_GAIN,
    }
    needs = OCCUPANCY_NEEDS
    helps = OCCUPANCY_HELPS
    single_kernels = True
    explains = frozenset({"latency-bound"})

    def check(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Find shared memory as the only limiter, and stalls that more warps would hide."""
        return check_occupancy_limit(
            launch, "shared_memory", at_most=MAX_BLOCK_GAIN.value, what="shared memory"
        )
