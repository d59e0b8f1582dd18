"""capture-incomplete: the capture lacks something that the other rules need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gpusight.analysis.capture_completeness import LOST_EVENTS, lost_sources
from gpusight.analysis.capture_info import serious_messages
from gpusight.analysis.gpu_schedule import NONE, OpKind
from gpusight.analysis.recording_advice import advice_for
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.rule import CLEAN, RuleMatch, Threshold, TimelineRule
from gpusight.units import format_share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.rules.context import RuleContext
    from gpusight.rules.rule import RuleVerdict
    from gpusight.trace.trace import Trace


MIN_UNLINKED_SHARE = Threshold(
    0.05, "part of the GPU work without a known call from which on idle time cannot be explained"
)
_LONGEST = 160
_AGAIN = "Capture again, for a shorter time or with less switched on."


class CaptureIncomplete(TimelineRule):
    """Data that is missing, and what cannot be evaluated without it."""

    id = "capture-incomplete"
    detects = (
        "Looks for what the reader or the profiler says was lost, launch and copy calls without "
        "their GPU work, GPU work without calls, calls that are not linked, CUDA graphs traced as "
        "a whole, and captures in which nothing names what ran."
    )
    why = (
        "A rule that finds nothing in a capture with holes says nothing about the program. Times "
        "and shares of what is there may be too small."
    )
    fix = "Capture again with what is missing; see: gpusight info FILE"
    verify = "This finding is gone, and fewer rules could not be judged."
    caveats = "What is missing may not matter for the question at hand."
    estimate = "None: it is about the capture, not about the program."
    thresholds: ClassVar = {"min_unlinked_share": MIN_UNLINKED_SHARE}
    min_share = None
    is_fix = False

    def check(self, context: RuleContext) -> RuleVerdict:
        """Collect what is missing."""
        gaps = [
            *_lost(context.trace),
            *_missing_activities(context),
            *_unlinked(context),
            *_whole_graphs(context),
            *_unnamed(context),
        ]
        if not gaps:
            return CLEAN
        more = f", and {len(gaps) - 1} more" if len(gaps) > 1 else ""
        return RuleMatch(
            title=f"{gaps[0].title}{more}",
            evidence=tuple(gap.evidence for gap in gaps),
            confidence=Confidence.HIGH,
            confidence_reason="it is what the capture itself shows",
            fix=" ".join(dict.fromkeys(gap.remedy for gap in gaps)),
        )


@dataclass(frozen=True, slots=True)
class _Gap:
    """Something that is missing."""

    title: str
    evidence: Evidence
    remedy: str


def _lost(trace: Trace) -> Iterator[_Gap]:
    """Return losses that the reader or the profiler reports."""
    for text in trace.losses:
        yield _Gap(
            f"Part of the file is missing: {_cut(text, 60)}", _quote("warning", text), _AGAIN
        )
    for text in serious_messages(trace)["text"]:
        if LOST_EVENTS.search(text):
            yield _Gap("The profiler lost events", _quote("message", text), _AGAIN)


def _quote(metric: str, text: str) -> Evidence:
    return Evidence(metric, 1, "", _cut(text, _LONGEST))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _missing_activities(context: RuleContext) -> Iterator[_Gap]:
    """Look for launch and copy calls without their GPU activity."""
    for source, reason in lost_sources(context.trace, context.issued).items():
        share = context.issued[source].share if source in context.issued else 1.0
        evidence = Evidence("unanswered", share, "share", reason)
        yield _Gap(f"{source.capitalize()} are missing: {reason}", evidence, _AGAIN)


def _unlinked(context: RuleContext) -> Iterator[_Gap]:
    """Look for GPU activities whose launch is not known."""
    ops, trace = context.schedule.ops, context.trace
    if not trace.has("api_calls"):
        count = Evidence("api_calls", 0, "", "API calls: why the GPU waits cannot be told")
        yield _Gap("There are no API calls", count, _sentence(advice_for(trace.meta).calls))
        return
    begun = ~ops.carried
    unlinked = int(np.count_nonzero(begun & (ops.call == NONE)))
    share = unlinked / max(1, int(np.count_nonzero(begun)))
    if share >= MIN_UNLINKED_SHARE.value:
        yield _Gap(
            f"{format_share(share)} of the GPU work has no known launch",
            Evidence("unlinked", share, "share", "Part of the GPU work without a known call"),
            "Capture from the beginning of the launches to the end of their work, with all "
            "processes and threads.",
        )


def _whole_graphs(context: RuleContext) -> Iterator[_Gap]:
    """Look for graphs whose kernels the capture does not show."""
    ops = context.schedule.ops
    graphs, duration_ns = ops.kind == OpKind.GRAPH, ops.end_ns - ops.start_ns
    if graphs.any():
        share = float(duration_ns[graphs].sum()) / max(1.0, float(duration_ns.sum()))
        yield _Gap(
            "CUDA graphs were traced as a whole: their kernels are not visible",
            Evidence("in_graphs", share, "share", "Part of the GPU's work inside such graphs"),
            _sentence(advice_for(context.trace.meta).graphs),
        )


def _unnamed(context: RuleContext) -> Iterator[_Gap]:
    """Look for captures without anything that names steps or parts of the program."""
    trace = context.trace
    if context.steps or trace.has("ranges") or trace.has("cpu_ops"):
        return
    yield _Gap(
        "No ranges and no steps: all is judged as one",
        Evidence("steps", 0, "", "Steps that are known; times are those of the whole window"),
        _sentence(advice_for(trace.meta).ranges),
    )


def _sentence(advice: str) -> str:
    text = advice[:1].upper() + advice[1:]
    return text if text.endswith((".", "…")) else f"{text}."
