"""The launches of a capture, the SM limits of their GPUs, and the occupancy of each shape."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.aggregates import DURATION
from gpusight.analysis.counters import launch_quantities as q
from gpusight.analysis.counters.counter_selection import LaunchSelection, of_kernel
from gpusight.analysis.counters.launch_quantities import LaunchQuantity, measured, metric
from gpusight.analysis.kernel_summary import product, whole
from gpusight.analysis.occupancy.block_occupancy import (
    BLOCK_SIZE_CHANGE,
    REGISTER_CHANGE,
    SHARED_MEMORY_CHANGE,
    changes,
    limited_by,
)
from gpusight.analysis.selection import ResolvedSelection, Selection
from gpusight.hardware.gpu_lookup import listed_gpu
from gpusight.hardware.sm_limits import LIMITS, SM_LIMITS, BlockShape, occupancy, whole_carve_out
from gpusight.trace.schema_gpu import BLOCK, GRID

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusight.hardware.sm_limits import SmLimits
    from gpusight.trace.trace import Trace


# SM limits of the GPUs of a capture ---------------------------------------------------------------

_ATTRIBUTES = {
    "max_warps": "max_warps_per_multiprocessor",
    "max_blocks": "max_blocks_per_multiprocessor",
    "registers_per_sm": "max_registers_per_multiprocessor",
    "max_registers_per_block": "max_registers_per_block",
    "max_registers_per_thread": "max_registers_per_thread",
    "max_threads_per_block": "max_threads_per_block",
    "shared_per_sm_bytes": "max_shared_memory_per_multiprocessor",
    "shared_per_block_bytes": "max_shared_memory_per_block",
    "shared_per_block_optin_bytes": "max_shared_memory_per_block_optin",
    "shared_reserved_per_block_bytes": "reserved_shared_memory_per_block",
    "warp_size": "warp_size",
}
"""Device attributes that Nsight Compute records, by the limit that each of them is."""

LIMIT_QUANTITIES = tuple(
    LaunchQuantity(key, "", "Limit of an SM", (metric(f"device__attribute_{name}"),), "LaunchStats")
    for key, name in _ATTRIBUTES.items()
)

_DEVICE_COLUMNS = {
    "max_warps_per_sm": "max_warps",
    "max_blocks_per_sm": "max_blocks",
    "max_registers_per_sm": "registers_per_sm",
    "max_threads_per_block": "max_threads_per_block",
    "max_shared_per_sm_bytes": "shared_per_sm_bytes",
    "max_shared_per_block_bytes": "shared_per_block_bytes",
    "max_shared_optin_bytes": "shared_per_block_optin_bytes",
}
_GPU_COLUMNS = ("device", "name", "sm_count", "memory_bytes", "compute_major", "compute_minor")
_NEEDED = ("max_warps", "max_blocks", "registers_per_sm", "shared_per_sm_bytes")
"""Without these the limits of a GPU that is not in the table are not known."""
_MAY_BE_ZERO = frozenset(("shared_reserved_per_block_bytes",))
"""Elsewhere drivers report zero for what they do not know."""


def device_rows(trace: Trace) -> dict[int, dict[str, Any]]:
    """Return of each GPU of the capture: compute capability, SMs, and limits where known."""
    frame = trace.table("devices", (*_GPU_COLUMNS, *_DEVICE_COLUMNS))
    devices = {}
    for row in frame.iter_rows(named=True):
        listed = listed_gpu(row)
        compute = (row["compute_major"], row["compute_minor"] or 0)
        if row["compute_major"] is None and listed is not None:
            compute = listed.compute_capability or (None, None)
        devices[row["device"]] = {
            "name": row["name"],
            "vendor": None if listed is None else listed.vendor,
            "compute_major": compute[0],
            "compute_minor": compute[1],
            "sm_count": row["sm_count"] or (listed.sm_count if listed is not None else None),
            **{limit: row[column] for column, limit in _DEVICE_COLUMNS.items()},
        }
    return devices


def limits_of(
    major: int | None, minor: int | None, known: Mapping[str, float | None]
) -> SmLimits | None:
    """Return the limits of an SM; `known` are those in the capture, by field of SmLimits.

    A compute capability that is not in the table takes the units of the nearest one before it, if
    the capture states the limits themselves.
    """
    stated: dict[str, Any] = {
        key: int(value)
        for key, value in known.items()
        if value is not None and (value >= 1 or (value == 0 and key in _MAY_BE_ZERO))
    }
    if major is None:
        return None
    base = SM_LIMITS.get((major, minor or 0))
    if base is None:
        if not all(key in stated for key in _NEEDED):
            return None
        earlier = [cc for cc in SM_LIMITS if cc <= (major, minor or 0)]
        nearest = SM_LIMITS[max(earlier) if earlier else min(SM_LIMITS)]
        base = replace(nearest, major=major, minor=minor or 0)
    limits = replace(base, **stated)
    largest = limits.shared_per_sm_bytes
    carve_outs = (*(size for size in base.carve_outs_bytes if size < largest), largest)
    return replace(limits, carve_outs_bytes=carve_outs)


# Launches -----------------------------------------------------------------------------------------

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

_CLUSTER = ("cluster_x", "cluster_y", "cluster_z")
_CLUSTER_SIZE = LaunchQuantity(
    "cluster_blocks", "", "Blocks of a cluster", (metric("launch__cluster_size"),), "LaunchStats"
)
_ACTIVE_CLUSTERS = LaunchQuantity(
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
class OccupancyLaunches:
    """Launches, and what an SM holds, by GPU and compute capability."""

    frame: pl.DataFrame
    """One row per launch: `name`, `SHAPE`, sizes of grid and block, `duration_ns`, `grid_blocks`,
    `cluster_blocks`, `active_clusters`, `sm_count`, and as measured `achieved`, `sm_share`,
    `memory_share`, `reported` (the theoretical occupancy that the report holds)."""
    limits: dict[tuple[int | None, int | None, int | None], SmLimits]
    measured: bool
    """Whether hardware counters were measured, so that the achieved occupancy can be known."""
    notes: tuple[str, ...] = ()


def profiled_launches(trace: Trace, selection: Selection, kernel: str | None) -> OccupancyLaunches:
    """Return launches that were measured with hardware counters."""
    columns = ("name", "device", "compute_major", "compute_minor", *BLOCK, *GRID)
    scope = LaunchSelection(trace, selection, kernel=kernel)
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
        *_whole(*GRID, *BLOCK),
        pl.col("occupancy").alias("achieved"),
        "sm_share",
        "memory_share",
        pl.col("theoretical_occupancy").alias("reported"),
        _positive("cluster_blocks"),
        _positive("active_clusters"),
        _positive("sm_count"),
    )
    return OccupancyLaunches(frame, _limits(rows, devices), True, scope.notes)


def timeline_launches(trace: Trace, selection: Selection, kernel: str | None) -> OccupancyLaunches:
    """Return the kernels of a timeline: what they requested is known, what they achieved is not."""
    scope = ResolvedSelection(trace, selection)
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
        *_whole(*GRID, *BLOCK),
        *(pl.lit(None, pl.Float64).alias(key) for key in ("achieved", "sm_share", "memory_share")),
        pl.lit(None, pl.Float64).alias("reported"),
        product(_CLUSTER).alias("cluster_blocks"),
        pl.lit(None, pl.Int64).alias("active_clusters"),
        _positive("sm_count"),
    )
    return OccupancyLaunches(frame, _limits(rows, devices), False, scope.notes)


def _with_devices(rows: pl.DataFrame, devices: dict[int, dict[str, Any]]) -> pl.DataFrame:
    """Add what is known of each launch's GPU where the launch itself does not hold it."""
    keys = ("compute_major", "compute_minor", "sm_count")
    of_device = pl.DataFrame(
        [[device, *(row[key] for key in keys)] for device, row in devices.items()],
        schema=dict.fromkeys(("device", *(f"of_{key}" for key in keys)), pl.Int64),
        orient="row",
    )
    joined = rows.join(of_device, on="device", how="left", maintain_order="left")
    own = [key for key in keys if key in rows.columns]
    return joined.with_columns(
        pl.coalesce(*([key] if key in own else []), f"of_{key}").alias(key) for key in keys
    )


def _limits(
    rows: pl.DataFrame, devices: dict[int, dict[str, Any]]
) -> dict[tuple[int | None, int | None, int | None], SmLimits]:
    """Return the limits of each GPU; those in its launches count before those of its row."""
    limits = {}
    keys = ("device", "compute_major", "compute_minor")
    stated = [quantity.key for quantity in LIMIT_QUANTITIES if quantity.key in rows.columns]
    first = rows.group_by(keys, maintain_order=True).agg(pl.col(stated).drop_nulls().first())
    for row in first.iter_rows(named=True):
        known = dict(devices.get(row["device"], {}))
        known |= {key: row[key] for key in stated if row[key] is not None}
        known = {quantity.key: known.get(quantity.key) for quantity in LIMIT_QUANTITIES}
        of_gpu = limits_of(row["compute_major"], row["compute_minor"], known)
        if of_gpu is not None:
            limits[(row["device"], row["compute_major"], row["compute_minor"])] = of_gpu
    return limits


def _whole(*columns: str) -> tuple[pl.Expr, ...]:
    return tuple(whole(column) for column in columns)


def _positive(column: str) -> pl.Expr:
    value = whole(column)
    return pl.when(value > 0).then(value).alias(column)


_SCHEMA = {
    "computed": pl.Float64,
    "blocks": pl.Int64,
    "warps": pl.Int64,
    **{f"limit_{name}": pl.Int64 for name in LIMITS},
    "limiters": pl.String,
    "refused": pl.String,
    "change": pl.String,
    "change_theoretical": pl.Float64,
    "block_for_more": pl.Int64,
    "registers_for_more": pl.Int64,
    "shared_for_more_bytes": pl.Int64,
}
"""What is known of a shape."""
_PRINTED_BYTES = 5
"""Bytes by which a size of two decimals in thousands of bytes may be off."""
_UNIT_BYTES = 16
_FOR_MORE = {
    BLOCK_SIZE_CHANGE: "block_for_more",
    REGISTER_CHANGE: "registers_for_more",
    SHARED_MEMORY_CHANGE: "shared_for_more_bytes",
}


def with_answers(launches: OccupancyLaunches) -> pl.DataFrame:
    """Add to each launch what its shape allows."""
    return join_answers(launches.frame, shape_answers(launches))


def shape_answers(launches: OccupancyLaunches, other: SmLimits | None = None) -> pl.DataFrame:
    """Return what each shape allows; on another GPU than its own where one is given."""
    shapes = launches.frame.select(SHAPE)
    shapes = shapes.unique(varying(shapes, SHAPE), maintain_order=True)
    answers = []
    for row in shapes.iter_rows(named=True):
        limits = other or limits_of_row(launches, row)
        shape = shape_of(row, limits)
        if other is not None and shape is not None:
            shape = whole_carve_out(shape)
        answers.append(_answer(limits, shape) if limits and shape else {})
    return shapes.hstack(pl.DataFrame(answers, schema=_SCHEMA))


def join_answers(rows: pl.DataFrame, answers: pl.DataFrame) -> pl.DataFrame:
    """Add to rows what their shapes allow; `answers` has all shapes of these rows."""
    keys = varying(answers, SHAPE)
    answers = answers.drop(key for key in SHAPE if key not in keys)
    return rows.join(answers, on=keys, how="left", nulls_equal=True, maintain_order="left")


def varying(rows: pl.DataFrame, keys: Sequence[str]) -> list[str]:
    """Keep the columns of numbers that differ between rows: few of a long key do."""
    same = {
        key
        for key in keys
        if (column := rows[key]).null_count() == rows.height
        or (not column.null_count() and column.min() == column.max())
    }
    return [key for key in keys if key not in same] or [*keys[:1]]


def limits_of_row(launches: OccupancyLaunches, row: Mapping[str, Any]) -> SmLimits | None:
    """Return the limits of the GPU that a row ran on."""
    return launches.limits.get((row["device"], row["compute_major"], row["compute_minor"]))


def shape_of(row: Mapping[str, Any], limits: SmLimits | None) -> BlockShape | None:
    """Return what a block requests; None when the capture does not hold all of it."""
    needed = ("block_threads", "registers", "static_shared_bytes", "dynamic_shared_bytes")
    if any(row[key] is None or row[key] < 0 for key in needed) or row["block_threads"] == 0:
        return None
    threads, registers, static, dynamic = (row[key] for key in needed)
    config = exact = row["shared_config_bytes"]
    if config is not None and limits is not None:
        # Printed reports round the carve-out, such as to 8.19 Kbyte.
        carve_outs = limits.carve_outs_bytes
        exact = next((c for c in carve_outs if abs(c - config) <= _PRINTED_BYTES), config)
    if exact != config:
        static, dynamic = _unrounded(static), _unrounded(dynamic)
    shape = BlockShape(threads, registers, static, dynamic, row["barriers"], exact)
    return _as_reported(shape, limits, row["reported_shared_limit"])


def _unrounded(size: int) -> int:
    """Undo the same of what a block requests: that is mostly in units of 16 bytes."""
    nearest = round(size / _UNIT_BYTES) * _UNIT_BYTES
    printed = size % (2 * _PRINTED_BYTES) == 0 and abs(nearest - size) <= _PRINTED_BYTES
    return nearest if printed else size


def _as_reported(shape: BlockShape, limits: SmLimits | None, reported: int | None) -> BlockShape:
    """Count shared memory as the report does.

    Nsight Compute before 2022 took all that an SM has, later versions what the driver set aside;
    the report's own limit shows which.
    """
    whole = whole_carve_out(shape)
    if limits is None or reported is None or shape == whole:
        return shape
    by_config, by_whole = (occupancy(limits, s).by_limit["shared_memory"] for s in (shape, whole))
    return whole if reported == by_whole != by_config else shape


def _answer(limits: SmLimits, shape: BlockShape) -> dict[str, Any]:
    result = occupancy(limits, shape)
    options = changes(limits, shape)
    nearest = {
        _FOR_MORE[resource]: value
        for option in options
        if len(option.requests) == 1
        for resource, _, value in option.requests
    }
    return {
        "computed": result.share,
        "blocks": result.blocks,
        "warps": result.warps,
        **{f"limit_{name}": blocks for name, blocks in result.by_limit.items()},
        "limiters": limited_by(result),
        "refused": "; ".join(result.refusals) or None,
        "change": options[0].text if options else None,
        "change_theoretical": options[0].share if options else None,
        **nearest,
    }
