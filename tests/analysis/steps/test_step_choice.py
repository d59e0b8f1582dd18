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


@pytest.mark.parametrize(
    ("between", "count"),
    [
        pytest.param([20], 6, id="data are reset"),
        pytest.param([21], 60, id="a result is read"),
        pytest.param([21, 20], 6, id="a result is read, then data are reset"),
        pytest.param([20, 21], 60, id="a metric is computed and read"),
    ],
)
def test_a_request_prepares_for_its_loop_and_logging_ends_with_a_result(
    between: list[int], count: int
) -> None:
    codes = np.array([code for _ in range(6) for code in (*between, *list(range(15)) * 10)])
    no = codes < 0
    sequence = replace(
        Activities.plain(codes),
        marks=np.isin(codes, (14, 21)),
        reads=np.isin(codes, (14, 21)),
        resets=codes == 20,
        computes=~np.isin(codes, (14, 21)),
        updates=no,
    )
    period = choose_period([sequence])
    assert period is not None
    assert len(period.starts) == count


@pytest.mark.parametrize("cut", [0, 4, 9, 40])
@pytest.mark.parametrize(
    ("last", "count"),
    [
        pytest.param([0, 1, 2, 3, 4, 14], 6, id="lacks a kernel"),
        pytest.param([0, 1, 2, 3, 4, 14, 6, 20], 6, id="another kernel instead"),
        pytest.param([0, 1, 2, 3, 4, 14, 6, 5, 7, 14], 60, id="computes and reads more"),
        pytest.param([0, 1, 21, 3, 4, 14, 6, 5], 60, id="another GEMM instead"),
    ],
)
def test_the_last_repetition_of_a_run_lacks_a_kernel(last: list[int], count: int, cut: int) -> None:
    """Wherever the capture starts."""
    usual = [0, 1, 2, 3, 4, 14, 6, 5]
    codes = np.array([code for _ in range(6) for code in (*usual * 9, *last)] * 2)[cut:]
    no = codes < 0
    sequence = replace(
        Activities.plain(codes),
        marks=codes == 14,
        reads=codes == 14,
        heavy=np.isin(codes, (2, 21)),
        computes=codes != 14,
        updates=no,
    )
    period = choose_period([sequence])
    assert period is not None
    missing = -(-cut // 8) if count == 60 else min(1, cut)  # what the cut left of a step is none
    assert 0 <= 2 * count - len(period.starts) <= missing


def test_runs_of_other_lengths_are_one_step_each() -> None:
    lengths = [12, 30, 8, 26, 9, 31, 10]
    codes = np.array([code for n in lengths for code in (7, 8, 9, *[1, 2, 3, 4] * n)])
    period = choose_period([replace(Activities.plain(codes), resets=codes == 9)])
    assert period is not None
    assert len(period.starts) == len(lengths)
    assert period.inner is not None
    assert period.inner.length == 4


def test_pauses_join_equal_layers_only_where_they_agree() -> None:
    layers = 4
    codes = np.tile(np.arange(3), 12 * layers)
    no = codes < 0
    pauses = RANDOM.integers(10, 13, len(codes))
    pauses[:: 3 * layers] += 5
    sequence = replace(Activities.plain(codes, pauses), marks=no)
    joined = choose_period([sequence])
    assert joined is not None
    assert (len(joined.starts), joined.length) == (12, 3 * layers)
    alone = choose_period([replace(sequence, pauses=RANDOM.integers(10, 13, len(codes)))])
    assert alone is not None
    assert alone.length == 3


def test_small_pauses_join_layers_where_many_rounds_agree() -> None:
    """Wherever in a layer as it was cut; a wait between two passes does not matter."""
    rng = np.random.default_rng(11)
    codes = np.append(np.tile(np.arange(6), 33 * 4), 9)
    codes = np.insert(codes, 8 * 24, 9)
    starts = np.flatnonzero(codes == 0)
    pauses = rng.integers(9, 14, len(codes))
    pauses[starts] = rng.integers(10, 25, len(starts))
    pauses[starts[::4]] += 9
    waits = codes == 9
    plain = Activities.plain(codes, pauses, ~waits)
    sequence = replace(plain, marks=waits, computes=~waits)
    joined = choose_period([sequence])
    assert joined is not None
    assert len(joined.starts) == 33
    assert set(joined.starts) <= set(starts[::4])
    pauses[starts] = rng.integers(10, 25, len(starts))
    alone = choose_period([replace(sequence, pauses=pauses)])
    assert alone is not None
    assert alone.length == 6


def test_loops_with_as_many_repetitions_are_two() -> None:
    """Layers of a pass without graphs, then batches: the second loop takes the time."""
    layers, batches = np.tile(np.arange(6), 48), np.tile([10, 11], 48)
    codes = np.concatenate([layers, batches])
    graphs = codes == 11
    sequence = replace(Activities.plain(codes), marks=graphs, took=np.where(graphs, 500, 1))
    period = choose_period([sequence])
    assert period is not None
    assert (period.length, len(period.starts), period.starts[0]) == (2, 48, len(layers))


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


START_UP, STEPS = [0, 1, 2, 3] * 30, [2, 3, 4, 5, 6] * 8


@pytest.mark.parametrize(
    ("loads", "front", "later", "count"),
    [
        pytest.param(True, START_UP, STEPS, 8, id="loads code again and again"),
        pytest.param(False, START_UP, STEPS, 30, id="does not, and is most of the program"),
        pytest.param(True, START_UP, STEPS[:10], 30, id="two repetitions are no loop"),
        pytest.param(True, START_UP, [], 30, id="nothing comes after it"),
        pytest.param(
            False, [c for n in range(30) for c in (0, 1, 2, 9 + n)], STEPS, 8, id="new kernels"
        ),
        pytest.param(False, list(range(20, 90)) * 3, STEPS, 8, id="fewer and less GPU time"),
    ],
)
def test_a_loop_of_the_start_up_gives_way_to_one_after_it(
    loads: bool, front: list[int], later: list[int], count: int
) -> None:
    codes = np.array(front + later)
    in_front = np.arange(len(codes)) < len(front)
    long_steps = len(set(front)) > 60  # a few passes without graphs, then graphs
    sequence = replace(
        Activities.plain(codes),
        loads=(in_front & (codes == 0) & loads).astype(np.int64),
        took=np.where(in_front, 1, 8 if long_steps else 1),
    )
    period = choose_period([sequence])
    assert period is not None
    assert len(period.starts) == count
    assert (period.starts[0] >= len(front)) == (count == 8)


def test_training_is_no_start_up_of_a_test() -> None:
    codes = np.array(START_UP + STEPS)
    in_front = np.arange(len(codes)) < len(START_UP)
    loads, copies = (in_front & (codes == 0)).astype(np.int64), codes == 3
    sequence = replace(Activities.plain(codes), loads=loads, marks=copies, computes=~copies)
    for backward, count in ((codes == 1, 30), (codes < 0, 8)):
        period = choose_period([replace(sequence, backward=backward)])
        assert period is not None
        assert len(period.starts) == count


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
