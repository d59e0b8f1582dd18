"""Launches that the core matches, sums up and projects are those of NumPy."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusight.analysis import launch_index, range_summary
from gpusight.analysis.launch_index import KeyIndex, LaunchIndex
from gpusight.analysis.range_summary import SortedHostRanges
from gpusight.core import native
from gpusight.core.library import core_status

pytestmark = pytest.mark.skipif(
    core_status().library is None, reason=f"no compiled core: {core_status().reason}"
)
KEYS = st.one_of(st.none(), st.integers(-3, 12), st.sampled_from([10**6, 1 << 40, (1 << 63) - 1]))
PROCESSES = st.one_of(st.none(), st.integers(1, 2))


@settings(deadline=None)
@given(
    st.lists(st.tuples(PROCESSES, KEYS), max_size=30),
    st.lists(st.tuples(PROCESSES, KEYS), max_size=30),
    st.booleans(),
)
def test_rows_of_keys(
    rows: list[tuple[int | None, int | None]],
    wanted: list[tuple[int | None, int | None]],
    one_process: bool,
) -> None:
    if one_process:
        rows = [(1, key) for _, key in rows]

    def columns(pairs: list[tuple[int | None, int | None]]) -> list[pl.Series]:
        return [pl.Series([pair[i] for pair in pairs], dtype=pl.Int64) for i in (0, 1)]

    found = KeyIndex(*columns(rows)).find(*columns(wanted))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "find_keys", lambda *_: None)
        expected = KeyIndex(*columns(rows)).find(*columns(wanted))
    assert found.tolist() == expected.tolist()


def test_keys_that_are_out_of_bounds_are_left_to_numpy() -> None:
    one, keys = np.ones(3, np.int64), np.array([0, 5, 9])
    assert native.find_keys((one, keys), (one, keys), 10) is not None
    assert native.find_keys((one, keys), (one, keys), 9) is None
    assert native.find_keys((np.array([1, 1, 2]), keys), (one, keys), 10) is None


WORK = st.lists(
    st.tuples(st.integers(-1, 4), st.integers(-(1 << 62), 1 << 62), st.integers(0, 1 << 61)),
    max_size=40,
)


@given(WORK)
def test_sums_of_launches(rows: list[tuple[int, int, int]]) -> None:
    launch, start, length = np.array(rows, np.int64).reshape(-1, 3).T
    sums = native.LaunchSums(
        np.full(5, np.iinfo(np.int64).max),
        np.full(5, np.iinfo(np.int64).min),
        np.zeros(5, np.int64),
        np.zeros(5, np.int32),
    )
    assert native.sum_launches(launch.astype(np.int32), start, start + length, sums)
    for at in range(5):
        own = launch == at
        assert sums.ops[at] == own.sum()
        assert sums.busy_ns[at] == length[own].sum()
        assert sums.first_ns[at] == start[own].min(initial=np.iinfo(np.int64).max)
        assert sums.last_ns[at] == (start + length)[own].max(initial=np.iinfo(np.int64).min)
    none = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="out of bounds"):
        native.sum_launches(np.array([5], np.int32), none, none, sums)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0, 1, 3, 40, 2_500]), st.integers(1, 3))
def test_projection_of_ranges(seed: int, launches: int, threads: int) -> None:
    random = np.random.default_rng(seed)
    starts = np.sort(random.integers(0, 4 * launches + 9, launches))
    ends = np.maximum.accumulate(starts + random.integers(0, 9, launches))
    first = random.integers(-(10**9), 10**9, launches)
    cuts = np.linspace(0, launches, threads + 1).astype(int)
    index = LaunchIndex(
        np.arange(launches, dtype=np.int32),
        starts,
        ends,
        first,
        first + random.integers(0, 10**6, launches),
        random.integers(0, 10**6, launches),
        random.integers(0, 4, launches).astype(np.int32),
        tuple((t % 2, int(cuts[t]), int(cuts[t + 1])) for t in range(threads)),
        {},
    )
    n = int(random.integers(0, 200))
    begun = np.sort(random.integers(-5, 4 * launches + 9, n))
    ranges = SortedHostRanges(
        np.arange(n, dtype=np.int32),
        begun,
        begun + random.choice([0, 3, 50, 4 * launches], n),
        np.sort(random.integers(0, 3, n)),
    )
    found = range_summary._project_in_c(ranges, index)
    assert found is not None
    assert np.array_equal(found, range_summary._project_with_numpy(ranges, index))


def test_launches_of_a_capture_without_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpusight.readers.open import open_trace
    from tests.shared import DATA

    path = DATA / "odd_cpu.sqlite"
    found = launch_index.find_launches(open_trace(path))
    monkeypatch.setattr(native, "find_keys", lambda *_: None)
    monkeypatch.setattr(native, "sum_launches", lambda *_: False)
    expected = launch_index.find_launches(open_trace(path))
    for column in ("call", "start_ns", "end_ns", "first_ns", "last_ns", "busy_ns", "ops"):
        assert np.array_equal(getattr(found, column), getattr(expected, column))
    assert found.runs == expected.runs
