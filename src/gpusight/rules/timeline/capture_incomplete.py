"""capture-incomplete: the capture lacks data that other rules need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gpusight.analysis.capture_completeness import LOST_EVENTS, lost_sources
from gpusight.analysis.capture_info import serious_messages
from gpusight.analysis.clock_alignment import clock_shifts
from gpusight.analysis.gpu_schedule import NONE, OpKind
from gpusight.analysis.recording_advice import advice_for
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.rule import CLEAN, RuleMatch, RuleVerdict, Threshold, TimelineRule
from gpusight.units import format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.rules.context import RuleContext
    from gpusight.trace.trace import Trace


MIN_UNLINKED_SHARE = Threshold(
    0.05, "share of GPU activities without a known launch; above it, idle time has no known cause"
)
_MAX_MESSAGE_CHARS = 160
_AGAIN = "Capture again for a shorter time, or with fewer trace options."


class CaptureIncomplete(TimelineRule):
    """Data that is missing, and what cannot be evaluated without it."""

    id = "capture-incomplete"
    detects = (
        "Looks for data that the reader or the profiler reports as lost, and for launches without "
        "GPU activity or the reverse. Also for CUDA graphs traced as one event, and for captures "
        "without ranges and steps, and for clocks of host and GPU that disagree."
    )
    why = (
        "A rule that passes on an incomplete capture does not prove that the program is fine. "
        "Times and shares may be too small."
    )
    fix = "Capture again with the missing data; see: gpusight info FILE"
    verify = "This finding is resolved, and more rules are evaluated."
    caveats = "The missing data may not matter for your question."
    estimate = "No time estimate: the finding is about the capture, not the program."
    effort = "config"
    thresholds: ClassVar = {"min_unlinked_share": MIN_UNLINKED_SHARE}
    min_share = None
    is_fix = False

    def check(self, context: RuleContext) -> RuleVerdict:
        """Collect what is missing."""
        gaps = [
            *_clocks(context.trace),
            *_lost(context.trace),
            *_missing_activities(context),
            *_unlinked(context),
            *_whole_graphs(context),
            *_unnamed(context),
        ]
        if not gaps:
            return CLEAN
        more = f" (+{len(gaps) - 1} more)" if len(gaps) > 1 else ""
        return RuleMatch(
            title=f"{gaps[0].title}{more}",
            evidence=tuple(gap.evidence for gap in gaps),
            confidence=Confidence.HIGH,
            confidence_reason="the capture itself shows it",
            fix=" ".join(dict.fromkeys(gap.remedy for gap in gaps)),
        )


@dataclass(frozen=True, slots=True)
class _Gap:
    """Something that is missing."""

    title: str
    evidence: Evidence
    remedy: str


def _clocks(trace: Trace) -> Iterator[_Gap]:
    """Return GPUs whose clock is not that of the host."""
    for shift in clock_shifts(trace):
        yield _Gap(
            f"Clocks of host and GPU {format_time(shift.apart_ns, digits=3)} apart",
            Evidence("clock_shift_ns", shift.apart_ns, "ns", shift.described()),
            "Capture again with a newer profiler and driver; on a virtual machine, outside of it.",
        )


def _lost(trace: Trace) -> Iterator[_Gap]:
    """Return losses that the reader or the profiler reports."""
    for text in trace.losses:
        yield _Gap(f"Incomplete file: {_cut(text, 60)}", _quote("warning", text), _AGAIN)
    for text in serious_messages(trace)["text"]:
        if LOST_EVENTS.search(text):
            yield _Gap("Profiler lost events", _quote("message", text), _AGAIN)


def _quote(metric: str, text: str) -> Evidence:
    return Evidence(metric, 1, "", _cut(text, _MAX_MESSAGE_CHARS))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _missing_activities(context: RuleContext) -> Iterator[_Gap]:
    """Look for launch and copy calls without their GPU activity."""
    for source, reason in lost_sources(context.trace, context.issued).items():
        share = context.issued[source].share if source in context.issued else 1.0
        evidence = Evidence("unanswered", share, "share", reason)
        yield _Gap(f"Missing {source} in the capture", evidence, _AGAIN)


def _unlinked(context: RuleContext) -> Iterator[_Gap]:
    """Look for GPU activities whose launch is not known."""
    ops, trace = context.schedule.ops, context.trace
    if not trace.has("api_calls"):
        count = Evidence("api_calls", 0, "", "API calls: the cause of GPU idle time is unknown")
        yield _Gap(
            "No CUDA API calls in the capture", count, _sentence(advice_for(trace.meta).calls)
        )
        return
    begun = ~ops.carried
    unlinked = int(np.count_nonzero(begun & (ops.call == NONE)))
    share = unlinked / max(1, int(np.count_nonzero(begun)))
    if share >= MIN_UNLINKED_SHARE.value:
        yield _Gap(
            f"{format_share(share)} of GPU activities have no known launch",
            Evidence("unlinked", share, "share", "GPU activities without a known launch"),
            "Start the capture before the first launch, end it after the last kernel, and include "
            "all processes and threads.",
        )


def _whole_graphs(context: RuleContext) -> Iterator[_Gap]:
    """Look for graphs whose kernels the capture does not show."""
    ops = context.schedule.ops
    graphs, duration_ns = ops.kind == OpKind.GRAPH, ops.end_ns - ops.start_ns
    if graphs.any():
        share = float(duration_ns[graphs].sum()) / max(1.0, float(duration_ns.sum()))
        yield _Gap(
            "CUDA graphs traced as one event: kernels not visible",
            Evidence("in_graphs", share, "share", "GPU time inside these graphs"),
            _sentence(advice_for(context.trace.meta).graphs),
        )


def _unnamed(context: RuleContext) -> Iterator[_Gap]:
    """Look for captures without anything that names steps or parts of the program."""
    trace = context.trace
    if context.steps or trace.has("ranges") or trace.has("cpu_ops"):
        return
    yield _Gap(
        "No ranges and no steps in the capture",
        Evidence("steps", 0, "", "Known steps; times are of the whole window"),
        _sentence(advice_for(trace.meta).ranges),
    )


def _sentence(advice: str) -> str:
    text = advice[:1].upper() + advice[1:]
    return text if text.endswith((".", "…")) else f"{text}."
