"""nsys SQLite exports, read column by column without touching the file.

The file is opened read-only and immutable, so SQLite takes no lock and leaves no `-wal` or `-shm`
beside it. Columns come through ADBC as Arrow batches: no Python object per row. Large tables are
read by several connections at once, each taking its share of the row ids.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn

import adbc_driver_manager
import adbc_driver_sqlite
import polars as pl

from gpusight.errors import DamagedCaptureError, NotACaptureError
from gpusight.readers.nsys.strings import decode_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpusight.readers.nsys.raw import Only

_HEADER_BYTES = 100
_PIECE_ROWS = 250_000
"""Rows that one connection reads at a time; what ADBC needs beyond them is freed after each."""
_WORKERS = 4
_BATCH_ROWS = 65_536
# A capture has at least one of these; a database with none of them is some other program's.
_NSYS_TABLES = frozenset(
    {"StringIds", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS", "TARGET_INFO_SYSTEM_ENV"}
)


class SqliteTables:
    """The tables of an nsys SQLite export of any schema version."""

    source = "nsys-sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        _check_length(path)
        self._types = self._read_schema()
        if not self._types.keys() & _NSYS_TABLES:
            raise NotACaptureError(
                f"{path} is a SQLite database, but not an nsys export",
                why="it has none of the tables that nsys writes",
                hint="make one with: nsys export --type sqlite REPORT.nsys-rep",
            )

    def tables(self) -> frozenset[str]:
        """Name every table of the export."""
        return frozenset(self._types)

    def columns(self, table: str) -> frozenset[str]:
        """Name the columns of a table; none when there is no such table."""
        return frozenset(self._types.get(table, {}))

    def row_count(self, table: str, only: Only | None = None) -> int:
        """Count the rows of a table, or those of some."""
        if table not in self._types:
            return 0
        return self._scalar(f"SELECT count(*) FROM {_quote(table)} WHERE {_condition(only)}")

    def is_empty(self, table: str, only: Only | None = None) -> bool:
        """Tell whether a table has no rows, or none of those, at the cost of looking for one."""
        if table not in self._types:
            return True
        rows = f"SELECT 1 FROM {_quote(table)} WHERE {_condition(only)}"
        return not self._scalar(f"SELECT EXISTS ({rows})")

    def read(self, table: str, columns: Sequence[str], only: Only | None = None) -> pl.DataFrame:
        """Read columns in file order."""
        for column in (*columns, *((only.column,) if only else ())):
            if column not in self._types[table]:
                self._damaged(f"table {table} has no column {column}")
        types = {column: self._types[table][column] for column in columns}
        condition = _condition(only)
        try:
            return self._read(table, types, condition, exact=False)
        except (DamagedCaptureError, pl.exceptions.PolarsError):
            # A column edited by another program may mix types, which only casts straighten out.
            return self._read(table, types, condition, exact=True)

    def _read(
        self, table: str, types: dict[str, str], condition: str, *, exact: bool
    ) -> pl.DataFrame:
        query = f"{_select(table, types, exact=exact)} WHERE {condition}"
        spans = self._row_spans(table)
        if len(spans) == 1:
            return _restore(self._fetch(query), types)
        queries = [f"{query} AND rowid BETWEEN {first} AND {last}" for first, last in spans]
        with ThreadPoolExecutor(min(_WORKERS, os.cpu_count() or 1)) as pool:
            parts = list(pool.map(lambda piece: _restore(self._fetch(piece), types), queries))
        return pl.concat(parts, rechunk=True)

    def close(self) -> None:
        """Do nothing: no connection stays open."""

    def preload(self, tables: Sequence[str]) -> None:
        """Do nothing: SQLite reads each table on its own."""

    def notes(self) -> list[str]:
        """Say what of the file this reader does not decode: nothing, it is all tables."""
        return []

    def _row_spans(self, table: str) -> list[tuple[int, int]]:
        # Asked for together, the two would make SQLite scan the whole table.
        ends = (f"(SELECT {end}(rowid) FROM {_quote(table)})" for end in ("min", "max"))
        try:
            first, last = self._row(f"SELECT {', '.join(ends)}")
        except DamagedCaptureError:  # a WITHOUT ROWID table has no such column
            return [(0, 0)]
        if first is None or last - first < 2 * _PIECE_ROWS:
            return [(0, 0)]
        pieces = -(-(last + 1 - first) // _PIECE_ROWS)
        bounds = [first + (last + 1 - first) * i // pieces for i in range(pieces + 1)]
        return [(lo, hi - 1) for lo, hi in pairwise(bounds)]

    def _fetch(self, query: str) -> pl.DataFrame:
        manager = adbc_driver_manager
        try:
            with (
                manager.AdbcDatabase(
                    driver=adbc_driver_sqlite._driver_path(), uri=self._uri
                ) as database,
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
        return int(self._row(query)[0])

    def _row(self, query: str) -> tuple[int, ...]:
        try:
            connection = sqlite3.connect(self._uri, uri=True)
            try:
                row: tuple[int, ...] = connection.execute(query).fetchone()
                return row
            finally:
                connection.close()
        except sqlite3.DatabaseError as error:
            self._damaged(error)

    def _read_schema(self) -> dict[str, dict[str, str]]:
        query = (
            "SELECT m.name, p.name, p.type FROM sqlite_master m, pragma_table_info(m.name) p"
            " WHERE m.type = 'table'"
        )
        types: dict[str, dict[str, str]] = {}
        try:
            connection = sqlite3.connect(self._uri, uri=True)
            # A hostile schema may hold invalid UTF-8 in names; such tables are not nsys's.
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            try:
                for table, column, declared in connection.execute(query).fetchall():
                    kind = declared or _stored_type(connection, table, column)
                    types.setdefault(table, {})[column] = _affinity(kind)
            finally:
                connection.close()
        except sqlite3.DatabaseError as error:
            self._damaged(error)
        return types

    def _damaged(self, why: str | Exception) -> NoReturn:
        raise DamagedCaptureError(
            f"{self.path} cannot be read as an nsys export",
            why=why if isinstance(why, str) else _reason(why),
            hint="export it again: nsys export --type sqlite --force-overwrite true X.nsys-rep",
        ) from (why if isinstance(why, Exception) else None)


def _reason(error: Exception) -> str:
    """Take SQLite's own words, which stand behind those of ADBC and of the query."""
    first = (str(error).splitlines() or [""])[0]
    return first.rpartition("[SQLite] ")[2].rpartition("query: ")[2] or type(error).__name__


def _check_length(path: Path) -> None:
    """Find a file that was cut off: SQLite itself notices only when it reaches the missing part."""
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES:
        raise DamagedCaptureError(
            f"{path} is cut off", why="it ends inside the SQLite header", hint="copy it again"
        )
    page_size, changes = struct.unpack(">H", header[16:18])[0], header[24:28]
    pages, valid_for = struct.unpack(">I", header[28:32])[0], header[92:96]
    expected = pages * (65_536 if page_size == 1 else page_size)
    actual = path.stat().st_size
    if changes == valid_for and actual < expected:
        raise DamagedCaptureError(
            f"{path} is cut off",
            why=f"it has {actual:,} of {expected:,} bytes",
            hint="copy it again, or export it again with nsys export --type sqlite",
        )


def _stored_type(connection: sqlite3.Connection, table: str, column: str) -> str:
    """Look at a value: programs that rewrite an export may leave types out."""
    name = _quote(column)
    query = f"SELECT typeof({name}) FROM {_quote(table)} WHERE {name} IS NOT NULL LIMIT 1"
    row = connection.execute(query).fetchone()
    return str(row[0]) if row else "INTEGER"


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


def _as_integer(column: str) -> str:
    """Take whole numbers, and nothing for text: a cast would make that 0."""
    return f"CASE typeof({column}) WHEN 'text' THEN NULL ELSE CAST({column} AS INTEGER) END"


def _condition(only: Only | None) -> str:
    if only is None:
        return "1"
    values = (v if isinstance(v, int) else "'" + v.replace("'", "''") + "'" for v in only.values)
    return f"{_quote(only.column)} IN ({', '.join(map(str, values))})"


def _select(table: str, types: dict[str, str], *, exact: bool) -> str:
    """Write the query so that every value has one type.

    ADBC takes a column's type from its first batch, so a column that is null there and real or
    text later would fail; such columns travel without nulls, beside a flag that restores them.
    Text travels as bytes because captures hold invalid UTF-8. `exact` also casts integers, which
    costs a fifth of the time and is needed only where something else stands among them.
    """
    items = []
    for i, (column, affinity) in enumerate(types.items()):
        quoted = _quote(column)
        if affinity == "INTEGER":
            items.append(f"{_as_integer(quoted) if exact else quoted} AS c{i}")
        else:
            cast = f"CAST({quoted} AS {'REAL' if affinity == 'REAL' else 'BLOB'})"
            items.append(
                f"IFNULL({cast}, {'0.0' if affinity == 'REAL' else 'zeroblob(0)'}) AS c{i}"
            )
            items.append(f"{quoted} IS NULL AS n{i}")
    return f"SELECT {', '.join(items)} FROM {_quote(table)}"


def _restore(frame: pl.DataFrame, types: dict[str, str]) -> pl.DataFrame:
    """Undo what `_select` did to nulls and text, and give the columns their names."""
    columns = []
    for i, (column, affinity) in enumerate(types.items()):
        series = frame.get_column(f"c{i}")
        if affinity == "INTEGER":
            series = series.cast(pl.Int64)
        else:
            absent = frame.get_column(f"n{i}").cast(pl.Boolean)
            if affinity == "TEXT":
                series = decode_text(series)
            if absent.any():
                series = series.zip_with(~absent, pl.Series([None], dtype=series.dtype))
        columns.append(series.alias(column))
    return pl.DataFrame(columns)
