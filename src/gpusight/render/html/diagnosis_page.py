"""A diagnosis as one self-contained HTML page, and as a fragment for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight import units
from gpusight.render import diagnosis_summary as parts
from gpusight.render.charts.chart_colors import LIGHT
from gpusight.render.explanation import (
    ExplainedKernel,
    confidence_sentence,
    explain_kernel,
    gain_phrase,
    kernel_overview,
)
from gpusight.render.html.html_parts import (
    evidence_rows,
    html_code,
    html_notes,
    html_page,
    html_prose,
    html_text,
    to_html,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.analysis.ledger.device_ledger import DeviceLedger
    from gpusight.rules.diagnosis_results import KernelReportDiagnosis, TimelineDiagnosis
    from gpusight.rules.finding import KernelFinding, TimelineFinding


def kernels_to_fragment(diagnosis: KernelReportDiagnosis, *, limit: int, details: int) -> str:
    """Write the overview and the foremost kernels, for a notebook; 0 for all."""
    return "\n".join(_kernels_html(diagnosis, limit, details))


def kernels_to_page(diagnosis: KernelReportDiagnosis, *, limit: int = 0, details: int = 0) -> str:
    """Write a page of its own."""
    title = "Kernel diagnosis"
    gpus = ", ".join(map(str, diagnosis.meta.get("gpus", ())))
    tool = " ".join(filter(None, (diagnosis.meta.get("tool"), diagnosis.meta.get("tool_version"))))
    subtitle = "; ".join(filter(None, (gpus, tool)))
    return html_page(title, subtitle, kernels_to_fragment(diagnosis, limit=limit, details=details))


def _kernels_html(diagnosis: KernelReportDiagnosis, limit: int, details: int) -> Iterator[str]:
    yield f'<div class="report">{to_html(kernel_overview(diagnosis), limit=limit)}</div>'
    if diagnosis.duration_ns:
        saved = units.format_time(diagnosis.saved_ns)
        whole = units.format_time(diagnosis.duration_ns)
        yield f"<p>The first fix of each kernel together: <b>{saved}</b> of {whole}.</p>"
    yield from html_notes(diagnosis.notes)
    worth = [g for g in diagnosis.groups if g.findings]
    for number, group in enumerate(worth[:details] if details else worth, 1):
        yield from kernel_section(explain_kernel(diagnosis, group), number)


def kernel_section(kernel: ExplainedKernel, number: int) -> Iterator[str]:
    """Explain one kernel."""
    yield f'<section class="kernel"><h2>{number}. {html_text(kernel.title)}</h2>'
    yield from kernel_explanation(kernel)
    yield "</section>"


def kernel_explanation(kernel: ExplainedKernel) -> Iterator[str]:
    """Write what is said of a kernel below its title."""
    yield f'<p class="sub">{html_text(kernel.subtitle)}</p>'
    for rank, finding in enumerate(kernel.findings):
        yield from _finding(finding, is_open=rank == 0)
    if kernel.profiler:
        said = "".join(f"<li>{html_text(one)}</li>" for one in kernel.profiler)
        yield f"<details><summary>Nsight Compute's own rules</summary><ul>{said}</ul></details>"


def _finding(finding: KernelFinding, *, is_open: bool) -> Iterator[str]:
    yield f"<details{' open' if is_open else ''}><summary><b>{html_text(finding.rule)}</b>: "
    yield f"{html_text(finding.title)} <em>{html_text(gain_phrase(finding))}</em></summary>"
    yield f"<p>Gain: {html_text(confidence_sentence(finding))}.</p><table>"
    yield from evidence_rows(finding.evidence)
    for place in finding.places:
        share = html_text(units.format_share(place.share))
        where = f"{html_text(place.path)}:{place.line} <code>{html_text(place.text)}</code>"
        yield f'<tr><td style="text-align:right">{share}</td><td>{where}</td></tr>'
    yield (
        f"</table><p>{html_text(finding.why)} {html_text(finding.fix)}</p>{html_code(finding.code)}"
    )
    yield f'<p class="sub">When it misleads: {html_text(finding.caveats)}</p></details>'


_MAX_BARS = 8
_WORK = {"compute": 0, "copy": 2, "communication": 4}
"""Colours of the palette for what a GPU does."""
_IDLE = (1, 3, 5)
"""And for why it does nothing, the largest cause first."""


def timeline_to_page(diagnosis: TimelineDiagnosis, *, limit: int = 0, details: int = 0) -> str:
    """Write a page of its own."""
    body = timeline_to_fragment(diagnosis, limit=limit, details=details)
    return html_page(diagnosis.title, parts.diagnosis_head(diagnosis), body)


def timeline_to_fragment(diagnosis: TimelineDiagnosis, *, limit: int, details: int) -> str:
    """Write the ledger, the findings and the foremost of them explained; 0 for all."""
    return "\n".join(_timeline_html(diagnosis, limit, details))


def _timeline_html(diagnosis: TimelineDiagnosis, limit: int, details: int) -> Iterator[str]:
    yield from html_notes(diagnosis.notes)
    for device in diagnosis.ledger.devices[:_MAX_BARS]:
        yield from _ledger(device, several=len(diagnosis.ledger.devices) > 1)
    verdict = parts.timeline_verdict(diagnosis)
    if verdict:
        yield f"<p><b>{html_text(verdict)}</b></p>"
    yield from timeline_overview(diagnosis, diagnosis.findings[: limit or None])
    for number, finding in enumerate(diagnosis.findings[: details or None], 1):
        yield from _card(diagnosis, finding, number)
    yield from timeline_foot(diagnosis)


def _ledger(device: DeviceLedger, *, several: bool) -> Iterator[str]:
    found = parts.slices(device)
    colours = _colors(found)
    told = parts.slice_texts(found)
    if several:
        yield f'<p class="sub">GPU {device.device}</p>'
    bar = "".join(
        f'<span style="display:inline-block;height:22px;width:{100 * one.share:.3f}%;'
        f'background:{colour}" title="{html_text(words)}"></span>'
        for one, colour, words in zip(found, colours, told, strict=True)
    )
    yield f'<div class="bar" style="font-size:0;white-space:nowrap">{bar}</div>'
    legend = "".join(
        f'<li><span style="display:inline-block;width:10px;height:10px;background:{colour}">'
        f"</span> {html_text(words)}</li>"
        for colour, words in zip(colours, told, strict=True)
    )
    yield f'<ul class="legend">{legend}</ul>'
    kinds = parts.computing(device)
    if len(kinds) > 1:
        yield f'<p class="sub">Computing: {html_text(", ".join(parts.slice_texts(kinds)))}</p>'


def _colors(found: list[parts.LedgerSlice]) -> list[str]:
    """Give each part a colour of the theme, with one to fall back on outside of the page."""
    left = list(_IDLE)
    colours = []
    for one in found:
        work = _WORK.get(one.name.split("/")[0])
        if work is not None:
            colours.append(_palette(work))
        elif one.idle and left:
            colours.append(_palette(left.pop(0)))
        else:
            colours.append(f"var(--quiet,{LIGHT.quiet})")
    return colours


def _palette(number: int) -> str:
    return f"var(--series-{number},{LIGHT.palette[number]})"


def timeline_overview(
    diagnosis: TimelineDiagnosis, found: tuple[TimelineFinding, ...]
) -> Iterator[str]:
    """List findings in a table; nothing where there are none."""
    if not found:
        return
    each = "Saves a step" if diagnosis.steps else "Saves"
    right = ' style="text-align:right"'
    yield '<div class="report"><table><thead><tr><th></th><th style="text-align:left">Finding</th>'
    yield f"<th{right}>{each}</th><th{right}>Share</th><th{right}>After those above</th>"
    yield '<th style="text-align:left">Confidence</th></tr></thead><tbody>'
    for number, finding in enumerate(found, 1):
        times = (parts.per_step(diagnosis, ns) for ns in (finding.recoverable_ns, finding.after_ns))
        alone, after = map(html_text, times)
        yield f'<tr><td{right}>{number}</td><td class="finding"><b>{html_text(finding.rule)}</b>: '
        yield f"{html_prose(finding.title)}</td><td{right}>{alone}</td>"
        yield (
            f"<td{right}>{html_text(units.format_share(finding.share))}</td><td{right}>{after}</td>"
        )
        yield f"<td>{html_text(parts.confidence(finding))}</td></tr>"
    yield "</tbody></table></div>"


def _card(diagnosis: TimelineDiagnosis, finding: TimelineFinding, number: int) -> Iterator[str]:
    yield f'<section class="kernel"><h2>{number}. {html_prose(finding.title)}</h2>'
    yield f'<p class="sub">{html_text(finding.rule)}</p>'
    yield from finding_explanation(diagnosis, finding)
    yield "</section>"


def finding_explanation(diagnosis: TimelineDiagnosis, finding: TimelineFinding) -> Iterator[str]:
    """Write what is said of a finding below its title."""
    yield f"<p><em>{html_text(parts.timeline_gain(diagnosis, finding))}</em></p>"
    yield f'<div class="facts"><table>{"".join(evidence_rows(finding.evidence))}</table>'
    yield f"<table>{''.join(_locations(diagnosis, finding))}</table></div>"
    yield f"<p>{html_prose(finding.why)}</p><p><b>Fix.</b> {html_prose(finding.fix)}</p>"
    if finding.code:
        yield html_code(finding.code)
    if finding.verify:
        yield f"<p><b>Check afterwards.</b> {html_prose(finding.verify)}</p>"
    yield f'<p class="sub">Estimate: {html_prose(confidence_sentence(finding))}.</p>'
    yield f'<p class="sub">When it misleads: {html_prose(finding.caveats)}</p>'


def _locations(diagnosis: TimelineDiagnosis, finding: TimelineFinding) -> Iterator[str]:
    for where in finding.where:
        time, often = map(html_text, parts.location_amounts(diagnosis, where))
        name = f"{html_text(where.kind)} <code>{html_text(where.name)}</code>" + (
            often and f", {often}"
        )
        yield f'<tr><td style="text-align:right">{time}</td><td>{name}</td></tr>'


def timeline_foot(diagnosis: TimelineDiagnosis) -> Iterator[str]:
    """Say how gains were told, and which rules found nothing or could not be judged."""
    if diagnosis.findings:
        yield f'<p class="sub foot">{html_text(parts.replayed(diagnosis))}</p>'
    if diagnosis.clean:
        rules = html_text(", ".join(diagnosis.clean))
        yield f"<details><summary>{_rules(len(diagnosis.clean))} found nothing</summary>"
        yield f"<p>{rules}</p></details>"
    for rules, by in parts.covered(diagnosis):
        yield f'<p class="sub foot">Covered by {html_text(by)}: {html_text(rules)}</p>'
    absent = parts.not_evaluated(diagnosis)
    if absent:
        count = len(diagnosis.not_applicable) - len(diagnosis.covered)
        yield f"<details><summary>{_rules(count)} could not be judged</summary><ul>"
        yield from (
            f"<li><b>{html_text(rules)}</b>: {html_prose(why)}</li>" for rules, why in absent
        )
        yield "</ul></details>"


def _rules(count: int) -> str:
    return "1 rule" if count == 1 else f"{count} rules"
