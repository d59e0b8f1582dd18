"""A comparison on a terminal, and as Markdown for a pull request."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

from gpusight.comparison.phrases import NOTHING, bottleneck_sentence
from gpusight.render import comparison_tables
from gpusight.render.cell_text import (
    align_units,
    display_width,
    safe_text,
    shorten_end,
    shorten_middle,
)
from gpusight.render.comparison_tables import ARROW, MAX_SHOWN_ROWS, ChangeTone, comparison_sections
from gpusight.render.markdown_tables import (
    escape_markdown,
    markdown_code,
    markdown_prose,
    markdown_table,
)
from gpusight.render.table_layout import TextColumn, fit_columns
from gpusight.render.terminal_text import (
    StyledLine,
    command_lines,
    cut_line,
    note_lines,
    wrapped_lines,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.comparison.comparison_result import Comparison, KernelChange
    from gpusight.render.comparison_tables import (
        ComparisonCell,
        ComparisonColumn,
        ComparisonRow,
        ComparisonSection,
    )
    from gpusight.render.table_layout import TableOptions


_BAR, _MIN_BAR_WIDTH = 16, 6
_TONE_STYLES = {
    ChangeTone.GOOD: "green",
    ChangeTone.BAD: "red",
    ChangeTone.UNSURE: "dim",
    ChangeTone.PLAIN: "",
}
_DETAIL_INDENT = " " * 8
_ARROW = f" {ARROW} "


def section_lines(
    section: ComparisonSection, rows: Sequence[ComparisonRow], look: TableOptions
) -> Iterator[StyledLine]:
    """Give the lines of a table, its heading first."""
    width = None if look.full_names else look.width
    sources = [
        (column, [row.cells[index] for row in rows])
        for index, column in enumerate(section.columns)
        if not column.beneath and (look.every_field or not column.extra)
    ]
    beneath = [index for index, column in enumerate(section.columns) if column.beneath]
    layout = fit_columns([_text_column(*source) for source in sources], width)
    gap = " " * layout.gap
    columns, second_lines = list(layout.columns), [""] * len(rows)
    left = 0
    for index, position in enumerate(layout.positions):
        column, (source, cells) = columns[index], sources[position]
        if source.name:
            names = [_name_lines(cell, column.width) for cell in cells]
            columns[index] = replace(column, cells=tuple(first for first, _ in names))
            for number, (_, second) in enumerate(names):
                if second:
                    second_lines[number] = " " * left + second
        left += column.width + layout.gap
    room = _BAR if width is None else min(_BAR, width - layout.width - layout.gap)
    bar = room if section.bars and room >= _MIN_BAR_WIDTH else 0
    yield StyledLine(gap.join(c.padded_heading for c in columns), "bold")
    largest = max((abs(row.delta or 0.0) for row in rows if not row.total), default=0.0)
    for number, row in enumerate(rows):
        drawn = _bar(row, largest, bar, solid=look.bars)
        yield _line(columns, number, row, gap, drawn)
        if second_lines[number]:
            yield StyledLine(second_lines[number], "dim" if row.tone is ChangeTone.UNSURE else "")
        for position in beneath:
            text = _joined(row.cells[position])
            yield from wrapped_lines(text, look.width, _DETAIL_INDENT, "dim")
    if layout.columns_left_out:
        missing = f"{', '.join(layout.columns_left_out)} ({look.columns_advice})"
        yield from wrapped_lines(missing, look.width, "no room for: ", "dim")


def _text_column(column: ComparisonColumn, cells: list[ComparisonCell]) -> TextColumn:
    texts = [_joined(cell) for cell in cells]
    return TextColumn.natural(
        column.heading,
        align_units(texts) if column.units else texts,
        right=column.right,
        can_shorten=column.name,
        priority=int(column.toned),
    )


def _joined(cell: ComparisonCell) -> str:
    return safe_text(cell) if isinstance(cell, str) else _ARROW.join(map(safe_text, cell))


def _name_lines(cell: ComparisonCell, width: int) -> tuple[str, str]:
    """Give the lines of a name: two for a replaced kernel where both names do not fit.

    Those are cut at their ends: what a kernel does comes first.
    """
    joined = _joined(cell)
    if isinstance(cell, str) or display_width(joined) <= width:
        return shorten_middle(joined, width), ""
    old, new = map(safe_text, cell)
    return shorten_end(old, width), shorten_end(f"{ARROW} {new}", width)


def _bar(row: ComparisonRow, largest: float, width: int, *, solid: bool) -> str:
    """Draw how large a change is; without colors its sign must be visible."""
    if not width or not largest or row.total or not row.delta:
        return ""
    length = round(width * abs(row.delta) / largest)
    return ("█" if solid else "-" if row.delta < 0 else "+") * length


def _line(
    columns: list[TextColumn], number: int, row: ComparisonRow, gap: str, bar: str
) -> StyledLine:
    tone, base = _TONE_STYLES[row.tone], "dim" if row.tone is ChangeTone.UNSURE else ""
    strong = "bold" if row.total else ""
    parts: list[tuple[str, str]] = []
    for column in columns:
        own = tone if column.priority else base
        parts += [(column.padded(number), " ".join(filter(None, (strong, own)))), (gap, "")]
    return StyledLine.of_parts((*parts, (bar, tone)))


_HEADLINE_STYLES = {
    comparison_tables.ChangeTone.GOOD: "bold green",
    comparison_tables.ChangeTone.BAD: "bold red",
    comparison_tables.ChangeTone.UNSURE: "bold yellow",
}


_MAX_LINES = 25
"""Lines of the first screen on 100 columns, the next command included."""
_MIN_NAME_WIDTH = 16
_MAX_NOTE_LINES = 3
_NAME_PARTS = re.compile(r"[^\W_]+|[\W_]+")
"""Words of a file name, and what separates them."""
_MIN_ENTRIES, _MAX_ENTRIES, _MAX_KERNELS = 2, 6, 3
_SIDES = ("before", "after")


def comparison_lines(
    comparison: Comparison,
    look: TableOptions,
    *,
    details: bool = False,
    hints: Sequence[str] = (),
) -> Iterator[StyledLine]:
    """Give the lines of a comparison: the first screen, or with `details` every table.

    `hints` are the next commands.
    """
    if look.full_names:
        kernels = tuple(replace(k, short=_full_name(k)) for k in comparison.kernels)
        comparison = replace(comparison, kernels=kernels)
    yield from _detailed(comparison, look) if details else _first_screen(comparison, look)
    for number, hint in enumerate(hints):
        lead = "      " if number else "next: "
        yield from (StyledLine(text, "dim") for text in command_lines(hint, look.width, lead))


def _headline_style(comparison: Comparison) -> str:
    return _HEADLINE_STYLES[comparison_tables.change_tone(comparison.step)]


def _first_screen(comparison: Comparison, look: TableOptions) -> Iterator[StyledLine]:
    """Give the verdict, where the change came from, and what changed most."""
    headline = comparison_tables.comparison_headline(comparison)
    verdict = comparison.explanation[0] if comparison.explanation else headline
    head = [*_side_lines(comparison, look.width), StyledLine("")]
    head += wrapped_lines(verdict, look.width, "", _headline_style(comparison))
    if NOTHING not in (comparison.before.limit, comparison.after.limit):
        text = bottleneck_sentence(comparison)
        head += wrapped_lines(f"{text[0].upper()}{text[1:]}", look.width, "")
    sections = {section.key: section for section in comparison_sections(comparison)}
    least = comparison_tables.least_shown(comparison)
    changes = [row.change for row in comparison.ledger] + [row.ns for row in comparison.kernels]
    has_marks = any(abs(c.delta or 0.0) > least and not c.significant for c in changes)
    foot = [
        *_finding_lines(comparison, look),
        *_first_notes(comparison, look, has_marks=has_marks),
    ]
    foot = [StyledLine(""), *foot] if foot else []
    # The heading and the total of the ledger, a blank line, and the next command.
    room = _MAX_LINES - len(head) - len(foot) - 4
    kernel_rows = min(_MAX_KERNELS, room - _MIN_ENTRIES - 2)  # below a blank line and a heading
    kernels = list(_most_changed(sections.get("kernels"), look, least, max(0, kernel_rows)))
    entries = max(_MIN_ENTRIES, min(_MAX_ENTRIES, room - len(kernels)))
    ledger = _most_changed(sections.get("ledger"), look, least, entries)
    yield from (*head, *ledger, *kernels, *foot)


def _side_lines(comparison: Comparison, width: int | None) -> Iterator[StyledLine]:
    """Describe the captures of each side as `diagnose` does.

    Where that does not fit, the GPU goes (another one on the other side is a note), then the name
    is cut, and then the numbers are wrapped.
    """
    sides = (comparison.before, comparison.after)
    names = [safe_text(side.labels[0]) for side in sides]
    for label, side, full, other in zip(_SIDES, sides, names, reversed(names), strict=True):
        name = full
        facts = comparison_tables.side_facts(side)
        more = f" and {len(side.labels) - 1} more" if len(side.labels) > 1 else ""
        lead = label.ljust(8)
        if width is not None:
            room = width - display_width(f"{lead}{more}: {facts}")
            if room < min(display_width(name), _MIN_NAME_WIDTH):
                facts = comparison_tables.side_facts(side, with_gpus=False)
                room = width - display_width(f"{lead}{more}: {facts}")
            name = _shorten_common(name, other, max(room, _MIN_NAME_WIDTH))
        yield from wrapped_lines(f"{name}{more}: {facts}", width, lead, "dim")


def _shorten_common(name: str, other: str, width: int) -> str:
    """Shorten a name to a width; the words that the other name does not have go last."""
    if display_width(name) <= width or name == other:
        return shorten_middle(name, width)
    words, other_words = _NAME_PARTS.findall(name), _NAME_PARTS.findall(other)
    most = min(len(words), len(other_words)) - 1  # a name is never all common
    same = _count_equal(words[:most], other_words)
    same_end = _count_equal(words[::-1][: most - same], other_words[::-1])
    start, end = "".join(words[:same]), "".join(words[len(words) - same_end :])
    differing = name[len(start) : len(name) - len(end)]
    room = width - display_width(differing)
    if room < 2:
        return shorten_middle(differing, width)
    start = shorten_end(start, room - bool(end))
    return f"{start}{differing}{shorten_end(end, room - display_width(start))}"


def _count_equal(words: Sequence[str], others: Sequence[str]) -> int:
    pairs = zip(words, others, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _most_changed(
    section: ComparisonSection | None, look: TableOptions, least: float, most: int
) -> Iterator[StyledLine]:
    """Give the rows that changed most, one line each, and the total; the title is a heading."""
    if section is None:
        return
    rows = [row for row in section.rows if not row.total and abs(row.delta or 0.0) > least][:most]
    if not rows:
        return
    rows += [row for row in section.rows if row.total]
    rows = [replace(row, cells=tuple(map(_joined, row.cells))) for row in rows]
    columns = tuple(
        replace(column, heading=section.title) if column.name and not column.extra else column
        for column in section.columns
    )
    yield StyledLine("")
    look = replace(look, every_field=False, full_names=False)
    yield from section_lines(replace(section, columns=columns), rows, look)


def _finding_lines(comparison: Comparison, look: TableOptions) -> Iterator[StyledLine]:
    """Name the findings that are resolved, new and remaining, a line each."""
    for label, text, tone in comparison_tables.finding_phrases(comparison):
        # What has no room is left out whole: a number without its end reads as another one.
        line, findings = safe_text(f"{label}: {text}"), safe_text(text).split(", ")
        while look.width is not None and display_width(line) > look.width and len(findings) > 1:
            findings.pop()
            line = f"{label}: {', '.join(findings)}, …"
        yield StyledLine(cut_line(line, look.width), _TONE_STYLES[tone])


def _first_notes(
    comparison: Comparison, look: TableOptions, *, has_marks: bool
) -> Iterator[StyledLine]:
    """Give the most important limitation, what the mark means, and how many more there are."""
    yield from note_lines(comparison.notes[:1], look.width, _MAX_NOTE_LINES)
    more = len(comparison.notes) - 1
    parts = [f"{more} more with --details"] if more > 0 else []
    if has_marks:
        parts.insert(0, f"{comparison_tables.UNSURE} not significant")
    if parts:
        yield StyledLine(f"note: {'; '.join(parts)}", "dim")


def _detailed(comparison: Comparison, look: TableOptions) -> Iterator[StyledLine]:
    """Give the sentences, the notes and every table."""
    for name, side in zip(_SIDES, (comparison.before, comparison.after), strict=True):
        text = comparison_tables.side_line(side)
        yield from wrapped_lines(text, look.width, name.ljust(8), "dim")
    yield StyledLine("")
    headline = comparison_tables.comparison_headline(comparison)
    verdict, *reasons = comparison.explanation or (headline,)
    yield from wrapped_lines(verdict, look.width, "", _headline_style(comparison))
    for reason in reasons:
        yield from wrapped_lines(reason, look.width, "- ")
    for note in comparison.notes:
        yield from wrapped_lines(note, look.width, "note: ", "yellow")
    marked = False
    for section in comparison_sections(comparison):
        yield StyledLine("")
        yield from _text_section(section, look)
        marked |= any(row.tone is comparison_tables.ChangeTone.UNSURE for row in section.rows)
    yield StyledLine("")
    if marked:
        yield from wrapped_lines(comparison_tables.mark_legend(comparison), look.width, "", "dim")


def _full_name(kernel: KernelChange) -> str:
    """Name a kernel in full; `old -> new` where it was replaced."""
    sides = [names for names in (kernel.before, kernel.after) if names and names[0]]
    names = (f"{first} +{len(others)}" if others else first for first, *others in sides)
    return _ARROW.join(dict.fromkeys(names)) or kernel.short


def _text_section(section: ComparisonSection, look: TableOptions) -> Iterator[StyledLine]:
    rows = section.shown(look.limit)
    if not rows:
        text = f"{section.quiet} ({look.rows_advice})"
        yield from wrapped_lines(text, look.width, f"{section.title}: ", "dim")
        return
    yield from wrapped_lines(section.title, look.width, "", "bold cyan")
    yield from section_lines(section, rows, look)
    left_out = len(section.rows) - len(rows)
    if left_out:
        what = "with smaller changes " if look.limit is None else ""
        text = f"… and {left_out:,} more {what}({look.rows_advice})"
        yield from wrapped_lines(text, look.width, "", "dim")


MAX_COMMENT_CHARACTERS = 65_000
"""GitHub takes 65,536 of them in a comment."""
_MAX_NAME_CHARACTERS = 500
"""Characters of a name; a comment has limited room."""
_UNFOLDED_SECTIONS = frozenset({"metrics", "ledger", "findings"})
"""Tables that are not folded."""
_MAX_SENTENCE_CHARACTERS = 1_500


def comparison_to_markdown(comparison: Comparison, *, limit: int | None = None) -> str:
    """Write a comparison; with fewer rows per table where a comment has no room."""
    rows = [limit, *(n for n in (MAX_SHOWN_ROWS, 10, 5, 2) if not limit or n < limit)]
    documents = ("\n".join(_markdown_lines(comparison, count)) + "\n" for count in rows)
    text = ""
    for text in documents:
        if len(text) <= MAX_COMMENT_CHARACTERS:
            return text
    return (
        text[:MAX_COMMENT_CHARACTERS].rpartition("\n")[0]
        + "\n\n… truncated: too long for a comment\n"
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


def _sentence(text: str) -> str:
    return markdown_prose(text[:_MAX_SENTENCE_CHARACTERS], cell=False)


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
