"""The list of kernel rules: one file each, listed once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.rules.kernel import (
    atomic_contention,
    bank_conflict,
    cache_miss,
    compute_bound,
    divergence,
    fp64_heavy,
    latency_bound,
    low_occupancy_block_size,
    low_occupancy_registers,
    low_occupancy_shared_memory,
    memory_bound,
    register_spill,
    small_grid_launch,
    tail_effect,
    tensor_cores_idle,
    uncoalesced_access,
)

if TYPE_CHECKING:
    from gpusight.rules.kernel_rule import KernelRule


KERNEL_RULES: dict[str, KernelRule] = {
    module.RULE.id: module.RULE
    for module in (
        uncoalesced_access,
        bank_conflict,
        atomic_contention,
        register_spill,
        cache_miss,
        low_occupancy_registers,
        low_occupancy_shared_memory,
        low_occupancy_block_size,
        small_grid_launch,
        tail_effect,
        divergence,
        fp64_heavy,
        tensor_cores_idle,
        memory_bound,
        compute_bound,
        latency_bound,
    )
}
"""Every rule by its identifier: causes first, then what a launch is bound by."""
