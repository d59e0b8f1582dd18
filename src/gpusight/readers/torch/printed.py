"""Tables as `key_averages().table()` prints them: found in a text, cut into cells.

A line of dashes above and below the headings shows how wide each column is. Headings and values may
be wider than that: then they are told apart by the two spaces between columns. With stacks, an
operator takes several lines, the further ones empty but for the place in the source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
_MOST_FOOTERS = 3
_FEWEST_COLUMNS = 3


class Span(NamedTuple):
    """Where a column lies in a line."""

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
    """Lines in it that are no rows."""
    closed: bool
    """Its last line is there."""
    top_level_only: bool
    """Operators called by others were left out."""

    def column(self, heading: str) -> list[str]:
        """Give the cells below a heading."""
        at = self.headings.index(heading)
        return [row.cells[at] for row in self.rows]


def find_tables(lines: Sequence[str]) -> Iterator[PrintedTable]:
    """Find all tables in a text, one after the other."""
    for at in range(len(lines) - 1):
        if _SELF_CPU in lines[at]:
            spans = _spans(lines[at + 1])
            headings = _headings(lines[at], spans)
            if headings:
                yield _table(lines, at, headings, spans)


def _spans(line: str) -> list[Span]:
    """Read a line of dashes; nothing where it is another line, or has more than dashes in it."""
    spans = [Span(*dashes.span()) for dashes in _DASHES.finditer(line)]
    if len(spans) < _FEWEST_COLUMNS or line[spans[-1].end :].strip():
        return []
    return spans if all(line[gap.start : gap.end] == _BETWEEN for gap in _gaps(spans)) else []


def _gaps(spans: Sequence[Span]) -> Iterator[Span]:
    for left, right in pairwise(spans):
        yield Span(left.end, right.start)


def _headings(line: str, spans: Sequence[Span]) -> tuple[str, ...]:
    if not spans:
        return ()
    headings = tuple(_COLUMN_GAP.split(line[spans[0].start :].strip()))
    complete = NAME in headings and any(calls in headings for calls in CALLS)
    return headings if complete and len(headings) == len(spans) else ()


def _table(
    lines: Sequence[str], heading_at: int, headings: tuple[str, ...], spans: Sequence[Span]
) -> PrintedTable:
    first = heading_at + 2
    end = next((at for at in range(first, len(lines)) if _spans(lines[at])), len(lines))
    rows, unreadable = _rows(lines[first:end], headings, spans)
    above = lines[max(heading_at - 2, 0) : heading_at]
    return PrintedTable(
        headings=_as_filled(headings, rows),
        rows=tuple(rows),
        footers=_footers(lines[end + 1 : end + 1 + _MOST_FOOTERS]),
        unreadable=unreadable,
        closed=end < len(lines),
        top_level_only=any(_TOP_LEVEL_ONLY in line for line in above),
    )


def _rows(
    lines: Sequence[str], headings: tuple[str, ...], spans: Sequence[Span]
) -> tuple[list[PrintedRow], int]:
    calls = next(at for at, heading in enumerate(headings) if heading in CALLS)
    stacked = SOURCE in headings
    rows: list[PrintedRow] = []
    unreadable = 0
    for line in lines:
        cells = _cells(line, spans)
        if cells and _COUNT.fullmatch(cells[calls]):
            rows.append(PrintedRow(cells))
        elif stacked and rows and cells and not any(cells[:-1]):
            rows[-1].stack.append(cells[-1])
        elif line.strip():
            unreadable += 1
    return rows, unreadable


def _cells(line: str, spans: Sequence[Span]) -> list[str]:
    """Cut a line where its columns end, or at wide gaps where a value is wider than its column."""
    if not any(line[gap.start : gap.end].strip() for gap in _gaps(spans)):
        inner = [line[span.start : span.end].strip() for span in spans[:-1]]
        return [*inner, line[spans[-1].start :].strip()]
    name = line[spans[0].start : spans[0].end].strip()
    others = _COLUMN_GAP.split(line[spans[0].end :].strip())
    return [name, *others] if len(others) == len(spans) - 1 else []


def _as_filled(headings: tuple[str, ...], rows: Sequence[PrintedRow]) -> tuple[str, ...]:
    """Put headings in the order of the cells below them.

    PyTorch prints the floating-point operations below the heading for the source, and the source
    below theirs, where a table has both.
    """
    if headings[-2:-1] != (SOURCE,) or not all(_NO_SOURCE.fullmatch(r.cells[-2]) for r in rows):
        return headings
    return (*headings[:-2], headings[-1], headings[-2])


def _footers(lines: Sequence[str]) -> tuple[str, ...]:
    found = (_FOOTER.search(line[:_FOOTER_CHARS]) for line in lines)
    return tuple(match.group() for match in found if match)
