"""warmup-in-window: the first part of the window is unlike the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analyses.steps.launched import launched
from gpusight.analyses.steps.step import called
from gpusight.analyses.steps.warmup import took_ns
from gpusight.findings.finding import Confidence, Evidence
from gpusight.findings.timeline.rule import Absent, Found, Rule, Where
from gpusight.findings.timeline.texts import largest, places
from gpusight.findings.verdict import CLEAN, Limit
from gpusight.units import format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpusight.analyses.steps.step import Step
    from gpusight.findings.timeline.rule import Verdict
    from gpusight.findings.timeline.timeline import Timeline

LONG = Limit(
    1.5,
    "times the median of later steps from which on a first step is unlike them: less may be that "
    "the GPU's queue fills, or chance where steps are few",
)
PREPARING = Limit(
    1.2, "the same for steps that also load code or take memory, as no later one does"
)
START = Limit(0.1, "part of the window before the first GPU work, where no steps are known")
MOST = Limit(0.5, "the same from which on it is a start whatever the host does in it")
LOADING = Limit(0.1, "part of a start that goes into loading code, contexts and memory")
SHORT = Limit(1e6, "ns below which it is the way to the first launch, not the start of a program")
_PREPARES = (
    r"^(?:cu|cuda|hip)(?:Module|Library|Link)|^cuCtxCreate|^cuDevicePrimaryCtx|^cuInit|^nvrtc"
    r"|^(?:cu|cuda|hip)(?:Malloc|MemAlloc|HostAlloc|MallocHost|Free)$"
)


class WarmupInWindow(Rule):
    """First steps, or a start of the program, that do not stand for the rest."""

    id = "warmup-in-window"
    detects = (
        "Looks for first steps that take longer than the later ones although they were kept, and, "
        "where no steps are known, for a start in which the GPU does nothing yet."
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
    afterwards = "The steps that are left take about the same time each."
    misleads = "A program that runs once has nothing but its start."
    estimate = (
        "What the first steps take more than the median of the others; without steps, the time "
        "before the first GPU work."
    )
    limits: ClassVar = {
        "LONG": LONG,
        "PREPARING": PREPARING,
        "START": START,
        "MOST": MOST,
        "LOADING": LOADING,
        "SHORT": SHORT,
    }
    least_share = 0.01

    def check(self, timeline: Timeline) -> Verdict:
        """Compare the first steps with the others, or look at what comes before the first work."""
        schedule, focus = timeline.schedule, timeline.focus
        if schedule.start_ns > focus.start_ns:
            return CLEAN
        if timeline.steps >= 2:
            return _first_steps(timeline, focus.steps[: timeline.steps])
        if timeline.steps == 1:
            return Absent("only one step is known: there is nothing to compare it with")
        return _start(timeline)


def _first_steps(timeline: Timeline, steps: Sequence[Step]) -> Verdict:
    took = took_ns(launched(timeline.trace), steps)
    usual = float(np.median(took[max(1, len(took) // 2) :]))
    limit = np.where(_prepare(timeline), PREPARING.value, LONG.value) * usual
    usually = took <= limit
    count = int(np.argmax(usually)) if usually.any() else 0
    if not count:
        return CLEAN
    excess = float((took[:count] - usual).sum())
    first = "step takes" if count == 1 else "steps take"
    names = ", ".join(f"`{called(step)}`" for step in steps[:count][:3])
    return Found(
        title=f"The first {first} {format_time(float(took[:count].max()))}, later ones "
        f"{format_time(usual)}",
        evidence=(
            Evidence("first_ns", float(took[:count].mean()), "ns", "A first step takes, mean"),
            Evidence("later_ns", usual, "ns", "A later step takes, median"),
            Evidence("first_steps", count, "", "Steps that are unlike the later ones"),
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason="few steps are there to compare with",
        recoverable_ns=excess,
        fix=f"Leave {names} out: give later steps with --steps, or begin the capture after them.",
        where=tuple(
            Where("step", called(step), float(ns))
            for step, ns in zip(steps[:count][:5], took[:count], strict=False)
        ),
    )


def _prepare(timeline: Timeline) -> NDArray[np.bool_]:
    """Tell which steps make calls that prepare, where later ones make none."""
    made = np.zeros(timeline.steps, np.bool_)
    steps = _preparing(timeline)["step"].drop_nulls().unique().to_numpy()
    made[steps] = True
    return made & ~made[len(made) // 2 :].any()


def _preparing(timeline: Timeline) -> pl.DataFrame:
    return timeline.calls.filter(pl.col("name").str.contains(_PREPARES))


def _is_start(lead_ns: int, loading_ns: float, window_ns: int) -> bool:
    if lead_ns < max(SHORT.value, START.value * window_ns):
        return False
    return lead_ns >= MOST.value * window_ns or loading_ns >= LOADING.value * lead_ns


def _start(timeline: Timeline) -> Verdict:
    """Look at the time before the first GPU work."""
    schedule = timeline.schedule
    if not len(schedule.ops):
        return CLEAN
    first = int(schedule.ops.start_ns.min())
    lead = max(0, first - schedule.start_ns)
    calls = _preparing(timeline).filter(pl.col("start_ns") < first)
    if not _is_start(lead, float(calls["duration_ns"].sum()), timeline.length_ns):
        return CLEAN
    share = format_share(lead / max(1, timeline.length_ns))
    return Found(
        title=f"The first {format_time(lead)} ({share}) pass before the GPU has anything to do",
        evidence=(
            Evidence("start_ns", float(lead), "ns", "Time before the first GPU work"),
            Evidence(
                "preparing_ns",
                float(calls["duration_ns"].sum()),
                "ns",
                "Of it, calls that load code, make contexts or take memory",
            ),
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason="no steps are known that would show what is usual",
        recoverable_ns=float(lead),
        fix=f"Leave the start out: --window {format_time(first).replace(' ', '')}- looks at what "
        "comes after it; ranges around the steps (NVTX) let gpusight find them by itself.",
        where=largest(places(calls, "call", "name")),
    )
