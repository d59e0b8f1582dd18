"""A diagnosis in every format, of kernels, of a timeline or of both, and as a Python result."""

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
from gpusight.render.result_view import ResultView
from gpusight.render.terminal_tables import to_plain
from gpusight.rules.diagnosis_results import (
    JoinedDiagnosis,
    KernelReportDiagnosis,
    TimelineDiagnosis,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from markupsafe import Markup

    from gpusight.analysis.ledger.device_ledger import Ledger
    from gpusight.render.table_layout import TableOptions
    from gpusight.results import TableResult
    from gpusight.rules.diagnosis_results import AnyDiagnosis, LaunchDiagnosis, TimedKernel
    from gpusight.rules.finding import KernelFinding, TimelineFinding


def diagnosis_to_text(found: AnyDiagnosis, look: TableOptions, *, details: int) -> str:
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
    found: AnyDiagnosis, look: TableOptions, stream: TextIO, *, details: int
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


def diagnosis_to_markdown(found: AnyDiagnosis, *, limit: int, details: int) -> str:
    """Write a diagnosis as Markdown; 0 for all."""
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


def diagnosis_to_fragment(found: AnyDiagnosis, *, limit: int, details: int) -> Markup:
    """Write a diagnosis as HTML for a notebook; 0 for all."""
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


def diagnosis_to_page(found: AnyDiagnosis, *, limit: int = 0, details: int = 0) -> str:
    """Write a diagnosis as an HTML page of its own; 0 for all."""
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


WIDTH = 100
ROWS = 20
DETAILS = 3


class DiagnosisView(ResultView):
    """What holds a program or its kernels back; printing it explains the foremost findings."""

    result: AnyDiagnosis

    def __init__(self, result: AnyDiagnosis) -> None:
        self.result = result

    @property
    def timeline(self) -> TimelineDiagnosis | None:
        """What the timeline says; None where there is only a report of measured kernels."""
        if isinstance(self.result, JoinedDiagnosis):
            return self.result.timeline
        return self.result if isinstance(self.result, TimelineDiagnosis) else None

    @property
    def kernels(self) -> tuple[LaunchDiagnosis, ...]:
        """Every measured launch with its findings, those with the most time to give back first."""
        if isinstance(self.result, JoinedDiagnosis):
            return tuple(one for kernel in self.result.kernels for one in kernel.group.kernels)
        return self.result.kernels if isinstance(self.result, KernelReportDiagnosis) else ()

    @property
    def findings(self) -> tuple[KernelFinding | TimelineFinding, ...]:
        """Every finding, the one that gives most back first; of a timeline, where there is one."""
        if isinstance(self.result, KernelReportDiagnosis):
            return self.result.findings
        return self.timeline.findings if self.timeline else ()

    @property
    def ledger(self) -> Ledger | None:
        """Where the time of the window went; None where there is only a report."""
        return None if self.timeline is None else self.timeline.ledger

    @property
    def saved_ns(self) -> float:
        """Time that the first fix of each kernel, or of a timeline the first fix, gives back."""
        if isinstance(self.result, KernelReportDiagnosis):
            return self.result.saved_ns
        return max((f.recoverable_ns or 0.0 for f in self._of_timeline()), default=0.0)

    def to_text(self) -> str:
        """Give it as plain text, as printing does."""
        from gpusight.render.table_layout import TableOptions as Look

        look = Look(WIDTH, ROWS, rows_advice="all are in .findings")
        return diagnosis_to_text(self.result, look, details=DETAILS)

    def _of_timeline(self) -> tuple[TimelineFinding, ...]:
        return () if self.timeline is None else self.timeline.findings

    def _repr_html_(self) -> str:
        return str(diagnosis_to_fragment(self.result, limit=ROWS, details=DETAILS))

    def to_json(self) -> str:
        """Give the document that `--format json` writes."""
        from gpusight.render.csv_json import encode_json as encode

        return encode(self.result.document())

    def to_csv(self) -> str:
        """Give the text that `--format csv` writes: one line for each finding."""
        from gpusight.render.csv_json import to_csv

        return to_csv(diagnosis_table(self.result))

    def to_markdown(self) -> str:
        """Give the text that `--format markdown` writes, with everything."""
        return diagnosis_to_markdown(self.result, limit=0, details=0)

    def to_html(self) -> str:
        """Give the page that `--format html` writes."""
        return diagnosis_to_page(self.result)
