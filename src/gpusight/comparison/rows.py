"""Rows of the same key on both sides, as quantities that can be tested."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from gpusight.comparison.inference import Sampled
from gpusight.comparison.quantities import Quantity
from gpusight.result import Fmt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpusight.comparison.digest import Digest

Key = TypeVar("Key")
Row = TypeVar("Row")


class Rows(Generic[Key, Row]):
    """One table of all captures; a row that a capture has not is 0 there."""

    def __init__(
        self,
        before: Sequence[tuple[Digest, Mapping[Key, Row]]],
        after: Sequence[tuple[Digest, Mapping[Key, Row]]],
    ) -> None:
        self._before, self._after = before, after
        self._tables = [table for _, table in (*before, *after)]
        self.keys = list(dict.fromkeys(key for table in self._tables for key in table))

    @classmethod
    def of(
        cls,
        before: Sequence[Digest],
        after: Sequence[Digest],
        table: Callable[[Digest], Mapping[Key, Row]],
    ) -> Rows[Key, Row]:
        """Take a table of every capture."""
        return cls([(one, table(one)) for one in before], [(one, table(one)) for one in after])

    def named(self, key: Key) -> list[Row]:
        """Give the rows of a key, of those captures that have it."""
        return [table[key] for table in self._tables if key in table]

    def pairs(
        self, series: Callable[[Row], Sequence[float]], keys: Iterable[Key]
    ) -> list[tuple[Quantity, Quantity]]:
        """Give a quantity of some rows, before and after."""
        sides = (self._before, self._after)
        return [(_quantity(sides[0], k, series), _quantity(sides[1], k, series)) for k in keys]

    def means(self, series: Callable[[Row], Sequence[float]], key: Key) -> tuple[float, float]:
        """Give the mean a step of a row, before and after."""
        old, new = self.pairs(series, [key])[0]
        return float(np.mean(old.means)), float(np.mean(new.means))


def _quantity(
    side: Sequence[tuple[Digest, Mapping[Key, Row]]],
    key: Key,
    series: Callable[[Row], Sequence[float]],
) -> Quantity:
    samples = []
    for digest, mine in side:
        values = np.array(series(mine[key]) if key in mine else np.zeros(len(digest.blocks)), float)
        samples.append(Sampled(digest.blocks, values[np.newaxis]))
    return Quantity("", "", Fmt.TIME, tuple(samples))
