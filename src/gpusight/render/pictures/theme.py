"""The colours of pictures: told apart by people who see few colours too, in light and in dark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusight.render.pictures.figure import Stack, Tone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.render.pictures.figure import Figure


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

    def colour(self, slot: str) -> str:
        """Give the colour of a slot that `slots` handed out."""
        if slot.isdigit():
            return self.palette[int(slot)]
        return {"strong": self.text, "quiet": self.quiet, "pale": self.pale}[slot]


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
)


def slots(figure: Figure) -> dict[str, str]:
    """Give each named series and part its colour slot: a number in the palette, or a tone."""
    given: dict[str, str] = {}
    used = 0
    for name, tone in _named(figure):
        if name in given:
            continue
        if tone is Tone.SERIES:
            given[name] = str(used % len(LIGHT.palette))
            used += 1
        else:
            given[name] = tone.value
    return given


def _named(figure: Figure) -> Iterator[tuple[str, Tone]]:
    for series in figure.series:
        if isinstance(series, Stack):
            yield from ((part.name, part.tone) for part in series.parts)
        else:
            yield series.name, series.tone
