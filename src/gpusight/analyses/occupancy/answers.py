"""The occupancy of every distinct shape of launch, worked out once each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analyses.occupancy.changes import BLOCK, REGISTERS, SHARED, changes
from gpusight.analyses.occupancy.launches import SHAPE
from gpusight.analyses.occupancy.tables import limited_by
from gpusight.model.occupancy import LIMITS, Shape, occupancy, whole_carve_out

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.analyses.occupancy.launches import Launches
    from gpusight.model.sm_table import SmLimits

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
_PRINTED = 5
"""Bytes by which a size of two decimals in thousands of bytes may be off."""
_UNIT = 16
_FOR_MORE = {
    BLOCK: "block_for_more",
    REGISTERS: "registers_for_more",
    SHARED: "shared_for_more_bytes",
}


def with_answers(launches: Launches, other: SmLimits | None = None) -> pl.DataFrame:
    """Add to each launch what its shape allows; on another GPU than its own where one is given."""
    shapes = launches.frame.select(SHAPE).unique(maintain_order=True)
    answers = []
    for row in shapes.iter_rows(named=True):
        limits = other or limits_of_row(launches, row)
        shape = shape_of(row, limits)
        if other is not None and shape is not None:
            shape = whole_carve_out(shape)
        answers.append(_answer(limits, shape) if limits and shape else {})
    found = pl.DataFrame(answers, schema=_SCHEMA)
    return launches.frame.join(
        shapes.hstack(found), on=SHAPE, how="left", nulls_equal=True, maintain_order="left"
    )


def limits_of_row(launches: Launches, row: Mapping[str, Any]) -> SmLimits | None:
    """Give the limits of the GPU that a row ran on."""
    key = (row["device"], row["compute_major"], row["compute_minor"])
    return launches.limits.get(key)


def shape_of(row: Mapping[str, Any], limits: SmLimits | None) -> Shape | None:
    """Give what a block asks for; None when the capture does not say all of it."""
    needed = ("block_threads", "registers", "static_shared_bytes", "dynamic_shared_bytes")
    if any(row[key] is None or row[key] < 0 for key in needed) or row["block_threads"] == 0:
        return None
    threads, registers, static, dynamic = (row[key] for key in needed)
    config = row["shared_config_bytes"]
    exact = _carve_out_near(config, limits)
    if exact != config:
        static, dynamic = _unrounded(static), _unrounded(dynamic)
    shape = Shape(threads, registers, static, dynamic, row["barriers"], exact)
    return _as_reported(shape, limits, row["reported_shared_limit"])


def _carve_out_near(size: int | None, limits: SmLimits | None) -> int | None:
    """Give the carve-out that a size means: printed reports round it, such as to 8.19 Kbyte."""
    if size is None or limits is None:
        return size
    return next((c for c in limits.carve_outs_bytes if abs(c - size) <= _PRINTED), size)


def _unrounded(size: int) -> int:
    """Undo the same of what a block asks for: that is mostly in units of 16 bytes."""
    nearest = round(size / _UNIT) * _UNIT
    return nearest if size % (2 * _PRINTED) == 0 and abs(nearest - size) <= _PRINTED else size


def _as_reported(shape: Shape, limits: SmLimits | None, reported: int | None) -> Shape:
    """Count shared memory as the report does.

    Nsight Compute before 2022 took all that an SM has, later versions what the driver set aside;
    the report's own limit tells which.
    """
    whole = whole_carve_out(shape)
    if limits is None or reported is None or shape == whole:
        return shape
    by_config, by_whole = (occupancy(limits, s).by_limit["shared_memory"] for s in (shape, whole))
    return whole if reported == by_whole != by_config else shape


def _answer(limits: SmLimits, shape: Shape) -> dict[str, Any]:
    found = occupancy(limits, shape)
    ways = changes(limits, shape)
    nearest = {_FOR_MORE[c.moves[0][0]]: c.moves[0][2] for c in ways if len(c.moves) == 1}
    return {
        "computed": found.share,
        "blocks": found.blocks,
        "warps": found.warps,
        **{f"limit_{name}": blocks for name, blocks in found.by_limit.items()},
        "limiters": limited_by(found),
        "refused": "; ".join(found.refusals) or None,
        "change": ways[0].text if ways else None,
        "change_theoretical": ways[0].share if ways else None,
        **nearest,
    }
