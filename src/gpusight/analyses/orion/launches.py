"""The launches of a report, one row each, with what the kernel-info file is made from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.counters.quantities import (
    BARRIERS,
    BLOCK_SIZE,
    DRAM_SHARE,
    DYNAMIC_SHARED,
    GRID_SIZE,
    REGISTERS,
    REPORTED_BLOCKS,
    SHARED_CONFIG,
    SM_COUNT,
    SM_SHARE,
    STATIC_SHARED,
)
from gpusight.analyses.counters.quantity import Quantity, measured
from gpusight.analyses.launch_columns import SHAPE, whole
from gpusight.analyses.occupancy.limits import LIMIT_QUANTITIES
from gpusight.result import NotApplicable

if TYPE_CHECKING:
    from gpusight.model.trace import Trace

COMMAND = "orion"
CAPTURE_HINT = 'collect them: ncu --set detailed --nvtx --nvtx-include "start/" -o report …'

_LAUNCH_STATS = "LaunchStats"


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
    *SHAPE,
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
    frame = measured(trace, (*_WHOLE, *_SHARES, GRID_SIZE, BLOCK_SIZE), _PROFILE)
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
    return frame.with_columns(
        *(whole(quantity.key) for quantity in _WHOLE),
        pl.col("name").cast(pl.String),
        _size("grid", GRID_SIZE).alias("grid"),
        _size("block", BLOCK_SIZE).alias("block"),
    ).drop(GRID_SIZE.key, BLOCK_SIZE.key)


def _size(what: str, quantity: Quantity) -> pl.Expr:
    """Multiply what is told of the axes: some exports leave y and z out."""
    x, y, z = (pl.col(f"{what}_{axis}") for axis in "xyz")
    sizes = x * y.fill_null(1) * z.fill_null(1)
    return pl.coalesce(sizes, whole(quantity.key))


def _missing(launches: pl.DataFrame) -> NotApplicable | None:
    """Say what the file cannot do without and the report does not have."""
    lacking = [key for key in _NEEDED if launches.get_column(key).null_count()]
    if not lacking:
        return None
    without = launches.filter(pl.any_horizontal(pl.col(lacking).is_null()))["launch"]
    *others, last = (_NEEDED[key][0] for key in lacking)
    names = f"{', '.join(others)} and {last}" if others else last
    sections = dict.fromkeys(_NEEDED[key][1] for key in lacking)
    options = " ".join(f"--section {section}" for section in sections)
    which = "any launch" if len(without) == launches.height else f"launch {without[0]}"
    if 1 < len(without) < launches.height:
        which += f" and {len(without) - 1:,} others"
    reason = f"the report has no {names} of {which}"
    return NotApplicable(COMMAND, reason, f"collect: ncu {options}, or add --ncu-raw FILE")
