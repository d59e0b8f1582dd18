"""What the host did at every instant, by cause: the first layer that holds counts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import is_named, kept, names_of
from gpusight.analysis.attribution.work_causes import main_threads
from gpusight.analysis.gpu_schedule import NONE, CallKind, OpKind, number_rows
from gpusight.analysis.ledger.host_threads import HostTime, LaunchThreads, unnamed_input
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.steps.step_list import closed
from gpusight.core import native
from gpusight.naming.host_names import (
    is_collective,
    is_compiling,
    is_idling,
    is_input,
    is_loading,
    is_locked,
    is_reading,
    is_waiting,
)
from gpusight.trace.intervals import (
    Intervals,
    contains,
    distinct,
    gaps,
    intersect,
    search,
    subtract,
    union,
)
from gpusight.trace.part_of_trace import part_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.trace.intervals import Flags, Ints, Reals
    from gpusight.trace.trace import Trace

    HostLayer: TypeAlias = tuple[IdleCause, Intervals]


def without_loading(overheads: pl.DataFrame) -> pl.DataFrame:
    """Keep the overhead that is the profiler's own."""
    own = [code for code, name in enumerate(names_of(overheads["name"])) if not is_loading(name)]
    return overheads.filter(pl.col("name").to_physical().is_in(own))


# Layers -------------------------------------------------------------------------------------------


_SHORT_NS = 20_000
"""Calls that neither launch, wait nor allocate are the framework's below this, other work above."""
_SILENCE_NS = 1_000_000
_SILENCE_GAPS = 20
"""A silence is unknown when it is longer than this many times the usual time between calls."""
_SETUP_NS = 10_000_000
"""The first allocation of a process also creates its context, if it takes longer than this."""
_LOADING_NS = 200_000
"""The first launch of a kernel loads its code, if it takes longer than this; others take µs."""
_EVERYDAY = re.compile(
    r"Query|IsCapturing|CaptureInfo|PointerGet|HostFunc|AddCallback|Record|WaitEvent|LastError"
    r"|(?:Get|Set)Device$|StreamPriority|INVALID"
)
"""Calls of running code; other calls that take long create, load or destroy something."""
_CAPTURE_BEGINS, _CAPTURE_ENDS = (
    re.compile(rf"^(?:cu|cuda|hip)Stream{edge}Capture") for edge in ("Begin", "End")
)
_MANY_FAMILIES = 1 << 20
"""Names of threads from which on those that occur are sorted out first."""
_MAX_LAUNCHES = 1 / 3
"""Ranges named like input that hold more of their thread's launches are not input."""
_CALL_CAUSES = {
    IdleCause.SYNCHRONIZING: (CallKind.SYNC,),
    IdleCause.ALLOCATING: (CallKind.ALLOCATE, CallKind.FREE),
    IdleCause.LAUNCHING: (CallKind.LAUNCH, CallKind.GRAPH, CallKind.COPY, CallKind.MEMSET),
}
_REST = (CallKind.RECORD, CallKind.WAIT_EVENT, CallKind.OTHER)
_EVENTS = ["start_ns", "end_ns", "thread"]
_NAMING = ("cpu_ops", "python_calls")


def layers(trace: Trace, host_threads: LaunchThreads) -> list[HostLayer]:
    """Return what host threads did, innermost first; what no layer holds is the framework's."""
    if not len(host_threads.numbers):
        return []
    ranges = HostRangesByThread(trace, host_threads)
    launches = _LaunchCalls(host_threads.schedule)
    # Ranges that hold much of what their threads launch are those of whole steps.
    own = host_threads.of_threads(launches.without_work(ranges.frame), ranges.stand_in)
    names = _call_names(host_threads)
    known = [
        *_overheads(trace, host_threads),
        (IdleCause.SETUP, _graph_captures(host_threads, names)),
        *_calls(host_threads, names),
        (IdleCause.INPUT, _input(trace, host_threads, ranges, launches, own)),
        (IdleCause.SETUP, _compiling(trace, host_threads, ranges)),
        (IdleCause.WAITING, _waiting(trace, host_threads, ranges)),
    ]
    return [*known, (IdleCause.HOST, _silent(trace, host_threads, own, known))]


# Calls and the profiler ---------------------------------------------------------------------------


def _overheads(trace: Trace, host_threads: LaunchThreads) -> list[HostLayer]:
    """Return what the profiler did.

    Loading of code is not its work. It has a row in reports and newer exports only: as older ones
    of the same capture must give the same ledger, nothing here depends on it.
    """
    threads = trace.table("threads", ["thread"])["thread"].to_list()
    nowhere = pl.col("thread").is_null() | ~pl.col("thread").is_in(threads)
    frame = _events(trace, "overheads", lambda name: not is_loading(name))
    everywhere = host_threads.of_all(frame.filter(nowhere))
    own = union(everywhere, host_threads.of_threads(frame.filter(~nowhere)))
    return [(IdleCause.PROFILER, own)]


def _call_names(host_threads: LaunchThreads) -> pl.Series:
    """Return the name of each call; null for marks."""
    rows = host_threads.schedule.calls.row
    names = host_threads.schedule.trace.table("api_calls", ["name"])["name"]
    return names.gather(pl.Series(rows).replace(NONE, None))


def _calls_named(names: pl.Series, wanted: Callable[[str], object]) -> Flags:
    """Return which calls have a name that is wanted, looking at each distinct one once."""
    return is_named(names, wanted).fill_null(value=False).to_numpy()


def _graph_captures(host_threads: LaunchThreads, names: pl.Series) -> Intervals:
    """Return the time in which threads recorded a graph: what they launch then does not run."""
    calls, order = host_threads.schedule.calls, host_threads.order
    begins, ends = (
        _calls_named(names, edge.match)[order] for edge in (_CAPTURE_BEGINS, _CAPTURE_ENDS)
    )
    edges = order[begins | ends]
    opens = begins[begins | ends]
    # A capture ends with the next edge of its thread.
    closed = (
        opens[:-1] & ~opens[1:] & (calls.host_thread[edges[:-1]] == calls.host_thread[edges[1:]])
    )
    first, last = edges[:-1][closed], edges[1:][closed]
    start = host_threads.axis.at(calls.host_thread[first], calls.start_ns[first])
    return Intervals.from_arrays(
        start, host_threads.axis.at(calls.host_thread[last], calls.end_ns[last])
    )


def _calls(host_threads: LaunchThreads, names: pl.Series) -> list[HostLayer]:
    """Return what calls count for, by their kind."""
    calls, axis = host_threads.schedule.calls, host_threads.axis
    start, end = (axis.at(calls.host_thread, t) for t in (calls.start_ns, calls.end_ns))
    short = calls.end_ns - calls.start_ns < _SHORT_NS
    rest = np.isin(calls.kind, _REST)
    everyday = rest & (short | _calls_named(names, _EVERYDAY.search))
    chosen = [
        (
            IdleCause.SETUP,
            np.append(_context_creations(host_threads), _first_launches(host_threads)),
        ),
        *((cause, np.isin(calls.kind, kinds)) for cause, kinds in _CALL_CAUSES.items()),
        (IdleCause.FRAMEWORK, everyday),
        (IdleCause.SETUP, rest & ~everyday),
    ]
    by_kind = [(cause, Intervals.from_arrays(start[at], end[at])) for cause, at in chosen]
    return [(IdleCause.SYNCHRONIZING, _returning(host_threads)), *by_kind]


def _first_launches(host_threads: LaunchThreads) -> Ints:
    """Return the launches that take long because they load the code of their kernel first."""
    calls, ops = host_threads.schedule.calls, host_threads.schedule.ops
    long = calls.end_ns - calls.start_ns > _LOADING_NS
    at = np.flatnonzero((ops.call != NONE) & np.isin(ops.kind, (OpKind.KERNEL, OpKind.MEMSET)))
    at = at[(long & np.isin(calls.kind, (CallKind.LAUNCH, CallKind.MEMSET)))[ops.call[at]]]
    if not len(at):
        return at
    names = host_threads.schedule.trace.table("kernels", ["name"])["name"].to_physical().to_numpy()
    _, first_rows = np.unique(names, return_index=True)
    first = np.where(
        ops.kind[at] == OpKind.KERNEL, np.isin(ops.row[at], first_rows), ops.row[at] == 0
    )
    loading: Ints = ops.call[at[first]]
    return loading


def _context_creations(host_threads: LaunchThreads) -> Ints:
    """Return the calls that seem to allocate but make a process ready to use the GPU."""
    calls = host_threads.schedule.calls
    process = np.array([p for p, _ in host_threads.schedule.threads], np.int64)[calls.thread]
    at = np.flatnonzero(np.isin(calls.kind, _CALL_CAUSES[IdleCause.ALLOCATING]))
    _, first = np.unique(process[at], return_index=True)
    first_calls: Ints = at[first]
    return first_calls[calls.end_ns[first_calls] - calls.start_ns[first_calls] > _SETUP_NS]


def _returning(host_threads: LaunchThreads) -> Intervals:
    """Return the ends of copies that blocked: the copy was done, the call had yet to return."""
    calls, ops = host_threads.schedule.calls, host_threads.schedule.ops
    done = np.full(len(calls), np.iinfo(np.int64).max)
    own = np.flatnonzero(ops.call != NONE)
    own = own[calls.kind[ops.call[own]] == CallKind.COPY]
    done[ops.call[own]] = calls.start_ns[ops.call[own]]
    np.maximum.at(done, ops.call[own], ops.end_ns[own])
    start, end = (host_threads.axis.at(calls.host_thread, t) for t in (done, calls.end_ns))
    return Intervals.from_arrays(start, end)


# Ranges, operators, the operating system ----------------------------------------------------------


class HostRangesByThread:
    """The ranges of a window, and whose count for threads that have none: the step's thread's."""

    def __init__(self, trace: Trace, host_threads: LaunchThreads) -> None:
        columns = [*_EVENTS, "name", "kind", "open", "process"]
        schedule = host_threads.schedule
        near = part_of(trace, (schedule.start_ns, schedule.end_ns + 1))
        self.frame = closed(near.table("ranges", columns))
        # Which threads have ranges does not depend on the window.
        every = closed(trace.table("ranges", ["kind", "open", "thread", "process"]))
        known = kept(every, every["thread"].is_not_null())
        counts = known.group_by("process", "thread").len().sort("len", "thread")
        counts = counts.with_columns(pl.col("process").fill_null(NONE))  # as schedules have it
        # Written in order of count: the thread with the most ranges of its process stays.
        busiest = dict(counts.select("process", "thread").iter_rows())
        own, main = set(counts["thread"].to_list()), main_threads(trace)
        self.stand_in: dict[int, int] = {}
        for position, (process, thread) in enumerate(schedule.threads):
            if thread not in own:
                other = main.get(process)
                chosen = other if other in own else busiest.get(process)
                if chosen is not None:
                    self.stand_in[position] = chosen


def _input(
    trace: Trace,
    host_threads: LaunchThreads,
    ranges: HostRangesByThread,
    launches: _LaunchCalls,
    own: Intervals,
) -> Intervals:
    """Return the time of input: what is named so, reads, and the time before copies of batches.

    `own` are ranges that are not those of whole steps.
    """
    named = launches.without_work(_named(ranges.frame, is_input))
    spans = [host_threads.of_threads(named, ranges.stand_in)]
    for table in _NAMING:
        events = _events(trace, table, is_input, name=True)
        spans.append(host_threads.of_threads(launches.without_work(events)))
    reading, waiting, idling = (
        host_threads.of_threads(_events(trace, "os_calls", wanted))
        for wanted in (is_reading, is_locked, is_idling)
    )
    # Who sleeps until the next frame, or until a request arrives, does not wait for its data.
    waiting = subtract(waiting, union(idling, _handed(host_threads)))
    others = union(own, idling)
    if trace.has("python_calls"):
        frames = trace.table("python_calls", [*_EVENTS, "name"])
        others = union(others, host_threads.of_threads(launches.without_work(frames)))
    spans += [reading, unnamed_input(trace, host_threads, reading, waiting, others)]
    return _united(spans)


@dataclass(frozen=True)
class _LaunchCalls:
    """The launches of each thread, to distinguish input from whole steps that are named like it."""

    schedule: GpuSchedule

    @cached_property
    def _times(self) -> dict[int, Ints]:
        """When each thread launched."""
        calls, threads = self.schedule.calls, self.schedule.threads
        at = np.flatnonzero(np.isin(calls.kind, (CallKind.LAUNCH, CallKind.GRAPH)))
        at = at[np.argsort(calls.thread[at], kind="stable")]
        ends = np.cumsum(np.bincount(calls.thread[at], minlength=len(threads)))
        parts = np.split(calls.start_ns[at], ends[:-1])
        return {thread: part for (_, thread), part in zip(threads, parts, strict=True)}

    def without_work(self, events: pl.DataFrame) -> pl.DataFrame:
        """Leave out events of names that hold much of what their threads launched."""
        if events.is_empty():
            return events
        threads, of_thread = number_rows(events, ["thread"])
        held = np.zeros(events.height, np.int64)
        launches = np.zeros(threads.height, np.int64)
        for number, thread in enumerate(threads["thread"].to_list()):
            times = self._times.get(thread)
            if times is not None:
                own = slice(None) if threads.height == 1 else np.flatnonzero(of_thread == number)
                first, after = (search(times, events[c].to_numpy()[own]) for c in _EVENTS[:2])
                held[own], launches[number] = after - first, len(times)
        # Names of a family differ by numbers only; each distinct name is looked at once.
        texts = pl.Series(names_of(events["name"]), dtype=pl.String).str.replace_all(r"\d+", "#")
        families = np.append(texts.rank("dense").to_numpy(), 0).astype(np.int64)  # 0 is of no name
        codes = events["name"].to_physical().fill_null(len(texts)).to_numpy()
        keys = of_thread * len(families) + families[codes]
        known = np.arange(min(threads.height * len(families), _MANY_FAMILIES))
        if len(known) == _MANY_FAMILIES:
            known, keys = np.unique(keys, return_inverse=True)
        launched = np.maximum(launches[known // len(families)], 1)
        share = np.bincount(keys, held, len(known)) / launched
        return kept(events, pl.Series((share <= _MAX_LAUNCHES)[keys])).select(_EVENTS)


def _compiling(trace: Trace, host_threads: LaunchThreads, ranges: HostRangesByThread) -> Intervals:
    """Return the time in which names say that code is compiled or loaded."""
    spans = [host_threads.of_threads(_events(trace, table, is_compiling)) for table in _NAMING]
    spans.append(host_threads.of_threads(_named(ranges.frame, is_compiling).select(_EVENTS)))
    return _united(spans)


def _waiting(trace: Trace, host_threads: LaunchThreads, ranges: HostRangesByThread) -> Intervals:
    """Return the time of collectives, and of waits that no hand-over between threads explains."""
    collectives = [
        host_threads.of_threads(_events(trace, table, is_collective)) for table in _NAMING
    ]
    collectives.append(host_threads.of_threads(_named(ranges.frame, is_collective).select(_EVENTS)))
    waits = _events(trace, "os_calls", is_waiting)
    waits = waits.filter(pl.col("end_ns") - pl.col("start_ns") >= _SHORT_NS)
    return _united([*collectives, subtract(host_threads.of_threads(waits), _handed(host_threads))])


def _handed(host_threads: LaunchThreads) -> Intervals:
    """Return the time that hand-overs between threads take."""
    return Intervals.from_arrays(host_threads.shifts.start_ns, host_threads.shifts.first_ns)


def _silent(
    trace: Trace, host_threads: LaunchThreads, own: Intervals, known: list[HostLayer]
) -> Intervals:
    """Return long stretches without a call, under no operator and no range of their own."""
    quiet = gaps(_united(spans for _, spans in known), 0, int(host_threads.windows.ends[-1]))
    # Most stretches between two calls are short: they need not be cut at the ends of host threads.
    kept = quiet.ends - quiet.starts > _SILENCE_NS
    quiet = Intervals(quiet.starts[kept], quiet.ends[kept])
    if not len(quiet):
        return quiet
    limits = _silence_limits(host_threads)
    silent = _longer(host_threads, intersect(quiet, host_threads.windows), limits)
    if not len(silent):
        return silent
    named = (host_threads.of_threads(_events(trace, table, None)) for table in _NAMING)
    return _longer(host_threads, subtract(silent, _united([own, *named])), limits)


def _silence_limits(host_threads: LaunchThreads) -> Reals:
    """Return for each host thread what is much longer than its usual gap between two calls."""
    calls, order = host_threads.schedule.calls, host_threads.order
    host_thread = calls.host_thread[order]
    gap = calls.start_ns[order][1:] - calls.end_ns[order][:-1]
    within = (host_thread[1:] == host_thread[:-1]) & (gap > 0)
    usual = pl.DataFrame({"host_thread": host_thread[1:][within], "gap": gap[within]})
    medians = usual.group_by("host_thread").agg(pl.col("gap").median())
    limits = np.full(int(host_threads.numbers.max()) + 1, float(_SILENCE_NS))
    limits[medians["host_thread"]] = np.maximum(
        _SILENCE_NS, _SILENCE_GAPS * medians["gap"].to_numpy()
    )
    return limits


def _longer(host_threads: LaunchThreads, spans: Intervals, limits: Reals) -> Intervals:
    """Keep the spans that are longer than the limit of their host thread."""
    kept = spans.ends - spans.starts > limits[host_threads.axis.host_thread(spans.starts)]
    return Intervals(spans.starts[kept], spans.ends[kept])


def _events(
    trace: Trace, table: str, wanted: Callable[[str], bool] | None, *, name: bool = False
) -> pl.DataFrame:
    """Return the events of a table whose names are wanted, looking at each distinct one once."""
    if wanted is None:
        return trace.table(table, _EVENTS)
    events = _named(trace.table(table, [*_EVENTS, "name"]), wanted)
    return events if name else events.select(_EVENTS)


def _named(frame: pl.DataFrame, wanted: Callable[[str], bool]) -> pl.DataFrame:
    return kept(frame, is_named(frame["name"], wanted))


def _united(spans: Iterable[Intervals]) -> Intervals:
    parts = list(spans)
    return Intervals.from_arrays(
        np.concatenate([s.starts for s in parts]), np.concatenate([s.ends for s in parts])
    )


def host_time(trace: Trace, schedule: GpuSchedule) -> HostTime:
    """Find what each host thread of a schedule did at every instant of its window."""
    host_threads = LaunchThreads(schedule)
    present = [layer for layer in layers(trace, host_threads) if len(layer[1])]
    windows = host_threads.windows
    edges = [array for _, spans in present for array in (spans.starts, spans.ends)]
    cuts = distinct(windows.starts, windows.ends, *edges)
    cause = np.full(max(len(cuts) - 1, 0), int(IdleCause.FRAMEWORK))
    for layer, spans in reversed(present):
        cause[contains(spans, cuts[:-1])] = layer
    cause[~contains(windows, cuts[:-1])] = len(IdleCause)  # between two host threads
    kept = np.append(np.diff(cause, prepend=-1) != 0, True)[: len(cuts)]
    cuts, cause = cuts[kept], cause[kept[:-1]]
    host_thread = host_threads.axis.host_thread(cuts)
    time_ns = cuts - host_thread * (host_threads.axis.length_ns + 1) + host_threads.axis.start_ns
    causes = np.flatnonzero(np.bincount(cause, minlength=len(IdleCause))[: len(IdleCause)])
    columns = np.full(len(IdleCause) + 1, NONE, np.int64)
    columns[causes] = np.arange(len(causes))
    compiled = native.running_spent(cuts, columns[cause], len(causes))
    spent_ns = _running_spent(cuts, columns[cause], len(causes)) if compiled is None else compiled
    return HostTime(host_thread, time_ns, causes, spent_ns)


def _running_spent(times: Ints, columns: Ints, count: int) -> Ints:
    """Return what was spent on each of `count` causes until each time; -1 counts for none."""
    length_ns = np.diff(times)
    spent_ns = np.zeros((len(times), count), np.int64)
    for column in range(count):
        spent_ns[1:, column] = np.cumsum(np.where(columns == column, length_ns, 0))
    return spent_ns
