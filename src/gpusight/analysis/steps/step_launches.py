"""GPU work in the order of its launches, and what each step launched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.attribution.nested_intervals import optional
from gpusight.analysis.launch_index import KeyIndex, tables_with_rows
from gpusight.analysis.selection import GPU_WORK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


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
    own = launched(trace).filter(pl.col("table") == GPU_WORK.index(table)).sort("row")
    return own["launch_ns"]


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
    first = np.searchsorted(times, np.array([s.start_ns for s in steps], np.int64))
    after = np.searchsorted(times, np.array([s.end_ns for s in steps], np.int64))
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
    done = np.array([s.end_ns for s in steps], np.int64)
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
        correlation = correlation.set((correlation == 0).fill_null(value=False), None)
        call = optional(index.find(work["process"], correlation))
        start, thread, process = (api[c].gather(call) for c in ("start_ns", "thread", "process"))
        columns = {
            "launch_ns": start.zip_with(start.is_not_null(), work["start_ns"]),
            "process": work["process"].zip_with(work["process"].is_not_null(), process),
            "thread": thread,
            "start_ns": work["start_ns"],
            "end_ns": work["end_ns"],
            "device": work["device"],
            "table": np.full(work.height, GPU_WORK.index(table), dtype=np.int8),
            "row": np.arange(work.height, dtype=np.int64),
        }
        parts.append(pl.DataFrame(columns, schema=_SCHEMA))
    return pl.concat(parts).sort("launch_ns", maintain_order=True)


def took_ns(work: pl.DataFrame, steps: Sequence[TraceStep]) -> Ints:
    """Return how long each step took until its GPU work was done, after that of the one before."""
    done = np.maximum.accumulate(done_ns(work, steps))
    starts = np.array([s.start_ns for s in steps], np.int64)
    took: Ints = done - np.maximum(starts, np.append(starts[:1], done[:-1]))
    return took
