"""SQL over the tables of a trace."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl
from polars.io.plugins import register_io_source

from gpusight.errors import GpusightError, UsageError
from gpusight.results import Field, Fmt, TableResult
from gpusight.trace.schema import TABLES
from gpusight.trace.schema_columns import ColumnKind, TraceTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.trace.trace import Trace


_STRING_OR_COMMENT = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/", re.DOTALL)
_QUERY = re.compile(r"\s*\(*\s*(select|with|show|values)\b", re.IGNORECASE)
_FILE_FUNCTION = re.compile(r"\b(?:read|scan)_\w+[\"`]?\s*\(", re.IGNORECASE)
_SCAN = re.compile(r"^\s*(\w+) SCAN\b", re.MULTILINE)
_MEANINGS = {c.name: c.meaning for table in TABLES.values() for c in table.columns}
ROW = "row"
"""The column with the number of a row, from 0: `explain` takes `kernels:17` for an event."""


def query(trace: Trace, sql: str) -> TableResult:
    """Run a SELECT over the tables of the trace; names are text, times are nanoseconds."""
    check_query(sql)
    failures: list[GpusightError] = []
    empty: set[str] = set()
    context = pl.SQLContext(
        {name: _lazy(trace, table, failures, empty) for name, table in TABLES.items()}, eager=False
    )
    try:
        plan = context.execute(sql)
        # Also catches spellings of functions that read files which `_check` does not know.
        if any(kind != "PYTHON" for kind in _SCAN.findall(plan.explain(optimized=False))):
            raise _other_file()
        frame = plan.collect()
    except (pl.exceptions.PolarsError, ValueError, TypeError) as error:
        if failures:
            raise failures[0] from error
        # The first line of the engine's message, without the plan that it appends.
        reason = str(error).split("\n", 1)[0].split("; valid columns:", 1)[0].strip()
        raise UsageError("the query failed", why=reason, hint=_hint(sql)) from error
    fields = tuple(
        Field(name, name, _format(name, dtype), _MEANINGS.get(name, "Result of the query"))
        for name, dtype in frame.schema.items()
    )
    notes = tuple(f"`{name}` has no rows in this capture" for name in TABLES if name in empty)
    return TableResult("sql", "Query", fields, frame, meta={"rows": frame.height}, notes=notes)


def check_query(sql: str) -> None:
    """Refuse what is no query, and functions that read files."""
    text = _STRING_OR_COMMENT.sub(lambda match: "''" if match[0][0] == "'" else " ", sql)
    if not _QUERY.match(text):
        raise UsageError(
            "this is not a query",
            why="it starts with SELECT or WITH, and a capture is never changed",
            hint='write: gpusight sql FILE "SELECT name, count(*) FROM kernels GROUP BY name"',
        )
    if _FILE_FUNCTION.search(text):
        raise _other_file()


def _other_file() -> UsageError:
    return UsageError(
        "a query reads the capture only",
        why="functions that read other files are not available",
        hint=f"tables are {', '.join(TABLES)}",
    )


def _lazy(
    trace: Trace, table: TraceTable, failures: list[GpusightError], empty: set[str]
) -> pl.LazyFrame:
    """Return a lazy table that reads the columns that a query needs when it runs."""
    schema = {
        c.name: pl.String() if c.kind is ColumnKind.NAME else c.dtype_for([]) for c in table.columns
    } | {ROW: pl.Int64()}

    def read(
        columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        batch_size: int | None,  # noqa: ARG001 - the protocol's; one batch is what we have
    ) -> Iterator[pl.DataFrame]:
        try:
            wanted = [name for name in columns or () if name != ROW]
            if columns is None:
                wanted = list(table.column_names)
            # A query that counts rows needs no column, but a frame without one has no rows.
            frame = trace.table(table.name, wanted or table.column_names[:1])
        except GpusightError as error:
            failures.append(error)
            raise
        if frame.is_empty():
            empty.add(table.name)
        # Strings from here on: users compare names with texts that may not occur.
        names = [name for name in frame.columns if table.column(name).kind is ColumnKind.NAME]
        lazy = frame.lazy().with_columns(pl.col(names).cast(pl.String))
        if columns is None or ROW in columns:
            lazy = lazy.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(ROW))
        if predicate is not None:
            lazy = lazy.filter(predicate)
        yield (lazy if n_rows is None else lazy.head(n_rows)).collect()

    return register_io_source(read, schema=schema)


def _format(name: str, dtype: pl.DataType) -> Fmt:
    if not dtype.is_numeric():
        return Fmt.NAME
    if name.endswith("_ns"):
        return Fmt.TIME
    if name == "bytes" or name.endswith("_bytes"):
        return Fmt.BYTES
    return Fmt.COUNT if dtype.is_integer() else Fmt.REAL


def _hint(sql: str) -> str:
    """List the columns of the tables that the query names, or the tables."""
    named = [t for t in TABLES.values() if re.search(rf"\b{t.name}\b", sql)]
    if not named:
        return f"tables are {', '.join(TABLES)}"
    return "; ".join(f"columns of {t.name} are {', '.join(t.column_names)}" for t in named[:3])
