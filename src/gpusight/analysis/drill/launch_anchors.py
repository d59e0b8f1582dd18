"""Where launches are counted from, so that another run of the program hits the same ones."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.steps.step_list import TraceStep, called
from gpusight.recording.inside.step_loop import STEP
from gpusight.recording.ncu_command import either_kind, include_filter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TypeAlias

    from gpusight.analysis.drill.drill_kernels import DrillSelection
    from gpusight.trace.trace import Trace

    Begins: TypeAlias = "LaunchAnchor | None"
    """`PROGRAM`, `PROFILER`, or not known."""


OWN_DOMAIN = "gpusight"
"""NVTX domain of the steps that gpusight marks inside a program."""
_OPTIMIZER = "Optimizer.step#"
"""What PyTorch calls the range of an optimizer's step."""
_BEGINS = (
    "cuInit", "cuModuleGetLoadingMode", "cuDevicePrimaryCtxRetain", "cuCtxCreate",
)  # fmt: skip
"""Calls that a process makes once, before its first kernel."""
_STARTS = ("cudaProfilerStart", "cuProfilerStart")
_MOST_PARTS = 64
"""Steps looked at: one is like the other, and the first of them are reached soonest."""
_USUAL_STEP = 3
SKIPPED_STEPS = 2
"""Left out where it is not known how many came before the capture: warm-up."""


class LaunchAnchor(enum.Enum):
    """What launches are counted from, the soundest first."""

    RANGE = "range"
    RANGES = "ranges"
    STEP = "step"
    PROFILER = "profiler"
    PROGRAM = "program"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True)
class AnchorSupport:
    """What the profiler and the program allow."""

    process_scope: bool = True
    """Push/pop ranges of one thread also hold what other threads launch."""
    injectable: bool = False
    """The program is Python, and started by us: its steps can be counted from inside."""


@dataclass(frozen=True, slots=True)
class AnchorStep:
    """A stretch of time in which a run of launches may lie: one step."""

    start_ns: int
    end_ns: int
    include: tuple[str, ...] = ()
    """NVTX filters that only this one passes."""
    number: int | None = None
    """By which gpusight counts it inside the program."""
    name: str = ""


@dataclass(frozen=True)
class LaunchCounting:
    """A way of counting launches."""

    anchor: LaunchAnchor
    why: str
    parts: tuple[AnchorStep, ...]
    thread: int | None = None
    """Only what this thread launches counts; None: all threads."""
    process_scope: bool = False
    """The filter needs ranges of one thread to hold for all."""
    sure: bool = True
    """Whether a part begins where counting does; else it may begin anywhere in it."""
    everywhere: tuple[AnchorStep, ...] = field(default=())
    """Of ranges that repeat, every one in the capture."""
    begins: LaunchAnchor | None = None
    """Where the capture begins, if that is known."""


def countings(picked: DrillSelection, means: AnchorSupport) -> Iterator[LaunchCounting]:
    """Give the ways of counting that apply, the soundest first."""
    begins = where_it_begins(picked.trace, picked.process)
    ranges = _step_ranges(picked)
    if ranges and all(r.domain == OWN_DOMAIN for r in ranges):
        # The program alone has no such ranges, and does not start the profiler.
        begins = None if begins is LaunchAnchor.PROFILER else begins
        if means.injectable:
            yield _own_steps(ranges)
    else:
        yield from _in_ranges(picked, ranges, means, begins)
        if means.injectable and begins is not LaunchAnchor.PROFILER:
            yield from _counted_steps(picked)
    if begins is not None and not picked.trace.has("graph_launches"):
        why = "counted from {}, where the capture begins too".format(
            "the start of the program"
            if begins is LaunchAnchor.PROGRAM
            else "the program's own call of cudaProfilerStart"
        )
        yield LaunchCounting(begins, why, _parts(picked), begins=begins)
        # What runs between steps is in none of them.
        whole = AnchorStep(picked.focus.start_ns, picked.focus.end_ns)
        yield LaunchCounting(begins, why, (whole,), begins=begins)
    yield _unsure(picked)


def where_it_begins(trace: Trace, process: int | None) -> Begins:
    """Tell whether the capture shows a process from its first use of the GPU on.

    Or from its own call that starts profilers; None where neither is certain.
    """
    if not trace.has("api_calls"):
        return None
    calls = _of_process(trace.table("api_calls", ["start_ns", "name", "process"]), process)
    first = _of_process(trace.table("kernels", ["start_ns", "process"]), process)["start_ns"].min()
    if calls.is_empty() or first is None:
        return None
    if str(calls["name"][0]) in _STARTS:
        return LaunchAnchor.PROFILER
    began = pl.col("name").cast(pl.String).is_in(_BEGINS)
    return LaunchAnchor.PROGRAM if calls.filter(began, pl.col("start_ns") < first).height else None


def _of_process(frame: pl.DataFrame, process: int | None) -> pl.DataFrame:
    if process is None:
        return frame
    return frame.filter((pl.col("process") == process) | pl.col("process").is_null())


# Ranges -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Range:
    """A step that is an NVTX range."""

    step: TraceStep
    domain: str
    push_pop: bool
    occurs: int
    """How many ranges of the process have its name, domain and kind."""
    include: tuple[str, ...]


def _step_ranges(picked: DrillSelection) -> list[_Range]:
    """Find the NVTX ranges that are the steps; none where steps are something else."""
    steps, trace = picked.focus.steps[:_MOST_PARTS], picked.trace
    # Annotations of a framework are no NVTX ranges: another profiler does not see them.
    if not steps or not trace.has("ranges", "domain_key"):
        return []
    found = _of_steps(_named(trace, steps), steps)
    return found if len(found) == len(steps) else []


def _named(trace: Trace, steps: Sequence[TraceStep]) -> pl.DataFrame:
    """List the ranges of the steps' process that are named like one of them."""
    columns = ["start_ns", "end_ns", "name", "kind", "domain", "domain_key", "process"]
    ranges = trace.table("ranges", columns)
    names = pl.Series([step.name for step in steps]).unique()
    mine = pl.col("process").eq_missing(pl.lit(steps[0].process))
    like = pl.col("name").cast(pl.String).is_in(names.implode())
    found = ranges.filter(mine, like, pl.col("kind").cast(pl.String) != "mark")
    return found.with_columns(
        pl.col("name", "kind").cast(pl.String), pl.col("domain").cast(pl.String).fill_null("")
    )


def _of_steps(ranges: pl.DataFrame, steps: Sequence[TraceStep]) -> list[_Range]:
    like = ("name", "domain", "domain_key")
    counted = ranges.with_columns(
        pl.len().over(*like, "kind").alias("n"),
        pl.col("kind").n_unique().over(*like).alias("kinds"),
    )
    rows = {(r["start_ns"], r["end_ns"], r["name"]): r for r in counted.iter_rows(named=True)}
    found = []
    for step in steps:
        row = rows.get((step.start_ns, step.end_ns, step.name))
        # A domain without a name, other than the default one, cannot be asked for.
        if row is None or (row["domain_key"] and not row["domain"]):
            continue
        push_pop = row["kind"] == "push_pop"
        found.append(_Range(step, row["domain"], push_pop, row["n"], _filters(row)))
    return found


def _filters(row: dict[str, Any]) -> tuple[str, ...]:
    """Write filters of both kinds where one cannot be mistaken: not every capture tells them."""
    if row["kinds"] == 1:
        return either_kind(row["name"], domain=row["domain"])
    text = include_filter(row["name"], domain=row["domain"], push_pop=row["kind"] == "push_pop")
    return () if text is None else (text,)


def _in_ranges(
    picked: DrillSelection, ranges: Sequence[_Range], means: AnchorSupport, begins: Begins
) -> Iterator[LaunchCounting]:
    """Count inside the ranges of steps: of one step, or of all of the same name."""
    if not ranges or not all(r.include for r in ranges):
        return
    first = ranges[0]
    # Without process scope, a push/pop range holds what its own thread launches and no more.
    thread = first.step.thread if first.push_pop and not means.process_scope else None
    scope = first.push_pop and means.process_scope
    alone = [r for r in ranges if r.occurs == 1]
    if alone:
        parts = tuple(_part(r) for r in alone)
        why = "counted inside the NVTX range {name!r}, which occurs once in the capture"
        yield LaunchCounting(LaunchAnchor.RANGE, why, parts, thread, scope, begins=begins)
    elif len({r.include for r in ranges}) == 1:
        every = _everywhere(picked, first)
        why = "counted inside the NVTX ranges {name!r}"
        parts = tuple(_part(r) for r in ranges)
        yield LaunchCounting(
            LaunchAnchor.RANGES, why, parts, thread, scope, everywhere=every, begins=begins
        )


def _part(r: _Range) -> AnchorStep:
    return AnchorStep(r.step.start_ns, r.step.end_ns, r.include, r.step.number, r.step.name)


def _everywhere(picked: DrillSelection, like: _Range) -> tuple[AnchorStep, ...]:
    """List every range that the filter of these passes, in order."""
    kind = "push_pop" if like.push_pop else "start_end"
    rows = _named(picked.trace, [like.step]).filter(
        pl.col("kind") == kind, pl.col("domain") == like.domain
    )
    spans = rows.sort("start_ns").select("start_ns", "end_ns").iter_rows()
    return tuple(AnchorStep(start, end, like.include) for start, end in spans)


# Steps --------------------------------------------------------------------------------------------


def _own_steps(ranges: Sequence[_Range]) -> LaunchCounting:
    why = "counted from the beginning of step {number}, which gpusight marks inside the program"
    return LaunchCounting(LaunchAnchor.STEP, why, tuple(_part(r) for r in ranges))


def _counted_steps(picked: DrillSelection) -> Iterator[LaunchCounting]:
    """Count as gpusight does inside a program: what `gs.step` tells, else optimizers' steps."""
    steps = picked.focus.steps[:_MOST_PARTS]
    if steps and all(step.name == f"{STEP} {step.number}" for step in steps):
        why = "counted from the beginning of step {number}, as the program tells it"
        parts = tuple(AnchorStep(s.start_ns, s.end_ns, number=s.number, name=s.name) for s in steps)
        yield LaunchCounting(LaunchAnchor.STEP, why, parts)
    else:
        yield from _optimizer_steps(picked)


def _optimizer_steps(picked: DrillSelection) -> Iterator[LaunchCounting]:
    """Count from the end of an optimizer's step, where gpusight begins the next one."""
    number = max(1, min(_USUAL_STEP, _steps_seen(picked) - 1))
    why = "counted from the beginning of step {number}, by the steps of the optimizer"
    ends = _optimizer_ends(picked)
    if len(ends) > 1:
        name = f"step {number}"
        parts = tuple(AnchorStep(a, b, number=number, name=name) for a, b in pairwise(ends))
        yield LaunchCounting(LaunchAnchor.STEP, why, parts[:_MOST_PARTS])
    elif picked.focus.steps and any(k.category == "optimizer" for k in picked.kernels):
        parts = tuple(
            AnchorStep(s.start_ns, s.end_ns, number=number, name=f"step {number}")
            for s in picked.focus.steps[:_MOST_PARTS]
        )
        yield LaunchCounting(
            LaunchAnchor.STEP,
            why + "; where in it the capture's steps begin is not known",
            parts,
            sure=False,
        )


def _steps_seen(picked: DrillSelection) -> int:
    return len(picked.focus.steps) + len(picked.focus.left_out)


def _optimizer_ends(picked: DrillSelection) -> list[int]:
    """Say when the steps of the first optimizer ended, in the process looked at."""
    if not picked.trace.has("ranges"):
        return []
    ranges = picked.trace.table("ranges", ["start_ns", "end_ns", "name", "process"])
    ranges = ranges.filter(pl.col("name").cast(pl.String).str.starts_with(_OPTIMIZER))
    ranges = _of_process(ranges, picked.process)
    first = ranges.filter(pl.col("name") == pl.col("name").first())
    return first["end_ns"].sort().to_list()


def _parts(picked: DrillSelection) -> tuple[AnchorStep, ...]:
    """Give the steps of the window; all of it where none are known."""
    window = picked.focus
    if not window.steps:
        return (AnchorStep(window.start_ns, window.end_ns),)
    return tuple(
        AnchorStep(s.start_ns, s.end_ns, name=called(s)) for s in window.steps[:_MOST_PARTS]
    )


def _unsure(picked: DrillSelection) -> LaunchCounting:
    hidden = "what the program launched before the capture began is not known"
    if picked.focus.steps:
        many = f"the launches of {SKIPPED_STEPS} steps are skipped"
        why = f"approximate: {hidden}, so {many} and as many measured as surely hold each kernel"
    else:
        why = f"approximate: {hidden}; counted from the first kernel of the capture"
    return LaunchCounting(LaunchAnchor.UNSURE, why, _parts(picked), sure=not picked.focus.steps)
