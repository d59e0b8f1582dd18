"""A timeline's diagnosis as Markdown, to paste into an issue or a pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight import units
from gpusight.render.diagnosis import timeline_parts as parts
from gpusight.render.diagnosis.markdown import fenced, seen
from gpusight.render.diagnosis.parts import trust
from gpusight.render.markdown import code, escape, prose, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.findings.timeline.diagnosis import TimelineDiagnosis
    from gpusight.findings.timeline.finding import TimelineFinding


def to_document(diagnosis: TimelineDiagnosis, *, limit: int, details: int) -> str:
    """Write a diagnosis; `limit` findings listed, `details` of them explained; 0 for all."""
    return "\n".join(_lines(diagnosis, limit, details)) + "\n"


def _lines(diagnosis: TimelineDiagnosis, limit: int, details: int) -> Iterator[str]:
    yield from (f"## {escape(diagnosis.title)}", "", f"{escape(parts.head(diagnosis))}.")
    for note in diagnosis.notes:
        yield from ("", f"> {prose(note)}")
    yield from _ledger(diagnosis)
    verdict = parts.verdict(diagnosis)
    if verdict:
        yield from ("", f"**{prose(verdict)}**")
    found = diagnosis.findings[: limit or None]
    if found:
        yield from ("", _overview(diagnosis, found))
    for number, finding in enumerate(diagnosis.findings[: details or None], 1):
        yield from _explained(diagnosis, finding, number)
    yield from _foot(diagnosis)


def _ledger(diagnosis: TimelineDiagnosis) -> Iterator[str]:
    for device in diagnosis.ledger.devices:
        told = [escape(one) for one in parts.slice_texts(parts.slices(device))]
        kinds = [escape(one) for one in parts.slice_texts(parts.computing(device))]
        computing = f" Computing: {', '.join(kinds)}." if kinds else ""
        yield from ("", f"GPU {device.device}: {', '.join(told)}.{computing}")


def _overview(diagnosis: TimelineDiagnosis, found: tuple[TimelineFinding, ...]) -> str:
    each = "saves a step" if diagnosis.steps else "saves"
    rows = [
        (
            code(finding.rule),
            prose(finding.title),
            parts.per_step(diagnosis, finding.recoverable_ns),
            escape(units.format_share(finding.share)),
            parts.per_step(diagnosis, finding.after_ns),
            parts.confidence(finding),
        )
        for finding in found
    ]
    headings = ("finding", "what was seen", each, "share", "after those above", "confidence")
    return table(headings, (False, False, True, True, True, False), rows)


def _explained(
    diagnosis: TimelineDiagnosis, finding: TimelineFinding, number: int
) -> Iterator[str]:
    yield from ("", f"### {number}. {finding.rule}: {prose(finding.title)}", "")
    yield f"Gain: {escape(parts.gain(diagnosis, finding))}. {prose(trust(finding))}."
    yield from seen(finding.evidence)
    for number, where in enumerate(finding.where):
        told = ", ".join(filter(None, parts.place(diagnosis, where)))
        lead = ("",) if number == 0 else ()
        yield from (*lead, f"- {where.kind} {code(where.name)}: {escape(told)}")
    yield from ("", f"{prose(finding.why)} {prose(finding.fix)}")
    if finding.code:
        yield from fenced(finding.code, parts.language(finding.code))
    if finding.afterwards:
        yield from ("", f"Check afterwards: {prose(finding.afterwards)}")
    yield from ("", f"When it misleads: {prose(finding.misleads)}")


def _foot(diagnosis: TimelineDiagnosis) -> Iterator[str]:
    if diagnosis.findings:
        yield from ("", escape(parts.replayed(diagnosis)))
    if diagnosis.clean:
        yield from ("", f"Nothing found by: {', '.join(map(code, diagnosis.clean))}.")
    for rules, by in parts.covered(diagnosis):
        yield from ("", f"Covered by {code(by)}: {escape(rules)}.")
    for number, (rules, reason) in enumerate(parts.not_judged(diagnosis)):
        lead = ("", "Not judged:", "") if number == 0 else ()
        yield from (*lead, f"- {escape(rules)}: {prose(reason)}")
