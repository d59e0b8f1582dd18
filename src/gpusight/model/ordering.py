"""Numbering keys and sorting by them, for keys of which there are few among many rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing import TypeAlias

    import polars as pl
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]


def number(keys: pl.Series) -> Ints:
    """Number keys from 0 in their order; a search among the distinct ones is faster than a sort."""
    codes: Ints = np.searchsorted(keys.unique().sort().to_numpy(), keys.to_numpy())
    return codes


def stable_argsort(codes: Ints) -> Ints:
    """Sort by small whole numbers, keeping the order within: 16 bits are sorted by radix."""
    fits = len(codes) and codes.min() >= 0 and codes.max() < 1 << 16
    return np.argsort(codes.astype(np.uint16) if fits else codes, kind="stable")
