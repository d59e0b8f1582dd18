"""nsys SQLite exports, read column by column without touching the file.

The file is opened read-only and immutable, so SQLite takes no lock and leaves no `-wal` or `-shm`
next to it; where one exists already, a private copy is read. The compiled core decodes the pages of
sound tables (sqlite_pages.py). Else columns come through ADBC as Arrow batches: no Python object
per row. Large tables are read by several connections at once, each taking its share of the row ids.

A file may lie about itself: row ids far apart, pages that are shared by many rows. Every query ends
at the number of rows and bytes that a file of its size can hold. Tables are always walked in the
order of their row ids (`NOT INDEXED`): an index that covers a column would give it another order.
"""

from __future__ import annotations

import enum
import os
import shutil
import sqlite3
import struct
import tempfile
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import polars as pl

from gpusight.errors import DamagedCaptureError, NotACaptureError
from gpusight.readers.nsys import nsys_machine, sqlite_journal
from gpusight.readers.nsys.raw_tables import (
    NOT_A_NUMBER,
    PAYLOAD_EVENTS,
    PAYLOADS,
    RawTables,
    decode_text,
)
from gpusight.readers.nsys.sqlite_pages import SqlitePages
from gpusight.readers.nsys.table_mapping import PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpusight.readers.nsys.raw_tables import RowFilter


_HEADER_BYTES = 100
_PIECE_ROWS = 250_000
"""Rows that one connection reads at a time; what ADBC needs beyond them is freed after each."""
_WORKERS = 4
_BATCH_ROWS = 65_536
_MIN_ROW_BYTES = 4
"""A row takes two bytes of its page's index, its own length and the number of its columns."""
_STEPS_A_BYTE = 20
"""Steps of SQLite's machine that a query may take for each byte of the file."""
_MIN_STEPS, _STEPS_AT_ONCE = 10_000_000, 1_000_000
_ROW_IDS = ("rowid", "_rowid_", "oid")
"""What SQLite calls the number of a row, unless a column of the table has that name."""
# A capture has at least one of these; a database with none of them is some other program's.
_READ = nsys_machine.USED_RAW_TABLES | {part.raw for parts in PARTS.values() for part in parts}
"""Tables that gpusight reads; other programs add views of their own."""
_NSYS_TABLES = frozenset(
    {"StringIds", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS", "TARGET_INFO_SYSTEM_ENV"}
)


class _Span(NamedTuple):
    """A range of rows that one query reads."""

    condition: str
    """Which rows, in SQL."""
    max_rows: int
    """How many there can be."""


class SqliteTables(RawTables):
    """The tables of an nsys SQLite export of any schema version."""

    source = "nsys-sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._notes: list[str] = []
        self._discard: Callable[[], object] | None = None
        file = self._settled(path)
        self._size = file.stat().st_size
        self._max_rows = self._size // _MIN_ROW_BYTES
        self._uri = f"{file.resolve().as_uri()}?mode=ro&immutable=1"
        _check_length(file, path)
        self._views: list[str] = []
        self._stored: dict[tuple[str, str], str] = {}
        self._counted: set[str] = set()
        self._types = self._read_schema()
        self._pages = SqlitePages(file, self._rows)
        if not self._types.keys() & _NSYS_TABLES:
            raise NotACaptureError(
                f"{path} is a SQLite database, but not an nsys export",
                why=self._unread() or "it has none of the tables that nsys writes",
                hint="make one with: nsys export --type sqlite REPORT.nsys-rep",
            )

    def _settled(self, path: Path) -> Path:
        """Return the file to read: the capture, or a private copy with the changes in its logs."""
        logs = ", ".join(log.name for log in sqlite_journal.log_files(path) if log.stat().st_size)
        if not sqlite_journal.is_pending(path):
            if logs:
                self._notes.append(f"{logs} has no complete change to the capture: ignored")
            return path
        folder = Path(tempfile.mkdtemp(prefix="gpusight-"))
        self._discard = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._notes.append(f"changes in {logs} next to the capture were applied to a private copy")
        return sqlite_journal.settled_copy(path, folder)

    def tables(self) -> frozenset[str]:
        """List every table of the export."""
        return frozenset(self._types)

    def columns(self, table: str) -> frozenset[str]:
        """List the columns of a table; none if there is no such table."""
        return frozenset(self._types.get(table, {}))

    def row_count(self, table: str, only: RowFilter | None = None) -> int:
        """Count the rows of a table, or those of some."""
        if table not in self._types:
            return 0
        self._check_rows(table)
        return self._scalar(f"SELECT count(*) FROM {_from(table)} WHERE {_condition(only)}")

    def is_empty(self, table: str, only: RowFilter | None = None) -> bool:
        """Return whether a table has no rows, or none of those; searches for one."""
        if table not in self._types:
            return True
        rows = f"SELECT 1 FROM {_from(table)} WHERE {_condition(only)}"
        return not self._scalar(f"SELECT EXISTS ({rows})")

    def read(
        self,
        table: str,
        columns: Sequence[str],
        only: RowFilter | None = None,
        *,
        marked: bool = False,
    ) -> pl.DataFrame:
        """Read columns in file order."""
        for column in (*columns, *((only.column,) if only else ())):
            if column not in self._types[table]:
                self._damaged(f"table {table} has no column {column}")
        types = {column: self._affinity(table, column) for column in columns}
        decoded = self._pages.read(table, types, only)
        if decoded is not None:
            return decoded
        condition = _condition(only)
        if only is not None:  # else the rows that come are counted
            self._check_rows(table)
        if only is not None and set(types.values()) == {"TEXT"}:
            return self._read_texts(table, types, condition)
        self._check_texts(table, types)
        try:
            return self._read(table, types, condition, _Wrong.NONE)
        except (DamagedCaptureError, pl.exceptions.PolarsError):
            # A column edited by another program may mix types, which only casts straighten out.
            wrong = _Wrong.MARKED if marked else _Wrong.NULL
            return self._read(table, types, condition, wrong)

    def payloads(self) -> pl.DataFrame:
        """Return the NVTX events with a binary payload."""
        table, data = "NVTX_EVENTS", "binaryData"
        if not PAYLOAD_EVENTS.keys() <= self.columns(table):
            return pl.DataFrame(schema=PAYLOAD_EVENTS)
        self._check_texts(table, {data: "TEXT"})
        numbers = [f"IFNULL(CAST({_quote(n)} AS INTEGER), -1) AS {n}" for n in PAYLOAD_EVENTS]
        columns = ", ".join([*numbers[:-1], f"CAST({data} AS BLOB) AS {data}"])
        limit = f"{data} IS NOT NULL LIMIT {self._max_rows + 1}"
        rows = self._fetch(f"SELECT {columns} FROM {_from(table)} WHERE {limit}")
        if rows.height > self._max_rows:
            self._too_many(table)
        return rows if rows.height else pl.DataFrame(schema=PAYLOAD_EVENTS)

    def pieces(self, table: str, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Yield columns in file order, a range of rows at a time."""
        types = {column: self._affinity(table, column) for column in columns}
        self._check_texts(table, types)
        for span in self._row_spans(table):
            try:
                yield self._read_span(table, types, "1", _Wrong.NONE, span)
            except (DamagedCaptureError, pl.exceptions.PolarsError):  # noqa: PERF203 - few pieces
                yield self._read_span(table, types, "1", _Wrong.NULL, span)

    def _read_texts(self, table: str, types: dict[str, str], condition: str) -> pl.DataFrame:
        """Read the few rows of a table of texts without ADBC, which is slow to import."""
        query = f"{_select(table, types, _Wrong.NONE)} WHERE {condition} LIMIT {self._max_rows}"
        kinds: list[tuple[str, pl.DataType]] = []
        for i in range(len(types)):
            kinds += [(f"c{i}", pl.Binary()), (f"n{i}", pl.Int64())]
        return _restore(pl.DataFrame(self._rows(query), schema=kinds, orient="row"), types)

    def _read(
        self, table: str, types: dict[str, str], condition: str, wrong: _Wrong
    ) -> pl.DataFrame:
        def read(span: _Span) -> pl.DataFrame:
            return self._read_span(table, types, condition, wrong, span)

        spans = self._row_spans(table)
        if len(spans) == 1:
            return read(spans[0])
        with ThreadPoolExecutor(min(_WORKERS, os.cpu_count() or 1)) as pool:
            return pl.concat(list(pool.map(read, spans)), rechunk=True)

    def _read_span(
        self, table: str, types: dict[str, str], condition: str, wrong: _Wrong, span: _Span
    ) -> pl.DataFrame:
        query = f"{_select(table, types, wrong)} WHERE {condition} AND {span.condition}"
        rows = self._fetch(f"{query} LIMIT {span.max_rows + 1}")
        if rows.height > span.max_rows:
            self._too_many(table)
        return _restore(rows, types)

    def close(self) -> None:
        """Delete the private copy, where there is one; no connection stays open."""
        if self._discard is not None:
            self._discard()

    def notes(self) -> list[str]:
        """Return notes on how the file was read."""
        return list(self._notes)  # callers may add notes of their own

    def warnings(self) -> list[str]:
        """Return warnings about what looks like a table of nsys but is none."""
        return [unread] if (unread := self._unread()) else []

    def _unread(self) -> str:
        if not self._views:
            return ""
        names, first = ", ".join(self._views), self._views[0]
        what = f"{names} {'is a view' if len(self._views) == 1 else 'are views'}"
        into = f"CREATE TABLE t AS SELECT * FROM {first}; DROP VIEW {first};"
        return (
            f"{what} or virtual, not read; to read it, make it a table in a copy of the file:"
            f" {into} ALTER TABLE t RENAME TO {first}"
        )

    def _check_rows(self, table: str) -> None:
        """Refuse a table that refers to the same pages repeatedly: reading it would never end."""
        if table in self._counted:
            return
        rows = f"SELECT 1 FROM {_from(table)} LIMIT {self._max_rows + 1}"
        if self._scalar(f"SELECT count(*) FROM ({rows})") > self._max_rows:
            self._too_many(table)
        self._counted.add(table)

    def _too_many(self, table: str) -> NoReturn:
        self._damaged(f"table {table} has more rows than the file can hold")

    def _check_texts(self, table: str, types: dict[str, str]) -> None:
        """Refuse texts that share pages: together they would take many times the file's size."""
        texts = [_quote(column) for column, affinity in types.items() if affinity == "TEXT"]
        if not texts:
            return
        sizes = ", ".join(f"octet_length({text}) AS c{i}" for i, text in enumerate(texts))
        sums = ", ".join(f"total(c{i}) AS c{i}" for i in range(len(texts)))
        rows = f"SELECT {sizes} FROM {_from(table)} LIMIT {self._max_rows + 1}"
        for total in self._fetch(f"SELECT {sums} FROM ({rows})").row(0):
            if total > self._size:
                self._damaged(f"table {table} has more text than the file can hold")

    def _row_spans(self, table: str) -> list[_Span]:
        """Cut a table into ranges of row ids, for several connections to read at once."""
        taken = {column.lower() for column in self._types[table]}
        row_id = next((name for name in _ROW_IDS if name not in taken), None)
        # In one SELECT without subqueries, the two would make SQLite scan the whole table.
        ends = (f"(SELECT {end}({row_id}) FROM {_from(table)})" for end in ("min", "max"))
        try:
            first, last = self._rows(f"SELECT {', '.join(ends)}")[0] if row_id else (None, None)
        except DamagedCaptureError:  # a WITHOUT ROWID table has no such column
            return [_Span("1", self._max_rows)]
        if first is None or last is None or last - first < 2 * _PIECE_ROWS:
            return [_Span("1", self._max_rows)]
        rows = last + 1 - first
        if rows > self._max_rows:  # one row far from the others would make endless empty ranges
            return self._sparse_spans(table, str(row_id), first)
        pieces = -(-rows // _PIECE_ROWS)
        bounds = [first + rows * i // pieces for i in range(pieces + 1)]
        return [
            _Span(f"{row_id} >= {low} AND {row_id} < {high}", high - low)
            for low, high in pairwise(bounds)
        ]

    def _sparse_spans(self, table: str, row_id: str, first: int) -> list[_Span]:
        """Cut where rows are, which takes a pass over the table."""
        spans: list[_Span] = []
        while True:
            step = f"ORDER BY {row_id} LIMIT 1 OFFSET {_PIECE_ROWS}"
            query = f"SELECT {row_id} FROM {_from(table)} WHERE {row_id} >= {first} {step}"
            following = self._rows(query)
            if not following or len(spans) * _PIECE_ROWS > self._max_rows:
                return [*spans, _Span(f"{row_id} >= {first}", _PIECE_ROWS)]
            end = following[0][0]
            spans.append(_Span(f"{row_id} >= {first} AND {row_id} < {end}", _PIECE_ROWS))
            first = end

    def _fetch(self, query: str) -> pl.DataFrame:
        # Slow to import, and not needed where the core decodes all tables.
        import adbc_driver_manager as manager
        import adbc_driver_sqlite

        driver = adbc_driver_sqlite._driver_path()
        try:
            with (
                manager.AdbcDatabase(driver=driver, uri=self._uri) as database,
                manager.AdbcConnection(database) as connection,
                manager.AdbcStatement(connection) as statement,
            ):
                statement.set_options(**{"adbc.sqlite.query.batch_rows": str(_BATCH_ROWS)})
                statement.set_sql_query(query)
                stream, _ = statement.execute_query()
                # ADBC's buffers are up to twice as long as what they hold: copied, they are freed.
                return pl.DataFrame(stream).rechunk()
        except (manager.Error, pl.exceptions.PolarsError, OSError) as error:
            self._damaged(error)

    def _scalar(self, query: str) -> int:
        return int(self._rows(query)[0][0])

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        """Run a query with few results; one that takes longer than the file warrants is ended."""
        bytes_left = self._size
        steps_left = (_MIN_STEPS + _STEPS_A_BYTE * self._size) // _STEPS_AT_ONCE

        def is_over() -> bool:
            nonlocal steps_left
            steps_left -= 1
            return steps_left < 0

        try:
            connection = sqlite3.connect(self._uri, uri=True)
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            connection.set_progress_handler(is_over, _STEPS_AT_ONCE)
            try:
                rows = []
                for row in connection.execute(query):
                    rows.append(row)
                    bytes_left -= sum(len(value) for value in row if isinstance(value, bytes))
                    if bytes_left < 0:
                        self._damaged("a query gives more text than the file can hold")
                return rows
            finally:
                connection.close()
        except UnicodeDecodeError:  # raised by sqlite3 if it cannot decode SQLite's own message
            self._damaged("its schema holds text that is not UTF-8")
        except sqlite3.DatabaseError as error:
            if steps_left < 0:
                self._damaged("a query takes too long for a file of this size")
            self._damaged(error)

    def _read_schema(self) -> dict[str, dict[str, str]]:
        """Return the declared types of the columns of every table.

        A view or a virtual table may compute anything for any time, so none is read.
        """
        others = "SELECT name FROM sqlite_master WHERE type = 'view' OR sql LIKE 'CREATE VIRTUAL%'"
        self._views = sorted(name for (name,) in self._rows(others) if name in _READ)
        query = (
            "SELECT m.name, p.name, p.type FROM sqlite_master m, pragma_table_info(m.name) p"
            " WHERE m.type = 'table' AND m.sql NOT LIKE 'CREATE VIRTUAL%'"
        )
        types: dict[str, dict[str, str]] = {}
        for table, column, declared in self._rows(query):
            # Names that are not UTF-8 cannot be queried, and are not nsys's.
            if "\N{REPLACEMENT CHARACTER}" not in table + column:
                types.setdefault(table, {})[column] = declared
        return types

    def _affinity(self, table: str, column: str) -> str:
        """Return the type of a column; where a program left it out, that of a value."""
        declared = self._types[table][column]
        if declared:
            return _affinity(declared)
        if (table, column) not in self._stored:
            name = _quote(column)
            query = f"SELECT typeof({name}) FROM {_from(table)} WHERE {name} IS NOT NULL LIMIT 1"
            rows = self._rows(query)
            self._stored[table, column] = _affinity(str(rows[0][0]) if rows else "INTEGER")
        return self._stored[table, column]

    def _damaged(self, why: str | Exception) -> NoReturn:
        cause = None
        if isinstance(why, Exception):
            # SQLite's own message follows those of ADBC and of the query.
            cause, first = why, (str(why).splitlines() or [""])[0]
            message = first.rpartition("[SQLite] ")[2].rpartition("query: ")[2]
            why = message or type(cause).__name__
        raise DamagedCaptureError(
            f"{self.path} cannot be read as an nsys export",
            why=why,
            hint="export it again: nsys export --type sqlite --force-overwrite true X.nsys-rep",
        ) from cause


def _check_length(file: Path, path: Path) -> None:
    """Find a file that was cut off: SQLite itself notices only when it reaches the missing part."""
    with file.open("rb") as opened:
        header = opened.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES:
        raise DamagedCaptureError(
            f"{path} is cut off", why="it ends inside the SQLite header", hint="copy it again"
        )
    page_size, changes = struct.unpack(">H", header[16:18])[0], header[24:28]
    pages, valid_for = struct.unpack(">I", header[28:32])[0], header[92:96]
    expected = pages * (65_536 if page_size == 1 else page_size)
    actual = file.stat().st_size
    if changes == valid_for and actual < expected:
        raise DamagedCaptureError(
            f"{path} is cut off",
            why=f"it has {actual:,} of {expected:,} bytes",
            hint="copy it again, or export it again with nsys export --type sqlite",
        )


def _affinity(declared: str) -> str:
    """Reduce a declared column type as SQLite does: INTEGER, REAL or TEXT."""
    upper = declared.upper()
    if "INT" in upper:
        return "INTEGER"
    if any(word in upper for word in ("REAL", "FLOA", "DOUB")):
        return "REAL"
    return "TEXT"


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _from(table: str) -> str:
    return f"{_quote(table)} NOT INDEXED"


class _Wrong(enum.Enum):
    """What replaces a value of another type in a column of integers."""

    NONE = ""
    """Reading fails instead, which is the quick way where there are none."""
    NULL = "NULL"
    MARKED = str(NOT_A_NUMBER)


def _as_integer(column: str, wrong: _Wrong) -> str:
    """Take whole numbers only: a cast would make 0 of text, and 1 of 1.5."""
    if wrong is _Wrong.NONE:
        return column
    integer = f"CAST({column} AS INTEGER)"
    return (
        f"CASE WHEN typeof({column}) IN ('integer', 'null') THEN {column}"
        f" WHEN typeof({column}) = 'real' AND {column} = {integer} THEN {integer}"
        f" ELSE {wrong.value} END"
    )


def _condition(only: RowFilter | None) -> str:
    if only is None:
        return "1"
    values = (v if isinstance(v, int) else "'" + v.replace("'", "''") + "'" for v in only.values)
    name = _quote(only.column)
    wanted = f"{name} IN ({', '.join(map(str, values))})"
    if not only.or_unknown:
        return wanted
    fraction = f"typeof({name}) = 'real' AND {name} <> CAST({name} AS INTEGER)"
    return f"({wanted} OR typeof({name}) IN ('null', 'text', 'blob') OR {fraction})"


def _select(table: str, types: dict[str, str], wrong: _Wrong) -> str:
    """Write the query so that every value has one type.

    ADBC takes a column's type from its first batch, so a column that is null there and real or
    text later would fail; such columns travel without nulls, with a flag that restores them.
    Text travels as bytes because captures hold invalid UTF-8. `wrong` also casts integers, which
    costs a fifth of the time and is needed only where something else stands among them.
    """
    items = []
    for i, (column, affinity) in enumerate(types.items()):
        quoted = _quote(column)
        if affinity == "INTEGER":
            instead = _Wrong.NULL if wrong is _Wrong.MARKED and column in PAYLOADS else wrong
            items.append(f"{_as_integer(quoted, instead)} AS c{i}")
        elif affinity == "REAL":
            real = f"typeof({quoted}) IN ('real', 'integer')"
            items.append(f"CASE WHEN {real} THEN CAST({quoted} AS REAL) ELSE 0.0 END AS c{i}")
            items.append(f"NOT {real} AS n{i}")
        else:
            items.append(f"IFNULL(CAST({quoted} AS BLOB), zeroblob(0)) AS c{i}")
            items.append(f"{quoted} IS NULL AS n{i}")
    return f"SELECT {', '.join(items)} FROM {_from(table)}"


def _restore(frame: pl.DataFrame, types: dict[str, str]) -> pl.DataFrame:
    """Undo what `_select` did to nulls and text, and give the columns their names."""
    columns = []
    for i, (column, affinity) in enumerate(types.items()):
        series = frame.get_column(f"c{i}")
        if affinity == "INTEGER":
            if len(series) and series.dtype not in (pl.Int64, pl.Null):
                raise pl.exceptions.InvalidOperationError(f"{column} is not all integers")
            series = series.cast(pl.Int64)
        else:
            absent = frame.get_column(f"n{i}").cast(pl.Boolean)
            if affinity == "TEXT":
                series = decode_text(series)
            if absent.any():
                series = series.zip_with(~absent, pl.Series([None], dtype=series.dtype))
        columns.append(series.alias(column))
    return pl.DataFrame(columns)
