"""A comparison on a terminal, and as Markdown for a pull request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from gpusight.render import comparison_tables
from gpusight.render.cell_text import (
    align_units,
    display_width,
    pad,
    safe_text,
    shorten_end,
    shorten_middle,
)
from gpusight.render.comparison_tables import ARROW, MAX_SHOWN_ROWS, ChangeTone, comparison_sections
from gpusight.render.explanation import StyledLine, draw_lines, plain_lines, wrapped_lines
from gpusight.render.markdown_tables import (
    escape_markdown,
    markdown_code,
    markdown_prose,
    markdown_table,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.comparison.comparison_result import Comparison
    from gpusight.render.comparison_tables import (
        ComparisonCell,
        ComparisonColumn,
        ComparisonRow,
        ComparisonSection,
    )
    from gpusight.render.table_layout import TableOptions


_GAP, _NARROW_GAP = 2, 1
_MIN_NAME_WIDTH = 16
_NAME_SHARE = 0.4
"""A name may ask for this part of the screen before a number is left out."""
_BAR, _MIN_BAR_WIDTH = 16, 6
_TONE_STYLES = {
    ChangeTone.GOOD: "green",
    ChangeTone.BAD: "red",
    ChangeTone.UNSURE: "dim",
    ChangeTone.PLAIN: "",
}
_DETAIL_INDENT = " " * 8
_ARROW = f" {ARROW} "


@dataclass(frozen=True, slots=True)
class _FittedColumn:
    """A column with its cells as they are printed."""

    column: ComparisonColumn
    cells: tuple[str, ...]
    width: int
    second: tuple[str, ...] = ()
    """What stands below each cell; nothing where all fit."""

    def padded(self, row: int) -> str:
        """Give a cell at the width of its column; the heading is row -1."""
        text = self.column.heading if row < 0 else self.cells[row]
        return pad(text, self.width, right=self.column.right)


def section_lines(
    section: ComparisonSection, rows: Sequence[ComparisonRow], look: TableOptions
) -> Iterator[StyledLine]:
    """Give the lines of a table, its heading first."""
    wanted = [n for n, c in enumerate(section.columns) if _is_wanted(c, look)]
    beneath = [n for n, c in enumerate(section.columns) if c.beneath]
    natural = [_natural(section.columns[n], [row.cells[n] for row in rows]) for n in wanted]
    kept, dropped, gap = _fit(natural, look.width)
    numbers = [wanted[natural.index(one)] for one in kept]
    columns = _narrowed(kept, numbers, rows, look.width, gap)
    used = sum(one.width for one in columns) + gap * (len(columns) - 1)
    room = _BAR if look.width is None else min(_BAR, look.width - used - gap)
    bar = room if section.bars and room >= _MIN_BAR_WIDTH else 0
    yield StyledLine((" " * gap).join(one.padded(-1) for one in columns), "bold")
    largest = max((abs(row.delta or 0.0) for row in rows if not row.total), default=0.0)
    for number, row in enumerate(rows):
        drawn = _bar(row, largest, bar, solid=look.bars)
        yield _line(columns, number, row, " " * gap, drawn)
        yield from _second(columns, number, row, gap)
        for place in beneath:
            yield from wrapped_lines(_joined(row.cells[place]), look.width, _DETAIL_INDENT, "dim")
    if dropped:
        said = f"{', '.join(dropped)} ({look.columns_advice})"
        yield from wrapped_lines(said, look.width, "no room for: ", "dim")


def _is_wanted(column: ComparisonColumn, look: TableOptions) -> bool:
    return not column.beneath and (look.every_field or not column.extra)


def _natural(column: ComparisonColumn, cells: list[ComparisonCell]) -> _FittedColumn:
    texts = [_joined(cell) for cell in cells]
    if column.units:
        texts = align_units(texts)
    width = max(map(display_width, (column.heading, *texts)))
    return _FittedColumn(column, tuple(texts), width)


def _joined(cell: ComparisonCell) -> str:
    return safe_text(cell) if isinstance(cell, str) else _ARROW.join(map(safe_text, cell))


def _fit(
    columns: list[_FittedColumn], width: int | None
) -> tuple[list[_FittedColumn], list[str], int]:
    """Close the gaps, then leave numbers out from the right, until names can be read."""
    if width is None or _min_name_width(columns, width, _GAP) <= width:
        return columns, [], _GAP
    kept = list(columns)
    dropped: list[str] = []
    while _min_name_width(kept, width, _NARROW_GAP) > width:
        rest = [one for one in reversed(kept[1:]) if not one.column.name]
        if not rest:
            break
        candidate = next((one for one in rest if not one.column.toned), rest[0])
        kept.remove(candidate)
        dropped.insert(0, candidate.column.heading)
    return kept, dropped, _NARROW_GAP


def _min_name_width(columns: list[_FittedColumn], width: int, gap: int) -> int:
    least = max(_MIN_NAME_WIDTH, int(width * _NAME_SHARE) if gap == _GAP else 0)
    names = (min(one.width, least) if one.column.name else one.width for one in columns)
    return sum(names) + gap * (len(columns) - 1)


def _narrowed(
    columns: list[_FittedColumn],
    numbers: list[int],
    rows: Sequence[ComparisonRow],
    width: int | None,
    gap: int,
) -> list[_FittedColumn]:
    """Cut names to the room that the numbers leave."""
    if width is None or sum(o.width for o in columns) + gap * (len(columns) - 1) <= width:
        return columns
    taken = sum(0 if o.column.name else o.width for o in columns) + gap * (len(columns) - 1)
    names = sum(one.column.name for one in columns)
    room = max(_MIN_NAME_WIDTH // 2, (width - taken) // max(1, names))
    return [
        _cut(one, [row.cells[n] for row in rows], min(room, one.width)) if one.column.name else one
        for one, n in zip(columns, numbers, strict=True)
    ]


def _cut(one: _FittedColumn, cells: list[ComparisonCell], width: int) -> _FittedColumn:
    lines = [_name_lines(cell, width) for cell in cells]
    return _FittedColumn(one.column, tuple(a for a, _ in lines), width, tuple(b for _, b in lines))


def _name_lines(cell: ComparisonCell, width: int) -> tuple[str, str]:
    """Give what a name takes: of one that took another's place, where both do not fit, two lines.

    Those are cut at their ends: what a kernel does comes first, and the middle tells it too.
    """
    joined = _joined(cell)
    if isinstance(cell, str) or display_width(joined) <= width:
        return shorten_middle(joined, width), ""
    old, new = map(safe_text, cell)
    return shorten_end(old, width), shorten_end(f"{ARROW} {new}", width)


def _bar(row: ComparisonRow, largest: float, width: int, *, solid: bool) -> str:
    """Draw how large a change is; without colours its sign has to be seen."""
    if not width or not largest or row.total or not row.delta:
        return ""
    length = round(width * abs(row.delta) / largest)
    return ("█" if solid else "-" if row.delta < 0 else "+") * length


def _line(
    columns: list[_FittedColumn], number: int, row: ComparisonRow, gap: str, bar: str
) -> StyledLine:
    style, base = _TONE_STYLES[row.tone], "dim" if row.tone is ChangeTone.UNSURE else ""
    strong = "bold" if row.total else ""
    pieces: list[tuple[str, str]] = []
    for one in columns:
        own = style if one.column.toned else base
        pieces += [(one.padded(number), " ".join(filter(None, (strong, own)))), (gap, "")]
    pieces.append((bar, style))
    text = "".join(piece for piece, _ in pieces)
    return StyledLine(text.rstrip(), parts=tuple(pieces))


def _second(
    columns: list[_FittedColumn], number: int, row: ComparisonRow, gap: int
) -> Iterator[StyledLine]:
    """Give the line of names that take two, each below where it begins."""
    left = 0
    for one in columns:
        if one.second and one.second[number]:
            style = "dim" if row.tone is ChangeTone.UNSURE else ""
            yield StyledLine(" " * left + one.second[number], style)
        left += one.width + gap


_HEADLINE_STYLES = {
    comparison_tables.ChangeTone.GOOD: "bold green",
    comparison_tables.ChangeTone.BAD: "bold red",
    comparison_tables.ChangeTone.UNSURE: "bold yellow",
}


def comparison_to_text(
    comparison: Comparison, look: TableOptions, *, hints: Sequence[str] = ()
) -> str:
    """Write a comparison as plain text, with what to type next; ends with a newline."""
    return plain_lines(comparison_lines(comparison, look, hints))


def print_comparison(
    comparison: Comparison, look: TableOptions, stream: TextIO, *, hints: Sequence[str] = ()
) -> None:
    """Draw a comparison with colours on a stream that takes them."""
    draw_lines(comparison_lines(comparison, look, hints), stream)


def comparison_lines(
    comparison: Comparison, look: TableOptions, hints: Sequence[str] = ()
) -> Iterator[StyledLine]:
    """Give the lines of a comparison."""
    yield from wrapped_lines(
        comparison_tables.side_line(comparison.before), look.width, "before  ", "dim"
    )
    yield from wrapped_lines(
        comparison_tables.side_line(comparison.after), look.width, "after   ", "dim"
    )
    yield StyledLine("")
    verdict, *reasons = comparison.explanation or (
        comparison_tables.comparison_headline(comparison),
    )
    yield from wrapped_lines(
        verdict,
        look.width,
        "",
        _HEADLINE_STYLES[comparison_tables.change_tone(comparison.headline.change)],
    )
    for reason in reasons:
        yield from wrapped_lines(reason, look.width, "- ")
    for note in comparison.notes:
        yield from wrapped_lines(note, look.width, "note: ", "yellow")
    marked = False
    for section in comparison_sections(comparison):
        yield StyledLine("")
        yield from _text_section(section, look)
        marked |= any(row.tone is comparison_tables.ChangeTone.UNSURE for row in section.rows)
    if marked:
        yield StyledLine("")
        yield from wrapped_lines(comparison_tables.mark_legend(comparison), look.width, "", "dim")
    for hint in hints:
        yield from wrapped_lines(hint, look.width, "next: ", "dim")


def _text_section(section: ComparisonSection, look: TableOptions) -> Iterator[StyledLine]:
    rows = section.shown(look.limit)
    if not rows:
        said = f"{section.quiet} ({look.rows_advice})"
        yield from wrapped_lines(said, look.width, f"{section.title}: ", "dim")
        return
    yield from wrapped_lines(section.title, look.width, "", "bold cyan")
    yield from section_lines(section, rows, look)
    left_out = len(section.rows) - len(rows)
    if left_out:
        what = "with smaller changes " if look.limit is None else ""
        said = f"… and {left_out:,} more {what}({look.rows_advice})"
        yield from wrapped_lines(said, look.width, "", "dim")


MAX_COMMENT_CHARACTERS = 65_000
"""GitHub takes 65,536 of them in a comment."""
_MAX_NAME_CHARACTERS = 500
"""Letters of a name; nobody reads on, and a comment has room for so many only."""
_UNFOLDED_SECTIONS = frozenset({"metrics", "ledger", "between", "findings"})
"""Tables that need not be unfolded."""
_MAX_SENTENCE_CHARACTERS = 1_500


def comparison_to_markdown(comparison: Comparison, *, limit: int | None = None) -> str:
    """Write a comparison; where a comment could not hold it, with fewer rows of each table."""
    rows = [limit, *(n for n in (MAX_SHOWN_ROWS, 10, 5, 2) if not limit or n < limit)]
    documents = ("\n".join(_markdown_lines(comparison, count)) + "\n" for count in rows)
    text = ""
    for text in documents:
        if len(text) <= MAX_COMMENT_CHARACTERS:
            return text
    return (
        text[:MAX_COMMENT_CHARACTERS].rpartition("\n")[0]
        + "\n\n… the rest is too long for a comment\n"
    )


def _markdown_lines(comparison: Comparison, limit: int | None) -> Iterator[str]:
    yield from (f"## {escape_markdown(comparison_tables.comparison_headline(comparison))}", "")
    for name, side in (("before", comparison.before), ("after", comparison.after)):
        yield (
            f"- **{name}**: "
            f"{escape_markdown(comparison_tables.side_line(side)[:_MAX_SENTENCE_CHARACTERS])}"
        )
    verdict, *reasons = comparison.explanation or (
        comparison_tables.comparison_headline(comparison),
    )
    yield from ("", f"**{_sentence(verdict)}**")
    if reasons:
        yield from ("", *(f"- {_sentence(reason)}" for reason in reasons))
    for note in comparison.notes:
        yield from ("", f"> {_sentence(note)}")
    for section in comparison_sections(comparison):
        yield from _markdown_section(section, limit)
    yield from ("", escape_markdown(comparison_tables.mark_legend(comparison)))


def _sentence(told: str) -> str:
    return markdown_prose(told[:_MAX_SENTENCE_CHARACTERS], cell=False)


def _markdown_section(section: ComparisonSection, limit: int | None) -> Iterator[str]:
    rows = section.shown(limit)
    if not rows:
        return
    left_out = len(section.rows) - len(rows)
    columns = [(n, c) for n, c in enumerate(section.columns) if not c.extra]
    headings = [escape_markdown(c.heading) for _, c in columns]
    cells = [[_markdown_cell(c, row.cells[n]) for n, c in columns] for row in rows]
    written = markdown_table(headings, [c.right for _, c in columns], cells)
    if section.key in _UNFOLDED_SECTIONS:
        yield from ("", f"### {escape_markdown(section.title)}", "")
    else:
        count = f"{len(rows):,} of {len(section.rows):,}" if left_out else f"{len(rows):,}"
        yield from (
            "",
            f"<details><summary>{escape_markdown(section.title)} ({count})</summary>",
            "",
        )
    yield written
    if section.key not in _UNFOLDED_SECTIONS:
        yield from ("", "</details>")
    elif left_out:
        yield from ("", f"… and {left_out:,} more")


def _markdown_cell(column: ComparisonColumn, cell: ComparisonCell) -> str:
    if isinstance(cell, str) and not column.name:
        return escape_markdown(cell)
    parts = (cell,) if isinstance(cell, str) else cell
    own = markdown_code if column.quoted else markdown_prose
    return f"<br>{escape_markdown(comparison_tables.ARROW)} ".join(
        own(shorten_end(safe_text(p), _MAX_NAME_CHARACTERS)) for p in parts
    )
