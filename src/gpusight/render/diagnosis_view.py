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
from gpusight.render.explanation import ExplainedKernel, explain_kernel, kernel_finding_table
from gpusight.render.html import diagnosis_page
from gpusight.render.html.html_templates import html_page, markup
from gpusight.render.markdown_tables import to_markdown
from gpusight.render.result_view import Renderer
from gpusight.render.table_layout import TableOptions
from gpusight.render.terminal_tables import to_plain
from gpusight.render.terminal_text import StyledLine, draw_lines, plain_lines
from gpusight.rules.diagnosis import KernelReportDiagnosis, TimelineDiagnosis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from markupsafe import Markup

    from gpusight.results import TableResult
    from gpusight.rules.diagnosis import AnyDiagnosis, JoinedDiagnosis, TimedKernel


DETAILS = 3
"""Findings or kernels that a screen explains."""


def diagnosis_to_text(
    diagnosis: AnyDiagnosis, look: TableOptions, *, details: int = DETAILS
) -> str:
    """Write a diagnosis as plain text; `details` of its findings are explained, 0 for all."""
    if isinstance(diagnosis, KernelReportDiagnosis):
        return diagnosis_text.kernels_to_text(diagnosis, look, details=details)
    if isinstance(diagnosis, TimelineDiagnosis):
        return diagnosis_text.timeline_to_text(diagnosis, look, details=details)
    above = diagnosis_text.timeline_to_text(diagnosis.timeline, look, details=details)
    return f"{above}\n{kernels_text(diagnosis, look, details=details)}"


def kernels_text(diagnosis: JoinedDiagnosis, look: TableOptions, *, details: int) -> str:
    """Write what was measured of a timeline's kernels as plain text."""
    table = to_plain(measured_kernel_table(diagnosis), look)
    return f"{table}{plain_lines(_kernel_lines(diagnosis, look, details))}"


def print_diagnosis(
    diagnosis: AnyDiagnosis, look: TableOptions, stream: TextIO, *, details: int = DETAILS
) -> None:
    """Draw a diagnosis with colours on a stream that takes them."""
    if isinstance(diagnosis, KernelReportDiagnosis):
        diagnosis_text.print_kernels(diagnosis, look, stream, details=details)
    elif isinstance(diagnosis, TimelineDiagnosis):
        diagnosis_text.print_timeline(diagnosis, look, stream, details=details)
    else:
        from gpusight.render.terminal_tables import print_colored

        diagnosis_text.print_timeline(diagnosis.timeline, look, stream, details=details)
        draw_lines([StyledLine("")], stream)
        print_colored(measured_kernel_table(diagnosis), look, stream)
        draw_lines(_kernel_lines(diagnosis, look, details), stream)


def diagnosis_to_markdown(
    diagnosis: AnyDiagnosis, *, limit: int | None = None, details: int = 0
) -> str:
    """Write a diagnosis as Markdown; 0 for all."""
    limit = limit or 0
    if isinstance(diagnosis, KernelReportDiagnosis):
        return diagnosis_text.kernels_to_markdown(diagnosis, limit=limit, details=details)
    if isinstance(diagnosis, TimelineDiagnosis):
        return diagnosis_text.timeline_to_markdown(diagnosis, limit=limit, details=details)
    above = diagnosis_text.timeline_to_markdown(diagnosis.timeline, limit=limit, details=details)
    return f"{above}\n{kernels_markdown(diagnosis, limit=limit, details=details)}"


def kernels_markdown(diagnosis: JoinedDiagnosis, *, limit: int, details: int) -> str:
    """Write what was measured of a timeline's kernels as Markdown; 0 for all."""
    table = to_markdown(measured_kernel_table(diagnosis), limit=limit)
    kernels = "\n".join(
        line
        for number, kernel in enumerate(explained_kernels(diagnosis, details), 1)
        for line in diagnosis_text.kernel_markdown(kernel, number)
    )
    return f"{table}{kernels}\n"


def diagnosis_to_fragment(
    diagnosis: AnyDiagnosis, *, limit: int | None, details: int = DETAILS
) -> Markup:
    """Write a diagnosis as HTML for a notebook; 0 for all."""
    limit = limit or 0
    if isinstance(diagnosis, KernelReportDiagnosis):
        return diagnosis_page.kernels_to_fragment(diagnosis, limit=limit, details=details)
    if isinstance(diagnosis, TimelineDiagnosis):
        return diagnosis_page.timeline_to_fragment(diagnosis, limit=limit, details=details)
    above = diagnosis_page.timeline_to_fragment(diagnosis.timeline, limit=limit, details=details)
    return markup(f"{above}\n{kernels_fragment(diagnosis, limit=limit, details=details)}")


def kernels_fragment(diagnosis: JoinedDiagnosis, *, limit: int, details: int) -> Markup:
    """Write what was measured of a timeline's kernels as HTML for a notebook; 0 for all."""
    kernels = explained_kernels(diagnosis, details)
    return diagnosis_page.kernel_fragment(measured_kernel_table(diagnosis), kernels, limit=limit)


def diagnosis_to_page(
    diagnosis: AnyDiagnosis, *, limit: int | None = None, details: int = 0
) -> str:
    """Write a diagnosis as an HTML page of its own; 0 for all."""
    limit = limit or 0
    if isinstance(diagnosis, KernelReportDiagnosis):
        return diagnosis_page.kernels_to_page(diagnosis, limit=limit, details=details)
    if isinstance(diagnosis, TimelineDiagnosis):
        return diagnosis_page.timeline_to_page(diagnosis, limit=limit, details=details)
    body = diagnosis_to_fragment(diagnosis, limit=limit, details=details)
    return html_page(diagnosis.title, diagnosis_head(diagnosis.timeline), body)


def diagnosis_table(diagnosis: AnyDiagnosis) -> TableResult:
    """Give every finding as a row; of both together, those of the timeline."""
    if isinstance(diagnosis, KernelReportDiagnosis):
        return kernel_finding_table(diagnosis)
    timeline = diagnosis if isinstance(diagnosis, TimelineDiagnosis) else diagnosis.timeline
    return timeline_finding_table(timeline)


def diagnosis_document(diagnosis: AnyDiagnosis, *, limit: int | None = None) -> dict[str, Any]:
    """Give what `--format json` writes; `limit` findings or kernels of it, None or 0 for all."""
    if isinstance(diagnosis, KernelReportDiagnosis):
        return diagnosis.document(limit=limit)
    document = diagnosis.document()
    for listed in ("findings", "kernels"):
        if limit and listed in document:
            document[listed] = document[listed][:limit]
    return document


def _kernel_lines(
    diagnosis: JoinedDiagnosis, look: TableOptions, details: int
) -> Iterator[StyledLine]:
    for number, kernel in enumerate(explained_kernels(diagnosis, details), 1):
        yield StyledLine("")
        yield from diagnosis_text.kernel_lines(kernel, number, look.width)


def explained_kernels(diagnosis: JoinedDiagnosis, details: int) -> list[ExplainedKernel]:
    """Explain the kernels that are worth it, 0 for all; times are those of a timeline's step."""
    worth = [kernel for kernel in diagnosis.kernels if kernel.finding is not None]
    return [_in_timeline(diagnosis, kernel) for kernel in worth[: details or None]]


def _in_timeline(diagnosis: JoinedDiagnosis, kernel: TimedKernel) -> ExplainedKernel:
    explained = explain_kernel(diagnosis.report, kernel.group)
    time_ns = kernel.time_ns / max(1, diagnosis.timeline.steps)
    each = " a step" if diagnosis.timeline.steps else ""
    share = units.format_share(kernel.time_ns / max(1, diagnosis.timeline.focus.length_ns))
    here = f"{units.format_time(time_ns)}{each}, {share} of the window"
    return replace(
        explained,
        subtitle=f"{here}; measured: {explained.subtitle}",
        findings=tuple(replace(finding, time_ns=time_ns) for finding in explained.findings),
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
