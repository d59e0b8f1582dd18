"""Durations that the core sums up are, bit for bit, those of Polars."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusight.analysis.aggregates import timing
from gpusight.analysis.nsys_stats import nvtx_stats
from gpusight.core.library import core_status
from gpusight.core.sums import sum_groups

pytestmark = pytest.mark.skipif(
    core_status().library is None, reason=f"no compiled core: {core_status().reason}"
)
TIMES = st.one_of(st.integers(0, 12), st.integers(0, 3 * 10**15), st.integers(-5, 10**9))
CODES: dict[type[pl.DataType], int] = {pl.UInt8: 200, pl.UInt16: 60_000, pl.UInt32: 70_000}


def check_groups(codes: pl.Series, starts: list[int], durations: list[int], groups: int) -> None:
    """Compare the two."""
    start, duration = (pl.Series(v, dtype=pl.Int64) for v in (starts, durations))
    found = sum_groups(codes, start, start + duration, groups)
    assert found is not None
    frame = pl.DataFrame([codes.alias("code"), duration.alias("duration_ns")])
    expected = frame.group_by("code").agg(timing()).sort("code").cast({"code": pl.Int64})
    assert found.select(expected.columns).equals(expected)


@settings(deadline=None)
@given(data=st.data(), dtype=st.sampled_from(list(CODES)), offset=st.integers(0, 3))
def test_groups(data: st.DataObject, dtype: type[pl.DataType], offset: int) -> None:
    groups = CODES[dtype]
    code = st.one_of(st.integers(0, 3), st.sampled_from([groups - 1, groups // 2]))
    rows = data.draw(st.lists(st.tuples(code, st.integers(0, 10**9), TIMES), max_size=300))
    codes, starts, durations = zip(*rows, strict=True) if rows else ((), (), ())
    # A slice begins inside a buffer.
    whole = pl.Series([0] * offset + list(codes), dtype=dtype)
    check_groups(whole.slice(offset), list(starts), list(durations), groups)


@pytest.mark.parametrize("order", ["rising", "falling", "same", "organ pipe", "killer"])
def test_medians_of_values_in_awkward_order(order: str) -> None:
    n = 5001
    values = {
        "rising": list(range(n)),
        "falling": list(range(n, 0, -1)),
        "same": [7] * n,
        "organ pipe": [min(i, n - i) for i in range(n)],
        "killer": [i if i % 2 else n // 2 + i // 2 for i in range(n)],
    }[order]
    for length in (n, n - 1, 2, 1):
        codes = pl.Series([0] * length, dtype=pl.UInt8)
        check_groups(codes, [0] * length, values[:length], 1)


def test_what_c_does_not_take_is_left_to_polars() -> None:
    codes, times = pl.Series([0, 1], dtype=pl.UInt8), pl.Series([1, 2])
    assert sum_groups(codes, times, times, 2) is not None
    assert sum_groups(codes.cast(pl.Int64), times, times, 2) is None
    assert sum_groups(pl.Series([0, None], dtype=pl.UInt8), times, times, 2) is None
    assert sum_groups(codes, times.cast(pl.Float64), times, 2) is None
    with pytest.raises(ValueError, match="out of bounds"):
        sum_groups(codes, times, times, 1)


SPANS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 20), st.integers(0, 9)),
    max_size=40,
)


@settings(deadline=None)
@given(SPANS, st.lists(st.tuples(st.integers(0, 4), TIMES), min_size=30, max_size=30))
def test_kernels_of_ranges(rows: list[tuple[int, ...]], kernels: list[tuple[int, int]]) -> None:
    # Ranges come back in later runs of launches, as they do where calls are inside of calls.
    group, row, first, count = (
        np.array(column, np.int64) for column in np.array(rows, np.int64).reshape(-1, 4).T
    )
    order = np.argsort(group, kind="stable")
    row, first, count = row[order], first[order], count[order]
    spans = nvtx_stats._Spans(group[order], row, first, first + count)
    names = pl.Enum([f"kernel {i}" for i in range(5)])
    work = pl.DataFrame(
        {
            "time": pl.Series([time for _, time in kernels], dtype=pl.Int64),
            "kernel": pl.Series([f"kernel {name}" for name, _ in kernels], dtype=names),
        }
    )
    fresh = spans.fresh()
    found = nvtx_stats._range_kernels_in_c(work, spans, fresh)
    expected = nvtx_stats._pairs(work, spans, fresh, slice(0, len(row)))
    assert found is not None
    by = ["group", "kernel"]
    assert found.schema == expected.schema
    assert found.sort(by).equals(expected.sort(by))
