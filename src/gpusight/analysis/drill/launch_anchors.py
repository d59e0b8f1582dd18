"""Where launches are counted from, so that another run of the program hits the same ones."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.launch_index import of_process
from gpusight.analysis.steps.step_list import TraceStep, called
from gpusight.recording.inside.step_loop import STEP
from gpusight.recording.ncu_command import either_kind, include_filter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.analysis.drill.drill_kernels import DrillSelection
    from gpusight.trace.trace import Trace


_OWN_DOMAIN = "gpusight"
"""NVTX domain of the steps that gpusight marks inside a program."""
_OPTIMIZER = "Optimizer.step#"
"""Prefix of PyTorch's range of an optimizer step."""
_FIRST_CALLS = (
    "cuInit", "cuModuleGetLoadingMode", "cuDevicePrimaryCtxRetain", "cuCtxCreate",
)  # fmt: skip
"""Calls that a process makes once, before its first kernel."""
_PROFILER_START = ("cudaProfilerStart", "cuProfilerStart")
_MAX_STEPS = 64
"""Steps considered: they are alike, and the first are reached soonest."""
_USUAL_STEP = 3
SKIPPED_STEPS = 2
"""Warm-up steps, where it is not known how many came before the capture."""


class LaunchAnchor(enum.Enum):
    """What launches are counted from, the most reliable first."""

    RANGE = "range"
    RANGES = "ranges"
    STEP = "step"
    PROFILER = "profiler"
    PROGRAM = "program"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True)
class AnchorSupport:
    """What the profiler and the program support."""

    process_scope: bool = True
    """Push/pop ranges of one thread also include launches of other threads."""
    injectable: bool = False
    """The program is Python, and started by us: its steps can be counted from inside."""


@dataclass(frozen=True, slots=True)
class AnchorStep:
    """A step (or the whole window) in which the launches to measure may lie."""

    start_ns: int
    end_ns: int
    include: tuple[str, ...] = ()
    """NVTX filters that only this range passes."""
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
    """Only launches of this thread count; None: of all threads."""
    process_scope: bool = False
    """The filter needs ranges of one thread to include other threads."""
    sure: bool = True
    """Whether counting begins where a part begins; else it may begin anywhere in it."""
    everywhere: tuple[AnchorStep, ...] = ()
    """Of ranges that repeat, every one in the capture."""
    begins: LaunchAnchor | None = None
    """Where the capture begins: `PROGRAM`, `PROFILER`, or not known."""


def countings(picked: DrillSelection, means: AnchorSupport) -> Iterator[LaunchCounting]:
    """Yield the ways of counting that apply, the most reliable first."""
    begins = _capture_begins(picked.trace, picked.process)
    ranges = _step_ranges(picked)
    if ranges and all(r.domain == _OWN_DOMAIN for r in ranges):
        # The program alone has no such ranges, and does not start the profiler.
        begins = None if begins is LaunchAnchor.PROFILER else begins
        if means.injectable:
            why = "counted from the start of step {number}, which gpusight marks in the program"
            yield LaunchCounting(LaunchAnchor.STEP, why, tuple(r.part for r in ranges))
    else:
        yield from _in_ranges(picked, ranges, means, begins)
        if means.injectable and begins is not LaunchAnchor.PROFILER:
            yield from _counted_steps(picked)
    window = picked.focus
    steps = window.steps[:_MAX_STEPS]
    whole_window = (AnchorStep(window.start_ns, window.end_ns),)
    parts = tuple(AnchorStep(s.start_ns, s.end_ns, name=called(s)) for s in steps) or whole_window
    if begins is not None and not picked.trace.has("graph_launches"):
        why = "counted from {}, where the capture also starts".format(
            "the start of the program"
            if begins is LaunchAnchor.PROGRAM
            else "the program's cudaProfilerStart call"
        )
        yield LaunchCounting(begins, why, parts, begins=begins)
        # What runs between steps is in none of them.
        yield LaunchCounting(begins, why, whole_window, begins=begins)
    hidden = "launches before the capture are unknown"
    why = f"approximate: {hidden}; counted from the first kernel of the capture"
    if steps:
        why = (
            f"approximate: {hidden}; launches of {SKIPPED_STEPS} steps are skipped, then enough "
            "are profiled to include each kernel"
        )
    yield LaunchCounting(LaunchAnchor.UNSURE, why, parts, sure=not steps)


def _capture_begins(trace: Trace, process: int | None) -> LaunchAnchor | None:
    """Find whether the capture begins with the first use of the GPU by a process.

    Or with its own call that starts profilers; None where neither is certain.
    """
    if not trace.has("api_calls"):
        return None
    calls = of_process(trace.table("api_calls", ["start_ns", "name", "process"]), process)
    kernels = of_process(trace.table("kernels", ["start_ns", "process"]), process)
    if calls.is_empty() or kernels.is_empty():
        return None
    if str(calls["name"][0]) in _PROFILER_START:
        return LaunchAnchor.PROFILER
    is_first = pl.col("name").cast(pl.String).is_in(_FIRST_CALLS)
    before = calls.filter(is_first, pl.col("start_ns") < kernels["start_ns"].min())
    return LaunchAnchor.PROGRAM if before.height else None


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

    @property
    def part(self) -> AnchorStep:
        """The step as one in which launches are counted."""
        step = self.step
        return AnchorStep(step.start_ns, step.end_ns, self.include, step.number, step.name)


def _step_ranges(picked: DrillSelection) -> list[_Range]:
    """Find the NVTX ranges that are the steps; none where steps are something else."""
    steps, trace = picked.focus.steps[:_MAX_STEPS], picked.trace
    # Annotations of a framework are no NVTX ranges: another profiler does not see them.
    if not steps or not trace.has("ranges", "domain_key"):
        return []
    same = ("name", "domain", "domain_key")
    named = _named_like(trace, steps).with_columns(
        pl.len().over(*same, "kind").alias("n"),
        pl.col("kind").n_unique().over(*same).alias("kinds"),
    )
    rows = {(r["start_ns"], r["end_ns"], r["name"]): r for r in named.iter_rows(named=True)}
    ranges = []
    for step in steps:
        row = rows.get((step.start_ns, step.end_ns, step.name))
        # No filter can name a domain without a name, other than the default one.
        if row is None or (row["domain_key"] and not row["domain"]):
            return []
        push_pop = row["kind"] == "push_pop"
        # Filters of both kinds, where the capture has only one of them.
        include = either_kind(row["name"], domain=row["domain"])
        if row["kinds"] > 1:
            text = include_filter(row["name"], domain=row["domain"], push_pop=push_pop)
            include = () if text is None else (text,)
        ranges.append(_Range(step, row["domain"], push_pop, row["n"], include))
    return ranges


def _named_like(trace: Trace, steps: Sequence[TraceStep]) -> pl.DataFrame:
    """List the ranges of the steps' process that are named like one of them."""
    columns = ["start_ns", "end_ns", "name", "kind", "domain", "domain_key", "process"]
    names = pl.Series([step.name for step in steps]).unique()
    return (
        trace.table("ranges", columns)
        .filter(
            pl.col("process").eq_missing(pl.lit(steps[0].process)),
            pl.col("name").cast(pl.String).is_in(names.implode()),
            pl.col("kind").cast(pl.String) != "mark",
        )
        .with_columns(
            pl.col("name", "kind").cast(pl.String), pl.col("domain").cast(pl.String).fill_null("")
        )
    )


def _in_ranges(
    picked: DrillSelection,
    ranges: Sequence[_Range],
    means: AnchorSupport,
    begins: LaunchAnchor | None,
) -> Iterator[LaunchCounting]:
    """Count inside the ranges of steps: of one step, or of all of the same name."""
    if not ranges or not all(r.include for r in ranges):
        return
    first = ranges[0]
    # Without process scope, a push/pop range only includes launches of its own thread.
    thread = first.step.thread if first.push_pop and not means.process_scope else None
    scope = first.push_pop and means.process_scope
    unique = [r for r in ranges if r.occurs == 1]
    if unique:
        why = "counted inside the NVTX range {name!r}, which occurs once in the capture"
        parts = tuple(r.part for r in unique)
        yield LaunchCounting(LaunchAnchor.RANGE, why, parts, thread, scope, begins=begins)
    elif len({r.include for r in ranges}) == 1:
        why = "counted inside the NVTX ranges {name!r}"
        parts = tuple(r.part for r in ranges)
        kind = "push_pop" if first.push_pop else "start_end"
        same_filter = _named_like(picked.trace, [first.step]).filter(
            pl.col("kind") == kind, pl.col("domain") == first.domain
        )
        spans = same_filter.sort("start_ns").select("start_ns", "end_ns").iter_rows()
        anchor_steps = tuple(AnchorStep(start, end, first.include) for start, end in spans)
        yield LaunchCounting(
            LaunchAnchor.RANGES, why, parts, thread, scope, True, anchor_steps, begins
        )


# Steps --------------------------------------------------------------------------------------------


def _counted_steps(picked: DrillSelection) -> Iterator[LaunchCounting]:
    """Count as gpusight does inside a program: by `gs.step`, else by steps of the optimizer.

    gpusight begins a step where the optimizer's step before ends.
    """
    window = picked.focus
    steps = window.steps[:_MAX_STEPS]
    if steps and all(step.name == f"{STEP} {step.number}" for step in steps):
        why = "counted from the start of step {number}, as the program marks it"
        parts = tuple(AnchorStep(s.start_ns, s.end_ns, number=s.number, name=s.name) for s in steps)
        yield LaunchCounting(LaunchAnchor.STEP, why, parts)
        return
    number = max(1, min(_USUAL_STEP, len(window.steps) + len(window.left_out) - 1))
    why = "counted from the start of step {number}, by optimizer steps"
    ends = _optimizer_ends(picked)
    sure = len(ends) > 1
    if sure:
        spans = list(pairwise(ends))[:_MAX_STEPS]
    elif any(k.category == "optimizer" for k in picked.kernels):
        why += "; the offset of the capture's steps is unknown"
        spans = [(step.start_ns, step.end_ns) for step in steps]
    else:
        return
    if spans:
        parts = tuple(AnchorStep(*span, number=number, name=f"step {number}") for span in spans)
        yield LaunchCounting(LaunchAnchor.STEP, why, parts, sure=sure)


def _optimizer_ends(picked: DrillSelection) -> list[int]:
    """Return when the steps of the first optimizer ended."""
    if not picked.trace.has("ranges"):
        return []
    ranges = picked.trace.table("ranges", ["start_ns", "end_ns", "name", "process"])
    ranges = ranges.filter(pl.col("name").cast(pl.String).str.starts_with(_OPTIMIZER))
    ranges = of_process(ranges, picked.process)
    first = ranges.filter(pl.col("name") == pl.col("name").first())
    return first["end_ns"].sort().to_list()
