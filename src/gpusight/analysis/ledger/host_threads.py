"""Host threads (`ApiCalls.host_thread`) on one axis, and what each spent its time on.

Threads that hand work to each other and wait for it, as autograd does, count as one host thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.attribution.nested_intervals import joint_keys
from gpusight.analysis.gpu_schedule import NONE, CallKind, OpKind
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.core import native
from gpusight.trace.intervals import Intervals, coverage, search

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


NOBODY = -(1 << 62)
"""Stands for a thread that nothing is known of."""


@dataclass(frozen=True, slots=True)
class ThreadAxis:
    """The windows of all host threads one after the other, with an instant of none in between.

    So intervals of all host threads are cut at once.
    """

    start_ns: int
    length_ns: int

    def at(self, host_threads: Ints, times: Ints) -> Ints:
        """Return the place of a moment in its thread's window; outside of it, that of the edge."""
        inside = np.clip(times, self.start_ns, self.start_ns + self.length_ns) - self.start_ns
        places: Ints = host_threads * (self.length_ns + 1) + inside
        return places

    def edges(self, host_threads: Ints) -> Intervals:
        """Return the windows of these host threads, which rise."""
        starts = host_threads * (self.length_ns + 1)
        return Intervals.from_arrays(starts, starts + self.length_ns)

    def host_thread(self, places: Ints) -> Ints:
        """Return the host thread that places belong to."""
        return places // (self.length_ns + 1)


@dataclass(frozen=True)
class ThreadShifts:
    """The threads that worked as each host thread: each until another one goes on."""

    host_thread: Ints
    thread: Ints
    """Position in `GpuSchedule.threads`."""
    start_ns: Ints
    end_ns: Ints
    first_ns: Ints
    """When its first call started: until then, the work may still have been handed over."""


@dataclass(frozen=True)
class LaunchThreads:
    """The host threads of a schedule."""

    schedule: GpuSchedule

    @cached_property
    def axis(self) -> ThreadAxis:
        """The axis that all host threads lie on."""
        return ThreadAxis(self.schedule.start_ns, max(self.schedule.length_ns, 0))

    @cached_property
    def numbers(self) -> Ints:
        """The host threads that there are, rising."""
        return np.flatnonzero(np.bincount(self.schedule.calls.host_thread))

    @cached_property
    def order(self) -> Ints:
        """The calls, host thread by host thread, each in order of start."""
        return np.argsort(self.schedule.calls.host_thread, kind="stable")

    @cached_property
    def windows(self) -> Intervals:
        """The windows of the host threads, on the axis."""
        return self.axis.edges(self.numbers)

    @cached_property
    def shifts(self) -> ThreadShifts:
        """Which thread worked when: between two calls, the thread of the second."""
        calls, order = self.schedule.calls, self.order
        host_thread, thread = calls.host_thread[order], calls.thread[order]
        start = self.axis.at(host_thread, calls.start_ns[order])
        # Host threads follow each other on the axis, so one running maximum serves them all.
        ended = np.maximum.accumulate(self.axis.at(host_thread, calls.end_ns[order]))
        fresh = np.diff(host_thread, prepend=-1) != 0
        begins = np.flatnonzero(fresh | (np.diff(thread, prepend=-1) != 0))
        edges = self.axis.edges(host_thread[begins][fresh[begins]])
        first = np.where(fresh[begins], 0, ended[begins - 1])
        first[fresh[begins]] = edges.starts
        last = np.append(first[1:], 0)
        last[np.append(fresh[begins][1:], True)] = edges.ends
        return ThreadShifts(
            host_thread[begins], thread[begins], first, np.maximum(first, last), start[begins]
        )

    def threads_at(self, host_threads: Ints, times: Ints) -> Ints:
        """Return the thread (position in `GpuSchedule.threads`) that worked at a time."""
        places = self.axis.at(host_threads, times)
        at = search(self.shifts.start_ns, places, side="right") - 1
        threads: Ints = self.shifts.thread[at]
        return threads

    def of_threads(
        self, frame: pl.DataFrame, stand_in: Mapping[int, int] | None = None
    ) -> Intervals:
        """Put events (`start_ns`, `end_ns`, `thread`) onto the host threads they belong to.

        `stand_in` gives, by position in `GpuSchedule.threads`, the thread that counts instead.
        """
        if frame.is_empty() or not len(self.numbers):
            return Intervals.empty()
        shifts = self.shifts
        keys = np.array([thread for _, thread in self.schedule.threads], np.int64)
        for position, thread in (stand_in or {}).items():
            keys[position] = thread
        known = np.unique(keys)
        codes = np.searchsorted(known, keys)[shifts.thread]
        spans = self._on_threads(frame, known)
        # Cut out of each thread what lies in its shifts, and move that onto the host thread.
        offset = (codes - shifts.host_thread) * (self.axis.length_ns + 1)
        starts, ends = shifts.start_ns + offset, shifts.end_ns + offset
        first = search(spans.ends, starts, side="right")
        after = np.maximum(search(spans.starts, ends), first)
        count = after - first
        shift = np.repeat(np.arange(len(starts)), count)
        at = np.arange(len(shift)) - np.repeat(np.cumsum(count) - count, count) + first[shift]
        low = np.maximum(spans.starts[at], starts[shift])
        high = np.minimum(spans.ends[at], ends[shift])
        return Intervals.from_arrays(low - offset[shift], high - offset[shift])

    def _on_threads(self, frame: pl.DataFrame, known: Ints) -> Intervals:
        """Put events of these threads onto an axis like that of the host threads."""
        thread = frame["thread"].fill_null(NOBODY).to_numpy()
        code = np.minimum(np.searchsorted(known, thread), len(known) - 1)
        kept = (known[code] == thread) & (thread != NOBODY)
        start, end = (frame[c].to_numpy()[kept] for c in ("start_ns", "end_ns"))
        return Intervals.from_arrays(self.axis.at(code[kept], start), self.axis.at(code[kept], end))

    def of_all(self, frame: pl.DataFrame) -> Intervals:
        """Put events that name no thread onto every host thread."""
        start, end = (frame[c].to_numpy() for c in ("start_ns", "end_ns"))
        host_threads = np.repeat(self.numbers, len(start))
        places = (self.axis.at(host_threads, np.tile(t, len(self.numbers))) for t in (start, end))
        return Intervals.from_arrays(*places)


@dataclass(frozen=True)
class HostTime:
    """How much of each cause host threads had spent at certain moments.

    Between two moments of a host thread it grows evenly. As measured, each stretch has one cause,
    so that nothing is lost by that.
    """

    host_thread: Ints
    """Of each moment, rising."""
    time_ns: Ints
    """Of each moment, rising within its host thread."""
    causes: Ints
    """Those that occur, rising: most captures have few."""
    spent_ns: Ints
    """Of each moment and cause, counted on from thread to thread: an array of two dimensions."""

    @classmethod
    def of_stretches(
        cls, host_thread: Ints, start_ns: Ints, end_ns: Ints, by_cause: Ints
    ) -> HostTime:
        """Make it from stretches, each with its ns by cause; sorted, without overlaps."""
        causes = np.flatnonzero(by_cause.any(axis=0))
        grown = np.zeros((2 * len(host_thread), len(causes)), np.int64)
        grown[1::2] = by_cause[:, causes]
        times = np.stack((start_ns, end_ns), axis=1).reshape(-1)
        return cls(np.repeat(host_thread, 2), times, causes, np.cumsum(grown, axis=0))

    def spent(self, host_threads: Ints, starts: Ints, ends: Ints) -> Ints:
        """Return the ns of each cause that threads spent from `starts` to `ends`, one row a span.

        Rows sum to the length of their span exactly: where nothing is known of a thread, the cause
        is unknown. Reversed spans count nothing.
        """
        compiled = native.host_spent(self.moments, host_threads, starts, ends)
        return self._spent(host_threads, starts, ends) if compiled is None else compiled

    def _spent(self, host_threads: Ints, starts: Ints, ends: Ints) -> Ints:
        length = np.maximum(ends - starts, 0)
        spent = np.zeros((len(length), len(IdleCause)), np.int64)
        if len(self.host_thread):
            done = self._until(host_threads, starts + length) - self._until(host_threads, starts)
            spent[:, self.causes] = done
        spent[:, IdleCause.UNKNOWN] += length - spent.sum(axis=1)
        # The largest of a row makes up for what rounding took below zero.
        low = np.minimum(spent, 0)
        if low.any():
            spent -= low
            spent[np.arange(len(spent)), spent.argmax(axis=1)] += low.sum(axis=1)
        return spent

    def moved(self, host_thread: Ints, before_ns: Ints, after_ns: Ints) -> HostTime:
        """Return it with moments of host threads moved; what lies between two stretches or shrinks.

        Moments are sorted by thread and time. A stretch that had no length and now has some is
        spent as the instant before it was.
        """
        at = np.flatnonzero(host_thread[1:] == host_thread[:-1])
        host_thread, starts, ends = host_thread[at], before_ns[at], before_ns[at + 1]
        starts = np.where(ends > starts, starts, ends - 1)
        spent = self.spent(host_thread, starts, ends)
        length = np.maximum(after_ns[at + 1] - after_ns[at], 0)
        scaled = _scaled_rows(spent, length, ends - starts)
        return HostTime.of_stretches(host_thread, after_ns[at], after_ns[at] + length, scaled)

    @cached_property
    def pieces(self) -> tuple[Ints, Ints, Ints, Ints]:
        """The stretches: host thread, start, end, and the cause that most of it was spent for."""
        if not len(self.causes):
            empty = np.empty(0, np.int64)
            return empty, empty, empty, empty
        compiled = native.most_spent(self.host_thread, self.spent_ns)
        column = _most_spent(self.host_thread, self.spent_ns) if compiled is None else compiled
        at = np.flatnonzero(column >= 0)
        cause = self.causes[column[at]]
        return self.host_thread[at], self.time_ns[at], self.time_ns[at + 1], cause

    @cached_property
    def _bounds(self) -> tuple[Ints, Ints, Ints]:
        """The host threads, and the first and last moment of each."""
        first = np.flatnonzero(np.diff(self.host_thread, prepend=-1))
        last = np.append(first, len(self.host_thread))[1:] - 1
        return self.host_thread[first], first, last

    @cached_property
    def moments(self) -> native.SpentMoments:
        """The same as the compiled core reads it."""
        return native.SpentMoments(
            self.time_ns,
            *self._bounds,
            self.causes,
            self.spent_ns,
            len(IdleCause),
            IdleCause.UNKNOWN,
        )

    def _until(self, host_threads: Ints, times: Ints) -> Ints:
        """Return what host threads had spent by these times; nothing for unknown ones."""
        known, first, last = self._bounds
        code = np.minimum(np.searchsorted(known, host_threads), len(known) - 1)
        unknown = known[code] != host_threads
        first, last = first[code], last[code]
        inside = np.clip(times, self.time_ns[first], self.time_ns[last])
        keys, wanted = joint_keys(self.host_thread, self.time_ns, known[code], inside)
        at = np.clip(np.searchsorted(keys, wanted, side="right") - 1, first, last)
        after = np.minimum(at + 1, last)
        length = self.time_ns[after] - self.time_ns[at]
        done: Ints = self.spent_ns[at]
        done += _scaled_rows(self.spent_ns[after] - done, inside - self.time_ns[at], length)
        done[unknown] = 0
        return done


def _most_spent(threads: Ints, spent_ns: Ints) -> Ints:
    """Return the column that grew most from each moment of a thread to the next; -1 for none."""
    grown = np.diff(spent_ns, axis=0)
    grows = (grown > 0).any(axis=1) & (threads[1:] == threads[:-1])
    return np.where(grows, grown.argmax(axis=1), NONE)


def _scaled_rows(rows: Ints, wanted: Ints, length: Ints) -> Ints:
    """Scale rows whose sums are `length` so that their sums are `wanted`, exactly."""
    pure = rows == length[:, None]
    scaled: Ints = pure * wanted[:, None]
    # Only a replay has stretches of several causes: as measured, each has one.
    mixed: NDArray[np.intp] = np.flatnonzero(~pure.any(axis=1) & (length > 0))
    if len(mixed) and rows.shape[1]:
        share = wanted[mixed] / length[mixed]
        scaled[mixed] = rows[mixed] * share[:, None]
        # Rounding down loses a nanosecond or two: they go to the largest.
        lost = wanted[mixed] - scaled[mixed].sum(axis=1)
        scaled[mixed, rows[mixed].argmax(axis=1)] += lost
    return scaled


_LONG_NS = 1_000_000
"""The shortest stretch that counts: below, it is the way to the next call."""
_MIN_READ_SHARE = 0.05
"""The least part of it that goes into reading: a stray read in other work is less."""
_MIN_WAIT_SHARE = 0.5
"""The least part of it that goes into waiting for someone else, who then brings the data."""
_MIN_BATCHES = 3
"""Without reads and waits, a stretch must come this often to be the loading of batches."""
_MIN_BATCH_BYTES = 1_024
"""A smaller copy is a scalar that the step needs, not a batch."""
_MAX_NAMED_SHARE = 0.5
"""A stretch that a range or Python function covers by more than this has its name from there."""
_MAX_RETURNED_SHARE = 0.5
"""What goes to the GPU was brought from it just before, if that was this share of it or more."""
_ACTING = (CallKind.LAUNCH, CallKind.GRAPH, CallKind.COPY, CallKind.MEMSET, CallKind.SYNC)
_TO_GPU = ("Host-to-Device", "Host-to-Array")
_TO_HOST = ("Device-to-Host", "Array-to-Host")


def unnamed_input(
    trace: Trace,
    host_threads: LaunchThreads,
    reading: Intervals,
    waiting: Intervals,
    named: Intervals,
) -> Intervals:
    """Return the long stretches before copies of batches to the GPU that have no other name.

    They are spent on reading or waiting, or come often. A scalar is no batch: a thread that waits
    before it copies one waits for its next task. Nor is a copy that takes back what was copied from
    the GPU just before: a collective on the CPU, or work on results.
    """
    start, end, size = _before_copies(trace, host_threads)
    if not len(start):
        return Intervals.empty()
    length = end - start
    read, waited, other = (coverage(spans, start, end) for spans in (reading, waiting, named))
    large = size >= _MIN_BATCH_BYTES
    batch = large & (other <= _MAX_NAMED_SHARE * length)
    host_thread = host_threads.axis.host_thread(start)
    often = batch & (np.bincount(host_thread, batch)[host_thread] >= _MIN_BATCHES)
    for_input = (read >= _MIN_READ_SHARE * length) | (waited >= _MIN_WAIT_SHARE * length)
    for_input = (large & for_input) | often
    return Intervals.from_arrays(start[for_input], end[for_input])


def _before_copies(trace: Trace, host_threads: LaunchThreads) -> tuple[Ints, Ints, Ints]:
    """Return long stretches before copies to the GPU, since the host thread last issued or waited.

    With the bytes of what is copied up to the next launch.
    """
    calls = host_threads.schedule.calls
    to_gpu, to_host = (_bytes_of_calls(trace, host_threads, kinds) for kinds in (_TO_GPU, _TO_HOST))
    acting = host_threads.order[np.isin(calls.kind[host_threads.order], _ACTING)]
    host_thread = calls.host_thread[acting]
    first = np.diff(host_thread, prepend=-1) != 0
    # The window may begin in the middle of a stretch.
    start = np.where(first, host_threads.axis.start_ns, np.append(0, calls.end_ns[acting])[:-1])
    long = calls.start_ns[acting] - start >= _LONG_NS
    # Copies up to the next launch or stretch are one batch: labels may be copied before data.
    launches = np.isin(calls.kind[acting], (CallKind.LAUNCH, CallKind.GRAPH))
    batch = np.cumsum(launches | long | first)
    size = np.bincount(batch, to_gpu[acting], minlength=1)[batch].astype(np.int64)
    at = np.flatnonzero(long & (to_gpu[acting] > 0))
    at = at[_returned_bytes(host_threads, to_host, acting[at]) < _MAX_RETURNED_SHARE * size[at]]
    end = calls.start_ns[acting[at]]
    return (
        host_threads.axis.at(host_thread[at], start[at]),
        host_threads.axis.at(host_thread[at], end),
        size[at],
    )


def _bytes_of_calls(trace: Trace, host_threads: LaunchThreads, kinds: tuple[str, ...]) -> Ints:
    """Return the bytes that each call copies in a direction."""
    calls, ops = host_threads.schedule.calls, host_threads.schedule.ops
    copies = np.flatnonzero((ops.kind == OpKind.COPY) & (ops.call >= 0))
    rows = trace.table("copies", ["kind", "bytes"])[ops.row[copies]]
    wanted = rows["kind"].cast(pl.String).is_in(list(kinds)).to_numpy()
    # A copy whose size the capture lacks counts as a large one.
    size = rows["bytes"].fill_null(_MIN_BATCH_BYTES).to_numpy()[wanted]
    called: Ints = np.bincount(ops.call[copies[wanted]], size, minlength=len(calls)).astype(
        np.int64
    )
    return called


def _returned_bytes(host_threads: LaunchThreads, to_host: Ints, after: Ints) -> Ints:
    """Return the largest copy of a process to its host before each copy to the GPU.

    Since the copy to the GPU before it in the same host thread; the calls are sorted by host
    thread and time.
    """
    calls, ops = host_threads.schedule.calls, host_threads.schedule.ops
    processes = np.array([process for process, _ in host_threads.schedule.threads], np.int64)
    _, process = np.unique(processes, return_inverse=True)
    process = process.reshape(-1)[calls.thread]
    copies = np.flatnonzero(np.append(to_host, 0)[ops.call] > 0)
    call = ops.call[copies]
    ended = host_threads.axis.at(process[call], ops.end_ns[copies])
    order = np.argsort(ended, kind="stable")
    size = np.append(to_host[call[order]], 0)
    until = host_threads.axis.at(process[after], calls.start_ns[after])
    since = host_threads.axis.at(process[after], np.full(len(after), host_threads.axis.start_ns))
    same = calls.host_thread[after][1:] == calls.host_thread[after][:-1]
    since[1:][same] = until[:-1][same]
    first, last = (np.searchsorted(ended[order], times) for times in (since, until))
    largest = np.maximum.reduceat(size, np.stack((first, last), axis=1).reshape(-1))[::2]
    returned: Ints = np.where(first < last, largest, 0)
    return returned
