"""What holds a program back, as the page shows it: with the places where it happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.findings.diagnose import Question, diagnose_captures
from gpusight.findings.joined import JoinedDiagnosis
from gpusight.findings.timeline.diagnosis import TimelineDiagnosis
from gpusight.findings.timeline.places import Places, places_of_kernels
from gpusight.render.blocks import sentence
from gpusight.render.cells import safe_text
from gpusight.render.diagnosis.parts import value_of
from gpusight.result import NotApplicable
from gpusight.web.answers import safe
from gpusight.web.judged import judged
from gpusight.web.told import FAILED, READY, FindingInfo, Findings, ShownEvidence, ShownPlace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpusight.analyses.timeline.timeline import Timeline
    from gpusight.findings.finding import Evidence
    from gpusight.findings.joined import TimedKernel
    from gpusight.findings.timeline.finding import TimelineFinding
    from gpusight.findings.timeline.places import PlaceInTime
    from gpusight.model.trace import Trace

_WORTH = 0.001
"""Kernels that give back less than this part of the time are not findings of their own."""
_FIRST = "of several reports of Nsight Compute, findings are of the first"
_OF_KERNELS = (
    "findings of single kernels say how much GPU time a faster kernel gives back: a step that "
    "waits for the host gets no shorter by it"
)


def findings(timeline: Timeline, reports: Sequence[Trace]) -> Findings:
    """Diagnose a capture, with its kernels where a report of Nsight Compute measured them."""
    part = judged(timeline.trace)
    question = Question(steps=part.steps, window=part.window)
    notes = [part.note] if part.note else []
    if reports:
        joined = diagnose_captures([timeline.trace, reports[0]], question)
        if isinstance(joined, JoinedDiagnosis):
            notes += [_OF_KERNELS] if len(reports) == 1 else [_FIRST, _OF_KERNELS]
            return _told(timeline, joined.timeline, joined.kernels, notes)
        assert isinstance(joined, NotApplicable), "a timeline and a report were asked"
        notes.append(f"the report: {sentence(joined)}")
    found = diagnose_captures([timeline.trace], question)
    if isinstance(found, NotApplicable):
        return Findings(FAILED, safe_text(sentence(found)))
    assert isinstance(found, TimelineDiagnosis), "a timeline was asked"
    return _told(timeline, found, (), notes)


def _told(
    timeline: Timeline,
    found: TimelineDiagnosis,
    kernels: Iterable[TimedKernel],
    notes: Iterable[str],
) -> Findings:
    located = Places(timeline.trace, found)
    shown = [_of_timeline(one, _places(timeline, located.of(one))) for one in found.findings]
    least = _WORTH * found.focus.length_ns
    shown += [_of_kernel(timeline, found, one) for one in kernels if one.saved_ns > least]
    unjudged = [f"{rule} could not be judged: {why}" for rule, why in found.not_applicable.items()]
    told = dict.fromkeys(map(safe_text, (*notes, *found.notes, *unjudged)))
    return Findings(READY, "", found.step_ns, found.steps, tuple(shown), tuple(told))


def _of_timeline(finding: TimelineFinding, shown: tuple[ShownPlace, ...]) -> FindingInfo:
    return FindingInfo(
        rule=finding.rule,
        title=safe_text(finding.title),
        recoverable_ns_per_step=finding.step_ns,
        share=finding.share,
        confidence=finding.confidence.value,
        why=safe_text(finding.why),
        fix=safe_text(finding.fix),
        code=_code(finding.code),
        evidence=_evidence(finding.evidence),
        places=shown,
    )


def _of_kernel(timeline: Timeline, found: TimelineDiagnosis, kernel: TimedKernel) -> FindingInfo:
    """Tell of a measured kernel, weighed by its time in the judged steps."""
    finding, focus = kernel.finding, found.focus
    assert finding is not None, "only a kernel with a finding saves time"
    shown = _places(timeline, places_of_kernels(timeline.trace, kernel.group.name, focus))
    return FindingInfo(
        rule=finding.rule,
        title=safe_text(f"{kernel.group.label}: {finding.title}"),
        recoverable_ns_per_step=kernel.saved_ns / max(1, found.steps),
        share=kernel.saved_ns / focus.length_ns if focus.length_ns else None,
        confidence=finding.confidence.value,
        why=safe_text(finding.why),
        fix=safe_text(finding.fix),
        code=_code(finding.code),
        evidence=_evidence(finding.evidence),
        places=shown or (ShownPlace("the judged time", focus.start_ns, focus.end_ns, None),),
    )


def _evidence(evidence: Iterable[Evidence]) -> tuple[ShownEvidence, ...]:
    return tuple(ShownEvidence(value_of(one), safe_text(one.meaning)) for one in evidence)


def _code(text: str) -> str:
    return "\n".join(map(safe_text, text.split("\n")))


def _places(timeline: Timeline, found: Iterable[PlaceInTime]) -> tuple[ShownPlace, ...]:
    return tuple(_place(timeline, place) for place in found)


def _place(timeline: Timeline, place: PlaceInTime) -> ShownPlace:
    spot = None
    if place.table is not None and place.row is not None:
        spot = timeline.spot(place.table, place.row)
    shown = None if spot is None else safe(spot)
    return ShownPlace(safe_text(place.label), place.start_ns, place.end_ns, shown)
