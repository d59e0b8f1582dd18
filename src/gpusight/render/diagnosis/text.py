"""A diagnosis on a terminal: the answer in a table first, then the foremost kernels explained."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from gpusight import units
from gpusight.render.cells import ELLIPSIS, display_width, safe_text, shorten_middle
from gpusight.render.diagnosis.parts import Explained, explained, trust, value_of, verdict
from gpusight.render.diagnosis.tables import overview
from gpusight.render.plain import to_plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.findings.finding import Evidence, Finding, Place
    from gpusight.findings.kernels.diagnosis import Diagnosis
    from gpusight.render.layout import Look

LABEL = 6
_EVIDENCE = 5
"""Numbers that are shown of each finding; JSON has them all."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line, and how it looks in colour."""

    text: str
    style: str = ""


def to_text(diagnosis: Diagnosis, look: Look, *, details: int) -> str:
    """Write a diagnosis as plain text; `details` kernels are explained."""
    head = to_plain(overview(diagnosis), look)
    rest = [*_summary(diagnosis, look), *_details(diagnosis, look, details)]
    return head + "".join(f"{line.text.rstrip()}\n" for line in rest)


def print_text(diagnosis: Diagnosis, look: Look, stream: TextIO, *, details: int) -> None:
    """Draw a diagnosis with colours on a stream that takes them."""
    from rich.console import Console

    from gpusight.render.terminal import print_colored

    print_colored(overview(diagnosis), look, stream)
    console = Console(
        file=stream,
        width=1_000_000,
        force_terminal=True,
        highlight=False,
        markup=False,
        emoji=False,
    )
    for line in (*_summary(diagnosis, look), *_details(diagnosis, look, details)):
        console.print(line.text, style=line.style)


def _summary(diagnosis: Diagnosis, look: Look) -> Iterator[Line]:
    whole, saved = diagnosis.duration_ns, diagnosis.saved_ns
    if whole:
        text = (
            f"the first fix of each kernel together: {units.format_time(saved)} of "
            f"{units.format_time(whole)} ({units.format_share(saved / whole)})"
        )
        yield from _wrapped(text, look.width, "", "dim")
    for note in diagnosis.notes:
        yield from _wrapped(note, look.width, "note: ", "dim")


def _details(diagnosis: Diagnosis, look: Look, count: int) -> Iterator[Line]:
    worth = [g for g in diagnosis.groups if g.findings]
    for number, group in enumerate(worth[:count] if count else worth, 1):
        yield Line("")
        yield from _kernel(explained(diagnosis, group), number, look.width)


def _kernel(kernel: Explained, number: int, width: int | None) -> Iterator[Line]:
    title = f"{number}. {kernel.title}"
    yield Line(title if width is None else shorten_middle(title, width), "bold cyan")
    yield from _wrapped(kernel.subtitle, width, "   ", "dim")
    for finding in kernel.findings[:1]:
        yield from _finding(finding, width)
    for finding in kernel.findings[1:]:
        yield from _labelled("then", f"{_headline(finding)}", width)
    for said in kernel.profiler:
        yield from _labelled("ncu", said, width, "dim")


def _finding(finding: Finding, width: int | None) -> Iterator[Line]:
    yield from _wrapped(_headline(finding), width, "   ", "bold yellow")
    yield from _labelled("gain", trust(finding), width)
    yield from _seen(finding.evidence[:_EVIDENCE], width)
    for place in finding.places:
        yield from _place(place, width)
    yield from _labelled("why", finding.why, width)
    yield from _labelled("fix", finding.fix, width)
    indent = " " * (3 + LABEL + 2)
    for text in finding.code.rstrip("\n").splitlines():
        yield Line(indent + text, "green")
    if finding.also:
        yield from _labelled("also", f"accounts for {', '.join(finding.also)}", width, "dim")


def _place(place: Place, width: int | None) -> Iterator[Line]:
    """Name a source line, and show as much of it as fits."""
    text = safe_text(
        f"{units.format_share(place.share):>6}  {place.path}:{place.line}  {place.text}"
    )
    line = f"   {'line'.ljust(LABEL)}  {text}"
    yield Line(line if width is None else _cut(line, width))


def _cut(text: str, width: int) -> str:
    return text if display_width(text) <= width else text[: width - 1].rstrip() + ELLIPSIS


def _headline(finding: Finding) -> str:
    return f"{finding.rule}: {safe_text(finding.title)} ({verdict(finding)})"


def _seen(evidence: tuple[Evidence, ...], width: int | None) -> Iterator[Line]:
    values = [value_of(e) for e in evidence]
    widest = max(map(display_width, values), default=0)
    for number, (value, one) in enumerate(zip(values, evidence, strict=True)):
        label = "seen" if number == 0 else ""
        yield from _labelled(label, one.meaning, width, lead=f"{value.rjust(widest)}  ")


def _labelled(
    label: str, text: str, width: int | None, style: str = "", *, lead: str = ""
) -> Iterator[Line]:
    yield from _wrapped(text, width, f"   {label.ljust(LABEL)}  {lead}", style)


def _wrapped(text: str, width: int | None, lead: str, style: str = "") -> Iterator[Line]:
    """Wrap a text behind a lead; names of rules are not broken at their hyphens."""
    safe = safe_text(text)
    if width is None or display_width(lead + safe) <= width:
        yield Line(lead + safe, style)
        return
    indent = " " * min(display_width(lead), width // 2)
    lines = textwrap.wrap(
        safe, width, initial_indent=lead, subsequent_indent=indent, break_on_hyphens=False
    )
    yield from (Line(line, style) for line in lines)
