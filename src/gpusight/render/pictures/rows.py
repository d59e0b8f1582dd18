"""Where the rows of a board lie at a given width: the board becomes ink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.render.cells import safe_text
from gpusight.render.pictures.board import Heading, Keys, Plot, Ruler, Strip
from gpusight.render.pictures.frame import (
    NOTE_LINE,
    PAD,
    SMALL,
    TITLE,
    Key,
    Size,
    band_names,
    lines_of,
    place_keys,
    text_width,
    wrapped,
)
from gpusight.render.pictures.ink import Box, Painting, Shade, Stroke, Words
from gpusight.render.pictures.key_ink import KeyTable
from gpusight.render.pictures.plot_ink import plot_ink
from gpusight.render.pictures.strip_ink import Across, strip_ink
from gpusight.render.pictures.ticks import scale

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.render.pictures.board import Board, Row
    from gpusight.render.pictures.ink import Ink

_WIDEST_NAME = 0.26
"""Part of the width that names of rows may take."""
_BEFORE_HEADING, _HEADING = 14.0, 20.0
_BEFORE_PLOT, _BEFORE_KEYS, _BEFORE_RULER = 8.0, 4.0, 5.0
_NARROWEST = 0.2
"""Pixels of the narrowest band that is shaded."""
_BAND_NAMES = 18.0
_TICK, _TICK_LABEL, _AXIS_LABEL = 5.0, 19.0, 37.0
"""How far below the rows the marks of the axis end, and its texts stand."""
_WIDER = 1.06
"""Some fonts are wider than others."""
_BOLD = 1.2
"""So are bold letters, and capitals."""
_APART = 110.0
"""Pixels between two marks of the axis, about."""


def paint(board: Board, width: float) -> Painting:
    """Lay a board out; it becomes as tall as it needs to be."""
    return _Layout(board, width).painting()


class _Layout:
    """A board being laid out from the top down."""

    def __init__(self, board: Board, width: float) -> None:
        self._board = board
        self._width = width
        self._room = width - 2 * PAD
        left, right = PAD + _gutter(board, width), width - PAD - 8
        self._across = Across(left, right, scale(board.x, 0.0, 1.0))
        self._ticks = self._across.scale.ticks(max(3, round((right - left) / _APART)))
        self._stretches: list[tuple[float, float]] = []
        self._open_at: float | None = None

    def painting(self) -> Painting:
        """Give everything, what lies behind first."""
        head, top = self._head()
        top += _BAND_NAMES if any(band.label for band in self._board.bands) else 2.0
        rows, bottom = self._rows(top)
        foot, height = self._foot(bottom)
        ground = (ink for stretch in self._stretches for ink in self._ground(*stretch))
        names = self._band_names(top)
        across = self._across
        return Painting(
            Size(self._width, height),
            (*ground, *head, *names, *rows, *foot),
            across.left,
            across.right,
            top,
            bottom,
            across.scale.low,
            across.scale.high,
        )

    def _head(self) -> tuple[list[Ink], float]:
        title, y = lines_of(self._board.title, self._room, TITLE, PAD + 1)
        subtitle, y = lines_of(self._board.subtitle, self._room, SMALL, y - 2)
        ink: list[Ink] = [Words(text, PAD, at, "title") for text, at in title]
        ink += [Words(text, PAD, at, "muted") for text, at in subtitle]
        named = [Key(safe_text(text), slot, "area") for slot, text in self._board.legend]
        keys, below = place_keys(named, self._width, y + 8, snug=True)
        for key in keys:
            ink += [Box(key.x, key.y - 9, 11, 11, key.slot), Words(key.text, key.x + 18, key.y)]
        return ink, below + 8 if keys else y

    def _ground(self, top: float, bottom: float) -> Iterator[Ink]:
        """Draw what lies behind rows: bands and the grid."""
        for number, band in enumerate(self._board.bands):
            start, end = self._across.x(band.start), self._across.x(band.end)
            if number % 2 == 0 and end - start > _NARROWEST:
                yield Shade(start, top, end - start, bottom - top)
        for tick in self._ticks:
            x = self._across.x(tick.value)
            yield Stroke(((x, top), (x, bottom)))

    def _band_names(self, top: float) -> Iterator[Ink]:
        across = self._across
        for text, x in band_names(self._board.bands, across.x, across.left, across.right):
            yield Words(text, x, top - 6, "muted", "middle")

    def _foot(self, bottom: float) -> tuple[list[Ink], float]:
        notes = [line for n in self._board.footnotes for line in wrapped(n, self._room, SMALL)]
        lines = [(line, bottom + n * NOTE_LINE) for n, line in enumerate(notes, start=1)]
        return [Words(line, PAD, y, "muted") for line, y in lines], (
            bottom + len(notes) * NOTE_LINE + PAD
        )

    # Rows -----------------------------------------------------------------------------------------

    def _rows(self, top: float) -> tuple[list[Ink], float]:
        ink: list[Ink] = []
        y = top
        for number, row in enumerate(self._board.rows):
            drawn, end = self._row(row, y, is_first=number == 0)
            ink += drawn
            self._note_stretch(row, y)
            y = end
        return ink, y

    def _note_stretch(self, row: Row, top: float) -> None:
        """Remember where the grid goes: from the first row that has values down to its axis."""
        if isinstance(row, (Strip, Plot)) and self._open_at is None:
            self._open_at = top
        elif isinstance(row, (Ruler, Keys)) and self._open_at is not None:
            self._stretches.append((self._open_at, top + _BEFORE_RULER + _TICK))
            self._open_at = None

    def _row(self, row: Row, y: float, *, is_first: bool) -> tuple[list[Ink], float]:
        """Draw a row below `y`; gives also where it ends."""
        if isinstance(row, Heading):
            y += 2.0 if is_first else _BEFORE_HEADING
            return list(_heading(row, y + SMALL + 2)), y + _HEADING
        if isinstance(row, Strip):
            y += row.gap
            return list(strip_ink(row, self._across, y)), y + row.height
        if isinstance(row, Plot):
            y += _BEFORE_PLOT
            return list(plot_ink(row, self._across, y)), y + row.height
        if isinstance(row, Ruler):
            y += _BEFORE_RULER
            return list(self._ruler(y)), y + _AXIS_LABEL + 4
        keys = KeyTable(row, PAD, self._room)
        y += _BEFORE_KEYS
        return list(keys.ink(y)), y + keys.height

    def _ruler(self, y: float) -> Iterator[Ink]:
        across = self._across
        for tick in self._ticks:
            half = text_width(tick.label, SMALL) / 2
            x = min(max(across.x(tick.value), PAD + half), self._width - half)
            yield Words(tick.label, x, y + _TICK_LABEL, "muted", "middle")
        label = safe_text(self._board.x.label)
        yield Words(label, across.right, y + _AXIS_LABEL, "muted", "end")


def _heading(row: Heading, y: float) -> Iterator[Ink]:
    text = safe_text(row.text)
    if text:
        yield Words(text, PAD, y, "strong")
    behind = text_width(text, SMALL) * _BOLD + 12 if text else 0.0
    if row.detail:
        yield Words(safe_text(row.detail), PAD + behind, y, "muted")


def _gutter(board: Board, width: float) -> float:
    """Give the room to the left of the rows: for their names, and for the axes of plots."""
    names = [safe_text(row.name) for row in board.rows if isinstance(row, Strip)]
    axes = [scale(row.y, 0.0, 1.0) for row in board.rows if isinstance(row, Plot)]
    ticks = [tick.label for axis in axes for tick in axis.ticks(3)]
    named = _WIDER * max((text_width(name, SMALL) for name in names), default=0.0)
    widest = _WIDER * max((text_width(label, SMALL) for label in ticks), default=0.0)
    needed = max(min(named, _WIDEST_NAME * width), widest)
    return needed + 8 if needed else 0.0
