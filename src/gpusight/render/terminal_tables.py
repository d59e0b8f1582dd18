"""Results as text tables: plain for pipes, files and logs; in color, with bars, on a terminal."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from itertools import zip_longest
from typing import TYPE_CHECKING, TextIO

from gpusight.render.cell_text import display_width, pad
from gpusight.render.table_layout import (
    GAP,
    Block,
    FactsBlock,
    HeadingBlock,
    NoteBlock,
    TableBlock,
    TableOptions,
    TextColumn,
    TextTableLayout,
    blocks_of,
    starts_section,
)
from gpusight.results import Fmt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import Console
    from rich.text import Text

    from gpusight.results import Answer


_SEPARATOR = " " * GAP
_MIN_TWO_COLUMN_FACTS = 8
FACT_BAR = 12
"""Room that a coloured bar takes behind a share."""


def to_plain(result: Answer, look: TableOptions) -> str:
    """Write a result as plain text; ends with a newline."""
    lines: list[str] = []
    for block in blocks_of(result, look):
        if lines and starts_section(block):
            lines.append("")
        lines += lines_of(block, look.width)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def lines_of(block: Block, width: int | None) -> Iterator[str]:
    """Give the lines of one block, none wider than the screen."""
    if isinstance(block, HeadingBlock):
        yield block.text
    elif isinstance(block, FactsBlock):
        yield from _facts(block, width)
    elif isinstance(block, TableBlock):
        yield from _grid(block.layout)
    else:
        yield from note_lines(block, width)


def note_lines(note: NoteBlock, width: int | None) -> list[str]:
    """Wrap a note, its later lines indented under the first."""
    lead = f"{note.label}: " if note.label else ""
    return wrap(note.text, width, lead)


def wrap(text: str, width: int | None, lead: str) -> list[str]:
    """Wrap text behind a lead, such as a label, that later lines are indented by."""
    if width is None or display_width(lead + text) <= width:
        return [lead + text]
    indent = " " * min(display_width(lead), width // 2)
    return textwrap.wrap(text, width, initial_indent=lead, subsequent_indent=indent) or [lead]


def label_width(facts: FactsBlock) -> int:
    """Give the width of the widest label."""
    return max(display_width(label) for label, _ in facts.pairs)


def halves(facts: FactsBlock, width: int | None) -> tuple[FactsBlock, FactsBlock] | None:
    """Split many short facts into two columns, to leave the screen to the tables."""
    if width is None or len(facts.pairs) < _MIN_TWO_COLUMN_FACTS:
        return None
    widest = max(
        display_width(value) + (0 if share is None else FACT_BAR + 1)
        for (_, value), share in zip(facts.pairs, facts.shares, strict=True)
    )
    if label_width(facts) + len(_SEPARATOR) + widest >= width // 2:
        return None
    middle = (len(facts.pairs) + 1) // 2
    return (
        FactsBlock(facts.pairs[:middle], facts.shares[:middle]),
        FactsBlock(facts.pairs[middle:], facts.shares[middle:]),
    )


def _facts(facts: FactsBlock, width: int | None) -> Iterator[str]:
    columns = halves(facts, width)
    if columns is not None and width is not None:
        left, right = (list(_facts(half, None)) for half in columns)
        for first, second in zip_longest(left, right, fillvalue=""):
            yield pad(first, width // 2, right=False) + second
        return
    labels = label_width(facts)
    for label, value in facts.pairs:
        yield from wrap(value, width, pad(label, labels, right=False) + _SEPARATOR)


def _grid(layout: TextTableLayout) -> Iterator[str]:
    gap = " " * layout.gap
    yield gap.join(c.padded_heading for c in layout.columns)
    yield gap.join("-" * c.width for c in layout.columns)
    for row in range(layout.rows):
        yield gap.join(c.padded(row) for c in layout.columns)


UNKNOWN_WIDTH = 120
"""Width for a pipe or file when nothing says how wide the reader's screen is."""
_EIGHTHS = " ▏▎▍▌▋▊▉"
_STYLES = {Fmt.NAME: "cyan", Fmt.SHARE: "bold"}


def wants_color(stream: TextIO) -> bool:
    """Tell whether colours may be written to a stream."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty() and _draws_boxes(stream)


def _draws_boxes(stream: TextIO) -> bool:
    try:
        "─▏…µ".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def screen_width() -> int:
    """Give the reader's screen width: `COLUMNS`, else that of any terminal at hand."""
    if os.environ.get("COLUMNS", "").isdigit():
        return max(20, int(os.environ["COLUMNS"]))
    for stream in (sys.__stdout__, sys.__stderr__, sys.__stdin__):
        if stream is not None and not stream.closed and stream.isatty():
            return shutil.get_terminal_size().columns if stream is sys.__stdout__ else _size(stream)
    return UNKNOWN_WIDTH


def _size(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or UNKNOWN_WIDTH
    except OSError:
        return UNKNOWN_WIDTH


def print_colored(result: Answer, look: TableOptions, stream: TextIO) -> None:
    """Draw a result with colours and bars on a stream that takes them."""
    from rich.console import Console

    # Lines are already cut to fit; Rich must neither wrap them nor read markup in names.
    console = Console(
        file=stream,
        width=look.width or 1_000_000,
        force_terminal=True,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
    )
    _draw(console, blocks_of(result, look), look.width)


def _draw(console: Console, blocks: Iterable[Block], width: int | None) -> None:
    for index, block in enumerate(blocks):
        if index and starts_section(block):
            console.print()
        if isinstance(block, HeadingBlock):
            console.print(block.text, style="bold")
        elif isinstance(block, FactsBlock):
            console.print(_colored_facts(block, width))
        elif isinstance(block, TableBlock):
            console.print(_colored_grid(block.layout))
        else:
            console.print("\n".join(note_lines(block, width)), style=_note_style(block))


def _note_style(note: NoteBlock) -> str:
    return "yellow" if note.stands_alone else "dim"


def _colored_facts(facts: FactsBlock, width: int | None) -> Text:
    from rich.text import Text

    columns = halves(facts, width)
    if columns is not None and width is not None:
        left, right = (_colored_facts(half, None).split("\n") for half in columns)
        rows = zip_longest(left, right, fillvalue=Text())
        return Text("\n").join(Text.assemble(_padded(a, width // 2), b) for a, b in rows)
    labels = label_width(facts)
    share_width = max((len(v) for (_, v), s in _paired(facts) if s is not None), default=0)
    text = Text()
    for number, ((label, value), share) in enumerate(_paired(facts)):
        lead = pad(label, labels, right=False) + " " * GAP
        text.append("\n" if number else "")
        text.append(lead, style="dim")
        if share is None:
            text.append("\n".join(wrap(value, width, lead))[len(lead) :])
        else:
            bar = _blocks(share, FACT_BAR)
            text.append(value.rjust(share_width), style="bold").append(" " + bar, style="green")
    return text


def _padded(text: Text, width: int) -> Text:
    text = text.copy()
    text.pad_right(max(0, width - text.cell_len))
    return text


def _paired(facts: FactsBlock) -> Iterable[tuple[tuple[str, str], float | None]]:
    return zip(facts.pairs, facts.shares, strict=True)


def _colored_grid(layout: TextTableLayout) -> Text:
    from rich.text import Text

    barred = next((c for c in layout.columns if c.shares and layout.bar_width), None)
    text = Text()
    for row in range(-2, layout.rows):
        if row > -2:
            text.append("\n")
        for index, column in enumerate(layout.columns):
            text.append(" " * layout.gap if index else "")
            _cell(text, column, row)
            if column is barred:
                _bar(text, row, column, layout.bar_width)
        text.rstrip()
    return text


def _cell(text: Text, column: TextColumn, row: int) -> None:
    if row == -2:
        text.append(column.padded_heading, style="bold")
    elif row == -1:
        text.append("─" * column.width, style="dim")
    else:
        cell = column.padded(row)
        text.append(cell, style="dim" if cell.strip() == "-" else _STYLES.get(column.field.fmt, ""))


def _bar(text: Text, row: int, column: TextColumn, width: int) -> None:
    """Draw a bar as long as the share, the largest share of the table being the whole width."""
    if row < 0:
        text.append(" " * (width + 1) if row == -2 else "─" * (width + 1), style="dim")
        return
    bar = _blocks(column.shares[row] / max(column.shares), width)
    text.append(" " + bar.ljust(width), style="green")


def _blocks(fraction: float, width: int) -> str:
    """Draw a fraction of a width in eighths of a character."""
    eighths = round(8 * width * min(1.0, max(0.0, fraction)))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
