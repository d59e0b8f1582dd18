"""Which line each event of a track is laid out on."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusight.trace.trace import Trace
from gpusight.viewer import track_events as packing
from gpusight.viewer.track_events import LineGroup, kept, lay_out, pack
from tests.traces import build_source

if TYPE_CHECKING:
    from numpy.typing import NDArray


# Lines for nested and overlapping events, against a loop that takes the lowest line free.


Rows = list[tuple[int, int, int]]
"""Start, length and group of each event."""

rows = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15), st.integers(0, 2)), max_size=40)


def packed(events: Rows) -> list[int]:
    table = np.array(events, np.int64).reshape(-1, 3)
    lines: list[int] = pack(table[:, 0], table[:, 0] + table[:, 1], table[:, 2]).tolist()
    return lines


def lowest_free(events: Rows) -> list[int]:
    """Go through the events in order of start and take the lowest line that nothing holds."""
    lines = [0] * len(events)
    held: dict[tuple[int, int], int] = {}
    for row in sorted(range(len(events)), key=lambda r: (events[r][0], -events[r][1], r)):
        start, length, group = events[row]
        line = 0
        while held.get((group, line), start) > start:
            line += 1
        lines[row] = line
        held[group, line] = start + length
    return lines


def assert_no_overlap(events: Rows, lines: list[int]) -> None:
    by_line: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for (start, length, group), line in zip(events, lines, strict=True):
        by_line.setdefault((group, line), []).append((start, start + length))
    for spans in by_line.values():
        outer_first = sorted(spans, key=lambda span: (span[0], -span[1]))
        assert all(before[1] <= after[0] for before, after in pairwise(outer_first))


@pytest.mark.parametrize(
    ("events", "lines"),
    [
        ([], []),
        ([(5, 0, 0)], [0]),
        # The longer of equal starts is the outer one, of equal spans the first given.
        ([(0, 5, 0), (0, 9, 0), (0, 9, 0)], [2, 0, 1]),
        # What ends when another begins leaves it its line.
        ([(0, 5, 0), (5, 5, 0)], [0, 0]),
        # Instants lie within what is open, but not within each other.
        ([(3, 0, 0), (3, 0, 0), (0, 9, 0), (9, 0, 0)], [1, 1, 0, 0]),
        # An instant lies within what begins with it.
        ([(3, 0, 0), (3, 4, 0)], [1, 0]),
        # Groups do not see each other.
        ([(0, 9, 7), (1, 3, -2), (2, 3, 7)], [0, 0, 1]),
        # A crossing takes the lowest line that is free, and what follows is back at 0.
        ([(0, 10, 0), (5, 10, 0), (12, 10, 0), (30, 4, 0), (31, 2, 0)], [0, 1, 0, 0, 1]),
    ],
)
def test_lines(events: Rows, lines: list[int]) -> None:
    assert packed(events) == lines


@settings(deadline=None)
@given(rows)
def test_takes_the_lowest_free_line(events: Rows) -> None:
    lines = packed(events)
    assert lines == lowest_free(events)
    assert_no_overlap(events, lines)


@settings(deadline=None)
@given(rows, st.sampled_from([-1, 0, 20]))
def test_dealt_lines_neither_overlap_nor_are_more_than_needed(events: Rows, patience: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "_FITTED_EVENTS", patience)
        lines = packed(events)
    assert_no_overlap(events, lines)
    assert max(lines, default=0) == max(lowest_free(events), default=0)


def in_one_group(start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int32]:
    return pack(start, end, np.zeros(len(start), np.int64))


def test_a_thousand_levels_are_their_depths() -> None:
    depth = np.arange(1_000)
    start = np.concatenate([5_000 * tower + depth for tower in range(20)])
    end = np.concatenate([5_000 * tower + 3_000 - depth for tower in range(20)])
    assert in_one_group(start, end).tolist() == depth.tolist() * 20


def test_a_crossing_leaves_what_it_does_not_touch_at_its_depth() -> None:
    # Two towers within one event; in the first, the innermost is crossed by one that begins later.
    events = [(0, 100, 0), *((5 + d, 30 - 2 * d, 0) for d in range(5)), (20, 13, 0), (22, 1, 0)]
    events += [(50 + d, 30 - 2 * d, 0) for d in range(5)]
    assert packed(events) == [0, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5]


def test_hundreds_open_at_once() -> None:
    start = np.arange(2_000, dtype=np.int64)
    # Each crosses the 600 after it: as many lines are needed, and no more are taken.
    assert in_one_group(start, start + 600).tolist() == [at % 600 for at in range(2_000)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "_FITTED_EVENTS", 10_000)
        lines = in_one_group(start, start + 600)
    assert lines.max() == 599
    assert_no_overlap([(at, 600, 0) for at in range(2_000)], lines.tolist())


def test_times_near_the_limits() -> None:
    start = np.array([0, 2**62 - 5, 2**62 - 4], np.int64)
    assert in_one_group(start, np.full(3, 2**62, np.int64)).tolist() == [0, 1, 2]


# Which line each event is laid out on, and that a layout survives being kept.


EVENTS = pl.DataFrame(
    [
        # event, start, end, thread: deliberately not in order of time
        (0, 0, 100, 2),
        (1, 5, 20, 2),
        (2, 30, 40, 2),
        (3, 90, 110, 2),  # overlaps the first without lying in it
        (4, 10, 20, None),
        (5, 0, 10, None),
    ],
    schema={"event": pl.UInt32, "start_ns": pl.Int64, "end_ns": pl.Int64, "thread": pl.Int64},
    orient="row",
)


def test_events_are_put_line_by_line_in_order_of_start_those_of_no_thread_first() -> None:
    layout = lay_out(EVENTS, ["thread"])
    assert layout.event.tolist() == [5, 4, 0, 1, 2, 3]
    assert layout.lines.rows() == [
        # thread, line, first, count, busy, start, end
        (None, 0, 0, 2, 20, 0, 20),
        (2, 0, 2, 1, 100, 0, 100),
        (2, 1, 3, 3, 45, 5, 110),
    ]


def test_groups_are_lines_taken_together() -> None:
    assert lay_out(EVENTS, ["thread"]).groups() == [
        LineGroup({"thread": None}, first=0, lines=1, events=2, busy_ns=20),
        LineGroup({"thread": 2}, first=1, lines=2, events=4, busy_ns=145),
    ]


def test_an_event_that_ends_before_it_begins_is_an_instant() -> None:
    backwards = EVENTS.with_columns((pl.col("start_ns") - 5).alias("end_ns"))
    layout = lay_out(backwards, ["thread"])
    assert layout.lines["busy_ns"].to_list() == [0, 0]
    assert layout.lines["end_ns"].to_list() == [10, 90]


def test_samples_are_not_packed() -> None:
    layout = lay_out(EVENTS, ["thread"], packed=False)
    assert layout.event.tolist() == [5, 4, 0, 1, 2, 3]
    assert layout.lines["count"].to_list() == [2, 4]


def test_of_no_events_there_are_no_lines() -> None:
    layout = lay_out(EVENTS.clear(), ["thread"])
    assert (len(layout.event), layout.groups()) == (0, [])


def test_keys_of_any_size_tell_groups_apart() -> None:
    wide = EVENTS.with_columns((pl.col("event").cast(pl.Int64) * (1 << 58)).alias("process"))
    layout = lay_out(wide, ["process", "thread"])
    assert layout.lines["process"].to_list() == [n << 58 for n in range(6)]


class Kept:
    """What outlives a process: frames under keys."""

    def __init__(self) -> None:
        self.frames: dict[str, pl.DataFrame] = {}

    def holds(self, *_: object) -> bool:
        return False

    def recall(self, key: str) -> pl.DataFrame | None:
        return self.frames.get(key)

    def remember(self, key: str, frame: pl.DataFrame) -> None:
        self.frames[key] = frame

    def flush(self) -> None:
        """Have everything at once."""

    def notes(self) -> tuple[str, ...]:
        return ()


def test_a_layout_that_was_kept_is_the_same() -> None:
    made = lay_out(EVENTS, ["thread"])
    trace = Trace(build_source(), memory := Kept())
    first = kept(trace, "test", lambda: made)
    ((key, frame),) = trace._derived.items()
    memory.remember(key, frame)
    again = kept(Trace(build_source(), memory), "test", lambda: lay_out(EVENTS.clear(), ["thread"]))
    for layout in (first, again):
        assert layout.event.tolist() == made.event.tolist()
        assert layout.lines.equals(made.lines)
