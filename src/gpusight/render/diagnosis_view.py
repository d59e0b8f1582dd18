"""A diagnosis in every format: of kernels, of a timeline or of both."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from gpusight import units
from gpusight.render import diagnosis_text
from gpusight.render.diagnosis_summary import (
    diagnosis_head,
    measured_kernel_table,
    timeline_finding_table,
)
from gpusight.render.explanation import (
    ExplainedKernel,
    StyledLine,
    draw_lines,
    explain_kernel,
    kernel_finding_table,
    plain_lines,
)
from gpusight.render.html import diagnosis_page
from gpusight.render.html.html_templates import html_page, markup
from gpusight.render.markdown_tables import to_markdown
from gpusight.render.result_view import Renderer
from gpusight.render.table_layout import TableOptions
from gpusight.render.terminal_tables import to_plain
from gpusight.rules.diagnosis import KernelReportDiagnosis, TimelineDiagnosis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from markupsafe import Markup

    from gpusight.results import TableResult
    from gpusight.rules.diagnosis import AnyDiagnosis, JoinedDiagnosis, TimedKernel


DETAILS = 3
"""Findings or kernels that a screen explains."""


def diagnosis_to_text(found: AnyDiagnosis, look: TableOptions, *, details: int = DETAILS) -> str:
    """Write a diagnosis as plain text; `details` of its findings are explained, 0 for all."""
    if isinstance(found, KernelReportDiagnosis):
        return diagnosis_text.kernels_to_text(found, look, details=details)
    if isinstance(found, TimelineDiagnosis):
        return diagnosis_text.timeline_to_text(found, look, details=details)
    above = diagnosis_text.timeline_to_text(found.timeline, look, details=details)
    return f"{above}\n{kernels_text(found, look, details=details)}"


def kernels_text(found: JoinedDiagnosis, look: TableOptions, *, details: int) -> str:
    """Write what was measured of a timeline's kernels as plain text."""
    table = to_plain(measured_kernel_table(found), look)
    return f"{table}{plain_lines(_kernel_lines(found, look, details))}"


def print_diagnosis(
    found: AnyDiagnosis, look: TableOptions, stream: TextIO, *, details: int = DETAILS
) -> None:
    """Draw a diagnosis with colours on a stream that takes them."""
    if isinstance(found, KernelReportDiagnosis):
        diagnosis_text.print_kernels(found, look, stream, details=details)
    elif isinstance(found, TimelineDiagnosis):
        diagnosis_text.print_timeline(found, look, stream, details=details)
    else:
        from gpusight.render.terminal_tables import print_colored

        diagnosis_text.print_timeline(found.timeline, look, stream, details=details)
        draw_lines([StyledLine("")], stream)
        print_colored(measured_kernel_table(found), look, stream)
        draw_lines(_kernel_lines(found, look, details), stream)


def diagnosis_to_markdown(
    found: AnyDiagnosis, *, limit: int | None = None, details: int = 0
) -> str:
    """Write a diagnosis as Markdown; 0 for all."""
    limit = limit or 0
    if isinstance(found, KernelReportDiagnosis):
        return diagnosis_text.kernels_to_markdown(found, limit=limit, details=details)
    if isinstance(found, TimelineDiagnosis):
        return diagnosis_text.timeline_to_markdown(found, limit=limit, details=details)
    above = diagnosis_text.timeline_to_markdown(found.timeline, limit=limit, details=details)
    return f"{above}\n{kernels_markdown(found, limit=limit, details=details)}"


def kernels_markdown(found: JoinedDiagnosis, *, limit: int, details: int) -> str:
    """Write what was measured of a timeline's kernels as Markdown; 0 for all."""
    table = to_markdown(measured_kernel_table(found), limit=limit)
    kernels = "\n".join(
        line
        for number, kernel in enumerate(explained_kernels(found, details), 1)
        for line in diagnosis_text.kernel_markdown(kernel, number)
    )
    return f"{table}{kernels}\n"


def diagnosis_to_fragment(
    found: AnyDiagnosis, *, limit: int | None, details: int = DETAILS
) -> Markup:
    """Write a diagnosis as HTML for a notebook; 0 for all."""
    limit = limit or 0
    if isinstance(found, KernelReportDiagnosis):
        return diagnosis_page.kernels_to_fragment(found, limit=limit, details=details)
    if isinstance(found, TimelineDiagnosis):
        return diagnosis_page.timeline_to_fragment(found, limit=limit, details=details)
    above = diagnosis_page.timeline_to_fragment(found.timeline, limit=limit, details=details)
    return markup(f"{above}\n{kernels_fragment(found, limit=limit, details=details)}")


def kernels_fragment(found: JoinedDiagnosis, *, limit: int, details: int) -> Markup:
    """Write what was measured of a timeline's kernels as HTML for a notebook; 0 for all."""
    kernels = explained_kernels(found, details)
    return diagnosis_page.kernel_fragment(measured_kernel_table(found), kernels, limit=limit)


def diagnosis_to_page(found: AnyDiagnosis, *, limit: int | None = None, details: int = 0) -> str:
    """Write a diagnosis as an HTML page of its own; 0 for all."""
    limit = limit or 0
    if isinstance(found, KernelReportDiagnosis):
        return diagnosis_page.kernels_to_page(found, limit=limit, details=details)
    if isinstance(found, TimelineDiagnosis):
        return diagnosis_page.timeline_to_page(found, limit=limit, details=details)
    body = diagnosis_to_fragment(found, limit=limit, details=details)
    return html_page(found.title, diagnosis_head(found.timeline), body)


def diagnosis_table(found: AnyDiagnosis) -> TableResult:
    """Give every finding as a row; of both together, those of the timeline."""
    if isinstance(found, KernelReportDiagnosis):
        return kernel_finding_table(found)
    timeline = found if isinstance(found, TimelineDiagnosis) else found.timeline
    return timeline_finding_table(timeline)


def diagnosis_document(found: AnyDiagnosis, *, limit: int | None = None) -> dict[str, Any]:
    """Give what `--format json` writes; `limit` findings or kernels of it, None or 0 for all."""
    if isinstance(found, KernelReportDiagnosis):
        return found.document(limit=limit)
    told = found.document()
    for listed in ("findings", "kernels"):
        if limit and listed in told:
            told[listed] = told[listed][:limit]
    return told


def _kernel_lines(found: JoinedDiagnosis, look: TableOptions, details: int) -> Iterator[StyledLine]:
    for number, kernel in enumerate(explained_kernels(found, details), 1):
        yield StyledLine("")
        yield from diagnosis_text.kernel_lines(kernel, number, look.width)


def explained_kernels(found: JoinedDiagnosis, details: int) -> list[ExplainedKernel]:
    """Explain the kernels that are worth it, 0 for all; times are those of a timeline's step."""
    worth = [kernel for kernel in found.kernels if kernel.finding is not None]
    return [_in_timeline(found, kernel) for kernel in worth[: details or None]]


def _in_timeline(found: JoinedDiagnosis, kernel: TimedKernel) -> ExplainedKernel:
    told = explain_kernel(found.report, kernel.group)
    time_ns = kernel.time_ns / max(1, found.timeline.steps)
    each = " a step" if found.timeline.steps else ""
    share = units.format_share(kernel.time_ns / max(1, found.timeline.focus.length_ns))
    here = f"{units.format_time(time_ns)}{each}, {share} of the window"
    return replace(
        told,
        subtitle=f"{here}; measured: {told.subtitle}",
        findings=tuple(replace(finding, time_ns=time_ns) for finding in told.findings),
    )


DIAGNOSIS_RENDERER = Renderer(
    rows=diagnosis_table,
    document=diagnosis_document,
    text=diagnosis_to_text,
    print=print_diagnosis,
    markdown=diagnosis_to_markdown,
    fragment=diagnosis_to_fragment,
    page=diagnosis_to_page,
    look=TableOptions(100, 20, rows_advice="all are in .findings"),
)
