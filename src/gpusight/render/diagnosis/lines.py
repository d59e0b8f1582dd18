"""Lines of an explanation on a terminal: wrapped to its width, with a look for colours."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from gpusight.render.cells import display_width, safe_text, shorten_end
from gpusight.render.diagnosis.parts import value_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusight.findings.finding import Evidence

LABEL = 6
"""Columns for words such as `seen` and `fix`."""
INDENT = " " * (3 + LABEL + 2)
_EVIDENCE = 5
"""Numbers that are shown of each finding; JSON has them all."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line, and how it looks in colour."""

    text: str
    style: str = ""
    parts: tuple[tuple[str, str], ...] = ()
    """Pieces of text with looks of their own, in place of `text`, where colours are shown."""


def plain(lines: Iterable[Line]) -> str:
    """Write lines without colours."""
    return "".join(f"{line.text.rstrip()}\n" for line in lines)


def draw(lines: Iterable[Line], stream: TextIO) -> None:
    """Draw lines with colours on a stream that takes them."""
    from rich.console import Console
    from rich.text import Text

    console = Console(
        file=stream,
        width=1_000_000,
        force_terminal=True,
        highlight=False,
        markup=False,
        emoji=False,
    )
    for line in lines:
        text = Text.assemble(*line.parts) if line.parts else Text(line.text, style=line.style)
        console.print(text)


def wrapped(text: str, width: int | None, lead: str, style: str = "") -> Iterator[Line]:
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


def labelled(
    label: str, text: str, width: int | None, style: str = "", *, lead: str = ""
) -> Iterator[Line]:
    """Wrap a text behind a word that says what it is."""
    yield from wrapped(text, width, f"   {label.ljust(LABEL)}  {lead}", style)


def seen(evidence: tuple[Evidence, ...], width: int | None) -> Iterator[Line]:
    """Show the foremost numbers of a finding, one below the other."""
    foremost = evidence[:_EVIDENCE]
    values = [value_of(e) for e in foremost]
    widest = max(map(display_width, values), default=0)
    for number, (value, one) in enumerate(zip(values, foremost, strict=True)):
        label = "seen" if number == 0 else ""
        yield from labelled(label, one.meaning, width, lead=f"{value.rjust(widest)}  ")


def code_lines(code: str) -> Iterator[Line]:
    """Show lines to paste, whole: names of the capture in them are made safe, not cut."""
    for text in code.rstrip("\n").splitlines():
        yield Line(INDENT + safe_text(text), "green")


def cut(text: str, width: int | None) -> str:
    """Cut the end off a line that is too wide."""
    return text if width is None else shorten_end(text, width)
