"""A diagnosis of kernels as one HTML page, and in short for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight import units
from gpusight.render.diagnosis.page import code, notes, page, seen, text
from gpusight.render.diagnosis.parts import Explained, explained, trust, verdict
from gpusight.render.diagnosis.tables import overview
from gpusight.render.html import to_html

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.findings.finding import Finding
    from gpusight.findings.kernels.diagnosis import Diagnosis


def to_fragment(diagnosis: Diagnosis, *, limit: int, details: int) -> str:
    """Write the overview and the foremost kernels, for a notebook; 0 for all."""
    return "\n".join(_parts(diagnosis, limit, details))


def to_page(diagnosis: Diagnosis, *, limit: int = 0, details: int = 0) -> str:
    """Write a page of its own."""
    title = "Kernel diagnosis"
    gpus = ", ".join(map(str, diagnosis.meta.get("gpus", ())))
    tool = " ".join(filter(None, (diagnosis.meta.get("tool"), diagnosis.meta.get("tool_version"))))
    subtitle = "; ".join(filter(None, (gpus, tool)))
    return page(title, subtitle, to_fragment(diagnosis, limit=limit, details=details))


def _parts(diagnosis: Diagnosis, limit: int, details: int) -> Iterator[str]:
    yield f'<div class="report">{to_html(overview(diagnosis), limit=limit)}</div>'
    if diagnosis.duration_ns:
        saved = units.format_time(diagnosis.saved_ns)
        whole = units.format_time(diagnosis.duration_ns)
        yield f"<p>The first fix of each kernel together: <b>{saved}</b> of {whole}.</p>"
    yield from notes(diagnosis.notes)
    worth = [g for g in diagnosis.groups if g.findings]
    for number, group in enumerate(worth[:details] if details else worth, 1):
        yield from kernel_section(explained(diagnosis, group), number)


def kernel_section(kernel: Explained, number: int) -> Iterator[str]:
    """Explain one kernel."""
    yield f'<section class="kernel"><h2>{number}. {text(kernel.title)}</h2>'
    yield from explanation(kernel)
    yield "</section>"


def explanation(kernel: Explained) -> Iterator[str]:
    """Write what is said of a kernel below its title."""
    yield f'<p class="sub">{text(kernel.subtitle)}</p>'
    for rank, finding in enumerate(kernel.findings):
        yield from _finding(finding, is_open=rank == 0)
    if kernel.profiler:
        said = "".join(f"<li>{text(one)}</li>" for one in kernel.profiler)
        yield f"<details><summary>Nsight Compute's own rules</summary><ul>{said}</ul></details>"


def _finding(finding: Finding, *, is_open: bool) -> Iterator[str]:
    yield f"<details{' open' if is_open else ''}><summary><b>{text(finding.rule)}</b>: "
    yield f"{text(finding.title)} <em>{text(verdict(finding))}</em></summary>"
    yield f"<p>Gain: {text(trust(finding))}.</p><table>"
    yield from seen(finding.evidence)
    for place in finding.places:
        share = text(units.format_share(place.share))
        where = f"{text(place.path)}:{place.line} <code>{text(place.text)}</code>"
        yield f'<tr><td style="text-align:right">{share}</td><td>{where}</td></tr>'
    yield f"</table><p>{text(finding.why)} {text(finding.fix)}</p>{code(finding.code)}"
    yield f'<p class="sub">When it misleads: {text(finding.misleads)}</p></details>'
