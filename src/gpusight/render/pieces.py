"""Long tables in pieces, so that their text need not be in memory at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROWS = 20_000
_LETTERS = 8_000_000


def pieces(frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Cut a table into pieces of a few megabytes of text; the same name may stand in every row."""
    texts = frame.select(pl.col(pl.String).str.len_bytes().sum().cast(pl.Int64))
    letters = sum(count or 0 for count in texts.row(0)) if texts.width else 0
    size = _ROWS if letters <= _LETTERS else max(1, frame.height * _LETTERS // letters)
    return frame.iter_slices(min(size, _ROWS))
