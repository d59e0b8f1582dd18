"""A native report of Nsight Compute as a source of tables.

The walk over blocks and results takes a moment even for large reports, for nearly all of them is
binaries and parts of counters, and those are stepped over until someone asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.model.schema import TABLES
from gpusight.readers.frames import as_table
from gpusight.readers.ncu.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from gpusight.model.trace import Meta

_COUNTED = "instances"
"""A column of `counters` that takes a walk through all their parts."""


class NcuSource:
    """Tables of a report; each is built when it is asked for."""

    def __init__(self, path: Path) -> None:
        self._report = report = Report(path)
        self._built: dict[str, pl.DataFrame] = {}
        self._builders: dict[str, Callable[[], pl.DataFrame]] = {
            "profiles": report.profiles,
            "counters": report.counters,
            "counter_instances": report.instances,
            "rule_results": report.rules,
            "source_files": report.code.files,
            "code_lines": report.code.lines,
            "diagnostics": report.diagnostics,
            "devices": report.devices,
            "processes": report.processes,
            "threads": report.threads,
        }

    @property
    def meta(self) -> Meta:
        """What is known about the capture as a whole."""
        return self._report.meta

    def outline(self) -> None:
        """Know what is there from the walk that opening took."""

    def has(self, table: str) -> bool:
        """Tell whether the table has rows."""
        if table != "counter_instances":
            return self.row_count(table) > 0
        with self._report.decoding():
            return self._report.has_instances

    def has_column(self, table: str, column: str) -> bool:
        """Tell whether the capture can fill this column."""
        if not self.has(table):
            return False
        if (table, column) == ("counters", _COUNTED):
            return self.has("counter_instances")
        if table == "counter_instances":
            return True  # each row fills what it needs, and there are very many
        return self._table(table).get_column(column).null_count() < self.row_count(table)

    def row_count(self, table: str) -> int:
        """Count rows; parts of counters without decoding them."""
        if table == "counter_instances" and table not in self._built:
            with self._report.decoding():
                return int(self._report.instance_counts.sum())
        return self._table(table).height if table in self._builders else 0

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Give these columns."""
        if table not in self._builders:
            return pl.DataFrame([TABLES[table].column(c).empty() for c in columns])
        frame = self._table(table)
        if _COUNTED in columns and table == "counters":
            with self._report.decoding():
                frame = frame.with_columns(self._report.instance_counts.alias(_COUNTED))
        return frame.select(columns)

    def _table(self, name: str) -> pl.DataFrame:
        if name not in self._built:
            with self._report.decoding():
                frame = self._builders[name]()
            empty = pl.DataFrame([c.empty() for c in TABLES[name].columns])
            self._built[name] = as_table(name, frame) if frame.height else empty
        return self._built[name]

    def prepare(self, tables: Iterable[str]) -> None:
        """Have one walk for everything anyway."""

    def warnings(self) -> tuple[str, ...]:
        """Count values that were left out; what the walk through the file found is in `meta`."""
        return self._report.warnings()

    def close(self) -> None:
        """Give the file back; what was read stays readable."""
        self._report.close()
