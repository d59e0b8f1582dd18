"""Whether a program launches the same kernels again and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from gpusight.findings.timeline.once import once
from gpusight.findings.verdict import Limit

if TYPE_CHECKING:
    from gpusight.findings.timeline.timeline import Timeline

REPEATED = Limit(
    0.5, "part of the launches that must come again in most steps, for a graph of them to be of use"
)
FEW = Limit(10, "launches a step from which on one launch for all of them is worth anything")
_AGAIN = 3
"""Times that a kernel runs, where no steps are known, to count as repeated."""
_SAME = ["name", "blocks"]


@dataclass(frozen=True, slots=True)
class Repetition:
    """How far the steps of a program are alike, in kernels that no graph launches."""

    kernels: int
    """Launched one by one, in the judged part."""
    repeated: float
    """Part of them that comes in most of the steps: the same kernel with the same grid."""
    alike: float | None
    """Part of the steps whose sequence of kernels is the same; None with fewer than two steps."""

    @property
    def worth_it(self) -> bool:
        """There is something that a graph could launch at once."""
        return self.repeated >= REPEATED.value


@once
def repetition(timeline: Timeline) -> Repetition:
    """Compare the kernels of the steps."""
    rows = timeline.kernels.filter(~pl.col("in_graph")).select(*_SAME, "step")
    if rows.is_empty():
        return Repetition(0, 0.0, None)
    codes = rows.select(pl.struct(_SAME).rank("dense").alias("code"), "step")
    if timeline.steps < 2:
        again = codes.select((pl.len().over("code") >= _AGAIN).mean()).item()
        return Repetition(rows.height, float(again), None)
    most = pl.col("step").n_unique().over("code") > timeline.steps / 2
    repeated = codes.select(most.mean()).item()
    return Repetition(rows.height, float(repeated), _alike(codes, timeline.steps))


def _alike(codes: pl.DataFrame, steps: int) -> float:
    """Give the part of the steps that have the most frequent sequence."""
    sequences = (
        codes.drop_nulls("step")
        .with_columns(pl.int_range(pl.len()).over("step").alias("place"))
        .group_by("step")
        .agg(pl.len(), pl.struct("code", "place").hash().sum().alias("sequence"))
    )
    counts = sequences.group_by("len", "sequence").len("steps")["steps"]
    return float(counts.max() or 0) / steps  # type: ignore[arg-type]
