"""Steps that do not represent the rest: warm-up, and what the capture cut off at either end."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.launch_index import count_in, launched, launches_of, took_ns
from gpusight.analysis.steps.step_list import (
    WARM_UP,
    closed_ranges,
    counts_on,
    frame_of,
    known_pace,
    named_like,
    starts_of,
)
from gpusight.trace.intervals import Intervals, contains

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace

    Mask = NDArray[np.bool_]

_PREPARES = re.compile(
    r"(?:cu|cuda|hip)(?:Module|Library)\w*(?:Load|GetFunction|GetKernel)|"
    r"(?:cu|cuda|hip)(?:Malloc|MemAlloc|HostAlloc|MallocHost)(?!Async)|cuMemCreate|cu\w*Link"
)
"""Calls that a program makes until it has run once."""
LONG = 1.25
_LONG_PREPARING = 1.1
"""Times the median of later steps: what is long, and long for a step that also prepares."""
_DEVIATIONS = 5 * 1.4826
"""Median absolute deviations that are out of the ordinary: five standard deviations."""
_USUAL_QUANTILE = 0.9
_CUT_LAUNCHES = 0.5
_CUT_TIME = 0.8
_WHOLE_LAUNCHES = 0.95
"""Share of the usual launches that a step has, next to steps whose GPU work is missing."""
_VARYING = 0.1
"""Variation of the launches of steps from which on their time is compared per launch."""
_MAX_STARTING = 1
"""Steps that are slow because the profiler starts, where the recorder let the program warm up."""
MIN_STEPS = 3
"""Steps needed to find out which of them are unlike the others."""


@dataclass(frozen=True, slots=True)
class UnrepresentativeSteps:
    """How many steps at either end do not represent the rest, and why."""

    warm_up: int
    """Steps at the beginning, after those that were cut off."""
    cut_first: int
    """Steps at the beginning of which the capture has only a part of the GPU work, or none."""
    cut_last: int
    """Such steps at the end."""
    why: str
    """Of the warm-up, in a few words; empty where there is none."""


def unrepresentative_steps(
    trace: Trace, steps: Sequence[TraceStep], *, open_end: bool = False
) -> UnrepresentativeSteps:
    """Find the steps at either end that do not represent the rest.

    With `open_end` the end of the last one was not seen: what the host did before the next.
    """
    named = _named(trace, steps)
    work = launched(trace)
    launches, took = launches_of(work, steps), took_ns(work, steps)
    usual = max(1.0, float(np.median(launches)))
    first = last = 0
    if open_end and len(steps) >= MIN_STEPS:
        # Found by what they launch, steps are whole; those with more to do take longer.
        if np.std(launches) > _VARYING * usual:
            took = np.rint(took * usual / np.maximum(launches, 1)).astype(np.int64)
        last = int(len(steps) > MIN_STEPS and took[-1] < _CUT_TIME * np.median(took[:-1]))
    elif not open_end:
        first = 0 if named else _cut(launches, took, prepares=True)
        last = min(_cut(launches[::-1], took[::-1], prepares=False), len(steps) - named - 1)
    whole = steps[first : len(steps) - last]
    measured = 0
    if len(whole) >= MIN_STEPS:
        whole_ns = took[first : len(steps) - last]
        pace = known_pace(trace, steps[0].process)
        is_warm = pace is not None and counts_on(steps, pace)
        most = _MAX_STARTING if is_warm else len(whole) // 2
        measured = min(_measured(whole_ns, _prepares(trace, whole)), most)
    count = max(named, measured)
    why = "" if not count else "named so" if named >= measured else "longer than later ones"
    return UnrepresentativeSteps(count, first, last, why)


def _cut(launches: Ints, took: Ints, *, prepares: bool) -> int:
    """Count the steps of which the capture lacks GPU work; the first one given is at its end.

    Those without any, where most of the others have some, and one next to them with less than the
    others; else one with few launches, in little time unless all others launch the same. A
    beginning that `prepares` may be long before there is much GPU work: this is warm-up.
    """
    works = launches > 0
    empty = int(np.argmax(works))
    if works[empty:].sum() <= len(works[empty:]) / 2:
        return 0
    usual_ns = float(np.median(took[works]))
    if prepares and took[: empty + 1].max() > LONG * usual_ns:
        return 0
    others = launches[empty + 1 :][works[empty + 1 :]]
    # Of two others, one may be a warm-up that compiles or tunes with launches of its own.
    usual = float(np.quantile(others, 0.5, method="lower")) if len(others) else 0.0
    if empty:
        return empty + int(launches[empty] < _WHOLE_LAUNCHES * usual)
    if len(launches) < MIN_STEPS or launches[0] >= _CUT_LAUNCHES * usual:
        return 0
    return int(took[0] < _CUT_TIME * usual_ns or np.std(others) <= _VARYING * usual)


def _named(trace: Trace, steps: Sequence[TraceStep]) -> int:
    """Count the leading steps that a range around them, or their own name, calls warm-up."""
    starts = starts_of(steps)
    warm_up = frame_of(steps)["name"].str.contains(WARM_UP).to_numpy()
    if trace.has("ranges"):
        around = named_like(closed_ranges(trace), WARM_UP)
        inside = Intervals.from_arrays(around["start_ns"].to_numpy(), around["end_ns"].to_numpy())
        warm_up |= contains(inside, starts)
    return 0 if warm_up.all() else int(np.argmin(warm_up))


def outliers(took: Ints, kept: Mask) -> Mask:
    """Return which steps take much longer, or shorter, than the kept ones usually do."""
    if kept.sum() < MIN_STEPS:
        return np.zeros(len(took), np.bool_)
    median, limit = _spread(took[kept])
    far: Mask = (took > np.maximum(LONG * median, median + limit)) | (
        took < np.minimum(median / LONG, median - limit)
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
    needed = np.where(prepares, _LONG_PREPARING, LONG) * median
    usual = took <= np.maximum(needed, max(median + limit, often))
    leading = int(np.argmax(usual)) if usual.any() else 0
    # Warm-up ends with a fall. Steps that get faster little by little, as clocks rise, have none.
    soon = np.minimum(took[1:], np.append(took[2:], took[-1]))[:leading]
    falls = took[:leading] >= _LONG_PREPARING * soon
    return int(np.flatnonzero(falls)[-1]) + 1 if falls.any() else 0


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
