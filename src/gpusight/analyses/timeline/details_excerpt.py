"""The few rows of a capture that bear on one event, as a capture of their own.

Whoever causes an event was open when it was launched. A trace of only those rows gives every
analysis the same answer about the event as the whole one does, in a moment, whatever its size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.analyses.attribution.operators import Operators
from gpusight.model.schema import TABLES
from gpusight.model.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpusight.analyses.timeline.window import Ints
    from gpusight.model.trace import Meta

_WHOLE = ("devices", "processes", "threads")
"""Small tables, of which everything is kept."""
_PAIRED = ("sequence", "forward_thread")


class Excerpt:
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
        """Give the row in the whole capture of a row of the excerpt."""
        return int(self.rows[table][row])

    @property
    def meta(self) -> Meta:
        """What is known about the capture as a whole."""
        return self._trace.meta

    def outline(self) -> None:
        """Need no walk through a file."""

    def has(self, table: str) -> bool:
        """Tell whether rows of the table were taken."""
        return self.row_count(table) > 0

    def has_column(self, table: str, column: str) -> bool:
        """Tell whether the capture can fill this column."""
        return self._trace.has(table, column)

    def row_count(self, table: str) -> int:
        """Count the rows that were taken."""
        return self._trace.row_count(table) if table in _WHOLE else len(self.rows.get(table, ()))

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Give these columns of the rows that were taken."""
        if table in _WHOLE:
            return self._trace.table(table, columns)
        if not self.has(table):
            return pl.DataFrame([TABLES[table].column(c).empty() for c in columns])
        taken = _filled(self._trace, table, columns, self.rows[table])
        if table == "cpu_ops" and set(_PAIRED) & set(columns):
            taken = taken.with_columns(c for c in self._pairs().get_columns() if c.name in columns)
        return pl.DataFrame([_only_used(column) for column in taken.get_columns()])

    def prepare(self, tables: Iterable[str]) -> None:
        """Have everything already."""

    def warnings(self) -> tuple[str, ...]:
        """Name rows and values that reading the capture has left out so far."""
        return self._trace.warnings

    def close(self) -> None:
        """Hold no file."""

    def _pairs(self) -> pl.DataFrame:
        """Number backward operators and the forward ones they serve by pairs.

        Autograd's own numbers can only be told apart by looking at all operators.
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
    taken = trace.table(table, known)[rows] if known else pl.DataFrame()
    missing = [TABLES[table].column(c).nulls(len(rows)) for c in columns if c not in known]
    return pl.DataFrame([*taken.get_columns(), *missing]).select(columns)


def values_of(trace: Trace, table: str, row: int, columns: Sequence[str]) -> dict[str, Any]:
    """Give what these columns of an event hold; None where the capture does not tell."""
    wanted = list(dict.fromkeys(columns))
    return _filled(trace, table, wanted, np.array([row])).row(0, named=True)


def _only_used(column: pl.Series) -> pl.Series:
    """Let a name column know the names of these rows only: some analyses look at every name."""
    if not isinstance(column.dtype, pl.Enum):
        return column
    texts = column.cast(pl.String)
    return texts.cast(pl.Enum(texts.drop_nulls().unique(maintain_order=True)))


def forward_ops(trace: Trace) -> pl.Series:
    """Give for each operator the row of the forward one that it is part of the backward of."""

    def compute() -> pl.DataFrame:
        every = np.arange(trace.row_count("cpu_ops"))
        served = pl.Series("forward", Operators(trace).forward(every), pl.Int64)
        return pl.DataFrame([served.set(served < 0, None)])

    return trace.derive("forward-ops-1", compute)["forward"]


def excerpt_of_work(trace: Trace, table: str, row: int) -> Excerpt:
    """Take what may have caused a piece of GPU work."""
    work = trace.table(table, ["process", "correlation", "op"])[row]
    calls = calls_of(trace, work["process"][0], work["correlation"][0])
    return _around(trace, {table: np.array([row])}, calls, work["op"].to_list())


def excerpt_of_call(trace: Trace, row: int) -> Excerpt:
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


def positions(frame: pl.DataFrame, which: pl.Expr) -> Ints:
    """Give the rows of which something holds."""
    return frame.select(pl.arg_where(which)).to_series().cast(pl.Int64).to_numpy()


def open_at(trace: Trace, table: str, times: Iterable[int]) -> Ints:
    """Give the rows that have begun and not ended at any of these times, rising."""
    frame = trace.table(table, ["start_ns", "end_ns"])
    starts, ends = (frame[c].to_numpy() for c in ("start_ns", "end_ns"))
    found = [
        np.flatnonzero(ends[: np.searchsorted(starts, time, side="right")] > time)
        for time in dict.fromkeys(times)
    ]
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)


def _around(
    trace: Trace, rows: dict[str, Ints], calls: Ints, keys: Sequence[int | None]
) -> Excerpt:
    """Take these rows, the calls, and all that was open when they, or their operators, began."""
    api = trace.table("api_calls", ["start_ns", "op"])[calls]
    times: list[int] = api["start_ns"].to_list()
    named = {key for key in (*keys, *api["op"].to_list()) if key is not None and key > 0}
    ops, moments = _operators(trace, times, named)
    times = [*times, *moments]
    host = {table: open_at(trace, table, times) for table in ("ranges", "python_calls")}
    return Excerpt(trace, {**rows, "api_calls": calls, "cpu_ops": ops, **host})


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
