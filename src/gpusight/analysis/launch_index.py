"""GPU work and the API calls that launch it, by process and correlation id; its order of launch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import kept
from gpusight.analysis.attribution.nested_intervals import NONE, optional
from gpusight.analysis.selection import GPU_WORK
from gpusight.analysis.steps.step_list import ends_of, starts_of
from gpusight.core import native
from gpusight.trace.intervals import number, stable_argsort

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace

    LaunchRows = NDArray[np.int32]
    """Row numbers; -1 stands for none."""


_DENSE = 8
"""A lookup table may be this many times as long as the rows before sorting is cheaper."""
_SMALL = 1_000_000
_WIDE = 1 << 62


class KeyIndex:
    """Finds the first row of a process and key; keys below 0 are none."""

    def __init__(self, process: pl.Series, key: pl.Series) -> None:
        self._process = process
        is_one = len(process) and not process.null_count() and process.min() == process.max()
        known = process.head(1) if is_one else process.drop_nulls().unique().sort()
        self._processes = known.to_numpy()
        self._numbers: Ints = key.fill_null(NONE).to_numpy()
        self._distinct: Ints | None = None
        self._span = int(self._numbers.max(initial=0)) + 1
        size = self._span * max(len(self._processes), 1)
        if size >= _WIDE:
            self._distinct = np.unique(self._numbers)
            self._span = len(self._distinct)
            size = self._span * max(len(self._processes), 1)
        self._size = size
        self._dense = size <= _DENSE * len(self._numbers) + _SMALL

    def find(self, process: pl.Series, key: pl.Series) -> Ints:
        """Return the row of each process and key, -1 where there is none."""
        wanted = key.fill_null(NONE).to_numpy()
        plain = not self._process.null_count() and not process.null_count()
        if self._dense and len(self._processes) == 1 and plain:
            rows = (self._process.to_numpy(), self._numbers)
            found = native.find_keys(rows, (process.to_numpy(), wanted), self._span)
            if found is not None:
                return found.astype(np.int64)
        joint, (keys, row_of) = self._joint(process, wanted), self._table
        if not len(row_of):
            return np.full(len(joint), NONE, dtype=np.int64)
        if self._dense:
            return np.where(joint >= 0, row_of[joint], np.int64(NONE))
        at = np.minimum(np.searchsorted(keys, joint), len(keys) - 1)
        return np.where(keys[at] == joint, row_of[at], np.int64(NONE))

    @cached_property
    def _table(self) -> tuple[Ints, LaunchRows]:
        """The keys that rows have, and the first row of each; of a dense table no keys."""
        joint = self._joint(self._process, self._numbers)
        rows = np.flatnonzero(joint >= 0)
        if self._dense:
            row_of = np.full(self._size, NONE, dtype=np.int32)
            row_of[joint[rows[::-1]]] = rows[::-1]  # written backwards: the first row stays
            return np.empty(0, np.int64), row_of
        keys, first = np.unique(joint[rows], return_index=True)
        return keys, rows[first].astype(np.int32)

    def _joint(self, process: pl.Series, numbers: Ints) -> Ints:
        """Combine process and key into one number; -1 for what no row has."""
        codes = self._codes(process)
        keys, inside = numbers, (codes >= 0) & (numbers >= 0)
        if self._distinct is not None:
            keys = np.minimum(np.searchsorted(self._distinct, numbers), self._span - 1)
            inside &= self._distinct[keys] == numbers
        inside &= keys < self._span
        return np.where(inside, codes * self._span + np.where(inside, keys, 0), NONE)

    def _codes(self, process: pl.Series) -> Ints:
        """Number processes; -1 for unknown ones."""
        known = self._processes
        if process.null_count() == len(process) or not len(known):
            # Old captures, of one process, do not record which one GPU work belongs to.
            return np.full(len(process), 0 if len(known) <= 1 else NONE, dtype=np.int64)
        if len(known) == 1 and not process.null_count():
            return np.where(process.to_numpy() == known[0], 0, np.int64(NONE))
        of = process.fill_null(known[0]).to_numpy()
        codes = np.minimum(np.searchsorted(known, of), len(known) - 1)
        return np.where((known[codes] == of) & process.is_not_null().to_numpy(), codes, NONE)


@dataclass(frozen=True)
class LaunchIndex:
    """The API calls that launched GPU work, by thread, each run of a thread in order of start."""

    call: LaunchRows
    """Row of the call in `api_calls`."""
    start_ns: Ints
    end_ns: Ints
    first_ns: Ints
    """Start of its first GPU activity."""
    last_ns: Ints
    """End of its last GPU activity."""
    busy_ns: Ints
    """Sum of the durations of its GPU activities."""
    ops: LaunchRows
    """Number of kernels, memcpys, memsets and whole graphs that it launched."""
    runs: tuple[tuple[int, int, int], ...]
    """Thread, first and last-plus-one of each run in which starts and ends both rise."""
    launch_of: dict[str, LaunchRows]
    """For each row of each GPU table, the launch it came from."""


def find_launches(trace: Trace, tables: Sequence[str] = GPU_WORK) -> LaunchIndex:
    """Match GPU activities to the API calls that launched them, by process and correlation id."""
    api = trace.table("api_calls", ["start_ns", "end_ns", "thread", "process", "correlation"])
    index = KeyIndex(api.get_column("process"), api.get_column("correlation"))
    call_of = {
        t: index.find(*trace.table(t, ["process", "correlation"])).astype(np.int32)
        for t in tables_with_rows(trace, tables)
    }
    del index
    used = np.zeros(api.height, dtype=np.bool_)
    for call in call_of.values():
        used[call[call >= 0]] = True
    call = np.flatnonzero(used).astype(np.int32)
    call, runs = _in_runs(call, api)
    slot = np.full(api.height + 1, -1, dtype=np.int32)  # the last is where -1 points
    slot[call] = np.arange(len(call), dtype=np.int32)
    launch_of = {t: slot[rows] for t, rows in call_of.items()}
    first, last, busy, ops = _work_of(trace, launch_of, len(call))
    start, end = (api.get_column(c).to_numpy()[call] for c in ("start_ns", "end_ns"))
    return LaunchIndex(call, start, end, first, last, busy, ops, runs, launch_of)


def tables_with_rows(trace: Trace, tables: Sequence[str]) -> list[str]:
    """Return those of the tables that have rows."""
    return [t for t in tables if trace.has(t)]


def _in_runs(
    call: LaunchRows, api: pl.DataFrame
) -> tuple[LaunchRows, tuple[tuple[int, int, int], ...]]:
    """Order calls by thread, then run, then start; `call` comes in order of start."""
    thread = api.get_column("thread").fill_null(-1).to_numpy()[call]
    order = stable_order(thread)
    call, thread = call[order], thread[order]
    end = api.get_column("end_ns").to_numpy()[call]
    pieces: list[LaunchRows] = []
    runs: list[tuple[int, int, int]] = []
    at = 0
    for lo, hi in runs_of_equal(thread):
        rest = np.arange(lo, hi)
        while len(rest):
            # A call inside another one ends before it: such calls go to a run of their own.
            rising = end[rest] >= np.maximum.accumulate(end[rest])
            pieces.append(call[rest[rising]])
            runs.append((int(thread[lo]), at, at + len(pieces[-1])))
            at += len(pieces[-1])
            rest = rest[~rising]
    return (np.concatenate(pieces) if pieces else call), tuple(runs)


def _work_of(
    trace: Trace, launch_of: dict[str, LaunchRows], n: int
) -> tuple[Ints, Ints, Ints, LaunchRows]:
    first = np.full(n, np.iinfo(np.int64).max, dtype=np.int64)
    last = np.full(n, np.iinfo(np.int64).min, dtype=np.int64)
    busy = np.zeros(n, dtype=np.int64)
    ops = np.zeros(n, dtype=np.int32)
    for table, launches in launch_of.items():
        times = trace.table(table, ["start_ns", "end_ns"])
        start, end = (times.get_column(c).to_numpy() for c in ("start_ns", "end_ns"))
        sums = native.LaunchSums(first, last, busy, ops)
        if native.sum_launches(launches, start, end, sums):
            continue
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


def runs_of_equal(keys: Ints) -> Iterator[tuple[int, int]]:
    """Yield the first and last-plus-one of each run of equal keys."""
    if len(keys):
        cuts = [0, *(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist(), len(keys)]
        yield from pairwise(cuts)


_SCHEMA = {
    "launch_ns": pl.Int64(),
    "process": pl.Int64(),
    "thread": pl.Int64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "device": pl.Int64(),
    "table": pl.Int8(),
    "row": pl.Int64(),
}


def launched(trace: Trace) -> pl.DataFrame:
    """Return all GPU work in order of `launch_ns`, when the call that issued it started.

    Work that names no call counts by its own start and has no thread. `table` is a position in
    `GPU_WORK`, `row` the row there. `process` is that of the call where the work names none.
    """
    return trace.derive("launched-1", lambda: _launched(trace))


def launch_times(trace: Trace, table: str) -> pl.Series:
    """Return when each row of a table of GPU work was launched, in the order of the rows."""
    number = GPU_WORK.index(table)
    work = launched(trace)
    own = kept(work.select("launch_ns", "row"), work["table"] == number)
    return own["launch_ns"] if own["row"].is_sorted() else own.sort("row")["launch_ns"]


def by_row(work: pl.DataFrame) -> pl.DataFrame:
    """Return rows of `launched` in the order of the tables that they come from."""
    table, row = work["table"], work["row"]
    is_sorted = row.is_sorted() and table.n_unique() <= 1
    return work if is_sorted else work.sort("table", "row")


def of_process(work: pl.DataFrame, process: int | None) -> pl.DataFrame:
    """Keep the work of a process; work that names none may be anyone's."""
    if process is None:
        return work
    return work.filter((pl.col("process") == process) | pl.col("process").is_null())


def launches_of(work: pl.DataFrame, steps: Sequence[TraceStep]) -> Ints:
    """Count the work that the process of these steps launched during each of them."""
    own = of_process(work, steps[0].process if steps else None)
    return count_in(own["launch_ns"].to_numpy(), steps)


def count_in(times: Ints, steps: Sequence[TraceStep]) -> Ints:
    """Count how many of these rising times lie in each step."""
    first, after = slices(times, steps)
    return after - first


def slices(times: Ints, steps: Sequence[TraceStep]) -> tuple[Ints, Ints]:
    """Return the first and last-plus-one of these rising times that lie in each step."""
    first = np.searchsorted(times, starts_of(steps))
    after = np.searchsorted(times, ends_of(steps))
    return first.astype(np.int64), np.maximum(first, after).astype(np.int64)


def rows_of_steps(work: pl.DataFrame, steps: Sequence[TraceStep]) -> tuple[Ints, Ints]:
    """Return the rows that each step launched, one step after the other, and the step of each."""
    first, after = slices(work["launch_ns"].to_numpy(), steps)
    count = after - first
    before = np.cumsum(count) - count
    rows = np.arange(count.sum()) + np.repeat(first - before, count)
    return rows, np.repeat(np.arange(len(steps)), count)


def done_ns(work: pl.DataFrame, steps: Sequence[TraceStep]) -> Ints:
    """Return when each step and all GPU work that it launched had ended."""
    own = of_process(work, steps[0].process if steps else None)
    done = ends_of(steps).copy()
    first, after = slices(own["launch_ns"].to_numpy(), steps)
    at = np.flatnonzero(after > first)
    if len(at):
        ends = own["end_ns"].to_numpy()
        bounds = np.stack((first[at], after[at]), axis=1).ravel()
        last = np.maximum.reduceat(np.append(ends, ends[-1]), bounds)[::2]
        done[at] = np.maximum(done[at], last)
    return done


def _launched(trace: Trace) -> pl.DataFrame:
    api = trace.table("api_calls", ["start_ns", "thread", "process", "correlation"])
    index = KeyIndex(api["process"], api["correlation"])
    parts = [pl.DataFrame(schema=_SCHEMA)]
    for table in tables_with_rows(trace, GPU_WORK):
        work = trace.table(table, ["start_ns", "end_ns", "device", "process", "correlation"])
        # A correlation of 0 is none: the driver moved memory on its own account.
        correlation = work["correlation"]
        none = (correlation == 0).fill_null(value=False)
        correlation = correlation.set(none, None) if none.any() else correlation
        call = optional(index.find(work["process"], correlation))
        process = work["process"]
        if process.null_count():
            process = _or_else(process, api["process"].gather(call))
        columns = {
            "launch_ns": _or_else(api["start_ns"].gather(call), work["start_ns"]),
            "process": process,
            "thread": api["thread"].gather(call),
            "start_ns": work["start_ns"],
            "end_ns": work["end_ns"],
            "device": work["device"],
            "table": np.full(work.height, GPU_WORK.index(table), dtype=np.int8),
            "row": np.arange(work.height, dtype=np.int64),
        }
        parts.append(pl.DataFrame(columns, schema=_SCHEMA))
    every = pl.concat(parts[1:] or parts, rechunk=True)
    return every if every["launch_ns"].is_sorted() else every.sort("launch_ns", maintain_order=True)


def _or_else(values: pl.Series, others: pl.Series) -> pl.Series:
    """Take others where values are null."""
    return values.zip_with(values.is_not_null(), others) if values.null_count() else values


def took_ns(work: pl.DataFrame, steps: Sequence[TraceStep]) -> Ints:
    """Return how long each step took until its GPU work was done, after that of the one before."""
    done = np.maximum.accumulate(done_ns(work, steps))
    starts = starts_of(steps)
    took: Ints = done - np.maximum(starts, np.append(starts[:1], done[:-1]))
    return took
