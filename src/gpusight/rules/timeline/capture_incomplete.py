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
    """Data that is missing, and what cannot be judged without it."""

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
        lacks = list(_lacks(context))
        if not lacks:
            return CLEAN
        more = f", and {len(lacks) - 1} more" if len(lacks) > 1 else ""
        return RuleMatch(
            title=f"{lacks[0].what}{more}",
            evidence=tuple(lack.evidence for lack in lacks),
            confidence=Confidence.HIGH,
            confidence_reason="it is what the capture itself shows",
            fix=" ".join(dict.fromkeys(lack.remedy for lack in lacks)),
        )


@dataclass(frozen=True, slots=True)
class _Lack:
    """One thing that is missing."""

    what: str
    evidence: Evidence
    remedy: str


def _lacks(context: RuleContext) -> Iterator[_Lack]:
    yield from _lost(context.trace)
    yield from _unanswered(context)
    yield from _unlinked(context)
    yield from _whole_graphs(context)
    yield from _unnamed(context)


def _lost(trace: Trace) -> Iterator[_Lack]:
    """Give what the reader warned of, and what the profiler said was lost."""
    for text in trace.losses:
        yield _Lack(
            f"Part of the file is missing: {_cut(text, 60)}", _said("warning", text), _AGAIN
        )
    for text in serious_messages(trace)["text"]:
        if LOST_EVENTS.search(text):
            yield _Lack("The profiler lost events", _said("message", text), _AGAIN)


def _said(metric: str, text: str) -> Evidence:
    return Evidence(metric, 1, "", _cut(text, _LONGEST))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _unanswered(context: RuleContext) -> Iterator[_Lack]:
    """Look for calls that issued GPU work which the capture does not hold."""
    for source, reason in lost_sources(context.trace, context.issued).items():
        share = context.issued[source].share if source in context.issued else 1.0
        counted = Evidence("unanswered", share, "share", reason)
        yield _Lack(f"{source.capitalize()} are missing: {reason}", counted, _AGAIN)


def _unlinked(context: RuleContext) -> Iterator[_Lack]:
    """Look for GPU work whose launch is not known."""
    ops, trace = context.schedule.ops, context.trace
    advice = advice_for(trace.meta)
    if not trace.has("api_calls"):
        count = Evidence("api_calls", 0, "", "API calls: why the GPU waits cannot be told")
        yield _Lack("There are no API calls", count, _how(advice.calls))
        return
    own = ~ops.carried
    unlinked, every = (int(np.count_nonzero(m)) for m in (own & (ops.call == NONE), own))
    unknown = unlinked / max(1, every)
    if unknown >= MIN_UNLINKED_SHARE.value:
        yield _Lack(
            f"{format_share(unknown)} of the GPU work has no known launch",
            Evidence("unlinked", unknown, "share", "Part of the GPU work without a known call"),
            "Capture from the beginning of the launches to the end of their work, with all "
            "processes and threads.",
        )


def _whole_graphs(context: RuleContext) -> Iterator[_Lack]:
    """Look for graphs whose kernels the capture does not show."""
    ops = context.schedule.ops
    graphs = ops.kind == OpKind.GRAPH
    if graphs.any():
        spent = float((ops.end_ns - ops.start_ns)[graphs].sum())
        share = spent / max(1.0, float((ops.end_ns - ops.start_ns).sum()))
        yield _Lack(
            "CUDA graphs were traced as a whole: their kernels are not visible",
            Evidence("in_graphs", share, "share", "Part of the GPU's work inside such graphs"),
            _how(advice_for(context.trace.meta).graphs),
        )


def _unnamed(context: RuleContext) -> Iterator[_Lack]:
    """Look for captures in which nothing tells steps or parts of the program."""
    trace = context.trace
    if context.steps or trace.has("ranges") or trace.has("cpu_ops"):
        return
    yield _Lack(
        "No ranges and no steps: all is judged as one",
        Evidence("steps", 0, "", "Steps that are known; times are those of the whole window"),
        _how(advice_for(trace.meta).ranges),
    )


def _how(advice: str) -> str:
    text = advice[:1].upper() + advice[1:]
    return text if text.endswith((".", "…")) else f"{text}."
