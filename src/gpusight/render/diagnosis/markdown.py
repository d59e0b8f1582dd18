"""A diagnosis as Markdown, to paste into an issue or a pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight import units
from gpusight.render.diagnosis.parts import explained, trust, value_of, verdict
from gpusight.render.diagnosis.tables import overview
from gpusight.render.markdown import code, escape, table, to_markdown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.findings.finding import Finding
    from gpusight.findings.kernels.diagnosis import Diagnosis


def to_document(diagnosis: Diagnosis, *, limit: int, details: int) -> str:
    """Write a diagnosis; `limit` rows of the overview, `details` kernels explained; 0 for all."""
    return "\n".join(_lines(diagnosis, limit, details)) + "\n"


def _lines(diagnosis: Diagnosis, limit: int, details: int) -> Iterator[str]:
    yield to_markdown(overview(diagnosis), limit=limit)
    whole = diagnosis.duration_ns
    if whole:
        saved = units.format_time(diagnosis.saved_ns)
        yield f"The first fix of each kernel together: {saved} of {units.format_time(whole)}."
    for note in diagnosis.notes:
        yield from ("", f"> {escape(note)}")
    worth = [g for g in diagnosis.groups if g.findings]
    for number, group in enumerate(worth[:details] if details else worth, 1):
        kernel = explained(diagnosis, group)
        yield from ("", f"### {number}. {code(kernel.title)}", "", escape(kernel.subtitle) + ".")
        for finding in kernel.findings:
            yield from _finding(finding)
        if kernel.profiler:
            yield from ("", "Nsight Compute's own rules:", "")
            yield from (f"- {escape(said)}" for said in kernel.profiler)


def _finding(finding: Finding) -> Iterator[str]:
    yield from ("", f"**{finding.rule}**: {escape(finding.title)} ({escape(verdict(finding))})", "")
    yield f"Gain: {escape(trust(finding))}."
    rows = [(escape(value_of(e)), escape(e.meaning)) for e in finding.evidence]
    if rows:
        yield from ("", table(("value", "what"), (True, False), rows))
    for place in finding.places:
        share = units.format_share(place.share)
        yield from ("", f"- {share} {code(f'{place.path}:{place.line}')} {code(place.text)}")
    yield from ("", f"{escape(finding.why)} {escape(finding.fix)}", "", "```cuda")
    yield from (
        finding.code.rstrip("\n"),
        "```",
        "",
        f"When it misleads: {escape(finding.misleads)}",
    )
