"""A result as blocks of a screen: which columns of a table are shown, and how wide."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gpusight.render.cell_text import (
    NUMERIC,
    align_units,
    display_width,
    pad,
    safe_text,
    shorten_middle,
    show,
)
from gpusight.results import Answer, Composite, Fact, Field, Fmt, NotApplicable, TableResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


GAP = 2
NARROW_GAP = 1
"""Space between columns when that saves one from being left out."""
NAME_MIN = 20
"""A name is not cut below this while there is a column that can be left out instead."""
NAME_FLOOR = 8
BAR_MAX = 12
BAR_MIN = 4
_MIN_CUT_WIDTH = 30
"""Text wider than this may be shortened too, as it can only be free text."""
_WITH_UNITS = frozenset({Fmt.TIME, Fmt.BYTES, Fmt.RATE})


@dataclass(frozen=True, slots=True)
class TableOptions:
    """How a result is to be shown."""

    width: int | None = 80
    """Columns of the screen; None shows whole names however long the lines get."""
    limit: int | None = None
    """Rows shown of each table; None or 0 shows all."""
    every_field: bool = False
    """Show also the fields that are not part of the default table."""
    bars: bool = False
    """Leave room beside the first share column for bars."""
    rows_advice: str = "use --top 0 for all"
    """How to see the rows left out."""
    columns_advice: str = "use --wide or --format json"
    """How to see the columns left out."""


@dataclass(frozen=True, slots=True)
class TextColumn:
    """One column ready to print: its heading and cells, already cut to `width`."""

    field: Field
    heading: str
    cells: tuple[str, ...]
    width: int
    shares: tuple[float, ...] = ()
    """The fractions behind a share column, from which bars are drawn."""

    @property
    def right(self) -> bool:
        """Numbers are aligned to the right."""
        return self.field.fmt in NUMERIC

    def padded(self, row: int) -> str:
        """Give one cell at the column's full width."""
        return pad(self.cells[row], self.width, right=self.right)

    @property
    def padded_heading(self) -> str:
        """Give the heading at the column's full width."""
        return pad(self.heading, self.width, right=self.right)


@dataclass(frozen=True, slots=True)
class TextTableLayout:
    """A table cut to fit."""

    columns: tuple[TextColumn, ...]
    rows: int
    rows_left_out: int = 0
    columns_left_out: tuple[str, ...] = ()
    bar_width: int = 0
    """Room kept beside the first share column for bars; 0 for none."""
    gap: int = GAP


def lay_out(result: TableResult, look: TableOptions) -> TextTableLayout:
    """Choose columns and widths for a result; numbers are never cut, names are, in the middle."""
    frame = result.frame.head(look.limit) if look.limit else result.frame
    fields = [f for f in result.fields if f.shown or look.every_field]
    natural = [_natural(f, frame.get_column(f.key).to_list()) for f in fields]
    gap = GAP if look.width is None or _min_width(natural, GAP) <= look.width else NARROW_GAP
    kept, dropped = _choose(natural, look.width, gap)
    bar = _bar_room(kept, look.width, gap) if look.bars else 0
    space = None if look.width is None else look.width - (bar + 1 if bar else 0)
    columns = _narrow(kept, space, gap)
    left_out = result.frame.height - frame.height
    return TextTableLayout(
        tuple(columns), frame.height, left_out, tuple(reversed(dropped)), bar, gap
    )


def _bar_room(columns: list[TextColumn], width: int | None, gap: int) -> int:
    """Give bars a part of the room that names can spare; numbers are never left out for bars."""
    if not any(max(c.shares, default=0) > 0 for c in columns):
        return 0
    if width is None:
        return BAR_MAX
    unused = width - _total([c.width for c in columns], gap) - 1
    spare = width - _min_width(columns, gap) - 1
    room = min(BAR_MAX, max(unused, spare // 3))
    return room if room >= BAR_MIN else 0


def _natural(field: Field, values: Sequence[object]) -> TextColumn:
    cells = [show(v, field.fmt) for v in values]
    if field.fmt in _WITH_UNITS:
        cells = align_units(cells)
    heading = safe_text(field.label)  # a query may call its columns anything
    width = max(map(display_width, (heading, *cells)))
    shares = tuple(_fraction(v) for v in values) if field.fmt is Fmt.SHARE else ()
    return TextColumn(field, heading, tuple(cells), width, shares)


def _fraction(value: object) -> float:
    known = isinstance(value, (int, float)) and math.isfinite(value)
    return float(value) if known and isinstance(value, (int, float)) else 0.0


def _total(widths: Sequence[int], gap: int) -> int:
    return sum(widths) + gap * max(0, len(widths) - 1)


def _shrinks(column: TextColumn) -> bool:
    fmt = column.field.fmt
    return fmt is Fmt.NAME or (fmt is Fmt.TEXT and column.width > _MIN_CUT_WIDTH)


def _choose(
    columns: list[TextColumn], width: int | None, gap: int
) -> tuple[list[TextColumn], list[str]]:
    """Leave out numbers, then texts, from the right until names get a readable width."""
    kept, dropped = list(columns), []
    while width is not None and _min_width(kept, gap) > width:
        rest = [c for c in reversed(kept[1:]) if not _shrinks(c)]
        if not rest:
            break
        # What a row is about is often a short text in the last column: numbers go first.
        candidate = next((c for c in rest if c.right), rest[0])
        kept.remove(candidate)
        dropped.append(candidate.heading)
    return kept, dropped


def _min_width(columns: list[TextColumn], gap: int) -> int:
    return _total([min(c.width, NAME_MIN) if _shrinks(c) else c.width for c in columns], gap)


def _narrow(columns: list[TextColumn], width: int | None, gap: int) -> list[TextColumn]:
    """Share the space that the numbers leave among the names, the narrow ones first."""
    if width is None or _total([c.width for c in columns], gap) <= width:
        return columns
    names = sorted((c for c in columns if _shrinks(c)), key=lambda c: c.width)
    space = width - _total([0 if _shrinks(c) else c.width for c in columns], gap)
    widths: dict[str, int] = {}
    for index, column in enumerate(names):
        share = max(NAME_FLOOR, space // (len(names) - index))
        widths[column.field.key] = min(column.width, share)
        space -= widths[column.field.key]
    return [_cut(c, widths[c.field.key]) if _shrinks(c) else c for c in columns]


def _cut(column: TextColumn, width: int) -> TextColumn:
    cells = tuple(shorten_middle(c, width) for c in column.cells)
    return TextColumn(column.field, shorten_middle(column.heading, width), cells, width)


@dataclass(frozen=True, slots=True)
class HeadingBlock:
    """A title line."""

    text: str


@dataclass(frozen=True, slots=True)
class FactsBlock:
    """Labels with their values, one a line."""

    pairs: tuple[tuple[str, str], ...]
    shares: tuple[float | None, ...] = ()
    """The fraction behind each value that is a share, from which bars are drawn."""


@dataclass(frozen=True, slots=True)
class TableBlock:
    """A table cut to fit."""

    layout: TextTableLayout


@dataclass(frozen=True, slots=True)
class NoteBlock:
    """A line the reader must know; `label` says of what kind it is, or is empty for an aside."""

    text: str
    label: str = "note"

    @property
    def stands_alone(self) -> bool:
        """Takes the place of a whole section, rather than being said of the block above."""
        return self.label not in {"", "note"}


Block: TypeAlias = "HeadingBlock | FactsBlock | TableBlock | NoteBlock"


def blocks_of(result: Answer, look: TableOptions) -> list[Block]:
    """Break a result into blocks, cut to the screen."""
    if isinstance(result, TableResult):
        return [*_table(result, look), *_notes(result.notes)]
    if isinstance(result, Composite):
        return _composite(result, look)
    return [_absent(result)]


def starts_section(block: Block) -> bool:
    """Tell whether an empty line goes before this block."""
    return isinstance(block, (HeadingBlock, FactsBlock)) or (
        isinstance(block, NoteBlock) and block.stands_alone
    )


def sentence(absent: NotApplicable) -> str:
    """Give the reason and the remedy as one safe line."""
    reason = safe_text(absent.reason).rstrip(".")
    return f"{reason}; {safe_text(absent.hint)}" if absent.hint else reason


def _table(result: TableResult, look: TableOptions) -> list[Block]:
    title = HeadingBlock(safe_text(result.title))
    layout = lay_out(result, look)
    if not layout.rows:
        return [title, NoteBlock("no rows", label="")]
    asides = _left_out(layout, look)
    return [title, TableBlock(layout), *(NoteBlock(a, label="") for a in asides)]


def _left_out(layout: TextTableLayout, look: TableOptions) -> Iterable[str]:
    if layout.rows_left_out:
        rows = "row" if layout.rows_left_out == 1 else "rows"
        yield f"… and {layout.rows_left_out:,} more {rows} ({look.rows_advice})"
    if layout.columns_left_out:
        yield f"no room for: {', '.join(layout.columns_left_out)} ({look.columns_advice})"


def _composite(result: Composite, look: TableOptions) -> list[Block]:
    # Notes come first: that data is incomplete must be read before the numbers, not after.
    blocks: list[Block] = [HeadingBlock(safe_text(result.title)), *_notes(result.notes)]
    if result.facts:
        pairs = tuple(_pair(f, look.width) for f in result.facts)
        blocks.append(FactsBlock(pairs, tuple(_share(f) for f in result.facts)))
    for section in result.sections:
        blocks += blocks_of(section, look)
    return blocks


def _pair(fact: Fact, width: int | None) -> tuple[str, str]:
    value = show(fact.value, fact.fmt)
    if fact.fmt is Fmt.NAME and width is not None:
        value = shorten_middle(value, max(20, width - 24))
    return safe_text(fact.label), value


def _share(fact: Fact) -> float | None:
    numeric = fact.fmt is Fmt.SHARE and isinstance(fact.value, (int, float))
    return float(fact.value) if numeric else None


def _notes(notes: Iterable[str]) -> list[Block]:
    return [NoteBlock(safe_text(n)) for n in notes]


def _absent(absent: NotApplicable) -> Block:
    return NoteBlock(sentence(absent), label=absent.command)
