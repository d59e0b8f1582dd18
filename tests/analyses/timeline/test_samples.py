"""Values of bins, against a loop over every nanosecond and sample."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusight.viewer import level_of_detail
from gpusight.viewer.level_of_detail import SampledValues

Taken = list[tuple[int, float]]
Row = tuple[int, float, float, float]

values = st.one_of(st.integers(-5, 5), st.floats(-1e3, 1e3), st.just(0.1))
taken = st.lists(st.tuples(st.integers(0, 60), values), max_size=40).map(
    lambda rows: sorted(rows, key=lambda row: row[0])
)
windows = st.tuples(st.integers(-20, 80), st.integers(1, 90), st.integers(1, 30))
"""Start, width and bins; more bins than nanoseconds leave some without width."""
patience = st.sampled_from([(1, 0), (4, 3), (64, 1_000_000)])
"""Samples of a block, and how many are looked at one by one."""


def edges_of(window: tuple[int, int, int]) -> list[int]:
    start, width, bins = window
    return [start + part * width // bins for part in range(bins + 1)]


def found(samples: Taken, window: tuple[int, int, int], how: tuple[int, int], holds: bool) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(level_of_detail, "_BLOCK", how[0])
        patch.setattr(level_of_detail, "_MAX_DIRECT_VALUES", how[1])
        times, levels = np.array(samples, np.float64).reshape(-1, 2).T
        bins = SampledValues.of(times.astype(np.int64), levels, holds).bins(
            np.array(edges_of(window))
        )
    return list(zip(*(column.tolist() for column in bins), strict=True))


def row(number: int, seen: list[float], mean: float) -> Any:
    exact = pytest.approx(mean, rel=1e-12, abs=1e-9)
    return (number, min(seen), max(seen), exact)


@settings(deadline=None)
@given(taken, windows, patience)
def test_sampled(samples: Taken, window: tuple[int, int, int], how: tuple[int, int]) -> None:
    edges, expected = edges_of(window), []
    for number, (start, end) in enumerate(pairwise(edges)):
        inside = [value for time, value in samples if start <= time < end]
        before = [value for time, value in samples if time < start]
        if not inside and before and samples[-1][0] >= end:
            inside = before[-1:]
        if inside:
            expected.append(row(number, inside, math.fsum(inside) / len(inside)))
    assert found(samples, window, how, holds=False) == expected


@settings(deadline=None)
@given(taken, windows, patience)
def test_held(samples: Taken, window: tuple[int, int, int], how: tuple[int, int]) -> None:
    edges, expected = edges_of(window), []
    for number, (start, end) in enumerate(pairwise(edges)):
        at_start = [value for time, value in samples if time <= start]
        taken_in = [value for time, value in samples if time == start or start < time < end]
        seen = [*at_start[-1:], *taken_in]
        held = [
            [value for time, value in samples if time <= moment][-1]
            for moment in range(start, end)
            if samples and moment >= samples[0][0]
        ]
        if seen:
            mean = math.fsum(held) / len(held) if held else seen[0]
            expected.append(row(number, seen, mean))
    assert found(samples, window, how, holds=True) == expected


def test_all_that_was_taken_at_the_start_of_a_bin_counts() -> None:
    # Nine, then two at the same moment: the last of those holds, the first was still seen.
    samples = SampledValues.of(np.array([0, 5, 5]), np.array([9, 7, 3]), holds=True)
    assert [column.tolist() for column in samples.bins(np.array([5, 8]))] == [[0], [3], [7], [3]]


def test_what_is_no_finite_number_is_no_sample() -> None:
    samples = SampledValues.of(
        np.array([0, 1, 2, 3]), np.array([4.0, np.nan, np.inf, 2.0]), holds=False
    )
    assert len(samples) == 2
    bins = samples.bins(np.array([0, 4]))
    assert [column.tolist() for column in bins] == [[0], [2.0], [4.0], [3.0]]


def test_short_bins_of_large_values_are_exact() -> None:
    # Sums up to here are beyond what a float holds exactly; those of a bin are not.
    times = np.arange(0, 10**13, 10**9)
    samples = SampledValues.of(times, np.full(len(times), 141 * 2**30), holds=True)
    assert samples.bins(np.array([10**12 + 1, 10**12 + 3])).mean.tolist() == [141 * 2**30]


@pytest.mark.parametrize("holds", [True, False])
def test_none_and_one(holds: bool) -> None:
    nothing = SampledValues.of(np.empty(0, np.int64), np.empty(0), holds)
    assert nothing.bins(np.array([0, 5, 10])).bin.tolist() == []
    one = SampledValues.of(np.array([7]), np.array([3]), holds)
    assert one.bins(np.array([0, 5, 10, 15])).bin.tolist() == ([1, 2] if holds else [1])


def test_refuses_what_is_out_of_order() -> None:
    with pytest.raises(ValueError, match="order"):
        SampledValues.of(np.array([3, 2]), np.array([1.0, 1.0]), holds=True)
