"""What of the judged part shows a finding: for each rule the work, the calls or the holes meant.

Candidates are stretches with a weight, the time of them that the finding is about. Findings about
idle time are shown by the hole itself, so that a reader sees it; findings about GPU work by that
work; others by the events that they name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import polars as pl

from gpusight.analyses.ledger.causes import Cause
from gpusight.analyses.schedule.schedule import NONE
from gpusight.analyses.steps.step import called
from gpusight.findings.timeline.convolutions import badly_chosen
from gpusight.findings.timeline.parts import parts_of
from gpusight.findings.timeline.place_events import CANDIDATES, host_events, of_calls
from gpusight.findings.timeline.place_gaps import (
    IDLE,
    holes,
    named_by,
    named_by_work,
    with_holes,
    with_idle,
)
from gpusight.findings.timeline.place_work import groups, runs, runs_named
from gpusight.findings.timeline.products import on_lanes, without_memory_bound
from gpusight.findings.timeline.waits import waits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpusight.analyses.replay.program import Flags
    from gpusight.analyses.schedule.schedule import Ints
    from gpusight.analyses.steps.focus import Focus
    from gpusight.analyses.steps.step import Step
    from gpusight.findings.timeline.finding import TimelineFinding
    from gpusight.findings.timeline.parts import Parts
    from gpusight.findings.timeline.timeline import Timeline

    Locator: TypeAlias = Callable[[Timeline, TimelineFinding], pl.DataFrame]

_KERNEL = pl.col("kind") == "kernel"
_COPY = pl.col("kind") == "copy"
_PAGEABLE = _COPY & ((pl.col("src_kind") == "Pageable") | (pl.col("dst_kind") == "Pageable"))
_COMMUNICATION = pl.col("category") == "communication"
_HOST_WORK = (Cause.FRAMEWORK, Cause.OTHER, Cause.UNKNOWN, Cause.INPUT)
_LAUNCHING = (Cause.LAUNCHING, Cause.FRAMEWORK)
_LEAST_PART = 0.05
"""Part of a step's idle time that an event must hold to show it better than the whole step."""


def locate(timeline: Timeline, finding: TimelineFinding) -> pl.DataFrame:
    """Find the stretches that show a finding, with the columns of `CANDIDATES` and `telling`."""
    for look in (_LOCATORS.get(finding.rule, named), named):
        found = look(timeline, finding)
        if found.height:
            break
    if "telling" not in found.columns:
        found = found.with_columns(pl.col("weight_ns").cast(pl.Float64).alias("telling"))
    return found.select(*CANDIDATES, "telling")


def everywhere(focus: Focus) -> tuple[int, int, str]:
    """Give start, end and name of the step in the middle; of the window where none are known."""
    if not focus.steps:
        return focus.start_ns, focus.end_ns, "window"
    step = focus.steps[len(focus.steps) // 2]
    return step.start_ns, step.end_ns, called(step)


def named(timeline: Timeline, finding: TimelineFinding) -> pl.DataFrame:
    """Find what a finding of any rule names: steps, events of the host, else GPU work."""
    steps = _steps(timeline, finding)
    if steps.height:
        return steps
    events = host_events(timeline, finding.where)
    if any(place.kind == "kernel" for place in finding.where) or events.is_empty():
        work = runs_named(timeline, pl.lit(value=True), finding.where)
        return work if work.height else events
    return events


def _steps(timeline: Timeline, finding: TimelineFinding) -> pl.DataFrame:
    """Find the steps that a finding names, also those that were left out."""
    names = {place.name for place in finding.where if place.kind == "step"}
    focus = timeline.focus
    return _of_steps([s for s in (*focus.left_out, *focus.steps) if called(s) in names])


def _of_steps(steps: Sequence[Step]) -> pl.DataFrame:
    rows = [(s.start_ns, s.end_ns, s.end_ns - s.start_ns, called(s), None, None) for s in steps]
    return pl.DataFrame(rows, schema=CANDIDATES, orient="row")


# Holes --------------------------------------------------------------------------------------------


def _waiting_for(*causes: Cause) -> Locator:
    """Look for idle time of some causes, in the events that the finding names if in any."""

    def look(timeline: Timeline, finding: TimelineFinding) -> pl.DataFrame:
        gaps = holes(timeline, causes)
        known = named_by(gaps, host_events(timeline, finding.where))
        return known if known.height else gaps

    return look


def _held_up(timeline: Timeline, finding: TimelineFinding) -> pl.DataFrame:
    """Look for idle time in which launched work waited, before the kernels that are named."""
    gaps = named_by_work(timeline, holes(timeline, (Cause.QUEUED,), any_gpu=True))
    labels = [place.name for place in finding.where if place.kind == "kernel"]
    meant = gaps.filter(pl.col("name").is_in(labels))
    return meant if meant.height else gaps


def _thin(timeline: Timeline, finding: TimelineFinding) -> pl.DataFrame:
    """Look for the events with most short holes in them: one hole alone tells little."""
    gaps = holes(timeline, _LAUNCHING)
    every_ns = int(gaps["weight_ns"].sum()) / timeline.per_step
    inside = with_idle(gaps, host_events(timeline, finding.where))
    if inside.filter(pl.col("weight_ns") >= _LEAST_PART * every_ns).height:
        return inside
    steps = _of_steps(timeline.focus.steps) if timeline.steps else _part(timeline)
    return with_idle(gaps, steps.with_columns(pl.lit(IDLE).alias("name")))


def _part(timeline: Timeline) -> pl.DataFrame:
    """Give the judged part as a whole."""
    judged = timeline.schedule
    row = (judged.start_ns, judged.end_ns, judged.length_ns, IDLE, None, None)
    return pl.DataFrame([row], schema=CANDIDATES, orient="row")


# Calls --------------------------------------------------------------------------------------------


def _synchronising(timeline: Timeline, _: TimelineFinding) -> pl.DataFrame:
    """Look for calls that wait for the GPU, with the hole that follows."""
    inside = waits(timeline).filter(~pl.col("large"), ~pl.col("at_edge") | pl.col("copies"))
    first = inside.select(pl.col("calls").list.first().alias("call"), "waited_ns")
    rows = timeline.calls.drop("waited_ns").join(first, on="call")
    calls = of_calls(timeline, rows, "operator", "name").with_columns(
        rows["waited_ns"].alias("weight_ns")
    )
    return with_holes(holes(timeline, tuple(Cause)), calls)


def _allocating(timeline: Timeline, finding: TimelineFinding) -> pl.DataFrame:
    """Look for calls that take or give back memory, with the hole that follows."""
    rows = timeline.calls.filter(pl.col("kind").cast(pl.String).is_in(["allocate", "free"]))
    names = [place.name for place in finding.where if place.kind == "call"]
    meant = rows.filter(pl.col("name").cast(pl.String).is_in(names))
    calls = of_calls(timeline, meant if meant.height else rows, "name")
    return with_holes(holes(timeline, tuple(Cause)), calls)


# Work and the rest --------------------------------------------------------------------------------


def _work(which: pl.Expr) -> Locator:
    """Look for GPU work of a kind that agrees with what the finding names; else for any of it."""

    def look(timeline: Timeline, finding: TimelineFinding) -> pl.DataFrame:
        meant = runs_named(timeline, which, finding.where)
        return meant if meant.height else runs(timeline, which)

    return look


def _each(choose: Callable[[Timeline], pl.DataFrame]) -> Locator:
    """Look for the GPU work that a rule itself chooses, piece by piece."""

    def look(timeline: Timeline, _: TimelineFinding) -> pl.DataFrame:
        number = np.full(timeline.ops.height, NONE, np.int64)
        ops = choose(timeline)["op"].to_numpy()
        number[ops] = ops
        return groups(timeline, number)

    return look


def _in_a_row(choose: Callable[[Parts], Flags]) -> Locator:
    """Look for kernels that are part of something, those one after another as one."""
    return lambda timeline, _: runs(timeline, pl.lit(pl.Series(choose(parts_of(timeline)))))


def _together(number: Callable[[Parts], Ints]) -> Locator:
    """Look for kernels that belong together, as the rule numbers them."""
    return lambda timeline, _: groups(timeline, number(parts_of(timeline)))


def _on_lanes(timeline: Timeline) -> pl.DataFrame:
    return without_memory_bound(timeline, on_lanes(timeline.kernels))


def _badly_chosen(timeline: Timeline) -> pl.DataFrame:
    return badly_chosen(timeline.kernels)


def _growth(timeline: Timeline, _: TimelineFinding) -> pl.DataFrame:
    """Show all steps: memory rises from one to the next."""
    focus = timeline.focus
    name = f"memory over {len(focus.steps)} steps,"
    length_ns = focus.end_ns - focus.start_ns
    row = (focus.start_ns, focus.end_ns, length_ns, name, None, None)
    return pl.DataFrame([row], schema=CANDIDATES, orient="row")


def _start(timeline: Timeline, finding: TimelineFinding) -> pl.DataFrame:
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
    "input-starved": _waiting_for(Cause.INPUT),
    "between-steps": _waiting_for(*_HOST_WORK),
    "profiler-overhead": _waiting_for(Cause.PROFILER),
    "dependency-stall": _held_up,
    "launch-bound": _thin,
    "graph-candidate": _thin,
    "host-sync": _synchronising,
    "alloc-churn": _allocating,
    "exposed-copy": _work(_COPY),
    "pageable-copy": _work(_PAGEABLE),
    "exposed-communication": _work(_COMMUNICATION),
    "small-grid": _work(_KERNEL),
    "fp32-no-tensor-cores": _each(_on_lanes),
    "conv-algorithm": _each(_badly_chosen),
    "layout-transpose": _in_a_row(lambda parts: parts.layout),
    "unfused-optimizer": _in_a_row(lambda parts: parts.optimizer.group >= 0),
    "unfused-attention": _together(lambda parts: parts.attention.group),
    "elementwise-chain": _together(lambda parts: parts.chains.number),
    "memory-growth": _growth,
    "warmup-in-window": _start,
}
"""Rules whose findings are shown by more than the events that they name."""
