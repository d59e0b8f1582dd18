"""A stretch of a capture as a trace: the rows of each table that lie in it, even in part.

What is computed for one stretch after the other needs no more memory for a longer capture.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.trace.intervals import Intervals
from gpusight.trace.schema import TABLES
from gpusight.trace.trace import Trace, TraceSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Meta


_BLOCK = 1 << 16
"""Rows whose latest end is known: earlier ones that are over are stepped over in blocks."""


def part_of(trace: Trace, *spans: tuple[int, int]) -> PartOfTrace:
    """Return what a capture shows of stretches of time, which may overlap."""
    return PartOfTrace(_PartSource(trace, spans))


class PartOfTrace(Trace):
    """Stretches of a capture; rows are numbered anew."""

    _source: _PartSource

    def rows_in_whole(self, table: str) -> Ints:
        """Return which rows of the whole capture those of a table are."""
        return self._source.rows_in_whole(table)


class _PartSource(TraceSource):
    def __init__(self, trace: Trace, spans: Sequence[tuple[int, int]]) -> None:
        self._trace = trace
        self._spans = Intervals.from_arrays(*np.array(sorted(spans), np.int64).reshape(-1, 2).T)
        self._rows: dict[str, list[slice | Ints]] = {}

    @cached_property
    def meta(self) -> Meta:
        return self._trace.meta

    def has(self, table: str) -> bool:
        return self._trace.has(table)

    def has_column(self, table: str, column: str) -> bool:
        return self._trace.has(table, column)

    def row_count(self, table: str) -> int:
        return self.load(table, TABLES[table].column_names[:1]).height

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        frame = self._trace.table(table, columns)
        if TABLES[table].sort_column is None or not self._trace.has(table):
            return frame
        if table not in self._rows:
            self._rows[table] = self._find_rows(table)
        parts = [frame[rows] for rows in self._rows[table]]
        # Rows that lie together are not copied.
        return parts[0] if len(parts) == 1 else pl.concat([frame.clear(), *parts], rechunk=True)

    def rows_in_whole(self, table: str) -> Ints:
        """Return which rows of the whole capture those of a table are."""
        if table not in self._rows:
            return np.arange(self._trace.row_count(table))
        parts = self._rows[table]
        rows = [np.arange(p.start, p.stop) if isinstance(p, slice) else p for p in parts]
        return np.concatenate([np.empty(0, np.int64), *rows])

    def warnings(self) -> tuple[str, ...]:
        return self._trace.losses

    def _find_rows(self, table: str) -> list[slice | Ints]:
        """Return the rows that begin in each stretch, each after those that are not over then."""
        key = TABLES[table].sort_column
        assert key is not None, f"{table} has no time"
        begun = self._trace.table(table, [key])[key]
        edges = zip(self._spans.starts.tolist(), self._spans.ends.tolist(), strict=True)
        rows: list[slice | Ints] = []
        before = 0
        for start_ns, end_ns in edges:
            first, after = (int(begun.search_sorted(t)) for t in (start_ns, end_ns))
            if "end_ns" in TABLES[table].column_names:
                rows.append(self._open_at(table, start_ns, before, first))
            rows.append(slice(first, after))
            before = after
        return [part for part in rows if isinstance(part, slice) or len(part)]

    def _open_at(self, table: str, time_ns: int, first: int, after: int) -> Ints:
        """Return which of the rows from `first` up to `after` end later than a time."""
        ends = self._trace.table(table, ["end_ns"])["end_ns"].to_numpy()
        latest = self._trace.derive(f"latest-ends-1-{table}", lambda: _latest_ends(ends))
        block = np.arange(first // _BLOCK, -(-after // _BLOCK))
        block = block[latest["end_ns"].to_numpy()[block] > time_ns]
        edges = ((max(b * _BLOCK, first), min((b + 1) * _BLOCK, after)) for b in block.tolist())
        found = [low + np.flatnonzero(ends[low:high] > time_ns) for low, high in edges]
        return np.concatenate([np.empty(0, np.int64), *found])


def _latest_ends(ends: Ints) -> pl.DataFrame:
    """Return the latest end of each block of rows."""
    return pl.DataFrame({"end_ns": np.maximum.reduceat(ends, np.arange(0, len(ends), _BLOCK))})
