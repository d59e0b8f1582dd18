"""The quantities that several analyses of kernels share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.counters.quantity import (
    SHARE,
    Formula,
    Quantity,
    during,
    metric,
    percent,
    ratio,
    total,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_SPEED, _OCCUPANCY, _LAUNCH = "SpeedOfLight", "Occupancy", "LaunchStats"
_MEMORY = "MemoryWorkloadAnalysis"

SM_SHARE = Quantity(
    "sm_share",
    SHARE,
    "How busy the SMs were: the busiest of their units, of what it could do",
    (percent("sm__throughput.avg.pct_of_peak_sustained_elapsed"),),
    _SPEED,
)
MEMORY_SHARE = Quantity(
    "memory_share",
    SHARE,
    "How busy the memory system was: the busiest of its units, caches included",
    (percent("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"),),
    _SPEED,
)
DRAM_SHARE = Quantity(
    "dram_share",
    SHARE,
    "How busy the GPU's memory was, of what it could do",
    (
        percent("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"),
        percent("dram__throughput.avg.pct_of_peak_sustained_elapsed"),
        percent("dram__bytes.sum.pct_of_peak_sustained_elapsed"),
        total(
            "dram__bytes_read.sum.pct_of_peak_sustained_elapsed",
            "dram__bytes_write.sum.pct_of_peak_sustained_elapsed",
            scale=0.01,
        ),
    ),
    _SPEED,
)
L2_SHARE = Quantity(
    "l2_share",
    SHARE,
    "How busy the L2 cache was, of what it could do",
    (percent("lts__throughput.avg.pct_of_peak_sustained_elapsed"),),
    _SPEED,
)
OCCUPANCY = Quantity(
    "occupancy",
    SHARE,
    "Warps resident on an active SM, of those that fit an SM",
    (percent("sm__warps_active.avg.pct_of_peak_sustained_active"),),
    _OCCUPANCY,
)
THEORETICAL_OCCUPANCY = Quantity(
    "theoretical_occupancy",
    SHARE,
    "The same at best, for this block size and these registers and shared memory",
    (percent("sm__maximum_warps_per_active_cycle_pct"),),
    _OCCUPANCY,
)
REGISTERS = Quantity(
    "registers",
    "",
    "Registers of each thread",
    (metric("launch__registers_per_thread"),),
    _LAUNCH,
)
STATIC_SHARED = Quantity(
    "static_shared_bytes",
    "byte",
    "Shared memory of a block that is fixed at compile time",
    (metric("launch__shared_mem_per_block_static"),),
    _LAUNCH,
)
DYNAMIC_SHARED = Quantity(
    "dynamic_shared_bytes",
    "byte",
    "Shared memory of a block that was asked for at launch",
    (metric("launch__shared_mem_per_block_dynamic"),),
    _LAUNCH,
)
SHARED_CONFIG = Quantity(
    "shared_config_bytes",
    "byte",
    "Shared memory that the driver set aside on each SM",
    (metric("launch__shared_mem_config_size"),),
    _LAUNCH,
)
BARRIERS = Quantity(
    "barriers",
    "",
    "Barriers that the code uses",
    (metric("launch__barrier_count"),),
    _LAUNCH,
)
GRID_SIZE = Quantity("grid_size", "", "Blocks of the grid", (metric("launch__grid_size"),), _LAUNCH)
BLOCK_SIZE = Quantity(
    "block_size", "", "Threads of a block", (metric("launch__block_size"),), _LAUNCH
)
_BLOCK_LIMITS = tuple(
    f"launch__occupancy_limit_{what}"
    for what in ("registers", "warps", "shared_mem", "blocks", "barriers")
)
REPORTED_SHARED_LIMIT = Quantity(
    "reported_shared_limit",
    "",
    "Blocks that an SM has shared memory for, as the profiler itself worked out",
    (metric("launch__occupancy_limit_shared_mem"),),
    _OCCUPANCY,
)


def _least(values: Sequence[pl.Expr]) -> pl.Expr:
    """Take the tightest limit, if the first two are told; old versions leave others out."""
    told = values[0].is_not_null() & values[1].is_not_null()
    return pl.when(told).then(pl.min_horizontal(*values))


REPORTED_BLOCKS = Quantity(
    "reported_blocks",
    "",
    "Blocks that an SM holds at once, as the profiler itself worked out",
    (Formula(_BLOCK_LIMITS, _least),),
    _OCCUPANCY,
)
WAVES = Quantity(
    "waves",
    "",
    "Times that the grid fills the GPU",
    (metric("launch__waves_per_multiprocessor"),),
    _LAUNCH,
)
SM_COUNT = Quantity(
    "sm_count",
    "",
    "SMs of the GPU",
    (metric("launch__sm_count"), metric("device__attribute_multiprocessor_count")),
    _LAUNCH,
)
SM_CLOCKS = (
    "smsp__cycles_elapsed.avg.per_second",
    "sm__cycles_elapsed.avg.per_second",
    "gpc__cycles_elapsed.avg.per_second",
    "gpc__cycles_elapsed.max.per_second",
)
"""Counters of the clock that the SMs run at, the best first."""
SM_CLOCK_HZ = Quantity(
    "sm_clock_hz",
    "hz",
    "Clock of the SMs during the launch",
    tuple(metric(name) for name in SM_CLOCKS),
    _SPEED,
)
DRAM_BYTES = Quantity(
    "dram_bytes",
    "byte",
    "Bytes read from and written to the GPU's memory",
    (
        metric("dram__bytes.sum"),
        total("dram__bytes_read.sum", "dram__bytes_write.sum"),
        during("dram__bytes.sum.per_second"),
        during("dram__bytes_read.sum.per_second", "dram__bytes_write.sum.per_second"),
        total("dram__sectors_read.sum", "dram__sectors_write.sum", scale=32),
    ),
    _MEMORY,
)
L1_HIT_SHARE = Quantity(
    "l1_hit_share",
    SHARE,
    "Sectors asked of the L1 caches that were there",
    (
        percent("l1tex__t_sector_hit_rate.pct"),
        ratio("l1tex__t_sectors_lookup_hit.sum", "l1tex__t_sectors.sum"),
    ),
    _MEMORY,
)
L2_HIT_SHARE = Quantity(
    "l2_hit_share",
    SHARE,
    "Sectors asked of the L2 cache that were there",
    (percent("lts__t_sector_hit_rate.pct"),),
    _MEMORY,
)
