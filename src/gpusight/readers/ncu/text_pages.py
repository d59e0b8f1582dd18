"""Goes through the lines of a printed file: tables, and pages as plain text."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import polars as pl

from gpusight.readers.name_columns import NAMELESS
from gpusight.readers.ncu.text_launches import stacks
from gpusight.readers.ncu.text_metrics import MetricLabel
from gpusight.readers.ncu.text_rows import (
    BEGINS,
    MAX_COLUMNS,
    ROW_FORMS,
    TableHeading,
    TableLayout,
    heading_of,
    next_record,
    plain_frame,
    record_frame,
    split_cells,
)
from gpusight.readers.ncu.text_tables import (
    SourcePage,
    TurnedTable,
    WideTable,
    add_long,
    add_session,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.readers.ncu.text_collected import CollectedValues


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
_MAYBE = ("Context ", "Invocations ")
_MAX_LINE = 20_000
"""Longer lines announce no launch; the longest kernel names known have half as many letters."""


class DetailsPage:
    """Reads line after line; what is no part of a page is passed over."""

    def __init__(self, into: CollectedValues) -> None:
        self._into = into
        self._process: dict[str, str | None] = {}
        self._device: dict[str, str | None] = {}
        self._launch: int | None = None
        self._section = self._body = ""
        self._columns: list[tuple[int, int]] = []
        self._expects_rows = False
        self._is_aside = False
        """In what stands behind a rule, which is not read, up to the next empty line."""
        self._nvtx: list[tuple[str, str]] | None = None
        self._rows: list[tuple[int, int, str]] = []
        self._met: Counter[tuple[str, str, str]] = Counter()
        """How often each name was met in the launch so far."""
        self._rule: dict[str, str] | None = None
        self._rules: list[dict[str, str | int]] = []

    def is_launch(self, line: str) -> bool:
        """Tell whether a line announces a launch."""
        return any(word in line for word in _MAYBE) and _launch(line) is not None

    def read(self, line: str) -> None:
        """Read the next line."""
        self._is_aside = self._is_aside and bool(line.strip()) and not _RULE.fullmatch(line)
        if self._is_aside:
            return
        if self._columns and self._read_row(line):
            return
        if self._rule is not None and self._read_more_of_rule(line):
            return
        if not line.strip():
            return
        if not self._read_about(line) and self._launch is not None:
            self._read_inside(line)

    def finish(self) -> None:
        """Add what was read."""
        self._end_rule()
        if self._rows:
            launch, name, said = zip(*self._rows, strict=True)
            self._into.add_values(
                pl.DataFrame(
                    {"launch": launch, "name": name, "said": said},
                    schema={"launch": pl.UInt32, "name": pl.UInt32, "said": pl.String},
                )
            )
        if self._rules:
            self._into.add_rules(
                pl.DataFrame(self._rules).with_columns(pl.col("launch").cast(pl.UInt32))
            )

    # Whose it is ---------------------------------------------------------------------------------

    def _read_about(self, line: str) -> bool:
        """Read a line that says which process, GPU or launch the next ones are about."""
        process = _PROCESS.fullmatch(line)
        if process:
            self._process, self._launch = process.groupdict(), None
            return True
        device = _DEVICE.fullmatch(line)
        if device:
            self._device = device.groupdict()
            return True
        if not self.is_launch(line):
            return False
        self._begin(_launch(line) or {})
        return True

    def _begin(self, found: dict[str, str | None]) -> None:
        self._end_rule()
        about = {**self._process, **self._device, **{k: v for k, v in found.items() if v}}
        invocations = found.get("invocations")
        self._into.averaged += int(invocations) if invocations else 0
        number = len(self._into.launches.rows)
        self._launch = self._into.launches.add(about, ("page", str(number)))
        self._section = self._body = ""
        self._met.clear()
        self._columns, self._nvtx = [], None

    def _read_inside(self, line: str) -> None:
        """Read a line about the launch that was announced last."""
        section, table = _SECTION.fullmatch(line), _TABLE.fullmatch(line)
        rule = _RULE.fullmatch(line)
        if section:
            self._section, self._body = section["name"], ""
        elif table:
            self._body = table["name"]
        elif line.lstrip().startswith(">"):
            self._is_aside = True
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
            self._set_ranges()
        elif self._nvtx is not None and (domain_line := _DOMAIN.fullmatch(line)):
            domain = domain_line["domain"]
            self._nvtx.append(("" if domain == "default domain" else domain, ""))

    def _set_ranges(self) -> None:
        assert self._launch is not None
        named = [(domain, name) for domain, name in self._nvtx or () if name]
        self._into.launches.rows[self._launch]["ranges"] = "; ".join(stacks(named))

    # Tables --------------------------------------------------------------------------------------

    def _read_row(self, line: str) -> bool:
        """Read a line of a table; tells whether it belongs there."""
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
            cc = self._into.launches.rows[self._launch].get("cc", "")
            said = MetricLabel(*place, unit, cc, self._met[place])
            self._met[place] += 1
            self._rows.append((self._launch, self._into.names.number(said), value))
        elif self._rows and not unit and value:  # a value that goes over several lines
            launch, number, before = self._rows[-1]
            start, end = self._columns[-1]
            is_cut = len(before) % (end - start) == 0
            self._rows[-1] = (launch, number, f"{before}{'' if is_cut else ' '}{value}")

    # Rules ---------------------------------------------------------------------------------------

    def _read_more_of_rule(self, line: str) -> bool:
        """Read a line of what a rule says; tells whether it was one."""
        assert self._rule is not None
        text = line.strip()
        if not text or _SECTION.fullmatch(line) or _RULE.fullmatch(line) or self.is_launch(line):
            self._end_rule()
            return False
        speedup = _SPEEDUP.fullmatch(text)
        if speedup:
            self._rule["speedup"] = speedup["percent"]
            self._rule["speedup_kind"] = "local" if speedup["local"] else "global"
        elif text.startswith((">", "---")):  # metrics and tables behind what the rule says
            self._rule["done"] = text
        elif "done" not in self._rule:
            self._rule["text"] = f"{self._rule['text']} {text}".strip()
        return True

    def _end_rule(self) -> None:
        if self._rule is not None and self._launch is not None:
            said = self._rule
            self._rules.append(
                {
                    "launch": self._launch,
                    "rule": NAMELESS,
                    "section": self._section,
                    "kind": said["kind"],
                    "message": said["text"],
                    "speedup_kind": said.get("speedup_kind", ""),
                    "speedup": said.get("speedup", ""),
                }
            )
        self._rule = None


def _launch(line: str) -> dict[str, str | None] | None:
    found = _LAUNCH.fullmatch(line.rstrip()) if len(line) <= _MAX_LINE else None
    if found is None or not (found["context"] or found["invocations"]):
        return None
    return found.groupdict()


def _cells(line: str, columns: Sequence[tuple[int, int]]) -> list[str] | None:
    """Cut a line where its columns end, or at wide gaps where a value is wider than its column."""
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
_MAX_CUT = 1000
"""Rows of a wide table that are cut off and still read: each takes the memory of a whole one."""


class PrintedFile:
    """Takes a file piece by piece; `finish` adds what is still waiting for its end."""

    def __init__(self, into: CollectedValues) -> None:
        self._into = into
        self._page = DetailsPage(into)
        self._heading: TableHeading | None = None
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

    def _belongs(self, heading: TableHeading) -> bool:
        """Tell whether headings are a row of the turned table that is being read."""
        return heading.form is TableLayout.TURNED and self._turned is not None

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
        cells = [cell.strip() for cell in split_cells(line, self._heading.separator)]
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

    def _begin(self, heading: TableHeading) -> None:
        before = {}
        if heading.form is TableLayout.SOURCE and self._turned is not None:
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
        self._wide = WideTable(heading) if heading.form is TableLayout.WIDE else None
        self._turned = TurnedTable(heading) if heading.form is TableLayout.TURNED else None
        self._source = SourcePage(heading, before) if heading.form is TableLayout.SOURCE else None

    def _flush(self) -> None:
        """Add the rows that were read one by one."""
        if self._records and self._heading is not None:
            records, self._records = self._records, []
            self._add(record_frame(records, self._heading))

    def _add(self, frame: pl.DataFrame) -> None:
        assert self._heading is not None
        if self._wide is not None:
            self._wide.add(frame, self._into)
        elif "id" in self._heading.roles or self._heading.form is TableLayout.SUMMARY:
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


def _is_cut(cells: Sequence[str], heading: TableHeading) -> bool:
    """Tell whether a row of a launch ends before its table does; the last comma may be missing."""
    return heading.form is TableLayout.WIDE and len(cells) < len(heading.cells) - 1
