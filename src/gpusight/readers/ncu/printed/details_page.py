"""Pages as plain text, as they stand in terminals and logs.

A launch is announced by a line of its own; sections, tables and rules of it follow. A line of
dashes shows how wide the columns of a table are. There are no numbers of launches, so they are
counted in the order in which they stand.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import polars as pl

from gpusight.readers.names import NAMELESS
from gpusight.readers.ncu.printed.naming import Said
from gpusight.readers.ncu.printed.ranges import stacks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.readers.ncu.printed.collected import Collected

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

    def __init__(self, into: Collected) -> None:
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
            said = Said(*place, unit, cc, self._met[place])
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
