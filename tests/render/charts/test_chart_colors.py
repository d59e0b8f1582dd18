"""Colors: one for each name, seen on both pages, told apart by people who see fewer of them."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.naming.kernel_patterns import CATEGORIES
from gpusight.render.charts.chart_colors import (
    COLORS,
    DARK,
    HOST_COLORS,
    LIGHT,
    ChartTheme,
    color_of,
    contrast,
    text_on,
)
from gpusight.viewer.track_style import COLORS as CODED

THEMES = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
LEDGER = [key for key in COLORS if key.partition("/")[0] in {"compute", "copy", "idle"}]
LEDGER.append("communication")
MAIN = [
    *(f"compute/{c}" for c in ("matmul", "convolution", "attention", "softmax", "normalization")),
    *(f"compute/{c}" for c in ("elementwise", "reduction", "optimizer")),
    *("copy/h2d", "copy/d2h", "communication"),
    *(f"idle/{c}" for c in ("queued", "synchronizing", "allocating", "launching", "input")),
    *(f"idle/{c}" for c in ("setup", "waiting", "framework", "host", "unknown")),
]
"""What most captures show, in any order side by side."""
# Machado, Oliveira and Fernandes (2009): what eyes without green cones make of linear red, green
# and blue.
DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
)
# Ottosson (2020): linear red, green and blue to OKLab, where distances are as large as they look.
CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
OKLAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def linear(color: str) -> NDArray[np.float64]:
    value = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def perceived(color: str, *, fewer: bool) -> NDArray[np.float64]:
    light = np.clip(DEUTERANOPIA @ linear(color), 0, 1) if fewer else linear(color)
    result: NDArray[np.float64] = OKLAB @ np.cbrt(CONES @ light)
    return result


def nearest(keys: list[str], theme: ChartTheme, *, fewer: bool) -> tuple[float, tuple[str, str]]:
    places = {key: perceived(theme.color(key), fewer=fewer) for key in keys}
    return min(
        (float(np.linalg.norm(places[a] - places[b])), (a, b)) for a, b in combinations(keys, 2)
    )


def test_every_entry_category_and_code_has_a_color_of_its_own() -> None:
    categories = [f"compute/{c}" for c in CATEGORIES if c != "communication"]
    assert {*categories, "communication", *(cause.entry for cause in IdleCause)} <= set(COLORS)
    assert [key for key in CODED if key not in COLORS and not key.startswith("host/")] == []
    for shade in (0, 1):
        assert len({COLORS[key][shade] for key in LEDGER}) == len(LEDGER)


def test_unknown_keys_have_a_color_too() -> None:
    assert color_of("compute/new") == COLORS["compute/other"]
    assert color_of("host/3") == HOST_COLORS[3]
    assert color_of("host/11") == HOST_COLORS[3]
    assert color_of("whatever") in HOST_COLORS
    assert color_of("whatever") == color_of("whatever")


@THEMES
def test_areas_stand_out_from_the_page(theme: ChartTheme) -> None:
    keys = [*COLORS, *(f"host/{number}" for number in range(len(HOST_COLORS)))]
    low = {key: contrast(theme.color(key), theme.background) for key in keys}
    assert {key: value for key, value in low.items() if value < 2} == {}


@THEMES
def test_labels_can_be_read_on_every_color(theme: ChartTheme) -> None:
    for key in [*COLORS, *(f"host/{number}" for number in range(len(HOST_COLORS)))]:
        color = theme.color(key)
        assert contrast(text_on(color), color) >= 4


@THEMES
@pytest.mark.parametrize("fewer", [False, True], ids=["all colors", "no green"])
def test_colors_are_told_apart(theme: ChartTheme, fewer: bool) -> None:
    distance, pair = nearest(MAIN, theme, fewer=fewer)
    assert distance > 0.055, pair
    distance, pair = nearest(LEDGER, theme, fewer=fewer)
    assert distance > 0.03, pair


def test_contrast_is_that_of_the_web() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    assert text_on("#ffffff") == "#14181e"
    assert text_on("#1e5799") == "#ffffff"


@THEMES
def test_a_part_of_a_color_lies_between_it_and_the_background(theme: ChartTheme) -> None:
    steps = [contrast(theme.color(f"host/3@{n}"), theme.background) for n in (1, 2, 3)]
    whole = contrast(theme.color("host/3"), theme.background)
    assert 1 < steps[0] < steps[1] < steps[2] < whole
