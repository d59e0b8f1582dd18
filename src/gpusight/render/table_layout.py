"""Which columns of a table a screen shows, and how wide."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TYPE_CHECKING, Any

from gpusight.render.cell_text import (
    NUMERIC,
    align_units,
    display_width,
    pad,
    safe_text,
    shorten_distinct,
    shorten_middle,
    show,
)
from gpusight.results import Field, Fmt, NotApplicable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import polars as pl


GAP = 2
NARROW_GAP = 1
"""Space between columns when that saves one from being left out."""
NAME_MIN = 20
NAME_FLOOR = 8
BAR_MAX = 12
BAR_MIN = 4
_MIN_CUT_WIDTH = 30
"""Text wider than this may be shortened too, as it can only be free text."""
_WITH_UNITS = frozenset({Fmt.TIME, Fmt.BYTES, Fmt.RATE})
_STYLES = {Fmt.NAME: "cyan", Fmt.SHARE: "bold"}


@dataclass(frozen=True, slots=True)
class TableOptions:
    """How a result is to be shown."""

    width: int | None = 80
    """Columns of the screen; None shows whole names however long the lines get."""
    limit: int | None = None
    """Rows shown of each table; None or 0 shows all."""
    every_field: bool = False
    """Show also the fields that are not part of the default table."""
    full_names: bool = False
    """Show full names in place of short ones, however long the lines get."""
    bars: bool = False
    """Leave room next to the first share column for bars."""
    rows_advice: str = "use --top 0 for all"
    """How to see the rows left out."""
    columns_advice: str = "use --wide or --format json"
    """How to see the columns left out."""


@dataclass(frozen=True, slots=True)
class TextColumn:
    """One column ready to print: its heading and cells, already cut to `width`."""

    heading: str
    cells: tuple[str, ...]
    width: int
    right: bool = False
    """Aligned to the right, as numbers are."""
    can_shorten: bool = False
    """A name or free text, which may lose its middle; numbers are never cut."""
    priority: int = 0
    """Where there is no room, columns of the lowest priority are left out first."""
    min_width: int = NAME_MIN
    """A text is not cut below this while there is a column that can be left out instead."""
    style: str = ""
    shares: tuple[float, ...] = ()
    """The fractions behind a share column, from which bars are drawn."""

    @classmethod
    def natural(cls, heading: str, cells: Sequence[str], **options: Any) -> TextColumn:
        """Make a column as wide as its widest cell."""
        measure = len if "".join(cells).isascii() else display_width
        width = max(display_width(heading), max(map(measure, cells), default=0))
        return cls(heading, tuple(cells), width, **options)

    def padded(self, row: int) -> str:
        """Give one cell at the column's full width."""
        return pad(self.cells[row], self.width, right=self.right)

    def padded_cells(self) -> list[str]:
        """Give all cells at the column's full width; long columns are filled at once."""
        if "".join(self.cells).isascii():
            fill = str.rjust if self.right else str.ljust
            return list(map(fill, self.cells, repeat(self.width)))
        return [pad(cell, self.width, right=self.right) for cell in self.cells]

    @property
    def padded_heading(self) -> str:
        """Give the heading at the column's full width."""
        return pad(self.heading, self.width, right=self.right)

    def shortened(self, width: int) -> TextColumn:
        """Cut out of what is wider what distinguishes it least."""
        cells = tuple(shorten_distinct(self.cells, width))
        heading = shorten_middle(self.heading, width)
        return replace(self, heading=heading, cells=cells, width=width)


@dataclass(frozen=True, slots=True)
class TextTableLayout:
    """A table cut to fit."""

    columns: tuple[TextColumn, ...]
    rows: int
    columns_left_out: tuple[str, ...] = ()
    bar_width: int = 0
    """Room next to the first share column for bars; 0 for none."""
    gap: int = GAP
    positions: tuple[int, ...] = ()
    """Which of the columns given each one is."""

    @property
    def width(self) -> int:
        """Columns of the screen that it takes, without bars."""
        return _total([c.width for c in self.columns], self.gap)


def fit_columns(
    columns: Sequence[TextColumn], width: int | None, *, bars: bool = False
) -> TextTableLayout:
    """Fit columns to a screen: close the gaps, leave numbers out from the right, cut names.

    Numbers are never cut. The first column is never left out.
    """
    rows = len(columns[0].cells) if columns else 0
    kept, dropped = list(columns), []
    gap = GAP if width is None or _min_width(kept, GAP) <= width else NARROW_GAP
    while width is not None and _min_width(kept, gap) > width:
        candidates = [c for c in reversed(kept[1:]) if not c.can_shorten]
        if not candidates:
            break
        candidate = min(candidates, key=lambda c: c.priority)  # of equals the rightmost
        kept.remove(candidate)
        dropped.append(candidate.heading)
    positions = tuple(i for i, c in enumerate(columns) if any(c is k for k in kept))
    bar_width = _bar_room(kept, width, gap) if bars else 0
    if width is not None:
        kept = _shorten_names(kept, width - (bar_width + 1 if bar_width else 0), gap)
    left_out = tuple(reversed(dropped))
    return TextTableLayout(tuple(kept), rows, left_out, bar_width, gap, positions)


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


def _shorten_names(columns: list[TextColumn], width: int, gap: int) -> list[TextColumn]:
    """Share the space that the numbers leave among the names, the narrow ones first."""
    if _total([c.width for c in columns], gap) <= width:
        return columns
    space = width - _total([0 if c.can_shorten else c.width for c in columns], gap)
    names = sorted(
        (i for i, c in enumerate(columns) if c.can_shorten), key=lambda i: columns[i].width
    )
    fitted = list(columns)
    for number, index in enumerate(names):
        share = max(NAME_FLOOR, space // (len(names) - number))
        fitted[index] = columns[index].shortened(min(columns[index].width, share))
        space -= fitted[index].width
    return fitted


def _total(widths: Sequence[int], gap: int) -> int:
    return sum(widths) + gap * max(0, len(widths) - 1)


def _min_width(columns: list[TextColumn], gap: int) -> int:
    return _total([min(c.width, c.min_width) if c.can_shorten else c.width for c in columns], gap)


def full_name_fields(fields: Sequence[Field]) -> tuple[Field, ...]:
    """Show the full name where the default table shows the short one."""
    by_key = {field.key: field for field in fields}
    full = by_key.get("name")
    short = by_key.get("short_name") or by_key.get("kernel")
    if full is None or short is None or full.shown or not short.shown:
        return tuple(fields)
    swapped = {
        short.key: replace(short, shown=False),
        full.key: replace(full, label=short.label, shown=True),
    }
    return tuple(swapped.get(field.key, field) for field in fields)


def indented(cells: Iterable[str], field: Field, frame: pl.DataFrame, space: str) -> list[str]:
    """Indent the cells of a tree by their depth."""
    if not field.indented_by:
        return list(cells)
    depths = frame.get_column(field.indented_by)
    return [space * (depth or 0) + cell for cell, depth in zip(cells, depths, strict=True)]


def _column(field: Field, frame: pl.DataFrame) -> TextColumn:
    values = frame.get_column(field.key).to_list()
    cells = indented(_shown(values, field.fmt), field, frame, "  ")
    if field.fmt in _WITH_UNITS:
        cells = align_units(cells)
    right = field.fmt in NUMERIC
    column = TextColumn.natural(
        safe_text(field.label),  # a query may call its columns anything
        cells,
        right=right,
        priority=0 if right else 1,  # What a row is about is often a text in the last column.
        style=_STYLES.get(field.fmt, ""),
        shares=tuple(map(_fraction, values)) if field.fmt is Fmt.SHARE else (),
    )
    free_text = field.fmt is Fmt.TEXT and column.width > _MIN_CUT_WIDTH
    return replace(column, can_shorten=field.fmt is Fmt.NAME or free_text)


def _shown(values: Sequence[Any], fmt: Fmt) -> Sequence[str]:
    # A long column of plain texts is checked at once.
    if set(map(type, values)) == {str} and "".join(values).isprintable():
        return values
    return [show(value, fmt) for value in values]


def _fraction(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else 0.0


def sentence(absent: NotApplicable) -> str:
    """Give the reason and the remedy as one safe line."""
    reason = safe_text(absent.reason).rstrip(".")
    return f"{reason}; {safe_text(absent.hint)}" if absent.hint else reason


def lay_out_table(
    fields: Sequence[Field], frame: pl.DataFrame, look: TableOptions
) -> TextTableLayout:
    """Choose the fields to show of a table, and fit them to the screen."""
    declared = full_name_fields(fields) if look.full_names else fields
    columns = [_column(f, frame) for f in declared if f.shown or look.every_field]
    return fit_columns(columns, None if look.full_names else look.width, bars=look.bars)
