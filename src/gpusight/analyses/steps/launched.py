"""GPU work in the order in which the host asked for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.attribution.nested import optional
from gpusight.analyses.key_index import KeyIndex
from gpusight.analyses.launches import held_tables
from gpusight.analyses.select import GPU_WORK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpusight.analyses.steps.step import Step
    from gpusight.model.trace import Trace

    Ints = NDArray[np.int64]

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
    """List all GPU work in order of `launch_ns`, when the call that asked for it began.

    Work that names no call counts by its own start and has no thread. `table` is a position in
    `GPU_WORK`, `row` the row there. `process` is that of the call where the work names none.
    """
    return trace.derive("launched-1", lambda: _launched(trace))


def of_process(work: pl.DataFrame, process: int | None) -> pl.DataFrame:
    """Keep the work of a process; work that names none may be anyone's."""
    if process is None:
        return work
    return work.filter((pl.col("process") == process) | pl.col("process").is_null())


def launches_of(work: pl.DataFrame, steps: Sequence[Step]) -> Ints:
    """Count the work that the process of these steps launched during each of them."""
    mine = of_process(work, steps[0].process if steps else None)
    return count_in(mine["launch_ns"].to_numpy(), steps)


def count_in(times: Ints, steps: Sequence[Step]) -> Ints:
    """Count how many of these rising times lie in each step."""
    first, after = slices(times, steps)
    return after - first


def slices(times: Ints, steps: Sequence[Step]) -> tuple[Ints, Ints]:
    """Give the first and last-plus-one of these rising times that lie in each step."""
    first = np.searchsorted(times, np.array([s.start_ns for s in steps], np.int64))
    after = np.searchsorted(times, np.array([s.end_ns for s in steps], np.int64))
    return first.astype(np.int64), np.maximum(first, after).astype(np.int64)


def held(work: pl.DataFrame, steps: Sequence[Step]) -> tuple[Ints, Ints]:
    """Give the rows of the work that each step launched, one step after the other, and the step."""
    first, after = slices(work["launch_ns"].to_numpy(), steps)
    many = after - first
    before = np.cumsum(many) - many
    return np.arange(many.sum()) + np.repeat(first - before, many), np.repeat(
        np.arange(len(steps)), many
    )


def done_ns(work: pl.DataFrame, steps: Sequence[Step]) -> Ints:
    """Say when each step and all GPU work that it launched had ended."""
    mine = of_process(work, steps[0].process if steps else None)
    done = np.array([s.end_ns for s in steps], np.int64)
    first, after = slices(mine["launch_ns"].to_numpy(), steps)
    some = np.flatnonzero(after > first)
    if len(some):
        ends = mine["end_ns"].to_numpy()
        bounds = np.stack((first[some], after[some]), axis=1).ravel()
        last = np.maximum.reduceat(np.append(ends, ends[-1]), bounds)[::2]
        done[some] = np.maximum(done[some], last)
    return done


def _launched(trace: Trace) -> pl.DataFrame:
    api = trace.table("api_calls", ["start_ns", "thread", "process", "correlation"])
    index = KeyIndex(api["process"], api["correlation"])
    parts = [pl.DataFrame(schema=_SCHEMA)]
    for table in held_tables(trace, GPU_WORK):
        columns = ["start_ns", "end_ns", "device", "process", "correlation"]
        parts.append(_of(trace.table(table, columns), api, index, GPU_WORK.index(table)))
    return pl.concat(parts).sort("launch_ns", maintain_order=True)


def _of(work: pl.DataFrame, api: pl.DataFrame, index: KeyIndex, table: int) -> pl.DataFrame:
    # A correlation of 0 is none: the driver moved memory on its own account.
    asked = work["correlation"].set((work["correlation"] == 0).fill_null(value=False), None)
    call = optional(index.find(work["process"], asked))
    called = pl.DataFrame(
        {name: api[name].gather(call).alias(name) for name in ("start_ns", "thread", "process")}
    )
    return pl.DataFrame(
        {
            "launch_ns": _first(called["start_ns"], work["start_ns"]),
            "process": _first(work["process"], called["process"]),
            "thread": called["thread"],
            "start_ns": work["start_ns"],
            "end_ns": work["end_ns"],
            "device": work["device"],
            "table": pl.Series(np.full(work.height, table, dtype=np.int8)),
            "row": pl.Series(np.arange(work.height, dtype=np.int64)),
        },
        schema=_SCHEMA,
    )


def _first(known: pl.Series, otherwise: pl.Series) -> pl.Series:
    return known.zip_with(known.is_not_null(), otherwise)
