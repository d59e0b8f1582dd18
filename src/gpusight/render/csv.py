"""Results as CSV: one header line of stable keys, values in base units, text left as data."""

from __future__ import annotations

import csv
import io
import re
from math import isnan
from typing import TYPE_CHECKING, Any

import msgspec

from gpusight.errors import MissingDataError
from gpusight.render.pieces import pieces
from gpusight.result import Composite, NotApplicable, Result, TableResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import polars as pl

_STARTS = "-=+@\t\r\n＝＋－＠"
"""First characters of a cell that make Excel, LibreOffice or Sheets take it for a formula."""
_MAY_RUN = re.compile(rf"""(?:\A|[,\n"])(?:-(?![\d.])|[{_STARTS[1:]}])""")
_CELL = re.compile(r'"(?:[^"]|"")*"|[^",\n]+')
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?inf")
COMPOSITE_HEADER = ("section", "row", "key", "value")
"""A composite's sections have different columns, so its CSV is long: one line for each value."""


def to_csv(result: Result, *, limit: int | None = None) -> str:
    """Write a result as CSV; null, and a number that is none, are an empty cell."""
    if isinstance(result, NotApplicable):
        raise MissingDataError(result.reason, hint=result.hint)
    if isinstance(result, Composite):
        return write_rows([COMPOSITE_HEADER, *_long(result, limit)])
    return _frame_csv(result.frame.head(limit) if limit else result.frame)


def csv_pieces(result: Result, *, limit: int | None = None) -> Iterator[str]:
    """Write the same text piece by piece, so that a long one is never in memory at once."""
    if not isinstance(result, TableResult) or limit or result.frame.is_empty():
        yield to_csv(result, limit=limit)
        return
    yield write_rows([result.frame.columns])
    for piece in pieces(result.frame):
        yield _frame_csv(piece, header=False)


def _frame_csv(frame: pl.DataFrame, *, header: bool = True) -> str:
    # Polars writes millions of rows in no time, but has no CSV form for lists, structs and bytes.
    if any(d.is_nested() or str(d) in {"Binary", "Object"} for d in frame.dtypes):
        return write_rows([*([frame.columns] if header else []), *frame.iter_rows()])
    numbers = [name for name, dtype in frame.schema.items() if dtype.is_float()]
    return frame.with_columns(frame[name].fill_nan(None) for name in numbers).write_csv(
        include_header=header
    )


def escape_formulas(text: str) -> str:
    """Put a `'` before each cell of a CSV that a spreadsheet would run as a formula.

    Names come from captures that others made. A cell that is a number stays as it is; so does
    everything that is not the beginning of a cell. `text` holds whole rows.
    """
    return _CELL.sub(_escaped_cell, text) if _MAY_RUN.search(text) else text


def may_run(series: pl.Series) -> bool:
    """Tell whether a column of a table has texts that a spreadsheet would run."""
    import polars as pl

    if isinstance(series.dtype, pl.Enum):
        series = series.dtype.categories  # far fewer than rows
    if series.dtype != pl.String:
        return False
    return bool(series.str.contains(f"^[{_STARTS}]").any())


def _escaped_cell(match: re.Match[str]) -> str:
    cell = match[0]
    quote, body = ('"', cell[1:-1]) if cell.startswith('"') else ("", cell)
    if body[:1] not in _STARTS or _NUMBER.fullmatch(body):
        return cell
    return f"{quote}'{body}{quote}" if body else cell


def write_rows(rows: Iterable[Iterable[Any]]) -> str:
    """Write rows as CSV text."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([_cell(v) for v in row] for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and isnan(value):
        return None
    if isinstance(value, (list, dict)):
        return msgspec.json.encode(value, enc_hook=str).decode()
    return value


def _long(result: Composite, limit: int | None) -> Iterator[tuple[Any, ...]]:
    for fact in result.facts:
        yield "", "", fact.key, fact.value
    for section in result.sections:
        if isinstance(section, TableResult):
            frame = section.frame.head(limit) if limit else section.frame
            for number, row in enumerate(frame.iter_rows(named=True)):
                for key, value in row.items():
                    yield section.command, number, key, value
