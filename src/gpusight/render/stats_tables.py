"""Reports in the format of `nsys stats`: its headings, cells and layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.nsys_stats.stats_reports import StatsCell, StatsReport
from gpusight.render.cell_text import display_width, pad, safe_text
from gpusight.render.csv_json import write_rows
from gpusight.render.markdown_tables import escape_markdown, markdown_code, markdown_table
from gpusight.results import Field, Fmt, TableResult

if TYPE_CHECKING:
    from collections.abc import Callable


_GAP = "  "
_FIELD_FORMATS = {
    StatsCell.TEXT: Fmt.NAME,
    StatsCell.WHOLE: Fmt.COUNT,
    StatsCell.TENTHS: Fmt.REAL,
    StatsCell.MEGA: Fmt.REAL,
    StatsCell.HEX: Fmt.TEXT,
}


def stats_heading(report: StatsReport) -> str:
    """Give the line that `nsys stats` prints above a report."""
    return f" ** {report.title} ({report.name}):"


def stats_to_csv(report: StatsReport) -> str:
    """Write the header and cells that `nsys stats --format csv` writes."""
    return write_rows([_headers(report), *report.csv_rows()])


def stats_to_tsv(report: StatsReport) -> str:
    """Write tab-separated cells; tabs and line breaks in names become visible escapes."""
    rows = [_headers(report), *report.csv_rows()]
    return "".join("\t".join(map(safe_text, row)) + "\n" for row in rows)


def stats_to_markdown(report: StatsReport) -> str:
    """Write a Markdown table."""
    numeric = [c.cell is not StatsCell.TEXT for c in report.columns]
    rows = [
        [
            cell if n else markdown_code(cell) if cell else ""
            for cell, n in zip(row, numeric, strict=True)
        ]
        for row in _grouped(report)
    ]
    return markdown_table([escape_markdown(h) for h in _headers(report)], numeric, rows) + "\n"


def stats_to_column(report: StatsReport) -> str:
    """Write aligned columns as `nsys stats` does, names whole."""
    rows = [tuple(map(safe_text, row)) for row in _grouped(report)]
    headers = _headers(report)
    columns = list(zip(*rows, strict=True)) if rows else [() for _ in headers]
    widths = [
        max(map(display_width, (header, *cells)))
        for header, cells in zip(headers, columns, strict=True)
    ]
    right = [c.cell is not StatsCell.TEXT for c in report.columns]
    lines = [[h.center(w) for h, w in zip(headers, widths, strict=True)], ["-" * w for w in widths]]
    for row in rows:
        cells = zip(row, widths, right, strict=True)
        lines.append([pad(cell, width, right=r) for cell, width, r in cells])
    return "".join(f" {_GAP.join(line)}".rstrip() + "\n" for line in lines)


def stats_as_printed(report: StatsReport) -> TableResult:
    """Give a report as a result that shows the very digits nsys prints, fitted to the screen."""
    schema = dict.fromkeys(_headers(report), pl.String)
    frame = pl.DataFrame(_grouped(report), schema=schema, orient="row")
    return TableResult(report.name, stats_heading(report), _fields(report), frame)


def stats_as_table(report: StatsReport) -> TableResult:
    """Give a report as a result whose values are in the units that its headings name."""
    frame = report.frame.with_columns(
        _IN_UNITS[c.cell](pl.col(c.header)) for c in report.columns if c.cell in _IN_UNITS
    )
    title = f"{report.title} ({report.name})"
    return TableResult(report.name, title, _fields(report), frame)


def _fields(report: StatsReport) -> tuple[Field, ...]:
    return tuple(
        Field(c.header, c.header, _FIELD_FORMATS[c.cell], "As in nsys stats")
        for c in report.columns
    )


_IN_UNITS: dict[StatsCell, Callable[[pl.Expr], pl.Expr]] = {
    StatsCell.TEXT: lambda column: column.cast(pl.String),
    StatsCell.MEGA: lambda column: column / 1e6,
}


def _headers(report: StatsReport) -> list[str]:
    return [c.header for c in report.columns]


def _grouped(report: StatsReport) -> list[tuple[str, ...]]:
    """Give the printed rows with thousands grouped, as nsys does where people read."""
    plain = [c.cell in {StatsCell.TEXT, StatsCell.HEX} for c in report.columns]
    return [
        tuple(cell if p else group(cell) for cell, p in zip(row, plain, strict=True))
        for row in report.csv_rows()
    ]


def group(number: str) -> str:
    """Group the thousands of a printed number: `1234567.5` gives `1,234,567.5`."""
    whole, point, fraction = number.partition(".")
    sign = "-" if whole.startswith("-") else ""
    digits = whole.removeprefix("-")
    return f"{sign}{int(digits):,}{point}{fraction}" if digits.isdigit() else number
