"""Events related to an event: before, after, same name, inside, launched by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.analysis.attribution.work_causes import FrameworkOperators
from gpusight.analysis.launch_index import KeyIndex, tables_with_rows
from gpusight.analysis.selection import GPU_WORK
from gpusight.trace.schema import TABLES
from gpusight.trace.trace import Trace, TraceSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Meta


_WHOLE = ("devices", "processes", "threads")
"""Small tables, of which everything is kept."""
_PAIRED = ("sequence", "forward_thread")


class TraceExcerpt(TraceSource):
    """Some rows of some tables of a trace; a source for a trace of these alone."""

    def __init__(self, trace: Trace, rows: Mapping[str, Ints]) -> None:
        self._trace = trace
        self.rows = dict(rows)
        """Rows in the whole capture, by table, rising."""

    @property
    def trace(self) -> Trace:
        """A trace of these rows."""
        return Trace(self)

    def original(self, table: str, row: int) -> int:
        """Return the row in the whole capture of a row of the excerpt."""
        return int(self.rows[table][row])

    @property
    def meta(self) -> Meta:
        """What is known about the capture as a whole."""
        return self._trace.meta

    def has(self, table: str) -> bool:
        """Return whether rows of the table were taken."""
        return self.row_count(table) > 0

    def has_column(self, table: str, column: str) -> bool:
        """Return whether the capture can fill this column."""
        return self._trace.has(table, column)

    def row_count(self, table: str) -> int:
        """Count the rows that were taken."""
        return self._trace.row_count(table) if table in _WHOLE else len(self.rows.get(table, ()))

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Return these columns of the rows that were taken."""
        if table in _WHOLE:
            return self._trace.table(table, columns)
        if not self.has(table):
            return pl.DataFrame([TABLES[table].column(c).empty() for c in columns])
        rows = _filled(self._trace, table, columns, self.rows[table])
        if table == "cpu_ops" and set(_PAIRED) & set(columns):
            rows = rows.with_columns(c for c in self._pairs().get_columns() if c.name in columns)
        return pl.DataFrame([_only_used(column) for column in rows.get_columns()])

    def warnings(self) -> tuple[str, ...]:
        """Name rows and values that reading the capture has left out so far."""
        return self._trace.warnings

    def _pairs(self) -> pl.DataFrame:
        """Number backward operators and the forward ones they serve by pairs.

        Autograd's own numbers are ambiguous without all operators.
        """
        rows = pl.Series(self.rows["cpu_ops"], dtype=pl.Int64)
        thread = self._trace.table("cpu_ops", ["forward_thread"])["forward_thread"].gather(rows)
        forward = forward_ops(self._trace).gather(rows)
        # What runs inside a backward operator, such as a forward that is done again, is none.
        forward = forward.set(~(thread > 0).fill_null(value=False), None)
        pair = forward.zip_with(forward.is_not_null(), rows)
        return pl.DataFrame({"sequence": pair, "forward_thread": forward + 1})


def _filled(trace: Trace, table: str, columns: Sequence[str], rows: Ints) -> pl.DataFrame:
    """Read columns of some rows; those that the capture cannot fill need no reading."""
    known = [c for c in columns if trace.has(table, c)]
    read_columns = trace.table(table, known)[rows] if known else pl.DataFrame()
    missing = [TABLES[table].column(c).nulls(len(rows)) for c in columns if c not in known]
    return pl.DataFrame([*read_columns.get_columns(), *missing]).select(columns)


def values_of(trace: Trace, table: str, row: int, columns: Sequence[str]) -> dict[str, Any]:
    """Return what these columns of an event hold; None where unknown."""
    wanted = list(dict.fromkeys(columns))
    return _filled(trace, table, wanted, np.array([row])).row(0, named=True)


def _only_used(column: pl.Series) -> pl.Series:
    """Let a name column know the names of these rows only: some analyses look at every name."""
    if not isinstance(column.dtype, pl.Enum):
        return column
    texts = column.cast(pl.String)
    return texts.cast(pl.Enum(texts.drop_nulls().unique(maintain_order=True)))


def forward_ops(trace: Trace) -> pl.Series:
    """Return for each operator the row of the forward one that it is part of the backward of."""

    def compute() -> pl.DataFrame:
        every = np.arange(trace.row_count("cpu_ops"))
        served = pl.Series("forward", FrameworkOperators(trace).forward(every), pl.Int64)
        return pl.DataFrame([served.set(served < 0, None)])

    return trace.derive("forward-ops-1", compute)["forward"]


def excerpt_of_work(trace: Trace, table: str, row: int) -> TraceExcerpt:
    """Take what may have launched a GPU activity."""
    work = trace.table(table, ["process", "correlation", "op"])[row]
    calls = calls_of(trace, work["process"][0], work["correlation"][0])
    return _around(trace, {table: np.array([row])}, calls, work["op"].to_list())


def excerpt_of_call(trace: Trace, row: int) -> TraceExcerpt:
    """Take what an API call may have been made for."""
    return _around(trace, {}, np.array([row]), [])


def calls_of(trace: Trace, process: int | None, correlation: int | None) -> Ints:
    """Find the API calls of a correlation; work that names no process belongs to the only one."""
    api = trace.table("api_calls", ["process", "correlation"])
    if correlation is None or api.is_empty():
        return np.empty(0, np.int64)
    same = pl.col("correlation") == correlation
    if process is not None:
        same &= pl.col("process") == process
    elif api["process"].drop_nulls().n_unique() > 1:
        return np.empty(0, np.int64)
    return positions(api, same)


def positions(frame: pl.DataFrame, condition: pl.Expr) -> Ints:
    """Return the rows that fulfil a condition."""
    return frame.select(pl.arg_where(condition)).to_series().cast(pl.Int64).to_numpy()


def open_at(trace: Trace, table: str, times: Iterable[int]) -> Ints:
    """Return the rows that have begun and not ended at any of these times, rising."""
    frame = trace.table(table, ["start_ns", "end_ns"])
    starts, ends = (frame[c].to_numpy() for c in ("start_ns", "end_ns"))
    open_rows = [
        np.flatnonzero(ends[: np.searchsorted(starts, time, side="right")] > time)
        for time in dict.fromkeys(times)
    ]
    return np.unique(np.concatenate(open_rows)) if open_rows else np.empty(0, np.int64)


def _around(
    trace: Trace, rows: dict[str, Ints], calls: Ints, keys: Sequence[int | None]
) -> TraceExcerpt:
    """Take these rows, the calls, and all that was open when they, or their operators, began."""
    api = trace.table("api_calls", ["start_ns", "op"])[calls]
    times: list[int] = api["start_ns"].to_list()
    named = {key for key in (*keys, *api["op"].to_list()) if key is not None and key > 0}
    ops, moments = _operators(trace, times, named)
    times = [*times, *moments]
    host = {table: open_at(trace, table, times) for table in ("ranges", "python_calls")}
    return TraceExcerpt(trace, {**rows, "api_calls": calls, "cpu_ops": ops, **host})


def _operators(trace: Trace, times: list[int], named: set[int]) -> tuple[Ints, list[int]]:
    """Find the operators of these keys or open at these times, and the forward ones they serve.

    Also gives when those of the keys and the forward ones began.
    """
    if not trace.has("cpu_ops"):
        return np.empty(0, np.int64), []
    table = trace.table("cpu_ops", ["start_ns", "op"])
    by_key = positions(table, pl.col("op").is_in(list(named)))
    begun: list[int] = table["start_ns"].gather(by_key).to_list()
    own = np.union1d(by_key, open_at(trace, "cpu_ops", [*times, *begun]))
    if not trace.has("cpu_ops", "forward_thread"):
        return own, begun
    forward = forward_ops(trace).gather(own).drop_nulls().unique().to_numpy()
    moments: list[int] = table["start_ns"].gather(forward).to_list()
    around = open_at(trace, "cpu_ops", moments)
    return np.union1d(own, np.union1d(forward, around)), [*begun, *moments]


_STREAM = ("device", "process", "context", "stream")
_AT_ONCE = 4_096
"""Rows that are looked at first for the next event of a stream; then four times as many."""


@dataclass(frozen=True, slots=True)
class SameNameEvents:
    """How long an event took among those of its name."""

    count: int
    median_ns: float
    total_ns: int
    longer: int
    """How many of them took longer."""


def peers(trace: Trace, table: str, column: str, row: int) -> SameNameEvents:
    """Compare an event with all of its table that have the same name."""
    frame = trace.table(table, ["start_ns", "end_ns", column])
    codes = frame[column].to_physical().to_numpy()
    alike = np.flatnonzero(codes == codes[row])
    starts, ends = (frame[c].to_numpy() for c in ("start_ns", "end_ns"))
    lengths = ends[alike] - starts[alike]
    longer = int(np.count_nonzero(lengths > ends[row] - starts[row]))
    return SameNameEvents(len(alike), float(np.median(lengths)), int(lengths.sum()), longer)


# Before and after ---------------------------------------------------------------------------------


def stream_neighbors(
    trace: Trace, table: str, row: int
) -> tuple[tuple[str, int] | None, tuple[str, int] | None]:
    """Find the GPU activities of the same stream before and after one."""
    stream_of = trace.table(table, ["start_ns", *_STREAM]).row(row, named=True)
    before: list[tuple[int, int, str, int]] = []
    after: list[tuple[int, int, str, int]] = []
    for order, other_table in enumerate(tables_with_rows(trace, GPU_WORK)):
        starts = trace.table(other_table, ["start_ns"])["start_ns"].to_numpy()
        at = int(np.searchsorted(starts, stream_of["start_ns"], side="left"))
        first, last = (row, row + 1) if other_table == table else (at, at)
        for neighbors, spans in (
            (before, _backwards(first)),
            (after, _onwards(last, len(starts))),
        ):
            position = _nearest(trace, other_table, stream_of, spans, last=neighbors is before)
            if position is not None:
                neighbors.append((int(starts[position]), order, other_table, position))
    earlier, later = max(before, default=None), min(after, default=None)
    return earlier and earlier[2:], later and later[2:]


def _is(column: str, value: int | None) -> pl.Expr:
    """Return which rows have a number, or none."""
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
    trace: Trace,
    table: str,
    stream_of: dict[str, Any],
    spans: Iterator[tuple[int, int]],
    *,
    last: bool,
) -> int | None:
    """Find the first or last row of a stream in these stretches of a table, one after another."""
    columns = trace.table(table, _STREAM)
    same = pl.all_horizontal(_is(column, stream_of[column]) for column in _STREAM)
    for low, high in spans:
        hits = positions(columns[low:high], same)
        if len(hits):
            return low + int(hits[-1 if last else 0])
    return None


def thread_neighbors(trace: Trace, table: str, row: int) -> tuple[int | None, int | None]:
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
    """Return the events of the same table and thread that enclose an event, the innermost first."""
    frame = trace.table(table, ["start_ns", "end_ns", "thread"])
    start, end, thread = frame.row(row)
    rows = open_at(trace, table, [start])
    open_rows = frame[rows].with_columns(pl.Series("row", rows))
    enclosing = open_rows.filter(
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
    """Return the last event of a thread to have begun and be open at a time; None for none."""
    if thread is None or not trace.has(table):
        return None
    rows = open_at(trace, table, [time_ns])
    frame = trace.table(table, ["start_ns", "end_ns", "thread"])[rows]
    open_rows = frame.with_columns(pl.Series("row", rows)).filter(_is("thread", thread))
    inner = open_rows.sort("start_ns", "end_ns", "row", descending=[True, False, True])["row"]
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
    furthest = np.maximum.accumulate(np.concatenate(([np.iinfo(np.int64).min], ends)))[:-1]
    return int(np.count_nonzero(furthest[: len(ends)] < ends))


# Launched work ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LaunchedWork:
    """GPU work that something on the host launched."""

    frame: pl.DataFrame
    """`table`, `row`, `start_ns` and `end_ns`, in order of start."""

    @property
    def busy_ns(self) -> int:
        """Durations of the work, summed."""
        return int((self.frame["end_ns"] - self.frame["start_ns"]).sum())

    def __len__(self) -> int:
        """Count the GPU activities."""
        return self.frame.height


def launched_by_call(trace: Trace, row: int) -> LaunchedWork:
    """Find the GPU work of an API call."""
    calls = trace.table("api_calls", ["process", "correlation"])[row]
    return _work_of(trace, calls)


def launched_inside(trace: Trace, table: str, row: int) -> LaunchedWork:
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


def _work_of_ops(trace: Trace, start: int, end: int, thread: int | None) -> LaunchedWork:
    """Find the work that names an operator of this stretch of a thread."""
    ops = trace.table("cpu_ops", ["start_ns", "end_ns", "thread", "process", "op"])
    low, high = np.searchsorted(ops["start_ns"].to_numpy(), [start, end + 1], side="left")
    inside = ops[int(low) : int(high)].filter(
        _is("thread", thread),
        pl.col("end_ns") <= end,
        pl.col("op") > 0,
    )
    return _work_of(trace, inside.select("process", "op"))


def _work_of(trace: Trace, keys: pl.DataFrame) -> LaunchedWork:
    """Find the work that has one of these numbers, in its process."""
    process, number = keys.columns
    keyed = keys.drop_nulls(number)
    low, high = keyed[number].min(), keyed[number].max()
    index = KeyIndex(keyed[process], keyed[number])
    parts = [_NO_WORK]
    for table in tables_with_rows(trace, GPU_WORK) if keyed.height else ():
        work = trace.table(table, ["start_ns", "end_ns", process, number])
        # Most rows are ruled out by the least and the largest number.
        work = work.with_row_index("row").filter(pl.col(number).is_between(low, high))
        launched_rows = work.filter(pl.Series(index.find(work[process], work[number]) >= 0))
        row = pl.col("row").cast(pl.Int64)
        parts.append(launched_rows.select(pl.lit(table).alias("table"), row, "start_ns", "end_ns"))
    return LaunchedWork(pl.concat(parts).sort("start_ns", maintain_order=True))


_NO_WORK = pl.DataFrame(
    schema={"table": pl.String, "row": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
)
