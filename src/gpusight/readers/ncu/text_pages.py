"""The lines of a printed file: tables as CSV, and the details page as plain text."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import polars as pl

from gpusight.readers.ncu.text_launches import stacks
from gpusight.readers.ncu.text_metrics import VALUE_SCHEMA, MetricLabel
from gpusight.readers.ncu.text_rows import (
    MAX_COLUMNS,
    ROW_LAYOUTS,
    ROW_START,
    TableLayout,
    heading_of,
    next_record,
    plain_frame,
    record_frame,
)
from gpusight.readers.ncu.text_tables import (
    LongTable,
    SessionTable,
    SourcePage,
    TransposedTable,
    WideTable,
)
from gpusight.readers.tables import NAMELESS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.readers.ncu.text_metrics import CollectedValues
    from gpusight.readers.ncu.text_rows import TableHeading


_SIZE = r"\((?:\d{1,10}(?:, |\))){3}"
_LAUNCH = re.compile(
    rf"\s*(?P<kernel>\S.*?)(?: (?P<grid>{_SIZE})x(?P<block>{_SIZE}))?"
    r"(?:, (?P<time>\d{4}-\w{3}-\d{1,2} [\d:]{5,8}))?"
    r"(?:, Context (?P<context>\d{1,10}), Stream (?P<stream>\d{1,18}))?"
    r"(?:, Device (?P<device>\d{1,4}))?(?:, CC (?P<cc>\d{1,3}[.,]\d))?"
    r"(?:, Invocations (?P<invocations>\d{1,12}))?"
)
_DEVICE = re.compile(r"\s*Device (?P<device>\d{1,4}), CC (?P<cc>\d{1,3}[.,]\d)\s*")
_PROCESS = re.compile(r"\s*\[(?P<pid>\d{1,10})\] (?P<process>[^@]+)@\S+\s*")
_SECTION = re.compile(r"\s*Section: (?P<name>.*\S)\s*")
_TABLE = re.compile(r"\s*Table Name ?: ?(?P<name>.*\S)\s*")
_DASHES = re.compile(r"\s*-{3,}(?: -{3,}){2,}\s*")
_HEADINGS = re.compile(
    r"\s*Metric Name\s+Metric Unit\s+(?:Metric Value|Minimum\s+Maximum\s+Average)\s*"
)
_RULE = re.compile(r"\s{0,8}(?P<kind>OPT|INF|WRN|ERR|OK)\s{2,}(?P<text>\S.*)")
_SPEEDUP = re.compile(r"Est\. (?P<local>Local )?Speedup: (?P<percent>[\d.,eE+-]{1,20})%\s*")
_NVTX = re.compile(r"\s*NVTX (?P<kind>Push/Pop Stack for Thread|Start/(?:End|Stop) Ranges).*:\s*")
_DOMAIN = re.compile(r"\s*<(?P<domain>[^,<>]+|default domain)>\s*")
_RANGE = re.compile(r"\s*<\d{1,6},(?P<name>.*)>\s*")
_GAP = re.compile(r"\s{2,}")
_LAUNCH_WORDS = ("Context ", "Invocations ")
_MAX_LINE = 20_000
"""Longer lines announce no launch; the longest kernel names known have half as many letters."""


class DetailsPage:
    """Reads the details page line by line; lines of no page are skipped."""

    def __init__(self, collected: CollectedValues) -> None:
        self._collected = collected
        self._process: dict[str, str | None] = {}
        self._device: dict[str, str | None] = {}
        self._launch: int | None = None
        self._section = self._body = ""
        self._columns: list[tuple[int, int]] = []
        self._expects_rows = False
        self._in_rule_details = False
        """In the details of a rule, which are not read, up to the next empty line."""
        self._nvtx: list[tuple[str, str]] | None = None
        self._rows: list[tuple[int, int, str]] = []
        self._seen: Counter[tuple[str, str, str]] = Counter()
        """How often each label appeared in the launch so far."""
        self._rule: dict[str, str] | None = None
        self._rules: list[dict[str, str | int]] = []

    def is_launch(self, line: str) -> bool:
        """Return whether a line announces a launch."""
        return self._announced(line) is not None

    @staticmethod
    def _announced(line: str) -> dict[str, str | None] | None:
        if len(line) > _MAX_LINE or not any(word in line for word in _LAUNCH_WORDS):
            return None
        launch = _LAUNCH.fullmatch(line.rstrip())
        if launch is None or not (launch["context"] or launch["invocations"]):
            return None
        return launch.groupdict()

    def read(self, line: str) -> None:
        """Read the next line."""
        if self._in_rule_details and line.strip() and not _RULE.fullmatch(line):
            return
        self._in_rule_details = False
        if self._columns and self._read_row(line):
            return
        if self._rule is not None and self._read_more_of_rule(line):
            return
        if not line.strip():
            return
        # The process, GPU or launch of the lines below, or a line of the launch announced last.
        if process := _PROCESS.fullmatch(line):
            self._process, self._launch = process.groupdict(), None
        elif device := _DEVICE.fullmatch(line):
            self._device = device.groupdict()
        elif launch := self._announced(line):
            self._begin(launch)
        elif self._launch is not None:
            self._read_inside(line)

    def finish(self) -> None:
        """Add what was read."""
        self._end_rule()
        if self._rows:
            columns = zip(VALUE_SCHEMA, zip(*self._rows, strict=True), strict=True)
            self._collected.add_values(pl.DataFrame(dict(columns), schema=VALUE_SCHEMA))
        if self._rules:
            rules = pl.DataFrame(self._rules).with_columns(pl.col("launch").cast(pl.UInt32))
            self._collected.add_rules(rules)

    # Process, GPU, launch ------------------------------------------------------------------------

    def _begin(self, announced: dict[str, str | None]) -> None:
        self._end_rule()
        cells = {**self._process, **self._device, **{k: v for k, v in announced.items() if v}}
        self._collected.averaged += int(announced.get("invocations") or 0)
        number = len(self._collected.launches.rows)
        self._launch = self._collected.launches.add(cells, ("page", str(number)))
        self._section = self._body = ""
        self._seen.clear()
        self._columns, self._nvtx = [], None

    def _read_inside(self, line: str) -> None:
        section, table = _SECTION.fullmatch(line), _TABLE.fullmatch(line)
        rule = _RULE.fullmatch(line)
        if section:
            self._section, self._body = section["name"], ""
        elif table:
            self._body = table["name"]
        elif line.lstrip().startswith(">"):
            self._in_rule_details = True
        elif _DASHES.fullmatch(line):
            self._columns = [match.span() for match in re.finditer("-+", line)]
        elif rule:
            self._rule = {"kind": rule["kind"], "text": ""}
            self._read_more_of_rule(rule["text"])
        else:
            self._read_range(line)

    # NVTX ----------------------------------------------------------------------------------------

    def _read_range(self, line: str) -> None:
        if _NVTX.fullmatch(line):
            self._nvtx = self._nvtx or []
        elif self._nvtx is not None and (named := _RANGE.fullmatch(line)):
            domain = self._nvtx[-1][0] if self._nvtx else ""
            self._nvtx.append((domain, named["name"]))
            assert self._launch is not None
            ranges = stacks((domain, name) for domain, name in self._nvtx if name)
            self._collected.launches.rows[self._launch]["ranges"] = "; ".join(ranges)
        elif self._nvtx is not None and (domain_line := _DOMAIN.fullmatch(line)):
            domain = domain_line["domain"]
            self._nvtx.append(("" if domain == "default domain" else domain, ""))

    # Tables --------------------------------------------------------------------------------------

    def _read_row(self, line: str) -> bool:
        """Read a line of a table; return whether it belongs there."""
        if _DASHES.fullmatch(line):
            # The line below the headings has rows after it, the one below the rows has not.
            self._columns = self._columns if self._expects_rows else []
            self._expects_rows = False
            return True
        self._expects_rows = False
        if _HEADINGS.fullmatch(line):
            self._expects_rows = True
            return True
        cells = _cells(line, self._columns)
        if not line.strip() or cells is None or self.is_launch(line):
            self._columns = []
            return False
        self._add(cells)
        return True

    def _add(self, cells: Sequence[str]) -> None:
        text, unit, value = cells[0], cells[1], cells[-1]
        if text and self._launch is not None:
            place = (self._section, self._body, text)
            cc = self._collected.launches.rows[self._launch].get("cc", "")
            label = MetricLabel(*place, unit, cc, self._seen[place])
            self._seen[place] += 1
            self._rows.append((self._launch, self._collected.labels.number(label), value))
        elif self._rows and not unit and value:  # a value of several lines
            launch, number, before = self._rows[-1]
            start, end = self._columns[-1]
            is_cut = len(before) % (end - start) == 0
            self._rows[-1] = (launch, number, f"{before}{'' if is_cut else ' '}{value}")

    # Rules ---------------------------------------------------------------------------------------

    def _read_more_of_rule(self, line: str) -> bool:
        """Read a line of a rule's message; return whether it was one."""
        assert self._rule is not None
        text = line.strip()
        if not text or _SECTION.fullmatch(line) or _RULE.fullmatch(line) or self.is_launch(line):
            self._end_rule()
            return False
        speedup = _SPEEDUP.fullmatch(text)
        if speedup:
            self._rule["speedup"] = speedup["percent"]
            self._rule["speedup_kind"] = "local" if speedup["local"] else "global"
        elif text.startswith((">", "---")):  # metrics and tables behind the message
            self._rule["done"] = text
        elif "done" not in self._rule:
            self._rule["text"] = f"{self._rule['text']} {text}".strip()
        return True

    def _end_rule(self) -> None:
        if self._rule is not None and self._launch is not None:
            self._rules.append(
                {
                    "launch": self._launch,
                    "rule": NAMELESS,
                    "section": self._section,
                    "kind": self._rule["kind"],
                    "message": self._rule["text"],
                    "speedup_kind": self._rule.get("speedup_kind", ""),
                    "speedup": self._rule.get("speedup", ""),
                }
            )
        self._rule = None


def _cells(line: str, columns: Sequence[tuple[int, int]]) -> list[str] | None:
    """Split a line where columns end, or at wide gaps where a value is wider than its column."""
    between = [(left[1], right[0]) for left, right in pairwise(columns)]
    if len(line) < columns[0][0] or line[: columns[0][0]].strip():
        return None
    if any(line[start:end].strip() for start, end in between):
        cells = _GAP.split(line.strip())
        return cells if len(cells) == len(columns) else None
    inner = [line[start:end].strip() for start, end in columns[:-1]]
    return [*inner, line[columns[-1][0] :].strip()]


_MESSAGE = re.compile(
    r"==(?P<kind>WARNING|ERROR)==\s*(?P<text>\S.*)|\s{2,}Warning: (?P<about>.*\S)"
)
_MAX_MESSAGES, _MAX_MESSAGE_CHARS = 100, 500
_MAX_TRUNCATED_ROWS = 1000
"""Truncated rows of a wide table that are still read: each takes the memory of a complete one."""


class PrintedFile:
    """Reads a file chunk by chunk; `finish` adds what is still incomplete."""

    def __init__(self, collected: CollectedValues) -> None:
        self._collected = collected
        self._page = DetailsPage(collected)
        self._heading: TableHeading | None = None
        self._records: list[list[str]] = []
        """Rows of the table that are not added to it yet."""
        self._table: WideTable | LongTable | TransposedTable | SessionTable | SourcePage | None = (
            None
        )
        self._previous_source: SourcePage | None = None
        self._inserted_columns: int | None = None
        """Columns of another table between the rows, such as that of NUMA nodes."""
        self._truncated = 0
        self.headings = 0
        self.is_too_wide = False

    def read(self, chunk: bytes) -> None:
        """Read complete lines."""
        if self._add_plain(chunk):
            return
        lines = chunk.decode("utf-8", "replace").removesuffix("\n").split("\n")
        at, headings = 0, self.headings
        while at < len(lines) and self.headings == headings:
            at += self._read_line(lines, at)
        if at < len(lines) and not self._add_plain("\n".join(lines[at:]).encode()):
            while at < len(lines):
                at += self._read_line(lines, at)
        self._flush()

    def _add_plain(self, chunk: bytes) -> bool:
        """Add lines that are all rows of the table; return whether they were."""
        frame = None if self._heading is None else plain_frame(chunk, self._heading)
        if frame is not None:
            self._flush()
            self._add(frame)
        return frame is not None

    def finish(self) -> None:
        """Add everything that is still incomplete."""
        self._end_table()
        self._page.finish()

    def _read_line(self, lines: Sequence[str], at: int) -> int:
        """Read one line, or a row of several; return how many lines it was."""
        line = lines[at]
        if not line.strip():
            self._page.read(line)
            return 1
        # Rows mostly begin with a number, and headings never.
        heading = None if ROW_START.match(line) else heading_of(line)
        self.is_too_wide |= line.count(",") >= MAX_COLUMNS
        if heading is not None and not (
            heading.layout is TableLayout.TRANSPOSED and isinstance(self._table, TransposedTable)
        ):
            self._begin(heading)
            return 1
        if self._heading is not None and self._heading.layout in ROW_LAYOUTS:
            record = next_record(lines, at, self._heading)
            if record is not None:
                cells, count = record
                self._inserted_columns = None
                # The last comma of a row may be missing.
                is_truncated = (
                    self._heading.layout is TableLayout.WIDE
                    and len(cells) < len(self._heading.cells) - 1
                )
                self._truncated += is_truncated
                self._collected.unreadable += is_truncated
                if not is_truncated or self._truncated <= _MAX_TRUNCATED_ROWS:
                    self._records.append(cells)
                return count
            self._collected.unreadable += self._is_broken(line)
        elif self._read_line_of_table(line):
            return 1
        self._read_plain(line)
        return 1

    def _is_broken(self, line: str) -> bool:
        """Return whether a line that fits no table should have been a row."""
        if not line.startswith('"'):
            return False
        columns = line.count('","')
        if not line[1:2].isdigit():
            self._inserted_columns = columns
        return line[1:2].isdigit() and columns != self._inserted_columns

    def _read_line_of_table(self, line: str) -> bool:
        """Read a line of a table whose rows are not launches; return whether it was one."""
        if isinstance(self._table, SourcePage):
            return self._table.add_line(line, self._collected)
        if not isinstance(self._table, (TransposedTable, SessionTable)):
            return False
        return not self._page.is_launch(line) and self._table.add_line(line, self._collected)

    def _read_plain(self, line: str) -> None:
        """Read a line outside of tables: a message, a line of a page, or of another program."""
        message = _MESSAGE.match(line)
        if message and len(self._collected.messages) < _MAX_MESSAGES:
            kind = "error" if message["kind"] == "ERROR" else "warning"
            text = message["text"] or message["about"]
            self._collected.messages.setdefault(text[:_MAX_MESSAGE_CHARS].rstrip(), kind)
        elif not message:
            self._page.read(line)

    # Tables --------------------------------------------------------------------------------------

    def _begin(self, heading: TableHeading) -> None:
        owner: dict[str, str] = {}
        if heading.layout is TableLayout.SOURCE and isinstance(self._table, TransposedTable):
            # What seemed to be a table names the kernel whose source follows.
            owner = {row[0].casefold(): row[1] for row in self._table.rows if len(row) > 1}
            self._table = None
        self.headings += 1
        if self._heading == heading and heading.layout in ROW_LAYOUTS:
            return
        self._end_table()
        self._heading = heading
        if heading.layout in ROW_LAYOUTS:
            self._collected.separators.append(heading.separator)
        if heading.layout is TableLayout.SOURCE:
            self._table = SourcePage(heading, owner)
        else:
            self._table = _TABLES[heading.layout](heading)

    def _flush(self) -> None:
        """Add the rows that were read one by one."""
        if self._records and self._heading is not None:
            records, self._records = self._records, []
            self._add(record_frame(records, self._heading))

    def _add(self, frame: pl.DataFrame) -> None:
        assert isinstance(self._table, (WideTable, LongTable))
        self._table.add(frame, self._collected)

    def _end_table(self) -> None:
        self._flush()
        if isinstance(self._table, SourcePage):
            self._end_source(self._table)
        elif isinstance(self._table, (LongTable, TransposedTable)):
            self._table.finish(self._collected)
        self._table = self._heading = None

    def _end_source(self, page: SourcePage) -> None:
        if page.is_same_as(self._previous_source):
            self._previous_source = None
            return
        page.follow(self._previous_source)
        page.finish(self._collected)
        self._previous_source = page


_TABLES: dict[TableLayout, type[WideTable | LongTable | TransposedTable | SessionTable]] = {
    TableLayout.LONG: LongTable,
    TableLayout.SUMMARY: LongTable,
    TableLayout.WIDE: WideTable,
    TableLayout.TRANSPOSED: TransposedTable,
    TableLayout.SESSION: SessionTable,
}
