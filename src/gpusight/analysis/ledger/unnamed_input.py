"""Input that nothing names: what the host does before it copies a batch to the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.gpu_schedule import CallKind, OpKind
from gpusight.trace.intervals import Intervals, coverage

if TYPE_CHECKING:
    from gpusight.analysis.ledger.host_threads import LaunchThreads
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


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
