"""Which time an excerpt shows: one step or range that stands for the others, or what is asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpusight.analyses.select import Scope
from gpusight.analyses.steps.focus import focus, work_end
from gpusight.analyses.steps.launched import launched, of_process
from gpusight.analyses.steps.step import called, shortened
from gpusight.analyses.steps.warmup import took_ns
from gpusight.result import NotApplicable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpusight.analyses.select import Selection
    from gpusight.analyses.steps.focus import Focus
    from gpusight.analyses.steps.step import Step
    from gpusight.model.trace import Trace

_BESIDE = 0.03
"""What is shown on either side of a step, as part of its length."""


@dataclass(frozen=True)
class Stretch:
    """The time that an excerpt shows."""

    start_ns: int
    end_ns: int
    what: str
    """What it is, in words: `step 5, the median of 10`."""
    steps: tuple[Step, ...] = ()
    """Steps that it shows anything of, in order."""
    notes: tuple[str, ...] = ()


def stretch_of(
    trace: Trace,
    selection: Selection,
    *,
    steps: str | None,
    window: tuple[int | None, int | None] | None,
    warmup: bool,
) -> Stretch | NotApplicable:
    """Choose the time: by default the median of the steps that stand for the program."""
    chosen = focus(trace, selection, steps=steps, window=window, warmup=warmup)
    if isinstance(chosen, NotApplicable):
        return chosen
    if window is not None:
        found = Stretch(chosen.start_ns, chosen.end_ns, "")
    elif selection.within is not None and steps is None:
        found = _typical_range(trace, selection)
    elif steps is not None or not chosen.steps:
        found = _beside(chosen.start_ns, chosen.end_ns, _several(chosen.steps))
    else:
        found = _typical_step(trace, chosen.steps)
    return replace(found, steps=_shown(chosen, found), notes=chosen.notes)


def _shown(chosen: Focus, found: Stretch) -> tuple[Step, ...]:
    every = sorted((*chosen.steps, *chosen.left_out), key=lambda step: step.start_ns)
    return tuple(s for s in every if s.start_ns < found.end_ns and s.end_ns > found.start_ns)


def _typical_step(trace: Trace, steps: Sequence[Step]) -> Stretch:
    own = [s for s in steps if (s.process, s.thread) == (steps[0].process, steps[0].thread)]
    took = took_ns(of_process(launched(trace), own[0].process), own)
    step = own[_median(took)]
    end = work_end(trace, step.start_ns, step.end_ns, step.process)
    what = called(step) if len(own) == 1 else f"{called(step)}, the median of {len(own):,} steps"
    return _beside(step.start_ns, end, what)


def _typical_range(trace: Trace, selection: Selection) -> Stretch:
    spans = Scope(trace, selection).matching_ranges.sort("start_ns")
    start, end = (spans[column].to_numpy() for column in ("start_ns", "end_ns"))
    at = _median(end - start)
    last = work_end(trace, int(start[at]), int(end[at]), spans["process"][at])
    name = shortened(selection.within or "")
    many = f", the median of {len(start):,}" if len(start) > 1 else ""
    return _beside(int(start[at]), last, f"{name}{many}")


def _median(lengths: NDArray[np.int64]) -> int:
    """Give the position of the median; of two in the middle, the shorter."""
    return int(np.argsort(lengths, kind="stable")[(len(lengths) - 1) // 2])


def _beside(start_ns: int, end_ns: int, what: str) -> Stretch:
    margin = round(_BESIDE * (end_ns - start_ns)) if what else 0
    return Stretch(start_ns - margin, end_ns + margin, what)


def _several(steps: Sequence[Step]) -> str:
    if not steps:
        return ""
    first, last = called(steps[0]), called(steps[-1])
    return first if len(steps) == 1 else f"{first} to {last}"
