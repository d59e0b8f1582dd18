"""A diagnosis in every format: of kernels, of a timeline or of both."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.render import diagnosis_text
from gpusight.render.diagnosis_screen import screen_lines
from gpusight.render.diagnosis_summary import (
    measured_kernel_table,
    timeline_finding_table,
)
from gpusight.render.diagnosis_text import explained_kernels
from gpusight.render.explanation import explain_kernel, kernel_finding_table
from gpusight.render.markdown_tables import to_markdown
from gpusight.render.renderer import Renderer
from gpusight.render.table_layout import TableOptions
from gpusight.render.terminal_text import StyledLine, plain_lines, wrapped_lines
from gpusight.rules.diagnosis import (
    JoinedDiagnosis,
    KernelGroup,
    KernelReportDiagnosis,
    timeline_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from gpusight.render.explanation import ExplainedKernel
    from gpusight.results import TableResult
    from gpusight.rules.diagnosis import AnyDiagnosis, Explanation


def diagnosis_lines(
    diagnosis: AnyDiagnosis,
    look: TableOptions,
    *,
    details: bool = False,
    typed: Sequence[str] | None = None,
) -> list[StyledLine]:
    """Give the first screen; with `details`, everything else below it.

    `typed` are the options of the command line that chose what was diagnosed.
    """
    if look.full_names:
        diagnosis, look = _with_full_names(diagnosis), replace(look, width=None)
    lines = screen_lines(diagnosis, look, details=details, typed=typed)
    if details:
        lines = [*lines, StyledLine(""), *diagnosis_text.detail_lines(diagnosis, look)]
    return lines


def _with_full_names(diagnosis: AnyDiagnosis) -> AnyDiagnosis:
    """Call profiled kernels by their full names."""
    if isinstance(diagnosis, KernelReportDiagnosis):
        groups = tuple(replace(group, label=group.name) for group in diagnosis.groups)
        return replace(diagnosis, groups=groups)
    if isinstance(diagnosis, JoinedDiagnosis):
        kernels = tuple(
            replace(kernel, group=replace(kernel.group, label=kernel.group.name))
            for kernel in diagnosis.kernels
        )
        return replace(diagnosis, kernels=kernels)
    return diagnosis


def diagnosis_to_markdown(
    diagnosis: AnyDiagnosis, *, limit: int | None = None, details: bool = False
) -> str:
    """Write a diagnosis as Markdown."""
    limit = limit or 0
    if isinstance(diagnosis, KernelReportDiagnosis):
        lines = [*diagnosis_text.kernels_to_markdown(diagnosis, limit=limit, details=details)]
        return "\n".join(lines) + "\n"
    timeline = timeline_of(diagnosis)
    lines = [*diagnosis_text.timeline_to_markdown(timeline, limit=limit, details=details)]
    if isinstance(diagnosis, JoinedDiagnosis):
        lines += ["", to_markdown(measured_kernel_table(diagnosis), limit=limit)]
        kernels = explained_kernels(diagnosis) if details else ()
        for number, kernel in enumerate(kernels, len(timeline.findings) + 1):
            lines += diagnosis_text.kernel_markdown(kernel, number)
    return "\n".join(lines).rstrip("\n") + "\n"


def _fragment(diagnosis: AnyDiagnosis, *, limit: int | None) -> Markup:
    from gpusight.render.html.diagnosis_page import notebook_fragment

    return notebook_fragment(diagnosis, limit=limit)


def _page(diagnosis: AnyDiagnosis, *, limit: int | None = None, details: int = 0) -> str:
    from gpusight.render.html.diagnosis_page import diagnosis_to_page

    return diagnosis_to_page(diagnosis, limit=limit, details=details)


def _draw(diagnosis: AnyDiagnosis, form: str, **options: Any) -> bytes:
    from gpusight.render.editor_formats import draw_editor_format

    return draw_editor_format(diagnosis, form, **options)


def diagnosis_table(diagnosis: AnyDiagnosis) -> TableResult:
    """Give every finding as a row; of both together, those of the timeline."""
    if isinstance(diagnosis, KernelReportDiagnosis):
        return kernel_finding_table(diagnosis)
    timeline = timeline_of(diagnosis)
    return timeline_finding_table(timeline)


def explanation_lines(explanation: Explanation, look: TableOptions) -> list[StyledLine]:
    """Give everything about one finding."""
    width = look.width
    diagnosis, number, finding = explanation.diagnosis, explanation.number, explanation.finding
    if isinstance(finding, KernelGroup):
        return [*diagnosis_text.kernel_lines(_explained(diagnosis, finding), number, width)]
    assert not isinstance(diagnosis, KernelReportDiagnosis)
    timeline = timeline_of(diagnosis)
    lines = [*diagnosis_text.finding_lines(timeline, finding, number, width)]
    for text in explanation.not_modeled:
        lines += wrapped_lines(text, width, "not modeled: ")
    return lines


def _explained(diagnosis: AnyDiagnosis, group: KernelGroup) -> ExplainedKernel:
    if isinstance(diagnosis, JoinedDiagnosis):
        kernel = next(k for k in diagnosis.kernels if k.group is group)
        return diagnosis_text.explain_in_timeline(diagnosis, kernel)
    assert isinstance(diagnosis, KernelReportDiagnosis)
    return explain_kernel(diagnosis, group)


def _explanation_markdown(explanation: Explanation, *, limit: int | None = None) -> str:
    del limit
    diagnosis, number, finding = explanation.diagnosis, explanation.number, explanation.finding
    if isinstance(finding, KernelGroup):
        lines = diagnosis_text.kernel_markdown(_explained(diagnosis, finding), number)
    else:
        assert not isinstance(diagnosis, KernelReportDiagnosis)
        timeline = timeline_of(diagnosis)
        lines = diagnosis_text.finding_markdown(timeline, finding, number)
    unmodeled = [f"\nNot modeled: {text}." for text in explanation.not_modeled]
    return "\n".join([*lines, *unmodeled]).lstrip("\n") + "\n"


def _explanation_document(explanation: Explanation) -> dict[str, Any]:
    finding = explanation.finding
    described = (
        {
            "name": finding.name,
            "label": finding.label,
            "findings": [f.document() for f in finding.findings],
        }
        if isinstance(finding, KernelGroup)
        else finding.document()
    )
    meta = {"command": "explain", "title": explanation.title, **explanation.meta}
    document = {"meta": meta, "number": explanation.number, "finding": described}
    if explanation.not_modeled:
        document["not_modeled"] = list(explanation.not_modeled)
    return document


def _explanation_table(explanation: Explanation) -> TableResult:
    diagnosis = explanation.diagnosis
    if isinstance(explanation.finding, KernelGroup) and isinstance(diagnosis, JoinedDiagnosis):
        diagnosis = diagnosis.report
    table = diagnosis_table(diagnosis)
    if isinstance(explanation.finding, KernelGroup):
        is_kernel = pl.col("kernel") == explanation.finding.name
        return replace(table, frame=table.frame.filter(is_kernel))
    return replace(table, frame=table.frame.slice(explanation.number - 1, 1))


def _explanation_fragment(explanation: Explanation, *, limit: int | None = None) -> Markup:
    from gpusight.render.html.html_templates import markup

    del limit
    return (
        markup("<pre>")
        + plain_lines(explanation_lines(explanation, TableOptions(100)))
        + markup("</pre>")
    )


EXPLANATION_RENDERER = Renderer(
    rows=_explanation_table,
    document=_explanation_document,
    lines=explanation_lines,
    markdown=_explanation_markdown,
    fragment=_explanation_fragment,
    look=TableOptions(100),
)
DIAGNOSIS_RENDERER = Renderer(
    rows=diagnosis_table,
    document=lambda diagnosis: diagnosis.document(),
    long_lists=("findings", "kernels"),
    lines=diagnosis_lines,
    markdown=diagnosis_to_markdown,
    fragment=_fragment,
    page=_page,
    draw=_draw,
    look=TableOptions(100, 20, rows_advice="all are in .findings"),
)
