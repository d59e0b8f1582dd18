"""Depth and parent against a plain stack."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpusight.trace.nesting import nest


@st.composite
def stacks(draw: st.DrawFn) -> list[tuple[int, int, int, int, int]]:
    """Push and pop at increasing times; rows are (start, end, group, depth, parent)."""
    rows: list[list[int]] = []
    for group in range(draw(st.integers(1, 3))):
        open_rows: list[int] = []
        for time, push in enumerate(draw(st.lists(st.booleans(), max_size=30))):
            if push:
                rows.append([time, -1, group, len(open_rows), open_rows[-1] if open_rows else -1])
                open_rows.append(len(rows) - 1)
            elif open_rows:
                rows[open_rows.pop()][1] = time
        for row in open_rows:
            rows[row][1] = 1000 - rows[row][3]
    return [(a, b, c, d, e) for a, b, c, d, e in rows]


@given(stacks(), st.randoms())
def test_equals_a_stack(rows: list[tuple[int, int, int, int, int]], random: object) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    columns = np.array([rows[i] for i in order], dtype=np.int64).reshape(len(rows), 5)
    depth, parent = nest(columns[:, 0], columns[:, 1], columns[:, 2])
    assert depth.tolist() == columns[:, 3].tolist()
    position = {row: i for i, row in enumerate(order)}
    assert parent.tolist() == [position.get(int(p), -1) for p in columns[:, 4]]


def test_touching_and_instant_ranges() -> None:
    starts = np.array([0, 10, 10, 15], dtype=np.int64)
    ends = np.array([10, 20, 10, 15], dtype=np.int64)
    depth, parent = nest(starts, ends, np.zeros(4, dtype=np.int64))
    # [0,10) touches [10,20); the instants at 10 and 15 lie inside [10,20).
    assert depth.tolist() == [0, 0, 1, 1]
    assert parent.tolist() == [-1, -1, 1, 1]
