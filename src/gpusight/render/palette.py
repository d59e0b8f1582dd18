"""The colours of what happens on a GPU and on its host, one for each name, everywhere the same.

Work that computes is blue, green and violet, what moves data orange, communication magenta; idle
time is red and grey, as it is what a reader looks for. Pairs are of a light and a dark page. Those
that are seen most differ for people who tell red from green badly too, by lightness then; a test
measures that.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple


class Colour(NamedTuple):
    """A colour on a light page and on a dark one."""

    light: str
    dark: str


COLOURS: dict[str, Colour] = {
    "compute/matmul": Colour("#1e5799", "#477ec5"),
    "compute/convolution": Colour("#1e8d92", "#18a8a8"),
    "compute/attention": Colour("#5f53c0", "#8e80ec"),
    "compute/softmax": Colour("#8265c6", "#af94f6"),
    "compute/normalisation": Colour("#208e58", "#74e0ae"),
    "compute/elementwise": Colour("#68a93e", "#afcf45"),
    "compute/reduction": Colour("#5093d8", "#8ec8fd"),
    "compute/optimizer": Colour("#c1b05c", "#ead878"),
    "compute/embedding": Colour("#2786a8", "#5caac3"),
    "compute/copy": Colour("#81924b", "#95ae74"),
    "compute/random": Colour("#9e6eb0", "#c99eee"),
    "compute/sort": Colour("#6183c0", "#8fabd9"),
    "compute/pooling": Colour("#3f8f79", "#6ec8b2"),
    "compute/loss": Colour("#7b578c", "#a680c6"),
    "compute/generated": Colour("#379a95", "#62d3cb"),
    "compute/graph": Colour("#4470a2", "#71a2d9"),
    "compute/other": Colour("#5a7491", "#9bb3cd"),
    "copy/h2d": Colour("#e67f01", "#e6932e"),
    "copy/d2h": Colour("#be5f03", "#c46f17"),
    "copy/d2d": Colour("#e5a42c", "#edc272"),
    "copy/p2p": Colour("#c96e12", "#da925b"),
    "copy/unified": Colour("#a37242", "#e3a65f"),
    "copy/memset": Colour("#cdaf84", "#e1c192"),
    "copy/h2h": Colour("#b69974", "#cab69a"),
    "copy/other": Colour("#c59558", "#dbb47f"),
    "communication": Colour("#ab3471", "#ee74b2"),
    "idle/queued": Colour("#a399bd", "#6e6489"),
    "idle/synchronising": Colour("#a2211e", "#ea6a5a"),
    "idle/allocating": Colour("#b04520", "#ee927e"),
    "idle/launching": Colour("#c66970", "#b14e41"),
    "idle/input": Colour("#96244e", "#dd6686"),
    "idle/framework": Colour("#d6a9a5", "#7f4542"),
    "idle/other": Colour("#a89a91", "#756d67"),
    "idle/profiler": Colour("#b6a791", "#64615d"),
    "idle/unknown": Colour("#a9b4cb", "#4e5968"),
    "api/launch": Colour("#4c8a5e", "#6fb383"),
    "api/synchronise": Colour("#a2211e", "#ea6a5a"),
    "api/memory": Colour("#b04520", "#ee927e"),
    "api/copy": Colour("#e67f01", "#e6932e"),
    "api/other": Colour("#8a939e", "#7f8a97"),
    "overhead": Colour("#b6a791", "#64615d"),
}
"""Entries of the ledger, and what else has a meaning of its own."""

HOST: tuple[Colour, ...] = (
    Colour("#5b7fa6", "#6f97c4"),
    Colour("#6d9a79", "#82b892"),
    Colour("#a07a9f", "#be95bd"),
    Colour("#a68a56", "#c7a96f"),
    Colour("#5f9aa0", "#75bac0"),
    Colour("#8c82b3", "#a79dd1"),
    Colour("#a87a6e", "#c9978a"),
    Colour("#84964f", "#a3b768"),
)
"""What ranges and operators are drawn in, chosen by their names."""


_DARK_TEXT, _LIGHT_TEXT = "#14181e", "#ffffff"


def text_on(colour: str) -> str:
    """Give the colour of text that is read best on a colour: near black, or white."""
    return max((_LIGHT_TEXT, _DARK_TEXT), key=lambda text: contrast(text, colour))


def contrast(one: str, other: str) -> float:
    """Give how far two colours stand apart in brightness, from 1 to 21, as WCAG counts it."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    red, green, blue = (_linear(int(colour[at : at + 2], 16) / 255) for at in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


def colour_of(key: str) -> Colour:
    """Give the colour of a key: `compute/matmul`, `idle/input`, `host/3`, or any other name."""
    if key in COLOURS:
        return COLOURS[key]
    group, _, rest = key.partition("/")
    if group == "host" and rest.isdigit():
        return HOST[int(rest) % len(HOST)]
    other = COLOURS.get(f"{group}/other")
    return other or HOST[zlib.crc32(key.encode()) % len(HOST)]
