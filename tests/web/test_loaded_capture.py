"""A capture asked by several threads: read once, computed once, never half there."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import polars as pl
import pytest

from gpusight.trace.trace import Trace
from gpusight.web import loaded_capture
from gpusight.web.loaded_capture import ServerStopped, SharedTrace
from tests.traces import FakeSource, build_source

if TYPE_CHECKING:
    from collections.abc import Sequence

KERNELS = [{"start_ns": n, "end_ns": n + 1, "name": f"k{n}"} for n in range(5)]


class SlowSource(FakeSource):
    """Takes a moment to read, and notices when two read at once."""

    reading = 0
    overlapped = False

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        self.reading += 1
        self.overlapped |= self.reading > 1
        time.sleep(0.005)
        self.reading -= 1
        return super().load(table, columns)


def _slow() -> SlowSource:
    made = build_source(kernels=KERNELS, ranges=[{"start_ns": 0, "end_ns": 9, "name": "r"}])
    return SlowSource(made._frames, made._filled, made._meta)


def _shared(source: FakeSource) -> SharedTrace:
    return SharedTrace(Trace(source), threading.Event())


def test_columns_are_read_once_and_by_one_thread_at_a_time() -> None:
    source = _slow()
    trace = _shared(source)
    columns = ["start_ns", "end_ns", "name", "device", "stream", "grid_x"]
    requests = [columns[: 1 + number % len(columns)] for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        frames = list(pool.map(lambda names: trace.table("kernels", names), requests))
    assert [frame.columns for frame in frames] == requests
    assert not source.overlapped
    assert set(source.loads.values()) == {1}


def test_derived_columns_and_attributes_work_from_any_thread() -> None:
    trace = _shared(_slow())
    with ThreadPoolExecutor(4) as pool:
        depths = list(pool.map(lambda _: trace.ranges["depth"].to_list(), range(8)))
    assert depths == [[0]] * 8
    assert trace.has("kernels")
    assert trace.row_count("kernels") == 5


def test_what_is_derived_is_computed_once() -> None:
    trace, calls = _shared(_slow()), []

    def compute() -> pl.DataFrame:
        calls.append(1)
        time.sleep(0.02)
        return pl.DataFrame({"n": [1]})

    with ThreadPoolExecutor(4) as pool:
        frames = list(pool.map(lambda _: trace.derive("key", compute), range(8)))
    assert len(calls) == 1
    assert all(frame.equals(frames[0]) for frame in frames)


def test_what_is_there_does_not_wait_for_what_is_being_computed() -> None:
    trace, begun, go_on = _shared(_slow()), threading.Event(), threading.Event()
    trace.table("kernels", ["start_ns"])

    def compute() -> pl.DataFrame:
        begun.set()
        assert go_on.wait(5)
        return pl.DataFrame({"n": [1]})

    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(trace.derive, "long", compute)
        assert begun.wait(5)
        assert trace.table("kernels", ["start_ns"]).height == 5
        assert trace.table("kernels", ["end_ns"]).height == 5
        assert trace.derive("other", lambda: pl.DataFrame({"n": [2]})).height == 1
        assert not long.done()
        go_on.set()
        assert long.result().height == 1


def test_who_asks_after_the_stop_is_stopped() -> None:
    stopping = threading.Event()
    trace = SharedTrace(Trace(_slow()), stopping)
    trace.table("kernels", ["start_ns"])
    stopping.set()
    for ask in (
        lambda: trace.table("kernels", ["start_ns"]),
        lambda: trace.table("kernels"),
        lambda: trace.derive("x", pl.DataFrame),
        lambda: trace.row_count("ranges"),
        lambda: trace.has("ranges"),
    ):
        with pytest.raises(ServerStopped):
            ask()


class Kept:
    """A cache that only counts how often it was asked to write everything down."""

    flushed = 0

    def holds(self, *_: object) -> bool:
        return False

    def recall(self, _: str) -> None:
        return None

    def remember(self, key: str, frame: pl.DataFrame) -> None:
        pass

    def flush(self) -> None:
        self.flushed += 1

    def notes(self) -> tuple[str, ...]:
        return ()


@pytest.mark.parametrize(
    ("cached", "worth", "reads"), [(True, 0, 2), (True, 10**9, 1), (False, 0, 1)]
)
def test_large_tables_are_let_go_of_where_a_cache_has_them(
    cached: bool, worth: int, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded_capture, "_MIN_RELEASED_BYTES", worth)
    source, kept = _slow(), Kept()
    trace = SharedTrace(Trace(source, kept if cached else None), threading.Event())
    for _ in range(2):
        assert trace.table("kernels", ["start_ns"]).height == 5
        trace.let_go()
    assert source.loads["kernels", "start_ns"] == reads
    assert bool(kept.flushed) is (reads == 2)
