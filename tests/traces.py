"""Traces built by hand: the rows that matter to a test, everything else by default.

    trace = build_trace(kernels=[{"start_ns": 0, "end_ns": 10, "name": "gemm"}])

Rows are dictionaries. Required columns that a row leaves out take a default (device 0, one process,
one thread, `end_ns` = `start_ns`); other columns are null. Rows are sorted as the schema asks.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

import polars as pl

from gpusight.trace.schema import TABLES
from gpusight.trace.schema_columns import ColumnKind, TraceColumn, TraceTable
from gpusight.trace.trace import Meta, Trace, check_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Row: TypeAlias = "Mapping[str, Any]"
Rows: TypeAlias = "Sequence[Row]"

PROCESS = 1
THREAD = 11

_DEFAULTS: dict[str, Any] = {
    "device": 0,
    "context": 1,
    "stream": 7,
    "process": PROCESS,
    "thread": THREAD,
    "start_ns": 0,
    "time_ns": 0,
    "bytes": 0,
    "open": False,
    "return_value": 0,
}
_TABLE_DEFAULTS: dict[str, dict[str, Any]] = {
    "ranges": {"kind": "push_pop", "domain": ""},
    "copies": {"kind": "Host-to-Device", "src_kind": "Pinned", "dst_kind": "Device"},
    "memsets": {"memory_kind": "Device"},
    "api_calls": {"name": "cudaLaunchKernel", "api": "runtime"},
    "syncs": {"kind": "Stream"},
    "devices": {"name": "NVIDIA H200"},
    "processes": {"pid": 4242, "name": "python3"},
    "threads": {"tid": 4242},
    "memory_events": {"operation": "allocation", "memory_kind": "Device"},
    "diagnostics": {"severity": "information", "text": "", "time_ns": None},
}


class FakeSource:
    """A TraceSource in memory that remembers which columns were asked for."""

    def __init__(self, frames: dict[str, pl.DataFrame], filled: dict[str, set[str]], meta: Meta):
        self._frames = frames
        self._filled = filled
        self._meta = meta
        self.loads: Counter[tuple[str, str]] = Counter()

    @property
    def meta(self) -> Meta:
        return self._meta

    def outline(self) -> None:
        """Know everything without looking."""

    def has(self, table: str) -> bool:
        return self.row_count(table) > 0

    def has_column(self, table: str, column: str) -> bool:
        return column in self._filled.get(table, set())

    def row_count(self, table: str) -> int:
        return self._frames[table].height if table in self._frames else 0

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        self.loads.update((table, column) for column in columns)
        if table not in self._frames:
            return pl.DataFrame([TABLES[table].column(c).empty() for c in columns])
        return self._frames[table].select(columns)

    def warnings(self) -> tuple[str, ...]:
        return ()

    def prepare(self, tables: Iterable[str]) -> None:
        """Have everything already."""

    def close(self) -> None:
        pass


def build_trace(meta: Mapping[str, Any] | None = None, **tables: Rows) -> Trace:
    """Make a valid Trace of these rows."""
    return Trace(build_source(meta, **tables))


def build_source(meta: Mapping[str, Any] | None = None, **tables: Rows) -> FakeSource:
    """Make the source behind such a Trace, for tests that watch what is read."""
    frames: dict[str, pl.DataFrame] = {}
    filled: dict[str, set[str]] = {}
    for name, rows in tables.items():
        complete = [_complete(TABLES[name], row, number) for number, row in enumerate(rows)]
        frames[name] = _frame(TABLES[name], complete)
        check_table(name, frames[name])
        filled[name] = {c for row in complete for c, value in row.items() if value is not None}
    about = {"path": "hand-built", "source": "nsys-sqlite", "tool": "built by hand"}
    return FakeSource(frames, filled, Meta(**{**about, **(meta or {})}))


def _complete(table: TraceTable, row: Row, number: int) -> dict[str, Any]:
    unknown = set(row) - set(table.column_names)
    assert not unknown, f"{table.name} has no column {unknown}"
    defaults = {**_DEFAULTS, **_TABLE_DEFAULTS.get(table.name, {})}
    if "end_ns" in table.column_names:
        defaults["end_ns"] = row.get("start_ns", 0)
    if table.name == "devices":
        defaults["device"] = number
    return {c.name: row.get(c.name, defaults.get(c.name)) for c in table.columns}


def _frame(table: TraceTable, rows: list[dict[str, Any]]) -> pl.DataFrame:
    frame = pl.DataFrame([_series(c, [row[c.name] for row in rows]) for c in table.columns])
    return frame.sort(table.sort_column, maintain_order=True) if table.sort_column else frame


def _series(column: TraceColumn, values: list[Any]) -> pl.Series:
    names = (
        list(dict.fromkeys(v for v in values if v is not None))
        if column.kind is ColumnKind.NAME
        else []
    )
    return pl.Series(column.name, values, dtype=column.dtype_for(names))
