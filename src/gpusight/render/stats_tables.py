"""Reports in the format of `nsys stats`: its headings, cells and layouts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.nsys_stats.stats_reports import StatsCell, StatsReport
from gpusight.render.cell_text import display_width, pad, safe_text
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
    StatsCell.MICROSECONDS: Fmt.REAL,
    StatsCell.MILLISECONDS: Fmt.REAL,
    StatsCell.SECONDS: Fmt.REAL,
}
_GROUPED = frozenset({StatsCell.WHOLE, StatsCell.TENTHS, StatsCell.MEGA})
"""Cells whose thousands nsys groups; not those of times in another unit."""


def stats_heading(report: StatsReport) -> str:
    """Give the line that `nsys stats` prints above a report."""
    return f" ** {report.title} ({report.name}):"


def stats_to_csv(report: StatsReport) -> str:
    """Write the header and cells that `nsys stats --format csv` writes."""
    cells = report.cells()
    cells.columns = _headers(report)
    # Polars quotes an empty text; nsys does not.
    return cells.with_columns(pl.when(pl.all() != "").then(pl.all())).write_csv()


def stats_to_tsv(report: StatsReport) -> str:
    """Write tab-separated cells; tabs and line breaks in names become visible escapes."""
    rows = [_headers(report), *report.csv_rows()]
    return "".join("\t".join(map(safe_text, row)) + "\n" for row in rows)


def stats_to_nsys_json(report: StatsReport) -> str:
    """Write an array with an object for each row, keys and digits as nsys prints them."""
    headers = [c.header for c in report.columns]
    numeric = [c.cell not in (StatsCell.TEXT, StatsCell.HEX) for c in report.columns]
    rows = [
        {
            header: (json.loads(cell) if cell else None) if is_number else cell
            for header, cell, is_number in zip(headers, row, numeric, strict=True)
        }
        for row in report.csv_rows()
    ]
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"


def stats_to_markdown(report: StatsReport) -> str:
    """Write a Markdown table."""
    numeric = [c.cell is not StatsCell.TEXT for c in report.columns]
    rows = [
        [
            cell if n else markdown_code(cell) if cell else ""
            for cell, n in zip(row, numeric, strict=True)
        ]
        for row in _grouped(report).iter_rows()
    ]
    return markdown_table([escape_markdown(h) for h in _headers(report)], numeric, rows) + "\n"


def stats_to_column(report: StatsReport) -> str:
    """Write aligned columns as `nsys stats` does, names whole."""
    rows = [tuple(map(safe_text, row)) for row in _grouped(report).iter_rows()]
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
    """Give a report as a result that shows the very digits nsys prints, fitted to the screen.

    Kernels have their short names, which differ, as in `kernels`; the full name is a hidden column.
    """
    frame = _grouped(report)
    fields = _fields(report)
    header = report.kernel_column
    if header:
        from gpusight.naming.kernel_names import unique_short_names

        other = pl.col(header).str.starts_with("[CUDA ")  # memcpys and memsets
        if "Category" in frame.columns:
            other |= pl.col("Category") != "CUDA_KERNEL"
        labels = dict(unique_short_names(frame.filter(~other)[header].unique(maintain_order=True)))
        short = pl.when(other).then(header).otherwise(pl.col(header).replace(labels))
        frame = frame.with_columns(short.alias("short_name")).rename({header: "name"})
        full = Field("name", "Full name", Fmt.NAME, "As in nsys stats", shown=False)
        own = Field("short_name", header, Fmt.NAME, "Short name; those of two kernels differ")
        fields = (*(own if f.key == header else f for f in fields), full)
        frame = frame.select(f.key for f in fields)
    return TableResult(report.name, stats_heading(report), fields, frame)


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
    StatsCell.MICROSECONDS: lambda column: column / 1e3,
    StatsCell.MILLISECONDS: lambda column: column / 1e6,
    StatsCell.SECONDS: lambda column: column / 1e9,
}


def _headers(report: StatsReport) -> list[str]:
    return [c.header for c in report.columns]


def _grouped(report: StatsReport) -> pl.DataFrame:
    """Give the printed cells with thousands grouped, as nsys does where people read."""
    printed = report.cells()
    return pl.DataFrame(
        {
            column.header: _each_grouped(cells) if column.cell in _GROUPED else cells
            for column, cells in zip(report.columns, printed.get_columns(), strict=True)
        },
        schema=dict.fromkeys(_headers(report), pl.String),
    )


def _each_grouped(cells: pl.Series) -> pl.Series:
    """Group the thousands of each distinct number once."""
    distinct = cells.unique()
    texts = pl.Series([group(text) for text in distinct.to_list()], dtype=pl.String)
    return cells.replace_strict(distinct, texts, return_dtype=pl.String)


def group(number: str) -> str:
    """Group the thousands of a printed number: `1234567.5` gives `1,234,567.5`."""
    if number.isdecimal():
        return f"{int(number):,}"
    whole, point, fraction = number.partition(".")
    sign = "-" if whole.startswith("-") else ""
    digits = whole.removeprefix("-")
    return f"{sign}{int(digits):,}{point}{fraction}" if digits.isdigit() else number
