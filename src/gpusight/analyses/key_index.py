"""Rows found by a process and a number unique in it: a correlation id, an operator's key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpusight.analyses.attribution.nested import NONE

if TYPE_CHECKING:
    import polars as pl

    from gpusight.analyses.attribution.nested import Ints
_DENSE = 8
"""A table by key may be this many times as long as there are rows before sorting is cheaper."""
_SMALL = 1_000_000
_WIDE = 1 << 62


class KeyIndex:
    """Finds the first row of a process and key; keys below 0 are none."""

    def __init__(self, process: pl.Series, key: pl.Series) -> None:
        self._processes = process.drop_nulls().unique().sort().to_numpy()
        numbers = key.fill_null(NONE).to_numpy()
        self._distinct: Ints | None = None
        self._span = int(numbers.max(initial=0)) + 1
        size = self._span * max(len(self._processes), 1)
        if size >= _WIDE:
            self._distinct = np.unique(numbers)
            self._span = len(self._distinct)
            size = self._span * max(len(self._processes), 1)
        joint = self._joint(process, numbers)
        rows = np.flatnonzero(joint >= 0)
        self._dense = size <= _DENSE * len(numbers) + _SMALL
        if self._dense:
            self._rows = np.full(size, NONE, dtype=np.int32)
            self._rows[joint[rows[::-1]]] = rows[::-1]  # written backwards: the first row stays
        else:
            self._sorted, first = np.unique(joint[rows], return_index=True)
            self._rows = rows[first].astype(np.int32)

    def find(self, process: pl.Series, key: pl.Series) -> Ints:
        """Give the row of each process and key, -1 where there is none."""
        joint = self._joint(process, key.fill_null(NONE).to_numpy())
        if not len(self._rows):
            return np.full(len(joint), NONE, dtype=np.int64)
        if self._dense:
            return np.where(joint >= 0, self._rows[joint], np.int64(NONE))
        at = np.minimum(np.searchsorted(self._sorted, joint), len(self._sorted) - 1)
        return np.where(self._sorted[at] == joint, self._rows[at], np.int64(NONE))

    def _joint(self, process: pl.Series, numbers: Ints) -> Ints:
        """Make one number of process and key; -1 for what no row has."""
        codes = self._codes(process)
        keys, inside = numbers, (codes >= 0) & (numbers >= 0)
        if self._distinct is not None:
            keys = np.minimum(np.searchsorted(self._distinct, numbers), self._span - 1)
            inside &= self._distinct[keys] == numbers
        inside &= keys < self._span
        return np.where(inside, codes * self._span + np.where(inside, keys, 0), NONE)

    def _codes(self, process: pl.Series) -> Ints:
        """Number processes; -1 for unknown ones."""
        known = self._processes
        if process.null_count() == len(process) or not len(known):
            # Old captures do not say which process work belongs to: then there is one.
            return np.full(len(process), 0 if len(known) <= 1 else NONE, dtype=np.int64)
        of = process.fill_null(known[0]).to_numpy()
        codes = np.minimum(np.searchsorted(known, of), len(known) - 1)
        return np.where((known[codes] == of) & process.is_not_null().to_numpy(), codes, NONE)
