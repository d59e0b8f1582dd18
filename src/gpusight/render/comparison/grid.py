"""A table of a comparison as lines of a screen, cut to its width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusight.render.cells import (
    align_units,
    display_width,
    pad,
    safe_text,
    shorten_end,
    shorten_middle,
)
from gpusight.render.comparison.words import ARROW, Tone
from gpusight.render.diagnosis.lines import Line, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.render.comparison.section import Cell, Column, Row, Section
    from gpusight.render.layout import Look

_GAP, _NARROW_GAP = 2, 1
_NAME_LEAST = 16
_NAME_SHARE = 0.4
"""A name may ask for this part of the screen before a number is left out."""
_BAR, _BAR_LEAST = 16, 6
_STYLES = {Tone.GOOD: "green", Tone.BAD: "red", Tone.UNSURE: "dim", Tone.PLAIN: ""}
_BENEATH = " " * 8
_ARROW = f" {ARROW} "


@dataclass(frozen=True, slots=True)
class _Set:
    """A column with its cells as they are printed."""

    column: Column
    cells: tuple[str, ...]
    width: int
    second: tuple[str, ...] = ()
    """What stands below each cell; nothing where all fit."""

    def padded(self, row: int) -> str:
        """Give a cell at the width of its column; the heading is row -1."""
        text = self.column.heading if row < 0 else self.cells[row]
        return pad(text, self.width, right=self.column.right)


def grid(section: Section, rows: Sequence[Row], look: Look) -> Iterator[Line]:
    """Give the lines of a table, its heading first."""
    wanted = [n for n, c in enumerate(section.columns) if _is_wanted(c, look)]
    beneath = [n for n, c in enumerate(section.columns) if c.beneath]
    natural = [_natural(section.columns[n], [row.cells[n] for row in rows]) for n in wanted]
    kept, dropped, gap = _fit(natural, look.width)
    numbers = [wanted[natural.index(one)] for one in kept]
    columns = _narrowed(kept, numbers, rows, look.width, gap)
    used = sum(one.width for one in columns) + gap * (len(columns) - 1)
    room = _BAR if look.width is None else min(_BAR, look.width - used - gap)
    bar = room if section.bars and room >= _BAR_LEAST else 0
    yield Line((" " * gap).join(one.padded(-1) for one in columns), "bold")
    largest = max((abs(row.delta or 0.0) for row in rows if not row.total), default=0.0)
    for number, row in enumerate(rows):
        drawn = _bar(row, largest, bar, solid=look.bars)
        yield _line(columns, number, row, " " * gap, drawn)
        yield from _second(columns, number, row, gap)
        for place in beneath:
            yield from wrapped(_joined(row.cells[place]), look.width, _BENEATH, "dim")
    if dropped:
        said = f"{', '.join(dropped)} ({look.columns_advice})"
        yield from wrapped(said, look.width, "no room for: ", "dim")


def _is_wanted(column: Column, look: Look) -> bool:
    return not column.beneath and (look.every_field or not column.extra)


def _natural(column: Column, cells: list[Cell]) -> _Set:
    texts = [_joined(cell) for cell in cells]
    if column.units:
        texts = align_units(texts)
    width = max(map(display_width, (column.heading, *texts)))
    return _Set(column, tuple(texts), width)


def _joined(cell: Cell) -> str:
    return safe_text(cell) if isinstance(cell, str) else _ARROW.join(map(safe_text, cell))


def _fit(columns: list[_Set], width: int | None) -> tuple[list[_Set], list[str], int]:
    """Close the gaps, then leave numbers out from the right, until names can be read."""
    if width is None or _least(columns, width, _GAP) <= width:
        return columns, [], _GAP
    kept = list(columns)
    dropped: list[str] = []
    while _least(kept, width, _NARROW_GAP) > width:
        rest = [one for one in reversed(kept[1:]) if not one.column.name]
        if not rest:
            break
        candidate = next((one for one in rest if not one.column.toned), rest[0])
        kept.remove(candidate)
        dropped.insert(0, candidate.column.heading)
    return kept, dropped, _NARROW_GAP


def _least(columns: list[_Set], width: int, gap: int) -> int:
    least = max(_NAME_LEAST, int(width * _NAME_SHARE) if gap == _GAP else 0)
    names = (min(one.width, least) if one.column.name else one.width for one in columns)
    return sum(names) + gap * (len(columns) - 1)


def _narrowed(
    columns: list[_Set], numbers: list[int], rows: Sequence[Row], width: int | None, gap: int
) -> list[_Set]:
    """Cut names to the room that the numbers leave."""
    if width is None or sum(o.width for o in columns) + gap * (len(columns) - 1) <= width:
        return columns
    taken = sum(0 if o.column.name else o.width for o in columns) + gap * (len(columns) - 1)
    names = sum(one.column.name for one in columns)
    room = max(_NAME_LEAST // 2, (width - taken) // max(1, names))
    return [
        _cut(one, [row.cells[n] for row in rows], min(room, one.width)) if one.column.name else one
        for one, n in zip(columns, numbers, strict=True)
    ]


def _cut(one: _Set, cells: list[Cell], width: int) -> _Set:
    lines = [_name_lines(cell, width) for cell in cells]
    return _Set(one.column, tuple(a for a, _ in lines), width, tuple(b for _, b in lines))


def _name_lines(cell: Cell, width: int) -> tuple[str, str]:
    """Give what a name takes: of one that took another's place, where both do not fit, two lines.

    Those are cut at their ends: what a kernel does comes first, and the middle tells it too.
    """
    joined = _joined(cell)
    if isinstance(cell, str) or display_width(joined) <= width:
        return shorten_middle(joined, width), ""
    old, new = map(safe_text, cell)
    return shorten_end(old, width), shorten_end(f"{ARROW} {new}", width)


def _bar(row: Row, largest: float, width: int, *, solid: bool) -> str:
    """Draw how large a change is; without colours its sign has to be seen."""
    if not width or not largest or row.total or not row.delta:
        return ""
    length = round(width * abs(row.delta) / largest)
    return ("█" if solid else "-" if row.delta < 0 else "+") * length


def _line(columns: list[_Set], number: int, row: Row, gap: str, bar: str) -> Line:
    style, base = _STYLES[row.tone], "dim" if row.tone is Tone.UNSURE else ""
    strong = "bold" if row.total else ""
    pieces: list[tuple[str, str]] = []
    for one in columns:
        own = style if one.column.toned else base
        pieces += [(one.padded(number), " ".join(filter(None, (strong, own)))), (gap, "")]
    pieces.append((bar, style))
    text = "".join(piece for piece, _ in pieces)
    return Line(text.rstrip(), parts=tuple(pieces))


def _second(columns: list[_Set], number: int, row: Row, gap: int) -> Iterator[Line]:
    """Give the line of names that take two, each below where it begins."""
    left = 0
    for one in columns:
        if one.second and one.second[number]:
            style = "dim" if row.tone is Tone.UNSURE else ""
            yield Line(" " * left + one.second[number], style)
        left += one.width + gap
