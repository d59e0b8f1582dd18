"""Memory step by step: whether it comes back to where it was, or grows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.steps import find_steps
from gpusight.result import Field, Fmt, NotApplicable, TableResult

if TYPE_CHECKING:
    from gpusight.analyses.memory.history import History
    from gpusight.analyses.memory.view import View
    from gpusight.analyses.steps import Step
    from gpusight.model.trace import Trace

STEP_FIELDS = (
    Field("number", "Step", Fmt.ID, "Number of the step"),
    Field("start_ns", "Began", Fmt.TIME, "When it began"),
    Field("duration_ns", "Took", Fmt.TIME, "How long the host took for it"),
    Field("start_bytes", "At start", Fmt.BYTES, "In use when it began"),
    Field("peak_bytes", "Peak", Fmt.BYTES, "The most in use during it"),
    Field("end_bytes", "At end", Fmt.BYTES, "In use when it ended"),
    Field("growth_bytes", "Growth", Fmt.BYTES, "In use at its end more than at the step's before"),
    Field("allocations", "Allocations", Fmt.COUNT, "Allocations during it"),
    Field("name", "Range", Fmt.NAME, "Name of the range that is the step", shown=False),
)
_MOST_COMPARED = 400
"""Steps whose every pair is compared; of more, so many are taken evenly."""


@dataclass(frozen=True)
class Growth:
    """What steps do to the memory in use."""

    table: TableResult | NotApplicable
    per_step: float | None = None
    """Bytes that stay in use from step to step: the median over all pairs of steps."""
    allocations: float | None = None
    """Allocations a step, median."""

    def step_at(self, time_ns: int) -> int | None:
        """Give the number of the step that a time lies in."""
        if isinstance(self.table, NotApplicable):
            return None
        began, took = pl.col("start_ns"), pl.col("duration_ns")
        inside = self.table.frame.filter((began <= time_ns) & (time_ns < began + took))
        return int(inside["number"][0]) if inside.height else None


def growth(trace: Trace, view: View, process: int | None) -> Growth:
    """Follow the memory in use from step to step."""
    found = find_steps(trace)
    if isinstance(found, NotApplicable):
        return Growth(found)
    steps = _one_after_the_other(
        [s for s in found.steps if s.process in {None, process} or process is None]
    )
    steps = [s for s in steps if view.start_ns <= s.start_ns < view.end_ns]
    if not steps:
        return Growth(NotApplicable("steps", "no step lies in the selection"))
    rows = [_row(view.history, step) for step in steps]
    frame = pl.DataFrame(rows).with_columns(pl.col("end_bytes").diff().alias("growth_bytes"))
    table = TableResult(
        "steps", "Memory by step", STEP_FIELDS, frame.select(f.key for f in STEP_FIELDS)
    )
    return Growth(table, slope(frame["end_bytes"].to_numpy()), float(frame["allocations"].median()))  # type: ignore[arg-type]


def _one_after_the_other(steps: list[Step]) -> list[Step]:
    """Keep the steps of one thread: those of several run side by side."""
    threads = {s.thread for s in steps}
    return steps if len(threads) < 2 else [s for s in steps if s.thread == steps[0].thread]


def _row(history: History, step: Step) -> dict[str, object]:
    first, last = (history.last_before(t) for t in (step.start_ns, step.end_ns))
    inside = slice(first + 1, last + 1)
    start = history.allocated_after(first)
    return {
        "number": step.number,
        "start_ns": step.start_ns,
        "duration_ns": step.end_ns - step.start_ns,
        "start_bytes": start,
        "peak_bytes": max(start, int(history.allocated[inside].max(initial=0))),
        "end_bytes": history.allocated_after(last),
        "allocations": int((history.takes[inside] > 0).sum()),
        "name": step.name,
    }


def slope(levels: np.ndarray) -> float | None:
    """Give how much levels rise from one to the next: the median over all pairs of them.

    A first step that fills caches, or one that is odd, does not move it; a leak of every other step
    does, which the median of the neighbours' differences would miss.
    """
    if len(levels) < 2:
        return None
    places = np.arange(len(levels))
    if len(levels) > _MOST_COMPARED:
        places = np.linspace(0, len(levels) - 1, _MOST_COMPARED).astype(np.int64)
    first, second = (places[index] for index in np.triu_indices(len(places), 1))
    return float(np.median((levels[second] - levels[first]) / (second - first)))
