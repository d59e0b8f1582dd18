"""The API calls that put work on a GPU, with that work, laid out so that it can be bisected.

Calls lie in lanes in which starts and ends both rise: then the calls that a range holds are one
slice of each lane.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.key_index import KeyIndex
from gpusight.analyses.select import GPU_WORK
from gpusight.model.ordering import number, stable_argsort

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gpusight.model.trace import Trace

    Ints = NDArray[np.int64]
    Rows = NDArray[np.int32]
    """Row numbers; -1 stands for none."""


@dataclass(frozen=True)
class Launches:
    """The API calls that put work on a GPU, lane by lane in order of start."""

    call: Rows
    """Row of the call in `api_calls`."""
    start_ns: Ints
    end_ns: Ints
    first_ns: Ints
    """When the earliest of its GPU work began."""
    last_ns: Ints
    """When the latest of its GPU work ended."""
    busy_ns: Ints
    """Durations of its GPU work, summed."""
    ops: Rows
    """How much GPU work it put there: kernels, copies, fills and whole graphs."""
    lanes: tuple[tuple[int, int, int], ...]
    """Thread, first and last-plus-one of each stretch in which starts and ends both rise."""
    launch_of: dict[str, Rows]
    """For each row of each GPU table, the launch it came from."""


def find_launches(trace: Trace, tables: Sequence[str] = GPU_WORK) -> Launches:
    """Match GPU work to the API calls that issued it, and lay those calls out in lanes."""
    api = trace.table("api_calls", ["start_ns", "end_ns", "thread", "process", "correlation"])
    index = KeyIndex(api.get_column("process"), api.get_column("correlation"))
    call_of = {
        t: index.find(*trace.table(t, ["process", "correlation"])).astype(np.int32)
        for t in held_tables(trace, tables)
    }
    del index
    used = np.zeros(api.height, dtype=np.bool_)
    for call in call_of.values():
        used[call[call >= 0]] = True
    call = np.flatnonzero(used).astype(np.int32)
    call, lanes = _lay_out(call, api)
    slot = np.full(api.height + 1, -1, dtype=np.int32)  # the last is where -1 points
    slot[call] = np.arange(len(call), dtype=np.int32)
    launch_of = {t: slot[rows] for t, rows in call_of.items()}
    first, last, busy, ops = _work_of(trace, launch_of, len(call))
    start, end = (api.get_column(c).to_numpy()[call] for c in ("start_ns", "end_ns"))
    return Launches(call, start, end, first, last, busy, ops, lanes, launch_of)


def held_tables(trace: Trace, tables: Sequence[str]) -> list[str]:
    """Name those of the tables that have rows."""
    return [t for t in tables if trace.has(t)]


def _lay_out(call: Rows, api: pl.DataFrame) -> tuple[Rows, tuple[tuple[int, int, int], ...]]:
    """Order calls by thread, then lane, then start; `call` comes in order of start."""
    thread = api.get_column("thread").fill_null(-1).to_numpy()[call]
    order = stable_order(thread)
    call, thread = call[order], thread[order]
    end = api.get_column("end_ns").to_numpy()[call]
    pieces: list[Rows] = []
    lanes: list[tuple[int, int, int]] = []
    at = 0
    for lo, hi in stretches(thread):
        rest = np.arange(lo, hi)
        while len(rest):
            # A call inside another one ends before it: such calls go to a lane of their own.
            rising = end[rest] >= np.maximum.accumulate(end[rest])
            pieces.append(call[rest[rising]])
            lanes.append((int(thread[lo]), at, at + len(pieces[-1])))
            at += len(pieces[-1])
            rest = rest[~rising]
    return (np.concatenate(pieces) if pieces else call), tuple(lanes)


def _work_of(trace: Trace, launch_of: dict[str, Rows], n: int) -> tuple[Ints, Ints, Ints, Rows]:
    first = np.full(n, np.iinfo(np.int64).max, dtype=np.int64)
    last = np.full(n, np.iinfo(np.int64).min, dtype=np.int64)
    busy = np.zeros(n, dtype=np.int64)
    ops = np.zeros(n, dtype=np.int32)
    for table, launches in launch_of.items():
        times = trace.table(table, ["start_ns", "end_ns"])
        start, end = (times.get_column(c).to_numpy() for c in ("start_ns", "end_ns"))
        known = slice(None) if launches.min(initial=0) >= 0 else np.flatnonzero(launches >= 0)
        launch, start, end = launches[known], start[known], end[known]
        np.minimum.at(first, launch, start)
        np.maximum.at(last, launch, end)
        np.add.at(busy, launch, end - start)
        ops += np.bincount(launch, minlength=n).astype(np.int32)
    return first, last, busy, ops


def stable_order(keys: Ints) -> Ints | slice:
    """Sort by key, keeping the order within; nothing to do where the keys already rise."""
    if len(keys) < 2 or bool((keys[1:] >= keys[:-1]).all()):
        return slice(None)
    return stable_argsort(number(pl.Series(keys)))


def stretches(keys: Ints) -> Iterator[tuple[int, int]]:
    """Give the first and last-plus-one of each run of equal keys."""
    if len(keys):
        cuts = [0, *(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist(), len(keys)]
        yield from pairwise(cuts)
