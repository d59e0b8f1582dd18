"""The steps of a capture, by whatever tells them: names, repetition of ranges, or of kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.select import EVERYTHING, Scope, Selection
from gpusight.analyses.steps.launched import launched, launches_of, of_process
from gpusight.analyses.steps.names import closed_ranges, find_steps, named_steps, read_name
from gpusight.analyses.steps.periodic import periodic_steps
from gpusight.analyses.steps.repeats import repeated_steps
from gpusight.analyses.steps.step import SCHEMA, Evidence, Steps

if TYPE_CHECKING:
    from gpusight.analyses.steps.step import Step
    from gpusight.model.trace import Trace
    from gpusight.result import NotApplicable

_OWN = ["process", "thread"]
_TRIED = 8
_NO_REPETITION = "GPU work does not repeat itself"
_MOST = 0.5
"""Of the steps that must hold more than comes after them."""
_SOME = 0.1
"""Of the launches that steps must hold in all."""


@dataclass(frozen=True)
class Found:
    """The steps of one thread, and how it was chosen."""

    steps: Steps | NotApplicable
    notes: tuple[str, ...] = ()
    ranges: pl.DataFrame | None = None
    """Where a range was asked for, its occurrences in the process chosen, with the columns of a
    step but its number."""


def detect(trace: Trace, selection: Selection = EVERYTHING) -> Found:
    """Find the steps of one thread: the one of the selected that gives the GPU most to do."""
    work = _Selected(trace, selection).work()
    if selection.within is not None:
        return _within(trace, selection, work)
    best = _by_name(trace, work)
    if best is None:
        mine, notes = _busiest(trace, work)
        again = repeated_steps(trace, mine) or periodic_steps(trace, mine)
        best = None if again is None else Found(again, notes)
    return best or _last_resort(trace, work)


def _by_name(trace: Trace, work: pl.DataFrame) -> Found | None:
    """Take the first family of ranges named like steps that holds GPU work, where there is any."""
    for candidate in islice(named_steps(trace), _TRIED):
        steps, notes = one_thread(trace, candidate, work)
        if work.is_empty() or _holds_work(steps, work):
            return Found(steps, notes)
    return None


def _holds_work(found: Steps, work: pl.DataFrame) -> bool:
    """Tell whether most steps hold more than is launched between them and the next.

    Most, not all: what is evaluated or saved after a few of them may be more than all steps are.
    """
    held = launches_of(work, found.steps)
    if int(held.sum()) < max(1, _SOME * work.height):
        return False
    gaps = [replace(a, start_ns=a.end_ns, end_ns=b.start_ns) for a, b in pairwise(found.steps)]
    fuller = int((held[:-1] >= launches_of(work, gaps)).sum())
    return fuller >= _MOST * len(gaps)


def _last_resort(trace: Trace, work: pl.DataFrame) -> Found:
    """Believe names alone; or say why there are no steps."""
    found = find_steps(trace)
    if isinstance(found, Steps):
        return Found(*one_thread(trace, found, work))
    rest = "there is no GPU work to tell them by" if work.is_empty() else _NO_REPETITION
    return Found(replace(found, reason=f"{found.reason}, and {rest}"))


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


class _Selected(Scope):
    """A selection that gives GPU work in the order of its launches."""

    def work(self) -> pl.DataFrame:
        work = launched(self.trace)
        if self.selection.device is not None:
            work = work.filter(pl.col("device") == self.selection.device)
        if self.processes is not None:
            work = work.filter(pl.col("process").is_in(self.processes))
        return work


def one_thread(trace: Trace, found: Steps, work: pl.DataFrame) -> tuple[Steps, tuple[str, ...]]:
    """Keep the steps of the process and thread during which most GPU work was launched."""
    groups: dict[tuple[int | None, int | None], list[Step]] = {}
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


def _numbered(steps: list[Step]) -> tuple[Step, ...]:
    """Number steps as they come where their own numbers start again."""
    if all(a.number < b.number for a, b in pairwise(steps)):
        return tuple(steps)
    return tuple(replace(step, number=number) for number, step in enumerate(steps))


# Of a range -----------------------------------------------------------------------------------


def _within(trace: Trace, selection: Selection, work: pl.DataFrame) -> Found:
    """Take the occurrences of a range for steps, unless a step holds several of them."""
    usual = detect(trace, replace(selection, within=None))
    ranges = _occurrences(trace, selection)
    if ranges.is_empty():
        return Found(usual.steps, usual.notes, ranges)
    again = _repeated(ranges)
    chosen, notes = one_thread(trace, again, work)
    process = chosen.steps[0].process
    ranges = ranges.filter(pl.col("process").eq_missing(process))
    if isinstance(usual.steps, Steps) and not _one_each(chosen, usual.steps):
        return Found(usual.steps, usual.notes, ranges)
    return Found(chosen, notes, ranges)


def _one_each(chosen: Steps, usual: Steps) -> bool:
    """Tell whether ranges are the repetition themselves: no step holds two of them."""
    if len(chosen.steps) < 2:
        return False
    held = usual.holding(chosen.frame["start_ns"], chosen.frame["process"]).drop_nulls()
    return held.n_unique() == len(held)


def _occurrences(trace: Trace, selection: Selection) -> pl.DataFrame:
    """List the closed ranges that the selection names."""
    key = ["process", "start_ns", "end_ns"]
    wanted = Scope(trace, selection).matching_ranges.unique(key)
    ranges = closed_ranges(trace).with_columns(pl.col("name").cast(pl.String))
    return ranges.join(wanted, on=key, how="semi", nulls_equal=True, maintain_order="left")


def _repeated(ranges: pl.DataFrame) -> Steps:
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
    return Steps.of(
        apart.with_columns(number.alias("number")).select(*SCHEMA), how, Evidence.CHOSEN
    )
