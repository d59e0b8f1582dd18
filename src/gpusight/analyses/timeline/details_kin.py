"""The events beside an event: before and after it, of its name, inside it, launched by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.key_index import KeyIndex
from gpusight.analyses.launches import held_tables
from gpusight.analyses.select import GPU_WORK
from gpusight.analyses.timeline.details_excerpt import open_at, positions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from gpusight.model.trace import Trace

_STREAM = ("device", "process", "context", "stream")
_AT_ONCE = 4_096
"""Rows that are looked at first for the next event of a stream; then four times as many."""


@dataclass(frozen=True, slots=True)
class Peers:
    """How long an event took among those of its name."""

    count: int
    median_ns: float
    total_ns: int
    longer: int
    """How many of them took longer."""


def peers(trace: Trace, table: str, column: str, row: int) -> Peers:
    """Compare an event with all of its table that have the same name."""
    frame = trace.table(table, ["start_ns", "end_ns", column])
    codes = frame[column].to_physical().to_numpy()
    alike = np.flatnonzero(codes == codes[row])
    starts, ends = (frame[c].to_numpy() for c in ("start_ns", "end_ns"))
    lengths = ends[alike] - starts[alike]
    longer = int(np.count_nonzero(lengths > ends[row] - starts[row]))
    return Peers(len(alike), float(np.median(lengths)), int(lengths.sum()), longer)


# Before and after ---------------------------------------------------------------------------------


def stream_neighbours(
    trace: Trace, table: str, row: int
) -> tuple[tuple[str, int] | None, tuple[str, int] | None]:
    """Find the work that the same stream did before and after a piece of work."""
    own = trace.table(table, ["start_ns", *_STREAM]).row(row, named=True)
    before: list[tuple[int, int, str, int]] = []
    after: list[tuple[int, int, str, int]] = []
    for order, other in enumerate(held_tables(trace, GPU_WORK)):
        starts = trace.table(other, ["start_ns"])["start_ns"].to_numpy()
        at = int(np.searchsorted(starts, own["start_ns"], side="left"))
        first, last = (row, row + 1) if other == table else (at, at)
        for found, spans in ((before, _backwards(first)), (after, _onwards(last, len(starts)))):
            position = _nearest(trace, other, own, spans, last=found is before)
            if position is not None:
                found.append((int(starts[position]), order, other, position))
    earlier, later = max(before, default=None), min(after, default=None)
    return earlier and earlier[2:], later and later[2:]


def _is(column: str, value: int | None) -> pl.Expr:
    """Tell which rows have a number, or none."""
    return pl.col(column).eq_missing(pl.lit(value, pl.Int64))


def _backwards(end: int) -> Iterator[tuple[int, int]]:
    size = _AT_ONCE
    while end > 0:
        yield max(0, end - size), end
        end, size = end - size, 4 * size


def _onwards(start: int, height: int) -> Iterator[tuple[int, int]]:
    size = _AT_ONCE
    while start < height:
        yield start, min(height, start + size)
        start, size = start + size, 4 * size


def _nearest(
    trace: Trace, table: str, own: dict[str, Any], spans: Iterator[tuple[int, int]], *, last: bool
) -> int | None:
    """Find the first or last row of a stream in these stretches of a table, one after another."""
    columns = trace.table(table, _STREAM)
    same = pl.all_horizontal(_is(column, own[column]) for column in _STREAM)
    for low, high in spans:
        found = positions(columns[low:high], same)
        if len(found):
            return low + int(found[-1 if last else 0])
    return None


def thread_neighbours(trace: Trace, table: str, row: int) -> tuple[int | None, int | None]:
    """Find the last event of a thread that ended before one began, and the first after it."""
    frame = trace.table(table, ["start_ns", "end_ns", "thread"])
    start, end, thread = frame.row(row)
    starts, ends = (frame[c].to_numpy() for c in ("start_ns", "end_ns"))
    same = frame.select(_is("thread", thread)).to_series().to_numpy()
    upto = int(np.searchsorted(starts, start, side="right"))
    before = np.flatnonzero(same[:upto] & (ends[:upto] <= start))
    before = before[before != row]
    since = int(np.searchsorted(starts, end, side="left"))
    after = np.flatnonzero(same[since:])
    after = after[after + since != row]
    return (
        int(before[-1]) if len(before) else None,
        since + int(after[0]) if len(after) else None,
    )


# Around and inside --------------------------------------------------------------------------------


def around(trace: Trace, table: str, row: int) -> list[int]:
    """Give the events of the same table and thread that enclose an event, the innermost first."""
    frame = trace.table(table, ["start_ns", "end_ns", "thread"])
    start, end, thread = frame.row(row)
    rows = open_at(trace, table, [start])
    there = frame[rows].with_columns(pl.Series("row", rows))
    enclosing = there.filter(
        _is("thread", thread),
        pl.col("end_ns") >= end,
        # Of two that agree in both ends the first is the outer one.
        (pl.col("start_ns") < start) | (pl.col("end_ns") > end) | (pl.col("row") < row),
        pl.col("row") != row,
    )
    return enclosing.sort("start_ns", "end_ns", "row", descending=[True, False, True])[
        "row"
    ].to_list()


def innermost(trace: Trace, table: str, time_ns: int, thread: int | None) -> int | None:
    """Give the last event of a thread to have begun and be open at a time; None for none."""
    if thread is None or not trace.has(table):
        return None
    rows = open_at(trace, table, [time_ns])
    frame = trace.table(table, ["start_ns", "end_ns", "thread"])[rows]
    there = frame.with_columns(pl.Series("row", rows)).filter(_is("thread", thread))
    inner = there.sort("start_ns", "end_ns", "row", descending=[True, False, True])["row"]
    return int(inner[0]) if len(inner) else None


def children(trace: Trace, table: str, row: int) -> int:
    """Count the events of the same table and thread that lie directly inside an event."""
    frame = trace.table(table, ["start_ns", "end_ns", "thread"])
    start, end, thread = frame.row(row)
    starts = frame["start_ns"].to_numpy()
    low, high = np.searchsorted(starts, [start, end], side="left")
    inside = frame[int(low) : int(high)].with_row_index("at", offset=int(low))
    inside = inside.filter(
        _is("thread", thread),
        pl.col("end_ns") <= end,
        pl.col("at") != row,
        (pl.col("start_ns") > start) | (pl.col("end_ns") < end) | (pl.col("at") > row),
    ).sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)
    ends = np.maximum(inside["end_ns"].to_numpy(), inside["start_ns"].to_numpy() + 1)
    reached = np.maximum.accumulate(np.concatenate(([np.iinfo(np.int64).min], ends)))[:-1]
    return int(np.count_nonzero(reached[: len(ends)] < ends))


# Launched work ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Launched:
    """GPU work that something on the host launched."""

    frame: pl.DataFrame
    """`table`, `row`, `start_ns` and `end_ns`, in order of start."""

    @property
    def busy_ns(self) -> int:
        """Durations of the work, summed."""
        return int((self.frame["end_ns"] - self.frame["start_ns"]).sum())

    def __len__(self) -> int:
        """Count the pieces of work."""
        return self.frame.height


def launched_by_call(trace: Trace, row: int) -> Launched:
    """Find the GPU work of an API call."""
    calls = trace.table("api_calls", ["process", "correlation"])[row]
    return _work_of(trace, calls)


def launched_inside(trace: Trace, table: str, row: int) -> Launched:
    """Find the GPU work that a thread launched while an event of it was open.

    Calls lie inside as a whole, as in `project_ranges`; an operator that GPU work names launched it
    whether or not there are calls.
    """
    start, end, thread = trace.table(table, ["start_ns", "end_ns", "thread"]).row(row)
    columns = ["start_ns", "end_ns", "thread", "process", "correlation"]
    api = trace.table("api_calls", columns)
    low, high = np.searchsorted(api["start_ns"].to_numpy(), [start, end + 1], side="left")
    calls = api[int(low) : int(high)].filter(_is("thread", thread), pl.col("end_ns") <= end)
    if calls.is_empty() and table == "cpu_ops":
        return _work_of_ops(trace, start, end, thread)
    return _work_of(trace, calls.select("process", "correlation"))


def _work_of_ops(trace: Trace, start: int, end: int, thread: int | None) -> Launched:
    """Find the work that names an operator of this stretch of a thread."""
    ops = trace.table("cpu_ops", ["start_ns", "end_ns", "thread", "process", "op"])
    low, high = np.searchsorted(ops["start_ns"].to_numpy(), [start, end + 1], side="left")
    inside = ops[int(low) : int(high)].filter(
        _is("thread", thread),
        pl.col("end_ns") <= end,
        pl.col("op") > 0,
    )
    return _work_of(trace, inside.select("process", "op"))


def _work_of(trace: Trace, keys: pl.DataFrame) -> Launched:
    """Find the work that has one of these numbers, in its process."""
    process, number = keys.columns
    wanted = keys.drop_nulls(number)
    low, high = wanted[number].min(), wanted[number].max()
    index = KeyIndex(wanted[process], wanted[number])
    parts = [_NO_WORK]
    for table in held_tables(trace, GPU_WORK) if wanted.height else ():
        work = trace.table(table, ["start_ns", "end_ns", process, number])
        # Most rows are ruled out by the least and the largest number.
        work = work.with_row_index("row").filter(pl.col(number).is_between(low, high))
        own = work.filter(pl.Series(index.find(work[process], work[number]) >= 0))
        row = pl.col("row").cast(pl.Int64)
        parts.append(own.select(pl.lit(table).alias("table"), row, "start_ns", "end_ns"))
    return Launched(pl.concat(parts).sort("start_ns", maintain_order=True))


_NO_WORK = pl.DataFrame(
    schema={"table": pl.String, "row": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
)
