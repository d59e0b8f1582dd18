"""The launches of a capture with what decides their occupancy, whichever table holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.counters import quantities as q
from gpusight.analyses.counters.choose import ProfileScope, of_kernel
from gpusight.analyses.counters.quantity import Quantity, measured, metric
from gpusight.analyses.launch_columns import BLOCK, GRID, product, whole
from gpusight.analyses.occupancy.limits import LIMIT_QUANTITIES, device_rows, limits_of
from gpusight.analyses.select import Scope, Selection
from gpusight.analyses.statistics import DURATION

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from gpusight.model.sm_table import SmLimits
    from gpusight.model.trace import Trace

SHAPE = (
    "device",
    "compute_major",
    "compute_minor",
    "block_threads",
    "registers",
    "static_shared_bytes",
    "dynamic_shared_bytes",
    "barriers",
    "shared_config_bytes",
    "reported_shared_limit",
)
"""What decides how many blocks fit an SM; launches that agree in it have one answer."""

COLUMNS = (
    "name",
    *SHAPE,
    "duration_ns",
    "grid_blocks",
    "achieved",
    "sm_share",
    "memory_share",
    "reported",
    "cluster_blocks",
    "active_clusters",
    "sm_count",
)

_CLUSTER = ("cluster_x", "cluster_y", "cluster_z")
_CLUSTER_SIZE = Quantity(
    "cluster_blocks", "", "Blocks of a cluster", (metric("launch__cluster_size"),), "LaunchStats"
)
_ACTIVE_CLUSTERS = Quantity(
    "active_clusters",
    "",
    "Clusters on the GPU at once, at most",
    (metric("launch__cluster_max_active"),),
    "LaunchStats",
)
_OF_LAUNCH = (
    q.OCCUPANCY,
    q.SM_SHARE,
    q.MEMORY_SHARE,
    q.THEORETICAL_OCCUPANCY,
    q.REGISTERS,
    q.STATIC_SHARED,
    q.DYNAMIC_SHARED,
    q.SHARED_CONFIG,
    q.SM_COUNT,
    q.BARRIERS,
    q.BLOCK_SIZE,
    q.GRID_SIZE,
    q.REPORTED_SHARED_LIMIT,
    _CLUSTER_SIZE,
    _ACTIVE_CLUSTERS,
)


@dataclass(frozen=True, slots=True)
class Launches:
    """Rows with `COLUMNS`, one a launch, and what an SM holds, by GPU and compute capability."""

    frame: pl.DataFrame
    limits: dict[tuple[int | None, int | None, int | None], SmLimits]
    measured: bool
    """Whether hardware counters were measured, so that the achieved occupancy can be known."""
    total: int
    """Launches before `kernel` chose among them."""
    notes: tuple[str, ...] = ()


def profiled_launches(trace: Trace, selection: Selection, kernel: str | None) -> Launches:
    """Take launches that were measured with hardware counters."""
    columns = ("name", "device", "compute_major", "compute_minor", *BLOCK, *GRID)
    scope = ProfileScope(trace, selection, kernel=kernel)
    rows = measured(trace, (*_OF_LAUNCH, *LIMIT_QUANTITIES), columns)
    rows = rows.filter(pl.col("launch").is_in(scope.launches().implode()))
    devices = device_rows(trace)
    rows = _with_devices(rows, devices)
    frame = rows.select(
        "name",
        *_whole("device", "compute_major", "compute_minor"),
        pl.coalesce(product(BLOCK), whole(q.BLOCK_SIZE.key)).alias("block_threads"),
        *_whole("registers", "static_shared_bytes", "dynamic_shared_bytes", "barriers"),
        _positive("shared_config_bytes"),
        whole("reported_shared_limit"),
        "duration_ns",
        pl.coalesce(product(GRID), whole(q.GRID_SIZE.key)).alias("grid_blocks"),
        pl.col("occupancy").alias("achieved"),
        "sm_share",
        "memory_share",
        pl.col("theoretical_occupancy").alias("reported"),
        _positive("cluster_blocks"),
        _positive("active_clusters"),
        _positive("sm_count"),
    )
    limits = dict(_limits(rows, devices))
    return Launches(frame, limits, True, trace.row_count("profiles"), scope.notes)


def timeline_launches(trace: Trace, selection: Selection, kernel: str | None) -> Launches:
    """Take the kernels of a timeline: what they asked for is known, what they achieved is not."""
    scope = Scope(trace, selection)
    columns = (
        *("name", "device", "start_ns", "end_ns", *BLOCK, *GRID, *_CLUSTER),
        *("registers_per_thread", "static_shared_bytes", "dynamic_shared_bytes"),
        *("shared_bytes", "executed_shared_bytes"),
    )
    rows = scope.gpu("kernels", columns)
    if kernel is not None:
        rows = rows.filter(of_kernel(rows["name"], kernel))
    devices = device_rows(trace)
    rows = _with_devices(rows, devices)
    split = (
        pl.col("static_shared_bytes").is_not_null() & pl.col("dynamic_shared_bytes").is_not_null()
    )
    frame = rows.select(
        "name",
        *_whole("device", "compute_major", "compute_minor"),
        product(BLOCK).alias("block_threads"),
        pl.col("registers_per_thread").alias("registers"),
        pl.when(split).then("static_shared_bytes").otherwise("shared_bytes"),
        pl.when(split)
        .then("dynamic_shared_bytes")
        .when(pl.col("shared_bytes").is_not_null())
        .then(0),
        pl.lit(None, pl.Int64).alias("barriers"),
        _positive("executed_shared_bytes").alias("shared_config_bytes"),
        pl.lit(None, pl.Int64).alias("reported_shared_limit"),
        DURATION,
        product(GRID).alias("grid_blocks"),
        *(pl.lit(None, pl.Float64).alias(key) for key in ("achieved", "sm_share", "memory_share")),
        pl.lit(None, pl.Float64).alias("reported"),
        product(_CLUSTER).alias("cluster_blocks"),
        pl.lit(None, pl.Int64).alias("active_clusters"),
        _positive("sm_count"),
    )
    limits = dict(_limits(rows, devices))
    return Launches(frame, limits, False, trace.row_count("kernels"), scope.notes)


def _with_devices(rows: pl.DataFrame, devices: dict[int, dict[str, Any]]) -> pl.DataFrame:
    """Add what is known of each launch's GPU where the launch itself does not say it."""
    keys = ("compute_major", "compute_minor", "sm_count")
    told = pl.DataFrame(
        [[device, *(row[key] for key in keys)] for device, row in devices.items()],
        schema=["device", *(f"of_{key}" for key in keys)],
        schema_overrides=dict.fromkeys(("device", *(f"of_{key}" for key in keys)), pl.Int64),
        orient="row",
    )
    joined = rows.join(told, on="device", how="left", maintain_order="left")
    own = [key for key in keys if key in rows.columns]
    return joined.with_columns(
        pl.coalesce(*([key] if key in own else []), f"of_{key}").alias(key) for key in keys
    )


def _limits(
    rows: pl.DataFrame, devices: dict[int, dict[str, Any]]
) -> Iterator[tuple[tuple[int | None, int | None, int | None], SmLimits]]:
    """Give the limits of each GPU; what launches say of it counts before what its row says."""
    keys = ("device", "compute_major", "compute_minor")
    stated = [quantity.key for quantity in LIMIT_QUANTITIES if quantity.key in rows.columns]
    first = rows.group_by(keys, maintain_order=True).agg(pl.col(stated).drop_nulls().first())
    for row in first.iter_rows(named=True):
        known = dict(devices.get(row["device"], {}))
        known |= {key: row[key] for key in stated if row[key] is not None}
        found = limits_of(
            row["compute_major"],
            row["compute_minor"],
            {q.key: known.get(q.key) for q in LIMIT_QUANTITIES},
        )
        if found is not None:
            yield (row["device"], row["compute_major"], row["compute_minor"]), found


def _whole(*columns: str) -> tuple[pl.Expr, ...]:
    return tuple(whole(column) for column in columns)


def _positive(column: str) -> pl.Expr:
    value = whole(column)
    return pl.when(value > 0).then(value).alias(column)
