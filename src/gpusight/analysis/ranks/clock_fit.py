"""The difference of two clocks over time: offset, drift and jumps, by a robust fit.

The model is `difference = offset + drift * time + jumps + notice * side`. `side` is the rank that a
sample favors (+1, 0, -1); the fit separates that bias from the offset where both sides occur.
Single wild samples do not move the fit, and its uncertainty comes from the residuals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

Floats: TypeAlias = npt.NDArray[np.float64]

MIN_SAMPLES = 6
_MIN_SIDE = 3
"""Samples of a side that are needed to separate the bias from the offset."""
_MIN_SEGMENT = 4
"""Samples between two jumps: fewer are outliers."""
_NOISE_FLOOR_NS = 10.0
_HUBER, _TUKEY = 1.345, 4.685
"""Usual constants: 95% of the efficiency of least squares on normal noise."""
_JUMP_SCORE, _JUMP_ERRORS, _MIN_JUMP_NS = 5.0, 5.0, 500.0
_KNOT_SAMPLES = 60
"""Samples that each piece of a changing drift needs."""
_MAX_PASSES = 4
_USUAL_DRIFT = 1e-4
"""Standard deviation that is assumed of a drift: oscillators differ by tens of ppm. It matters only
where noise over a short capture would otherwise look like an impossible drift."""


@dataclass(frozen=True, slots=True)
class ClockFit:
    """A fitted difference of two clocks; times are those of the samples."""

    center: float
    scale: float
    jump_times: Floats
    knots: Floats
    coefficients: Floats
    covariance: Floats
    freedom: int
    has_side: bool
    noise_ns: float
    cost: float
    windows: Floats
    """Where windows of equally many samples begin."""
    misfit_ns: Floats
    """By how much the samples of each window differ from the model beyond their noise."""

    def design(self, times: Floats, side: Floats | None = None) -> Floats:
        """Return the columns of the model at these times."""
        x = (times - self.center) / self.scale
        columns = [np.ones_like(x), x]
        columns += [(times >= jump).astype(np.float64) for jump in self.jump_times]
        columns += [np.maximum(x - knot, 0) for knot in self.knots]
        if self.has_side:
            columns.append(np.zeros_like(x) if side is None else side)
        return np.stack(columns, axis=1)

    def at(self, times: Floats) -> Floats:
        """Return the difference at these times, without the bias of a side."""
        difference: Floats = self.design(times) @ self.coefficients
        return difference

    def error_at(self, times: Floats) -> Floats:
        """Return the half-width of the 95% interval at these times, of noise and misfit."""
        design = self.design(times)
        variance = np.einsum("ij,jk,ik->i", design, self.covariance, design)
        window = np.maximum(np.searchsorted(self.windows, times, side="right") - 1, 0)
        noise: Floats = t_quantile(self.freedom) * np.sqrt(np.maximum(variance, 0))
        return self.misfit_ns[window] + noise

    @property
    def drift(self) -> float:
        """Mean drift over the samples, without unit."""
        hinges = self.coefficients[2 + len(self.jump_times) :][: len(self.knots)]
        # A hinge at knot k acts on the part (1 - k) of the range from -1 to 1.
        mean = self.coefficients[1] + float(np.sum(hinges * (1 - self.knots) / 2))
        return float(mean / self.scale)

    @property
    def notice_ns(self) -> float:
        """Bias of a side; 0 where the samples do not show it."""
        return float(self.coefficients[-1]) if self.has_side else 0.0

    def jumps(self) -> list[tuple[float, float, float]]:
        """Return time, size and error (95%) of each jump."""
        errors = t_quantile(self.freedom) * np.sqrt(np.maximum(np.diag(self.covariance), 0))
        places = range(2, 2 + len(self.jump_times))
        return [
            (float(time), float(self.coefficients[place]), float(errors[place]))
            for time, place in zip(self.jump_times, places, strict=True)
        ]


def t_quantile(freedom: int) -> float:
    """Return the 97.5% quantile of Student's t distribution, to 1% (Cornish-Fisher)."""
    z, f = 1.959964, max(freedom, 2)
    cubic = (z**3 + z) / 4
    fifth = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return float(z + cubic / f + fifth / f**2 + 2.0 / f**3)


def sides_differ(side: Floats) -> bool:
    """Return whether samples of different sides occur, so that their bias can be separated."""
    counts = [int(np.sum(side == value)) for value in (-1.0, 0.0, 1.0)]
    return sum(count >= _MIN_SIDE for count in counts) >= 2


def fit_clock(times: Floats, differences: Floats, side: Floats) -> ClockFit:
    """Fit samples that are sorted by time; at least `MIN_SAMPLES` of them."""
    samples = _ClockSamples(times, differences, side, sides_differ(side))
    bias = _first_bias(samples)
    residual = differences - bias * side
    residual = residual - _first_drift(times, residual) * (times - times[0])
    jumps = _found_jumps(residual, [])
    fit = _robust_fit(samples, jumps)
    for _ in range(_MAX_PASSES if jumps else 1):
        kept = _placed_jumps(fit, samples, _significant(fit, times))
        new_jumps = _found_jumps(differences - fit.at(times) - fit.notice_ns * side, kept)
        if new_jumps == jumps:
            break
        jumps = new_jumps
        fit = _robust_fit(samples, jumps)
    significant = _significant(fit, times)
    if significant != jumps:
        jumps = significant
        fit = _robust_fit(samples, jumps)
    fit = _with_knots(fit, samples)
    if fit.knots.size and _significant(fit, times) != jumps:
        # A drift that changes looks like jumps, until it may change.
        fit = _with_knots(_robust_fit(samples, _significant(fit, times)), samples)
    bent = _with_knots(_robust_fit(samples, []), samples) if jumps else fit
    chosen = fit if _explains_more(fit, bent, len(times)) else bent
    residual = differences - chosen.at(times) - chosen.notice_ns * side
    windows, misfit_ns = _misfit(times, residual, chosen.noise_ns)
    return replace(chosen, windows=windows, misfit_ns=misfit_ns)


@dataclass(frozen=True, slots=True)
class _ClockSamples:
    times: Floats
    differences: Floats
    side: Floats
    has_side: bool


def _first_bias(samples: _ClockSamples) -> float:
    """Estimate the bias from neighbors of different sides: drift and jumps hardly matter there."""
    change = np.diff(samples.side)
    if not samples.has_side or not change.any():
        return 0.0
    return float(np.median(np.diff(samples.differences)[change != 0] / change[change != 0]))


def _first_drift(times: Floats, values: Floats) -> float:
    """Estimate the drift as a median of slopes over spans so short that few contain a jump."""
    lag = max(1, len(times) // 8)
    span = times[lag:] - times[:-lag]
    usable = span > 0
    if not usable.any():
        return 0.0
    return float(np.median((values[lag:] - values[:-lag])[usable] / span[usable]))


def _found_jumps(residual: Floats, known: list[int]) -> list[int]:
    """Search each part between known jumps for further ones: where two medians differ most."""
    noise = max(_spread(np.diff(residual)) / np.sqrt(2), _NOISE_FLOOR_NS)
    jumps = sorted(known)
    waiting = list(zip([0, *jumps], [*jumps, len(residual)], strict=True))
    while waiting:
        begin, end = waiting.pop()
        own = residual[begin:end]
        n = len(own)
        if n < 2 * _MIN_SEGMENT:
            continue
        clipped = np.clip((own - _median(own)) / noise, -3, 3)
        clipped -= clipped.mean()
        k = np.arange(1, n)
        spread = max(float(clipped.std()), 0.5)
        score = np.abs(np.cumsum(clipped)[:-1]) / np.sqrt(k * (n - k) / n) / spread
        score[: _MIN_SEGMENT - 1] = score[n - _MIN_SEGMENT :] = 0
        best = int(np.argmax(score))
        if score[best] < _JUMP_SCORE:
            continue
        split = begin + best + 1
        jumps.append(split)
        waiting += [(begin, split), (split, end)]
    return sorted(jumps)


def _significant(fit: ClockFit, times: Floats) -> list[int]:
    """Return the samples at which jumps happen that are larger than their error explains."""
    errors = np.sqrt(np.maximum(np.diag(fit.covariance), 0))
    kept = []
    for number, time in enumerate(fit.jump_times):
        size, error = abs(fit.coefficients[2 + number]), errors[2 + number]
        if size > max(_JUMP_ERRORS * error, _MIN_JUMP_NS):
            kept.append(int(np.searchsorted(times, time)))
    return kept


def _placed_jumps(fit: ClockFit, samples: _ClockSamples, jumps: list[int]) -> list[int]:
    """Move each jump to where it explains most: every sample fits one of its sides better."""
    if not jumps:
        return jumps
    edges = [0, *(int(np.searchsorted(samples.times, time)) for time in fit.jump_times)]
    edges.append(len(samples.times))
    residual = samples.differences - fit.at(samples.times) - fit.notice_ns * samples.side
    placed = []
    for number, jump in enumerate(edges[1:-1]):
        if jump not in jumps:
            continue
        begin, end = edges[number] + _MIN_SEGMENT, edges[number + 2] - _MIN_SEGMENT
        size = fit.coefficients[2 + number]
        own = residual[begin:end] + size * (np.arange(begin, end) >= jump)
        limit = 4 * fit.noise_ns
        before, after = (np.minimum(np.abs(own - moved), limit) for moved in (0.0, size))
        gain = np.concatenate(([0.0], np.cumsum(before - after)))
        placed.append(begin + int(np.argmin(gain)) if end > begin else jump)
    return sorted(set(placed))


def _with_knots(fit: ClockFit, samples: _ClockSamples) -> ClockFit:
    """Let the drift change, where that explains clearly more: 2, 4 or 8 pieces."""
    jumps = [int(np.searchsorted(samples.times, time)) for time in fit.jump_times]
    best, count = fit, len(samples.times)
    for pieces in (2, 4, 8):
        if count < pieces * _KNOT_SAMPLES:
            break
        bent = _robust_fit(samples, jumps, [2 * n / pieces - 1 for n in range(1, pieces)])
        if not _explains_more(bent, best, count):
            break
        best = bent
    return best


def _explains_more(fit: ClockFit, simpler: ClockFit, count: int) -> bool:
    """Return whether a model with more parameters is worth them (Bayesian information)."""
    added = len(fit.coefficients) - len(simpler.coefficients)
    return bool(count * np.log(simpler.cost / fit.cost) > 4 * np.log(count) * max(added, 0))


def _robust_fit(samples: _ClockSamples, jumps: list[int], knots: Sequence[float] = ()) -> ClockFit:
    """Fit by iteratively reweighted least squares: Huber's weights first, then Tukey's."""
    times = samples.times
    half = max(float(times[-1] - times[0]) / 2, 1.0)
    empty = np.zeros(0)
    model = ClockFit(
        center=float(times[0] + half),
        scale=half,
        jump_times=times[jumps].astype(np.float64),
        knots=np.array(knots, np.float64),
        coefficients=empty,
        covariance=empty,
        freedom=1,
        has_side=samples.has_side,
        noise_ns=0.0,
        cost=0.0,
        windows=empty,
        misfit_ns=empty,
    )
    design = model.design(times, samples.side)
    base = _median(samples.differences)  # small numbers keep the equations exact
    values = samples.differences - base
    weights, fitted, noise = np.ones(len(times)), np.zeros(len(times)), 0.0
    coefficients = np.zeros(design.shape[1])
    usual = np.zeros((design.shape[1], design.shape[1]))
    usual[1, 1] = 1 / (_USUAL_DRIFT * half) ** 2
    for constant, rounds in ((_HUBER, 30), (_TUKEY, 10)):
        for _ in range(rounds):
            weighted = design.T * weights
            coefficients = _solved(weighted @ design + noise**2 * usual, weighted @ values)
            previous, fitted = fitted, design @ coefficients
            residual = values - fitted
            if constant == _HUBER:
                noise = max(1.4826 * _median(np.abs(residual)), _NOISE_FLOOR_NS)
            ratio = np.abs(residual) / (constant * noise)
            if constant == _HUBER:
                weights = 1 / np.maximum(ratio, 1)
            else:
                weights = (1 - np.minimum(ratio, 1) ** 2) ** 2
            if float(np.max(np.abs(fitted - previous))) < 0.02 * noise:
                break
    freedom = max(1, round(float(np.sum(weights > 0.1))) - design.shape[1])
    covariance = _covariance(design, values - fitted, weights, noise, freedom, usual)
    cost = float(np.mean(np.minimum(np.abs(values - fitted), 3 * noise) ** 2))
    coefficients[0] += base
    return replace(
        model,
        coefficients=coefficients,
        covariance=covariance,
        freedom=freedom,
        noise_ns=noise,
        cost=max(cost, 1e-9),
    )


def _solved(matrix: Floats, right: Floats) -> Floats:
    """Solve the normal equations; where columns depend on each other, the smallest solution."""
    try:
        return np.asarray(np.linalg.solve(matrix, right), np.float64)
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.pinv(matrix) @ right, np.float64)


def _covariance(
    design: Floats,
    residual: Floats,
    weights: Floats,
    noise: float,
    freedom: int,
    usual: Floats,
) -> Floats:
    """Return the larger one of two estimates, wider where neighboring residuals are alike."""
    information = np.linalg.pinv(design.T @ (design * weights[:, None]) + noise**2 * usual)
    influence = design * (weights * np.clip(residual, -4 * noise, 4 * noise))[:, None]
    influence *= np.sqrt(len(residual) / freedom)
    sandwich = information @ (influence.T @ influence) @ information
    plain = information * noise**2 * max(1.0, len(residual) / max(weights.sum(), 1.0))
    clipped = np.clip(residual / noise, -3, 3)
    alike = float(np.mean(clipped[1:] * clipped[:-1]) / max(float(np.mean(clipped**2)), 1e-9))
    alike = min(max(alike, 0.0), 0.9)
    larger = plain if np.trace(plain) > np.trace(sandwich) else sandwich
    # Of few samples, noise and weights are uncertain themselves.
    covariance: Floats = larger * (1 + alike) / (1 - alike) * (1 + 4 / freedom)
    return covariance


def _misfit(times: Floats, residual: Floats, noise: float) -> tuple[Floats, Floats]:
    """Compare medians of windows with what noise explains: a drift may change as no model does."""
    size = max(10, len(residual) // 16)
    count = max(len(residual) // size, 1)
    begins = np.arange(count) * size
    parts = np.split(residual, begins[1:])
    medians = np.array([abs(_median(part)) for part in parts])
    explained = np.array([3 * 1.2533 * noise / np.sqrt(len(part)) for part in parts])
    return times[begins], np.maximum(medians - explained, 0.0)


def _spread(values: Floats) -> float:
    """Return the standard deviation of the bulk, from the median absolute deviation."""
    if not len(values):
        return 0.0
    return 1.4826 * _median(np.abs(values - _median(values)))


def _median(values: Floats) -> float:
    """Return the upper median, at a third of what NumPy's takes on few values."""
    middle = len(values) // 2
    return float(np.partition(values, middle)[middle])
