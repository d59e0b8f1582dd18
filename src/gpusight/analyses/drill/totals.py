"""Kernels worth measuring, from a printed table of totals: names and calls, no launches.

Which launch has which shape, and what comes first, such a table does not tell. So of each kernel a
few launches from the middle are measured, in a run of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.drill.anchors import Anchor
from gpusight.analyses.drill.functions import CUT, FUNCTION, function_of, pattern_of
from gpusight.analyses.drill.pick import COMMAND, TOP, Kernel, judged, matching
from gpusight.analyses.drill.plan import LaunchPlan, Run
from gpusight.analyses.kernels import kernels as listed
from gpusight.analyses.launch_columns import SHAPE
from gpusight.result import NotApplicable

if TYPE_CHECKING:
    from gpusight.model.trace import Trace

_MEASURED = 8
"""Launches of each kernel: several, since their shapes may differ."""
_WHY = (
    "approximate: totals do not tell the order of launches, so of each kernel some from the middle "
    "are measured"
)


def pick_totals(
    trace: Trace, *, top: int = TOP, kernel: str | None = None
) -> tuple[tuple[Kernel, ...], tuple[str, ...]] | NotApplicable:
    """Choose kernels by their total time; gives them with what a reader must know."""
    table = listed(trace)
    if isinstance(table, NotApplicable):
        return NotApplicable(COMMAND, table.reason, table.hint)
    frame = table.frame
    if kernel is not None:
        frame = frame.filter(pl.col("name").is_in(matching(frame["name"], kernel)))
    found = [
        Kernel(
            group=group,
            row=-1,
            name=row["name"],
            function=_function(row["name"]),
            mangled_name=None,
            shape=(None,) * len(SHAPE),
            launches=row["calls"],
            time_ns=row["total_ns"],
            share=row["share"] or 0.0,
            roof_share=None,
        )
        for group, row in enumerate(frame.iter_rows(named=True))
    ]
    return judged(found, top, asked=kernel is not None), table.notes


def _function(name: str) -> str:
    """Give the function; one that the table cut short keeps the mark of that."""
    return function_of(name.removesuffix(CUT) if "<" in name else name)


def plan_totals(chosen: tuple[Kernel, ...]) -> LaunchPlan | None:
    """Measure each kernel in a run of its own."""
    if not chosen:
        return None
    runs = tuple(
        Run(
            covers=(kernel.group,),
            pattern=pattern_of([kernel.function]),
            base=FUNCTION,
            skip=kernel.launches // 2,
            count=min(_MEASURED, kernel.launches - kernel.launches // 2),
        )
        for kernel in chosen
    )
    return LaunchPlan(Anchor.UNSURE, _WHY, runs)
