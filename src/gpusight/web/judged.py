"""Which part of a capture is diagnosed and compared while somebody looks at it.

All of it where it fits. A diagnosis accounts for every piece of GPU work in one go, which takes
about a gigabyte for a million of them: of captures with more, as many steps as that from the
middle stand for the rest, and the page says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpusight.analyses.select import GPU_WORK
from gpusight.analyses.steps import focus as find_focus
from gpusight.result import NotApplicable

if TYPE_CHECKING:
    from gpusight.analyses.steps import Focus
    from gpusight.model.trace import Trace

MOST_WORK = 1_500_000
"""Pieces of GPU work that are looked at in one go."""


class Judged(NamedTuple):
    """The time to look at, as `focus` takes it; nothing for all."""

    steps: str | None = None
    window: tuple[int | None, int | None] | None = None
    note: str = ""
    """What a reader must know of it."""


def judged(trace: Trace) -> Judged:
    """Choose the part to look at."""
    rows = {table: trace.row_count(table) for table in GPU_WORK if trace.has(table)}
    total = sum(rows.values())
    if total <= MOST_WORK:
        return Judged()
    focus = find_focus(trace)
    if isinstance(focus, NotApplicable):
        return Judged()
    if focus.steps:
        return _steps(focus, MOST_WORK / total)
    return _window(trace, max(rows, key=lambda table: rows[table]), MOST_WORK / total)


def _steps(focus: Focus, share: float) -> Judged:
    """Choose steps round the middle that have about this share of all work."""
    every = focus.steps
    kept = max(1, int(len(every) * share))
    first = (len(every) - kept) // 2
    low, high = every[first].number, every[first + kept - 1].number
    note = f"judged on steps {low} to {high} of {len(every):,}, which stand for the others"
    return Judged(steps=f"{low}-{high}", note=note)


def _window(trace: Trace, table: str, share: float) -> Judged:
    """Choose the time in the middle in which about this share of all work begins."""
    starts = trace.table(table, ["start_ns"]).to_series()
    kept = max(2, int(len(starts) * share))
    first = (len(starts) - kept) // 2
    window = int(starts[first]), int(starts[first + kept - 1])
    note = f"judged on {kept:,} of {len(starts):,} {table} from the middle of the capture"
    return Judged(window=window, note=note)
