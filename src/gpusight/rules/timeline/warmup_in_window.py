"""warmup-in-window: the window includes warm-up, or the capture is mostly warm-up."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.launch_index import launched, took_ns
from gpusight.analysis.steps import program_phases
from gpusight.analysis.steps.program_phases import PREPARES, find_start
from gpusight.analysis.steps.step_list import called
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import largest, quoted_name, summed_locations
from gpusight.rules.locations import host_events, single_span, steps_named
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

    from gpusight.analysis.steps.program_phases import ProgramStart
    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.analysis.steps.window_headline import StepWindow
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import RuleVerdict
    from gpusight.trace.intervals import Ints


MIN_STEP_RATIO = Threshold(
    1.5,
    "ratio of a first step to the median of later steps that makes it warm-up; less may be the "
    "GPU queue filling, or noise where steps are few",
)
MIN_PREPARING_RATIO = Threshold(
    1.2, "the same for steps that load modules or allocate memory, as no later step does"
)
MIN_CAPTURE_SHARE = Threshold(
    0.5, "share of the captured step time that warm-up takes, even though it is excluded"
)
MIN_START_SHARE = Threshold(
    program_phases.MIN_START_SHARE,
    "share of the window before the first kernel, where no steps are known",
)
MIN_CERTAIN_SHARE = Threshold(
    program_phases.MIN_CERTAIN_SHARE,
    "the same for a start with any host activity; also the share of a start before any GPU "
    "activity or in compilation, so that autotuning counts as part of it",
)
MIN_LOADING_SHARE = Threshold(
    program_phases.MIN_LOADING_SHARE,
    "share of a start in module loading, context creation and allocation",
)
MIN_START_NS = Threshold(
    program_phases.MIN_START_NS, "ns; a shorter one is the first launch, not a program start"
)


class WarmupInWindow(TimelineRule):
    """First steps, or a program start, that differ from the rest."""

    id = "warmup-in-window"
    detects = (
        "Looks for slow first steps inside the window, and for captures that are mostly warm-up. "
        "Where no steps are known, it looks for a start in which the GPU is idle or the program "
        "compiles."
    )
    why = (
        "A program first loads modules, compiles, benchmarks algorithms and fills caches. This "
        "happens once, and distorts averages over the steps."
    )
    fix = (
        "Exclude it: select later steps, or start the capture after some steps. This saves no time "
        "per step."
    )
    code = """\
gpusight diagnose FILE --steps 3:              # or --window 2s-
# torch.profiler: schedule=torch.profiler.schedule(wait=5, warmup=3, active=5)
# nsys: --capture-range=cudaProfilerApi, torch.cuda.profiler.start() after the warm-up
"""
    verify = "The remaining steps take about the same time each."
    effort = "config"
    caveats = "A program that runs once consists of its start only."
    estimate = (
        "The time of the first steps beyond the median of the others. Without steps, the time "
        "before the first GPU activity or the end of compilation. Zero where the warm-up is "
        "excluded from the window."
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
            return RuleNotApplicable("only one step is known, so that there is nothing to compare")
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
        before = single_span(*window, "program start,")
        return pl.concat([before, host_events(context, finding.where, window)])


def _left_out(focus: StepWindow) -> tuple[TraceStep, ...]:
    """Return the steps before the window, which were left out of it."""
    return tuple(step for step in focus.left_out if step.start_ns < focus.host_start_ns)


def _first_steps(context: RuleContext) -> RuleVerdict:
    before = _left_out(context.focus)
    steps = context.focus.steps[: context.steps]
    # With the steps before: what these left for the GPU to do is not the first kept step's.
    all_ns = took_ns(launched(context.trace), (*before, *steps))
    kept_ns = all_ns[len(before) :]
    half = len(kept_ns) // 2
    median_ns = float(np.median(kept_ns[half if len(before) else max(1, half) :]))
    # Steps that load code or allocate memory, where later ones do not.
    prepares = np.zeros(context.steps, np.bool_)
    calls = context.calls.filter(pl.col("name").str.contains(PREPARES))
    prepares[calls["step"].drop_nulls().unique().to_numpy()] = True
    ratio = np.where(
        prepares & ~prepares[len(prepares) // 2 :].any(),
        MIN_PREPARING_RATIO.value,
        MIN_STEP_RATIO.value,
    )
    usual = kept_ns <= ratio * median_ns
    count = int(np.argmax(usual)) if usual.any() else 0
    if count:
        excess_ns = float((kept_ns[:count] - median_ns).sum())
        fix = "Exclude {}: select later steps with --steps, or start the capture after them."
        return _match(steps[:count], kept_ns[:count], median_ns, fix, recoverable_ns=excess_ns)
    if len(before):
        early_ns = all_ns[: len(before)]
        if (early_ns - median_ns).sum() >= MIN_CAPTURE_SHARE.value * all_ns.sum():
            fix = "Start the capture later: most of it is warm-up (excluded: {})."
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
    first_ns = float(step_ns.mean())
    first = "first step" if len(steps) == 1 else f"mean of first {len(steps)} steps"
    names = ", ".join(quoted_name(called(step)) for step in steps[:3])
    what = "Capture is mostly warm-up" if recoverable_ns is None else "Warm-up in the window"
    return RuleMatch(
        title=f"{what}: {first} {format_time(first_ns, digits=3)}, "
        f"later {format_time(median_ns, digits=3)}",
        evidence=(
            Evidence("first_ns", first_ns, "ns", "First step time, mean"),
            Evidence("later_ns", median_ns, "ns", "Later step time, median"),
            Evidence("first_steps", len(steps), "", "Warm-up steps"),
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason="few steps to compare",
        recoverable_ns=recoverable_ns,
        fix=fix.format(names),
        where=tuple(
            FindingLocation("step", called(step), float(ns))
            for step, ns in zip(steps[:5], step_ns, strict=False)
        ),
    )


def _start_match(context: RuleContext, start: ProgramStart) -> RuleMatch:
    left_out = context.focus.before_ns
    # What is excluded is what the headline has: the time up to the launch, not to the kernel.
    shown_ns = left_out or start.length_ns
    share = format_share(shown_ns / max(1, context.focus.length_ns + left_out))
    what = "Program start (compiling)" if start.compiling_ns else "Program start"
    later = format_time(start.launch_ns).replace(" ", "")
    return RuleMatch(
        title=f"{what} {'excluded' if left_out else 'in the window'}: "
        f"{format_time(shown_ns, digits=3)} ({share})",
        evidence=(
            Evidence(
                "start_ns",
                float(start.length_ns),
                "ns",
                "Time before the first kernel, or until compilation ends",
            ),
            Evidence(
                "preparing_ns",
                float(start.preparing_ns),
                "ns",
                "Part of it in compilation, module loading, context creation and allocation",
            ),
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason="no steps are known for comparison",
        recoverable_ns=None if left_out else float(start.length_ns),
        fix="Start the capture later, and put NVTX ranges around the steps, so that gpusight finds "
        "them. The start is excluded from all numbers."
        if left_out
        else f"Exclude the start with --window {later}-. Put NVTX ranges around the steps, so that "
        "gpusight finds them.",
        where=largest(summed_locations(start.loads, "call", "name")),
    )
