"""The compiled core computes what NumPy does, bit for bit."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusight.analysis.attribution.nested_intervals import NestedIntervals
from gpusight.core import native
from gpusight.core.library import core_status
from gpusight.viewer import track_events

pytestmark = pytest.mark.skipif(
    core_status().library is None, reason=f"no compiled core: {core_status().reason}"
)
Span: TypeAlias = tuple[int, int, int]
TIMES = st.one_of(st.integers(0, 12), st.integers(0, 1 << 60))
SPANS = st.lists(
    st.tuples(TIMES, TIMES, st.integers(0, 2)).map(lambda s: (min(s[:2]), max(s[:2]), s[2])),
    max_size=40,
)


def columns(spans: list[Span]) -> list[np.ndarray]:
    """Give starts, ends and threads as columns."""
    return [np.array([span[i] for span in spans], np.int64) for i in range(3)]


@given(spans=SPANS)
def test_enclosing(spans: list[Span]) -> None:
    starts, ends, threads = columns(spans)
    nested = NestedIntervals.of(starts, ends, pl.Series(threads))
    assert nested.outer.tolist() == nested._outer().tolist()


@given(spans=SPANS)
def test_nested_lines(spans: list[Span]) -> None:
    ordered = sorted(spans, key=lambda span: (span[0], -span[1]))
    starts, ends, _ = columns(ordered)
    crossing = any(
        first[0] < second[0] < first[1] < second[1] for first in ordered for second in ordered
    )
    lines = native.nested_lines(starts, ends)
    assert (lines is None) is crossing
    if lines is not None:
        assert lines.tolist() == track_events._lines(starts, ends).tolist()
    assert native.nested_lines(ends[::-1] + 1, starts[::-1]) is None or not spans


def test_columns_of_other_lengths_or_kinds_are_refused() -> None:
    three, two = np.zeros(3, np.int64), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="columns of 3 values"):
        native.enclosing(three, two, three)
    with pytest.raises(TypeError):
        native.enclosing(three, three, np.zeros(3))  # type: ignore[arg-type]
    strided = np.arange(6)[::2]
    assert native.enclosing(strided, strided + 1, three) is not None
