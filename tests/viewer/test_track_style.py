"""That codes are few and steady, and that names decide colors as they should."""

from __future__ import annotations

import polars as pl

from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.naming.kernel_patterns import CATEGORIES
from gpusight.render.charts.chart_colors import COLORS as PALETTE
from gpusight.viewer.track_style import CODES, COLORS, by_name


def test_every_entry_of_the_ledger_has_a_code_that_fits_a_byte() -> None:
    entries = {f"compute/{c}" for c in CATEGORIES} - {"compute/communication"}
    entries |= {"communication", "compute/graph", *(cause.entry for cause in IdleCause)}
    assert entries <= set(COLORS)
    assert len(set(COLORS)) == len(COLORS) <= 256
    assert all(COLORS[code] == key for key, code in CODES.items())


def test_every_code_has_a_color_in_the_palette() -> None:
    shown = {key for key in PALETTE if not key.startswith("heat/")}
    assert {key for key in COLORS if not key.startswith("host/")} == shown


def test_names_without_their_numbers_decide() -> None:
    names = pl.Enum(["step_1", "step_20", "", "7", "encoder.layers.3.mlp", "encoder.layers.11.mlp"])
    codes = by_name(pl.Series([], dtype=names)).tolist()
    assert codes[0] == codes[1]
    assert codes[2] == codes[3]
    assert codes[4] == codes[5]
    assert {COLORS[code].split("/")[0] for code in codes} == {"host"}
