"""The top of a report and its findings, with evidence, reasons, fixes and code to paste."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from gpusight.render import diagnosis_summary, diagnosis_view
from gpusight.render.cell_text import shorten_middle, show
from gpusight.render.diagnosis_summary import measured_kernel_table
from gpusight.render.explanation import explain_kernel, gain_phrase, kernel_overview
from gpusight.render.html import diagnosis_page, html_parts
from gpusight.render.html.html_parts import html_prose, html_text
from gpusight.results import NotApplicable
from gpusight.rules.diagnosis_results import JoinedDiagnosis
from gpusight.units import MISSING, format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.render.explanation import ExplainedKernel
    from gpusight.reports.report_contents import (
        CaptureFacts,
        Headline,
        HeadlineFix,
        HeadlineNumber,
        MeasuredReport,
        Report,
    )
    from gpusight.rules.diagnosis_results import KernelReportDiagnosis, TimelineDiagnosis
    from gpusight.rules.finding import TimelineFinding


_MAX_TEXT_CHARACTERS = 300
_WORDS = {1: "it", 2: "both", 3: "all three"}
_MAX_CAUTIONS = 3
_MIN_SPEEDUP = 1.005
"""Times faster below which nothing is said of it."""


def report_header(report: Report) -> str:
    """Write what the page begins with."""
    return "\n".join(
        (
            '<header class="hero">',
            '<p class="kicker">gpusight report</p>',
            f"<h1>{_breaking(html_parts.clipped_text(report.title, _MAX_TEXT_CHARACTERS))}</h1>",
            *(f'<p class="about">{_about(one, report.title)}</p>' for one in report.captures),
            *(f'<p class="warning">{html_prose(warning)}</p>' for warning in report.warnings),
            f'<dl class="numbers">{"".join(map(_number, report.headline.numbers))}</dl>',
            *_first(report),
            "</header>",
        )
    )


def _breaking(escaped: str) -> str:
    """Let a file's name go on in the next line behind what parts its words."""
    return escaped.replace("_", "_<wbr>").replace(".", ".<wbr>")


def _about(one: CaptureFacts, title: str) -> str:
    gpus = [f"{count} x {name}" if count > 1 else name for name, count in Counter(one.gpus).items()]
    length = "" if one.duration_ns is None else format_time(one.duration_ns)
    file = "" if one.file == title else one.file
    facts = (file, one.tool, ", ".join(gpus), one.started, length)
    return " · ".join(html_parts.clipped_text(fact, _MAX_TEXT_CHARACTERS) for fact in facts if fact)


def _number(number: HeadlineNumber) -> str:
    known = number.value is not None
    exact = f' data-v="{number.value!r}"' if known else ""
    shown = show(number.value, number.fmt) if known else MISSING
    value, _, unit = shown.partition(" ")
    unit = f" <small>{html_text(unit)}</small>" if unit else ""
    kind = "" if known else ' class="unknown"'
    return (
        f'<div{kind} data-key="{html_text(number.key)}"><dt>{html_text(number.label)}</dt>'
        f"<dd{exact}>{html_text(value)}{unit}</dd>"
        '<dd class="detail">'
        f"{html_parts.clipped_text(_number_detail(number), _MAX_TEXT_CHARACTERS)}</dd></div>"
    )


def _number_detail(number: HeadlineNumber) -> str:
    return number.detail if number.value is not None else html_parts.capitalized(number.detail)


def _first(report: Report) -> Iterator[str]:
    """Show the foremost fixes and what they give together; or that there is nothing to fix."""
    told = report.headline
    found = None if report.program is None else report.program.diagnosis
    if isinstance(found, NotApplicable):
        return
    verdict = "" if found is None else diagnosis_summary.timeline_verdict(found)
    if verdict or not told.gains:
        yield '<div class="first calm"><h2>Nothing stands out</h2>'
        yield f"<p>{html_text(verdict or 'Nothing that was found gives time back.')}</p>"
    else:
        yield '<div class="first"><h2>Fix first</h2>'
    if told.gains:
        items = (
            _fix(gain, f"finding-{gain.rank}" if found else _kernel_anchor(gain, report))
            for gain in told.gains
        )
        yield f'<ol class="gains">{"".join(items)}</ol>'
        yield _together(told)
    yield from _cautions(told)
    yield "</div>"


def _kernel_anchor(gain: HeadlineFix, report: Report) -> str:
    """Say where a measured kernel is explained; of several reports, where the first begins."""
    return f"measured-1-{gain.rank}" if len(report.measured) == 1 else "measured-1"


def _cautions(told: Headline) -> Iterator[str]:
    """Name what gives no time back, but bears on how the numbers are read."""
    items = "".join(
        f'<li><a href="#finding-{one.rank}">{html_prose(one.title[:_MAX_TEXT_CHARACTERS])}</a></li>'
        for one in told.cautions[:_MAX_CAUTIONS]
    )
    if items:
        yield f'<div class="cautions"><h3>Keep in mind</h3><ul>{items}</ul></div>'


def _fix(gain: HeadlineFix, place: str) -> str:
    later = "" if gain.alone_ns or not gain.after_ns else " · after those before it"
    saves = f'<b data-v="{gain.alone_ns!r}">{html_text(format_time(gain.worth_ns))}</b>'
    share = "" if not gain.share else f" · {format_share(gain.share)}"
    told = f"{gain.rule}{share}{later} · {gain.confidence} confidence"
    return (
        f'<li><a href="#{place}">{saves}'
        f'<span class="title">{html_prose(gain.title[:_MAX_TEXT_CHARACTERS])}</span>'
        f"<small>{html_text(told)}</small></a></li>"
    )


def _together(told: Headline) -> str:
    """Draw what is left of the whole once these are fixed."""
    now, then = told.now_ns, told.then_ns
    if not now or then is None or now / max(then, 1.0) < _MIN_SPEEDUP:
        return ""
    saved = [(gain.after_ns or 0.0) / now for gain in told.gains]
    cut = "".join(
        f'<span class="saved saved-{number}" style="width:{100 * part:.3f}%" '
        f'title="{html_text(f"{number}. {gain.rule}: {format_time(gain.after_ns)}")}"></span>'
        for number, (part, gain) in enumerate(zip(saved, told.gains, strict=True), 1)
    )
    whole = f"a {told.whole}" if told.whole == "step" else f"the {told.whole}"
    faster = f"{now / max(then, 1.0):,.2f} times faster"
    words = (
        f"After {_WORDS[len(told.gains)]}, {whole} of {format_time(now)} would take about "
        f"{format_time(then)}, {faster}."
    )
    return (
        f'<div class="together" data-now="{now!r}" data-then="{then!r}">'
        f'<div class="stack" role="img" aria-label="{html_text(words)}">'
        f'<span class="left" style="width:{100 * then / now:.3f}%"></span>{cut}</div>'
        f"<p>{html_text(words)}</p></div>"
    )


_UNFOLDED_FINDINGS = 3
"""Findings that are open when the page is."""
_MAX_FINDINGS = 40
_MAX_EXPLAINED_KERNELS = 12
"""Measured kernels that are explained."""
_MAX_LISTED_KERNELS = 24
"""And those that are listed."""
_MAX_TITLE_CHARACTERS = 400
"""Letters of a name or title."""
_TITLE = "What to fix"


def findings_section(found: TimelineDiagnosis | NotApplicable) -> html_parts.ReportSection:
    """Write the findings of a program."""
    if isinstance(found, NotApplicable):
        return html_parts.ReportSection("findings", _TITLE, html_parts.absent(found), "Findings")
    body = "\n".join(_findings(found))
    return html_parts.ReportSection("findings", _TITLE, body, "Findings")


def _findings(found: TimelineDiagnosis) -> Iterator[str]:
    yield html_parts.lead(f"{diagnosis_summary.diagnosis_head(found)}.")
    calm = diagnosis_summary.timeline_verdict(found)
    if calm:
        yield f'<p class="verdict">{html_text(calm)}</p>'
    shown = [_bounded(finding) for finding in found.findings[:_MAX_FINDINGS]]
    for number, finding in enumerate(shown, 1):
        yield from _card(found, finding, number)
    yield html_parts.more_rows(len(found.findings) - len(shown), "findings")
    yield from diagnosis_page.timeline_foot(found)
    yield html_parts.report_notes(found.notes)


def _card(found: TimelineDiagnosis, finding: TimelineFinding, number: int) -> Iterator[str]:
    """Write a finding that opens and closes; its title says what it gives back."""
    is_open = " open" if number <= _UNFOLDED_FINDINGS else ""
    yield f'<details class="finding" id="finding-{number}"{is_open}><summary>'
    yield f'<span class="rank">{number}</span><h3>{html_prose(finding.title)}</h3>'
    yield f"<em>{html_text(_saves(found, finding))}</em></summary>"
    unsure = "" if finding.robust else ", rank unsure"
    sure = f"{finding.confidence.value} confidence{unsure}"
    yield (
        f'<div class="told"><p class="tags"><code>{html_text(finding.rule)}</code> · '
        f"{html_text(sure)}</p>"
    )
    yield from diagnosis_page.finding_explanation(found, finding)
    yield "</div></details>"


def _saves(found: TimelineDiagnosis, finding: TimelineFinding) -> str:
    """Say in few words what a fix gives back; its explanation says it in full."""
    each = " a step" if found.steps else ""
    if finding.recoverable_ns:
        return f"{diagnosis_summary.per_step(found, finding.recoverable_ns)}{each}"
    if finding.after_ns:
        return f"{diagnosis_summary.per_step(found, finding.after_ns)}{each}, after those above"
    return diagnosis_summary.timeline_gain(found, finding)


def _bounded(finding: TimelineFinding) -> TimelineFinding:
    """Cut what a hostile capture may have made long without end."""
    places = tuple(
        replace(w, name=shorten_middle(w.name, _MAX_TITLE_CHARACTERS)) for w in finding.where
    )
    evidence = tuple(
        replace(one, meaning=shorten_middle(one.meaning, _MAX_TITLE_CHARACTERS))
        for one in finding.evidence
    )
    title = shorten_middle(finding.title, _MAX_TITLE_CHARACTERS)
    return replace(finding, title=title, where=places, evidence=evidence)


# Measured kernels ---------------------------------------------------------------------------------


def kernel_findings(
    measured: MeasuredReport, *, key: str, title: str
) -> html_parts.ReportSection | None:
    """Write what a report of Nsight Compute says of its kernels."""
    found = measured.diagnosis
    if isinstance(found, NotApplicable):
        return None
    parts = _of_joined(found, key) if isinstance(found, JoinedDiagnosis) else _of_report(found, key)
    return html_parts.ReportSection(key, title, "\n".join(parts), "Kernel findings")


def _of_joined(found: JoinedDiagnosis, key: str) -> Iterator[str]:
    table = measured_kernel_table(found)
    yield html_parts.lead(
        "Kernels of the timeline, weighed by their time in it, with what holds each."
    )
    yield html_parts.html_table(table, html_parts.shown_columns(table), limit=_MAX_LISTED_KERNELS)
    yield from _explained(diagnosis_view.explained_kernels(found, _MAX_EXPLAINED_KERNELS), key)


def _of_report(found: KernelReportDiagnosis, key: str) -> Iterator[str]:
    table = kernel_overview(found)
    if found.duration_ns:
        saved, whole = format_time(found.saved_ns), format_time(found.duration_ns)
        yield html_parts.lead(
            f"The first fix of each kernel together gives back {saved} of {whole}."
        )
    yield html_parts.html_table(table, html_parts.shown_columns(table), limit=_MAX_LISTED_KERNELS)
    worth = [group for group in found.groups if group.findings]
    yield from _explained(
        [explain_kernel(found, group) for group in worth[:_MAX_EXPLAINED_KERNELS]], key
    )
    yield html_parts.more_rows(len(worth) - _MAX_EXPLAINED_KERNELS, "kernels with findings")
    yield html_parts.report_notes(found.notes)


def _explained(kernels: list[ExplainedKernel], key: str) -> Iterator[str]:
    for number, kernel in enumerate(kernels, 1):
        is_open = " open" if number <= _UNFOLDED_FINDINGS else ""
        title = html_text(shorten_middle(kernel.title, _MAX_TITLE_CHARACTERS))
        yield f'<details class="finding" id="{key}-{number}"{is_open}><summary>'
        yield f'<span class="rank">{number}</span>'
        yield f"<h3>{title}</h3><em>{html_text(gain_phrase(kernel.findings[0]))}</em></summary>"
        yield '<div class="told">'
        yield from diagnosis_page.kernel_explanation(kernel)
        yield "</div></details>"
