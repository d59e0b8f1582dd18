"""Goes through the lines of a printed file and gives each to who can read it.

Tables may stand anywhere: after what the program and the profiler said, cut by more of it, one
below the other. A line of headings begins one; lines that do not fit below it are passed over.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpusight.readers.ncu.printed.details_page import DetailsPage
from gpusight.readers.ncu.printed.headings import (
    MAX_COLUMNS,
    ROW_FORMS,
    Form,
    Heading,
    heading_of,
    split,
)
from gpusight.readers.ncu.printed.pages import SourcePage, add_session
from gpusight.readers.ncu.printed.rows import BEGINS, next_record, plain_frame, record_frame
from gpusight.readers.ncu.printed.tables import TurnedTable, WideTable, add_long

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from gpusight.readers.ncu.printed.collected import Collected

_MESSAGE = re.compile(
    r"==(?P<kind>WARNING|ERROR)==\s*(?P<text>\S.*)|\s{2,}Warning: (?P<about>.*\S)"
)
_MAX_MESSAGES, _MAX_MESSAGE_CHARS = 100, 500
_MAX_CUT = 1000
"""Rows of a wide table that are cut off and still read: each takes the memory of a whole one."""


class Walk:
    """Takes a file piece by piece; `finish` adds what is still waiting for its end."""

    def __init__(self, into: Collected) -> None:
        self._into = into
        self._page = DetailsPage(into)
        self._heading: Heading | None = None
        self._records: list[list[str]] = []
        self._whole: list[pl.DataFrame] = []
        """Rows of a table that can only be understood as a whole."""
        self._wide: WideTable | None = None
        self._turned: TurnedTable | None = None
        self._session: list[list[str]] = []
        self._source: SourcePage | None = None
        self._before: SourcePage | None = None
        self._aside: int | None = None
        """Columns of a table of another kind between the rows, such as that of NUMA nodes."""
        self._cut = 0
        self.headings = 0
        self.is_too_wide = False

    def read(self, piece: bytes) -> None:
        """Read whole lines."""
        if self._add_plain(piece):
            return
        lines = piece.decode("utf-8", "replace").removesuffix("\n").split("\n")
        at = self._read_lines(lines, 0, until_heading=True)
        if at < len(lines) and not self._add_plain("\n".join(lines[at:]).encode()):
            self._read_lines(lines, at)
        self._flush()

    def _add_plain(self, piece: bytes) -> bool:
        """Add lines that all are rows of the table; tells whether they were."""
        frame = None if self._heading is None else plain_frame(piece, self._heading)
        if frame is not None:
            self._flush()
            self._add(frame)
        return frame is not None

    def finish(self) -> None:
        """Add everything that waits."""
        self._end_table()
        self._page.finish()

    def _read_lines(self, lines: Sequence[str], at: int, *, until_heading: bool = False) -> int:
        """Read lines one by one, perhaps only up to where a table begins; tells where it ended."""
        before = self.headings
        while at < len(lines) and not (until_heading and self.headings > before):
            at += self._read_line(lines, at, lines[at])
        return at

    def _read_line(self, lines: Sequence[str], at: int, line: str) -> int:
        """Read one line, or a row that goes over several; tells how many it was."""
        if not line.strip():
            self._page.read(line)
            return 1
        # Rows mostly begin with a number, and headings never.
        heading = None if BEGINS.match(line) else heading_of(line)
        self.is_too_wide |= line.count(",") >= MAX_COLUMNS
        if heading is not None and not self._belongs(heading):
            self._begin(heading)
            return 1
        if self._heading is not None and self._heading.form in ROW_FORMS:
            record = next_record(lines, at, self._heading)
            if record is not None:
                self._aside = None
                is_cut = _is_cut(record.cells, self._heading)
                self._cut += is_cut
                self._into.unreadable += is_cut
                if not is_cut or self._cut <= _MAX_CUT:
                    self._records.append(record.cells)
                return record.lines
            self._into.unreadable += self._is_broken(line)
        elif self._heading is not None and self._read_other(line):
            return 1
        self._say(line)
        return 1

    def _is_broken(self, line: str) -> bool:
        """Tell whether a line that fits no table should have been a row."""
        if not line.startswith('"'):
            return False
        columns = line.count('","')
        if not line[1:2].isdigit():
            self._aside = columns
        return line[1:2].isdigit() and columns != self._aside

    def _belongs(self, heading: Heading) -> bool:
        """Tell whether headings are a row of the turned table that is being read."""
        return heading.form is Form.TURNED and self._turned is not None

    def _read_other(self, line: str) -> bool:
        """Read a row of a table whose rows are not launches."""
        assert self._heading is not None
        if self._source is not None:
            return (
                self._source.add_line(line, self._into)
                if self._source.is_text
                else self._source.add_row(line)
            )
        if self._heading.separator not in line or self._page.is_launch(line):
            return False
        cells = [cell.strip() for cell in split(line, self._heading.separator)]
        rows: list[list[str]] | list[Sequence[str]] = (
            self._turned.rows if self._turned is not None else self._session
        )
        rows.append(cells)
        return True

    def _say(self, line: str) -> None:
        """Take a line that is in no table: a message, a line of a page, or nothing of ours."""
        message = _MESSAGE.match(line)
        if message and len(self._into.messages) < _MAX_MESSAGES:
            kind = "error" if message["kind"] == "ERROR" else "warning"
            said = message["text"] or message["about"]
            self._into.messages.setdefault(said[:_MAX_MESSAGE_CHARS].rstrip(), kind)
        elif not message:
            self._page.read(line)

    # Tables --------------------------------------------------------------------------------------

    def _begin(self, heading: Heading) -> None:
        before = {}
        if heading.form is Form.SOURCE and self._turned is not None:
            # What seemed to be a table says whose source follows.
            before = {row[0].casefold(): row[1] for row in self._turned.rows if len(row) > 1}
            self._turned = None
        same = self._heading == heading and heading.form in ROW_FORMS
        self.headings += 1
        if same:
            return
        self._end_table()
        self._heading = heading
        if heading.form in ROW_FORMS:
            self._into.separators.append(heading.separator)
        self._wide = WideTable(heading) if heading.form is Form.WIDE else None
        self._turned = TurnedTable(heading) if heading.form is Form.TURNED else None
        self._source = SourcePage(heading, before) if heading.form is Form.SOURCE else None

    def _flush(self) -> None:
        """Add the rows that were read one by one."""
        if self._records and self._heading is not None:
            records, self._records = self._records, []
            self._add(record_frame(records, self._heading))

    def _add(self, frame: pl.DataFrame) -> None:
        assert self._heading is not None
        if self._wide is not None:
            self._wide.add(frame, self._into)
        elif "id" in self._heading.roles or self._heading.form is Form.SUMMARY:
            add_long(frame, self._heading, self._into)
        else:
            self._whole.append(frame)

    def _end_table(self) -> None:
        import polars as pl

        self._flush()
        if self._whole and self._heading is not None:
            add_long(pl.concat(self._whole), self._heading, self._into)
        if self._turned is not None:
            self._into.separators.append(self._turned.separator)
            self._turned.add(self._into)
        if self._session and self._heading is not None:
            add_session(self._heading, self._session, self._into)
        if self._source is not None:
            if self._source.is_same_as(self._before):
                self._before = None
            else:
                self._source.follow(self._before)
                self._source.finish(self._into)
                self._before = self._source
        self._whole, self._session = [], []
        self._wide = self._turned = self._source = self._heading = None


def _is_cut(cells: Sequence[str], heading: Heading) -> bool:
    """Tell whether a row of a launch ends before its table does; the last comma may be missing."""
    return heading.form is Form.WIDE and len(cells) < len(heading.cells) - 1
