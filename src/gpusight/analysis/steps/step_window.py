"""The window that ledger, rules and replay analyze, and its steps without warm-up."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import EVERYTHING, ResolvedSelection, Selection
from gpusight.analysis.steps.step_detection import DetectedSteps, detect_steps
from gpusight.analysis.steps.step_launches import (
    count_in,
    launched,
    launches_of,
    of_process,
    took_ns,
)
from gpusight.analysis.steps.step_list import (
    WARM_UP,
    TraceSteps,
    called,
    closed_ranges,
    named_like,
    parse_steps,
    shortened,
)
from gpusight.errors import UsageError
from gpusight.results import NotApplicable
from gpusight.trace.intervals import Intervals, contains
from gpusight.units import format_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace

    Bounds = tuple[int | None, int | None]
    Mask = NDArray[np.bool_]


_MAX_NAMED = 3
NO_STEPS = "no steps: "
"""Start of the note with the reason why there are none."""


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
    """How steps were detected, in words; empty where there are none."""
    notes: tuple[str, ...] = ()
    """Caveats."""
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
    """Choose the time to analyze.

    `steps` by number (`3-7`, `5`, `2:`, `all`), `window` in nanoseconds from the capture's origin,
    either end open. `warmup` keeps the steps that would be left out as warm-up.
    """
    if steps is not None and window is not None:
        raise UsageError("steps and a window were asked for", hint="give --steps or --window")
    whole = ResolvedSelection(trace, replace(selection, within=None)).window
    if not whole.length_ns:
        nothing = "the capture shows no activity" + (" in the selection" if selection else "")
        return NotApplicable("focus", nothing, advice_for(trace.meta).gpu)
    detected = detect_steps(trace, selection)
    detected = replace(detected, notes=(*detected.notes, *_without_end(trace)))
    if steps is not None:
        return _by_number(trace, detected, steps)
    if window is not None:
        return _by_time(trace, detected, window, (whole.start_ns, whole.end_ns))
    if selection.within is not None:
        return _by_range(trace, detected)
    if isinstance(detected.steps, NotApplicable):
        notes = (*detected.notes, _why(detected.steps))
        return StepWindow(whole.start_ns, whole.end_ns, notes=notes)
    return _usual(trace, detected, detected.steps, warmup=warmup)


def _usual(trace: Trace, detected: DetectedSteps, steps: TraceSteps, *, warmup: bool) -> StepWindow:
    """Leave out steps that do not represent the rest."""
    all_steps = steps.steps
    unlike = unrepresentative_steps(trace, all_steps)
    first = (0 if warmup else unlike.warm_up) + unlike.cut_first
    last = len(all_steps) - unlike.cut_last
    notes = list(detected.notes)
    if first and not unlike.cut_first:
        out = _names(all_steps[:first])
        notes.append(f"{first} of {len(all_steps)} steps left out as warm-up ({unlike.why}): {out}")
    cut = (*all_steps[: int(unlike.cut_first)], *all_steps[last:])
    if cut:
        notes.append(f"left out as parts of steps that the capture cut off: {_names(cut)}")
    kept = all_steps[first:last]
    return _of_steps(trace, steps, kept, (*all_steps[:first], *all_steps[last:]), notes)


def _by_number(trace: Trace, detected: DetectedSteps, text: str) -> StepWindow | NotApplicable:
    wanted = parse_steps(text)
    if isinstance(detected.steps, NotApplicable):
        return detected.steps
    all_steps = detected.steps.steps
    first, last = wanted or (None, None)
    kept = tuple(
        step
        for step in all_steps
        if (first is None or step.number >= first) and (last is None or step.number <= last)
    )
    if not kept:
        known = f"steps are numbered {all_steps[0].number} to {all_steps[-1].number}"
        raise UsageError(
            f"no step is in {shortened(text)!r}", why=known, hint="see: gpusight steps FILE"
        )
    out = tuple(step for step in all_steps if not kept[0].number <= step.number <= kept[-1].number)
    return _of_steps(trace, detected.steps, kept, out, list(detected.notes))


def _by_time(
    trace: Trace, detected: DetectedSteps, window: Bounds, whole: tuple[int, int]
) -> StepWindow:
    """Take a span of time; `whole` is that of the selected activity."""
    start = whole[0] if window[0] is None else window[0]
    end = whole[1] if window[1] is None else window[1]
    if start >= whole[1] or end <= whole[0] or start >= end:
        spans = f"activity is from {format_time(whole[0])} to {format_time(whole[1])}"
        raise UsageError("nothing happens in the window", why=spans)
    # What comes before or after everything that the capture saw is no idle time.
    seen = ResolvedSelection(trace).window
    first, last = max(start, seen.start_ns), min(end, seen.end_ns)
    notes = detected.notes
    if (first, last) != (start, end):
        spans = f"{format_time(first)} to {format_time(last)}"
        notes = (*notes, f"the window is cut to the activity that the capture shows: {spans}")
    start, end = first, last
    if isinstance(detected.steps, NotApplicable):
        return StepWindow(start, end, notes=(*notes, _why(detected.steps)))
    inside = _inside(detected.steps.steps, start, end)
    kept = set(inside)
    out = tuple(step for step in detected.steps.steps if step not in kept)
    return StepWindow(start, end, inside, out, detected.steps.how if inside else "", notes)


def _without_end(trace: Trace) -> tuple[str, ...]:
    """Note that most kernels take no time: readers make an instant of what ends before it starts.

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


def _by_range(trace: Trace, detected: DetectedSteps) -> StepWindow | NotApplicable:
    """Take all occurrences of a range, from the first to the last."""
    ranges = detected.ranges
    assert ranges is not None, "no range was asked for"
    if ranges.is_empty():
        return NotApplicable("focus", "the range asked for is not in the selection")
    process = ranges["process"][0]
    start, last = int(ranges["start_ns"].min()), int(ranges["end_ns"].max())  # type: ignore[arg-type]
    end = work_end(trace, start, last, process)
    if isinstance(detected.steps, NotApplicable):
        return StepWindow(start, end, notes=(*detected.notes, _why(detected.steps)))
    inside = _inside(detected.steps.steps, start, last)
    return StepWindow(start, end, inside, (), detected.steps.how if inside else "", detected.notes)


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
    """Return the end of a window, or of the GPU work that the process launched in it, if later."""
    inside = (pl.col("launch_ns") >= start_ns) & (pl.col("launch_ns") < end_ns)
    last = of_process(launched(trace), process).filter(inside)["end_ns"].max()
    return end_ns if last is None else max(end_ns, int(last))  # type: ignore[arg-type]


def _names(steps: Sequence[TraceStep]) -> str:
    shown = ", ".join(called(step) for step in steps[:_MAX_NAMED])
    more = len(steps) - _MAX_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


# Steps that do not represent the rest -------------------------------------------------------------

_PREPARES = re.compile(
    r"(?:cu|cuda|hip)(?:Module|Library)\w*(?:Load|GetFunction|GetKernel)|"
    r"(?:cu|cuda|hip)(?:Malloc|MemAlloc|HostAlloc|MallocHost)(?!Async)|cuMemCreate|cu\w*Link"
)
"""Calls that a program makes until it has run once."""
_LONG = 1.25
_LONG_PREPARING = 1.1
"""Times the median of later steps: what is long, and long for a step that also prepares."""
_DEVIATIONS = 5 * 1.4826
"""Median absolute deviations that are out of the ordinary: five standard deviations."""
_USUAL_QUANTILE = 0.9
_CUT_LAUNCHES = 0.5
_CUT_TIME = 0.8
_MIN_STEPS = 3
"""Steps needed to find out which of them are unlike the others."""


@dataclass(frozen=True, slots=True)
class UnrepresentativeSteps:
    """How many steps at either end do not represent the rest, and why."""

    warm_up: int
    """Steps at the beginning."""
    cut_first: bool
    cut_last: bool
    why: str
    """Of the warm-up, in a few words; empty where there is none."""


def unrepresentative_steps(trace: Trace, steps: Sequence[TraceStep]) -> UnrepresentativeSteps:
    """Find the steps at either end that do not represent the rest."""
    named = _named(trace, steps)
    if len(steps) < _MIN_STEPS:
        return UnrepresentativeSteps(named, False, False, "named so" if named else "")
    work = launched(trace)
    took = took_ns(work, steps)
    launches = launches_of(work, steps)
    # Few launches in little time: only a part of a step.
    cut = launches < _CUT_LAUNCHES * np.median(launches)
    cut &= took < _CUT_TIME * np.median(took)
    first, last = bool(cut[0]), bool(cut[-1])
    measured = _measured(took, _prepares(trace, steps)) if not first else 0
    count = max(named, min(measured, len(steps) // 2))
    why = "" if not count else "named so" if named >= measured else "longer than later ones"
    return UnrepresentativeSteps(count, first and not count, last, why)


def _named(trace: Trace, steps: Sequence[TraceStep]) -> int:
    """Count the leading steps that a range around them, or their own name, calls warm-up."""
    starts = np.array([s.start_ns for s in steps], np.int64)
    warm_up = np.array([bool(re.search(WARM_UP, s.name)) for s in steps], np.bool_)
    if trace.has("ranges"):
        around = named_like(closed_ranges(trace), WARM_UP)
        inside = Intervals.from_arrays(around["start_ns"].to_numpy(), around["end_ns"].to_numpy())
        warm_up |= contains(inside, starts)
    return 0 if warm_up.all() else int(np.argmin(warm_up))


def outliers(took: Ints, kept: Mask) -> Mask:
    """Return which steps take much longer, or shorter, than the kept ones usually do."""
    if kept.sum() < _MIN_STEPS:
        return np.zeros(len(took), np.bool_)
    median, limit = _spread(took[kept])
    far: Mask = (took > np.maximum(_LONG * median, median + limit)) | (
        took < np.minimum(median / _LONG, median - limit)
    )
    return far


def _spread(took: Ints) -> tuple[float, float]:
    """Return the median, and how far from it is out of the ordinary."""
    median = float(np.median(took))
    return median, _DEVIATIONS * float(np.median(np.abs(took - median)))


def _measured(took: Ints, prepares: Mask) -> int:
    """Count the leading steps that are out of the ordinary among the later ones."""
    later = took[max(1, len(took) // 2) :]
    median, limit = _spread(later)
    # What later steps often take as well is no sign of a beginning.
    often = float(np.quantile(later, _USUAL_QUANTILE, method="higher"))
    needed = np.where(prepares, _LONG_PREPARING, _LONG) * median
    usual = took <= np.maximum(needed, max(median + limit, often))
    return int(np.argmax(usual)) if usual.any() else 0


def _prepares(trace: Trace, steps: Sequence[TraceStep]) -> Mask:
    """Return which steps make calls that prepare, where most of the later steps make none."""
    if not trace.has("api_calls"):
        return np.zeros(len(steps), np.bool_)
    calls = trace.table("api_calls", ["start_ns", "name", "process"])
    names = names_of(calls["name"])
    codes = [code for code, name in enumerate(names) if _PREPARES.match(name)]
    wanted = pl.col("name").to_physical().is_in(codes)
    if steps[0].process is not None:
        wanted &= pl.col("process") == steps[0].process
    counts = count_in(calls.filter(wanted)["start_ns"].to_numpy(), steps)
    usually = float(np.median(counts[len(counts) // 2 :]))
    prepares: Mask = (counts > 0) & (usually == 0)
    return prepares
