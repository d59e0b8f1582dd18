"""Findings with their evidence, reasons, fixes and code to paste, as `diagnose` explains them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpusight.findings.joined import JoinedDiagnosis
from gpusight.render.cells import shorten_middle
from gpusight.render.diagnosis import forms, html, timeline_html, timeline_parts
from gpusight.render.diagnosis.page import prose, text
from gpusight.render.diagnosis.parts import explained, verdict
from gpusight.render.diagnosis.tables import overview
from gpusight.render.diagnosis.timeline_tables import measured_kernels
from gpusight.render.report import markup
from gpusight.result import NotApplicable
from gpusight.units import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.findings.kernels.diagnosis import Diagnosis
    from gpusight.findings.timeline.diagnosis import TimelineDiagnosis
    from gpusight.findings.timeline.finding import TimelineFinding
    from gpusight.render.diagnosis.parts import Explained
    from gpusight.reporting.report import Measured

_OPEN = 3
"""Findings that are open when the page is."""
_MOST_FINDINGS = 40
_MOST_KERNELS = 12
"""Measured kernels that are explained."""
_LISTED = 24
"""And those that are listed."""
_LONGEST = 400
"""Letters of a name or title."""
_TITLE = "What to fix"


def findings_section(found: TimelineDiagnosis | NotApplicable) -> markup.Section:
    """Write the findings of a program."""
    if isinstance(found, NotApplicable):
        return markup.Section("findings", _TITLE, markup.absent(found), "Findings")
    body = "\n".join(_findings(found))
    return markup.Section("findings", _TITLE, body, "Findings")


def _findings(found: TimelineDiagnosis) -> Iterator[str]:
    yield markup.lead(f"{timeline_parts.head(found)}.")
    calm = timeline_parts.verdict(found)
    if calm:
        yield f'<p class="verdict">{text(calm)}</p>'
    shown = [_bounded(finding) for finding in found.findings[:_MOST_FINDINGS]]
    for number, finding in enumerate(shown, 1):
        yield from _card(found, finding, number)
    yield markup.more(len(found.findings) - len(shown), "findings")
    yield from timeline_html.foot(found)
    yield markup.notes(found.notes)


def _card(found: TimelineDiagnosis, finding: TimelineFinding, number: int) -> Iterator[str]:
    """Write a finding that opens and closes; its title says what it gives back."""
    is_open = " open" if number <= _OPEN else ""
    yield f'<details class="finding" id="finding-{number}"{is_open}><summary>'
    yield f'<span class="rank">{number}</span><h3>{prose(finding.title)}</h3>'
    yield f"<em>{text(_saves(found, finding))}</em></summary>"
    unsure = "" if finding.robust else ", rank unsure"
    sure = f"{finding.confidence.value} confidence{unsure}"
    yield f'<div class="told"><p class="tags"><code>{text(finding.rule)}</code> · {text(sure)}</p>'
    yield from timeline_html.explanation(found, finding)
    yield "</div></details>"


def _saves(found: TimelineDiagnosis, finding: TimelineFinding) -> str:
    """Say in few words what a fix gives back; its explanation says it in full."""
    each = " a step" if found.steps else ""
    if finding.recoverable_ns:
        return f"{timeline_parts.per_step(found, finding.recoverable_ns)}{each}"
    if finding.after_ns:
        return f"{timeline_parts.per_step(found, finding.after_ns)}{each}, after those above"
    return timeline_parts.gain(found, finding)


def _bounded(finding: TimelineFinding) -> TimelineFinding:
    """Cut what a hostile capture may have made long without end."""
    places = tuple(replace(w, name=shorten_middle(w.name, _LONGEST)) for w in finding.where)
    evidence = tuple(
        replace(one, meaning=shorten_middle(one.meaning, _LONGEST)) for one in finding.evidence
    )
    title = shorten_middle(finding.title, _LONGEST)
    return replace(finding, title=title, where=places, evidence=evidence)


# Measured kernels ---------------------------------------------------------------------------------


def kernel_findings(measured: Measured, *, key: str, title: str) -> markup.Section | None:
    """Write what a report of Nsight Compute says of its kernels."""
    found = measured.diagnosis
    if isinstance(found, NotApplicable):
        return None
    parts = _of_joined(found, key) if isinstance(found, JoinedDiagnosis) else _of_report(found, key)
    return markup.Section(key, title, "\n".join(parts), "Kernel findings")


def _of_joined(found: JoinedDiagnosis, key: str) -> Iterator[str]:
    table = measured_kernels(found)
    yield markup.lead("Kernels of the timeline, weighed by their time in it, with what holds each.")
    yield markup.table(table, markup.shown_columns(table), limit=_LISTED)
    yield from _explained(forms.explained_kernels(found, _MOST_KERNELS), key)


def _of_report(found: Diagnosis, key: str) -> Iterator[str]:
    table = overview(found)
    if found.duration_ns:
        saved, whole = format_time(found.saved_ns), format_time(found.duration_ns)
        yield markup.lead(f"The first fix of each kernel together gives back {saved} of {whole}.")
    yield markup.table(table, markup.shown_columns(table), limit=_LISTED)
    worth = [group for group in found.groups if group.findings]
    yield from _explained([explained(found, group) for group in worth[:_MOST_KERNELS]], key)
    yield markup.more(len(worth) - _MOST_KERNELS, "kernels with findings")
    yield markup.notes(found.notes)


def _explained(kernels: list[Explained], key: str) -> Iterator[str]:
    for number, kernel in enumerate(kernels, 1):
        is_open = " open" if number <= _OPEN else ""
        title = text(shorten_middle(kernel.title, _LONGEST))
        yield f'<details class="finding" id="{key}-{number}"{is_open}><summary>'
        yield f'<span class="rank">{number}</span>'
        yield f"<h3>{title}</h3><em>{text(verdict(kernel.findings[0]))}</em></summary>"
        yield '<div class="told">'
        yield from html.explanation(kernel)
        yield "</div></details>"
