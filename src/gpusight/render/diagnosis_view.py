"""A diagnosis in every format: of kernels, of a timeline or of both."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from gpusight.render import diagnosis_summary as parts
from gpusight.render import diagnosis_text
from gpusight.render.charts.chart_colors import LIGHT
from gpusight.render.diagnosis_screen import screen_lines
from gpusight.render.diagnosis_summary import (
    diagnosis_head,
    measured_kernel_table,
    timeline_finding_table,
)
from gpusight.render.diagnosis_text import explained_kernels
from gpusight.render.explanation import explain_kernel, kernel_finding_table, kernel_overview
from gpusight.render.html.html_templates import html_page, markup, render, to_html
from gpusight.render.markdown_tables import to_markdown
from gpusight.render.result_view import Renderer
from gpusight.render.table_layout import TableOptions
from gpusight.render.terminal_text import StyledLine, plain_lines, wrapped_lines
from gpusight.rules.diagnosis import (
    JoinedDiagnosis,
    KernelGroup,
    KernelReportDiagnosis,
    TimelineDiagnosis,
    timeline_of,
)
from gpusight.units import MISSING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from gpusight.analysis.ledger.device_ledger import DeviceLedger
    from gpusight.render.explanation import ExplainedKernel
    from gpusight.results import TableResult
    from gpusight.rules.diagnosis import AnyDiagnosis, Explanation


_EXPLAINED = 3
"""Findings or kernels that a notebook explains."""


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


def diagnosis_to_fragment(
    diagnosis: AnyDiagnosis, *, limit: int | None, details: int = _EXPLAINED
) -> Markup:
    """Write a diagnosis as HTML for a notebook; 0 for all."""
    limit = limit or 0
    if isinstance(diagnosis, KernelReportDiagnosis):
        return _kernels_to_fragment(diagnosis, limit=limit, details=details)
    timeline = timeline_of(diagnosis)
    fragment = _timeline_to_fragment(timeline, limit=limit, details=details)
    if isinstance(diagnosis, TimelineDiagnosis):
        return fragment
    table = measured_kernel_table(diagnosis)
    kernels = explained_kernels(diagnosis, details or None)
    return markup(f"{fragment}\n{_kernel_fragment(table, kernels, limit=limit)}")


def _kernels_to_fragment(diagnosis: KernelReportDiagnosis, *, limit: int, details: int) -> Markup:
    """Write the overview and the first kernels, for a notebook; 0 for all."""
    groups = [group for group in diagnosis.groups if group.findings][: details or None]
    return _kernel_fragment(
        kernel_overview(diagnosis),
        [explain_kernel(diagnosis, group) for group in groups],
        limit=limit,
        duration_ns=diagnosis.duration_ns,
        saved_ns=diagnosis.saved_ns,
        notes=diagnosis.notes,
    )


def _kernel_fragment(
    table: TableResult,
    kernels: Sequence[ExplainedKernel],
    *,
    limit: int,
    duration_ns: float = 0.0,
    saved_ns: float = 0.0,
    notes: Sequence[str] = (),
) -> Markup:
    """Write a table of profiled kernels, and explain some of them."""
    return render(
        "kernel_diagnosis.html",
        table=to_html(table, limit=limit),
        kernels=kernels,
        duration_ns=duration_ns,
        saved_ns=saved_ns,
        time_change=parts.time_change,
        notes=notes,
    )


_MAX_BARS = 8
_WORK = {"compute": 0, "copy": 2, "communication": 4}
"""Colors of the palette for what a GPU does."""
_IDLE = (1, 3, 5)
"""And for why it does nothing, the largest cause first."""


def _timeline_to_fragment(diagnosis: TimelineDiagnosis, *, limit: int, details: int) -> Markup:
    """Write the ledger, the plan and the first findings explained; 0 for all."""
    devices = diagnosis.ledger.devices
    times = zip(diagnosis.findings, diagnosis.plan_step_ns, strict=True)
    plan_ns = [ns for finding, ns in times if finding.in_plan]
    listed = zip(diagnosis.plan, plan_ns, parts.speedups_so_far(diagnosis), strict=True)
    return render(
        "timeline_diagnosis.html",
        summary=parts,
        diagnosis=diagnosis,
        ledgers=[_ledger_bar(device) for device in devices[:_MAX_BARS]],
        has_several_gpus=len(devices) > 1,
        verdict=parts.timeline_verdict(diagnosis),
        listed=list(listed)[: limit or None],
        missing=MISSING,
        explained=diagnosis.findings[: details or None],
    )


class _LedgerBar(NamedTuple):
    """Where the time of a GPU went, as a bar with a legend."""

    device: int
    slices: list[tuple[float, str, str]]
    """Share, color and words of each."""
    computing: list[str]


def _ledger_bar(device: DeviceLedger) -> _LedgerBar:
    ledger_slices = parts.slices(device)
    shares = [part.share for part in ledger_slices]
    slices = list(
        zip(shares, _colors(ledger_slices), parts.slice_texts(ledger_slices), strict=True)
    )
    return _LedgerBar(device.device, slices, parts.slice_texts(parts.computing(device)))


def _colors(slices: list[parts.LedgerSlice]) -> list[str]:
    """Give each part a color of the theme, with one to fall back on outside of the page."""
    left = list(_IDLE)
    colors = []
    for part in slices:
        work = _WORK.get(part.name.split("/")[0])
        if work is not None:
            colors.append(_palette(work))
        elif part.idle and left:
            colors.append(_palette(left.pop(0)))
        else:
            colors.append(f"var(--quiet,{LIGHT.quiet})")
    return colors


def _palette(number: int) -> str:
    return f"var(--series-{number},{LIGHT.palette[number]})"


def diagnosis_to_page(
    diagnosis: AnyDiagnosis, *, limit: int | None = None, details: int = 0
) -> str:
    """Write a diagnosis as an HTML page of its own; 0 for all."""
    body = diagnosis_to_fragment(diagnosis, limit=limit, details=details)
    if not isinstance(diagnosis, KernelReportDiagnosis):
        return html_page(diagnosis.title, diagnosis_head(timeline_of(diagnosis)), body)
    gpus = ", ".join(map(str, diagnosis.meta.get("gpus", ())))
    tool = " ".join(filter(None, (diagnosis.meta.get("tool"), diagnosis.meta.get("tool_version"))))
    return html_page("Kernel diagnosis", "; ".join(filter(None, (gpus, tool))), body)


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
    fragment=diagnosis_to_fragment,
    page=diagnosis_to_page,
    look=TableOptions(100, 20, rows_advice="all are in .findings"),
)
