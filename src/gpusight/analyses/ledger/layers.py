"""What the host did, in layers: where several things hold for an instant, the first layer counts.

From the inside out: the profiler at work, API calls, input, other work and waits. What is left is
the framework's or Python's time between calls, unless it is one long silence that nothing names.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import polars as pl

from gpusight.analyses.attribution.attribute import main_threads
from gpusight.analyses.ledger.causes import Cause
from gpusight.analyses.ledger.names import (
    is_compiling,
    is_input,
    is_loading,
    is_locked,
    is_reading,
    is_waiting,
)
from gpusight.analyses.ledger.prepared import prepared
from gpusight.analyses.schedule.schedule import NONE, CallKind
from gpusight.analyses.statistics import names_of
from gpusight.model.intervals import Intervals, gaps, intersect, subtract, union

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpusight.analyses.ledger.lanes import Lanes
    from gpusight.analyses.schedule.schedule import Ints
    from gpusight.model.trace import Trace

    Layer: TypeAlias = tuple[Cause, Intervals]

_SHORT_NS = 20_000
"""Calls that neither launch, wait nor allocate are the framework's below this, other work above."""
_SILENCE_NS = 1_000_000
_SILENCE_GAPS = 20
"""A silence is unknown when it is longer than this many times the usual time between calls."""
_SETUP_NS = 10_000_000
"""The first allocation of a process also creates its context, if it takes longer than this."""
_MOST_LAUNCHES = 1 / 3
"""Ranges whose name speaks of input but that hold more of their thread's launches are not input."""
_CALLS = {
    Cause.SYNCHRONISING: (CallKind.SYNC,),
    Cause.ALLOCATING: (CallKind.ALLOCATE, CallKind.FREE),
    Cause.LAUNCHING: (CallKind.LAUNCH, CallKind.GRAPH, CallKind.COPY, CallKind.FILL),
}
_REST = (CallKind.RECORD, CallKind.WAIT_EVENT, CallKind.OTHER)
_EVENTS = ["start_ns", "end_ns", "thread"]
_NAMING = ("cpu_ops", "python_calls")


def layers(trace: Trace, lanes: Lanes) -> list[Layer]:
    """Give what lanes did, innermost first; what no layer holds is the framework's."""
    if not len(lanes.numbers):
        return []
    ranges = Ranges(trace, lanes)
    known = [
        *_overheads(trace, lanes),
        *_calls(lanes),
        (Cause.INPUT, _input(trace, lanes, ranges)),
        (Cause.OTHER, _waiting(trace, lanes, ranges)),
    ]
    return [*known, (Cause.UNKNOWN, _silent(trace, lanes, ranges, known))]


# Calls and the profiler ---------------------------------------------------------------------------


def _overheads(trace: Trace, lanes: Lanes) -> list[Layer]:
    """Give what the profiler did; what it counts as its own but is not, is other work."""
    threads = trace.table("threads", ["thread"])["thread"].to_list()
    nowhere = pl.col("thread").is_null() | ~pl.col("thread").is_in(threads)
    found = []
    wanted = ((Cause.PROFILER, lambda name: not is_loading(name)), (Cause.OTHER, is_loading))
    for cause, chosen in wanted:
        frame = _events(trace, "overheads", chosen)
        everywhere = lanes.of_all(frame.filter(nowhere))
        found.append((cause, union(everywhere, lanes.of_threads(frame.filter(~nowhere)))))
    return found


def _calls(lanes: Lanes) -> list[Layer]:
    calls, axis = lanes.schedule.calls, lanes.axis
    start, end = (axis.at(calls.lane, t) for t in (calls.start_ns, calls.end_ns))
    found = [(Cause.SYNCHRONISING, _returning(lanes))]
    first = _first_touch(lanes)
    found.append((Cause.OTHER, Intervals.from_arrays(start[first], end[first])))
    for cause, kinds in _CALLS.items():
        chosen = np.isin(calls.kind, kinds)
        found.append((cause, Intervals.from_arrays(start[chosen], end[chosen])))
    rest, short = np.isin(calls.kind, _REST), calls.end_ns - calls.start_ns < _SHORT_NS
    for cause, chosen in ((Cause.FRAMEWORK, rest & short), (Cause.OTHER, rest & ~short)):
        found.append((cause, Intervals.from_arrays(start[chosen], end[chosen])))
    return found


def _first_touch(lanes: Lanes) -> Ints:
    """Give the calls that seem to allocate but make a process ready to use the GPU."""
    calls = lanes.schedule.calls
    process = np.array([p for p, _ in lanes.schedule.threads], np.int64)[calls.thread]
    at = np.flatnonzero(np.isin(calls.kind, _CALLS[Cause.ALLOCATING]))
    _, first = np.unique(process[at], return_index=True)
    chosen: Ints = at[first]
    return chosen[calls.end_ns[chosen] - calls.start_ns[chosen] > _SETUP_NS]


def _returning(lanes: Lanes) -> Intervals:
    """Give the ends of copies that blocked: the copy was done, the call had yet to return."""
    calls, ops = lanes.schedule.calls, lanes.schedule.ops
    done = np.full(len(calls), np.iinfo(np.int64).max)
    own = np.flatnonzero(ops.call != NONE)
    own = own[calls.kind[ops.call[own]] == CallKind.COPY]
    done[ops.call[own]] = calls.start_ns[ops.call[own]]
    np.maximum.at(done, ops.call[own], ops.end_ns[own])
    start, end = (lanes.axis.at(calls.lane, t) for t in (done, calls.end_ns))
    return Intervals.from_arrays(start, end)


# Ranges, operators, the operating system ----------------------------------------------------------


class Ranges:
    """The ranges of a trace, and whose count for threads that have none: the step's thread's."""

    def __init__(self, trace: Trace, lanes: Lanes) -> None:
        columns = [*_EVENTS, "name", "kind", "open", "process"]
        self.frame = trace.table("ranges", columns).filter(
            pl.col("kind").cast(pl.String) != "mark", ~pl.col("open").fill_null(value=False)
        )
        known = self.frame.filter(pl.col("thread").is_not_null())
        counts = known.group_by("process", "thread").len().sort("len", "thread")
        # Written in order of count: the thread with the most ranges of its process stays.
        busiest = dict(counts.select("process", "thread").iter_rows())
        own, main = set(counts["thread"].to_list()), main_threads(trace)
        self.stand_in: dict[int, int] = {}
        for position, (process, thread) in enumerate(lanes.schedule.threads):
            if thread not in own:
                other = main.get(process)
                chosen = other if other in own else busiest.get(process)
                self.stand_in |= {} if chosen is None else {position: chosen}


def _input(trace: Trace, lanes: Lanes, ranges: Ranges) -> Intervals:
    """Give the time of input: ranges, operators, Python and calls that read, sleep or wait."""
    launches = _Launches(lanes)
    named = launches.without_work(_named(ranges.frame, is_input))
    spans = [lanes.of_threads(named, ranges.stand_in)]
    for table in _NAMING:
        events = _events(trace, table, is_input, name=True)
        spans.append(lanes.of_threads(launches.without_work(events)))
    reading, waiting = (
        lanes.of_threads(_events(trace, "os_calls", wanted)) for wanted in (is_reading, is_locked)
    )
    spans += [reading, prepared(trace, lanes, reading, subtract(waiting, _handed(lanes)))]
    return _united(spans)


class _Launches:
    """The launches of each thread, to tell input from whole steps that are named like it."""

    def __init__(self, lanes: Lanes) -> None:
        self._schedule = lanes.schedule

    @cached_property
    def _times(self) -> dict[int, Ints]:
        """When each thread launched."""
        calls, threads = self._schedule.calls, self._schedule.threads
        at = np.flatnonzero(np.isin(calls.kind, (CallKind.LAUNCH, CallKind.GRAPH)))
        at = at[np.argsort(calls.thread[at], kind="stable")]
        ends = np.cumsum(np.bincount(calls.thread[at], minlength=len(threads)))
        parts = np.split(calls.start_ns[at], ends[:-1])
        return {thread: part for (_, thread), part in zip(threads, parts, strict=True)}

    def without_work(self, events: pl.DataFrame) -> pl.DataFrame:
        """Leave out events of names that hold much of what their threads launched."""
        if events.is_empty():
            return events
        parts = [self._held(part) for _, part in events.group_by("thread", maintain_order=True)]
        held = pl.concat(parts)
        family = pl.col("name").cast(pl.String).str.replace_all(r"\d+", "#")
        much = pl.col("held").sum().over("thread", family) > _MOST_LAUNCHES
        return held.filter(~much).select(_EVENTS)

    def _held(self, events: pl.DataFrame) -> pl.DataFrame:
        """Say which part of the launches of a thread each of its events holds."""
        times = self._times.get(events["thread"][0], np.empty(0, np.int64))
        first, after = (np.searchsorted(times, events[c]) for c in ("start_ns", "end_ns"))
        return events.with_columns(pl.Series("held", (after - first) / max(len(times), 1)))


def _waiting(trace: Trace, lanes: Lanes, ranges: Ranges) -> Intervals:
    """Give the time of compiling, and of waits that no hand-over between threads explains."""
    compiling = [lanes.of_threads(_events(trace, table, is_compiling)) for table in _NAMING]
    compiling.append(lanes.of_threads(_named(ranges.frame, is_compiling).select(_EVENTS)))
    waits = _events(trace, "os_calls", is_waiting)
    waits = waits.filter(pl.col("end_ns") - pl.col("start_ns") >= _SHORT_NS)
    return _united([*compiling, subtract(lanes.of_threads(waits), _handed(lanes))])


def _handed(lanes: Lanes) -> Intervals:
    """Give the time that hand-overs between threads take."""
    return Intervals.from_arrays(lanes.shifts.start_ns, lanes.shifts.first_ns)


def _silent(trace: Trace, lanes: Lanes, ranges: Ranges, known: list[Layer]) -> Intervals:
    """Give long stretches without a call, under no range and no operator."""
    quiet = gaps(_united(spans for _, spans in known), 0, int(lanes.windows.ends[-1]))
    # Most stretches between two calls are short: they need not be cut at the ends of lanes.
    kept = quiet.ends - quiet.starts > _SILENCE_NS
    quiet = Intervals(quiet.starts[kept], quiet.ends[kept])
    silent = _longer(lanes, intersect(quiet, lanes.windows))
    if not len(silent):
        return silent
    named = [lanes.of_threads(ranges.frame.select(_EVENTS), ranges.stand_in)]
    named += [lanes.of_threads(_events(trace, table, None)) for table in _NAMING]
    return _longer(lanes, subtract(silent, _united(named)))


def _longer(lanes: Lanes, spans: Intervals) -> Intervals:
    """Keep the spans that are much longer than what usually lies between two calls of the lane."""
    calls, order = lanes.schedule.calls, lanes.order
    lane = calls.lane[order]
    gap = calls.start_ns[order][1:] - calls.end_ns[order][:-1]
    within = (lane[1:] == lane[:-1]) & (gap > 0)
    usual = pl.DataFrame({"lane": lane[1:][within], "gap": gap[within]})
    medians = usual.group_by("lane").agg(pl.col("gap").median())
    limits = np.full(int(lanes.numbers.max()) + 1, float(_SILENCE_NS))
    limits[medians["lane"]] = np.maximum(_SILENCE_NS, _SILENCE_GAPS * medians["gap"].to_numpy())
    kept = spans.ends - spans.starts > limits[lanes.axis.group(spans.starts)]
    return Intervals(spans.starts[kept], spans.ends[kept])


def _events(
    trace: Trace, table: str, wanted: Callable[[str], bool] | None, *, name: bool = False
) -> pl.DataFrame:
    """Give the events of a table whose names are wanted, looking at each distinct one once."""
    columns = _EVENTS if wanted is None else [*_EVENTS, "name"]
    frame = trace.table(table, columns)
    found = frame if wanted is None else _named(frame, wanted)
    return found.select([*_EVENTS, "name"] if name else _EVENTS)


def _named(frame: pl.DataFrame, wanted: Callable[[str], bool]) -> pl.DataFrame:
    codes = [code for code, text in enumerate(names_of(frame["name"])) if wanted(text)]
    return frame.filter(pl.col("name").to_physical().is_in(codes)) if codes else frame.clear()


def _united(spans: Iterable[Intervals]) -> Intervals:
    every = list(spans)
    return Intervals.from_arrays(
        np.concatenate([s.starts for s in every]), np.concatenate([s.ends for s in every])
    )
