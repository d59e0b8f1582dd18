"""What the profiler itself cost: its own work on the host, while the GPU had nothing to do.

Such time counts as idle, as nothing ran, but without the profiler it would not have been there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpusight.analyses.gpu_time import busiest, idle
from gpusight.analyses.select import Scope, Selection
from gpusight.analyses.steps import Steps
from gpusight.model.intervals import Intervals, coverage, intersect
from gpusight.result import NotApplicable
from gpusight.units import format_share, format_time

if TYPE_CHECKING:
    from gpusight.analyses.steps import Step
    from gpusight.result import TableResult

_WORTH_SAYING = 0.01
"""The least part of the window that is worth a note."""
_MOST_STEPS = 3


def overhead_note(
    scope: Scope,
    times: TableResult | NotApplicable,
    steps: Steps | NotApplicable | None = None,
) -> tuple[str, ...]:
    """Say how much of the busiest GPU's idle time the profiler took, where it is much.

    `times` is the result of `gpu_time` for the same selection; of `steps`, those that held it are
    named.
    """
    if isinstance(times, NotApplicable) or not scope.trace.has("overheads"):
        return ()
    window = scope.window.intervals
    least_ns = _WORTH_SAYING * window.length_ns
    spent = intersect(_overheads(scope), window)
    if spent.length_ns <= least_ns:
        return ()
    row = busiest(times)
    lost = intersect(spent, idle(scope, row["device"]))
    if lost.length_ns <= least_ns:
        return ()
    gpu = f"GPU {row['device']}" if times.frame.height > 1 else "the GPU"
    text = f"the profiler itself took {format_time(lost.length_ns)} while {gpu} was idle"
    text += _inside(lost, steps)
    rest_ns = window.length_ns - lost.length_ns
    if rest_ns:
        text += (
            f": without it {gpu} was busy {format_share(row['busy_ns'] / rest_ns)} of the window"
        )
    return (text,)


def _overheads(scope: Scope) -> Intervals:
    """Unite what the profiler did in the selected processes, in a range or not."""
    # One that began before a range still fills the part of it that it reaches into.
    processes = Scope(scope.trace, Selection(process=scope.selection.process))
    frame = processes.host("overheads", ["start_ns", "end_ns"])
    return Intervals.from_arrays(frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy())


def _inside(lost: Intervals, steps: Steps | NotApplicable | None) -> str:
    """Name the steps that this time fell into."""
    if not isinstance(steps, Steps):
        return ""
    bounds = [np.array([getattr(s, b) for s in steps.steps]) for b in ("start_ns", "end_ns")]
    held = coverage(lost, *bounds) > 0
    names = [_called(step) for step, holds in zip(steps.steps, held, strict=True) if holds]
    if not names:
        return ""
    more = f" and {len(names) - _MOST_STEPS} more" if len(names) > _MOST_STEPS else ""
    return f" (in {', '.join(names[:_MOST_STEPS])}{more})"


def _called(step: Step) -> str:
    """Name a step; with its number where the name does not say it."""
    return step.name if str(step.number) in step.name else f"{step.name} {step.number}"
