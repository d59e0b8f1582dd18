"""Finds the steps of a capture: by names, by repeated ranges, else by repeated kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, cast

import numpy as np
import polars as pl

from gpusight.analysis.attribution.nested_intervals import NONE, NestedIntervals
from gpusight.analysis.launch_index import launched, launches_of, of_process
from gpusight.analysis.selection import EVERYTHING, ResolvedSelection, Selection
from gpusight.analysis.steps.step_list import (
    SCHEMA,
    UNNAMED,
    StepEvidence,
    StepList,
    TraceSteps,
    closed_ranges,
    find_steps,
    named_like,
    named_steps,
    read_name,
    shortened,
)

if TYPE_CHECKING:
    from gpusight.analysis.steps.step_periods import Period
    from gpusight.results import NotApplicable
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


_MAX_DEPTH = 16
_MIN_OUTER_LAUNCHES = 0.6
"""Part of the launches that a range must hold for those inside it to be tried."""
_MIN_LAUNCH_SHARE = 0.5
"""Part of the launches that steps must hold, of all; and ranges, of a step."""
_MIN_MISSING_SHARE = 0.1
"""Part of a step's launches that is more than chance."""
_MAX_DIFFERENCE = 0.25
"""Part by which what a step launches may differ from the others."""
_MIN_REPETITIONS = 3
"""Ranges of one name that are enough; a round of several names is enough twice."""
_MAX_NAMED = 3
_OPERATOR = (
    r"^(?:(?:aten|prim|autograd|c10d?|cub|thrust)::|[nr]ccl|gloo:|cudnn|cublas|cusparse|cufft)|"
    r", (?:seq|op_id) = \d"
)
"""Ranges that the framework puts around each operator, and libraries around their calls."""
_FRAMEWORK = r"^(?:Optimizer\.|## Call |Torch-Compiled|TorchDynamo|enumerate\(DataLoader\))"
"""Ranges that the framework puts around parts of a step: kernels give the step itself."""


def repeated_steps(
    trace: Trace, work: pl.DataFrame, *, framework: bool = False
) -> TraceSteps | None:
    """Find steps by ranges that repeat; `work` is what `launched` gives of one process.

    Of the program, or with `framework` also those that the framework puts around parts of a step.
    """
    if not trace.has("ranges") or work.is_empty():
        return None
    process = work["process"][0]
    ranges = closed_ranges(trace).filter(
        pl.col("process").eq_missing(process), pl.col("end_ns") > pl.col("start_ns")
    )
    ranges = named_like(ranges, _OPERATOR, keep=False)
    if not framework:
        ranges = named_like(ranges, _FRAMEWORK, keep=False)
    level = _outermost(ranges, work["launch_ns"].to_numpy())
    if level is None:
        return None
    nested, at = level
    for _ in range(_MAX_DEPTH):
        steps = _steps(ranges[nested.rows[at]].sort("start_ns", maintain_order=True), work)
        if steps is not None:
            return steps
        launches = _launches_in(nested.starts[at], nested.ends[at], work["launch_ns"].to_numpy())
        if not len(at) or launches.max() < _MIN_OUTER_LAUNCHES * work.height:
            return None
        at = np.flatnonzero(nested.outer == at[int(np.argmax(launches))])
    return None


def _outermost(ranges: pl.DataFrame, times: Ints) -> tuple[NestedIntervals, Ints] | None:
    """Return the ranges of the thread whose outermost ones hold most launches, and these."""
    if ranges.is_empty():
        return None
    nested, top = _nested(ranges)
    rows = nested.rows[top]
    top_ranges = pl.DataFrame(
        {
            "thread": ranges["thread"][rows],
            "row": rows,
            "launches": _launches_in(nested.starts[top], nested.ends[top], times),
        }
    )
    threads = top_ranges.group_by("thread").agg(pl.col("launches").sum(), pl.col("row").min())
    thread, most, _ = threads.sort("launches", "row", descending=[True, False]).row(0)
    if not most:
        return None
    own = ranges.with_row_index("row").filter(pl.col("thread").eq_missing(thread))
    nested, top = _nested(own)
    return replace(nested, rows=own["row"].cast(pl.Int64).to_numpy()[nested.rows]), top


def _nested(ranges: pl.DataFrame) -> tuple[NestedIntervals, Ints]:
    """Return ranges as nested intervals, and which lie in no other of their thread."""
    start, end = (ranges[c].to_numpy() for c in ("start_ns", "end_ns"))
    nested = NestedIntervals.of(start, end, ranges["thread"])
    return nested, np.flatnonzero(nested.outer == NONE)


def _launches_in(starts: Ints, ends: Ints, times: Ints) -> Ints:
    """Count the launches, at these rising times, in each span."""
    count: Ints = np.searchsorted(times, ends) - np.searchsorted(times, starts)
    return np.maximum(count, 0)


def _steps(level: pl.DataFrame, work: pl.DataFrame) -> TraceSteps | None:
    """Make steps of ranges side by side, where they repeat and hold most of the work."""
    from gpusight.analysis.steps.step_choice import choose_period
    from gpusight.analysis.steps.step_periods import Activities

    if level.height < 2:
        return None
    names = level["name"].cast(pl.String)
    start, end = (level[c].to_numpy() for c in ("start_ns", "end_ns"))
    before = np.maximum(start - np.append(start[:1], end[:-1]), 0)
    times = work["launch_ns"].to_numpy()
    # A range of a name is a part of the program of its own, which layer_0, layer_1, … are not.
    for key in (names, names.str.replace_all(r"\d+", "#")):
        codes = key.rank("dense").cast(pl.Int64).to_numpy() - 1
        launches = _launches_in(start, end, times)
        ranges = replace(Activities.plain(codes, before), took=launches, feeds=launches > 0)
        period = choose_period([ranges])
        if period is not None and (period.length > 1 or len(period.starts) >= _MIN_REPETITIONS):
            return _range_steps(level, period, work)
    return None


def _range_steps(level: pl.DataFrame, period: Period, work: pl.DataFrame) -> TraceSteps | None:
    """Make steps of ranges that repeat, where they hold most launches and about as many each."""
    names = level["name"].cast(pl.String)
    start, end = (level[c].to_numpy() for c in ("start_ns", "end_ns"))
    times = work["launch_ns"].to_numpy()
    starts, ends = _bounds(start, end, period, times)
    launches = _launches_in(starts, ends, times)
    usual = float(np.median(launches))
    alike = np.abs(launches - usual) <= _MAX_DIFFERENCE * usual
    if launches.sum() < _MIN_LAUNCH_SHARE * len(times) or alike.mean() < _MIN_OUTER_LAUNCHES:
        return None
    first = period.starts[-len(starts) :]
    are_ranges = np.array_equal(start[first], starts) and np.array_equal(end[first], ends)
    frame = level[first].select(
        (names[first] if are_ranges else pl.lit(UNNAMED)).alias("name"),
        pl.int_range(pl.len()).alias("number"),
        pl.Series("start_ns", starts),
        pl.Series("end_ns", ends),
        "process",
        "thread",
    )
    return TraceSteps.of(frame, _range_note(names, period), StepEvidence.REPEATED)


def _bounds(start: Ints, end: Ints, period: Period, times: Ints) -> tuple[Ints, Ints]:
    """Return when steps start and end.

    Ranges of one name that hold most launches are the steps themselves. Otherwise a step lasts
    until the next starts; unless launches that belong to one come before the first range: then it
    ends with its last range, an optimizer's, and starts where the one before ended.
    """
    starts = start[period.starts]
    lasts = np.append(period.starts[1:], period.ends[-1]) - 1
    closes = np.maximum.accumulate(end)[lasts]
    if period.length == 1:
        between = _launches_in(starts[:1], closes[-1:], times)[0]
        inside = _launches_in(starts, closes, times).sum()
        if between and inside / between >= _MIN_LAUNCH_SHARE:
            return starts, closes
    ends = np.append(starts[1:], closes[-1])
    usual = float(np.median(_launches_in(starts, ends, times)[:-1]))
    ahead = int(np.searchsorted(times, starts[0]))
    missing = round(usual) - int(_launches_in(starts[-1:], ends[-1:], times)[0])
    if missing < _MIN_MISSING_SHARE * usual or ahead < _MIN_LAUNCH_SHARE * missing:
        return starts, ends
    first_start = int(times[max(0, ahead - missing)])
    return np.append(first_start, closes[:-1]), closes


def _range_note(names: pl.Series, period: Period) -> str:
    first = int(period.starts[0])
    distinct = names[first : first + period.length].unique(maintain_order=True)
    shown = ", ".join(repr(shortened(name)) for name in distinct[:_MAX_NAMED])
    more = " and more" if len(distinct) > _MAX_NAMED else ""
    return f"ranges that repeat: {shown}{more}"


_THREAD = ["process", "thread"]
_MAX_FAMILIES = 8
_OPTIMIZER_STEP = r"^Optimizer\.step#"
_MIN_SINGLE_LAUNCHES = 0.9
"""Part of the launches that must come before the end of the only step of an optimizer."""
_MIN_FULL_STEPS = 0.5
"""Part of the steps that must hold more launches than come after them."""
_MIN_NAMED_LAUNCHES = 0.1
"""Part of the launches that named steps must hold."""


@dataclass(frozen=True)
class DetectedSteps:
    """The steps of one thread, and how it was chosen."""

    steps: TraceSteps | NotApplicable
    notes: tuple[str, ...] = ()
    ranges: pl.DataFrame | None = None
    """Where a range was requested, its occurrences in the process chosen, with the columns of a
    step but its number."""
    loops: TraceSteps | None = None
    """Where there are no steps, a loop that may be a part of one: the layers of a single pass."""
    process: str = ""
    """Whose steps they are, and of how many, where several processes used the GPU."""


def detect_steps(trace: Trace, selection: Selection = EVERYTHING) -> DetectedSteps:
    """Find the steps of one thread: the one of the selected that gives the GPU most to do."""
    work = launched(trace)
    if selection.device is not None:
        work = work.filter(pl.col("device") == selection.device)
    processes = ResolvedSelection(trace, selection).processes
    if processes is not None:
        work = work.filter(pl.col("process").is_in(processes))
    if selection.within is not None:
        return _within(trace, selection, work)
    return (
        _by_name(trace, work)
        or repetition(trace, work)
        or _single_training_step(trace, work)
        or _by_name_alone(trace, work)
    )


def _by_name(trace: Trace, work: pl.DataFrame) -> DetectedSteps | None:
    """Take the first family of ranges named like steps that holds GPU work, where there is any."""
    for candidate in islice(named_steps(trace), _MAX_FAMILIES):
        steps = _one_thread(candidate, work)
        if work.is_empty() or _holds_work(steps, work):
            return _of_one_process(trace, steps, work)
    return None


def _holds_work(steps: TraceSteps, work: pl.DataFrame) -> bool:
    """Return whether most steps launch more than is launched between them and the next.

    Most, not all: what is evaluated or saved after a few of them may be more than all steps are.
    """
    launches = launches_of(work, steps.steps)
    if int(launches.sum()) < max(1, _MIN_NAMED_LAUNCHES * work.height):
        return False
    frame = steps.frame
    between = {"start_ns": frame["end_ns"][:-1], "end_ns": frame["start_ns"][1:]}
    gaps = StepList(frame[:-1].with_columns(**between))
    full = int((launches[:-1] >= launches_of(work, gaps)).sum())
    return full >= _MIN_FULL_STEPS * len(gaps)


def repetition(trace: Trace, work: pl.DataFrame, *, ranges: bool = True) -> DetectedSteps | None:
    """Find repeated ranges or launches of the process, and of the GPU in it, that has most work.

    Without `ranges` launches alone count, as if nobody had annotated the program.
    """
    from gpusight.analysis.steps.step_sequences import operator_steps, periodic_steps

    if work.is_empty():
        steps = operator_steps(trace)
        return None if steps is None else DetectedSteps(steps)
    every, work = work, _most_work(work)
    steps = repeated_steps(trace, work) if ranges else None
    steps = steps or periodic_steps(trace, work)
    if steps is None and ranges:
        steps = repeated_steps(trace, work, framework=True)
    return None if steps is None else _of_one_process(trace, steps, every)


def _single_training_step(trace: Trace, work: pl.DataFrame) -> DetectedSteps | None:
    """Take all launches up to the end of the optimizer's step for one step, if it ran only once.

    Most launches of a training step come before it; what follows, such as clearing gradients, is
    little.
    """
    if work.is_empty() or not trace.has("ranges"):
        return None
    times = _most_work(work).sort("launch_ns")
    process = times["process"][0]
    ranges = named_like(closed_ranges(trace), _OPTIMIZER_STEP, keep=True)
    ranges = ranges.filter(pl.col("process").eq_missing(process)).sort("start_ns")
    if ranges.is_empty() or ranges["name"].n_unique() < ranges.height:
        return None
    begin, end = int(times["launch_ns"][0]), cast("int", ranges["end_ns"].max())
    before, inside = (
        int((times["launch_ns"] < moment).sum()) for moment in (ranges["start_ns"][0], end)
    )
    if before < _MIN_MISSING_SHARE * inside or inside < _MIN_SINGLE_LAUNCHES * times.height:
        return None
    step = (UNNAMED, 0, begin, end, process, ranges["thread"][-1])
    frame = pl.DataFrame([step], schema=SCHEMA, orient="row")
    how = f"one training step: {shortened(str(ranges['name'][-1]))!r} ran once"
    return _of_one_process(trace, TraceSteps.of(frame, how, StepEvidence.NAMED), work)


def _by_name_alone(trace: Trace, work: pl.DataFrame) -> DetectedSteps:
    """Believe names alone; or return why there are no steps."""
    from gpusight.analysis.steps.step_sequences import periodic_steps

    steps = find_steps(trace)
    if isinstance(steps, TraceSteps):
        return _of_one_process(trace, _one_thread(steps, work), work)
    loops = None if work.is_empty() else periodic_steps(trace, _most_work(work), any_loop=True)
    rest = "there is no GPU work" if work.is_empty() else "GPU work does not repeat itself"
    if loops is not None:
        rest = "GPU work as a whole does not repeat itself"
    return DetectedSteps(replace(steps, reason=f"{steps.reason}, and {rest}"), loops=loops)


def _most_work(work: pl.DataFrame) -> pl.DataFrame:
    """Keep the work of the busiest process, on the GPU that it uses most."""
    named = work["process"].null_count() < work.height
    work = of_process(work, _busiest(work, "process") if named else None)
    return work.filter(pl.col("device") == _busiest(work, "device"))


_STEPS_OF = "steps are those of"


def busiest_process(
    trace: Trace, work: pl.DataFrame, subject: str
) -> tuple[int | None, tuple[str, ...]]:
    """Return the process with most GPU work, None where none is named; of several, a note."""
    count = work["process"].drop_nulls().n_unique()
    process = _busiest(work, "process") if count else None
    if count <= 1:
        return process, ()
    number = _pid(trace, process)
    return process, (f"{subject} process {number}, the one of {count} with the most GPU work",)


def _pid(trace: Trace, process: int | None) -> int | None:
    """Return the number of a process, as the operating system has it."""
    pids = trace.table("processes", ["process", "pid"]).filter(pl.col("process") == process)
    return pids["pid"][0] if pids.height else process


def _busiest(work: pl.DataFrame, column: str) -> int:
    """Return the process or GPU whose work takes longest."""
    took = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("took_ns")
    sums = work.drop_nulls(column).group_by(column, maintain_order=True).agg(took)
    return int(sums.sort("took_ns", descending=True, maintain_order=True)[column][0])


def _of_one_process(trace: Trace, steps: TraceSteps, work: pl.DataFrame) -> DetectedSteps:
    """Name the process of the steps where several of the selected ones used the GPU."""
    process, count = steps.steps[0].process, work["process"].drop_nulls().n_unique()
    if process is None or count <= 1:
        return DetectedSteps(steps)
    is_busiest = process == _busiest(work, "process")
    number = _pid(trace, process)
    rank = f"most GPU work of {count}" if is_busiest else f"one of {count}"
    which = f"the one of {count} with the most GPU work" if is_busiest else f"one of {count}"
    note = f"{_STEPS_OF} process {number}, {which}; --process selects another"
    return DetectedSteps(steps, (note,), process=f"process {number} ({rank})")


def _one_thread(steps: TraceSteps, work: pl.DataFrame) -> TraceSteps:
    """Keep the steps of one process and thread: those that give the GPU most to do.

    Of processes, the one whose GPU work takes longest; of its threads, the one that launches most.
    """
    gpu_ns = dict(
        work.group_by("process").agg((pl.col("end_ns") - pl.col("start_ns")).sum()).rows()
    )

    def work_of(own: pl.DataFrame) -> tuple[bool, int, int]:
        launches = int(launches_of(work, StepList(own)).sum())
        return launches > 0, gpu_ns.get(own["process"][0], 0), launches

    best = max(steps.frame.partition_by(*_THREAD, maintain_order=True), key=work_of)
    # Where their own numbers start again, steps are numbered in order.
    if (best["number"].diff() <= 0).any():
        best = best.with_columns(pl.int_range(pl.len()).alias("number"))
    return replace(steps, steps=StepList(best))


# Of a range -----------------------------------------------------------------------------------


def _within(trace: Trace, selection: Selection, work: pl.DataFrame) -> DetectedSteps:
    """Take the occurrences of a range for steps, unless a step holds several of them."""
    usual = detect_steps(trace, replace(selection, within=None))
    key = ["process", "start_ns", "end_ns"]
    selected = ResolvedSelection(trace, selection).matching_ranges.unique(key)
    ranges = closed_ranges(trace).with_columns(pl.col("name").cast(pl.String))
    ranges = ranges.join(selected, on=key, how="semi", nulls_equal=True, maintain_order="left")
    if ranges.is_empty():
        return DetectedSteps(usual.steps, usual.notes, ranges)
    chosen = _one_thread(_steps_of_ranges(ranges), work)
    process = chosen.steps[0].process
    ranges = ranges.filter(pl.col("process").eq_missing(process))
    if isinstance(usual.steps, TraceSteps):
        # Ranges are the repetition themselves where no step holds two of them.
        holding = usual.steps.holding(chosen.frame["start_ns"], chosen.frame["process"])
        step = holding.drop_nulls()
        if len(chosen.steps) < 2 or step.n_unique() < len(step):
            return replace(usual, ranges=ranges)
    return replace(_of_one_process(trace, chosen, work), ranges=ranges)


def _steps_of_ranges(ranges: pl.DataFrame) -> TraceSteps:
    """Make steps of ranges that do not overlap, by thread; of those that do, the outer ones."""
    before = pl.col("end_ns").cum_max().shift(1).over(_THREAD)
    apart = ranges.sort("start_ns", maintain_order=True).filter(
        before.is_null() | (pl.col("start_ns") >= before)
    )
    numbers = {name: (read_name(name) or ("", None))[1] for name in apart["name"].unique()}
    counted = apart["name"].replace_strict(numbers, return_dtype=pl.Int64)
    number = pl.int_range(pl.len()).over(_THREAD)
    if not counted.null_count():
        number = pl.lit(counted)
    names = apart["name"].unique(maintain_order=True)
    how = f"ranges named {names[0]!r}" + ("" if len(names) == 1 else " and alike")
    return TraceSteps.of(
        apart.with_columns(number.alias("number")).select(*SCHEMA), how, StepEvidence.CHOSEN
    )
