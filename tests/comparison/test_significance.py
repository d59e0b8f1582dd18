"""Claims: what is known to have changed, or not; how often chance alone makes one."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.claims import claimed, claimed_over_steps, side
from gpusight.comparison.significance import (
    Basis,
    ChangeVerdict,
    MeasuredChange,
    SampledChange,
    compare_series,
    compare_values,
    permutation_interval,
    t_quantile,
)

Floats: TypeAlias = "NDArray[np.float64]"

DRAWS = 1000
BOUND = 0.07
"""5%, and three standard deviations of what a thousand draws can show of it."""

# Step times of repeats without and with TF32 on a shared machine, in ms: nothing can be claimed.
PLAIN = [[15.59, 13.67, 12.8], [19.38, 15.6, 18.04], [19.9, 18.27, 19.84]]
TF32 = [[19.49, 19.16, 17.93], [20.83, 18.09, 21.36], [19.32, 27.33, 15.2]]
# Durations of their kernels: 1.7 ms less, whatever the steps did meanwhile.
PLAIN_KERNELS = [[4.103, 4.1, 4.101], [4.095, 4.088, 4.105], [4.107, 4.111, 4.09]]
TF32_KERNELS = [[2.407, 2.406, 2.402], [2.391, 2.394, 2.398], [2.405, 2.405, 2.404]]


def captures(
    steps: list[list[float]], *, scale: float = 1.0, shift: float = 0.0
) -> list[SampledChange]:
    """Make captures of one quantity, a block a step."""
    return [SampledChange((1,) * len(step), np.array([step]) * scale + shift) for step in steps]


def change(
    before: list[list[float]], after: list[list[float]], *, least: float = 0.02
) -> MeasuredChange:
    return compare_series(captures(before), captures(after), least=least)[0]


def test_repeats_that_differ_more_than_the_change_claim_nothing() -> None:
    result = change(PLAIN, TF32)
    assert result.verdict is ChangeVerdict.UNCLEAR
    assert result.basis is Basis.REPEATS
    assert result.before == pytest.approx(17.01)
    assert result.after == pytest.approx(19.857, abs=1e-3)
    assert result.low is not None
    assert result.low < 0 < result.delta  # type: ignore[operator]


def test_a_change_larger_than_any_difference_of_repeats_is_claimed() -> None:
    result = change(PLAIN_KERNELS, TF32_KERNELS)
    assert result.verdict is ChangeVerdict.LOWER
    assert result.low is not None
    assert result.high is not None
    assert -1.72 < result.low < -1.6988 < result.high < -1.68


@pytest.mark.parametrize(
    ("before", "after", "least", "verdict", "basis"),
    [
        ([[10.0]], [[9.0]], 0.02, ChangeVerdict.LOWER, Basis.NONE),
        ([[10.0]], [[9.9]], 0.02, ChangeVerdict.SAME, Basis.NONE),
        ([[10.0]], [[10.2]], 0.02, ChangeVerdict.HIGHER, Basis.NONE),
        ([[0.0]], [[0.0]], 0.02, ChangeVerdict.SAME, Basis.NONE),
        ([[0.0]], [[5.0]], 0.02, ChangeVerdict.APPEARED, Basis.NONE),
        ([[5.0]], [[0.0]], 0.02, ChangeVerdict.VANISHED, Basis.NONE),
        # Counts that never vary: the interval has no width.
        ([[600.0] * 3], [[600.0] * 3], 0.0, ChangeVerdict.SAME, Basis.STEPS),
        ([[600.0] * 3], [[601.0] * 3], 0.0, ChangeVerdict.HIGHER, Basis.STEPS),
        ([[600.0] * 3], [[601.0] * 3], 0.02, ChangeVerdict.SAME, Basis.STEPS),
        ([[0.1] * 3] * 3, [[0.1] * 7] * 2, 0.0, ChangeVerdict.SAME, Basis.REPEATS),
        ([[600.0] * 3] * 2, [[300.0] * 3], 0.02, ChangeVerdict.LOWER, Basis.REPEATS),
        # There at every step, or only now and then.
        ([[0.0] * 3], [[1.0, 7.0, 2.0]], 0.02, ChangeVerdict.APPEARED, Basis.STEPS),
        ([[0.0] * 3], [[0.0, 7.0, 0.0]], 0.02, ChangeVerdict.UNCLEAR, Basis.STEPS),
        ([[0.0, 7.0, 0.0]], [[0.0] * 3], 0.02, ChangeVerdict.UNCLEAR, Basis.STEPS),
        ([[0.0]] * 3, [[0.0], [4.0], [9.0]], 0.02, ChangeVerdict.UNCLEAR, Basis.REPEATS),
        ([[0.0]] * 3, [[1.0], [4.0], [9.0]], 0.02, ChangeVerdict.APPEARED, Basis.REPEATS),
        ([[0.0] * 50], [[0.0, 0.0, 1.0, 0.0, 1.0] * 10], 0.02, ChangeVerdict.APPEARED, Basis.STEPS),
        ([[0.0, 0.0, 1.0, 0.0, 1.0] * 10], [[0.0] * 50], 0.02, ChangeVerdict.VANISHED, Basis.STEPS),
    ],
)
def test_verdicts(
    before: list[list[float]],
    after: list[list[float]],
    least: float,
    verdict: ChangeVerdict,
    basis: Basis,
) -> None:
    result = change(before, after, least=least)
    assert (result.verdict, result.basis) == (verdict, basis)
    assert (result.low is None) == (basis is Basis.NONE)


def test_steps_that_agree_show_that_nothing_changed() -> None:
    steps = [10.0, 10.05, 9.98, 10.02]
    assert change([steps], [steps[::-1]]).verdict is ChangeVerdict.SAME
    assert change([steps], [steps[::-1]], least=0.001).verdict is ChangeVerdict.UNCLEAR


def test_a_change_that_is_certain_but_small_is_not_claimed() -> None:
    result = change([[100.0, 100.1, 99.9, 100.0]], [[101.0, 101.1, 100.9, 101.0]])
    assert result.low is not None
    assert result.low > 0
    assert result.verdict is ChangeVerdict.SAME


def test_no_width_where_nothing_varies() -> None:
    result = change([[0.3] * 3] * 3, [[0.1] * 5] * 2)
    assert result.low == result.high == result.delta


def test_blocks_count_by_their_steps_and_captures_alike() -> None:
    blocks = [
        SampledChange((9, 1), np.array([[10.0, 20.0]])),
        SampledChange((1,), np.array([[31.0]])),
    ]
    (result,) = compare_series(blocks, blocks)
    assert result.before == pytest.approx((11 + 31) / 2)


def test_one_capture_against_repeats_varies_as_they_do() -> None:
    repeats = [[10.0], [11.0], [12.0]]
    assert change([[14.0]], repeats).verdict is ChangeVerdict.UNCLEAR
    far = change([[20.0]], repeats)
    assert (far.verdict, far.basis) == (ChangeVerdict.LOWER, Basis.REPEATS)
    # Two degrees of freedom: 4.303 standard deviations of 1 * sqrt(1 + 1/3).
    assert far.high == pytest.approx(-9 + 4.3027 * np.sqrt(4 / 3), abs=1e-3)


def test_a_slow_step_of_the_single_capture_is_no_change() -> None:
    repeats = [[10.0, 10.1, 9.9], [10.1, 10.0, 10.0], [9.9, 10.1, 10.0]]
    assert change([[10.0, 10.1, 16.0]], repeats).verdict is ChangeVerdict.UNCLEAR


def test_errors_that_steps_do_not_show_widen_the_interval() -> None:
    steps = ([[10.0, 10.1, 9.9, 10.0]], [[12.0, 12.1, 11.9, 12.0]])
    plain = change(*steps)
    before, after = (captures(side)[0] for side in steps)
    assert plain.low is not None
    assert plain.high is not None
    verdicts = []
    for error in (0.0, 0.1, 1.5):
        uncertain = replace(after, errors=np.array([error]))
        (wider,) = compare_series([before], [uncertain])
        assert wider.low is not None
        half, own = 2.0 - wider.low, 2.0 - plain.low
        assert half == pytest.approx(np.hypot(own, 1.96 * error), rel=1e-3)
        verdicts.append(wider.verdict)
    assert verdicts == [ChangeVerdict.HIGHER, ChangeVerdict.HIGHER, ChangeVerdict.UNCLEAR]
    # Repeats differ by such errors too: only an interval that is shorter grows.
    repeats = [captures([[10.0 + n]])[0] for n in (0.0, 1.0, 2.0)]
    uncertain_repeats = [replace(repeat, errors=np.array([0.1])) for repeat in repeats]
    assert compare_series(repeats, repeats) == compare_series(repeats, uncertain_repeats)
    certain = [captures([[10.0]])[0]] * 3
    (wider,) = compare_series(
        certain, [replace(value, errors=np.array([0.3])) for value in certain]
    )
    assert wider.high == pytest.approx(1.96 * 0.3 / np.sqrt(3), rel=1e-3)


def test_neighbours_that_are_alike_widen_the_interval() -> None:
    drifting = [10.0, 10.2, 10.4, 10.6, 10.8, 11.0, 11.2, 11.4]
    mixed = [10.0, 11.4, 10.4, 11.0, 10.8, 10.6, 11.2, 10.2]
    later = [x + 1 for x in mixed]
    calm, wide = change([mixed], [later]), change([drifting], [later])
    assert calm.verdict is ChangeVerdict.HIGHER
    assert wide.verdict is ChangeVerdict.UNCLEAR


def test_values_of_whole_captures() -> None:
    assert compare_values([10.0, 10.0], [12.0, 12.0]).verdict is ChangeVerdict.HIGHER
    assert compare_values([10.0, 14.0], [12.0, 12.0]).verdict is ChangeVerdict.UNCLEAR
    assert compare_values([10.0], [12.0]).basis is Basis.NONE


def test_no_rows_give_no_changes() -> None:
    nothing = SampledChange((1, 1), np.zeros((0, 2)))
    assert compare_series([nothing], [nothing]) == []


# What must not matter ----------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(3, 3), (2, 5), (1, 4), (9, 9), (4, 12)])
def test_neither_order_nor_unit_nor_side_matters(sizes: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    old, new = (rng.lognormal(1, 0.2, (n, 4)).tolist() for n in sizes)
    (result,) = compare_series(captures(old), captures(new))
    assert result == compare_series(captures(old[::-1]), captures(new[::-1]))[0]
    (swapped,) = compare_series(captures(new), captures(old))
    assert (swapped.low, swapped.high) == pytest.approx((-result.high, -result.low))  # type: ignore[operator]
    for scale in (1e-9, 1e6, 1e250):
        (scaled,) = compare_series(captures(old, scale=scale), captures(new, scale=scale))
        assert scaled.verdict is result.verdict
        assert scaled.low == pytest.approx(scale * result.low)  # type: ignore[operator]
    (shifted,) = compare_series(captures(old, shift=40), captures(new, shift=40))
    assert (shifted.low, shifted.high) == pytest.approx((result.low, result.high))


@pytest.mark.parametrize("sizes", [(3, 3), (3, 50), (50, 50)])
def test_swapped_steps_negate_the_interval(sizes: tuple[int, int]) -> None:
    rng = np.random.default_rng(4)
    old, new = ([rng.lognormal(1, 0.2, n).tolist()] for n in sizes)
    result, swapped = change(old, new), change(new, old)
    assert (swapped.low, swapped.high) == pytest.approx((-result.high, -result.low))  # type: ignore[operator]


def test_rows_do_not_depend_on_each_other() -> None:
    rng = np.random.default_rng(5)
    sides = [
        [SampledChange((1,) * 6, rng.lognormal(1, 0.2, (7, 6))) for _ in range(8)] for _ in "ab"
    ]
    together = compare_series(*sides)
    for row in range(7):
        alone = [
            [SampledChange(value.blocks, value.values[row : row + 1]) for value in s] for s in sides
        ]
        (result,) = compare_series(*alone)
        assert (result.low, result.high) == pytest.approx((together[row].low, together[row].high))


# What it is built of -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("confidence", "freedom", "expected"),
    [
        (0.95, 1, 12.70620),
        (0.95, 2, 4.302653),
        (0.95, 4, 2.776445),
        (0.95, 10, 2.228139),
        (0.95, 120, 1.979930),
        (0.95, 1e9, 1.959964),
        (0.99, 1, 63.65674),
        (0.99, 5, 4.032143),
        (0.999, 3, 12.92398),
        (0.9, 30, 1.697261),
        (0.5, 1, 1.0),
    ],
)
def test_quantiles_of_t(confidence: float, freedom: float, expected: float) -> None:
    result = t_quantile(confidence, np.array([freedom, freedom]))
    assert result == pytest.approx([expected] * 2, rel=3e-5)


def test_quantiles_of_t_between_whole_numbers_lie_between() -> None:
    result = t_quantile(0.95, np.linspace(1, 3, 9))
    assert (np.diff(result) < 0).all()


@pytest.mark.parametrize("most_steps", [1, 5])
@pytest.mark.parametrize(("before", "after"), [(3, 3), (4, 4), (5, 5), (2, 6)])
def test_the_interval_is_what_counting_permutations_says(
    before: int, after: int, most_steps: int
) -> None:
    rng = np.random.default_rng(6)
    values = rng.normal(size=before + after)
    weights = rng.integers(1, most_steps, size=before + after, endpoint=True).astype(np.float64)
    (low,), (high,) = permutation_interval(values[None], weights, before, 0.95)
    for d, inside in [(low - 1e-6, False), (low + 1e-6, True)]:
        assert _possible(values, weights, before, d) is inside
    for d, inside in [(high - 1e-6, True), (high + 1e-6, False)]:
        assert _possible(values, weights, before, d) is inside


def _possible(values: Floats, weights: Floats, before: int, added: float) -> bool:
    """Count the permutations as extreme as the true one, if nothing but `added` was added."""
    total = len(values)
    freed = values - added * (np.arange(total) >= before)

    def difference(later: tuple[int, ...]) -> float:
        mask = np.isin(np.arange(total), later)
        means = [np.average(freed[side], weights=weights[side]) for side in (mask, ~mask)]
        return float(means[0] - means[1])

    result = [difference(later) for later in combinations(range(total), total - before)]
    true = difference(tuple(range(before, total)))
    as_low = sum(value <= true + 1e-12 for value in result)
    as_high = sum(value >= true - 1e-12 for value in result)
    return min(as_low, as_high) > max(1, int(len(result) * 0.025))


# How often it is wrong ---------------------------------------------------------------------------


T_975 = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 6: 2.4469, 8: 2.3060}
"""Of printed tables, by degrees of freedom."""


@pytest.mark.parametrize(("before", "after"), [(2, 2), (3, 3), (4, 4), (5, 5), (1, 3), (3, 1)])
def test_intervals_are_what_a_slow_computation_says(before: int, after: int) -> None:
    """Every permutation is counted for every difference on a grid; Welch's is written out."""
    rng = np.random.default_rng(before * 10 + after)
    for _ in range(5):
        # The same deviations on both sides, so that Welch's degrees of freedom are whole.
        noise = rng.normal(0, 1, max(before, after))
        sides = [100 + noise[:before], 103 + noise[:after]]
        result = compare_values(*(side.tolist() for side in sides))
        delta = sides[1].mean() - sides[0].mean()
        low, high = _slow_permutations(sides, delta)
        half = _slow_welch(sides)
        assert result.low == pytest.approx(min(low, delta - half), abs=2e-3)
        assert result.high == pytest.approx(max(high, delta + half), abs=2e-3)


def _slow_welch(sides: list[Floats]) -> float:
    counts = [len(side) for side in sides]
    if 1 in counts:  # the single one varies as those of the other side
        several = max(sides, key=len)
        error = np.sqrt(several.var(ddof=1) * (1 + 1 / len(several)))
        return float(error * T_975[len(several) - 1])
    errors = [side.var(ddof=1) / len(side) for side in sides]
    return float(np.sqrt(sum(errors)) * T_975[sum(counts) - 2])


def _slow_permutations(sides: list[Floats], delta: float) -> tuple[float, float]:
    """Bisect for the ends of what permutations leave possible; the widest where they are few."""
    values, before = np.concatenate(sides), len(sides[0])
    permutations = list(combinations(range(len(values)), len(sides[1])))
    rare = max(1, int(len(permutations) * 0.025))

    def as_extreme(added: float, sign: int) -> int:
        freed = values - added * (np.arange(len(values)) >= before)
        means = []
        for later in permutations:
            mask = np.isin(np.arange(len(values)), later)
            means.append(sign * (freed[mask].mean() - freed[~mask].mean()))
        true = sign * (freed[before:].mean() - freed[:before].mean())
        return int(sum(mean >= true - 1e-9 for mean in means)) - 1

    ends = []
    for sign in (1, -1):
        outside, inside = delta - sign * 50.0, delta
        for _ in range(18):
            middle = (outside + inside) / 2
            if as_extreme(middle, sign) >= rare:
                inside = middle
            else:
                outside = middle
        ends.append(inside)
    return ends[0], ends[1]


@pytest.mark.parametrize("spread", [0.0, 0.05])
@pytest.mark.parametrize("kind", ["even", "slow steps"])
@pytest.mark.parametrize("sizes", [(1, 2), (1, 3), (2, 2), (3, 3), (5, 5), (10, 10)])
def test_repeats_of_one_program_are_rarely_told_apart(
    sizes: tuple[int, int], kind: str, spread: float
) -> None:
    rng = np.random.default_rng(11)
    for count in (3, 10, 50):
        pair = [side(rng, n, count, spread, kind, draws=DRAWS) for n in sizes]
        assert claimed(*pair) <= BOUND


@pytest.mark.parametrize("kind", ["even", "slow steps", "alike"])
@pytest.mark.parametrize("sizes", [(10, 10), (50, 50), (10, 50), (3, 50), (1, 50)])
def test_steps_of_one_run_are_rarely_told_apart(sizes: tuple[int, int], kind: str) -> None:
    rng = np.random.default_rng(12)
    pair = [side(rng, 1, count, 0.0, kind, draws=DRAWS) for count in sizes]
    assert claimed(*pair) <= BOUND


def test_three_steps_are_rarely_told_apart() -> None:
    rng = np.random.default_rng(12)
    assert claimed(*(side(rng, 1, 3, 0.0, draws=DRAWS) for _ in "ab")) <= BOUND


def test_runs_in_one_of_two_states_are_rarely_told_apart() -> None:
    rng = np.random.default_rng(13)
    pair = [side(rng, 3, 50, 0.1, "two states", draws=DRAWS) for _ in "ab"]
    assert claimed(*pair) <= BOUND
    assert claimed_over_steps(*pair) > 0.5


@pytest.mark.parametrize(("sizes", "count"), [((3, 3), 10), ((5, 5), 3), ((10, 10), 3)])
def test_a_change_of_a_tenth_is_claimed_nearly_always(sizes: tuple[int, int], count: int) -> None:
    rng = np.random.default_rng(14)
    old, new = (
        side(rng, n, count, 0.01, draws=DRAWS, times=t)
        for n, t in zip(sizes, (1, 0.9), strict=True)
    )
    assert claimed(old, new, least=0.02) >= 0.97
