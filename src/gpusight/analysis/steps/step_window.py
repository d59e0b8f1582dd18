"""The window that ledger, rules and replay look at, and its steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import EVERYTHING, ResolvedSelection, Selection
from gpusight.analysis.steps.step_detection import DetectedSteps, detect_steps
from gpusight.analysis.steps.step_launches import launched, of_process, unrepresentative_steps
from gpusight.analysis.steps.step_list import TraceSteps, called, parse_steps, shortened
from gpusight.errors import UsageError
from gpusight.results import NotApplicable
from gpusight.units import format_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.trace.trace import Trace

    Bounds = tuple[int | None, int | None]


_MOST_NAMED = 3
NO_STEPS = "no steps: "
"""How the note begins that says why there are none."""


@dataclass(frozen=True)
class StepWindow:
    """One contiguous window, with the steps inside."""

    start_ns: int
    end_ns: int
    """End of the last step, or of the GPU work launched before it where that is later."""
    steps: tuple[TraceStep, ...] = ()
    """In order; none where none are known."""
    left_out: tuple[TraceStep, ...] = ()
    """Warm-up, what the capture cut off, and what `steps` excluded."""
    how: str = ""
    """How steps were found, in words; empty where there are none."""
    notes: tuple[str, ...] = ()
    """What a reader must know."""
    before_ns: int = 0
    """Time before the window that was left out as the start of a program without known steps."""

    @property
    def length_ns(self) -> int:
        """How long the window is."""
        return self.end_ns - self.start_ns


def step_window(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    steps: str | None = None,
    window: Bounds | None = None,
    warmup: bool = False,
) -> StepWindow | NotApplicable:
    """Choose the time to look at.

    `steps` by number (`3-7`, `5`, `2:`, `all`), `window` in nanoseconds from the capture's origin,
    either end open. `warmup` keeps the steps that would be left out as warm-up.
    """
    if steps is not None and window is not None:
        raise UsageError("steps and a window were asked for", hint="give --steps or --window")
    whole = ResolvedSelection(trace, replace(selection, within=None)).window
    if not whole.length_ns:
        nothing = "the capture shows no activity" + (" in the selection" if selection else "")
        return NotApplicable("focus", nothing, advice_for(trace.meta).gpu)
    found = detect_steps(trace, selection)
    found = replace(found, notes=(*found.notes, *_without_end(trace)))
    if steps is not None:
        return _by_number(trace, found, steps)
    if window is not None:
        return _by_time(trace, found, window, (whole.start_ns, whole.end_ns))
    if selection.within is not None:
        return _by_range(trace, found)
    if isinstance(found.steps, NotApplicable):
        return StepWindow(whole.start_ns, whole.end_ns, notes=(*found.notes, _why(found.steps)))
    return _usual(trace, found, found.steps, warmup=warmup)


def _usual(trace: Trace, found: DetectedSteps, steps: TraceSteps, *, warmup: bool) -> StepWindow:
    """Leave out what does not stand for the rest."""
    every = steps.steps
    odd = unrepresentative_steps(trace, every)
    first = (0 if warmup else odd.warm_up) + odd.cut_first
    last = len(every) - odd.cut_last
    notes = list(found.notes)
    if first and not odd.cut_first:
        out = _names(every[:first])
        notes.append(f"{first} of {len(every)} steps left out as warm-up ({odd.why}): {out}")
    cut = (*every[: int(odd.cut_first)], *every[last:])
    if cut:
        notes.append(f"left out as parts of steps that the capture cut off: {_names(cut)}")
    kept = every[first:last]
    return _of_steps(trace, steps, kept, (*every[:first], *every[last:]), notes)


def _by_number(trace: Trace, found: DetectedSteps, text: str) -> StepWindow | NotApplicable:
    wanted = parse_steps(text)
    if isinstance(found.steps, NotApplicable):
        return found.steps
    every = found.steps.steps
    first, last = wanted or (None, None)
    kept = tuple(
        step
        for step in every
        if (first is None or step.number >= first) and (last is None or step.number <= last)
    )
    if not kept:
        known = f"steps are numbered {every[0].number} to {every[-1].number}"
        raise UsageError(
            f"no step is in {shortened(text)!r}", why=known, hint="see: gpusight steps FILE"
        )
    out = tuple(step for step in every if not kept[0].number <= step.number <= kept[-1].number)
    return _of_steps(trace, found.steps, kept, out, list(found.notes))


def _by_time(
    trace: Trace, found: DetectedSteps, window: Bounds, whole: tuple[int, int]
) -> StepWindow:
    """Look at a stretch of time; `whole` is that of the selected activity."""
    start = whole[0] if window[0] is None else window[0]
    end = whole[1] if window[1] is None else window[1]
    if start >= whole[1] or end <= whole[0] or start >= end:
        spans = f"activity is from {format_time(whole[0])} to {format_time(whole[1])}"
        raise UsageError("nothing happens in the window", why=spans)
    start, end, cut = _cut(trace, start, end)
    notes = (*found.notes, *cut)
    if isinstance(found.steps, NotApplicable):
        return StepWindow(start, end, notes=(*notes, _why(found.steps)))
    inside = _inside(found.steps.steps, start, end)
    kept = set(inside)
    out = tuple(step for step in found.steps.steps if step not in kept)
    return StepWindow(start, end, inside, out, found.steps.how if inside else "", notes)


def _cut(trace: Trace, start: int, end: int) -> tuple[int, int, tuple[str, ...]]:
    """Cut a window to what the capture saw: what came before or after is no idle time."""
    seen = ResolvedSelection(trace).window
    first, last = max(start, seen.start_ns), min(end, seen.end_ns)
    if (first, last) == (start, end):
        return start, end, ()
    spans = f"{format_time(first)} to {format_time(last)}"
    return first, last, (f"the window is cut to the activity that the capture shows: {spans}",)


def _without_end(trace: Trace) -> tuple[str, ...]:
    """Say that most kernels take no time: readers make an instant of what ends before it starts.

    Some do in traces of whole microseconds, which lose short kernels to rounding.
    """
    if not trace.has("kernels"):
        return ()
    lengths = trace.table("kernels", ["start_ns", "end_ns"])
    lost = int((lengths["end_ns"] == lengths["start_ns"]).sum())
    if lost <= lengths.height / 2:
        return ()
    many = f"{lost:,} of {lengths.height:,} kernels"
    return (f"{many} take no time: the capture does not tell when they ended",)


def _by_range(trace: Trace, found: DetectedSteps) -> StepWindow | NotApplicable:
    """Look at all occurrences of a range, from the first to the last."""
    ranges = found.ranges
    assert ranges is not None, "no range was asked for"
    if ranges.is_empty():
        return NotApplicable("focus", "the range asked for is not in the selection")
    process = ranges["process"][0]
    start, last = int(ranges["start_ns"].min()), int(ranges["end_ns"].max())  # type: ignore[arg-type]
    end = work_end(trace, start, last, process)
    if isinstance(found.steps, NotApplicable):
        return StepWindow(start, end, notes=(*found.notes, _why(found.steps)))
    inside = _inside(found.steps.steps, start, last)
    return StepWindow(start, end, inside, (), found.steps.how if inside else "", found.notes)


def _why(absent: NotApplicable) -> str:
    return f"{NO_STEPS}{absent.reason}"


def _inside(steps: Sequence[TraceStep], start: int, end: int) -> tuple[TraceStep, ...]:
    return tuple(s for s in steps if s.start_ns >= start and s.end_ns <= end)


def _of_steps(
    trace: Trace,
    steps: TraceSteps,
    kept: tuple[TraceStep, ...],
    out: tuple[TraceStep, ...],
    notes: list[str],
) -> StepWindow:
    start = kept[0].start_ns
    end = work_end(trace, start, max(step.end_ns for step in kept), kept[0].process)
    return StepWindow(start, end, kept, out, steps.how, tuple(notes))


def work_end(trace: Trace, start_ns: int, end_ns: int, process: int | None) -> int:
    """Give the end of a window, or of the GPU work that the process launched in it, if later."""
    inside = (pl.col("launch_ns") >= start_ns) & (pl.col("launch_ns") < end_ns)
    last = of_process(launched(trace), process).filter(inside)["end_ns"].max()
    return end_ns if last is None else max(end_ns, int(last))  # type: ignore[arg-type]


def _names(steps: Sequence[TraceStep]) -> str:
    shown = ", ".join(called(step) for step in steps[:_MOST_NAMED])
    more = len(steps) - _MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown
