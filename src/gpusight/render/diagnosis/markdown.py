"""A diagnosis as Markdown, to paste into an issue or a pull request."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpusight import units
from gpusight.render.cells import safe_text
from gpusight.render.diagnosis.parts import Explained, explained, trust, value_of, verdict
from gpusight.render.diagnosis.tables import overview
from gpusight.render.markdown import code, escape, table, to_markdown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.findings.finding import Evidence, Finding
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
        yield from kernel_lines(explained(diagnosis, group), number)


def kernel_lines(kernel: Explained, number: int) -> Iterator[str]:
    """Explain one kernel."""
    yield from ("", f"### {number}. {code(kernel.title)}", "", escape(kernel.subtitle) + ".")
    for finding in kernel.findings:
        yield from _finding(finding)
    if kernel.profiler:
        yield from ("", "Nsight Compute's own rules:", "")
        yield from (f"- {escape(said)}" for said in kernel.profiler)


def _finding(finding: Finding) -> Iterator[str]:
    yield from ("", f"**{finding.rule}**: {escape(finding.title)} ({escape(verdict(finding))})", "")
    yield f"Gain: {escape(trust(finding))}."
    yield from seen(finding.evidence)
    for place in finding.places:
        share = units.format_share(place.share)
        yield from ("", f"- {share} {code(f'{place.path}:{place.line}')} {code(place.text)}")
    yield from ("", f"{escape(finding.why)} {escape(finding.fix)}")
    yield from fenced(finding.code, "cuda")
    yield from ("", f"When it misleads: {escape(finding.misleads)}")


def seen(evidence: tuple[Evidence, ...]) -> Iterator[str]:
    """Write the numbers of a finding as a table."""
    rows = [(escape(value_of(e)), escape(e.meaning)) for e in evidence]
    if rows:
        yield from ("", table(("value", "what"), (True, False), rows))


def fenced(lines: str, language: str) -> Iterator[str]:
    """Write lines to paste, behind a fence that nothing in them closes."""
    shown = [safe_text(line) for line in lines.rstrip("\n").splitlines()]
    longest = max((len(run) for line in shown for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    yield from ("", f"{fence}{language}", *shown, fence)
