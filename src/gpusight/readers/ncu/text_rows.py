"""Tables in what `ncu` printed: the heading of a table, and its rows as columns of text."""

from __future__ import annotations

import csv
import enum
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


SEPARATORS = (",", ";", "\t")
_MAX_HEADING_CHARS = 8 << 20
_MAX_NAME_CHARS = 1000
MAX_COLUMNS = 20_000
"""No table is wider; the widest known has some three thousand."""


class TableLayout(enum.Enum):
    """How a table is laid out."""

    LONG = "a row for each metric of each launch"
    SUMMARY = "a row for each metric of each kernel, over its launches"
    WIDE = "a row for each launch, a column for each metric"
    TRANSPOSED = "a row for each metric, a column for each launch"
    SOURCE = "a row for each instruction or line of source"
    SESSION = "a row for each attribute of the session or of the GPUs"


ROW_LAYOUTS = (TableLayout.LONG, TableLayout.SUMMARY, TableLayout.WIDE)
"""Tables whose rows can be read one by one, so that the table may come in chunks."""
_ROLES = {
    "id": "id",
    "process id": "pid",
    "process name": "process",
    "process": "process",
    "demangled name": "kernel",
    "kernel name": "kernel",
    "function name": "function",
    "mangled name": "mangled",
    "context": "context",
    "stream": "stream",
    "block size": "block",
    "grid size": "grid",
    "device": "device",
    "device name": "device_name",
    "cc": "cc",
    "invocations": "invocations",
    "section name": "section",
    "body item label": "body",
    "metric name": "metric",
    "metric unit": "unit",
    "metric value": "value",
    "average": "value",
    "rule name": "rule",
    "rule type": "rule_kind",
    "rule description": "message",
    "estimated speedup type": "speedup_kind",
    "estimated speedup": "speedup",
    "domain": "domain",
    "host name": "host",
    "kernel time": "time",
    "minimum": "minimum",
    "maximum": "maximum",
}
"""Columns that hold no metric, by heading. `Kernel Time` is the date of the launch."""
_ROLE_PREFIXES = {
    "thread domain:push/pop": "push_pop",
    "id:domain:start/stop": "start_stop",
    "range:pl_type": "range",
}
_LAUNCH_ROLES = frozenset({"id", "kernel", "function"})
_WITH_UNIT = re.compile(r"(?P<name>.*\S)\s*\[(?P<unit>[^\[\]]*)\]", re.DOTALL)
FILES = ("file name", "file path")
METRICS = ("metric name", "metric")
UNITS = ("metric unit", "unit")
_SESSION = re.compile(r"(?:session|launch|device) attribute|process id")
_NUMBER = re.compile(r"\d{1,18}")
_TOKENS = re.compile(r"(?i)Name|Path|Metric|Source|Attribute|\bID\b")


@dataclass(frozen=True, slots=True)
class TableHeading:
    """A line of headings: the layout of the table below it, and the position of each column."""

    layout: TableLayout
    separator: str
    cells: tuple[str, ...]
    roles: Mapping[str, int] = field(default_factory=dict)
    metrics: tuple[int, ...] = ()
    """Columns of metrics, in tables that have a column for each."""

    @property
    def is_numbered(self) -> bool:
        """Whether rows begin with a number: that of the launch, or of the process."""
        return 0 in (self.roles.get("id"), self.roles.get("pid"))


def split_cells(line: str, separator: str) -> list[str]:
    """Split a line into its cells."""
    return next(csv.reader([line], delimiter=separator), [])


def with_unit(text: str) -> tuple[str, str]:
    """Split `name [unit]`; the unit is empty where there is none."""
    match = _WITH_UNIT.fullmatch(text.strip()) if len(text) <= _MAX_NAME_CHARS else None
    return (match["name"], match["unit"].strip()) if match else (text.strip(), "")


def is_metric_name(text: str) -> bool:
    """Return whether a text is a metric's name: only names have two underscores in a row."""
    return "__" in text and " " not in text.strip()


def role_of(cell: str) -> str | None:
    """Return what the column of a heading holds; None where that is a metric or unknown."""
    name = with_unit(cell)[0].casefold()
    prefixes = _ROLE_PREFIXES.items()
    return _ROLES.get(name) or next((role for p, role in prefixes if name.startswith(p)), None)


def heading_of(line: str) -> TableHeading | None:
    """Read a line as headings; None where it is something else."""
    if len(line) > _MAX_HEADING_CHARS or not _TOKENS.search(line):
        return None
    text = line.strip()
    for separator in SEPARATORS:
        if separator in text:
            try:
                cells = tuple(cell.strip() for cell in split_cells(text, separator))
            except csv.Error:
                continue
            heading = _heading(cells, separator) if len(cells) <= MAX_COLUMNS else None
            if heading is not None:
                return heading
    return None


def _heading(cells: tuple[str, ...], separator: str) -> TableHeading | None:
    names = [cell.casefold() for cell in cells]
    roles: dict[str, int] = {}
    for column, cell in enumerate(cells):
        role = role_of(cell)
        if role is not None:
            roles.setdefault(role, column)
    if "metric" in roles and "value" in roles:
        layout = TableLayout.SUMMARY if "average" in names else TableLayout.LONG
        return TableHeading(layout, separator, cells, roles)
    if "source" in names and ("address" in names or "line no" in names):
        return TableHeading(TableLayout.SOURCE, separator, cells)
    if _SESSION.fullmatch(names[0]) and (
        names[1] in ("value", "process name") or names[1].startswith("device ")
    ):
        return TableHeading(TableLayout.SESSION, separator, cells)
    if "kernel" in roles or "function" in roles:
        metrics = _metric_columns(cells, roles)
        if metrics:
            return TableHeading(TableLayout.WIDE, separator, cells, roles, metrics)
    return TableHeading(TableLayout.TRANSPOSED, separator, cells) if _is_transposed(names) else None


def _metric_columns(cells: Sequence[str], roles: Mapping[str, int]) -> tuple[int, ...]:
    """Return the columns of metrics; none unless one of them cannot be anything else."""
    taken = set(roles.values())
    others = [column for column, cell in enumerate(cells) if column not in taken and cell]
    names_and_units = (with_unit(cells[column]) for column in others)
    if not any(is_metric_name(name) or unit for name, unit in names_and_units):
        return ()
    return tuple(column for column in others if role_of(cells[column]) is None)


def _is_transposed(names: Sequence[str]) -> bool:
    """Return whether a line is the first of a table whose rows are metrics."""
    first, others = names[0], [name for name in names[1:] if name]
    if not others:
        return False
    if first == "id":
        return all(_NUMBER.fullmatch(other) for other in others)
    if first in METRICS:
        return any(other not in UNITS for other in others)
    return first in FILES or role_of(first) in _LAUNCH_ROLES


MAX_RECORD_LINES = 1000
"""Lines that one row may span, where a cell holds line feeds."""
ROW_START = re.compile(r'"?\d+"?[,;\t]')
"""How rows of most tables begin, and lines inside a cell hardly ever."""
_NUMBERED_ROW = rb'"?\d'
_ROW_OR_UNITS = rb'"?\d|""[,;\t]'
_LINE_STARTS = {
    layout: (re.compile(row), re.compile(rb"\n(?!" + row + rb")"))
    for layout, row in (
        (TableLayout.LONG, _NUMBERED_ROW),
        (TableLayout.SUMMARY, _NUMBERED_ROW),
        (TableLayout.WIDE, _ROW_OR_UNITS),
    )
}
"""Patterns of a row's start, and of a later line that starts otherwise."""
_COUNT_ROLES = ("id", "pid", "invocations")
_INTEGER = re.compile(r"\s*\d{1,18}\s*")


def plain_frame(body: bytes, heading: TableHeading) -> pl.DataFrame | None:
    """Parse lines that are all rows of the table; None where some are not, or may not be."""
    ends_in_quotes = body.rpartition(b"\n")[2].count(b'"') % 2 == 1
    if heading.layout not in ROW_LAYOUTS or not heading.is_numbered or ends_in_quotes:
        return None
    row_start, other_start = _LINE_STARTS[heading.layout]
    body = body.rstrip(b"\n")
    lines = body.count(b"\n") + 1
    # Rows without cells would still take the memory of complete ones.
    is_short = body.count(heading.separator.encode()) < lines * (len(heading.cells) - 2)
    if is_short or not row_start.match(body) or other_start.search(body):
        return None
    numbers = [str(column) for column in range(len(heading.cells))]
    try:
        frame = pl.read_csv(
            heading.separator.join(numbers).encode() + b"\n" + body,
            separator=heading.separator,
            infer_schema=False,
            truncate_ragged_lines=True,
            encoding="utf8-lossy",
            columns=[numbers[column] for column in _columns_read(heading)],
        )
    except pl.exceptions.PolarsError:
        return None
    names = _column_names(heading)
    frame = frame.rename({number: names[number] for number in frame.columns})
    # Quotes that do not match would join lines, or lose the rest of them.
    return frame if frame.height == lines and _are_rows(frame, heading) else None


def record_frame(records: Sequence[Sequence[str]], heading: TableHeading) -> pl.DataFrame:
    """Put rows that were split one by one into the columns of `plain_frame`."""
    names = _column_names(heading)
    width = len(heading.cells)
    rows = [[*cells[:width], *[None] * (width - len(cells))] for cells in records]
    return pl.DataFrame(
        [
            pl.Series(names[str(column)], [row[column] for row in rows], dtype=pl.String)
            for column in _columns_read(heading)
        ]
    )


def _columns_read(heading: TableHeading) -> list[int]:
    """List the columns that are read; names of hosts are not."""
    skipped = {heading.roles[r] for r in ("host", "minimum", "maximum") if r in heading.roles}
    return sorted({*heading.roles.values(), *heading.metrics} - skipped)


def _column_names(heading: TableHeading) -> Mapping[str, str]:
    """Name columns by their role; those of metrics keep their number."""
    return {str(column): str(column) for column in heading.metrics} | {
        str(column): role for role, column in heading.roles.items()
    }


def _are_rows(frame: pl.DataFrame, heading: TableHeading) -> bool:
    """Return whether every line had as many cells as a row needs."""
    last = str(max(heading.metrics)) if heading.layout is TableLayout.WIDE else "value"
    if frame.get_column(last).null_count():
        return False
    if heading.layout is TableLayout.WIDE:
        return True
    filled = [pl.col(name).is_not_null() for name in ("metric", "rule") if name in frame.columns]
    rows = pl.any_horizontal(filled)
    if "invocations" in frame.columns:
        rows &= pl.col("invocations").str.contains(r"^\s*\d+\s*$").fill_null(value=False)
    return frame.select(rows.all()).item() is True


def next_record(
    lines: Sequence[str], first: int, heading: TableHeading
) -> tuple[list[str], int] | None:
    """Return the cells of the row that begins on a line, and how many lines it spans.

    None where that line begins no row.
    """
    quoted = _quoted(lines, first, heading)
    if quoted is None:
        return None
    text, count = quoted
    parts = [text] if count == 1 else text.splitlines(keepends=True)
    try:
        cells = next(csv.reader(parts, delimiter=heading.separator), [])
    except csv.Error:
        return None
    return (cells, count) if _is_row(cells, heading) else None


def _quoted(lines: Sequence[str], first: int, heading: TableHeading) -> tuple[str, int] | None:
    """Return the lines up to where the last quote is closed, and their number; None if never."""
    line = lines[first]
    if line.count('"') % 2 == 0:
        return line, 1
    for end in range(first + 1, min(len(lines), first + MAX_RECORD_LINES)):
        if ROW_START.match(lines[end]):
            return None
        if lines[end].count('"') % 2:
            return "\n".join(lines[first : end + 1]), end + 1 - first
    if first == len(lines) - 1 and heading.layout is TableLayout.WIDE:
        # The file ends here: the row counts as far as it goes, without its last cell.
        return line.rpartition('"')[0].removesuffix(heading.separator), 1
    return None


def _is_row(cells: Sequence[str], heading: TableHeading) -> bool:
    """Return whether cells fit below their headings."""
    roles = heading.roles
    if heading.layout is TableLayout.WIDE:
        # The row of units is taken too: its first cells are empty.
        needed = max(_last_column(roles, "kernel", "function"), heading.metrics[0])
        id_column = roles.get("id")
        return needed < len(cells) <= len(heading.cells) + 1 and (
            id_column is None
            or not cells[id_column].strip()
            or bool(_INTEGER.fullmatch(cells[id_column]))
        )
    if len(cells) <= _last_column(roles, "value", "metric"):
        return False
    number = roles.get("id", roles.get("pid"))
    if number is not None and not _INTEGER.fullmatch(cells[number]):
        return False
    invocations = roles.get("invocations")
    if invocations is None or heading.layout is not TableLayout.SUMMARY:
        return True
    # ncu shifts cells in some rows of summaries.
    is_counted = bool(_INTEGER.fullmatch(cells[invocations]))
    return is_counted and not _INTEGER.fullmatch(cells[roles["metric"]])


def _last_column(roles: Mapping[str, int], *names: str) -> int:
    """Return the last of these columns, or of the counts, that the table has."""
    return max(roles[role] for role in (*names, *_COUNT_ROLES) if role in roles)
