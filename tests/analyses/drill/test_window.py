from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusight.analysis.drill.launch_plan import shortest_window, sure_length


def brute(keys: list[int], wanted: int, parts: list[tuple[int, int]]) -> int | None:
    lengths = [
        end - begin
        for first, after in parts
        for begin in range(first, after)
        for end in range(begin + 1, after + 1)
        if set(range(wanted)) <= set(keys[begin:end])
    ]
    return min(lengths, default=None)


SEQUENCES = st.lists(st.integers(-1, 2), max_size=24)


@given(SEQUENCES, st.integers(1, 3), st.integers(0, 12))
def test_shortest_window_is_the_shortest(keys: list[int], wanted: int, middle: int) -> None:
    cut = min(middle, len(keys))
    parts = [(0, cut), (cut, len(keys))]
    found = shortest_window(np.array(keys, dtype=np.int64), wanted, parts)
    expected = brute(keys, wanted, parts)
    assert (None if found is None else found.count) == expected
    if found is not None:
        first, after = parts[found.part]
        assert first <= found.first
        assert found.first + found.count <= after
        assert set(range(wanted)) <= set(keys[found.first : found.first + found.count])


def test_of_equal_windows_the_first_is_taken() -> None:
    found = shortest_window(np.array([0, 1, -1, 1, 0]), 2, [(0, 5)])
    assert found is not None
    assert (found.first, found.count) == (0, 2)


def test_a_window_does_not_cross_from_one_part_into_the_next() -> None:
    assert shortest_window(np.array([0, 1]), 2, [(0, 1), (1, 2)]) is None


@given(SEQUENCES, st.integers(1, 3))
def test_sure_length_holds_everything_wherever_it_begins(keys: list[int], wanted: int) -> None:
    length = sure_length(np.array(keys, dtype=np.int64), wanted)
    if not set(range(wanted)) <= set(keys):
        assert length is None
        return
    assert length is not None
    round_and_round = keys * 3
    windows = [round_and_round[at : at + length] for at in range(len(keys))]
    assert all(set(range(wanted)) <= set(window) for window in windows)
    shorter = [round_and_round[at : at + length - 1] for at in range(len(keys))]
    assert not all(set(range(wanted)) <= set(window) for window in shorter)


@pytest.mark.parametrize("size", [0, 3])
def test_nothing_wanted_is_nowhere(size: int) -> None:
    assert shortest_window(np.full(size, -1), 1, [(0, size)]) is None
