"""Rows of a printed table as columns of text: fast where lines are plain, with care elsewhere."""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from gpusight.readers.ncu.printed.headings import ROW_FORMS, Form, Heading, split

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_RECORD_LINES = 1000
"""Lines that one row may go over, where a cell holds line feeds."""
_NUMBERED = re.compile(rb'\n(?!"?\d)')
_NUMBERED_OR_UNITS = re.compile(rb'\n(?!"?\d|""[,;\t])')
_FIRST = {Form.WIDE: rb'"?\d|""[,;\t]'}
BEGINS = re.compile(r'"?\d+"?[,;\t]')
"""How rows of most tables begin, and lines inside a cell hardly ever."""
_NUMBERS = ("id", "pid", "invocations")
_INTEGER = re.compile(r"\s*\d{1,18}\s*")


class Record(NamedTuple):
    """One row, cut into cells, and how many lines it takes."""

    cells: list[str]
    lines: int


def plain_frame(body: bytes, heading: Heading) -> pl.DataFrame | None:
    """Read lines that all are rows of the table; None where some are not, or cannot be told."""
    if heading.form not in ROW_FORMS or not heading.is_numbered or _is_cut(body):
        return None
    others = _NUMBERED_OR_UNITS if heading.form is Form.WIDE else _NUMBERED
    first = re.compile(_FIRST.get(heading.form, rb'"?\d'))
    body = body.rstrip(b"\n")
    lines = body.count(b"\n") + 1
    # Rows without cells would still take the memory of whole ones.
    short = body.count(heading.separator.encode()) < lines * (len(heading.cells) - 2)
    if short or not first.match(body) or others.search(body):
        return None
    frame = _parsed(body, heading)
    # Quotes that do not match would join lines, or lose the rest of them.
    if frame is None or frame.height != lines or not _are_rows(frame, heading):
        return None
    return frame


def _is_cut(body: bytes) -> bool:
    """Tell whether a text ends inside quotes, so that its last cell is not whole."""
    return body.rpartition(b"\n")[2].count(b'"') % 2 == 1


def _parsed(body: bytes, heading: Heading) -> pl.DataFrame | None:
    names = [str(at) for at in range(len(heading.cells))]
    line = heading.separator.join(names).encode() + b"\n"
    try:
        frame = pl.read_csv(
            line + body,
            separator=heading.separator,
            infer_schema=False,
            truncate_ragged_lines=True,
            encoding="utf8-lossy",
            columns=[names[at] for at in _wanted(heading)],
        )
    except pl.exceptions.PolarsError:
        return None
    known = column_names(heading)
    return frame.rename({at: known[at] for at in frame.columns})


def record_frame(records: Sequence[Sequence[str]], heading: Heading) -> pl.DataFrame:
    """Put rows that were cut one by one into the same columns."""
    wanted = _wanted(heading)
    names = column_names(heading)
    width = len(heading.cells)
    full = [[*cells[:width], *[None] * (width - len(cells))] for cells in records]
    return pl.DataFrame(
        [pl.Series(names[str(at)], [row[at] for row in full], dtype=pl.String) for at in wanted]
    )


def _wanted(heading: Heading) -> list[int]:
    """List the columns that are read; names of hosts are not."""
    skipped = {heading.roles[r] for r in ("host", "minimum", "maximum") if r in heading.roles}
    return sorted({*heading.roles.values(), *heading.metrics} - skipped)


def column_names(heading: Heading) -> Mapping[str, str]:
    """Name the columns by what they are; those of metrics keep their number."""
    return {str(at): str(at) for at in heading.metrics} | {
        str(at): role for role, at in heading.roles.items()
    }


def _are_rows(frame: pl.DataFrame, heading: Heading) -> bool:
    """Tell whether every line had as many cells as a row needs."""
    last = str(max(heading.metrics)) if heading.form is Form.WIDE else "value"
    if frame.get_column(last).null_count():
        return False
    if heading.form is Form.WIDE:
        return True
    filled = [pl.col(name).is_not_null() for name in ("metric", "rule") if name in frame.columns]
    rows = pl.any_horizontal(filled)
    if "invocations" in frame.columns:
        rows &= pl.col("invocations").str.contains(r"^\s*\d+\s*$").fill_null(value=False)
    return frame.select(rows.all()).item() is True


def next_record(lines: Sequence[str], at: int, heading: Heading) -> Record | None:
    """Read the row that begins on a line, over several where a cell goes on; None for no row."""
    found = _quoted(lines, at, heading)
    if found is None:
        return None
    text, taken = found
    try:
        cells = split(text, heading.separator) if taken == 1 else _joined(text, heading.separator)
    except csv.Error:
        return None
    return Record(cells, taken) if is_row(cells, heading) else None


def _quoted(lines: Sequence[str], at: int, heading: Heading) -> tuple[str, int] | None:
    """Give the lines up to where the last quote is closed, and their number; None if never."""
    first = lines[at]
    if first.count('"') % 2 == 0:
        return first, 1
    for end in range(at + 1, min(len(lines), at + MAX_RECORD_LINES)):
        if BEGINS.match(lines[end]):
            return None
        if lines[end].count('"') % 2:
            return "\n".join(lines[at : end + 1]), end + 1 - at
    if at == len(lines) - 1 and heading.form is Form.WIDE:
        # The file ends here: what it has of the row counts, but for its last cell.
        return first.rpartition('"')[0].removesuffix(heading.separator), 1
    return None


def _joined(text: str, separator: str) -> list[str]:
    return next(csv.reader(text.splitlines(keepends=True), delimiter=separator), [])


def is_row(cells: Sequence[str], heading: Heading) -> bool:
    """Tell whether cells fit below their headings."""
    if heading.form is Form.WIDE:
        return _is_wide_row(cells, heading)
    if len(cells) <= _last(heading, ("value", "metric", *_NUMBERS)):
        return False
    number = heading.roles.get("id", heading.roles.get("pid"))
    is_numbered = number is None or _INTEGER.fullmatch(cells[number]) is not None
    return is_numbered and _is_counted(cells, heading)


def _last(heading: Heading, roles: Sequence[str]) -> int:
    """Give the last of these columns that the table has."""
    return max(heading.roles[role] for role in roles if role in heading.roles)


def _is_counted(cells: Sequence[str], heading: Heading) -> bool:
    """Tell whether a row of a summary says of how many launches: ncu shifts cells in some."""
    at = heading.roles.get("invocations")
    if at is None or heading.form is not Form.SUMMARY:
        return True
    metric = cells[heading.roles["metric"]]
    return bool(_INTEGER.fullmatch(cells[at])) and not _INTEGER.fullmatch(metric)


def _is_wide_row(cells: Sequence[str], heading: Heading) -> bool:
    """Take rows of launches and the row of units, whose first cells are empty."""
    named = _last(heading, ("kernel", "function", *_NUMBERS))
    if not max(named, heading.metrics[0]) < len(cells) <= len(heading.cells) + 1:
        return False
    number = heading.roles.get("id")
    return number is None or not cells[number].strip() or bool(_INTEGER.fullmatch(cells[number]))
