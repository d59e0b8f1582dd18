"""Where on the timeline a finding happens: stretches to look at, the most telling first."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.gpu_schedule import NONE
from gpusight.analysis.join.kernel_keys import normal_name
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.steps.step_list import called
from gpusight.naming.kernel_names import classify
from gpusight.rules.context import sample_steps
from gpusight.rules.location_events import (
    CANDIDATES,
    IDLE,
    groups,
    host_events,
    idle_gaps,
    named_by,
    named_by_work,
    of_calls,
    runs,
    runs_named,
    with_idle,
    with_idle_gaps,
)
from gpusight.rules.patterns.blocking_waits import waits
from gpusight.rules.patterns.fp32_gemms import (
    gemms_on_cuda_cores,
    slow_convolutions,
    without_memory_bound,
)
from gpusight.rules.patterns.fusable_kernels import parts_of
from gpusight.units import format_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpusight.analysis.gpu_schedule import Ints
    from gpusight.analysis.replay.simulation import Flags
    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.analysis.steps.step_window import StepWindow
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.patterns.fusable_kernels import FusableKernels
    from gpusight.rules.timeline_diagnosis import TimelineDiagnosis
    from gpusight.trace.trace import Trace

    Locator: TypeAlias = Callable[[RuleContext, TimelineFinding], pl.DataFrame]


_KERNEL = pl.col("kind") == "kernel"
_COPY = pl.col("kind") == "copy"
_PAGEABLE = _COPY & ((pl.col("src_kind") == "Pageable") | (pl.col("dst_kind") == "Pageable"))
_COMMUNICATION = pl.col("category") == "communication"
_HOST_WORK = (IdleCause.FRAMEWORK, IdleCause.OTHER, IdleCause.UNKNOWN, IdleCause.INPUT)
_LAUNCHING = (IdleCause.LAUNCHING, IdleCause.FRAMEWORK)
_LEAST_PART = 0.05
"""Part of a step's idle time that an event must hold to show it better than the whole step."""


def locate_finding(timeline: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
    """Find the stretches that show a finding, with the columns of `CANDIDATES` and `telling`."""
    for look in (_LOCATORS.get(finding.rule, named), named):
        found = look(timeline, finding)
        if found.height:
            break
    if "telling" not in found.columns:
        found = found.with_columns(pl.col("weight_ns").cast(pl.Float64).alias("telling"))
    return found.select(*CANDIDATES, "telling")


def everywhere(focus: StepWindow) -> tuple[int, int, str]:
    """Give start, end and name of the step in the middle; of the window where none are known."""
    if not focus.steps:
        return focus.start_ns, focus.end_ns, "window"
    step = focus.steps[len(focus.steps) // 2]
    return step.start_ns, step.end_ns, called(step)


def named(timeline: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
    """Find what a finding of any rule names: steps, events of the host, else GPU work."""
    steps = _steps(timeline, finding)
    if steps.height:
        return steps
    events = host_events(timeline, finding.where)
    if any(place.kind == "kernel" for place in finding.where) or events.is_empty():
        work = runs_named(timeline, pl.lit(value=True), finding.where)
        return work if work.height else events
    return events


def _steps(timeline: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
    """Find the steps that a finding names, also those that were left out."""
    names = {place.name for place in finding.where if place.kind == "step"}
    focus = timeline.focus
    return _of_steps([s for s in (*focus.left_out, *focus.steps) if called(s) in names])


def _of_steps(steps: Sequence[TraceStep]) -> pl.DataFrame:
    rows = [(s.start_ns, s.end_ns, s.end_ns - s.start_ns, called(s), None, None) for s in steps]
    return pl.DataFrame(rows, schema=CANDIDATES, orient="row")


# Holes --------------------------------------------------------------------------------------------


def _waiting_for(*causes: IdleCause) -> Locator:
    """Look for idle time of some causes, in the events that the finding names if in any."""

    def look(timeline: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        gaps = idle_gaps(timeline, causes)
        known = named_by(gaps, host_events(timeline, finding.where))
        return known if known.height else gaps

    return look


def _stalled_streams(timeline: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
    """Look for idle time in which launched work waited, before the kernels that are named."""
    gaps = named_by_work(timeline, idle_gaps(timeline, (IdleCause.QUEUED,), any_gpu=True))
    labels = [place.name for place in finding.where if place.kind == "kernel"]
    meant = gaps.filter(pl.col("name").is_in(labels))
    return meant if meant.height else gaps


def _thin(timeline: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
    """Look for the events with most short holes in them: one hole alone tells little."""
    gaps = idle_gaps(timeline, _LAUNCHING)
    every_ns = int(gaps["weight_ns"].sum()) / timeline.per_step
    inside = with_idle(gaps, host_events(timeline, finding.where))
    if inside.filter(pl.col("weight_ns") >= _LEAST_PART * every_ns).height:
        return inside
    steps = _of_steps(timeline.focus.steps) if timeline.steps else _part(timeline)
    return with_idle(gaps, steps.with_columns(pl.lit(IDLE).alias("name")))


def _part(timeline: RuleContext) -> pl.DataFrame:
    """Give the judged part as a whole."""
    judged = timeline.schedule
    row = (judged.start_ns, judged.end_ns, judged.length_ns, IDLE, None, None)
    return pl.DataFrame([row], schema=CANDIDATES, orient="row")


# Calls --------------------------------------------------------------------------------------------


def _synchronising(timeline: RuleContext, _: TimelineFinding) -> pl.DataFrame:
    """Look for calls that wait for the GPU, with the hole that follows."""
    inside = waits(timeline).filter(~pl.col("large"), ~pl.col("at_edge") | pl.col("copies"))
    first = inside.select(pl.col("calls").list.first().alias("call"), "waited_ns")
    rows = timeline.calls.drop("waited_ns").join(first, on="call")
    calls = of_calls(timeline, rows, "operator", "name").with_columns(
        rows["waited_ns"].alias("weight_ns")
    )
    return with_idle_gaps(idle_gaps(timeline, tuple(IdleCause)), calls)


def _allocating(timeline: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
    """Look for calls that take or give back memory, with the hole that follows."""
    rows = timeline.calls.filter(pl.col("kind").cast(pl.String).is_in(["allocate", "free"]))
    names = [place.name for place in finding.where if place.kind == "call"]
    meant = rows.filter(pl.col("name").cast(pl.String).is_in(names))
    calls = of_calls(timeline, meant if meant.height else rows, "name")
    return with_idle_gaps(idle_gaps(timeline, tuple(IdleCause)), calls)


# Work and the rest --------------------------------------------------------------------------------


def _work(which: pl.Expr) -> Locator:
    """Look for GPU work of a kind that agrees with what the finding names; else for any of it."""

    def look(timeline: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        meant = runs_named(timeline, which, finding.where)
        return meant if meant.height else runs(timeline, which)

    return look


def _each(choose: Callable[[RuleContext], pl.DataFrame]) -> Locator:
    """Look for the GPU work that a rule itself chooses, piece by piece."""

    def look(timeline: RuleContext, _: TimelineFinding) -> pl.DataFrame:
        number = np.full(timeline.ops.height, NONE, np.int64)
        ops = choose(timeline)["op"].to_numpy()
        number[ops] = ops
        return groups(timeline, number)

    return look


def _in_a_row(choose: Callable[[FusableKernels], Flags]) -> Locator:
    """Look for kernels that are part of something, those one after another as one."""
    return lambda timeline, _: runs(timeline, pl.lit(pl.Series(choose(parts_of(timeline)))))


def _together(number: Callable[[FusableKernels], Ints]) -> Locator:
    """Look for kernels that belong together, as the rule numbers them."""
    return lambda timeline, _: groups(timeline, number(parts_of(timeline)))


def _on_lanes(timeline: RuleContext) -> pl.DataFrame:
    return without_memory_bound(timeline, gemms_on_cuda_cores(timeline.kernels))


def _slow_convolutions(timeline: RuleContext) -> pl.DataFrame:
    return slow_convolutions(timeline.kernels)


def _growth(timeline: RuleContext, _: TimelineFinding) -> pl.DataFrame:
    """Show all steps: memory rises from one to the next."""
    focus = timeline.focus
    name = f"memory over {len(focus.steps)} steps,"
    length_ns = focus.end_ns - focus.start_ns
    row = (focus.start_ns, focus.end_ns, length_ns, name, None, None)
    return pl.DataFrame([row], schema=CANDIDATES, orient="row")


def _start(timeline: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
    """Look for first steps, else for what the program did before its work."""
    steps = _steps(timeline, finding)
    focus = timeline.focus
    if steps.height or not focus.before_ns:
        return steps
    window = (focus.start_ns - focus.before_ns, focus.start_ns)
    row = (*window, focus.before_ns, "before the program's work,", None, None)
    whole = pl.DataFrame([row], schema=CANDIDATES, orient="row")
    return pl.concat([whole, host_events(timeline, finding.where, window)])


_LOCATORS: dict[str, Locator] = {
    "input-starved": _waiting_for(IdleCause.INPUT),
    "between-steps": _waiting_for(*_HOST_WORK),
    "profiler-overhead": _waiting_for(IdleCause.PROFILER),
    "dependency-stall": _stalled_streams,
    "launch-bound": _thin,
    "graph-candidate": _thin,
    "host-sync": _synchronising,
    "alloc-churn": _allocating,
    "exposed-copy": _work(_COPY),
    "pageable-copy": _work(_PAGEABLE),
    "exposed-communication": _work(_COMMUNICATION),
    "small-grid": _work(_KERNEL),
    "fp32-no-tensor-cores": _each(_on_lanes),
    "conv-algorithm": _each(_slow_convolutions),
    "layout-transpose": _in_a_row(lambda parts: parts.layout),
    "unfused-optimizer": _in_a_row(lambda parts: parts.optimizer.group >= 0),
    "unfused-attention": _together(lambda parts: parts.attention.group),
    "elementwise-chain": _together(lambda parts: parts.chains.number),
    "memory-growth": _growth,
    "warmup-in-window": _start,
}
"""Rules whose findings are shown by more than the events that they name."""


MAX_LOCATIONS = 8
"""Places of a finding, unless more are asked for."""
_LONGEST_NAME = 80
"""What is shown of a name that nobody has shortened yet."""


@dataclass(frozen=True, slots=True)
class TimelineLocation:
    """A stretch of the timeline that shows something."""

    start_ns: int
    end_ns: int
    label: str
    """Such as `step 5: data 10.1 ms`."""
    table: str | None = None
    """Table of the event to select there; None where it is none, or several."""
    row: int | None = None


class FindingLocator:
    """Finds where the findings of one diagnosis happen; what they have in common is found once."""

    def __init__(self, trace: Trace, diagnosis: TimelineDiagnosis) -> None:
        self._trace = trace
        self._focus = diagnosis.focus

    @cached_property
    def _timeline(self) -> RuleContext:
        """What the rules looked at."""
        return sample_steps(self._trace, self._focus)

    def of(
        self, finding: TimelineFinding, most: int = MAX_LOCATIONS
    ) -> tuple[TimelineLocation, ...]:
        """Give the most telling places of a finding, of different steps first; at least one."""
        found = locate_finding(self._timeline, finding)
        if found.is_empty():
            return (_middle(self._focus),)
        return _most_telling(found, self._focus.steps, most)


def find_locations(
    trace: Trace, diagnosis: TimelineDiagnosis, finding: TimelineFinding, most: int = MAX_LOCATIONS
) -> tuple[TimelineLocation, ...]:
    """Say where a finding happens, the most telling place first; never empty.

    For the findings of a whole diagnosis `Places` is faster.
    """
    return FindingLocator(trace, diagnosis).of(finding, most)


def locations_of_kernels(
    trace: Trace, kernel: str, focus: StepWindow | None = None, most: int = MAX_LOCATIONS
) -> tuple[TimelineLocation, ...]:
    """Give the longest launches of a kernel that another capture names; none if it never runs.

    With a `focus`, only those that begin in its window, of different steps first.
    """
    if not trace.has("kernels"):
        return ()
    frame = trace.table("kernels", ["start_ns", "end_ns", "name"]).with_row_index("row")
    launches = frame.filter(pl.col("name").to_physical().is_in(_codes(frame["name"], kernel)))
    if focus is not None:
        inside = pl.col("start_ns").is_between(focus.start_ns, focus.end_ns, "left")
        launches = launches.filter(inside)
    length = pl.col("end_ns") - pl.col("start_ns")
    found = launches.select(
        "start_ns",
        "end_ns",
        length.alias("weight_ns"),
        pl.lit(classify(kernel).short).alias("name"),
        pl.lit("kernels").alias("table"),
        pl.col("row").cast(pl.Int64),
        length.cast(pl.Float64).alias("telling"),
    )
    return _most_telling(found, () if focus is None else focus.steps, most)


def _codes(names: pl.Series, kernel: str) -> list[int]:
    """Find the names of a kernel: spelled alike, else with the same label."""
    known, wanted = names_of(names), normal_name(kernel)
    codes = [code for code, name in enumerate(known) if normal_name(name) == wanted]
    label = classify(kernel).short
    return codes or [code for code, name in enumerate(known) if classify(name).short == label]


def _most_telling(
    found: pl.DataFrame, steps: Sequence[TraceStep], most: int
) -> tuple[TimelineLocation, ...]:
    """Choose the most telling of each step, then the second of each, and so on."""
    middle = found.select((pl.col("start_ns") + pl.col("end_ns")) // 2).to_series().to_numpy()
    step = np.searchsorted([one.start_ns for one in steps], middle, side="right") - 1
    turn = pl.int_range(pl.len()).over("step")
    rows = (
        found.with_columns(pl.Series("step", step, pl.Int64))
        .unique(["start_ns", "end_ns", "name"], keep="first", maintain_order=True)
        .sort("telling", "start_ns", descending=[True, False])
        .with_columns(turn.alias("turn"))
        .sort("turn", maintain_order=True)
        .head(max(1, most))
    )
    return tuple(
        TimelineLocation(
            start, end, _label(steps[at] if at >= 0 else None, name, weight), table, row
        )
        for start, end, weight, name, table, row, at in rows.select(*CANDIDATES, "step").iter_rows()
    )


def _label(step: TraceStep | None, name: str, weight_ns: int) -> str:
    what = f"{name[:_LONGEST_NAME]} {format_time(weight_ns)}"
    return what if step is None or name == called(step) else f"{called(step)}: {what}"


def _middle(focus: StepWindow) -> TimelineLocation:
    """Give the step in the middle; the whole window where no steps are known."""
    start_ns, end_ns, name = everywhere(focus)
    return TimelineLocation(start_ns, end_ns, f"{name} {format_time(end_ns - start_ns)}")
