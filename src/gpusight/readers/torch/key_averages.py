"""Tables printed by `print(prof.key_averages().table())` of torch.profiler and its ancestors."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from gpusight.errors import DamagedCaptureError, NotACaptureError
from gpusight.readers.file_blocks import FileBlocks
from gpusight.readers.tables import NAMELESS, FrameSource, shown_frame
from gpusight.trace.trace import Meta
from gpusight.units import TIME_UNITS, format_count, format_share, parse_amount

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from gpusight.trace.trace import TraceSource


NAME = "Name"
CALLS = ("# of Calls", "Number of Calls")
SOURCE = "Source Location"
_SELF_CPU = "Self CPU"
_TOP_LEVEL_ONLY = "only display top-level ops"
_DASHES = re.compile(r"-{3,}")
_BETWEEN = "  "
_COLUMN_GAP = re.compile(r"\s{2,}")
_COUNT = re.compile(r"[0-9]{1,18}")
_NO_SOURCE = re.compile(r"--|-?[\d.]+")
_FOOTER = re.compile(r"(?:Self )?\S+ time total: \S+")
_FOOTER_CHARS = 200
_MAX_FOOTERS = 3
_MIN_COLUMNS = 3


class PrintedColumn(NamedTuple):
    """Start and end of a column in a line."""

    start: int
    end: int


@dataclass(frozen=True)
class PrintedRow:
    """One operator: a cell for each heading, and further lines of its stack."""

    cells: list[str]
    stack: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PrintedTable:
    """A table found in a text."""

    headings: tuple[str, ...]
    rows: tuple[PrintedRow, ...]
    footers: tuple[str, ...]
    """Lines below it, such as `Self CPU time total: 1.234ms`."""
    unreadable: int
    """Lines in it that are not rows."""
    closed: bool
    """Whether its last line is there."""
    top_level_only: bool
    """Operators called by others are not listed."""

    def column(self, heading: str) -> list[str]:
        """Return the cells below a heading."""
        at = self.headings.index(heading)
        return [row.cells[at] for row in self.rows]


def find_tables(lines: Sequence[str]) -> Iterator[PrintedTable]:
    """Find all tables in a text, one after the other."""
    for at in range(len(lines) - 1):
        if _SELF_CPU not in lines[at]:
            continue
        spans = _spans(lines[at + 1])
        headings = tuple(_COLUMN_GAP.split(lines[at][spans[0].start :].strip())) if spans else ()
        is_complete = NAME in headings and any(calls in headings for calls in CALLS)
        if is_complete and len(headings) == len(spans):
            yield _table(lines, at, headings, spans)


def _spans(line: str) -> list[PrintedColumn]:
    """Return the columns that a line of dashes marks; empty for any other line."""
    spans = [PrintedColumn(*dashes.span()) for dashes in _DASHES.finditer(line)]
    if len(spans) < _MIN_COLUMNS or line[spans[-1].end :].strip():
        return []
    return spans if all(line[gap.start : gap.end] == _BETWEEN for gap in _gaps(spans)) else []


def _gaps(spans: Sequence[PrintedColumn]) -> Iterator[PrintedColumn]:
    for left, right in pairwise(spans):
        yield PrintedColumn(left.end, right.start)


def _table(
    lines: Sequence[str], heading_at: int, headings: tuple[str, ...], spans: Sequence[PrintedColumn]
) -> PrintedTable:
    first = heading_at + 2
    end = next((at for at in range(first, len(lines)) if _spans(lines[at])), len(lines))
    rows, unreadable = _rows(lines[first:end], headings, spans)
    above = lines[max(heading_at - 2, 0) : heading_at]
    below = lines[end + 1 : end + 1 + _MAX_FOOTERS]
    footers = (_FOOTER.search(line[:_FOOTER_CHARS]) for line in below)
    return PrintedTable(
        headings=_as_filled(headings, rows),
        rows=tuple(rows),
        footers=tuple(match.group() for match in footers if match),
        unreadable=unreadable,
        closed=end < len(lines),
        top_level_only=any(_TOP_LEVEL_ONLY in line for line in above),
    )


def _rows(
    lines: Sequence[str], headings: tuple[str, ...], spans: Sequence[PrintedColumn]
) -> tuple[list[PrintedRow], int]:
    calls = next(at for at, heading in enumerate(headings) if heading in CALLS)
    has_stacks = SOURCE in headings
    rows: list[PrintedRow] = []
    unreadable = 0
    for line in lines:
        cells = _cells(line, spans)
        if cells and _COUNT.fullmatch(cells[calls]):
            rows.append(PrintedRow(cells))
        elif has_stacks and rows and cells and not any(cells[:-1]):
            rows[-1].stack.append(cells[-1])
        elif line.strip():
            unreadable += 1
    return rows, unreadable


def _cells(line: str, spans: Sequence[PrintedColumn]) -> list[str]:
    """Split a line where columns end, or at wide gaps where a value is wider than its column."""
    if not any(line[gap.start : gap.end].strip() for gap in _gaps(spans)):
        inner = [line[span.start : span.end].strip() for span in spans[:-1]]
        return [*inner, line[spans[-1].start :].strip()]
    name = line[spans[0].start : spans[0].end].strip()
    others = _COLUMN_GAP.split(line[spans[0].end :].strip())
    return [name, *others] if len(others) == len(spans) - 1 else []


def _as_filled(headings: tuple[str, ...], rows: Sequence[PrintedRow]) -> tuple[str, ...]:
    """Return the headings in the order of the cells below them.

    PyTorch prints the floating-point operations below the heading for the source, and the source
    below theirs, where a table has both.
    """
    if headings[-2:-1] != (SOURCE,) or not all(_NO_SOURCE.fullmatch(r.cells[-2]) for r in rows):
        return headings
    return (*headings[:-2], headings[-1], headings[-2])


_MAX_BYTES, _MAX_LINES = 64 << 20, 500_000
"""A table has some hundred lines; beyond these, none is searched."""
_MAX_TABLES = 100
_CUT = "..."
_SHAPES, _OVERLOAD, _NODE = "Input Shapes", "Overload Name", "Node ID"
_PLAIN_UNIT = {"": 1.0}
_BYTE_UNITS = {"b": 1.0, "kb": 2.0**10, "mb": 2.0**20, "gb": 2.0**30, "tb": 2.0**40, "pb": 2.0**50}
_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_OF_DEVICE = re.compile(r"(?P<own>Self )?(?P<device>[^\s%#]+)(?: (?P<what>total|Mem))?")
_FLOPS = re.compile(r"Total (?P<prefix>[KMGTP]?)FLOPs")
_FLOP_RATE = re.compile(r"[KMGTP]?FLOPS")
_CPU = "CPU"
_CPU_TOTAL = re.compile(r"Self CPU time total: (?P<time>\S+)")
_COMPLETE = 0.995
"""Rows with this share of the printed total are all there were, but for rounding."""


class _Amount(NamedTuple):
    """The column that a heading fills, and the scales of its units."""

    column: str
    units: Mapping[str, float]


def key_averages_source(path: Path) -> TraceSource:
    """Open a printed table; its values are parsed when the first table is needed."""
    lines, is_complete = _lines(path)
    tables = list(islice(find_tables(lines), _MAX_TABLES))
    if not tables:
        raise NotACaptureError(
            f"{path} has no torch.profiler table",
            hint="write one with: print(prof.key_averages().table())",
        )
    if not tables[0].rows:
        raise DamagedCaptureError(
            f"{path} cannot be read", why="its table has no rows", hint="print the table again"
        )
    return FrameSource(partial(_read, path, tables, is_complete=is_complete))


def _lines(path: Path) -> tuple[list[str], bool]:
    """Return the lines of a text, and whether those are all."""
    blocks = FileBlocks(path)
    content = bytearray()
    for block in blocks:
        content += block
        if len(content) > _MAX_BYTES:
            break
    if blocks.problem:
        raise DamagedCaptureError(f"{path} is damaged", why=blocks.problem, hint="copy it again")
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    text = content[:_MAX_BYTES].decode("utf-16" if is_utf16 else "utf-8-sig", "replace")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n", _MAX_LINES)
    return lines[:_MAX_LINES], len(content) <= _MAX_BYTES and len(lines) <= _MAX_LINES


def _read(
    path: Path, tables: Sequence[PrintedTable], *, is_complete: bool
) -> tuple[Meta, dict[str, pl.DataFrame]]:
    table = tables[0]
    totals = _totals(table)
    notes = ["it has printed totals only: no events, and numbers with the printed precision"]
    if len(tables) > 1:
        count = f"{len(tables)}" if len(tables) < _MAX_TABLES else f"at least {len(tables)}"
        notes.append(f"the file holds {count} tables; the first is read")
    if not is_complete:
        notes.append("the file is long: only its beginning was searched for tables")
    notes += _table_notes(table, totals)
    source = "torch-key-averages"
    meta = Meta(path=str(path), source=source, tool="torch.profiler", notes=tuple(notes))
    footers = pl.DataFrame({"text": pl.Series(table.footers, dtype=pl.String)})
    diagnostics = footers.with_columns(severity=pl.lit("information"))
    return meta, {"op_totals": totals, "diagnostics": diagnostics}


# Values ------------------------------------------------------------------------------------------


def _totals(table: PrintedTable) -> pl.DataFrame:
    names = [name or NAMELESS for name in table.column(NAME)]
    if _OVERLOAD in table.headings:  # it follows its operator as in PyTorch: `aten::add.Tensor`
        overloads = table.column(_OVERLOAD)
        names = [f"{n}.{o}" if o else n for n, o in zip(names, overloads, strict=True)]
    columns = [pl.Series("name", names, dtype=pl.String)]
    for heading, amount in _amounts(table.headings):
        values = [_value(cell, amount.units) for cell in table.column(heading)]
        columns.append(pl.Series(amount.column, values, dtype=pl.Int64))
    if _SHAPES in table.headings:
        shapes = [_shapes(cell) for cell in table.column(_SHAPES)]
        columns.append(pl.Series("shapes", shapes, dtype=pl.String))
    if SOURCE in table.headings:
        rows = zip(table.column(SOURCE), table.rows, strict=True)
        frames = ((shown_frame(line) for line in (cell, *row.stack) if line) for cell, row in rows)
        stacks = [";".join(stack) or None for stack in frames]
        columns.append(pl.Series("stack", stacks, dtype=pl.String))
    totals = pl.DataFrame(columns)
    cpu = [pl.col(c) == 0 for c in ("self_cpu_ns", "cpu_ns") if c in totals.columns]
    gpu = [pl.col(c) > 0 for c in ("self_gpu_ns", "gpu_ns") if c in totals.columns]
    if not cpu or not gpu:
        return totals.with_columns(side=pl.lit("host"))
    only_gpu = pl.all_horizontal(cpu) & pl.any_horizontal(gpu)  # it took no CPU time
    return totals.with_columns(side=pl.when(only_gpu).then(pl.lit("gpu")).otherwise(pl.lit("host")))


def _amounts(headings: Sequence[str]) -> Iterator[tuple[str, _Amount]]:
    """Yield headings of amounts and their columns; the first device that is no CPU is the GPU."""
    gpu = next(iter(_gpus(headings)), None)
    columns: set[str] = set()
    for heading in headings:
        amount = _amount(heading, gpu)
        if amount is not None and amount.column not in columns:
            columns.add(amount.column)
            yield heading, amount


def _gpus(headings: Sequence[str]) -> dict[str, None]:
    """Return the devices other than the CPU that the table has columns for."""
    matches = (_OF_DEVICE.fullmatch(heading) for heading in headings)
    devices = (m["device"] for m in matches if m and (m["own"] or m["what"]))
    return dict.fromkeys(device for device in devices if device != _CPU)


def _amount(heading: str, gpu: str | None) -> _Amount | None:
    if heading in CALLS:
        return _Amount("calls", _PLAIN_UNIT)
    flops = _FLOPS.fullmatch(heading)
    if flops:
        return _Amount("flops", {"": _PREFIXES[flops["prefix"]]})
    match = _OF_DEVICE.fullmatch(heading)
    if match is None or match["device"] not in {_CPU, gpu} or not (match["own"] or match["what"]):
        return None
    side = "cpu" if match["device"] == _CPU else "gpu"
    own = "self_" if match["own"] else ""
    if match["what"] == "Mem":
        return _Amount(f"{own}{side}_bytes", _BYTE_UNITS)
    return _Amount(f"{own}{side}_ns", TIME_UNITS)


def _value(cell: str, units: Mapping[str, float]) -> int | None:
    """Convert `9.485ms`, `-1.50 Gb` or `12` to base units; None for `--` and what is no number."""
    amount = parse_amount(cell)
    value = None if amount is None else amount.scaled(units)
    return round(value) if value is not None and abs(value) < 1 << 63 else None


def _shapes(cell: str) -> str | None:
    """Return shapes as in `cpu_ops`, without spaces; truncated ones end in dots."""
    if not cell:
        return None
    text = cell.replace(" ", "")
    return text if text.endswith("]") and text.count("[") == text.count("]") else f"{text}{_CUT}"


# Notes -------------------------------------------------------------------------------------------


def _table_notes(table: PrintedTable, totals: pl.DataFrame) -> Iterator[str]:
    share = _share_of_total(table, totals)
    if share is not None and share < _COMPLETE:
        yield f"rows are missing: those printed cover {format_share(share)} of self CPU time"
    if table.top_level_only:
        yield "nested operators were not printed"
    cut = sum(name.endswith(_CUT) for name in table.column(NAME))
    if cut:
        yield f"{format_count(cut)} names are truncated in the printed table"
    gpu, *others = _gpus(table.headings) or [None]
    if others:
        yield f"of its devices, only {gpu} is read, not {', '.join(map(str, others))}"
    if any(_FLOP_RATE.fullmatch(heading) for heading in table.headings):
        yield "it has FLOP rates, not FLOP counts"
    if _NODE in table.headings:
        yield "rows of different nodes are mixed"
    if table.unreadable:
        yield f"{format_count(table.unreadable)} lines in the table are not rows"
    if not table.closed:
        yield "the table has no last line: the file may be truncated"


def _share_of_total(table: PrintedTable, totals: pl.DataFrame) -> float | None:
    """Return the share of the rows in the CPU time that the table prints for all operators."""
    footer = next((m for m in map(_CPU_TOTAL.fullmatch, table.footers) if m), None)
    total_ns = _value(footer["time"], TIME_UNITS) if footer else None
    if not total_ns or "self_cpu_ns" not in totals.columns:
        return None
    return int(totals.get_column("self_cpu_ns").sum()) / total_ns
