"""The top of a report and its findings, with evidence, reasons, fixes and code to paste."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from gpusight.render import diagnosis_summary
from gpusight.render.cell_text import shorten_middle, show
from gpusight.render.diagnosis_summary import measured_kernel_table
from gpusight.render.diagnosis_text import explained_kernels
from gpusight.render.explanation import explain_kernel, kernel_overview
from gpusight.render.html.html_templates import (
    ReportSection,
    absent_section,
    capitalized,
    clipped_text,
    markup,
    render,
    shown_columns,
)
from gpusight.results import Fmt, NotApplicable
from gpusight.rules.diagnosis import JoinedDiagnosis
from gpusight.units import format_mean, format_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from gpusight.render.explanation import ExplainedKernel
    from gpusight.reports.report_contents import (
        CaptureFacts,
        HeadlineFix,
        HeadlineNumber,
        MeasuredReport,
        Report,
    )
    from gpusight.results import TableResult
    from gpusight.rules.diagnosis import TimelineDiagnosis
    from gpusight.rules.finding import TimelineFinding


_MAX_TEXT_CHARACTERS = 300
_MAX_CARDS = 4
"""Fixes of a plan that have a card each at the top; more share the last one."""
_MAX_PLAN_NOTES = 4
_MIN_SPEEDUP = 1.005
"""Below this the plan as a whole changes nothing that could be measured."""


def report_header(report: Report) -> Markup:
    """Write the top of the page: the numbers, the first fixes and what all of them save."""
    headline = report.headline
    plan = headline.plan
    cards = plan if len(plan) <= _MAX_CARDS else plan[: _MAX_CARDS - 1]
    answer = None if report.program is None else report.program.diagnosis
    diagnosis = None if isinstance(answer, NotApplicable) else answer
    return render(
        "report_header.html",
        report=report,
        headline=headline,
        # A file's name may go on in the next line behind what parts its words.
        heading=markup(
            str(clipped_text(report.title, _MAX_TEXT_CHARACTERS))
            .replace("_", "_<wbr>")
            .replace(".", ".<wbr>")
        ),
        captures=[_about(capture, report.title) for capture in report.captures],
        has_advice=not isinstance(answer, NotApplicable),
        verdict="" if diagnosis is None else diagnosis_summary.timeline_verdict(diagnosis),
        fixes=[(fix, _anchor(fix, report)) for fix in cards],
        others=len(plan) - len(cards),
        others_ns=sum(fix.saved_ns or 0.0 for fix in plan[len(cards) :]),
        others_at="findings" if report.program is not None else "measured-1",
        unit="/step" if headline.whole == "step" else "",
        total=plan_text(report),
        headline_text=headline_text,
        speedup_text=diagnosis_summary.speedup_text,
        plan_notes=[] if diagnosis is None else _plan_notes(diagnosis)[:_MAX_PLAN_NOTES],
        max_characters=_MAX_TEXT_CHARACTERS,
    )


def _plan_notes(diagnosis: TimelineDiagnosis) -> list[tuple[str, str]]:
    """Give what stands below the plan, as on the screen of `diagnose`, and where each leads."""
    needs = [("findings", text) for text in diagnosis_summary.needs_notes(diagnosis)]
    return needs + [
        (_note_anchor(f), diagnosis_summary.outside_plan_text(diagnosis, f, explained=True))
        for f in diagnosis.outside_plan
    ]


def _note_anchor(finding: TimelineFinding) -> str:
    return f"finding-{finding.rule}"


def _about(capture: CaptureFacts, title: str) -> list[str]:
    counts = Counter(capture.gpus)
    gpus = [f"{count} x {name}" if count > 1 else name for name, count in counts.items()]
    length = "" if capture.duration_ns is None else format_time(capture.duration_ns)
    file = "" if capture.file == title else capture.file
    return [f for f in (file, capture.tool, ", ".join(gpus), capture.started, length) if f]


def _anchor(fix: HeadlineFix, report: Report) -> str:
    """Return where a fix is explained; of several kernel reports, where the first starts."""
    if report.program is not None:
        return f"finding-{fix.rank}"
    return f"measured-1-{fix.rank}" if len(report.measured) == 1 else "measured-1"


def headline_text(number: HeadlineNumber) -> str:
    """Format a number of the top; counts may be means per step."""
    if number.fmt is Fmt.COUNT and number.value is not None:
        return format_mean(number.value)
    if number.fmt is Fmt.TIME:
        return format_time(number.value, digits=3)
    return show(number.value, number.fmt)


def plan_text(report: Report) -> str:
    """Write what all fixes save; empty where that is next to nothing."""
    headline = report.headline
    diagnosis = None if report.program is None else report.program.diagnosis
    now_ns, then_ns = headline.now_ns, headline.then_ns
    if not headline.plan or not now_ns or then_ns is None:
        return ""
    if now_ns / max(then_ns, 1.0) < _MIN_SPEEDUP:
        return ""
    if diagnosis is not None and not isinstance(diagnosis, NotApplicable):
        return diagnosis_summary.plan_total(diagnosis)
    return f"first fix of each kernel: {diagnosis_summary.time_change(now_ns, then_ns, '')}"


_UNFOLDED_FINDINGS = 3
"""Findings that are open when the page is."""
_MAX_FINDINGS = 40
_MAX_EXPLAINED_KERNELS = 12
"""Profiled kernels that are explained."""
_MAX_LISTED_KERNELS = 24
"""And those that are listed."""
_MAX_TITLE_CHARACTERS = 400
"""Letters of a name or title."""


def findings_section(diagnosis: TimelineDiagnosis | NotApplicable) -> ReportSection:
    """Write the findings of a program."""
    if isinstance(diagnosis, NotApplicable):
        return absent_section("findings", "What to fix", diagnosis, "Findings")
    plan = [_bounded(finding) for finding in diagnosis.plan[:_MAX_FINDINGS]]
    beside = [_bounded(f) for f in diagnosis.outside_plan[: _MAX_FINDINGS - len(plan)]]
    times = (
        ns for f, ns in zip(diagnosis.findings, diagnosis.plan_step_ns, strict=True) if f.in_plan
    )
    speedups = diagnosis_summary.speedups_so_far(diagnosis)
    body = render(
        "report_findings.html",
        summary=diagnosis_summary,
        diagnosis=diagnosis,
        head=f"{diagnosis_summary.diagnosis_head(diagnosis)}.",
        verdict=diagnosis_summary.timeline_verdict(diagnosis),
        findings=list(zip(plan, times, speedups, strict=False)),
        beside=[
            (f, _note_anchor(f), diagnosis_summary.outside_plan_text(diagnosis, f, explained=True))
            for f in beside
        ],
        unit="/step" if diagnosis.steps else "",
        per=max(1, diagnosis.steps),
        total=diagnosis_summary.plan_total(diagnosis) if diagnosis.fixes else "",
        unfolded=_UNFOLDED_FINDINGS,
        left_out=len(diagnosis.findings) - len(plan) - len(beside),
    )
    return ReportSection("findings", "What to fix", body, "Findings")


def _bounded(finding: TimelineFinding) -> TimelineFinding:
    """Cut what a hostile capture may have made long without end."""
    places = tuple(
        replace(w, name=shorten_middle(w.name, _MAX_TITLE_CHARACTERS)) for w in finding.where
    )
    evidence = tuple(
        replace(evidence, meaning=shorten_middle(evidence.meaning, _MAX_TITLE_CHARACTERS))
        for evidence in finding.evidence
    )
    title = shorten_middle(finding.title, _MAX_TITLE_CHARACTERS)
    return replace(finding, title=title, where=places, evidence=evidence)


# Profiled kernels ---------------------------------------------------------------------------------


def kernel_findings(measured: MeasuredReport, *, key: str, title: str) -> ReportSection | None:
    """Write the findings of a report of Nsight Compute."""
    diagnosis = measured.diagnosis
    if isinstance(diagnosis, NotApplicable):
        return None
    if isinstance(diagnosis, JoinedDiagnosis):
        lead = "Profiled kernels by their time in the timeline, with the first fix of each."
        explained = explained_kernels(diagnosis, _MAX_EXPLAINED_KERNELS)
        body = _kernel_findings(key, lead, measured_kernel_table(diagnosis), explained)
    else:
        lead = f"{capitalized(diagnosis_summary.kernels_total(diagnosis))}."
        worth = [group for group in diagnosis.groups if group.findings]
        body = _kernel_findings(
            key,
            lead if diagnosis.duration_ns else "",
            kernel_overview(diagnosis),
            [explain_kernel(diagnosis, group) for group in worth[:_MAX_EXPLAINED_KERNELS]],
            left_out=len(worth) - _MAX_EXPLAINED_KERNELS,
            notes=diagnosis.notes,
        )
    return ReportSection(key, title, body, "Kernel findings")


def _kernel_findings(
    key: str,
    lead: str,
    table: TableResult,
    explained: list[ExplainedKernel],
    *,
    left_out: int = 0,
    notes: Sequence[str] = (),
) -> Markup:
    return render(
        "report_kernel_findings.html",
        key=key,
        intro=lead,
        kernels=table,
        columns=shown_columns(table),
        limit=_MAX_LISTED_KERNELS,
        explained=explained,
        unfolded=_UNFOLDED_FINDINGS,
        max_characters=_MAX_TITLE_CHARACTERS,
        left_out=left_out,
        noted=notes,
    )
