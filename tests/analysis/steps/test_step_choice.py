"""Periods of sequences of codes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpusight.analysis.steps.step_choice import choose_period, find_period
from gpusight.analysis.steps.step_periods import Activities, Period

RANDOM = np.random.default_rng(3)


def period_of(codes: list[int] | np.ndarray[tuple[int], np.dtype[np.int64]]) -> Period:
    period = find_period(np.asarray(codes, np.int64))
    assert period is not None
    return period


@pytest.mark.parametrize(("length", "count"), [(5, 1000), (3, 2000), (1, 40), (700, 3), (9000, 3)])
def test_a_perfect_sequence_has_the_period_that_it_was_made_of(length: int, count: int) -> None:
    step = np.arange(length) if length < 700 else RANDOM.integers(0, 60, length)
    period = period_of(np.tile(step, count))
    assert (len(period.starts), period.length) == (count, length)
    assert period.starts[0] < 5
    assert period.ends[-1] > length * count - 5


def test_the_longer_of_two_periods_is_the_step_and_the_shorter_its_inner_loop() -> None:
    step = [*range(50), *list(range(50, 60)) * 128]
    period = period_of(step * 6)
    assert (len(period.starts), period.length) == (6, 50 + 1280)
    assert period.inner is not None
    assert period.inner.length == 10


def test_noise_does_not_hide_a_loop() -> None:
    codes = np.tile(RANDOM.integers(0, 50, 200), 40)
    wrong = RANDOM.random(len(codes)) < 0.01
    codes[wrong] = RANDOM.integers(0, 50, int(wrong.sum()))
    period = period_of(codes)
    assert len(period.starts) in {39, 40}
    assert period.length == 200


def test_what_is_random_does_not_repeat() -> None:
    """However long its parts are, they hold the same codes, but in another order."""
    assert find_period(RANDOM.integers(0, 40, 9000)) is None
    assert find_period(np.arange(500)) is None


def test_steps_of_other_lengths_hold_the_same_kinds() -> None:
    lengths = [9, 14, 8, 20, 11, 17]
    codes = [code for n in lengths for code in (0, *[1, 2, 3, 4] * n, 5, 6)]
    period = period_of(codes)
    assert len(period.starts) == len(lengths)
    assert not period.same_counts
    assert period.ends[-1] == len(codes)


@pytest.mark.parametrize("cut", [0, 7, 20])
def test_a_tail_comes_after_a_step_and_the_last_step_ends_with_itself(cut: int) -> None:
    """Weights are updated in each step; every fourth is followed by something else."""
    step, tail = list(range(24)), [30] * 12
    codes = np.array((([*step] * 4 + tail) * 3 + [*step, 31, 30, 31, 31])[cut:])
    sequence = replace(Activities.plain(codes), updates=codes == 23)
    period = choose_period([sequence])
    assert period is not None
    assert len(period.starts) in {12, 13}
    assert set((period.ends - period.starts).tolist()) == {24}
    assert period.ends[-1] <= len(codes) - 4


def test_the_ends_of_a_sequence_may_be_cut_off() -> None:
    step = RANDOM.integers(0, 30, 60)
    period = period_of(np.concatenate([step[25:], np.tile(step, 5), step[:30]]))
    assert len(period.starts) in {5, 6}
    assert period.length == 60


def test_positions_are_in_order_and_open_steps_whatever_the_sequence() -> None:
    for _ in range(100):
        codes = np.tile(RANDOM.integers(0, 5, RANDOM.integers(0, 30)), RANDOM.integers(1, 5))
        opens = RANDOM.random(len(codes)) < RANDOM.random()
        period = find_period(codes, RANDOM.integers(0, 50, len(codes)), opens)
        if period is not None:
            assert opens[period.starts].all()
            assert (period.ends > period.starts).all()
            assert (period.ends[:-1] <= period.starts[1:]).all()
            assert period.starts[0] >= 0
            assert period.ends[-1] <= len(codes)
