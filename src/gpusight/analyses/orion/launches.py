"""The launches of a report, one row each, with what the kernel-info file is made from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.counters.quantities import (
    DRAM_SHARE,
    DYNAMIC_SHARED,
    REGISTERS,
    SHARED_CONFIG,
    SM_COUNT,
    SM_SHARE,
    STATIC_SHARED,
)
from gpusight.analyses.counters.quantity import Formula, Quantity, measured, metric
from gpusight.analyses.occupancy.limits import LIMIT_QUANTITIES
from gpusight.result import NotApplicable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.model.trace import Trace

COMMAND = "orion"
CAPTURE_HINT = 'collect them: ncu --set detailed --nvtx --nvtx-include "start/" -o report …'

_LAUNCH_STATS = "LaunchStats"


def _least(values: Sequence[pl.Expr]) -> pl.Expr:
    """Take the tightest limit, if the first two are told; old versions leave others out."""
    told = values[0].is_not_null() & values[1].is_not_null()
    return pl.when(told).then(pl.min_horizontal(*(value.fill_nan(None) for value in values)))


_GRID_SIZE = Quantity(
    "grid_size", "", "Blocks of the grid", (metric("launch__grid_size"),), _LAUNCH_STATS
)
_BLOCK_SIZE = Quantity(
    "block_size", "", "Threads of a block", (metric("launch__block_size"),), _LAUNCH_STATS
)
_LIMITS = tuple(
    f"launch__occupancy_limit_{what}"
    for what in ("registers", "warps", "blocks", "shared_mem", "barriers")
)
REPORTED_BLOCKS = Quantity(
    "reported_blocks",
    "",
    "Blocks that an SM holds at once, as the profiler itself worked out",
    (Formula(_LIMITS, _least),),
    "Occupancy",
)
BARRIERS = Quantity(
    "barriers", "", "Barriers that the code uses", (metric("launch__barrier_count"),), _LAUNCH_STATS
)
_WHOLE = (
    REGISTERS,
    STATIC_SHARED,
    DYNAMIC_SHARED,
    SHARED_CONFIG,
    BARRIERS,
    SM_COUNT,
    REPORTED_BLOCKS,
    *LIMIT_QUANTITIES,
)
_SHARES = (SM_SHARE, DRAM_SHARE)
_PROFILE = (
    "kind",
    "name",
    "mangled_name",
    "device",
    "compute_major",
    "compute_minor",
    "grid_x",
    "grid_y",
    "grid_z",
    "block_x",
    "block_y",
    "block_z",
)
_NEEDED = {
    "duration_ns": ("duration", "SpeedOfLight"),
    "grid": ("grid size", _LAUNCH_STATS),
    "block": ("block size", _LAUNCH_STATS),
    REGISTERS.key: ("registers per thread", _LAUNCH_STATS),
}


def launch_table(trace: Trace) -> pl.DataFrame | NotApplicable:
    """Give one row a launch of a kernel, in order of launch; shares are fractions of 1."""
    if not trace.has("profiles"):
        reason = "the capture has no launches that were measured with hardware counters"
        return NotApplicable(COMMAND, reason, CAPTURE_HINT)
    frame = measured(trace, (*_WHOLE, *_SHARES, _GRID_SIZE, _BLOCK_SIZE), _PROFILE)
    frame = frame.fill_nan(None)  # what the profiler could not measure
    kernels = _with_sizes(frame.filter(pl.col("kind").cast(pl.String) == "kernel")).sort("launch")
    if kernels.is_empty():
        reason = "the report measured ranges or graphs as wholes, not single kernels"
        return NotApplicable(COMMAND, reason, "profile with ncu --replay-mode kernel")
    return _missing(kernels) or kernels


def launch_notes(trace: Trace, launches: pl.DataFrame) -> tuple[str, ...]:
    """Say what was measured and is no launch, and what is taken for zero for want of telling."""
    notes = []
    others = trace.row_count("profiles") - launches.height
    if others:
        notes.append(f"{others:,} ranges or graphs that were measured as wholes are left out")
    for quantity, name in ((STATIC_SHARED, "static"), (DYNAMIC_SHARED, "dynamic")):
        count = launches.get_column(quantity.key).null_count()
        if count:
            notes.append(
                f"no {name} shared memory in the report of {how_many(count)}, which is taken for "
                f"none; collect: --section {quantity.section}"
            )
    return tuple(notes)


def how_many(count: int) -> str:
    """Count launches in words."""
    return "one launch" if count == 1 else f"{count:,} launches"


def _with_sizes(frame: pl.DataFrame) -> pl.DataFrame:
    """Add the sizes of grid and block as single numbers; whole numbers as such."""
    whole = [pl.col(q.key).round().cast(pl.Int64) for q in _WHOLE]
    return frame.with_columns(
        *whole,
        pl.col("name").cast(pl.String),
        _product("grid", _GRID_SIZE).alias("grid"),
        _product("block", _BLOCK_SIZE).alias("block"),
    ).drop(_GRID_SIZE.key, _BLOCK_SIZE.key)


def _product(what: str, quantity: Quantity) -> pl.Expr:
    x, y, z = (pl.col(f"{what}_{axis}") for axis in "xyz")
    sizes = x * y.fill_null(1) * z.fill_null(1)
    return pl.coalesce(sizes, pl.col(quantity.key).round().cast(pl.Int64))


def _missing(launches: pl.DataFrame) -> NotApplicable | None:
    """Say what the file cannot do without and the report does not have."""
    lacking = [key for key in _NEEDED if launches.get_column(key).null_count()]
    if not lacking:
        return None
    without = launches.filter(pl.any_horizontal(pl.col(lacking).is_null()))["launch"]
    names = " and ".join(_NEEDED[key][0] for key in lacking)
    sections = dict.fromkeys(_NEEDED[key][1] for key in lacking)
    options = " ".join(f"--section {section}" for section in sections)
    which = "any launch" if len(without) == launches.height else f"launch {without[0]}"
    if 1 < len(without) < launches.height:
        which += f" and {len(without) - 1:,} others"
    reason = f"the report has no {names} of {which}"
    return NotApplicable(COMMAND, reason, f"collect: ncu {options}, or add --ncu-raw FILE")
