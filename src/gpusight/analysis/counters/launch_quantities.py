"""Quantities of a kernel launch, and the ncu metrics that each is computed from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpusight.trace.trace import Trace


DURATION = "duration_ns"
SHARE = "share"
"""Unit of a quantity that is a fraction of 1."""
_MAX_VALUE = 2.0**63


@dataclass(frozen=True, slots=True)
class QuantityFormula:
    """One way to compute a quantity: the metrics it needs, and the expression over them."""

    metrics: tuple[str, ...]
    compute: Callable[[Sequence[pl.Expr]], pl.Expr]
    """From the metrics' values, in the order of `metrics`."""


@dataclass(frozen=True, slots=True)
class LaunchQuantity:
    """A quantity of a launch, whichever metrics it is computed from."""

    key: str
    """Column that it becomes."""
    unit: str
    meaning: str
    formulas: tuple[QuantityFormula, ...]
    """Ways to compute it, the best first."""
    section: str
    """Section of Nsight Compute that collects it: `--section SpeedOfLight`."""


def metric(name: str, scale: float = 1.0) -> QuantityFormula:
    """Take one metric, times a factor."""
    return QuantityFormula((name,), lambda values: values[0] * scale)


def percent(name: str) -> QuantityFormula:
    """Take a metric in percent as a fraction of 1."""
    return metric(name, 0.01)


def total(*names: str, scale: float = 1.0) -> QuantityFormula:
    """Sum metrics; all must be known."""
    return QuantityFormula(names, lambda values: reduce(add, values) * scale)


def during(*rates: str) -> QuantityFormula:
    """Turn rates per second into amounts, by the duration of the launch."""
    return QuantityFormula(rates, lambda values: reduce(add, values) * pl.col(DURATION) * 1e-9)


def ratio(over: str, under: str, scale: float = 1.0) -> QuantityFormula:
    """Divide one metric by another; null where the divisor is 0."""
    return QuantityFormula(
        (over, under),
        lambda values: pl.when(values[1] != 0).then(values[0] / values[1] * scale),
    )


def measured(
    trace: Trace, quantities: Iterable[LaunchQuantity], columns: Sequence[str] = ()
) -> pl.DataFrame:
    """Return one row for each profiled launch: `launch`, `duration_ns`, `columns`, quantities.

    `columns` are further columns of the table `profiles`. Rows are in the order of `profiles`.
    Every number is finite or null, so that a failed measurement does not spoil a sum.
    """
    wanted = tuple(quantities)
    names = dict.fromkeys(m for q in wanted for f in q.formulas for m in f.metrics)
    keys = dict.fromkeys(("launch", DURATION, *columns))
    launches = trace.table("profiles", tuple(keys)).with_columns(_finite(pl.col(DURATION)))
    wide = launches.join(_wide(trace, list(names)), on="launch", how="left", maintain_order="left")
    return wide.select(
        *keys,
        *(
            pl.coalesce(
                [_finite(f.compute([pl.col(m) for m in f.metrics])) for f in quantity.formulas]
            ).alias(quantity.key)
            for quantity in wanted
        ),
    )


def _wide(trace: Trace, names: list[str]) -> pl.DataFrame:
    """Return a column for each of these metrics; null where a launch, or the capture, has none."""
    rows = trace.table("counters", ("launch", "metric", "value"))
    # A failed pass leaves NaN, a division by 0 infinity, a damaged file impossible numbers.
    rows = rows.with_columns(pl.when(pl.col("value").abs() < _MAX_VALUE).then(pl.col("value")))
    metrics = rows.get_column("metric")
    assert isinstance(metrics.dtype, pl.Enum)
    known = set(metrics.dtype.categories)
    present = [name for name in names if name in known]
    chosen = rows.filter(metrics.is_in(present)).with_columns(pl.col("metric").cast(pl.String))
    wide = chosen.pivot(on="metric", index="launch", values="value", aggregate_function="first")
    missing = [n for n in names if n not in wide.columns]
    return wide.with_columns(pl.lit(None, pl.Float64).alias(name) for name in missing)


def _finite(value: pl.Expr) -> pl.Expr:
    return pl.when(value.is_finite()).then(value)


_SPEED, _OCCUPANCY, _LAUNCH = "SpeedOfLight", "Occupancy", "LaunchStats"
_MEMORY = "MemoryWorkloadAnalysis"

SM_SHARE = LaunchQuantity(
    "sm_share",
    SHARE,
    "SM throughput, % of peak",
    (percent("sm__throughput.avg.pct_of_peak_sustained_elapsed"),),
    _SPEED,
)
MEMORY_SHARE = LaunchQuantity(
    "memory_share",
    SHARE,
    "Memory throughput, % of peak (caches included)",
    (percent("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"),),
    _SPEED,
)
DRAM_SHARE = LaunchQuantity(
    "dram_share",
    SHARE,
    "DRAM throughput, % of peak",
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
L2_SHARE = LaunchQuantity(
    "l2_share",
    SHARE,
    "L2 throughput, % of peak",
    (percent("lts__throughput.avg.pct_of_peak_sustained_elapsed"),),
    _SPEED,
)
OCCUPANCY = LaunchQuantity(
    "occupancy",
    SHARE,
    "Achieved occupancy",
    (percent("sm__warps_active.avg.pct_of_peak_sustained_active"),),
    _OCCUPANCY,
)
THEORETICAL_OCCUPANCY = LaunchQuantity(
    "theoretical_occupancy",
    SHARE,
    "Theoretical occupancy",
    (percent("sm__maximum_warps_per_active_cycle_pct"),),
    _OCCUPANCY,
)
REGISTERS = LaunchQuantity(
    "registers", "", "Registers per thread", (metric("launch__registers_per_thread"),), _LAUNCH
)
STATIC_SHARED = LaunchQuantity(
    "static_shared_bytes",
    "byte",
    "Static shared memory per block",
    (metric("launch__shared_mem_per_block_static"),),
    _LAUNCH,
)
DYNAMIC_SHARED = LaunchQuantity(
    "dynamic_shared_bytes",
    "byte",
    "Dynamic shared memory per block",
    (metric("launch__shared_mem_per_block_dynamic"),),
    _LAUNCH,
)
SHARED_CONFIG = LaunchQuantity(
    "shared_config_bytes",
    "byte",
    "Shared-memory configuration per SM",
    (metric("launch__shared_mem_config_size"),),
    _LAUNCH,
)
BARRIERS = LaunchQuantity(
    "barriers", "", "Barriers per block", (metric("launch__barrier_count"),), _LAUNCH
)
GRID_SIZE = LaunchQuantity(
    "grid_size", "", "Grid size in blocks", (metric("launch__grid_size"),), _LAUNCH
)
BLOCK_SIZE = LaunchQuantity(
    "block_size", "", "Block size in threads", (metric("launch__block_size"),), _LAUNCH
)
_BLOCK_LIMITS = tuple(
    f"launch__occupancy_limit_{what}"
    for what in ("registers", "warps", "shared_mem", "blocks", "barriers")
)
REPORTED_SHARED_LIMIT = LaunchQuantity(
    "reported_shared_limit",
    "",
    "Block limit by shared memory, from the report",
    (metric("launch__occupancy_limit_shared_mem"),),
    _OCCUPANCY,
)


def _least(values: Sequence[pl.Expr]) -> pl.Expr:
    """Take the tightest limit where the first two are known; old versions lack the others."""
    known = values[0].is_not_null() & values[1].is_not_null()
    return pl.when(known).then(pl.min_horizontal(*values))


REPORTED_BLOCKS = LaunchQuantity(
    "reported_blocks",
    "",
    "Max. resident blocks per SM, from the report",
    (QuantityFormula(_BLOCK_LIMITS, _least),),
    _OCCUPANCY,
)
WAVES = LaunchQuantity(
    "waves",
    "",
    "Waves per SM",
    (metric("launch__waves_per_multiprocessor"),),
    _LAUNCH,
)
SM_COUNT = LaunchQuantity(
    "sm_count",
    "",
    "Number of SMs",
    (metric("launch__sm_count"), metric("device__attribute_multiprocessor_count")),
    _LAUNCH,
)
SM_CLOCKS = (
    "smsp__cycles_elapsed.avg.per_second",
    "sm__cycles_elapsed.avg.per_second",
    "gpc__cycles_elapsed.avg.per_second",
    "gpc__cycles_elapsed.max.per_second",
)
"""Metrics of the SM clock, the best first."""
SM_CLOCK_HZ = LaunchQuantity(
    "sm_clock_hz",
    "hz",
    "SM clock during the launch",
    tuple(metric(name) for name in SM_CLOCKS),
    _SPEED,
)
DRAM_BYTES = LaunchQuantity(
    "dram_bytes",
    "byte",
    "DRAM bytes read and written",
    (
        metric("dram__bytes.sum"),
        total("dram__bytes_read.sum", "dram__bytes_write.sum"),
        during("dram__bytes.sum.per_second"),
        during("dram__bytes_read.sum.per_second", "dram__bytes_write.sum.per_second"),
        total("dram__sectors_read.sum", "dram__sectors_write.sum", scale=32),
    ),
    _MEMORY,
)
L1_HIT_SHARE = LaunchQuantity(
    "l1_hit_share",
    SHARE,
    "L1 hit rate",
    (
        percent("l1tex__t_sector_hit_rate.pct"),
        ratio("l1tex__t_sectors_lookup_hit.sum", "l1tex__t_sectors.sum"),
    ),
    _MEMORY,
)
L2_HIT_SHARE = LaunchQuantity(
    "l2_hit_share",
    SHARE,
    "L2 hit rate",
    (percent("lts__t_sector_hit_rate.pct"),),
    _MEMORY,
)
