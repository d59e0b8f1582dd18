"""Every form of every kind of diagnosis: of kernels, of a timeline, of both together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from gpusight import units
from gpusight.findings.kernels.diagnosis import Diagnosis
from gpusight.findings.timeline.diagnosis import TimelineDiagnosis
from gpusight.render.diagnosis import (
    html,
    markdown,
    text,
    timeline_html,
    timeline_markdown,
    timeline_text,
)
from gpusight.render.diagnosis.lines import Line, draw, plain
from gpusight.render.diagnosis.page import page
from gpusight.render.diagnosis.parts import Explained, explained
from gpusight.render.diagnosis.tables import every_finding
from gpusight.render.diagnosis.timeline_parts import head
from gpusight.render.diagnosis.timeline_tables import every_timeline_finding, measured_kernels
from gpusight.render.html import to_html
from gpusight.render.markdown import to_markdown
from gpusight.render.plain import to_plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.findings.diagnose import AnyDiagnosis
    from gpusight.findings.joined import JoinedDiagnosis, TimedKernel
    from gpusight.render.layout import Look
    from gpusight.result import TableResult


def as_text(found: AnyDiagnosis, look: Look, *, details: int) -> str:
    """Write a diagnosis as plain text; `details` of its findings are explained, 0 for all."""
    if isinstance(found, Diagnosis):
        return text.to_text(found, look, details=details)
    if isinstance(found, TimelineDiagnosis):
        return timeline_text.to_text(found, look, details=details)
    above = timeline_text.to_text(found.timeline, look, details=details)
    return f"{above}\n{kernels_text(found, look, details=details)}"


def kernels_text(found: JoinedDiagnosis, look: Look, *, details: int) -> str:
    """Write what was measured of a timeline's kernels as plain text."""
    table = to_plain(measured_kernels(found), look)
    return f"{table}{plain(_kernel_lines(found, look, details))}"


def print_text(found: AnyDiagnosis, look: Look, stream: TextIO, *, details: int) -> None:
    """Draw a diagnosis with colours on a stream that takes them."""
    if isinstance(found, Diagnosis):
        text.print_text(found, look, stream, details=details)
    elif isinstance(found, TimelineDiagnosis):
        timeline_text.print_text(found, look, stream, details=details)
    else:
        from gpusight.render.terminal import print_colored

        timeline_text.print_text(found.timeline, look, stream, details=details)
        draw([Line("")], stream)
        print_colored(measured_kernels(found), look, stream)
        draw(_kernel_lines(found, look, details), stream)


def as_markdown(found: AnyDiagnosis, *, limit: int, details: int) -> str:
    """Write a diagnosis as Markdown; 0 for all."""
    if isinstance(found, Diagnosis):
        return markdown.to_document(found, limit=limit, details=details)
    if isinstance(found, TimelineDiagnosis):
        return timeline_markdown.to_document(found, limit=limit, details=details)
    above = timeline_markdown.to_document(found.timeline, limit=limit, details=details)
    return f"{above}\n{kernels_markdown(found, limit=limit, details=details)}"


def kernels_markdown(found: JoinedDiagnosis, *, limit: int, details: int) -> str:
    """Write what was measured of a timeline's kernels as Markdown; 0 for all."""
    table = to_markdown(measured_kernels(found), limit=limit)
    kernels = "\n".join(
        line
        for number, kernel in enumerate(explained_kernels(found, details), 1)
        for line in markdown.kernel_lines(kernel, number)
    )
    return f"{table}{kernels}\n"


def as_fragment(found: AnyDiagnosis, *, limit: int, details: int) -> str:
    """Write a diagnosis as HTML for a notebook; 0 for all."""
    if isinstance(found, Diagnosis):
        return html.to_fragment(found, limit=limit, details=details)
    if isinstance(found, TimelineDiagnosis):
        return timeline_html.to_fragment(found, limit=limit, details=details)
    above = timeline_html.to_fragment(found.timeline, limit=limit, details=details)
    return f"{above}\n{kernels_fragment(found, limit=limit, details=details)}"


def kernels_fragment(found: JoinedDiagnosis, *, limit: int, details: int) -> str:
    """Write what was measured of a timeline's kernels as HTML for a notebook; 0 for all."""
    table = to_html(measured_kernels(found), limit=limit)
    kernels = (
        part
        for number, kernel in enumerate(explained_kernels(found, details), 1)
        for part in html.kernel_section(kernel, number)
    )
    return "\n".join((f'<div class="report">{table}</div>', *kernels))


def as_page(found: AnyDiagnosis, *, limit: int = 0, details: int = 0) -> str:
    """Write a diagnosis as an HTML page of its own; 0 for all."""
    if isinstance(found, Diagnosis):
        return html.to_page(found, limit=limit, details=details)
    if isinstance(found, TimelineDiagnosis):
        return timeline_html.to_page(found, limit=limit, details=details)
    body = as_fragment(found, limit=limit, details=details)
    return page(found.title, head(found.timeline), body)


def as_table(found: AnyDiagnosis) -> TableResult:
    """Give every finding as a row; of both together, those of the timeline."""
    if isinstance(found, Diagnosis):
        return every_finding(found)
    timeline = found if isinstance(found, TimelineDiagnosis) else found.timeline
    return every_timeline_finding(timeline)


def document(found: AnyDiagnosis, *, limit: int | None = None) -> dict[str, Any]:
    """Give what `--format json` writes; `limit` findings or kernels of it, None or 0 for all."""
    if isinstance(found, Diagnosis):
        return found.document(limit=limit)
    told = found.document()
    for listed in ("findings", "kernels"):
        if limit and listed in told:
            told[listed] = told[listed][:limit]
    return told


def _kernel_lines(found: JoinedDiagnosis, look: Look, details: int) -> Iterator[Line]:
    for number, kernel in enumerate(explained_kernels(found, details), 1):
        yield Line("")
        yield from text.kernel_lines(kernel, number, look.width)


def explained_kernels(found: JoinedDiagnosis, details: int) -> list[Explained]:
    """Explain the kernels that are worth it, 0 for all; times are those of a timeline's step."""
    worth = [kernel for kernel in found.kernels if kernel.finding is not None]
    return [_in_timeline(found, kernel) for kernel in worth[: details or None]]


def _in_timeline(found: JoinedDiagnosis, kernel: TimedKernel) -> Explained:
    told = explained(found.report, kernel.group)
    time_ns = kernel.time_ns / max(1, found.timeline.steps)
    each = " a step" if found.timeline.steps else ""
    share = units.format_share(kernel.time_ns / max(1, found.timeline.focus.length_ns))
    here = f"{units.format_time(time_ns)}{each}, {share} of the window"
    return replace(
        told,
        subtitle=f"{here}; measured: {told.subtitle}",
        findings=tuple(replace(finding, time_ns=time_ns) for finding in told.findings),
    )
