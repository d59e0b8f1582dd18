"""`gpusight sql`: Polars SQL over the model's tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import analyze, open_capture
from gpusight.cli.output import present
from gpusight.errors import UsageError

if TYPE_CHECKING:
    import argparse

SUMMARY = "SQL queries on the tables of a capture"
DESCRIPTION = (
    "Run one SQL query (Polars SQL) over the capture's tables: kernels, copies, api_calls, ranges "
    "and the others that --tables lists. Times are nanoseconds, sizes are bytes. Each table has a "
    "column `row`, the number of the row: `gpusight explain FILE kernels:17` shows that event."
)
EXAMPLES: tuple[str, ...] = (
    'gpusight sql run.nsys-rep "SELECT name, count(*) FROM kernels GROUP BY name"',
    "gpusight sql run.nsys-rep --tables",
    "gpusight sql --columns kernels",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser, nargs="?")
    parser.add_argument("query", metavar="QUERY", nargs="?", help="the query, as one argument")
    parser.add_argument(
        "--tables",
        action="store_true",
        help="list the tables, with row counts if FILE is given",
    )
    parser.add_argument("--columns", metavar="TABLE", help="list the columns of a table")
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    from gpusight.render.table_export import list_columns, list_tables

    if args.columns:
        return present(gs.View(list_columns(args.columns)), args)
    if args.tables:
        trace = open_capture(args.file, args) if args.file else None
        return present(gs.View(list_tables(trace)), args)
    args.file, query = _operands(args)
    return present(analyze(gs.sql, args, query=query), args)


def _operands(args: argparse.Namespace) -> tuple[str, str]:
    """Return capture and query, in either order."""
    if not args.file or not args.query:
        raise UsageError(
            "sql needs a capture and a query", hint='usage: gpusight sql FILE "SELECT …"'
        )
    swapped = (
        " " in args.file.strip() and not Path(args.file).exists() and Path(args.query).exists()
    )
    return (args.query, args.file) if swapped else (args.file, args.query)
