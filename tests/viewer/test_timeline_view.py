"""What a timeline shows of any stretch, against a walk over every event."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pytest

from gpusight.errors import UsageError
from gpusight.viewer.timeline_view import LruCache, ViewerTimeline
from tests.shared import DATA, opened
from tests.traces import Rows, build_trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.trace.trace import Trace
    from gpusight.viewer.track_data import TimelineWindow


SHOWN = (
    *("kernels", "copies", "memsets", "graph_launches", "gpu_ranges", "ranges", "cpu_ops"),
    *("python_calls", "api_calls", "os_calls", "overheads", "syncs"),
)
WINDOWS = 8
Drawn: TypeAlias = "list[dict[str, Any]]"


class Event(NamedTuple):
    table: str
    row: int
    start_ns: int
    end_ns: int

    def inside(self, start_ns: int, end_ns: int) -> int:
        return max(0, min(self.end_ns, end_ns) - max(self.start_ns, start_ns))


def tangle(chance: random.Random, table: str, count: int, **choices: Sequence[object]) -> Drawn:
    """Make rows at random: many that overlap, some that begin together, some of no length."""
    named: dict[str, dict[str, Any]] = {
        **{table: {"bytes": 9} for table in ("copies", "memsets")},
        **{table: {} for table in ("syncs", "graph_launches")},
    }
    rows: Drawn = []
    for number in range(count):
        start = chance.randrange(0, 2_000)
        length = chance.choice((0, 1, 3, 40, 300))
        row = named.get(table, {"name": f"{table}_{number % 9}"})
        keys = {key: chance.choice(values) for key, values in choices.items()}
        rows.append({"start_ns": start, "end_ns": start + length, **row, **keys})
    return rows


@cache
def tangled() -> ViewerTimeline:
    chance = random.Random(8)
    streams: dict[str, list[object]] = {
        "stream": [7, 13, None],
        "device": [0, 3],
        "process": [1, 2, None],
    }
    threads: dict[str, list[object]] = {"thread": [11, 12, None], "process": [1, 2, None]}
    rows: dict[str, Drawn] = {
        **{table: tangle(chance, table, 40, **streams) for table in SHOWN[:4]},
        "gpu_ranges": tangle(chance, "gpu_ranges", 30, device=[0, None], stream=[7, None]),
        **{table: tangle(chance, table, 40, **threads) for table in SHOWN[5:-1]},
        "syncs": tangle(chance, "syncs", 30, process=[1, 2, None], correlation=[*range(20)]),
    }
    for number, row in enumerate(rows["api_calls"]):
        row["correlation"] = number
    for row in rows["ranges"]:
        row["kind"] = chance.choice(("push_pop", "start_end", "mark"))
    return ViewerTimeline(build_trace(None, **rows))


@cache
def captured(name: str) -> ViewerTimeline:
    return ViewerTimeline(opened(DATA / name))


CASES = ("tangled", "odd_cpu.sqlite", "jax_graph.trace.json.gz", "graph.sqlite")


@pytest.fixture(params=CASES)
def timeline(request: pytest.FixtureRequest) -> ViewerTimeline:
    return tangled() if request.param == "tangled" else captured(request.param)


def events_of(trace: Trace) -> list[Event]:
    return [
        Event(table, row, *times)
        for table in SHOWN
        for row, times in enumerate(trace.table(table, ["start_ns", "end_ns"]).iter_rows())
    ]


@cache
def placed(timeline: ViewerTimeline) -> dict[tuple[str, int], list[Event]]:
    """Ask of every event where it stands."""
    lines: dict[tuple[str, int], list[Event]] = defaultdict(list)
    for event in events_of(timeline.trace):
        spot = timeline.spot(event.table, event.row)
        assert spot is not None, f"{event} is nowhere"
        assert (spot.table, spot.row, spot.start_ns, spot.end_ns) == event
        lines[spot.track, spot.line].append(event)
    return lines


def random_windows(timeline: ViewerTimeline) -> list[tuple[int, int, int]]:
    """Choose stretches of all sizes, some of which reach out of the capture."""
    chance = random.Random(5)
    length = timeline.end_ns - timeline.start_ns
    windows = [(timeline.start_ns, timeline.end_ns, 64), (timeline.start_ns - 50, 1 << 60, 7)]
    for _ in range(WINDOWS):
        start = timeline.start_ns + int(chance.uniform(-0.1, 1.0) * length)
        windows.append(
            (start, start + 1 + int(chance.random() ** 4 * length), chance.choice((1, 9, 500)))
        )
    return windows


def keys(timeline: ViewerTimeline) -> list[str]:
    return [track.key for track in timeline.tracks if not track.series]


def test_every_event_stands_on_one_line_and_those_of_a_line_do_not_overlap(
    timeline: ViewerTimeline,
) -> None:
    counted: dict[str, int] = defaultdict(int)
    for (key, _), events in placed(timeline).items():
        counted[key] += len(events)
        events.sort(key=lambda event: (event.start_ns, event.end_ns))
        for one, following in pairwise(events):
            assert following.start_ns >= one.end_ns, (key, one, following)
    shown = [t for t in timeline.tracks if not t.series and t.kind not in ("ledger", "collectives")]
    assert counted == {track.key: track.events for track in shown}


def test_slices_and_bins_together_are_all_of_a_line_and_nothing_else(
    timeline: ViewerTimeline,
) -> None:
    for start, end, bins in random_windows(timeline):
        window = timeline.window(keys(timeline), start, end, bins)
        width = -(-(end - start) // window.bins)
        for line, at in enumerate(window.lines):
            if at[0].endswith(("ledger", "collectives")):
                continue
            events = [e for e in placed(timeline)[at] if e.start_ns < end and e.end_ns >= start]
            wide = [e for e in events if e.end_ns - e.start_ns >= width and e.inside(start, end)]
            wide.sort(key=lambda event: (event.start_ns, event.end_ns))
            assert slices_of(window, timeline, line) == wide
            narrow = [e for e in events if e.end_ns - e.start_ns < width]
            assert bins_of(window, line) == summed(window, narrow)


def slices_of(window: TimelineWindow, timeline: ViewerTimeline, line: int) -> list[Event]:
    slices, key = window.slices, window.lines[line][0]
    tables = next(track.tables for track in timeline.tracks if track.key == key)
    return [
        Event(
            tables[slices.table[i]],
            *(int(c[i]) for c in (slices.row, slices.start_ns, slices.end_ns)),
        )
        for i in range(len(slices.line))
        if slices.line[i] == line
    ]


def bins_of(window: TimelineWindow, line: int) -> dict[int, tuple[int, int]]:
    sums = window.bin_sums
    rows = zip(sums.line, sums.bin, sums.busy_ns, sums.count, strict=True)
    return {int(b): (int(busy), int(count)) for at, b, busy, count in rows if at == line}


def summed(window: TimelineWindow, events: list[Event]) -> dict[int, tuple[int, int]]:
    """Sum events up bin by bin, as `TimelineWindow.bins` says where those begin."""
    length = window.end_ns - window.start_ns
    sums = {}
    for number in range(window.bins):
        low = window.start_ns + number * length // window.bins
        high = window.start_ns + (number + 1) * length // window.bins
        busy = sum(event.inside(low, high) for event in events)
        count = sum(low <= event.start_ns < high for event in events)
        if busy or count:
            sums[number] = (busy, count)
    return sums


def test_labels_are_distinct_and_say_the_same_as_the_spot_of_a_slice(
    timeline: ViewerTimeline,
) -> None:
    window = timeline.window(keys(timeline), timeline.start_ns, timeline.end_ns, 300)
    assert len(set(window.labels)) == len(window.labels)
    slices = window.slices
    assert len(slices.line)
    for i in range(0, len(slices.line), 7):
        key, line = window.lines[slices.line[i]]
        spot = timeline.pick(key, line, int(slices.start_ns[i]), 0)
        assert spot is not None
        if spot.start_ns == slices.start_ns[i] and spot.end_ns == slices.end_ns[i]:
            assert (spot.name, spot.row) == (window.labels[slices.label[i]], slices.row[i])


TABLES_OF_ONE: dict[str, Rows] = {
    "kernels": [
        {"start_ns": 0, "end_ns": 100, "name": "ampere_sgemm_128x64_nn"},
        {"start_ns": 100, "end_ns": 200, "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)"},
    ],
    "copies": [
        {"start_ns": 200, "end_ns": 300, "bytes": 4_194_304},
        {"start_ns": 300, "end_ns": 400, "bytes": 8, "kind": "Unified Device-to-Host"},
        {"start_ns": 400, "end_ns": 500, "bytes": 8, "kind": "no direction"},
    ],
    "memsets": [{"start_ns": 500, "end_ns": 600, "bytes": 1_500}],
    "graph_launches": [
        {"start_ns": 600, "end_ns": 700, "graph": 12},
        {"start_ns": 700, "end_ns": 800},
    ],
    "api_calls": [
        {"start_ns": 0, "end_ns": 100, "name": "cudaLaunchKernel"},
        {"start_ns": 100, "end_ns": 200, "name": "cudaGraphLaunch"},
        {"start_ns": 200, "end_ns": 300, "name": "cudaStreamSynchronize"},
        {"start_ns": 300, "end_ns": 400, "name": "cudaMemcpyAsync"},
        {"start_ns": 400, "end_ns": 500, "name": "cudaMalloc"},
        {"start_ns": 500, "end_ns": 600, "name": "cudaGetDevice"},
    ],
    "syncs": [{"start_ns": 200, "end_ns": 300, "kind": "stream"}],
    "overheads": [{"start_ns": 200, "end_ns": 300, "name": "flush"}],
    "collectives": [{"start_ns": 200, "end_ns": 300, "name": "allreduce", "side": "host"}],
}


def test_slices_are_named_and_colored_by_what_they_are() -> None:
    timeline = ViewerTimeline(build_trace(None, **TABLES_OF_ONE))
    window = timeline.window(keys(timeline), 0, 800, 800)
    slices = window.slices
    looks = {
        (window.labels[slices.label[i]], timeline.colors[slices.color[i]])
        for i in range(len(slices.line))
    }
    assert looks == {
        ("gemm f32 nn 128x64", "compute/matmul"),
        ("nccl AllReduce Sum f32 RING LL", "communication"),
        ("HtoD 4.194 MB", "copy/h2d"),
        ("Unified DtoH 8 B", "copy/unified"),
        ("no direction 8 B", "copy/other"),
        ("memset 1.500 kB", "copy/memset"),
        ("CUDA graph 12", "compute/graph"),
        ("CUDA graph", "compute/graph"),
        ("cudaLaunchKernel", "api/launch"),
        ("cudaGraphLaunch", "api/launch"),
        ("cudaStreamSynchronize", "api/synchronize"),
        ("cudaMemcpyAsync", "api/copy"),
        ("cudaMalloc", "api/memory"),
        ("cudaGetDevice", "api/other"),
        ("wait for stream", "api/synchronize"),
        ("flush", "overhead"),
        ("allreduce", "communication"),
    }


def test_names_that_differ_in_numbers_look_alike_and_long_ones_are_cut() -> None:
    names = ["step_1", "step_22", "a\nb", "x" * 500, "</script><img src=x onerror=alert(1)>"]
    rows = [
        {"start_ns": 10 * n, "end_ns": 10 * n + 10, "name": name} for n, name in enumerate(names)
    ]
    timeline = ViewerTimeline(build_trace(ranges=rows))
    window = timeline.window(["p0/t0/ranges"], 0, 50, 50)
    assert window.labels == ("step_1", "step_22", "a b", "x" * 119 + "…", names[4])
    colors = [timeline.colors[code] for code in window.slices.color]
    assert colors[0] == colors[1]
    assert all(color.startswith("host/") for color in colors)


def test_only_tracks_asked_for_are_answered_each_once() -> None:
    timeline = ViewerTimeline(
        build_trace(kernels=[{"name": "k", "end_ns": 9}], api_calls=[{"end_ns": 4}])
    )
    window = timeline.window(["p0/t0/api", "gpu0/stream7", "p0/t0/api"], 0, 10, 10)
    assert window.lines == (("p0/t0/api", 0), ("gpu0/stream7", 0))


def test_a_bin_is_never_narrower_than_a_nanosecond() -> None:
    timeline = ViewerTimeline(build_trace(kernels=[{"name": "k", "end_ns": 9}]))
    assert timeline.window([], 0, 5, 2_000).bins == 5


ABSURD = {
    "no bins": ([], 0, 9, 0),
    "too many bins": ([], 0, 9, 8_193),
    "an empty stretch": ([], 5, 5, 10),
    "a stretch that runs backwards": ([], 9, 5, 10),
    "a time beyond all": ([], 0, 1 << 63, 10),
    "an unknown track": (["gpu0/stream8"], 0, 9, 10),
}


@pytest.mark.parametrize("case", ABSURD)
def test_what_makes_no_sense_is_refused(case: str) -> None:
    timeline = ViewerTimeline(build_trace(kernels=[{"name": "k", "end_ns": 9}]))
    with pytest.raises(UsageError):
        timeline.window(*ABSURD[case])


def test_picking_finds_what_is_there_or_near() -> None:
    rows = [
        {"start_ns": 10, "end_ns": 20, "name": "k"},
        {"start_ns": 50, "end_ns": 60, "name": "l"},
    ]
    timeline = ViewerTimeline(
        build_trace(kernels=rows, memory_events=[{"bytes": 1, "address": 1, "time_ns": 3}])
    )
    result = [timeline.pick("gpu0/stream7", 0, time, 5) for time in (10, 24, 30, 46)]
    assert [spot and (spot.table, spot.row, spot.name, spot.line) for spot in result] == [
        ("kernels", 0, "k", 0),
        ("kernels", 0, "k", 0),
        None,
        ("kernels", 1, "l", 0),
    ]
    assert timeline.pick("gpu0/memory", 0, 10, 5) is None
    assert timeline.pick("gpu0/ledger", 0, 10, 5) is None
    with pytest.raises(UsageError):
        timeline.pick("gpu0/stream7", 1, 10, 5)


def test_a_row_that_no_track_shows_has_no_spot() -> None:
    timeline = ViewerTimeline(build_trace(kernels=[{"name": "k", "end_ns": 9}]))
    assert timeline.spot("kernels", 1) is None
    assert timeline.spot("kernels", -1) is None
    assert timeline.spot("devices", 0) is None
    assert timeline.spot("nothing", 0) is None


def test_the_ledger_pends_until_it_is_computed_then_fills_its_stretch() -> None:
    trace = build_trace(
        kernels=[
            {"start_ns": 100, "end_ns": 200, "name": "ampere_sgemm_128x64_nn", "correlation": 1},
            {"start_ns": 300, "end_ns": 400, "name": "ampere_sgemm_128x64_nn", "correlation": 2},
        ],
        api_calls=[
            {"start_ns": 0, "end_ns": 50, "correlation": 1},
            {"start_ns": 250, "end_ns": 290, "correlation": 2},
        ],
    )
    timeline = ViewerTimeline(trace)
    before = timeline.window(["gpu0/ledger"], 0, 400, 400)
    assert (before.lines, before.pending) == ((), ("gpu0/ledger",))
    timeline.prepare_ledger()
    after = timeline.window(["gpu0/ledger"], 0, 400, 400)
    assert (after.lines, after.pending) == ((("gpu0/ledger", 0),), ())
    slices = after.slices
    spent = (slices.end_ns - slices.start_ns).tolist()
    names = [after.labels[label] for label in slices.label]
    assert sum(spent) == 400
    assert (
        sum(ns for ns, name in zip(spent, names, strict=True) if name == "compute: matmul") == 200
    )
    assert timeline.tracks[0].events == len(spent)
    picked = timeline.pick("gpu0/ledger", 0, 150, 0)
    assert picked is not None
    assert (picked.table, picked.name) == ("ledger", "compute: matmul")


def test_a_ledger_that_cannot_be_computed_is_empty_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise UsageError("no such thing")

    monkeypatch.setattr("gpusight.viewer.ledger_track.ledger_lines", refuse)
    timeline = ViewerTimeline(build_trace(kernels=[{"name": "k", "end_ns": 9}]))
    timeline.prepare_ledger()
    assert timeline.window(["gpu0/ledger"], 0, 9, 9).pending == ()
    assert timeline.notes == ("the ledger is not shown: no such thing",)


def test_memory_and_metrics_are_points() -> None:
    trace = build_trace(
        kernels=[{"start_ns": 0, "end_ns": 100, "name": "k"}],
        gpu_metrics=[
            {"time_ns": t, "metric": "Active %", "value": v} for t, v in ((10, 5.0), (20, 9.0))
        ],
        memory_events=[
            {"time_ns": 50, "bytes": 4, "allocated_bytes": 10, "reserved_bytes": 64},
            {"time_ns": 60, "bytes": 8, "allocated_bytes": 18, "reserved_bytes": 64},
        ],
    )
    timeline = ViewerTimeline(trace)
    window = timeline.window(["gpu0/memory", "gpu0/metric"], 0, 100, 10)
    assert window.lines == (("gpu0/memory", 0), ("gpu0/memory", 1), ("gpu0/metric", 0))
    points = window.points
    at = {
        (int(line), int(b)): (low, high)
        for line, b, low, high in zip(points.line, points.bin, points.low, points.high, strict=True)
    }
    assert at[0, 0] == (6, 6), "what was held before the first event"
    assert at[0, 9] == (18, 18), "what is held from the last event on"
    assert at[1, 7] == (64, 64)
    assert at[2, 1] == (5, 5)
    assert at[2, 2] == (9, 9)


def test_lines_are_let_go_of_beyond_the_budget_and_built_again() -> None:
    rows = [{"start_ns": n, "end_ns": n + 1, "name": "k", "stream": n % 5} for n in range(100)]
    timeline = ViewerTimeline(build_trace(kernels=rows), most_bytes=1_000)
    shown = [timeline.window(keys(timeline), 0, 100, 4).bin_sums.busy_ns.tolist() for _ in range(3)]
    assert shown[0] == shown[1] == shown[2]
    assert timeline.kept_bytes <= 1_000


def test_several_threads_may_ask_at_once() -> None:
    timeline = captured("odd_cpu.sqlite")
    windows = random_windows(timeline) * 4
    requested = keys(timeline)
    with ThreadPoolExecutor(8) as pool:
        shown = list(
            pool.map(lambda w: timeline.window(requested, *w).slices.row.tolist(), windows)
        )
    assert shown == [timeline.window(requested, *w).slices.row.tolist() for w in windows]


def test_more_lines_than_can_be_shown_are_refused_before_they_are_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deep = [{"start_ns": n, "end_ns": 100 - n, "name": "r"} for n in range(5)]
    timeline = ViewerTimeline(build_trace(ranges=deep))
    assert len(timeline.window(keys(timeline), 0, 100, 10).lines) == 5
    kept = timeline.kept_bytes
    monkeypatch.setattr("gpusight.viewer.timeline_view.MAX_LINES", 4)
    with pytest.raises(UsageError, match="these tracks have 5 lines"):
        timeline.window(keys(timeline), 0, 100, 10)
    assert timeline.kept_bytes == kept


# What is kept, what is let go of, and that nothing is built twice at once.


@dataclass
class Thing:
    nbytes: int


def test_what_was_not_used_for_longest_goes_first() -> None:
    cache, built = LruCache(100), list[str]()

    def build(key: str) -> Thing:
        built.append(key)
        return Thing(40)

    for key in ("a", "b", "a", "c", "a", "b"):
        cache.take(key, partial(build, key))
    assert built == ["a", "b", "c", "b"], "`b` had to go for `c`, `c` for `b`"
    assert cache.nbytes == 80


def test_what_is_larger_than_all_that_fits_is_kept_alone() -> None:
    cache = LruCache(100)
    cache.take("small", lambda: Thing(10))
    cache.take("huge", lambda: Thing(1_000))
    assert cache.nbytes == 1_000


def test_two_threads_do_not_build_the_same() -> None:
    cache, built, begun = LruCache(100), list[int](), threading.Barrier(4)

    def build() -> Thing:
        built.append(1)
        return Thing(1)

    def take(_: int) -> Thing:
        begun.wait()
        return cache.take("a", build)

    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(take, range(4)))
    assert len(built) == 1
    assert all(thing is taken[0] for thing in taken)


def test_what_is_there_can_be_taken_while_something_else_is_built() -> None:
    cache, building, done = LruCache(100), threading.Event(), threading.Event()
    cache.take("there", lambda: Thing(1))

    def build_slowly() -> Thing:
        building.set()
        assert done.wait(5)
        return Thing(1)

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(cache.take, "slow", build_slowly)
        assert building.wait(5)
        assert cache.take("there", lambda: Thing(2)).nbytes == 1
        done.set()
        assert slow.result(5).nbytes == 1
