"""Which line each event is laid out on, and that a layout survives being kept."""

from __future__ import annotations

import polars as pl

from gpusight.trace.trace import Trace
from gpusight.viewer.track_events import LineGroup, kept, lay_out
from tests.traces import build_source

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
