"""Results as CSV and JSON in base units, written in chunks: long tables need not fit in memory."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from math import isnan
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from gpusight.errors import MissingDataError
from gpusight.results import Answer, Composite, NotApplicable, TableResult
from gpusight.sniff import encodable_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_CHUNK_ROWS = 20_000
_CHUNK_CHARACTERS = 8_000_000


def chunks(frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Cut a table into pieces of a few megabytes of text; the same name may stand in every row."""
    texts = frame.select(pl.col(pl.String).str.len_bytes().sum().cast(pl.Int64))
    letters = sum(count or 0 for count in texts.row(0)) if texts.width else 0
    size = (
        _CHUNK_ROWS
        if letters <= _CHUNK_CHARACTERS
        else max(1, frame.height * _CHUNK_CHARACTERS // letters)
    )
    return frame.iter_slices(min(size, _CHUNK_ROWS))


_STARTS = "-=+@\t\r\n＝＋－＠"
"""First characters of a cell that make Excel, LibreOffice or Sheets take it for a formula."""
_MAY_RUN = re.compile(rf"""(?:\A|[,\n"])(?:-(?![\d.])|[{_STARTS[1:]}])""")
_CELL = re.compile(r'"(?:[^"]|"")*"|[^",\n]+')
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?inf")
COMPOSITE_HEADER = ("section", "row", "key", "value")
"""A composite's sections have different columns, so its CSV is long: one line for each value."""


def to_csv(result: Answer, *, limit: int | None = None) -> str:
    """Write a result as CSV; null, and a number that is none, are an empty cell."""
    if isinstance(result, NotApplicable):
        raise MissingDataError(result.reason, hint=result.hint)
    if isinstance(result, Composite):
        return write_rows([COMPOSITE_HEADER, *_long(result, limit)])
    return _frame_csv(result.frame.head(limit) if limit else result.frame)


def csv_chunks(result: Answer, *, limit: int | None = None) -> Iterator[str]:
    """Write the same text piece by piece, so that a long one is never in memory at once."""
    if not isinstance(result, TableResult) or limit or result.frame.is_empty():
        yield to_csv(result, limit=limit)
        return
    yield write_rows([result.frame.columns])
    for piece in chunks(result.frame):
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

    Names come from captures that others made. Cells that are numbers do not change, nor
    does anything but the beginning of a cell. `text` holds whole rows.
    """
    return _CELL.sub(_escaped_cell, text) if _MAY_RUN.search(text) else text


def may_run(series: pl.Series) -> bool:
    """Return whether a column of a table has texts that a spreadsheet would run."""
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


_INVISIBLE = re.compile("[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""Characters that JSON may hold raw but that could drive or confuse a terminal."""


def to_json(result: Answer, *, limit: int | None = None) -> str:
    """Write a result as one JSON document, indented; ends with a newline."""
    return encode_json(json_document(result, limit=limit))


def json_chunks(result: Answer, *, limit: int | None = None) -> Iterator[str]:
    """Write the same document piece by piece, so that a long one is never in memory at once."""
    if not isinstance(result, TableResult) or limit or result.frame.is_empty():
        yield to_json(result, limit=limit)
        return
    around = to_json(replace(result, frame=result.frame.clear()))
    before, _, after = around.rpartition("[]")
    opening = before + "["
    for piece in chunks(result.frame):
        # One level deeper than on their own; a text holds no line feed of its own in JSON.
        rows = encode_json(piece.to_dicts()).removeprefix("[").removesuffix("\n]\n")
        yield opening + rows.replace("\n", "\n  ")
        opening = ","
    yield "\n  ]" + after


def encode_json(value: object) -> str:
    """Write plain Python objects as indented JSON that is safe to print; ends with a newline."""
    try:
        raw = msgspec.json.encode(value, enc_hook=_plain_value)
    except UnicodeEncodeError:  # names of files need not be UTF-8; few are not, so the rest is fast
        raw = msgspec.json.encode(_readable(msgspec.to_builtins(value, enc_hook=_plain_value)))
    text = msgspec.json.format(raw, indent=2).decode()
    return _INVISIBLE.sub(lambda m: f"\\u{ord(m[0]):04x}", text) + "\n"


def _readable(value: object) -> object:
    """Give plain objects whose texts can all be encoded; what cannot is escaped."""
    if isinstance(value, str):
        return encodable_text(value)
    if isinstance(value, dict):
        return {_readable(key): _readable(item) for key, item in value.items()}
    return [_readable(item) for item in value] if isinstance(value, (list, tuple)) else value


def json_document(result: Answer, *, limit: int | None = None) -> dict[str, Any]:
    """Give the JSON document as plain Python objects."""
    if isinstance(result, NotApplicable):
        return {"meta": {"command": result.command, "not_applicable": _absent(result)}, "rows": []}
    meta: dict[str, Any] = {"command": result.command, "title": result.title}
    meta |= {"window": result.window} if result.window else {}
    if isinstance(result, TableResult):
        rows = _rows(result, limit)
        left_out = result.frame.height - len(rows)
    else:
        meta |= {fact.key: fact.value for fact in result.facts}
        absent = {s.command: _absent(s) for s in result.sections if isinstance(s, NotApplicable)}
        meta |= {"not_applicable": absent} if absent else {}
        rows = list(_section_rows(result, limit))
        tables = [s for s in result.sections if isinstance(s, TableResult)]
        left_out = sum(table.frame.height for table in tables) - len(rows)
    meta |= dict(result.meta)
    meta |= {"command": result.command, "notes": list(result.notes)}
    if left_out:
        meta["rows_left_out"] = left_out
    return {"meta": meta, "rows": rows}


def _section_rows(result: Composite, limit: int | None) -> Iterator[dict[str, Any]]:
    for section in result.sections:
        if isinstance(section, TableResult):
            for row in _rows(section, limit):
                yield {"section": section.command, **row}


def _rows(result: TableResult, limit: int | None) -> list[dict[str, Any]]:
    return (result.frame.head(limit) if limit else result.frame).to_dicts()


def _absent(absent: NotApplicable) -> dict[str, str]:
    return {"reason": absent.reason, "hint": absent.hint}


def _plain_value(value: object) -> object:
    """Encode what JSON has no form for, such as a duration in a SQL result, as its text."""
    return str(value)
