"""A report as one HTML file: no network, no library, opens from disk, in light and dark."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from gpusight._version import __version__
from gpusight.render.cell_text import safe_text, shorten_middle, show
from gpusight.render.charts.chart_colors import DARK, LIGHT
from gpusight.render.html import html_parts, report_charts
from gpusight.render.html.comparison_page import comparison_body, comparison_styles
from gpusight.render.html.html_parts import (
    ReportSection,
    clipped_text,
    css_colors,
    html_prose,
    html_text,
    section_html,
)
from gpusight.render.html.report_charts import (
    memory_section,
    occupancy_section,
    roofline_section,
    timeline_section,
    utilisation_section,
)
from gpusight.render.html.report_findings import findings_section, kernel_findings, report_header
from gpusight.render.html.report_ledger import ledger_section, phases_section
from gpusight.render.html.report_tables import copies_section, kernels_section, ranges_section
from gpusight.render.result_view import ResultView
from gpusight.reports.report_contents import evaluated_gpu
from gpusight.results import NotApplicable
from gpusight.units import format_time

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from gpusight.comparison.comparison_result import Comparison
    from gpusight.render.charts.chart_colors import ChartTheme
    from gpusight.reports.report_contents import LimitationNote, MissingPart, Report


_MAX_NAME_CHARACTERS = 200
_RANGES = 3
"""Ranges that a kernel is said to have been launched in."""


def comparison_section(found: Comparison | NotApplicable | None) -> html_parts.ReportSection | None:
    """Write the section; None where nothing was to be compared."""
    if found is None:
        return None
    if isinstance(found, NotApplicable):
        return html_parts.ReportSection("comparison", "Before and after", html_parts.absent(found))
    body = f'<div class="comparison">{comparison_body(_bounded(found), level=3)}</div>'
    return html_parts.ReportSection("comparison", "Before and after", body)


def _bounded(found: Comparison) -> Comparison:
    """Cut names that a hostile capture may have made long without end."""
    kernels = tuple(
        replace(
            one,
            short=shorten_middle(one.short, _MAX_NAME_CHARACTERS),
            ranges=tuple(
                shorten_middle(name, _MAX_NAME_CHARACTERS) for name in one.ranges[:_RANGES]
            ),
        )
        for one in found.kernels
    )
    ranges, api = (
        tuple(replace(one, name=shorten_middle(one.name, _MAX_NAME_CHARACTERS)) for one in calls)
        for calls in (found.ranges, found.api)
    )
    return replace(found, kernels=kernels, ranges=ranges, api=api)


_MAX_LIMITATIONS = 200


def limitations_section(report: Report) -> html_parts.ReportSection:
    """Write the section."""
    body = "\n".join(_limitation_parts(report))
    return html_parts.ReportSection("untold", "What could not be told", body, "Not told")


def _limitation_parts(report: Report) -> Iterator[str]:
    told = report.untold
    if not told.absent:
        yield html_parts.lead("Every part of this report could be filled.")
    else:
        yield f'<dl class="untold">{"".join(map(_absent, told.absent[:_MAX_LIMITATIONS]))}</dl>'
    if told.notes:
        yield "<h3>To be read with care</h3>"
        yield (
            '<ul class="notes">'
            f"{''.join(map(_limitation_note, told.notes[:_MAX_LIMITATIONS]))}</ul>"
        )
    for table in told.missing:
        yield f"<h3>{html_text(table.title)}</h3>"
        yield html_parts.html_table(table, html_parts.shown_columns(table))
    if told.messages:
        many = "1 message" if told.messages == 1 else f"{told.messages:,} messages"
        yield html_parts.report_notes(
            [f"The profiler warned in {many}: `gpusight info` shows them."]
        )
    yield f'<p class="note">Made by gpusight {html_text(__version__)}.</p>'


def _absent(one: MissingPart) -> str:
    hint = f" <small>{html_prose(html_parts.capitalized(one.hint))}</small>" if one.hint else ""
    return (
        f"<div><dt>{html_text(one.part)}</dt><dd>"
        f"{html_prose(html_parts.capitalized(one.reason))}.{hint}</dd></div>"
    )


def _limitation_note(one: LimitationNote) -> str:
    return (
        f"<li><b>{html_text(', '.join(one.parts))}:</b> "
        f"{html_prose(html_parts.capitalized(one.text))}</li>"
    )


_TITLE = 200
_THEME = ("background", "text", "muted", "grid", "band", "mark", "quiet", "pale")


def to_page(report: Report) -> str:
    """Write the page."""
    script = _file("report.js")
    parts = [part for part in _sections(report) if part is not None]
    title = clipped_text(report.title, _TITLE)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">\n'
        f'<meta name="generator" content="gpusight {html_text(__version__)}">\n'
        f"<title>{title} · gpusight report</title>\n<style>\n{_styles()}</style>\n</head>\n"
        '<body>\n<a class="skip" href="#main">Skip to the report</a>\n'
        f'{_table_of_contents(parts)}\n<main id="main" tabindex="-1">\n{report_header(report)}\n'
        f"{chr(10).join(map(section_html, parts))}\n</main>\n"
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _sections(report: Report) -> Iterator[ReportSection | None]:
    """Give the sections in the order in which they are read."""
    program = report.program
    yield comparison_section(report.comparison)
    if program is not None:
        yield ledger_section(program.ledger, evaluated_gpu(program))
        yield findings_section(program.diagnosis)
    for number, measured in enumerate(report.measured, 1):
        of = f" of {measured.about.file}" if len(report.measured) > 1 else ""
        yield kernel_findings(
            measured, key=f"measured-{number}", title=f"What holds kernels up{of}"
        )
    if program is not None:
        yield timeline_section(program.excerpt)
        yield utilisation_section(program.utilisation)
    yield kernels_section(report)
    if program is not None:
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
    for number, one in enumerate(report.measured, 1):
        of = f" of {one.about.file}" if several else ""
        yield roofline_section(one.roofline, key=f"roofline-{number}", title=f"Roofline{of}")
        yield occupancy_section(one.occupancy, key=f"occupancy-{number}", title=f"Occupancy{of}")


def _table_of_contents(parts: list[ReportSection]) -> str:
    links = "".join(
        f'<li><a href="#{part.key}">{html_text(part.brief or part.title)}</a></li>'
        for part in parts
    )
    return (
        '<nav class="contents" aria-label="Contents"><p class="brand"><b>gpusight</b></p>'
        f'<div class="tools"></div><ol id="contents">'
        f'<li><a href="#main">Overview</a></li>{links}</ol></nav>'
    )


# What the page brings with it ---------------------------------------------------------------------


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )


def _styles() -> str:
    light, dark = _variables(LIGHT), _variables(DARK, dark=True)
    return (
        f":root{{{light}}}\n"
        f"@media screen and (prefers-color-scheme:dark)"
        f"{{:root:not([data-theme=light]){{{dark}}}}}\n"
        f"@media screen{{:root[data-theme=dark]{{{dark}}}}}\n"
        f"{report_charts.chart_styles()}.comparison{{{comparison_styles()}}}\n{_file('report.css')}"
    )


def _variables(theme: ChartTheme, *, dark: bool = False) -> str:
    values = {name: getattr(theme, name) for name in _THEME}
    values |= {f"series-{number}": colour for number, colour in enumerate(theme.palette)}
    values |= {name: (night if dark else day) for name, day, night in css_colors()}
    return "".join(f"--{name}:{value};" for name, value in values.items())


def _file(name: str) -> str:
    found = resources.files(__package__ or "").joinpath("assets", name)
    return found.read_text(encoding="utf-8")


class ReportView(ResultView):
    """Everything about a capture: `save` writes the page; printing shows its beginning."""

    result: Report

    def __init__(self, result: Report, captures: tuple[str, ...] = ()) -> None:
        self.result = result
        self._captures = captures
        """Where the captures lie, which `save` never writes to."""

    @cached_property
    def html(self) -> str:
        """The page, which needs nothing else."""

        return to_page(self.result)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file, which is replaced; gives where it is."""
        from gpusight.output_files import write_file
        from gpusight.sniff import refuse_capture

        target = Path(path)
        for capture in self._captures or (None,):
            refuse_capture(target, capture)
        write_file(target, self.html.encode("utf-8", "backslashreplace"))
        return target

    def to_text(self) -> str:
        """Give the beginning as plain text, as printing does."""
        return "\n".join((safe_text(self.title), *map(safe_text, self._lines()))) + "\n"

    def _repr_html_(self) -> str:
        """Show the beginning: the page itself has styles and a script of its own."""
        lines = "".join(f"<li>{html_prose(line)}</li>" for line in self._lines())
        return f"<p><b>{html_text(self.title)}</b></p><ul>{lines}</ul>"

    def _lines(self) -> Iterator[str]:
        told = self.result.headline
        for number in told.numbers:
            detail = f" ({number.detail})" if number.detail else ""
            yield f"{number.label}: {show(number.value, number.fmt)}{detail}"
        for rank, gain in enumerate(told.gains, 1):
            yield f"{rank}. {gain.title}: {format_time(gain.worth_ns)}"
        yield "the page: .save('report.html')"
