"""An nsys capture of any form as a `TraceSource`."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import polars as pl

from gpusight.errors import DamagedCaptureError
from gpusight.readers.nsys import nsys_machine, raw_tables
from gpusight.readers.nsys.column_rules import ROW
from gpusight.readers.nsys.raw_tables import (
    MISSING,
    NOT_A_NUMBER,
    CheckedRows,
    Ends,
    RowCheck,
    RowFilter,
    StringTable,
    as_declared,
    checks_of,
    keep_rows,
    process_of,
    without_wrong,
)
from gpusight.readers.nsys.table_mapping import PARTS
from gpusight.readers.tables import (
    concat_tables,
    encode_names,
    first_name_of,
    time_order,
    within_limits,
)
from gpusight.trace.schema import TABLES
from gpusight.trace.schema_columns import ColumnKind
from gpusight.trace.trace import TraceSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpusight.readers.nsys.column_rules import RawColumnRule, RawTablePart
    from gpusight.readers.nsys.python_stacks import PythonStacks
    from gpusight.readers.nsys.raw_tables import RawTables
    from gpusight.trace.schema_columns import TraceColumn
    from gpusight.trace.trace import Meta


_EXPORT_TYPES = {"nsys-sqlite": "sqlite", "nsys-parquet": "parquetdir", "nsys-arrow": "arrowdir"}
"""What `nsys export` calls the form of a file."""
_IN_WORDS = (ColumnKind.NAME, ColumnKind.TEXT, ColumnKind.FLAG)
"""Kinds of columns without which a row can still be used."""
# Raw tables whose events reach the latest times, for captures that do not state their duration.
_LONG_TABLES = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "OSRT_API",
    "NVTX_EVENTS",
)
_PART_OF = {part.raw: (table, part) for table, parts in PARTS.items() for part in parts}
"""Each raw table is part of one table of the trace."""


class NsysSource(TraceSource):
    """Reads model tables out of an nsys capture's raw tables."""

    def __init__(self, raw: RawTables) -> None:
        self.raw: RawTables = raw
        self.strings = StringTable(raw)
        self._order: dict[str, pl.Series | None] = {}
        self._owners: dict[tuple[str, str], pl.Series] = {}
        self._checked: dict[str, CheckedRows] = {}
        self._wrong_values: dict[tuple[str, str], str] = {}
        self._renamed: pl.DataFrame | None = None

    @cached_property
    def meta(self) -> Meta:
        """What is known about the capture as a whole."""
        unread = sorted(  # raw tables with rows that no table of the trace is made from
            table
            for table in self.raw.tables() - _PART_OF.keys() - nsys_machine.USED_RAW_TABLES
            if not table.startswith(nsys_machine.IGNORED_PREFIXES) and not self.raw.is_empty(table)
        )
        notes = [f"not read: {', '.join(unread)}"] if unread else []
        warnings = (*self.raw.warnings(), *self._missing_columns())
        return msgspec.structs.replace(nsys_machine.meta(self.raw, notes), warnings=warnings)

    def warnings(self) -> tuple[str, ...]:
        """Return warnings about rows and values left out so far."""
        left_out = (warning for rows in self._checked.values() for warning in rows.warnings)
        return (*left_out, *self._wrong_values.values(), *self._stack_warnings())

    def _stack_warnings(self) -> Iterable[str]:
        """Yield what is known so far about Python stacks that are missing."""
        stacks = self.__dict__.get("python_stacks")
        if stacks is not None and stacks.unreadable:
            yield f"{stacks.unreadable:,} Python stacks of nsys do not fit their schema, left out"
        names = self.__dict__.get("_naming_rows")
        if names is not None and self.python_stacks.samples.is_empty():
            from gpusight.readers.nsys.python_stacks import DOMAINS, NOT_EXPORTED

            name = pl.coalesce("text", "registered")
            is_theirs = (pl.col("eventType") == raw_tables.NVTX_DOMAIN) & name.is_in(DOMAINS)
            keys = names.filter(is_theirs)["domain"].drop_nulls().unique()
            marks = RowFilter("eventType", (raw_tables.NVTX_MARK,))
            if (
                len(keys)
                and self.raw.read("NVTX_EVENTS", ["domainId"], marks)["domainId"]
                .is_in(keys.implode())
                .any()
            ):
                yield NOT_EXPORTED

    @cached_property
    def python_stacks(self) -> PythonStacks:
        """The stacks of Python threads that nsys recorded."""
        from gpusight.readers.nsys.python_stacks import read_python_stacks

        return read_python_stacks(self.raw, self.strings)

    def _missing_columns(self) -> Iterable[str]:
        """Yield warnings about missing columns that gpusight needs, and what is used instead."""
        for table, parts in PARTS.items():
            for part in parts:
                for column in TABLES[table].columns:
                    missing = self._missing(part, column.name) if column.required else ""
                    if missing and not self.raw.is_empty(part.raw):
                        rule = self._rule(part, column.name)
                        consequence = rule.warning if rule else f"{table} cannot be read"
                        yield f"{part.raw} has no column {missing}: {consequence}"

    def _missing(self, part: RawTablePart, column: str) -> str:
        """Return the first missing raw column that a column of the trace needs; empty for none."""
        needs = (*((part.only.column,) if part.only else ()), *part.rules[column].needs)
        return next((c for c in needs if c not in self.raw.columns(part.raw)), "")

    def close(self) -> None:
        """Close the file."""
        self.raw.close()

    def has(self, table: str) -> bool:
        """Return whether the table has rows, without reading them."""
        if table in nsys_machine.TABLES:
            return nsys_machine.TABLES[table].has(self)
        return any(not self._is_empty(part) for part in PARTS.get(table, ()))

    def _is_empty(self, part: RawTablePart) -> bool:
        return self.raw.is_empty(part.raw, self._only(part))

    def _only(self, part: RawTablePart) -> RowFilter | None:
        """Return which rows count: all, where the capture lacks the column that decides."""
        known = part.only is not None and part.only.column in self.raw.columns(part.raw)
        return part.only if known else None

    def has_column(self, table: str, column: str) -> bool:
        """Return whether the capture can fill this column."""
        if table in nsys_machine.TABLES:
            return nsys_machine.TABLES[table].has(self)
        return any(self._rule(part, column) is not None for part in PARTS.get(table, ()))

    def row_count(self, table: str) -> int:
        """Count rows without reading them."""
        if table in nsys_machine.TABLES:
            return self.load(table, TABLES[table].column_names[:1]).height
        count = 0
        for part in PARTS.get(table, ()):
            if self._is_empty(part):
                continue
            if part.raw not in self._checked and not self._checks(table, part):
                count += self.raw.row_count(part.raw, self._only(part))
                continue
            if part.raw not in self._checked:
                self._usable(table, part, [])
            count += self._checked[part.raw].rows
        return count

    def _checks(self, table: str, part: RawTablePart) -> tuple[RowCheck, ...]:
        """Return the checks of raw columns without which a row of the part cannot be used."""
        needed: list[str] = []
        for column in TABLES[table].columns:
            rule = self._rule(part, column.name)
            if column.required and rule is not None and column.kind not in _IN_WORDS:
                needed += rule.needs
        if part.only is not None and needed:
            needed.append(part.only.column)
        return checks_of(needed, self.meta.duration_ns if part.ends is Ends.NEEDED else None)

    def _usable(
        self, table: str, part: RawTablePart, columns: Sequence[str], *, numbered: bool = False
    ) -> pl.DataFrame:
        """Read raw columns of the rows that count."""
        checks = self._checks(table, part) if part.raw not in self._checked else ()
        wanted = list(dict.fromkeys([*columns, *(check.column for check in checks)]))
        frame = self._read_part(part, wanted, numbered=numbered)
        if part.raw not in self._checked:
            self._checked[part.raw] = keep_rows(part, frame, checks)
            if part.once and set(part.once) <= self.raw.columns(part.raw):
                rows = self._read_part(part, list(part.once), numbered=False)
                self._checked[part.raw] = self._checked[part.raw].each_once(rows)
        checked = self._checked[part.raw]
        if checked.damage:
            raise self._damaged(part.raw, checked.damage)
        rows = checked.of(frame).select(*columns, *([ROW] if numbered else []))
        frame, wrong = without_wrong(rows, part.raw)
        self._wrong_values.update(((part.raw, column), text) for column, text in wrong.items())
        return frame

    def prepare(self, tables: Iterable[str]) -> None:
        """Pass on which raw tables will be read."""
        self.raw.preload([part.raw for table in tables for part in PARTS.get(table, ())])

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read these columns; rows sorted by the table's time column, ties in file order."""
        if table in nsys_machine.TABLES and self.has(table):
            return nsys_machine.TABLES[table].build(self).select(columns)
        parts = [p for p in PARTS.get(table, ()) if not self._is_empty(p)]
        key = TABLES[table].sort_column
        wanted = list(dict.fromkeys([*columns, *([key] if key else [])]))
        frames = [self._load_part(table, part, wanted) for part in parts]
        if not frames:
            return pl.DataFrame([TABLES[table].column(c).empty() for c in columns])
        frame = frames[0] if len(frames) == 1 else concat_tables(frames)
        if key is not None and table not in self._order:
            self._order[table] = time_order(frame.get_column(key))
        order = self._order.get(table)
        return (frame if order is None else frame[order]).select(columns)

    def _load_part(self, table: str, part: RawTablePart, columns: Sequence[str]) -> pl.DataFrame:
        rules = {c: self._rule(part, c) for c in columns}
        for name, rule in rules.items():
            if TABLES[table].column(name).required and rule is None:
                raise self._damaged(part.raw, f"no column {self._missing(part, name)}")
        available = self.raw.columns(part.raw)
        needed: dict[str, None] = {}
        for rule in rules.values():
            if rule is not None:
                needed |= dict.fromkeys(
                    [*rule.needs, *(c for c in rule.optional if c in available)]
                )
        # Any column has the number of rows.
        wanted = list(needed) or sorted(available)[:1]
        raw = self._usable(table, part, wanted, numbered=rules.get("record") is not None)
        for owner in raw.columns:
            if owner in ("globalTid", "globalPid"):
                self._owners[part.raw, owner] = raw.get_column(owner).unique()
        try:
            return pl.DataFrame(
                [
                    self._column(TABLES[table].column(name), rule, part.raw, raw)
                    for name, rule in rules.items()
                ]
            )
        except (pl.exceptions.PolarsError, OverflowError) as error:
            raise self._damaged(part.raw, str(error).splitlines()[0]) from error

    def _column(
        self, column: TraceColumn, rule: RawColumnRule | None, table: str, raw: pl.DataFrame
    ) -> pl.Series:
        if rule is None:
            return column.nulls(raw.height)
        series = rule.build(self, raw)
        if column.kind is ColumnKind.NAME and column.required and series.null_count():
            missing = encode_names(pl.Series([MISSING])).new_from_index(0, len(series))
            series = first_name_of([series, missing])
        series, wrong = within_limits(column, series)
        total, name = f"{len(series):,}", column.name
        if wrong:
            text = f"{table}: {wrong:,} of {total} values of {name} out of range, left out"
            self._wrong_values[table, name] = text
        if column.required and series.null_count():
            if column.kind is not ColumnKind.TEXT:
                nulls = f"{series.null_count():,} of {total} rows have no {name}"
                raise self._damaged(table, nulls)
            series = series.fill_null(MISSING)
        return series.alias(name)

    def _damaged(self, table: str, why: str) -> DamagedCaptureError:
        kind = _EXPORT_TYPES.get(self.raw.source)
        again = f"export it again: nsys export --type {kind} X.nsys-rep"
        return DamagedCaptureError(
            f"{self.raw.path} is damaged",
            why=f"table {table}: {why}",
            hint=again if kind else "capture again",
        )

    def _read_part(self, part: RawTablePart, columns: list[str], *, numbered: bool) -> pl.DataFrame:
        if not numbered or part.only is None:
            return as_declared(self.raw.read(part.raw, columns, part.only, marked=True))
        # Rows can be numbered only while all of them are there.
        decisive = pl.col(part.only.column)
        wanted = list(dict.fromkeys([*columns, part.only.column]))
        rows = as_declared(self.raw.read(part.raw, wanted, marked=True))
        numbers = pl.int_range(1, rows.height + 1, eager=True).alias(ROW)
        unknown = decisive.is_null() | (decisive == NOT_A_NUMBER)
        return rows.with_columns(numbers).filter(decisive.is_in(part.only.values) | unknown)

    def _rule(self, part: RawTablePart, column: str) -> RawColumnRule | None:
        available, rule = self.raw.columns(part.raw), part.rules.get(column)
        if part.only is not None and part.only.column not in available:
            return None
        while rule is not None and not (available.issuperset(rule.needs) and rule.applies(self)):
            rule = rule.fallback
        return rule

    def owners(self, table: str, column: str) -> pl.Series:
        """Return the distinct threads or processes of a raw table, without reading it twice."""
        if column not in self.raw.columns(table):
            return pl.Series([], dtype=pl.Int64)
        ids = self._owners.get((table, column))
        if ids is None:
            ids = as_declared(self.raw.read(table, [column])).to_series()
        return ids.filter(ids != NOT_A_NUMBER).unique()

    # What column rules use -----------------------------------------------------------------------

    def only_device(self) -> int | None:
        """Return the key of the capture's only GPU; None if it has none or several."""
        devices = self.load("devices", ["device"])
        return int(devices.item()) if devices.height == 1 else None

    def device_of(self, owner: pl.Series, cuda_device: pl.Series) -> pl.Series:
        """Turn the CUDA device number of a global process id into the capture's device key."""
        if self._renamed is None:
            self._renamed = nsys_machine.renamed_devices(self)
        if self._renamed.is_empty():
            return cuda_device
        rows = pl.DataFrame({"process": process_of(owner), "cuda": cuda_device})
        joined = rows.join(self._renamed, on=["process", "cuda"], how="left", maintain_order="left")
        return joined.select(pl.coalesce("device", "cuda")).to_series()

    @cached_property
    def end_of_capture_ns(self) -> int:
        """The time at which an open range is cut."""
        if self.meta.duration_ns is not None:
            return self.meta.duration_ns
        last = 0
        for table in _LONG_TABLES:
            if "end" in self.raw.columns(table) and not self.raw.is_empty(table):
                ends = self._usable(*_PART_OF[table], ["end"]).get_column("end")
                latest = ends.filter(ends < raw_tables.FOREVER).max()
                last = max(last, latest) if isinstance(latest, int) else last
        return last

    def domain_names(self, process: pl.Series, domain: pl.Series) -> pl.Series:
        """Name NVTX domains; the default domain's name is empty."""
        rows = pl.DataFrame({"process": process, "domain": domain})
        return _name_keys(rows, self._nvtx_names(raw_tables.NVTX_DOMAIN, ["domain"]), default="")

    def category_names(self, process: pl.Series, domain: pl.Series, key: pl.Series) -> pl.Series:
        """Name NVTX categories; one without a name is shown by its number."""
        rows = pl.DataFrame({"process": process, "domain": domain, "category": key})
        names = self._nvtx_names(raw_tables.NVTX_CATEGORY, ["domain", "category"])
        return _name_keys(rows, names, default=None)

    def _nvtx_names(self, event_type: int, keys: list[str]) -> pl.DataFrame:
        return (
            self._naming_rows.filter(pl.col("eventType") == event_type)
            .select("process", *keys, name=pl.coalesce("text", "registered"))
            .unique(["process", *keys], keep="first", maintain_order=True)
        )

    @cached_property
    def _naming_rows(self) -> pl.DataFrame:
        columns = ["eventType", "globalTid", "domainId", "category", "text", "textId"]
        available = [c for c in columns if c in self.raw.columns("NVTX_EVENTS")]
        naming = RowFilter("eventType", (raw_tables.NVTX_CATEGORY, raw_tables.NVTX_DOMAIN))
        rows = pl.DataFrame(schema=dict.fromkeys(available, pl.Int64))
        # Many captures have none, which one column shows; text of all rows is the largest one.
        if self.raw.read("NVTX_EVENTS", ["eventType"], naming).height:
            rows = as_declared(self.raw.read("NVTX_EVENTS", available, naming))
        elif "text" in available:
            rows = rows.with_columns(pl.col("text").cast(pl.String))
        for column in set(columns) - set(available):
            dtype = pl.String if column == "text" else pl.Int64
            rows = rows.with_columns(pl.lit(None, dtype=dtype).alias(column))
        return rows.with_columns(
            process=process_of(rows.get_column("globalTid")),
            domain=pl.col("domainId"),
            registered=self.strings.texts(rows.get_column("textId")),
        )


def _name_keys(rows: pl.DataFrame, names: pl.DataFrame, *, default: str | None) -> pl.Series:
    """Look up a name for each row's key, working on the few distinct keys only."""
    keys = [c for c in names.columns if c != "name"]
    is_one = all(rows[key].null_count() == 0 and rows[key].min() == rows[key].max() for key in keys)
    distinct = rows.select(keys)
    distinct = distinct.head(1) if is_one else distinct.unique(maintain_order=True)
    named = distinct.join(names, on=keys, how="left", maintain_order="left")
    number = pl.lit(default) if default is not None else pl.col(keys[-1]).cast(pl.String)
    name = encode_names(named.select(pl.coalesce("name", number)).to_series())
    if named.height == 1:
        return name.new_from_index(0, rows.height)
    joined = rows.join(
        named.with_columns(name.alias("name")),
        on=keys,
        how="left",
        maintain_order="left",
        nulls_equal=True,
    )
    return joined.get_column("name")
