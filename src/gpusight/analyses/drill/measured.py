"""Which of the wanted kernels a report of Nsight Compute holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.join.keys import NEEDS, launch_keys
from gpusight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analyses.drill.pick import Kernel
    from gpusight.model.trace import Trace


@dataclass(frozen=True, slots=True)
class Measured:
    """What reports hold of one kernel."""

    launches: int
    """Measured launches of its name, grid and block, in all reports."""
    other_shapes: int
    """Of its name alone."""


def measured(
    timeline: Trace, kernels: Sequence[Kernel], reports: Sequence[Trace]
) -> dict[int, Measured]:
    """Count the measured launches of each kernel, by its group."""
    rows = [kernel.row for kernel in kernels]
    left = timeline.table("kernels", NEEDS)[rows]
    counts = {kernel.group: Measured(0, 0) for kernel in kernels}
    for report in reports:
        if not report.has("profiles"):
            what = f"{report.meta.path} is no report of Nsight Compute"
            raise UsageError(what, hint="give the timeline first, then its reports")
        right = report.table("profiles", ["kind", *NEEDS])
        right = right.filter(pl.col("kind").cast(pl.String) == "kernel").select(NEEDS)
        keys = launch_keys(left, right)
        for number, kernel in enumerate(kernels):
            same = int((keys.right == keys.left[number]).sum())
            named = int((keys.right_name == keys.left_name[number]).sum())
            before = counts[kernel.group]
            counts[kernel.group] = Measured(
                before.launches + same, before.other_shapes + named - same
            )
    return counts
