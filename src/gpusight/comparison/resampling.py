"""Which differences between two sides are compatible with chance alone: labels, dealt anew.

If a change only added d, then without that d the values of both sides could as well have been dealt
the other way round. An interval of all d for which the true deal is not among the most extreme ones
assumes nothing about how values are distributed.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Mask = NDArray[np.bool_]

_DEALS = 2000
"""Ways to deal the labels that are tried: all of them where there are no more."""
_SEED = 20240607
_ROWS = 1000
"""Rows at a time, so that memory stays small."""


def dealt_interval(
    values: Floats, weights: Floats, before: int, confidence: float
) -> tuple[Floats, Floats]:
    """Give the ends of the interval of what was added, for each row of `values`.

    The first `before` columns are the one side. Where even the most extreme deal is not rare
    enough, the interval is the widest that deals can tell.
    """
    others, count = _deals(before, values.shape[1] - before)
    shares, own = _shares(others, weights), _shares(_own(before, values.shape[1]), weights)
    added = np.arange(values.shape[1]) >= before
    scale = 1 - shares @ added
    # A deal is at least as extreme as the true one for any d beyond this; see the module.
    limits = ((own - shares) / scale[:, None]).T
    rank = max(1, math.floor(count * (1 - confidence) / 2))
    firsts = range(0, max(len(values), 1), _ROWS)
    parts = [_ends(values[i : i + _ROWS] @ limits, rank) for i in firsts]
    low, high = (np.concatenate(one) for one in zip(*parts, strict=True))
    return low, high


def _ends(limits: Floats, rank: int) -> tuple[Floats, Floats]:
    """Give the smallest and the largest of each row, less those that are rare enough."""
    ordered = np.partition(limits, (rank - 1, -rank), axis=1)
    return ordered[:, rank - 1], ordered[:, -rank]


def _shares(later: Mask, weights: Floats) -> Floats:
    """Give what each value adds to the difference of the sides' means, for each deal."""
    one, other = later * weights, ~later * weights
    shares: Floats = one / one.sum(axis=1, keepdims=True) - other / other.sum(axis=1, keepdims=True)
    return shares


def _own(before: int, total: int) -> Mask:
    """Give the true deal."""
    return (np.arange(total) >= before)[None, :]


@lru_cache(maxsize=64)
def _deals(before: int, after: int) -> tuple[Mask, int]:
    """Say which values are of the later side in each deal but the true one, and count all deals."""
    if before > after:
        mirrored, count = _deals(after, before)
        return ~np.roll(mirrored, before, axis=1), count
    count = math.comb(before + after, after)
    later = _every(before, after) if count <= _DEALS else _some(before, after)
    others = later[(later != _own(before, before + after)).any(axis=1)]
    return others, len(others) + 1


def _every(before: int, after: int) -> Mask:
    chosen = np.array(list(combinations(range(before + after), after)))
    later = np.zeros((len(chosen), before + after), np.bool_)
    np.put_along_axis(later, chosen, values=True, axis=1)
    return later


def _some(before: int, after: int) -> Mask:
    """Deal at random, the same way on every machine: raw bits of a generator never change."""
    total = before + after
    bits = np.random.PCG64(_SEED).random_raw(_DEALS * total).reshape(-1, total)
    later: Mask = bits.argsort(axis=1, kind="stable") >= before
    if before != after:
        return later
    # Each deal also with the sides exchanged, so that neither side is preferred.
    half = later[: _DEALS // 2]
    return np.concatenate([half, ~np.roll(half, before, axis=1)])
