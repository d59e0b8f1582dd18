"""warmup-in-window: the first part of the window is unlike the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.steps.step_launches import launched, took_ns
from gpusight.analysis.steps.step_list import called
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import largest, summed_locations
from gpusight.rules.locations import host_events, one_stretch, steps_named
from gpusight.rules.patterns.program_start import (
    MIN_CERTAIN_SHARE,
    MIN_LOADING_SHARE,
    MIN_START_NS,
    MIN_START_SHARE,
    PREPARES,
    find_start,
)
from gpusight.rules.rule import (
    CLEAN,
    FindingLocation,
    RuleMatch,
    RuleNotApplicable,
    Threshold,
    TimelineRule,
)
from gpusight.units import format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.analysis.steps.step_window import StepWindow
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.patterns.program_start import ProgramStart
    from gpusight.rules.rule import RuleVerdict
    from gpusight.trace.intervals import Ints


MIN_STEP_RATIO = Threshold(
    1.5,
    "times the median of later steps from which on a first step is unlike them: less may be that "
    "the GPU's queue fills, or chance where steps are few",
)
MIN_PREPARING_RATIO = Threshold(
    1.2, "the same for steps that also load code or take memory, as no later one does"
)
MIN_CAPTURE_SHARE = Threshold(
    0.5, "part of the captured steps' time that warm-up takes, though left out, to be worth saying"
)


class WarmupInWindow(TimelineRule):
    """First steps, or a start of the program, that do not stand for the rest."""

    id = "warmup-in-window"
    detects = (
        "Looks for first steps that take longer than the later ones although they were kept, and "
        "for captures that are mostly warm-up: first steps that were left out, or, where no steps "
        "are known, a start in which the GPU does nothing yet or the program compiles."
    )
    why = (
        "The first run of a program loads modules, compiles, chooses algorithms and fills caches. "
        "That happens once; averages over it say little about the steps that follow."
    )
    fix = (
        "Leave it out: choose later steps, or begin the capture after some steps. It is no time "
        "that a change of the program gives back for each step."
    )
    code = """\
gpusight diagnose FILE --steps 3:              # or --window 2s-
# torch.profiler: schedule=torch.profiler.schedule(wait=5, warmup=3, active=5)
# nsys: --capture-range=cudaProfilerApi, torch.cuda.profiler.start() after the warm-up
"""
    verify = "The steps that are left take about the same time each."
    caveats = "A program that runs once has nothing but its start."
    estimate = (
        "What the first steps take more than the median of the others; without steps, the time "
        "before the first GPU work or until compiling is done. Nothing where that was left out of "
        "the window: then no other number here holds any of it."
    )
    thresholds: ClassVar = {
        "min_step_ratio": MIN_STEP_RATIO,
        "min_preparing_ratio": MIN_PREPARING_RATIO,
        "min_capture_share": MIN_CAPTURE_SHARE,
        "min_start_share": MIN_START_SHARE,
        "min_certain_share": MIN_CERTAIN_SHARE,
        "min_loading_share": MIN_LOADING_SHARE,
        "min_start_ns": MIN_START_NS,
    }
    min_share = 0.01
    is_fix = False

    def check(self, context: RuleContext) -> RuleVerdict:
        """Compare the first steps with the others, or look at what comes before the first work."""
        schedule, focus = context.schedule, context.focus
        if schedule.start_ns > focus.start_ns:
            return CLEAN
        if context.steps == 1 and not _left_out(focus):
            return RuleNotApplicable("only one step is known: there is nothing to compare it with")
        if context.steps:
            return _first_steps(context)
        start = find_start(context.trace, focus.start_ns - focus.before_ns, focus.end_ns)
        return CLEAN if start is None else _start_match(context, start)

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find first steps, else what the program did before its work."""
        steps = steps_named(context, finding)
        focus = context.focus
        if steps.height or not focus.before_ns:
            return steps
        window = (focus.start_ns - focus.before_ns, focus.start_ns)
        before = one_stretch(*window, "before the program's work,")
        return pl.concat([before, host_events(context, finding.where, window)])


def _left_out(focus: StepWindow) -> tuple[TraceStep, ...]:
    """Return the steps before the window, which were left out of it."""
    return tuple(step for step in focus.left_out if step.start_ns < focus.start_ns)


def _first_steps(context: RuleContext) -> RuleVerdict:
    before = _left_out(context.focus)
    steps = context.focus.steps[: context.steps]
    # With the steps before: what these left for the GPU to do is not the first kept step's.
    all_ns = took_ns(launched(context.trace), (*before, *steps))
    kept_ns = all_ns[len(before) :]
    half = len(kept_ns) // 2
    median_ns = float(np.median(kept_ns[half if len(before) else max(1, half) :]))
    ratio = np.where(_prepare(context), MIN_PREPARING_RATIO.value, MIN_STEP_RATIO.value)
    usual = kept_ns <= ratio * median_ns
    count = int(np.argmax(usual)) if usual.any() else 0
    if count:
        excess_ns = float((kept_ns[:count] - median_ns).sum())
        fix = "Leave {} out: give later steps with --steps, or begin the capture after them."
        return _match(steps[:count], kept_ns[:count], median_ns, fix, recoverable_ns=excess_ns)
    if len(before):
        early_ns = all_ns[: len(before)]
        if (early_ns - median_ns).sum() >= MIN_CAPTURE_SHARE.value * all_ns.sum():
            fix = "{} were left out. Begin the capture after them: it is mostly warm-up."
            return _match(before, early_ns, median_ns, fix)
    return CLEAN


def _match(
    steps: Sequence[TraceStep],
    step_ns: Ints,
    median_ns: float,
    fix: str,
    *,
    recoverable_ns: float | None = None,
) -> RuleMatch:
    first = "step takes" if len(steps) == 1 else "steps take"
    names = ", ".join(f"`{called(step)}`" for step in steps[:3])
    out = " (left out)" if recoverable_ns is None else ""
    return RuleMatch(
        title=f"The first {first} {format_time(float(step_ns.max()))}, later ones "
        f"{format_time(median_ns)}{out}",
        evidence=(
            Evidence("first_ns", float(step_ns.mean()), "ns", "A first step takes, mean"),
            Evidence("later_ns", median_ns, "ns", "A later step takes, median"),
            Evidence("first_steps", len(steps), "", "Steps that are unlike the later ones"),
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason="few steps are there to compare with",
        recoverable_ns=recoverable_ns,
        fix=fix.format(names),
        where=tuple(
            FindingLocation("step", called(step), float(ns))
            for step, ns in zip(steps[:5], step_ns, strict=False)
        ),
    )


def _prepare(context: RuleContext) -> NDArray[np.bool_]:
    """Return which steps load code or allocate memory, where later ones do not."""
    prepares = np.zeros(context.steps, np.bool_)
    calls = context.calls.filter(pl.col("name").str.contains(PREPARES))
    prepares[calls["step"].drop_nulls().unique().to_numpy()] = True
    return prepares & ~prepares[len(prepares) // 2 :].any()


def _start_match(context: RuleContext, start: ProgramStart) -> RuleMatch:
    left_out = context.focus.before_ns
    share = format_share(start.length_ns / max(1, context.focus.length_ns + left_out))
    what = "go into compiling" if start.compiling_ns else "pass before the GPU has anything to do"
    later = format_time(start.launch_ns).replace(" ", "")
    return RuleMatch(
        title=f"The first {format_time(start.length_ns)} ({share}) {what}"
        + (" (left out)" if left_out else ""),
        evidence=(
            Evidence("start_ns", float(start.length_ns), "ns", "Time before the program's work"),
            Evidence(
                "preparing_ns",
                float(start.preparing_ns),
                "ns",
                "Of it, compiling and calls that load code, make contexts or take memory",
            ),
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason="no steps are known that would show what is usual",
        recoverable_ns=None if left_out else float(start.length_ns),
        fix="Begin the capture after the start, and put ranges (NVTX) around the steps: then "
        "gpusight finds them by itself. The start was left out of all that is said here."
        if left_out
        else f"Leave the start out: --window {later}- looks at what "
        "comes after it; ranges around the steps (NVTX) let gpusight find them by itself.",
        where=largest(summed_locations(start.loads, "call", "name")),
    )
