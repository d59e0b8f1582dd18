"""Sanitized copies of nsys captures: the tables that are copied, rewritten and left out."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import adbc_driver_manager
import adbc_driver_sqlite
import polars as pl

from gpusight.readers.nsys.raw_tables import SYSTEM_FACTS, StringTable
from gpusight.sharing.known_words import described
from gpusight.sharing.leak_report import Category, LeakTally, Treatment
from gpusight.sharing.nsys_allow_list import ENUMS, KNOWN, SharedColumnKind, TextRole
from gpusight.sharing.nsys_survey import (
    THREADS,
    NsysSurvey,
    TextCleaner,
    diagnosis,
    pieces_of,
    product,
    session_values,
    thread_name,
    version,
    with_names_only,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gpusight.readers.nsys.raw_tables import RawTables
    from gpusight.sharing.leak_report import LeakScan, ShareOptions
    from gpusight.sharing.nsys_allow_list import SharedColumn


_EXPORTED: dict[str, Callable[[str], str | None]] = {
    "EXPORT_PRODUCT_NAME": product,
    "EXPORT_PRODUCT_VERSION": version,
    "EXPORT_SCHEMA_VERSION": version,
    "EXPORT_SCHEMA_VERSION_MAJOR": version,
    "EXPORT_SCHEMA_VERSION_MINOR": version,
    "EXPORT_SCHEMA_VERSION_MICRO": version,
}
_MACHINE: dict[str, Callable[[str], str | None]] = {
    "NvDriverVersion": version,
    "CudaDriverVersion": version,
    "OsDescription": described,
    "CpuDescription": described,
}
assert _MACHINE.keys() == SYSTEM_FACTS.keys()
_NAMED = (
    (re.compile(r"ENVIRONMENT", re.IGNORECASE), Category.ENVIRONMENT),
    (re.compile(r"COMMAND|ARGUMENT"), Category.COMMAND_LINES),
    (re.compile(r"WORKING_DIR|PATH|FILE|InstallDir", re.IGNORECASE), Category.FILE_PATHS),
    (re.compile(r"USER"), Category.USER_NAMES),
    (re.compile(r"HOST|DEVICE_DISPLAY_NAME|^DEVICE_ID$", re.IGNORECASE), Category.HOST_NAMES),
    (re.compile(r"TIME_UTC|TIME_LOCAL|EXPORT_TIME$|_DATE$"), Category.CAPTURE_TIME),
    (re.compile(r"_PID$|NamespacePID"), Category.PROCESSES),
    (re.compile(r"UUID|UID|GpuInfo|SESSION_ID"), Category.HARDWARE_IDS),
    (re.compile(r"Nic", re.IGNORECASE), Category.NETWORK),
)
"""What a property reveals, by its name."""
_SETTING = re.compile(r"Has|Supports?|Is[A-Z]|Cpu|Linux|Software|Kernel|Export|EXPORT_|Event|Gpu")
"""Capabilities of nsys, versions and sizes: they identify nobody."""
_ENVIRONMENT = re.compile(r"(?:^|[\0;\n])[A-Za-z_][A-Za-z0-9_]{0,80}=")
_ENTRIES = re.compile(r"[\0;\n]")
_PYTHON = r"(?:^|/)python[\d.]{0,6}$"
"""Names of interpreters: advice depends on the language of the program."""
_NUMBERED = re.compile(r"(?:process|python) \d+")
"""What processes are called in a copy."""


def category_of(name: str) -> Category | None:
    """Return what a property of the session or machine reveals; None for a mere setting."""
    return next((category for pattern, category in _NAMED if pattern.search(name)), None)


class MachineTables:
    """Cleans the tables that need more than a look at each column."""

    def __init__(self, raw: RawTables, survey: NsysSurvey, tally: LeakTally) -> None:
        self._raw, self._survey, self._tally = raw, survey, tally
        self._strings = StringTable(raw)
        self._threads = _read_table(raw, "ThreadNames", {"globalTid": pl.Int64, "nameId": pl.Int64})

    def tables(self) -> Iterator[tuple[str, pl.DataFrame]]:
        """Return what the copy has of each."""
        for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
            yield table, self._properties(table, _EXPORTED, ("name", "value"))
        machine = self._properties(
            "TARGET_INFO_SYSTEM_ENV", _MACHINE, ("globalVid", "name", "nameEnum", "value")
        )
        yield "TARGET_INFO_SYSTEM_ENV", machine
        self._properties("META_DATA_CAPTURE", {}, ("name", "value"))
        yield "DIAGNOSTIC_EVENT", self._diagnostics()
        yield "PROCESSES", self._processes()

    def _properties(
        self, table: str, wanted: dict[str, Callable[[str], str | None]], columns: tuple[str, ...]
    ) -> pl.DataFrame:
        """Keep the wanted properties that have the expected form."""
        types = {c: pl.String if c in ("name", "value") else pl.Int64 for c in columns}
        rows = _read_table(self._raw, table, {**types, "devStateName": pl.String})
        kept = []
        for row in rows.iter_rows(named=True):
            name, value = row["name"] or "", row["value"] or ""
            cleaned = wanted[name](value) if name in wanted else None
            if cleaned is not None:
                kept.append({c: row[c] for c in columns} | {"value": cleaned})
            self._note(table, name, value, cleaned)
            self.hide(Category.HOST_NAMES, f"{table}.devStateName", row["devStateName"])
        return pl.DataFrame(kept, schema=types)

    def _note(self, table: str, name: str, value: str, cleaned: str | None) -> None:
        if cleaned is not None and cleaned == value:
            return
        category = category_of(name)
        if category is not None:
            self.hide(category, f"{table}.value", value)
        elif value and not _SETTING.match(name):
            # A switch of the profiler: what it is set to are words that stand anywhere.
            self._tally.add(Category.COMMAND_LINES, f"{table}.value", Treatment.REMOVED, value)

    def hide(self, category: Category, where: str, value: str | None) -> None:
        """Count a removed value, and remember it."""
        if not value:
            return
        self._tally.add(category, where, Treatment.REMOVED, value)
        for entry in _ENTRIES.split(value) if category is Category.ENVIRONMENT else (value,):
            self._tally.hide(category, entry)

    def _diagnostics(self) -> pl.DataFrame:
        columns = {
            "timestamp": pl.Int64,
            "timestampType": pl.Int64,
            "source": pl.Int64,
            "severity": pl.Int64,
            "text": pl.String,
        }
        rows = _read_table(self._raw, "DIAGNOSTIC_EVENT", columns)
        texts = rows.get_column("text").fill_null("").to_list()
        self._tally.add_all(
            Category.PROGRAM_OUTPUT, "DIAGNOSTIC_EVENT.text", Treatment.SHORTENED, set(texts)
        )
        messages = pl.Series("text", [diagnosis(text) for text in texts], dtype=pl.String)
        times = self._survey.shifted(rows.get_column("timestamp"))
        return rows.with_columns(times, messages)

    def _processes(self) -> pl.DataFrame:
        """Keep processes that have events, each called by its number, and whether it is Python."""
        rows = _read_table(self._raw, "PROCESSES", {"globalPid": pl.Int64, "name": pl.String})
        for name in rows.get_column("name").unique().drop_nulls().to_list():
            if not _NUMBERED.fullmatch(name):
                self.hide(Category.PROCESSES, "PROCESSES.name", name)
        used = rows.filter(self._survey.own(rows.get_column("globalPid")))
        ids = self._survey.renumbered(used.get_column("globalPid"))
        used = used.with_columns(globalPid=ids).with_columns(
            pid=pl.col("globalPid") // (1 << 24) % (1 << 24)
        )
        is_python = pl.col("name").str.contains(_PYTHON).fill_null(value=False)
        kind = pl.when(is_python).then(pl.lit("python")).otherwise(pl.lit("process"))
        return used.with_columns(name=pl.format("{} {}", kind, "pid"))

    def thread_names(self) -> list[int]:
        """Return the ids of the texts that name threads; they are counted as such."""
        return self._threads.get_column("nameId").unique().drop_nulls().to_list()

    def threads(self, first_id: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Keep the threads of processes that have events, and return the texts of their names."""
        rows = self._threads
        names = self._strings.texts(rows.get_column("nameId")).fill_null("")
        for name in filter(None, names.unique().to_list()):
            treatment = Treatment.KEPT if THREADS.fullmatch(name) else Treatment.REMOVED
            self._tally.add(Category.THREAD_NAMES, "ThreadNames.nameId", treatment, name)
        rows = rows.with_columns(name=pl.Series([thread_name(n) for n in names], dtype=pl.String))
        rows = rows.filter(self._survey.own(rows.get_column("globalTid")))
        texts = rows.select(value=pl.col("name").unique(maintain_order=True)).with_row_index("id")
        texts = texts.select(pl.col("id").cast(pl.Int64) + first_id, "value")
        named = rows.join(
            texts, left_on="name", right_on="value", how="left", maintain_order="left"
        )
        ids = self._survey.renumbered(named.get_column("globalTid"))
        return named.select(pl.col("id").alias("nameId"), ids), texts

    def unused(self, texts: pl.Series) -> None:
        """Count texts that nothing in the copy refers to, by what they look like."""
        for text in texts.drop_nulls().to_list():
            if _ENVIRONMENT.search(text):
                self.hide(Category.ENVIRONMENT, "StringIds.value", text)
            elif text.startswith("/"):
                self.hide(Category.FILE_PATHS, "StringIds.value", text)
            elif text:
                self._tally.add(Category.CODE, "StringIds.value", Treatment.REMOVED, text)


def _read_table(raw: RawTables, table: str, columns: dict[str, type[pl.DataType]]) -> pl.DataFrame:
    """Read columns of a small table; those that it lacks are null."""
    present = [column for column in columns if column in raw.columns(table)]
    if not present:
        return pl.DataFrame(schema=columns)
    rows = raw.read(table, present)
    return rows.select(
        pl.col(c).cast(dtype, strict=False) if c in present else pl.lit(None, dtype).alias(c)
        for c, dtype in columns.items()
    )


_TYPES = {pl.Int64: "INTEGER", pl.Float64: "REAL", pl.String: "TEXT"}
_SETTINGS = ("PRAGMA journal_mode = OFF", "PRAGMA synchronous = OFF")
"""A copy that is not finished is thrown away, so nothing need be undone."""


class SqliteSink:
    """A database that is written once: whatever it held before, it holds nothing else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: set[str] = set()
        self._run("PRAGMA user_version = 0")  # makes the file, however little will be in it

    def add(self, table: str, rows: pl.DataFrame) -> None:
        """Add rows to a table; the first ones say which columns it has."""
        if table not in self._known:
            self._known.add(table)
            self._create(table, rows)
        if rows.height:
            self._insert(table, rows)

    def close(self) -> None:
        """Do nothing: every piece is in the file."""

    def _create(self, table: str, rows: pl.DataFrame) -> None:
        has_key = table == "StringIds" or table.startswith("ENUM_")
        columns = [
            f'"{name}" {_TYPES[type(dtype)]}{" PRIMARY KEY" if has_key and name == "id" else ""}'
            for name, dtype in rows.schema.items()
        ]
        self._run(f'CREATE TABLE "{table}" ({", ".join(columns)})')

    def _run(self, statement: str) -> None:
        try:
            with closing(sqlite3.connect(self._path)) as connection:
                for setting in _SETTINGS:  # no journal may be left next to the copy
                    connection.execute(setting)
                connection.execute(statement)
                connection.commit()
        except sqlite3.Error as error:
            raise _failed(error) from error

    def _insert(self, table: str, rows: pl.DataFrame) -> None:
        manager = adbc_driver_manager
        try:
            with (
                manager.AdbcDatabase(
                    driver=adbc_driver_sqlite._driver_path(), uri=str(self._path)
                ) as database,
                manager.AdbcConnection(database) as connection,
                manager.AdbcStatement(connection) as statement,
            ):
                for setting in _SETTINGS:
                    statement.set_sql_query(setting)
                    statement.execute_update()
                statement.set_options(
                    **{
                        "adbc.ingest.target_table": table,
                        "adbc.ingest.mode": "adbc.ingest.mode.append",
                    }
                )
                statement.bind_stream(rows)
                statement.execute_update()
        except manager.Error as error:
            raise _failed(error) from error


class ParquetSink:
    """A folder with one Parquet file a table."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parts: dict[str, list[Path]] = {}
        path.mkdir()

    def add(self, table: str, rows: pl.DataFrame) -> None:
        """Write the rows to a file of their own, until the table is whole."""
        parts = self._parts.setdefault(table, [])
        part = self._path / f"{table}.{len(parts)}.part"
        try:
            rows.write_parquet(part)
        except pl.exceptions.PolarsError as error:
            raise _failed(error) from error
        parts.append(part)

    def close(self) -> None:
        """Join the chunks of each table to one file."""
        for table, parts in self._parts.items():
            joined = self._path / f"{table}.parquet"
            if len(parts) == 1:
                parts[0].rename(joined)
                continue
            try:
                pl.scan_parquet(parts).sink_parquet(joined)
            except pl.exceptions.PolarsError as error:
                raise _failed(error) from error
            for part in parts:
                part.unlink()


def _failed(error: Exception) -> OSError:
    """Convert a library's error to one that `output_files` reports as a file not written."""
    return OSError((str(error).splitlines() or [type(error).__name__])[0])


class NsysCleaner:
    """Knows nsys captures: SQLite, Parquet, Arrow and native reports."""

    def __init__(self, raw: RawTables, to: str = "sqlite") -> None:
        self._raw = raw
        self._to = to

    @property
    def suffixes(self) -> tuple[str, ...]:
        """What copies may be called."""
        return (f".{self._to}",)

    def scan(self, options: ShareOptions) -> LeakScan:
        """Count what the capture holds, and how a copy would treat it."""
        return _Copy(self._raw, options).counted()

    def write(self, output: Path, options: ShareOptions, *, name: str = "") -> LeakScan:
        """Write the copy; its form was chosen before, whatever its `name`."""
        del name
        sink: SqliteSink | ParquetSink = (
            SqliteSink(output) if self._to == "sqlite" else ParquetSink(output)
        )
        return _Copy(self._raw, options).counted(sink)


class _Copy:
    """One walk through a capture."""

    def __init__(self, raw: RawTables, options: ShareOptions) -> None:
        self._raw = raw
        self._tally = LeakTally()
        self._texts = TextCleaner(options, self._tally)
        self._survey = NsysSurvey(raw, self._texts, self._tally)
        self._about = MachineTables(raw, self._survey, self._tally)

    def counted(self, sink: SqliteSink | ParquetSink | None = None) -> LeakScan:
        """Walk through the capture, write what may be shared, and count everything."""
        for table, rows in (*self._about.tables(), *self._strings_and_threads()):
            if sink is not None and rows.height:
                sink.add(table, rows)
        for category, where, value in session_values(self._raw):
            self._about.hide(category, where, value)
        if sink is not None:
            self._write_known(sink)
            sink.close()
        return replace(self._tally.scan(self._raw.notes()), numbers=self._survey.numbers)

    def _strings_and_threads(self) -> Iterator[tuple[str, pl.DataFrame]]:
        """Return the texts that are referred to, and the threads, whose names are texts too."""
        roles = self._survey.strings
        threads, names = self._about.threads(max(roles, default=0) + 1)
        yield "ThreadNames", threads
        if not {"id", "value"} <= self._raw.columns("StringIds"):
            yield "StringIds", names
            return
        known = (
            self._raw.read("StringIds", ["id", "value"])
            .drop_nulls("id")
            .unique("id", keep="first", maintain_order=True)
        )
        is_used = known.get_column("id").is_in(list(roles))
        is_thread_name = known.get_column("id").is_in(self._about.thread_names())
        self._about.unused(known.filter(~is_used & ~is_thread_name).get_column("value"))
        rows = known.filter(is_used).drop_nulls("value")
        cleaned = [self._texts.clean(text, roles[number]) for number, text in rows.iter_rows()]
        rows = rows.with_columns(value=pl.Series(cleaned, dtype=pl.String))
        yield "StringIds", pl.concat([rows, names]).sort("id")

    def _write_known(self, sink: SqliteSink | ParquetSink) -> None:
        for table in sorted(self._raw.tables() & KNOWN.keys()):
            columns = {n: c for n, c in KNOWN[table].items() if n in self._raw.columns(table)}
            if self._raw.is_empty(table):
                continue
            # Columns that are left empty need not be read; any one gives the number of rows.
            wanted = [n for n, c in columns.items() if c.kind is not SharedColumnKind.GONE] or list(
                columns
            )[:1]
            for rows in pieces_of(self._raw, table, wanted):
                named = with_names_only(table, rows)
                cleaned = [self._column(name, column, named) for name, column in columns.items()]
                sink.add(table, pl.DataFrame(cleaned))
        for table, words in ENUMS.items():
            schema = {"id": pl.Int64, "name": pl.String, "label": pl.String}
            sink.add(table, pl.DataFrame(words, schema=schema, orient="row"))

    def _column(self, name: str, column: SharedColumn, rows: pl.DataFrame) -> pl.Series:
        if column.kind is SharedColumnKind.GONE:
            return pl.Series(name, [None], dtype=column.empty).new_from_index(0, rows.height)
        values = rows.get_column(name)
        if column.kind is SharedColumnKind.TEXT:
            texts = self._texts.clean_all(values.cast(pl.String), column.role or TextRole.RANGE)
            return texts.alias(name)
        if column.kind is SharedColumnKind.REAL:
            return values.cast(pl.Float64, strict=False)
        integers = values.cast(pl.Int64, strict=False)
        if column.kind is SharedColumnKind.TIME:
            return self._survey.shifted(integers).alias(name)
        if column.kind is SharedColumnKind.THREAD:
            return self._survey.renumbered(integers).alias(name)
        if column.kind is SharedColumnKind.PID:
            return self._survey.pid(integers).alias(name)
        return integers
