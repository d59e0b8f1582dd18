"""The ink of a legend with numbers, in as many columns as there is room for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.render.cells import safe_text, shorten_middle
from gpusight.render.pictures.frame import SMALL, text_width
from gpusight.render.pictures.ink import Box, Words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.render.pictures.board import Key, Keys
    from gpusight.render.pictures.ink import Ink

_SWATCH = 18.0
_LINE = 18.0
_BETWEEN = 30.0
"""Between two columns."""
_VALUE = 12.0
"""Before a value."""
_BOLD = 1.06
"""Bold letters are so much wider."""


class KeyTable:
    """A legend laid out in columns between two edges."""

    def __init__(self, keys: Keys, left: float, room: float) -> None:
        self._keys = keys
        self._left = left
        self._widths = [self._widest_value(n) for n in range(len(keys.headings))]
        most = max((text_width(safe_text(key.name), SMALL) for key in keys.keys), default=0.0)
        whole = _SWATCH + most + sum(_VALUE + width for width in self._widths)
        fitting = max(1, int((room + _BETWEEN) // (whole + _BETWEEN)))
        self._columns = _in_columns(keys.keys, fitting)
        self._pitch = (room + _BETWEEN) / max(len(self._columns), 1)
        self._width = min(self._pitch - _BETWEEN, whole + 4 * _VALUE)

    @property
    def height(self) -> float:
        """How many pixels it takes."""
        return _LINE * (max(map(len, self._columns), default=0) + 1)

    def ink(self, top: float) -> Iterator[Ink]:
        """Draw it; numbers stand right-aligned below what they are."""
        for number, column in enumerate(self._columns):
            left = self._left + number * self._pitch
            yield from self._values(self._keys.headings, left, top + SMALL, "muted")
            for row, key in enumerate(column, start=1):
                yield from self._key(key, left, top + SMALL + row * _LINE)

    def _key(self, key: Key, left: float, y: float) -> Iterator[Ink]:
        room = self._width - _SWATCH - sum(_VALUE + width for width in self._widths)
        name = shorten_middle(safe_text(key.name), max(8, int(room / text_width("m", SMALL))))
        look = "strong" if key.heads else ""
        if key.colour:
            yield Box(left, y - 9, 11, 11, key.colour)
        yield Words(name, left + (_SWATCH if key.colour else 0), y, look)
        yield from self._values(key.values, left, y, look)

    def _values(
        self, values: tuple[str, ...], left: float, y: float, look: str = ""
    ) -> Iterator[Ink]:
        x = left + self._width
        for value, width in reversed(list(zip(values, self._widths, strict=True))):
            yield Words(safe_text(value), x, y, look, "end")
            x -= width + _VALUE

    def _widest_value(self, number: int) -> float:
        texts = [self._keys.headings[number], *(key.values[number] for key in self._keys.keys)]
        return _BOLD * max(text_width(safe_text(text), SMALL) for text in texts)


def _in_columns(keys: Sequence[Key], most: int) -> list[list[Key]]:
    """Break keys into at most so many columns; what heads others never stands last in one."""
    columns: list[list[Key]] = []
    for rows in range(-(-len(keys) // most), len(keys) + 1):
        columns = [[]]
        for number, key in enumerate(keys, start=1):
            is_last = len(columns[-1]) == rows - 1 and number < len(keys)
            if len(columns[-1]) == rows or (is_last and key.heads and not key.colour):
                columns.append([])
            columns[-1].append(key)
        if len(columns) <= most:
            break
    return columns if keys else []
