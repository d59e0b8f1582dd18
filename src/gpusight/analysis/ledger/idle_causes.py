"""What the host did at every instant, by cause: the first layer that holds counts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.nested_intervals import joint_keys
from gpusight.analysis.attribution.work_causes import main_threads
from gpusight.analysis.gpu_schedule import NONE, CallKind
from gpusight.analysis.ledger.host_lanes import HostLanes
from gpusight.analysis.ledger.input_detection import (
    is_compiling,
    is_input,
    is_loading,
    is_locked,
    is_reading,
    is_waiting,
    unnamed_input,
)
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.trace.intervals import Intervals, contains, distinct, gaps, intersect, subtract, union

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace

    HostLayer: TypeAlias = tuple[IdleCause, Intervals]


_SHORT_NS = 20_000
"""Calls that neither launch, wait nor allocate are the framework's below this, other work above."""
_SILENCE_NS = 1_000_000
_SILENCE_GAPS = 20
"""A silence is unknown when it is longer than this many times the usual time between calls."""
_SETUP_NS = 10_000_000
"""The first allocation of a process also creates its context, if it takes longer than this."""
_MOST_LAUNCHES = 1 / 3
"""Ranges whose name speaks of input but that hold more of their thread's launches are not input."""
_CALL_CAUSES = {
    IdleCause.SYNCHRONISING: (CallKind.SYNC,),
    IdleCause.ALLOCATING: (CallKind.ALLOCATE, CallKind.FREE),
    IdleCause.LAUNCHING: (CallKind.LAUNCH, CallKind.GRAPH, CallKind.COPY, CallKind.FILL),
}
_REST = (CallKind.RECORD, CallKind.WAIT_EVENT, CallKind.OTHER)
_EVENTS = ["start_ns", "end_ns", "thread"]
_NAMING = ("cpu_ops", "python_calls")


def layers(trace: Trace, lanes: HostLanes) -> list[HostLayer]:
    """Give what lanes did, innermost first; what no layer holds is the framework's."""
    if not len(lanes.numbers):
        return []
    ranges = HostRangesByThread(trace, lanes)
    known = [
        *_overheads(trace, lanes),
        *_calls(lanes),
        (IdleCause.INPUT, _input(trace, lanes, ranges)),
        (IdleCause.OTHER, _waiting(trace, lanes, ranges)),
    ]
    return [*known, (IdleCause.UNKNOWN, _silent(trace, lanes, ranges, known))]


# Calls and the profiler ---------------------------------------------------------------------------


def _overheads(trace: Trace, lanes: HostLanes) -> list[HostLayer]:
    """Give what the profiler did; what it counts as its own but is not, is other work."""
    threads = trace.table("threads", ["thread"])["thread"].to_list()
    nowhere = pl.col("thread").is_null() | ~pl.col("thread").is_in(threads)
    found = []
    wanted = (
        (IdleCause.PROFILER, lambda name: not is_loading(name)),
        (IdleCause.OTHER, is_loading),
    )
    for cause, chosen in wanted:
        frame = _events(trace, "overheads", chosen)
        everywhere = lanes.of_all(frame.filter(nowhere))
        found.append((cause, union(everywhere, lanes.of_threads(frame.filter(~nowhere)))))
    return found


def _calls(lanes: HostLanes) -> list[HostLayer]:
    calls, axis = lanes.schedule.calls, lanes.axis
    start, end = (axis.at(calls.lane, t) for t in (calls.start_ns, calls.end_ns))
    found = [(IdleCause.SYNCHRONISING, _returning(lanes))]
    first = _first_touch(lanes)
    found.append((IdleCause.OTHER, Intervals.from_arrays(start[first], end[first])))
    for cause, kinds in _CALL_CAUSES.items():
        chosen = np.isin(calls.kind, kinds)
        found.append((cause, Intervals.from_arrays(start[chosen], end[chosen])))
    rest, short = np.isin(calls.kind, _REST), calls.end_ns - calls.start_ns < _SHORT_NS
    for cause, chosen in ((IdleCause.FRAMEWORK, rest & short), (IdleCause.OTHER, rest & ~short)):
        found.append((cause, Intervals.from_arrays(start[chosen], end[chosen])))
    return found


def _first_touch(lanes: HostLanes) -> Ints:
    """Give the calls that seem to allocate but make a process ready to use the GPU."""
    calls = lanes.schedule.calls
    process = np.array([p for p, _ in lanes.schedule.threads], np.int64)[calls.thread]
    at = np.flatnonzero(np.isin(calls.kind, _CALL_CAUSES[IdleCause.ALLOCATING]))
    _, first = np.unique(process[at], return_index=True)
    chosen: Ints = at[first]
    return chosen[calls.end_ns[chosen] - calls.start_ns[chosen] > _SETUP_NS]


def _returning(lanes: HostLanes) -> Intervals:
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


class HostRangesByThread:
    """The ranges of a trace, and whose count for threads that have none: the step's thread's."""

    def __init__(self, trace: Trace, lanes: HostLanes) -> None:
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


def _input(trace: Trace, lanes: HostLanes, ranges: HostRangesByThread) -> Intervals:
    """Give the time of input: ranges, operators, Python and calls that read, sleep or wait."""
    launches = _LaunchCalls(lanes)
    named = launches.without_work(_named(ranges.frame, is_input))
    spans = [lanes.of_threads(named, ranges.stand_in)]
    for table in _NAMING:
        events = _events(trace, table, is_input, name=True)
        spans.append(lanes.of_threads(launches.without_work(events)))
    reading, waiting = (
        lanes.of_threads(_events(trace, "os_calls", wanted)) for wanted in (is_reading, is_locked)
    )
    spans += [reading, unnamed_input(trace, lanes, reading, subtract(waiting, _handed(lanes)))]
    return _united(spans)


class _LaunchCalls:
    """The launches of each thread, to tell input from whole steps that are named like it."""

    def __init__(self, lanes: HostLanes) -> None:
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


def _waiting(trace: Trace, lanes: HostLanes, ranges: HostRangesByThread) -> Intervals:
    """Give the time of compiling, and of waits that no hand-over between threads explains."""
    compiling = [lanes.of_threads(_events(trace, table, is_compiling)) for table in _NAMING]
    compiling.append(lanes.of_threads(_named(ranges.frame, is_compiling).select(_EVENTS)))
    waits = _events(trace, "os_calls", is_waiting)
    waits = waits.filter(pl.col("end_ns") - pl.col("start_ns") >= _SHORT_NS)
    return _united([*compiling, subtract(lanes.of_threads(waits), _handed(lanes))])


def _handed(lanes: HostLanes) -> Intervals:
    """Give the time that hand-overs between threads take."""
    return Intervals.from_arrays(lanes.shifts.start_ns, lanes.shifts.first_ns)


def _silent(
    trace: Trace, lanes: HostLanes, ranges: HostRangesByThread, known: list[HostLayer]
) -> Intervals:
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


def _longer(lanes: HostLanes, spans: Intervals) -> Intervals:
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


_CAUSES = len(IdleCause)


@dataclass(frozen=True)
class HostTime:
    """How much of each cause lanes had spent at certain moments.

    Between two moments of a lane it grows evenly. As measured, each stretch has one cause, so that
    nothing is lost by that.
    """

    lane: Ints
    """Of each moment, rising."""
    time_ns: Ints
    """Of each moment, rising within its lane."""
    causes: Ints
    """Those that occur, rising: most captures have few."""
    spent_ns: Ints
    """Of each moment and cause, counted on from lane to lane: an array of two dimensions."""

    @classmethod
    def of_stretches(cls, lane: Ints, start_ns: Ints, end_ns: Ints, by_cause: Ints) -> HostTime:
        """Make it of stretches, each with its ns by cause; they are sorted and do not overlap."""
        causes = np.flatnonzero(by_cause.any(axis=0))
        grown = np.zeros((2 * len(lane), len(causes)), np.int64)
        grown[1::2] = by_cause[:, causes]
        times = np.stack((start_ns, end_ns), axis=1).reshape(-1)
        return cls(np.repeat(lane, 2), times, causes, np.cumsum(grown, axis=0))

    def spent(self, lanes: Ints, starts: Ints, ends: Ints) -> Ints:
        """Give the ns of each cause that lanes spent from `starts` to `ends`, one row a span.

        Rows sum to the length of their span exactly: where nothing is known of a lane, the cause
        is unknown. Reversed spans count nothing.
        """
        length = np.maximum(ends - starts, 0)
        found = np.zeros((len(length), _CAUSES), np.int64)
        if len(self.lane):
            done = self._until(lanes, starts + length) - self._until(lanes, starts)
            found[:, self.causes] = done
        found[:, IdleCause.UNKNOWN] += length - found.sum(axis=1)
        return _without_negatives(found)

    def moved(self, lane: Ints, before_ns: Ints, after_ns: Ints) -> HostTime:
        """Give it with moments of lanes moved; what lies between two of them stretches or shrinks.

        Moments are sorted by lane and time. A stretch that had no length and now has some is spent
        as the instant before it was.
        """
        at = np.flatnonzero(lane[1:] == lane[:-1])
        here, starts, ends = lane[at], before_ns[at], before_ns[at + 1]
        starts = np.where(ends > starts, starts, ends - 1)
        spent = self.spent(here, starts, ends)
        length = np.maximum(after_ns[at + 1] - after_ns[at], 0)
        scaled = _lane_part(spent, length, ends - starts)
        return HostTime.of_stretches(here, after_ns[at], after_ns[at] + length, scaled)

    @cached_property
    def pieces(self) -> tuple[Ints, Ints, Ints, Ints]:
        """The stretches: lane, start, end, and the cause that most of it was spent for."""
        if not len(self.causes):
            none = np.empty(0, np.int64)
            return none, none, none, none
        grown = np.diff(self.spent_ns, axis=0)
        some = np.flatnonzero((grown > 0).any(axis=1) & (self.lane[1:] == self.lane[:-1]))
        cause = self.causes[grown[some].argmax(axis=1)]
        return self.lane[some], self.time_ns[some], self.time_ns[some + 1], cause

    @cached_property
    def _bounds(self) -> tuple[Ints, Ints, Ints]:
        """The lanes, and the first and last moment of each."""
        first = np.flatnonzero(np.diff(self.lane, prepend=-1))
        return self.lane[first], first, np.append(first[1:], len(self.lane)) - 1

    def _until(self, lanes: Ints, times: Ints) -> Ints:
        """Give what lanes had spent by these times; nothing for lanes that are not known."""
        known, first, last = self._bounds
        code = np.minimum(np.searchsorted(known, lanes), len(known) - 1)
        strange = known[code] != lanes
        first, last = first[code], last[code]
        inside = np.clip(times, self.time_ns[first], self.time_ns[last])
        keys, wanted = joint_keys(self.lane, self.time_ns, known[code], inside)
        at = np.clip(np.searchsorted(keys, wanted, side="right") - 1, first, last)
        after = np.minimum(at + 1, last)
        length = self.time_ns[after] - self.time_ns[at]
        done: Ints = self.spent_ns[at]
        done += _lane_part(self.spent_ns[after] - done, inside - self.time_ns[at], length)
        done[strange] = 0
        return done


def host_time(trace: Trace, schedule: GpuSchedule) -> HostTime:
    """Find what each lane of a schedule did at every instant of its window."""
    lanes = HostLanes(schedule)
    found = [layer for layer in layers(trace, lanes) if len(layer[1])]
    windows = lanes.windows
    edges = [array for _, spans in found for array in (spans.starts, spans.ends)]
    cuts = distinct(windows.starts, windows.ends, *edges)
    cause = np.full(max(len(cuts) - 1, 0), int(IdleCause.FRAMEWORK))
    for layer, spans in reversed(found):
        cause[contains(spans, cuts[:-1])] = layer
    cause[~contains(windows, cuts[:-1])] = _CAUSES
    kept = np.append(np.diff(cause, prepend=-1) != 0, True)[: len(cuts)]
    return _cumulated(lanes, cuts[kept], cause[kept[:-1]])


def _cumulated(lanes: HostLanes, cuts: Ints, cause: Ints) -> HostTime:
    lane = lanes.axis.group(cuts)
    time = cuts - lane * (lanes.axis.length_ns + 1) + lanes.axis.start_ns
    length = np.diff(cuts)
    causes = np.flatnonzero(np.bincount(cause, minlength=_CAUSES)[:_CAUSES])
    spent = np.zeros((len(cuts), len(causes)), np.int64)
    for column, one in enumerate(causes):
        spent[1:, column] = np.cumsum(np.where(cause == one, length, 0))
    return HostTime(lane, time, causes, spent)


def _lane_part(whole: Ints, passed: Ints, length: Ints) -> Ints:
    """Give the part of each row that has passed; rows of sum `length` give rows of sum `passed`."""
    pure = whole == length[:, None]
    part: Ints = pure * passed[:, None]
    # Only a replay has stretches of several causes: as measured, each has one.
    mixed: NDArray[np.intp] = np.flatnonzero(~pure.any(axis=1) & (length > 0))
    if len(mixed):
        share = passed[mixed] / length[mixed]
        part[mixed] = whole[mixed] * share[:, None]
        # Rounding down loses a nanosecond or two: they go to the largest.
        lost = passed[mixed] - part[mixed].sum(axis=1)
        part[mixed, whole[mixed].argmax(axis=1)] += lost
    return part


def _without_negatives(rows: Ints) -> Ints:
    """Let the largest of a row make up for what rounding took below zero."""
    low = np.minimum(rows, 0)
    if low.any():
        rows = rows - low
        rows[np.arange(len(rows)), rows.argmax(axis=1)] += low.sum(axis=1)
    return rows
