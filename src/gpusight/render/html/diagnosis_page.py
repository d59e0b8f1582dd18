"""A diagnosis as HTML: a page of its own, or a part of a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpusight.render import diagnosis_summary as parts
from gpusight.render.cell_text import html_text
from gpusight.render.charts.chart_colors import LIGHT
from gpusight.render.diagnosis_summary import (
    diagnosis_head,
    kernels_head,
    measured_kernel_table,
)
from gpusight.render.diagnosis_text import explained_kernels
from gpusight.render.explanation import explain_kernel, kernel_overview
from gpusight.render.html.html_templates import html_page, markup, render, to_html
from gpusight.rules.diagnosis import KernelReportDiagnosis, TimelineDiagnosis, timeline_of
from gpusight.units import MISSING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from gpusight.analysis.ledger.device_ledger import DeviceLedger
    from gpusight.render.explanation import ExplainedKernel
    from gpusight.results import TableResult
    from gpusight.rules.diagnosis import AnyDiagnosis


_EXPLAINED = 3
"""Findings or kernels that a notebook explains."""


def notebook_fragment(diagnosis: AnyDiagnosis, *, limit: int | None) -> Markup:
    """Write a diagnosis as HTML for a notebook, below what was looked at; 0 for all."""
    if isinstance(diagnosis, KernelReportDiagnosis):
        head = kernels_head(diagnosis)
    else:
        head = diagnosis_head(timeline_of(diagnosis))
    fragment = diagnosis_to_fragment(diagnosis, limit=limit, details=_EXPLAINED)
    return markup(f"<p><b>{html_text(head)}</b></p>\n{fragment}")


def diagnosis_to_fragment(diagnosis: AnyDiagnosis, *, limit: int | None, details: int) -> Markup:
    """Write a diagnosis as a part of a page; 0 for all."""
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
