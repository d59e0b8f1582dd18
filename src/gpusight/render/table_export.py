"""The tables of a capture.

Listed with their columns, and exported as CSV, Parquet, JSON or Arrow files.
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, BinaryIO, cast

import msgspec
import polars as pl

from gpusight.errors import MissingDataError, UsageError
from gpusight.output_files import cannot_write, check_output, replacing, staged_folder, write_file
from gpusight.results import Field, Fmt, TableResult
from gpusight.sniff import refuse_capture
from gpusight.trace.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from gpusight.analysis.orion.orion_build import OrionFile
    from gpusight.analysis.selection import Selection
    from gpusight.trace.trace import Trace


SUFFIXES = {"csv": ".csv", "parquet": ".parquet", "json": ".json", "arrow": ".arrow"}
"""Formats of table files, with what the files are called."""
CHROME = "chrome"
FORMATS = (*SUFFIXES, CHROME)
_SLICE_ROWS = 50_000
"""Rows turned into text at a time, so that memory stays bounded."""


def export(
    trace: Trace,
    out: Path,
    to: str,
    *,
    tables: Sequence[str] | None = None,
    selection: Selection | None = None,
    force: bool = False,
    csv_raw: bool = False,
) -> list[Path]:
    """Write tables, or a timeline of the selection; gives the files written."""
    if to not in FORMATS:
        raise UsageError(f"cannot export to {to!r}", hint=f"formats are {', '.join(FORMATS)}")
    if to == CHROME:
        if tables:
            raise UsageError("a timeline has no tables to choose", hint="leave tables out")
        return export_chrome(trace, out, selection, force=force)
    if selection:
        raise UsageError(
            "only a timeline (chrome) can be narrowed to a range, GPU or process",
            hint="tables are exported whole; use gpusight sql to select rows",
        )
    return export_tables(trace, out, to, tables=tables, force=force, csv_raw=csv_raw)


def export_tables(
    trace: Trace,
    out: Path,
    form: str,
    *,
    tables: Sequence[str] | None = None,
    force: bool = False,
    csv_raw: bool = False,
) -> list[Path]:
    """Write tables: one file a table into the folder `out`, or the one requested table as a file.

    Without `tables`, every table that has rows. Gives the files written. Existing files are refused
    before anything is written, unless `force`. In CSV files, cells that a spreadsheet would run as
    formulas get a `'` in front, unless `csv_raw`.
    """
    chosen = _chosen(trace, tables)
    targets = _targets(out, form, chosen, requested=tables is not None)
    for path in targets.values():
        check_target(path, trace.meta.path, force=force)
    trace.prepare(*chosen)
    write = _write_raw_csv if form == "csv" and csv_raw else _WRITERS[form]
    if list(targets.values()) == [out]:
        _make_parents(out)
        with replacing(out) as stream:
            write(trace.table(chosen[0]), stream, chosen[0])
        return [out]
    with staged_folder(out) as folder:
        for name, path in targets.items():
            with (folder / path.name).open("xb") as stream:
                write(trace.table(name), stream, name)
    return list(targets.values())


def export_chrome(
    trace: Trace, out: Path, selection: Selection | None = None, *, force: bool = False
) -> list[Path]:
    """Write a timeline for Perfetto or chrome://tracing; compressed when the name ends in .gz."""
    from gpusight.analysis.ranks.aligned_ranks import AlignedTrace, collective_instances
    from gpusight.analysis.selection import EVERYTHING
    from gpusight.render.chrome_export import TIMELINE, RankFlows, write_chrome_trace

    if not any(trace.has(table) for table in TIMELINE):
        raise MissingDataError(
            "the capture has no timeline",
            why="nothing in it has a time",
            hint="see: gpusight info FILE",
        )
    chosen = EVERYTHING if selection is None else selection
    check_target(out, trace.meta.path, force=force)
    _make_parents(out)
    links = None
    if isinstance(trace, AlignedTrace):
        links = RankFlows(trace.source.clock_metadata(), collective_instances(trace.source))
    with replacing(out) as stream:
        if out.suffix == ".gz":
            with gzip.GzipFile(
                filename="", mode="wb", fileobj=stream, compresslevel=5, mtime=0
            ) as z:
                write_chrome_trace(trace, cast("BinaryIO", z), chosen, links)
        else:
            write_chrome_trace(trace, stream, chosen, links)
    return [out]


def check_target(path: Path, capture: str, *, force: bool) -> None:
    """Refuse to write over the capture, into it, or over anything unless forced."""
    refuse_capture(path, capture)
    check_output(path)
    if path.is_file() and not force:
        raise UsageError(f"{path} exists", hint="add --force to replace it")


def _make_parents(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def _chosen(trace: Trace, tables: Sequence[str] | None) -> list[str]:
    if tables is None:
        return [t for t in TABLES if trace.has(t)]
    if not tables:
        raise UsageError("no table was named", hint=f"tables are {', '.join(TABLES)}")
    for name in tables:
        if name not in TABLES:
            raise UsageError(f"no table {name!r}", hint=f"tables are {', '.join(TABLES)}")
    return list(dict.fromkeys(tables))


def _targets(out: Path, form: str, tables: Sequence[str], *, requested: bool) -> dict[str, Path]:
    suffix = SUFFIXES[form]
    if out.suffix.lower() == suffix and not out.is_dir():
        if requested and len(tables) == 1:
            return {tables[0]: out}
        raise UsageError(
            f"{out} names one file, but there are {len(tables)} tables",
            hint="pass a folder to -o, or one table with --tables",
        )
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file", hint="pass a folder to -o")
    return {name: out / f"{name}{suffix}" for name in tables}


def _write_csv(frame: pl.DataFrame, stream: BinaryIO, _name: str) -> None:
    from gpusight.render.csv_json import escape_formulas, may_run

    if not any(may_run(column) for column in frame.get_columns()):
        frame.write_csv(stream)
        return
    for number, part in enumerate(frame.iter_slices(_SLICE_ROWS)):
        stream.write(escape_formulas(part.write_csv(include_header=not number)).encode())


def _write_raw_csv(frame: pl.DataFrame, stream: BinaryIO, _name: str) -> None:
    frame.write_csv(stream)


def _write_parquet(frame: pl.DataFrame, stream: BinaryIO, _name: str) -> None:
    frame.write_parquet(stream, compression="zstd")


def _write_arrow(frame: pl.DataFrame, stream: BinaryIO, _name: str) -> None:
    frame.write_ipc(stream)


def _write_json(frame: pl.DataFrame, stream: BinaryIO, name: str) -> None:
    """Write the same shape that `--format json` has, a slice of rows at a time."""
    meta = msgspec.json.encode({"table": name, "rows": frame.height})
    stream.write(b'{"meta": ' + meta + b', "rows": [')
    for number, part in enumerate(frame.iter_slices(_SLICE_ROWS)):
        stream.write(b"," if number else b"")
        stream.write(msgspec.json.encode(part.to_dicts())[1:-1])
    stream.write(b"]}\n")


_WRITERS: dict[str, Callable[[pl.DataFrame, BinaryIO, str], None]] = {
    "csv": _write_csv,
    "parquet": _write_parquet,
    "json": _write_json,
    "arrow": _write_arrow,
}


TABLE_FIELDS = (
    Field("table", "Table", Fmt.TEXT, "Name to use in SQL and `export --tables`"),
    Field("rows", "Rows", Fmt.COUNT, "Rows in the capture; null when no capture was given"),
    Field("meaning", "Each row", Fmt.NAME, "What one row stands for"),
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


def save_orion_files(
    built: OrionFile, out: Path | None, intermediate: Path | None, *, captures: Iterable[str]
) -> list[Path]:
    """Write the kernel-info file, and the tables on the way into a folder; gives what it wrote."""
    files = {} if out is None else {out: built.text}
    if intermediate is not None:
        files |= {intermediate / name: text for name, text in built.tables.items()}
    sources = list(captures)
    for path in files:
        refuse_captures(path, sources)
    if intermediate is not None:
        with staged_folder(intermediate) as folder:
            for name, text in built.tables.items():
                (folder / name).write_text(text, encoding="utf-8", newline="")
    if out is not None:
        write_file(out, built.text.encode())
    return list(files)


def refuse_captures(path: Path, captures: Iterable[str]) -> None:
    """Refuse to write over any of the captures."""
    for capture in captures:
        refuse_capture(path, capture)
