"""Size and significance of a change: permutation tests and t intervals."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from gpusight.trace.intervals import Flags, Reals

    Ends: TypeAlias = tuple[Reals, Reals]


class ChangeVerdict(enum.Enum):
    """Significance of the change of a quantity."""

    LOWER = "lower"
    HIGHER = "higher"
    SAME = "same"
    """Any change is shown to be below the threshold."""
    UNCLEAR = "unclear"
    """Not significant: too much spread, or too few captures."""
    APPEARED = "appeared"
    """It was not there before."""
    VANISHED = "vanished"
    NOT_COMPARABLE = "not comparable"
    """Times of one side have the profiler's overhead: a difference is no change."""


class Basis(enum.Enum):
    """Samples of the interval of a change."""

    REPEATS = "repeats"
    """Several captures per side: run-to-run variation is measured."""
    STEPS = "steps"
    """One capture per side: only step-to-step variation is measured."""
    NONE = "none"
    """Single values: their variance is unknown."""


@dataclass(frozen=True, slots=True)
class MeasuredChange:
    """One quantity before and after; None where a side lacks it."""

    before: float | None
    after: float | None
    low: float | None
    """Lower end of the interval of the difference."""
    high: float | None
    verdict: ChangeVerdict
    basis: Basis

    @property
    def delta(self) -> float | None:
        """What was added; negative where it fell."""
        if self.before is None or self.after is None:
            return None
        return self.after - self.before

    @property
    def ratio(self) -> float | None:
        """The difference as a share of the value before."""
        return self.delta / self.before if self.delta is not None and self.before else None

    @property
    def significant(self) -> bool:
        """Whether the change is significant."""
        return self.verdict not in _NOT_SIGNIFICANT

    def document(self) -> dict[str, Any]:
        """Return it as plain objects, for JSON."""
        return {
            "before": self.before,
            "after": self.after,
            "change": self.delta,
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
            "verdict": self.verdict.value,
            "basis": self.basis.value,
        }


_NOT_SIGNIFICANT = (ChangeVerdict.SAME, ChangeVerdict.UNCLEAR, ChangeVerdict.NOT_COMPARABLE)
_MAX_PERMUTATIONS = 2000
"""Permutations of the labels that are tried: all where there are no more."""
_SEED = 20240607
_ROWS = 1000
"""Rows at a time, so that memory stays small."""


def permutation_interval(
    values: Reals, weights: Reals, before: int, confidence: float
) -> tuple[Reals, Reals]:
    """Compute the ends of the interval of what was added, for each row of `values`.

    The first `before` columns are the one side. Where even the most extreme
    permutation is not rare enough, the interval is the widest that permutations allow.
    """
    permutations, count = _permutations(before, values.shape[1] - before)
    added = np.arange(values.shape[1]) >= before
    shares, true_shares = _shares(permutations, weights), _shares(added[None, :], weights)
    scale = 1 - shares @ added
    # A permutation is at least as extreme as the true one for any d beyond this.
    limits = ((true_shares - shares) / scale[:, None]).T
    rank = max(1, math.floor(count * (1 - confidence) / 2))
    low, high = [], []
    for first in range(0, max(len(values), 1), _ROWS):
        # The smallest and the largest of each row, less those that are rare enough.
        ordered = np.partition(values[first : first + _ROWS] @ limits, (rank - 1, -rank), axis=1)
        low.append(ordered[:, rank - 1])
        high.append(ordered[:, -rank])
    return np.concatenate(low), np.concatenate(high)


def _shares(later: Flags, weights: Reals) -> Reals:
    """Compute what each value adds to the difference of the sides' means, for each permutation."""
    later_weights, earlier_weights = later * weights, ~later * weights
    shares: Reals = later_weights / later_weights.sum(
        axis=1, keepdims=True
    ) - earlier_weights / earlier_weights.sum(axis=1, keepdims=True)
    return shares


@lru_cache(maxsize=64)
def _permutations(before: int, after: int) -> tuple[Flags, int]:
    """List the values of the later side in each permutation but the true one; count all."""
    if before > after:
        mirrored, count = _permutations(after, before)
        return ~np.roll(mirrored, before, axis=1), count
    total = before + after
    if math.comb(total, after) <= _MAX_PERMUTATIONS:
        chosen = np.array(list(combinations(range(total), after)))
        later = np.zeros((len(chosen), total), np.bool_)
        np.put_along_axis(later, chosen, values=True, axis=1)
    else:  # at random, the same on every machine: raw bits of a generator never change
        bits = np.random.PCG64(_SEED).random_raw(_MAX_PERMUTATIONS * total).reshape(-1, total)
        later = bits.argsort(axis=1, kind="stable") >= before
        if before == after:
            # Each permutation also with the sides exchanged, so that neither side is preferred.
            half = later[: _MAX_PERMUTATIONS // 2]
            later = np.concatenate([half, ~np.roll(half, before, axis=1)])
    others = later[(later != (np.arange(total) >= before)).any(axis=1)]
    return others, len(others) + 1


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)
_HALVINGS = 52
_NORMAL_FREEDOM = 1e5
"""From here on it is the normal distribution, to six digits."""
_MAX_DEVIATIONS = 12.0
"""Standard deviations that cover all of it, for many degrees of freedom."""


def t_quantile(confidence: float, freedom: Reals) -> Reals:
    """Compute the t that |t| stays below with probability `confidence`; `freedom` is 1 or more."""
    distinct, position = np.unique(
        np.ravel(np.clip(freedom, 1.0, _NORMAL_FREEDOM)), return_inverse=True
    )
    low = np.zeros_like(distinct)
    high = np.minimum(np.pi / 2, _MAX_DEVIATIONS / np.sqrt(distinct))
    # The integral of the density from 0 to infinity.
    gammas = [math.lgamma(degrees / 2) - math.lgamma((degrees + 1) / 2) for degrees in distinct]
    target = confidence * np.array([math.sqrt(math.pi) / 2 * math.exp(gamma) for gamma in gammas])
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        half = middle[:, None] / 2
        values = np.cos(half * (1 + _NODES)) ** (distinct[:, None] - 1)
        less = (values * _WEIGHTS).sum(axis=1) * half[:, 0] < target
        low, high = np.where(less, middle, low), np.where(less, high, middle)
    quantile: Reals = np.sqrt(distinct) * np.tan(low)
    return quantile[position].reshape(np.shape(freedom))


CONFIDENCE = 0.95
MIN_CONFIDENCE = 0.5
MIN_EFFECT = 0.02
"""Smaller changes count as none by default."""
MIN_REPEATS = 3
"""Captures per side to request where fewer do not show how much runs differ."""
MAX_REPEATS = 100
"""Captures per side above which no estimate is given."""
_MIN_BLOCKS = 8
"""Blocks from which on autocorrelation can be measured."""
_MAX_CORRELATION = 0.9
"""Few values can correlate by chance; without a bound every change would be hidden."""
_EQUAL = 1e-12
"""Part of a value that is nothing but rounding."""


@dataclass(frozen=True, slots=True)
class SampledChange:
    """Quantities of one capture, each as its mean per step in blocks of consecutive steps."""

    blocks: tuple[int, ...]
    """Steps in each block."""
    values: Reals
    """A row for each quantity, a column for each block; all finite."""
    errors: Reals | None = None
    """Standard error of each mean that blocks do not show: of the step time without the profiler,
    to which the blocks were scaled. None for 0."""

    @property
    def means(self) -> Reals:
        """Means over all steps, one for each row."""
        return _mean(self.values, np.array(self.blocks, np.float64))


def compare_series(
    before: Sequence[SampledChange],
    after: Sequence[SampledChange],
    *,
    confidence: float = CONFIDENCE,
    least: float = MIN_EFFECT,
) -> list[MeasuredChange]:
    """Compute the changes, row by row; captures have equal weight, whatever their steps."""
    basis = Basis.NONE
    if len(before) > 1 or len(after) > 1:
        basis = Basis.REPEATS
    elif len(before[0].blocks) > 1 or len(after[0].blocks) > 1:
        basis = Basis.STEPS
    old, new = _units(before, basis), _units(after, basis)
    ends = None
    if basis is not Basis.NONE:
        # Scaled, so that squares of large values stay finite.
        largest = np.maximum(np.abs(old.values).max(axis=1), np.abs(new.values).max(axis=1))
        scale = np.where(largest > 0, largest, 1.0)
        low, high = _interval(old.scaled(scale), new.scaled(scale), confidence)
        # Errors that samples do not show. Repeats differ by them too, so that only a shorter
        # interval grows; steps of one capture do not.
        error = np.hypot(_error_of_mean(before), _error_of_mean(after))
        half = _half(error**2, int(_NORMAL_FREEDOM), confidence)
        join = np.maximum if basis is Basis.REPEATS else np.hypot
        delta = new.means - old.means
        below, above = (np.abs(end * scale - delta) for end in (low, high))
        ends = delta - join(below, half), delta + join(above, half)
    verdicts = _verdicts(old, new, ends, least)
    unknown: list[float | None] = [None] * len(verdicts)
    lows, highs = (unknown, unknown) if ends is None else (end.tolist() for end in ends)
    rows = zip(old.means.tolist(), new.means.tolist(), lows, highs, verdicts, strict=True)
    return [MeasuredChange(*row, basis) for row in rows]


def compare_values(
    before: Sequence[float],
    after: Sequence[float],
    *,
    confidence: float = CONFIDENCE,
    least: float = MIN_EFFECT,
) -> MeasuredChange:
    """Compute the change of a quantity that a capture has one value of."""
    old, new = (
        [SampledChange((1,), np.array([[v]], np.float64)) for v in s] for s in (before, after)
    )
    return compare_series(old, new, confidence=confidence, least=least)[0]


def repeats_to_settle(
    change: MeasuredChange, bound: float, captures: Sequence[int], confidence: float
) -> int | None:
    """Estimate how many captures per side move the interval of a change off a bound of it.

    The bound of `gate` is its limit, that of `compare` 0 or its threshold. The interval was
    measured with so many `captures` of each side. Where it is of the steps of one run, runs are
    taken to differ as much as it shows. None above `MAX_REPEATS`.
    """
    if change.delta is None or change.low is None or change.high is None:
        return MIN_REPEATS
    distance = abs(change.delta - bound)
    half = change.delta - change.low if change.delta > bound else change.high - change.delta
    if not math.isfinite(half) or distance <= 0:
        return None
    sides = len(captures)
    count = sides / sum(1 / number for number in captures)
    freedom = (
        float(max(sum(captures) - sides, 1)) if change.basis is Basis.REPEATS else _NORMAL_FREEDOM
    )
    repeats = np.arange(MIN_REPEATS, MAX_REPEATS + 1, dtype=np.float64)
    quantiles = t_quantile(confidence, np.append(sides * (repeats - 1), freedom))
    halves = half * quantiles[:-1] / quantiles[-1] * np.sqrt(count / repeats)
    enough = repeats[(halves < distance) & (repeats > max(captures))]
    return int(enough[0]) if len(enough) else None


@dataclass(frozen=True, slots=True)
class _Units:
    """One side: values that vary independently, or nearly."""

    values: Reals
    """A row for each quantity, a column for each unit."""
    weights: Reals
    inflation: Reals
    """What autocorrelation makes of the variance of a mean, for each row; 1 or more."""
    steps: _Units | None = None
    """What a single capture is the mean of."""

    @property
    def count(self) -> int:
        return len(self.weights)

    @property
    def means(self) -> Reals:
        return _mean(self.values, self.weights)

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the variance."""
        return max(self.count - 1, 1)

    @property
    def variance(self) -> Reals:
        """Variance of a unit of weight 1, for each row; 0 where there is one unit only."""
        deviations = (self.values - self.means[:, None]) ** 2
        variance: Reals = deviations @ self.weights / self.freedom * self.inflation
        return variance

    @property
    def spread(self) -> Reals:
        """Variance of the mean, for each row."""
        spread: Reals = self.variance / self.weights.sum()
        return spread

    def scaled(self, scale: Reals) -> _Units:
        """Divide the values of each row."""
        steps = self.steps and self.steps.scaled(scale)
        return replace(self, values=self.values / scale[:, None], steps=steps)


def _mean(values: Reals, weights: Reals) -> Reals:
    mean: Reals = values @ (weights / weights.sum())
    return mean


def _units(side: Sequence[SampledChange], basis: Basis) -> _Units:
    """Take captures as units, in an order that does not depend on the one given, or blocks."""
    values = side[0].values
    steps = _Units(values, np.array(side[0].blocks, np.float64), _variance_inflation(values))
    if basis is not Basis.REPEATS:
        return steps
    means = np.sort(np.stack([capture.means for capture in side], axis=1), axis=1)
    alone = steps if len(side) == 1 and steps.count > 1 else None
    return _Units(means, np.ones(len(side)), np.ones(len(means)), alone)


def _variance_inflation(values: Reals) -> Reals:
    """Estimate by how much autocorrelation widens the variance of a mean, by AR(1).

    The autocorrelation r of n values is too small by about (1 + 4r) / n. Values
    that alternate would narrow an interval; that they go on to do so is not known.
    """
    count = values.shape[1]
    if count < _MIN_BLOCKS:
        return np.ones(len(values))
    largest = np.abs(values).max(axis=1, keepdims=True)
    deviations = (values - values.mean(axis=1, keepdims=True)) / np.where(largest > 0, largest, 1.0)
    total = (deviations**2).sum(axis=1)
    lagged = (deviations[:, 1:] * deviations[:, :-1]).sum(axis=1)
    correlation = np.divide(lagged, total, out=np.zeros_like(total), where=total > 0)
    corrected = np.clip((correlation * count + 1) / (count - 4), 0.0, _MAX_CORRELATION)
    inflation: Reals = (1 + corrected) / (1 - corrected)
    return inflation


def _error_of_mean(side: Sequence[SampledChange]) -> Reals:
    """Combine the errors of captures to that of their mean, for each row."""
    zero = np.zeros(len(side[0].values))
    errors = [zero if capture.errors is None else capture.errors for capture in side]
    combined: Reals = np.sqrt(np.sum(np.square(errors), axis=0)) / len(side)
    return combined


def _interval(before: _Units, after: _Units, confidence: float) -> Ends:
    """Compute the wider of both intervals at either end, of no width where nothing varies."""
    values = np.concatenate([before.values, after.values], axis=1)
    weights = np.concatenate([before.weights, after.weights])
    low, high = permutation_interval(values, weights, before.count, confidence)
    delta = after.means - before.means
    # Autocorrelation makes the interval of permutations wider.
    plain = before.spread / before.inflation + after.spread / after.inflation
    total = before.spread + after.spread
    wider = np.sqrt(np.divide(total, plain, out=np.ones_like(plain), where=plain > 0))
    half = _half_width(before, after, confidence)
    low = np.minimum(delta - half, delta + (low - delta) * wider)
    high = np.maximum(delta + half, delta + (high - delta) * wider)
    varies = high - low > _EQUAL
    return np.where(varies, low, delta), np.where(varies, high, delta)


def _half_width(before: _Units, after: _Units, confidence: float) -> Reals:
    """Compute half of Welch's interval.

    A single unit is taken to vary as those of the other side, or as its own steps if that is more:
    a slow step that only the single capture has would else pass for a change.
    """
    if before.count > 1 and after.count > 1:
        total = before.spread + after.spread
        below = before.spread**2 / before.freedom + after.spread**2 / after.freedom
        freedom = np.divide(total**2, below, out=np.ones_like(below), where=below > 0)
        return _half(total, freedom, confidence)
    single, several = (before, after) if before.count == 1 else (after, before)
    spread = several.variance / single.weights.sum() + several.spread
    half = _half(spread, several.freedom, confidence)
    if single.steps is None:
        return half
    return np.maximum(half, _half(single.steps.spread, single.steps.freedom, confidence))


def _half(spread: Reals, freedom: Reals | int, confidence: float) -> Reals:
    half: Reals = t_quantile(confidence, np.asarray(freedom, np.float64)) * np.sqrt(spread)
    return half


def _verdicts(
    before: _Units, after: _Units, ends: Ends | None, least: float
) -> list[ChangeVerdict]:
    """Evaluate each row. Without an interval the difference counts as certain."""
    delta = after.means - before.means
    low, high = (delta, delta) if ends is None else ends
    rounding = _EQUAL * np.maximum(np.abs(before.means), np.abs(after.means))
    needed = least * np.abs(before.means)
    certain = (low > rounding) | (high < -rounding)
    was, is_now = before.values.any(axis=1), after.values.any(axis=1)
    cases = {
        ChangeVerdict.SAME: ~was & ~is_now,
        ChangeVerdict.APPEARED: ~was & (certain | after.values.all(axis=1)),
        ChangeVerdict.VANISHED: ~is_now & (certain | before.values.all(axis=1)),
        ChangeVerdict.HIGHER: was & certain & (delta >= needed - rounding),
        ChangeVerdict.LOWER: is_now & certain & (delta <= rounding - needed),
        ChangeVerdict.UNCLEAR: (low < -needed - rounding) | (high > needed + rounding),
    }
    names = list(cases)
    chosen = np.select(
        list(cases.values()), list(range(len(names))), names.index(ChangeVerdict.SAME)
    )
    return [names[i] for i in chosen]
