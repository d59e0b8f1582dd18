"""A comparison on a terminal: what changed and why on the first screen, then everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from gpusight.render.comparison import words
from gpusight.render.comparison.grid import grid
from gpusight.render.comparison.sections import sections
from gpusight.render.diagnosis.lines import Line, draw, plain, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.comparison.outcome import Comparison
    from gpusight.render.comparison.section import Section
    from gpusight.render.layout import Look

_STYLES = {
    words.Tone.GOOD: "bold green",
    words.Tone.BAD: "bold red",
    words.Tone.UNSURE: "bold yellow",
}


def to_text(comparison: Comparison, look: Look, *, hints: Sequence[str] = ()) -> str:
    """Write a comparison as plain text, with what to type next; ends with a newline."""
    return plain(lines_of(comparison, look, hints))


def print_text(
    comparison: Comparison, look: Look, stream: TextIO, *, hints: Sequence[str] = ()
) -> None:
    """Draw a comparison with colours on a stream that takes them."""
    draw(lines_of(comparison, look, hints), stream)


def lines_of(comparison: Comparison, look: Look, hints: Sequence[str] = ()) -> Iterator[Line]:
    """Give the lines of a comparison."""
    yield from wrapped(words.side(comparison.before), look.width, "before  ", "dim")
    yield from wrapped(words.side(comparison.after), look.width, "after   ", "dim")
    yield Line("")
    verdict, *reasons = comparison.explanation or (words.headline(comparison),)
    yield from wrapped(verdict, look.width, "", _STYLES[words.tone(comparison.headline.change)])
    for reason in reasons:
        yield from wrapped(reason, look.width, "- ")
    for note in comparison.notes:
        yield from wrapped(note, look.width, "note: ", "yellow")
    marked = False
    for section in sections(comparison):
        yield Line("")
        yield from _section(section, look)
        marked |= any(row.tone is words.Tone.UNSURE for row in section.rows)
    if marked:
        yield Line("")
        yield from wrapped(words.marks(comparison), look.width, "", "dim")
    for hint in hints:
        yield from wrapped(hint, look.width, "next: ", "dim")


def _section(section: Section, look: Look) -> Iterator[Line]:
    rows = section.shown(look.limit)
    if not rows:
        said = f"{section.quiet} ({look.rows_advice})"
        yield from wrapped(said, look.width, f"{section.title}: ", "dim")
        return
    yield from wrapped(section.title, look.width, "", "bold cyan")
    yield from grid(section, rows, look)
    left_out = len(section.rows) - len(rows)
    if left_out:
        what = "with smaller changes " if look.limit is None else ""
        said = f"… and {left_out:,} more {what}({look.rows_advice})"
        yield from wrapped(said, look.width, "", "dim")
