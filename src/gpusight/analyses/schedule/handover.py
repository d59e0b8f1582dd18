"""Where one thread hands its work to another and waits for it, as autograd does.

No record says so. What it looks like: a thread falls silent, another one that was silent launches
work until just before the first goes on. Both are then one chain of host work, whatever speeds up
one part brings the next part forward. Threads that launch side by side do not look like that:
neither is silent while the other works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpusight.analyses.schedule.schedule import CallKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.analyses.schedule.schedule import Ints

_SILENCE_NS = 50_000
"""The shortest wait that counts: a hand-over itself takes some microseconds."""
_COVERED = 0.5
"""The least part of the silence that the other thread fills."""
_MOST_CALLS = 0.5
"""The least part of the other thread's calls that must lie in such silences."""
_MOST_THREADS = 48
"""Threads that are compared, those with the most calls first."""


def lanes(thread: Ints, process: Ints, kind: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """Give the lane of each call; calls are in order of start.

    `thread` counts from 0, `process` is that of each thread.
    """
    lane = thread.copy()
    rows = _by_thread(thread)
    launching = [t for t, at in rows.items() if np.isin(kind[at], _LAUNCHES).any()]
    # A thread that only pins memory or watches hands nothing over, however long it is silent.
    giving = [t for t, at in rows.items() if np.isin(kind[at], _GIVERS).any()]
    taken: set[int] = set()
    for giver in giving:
        for taker in launching:
            if giver in taken or taker in taken or taker == giver:
                continue
            if process[taker] == process[giver]:
                inside = _handed_over(rows[giver], rows[taker], kind, start_ns, end_ns)
                if np.count_nonzero(inside) >= _MOST_CALLS * len(inside):
                    lane[rows[taker][inside]] = giver
                    taken.add(taker)
    return lane


_LAUNCHES = (CallKind.LAUNCH, CallKind.GRAPH)
_GIVERS = (*_LAUNCHES, CallKind.MARK)


def _by_thread(thread: Ints) -> dict[int, Ints]:
    """Give the calls of each thread; a thread that marks steps, else the first, comes first."""
    counts = np.bincount(thread)
    busiest = np.argsort(-counts, kind="stable")[:_MOST_THREADS]
    rows = {int(t): np.flatnonzero(thread == t) for t in busiest if counts[t]}
    return dict(sorted(rows.items(), key=lambda item: int(item[1][0])))


def _handed_over(
    giver: Ints, taker: Ints, kind: Ints, start_ns: Ints, end_ns: Ints
) -> NDArray[np.bool_]:
    """Tell which calls of one thread lie in silences of the other that they explain."""
    inside = np.zeros(len(taker), np.bool_)
    stops, resumes = end_ns[giver[:-1]], start_ns[giver[1:]]
    silent = resumes - stops >= _SILENCE_NS
    stops, resumes = stops[silent], resumes[silent]
    first = np.searchsorted(start_ns[taker], stops)
    after = np.searchsorted(start_ns[taker], resumes)
    some = after > first
    stops, resumes, first, after = (a[some] for a in (stops, resumes, first, after))
    if not len(first):
        return inside
    starts, ends = start_ns[taker], end_ns[taker]
    # The one thread is silent from before the other stops until it has stopped.
    before = np.where(first > 0, ends[np.maximum(first - 1, 0)], stops)
    filled = ends[after - 1] - starts[first]
    launches = np.concatenate(([0], np.cumsum(np.isin(kind[taker], _LAUNCHES))))
    holds = (
        (before <= stops)
        & (ends[after - 1] <= resumes)
        & (filled >= _COVERED * (resumes - stops))
        & (launches[after] > launches[first])
    )
    edges = np.zeros(len(taker) + 1, np.int64)
    np.add.at(edges, first[holds], 1)
    np.add.at(edges, after[holds], -1)
    return np.cumsum(edges[:-1]) > 0
