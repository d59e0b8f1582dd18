"""Which steps do not stand for the rest: warm-up at the beginning, and what the capture cut off.

A leading step is warm-up when a range says so, when it takes much longer than later ones, or when
it takes somewhat longer and does what later ones do not: load modules, allocate memory. What a step
takes is the time until its GPU work is done, from its beginning or from when the one before was
done: steps that never wait for the GPU are as long as the GPU takes for them. The first and the
last step are cut when they launch less than half of what the others do, in less time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.statistics import names_of
from gpusight.analyses.steps.launched import count_in, done_ns, launched, launches_of
from gpusight.analyses.steps.names import WARM_UP, closed_ranges, named_like
from gpusight.model.intervals import Intervals, contains

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpusight.analyses.steps.step import Step
    from gpusight.model.trace import Trace

    Ints = NDArray[np.int64]
    Mask = NDArray[np.bool_]

_PREPARES = re.compile(
    r"(?:cu|cuda|hip)(?:Module|Library)\w*(?:Load|GetFunction|GetKernel)|"
    r"(?:cu|cuda|hip)(?:Malloc|MemAlloc|HostAlloc|MallocHost)(?!Async)|cuMemCreate|cu\w*Link"
)
"""Calls that a program makes until it has run once."""
_LONG = 1.25
_LONGER = 1.1
"""Times the median of later steps: what is long, and long for a step that also prepares."""
_DEVIATIONS = 5 * 1.4826
"""Median absolute deviations that are out of the ordinary: five standard deviations."""
_OFTEN = 0.9
_CUT_LAUNCHES = 0.5
_CUT_TIME = 0.8
_LEAST = 3
"""Steps needed to tell which of them are unlike the others."""


@dataclass(frozen=True, slots=True)
class Unlike:
    """How many steps at either end do not stand for the rest, and why."""

    warm_up: int
    """Steps at the beginning."""
    cut_first: bool
    cut_last: bool
    why: str
    """Of the warm-up, in a few words; empty where there is none."""


def unlike(trace: Trace, steps: Sequence[Step]) -> Unlike:
    """Find the steps at either end that do not stand for the rest."""
    named = _named(trace, steps)
    if len(steps) < _LEAST:
        return Unlike(named, False, False, "named so" if named else "")
    work = launched(trace)
    took = took_ns(work, steps)
    first, last = _cut(launches_of(work, steps), took)
    measured = _measured(took, _prepares(trace, steps)) if not first else 0
    count = max(named, min(measured, len(steps) // 2))
    why = "" if not count else "named so" if named >= measured else "longer than later ones"
    return Unlike(count, first and not count, last, why)


def took_ns(work: pl.DataFrame, steps: Sequence[Step]) -> Ints:
    """Say how long each step took until its GPU work was done, what the one before left apart."""
    done = np.maximum.accumulate(done_ns(work, steps))
    starts = np.array([s.start_ns for s in steps], np.int64)
    took: Ints = done - np.maximum(starts, np.append(starts[:1], done[:-1]))
    return took


def _named(trace: Trace, steps: Sequence[Step]) -> int:
    """Count the leading steps that a range around them, or their own name, calls warm-up."""
    starts = np.array([s.start_ns for s in steps], np.int64)
    said = np.array([bool(re.search(WARM_UP, s.name)) for s in steps], np.bool_)
    if trace.has("ranges"):
        around = named_like(closed_ranges(trace), WARM_UP)
        inside = Intervals.from_arrays(around["start_ns"].to_numpy(), around["end_ns"].to_numpy())
        said |= contains(inside, starts)
    return 0 if said.all() else int(np.argmin(said))


def outliers(took: Ints, kept: Mask) -> Mask:
    """Tell which steps take much longer, or shorter, than the kept ones usually do."""
    if kept.sum() < _LEAST:
        return np.zeros(len(took), np.bool_)
    median, limit = _usual(took[kept])
    far: Mask = (took > np.maximum(_LONG * median, median + limit)) | (
        took < np.minimum(median / _LONG, median - limit)
    )
    return far


def _usual(took: Ints) -> tuple[float, float]:
    """Give the median, and how far from it is out of the ordinary."""
    median = float(np.median(took))
    return median, _DEVIATIONS * float(np.median(np.abs(took - median)))


def _measured(took: Ints, prepares: Mask) -> int:
    """Count the leading steps that are out of the ordinary among the later ones."""
    later = took[max(1, len(took) // 2) :]
    median, limit = _usual(later)
    # What later steps often take as well is no sign of a beginning.
    often = float(np.quantile(later, _OFTEN, method="higher"))
    needed = np.where(prepares, _LONGER, _LONG) * median
    usual = took <= np.maximum(needed, max(median + limit, often))
    return int(np.argmax(usual)) if usual.any() else 0


def _prepares(trace: Trace, steps: Sequence[Step]) -> Mask:
    """Tell which steps make calls that prepare, where most of the later steps make none."""
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


def _cut(launches: Ints, took: Ints) -> tuple[bool, bool]:
    """Tell whether the first and the last step are only parts of steps."""
    few = launches < _CUT_LAUNCHES * np.median(launches)
    parts = few & (took < _CUT_TIME * np.median(took))
    return bool(parts[0]), bool(parts[-1])
