"""A diagnosis as one HTML page that needs nothing else, and in short for notebooks.

All text is escaped, and the page's policy runs no script at all.
"""

from __future__ import annotations

from html import escape
from importlib import resources
from typing import TYPE_CHECKING

from gpusight import units
from gpusight.render.cells import safe_text
from gpusight.render.diagnosis.parts import Explained, explained, trust, value_of, verdict
from gpusight.render.diagnosis.tables import overview
from gpusight.render.html import to_html
from gpusight.render.pictures.theme import DARK, LIGHT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.findings.finding import Finding
    from gpusight.findings.kernels.diagnosis import Diagnosis
    from gpusight.render.pictures.theme import Theme

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def to_fragment(diagnosis: Diagnosis, *, limit: int, details: int) -> str:
    """Write the overview and the foremost kernels, for a notebook; 0 for all."""
    return "\n".join(_parts(diagnosis, limit, details))


def to_page(diagnosis: Diagnosis, *, limit: int = 0, details: int = 0) -> str:
    """Write a page of its own."""
    title = "Kernel diagnosis"
    gpus = ", ".join(map(str, diagnosis.meta.get("gpus", ())))
    tool = " ".join(filter(None, (diagnosis.meta.get("tool"), diagnosis.meta.get("tool_version"))))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{title}</title>\n<style>\n{_styles()}</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{title}</h1>\n<p class="sub">{_text("; ".join(filter(None, (gpus, tool))))}</p>\n'
        f"{to_fragment(diagnosis, limit=limit, details=details)}\n</main>\n</body>\n</html>\n"
    )


def _styles() -> str:
    css = resources.files(__package__ or "").joinpath("page.css").read_text(encoding="utf-8")
    dark = f"@media (prefers-color-scheme: dark) {{{_variables(DARK)}}}"
    return f"{_variables(LIGHT)}\n{dark}\n{css}"


def _variables(theme: Theme) -> str:
    names = ("background", "text", "muted", "grid", "band", "mark")
    return f":root{{{''.join(f'--{n}:{getattr(theme, n)};' for n in names)}}}"


def _text(text: str) -> str:
    return escape(safe_text(text))


def _parts(diagnosis: Diagnosis, limit: int, details: int) -> Iterator[str]:
    yield f'<div class="report">{to_html(overview(diagnosis), limit=limit)}</div>'
    if diagnosis.duration_ns:
        saved = units.format_time(diagnosis.saved_ns)
        whole = units.format_time(diagnosis.duration_ns)
        yield f"<p>The first fix of each kernel together: <b>{saved}</b> of {whole}.</p>"
    yield from (f"<p><i>{_text(note)}</i></p>" for note in diagnosis.notes)
    worth = [g for g in diagnosis.groups if g.findings]
    for number, group in enumerate(worth[:details] if details else worth, 1):
        yield from _kernel(explained(diagnosis, group), number)


def _kernel(kernel: Explained, number: int) -> Iterator[str]:
    yield f'<section class="kernel"><h2>{number}. {_text(kernel.title)}</h2>'
    yield f'<p class="sub">{_text(kernel.subtitle)}</p>'
    for rank, finding in enumerate(kernel.findings):
        yield from _finding(finding, is_open=rank == 0)
    if kernel.profiler:
        said = "".join(f"<li>{_text(one)}</li>" for one in kernel.profiler)
        yield f"<details><summary>Nsight Compute's own rules</summary><ul>{said}</ul></details>"
    yield "</section>"


def _finding(finding: Finding, *, is_open: bool) -> Iterator[str]:
    yield f"<details{' open' if is_open else ''}><summary><b>{_text(finding.rule)}</b>: "
    yield f"{_text(finding.title)} <em>{_text(verdict(finding))}</em></summary>"
    yield f"<p>Gain: {_text(trust(finding))}.</p><table>"
    for one in finding.evidence:
        value = _text(value_of(one))
        yield f'<tr><td style="text-align:right">{value}</td><td>{_text(one.meaning)}</td></tr>'
    for place in finding.places:
        share = _text(units.format_share(place.share))
        where = f"{_text(place.path)}:{place.line} <code>{_text(place.text)}</code>"
        yield f'<tr><td style="text-align:right">{share}</td><td>{where}</td></tr>'
    yield f"</table><p>{_text(finding.why)} {_text(finding.fix)}</p>"
    yield f"<pre>{escape(finding.code)}</pre>"
    yield f'<p class="sub">When it misleads: {_text(finding.misleads)}</p></details>'
