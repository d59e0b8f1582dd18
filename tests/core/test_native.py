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


def test_columns_of_other_lengths_or_kinds_are_refused() -> None:
    three, two = np.zeros(3, np.int64), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="columns of 3 values"):
        native.enclosing(three, two, three)
    with pytest.raises(TypeError):
        native.enclosing(three, three, np.zeros(3))  # type: ignore[arg-type]
    strided = np.arange(6)[::2]
    assert native.enclosing(strided, strided + 1, three) is not None
