"""A diagnosis on a terminal: the answer in a table first, then the foremost kernels explained."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from gpusight import units
from gpusight.render.cells import safe_text, shorten_middle
from gpusight.render.diagnosis.lines import (
    LABEL,
    Line,
    code_lines,
    cut,
    draw,
    labelled,
    plain,
    seen,
    wrapped,
)
from gpusight.render.diagnosis.parts import Explained, explained, trust, verdict
from gpusight.render.diagnosis.tables import overview
from gpusight.render.plain import to_plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.findings.finding import Finding, Place
    from gpusight.findings.kernels.diagnosis import Diagnosis
    from gpusight.render.layout import Look


def to_text(diagnosis: Diagnosis, look: Look, *, details: int) -> str:
    """Write a diagnosis as plain text; `details` kernels are explained."""
    head = to_plain(overview(diagnosis), look)
    return head + plain((*_summary(diagnosis, look), *_details(diagnosis, look, details)))


def print_text(diagnosis: Diagnosis, look: Look, stream: TextIO, *, details: int) -> None:
    """Draw a diagnosis with colours on a stream that takes them."""
    from gpusight.render.terminal import print_colored

    print_colored(overview(diagnosis), look, stream)
    draw((*_summary(diagnosis, look), *_details(diagnosis, look, details)), stream)


def _summary(diagnosis: Diagnosis, look: Look) -> Iterator[Line]:
    whole, saved = diagnosis.duration_ns, diagnosis.saved_ns
    if whole:
        text = (
            f"the first fix of each kernel together: {units.format_time(saved)} of "
            f"{units.format_time(whole)} ({units.format_share(saved / whole)})"
        )
        yield from wrapped(text, look.width, "", "dim")
    for note in diagnosis.notes:
        yield from wrapped(note, look.width, "note: ", "dim")


def _details(diagnosis: Diagnosis, look: Look, count: int) -> Iterator[Line]:
    worth = [g for g in diagnosis.groups if g.findings]
    for number, group in enumerate(worth[:count] if count else worth, 1):
        yield Line("")
        yield from kernel_lines(explained(diagnosis, group), number, look.width)


def kernel_lines(kernel: Explained, number: int, width: int | None) -> Iterator[Line]:
    """Explain one kernel."""
    title = f"{number}. {kernel.title}"
    yield Line(title if width is None else shorten_middle(title, width), "bold cyan")
    yield from wrapped(kernel.subtitle, width, "   ", "dim")
    for finding in kernel.findings[:1]:
        yield from _finding(finding, width)
    for finding in kernel.findings[1:]:
        yield from labelled("then", f"{_headline(finding)}", width)
    for said in kernel.profiler:
        yield from labelled("ncu", said, width, "dim")


def _finding(finding: Finding, width: int | None) -> Iterator[Line]:
    yield from wrapped(_headline(finding), width, "   ", "bold yellow")
    yield from labelled("gain", trust(finding), width)
    yield from seen(finding.evidence, width)
    for place in finding.places:
        yield from _place(place, width)
    yield from labelled("why", finding.why, width)
    yield from labelled("fix", finding.fix, width)
    yield from code_lines(finding.code)
    if finding.also:
        yield from labelled("also", f"accounts for {', '.join(finding.also)}", width, "dim")


def _place(place: Place, width: int | None) -> Iterator[Line]:
    """Name a source line, and show as much of it as fits."""
    text = safe_text(
        f"{units.format_share(place.share):>6}  {place.path}:{place.line}  {place.text}"
    )
    line = f"   {'line'.ljust(LABEL)}  {text}"
    yield Line(cut(line, width))


def _headline(finding: Finding) -> str:
    return f"{finding.rule}: {safe_text(finding.title)} ({verdict(finding)})"
