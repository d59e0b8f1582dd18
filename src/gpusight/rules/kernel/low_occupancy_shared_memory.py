"""low-occupancy-shared-memory: shared memory of each block keeps blocks off the SMs."""

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


MAX_BLOCK_GAIN = Threshold(
    8,
    "times the blocks that less shared memory is taken to allow: an eighth of it is what smaller "
    "tiles, fewer stages and 16-bit data come to",
)


class LowOccupancySharedMemory(KernelRule):
    """Shared memory of each block keeps blocks off the SMs."""

    id = "low-occupancy-shared-memory"
    detects = (
        "Each block takes so much shared memory that few blocks fit an SM, and the schedulers "
        "often find no warp that is ready."
    )
    why = (
        "While a warp waits for memory or for its own last result, the scheduler needs another "
        "one. With few warps there is none, and cycles pass empty."
    )
    fix = (
        "Ask for less shared memory (only what is used, smaller tiles, fewer pipeline stages, "
        "16-bit data), or use more threads for the same tile."
    )
    code = """\
size_t bytes = threads * sizeof(float);   // what is used, no more
kernel<<<blocks, threads, bytes>>>(...);
// keep more of the SM's memory as shared memory
cudaFuncSetAttribute(kernel,
                     cudaFuncAttributePreferredSharedMemoryCarveout,
                     cudaSharedmemCarveoutMaxShared);
"""
    caveats = (
        "Large tiles save traffic to memory. Kernels that keep several loads under way in each "
        "warp hide waits with few of them."
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
        """Find shared memory to be the one limit, and waits that more warps would hide."""
        return check_occupancy_limit(
            launch,
            "shared_memory",
            at_most=MAX_BLOCK_GAIN.value,
            what="shared memory of the blocks",
        )
