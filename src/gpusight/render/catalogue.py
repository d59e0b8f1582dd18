"""The model's tables and columns as results, from their declarations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.errors import UsageError
from gpusight.model.schema import TABLES
from gpusight.result import Field, Fmt, TableResult

if TYPE_CHECKING:
    from gpusight.model.trace import Trace

TABLE_FIELDS = (
    Field("table", "Table", Fmt.TEXT, "Name to use in SQL and `export --tables`"),
    Field("rows", "Rows", Fmt.COUNT, "Rows in the capture; null when no capture was given"),
    Field("meaning", "A row is", Fmt.NAME, "What one row stands for"),
    Field("columns", "Columns", Fmt.NAME, "Column names, in order", shown=False),
)
COLUMN_FIELDS = (
    Field("column", "Column", Fmt.TEXT, "Column name"),
    Field("type", "Type", Fmt.TEXT, "Polars type"),
    Field("unit", "Unit", Fmt.TEXT, "Unit of its values; null for none"),
    Field("required", "Never null", Fmt.FLAG, "Holds a value in every row of every capture"),
    Field("meaning", "Meaning", Fmt.NAME, "What it holds"),
)


def list_tables(trace: Trace | None = None) -> TableResult:
    """List the tables, with their row counts in a capture."""
    rows = [
        (t.name, _row_count(trace, t.name), t.meaning, ", ".join(t.column_names))
        for t in TABLES.values()
    ]
    schema = {"table": pl.String, "rows": pl.Int64, "meaning": pl.String, "columns": pl.String}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    fields: tuple[Field, ...] = TABLE_FIELDS
    if trace is None:
        fields = tuple(f for f in fields if f.key != "rows")
        frame = frame.drop("rows")
    return TableResult("tables", "Tables", fields, frame)


def _row_count(trace: Trace | None, table: str) -> int | None:
    if trace is None:
        return None
    return trace.row_count(table) if trace.has(table) else 0


def list_columns(table: str) -> TableResult:
    """List the columns of one table."""
    if table not in TABLES:
        raise UsageError(f"no table {table!r}", hint=f"tables are {', '.join(TABLES)}")
    columns = TABLES[table].columns
    frame = pl.DataFrame(
        {
            "column": [c.name for c in columns],
            "type": [c.type_name for c in columns],
            "unit": [c.unit or None for c in columns],
            "required": [c.required for c in columns],
            "meaning": [c.meaning for c in columns],
        },
        schema_overrides={"unit": pl.String},
    )
    return TableResult("columns", f"Columns of {table}", COLUMN_FIELDS, frame)
