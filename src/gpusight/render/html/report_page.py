"""A report as one HTML file: no network, no library, opens from disk, in light and dark."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpusight._version import __version__
from gpusight.render.cell_text import safe_text, shorten_middle
from gpusight.render.html.comparison_page import comparison_body
from gpusight.render.html.flame_page import hotspots_section
from gpusight.render.html.html_templates import (
    ReportSection,
    absent_section,
    markup,
    render,
    shown_columns,
)
from gpusight.render.html.ranks_page import job_section, ranks_sections
from gpusight.render.html.report_assets import asset_text, report_styles
from gpusight.render.html.report_charts import (
    memory_section,
    occupancy_section,
    roofline_section,
    timeline_section,
    utilization_section,
)
from gpusight.render.html.report_findings import (
    findings_section,
    headline_text,
    kernel_findings,
    plan_text,
    report_header,
)
from gpusight.render.html.report_ledger import ledger_section, phases_section
from gpusight.render.html.report_tables import copies_section, kernels_section, ranges_section
from gpusight.render.renderer import Renderer
from gpusight.render.terminal_text import StyledLine
from gpusight.reports.report_contents import evaluated_gpu
from gpusight.results import NotApplicable
from gpusight.units import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markupsafe import Markup

    from gpusight.comparison.comparison_result import Comparison
    from gpusight.render.table_layout import TableOptions
    from gpusight.reports.report_contents import Report


_MAX_NAME_CHARACTERS = 200
_RANGES = 3
"""Ranges of a kernel that are listed."""


def comparison_section(comparison: Comparison | NotApplicable | None) -> ReportSection | None:
    """Write the section; None where nothing was to be compared."""
    if comparison is None:
        return None
    if isinstance(comparison, NotApplicable):
        return absent_section("comparison", "Before and after", comparison)
    body = comparison_body(_bounded(comparison), level=3)
    return ReportSection(
        "comparison", "Before and after", markup(f'<div class="comparison">{body}</div>')
    )


def _bounded(comparison: Comparison) -> Comparison:
    """Cut names that a hostile capture may have made long without end."""
    kernels = tuple(
        replace(
            change,
            short=shorten_middle(change.short, _MAX_NAME_CHARACTERS),
            ranges=tuple(
                shorten_middle(name, _MAX_NAME_CHARACTERS) for name in change.ranges[:_RANGES]
            ),
        )
        for change in comparison.kernels
    )
    ranges, api = (
        tuple(
            replace(change, name=shorten_middle(change.name, _MAX_NAME_CHARACTERS))
            for change in calls
        )
        for calls in (comparison.ranges, comparison.api)
    )
    return replace(comparison, kernels=kernels, ranges=ranges, api=api)


_MAX_LIMITATIONS = 200


def limitations_section(report: Report) -> ReportSection:
    """Write what the capture lacks, and the notes on the results."""
    limitations = report.limitations
    body = render(
        "report_limitations.html",
        absent=limitations.absent[:_MAX_LIMITATIONS],
        cautions=limitations.notes[:_MAX_LIMITATIONS],
        tables=[(table, shown_columns(table)) for table in limitations.missing],
        messages=limitations.messages,
        version=__version__,
    )
    return ReportSection("limitations", "Limitations", body)


def to_page(report: Report) -> str:
    """Write the page."""
    sections = [section for section in _sections(report) if section is not None]
    return write_page(report.title, report_header(report), sections)


def write_page(title: str, header: Markup, sections: Sequence[ReportSection]) -> str:
    """Write a page of sections with contents, in light and dark."""
    page = render(
        "report.html",
        title=title,
        header=header,
        sections=sections,
        styles=markup(report_styles()),
        script=markup(asset_text("report.js")),
        version=__version__,
    )
    return f"{page}\n"


def _sections(report: Report) -> Iterator[ReportSection | None]:
    """Give the sections in the order in which they are read."""
    program = report.program
    yield comparison_section(report.comparison)
    if report.ranks is not None:
        yield job_section(report.ranks)
        yield from ranks_sections(report.ranks)
    if program is not None:
        yield ledger_section(program.ledger, evaluated_gpu(program))
        yield findings_section(program.diagnosis)
    for number, measured in enumerate(report.measured, 1):
        of = f" of {measured.about.file}" if len(report.measured) > 1 else ""
        yield kernel_findings(measured, key=f"measured-{number}", title=f"Kernel bottlenecks{of}")
    if program is not None:
        yield timeline_section(program.timeline)
        yield utilization_section(program.utilization)
    yield kernels_section(report)
    if program is not None:
        yield hotspots_section(program.hotspots)
        yield ranges_section(program.ranges)
        yield phases_section(program.steps)
        yield copies_section(program.copies)
        yield memory_section(program.memory)
    yield from _measured(report)
    if program is not None and not report.measured:
        yield occupancy_section(program.occupancy, key="occupancy", title="Occupancy")
    yield limitations_section(report)


def _measured(report: Report) -> Iterator[ReportSection | None]:
    several = len(report.measured) > 1
    for number, measured in enumerate(report.measured, 1):
        of = f" of {measured.about.file}" if several else ""
        yield roofline_section(measured.roofline, key=f"roofline-{number}", title=f"Roofline{of}")
        yield occupancy_section(
            measured.occupancy, key=f"occupancy-{number}", title=f"Occupancy{of}"
        )


def _page(report: Report, *, limit: int | None) -> str:
    del limit  # a page has everything
    return to_page(report)


def _lines(report: Report, look: TableOptions) -> Iterator[StyledLine]:
    """Write the top of the page."""
    del look
    return (StyledLine(safe_text(text)) for text in (report.title, *_headline(report)))


def _fragment(report: Report, *, limit: int | None) -> str:
    """Write the top of the page for a notebook: the page has its own styles and script."""
    del limit
    return str(render("report_beginning.html", title=report.title, lines=_headline(report)))


def _headline(report: Report) -> Iterator[str]:
    for number in report.headline.numbers:
        detail = f" ({number.detail})" if number.detail else ""
        yield f"{number.label}: {headline_text(number)}{detail}"
    unit = "/step" if report.headline.whole == "step" else ""
    for rank, fix in enumerate(report.headline.plan, 1):
        saves = "no time estimate"
        if fix.saved_ns is not None:
            saves = f"saves {format_time(fix.saved_ns, digits=3)}{unit}"
        yield f"{rank}. {fix.title}: {saves}"
    if total := plan_text(report):
        yield total
    yield "the page: .save('report.html')"


REPORT_RENDERER = Renderer(lines=_lines, fragment=_fragment, page=_page)
