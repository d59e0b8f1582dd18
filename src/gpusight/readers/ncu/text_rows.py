"""Printed files as lines: text in UTF-8, headings of tables, rows as columns of text."""

from __future__ import annotations

import codecs
import csv
import enum
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from gpusight.errors import DamagedCaptureError
from gpusight.readers.file_blocks import FileBlocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path


_PIECE_BYTES = 8 << 20
_MAX_LINE_BYTES = 64 << 20
"""A longer line is no line: the widest tables known have rows of a few hundred kilobytes."""
_SAMPLE_BYTES = 512
_BLANK = re.compile(rb"\n{8,}")
_UTF_16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


class PrintedText:
    """Pieces of a file's text; `problem` says, at the end, why there are no more than these."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.problem: str | None = None

    def __iter__(self) -> Iterator[bytes]:
        """Give piece after piece: whole lines that end in a line feed, the last perhaps not."""
        blocks = FileBlocks(self._path)
        waiting: list[bytes] = []
        size = 0
        for block in self._until_zero(_unix_lines(_utf8(blocks))):
            waiting.append(block)
            size += len(block)
            if size < _PIECE_BYTES:
                continue
            whole, _, rest = b"".join(waiting).rpartition(b"\n")
            if whole:
                yield whole + b"\n"
            elif size > _MAX_LINE_BYTES:
                raise DamagedCaptureError(
                    f"{self._path} cannot be read",
                    why=f"it has a line of more than {_MAX_LINE_BYTES >> 20} MB",
                    hint="print it again with: ncu --import FILE --csv",
                )
            waiting, size = [rest], len(rest)
        self.problem = self.problem or blocks.problem
        if size:
            yield b"".join(waiting)

    def _until_zero(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Stop at a zero byte: no text has one, but files that were not written to their end do."""
        for block in blocks:
            before, zero, _ = block.partition(b"\0")
            yield before
            if zero:
                self.problem = "it holds zero bytes; what follows the first of them was not read"
                return


def _utf8(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Turn UTF-16, which PowerShell writes, into UTF-8; drop the mark at the beginning."""
    decoder: codecs.IncrementalDecoder | None = None
    for number, block in enumerate(blocks):
        text = block
        if number == 0:
            code = _wide_code(block)
            decoder = codecs.getincrementaldecoder(code)("replace") if code else None
            text = block if decoder else block.removeprefix(codecs.BOM_UTF8)
        if decoder is None:
            yield text
        else:
            yield decoder.decode(text).removeprefix("\ufeff").encode()


def _wide_code(head: bytes) -> str | None:
    """Tell UTF-16 by its mark, or by the zeros in every other byte of plain letters."""
    marked = next((code for mark, code in _UTF_16.items() if head.startswith(mark)), None)
    sample = head[:_SAMPLE_BYTES]
    if marked or len(sample) < 2:
        return marked
    if not any(sample[::2]):
        return "utf-16-be"
    return None if any(sample[1::2]) else "utf-16-le"


def _unix_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """End lines by a line feed alone; a carriage return, as progress bars write, ends one too."""
    held = b""
    for block in blocks:
        text = held + block
        held = b"\r" if text.endswith(b"\r") else b""
        text = text[: len(text) - len(held)]
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in text else text
        # A line costs time even when it is blank, and of many one says as much.
        yield _BLANK.sub(b"\n\n", text) if b"\n" * 8 in text else text
    if held:
        yield b"\n"


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
    TURNED = "a row for each metric, a column for each launch"
    SOURCE = "a row for each instruction or line of source"
    SESSION = "a row for each attribute of the session or of the GPUs"


ROW_FORMS = (TableLayout.LONG, TableLayout.SUMMARY, TableLayout.WIDE)
"""Tables whose rows stand for themselves, so that they may come in pieces."""
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
"""Columns that are no metrics, by their headings. `Kernel Time` is the date of the launch."""
_BEGINNINGS = {
    "thread domain:push/pop": "push_pop",
    "id:domain:start/stop": "start_stop",
    "range:pl_type": "range",
}
_NAMED = ("kernel", "function")
_KEYS = frozenset({"id", "kernel", "function", "file"})
_WITH_UNIT = re.compile(r"(?P<name>.*\S)\s*\[(?P<unit>[^\[\]]*)\]", re.DOTALL)
FILES = ("file name", "file path")
METRICS = ("metric name", "metric")
UNITS = ("metric unit", "unit")
_SESSION = re.compile(r"(?:session|launch|device) attribute|process id")
_NUMBER = re.compile(r"\d{1,18}")
_TOKENS = re.compile(r"(?i)Name|Path|Metric|Source|Attribute|\bID\b")


@dataclass(frozen=True, slots=True)
class TableHeading:
    """A line of headings: the form of what follows, and where each column lies."""

    form: TableLayout
    separator: str
    cells: tuple[str, ...]
    roles: Mapping[str, int] = field(default_factory=dict)
    metrics: tuple[int, ...] = ()
    """Columns of metrics, in tables that have a column for each."""

    @property
    def is_numbered(self) -> bool:
        """Tell whether rows begin with a number: of the launch, or else of the process."""
        return 0 in (self.roles.get("id"), self.roles.get("pid"))


def split_cells(line: str, separator: str) -> list[str]:
    """Cut a line into its cells."""
    return next(csv.reader([line], delimiter=separator), [])


def with_unit(text: str) -> tuple[str, str]:
    """Take `name [unit]` apart; the unit is empty where there is none."""
    match = _WITH_UNIT.fullmatch(text.strip()) if len(text) <= _MAX_NAME_CHARS else None
    return (match["name"], match["unit"].strip()) if match else (text.strip(), "")


def is_metric_name(text: str) -> bool:
    """Tell a metric's name from a label: only names have two underscores in a row."""
    return "__" in text and " " not in text.strip()


def role_of(cell: str) -> str | None:
    """Tell which column a heading stands for; none where it is a metric or not known."""
    name = with_unit(cell)[0].casefold()
    known = _ROLES.get(name)
    return known or next((r for b, r in _BEGINNINGS.items() if name.startswith(b)), None)


def heading_of(line: str) -> TableHeading | None:
    """Read a line as headings; none where it is something else."""
    if len(line) > _MAX_HEADING_CHARS or not _TOKENS.search(line):
        return None
    text = line.strip()
    for separator in SEPARATORS:
        if separator in text:
            try:
                cells = tuple(cell.strip() for cell in split_cells(text, separator))
            except csv.Error:
                continue
            found = _heading(cells, separator) if len(cells) <= MAX_COLUMNS else None
            if found is not None:
                return found
    return None


def _heading(cells: tuple[str, ...], separator: str) -> TableHeading | None:
    names = [cell.casefold() for cell in cells]
    roles = _roles(cells)
    if "metric" in roles and "value" in roles:
        form = TableLayout.SUMMARY if "average" in names else TableLayout.LONG
        return TableHeading(form, separator, cells, roles)
    if "source" in names and ("address" in names or "line no" in names):
        return TableHeading(TableLayout.SOURCE, separator, cells)
    if _SESSION.fullmatch(names[0]) and _is_session(names):
        return TableHeading(TableLayout.SESSION, separator, cells)
    if any(role in roles for role in _NAMED):
        metrics = _metric_columns(cells, roles)
        if metrics:
            return TableHeading(TableLayout.WIDE, separator, cells, roles, metrics)
    return TableHeading(TableLayout.TURNED, separator, cells) if _is_turned(names) else None


def _roles(cells: Sequence[str]) -> dict[str, int]:
    roles: dict[str, int] = {}
    for at, cell in enumerate(cells):
        role = role_of(cell)
        if role is not None:
            roles.setdefault(role, at)
    return roles


def _metric_columns(cells: Sequence[str], roles: Mapping[str, int]) -> tuple[int, ...]:
    """Give the columns of metrics; none unless one of them cannot be anything else."""
    taken = set(roles.values())
    others = [at for at, cell in enumerate(cells) if at not in taken and cell]
    sure = any(is_metric_name(with_unit(cells[at])[0]) or with_unit(cells[at])[1] for at in others)
    return tuple(at for at in others if role_of(cells[at]) is None) if sure else ()


def _is_session(names: Sequence[str]) -> bool:
    return names[1:2] in (["value"], ["process name"]) or names[1].startswith("device ")


def _is_turned(names: Sequence[str]) -> bool:
    """Tell whether a line is the first of a table whose rows are metrics."""
    first, others = names[0], [name for name in names[1:] if name]
    if not others:
        return False
    if first == "id":
        return all(_NUMBER.fullmatch(other) for other in others)
    if first in METRICS:
        return any(other not in UNITS for other in others)
    return first in FILES or role_of(first) in _KEYS


MAX_RECORD_LINES = 1000
"""Lines that one row may go over, where a cell holds line feeds."""
_NUMBERED = re.compile(rb'\n(?!"?\d)')
_NUMBERED_OR_UNITS = re.compile(rb'\n(?!"?\d|""[,;\t])')
_FIRST = {TableLayout.WIDE: rb'"?\d|""[,;\t]'}
BEGINS = re.compile(r'"?\d+"?[,;\t]')
"""How rows of most tables begin, and lines inside a cell hardly ever."""
_NUMBERS = ("id", "pid", "invocations")
_INTEGER = re.compile(r"\s*\d{1,18}\s*")


class PrintedRecord(NamedTuple):
    """One row, cut into cells, and how many lines it takes."""

    cells: list[str]
    lines: int


def plain_frame(body: bytes, heading: TableHeading) -> pl.DataFrame | None:
    """Read lines that all are rows of the table; None where some are not, or cannot be told."""
    if heading.form not in ROW_FORMS or not heading.is_numbered or _is_cut(body):
        return None
    others = _NUMBERED_OR_UNITS if heading.form is TableLayout.WIDE else _NUMBERED
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


def _parsed(body: bytes, heading: TableHeading) -> pl.DataFrame | None:
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


def record_frame(records: Sequence[Sequence[str]], heading: TableHeading) -> pl.DataFrame:
    """Put rows that were cut one by one into the same columns."""
    wanted = _wanted(heading)
    names = column_names(heading)
    width = len(heading.cells)
    full = [[*cells[:width], *[None] * (width - len(cells))] for cells in records]
    return pl.DataFrame(
        [pl.Series(names[str(at)], [row[at] for row in full], dtype=pl.String) for at in wanted]
    )


def _wanted(heading: TableHeading) -> list[int]:
    """List the columns that are read; names of hosts are not."""
    skipped = {heading.roles[r] for r in ("host", "minimum", "maximum") if r in heading.roles}
    return sorted({*heading.roles.values(), *heading.metrics} - skipped)


def column_names(heading: TableHeading) -> Mapping[str, str]:
    """Name the columns by what they are; those of metrics keep their number."""
    return {str(at): str(at) for at in heading.metrics} | {
        str(at): role for role, at in heading.roles.items()
    }


def _are_rows(frame: pl.DataFrame, heading: TableHeading) -> bool:
    """Tell whether every line had as many cells as a row needs."""
    last = str(max(heading.metrics)) if heading.form is TableLayout.WIDE else "value"
    if frame.get_column(last).null_count():
        return False
    if heading.form is TableLayout.WIDE:
        return True
    filled = [pl.col(name).is_not_null() for name in ("metric", "rule") if name in frame.columns]
    rows = pl.any_horizontal(filled)
    if "invocations" in frame.columns:
        rows &= pl.col("invocations").str.contains(r"^\s*\d+\s*$").fill_null(value=False)
    return frame.select(rows.all()).item() is True


def next_record(lines: Sequence[str], at: int, heading: TableHeading) -> PrintedRecord | None:
    """Read the row that begins on a line, over several where a cell goes on; None for no row."""
    found = _quoted(lines, at, heading)
    if found is None:
        return None
    text, taken = found
    try:
        cells = (
            split_cells(text, heading.separator) if taken == 1 else _joined(text, heading.separator)
        )
    except csv.Error:
        return None
    return PrintedRecord(cells, taken) if is_row(cells, heading) else None


def _quoted(lines: Sequence[str], at: int, heading: TableHeading) -> tuple[str, int] | None:
    """Give the lines up to where the last quote is closed, and their number; None if never."""
    first = lines[at]
    if first.count('"') % 2 == 0:
        return first, 1
    for end in range(at + 1, min(len(lines), at + MAX_RECORD_LINES)):
        if BEGINS.match(lines[end]):
            return None
        if lines[end].count('"') % 2:
            return "\n".join(lines[at : end + 1]), end + 1 - at
    if at == len(lines) - 1 and heading.form is TableLayout.WIDE:
        # The file ends here: what it has of the row counts, but for its last cell.
        return first.rpartition('"')[0].removesuffix(heading.separator), 1
    return None


def _joined(text: str, separator: str) -> list[str]:
    return next(csv.reader(text.splitlines(keepends=True), delimiter=separator), [])


def is_row(cells: Sequence[str], heading: TableHeading) -> bool:
    """Tell whether cells fit below their headings."""
    if heading.form is TableLayout.WIDE:
        return _is_wide_row(cells, heading)
    if len(cells) <= _last(heading, ("value", "metric", *_NUMBERS)):
        return False
    number = heading.roles.get("id", heading.roles.get("pid"))
    is_numbered = number is None or _INTEGER.fullmatch(cells[number]) is not None
    return is_numbered and _is_counted(cells, heading)


def _last(heading: TableHeading, roles: Sequence[str]) -> int:
    """Give the last of these columns that the table has."""
    return max(heading.roles[role] for role in roles if role in heading.roles)


def _is_counted(cells: Sequence[str], heading: TableHeading) -> bool:
    """Tell whether a row of a summary says of how many launches: ncu shifts cells in some."""
    at = heading.roles.get("invocations")
    if at is None or heading.form is not TableLayout.SUMMARY:
        return True
    metric = cells[heading.roles["metric"]]
    return bool(_INTEGER.fullmatch(cells[at])) and not _INTEGER.fullmatch(metric)


def _is_wide_row(cells: Sequence[str], heading: TableHeading) -> bool:
    """Take rows of launches and the row of units, whose first cells are empty."""
    named = _last(heading, ("kernel", "function", *_NUMBERS))
    if not max(named, heading.metrics[0]) < len(cells) <= len(heading.cells) + 1:
        return False
    number = heading.roles.get("id")
    return number is None or not cells[number].strip() or bool(_INTEGER.fullmatch(cells[number]))
