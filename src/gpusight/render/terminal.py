"""Results on a terminal: coloured tables with bars, cut to its width.

Rich is imported when a coloured table is really drawn; pipes, files, `NO_COLOR` and dumb terminals
get `gpusight.render.plain`.
"""

from __future__ import annotations

import os
import shutil
import sys
from itertools import zip_longest
from typing import TYPE_CHECKING, TextIO

from gpusight.render.blocks import Block, Facts, Grid, Heading, Note, blocks_of, starts_section
from gpusight.render.cells import pad
from gpusight.render.layout import GAP, Column, Layout, Look
from gpusight.render.plain import FACT_BAR, halves, label_width, note_lines, wrap
from gpusight.result import Fmt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console
    from rich.text import Text

    from gpusight.result import Result

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


def print_colored(result: Result, look: Look, stream: TextIO) -> None:
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
        if isinstance(block, Heading):
            console.print(block.text, style="bold")
        elif isinstance(block, Facts):
            console.print(_facts(block, width))
        elif isinstance(block, Grid):
            console.print(_grid(block.layout))
        else:
            console.print("\n".join(note_lines(block, width)), style=_note_style(block))


def _note_style(note: Note) -> str:
    return "yellow" if note.stands_alone else "dim"


def _facts(facts: Facts, width: int | None) -> Text:
    from rich.text import Text

    columns = halves(facts, width)
    if columns is not None and width is not None:
        left, right = (_facts(half, None).split("\n") for half in columns)
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


def _paired(facts: Facts) -> Iterable[tuple[tuple[str, str], float | None]]:
    return zip(facts.pairs, facts.shares, strict=True)


def _grid(layout: Layout) -> Text:
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


def _cell(text: Text, column: Column, row: int) -> None:
    if row == -2:
        text.append(column.padded_heading, style="bold")
    elif row == -1:
        text.append("─" * column.width, style="dim")
    else:
        cell = column.padded(row)
        text.append(cell, style="dim" if cell.strip() == "-" else _STYLES.get(column.field.fmt, ""))


def _bar(text: Text, row: int, column: Column, width: int) -> None:
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
