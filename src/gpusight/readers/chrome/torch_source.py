"""A Chrome trace of PyTorch as a `TraceSource`."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import polars as pl

from gpusight.model.schema import TABLES
from gpusight.model.trace import Meta, Outline
from gpusight.readers.chrome import kinds, machine
from gpusight.readers.chrome.torch_tables import PARTS, Part, Rule
from gpusight.readers.frames import as_table, concat_tables, time_order, within_limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from gpusight.readers.chrome.rows import Rows
    from gpusight.readers.chrome.source import Scanned

_DAY_NS = 86_400 * 10**9
_LONGEST_NS = 30 * _DAY_NS
"""No profiler records for longer."""
_TIMED_KINDS = (
    *kinds.HOST_KINDS,
    *kinds.GPU_WORK_KINDS,
    kinds.GPU_ANNOTATION,
    kinds.SYNC,
    kinds.OVERHEAD,
    kinds.MEMORY,
)


class TorchSource:
    """Reads model tables out of what a walk through a PyTorch trace found."""

    def __init__(self, path: Path, scanned: Scanned) -> None:
        self.path = path
        self._scanned = scanned
        self._orders: dict[str, pl.Series | None] = {}
        self._out_of_range: dict[tuple[str, str], str] = {}

    @cached_property
    def meta(self) -> Meta:
        """What is known about the capture as a whole."""
        found = self._scanned
        meta = machine.meta(self.path, found.about, self.origin_ns, self.duration_ns)
        warnings = found.warnings
        if self.duration_ns > _LONGEST_NS:
            days = self.duration_ns // _DAY_NS
            warnings = (*warnings, f"the trace spans {days:,} days: some of its times are wrong")
        return msgspec.structs.replace(meta, notes=found.notes, warnings=warnings)

    def outline(self) -> Outline:
        """Say what is in the file."""
        tables = [t for t in TABLES if self.has(t)]
        return Outline(
            meta=self.meta,
            rows={t: self.row_count(t) for t in tables},
            columns={
                t: [c.name for c in TABLES[t].columns if self.has_column(t, c.name)] for t in tables
            },
        )

    def has(self, table: str) -> bool:
        """Tell whether the table has rows."""
        return self.row_count(table) > 0

    def row_count(self, table: str) -> int:
        """Count rows."""
        if table in machine.TABLES:
            return self._small(table).height
        return sum(rows.height for _, rows in self._parts(table))

    def has_column(self, table: str, column: str) -> bool:
        """Tell whether the capture can fill this column."""
        if table in machine.TABLES:
            frame = self._small(table)
            return column in frame.columns and frame[column].null_count() < frame.height
        return any(_fills(part.rules.get(column), rows) for part, rows in self._parts(table))

    def prepare(self, tables: Iterable[str]) -> None:
        """Have walked through the file for all tables at once."""

    def warnings(self) -> tuple[str, ...]:
        """Name values that reading has left out so far; `meta` names events."""
        wrong = (
            f"{count:,} of {rows.height:,} {kind} events have no number as {key}"
            for kind, rows in self._scanned.events.rows.items()
            for key, count in rows.arguments.wrong.items()
        )
        return (*wrong, *self._out_of_range.values())

    def close(self) -> None:
        """Hold no file open."""

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read these columns; rows sorted by the table's time column, ties in file order."""
        if table in machine.TABLES:
            return self._small(table).select(columns)
        frames = [self._load_part(table, part, rows, columns) for part, rows in self._parts(table)]
        if not frames:
            return pl.DataFrame([TABLES[table].column(c).empty() for c in columns])
        frame = frames[0] if len(frames) == 1 else concat_tables(frames)
        order = self._order(table)
        return frame if order is None else frame[order]

    def _parts(self, table: str) -> list[tuple[Part, Rows]]:
        rows = self._scanned.events.rows
        return [(p, rows[p.kind]) for p in PARTS.get(table, ()) if p.kind in rows]

    def _load_part(
        self, table: str, part: Part, rows: Rows, columns: Sequence[str]
    ) -> pl.DataFrame:
        rules = {c: part.rules.get(c) for c in columns}
        wanted = [want for rule in rules.values() if rule is not None for want in rule.wants]
        made = iter(rows.arguments.columns(wanted) if wanted else ())
        built = []
        for name, rule in rules.items():
            if rule is None:
                built.append(TABLES[table].column(name).nulls(rows.height))
            else:
                column = rule.build(self, rows, [next(made) for _ in rule.wants]).alias(name)
                built.append(self._within_limits(table, part, column))
        return pl.DataFrame(built)

    def _within_limits(self, table: str, part: Part, series: pl.Series) -> pl.Series:
        """Leave out sizes and numbers that nothing can mean."""
        column = TABLES[table].column(series.name)
        series, wrong = within_limits(column, series)
        if not wrong:
            return series
        instead = "count as 0" if column.required else "left out"
        self._out_of_range[part.kind, column.name] = (
            f"{wrong:,} of {len(series):,} {part.kind} events have {column.name} out of range,"
            f" {instead}"
        )
        return series.fill_null(0) if column.required else series

    def _order(self, table: str) -> pl.Series | None:
        """Give the order of rows by time, ties as they stand; none where that is how they are."""
        if table not in self._orders:
            times = pl.concat([rows.start_ns for _, rows in self._parts(table)])
            self._orders[table] = time_order(times)
        return self._orders[table]

    @cached_property
    def _smalls(self) -> dict[str, pl.DataFrame]:
        return {
            name: as_table(name, frame)
            for name, frame in machine.tables(self._scanned.events, self._scanned.about).items()
        }

    def _small(self, table: str) -> pl.DataFrame:
        return self._smalls[table]

    # What rules ask for (torch_tables.Context) ---------------------------------------------------

    def since_origin(self, times: pl.Series) -> pl.Series:
        """Count a time from the earliest event of the file."""
        return times - self.origin_ns

    def host_process(self) -> int | None:
        """Give the one process of the host; none where there are several."""
        return self._host_process

    @cached_property
    def _host_process(self) -> int | None:
        # A few frames of the interpreter's start stand on process 0.
        found = {pid for kind in kinds.HOST_KINDS for pid in self._of(kind).pid.unique() if pid}
        return found.pop() if len(found) == 1 else None

    def _of(self, kind: str) -> Rows:
        return self._scanned.events.of(kind)

    @cached_property
    def origin_ns(self) -> int:
        """The time, on the file's own clock, from which the model counts."""
        first = [self._of(kind).start_ns.min() for kind in _TIMED_KINDS if self._of(kind).height]
        return min((int(t) for t in first), default=0)  # type: ignore[arg-type]

    @cached_property
    def duration_ns(self) -> int:
        """How long the trace lasts, from its first event to its last."""
        ends = [self._of(k).start_ns + self._of(k).duration_ns for k in _TIMED_KINDS]
        last = [int(e.max()) for e in ends if len(e)]  # type: ignore[arg-type]
        return max(last, default=self.origin_ns) - self.origin_ns


def _fills(rule: Rule | None, rows: Rows) -> bool:
    if rule is None:
        return False
    keys = [key for want in rule.wants[:1] for key in want.keys]
    return not keys or any(rows.arguments.mention(key) for key in keys)
