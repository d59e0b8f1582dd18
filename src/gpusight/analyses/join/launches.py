"""The launches of a timeline, each with what was measured of its like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.counters import quantities as q
from gpusight.analyses.counters.quantity import DURATION, measured
from gpusight.analyses.join.match import NEEDS, ORDER, Cover, cover, in_launch_order
from gpusight.analyses.roofline.points import points

if TYPE_CHECKING:
    from gpusight.analyses.select import Scope
    from gpusight.model.trace import Trace

_QUANTITIES = (q.SM_SHARE, q.MEMORY_SHARE, q.DRAM_SHARE, q.OCCUPANCY)
_POINTS = ("launch", "flops", "dram_bytes", "roof_share", "bound", "arithmetic", "estimated")


@dataclass(frozen=True, slots=True)
class Joined:
    """A timeline and a report, launch by launch."""

    timeline: pl.DataFrame
    """Kernels in order of launch: `NEEDS`, `time_ns`, `key` and `kernel` (numbers of `Keys`), `why`
    none was measured, and of the measured launch that tells of each: `launch`, whether it was found
    in sequence (`exact`), `measured_ns`, the quantities and the points."""
    report: pl.DataFrame
    """Measured launches in order: `NEEDS`, `launch`, `duration_ns`, `key`, `kernel`, `why`."""
    cover: Cover


def join_launches(scope: Scope, report: Trace) -> Joined:
    """Find for every kernel of the selected timeline what was measured of its like."""
    kernels = in_launch_order(scope.gpu("kernels", [*NEEDS, "end_ns", *ORDER]))
    told = _measured(report)
    found = cover(kernels.select(NEEDS), told.select(NEEDS))
    left = kernels.select(
        *NEEDS,
        (pl.col("end_ns") - pl.col("start_ns")).alias("time_ns"),
        found.keys.left.alias("key"),
        found.keys.left_name.alias("kernel"),
        found.left_why.alias("why"),
        pl.Series("exact", found.in_sequence),
        pl.Series("row", found.right),
    )
    details = told.drop(NEEDS).rename({DURATION: "measured_ns"})
    details = details.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    right = told.select(
        *NEEDS,
        "launch",
        DURATION,
        found.keys.right.alias("key"),
        found.keys.right_name.alias("kernel"),
        found.right_why.alias("why"),
    )
    both = left.join(details, on="row", how="left", maintain_order="left").drop("row")
    return Joined(both, right, found)


def _measured(report: Trace) -> pl.DataFrame:
    """Give the measured kernels with all that is told of them; not ranges measured as wholes."""
    frame = measured(report, _QUANTITIES, ("kind", *NEEDS))
    frame = frame.filter(pl.col("kind").cast(pl.String) == "kernel").drop("kind")
    under = points(report).select(_POINTS)
    return frame.join(under, on="launch", how="left", maintain_order="left")
