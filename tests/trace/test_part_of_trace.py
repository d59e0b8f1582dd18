"""A stretch of a capture has the rows that lie in it."""

from __future__ import annotations

from typing import TypeAlias
from unittest.mock import patch

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from gpusight.trace import part_of_trace
from gpusight.trace.part_of_trace import part_of
from tests.traces import build_trace

Spans: TypeAlias = list[tuple[int, int]]
TIMES = st.integers(0, 40)
SPANS = st.lists(st.tuples(TIMES, TIMES).map(lambda s: (min(s), max(s))), max_size=30)
STRETCHES = st.lists(st.tuples(TIMES, TIMES).filter(lambda s: s[0] < s[1]), min_size=1, max_size=3)


@given(calls=SPANS, stretches=STRETCHES, block=st.sampled_from([1, 3, 1 << 16]))
def test_a_part_has_the_rows_that_overlap_it(calls: Spans, stretches: Spans, block: int) -> None:
    rows = [{"start_ns": first, "end_ns": last, "correlation": last} for first, last in calls]
    trace = build_trace(api_calls=rows, devices=[{"device": 3}])
    with patch.object(part_of_trace, "_BLOCK", block):
        part = part_of(trace, *stretches)
        shown = part.table("api_calls", ["start_ns", "end_ns", "correlation"])
        numbers = part.rows_in_whole("api_calls").tolist()
    start, end = pl.col("start_ns"), pl.col("end_ns")
    overlaps = [(start < last) & ((end > first) | (start >= first)) for first, last in stretches]
    every = trace.table("api_calls", ["start_ns", "end_ns", "correlation"]).with_row_index("row")
    expected = every.filter(pl.any_horizontal(overlaps))
    assert shown.equals(expected.drop("row"))
    assert numbers == expected["row"].to_list()
    assert part.row_count("api_calls") == shown.height
    assert part.devices["device"].to_list() == [3]
    assert part.has("api_calls") is trace.has("api_calls")
    assert not part.has("kernels")
