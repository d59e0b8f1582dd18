"""A comparison as Markdown for a pull request: the answer in sight, the rest to unfold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.render.cells import safe_text, shorten_end
from gpusight.render.comparison import words
from gpusight.render.comparison.section import ROWS
from gpusight.render.comparison.sections import sections
from gpusight.render.markdown import code, escape, prose, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.comparison.outcome import Comparison
    from gpusight.render.comparison.section import Cell, Column, Section

MOST_LETTERS = 65_000
"""GitHub takes 65,536 of them in a comment."""
_NAME = 500
"""Letters of a name; nobody reads on, and a comment has room for so many only."""
_OPEN = frozenset({"metrics", "ledger", "between", "findings"})
"""Tables that need not be unfolded."""
_SENTENCE = 1_500


def to_document(comparison: Comparison, *, limit: int | None = None) -> str:
    """Write a comparison; where a comment could not hold it, with fewer rows of each table."""
    rows = [limit, *(n for n in (ROWS, 10, 5, 2) if not limit or n < limit)]
    documents = ("\n".join(_lines(comparison, count)) + "\n" for count in rows)
    text = ""
    for text in documents:
        if len(text) <= MOST_LETTERS:
            return text
    return text[:MOST_LETTERS].rpartition("\n")[0] + "\n\n… the rest is too long for a comment\n"


def _lines(comparison: Comparison, limit: int | None) -> Iterator[str]:
    yield from (f"## {escape(words.headline(comparison))}", "")
    for name, side in (("before", comparison.before), ("after", comparison.after)):
        yield f"- **{name}**: {escape(words.side(side)[:_SENTENCE])}"
    verdict, *reasons = comparison.explanation or (words.headline(comparison),)
    yield from ("", f"**{_sentence(verdict)}**")
    if reasons:
        yield from ("", *(f"- {_sentence(reason)}" for reason in reasons))
    for note in comparison.notes:
        yield from ("", f"> {_sentence(note)}")
    for section in sections(comparison):
        yield from _section(section, limit)
    yield from ("", escape(words.marks(comparison)))


def _sentence(told: str) -> str:
    return prose(told[:_SENTENCE], cell=False)


def _section(section: Section, limit: int | None) -> Iterator[str]:
    rows = section.shown(limit)
    if not rows:
        return
    left_out = len(section.rows) - len(rows)
    columns = [(n, c) for n, c in enumerate(section.columns) if not c.extra]
    headings = [escape(c.heading) for _, c in columns]
    cells = [[_cell(c, row.cells[n]) for n, c in columns] for row in rows]
    written = table(headings, [c.right for _, c in columns], cells)
    if section.key in _OPEN:
        yield from ("", f"### {escape(section.title)}", "")
    else:
        count = f"{len(rows):,} of {len(section.rows):,}" if left_out else f"{len(rows):,}"
        yield from ("", f"<details><summary>{escape(section.title)} ({count})</summary>", "")
    yield written
    if section.key not in _OPEN:
        yield from ("", "</details>")
    elif left_out:
        yield from ("", f"… and {left_out:,} more")


def _cell(column: Column, cell: Cell) -> str:
    if isinstance(cell, str) and not column.name:
        return escape(cell)
    parts = (cell,) if isinstance(cell, str) else cell
    own = code if column.quoted else prose
    return f"<br>{escape(words.ARROW)} ".join(own(shorten_end(safe_text(p), _NAME)) for p in parts)
