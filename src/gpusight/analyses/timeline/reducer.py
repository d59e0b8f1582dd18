"""The lowest, the highest or the sum of any stretches of an array of any size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from gpusight.analyses.timeline.window import Ints, Reals

_BLOCK = 64
"""Values that are reduced beforehand."""
_FEW = 200_000
"""Values that are looked at one by one."""


@dataclass(frozen=True, slots=True, eq=False)
class Reducer:
    """An array, and what each block of it comes to.

    A stretch of many values is what is left of its first block, whole blocks, and what it takes of
    the last. Sums are never differences of larger ones, so that few values are as exact as many.
    """

    how: np.ufunc
    """`numpy.minimum`, `numpy.maximum` or `numpy.add`."""
    nothing: float
    """What a stretch without a value comes to."""
    values: NDArray[Any]
    blocks: Reals

    @classmethod
    def of(cls, how: np.ufunc, nothing: float, values: NDArray[Any]) -> Reducer:
        """Reduce the blocks of an array; a short one needs none."""
        blocks = np.empty(0)
        if len(values) > _FEW:
            blocks = how.reduceat(values, np.arange(0, len(values), _BLOCK)).astype(np.float64)
        return cls(how, nothing, values, blocks)

    def over(self, first: Ints, after: Ints) -> Reals:
        """Reduce the stretches from `first` up to `after`."""
        if int((after - first).sum()) <= _FEW:
            return self._each(self.values, first, after)
        whole, past = -(-first // _BLOCK), after // _BLOCK
        head = np.minimum(whole * _BLOCK, after)
        tail = np.maximum(past * _BLOCK, head)
        reduced = self._each(self.values, first, head)
        reduced = self.how(reduced, self._each(self.blocks, whole, np.maximum(past, whole)))
        found: Reals = self.how(reduced, self._each(self.values, tail, after))
        return found

    def _each(self, values: NDArray[Any], first: Ints, after: Ints) -> Reals:
        """Reduce stretches by looking at all that is in them."""
        found = np.full(len(first), self.nothing)
        some = np.flatnonzero(after > first)
        if len(some):
            size = after[some] - first[some]
            begins = np.cumsum(size) - size
            at = np.arange(int(size.sum())) + np.repeat(first[some] - begins, size)
            found[some] = self.how.reduceat(values[at], begins)
        return found
