"""A timeline's diagnosis as one HTML page: the ledger as a bar, each finding as a card."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight import units
from gpusight.render.diagnosis import timeline_parts as parts
from gpusight.render.diagnosis.page import code, notes, page, prose, seen, text
from gpusight.render.diagnosis.parts import trust
from gpusight.render.pictures.theme import LIGHT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.analyses.ledger.ledger import DeviceLedger
    from gpusight.findings.timeline.diagnosis import TimelineDiagnosis
    from gpusight.findings.timeline.finding import TimelineFinding

_MOST_BARS = 8
_WORK = {"compute": 0, "copy": 2, "communication": 4}
"""Colours of the palette for what a GPU does."""
_IDLE = (1, 3, 5)
"""And for why it does nothing, the largest cause first."""


def to_page(diagnosis: TimelineDiagnosis, *, limit: int = 0, details: int = 0) -> str:
    """Write a page of its own."""
    body = to_fragment(diagnosis, limit=limit, details=details)
    return page(diagnosis.title, parts.head(diagnosis), body)


def to_fragment(diagnosis: TimelineDiagnosis, *, limit: int, details: int) -> str:
    """Write the ledger, the findings and the foremost of them explained; 0 for all."""
    return "\n".join(_parts(diagnosis, limit, details))


def _parts(diagnosis: TimelineDiagnosis, limit: int, details: int) -> Iterator[str]:
    yield from notes(diagnosis.notes)
    for device in diagnosis.ledger.devices[:_MOST_BARS]:
        yield from _ledger(device, several=len(diagnosis.ledger.devices) > 1)
    verdict = parts.verdict(diagnosis)
    if verdict:
        yield f"<p><b>{text(verdict)}</b></p>"
    yield from overview(diagnosis, diagnosis.findings[: limit or None])
    for number, finding in enumerate(diagnosis.findings[: details or None], 1):
        yield from _card(diagnosis, finding, number)
    yield from foot(diagnosis)


def _ledger(device: DeviceLedger, *, several: bool) -> Iterator[str]:
    found = parts.slices(device)
    colours = _colours(found)
    told = parts.slice_texts(found)
    if several:
        yield f'<p class="sub">GPU {device.device}</p>'
    bar = "".join(
        f'<span style="display:inline-block;height:22px;width:{100 * one.share:.3f}%;'
        f'background:{colour}" title="{text(words)}"></span>'
        for one, colour, words in zip(found, colours, told, strict=True)
    )
    yield f'<div class="bar" style="font-size:0;white-space:nowrap">{bar}</div>'
    legend = "".join(
        f'<li><span style="display:inline-block;width:10px;height:10px;background:{colour}">'
        f"</span> {text(words)}</li>"
        for colour, words in zip(colours, told, strict=True)
    )
    yield f'<ul class="legend">{legend}</ul>'
    kinds = parts.computing(device)
    if len(kinds) > 1:
        yield f'<p class="sub">Computing: {text(", ".join(parts.slice_texts(kinds)))}</p>'


def _colours(found: list[parts.Slice]) -> list[str]:
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


def overview(diagnosis: TimelineDiagnosis, found: tuple[TimelineFinding, ...]) -> Iterator[str]:
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
        alone, after = map(text, times)
        yield f'<tr><td{right}>{number}</td><td class="finding"><b>{text(finding.rule)}</b>: '
        yield f"{prose(finding.title)}</td><td{right}>{alone}</td>"
        yield f"<td{right}>{text(units.format_share(finding.share))}</td><td{right}>{after}</td>"
        yield f"<td>{text(parts.confidence(finding))}</td></tr>"
    yield "</tbody></table></div>"


def _card(diagnosis: TimelineDiagnosis, finding: TimelineFinding, number: int) -> Iterator[str]:
    yield f'<section class="kernel"><h2>{number}. {prose(finding.title)}</h2>'
    yield f'<p class="sub">{text(finding.rule)}</p>'
    yield from explanation(diagnosis, finding)
    yield "</section>"


def explanation(diagnosis: TimelineDiagnosis, finding: TimelineFinding) -> Iterator[str]:
    """Write what is said of a finding below its title."""
    yield f"<p><em>{text(parts.gain(diagnosis, finding))}</em></p>"
    yield f'<div class="facts"><table>{"".join(seen(finding.evidence))}</table>'
    yield f"<table>{''.join(_places(diagnosis, finding))}</table></div>"
    yield f"<p>{prose(finding.why)}</p><p><b>Fix.</b> {prose(finding.fix)}</p>"
    if finding.code:
        yield code(finding.code)
    if finding.afterwards:
        yield f"<p><b>Check afterwards.</b> {prose(finding.afterwards)}</p>"
    yield f'<p class="sub">Estimate: {prose(trust(finding))}.</p>'
    yield f'<p class="sub">When it misleads: {prose(finding.misleads)}</p>'


def _places(diagnosis: TimelineDiagnosis, finding: TimelineFinding) -> Iterator[str]:
    for where in finding.where:
        time, often = map(text, parts.place(diagnosis, where))
        name = f"{text(where.kind)} <code>{text(where.name)}</code>" + (often and f", {often}")
        yield f'<tr><td style="text-align:right">{time}</td><td>{name}</td></tr>'


def foot(diagnosis: TimelineDiagnosis) -> Iterator[str]:
    """Say how gains were told, and which rules found nothing or could not be judged."""
    if diagnosis.findings:
        yield f'<p class="sub foot">{text(parts.replayed(diagnosis))}</p>'
    if diagnosis.clean:
        rules = text(", ".join(diagnosis.clean))
        yield f"<details><summary>{_rules(len(diagnosis.clean))} found nothing</summary>"
        yield f"<p>{rules}</p></details>"
    for rules, by in parts.covered(diagnosis):
        yield f'<p class="sub foot">Covered by {text(by)}: {text(rules)}</p>'
    absent = parts.not_judged(diagnosis)
    if absent:
        count = len(diagnosis.not_applicable) - len(diagnosis.covered)
        yield f"<details><summary>{_rules(count)} could not be judged</summary><ul>"
        yield from (f"<li><b>{text(rules)}</b>: {prose(why)}</li>" for rules, why in absent)
        yield "</ul></details>"


def _rules(count: int) -> str:
    return "1 rule" if count == 1 else f"{count} rules"
