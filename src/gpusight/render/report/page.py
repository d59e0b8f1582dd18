"""A report as one page: no network, no library, opens from disk, in light and dark.

Whatever a capture says is text: it is escaped in markup, or JSON that cannot end its element, and
the page's policy runs no script but its own.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from typing import TYPE_CHECKING

from gpusight._version import __version__
from gpusight.render.comparison.html import own_styles as comparison_styles
from gpusight.render.diagnosis.page import text
from gpusight.render.pictures.theme import DARK, LIGHT
from gpusight.render.report import picture
from gpusight.render.report.comparison import comparison_section
from gpusight.render.report.copies import copies_section
from gpusight.render.report.findings import findings_section, kernel_findings
from gpusight.render.report.headline import header
from gpusight.render.report.kernels import kernels_section
from gpusight.render.report.ledger import ledger_section
from gpusight.render.report.markup import Section, clipped, paints, section
from gpusight.render.report.memory import memory_section
from gpusight.render.report.occupancy import occupancy_section
from gpusight.render.report.phases import phases_section
from gpusight.render.report.ranges import ranges_section
from gpusight.render.report.roofline import roofline_section
from gpusight.render.report.timeline import timeline_section, utilisation_section
from gpusight.render.report.untold import untold_section
from gpusight.reporting.headline import judged_device

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.render.pictures.theme import Theme
    from gpusight.reporting.report import Report

_TITLE = 200
_THEME = ("background", "text", "muted", "grid", "band", "mark", "quiet", "pale")


def to_page(report: Report) -> str:
    """Write the page."""
    script = _file("report.js")
    parts = [part for part in _sections(report) if part is not None]
    title = clipped(report.title, _TITLE)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">\n'
        f'<meta name="generator" content="gpusight {text(__version__)}">\n'
        f"<title>{title} · gpusight report</title>\n<style>\n{_styles()}</style>\n</head>\n"
        '<body>\n<a class="skip" href="#main">Skip to the report</a>\n'
        f'{_contents(parts)}\n<main id="main" tabindex="-1">\n{header(report)}\n'
        f"{chr(10).join(map(section, parts))}\n</main>\n"
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _sections(report: Report) -> Iterator[Section | None]:
    """Give the sections in the order in which they are read."""
    program = report.program
    yield comparison_section(report.comparison)
    if program is not None:
        yield ledger_section(program.ledger, judged_device(program))
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
    yield untold_section(report)


def _measured(report: Report) -> Iterator[Section | None]:
    several = len(report.measured) > 1
    for number, one in enumerate(report.measured, 1):
        of = f" of {one.about.file}" if several else ""
        yield roofline_section(one.roofline, key=f"roofline-{number}", title=f"Roofline{of}")
        yield occupancy_section(one.occupancy, key=f"occupancy-{number}", title=f"Occupancy{of}")


def _contents(parts: list[Section]) -> str:
    links = "".join(
        f'<li><a href="#{part.key}">{text(part.brief or part.title)}</a></li>' for part in parts
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
        f"{picture.styles()}.comparison{{{comparison_styles()}}}\n{_file('report.css')}"
    )


def _variables(theme: Theme, *, dark: bool = False) -> str:
    values = {name: getattr(theme, name) for name in _THEME}
    values |= {f"series-{number}": colour for number, colour in enumerate(theme.palette)}
    values |= {name: (night if dark else day) for name, day, night in paints()}
    return "".join(f"--{name}:{value};" for name, value in values.items())


def _file(name: str) -> str:
    found = resources.files(__package__ or "").joinpath("assets", name)
    return found.read_text(encoding="utf-8")
