"""Tables as plain text: no colours, no box characters, for pipes, files and logs."""

from __future__ import annotations

import textwrap
from itertools import zip_longest
from typing import TYPE_CHECKING

from gpusight.render.blocks import Block, Facts, Grid, Heading, Note, blocks_of, starts_section
from gpusight.render.cells import display_width, pad
from gpusight.render.layout import GAP, Layout, Look

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.result import Result

_SEPARATOR = " " * GAP
_MANY_FACTS = 8
FACT_BAR = 12
"""Room that a coloured bar takes behind a share."""


def to_plain(result: Result, look: Look) -> str:
    """Write a result as plain text; ends with a newline."""
    lines: list[str] = []
    for block in blocks_of(result, look):
        if lines and starts_section(block):
            lines.append("")
        lines += lines_of(block, look.width)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def lines_of(block: Block, width: int | None) -> Iterator[str]:
    """Give the lines of one block, none wider than the screen."""
    if isinstance(block, Heading):
        yield block.text
    elif isinstance(block, Facts):
        yield from _facts(block, width)
    elif isinstance(block, Grid):
        yield from _grid(block.layout)
    else:
        yield from note_lines(block, width)


def note_lines(note: Note, width: int | None) -> list[str]:
    """Wrap a note, its later lines indented under the first."""
    lead = f"{note.label}: " if note.label else ""
    return wrap(note.text, width, lead)


def wrap(text: str, width: int | None, lead: str) -> list[str]:
    """Wrap text behind a lead, such as a label, that later lines are indented by."""
    if width is None or display_width(lead + text) <= width:
        return [lead + text]
    indent = " " * min(display_width(lead), width // 2)
    return textwrap.wrap(text, width, initial_indent=lead, subsequent_indent=indent) or [lead]


def label_width(facts: Facts) -> int:
    """Give the width of the widest label."""
    return max(display_width(label) for label, _ in facts.pairs)


def halves(facts: Facts, width: int | None) -> tuple[Facts, Facts] | None:
    """Split many short facts into two columns, to leave the screen to the tables."""
    if width is None or len(facts.pairs) < _MANY_FACTS:
        return None
    widest = max(
        display_width(value) + (0 if share is None else FACT_BAR + 1)
        for (_, value), share in zip(facts.pairs, facts.shares, strict=True)
    )
    if label_width(facts) + len(_SEPARATOR) + widest >= width // 2:
        return None
    middle = (len(facts.pairs) + 1) // 2
    return (
        Facts(facts.pairs[:middle], facts.shares[:middle]),
        Facts(facts.pairs[middle:], facts.shares[middle:]),
    )


def _facts(facts: Facts, width: int | None) -> Iterator[str]:
    columns = halves(facts, width)
    if columns is not None and width is not None:
        left, right = (list(_facts(half, None)) for half in columns)
        for first, second in zip_longest(left, right, fillvalue=""):
            yield pad(first, width // 2, right=False) + second
        return
    labels = label_width(facts)
    for label, value in facts.pairs:
        yield from wrap(value, width, pad(label, labels, right=False) + _SEPARATOR)


def _grid(layout: Layout) -> Iterator[str]:
    gap = " " * layout.gap
    yield gap.join(c.padded_heading for c in layout.columns)
    yield gap.join("-" * c.width for c in layout.columns)
    for row in range(layout.rows):
        yield gap.join(c.padded(row) for c in layout.columns)
