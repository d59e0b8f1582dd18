"""The colors of everything on a GPU and its host, and the light and dark theme of charts.

Safe for color-blind readers.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gpusight.render.charts.figure import (
    ChartStrip,
    LineSeries,
    SeriesTone,
    StackSeries,
    StripChart,
    StripLegend,
    StripPlot,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusight.render.charts.figure import Figure, Series


class Color(NamedTuple):
    """A color on a light page and on a dark one."""

    light: str
    dark: str


COLORS: dict[str, Color] = {
    "compute/matmul": Color("#1e5799", "#477ec5"),
    "compute/convolution": Color("#1e8d92", "#18a8a8"),
    "compute/attention": Color("#5f53c0", "#8e80ec"),
    "compute/softmax": Color("#8265c6", "#af94f6"),
    "compute/normalization": Color("#208e58", "#74e0ae"),
    "compute/elementwise": Color("#68a93e", "#afcf45"),
    "compute/reduction": Color("#5093d8", "#8ec8fd"),
    "compute/optimizer": Color("#c1b05c", "#ead878"),
    "compute/embedding": Color("#2786a8", "#5caac3"),
    "compute/copy": Color("#81924b", "#95ae74"),
    "compute/random": Color("#9e6eb0", "#c99eee"),
    "compute/sort": Color("#6183c0", "#8fabd9"),
    "compute/pooling": Color("#3f8f79", "#6ec8b2"),
    "compute/loss": Color("#7b578c", "#a680c6"),
    "compute/generated": Color("#379a95", "#62d3cb"),
    "compute/fft": Color("#1c1ae6", "#3b4bff"),
    "compute/stencil": Color("#527246", "#93e1e0"),
    "compute/loop": Color("#383b55", "#5759ab"),
    "compute/custom": Color("#2a2a9d", "#8675a4"),
    "compute/graph": Color("#4470a2", "#71a2d9"),
    "compute/other": Color("#5a7491", "#9bb3cd"),
    "copy/h2d": Color("#e67f01", "#e6932e"),
    "copy/d2h": Color("#be5f03", "#c46f17"),
    "copy/d2d": Color("#e5a42c", "#edc272"),
    "copy/p2p": Color("#c96e12", "#da925b"),
    "copy/unified": Color("#a37242", "#e3a65f"),
    "copy/memset": Color("#cdaf84", "#e1c192"),
    "copy/h2h": Color("#b69974", "#cab69a"),
    "copy/other": Color("#c59558", "#dbb47f"),
    "communication": Color("#ab3471", "#ee74b2"),
    "idle/queued": Color("#a399bd", "#6e6489"),
    "idle/synchronizing": Color("#a2211e", "#ea6a5a"),
    "idle/allocating": Color("#b04520", "#ee927e"),
    "idle/launching": Color("#c66970", "#b14e41"),
    "idle/setup": Color("#a89a91", "#756d67"),
    "idle/input": Color("#96244e", "#dd6686"),
    "idle/waiting": Color("#5c3960", "#842a9a"),
    "idle/framework": Color("#d6a9a5", "#7f4542"),
    "idle/host": Color("#292871", "#303bb7"),
    "idle/profiler": Color("#b6a791", "#64615d"),
    "idle/unknown": Color("#a9b4cb", "#4e5968"),
    "api/launch": Color("#4c8a5e", "#6fb383"),
    "api/synchronize": Color("#a2211e", "#ea6a5a"),
    "api/memory": Color("#b04520", "#ee927e"),
    "api/copy": Color("#e67f01", "#e6932e"),
    "api/other": Color("#8a939e", "#7f8a97"),
    "overhead": Color("#b6a791", "#64615d"),
    "heat/1": Color("#eda257", "#6f4c33"),
    "heat/2": Color("#dd7f38", "#996138"),
    "heat/3": Color("#c0562a", "#c47e42"),
    "heat/4": Color("#97341f", "#e8a85c"),
    "heat/5": Color("#651815", "#ffdca3"),
}
"""Entries of the ledger, what else has a meaning of its own, and levels of a heat map."""

HOST_COLORS: tuple[Color, ...] = (
    Color("#5b7fa6", "#6f97c4"),
    Color("#6d9a79", "#82b892"),
    Color("#a07a9f", "#be95bd"),
    Color("#a68a56", "#c7a96f"),
    Color("#5f9aa0", "#75bac0"),
    Color("#8c82b3", "#a79dd1"),
    Color("#a87a6e", "#c9978a"),
    Color("#84964f", "#a3b768"),
)
"""What ranges and operators are drawn in, chosen by their names."""


_DARK_TEXT, _LIGHT_TEXT = "#14181e", "#ffffff"


def text_on(color: str) -> str:
    """Give the color of text that is read best on a color: near black, or white."""
    return max((_LIGHT_TEXT, _DARK_TEXT), key=lambda text: contrast(text, color))


def contrast(first: str, second: str) -> float:
    """Give how far two colors stand apart in brightness, from 1 to 21, as WCAG counts it."""
    low, high = sorted((_luminance(first), _luminance(second)))
    return (high + 0.05) / (low + 0.05)


def mixed(color: str, other: str, part: float) -> str:
    """Mix a part of a color into another."""
    pairs = ((int(color[at : at + 2], 16), int(other[at : at + 2], 16)) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part * one + (1 - part) * two):02x}" for one, two in pairs)


def _luminance(color: str) -> float:
    red, green, blue = (_linear(int(color[at : at + 2], 16) / 255) for at in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


def color_of(key: str) -> Color:
    """Give the color of a key: `compute/matmul`, `idle/input`, `host/3`, or any other name."""
    if key in COLORS:
        return COLORS[key]
    group, _, rest = key.partition("/")
    if group == "host" and rest.isdigit():
        return HOST_COLORS[int(rest) % len(HOST_COLORS)]
    other = COLORS.get(f"{group}/other")
    return other or HOST_COLORS[zlib.crc32(key.encode()) % len(HOST_COLORS)]


@dataclass(frozen=True, slots=True)
class ChartTheme:
    """One set of colors."""

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

    def color(self, slot: str) -> str:
        """Give the color of a slot that `slots` handed out, or of a key of `render.palette`.

        `KEY@1` to `KEY@3` are so many quarters of it on the background.
        """
        slot, _, quarters = slot.partition("@")
        if quarters:
            return mixed(self.color(slot), self.background, int(quarters) / 4)
        if slot.isdigit():
            return self.palette[int(slot)]
        own = {"strong": self.text, "quiet": self.quiet, "pale": self.pale}
        if slot in own:
            return own[slot]
        return color_of(slot).dark if self.is_dark else color_of(slot).light


LIGHT = ChartTheme(
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
DARK = ChartTheme(
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


def colors_of(picture: Figure | StripChart) -> tuple[str, ...]:
    """Give the keys of `render.palette` that a picture uses, in order of the first use."""
    if isinstance(picture, StripChart):
        used = list(_strip_chart_slots(picture))
    else:
        used = list(slots(picture).values())
    return tuple(dict.fromkeys(slot for slot in used if slot not in OWN_SLOTS))


def _strip_chart_slots(chart: StripChart) -> Iterator[str]:
    yield from (color for color, _ in chart.legend)
    for row in chart.rows:
        if isinstance(row, ChartStrip):
            yield from row.cells.colors
        elif isinstance(row, StripPlot):
            yield from slots_of(row.series).values()
        elif isinstance(row, StripLegend):
            yield from (key.color for key in row.keys)


def css_name(slot: str) -> str:
    """Give a slot as part of the name of a style."""
    return slot.replace("/", "-").replace("@", "-of-4-")


def slots(figure: Figure) -> dict[str, str]:
    """Give each named series and part of a figure its color slot."""
    return slots_of(figure.series)


def slots_of(every: Iterable[Series]) -> dict[str, str]:
    """Give each named series and part its slot: a number in the palette, a tone, or its color."""
    given: dict[str, str] = {}
    used = 0
    for name, tone, color in _series_tones(every):
        if name in given:
            continue
        if color:
            given[name] = color
        elif tone is SeriesTone.SERIES:
            given[name] = str(used % len(LIGHT.palette))
            used += 1
        else:
            given[name] = tone.value
    return given


def _series_tones(every: Iterable[Series]) -> Iterator[tuple[str, SeriesTone, str]]:
    for series in every:
        if isinstance(series, StackSeries):
            yield from ((part.name, part.tone, part.color) for part in series.parts)
        else:
            yield series.name, series.tone, series.color if isinstance(series, LineSeries) else ""
