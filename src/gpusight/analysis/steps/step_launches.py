"""GPU work of steps in launch order; warm-up steps and steps cut off by the capture."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.nested_intervals import optional
from gpusight.analysis.launch_index import KeyIndex, tables_with_rows
from gpusight.analysis.selection import GPU_WORK
from gpusight.analysis.steps.step_names import WARM_UP, closed_ranges, named_like
from gpusight.trace.intervals import Intervals, contains

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace

    Mask = NDArray[np.bool_]


_SCHEMA = {
    "launch_ns": pl.Int64(),
    "process": pl.Int64(),
    "thread": pl.Int64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "device": pl.Int64(),
    "table": pl.Int8(),
    "row": pl.Int64(),
}


def launched(trace: Trace) -> pl.DataFrame:
    """List all GPU work in order of `launch_ns`, when the call that asked for it began.

    Work that names no call counts by its own start and has no thread. `table` is a position in
    `GPU_WORK`, `row` the row there. `process` is that of the call where the work names none.
    """
    return trace.derive("launched-1", lambda: _launched(trace))


def of_process(work: pl.DataFrame, process: int | None) -> pl.DataFrame:
    """Keep the work of a process; work that names none may be anyone's."""
    if process is None:
        return work
    return work.filter((pl.col("process") == process) | pl.col("process").is_null())


def launches_of(work: pl.DataFrame, steps: Sequence[TraceStep]) -> Ints:
    """Count the work that the process of these steps launched during each of them."""
    mine = of_process(work, steps[0].process if steps else None)
    return count_in(mine["launch_ns"].to_numpy(), steps)


def count_in(times: Ints, steps: Sequence[TraceStep]) -> Ints:
    """Count how many of these rising times lie in each step."""
    first, after = slices(times, steps)
    return after - first


def slices(times: Ints, steps: Sequence[TraceStep]) -> tuple[Ints, Ints]:
    """Give the first and last-plus-one of these rising times that lie in each step."""
    first = np.searchsorted(times, np.array([s.start_ns for s in steps], np.int64))
    after = np.searchsorted(times, np.array([s.end_ns for s in steps], np.int64))
    return first.astype(np.int64), np.maximum(first, after).astype(np.int64)


def rows_of_steps(work: pl.DataFrame, steps: Sequence[TraceStep]) -> tuple[Ints, Ints]:
    """Give the rows of the work that each step launched, one step after the other, and the step."""
    first, after = slices(work["launch_ns"].to_numpy(), steps)
    many = after - first
    before = np.cumsum(many) - many
    return np.arange(many.sum()) + np.repeat(first - before, many), np.repeat(
        np.arange(len(steps)), many
    )


def done_ns(work: pl.DataFrame, steps: Sequence[TraceStep]) -> Ints:
    """Say when each step and all GPU work that it launched had ended."""
    mine = of_process(work, steps[0].process if steps else None)
    done = np.array([s.end_ns for s in steps], np.int64)
    first, after = slices(mine["launch_ns"].to_numpy(), steps)
    some = np.flatnonzero(after > first)
    if len(some):
        ends = mine["end_ns"].to_numpy()
        bounds = np.stack((first[some], after[some]), axis=1).ravel()
        last = np.maximum.reduceat(np.append(ends, ends[-1]), bounds)[::2]
        done[some] = np.maximum(done[some], last)
    return done


def _launched(trace: Trace) -> pl.DataFrame:
    api = trace.table("api_calls", ["start_ns", "thread", "process", "correlation"])
    index = KeyIndex(api["process"], api["correlation"])
    parts = [pl.DataFrame(schema=_SCHEMA)]
    for table in tables_with_rows(trace, GPU_WORK):
        columns = ["start_ns", "end_ns", "device", "process", "correlation"]
        parts.append(_of(trace.table(table, columns), api, index, GPU_WORK.index(table)))
    return pl.concat(parts).sort("launch_ns", maintain_order=True)


def _of(work: pl.DataFrame, api: pl.DataFrame, index: KeyIndex, table: int) -> pl.DataFrame:
    # A correlation of 0 is none: the driver moved memory on its own account.
    asked = work["correlation"].set((work["correlation"] == 0).fill_null(value=False), None)
    call = optional(index.find(work["process"], asked))
    called = pl.DataFrame(
        {name: api[name].gather(call).alias(name) for name in ("start_ns", "thread", "process")}
    )
    return pl.DataFrame(
        {
            "launch_ns": _first(called["start_ns"], work["start_ns"]),
            "process": _first(work["process"], called["process"]),
            "thread": called["thread"],
            "start_ns": work["start_ns"],
            "end_ns": work["end_ns"],
            "device": work["device"],
            "table": pl.Series(np.full(work.height, table, dtype=np.int8)),
            "row": pl.Series(np.arange(work.height, dtype=np.int64)),
        },
        schema=_SCHEMA,
    )


def _first(known: pl.Series, otherwise: pl.Series) -> pl.Series:
    return known.zip_with(known.is_not_null(), otherwise)


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
class UnrepresentativeSteps:
    """How many steps at either end do not stand for the rest, and why."""

    warm_up: int
    """Steps at the beginning."""
    cut_first: bool
    cut_last: bool
    why: str
    """Of the warm-up, in a few words; empty where there is none."""


def unrepresentative_steps(trace: Trace, steps: Sequence[TraceStep]) -> UnrepresentativeSteps:
    """Find the steps at either end that do not stand for the rest."""
    named = _named(trace, steps)
    if len(steps) < _LEAST:
        return UnrepresentativeSteps(named, False, False, "named so" if named else "")
    work = launched(trace)
    took = took_ns(work, steps)
    first, last = _cut(launches_of(work, steps), took)
    measured = _measured(took, _prepares(trace, steps)) if not first else 0
    count = max(named, min(measured, len(steps) // 2))
    why = "" if not count else "named so" if named >= measured else "longer than later ones"
    return UnrepresentativeSteps(count, first and not count, last, why)


def took_ns(work: pl.DataFrame, steps: Sequence[TraceStep]) -> Ints:
    """Say how long each step took until its GPU work was done, what the one before left apart."""
    done = np.maximum.accumulate(done_ns(work, steps))
    starts = np.array([s.start_ns for s in steps], np.int64)
    took: Ints = done - np.maximum(starts, np.append(starts[:1], done[:-1]))
    return took


def _named(trace: Trace, steps: Sequence[TraceStep]) -> int:
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


def _prepares(trace: Trace, steps: Sequence[TraceStep]) -> Mask:
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
