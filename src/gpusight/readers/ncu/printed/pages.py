"""Pages that are no tables of metrics: the session, and source code with its instructions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from gpusight.readers.ncu.printed.headings import FILES, split
from gpusight.readers.ncu.printed.source_labels import source_metric
from gpusight.readers.paths import shown_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusight.readers.ncu.printed.collected import Collected
    from gpusight.readers.ncu.printed.headings import Heading

_PID = re.compile(r"\d{1,18}")
_DEVICE = re.compile(r"device (\d{1,4})")
_LINE = re.compile(r'"?(?P<line>\d{1,9})"?[,;\t](?P<text>.*)')
_ADDRESS = "address"
_KERNELS = ("kernel name", "function name")
_SESSION = ("cuda version", "display driver version", "nsight compute target")
"""What is taken of the session; it also has names of hosts, addresses and command lines."""
_HEX = re.compile(r"0x[0-9a-fA-F]{1,16}")


def add_session(heading: Heading, rows: Sequence[Sequence[str]], into: Collected) -> None:
    """Add attributes of the session, its GPUs or its processes."""
    first = heading.cells[0].casefold()
    for row in rows:
        key = row[0].strip()
        if first == "device attribute":
            for cell, value in zip(heading.cells[1:], row[1:], strict=False):
                number = _DEVICE.fullmatch(cell.casefold())
                if number:
                    into.devices.setdefault(int(number[1]), {})[key] = value.strip()
        elif first == "process id" and len(row) > 1 and _PID.fullmatch(key):
            into.processes[int(key)] = row[1].strip()
        elif first == "session attribute" and key.casefold() in _SESSION and len(row) > 1:
            into.session[key.casefold()] = row[1].strip()


def _unquoted(text: str) -> str:
    """Take off the quotes around a cell; those inside are doubled in some versions only."""
    inner = text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
    return inner.replace('""', '"')


class SourcePage:
    """Instructions or source lines of one kernel, with what was measured for each."""

    def __init__(self, heading: Heading, before: Mapping[str, str]) -> None:
        self._heading = heading
        names = [cell.casefold() for cell in heading.cells]
        self._address = names.index(_ADDRESS) if _ADDRESS in names else None
        self._file = next((before[key] for key in FILES if key in before), None)
        self._kernel = next((before[key] for key in _KERNELS if key in before), None)
        self._rows: dict[str, list[str]] = {}
        self._launch: int | None = None
        self._files = {self._file}
        self._seen: set[str] = set()

    @property
    def is_text(self) -> bool:
        """Tell whether this is a source file: its lines have quotes that no CSV would have."""
        return self._address is None

    def add_row(self, line: str) -> bool:
        """Keep what was measured for an instruction; tells whether the line was one of them."""
        at = self._address
        cells = split(line, self._heading.separator)
        if at is None or len(cells) <= at or not _HEX.fullmatch(cells[at].strip()):
            return False
        self._rows.setdefault(cells[at].strip(), cells)  # some pages have each of them twice
        return True

    def add_line(self, line: str, into: Collected) -> bool:
        """Keep a line of a source file; tells whether it was one."""
        match = _LINE.fullmatch(line.strip())
        if match is None:
            return False
        if self._file is None:
            into.notes.setdefault("the text of PTX code was not read")
            return True
        lines = into.sources.setdefault(shown_file(self._file) or self._file, [])
        if int(match["line"]) == len(lines) + 1:
            lines.append(_unquoted(match["text"]))
        return True

    def is_same_as(self, other: SourcePage | None) -> bool:
        """Tell whether this is a page once more: ncu prints each kernel's twice."""
        return (
            other is not None
            and (self._kernel, self._heading.cells) == (other._kernel, other._heading.cells)
            and self._rows == other._rows
        )

    def follow(self, other: SourcePage | None) -> None:
        """Go on with another page's launch: a kernel has one page for each file it came from."""
        if other is None or other._launch is None or other._kernel != self._kernel:
            return
        if self._file not in other._files:
            self._launch = other._launch
            self._files |= other._files
            self._seen = other._seen

    def finish(self, into: Collected) -> None:
        """Add what was measured for each instruction, and the sums of counts."""
        metrics = {
            column: metric
            for column, cell in enumerate(self._heading.cells)
            if (metric := source_metric(cell)) is not None
        }
        if self._rows:
            into.notes.setdefault("the text of machine instructions was not read")
        if not self._rows or not metrics:
            return
        if self._launch is None:
            number = str(len(into.launches.rows))
            self._launch = into.launches.add({"kernel": self._kernel}, ("source page", number))
        new = {address: row for address, row in self._rows.items() if address not in self._seen}
        self._seen |= new.keys()
        instance = pl.Series([int(address, 16) for address in new], dtype=pl.Int64)
        rows = list(new.values())
        for column, metric in metrics.items():
            said = [row[column].strip() if column < len(row) else None for row in rows]
            parts = pl.DataFrame({"instance": instance, "said": said}).with_columns(
                launch=pl.lit(self._launch, pl.UInt32), metric=pl.lit(metric, pl.String)
            )
            into.add_instances(parts.filter(~pl.col("said").is_in(["", "-"])))
