"""Where the tables of a copy go: an SQLite database or a folder of Parquet, as nsys lays them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Protocol

import adbc_driver_manager
import adbc_driver_sqlite
import polars as pl

if TYPE_CHECKING:
    from pathlib import Path

_TYPES = {pl.Int64: "INTEGER", pl.Float64: "REAL", pl.String: "TEXT"}
_SETTINGS = ("PRAGMA journal_mode = OFF", "PRAGMA synchronous = OFF")
"""A copy that is not finished is thrown away, so nothing need be undone."""


class Sink(Protocol):
    """Takes tables piece by piece."""

    def add(self, table: str, rows: pl.DataFrame) -> None:
        """Add rows to a table; the first ones say which columns it has."""
        ...

    def close(self) -> None:
        """Finish the copy."""
        ...


class SqliteSink:
    """A database that is written once: whatever it held before, it holds nothing else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: set[str] = set()
        self._run("PRAGMA user_version = 0")  # makes the file, however little will be in it

    def add(self, table: str, rows: pl.DataFrame) -> None:
        """Add rows to a table."""
        if table not in self._known:
            self._known.add(table)
            self._create(table, rows)
        if rows.height:
            self._insert(table, rows)

    def close(self) -> None:
        """Do nothing: every piece is in the file."""

    def _create(self, table: str, rows: pl.DataFrame) -> None:
        columns = [
            f'"{name}" {_TYPES[type(dtype)]}{" PRIMARY KEY" if _is_key(table, name) else ""}'
            for name, dtype in rows.schema.items()
        ]
        self._run(f'CREATE TABLE "{table}" ({", ".join(columns)})')

    def _run(self, statement: str) -> None:
        try:
            with closing(sqlite3.connect(self._path)) as connection:
                for setting in _SETTINGS:  # no journal may be left beside the copy
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
        """Make one file of the pieces of each table."""
        try:
            self._join()
        except pl.exceptions.PolarsError as error:
            raise _failed(error) from error

    def _join(self) -> None:
        for table, parts in self._parts.items():
            whole = self._path / f"{table}.parquet"
            if len(parts) == 1:
                parts[0].rename(whole)
                continue
            pl.scan_parquet(parts).sink_parquet(whole)
            for part in parts:
                part.unlink()


def _failed(error: Exception) -> OSError:
    """Give a library's error as one that `output_files` reports as a file not written."""
    return OSError((str(error).splitlines() or [type(error).__name__])[0])


def _is_key(table: str, column: str) -> bool:
    return column == "id" and (table == "StringIds" or table.startswith("ENUM_"))
