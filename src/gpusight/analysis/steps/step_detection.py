"""Finds the steps of a capture: by names, by repeated ranges, else by repeated kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.attribution.nested_intervals import NONE, NestedIntervals
from gpusight.analysis.selection import EVERYTHING, ResolvedSelection, Selection
from gpusight.analysis.steps.step_launches import (
    find_period,
    launched,
    launches_of,
    of_process,
    periodic_steps,
)
from gpusight.analysis.steps.step_list import (
    SCHEMA,
    UNNAMED,
    StepEvidence,
    TraceSteps,
    closed_ranges,
    find_steps,
    named_like,
    named_steps,
    read_name,
    shortened,
)

if TYPE_CHECKING:
    from gpusight.analysis.steps.step_launches import LaunchPeriod
    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.results import NotApplicable
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


_DEEPEST = 16
_NEARLY_ALL = 0.6
"""Part of the launches that a range must hold to be looked into."""
_MIN_LAUNCH_SHARE = 0.5
"""Part of the launches that steps must hold, of all; and ranges, of a step."""
_MIN_MISSING_SHARE = 0.1
"""Part of a step's launches that is more than chance."""
_UNLIKE = 0.25
"""Part by which what a step launches may differ from the others."""
_AGAIN = 3
"""Ranges of one name that are enough; a round of several names is enough twice."""
_NAMED = 3
_OPERATOR = (
    r"^(?:(?:aten|prim|autograd|c10d?|cub|thrust)::|[nr]ccl|gloo:|cudnn|cublas|cusparse|cufft)|"
    r", (?:seq|op_id) = \d"
)
"""Ranges that the framework puts around each operator, and libraries around their calls."""


def repeated_steps(trace: Trace, work: pl.DataFrame) -> TraceSteps | None:
    """Find steps by ranges that repeat; `work` is what `launched` gives of one process."""
    if not trace.has("ranges") or work.is_empty():
        return None
    process = work["process"][0]
    ranges = closed_ranges(trace).filter(
        pl.col("process").eq_missing(process), pl.col("end_ns") > pl.col("start_ns")
    )
    ranges = named_like(ranges, _OPERATOR, keep=False)
    level = _outermost(ranges, work["launch_ns"].to_numpy())
    if level is None:
        return None
    nested, at = level
    for _ in range(_DEEPEST):
        found = _steps(_rows(ranges, nested, at), work)
        if found is not None:
            return found
        held = _launches(nested.starts[at], nested.ends[at], work["launch_ns"].to_numpy())
        if not len(at) or held.max() < _NEARLY_ALL * work.height:
            return None
        at = np.flatnonzero(nested.outer == at[int(np.argmax(held))])
    return None


def _outermost(ranges: pl.DataFrame, times: Ints) -> tuple[NestedIntervals, Ints] | None:
    """Lay out the ranges of the thread whose outermost ones hold most launches."""
    if ranges.is_empty():
        return None
    every, top = _laid_out(ranges)
    rows = every.rows[top]
    held = pl.DataFrame(
        {
            "thread": ranges["thread"][rows],
            "row": rows,
            "held": _launches(every.starts[top], every.ends[top], times),
        }
    )
    threads = held.group_by("thread").agg(pl.col("held").sum(), pl.col("row").min())
    thread, most, _ = threads.sort("held", "row", descending=[True, False]).row(0)
    if not most:
        return None
    at = ranges.with_row_index("at").filter(pl.col("thread").eq_missing(thread))
    nested, top = _laid_out(at)
    moved = at["at"].cast(pl.Int64).to_numpy()[nested.rows]
    return NestedIntervals(moved, nested.starts, nested.ends, nested.threads, nested.known), top


def _laid_out(ranges: pl.DataFrame) -> tuple[NestedIntervals, Ints]:
    """Lay ranges out, and say which lie in no other of their thread."""
    start, end = (ranges[c].to_numpy() for c in ("start_ns", "end_ns"))
    nested = NestedIntervals.of(start, end, ranges["thread"])
    return nested, np.flatnonzero(nested.outer == NONE)


def _rows(ranges: pl.DataFrame, nested: NestedIntervals, at: Ints) -> pl.DataFrame:
    return ranges[nested.rows[at]].sort("start_ns", maintain_order=True)


def _launches(starts: Ints, ends: Ints, times: Ints) -> Ints:
    held: Ints = np.searchsorted(times, ends) - np.searchsorted(times, starts)
    return np.maximum(held, 0)


def _steps(level: pl.DataFrame, work: pl.DataFrame) -> TraceSteps | None:
    """Make steps of ranges side by side, where they repeat and hold most of the work."""
    if level.height < 2:
        return None
    names = level["name"].cast(pl.String)
    family = names.str.replace_all(r"\d+", "#").rank("dense").cast(pl.Int64).to_numpy() - 1
    start, end = (level[c].to_numpy() for c in ("start_ns", "end_ns"))
    before = np.maximum(start - np.append(start[:1], end[:-1]), 0)
    period = find_period(family, before, np.ones(len(family), np.bool_))
    if period is None or (period.length == 1 and len(period.starts) < _AGAIN):
        return None
    times = work["launch_ns"].to_numpy()
    starts, ends = _bounds(start, end, period, times)
    if not _plausible(_launches(starts, ends, times), len(times)):
        return None
    first = period.starts[-len(starts) :]
    whole = np.array_equal(start[first], starts) and np.array_equal(end[first], ends)
    frame = level[first].select(
        (names[first] if whole else pl.lit(UNNAMED)).alias("name"),
        pl.int_range(pl.len()).alias("number"),
        pl.Series("start_ns", starts),
        pl.Series("end_ns", ends),
        "process",
        "thread",
    )
    return TraceSteps.of(frame, _range_note(names, period), StepEvidence.REPEATED)


def _plausible(held: Ints, work: int) -> bool:
    """Tell whether steps hold most of the work, and most of them about as much as the others."""
    usual = float(np.median(held))
    alike = np.abs(held - usual) <= _UNLIKE * usual
    return bool(held.sum() >= _MIN_LAUNCH_SHARE * work and alike.mean() >= _NEARLY_ALL)


def _bounds(start: Ints, end: Ints, period: LaunchPeriod, times: Ints) -> tuple[Ints, Ints]:
    """Say when steps begin and end.

    Ranges of one name that hold most of the work are the steps themselves. Otherwise a step lasts
    until the next begins; unless work that belongs to one comes before the first range: then it
    ends with its last range, an optimizer's, and begins where the one before ended.
    """
    starts = start[period.starts]
    lasts = np.append(period.starts[1:], period.end) - 1
    closes = np.maximum.accumulate(end)[lasts]
    if period.length == 1 and _cover(starts, closes, times) >= _MIN_LAUNCH_SHARE:
        return starts, closes
    ends = np.append(starts[1:], closes[-1])
    usual = float(np.median(_launches(starts, ends, times)[:-1]))
    ahead = int(np.searchsorted(times, starts[0]))
    missing = round(usual) - int(_launches(starts[-1:], ends[-1:], times)[0])
    if missing < _MIN_MISSING_SHARE * usual or ahead < _MIN_LAUNCH_SHARE * missing:
        return starts, ends
    begins = int(times[max(0, ahead - missing)])
    return np.append(begins, closes[:-1]), closes


def _cover(starts: Ints, ends: Ints, times: Ints) -> float:
    """Measure the part of the launches, from the first range to the last, that is inside them."""
    between = _launches(starts[:1], ends[-1:], times)[0]
    return float(_launches(starts, ends, times).sum() / between) if between else 0.0


def _range_note(names: pl.Series, period: LaunchPeriod) -> str:
    whole = names[int(period.starts[0]) : int(period.starts[0]) + period.length]
    distinct = whole.unique(maintain_order=True)
    shown = ", ".join(repr(shortened(name)) for name in distinct[:_NAMED])
    more = " and more" if len(distinct) > _NAMED else ""
    return f"ranges that repeat: {shown}{more}"


_OWN = ["process", "thread"]
_TRIED = 8
_NO_REPETITION = "GPU work does not repeat itself"
_MOST = 0.5
"""Of the steps that must hold more than comes after them."""
_SOME = 0.1
"""Of the launches that steps must hold in all."""


@dataclass(frozen=True)
class DetectedSteps:
    """The steps of one thread, and how it was chosen."""

    steps: TraceSteps | NotApplicable
    notes: tuple[str, ...] = ()
    ranges: pl.DataFrame | None = None
    """Where a range was asked for, its occurrences in the process chosen, with the columns of a
    step but its number."""


def detect_steps(trace: Trace, selection: Selection = EVERYTHING) -> DetectedSteps:
    """Find the steps of one thread: the one of the selected that gives the GPU most to do."""
    work = _Selected(trace, selection).work()
    if selection.within is not None:
        return _within(trace, selection, work)
    best = _by_name(trace, work)
    if best is None:
        mine, notes = _busiest(trace, work)
        again = repeated_steps(trace, mine) or periodic_steps(trace, mine)
        best = None if again is None else DetectedSteps(again, notes)
    return best or _last_resort(trace, work)


def _by_name(trace: Trace, work: pl.DataFrame) -> DetectedSteps | None:
    """Take the first family of ranges named like steps that holds GPU work, where there is any."""
    for candidate in islice(named_steps(trace), _TRIED):
        steps, notes = one_thread(trace, candidate, work)
        if work.is_empty() or _holds_work(steps, work):
            return DetectedSteps(steps, notes)
    return None


def _holds_work(found: TraceSteps, work: pl.DataFrame) -> bool:
    """Tell whether most steps hold more than is launched between them and the next.

    Most, not all: what is evaluated or saved after a few of them may be more than all steps are.
    """
    held = launches_of(work, found.steps)
    if int(held.sum()) < max(1, _SOME * work.height):
        return False
    gaps = [replace(a, start_ns=a.end_ns, end_ns=b.start_ns) for a, b in pairwise(found.steps)]
    fuller = int((held[:-1] >= launches_of(work, gaps)).sum())
    return fuller >= _MOST * len(gaps)


def _last_resort(trace: Trace, work: pl.DataFrame) -> DetectedSteps:
    """Believe names alone; or say why there are no steps."""
    found = find_steps(trace)
    if isinstance(found, TraceSteps):
        return DetectedSteps(*one_thread(trace, found, work))
    rest = "there is no GPU work to tell them by" if work.is_empty() else _NO_REPETITION
    return DetectedSteps(replace(found, reason=f"{found.reason}, and {rest}"))


def _busiest(trace: Trace, work: pl.DataFrame) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Keep the work of the process, and of the GPU in it, that has most."""
    if work.is_empty():
        return work, ()
    process, notes = busiest_process(trace, work, "steps are those of")
    mine = of_process(work, process)
    return mine.filter(pl.col("device") == _most(mine, "device")), notes


def busiest_process(
    trace: Trace, work: pl.DataFrame, said: str
) -> tuple[int | None, tuple[str, ...]]:
    """Give the process with most GPU work, None where none is named; of several, `said` why."""
    count = work["process"].drop_nulls().n_unique()
    process = _most(work, "process") if count else None
    return process, _which(trace, process, count, said) if count > 1 else ()


def _most(work: pl.DataFrame, column: str) -> int:
    """Give the process or GPU whose work takes longest."""
    took = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("took_ns")
    sums = work.drop_nulls(column).group_by(column, maintain_order=True).agg(took)
    return int(sums.sort("took_ns", descending=True, maintain_order=True)[column][0])


class _Selected(ResolvedSelection):
    """A selection that gives GPU work in the order of its launches."""

    def work(self) -> pl.DataFrame:
        work = launched(self.trace)
        if self.selection.device is not None:
            work = work.filter(pl.col("device") == self.selection.device)
        if self.processes is not None:
            work = work.filter(pl.col("process").is_in(self.processes))
        return work


def one_thread(
    trace: Trace, found: TraceSteps, work: pl.DataFrame
) -> tuple[TraceSteps, tuple[str, ...]]:
    """Keep the steps of the process and thread during which most GPU work was launched."""
    groups: dict[tuple[int | None, int | None], list[TraceStep]] = {}
    for step in found.steps:
        groups.setdefault((step.process, step.thread), []).append(step)
    best = max(groups, key=lambda key: int(launches_of(work, groups[key]).sum()))
    processes = {process for process, _ in groups}
    said = "steps are those of"
    notes = _which(trace, best[0], len(processes), said) if len(processes) > 1 else ()
    return replace(found, steps=_numbered(groups[best])), notes


def _which(trace: Trace, process: int | None, count: int, said: str) -> tuple[str, ...]:
    pids = trace.table("processes", ["process", "pid"]).filter(pl.col("process") == process)
    number = pids["pid"][0] if pids.height else process
    return (f"{said} process {number}, which of {count} has most GPU work",)


def _numbered(steps: list[TraceStep]) -> tuple[TraceStep, ...]:
    """Number steps as they come where their own numbers start again."""
    if all(a.number < b.number for a, b in pairwise(steps)):
        return tuple(steps)
    return tuple(replace(step, number=number) for number, step in enumerate(steps))


# Of a range -----------------------------------------------------------------------------------


def _within(trace: Trace, selection: Selection, work: pl.DataFrame) -> DetectedSteps:
    """Take the occurrences of a range for steps, unless a step holds several of them."""
    usual = detect_steps(trace, replace(selection, within=None))
    ranges = _occurrences(trace, selection)
    if ranges.is_empty():
        return DetectedSteps(usual.steps, usual.notes, ranges)
    again = _repeated(ranges)
    chosen, notes = one_thread(trace, again, work)
    process = chosen.steps[0].process
    ranges = ranges.filter(pl.col("process").eq_missing(process))
    if isinstance(usual.steps, TraceSteps) and not _one_each(chosen, usual.steps):
        return DetectedSteps(usual.steps, usual.notes, ranges)
    return DetectedSteps(chosen, notes, ranges)


def _one_each(chosen: TraceSteps, usual: TraceSteps) -> bool:
    """Tell whether ranges are the repetition themselves: no step holds two of them."""
    if len(chosen.steps) < 2:
        return False
    held = usual.holding(chosen.frame["start_ns"], chosen.frame["process"]).drop_nulls()
    return held.n_unique() == len(held)


def _occurrences(trace: Trace, selection: Selection) -> pl.DataFrame:
    """List the closed ranges that the selection names."""
    key = ["process", "start_ns", "end_ns"]
    wanted = ResolvedSelection(trace, selection).matching_ranges.unique(key)
    ranges = closed_ranges(trace).with_columns(pl.col("name").cast(pl.String))
    return ranges.join(wanted, on=key, how="semi", nulls_equal=True, maintain_order="left")


def _repeated(ranges: pl.DataFrame) -> TraceSteps:
    """Make steps of ranges that do not overlap, by thread; of those that do, the outer ones."""
    before = pl.col("end_ns").cum_max().shift(1).over(_OWN)
    apart = ranges.sort("start_ns", maintain_order=True).filter(
        before.is_null() | (pl.col("start_ns") >= before)
    )
    numbers = {name: (read_name(name) or ("", None))[1] for name in apart["name"].unique()}
    counted = apart["name"].replace_strict(numbers, return_dtype=pl.Int64)
    number = pl.int_range(pl.len()).over(_OWN)
    if not counted.null_count():
        number = pl.lit(counted)
    names = apart["name"].unique(maintain_order=True)
    how = f"ranges named {names[0]!r}" + ("" if len(names) == 1 else " and alike")
    return TraceSteps.of(
        apart.with_columns(number.alias("number")).select(*SCHEMA), how, StepEvidence.CHOSEN
    )
