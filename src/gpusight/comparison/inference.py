"""What can be claimed about a change: its interval, and the verdict that follows.

Values that vary independently are the units: captures where a side has several, else the steps of
the one capture. Two intervals are made of them and the wider end of either counts: Welch's, which
knows how little few units tell, and that of `resampling.py`, which assumes no distribution.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpusight.comparison.change import Basis, Change, Verdict
from gpusight.comparison.resampling import dealt_interval
from gpusight.comparison.student import t_quantile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Ends: TypeAlias = tuple[Floats, Floats]

CONFIDENCE = 0.95
LEAST = 0.02
"""Smaller changes are none, unless asked otherwise."""
_ENOUGH = 8
"""Blocks from which on it can be seen whether neighbours are alike."""
_MOST_ALIKE = 0.9
"""Few values can show any likeness by chance; one without bounds would hide every change."""
_EQUAL = 1e-12
"""Part of a value that is nothing but rounding."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Quantities of one capture, each as its mean a step in blocks of consecutive steps."""

    blocks: tuple[int, ...]
    """Steps in each block."""
    values: NDArray[np.float64]
    """A row for each quantity, a column for each block; all finite."""

    @property
    def means(self) -> NDArray[np.float64]:
        """Means over all steps, one for each row."""
        return _mean(self.values, np.array(self.blocks, np.float64))


def compare_series(
    before: Sequence[Sampled],
    after: Sequence[Sampled],
    *,
    confidence: float = CONFIDENCE,
    least: float = LEAST,
) -> list[Change]:
    """Say what changed, row by row; every capture counts alike, whatever its number of steps."""
    basis = _basis(before, after)
    old, new = _units(before, basis), _units(after, basis)
    ends = None if basis is Basis.NONE else _scaled_interval(old, new, confidence)
    verdicts = _verdicts(old, new, ends, least)
    unknown: list[float | None] = [None] * len(verdicts)
    low, high = (unknown, unknown) if ends is None else (one.tolist() for one in ends)
    rows = zip(old.means.tolist(), new.means.tolist(), low, high, verdicts, strict=True)
    return [Change(*row, basis) for row in rows]


def compare_values(
    before: Sequence[float],
    after: Sequence[float],
    *,
    confidence: float = CONFIDENCE,
    least: float = LEAST,
) -> Change:
    """Say what changed in a quantity that a capture has one value of."""
    old, new = ([Sampled((1,), np.array([[v]], np.float64)) for v in s] for s in (before, after))
    return compare_series(old, new, confidence=confidence, least=least)[0]


@dataclass(frozen=True, slots=True)
class _Units:
    """One side: values that vary independently, or nearly."""

    values: Floats
    """A row for each quantity, a column for each unit."""
    weights: Floats
    alike: Floats
    """How many neighbours tell as much as one independent value, for each row; 1 or more."""
    steps: _Units | None = None
    """What a single capture is the mean of."""

    @property
    def count(self) -> int:
        return len(self.weights)

    @property
    def means(self) -> Floats:
        return _mean(self.values, self.weights)

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the variance."""
        return max(self.count - 1, 1)

    @property
    def variance(self) -> Floats:
        """Variance of a unit of weight 1, for each row; 0 where there is one unit only."""
        apart = (self.values - self.means[:, None]) ** 2
        variance: Floats = apart @ self.weights / self.freedom * self.alike
        return variance

    @property
    def spread(self) -> Floats:
        """Variance of the mean, for each row."""
        spread: Floats = self.variance / self.weights.sum()
        return spread

    def scaled(self, scale: Floats) -> _Units:
        """Divide the values of each row."""
        steps = self.steps and self.steps.scaled(scale)
        return replace(self, values=self.values / scale[:, None], steps=steps)


def _mean(values: Floats, weights: Floats) -> Floats:
    mean: Floats = values @ (weights / weights.sum())
    return mean


def _basis(before: Sequence[Sampled], after: Sequence[Sampled]) -> Basis:
    if len(before) > 1 or len(after) > 1:
        return Basis.REPEATS
    several = len(before[0].blocks) > 1 or len(after[0].blocks) > 1
    return Basis.STEPS if several else Basis.NONE


def _units(side: Sequence[Sampled], basis: Basis) -> _Units:
    """Take captures as units, in an order that does not depend on the one given, or blocks."""
    values = side[0].values
    steps = _Units(values, np.array(side[0].blocks, np.float64), _alike(values))
    if basis is not Basis.REPEATS:
        return steps
    means = np.sort(np.stack([one.means for one in side], axis=1), axis=1)
    alone = steps if len(side) == 1 and steps.count > 1 else None
    return _Units(means, np.ones(len(side)), np.ones(len(means)), alone)


def _alike(values: Floats) -> Floats:
    """Say how many consecutive values tell as much as one, as in a first-order autoregression.

    What n values show of the likeness r of neighbours is too small by about (1 + 4r) / n. Values
    that alternate would narrow an interval; that they go on to do so is not known.
    """
    count = values.shape[1]
    if count < _ENOUGH:
        return np.ones(len(values))
    largest = np.abs(values).max(axis=1, keepdims=True)
    apart = (values - values.mean(axis=1, keepdims=True)) / np.where(largest > 0, largest, 1.0)
    total = (apart**2).sum(axis=1)
    lagged = (apart[:, 1:] * apart[:, :-1]).sum(axis=1)
    shown = np.divide(lagged, total, out=np.zeros_like(total), where=total > 0)
    likeness = np.clip((shown * count + 1) / (count - 4), 0.0, _MOST_ALIKE)
    alike: Floats = (1 + likeness) / (1 - likeness)
    return alike


def _scaled_interval(before: _Units, after: _Units, confidence: float) -> Ends:
    """Give the ends of the interval of the difference; squares of large values stay finite."""
    largest = np.maximum(np.abs(before.values).max(axis=1), np.abs(after.values).max(axis=1))
    scale = np.where(largest > 0, largest, 1.0)
    low, high = _interval(before.scaled(scale), after.scaled(scale), confidence)
    return low * scale, high * scale


def _interval(before: _Units, after: _Units, confidence: float) -> Ends:
    """Give the wider of both intervals at either end, of no width where nothing varies."""
    values = np.concatenate([before.values, after.values], axis=1)
    weights = np.concatenate([before.weights, after.weights])
    low, high = dealt_interval(values, weights, before.count, confidence)
    delta = after.means - before.means
    wider = _widening(before, after)
    half = _half_width(before, after, confidence)
    low = np.minimum(delta - half, delta + (low - delta) * wider)
    high = np.maximum(delta + half, delta + (high - delta) * wider)
    varies = high - low > _EQUAL
    return np.where(varies, low, delta), np.where(varies, high, delta)


def _widening(before: _Units, after: _Units) -> Floats:
    """Say how much wider likeness of neighbours makes the interval, for each row; 1 or more."""
    spread = before.spread + after.spread
    plain = before.spread / before.alike + after.spread / after.alike
    wider: Floats = np.sqrt(np.divide(spread, plain, out=np.ones_like(plain), where=plain > 0))
    return wider


def _half_width(before: _Units, after: _Units, confidence: float) -> Floats:
    """Give half of Welch's interval."""
    if before.count == 1 or after.count == 1:
        return _half_width_of_one(before, after, confidence)
    one, other = before.spread, after.spread
    below = one**2 / before.freedom + other**2 / after.freedom
    freedom = np.divide((one + other) ** 2, below, out=np.ones_like(below), where=below > 0)
    return _half(one + other, freedom, confidence)


def _half_width_of_one(before: _Units, after: _Units, confidence: float) -> Floats:
    """Take a single unit to vary as those of the other side, or as its own steps if that is more.

    A slow step that only the single capture has would else pass for a change.
    """
    one, several = (before, after) if before.count == 1 else (after, before)
    spread = several.variance / one.weights.sum() + several.spread
    half = _half(spread, several.freedom, confidence)
    if one.steps is None:
        return half
    return np.maximum(half, _half(one.steps.spread, one.steps.freedom, confidence))


def _half(spread: Floats, freedom: Floats | int, confidence: float) -> Floats:
    half: Floats = t_quantile(confidence, np.asarray(freedom, np.float64)) * np.sqrt(spread)
    return half


def _verdicts(before: _Units, after: _Units, ends: Ends | None, least: float) -> list[Verdict]:
    """Say what each row shows. Without an interval the difference is taken for certain."""
    delta = after.means - before.means
    low, high = (delta, delta) if ends is None else ends
    rounding = _EQUAL * np.maximum(np.abs(before.means), np.abs(after.means))
    needed = least * np.abs(before.means)
    certain = (low > rounding) | (high < -rounding)
    was, is_now = before.values.any(axis=1), after.values.any(axis=1)
    cases = {
        Verdict.SAME: ~was & ~is_now,
        Verdict.APPEARED: ~was & (certain | after.values.all(axis=1)),
        Verdict.VANISHED: ~is_now & (certain | before.values.all(axis=1)),
        Verdict.HIGHER: was & certain & (delta >= needed - rounding),
        Verdict.LOWER: is_now & certain & (delta <= rounding - needed),
        Verdict.UNCLEAR: (low < -needed - rounding) | (high > needed + rounding),
    }
    names = list(cases)
    chosen = np.select(list(cases.values()), list(range(len(names))), names.index(Verdict.SAME))
    return [names[i] for i in chosen]
