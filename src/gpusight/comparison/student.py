"""Student's t: how many standard errors hold a given part of it.

With t = sqrt(f) * tan(angle) the density becomes cos(angle) ** (f - 1), whose integral is smooth
for any number of degrees of freedom f >= 1, whole or not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)
_HALVINGS = 52
_MOST = 1e5
"""From here on it is the normal distribution, to six digits."""
_WIDE = 12.0
"""Standard deviations that hold all of it, where the degrees of freedom are many."""


def t_quantile(confidence: float, freedom: Floats) -> Floats:
    """Give the t that |t| stays below with probability `confidence`; `freedom` is 1 or more."""
    distinct, where = np.unique(np.ravel(np.clip(freedom, 1.0, _MOST)), return_inverse=True)
    low = np.zeros_like(distinct)
    high = np.minimum(np.pi / 2, _WIDE / np.sqrt(distinct))
    wanted = confidence * np.array([_whole(one) for one in distinct])
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        less = _integral(middle, distinct) < wanted
        low, high = np.where(less, middle, low), np.where(less, high, middle)
    found: Floats = np.sqrt(distinct) * np.tan(low)
    return found[where].reshape(np.shape(freedom))


def _integral(angle: Floats, freedom: Floats) -> Floats:
    """Integrate the density from 0 to an angle."""
    half = angle[:, None] / 2
    values: Floats = np.cos(half * (1 + _NODES)) ** (freedom[:, None] - 1)
    total: Floats = (values * _WEIGHTS).sum(axis=1) * half[:, 0]
    return total


def _whole(freedom: float) -> float:
    """Integrate the density from 0 to infinity."""
    gammas = math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2)
    return math.sqrt(math.pi) / 2 * math.exp(gammas)
