"""Results as lines of text: titles, facts, tables and notes; bars where there are colors."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, TextIO

from gpusight.render.cell_text import display_width, pad
from gpusight.render.table_layout import (
    GAP,
    FactsBlock,
    HeadingBlock,
    NoteBlock,
    TableBlock,
    TableOptions,
    TextTableLayout,
    blocks_of,
    starts_section,
)
from gpusight.render.terminal_text import StyledLine, draw_lines, plain_lines, wrapped_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.results import Answer


_MIN_TWO_COLUMN_FACTS = 8
_FACT_BAR_WIDTH = 12
"""Room that a colored bar takes behind a share."""
_EIGHTHS = " ▏▎▍▌▋▊▉"


def to_plain(result: Answer, look: TableOptions) -> str:
    """Write a result as plain text; ends with a newline."""
    return plain_lines(_result_lines(result, look, colored=False))


def print_colored(result: Answer, look: TableOptions, stream: TextIO) -> None:
    """Write a result with colors and bars to a terminal."""
    draw_lines(_result_lines(result, look, colored=True), stream)


def _result_lines(result: Answer, look: TableOptions, *, colored: bool) -> Iterator[StyledLine]:
    for index, block in enumerate(blocks_of(result, look)):
        if index and starts_section(block):
            yield StyledLine("")
        if isinstance(block, HeadingBlock):
            yield from wrapped_lines(block.text, look.width, "", "bold")
        elif isinstance(block, FactsBlock):
            yield from _fact_lines(block, look.width, colored=colored)
        elif isinstance(block, TableBlock):
            yield from _table_lines(block.layout, colored=colored)
        else:
            yield from _note_lines(block, look.width)


def _note_lines(note: NoteBlock, width: int | None) -> Iterator[StyledLine]:
    lead = f"{note.label}: " if note.label else ""
    return wrapped_lines(note.text, width, lead, "yellow" if note.stands_alone else "dim")


def _fact_lines(facts: FactsBlock, width: int | None, *, colored: bool) -> Iterator[StyledLine]:
    """Give labels and values; many short ones in two columns, to leave room for the tables."""
    label_width = max(display_width(label) for label, _ in facts.pairs)
    paired = list(zip(facts.pairs, facts.shares, strict=True))
    if width is not None and len(paired) >= _MIN_TWO_COLUMN_FACTS:
        value_width = max(
            display_width(value) + (0 if share is None else _FACT_BAR_WIDTH + 1)
            for (_, value), share in paired
        )
        if label_width + GAP + value_width < width // 2:
            middle = (len(paired) + 1) // 2
            left, right = (
                _fact_lines(
                    FactsBlock(facts.pairs[part], facts.shares[part]), None, colored=colored
                )
                for part in (slice(middle), slice(middle, None))
            )
            for first, second in zip_longest(left, right, fillvalue=StyledLine("")):
                space = " " * max(0, width // 2 - display_width(first.text))
                yield StyledLine.of_parts(
                    (*first.colored_parts(), (space, ""), *second.colored_parts())
                )
            return
    share_width = max((len(value) for (_, value), share in paired if share is not None), default=0)
    for (label, value), share in paired:
        lead = pad(label, label_width, right=False) + " " * GAP
        if colored and share is not None:
            bar = _bar(share, _FACT_BAR_WIDTH)
            yield StyledLine.of_parts(
                ((lead, "dim"), (value.rjust(share_width), "bold"), (f" {bar}", "green"))
            )
            continue
        first, *others = wrapped_lines(value, width, lead)
        yield StyledLine.of_parts(((lead, "dim"), (first.text[len(lead) :], "")))
        yield from others


def _table_lines(layout: TextTableLayout, *, colored: bool) -> Iterator[StyledLine]:
    with_bars = colored and layout.bar_width > 0
    barred = next((c for c in layout.columns if c.shares and with_bars), None)
    rule = "─" if colored else "-"
    for row in range(-2, layout.rows):
        parts: list[tuple[str, str]] = []
        for index, column in enumerate(layout.columns):
            parts.append((" " * layout.gap if index else "", ""))
            if row == -2:
                parts.append((column.padded_heading, "bold"))
            elif row == -1:
                parts.append((rule * column.width, "dim"))
            else:
                cell = column.padded(row)
                parts.append((cell, "dim" if cell.strip() == "-" else column.style))
            if column is barred and row >= 0:
                # The largest share of the table takes the whole width.
                bar = _bar(column.shares[row] / max(column.shares), layout.bar_width)
                parts.append((" " + bar.ljust(layout.bar_width), "green"))
            elif column is barred:
                parts.append(((" " if row == -2 else rule) * (layout.bar_width + 1), "dim"))
        yield StyledLine.of_parts(parts)


def _bar(fraction: float, width: int) -> str:
    """Draw a fraction of a width in eighths of a character."""
    eighths = round(8 * width * min(1.0, max(0.0, fraction)))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
