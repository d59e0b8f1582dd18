"""The quantities that several analyses of kernels share."""

from __future__ import annotations

from gpusight.analyses.counters.quantity import (
    Quantity,
    during,
    metric,
    percent,
    ratio,
    total,
)

_SPEED, _OCCUPANCY, _LAUNCH = "SpeedOfLight", "Occupancy", "LaunchStats"
_MEMORY = "MemoryWorkloadAnalysis"

SM_SHARE = Quantity(
    "sm_share",
    "",
    "How busy the SMs were: the busiest of their units, of what it could do",
    (percent("sm__throughput.avg.pct_of_peak_sustained_elapsed"),),
    _SPEED,
)
MEMORY_SHARE = Quantity(
    "memory_share",
    "",
    "How busy the memory system was: the busiest of its units, caches included",
    (percent("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"),),
    _SPEED,
)
DRAM_SHARE = Quantity(
    "dram_share",
    "",
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
    "",
    "How busy the L2 cache was, of what it could do",
    (percent("lts__throughput.avg.pct_of_peak_sustained_elapsed"),),
    _SPEED,
)
L1_SHARE = Quantity(
    "l1_share",
    "",
    "How busy the L1 caches were while their SMs were active, of what they could do",
    (
        percent("l1tex__throughput.avg.pct_of_peak_sustained_active"),
        percent("l1tex__throughput.avg.pct_of_peak_sustained_elapsed"),
    ),
    _SPEED,
)
OCCUPANCY = Quantity(
    "occupancy",
    "",
    "Warps resident on an active SM, of those that fit an SM",
    (percent("sm__warps_active.avg.pct_of_peak_sustained_active"),),
    _OCCUPANCY,
)
THEORETICAL_OCCUPANCY = Quantity(
    "theoretical_occupancy",
    "",
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
SM_CLOCK_HZ = Quantity(
    "sm_clock_hz",
    "hz",
    "Clock of the SMs during the launch",
    (
        metric("smsp__cycles_elapsed.avg.per_second"),
        metric("sm__cycles_elapsed.avg.per_second"),
        metric("gpc__cycles_elapsed.avg.per_second"),
        metric("gpc__cycles_elapsed.max.per_second"),
    ),
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
    "",
    "Sectors asked of the L1 caches that were there",
    (
        percent("l1tex__t_sector_hit_rate.pct"),
        ratio("l1tex__t_sectors_lookup_hit.sum", "l1tex__t_sectors.sum"),
    ),
    _MEMORY,
)
L2_HIT_SHARE = Quantity(
    "l2_hit_share",
    "",
    "Sectors asked of the L2 cache that were there",
    (percent("lts__t_sector_hit_rate.pct"),),
    _MEMORY,
)
