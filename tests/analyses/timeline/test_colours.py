"""That codes are few and steady, and that names decide colours as they should."""

from __future__ import annotations

import polars as pl

from gpusight.analyses.ledger.causes import Cause
from gpusight.analyses.timeline.colours import CODES, COLOURS, by_name
from gpusight.model.kernel_names import CATEGORIES
from gpusight.render.palette import COLOURS as PALETTE


def test_every_entry_of_the_ledger_has_a_code_that_fits_a_byte() -> None:
    entries = {f"compute/{c}" for c in CATEGORIES} - {"compute/communication"}
    entries |= {"communication", "compute/graph", *(cause.entry for cause in Cause)}
    assert entries <= set(COLOURS)
    assert len(set(COLOURS)) == len(COLOURS) <= 256
    assert all(COLOURS[code] == key for key, code in CODES.items())


def test_every_code_has_a_colour_in_the_palette() -> None:
    assert {key for key in COLOURS if not key.startswith("host/")} == set(PALETTE)


def test_names_without_their_numbers_decide() -> None:
    names = pl.Enum(["step_1", "step_20", "", "7", "encoder.layers.3.mlp", "encoder.layers.11.mlp"])
    codes = by_name(pl.Series([], dtype=names)).tolist()
    assert codes[0] == codes[1]
    assert codes[2] == codes[3]
    assert codes[4] == codes[5]
    assert {COLOURS[code].split("/")[0] for code in codes} == {"host"}
