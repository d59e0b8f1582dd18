"""What is computed once the timeline is loaded: event details, ledger, findings, comparison.

Analyses use a sample of the steps where a capture has many.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from gpusight.analysis.capture_info import device_names
from gpusight.analysis.corrected_trace import correction_of
from gpusight.analysis.hotspots.flame_graph import flame_graph
from gpusight.analysis.hotspots.stack_times import TrackWork, hotspots
from gpusight.analysis.ledger.ledger_entries import IDLE
from gpusight.analysis.profiler_correction import without_profiler
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import EVERYTHING, GPU_WORK, Selection
from gpusight.analysis.steps.step_window import step_window
from gpusight.comparison.build_digest import make_digest
from gpusight.comparison.compare_digests import compare
from gpusight.comparison.inputs import digests_of
from gpusight.errors import MissingDataError, UsageError
from gpusight.render.cell_text import safe_text, show
from gpusight.render.comparison_tables import comparison_sections
from gpusight.render.diagnosis_summary import (
    needs_notes,
    outside_plan_text,
    per_step,
    plan_total,
    speedup_text,
    timeline_gain,
)
from gpusight.render.explanation import evidence_value, gain_phrase, gain_text
from gpusight.render.html.flame_page import frame_columns
from gpusight.render.table_layout import sentence
from gpusight.results import NotApplicable
from gpusight.rules.diagnosis import (
    DiagnoseOptions,
    JoinedDiagnosis,
    TimelineDiagnosis,
    diagnose_captures,
)
from gpusight.rules.process_sections import gpu_owners, worst_of
from gpusight.rules.timeline_diagnosis import FindingLocator
from gpusight.units import format_time
from gpusight.viewer.event_details import event_details
from gpusight.viewer.ledger_track import ledger_lines
from gpusight.viewer.track_style import COLORS
from gpusight.web.payloads import (
    FAILED,
    MAX_TEXT_CHARS,
    READY,
    CompareInfo,
    DeviceInfo,
    EntryInfo,
    EventDetails,
    FindingInfo,
    FindingsInfo,
    FlameInfo,
    LedgerInfo,
    LinkedEvent,
    MetricInfo,
    ShownEvidence,
    ShownFact,
    ShownPlace,
    ShownSection,
    safe,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpusight.analysis.steps.window_headline import StepWindow
    from gpusight.comparison.digest import Digest
    from gpusight.render.comparison_tables import ComparisonCell
    from gpusight.rules.diagnosis import TimedKernel
    from gpusight.rules.finding import Evidence, TimelineFinding
    from gpusight.rules.timeline_diagnosis import TimelineLocation
    from gpusight.trace.trace import Trace
    from gpusight.viewer.ledger_track import LedgerLine
    from gpusight.viewer.timeline_view import ViewerTimeline
    from gpusight.viewer.track_data import TrackSource


def event_payload(
    timeline: ViewerTimeline, table: str, row: int, reports: Sequence[Trace]
) -> EventDetails:
    """Describe one event; `reports` are of Nsight Compute."""
    candidates = [
        event_details(timeline.trace, table, row, report=report) for report in reports or (None,)
    ]
    details = max(
        candidates, key=lambda details: sum(len(section.facts) for section in details.sections)
    )
    spot = timeline.spot(table, row)
    if spot is None:
        raise MissingDataError(f"no track shows row {row:,} of {table}")
    linked = ((link.relation, timeline.spot(link.table, link.row)) for link in details.links)
    return EventDetails(
        spot=safe(spot),
        kind=details.kind,
        title=shown(details.title, MAX_TEXT_CHARS),
        sections=tuple(
            ShownSection(
                section.title,
                tuple(
                    ShownFact(
                        fact.label, shown(show(fact.value, fact.fmt), MAX_TEXT_CHARS), fact.meaning
                    )
                    for fact in section.facts
                ),
            )
            for section in details.sections
        ),
        links=tuple(LinkedEvent(how, safe(place)) for how, place in linked if place is not None),
    )


MAX_SAMPLED_WORK = 1_500_000
"""Kernels and copies that are evaluated at once."""


class StepSample(NamedTuple):
    """The time to look at, as `focus` takes it; nothing for all."""

    steps: str | None = None
    window: tuple[int | None, int | None] | None = None
    note: str = ""
    """A limitation that readers must know."""


def sample_steps(trace: Trace) -> StepSample:
    """Choose the part to look at."""
    rows = {table: trace.row_count(table) for table in GPU_WORK if trace.has(table)}
    total = sum(rows.values())
    if total <= MAX_SAMPLED_WORK:
        return StepSample()
    focus = step_window(trace)
    if isinstance(focus, NotApplicable):
        return StepSample()
    if focus.steps:
        every = focus.steps
        kept = max(1, int(len(every) * (MAX_SAMPLED_WORK / total)))
        first = (len(every) - kept) // 2
        low, high = every[first].number, every[first + kept - 1].number
        note = f"evaluated on steps {low} to {high} of {len(every):,}"
        return StepSample(steps=f"{low}-{high}", note=note)
    return _window(trace, max(rows, key=lambda table: rows[table]), MAX_SAMPLED_WORK / total)


def _window(trace: Trace, table: str, share: float) -> StepSample:
    """Choose the time in the middle in which about this share of all work starts."""
    starts = trace.table(table, ["start_ns"]).to_series()
    kept = max(2, int(len(starts) * share))
    first = (len(starts) - kept) // 2
    window = int(starts[first]), int(starts[first + kept - 1])
    note = f"evaluated on {kept:,} of {len(starts):,} {table}, from the middle of the capture"
    return StepSample(window=window, note=note)


_MIN_SHOWN_SHARE = 0.001
"""Kernels whose fix saves less than this share of the time are not listed."""
_FIRST = "several Nsight Compute reports: kernel fixes are from the first"
_OF_KERNELS = "kernel fixes save GPU time; a step that is limited by the host does not get shorter"


def findings_payload(timeline: ViewerTimeline, reports: Sequence[Trace]) -> FindingsInfo:
    """Diagnose a capture, with its kernels where a report of Nsight Compute measured them."""
    return diagnosis_payloads(timeline, reports)[0]


def diagnosis_payloads(
    timeline: ViewerTimeline, reports: Sequence[Trace]
) -> tuple[FindingsInfo, LedgerInfo | None]:
    """Give the findings, and the ledger of the same time; no ledger where nothing is diagnosed."""
    part = sample_steps(timeline.trace)
    question = DiagnoseOptions(steps=part.steps, window=part.window)
    notes = [part.note] if part.note else []
    if reports:
        joined = diagnose_captures([timeline.trace, reports[0]], question)
        if isinstance(joined, JoinedDiagnosis):
            notes += [_OF_KERNELS] if len(reports) == 1 else [_FIRST, _OF_KERNELS]
            findings = _finding_infos(timeline, joined.timeline, joined.kernels, notes)
            return findings, _ledger_of(timeline.trace, joined.timeline)
        assert isinstance(joined, NotApplicable), "a timeline and a report were given"
        notes.append(f"the report: {sentence(joined)}")
    diagnosis = diagnose_captures([timeline.trace], question)
    if isinstance(diagnosis, NotApplicable):
        return FindingsInfo(FAILED, safe_text(sentence(diagnosis))), None
    assert isinstance(diagnosis, TimelineDiagnosis), "a timeline was given"
    findings = _finding_infos(timeline, diagnosis, (), notes)
    return findings, _ledger_of(timeline.trace, diagnosis)


def _about(diagnosis: TimelineDiagnosis) -> str:
    """Say whose times these are, and which ones the timeline shows; empty where it is the same."""
    texts = []
    if "processes" in diagnosis.meta:
        rank = worst_of(diagnosis.meta["processes"])
        texts.append(f"Process {diagnosis.meta.get('process')} ({rank}).")
    step_ns, recorded_ns = diagnosis.step_ns, diagnosis.focus.recorded_step_ns
    step, recorded = (format_time(ns, digits=3) for ns in (step_ns, recorded_ns or step_ns))
    if recorded != step:
        estimate = " (estimate)" if diagnosis.focus.is_estimate else ""
        texts.append(f"Without the profiler{estimate}; with it (timeline) {recorded}/step.")
    return " ".join(texts)


def _finding_infos(
    timeline: ViewerTimeline,
    diagnosis: TimelineDiagnosis,
    kernels: Iterable[TimedKernel],
    notes: Iterable[str],
) -> FindingsInfo:
    located = FindingLocator(timeline.trace, diagnosis)
    infos = [
        (f, _of_timeline(diagnosis, f, ns, _places(timeline, located.of(f)), upper_bound=bound))
        for f, ns, bound in zip(
            diagnosis.findings, diagnosis.plan_step_ns, diagnosis.plan_upper_bounds, strict=True
        )
    ]
    min_ns = _MIN_SHOWN_SHARE * diagnosis.focus.length_ns
    not_evaluated = [
        f"{rule} not evaluated: {why}" for rule, why in diagnosis.not_applicable.items()
    ]
    messages = dict.fromkeys(map(safe_text, (*notes, *diagnosis.notes, *not_evaluated)))
    return FindingsInfo(
        state=READY,
        message="",
        step_ns=diagnosis.step_ns,
        steps=diagnosis.steps,
        about=_about(diagnosis),
        findings=tuple(info for finding, info in infos if finding.in_plan),
        plan=plan_total(diagnosis) if diagnosis.fixes else "",
        needs=tuple(needs_notes(diagnosis)),
        beside=tuple(
            replace(info, title=safe_text(outside_plan_text(diagnosis, finding, explained=True)))
            for finding, info in infos
            if not finding.in_plan
        ),
        predicted_step_ns=diagnosis.predicted_step_ns,
        kernels=tuple(
            _of_kernel(diagnosis, k, _places(timeline, located.of_kernel(k.group.name)))
            for k in kernels
            if k.saved_ns > min_ns
        ),
        notes=tuple(messages),
    )


def _of_timeline(
    diagnosis: TimelineDiagnosis,
    finding: TimelineFinding,
    then_ns: float | None,
    shown: tuple[ShownPlace, ...],
    *,
    upper_bound: bool,
) -> FindingInfo:
    now_ns = diagnosis.step_ns
    saved_ns = None if then_ns is None else finding.saved_ns
    planned, alone = (per_step(diagnosis, ns) for ns in (saved_ns, finding.recoverable_ns))
    return FindingInfo(
        rule=finding.rule,
        title=safe_text(finding.title),
        saved_ns_per_step=None if saved_ns is None else saved_ns / max(1, diagnosis.steps),
        share=None if saved_ns is None else saved_ns / max(1, diagnosis.focus.length_ns),
        predicted_step_ns=then_ns,
        speedup="" if then_ns is None else speedup_text(now_ns, then_ns, upper_bound=upper_bound),
        saving="" if then_ns is None or planned == alone else timeline_gain(diagnosis, finding),
        confidence=finding.confidence.value,
        effort=finding.effort,
        why=safe_text(finding.why),
        fix=safe_text(finding.fix),
        code=_code(finding.code),
        evidence=_evidence(finding.evidence),
        places=shown,
    )


def _of_kernel(
    diagnosis: TimelineDiagnosis, kernel: TimedKernel, shown: tuple[ShownPlace, ...]
) -> FindingInfo:
    """Describe a profiled kernel by its time in the evaluated steps."""
    finding, focus = kernel.finding, diagnosis.focus
    assert finding is not None, "only a kernel with a finding saves time"
    return FindingInfo(
        rule=finding.rule,
        title=safe_text(f"{kernel.group.label}: {finding.title}"),
        saved_ns_per_step=kernel.saved_ns / max(1, diagnosis.steps),
        share=kernel.saved_ns / focus.length_ns if focus.length_ns else None,
        predicted_step_ns=None,
        speedup=gain_text(finding) or "",
        saving=gain_phrase(finding),
        confidence=finding.confidence.value,
        effort="",
        why=safe_text(finding.why),
        fix=safe_text(finding.fix),
        code=_code(finding.code),
        evidence=_evidence(finding.evidence),
        places=shown,
    )


def _evidence(evidence: Iterable[Evidence]) -> tuple[ShownEvidence, ...]:
    return tuple(ShownEvidence(evidence_value(item), safe_text(item.meaning)) for item in evidence)


def _code(text: str) -> str:
    return "\n".join(map(safe_text, text.split("\n")))


def _places(
    timeline: ViewerTimeline, locations: Iterable[TimelineLocation]
) -> tuple[ShownPlace, ...]:
    return tuple(_place(timeline, place) for place in locations)


def _place(timeline: ViewerTimeline, place: TimelineLocation) -> ShownPlace:
    spot = None
    if place.table is not None and place.row is not None:
        spot = timeline.spot(place.table, place.row)
    shown = None if spot is None else safe(spot)
    return ShownPlace(safe_text(place.label), place.start_ns, place.end_ns, shown)


def is_ledger_of_timeline(trace: Trace) -> bool:
    """Return whether the ledger is of what the timeline shows: recorded times of one process.

    Otherwise it is that of the diagnosis.
    """
    return len(gpu_owners(trace)) < 2 and correction_of(without_profiler(trace)) is None


def _ledger_of(trace: Trace, diagnosis: TimelineDiagnosis) -> LedgerInfo:
    """Give the ledger of a diagnosis."""
    names = device_names(trace)
    devices = tuple(
        DeviceInfo(
            device.device,
            safe_text(names.get(device.device) or ""),
            tuple(EntryInfo(entry.entry, entry.ns, entry.share) for entry in device.entries),
        )
        for device in diagnosis.ledger.devices
    )
    return LedgerInfo(READY, "", diagnosis.steps, devices, _about(diagnosis))


def ledger_payload(trace: Trace) -> LedgerInfo:
    """Sum up the recorded steps without warm-up, as `gpusight ledger` does."""
    focus, lines = step_window(trace), ledger_lines(trace)
    if isinstance(focus, NotApplicable):
        return LedgerInfo(FAILED, safe_text(sentence(focus)))
    names = device_names(trace)
    entries = {device: _entries(line, focus) for device, line in lines.items()}
    devices = tuple(
        DeviceInfo(device, safe_text(names.get(device) or ""), of_device)
        for device, of_device in entries.items()
        if any(not entry.entry.startswith(f"{IDLE}/") for entry in of_device)
    )
    if not devices:
        nothing = NotApplicable("ledger", "no GPU work ran", advice_for(trace.meta).gpu)
        return LedgerInfo(FAILED, safe_text(sentence(nothing)))
    return LedgerInfo(READY, "", len(focus.steps), devices)


def _entries(line: LedgerLine, focus: StepWindow) -> tuple[EntryInfo, ...]:
    inside = np.minimum(line.end_ns, focus.end_ns) - np.maximum(line.start_ns, focus.start_ns)
    # Sums of whole numbers are exact in floating point up to 104 days of nanoseconds.
    ns = np.bincount(line.color, np.maximum(inside, 0), len(COLORS)).astype(np.int64)
    return tuple(
        EntryInfo(COLORS[code], int(ns[code]), float(ns[code] / focus.length_ns))
        for code in np.flatnonzero(ns)
    )


def flame_payload(
    trace: Trace, window: tuple[int, int], of: str, by: str, source: TrackSource | None
) -> FlameInfo:
    """Make the flame graph of a stretch of time, with its recorded times.

    Of a track of a thread or a stream its own work counts; of another one that of its GPU.
    """
    selection = Selection(device=None if source is None else source.device)
    track = TrackWork(source.keys) if source is not None and source.keys else None
    made = hotspots(trace, selection, of=of, by=by, window=window, track=track)
    if isinstance(made, NotApplicable):
        return FlameInfo(None, safe_text(sentence(made)))
    try:
        graph = flame_graph(made)
    except UsageError as error:  # nothing of it in this time
        return FlameInfo(None, safe_text(str(error)))
    return FlameInfo(frame_columns(graph), notes=tuple(map(safe_text, made.notes)))


_METRICS = "metrics"


def comparison_payload(before: Trace, after: Trace) -> CompareInfo:
    """Compare two captures, as `gpusight compare` does."""
    parts = sample_steps(before), sample_steps(after)
    comparison = compare(_summed(before, parts[0]), _summed(after, parts[1]))
    if isinstance(comparison, NotApplicable):
        return CompareInfo(FAILED, safe_text(sentence(comparison)))
    notes = (*(part.note for part in parts if part.note), *comparison.notes)
    rows = next(
        section.rows for section in comparison_sections(comparison) if section.key == _METRICS
    )
    return CompareInfo(
        state=READY,
        message="",
        explanation=tuple(map(safe_text, comparison.explanation)),
        metrics=tuple(_metric(row.cells) for row in rows),
        notes=tuple(map(safe_text, notes)),
    )


def _summed(trace: Trace, part: StepSample) -> list[Digest]:
    def make(trace: Trace) -> Digest | NotApplicable:
        return make_digest(trace, EVERYTHING, steps=part.steps, window=part.window)

    digests = digests_of([trace], make)
    # A sample of steps may be compared with another sample.
    return [msgspec.structs.replace(digest, scope="") for digest in digests]


def _metric(cells: Sequence[ComparisonCell]) -> MetricInfo:
    name, before, after, delta, ratio, _, verdict = map(str, cells)
    return MetricInfo(name, before, after, f"{delta} ({ratio})", verdict)
