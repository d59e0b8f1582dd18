"""The colours of pictures: told apart by people who see few colours too, in light and in dark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusight.render.palette import colour_of
from gpusight.render.pictures.board import Board, Keys, Plot, Strip
from gpusight.render.pictures.figure import Line, Stack, Tone

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusight.render.pictures.figure import Figure, Series


@dataclass(frozen=True, slots=True)
class Theme:
    """One set of colours."""

    background: str
    text: str
    muted: str
    grid: str
    band: str
    mark: str
    palette: tuple[str, ...]
    quiet: str
    pale: str
    is_dark: bool = False

    def colour(self, slot: str) -> str:
        """Give the colour of a slot that `slots` handed out, or of a key of `render.palette`."""
        if slot.isdigit():
            return self.palette[int(slot)]
        own = {"strong": self.text, "quiet": self.quiet, "pale": self.pale}
        if slot in own:
            return own[slot]
        return colour_of(slot).dark if self.is_dark else colour_of(slot).light


LIGHT = Theme(
    background="#ffffff",
    text="#1c2128",
    muted="#5b6570",
    grid="#e4e8ec",
    band="#f4f6f8",
    mark="#b3261e",
    palette=("#3569a8", "#e39a45", "#3f9b86", "#a8517f", "#7f6bb8", "#b8a23a"),
    quiet="#a4aeb9",
    pale="#d3dae1",
)
DARK = Theme(
    background="#14181e",
    text="#e4e9ef",
    muted="#98a3af",
    grid="#2b323b",
    band="#1a1f27",
    mark="#ff8a80",
    palette=("#5b93d6", "#e0a05a", "#52b39c", "#c9749f", "#9d8ad4", "#c7b458"),
    quiet="#6f7b88",
    pale="#414b56",
    is_dark=True,
)
OWN_SLOTS = (*map(str, range(len(LIGHT.palette))), "strong", "quiet", "pale")
"""Slots that every picture may use; others are keys of `render.palette`."""


def colours_of(picture: Figure | Board) -> tuple[str, ...]:
    """Give the keys of `render.palette` that a picture uses, in order of the first use."""
    if isinstance(picture, Board):
        used = list(_board_slots(picture))
    else:
        used = list(slots(picture).values())
    return tuple(dict.fromkeys(slot for slot in used if slot not in OWN_SLOTS))


def _board_slots(board: Board) -> Iterator[str]:
    yield from (colour for colour, _ in board.legend)
    for row in board.rows:
        if isinstance(row, Strip):
            yield from row.cells.colours
        elif isinstance(row, Plot):
            yield from slots_of(row.series).values()
        elif isinstance(row, Keys):
            yield from (key.colour for key in row.keys)


def css_name(slot: str) -> str:
    """Give a slot as part of the name of a style."""
    return slot.replace("/", "-")


def slots(figure: Figure) -> dict[str, str]:
    """Give each named series and part of a figure its colour slot."""
    return slots_of(figure.series)


def slots_of(every: Iterable[Series]) -> dict[str, str]:
    """Give each named series and part its slot: a number in the palette, a tone, or its colour."""
    given: dict[str, str] = {}
    used = 0
    for name, tone, colour in _named(every):
        if name in given:
            continue
        if colour:
            given[name] = colour
        elif tone is Tone.SERIES:
            given[name] = str(used % len(LIGHT.palette))
            used += 1
        else:
            given[name] = tone.value
    return given


def _named(every: Iterable[Series]) -> Iterator[tuple[str, Tone, str]]:
    for series in every:
        if isinstance(series, Stack):
            yield from ((part.name, part.tone, part.colour) for part in series.parts)
        else:
            yield series.name, series.tone, series.colour if isinstance(series, Line) else ""
