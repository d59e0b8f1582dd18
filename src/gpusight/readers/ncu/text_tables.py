"""Rows of printed tables, added to what is collected: one way for each layout and page."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from gpusight.readers.name_columns import shown_file
from gpusight.readers.ncu.text_launches import source_metric
from gpusight.readers.ncu.text_metrics import MetricLabel
from gpusight.readers.ncu.text_rows import (
    FILES,
    METRICS,
    UNITS,
    TableHeading,
    TableLayout,
    is_metric_name,
    role_of,
    split_cells,
    with_unit,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusight.readers.ncu.text_collected import CollectedValues


_TEXT_ROLES = ("section", "body", "metric", "unit", "cc")
_RULE = {"rule_kind": "kind"}
_SECTION_HEADINGS = ("section name", "section")


def add_long(frame: pl.DataFrame, heading: TableHeading, into: CollectedValues) -> None:
    """Add a table that has a row for each metric, or rule, of each launch."""
    rows = _with_launch_numbers(frame, into) if not _numbers_launches(heading) else frame
    rows = rows.with_columns(into.launches.numbers(rows))
    if heading.form is TableLayout.SUMMARY:
        _count_invocations(rows, into)
    empty = [pl.lit("").alias(name) for name in _TEXT_ROLES if name not in rows.columns]
    rows = rows.with_columns(pl.col(pl.String).str.strip_chars()).with_columns(empty)
    said = rows.filter(pl.col("metric").fill_null("") != "")
    place = ["launch", "section", "body", "metric"]
    names = said.select(
        pl.col(list(_TEXT_ROLES)).fill_null(""),
        nth=pl.int_range(pl.len(), dtype=pl.Int64).over(place),
    ).rename({"metric": "text"})
    into.add_values(
        said.select("launch", said=pl.col("value")).with_columns(into.names.numbers(names))
    )
    if "rule" in rows.columns:
        found = rows.filter(pl.col("rule").fill_null("") != "")
        into.add_rules(found.rename({k: v for k, v in _RULE.items() if k in found.columns}))


def _numbers_launches(heading: TableHeading) -> bool:
    """Tell whether the table itself tells launches of one kernel apart."""
    return "id" in heading.roles or heading.form is TableLayout.SUMMARY


def _with_launch_numbers(frame: pl.DataFrame, into: CollectedValues) -> pl.DataFrame:
    """Number launches where the table does not: each begins anew with its first metric."""
    into.without_id = True
    known = ("pid", "kernel", "function", "section", "body", "metric", "rule")
    same = [name for name in known if name in frame.columns]
    return frame.with_columns(id=pl.int_range(pl.len()).over(same).cast(pl.String))


def _count_invocations(rows: pl.DataFrame, into: CollectedValues) -> None:
    if "invocations" in rows.columns:
        each = rows.unique("launch").get_column("invocations").str.replace_all(r"\D", "")
        into.averaged += int(each.cast(pl.Int64, strict=False).sum())


class WideTable:
    """A table that has a row for each launch; its second line may say the units."""

    def __init__(self, heading: TableHeading) -> None:
        self._heading = heading
        self._units = [with_unit(heading.cells[at])[1] for at in heading.metrics]
        self._columns = [str(at) for at in heading.metrics]

    def add(self, frame: pl.DataFrame, into: CollectedValues) -> None:
        """Add some of its rows."""
        named = [c for c in ("kernel", "function") if c in frame.columns]
        nameless = pl.all_horizontal(pl.col(named).fill_null("").str.strip_chars() == "")
        units = frame.filter(nameless)
        if units.height:
            cells = units.select(self._columns).row(0)
            pairs = zip(cells, self._units, strict=True)
            self._units = [(cell or "").strip() or unit for cell, unit in pairs]
        rows = frame.filter(~nameless)
        if rows.height:
            into.add_values(self._values(rows, into))

    def _values(self, rows: pl.DataFrame, into: CollectedValues) -> pl.DataFrame:
        if "id" not in rows.columns:
            into.without_id = True
            rows = rows.with_columns(id=_positions(rows, len(into.launches.rows)))
        launches = into.launches.numbers(rows)
        names = [self._name(at, into) for at in range(len(self._columns))]
        long = rows.select(launches, *self._columns).unpivot(index="launch", value_name="said")
        code = pl.Series(names, dtype=pl.UInt32).to_frame("name")
        repeated = code.select(pl.col("name").repeat_by(rows.height).explode())
        return long.drop("variable").hstack(repeated)

    def _name(self, at: int, into: CollectedValues) -> int:
        cell = self._heading.cells[int(self._columns[at])]
        text = with_unit(cell)[0] if with_unit(cell)[1] else cell
        return into.names.number(MetricLabel("", "", text, self._units[at]))


def _positions(rows: pl.DataFrame, before: int) -> pl.Series:
    return pl.Series([str(before + at) for at in range(rows.height)], dtype=pl.String)


class TurnedTable:
    """A table that has a row for each metric and a column for each launch."""

    def __init__(self, heading: TableHeading) -> None:
        self.separator = heading.separator
        names = [cell.casefold() for cell in heading.cells]
        self._of_metrics = names[0] in METRICS
        self._unit = _first(names, UNITS) if self._of_metrics else None
        self._section = _first(names, _SECTION_HEADINGS) if self._of_metrics else None
        self.rows: list[Sequence[str]] = [heading.cells]

    def add(self, into: CollectedValues) -> None:
        """Add the whole table, once all its rows are there."""
        skipped = {0, self._unit, self._section}
        width = max(len(row) for row in self.rows[:1])
        columns = [at for at in range(width) if at not in skipped and self.rows[0][at].strip()]
        about = self._about(columns)
        metrics = [row for row in self.rows if self._is_metric(row)]
        if not metrics or not columns:
            return
        launches = [into.launches.add(row, (str(at),)) for at, row in enumerate(about)]
        names = [into.names.number(self._said(row)) for row in metrics]
        into.add_values(
            pl.DataFrame(
                {
                    "launch": launches * len(metrics),
                    "name": [name for name in names for _ in launches],
                    "said": [cell for row in metrics for cell in _cells(row, columns)],
                },
                schema={"launch": pl.UInt32, "name": pl.UInt32, "said": pl.String},
            )
        )

    def _is_metric(self, row: Sequence[str]) -> bool:
        if row is self.rows[0] and self._of_metrics:
            return False
        return bool(row[0].strip()) and role_of(row[0]) is None

    def _about(self, columns: Sequence[int]) -> list[dict[str, str | None]]:
        """Give what the rows that are no metrics say of each launch."""
        about: list[dict[str, str | None]] = [{} for _ in columns]
        for row in self.rows:
            role = role_of(row[0])
            if row is self.rows[0] and self._of_metrics:
                role = "id" if all(row[at].strip().isdigit() for at in columns) else "kernel"
            if role is not None:
                for launch, cell in zip(about, _cells(row, columns), strict=True):
                    launch.setdefault(role, cell)
        return about

    def _said(self, row: Sequence[str]) -> MetricLabel:
        text, unit = with_unit(row[0])
        if not unit or not (is_metric_name(text) or self._unit is None):
            text = row[0].strip()
        if self._unit is not None and len(row) > self._unit:
            unit = row[self._unit].strip()
        section = row[self._section].strip() if self._section is not None else ""
        return MetricLabel(section, "", text, unit.strip("[]"))


def _first(names: Sequence[str], wanted: Sequence[str]) -> int | None:
    return next((at for at, name in enumerate(names) if name in wanted), None)


def _cells(row: Sequence[str], columns: Sequence[int]) -> list[str]:
    """Take the cells of some columns; sizes without quotes have three cells for each."""
    first, count = columns[0], len(columns)
    if count == 1 and len(row) > first + 1:
        return [",".join(row[first:])]
    if len(row) == first + 3 * count:
        return [",".join(row[at : at + 3]) for at in range(first, len(row), 3)]
    return [row[at] if at < len(row) else "" for at in columns]


_PID = re.compile(r"\d{1,18}")
_DEVICE = re.compile(r"device (\d{1,4})")
_LINE = re.compile(r'"?(?P<line>\d{1,9})"?[,;\t](?P<text>.*)')
_ADDRESS = "address"
_KERNELS = ("kernel name", "function name")
_SESSION = ("cuda version", "display driver version", "nsight compute target")
"""What is taken of the session; it also has names of hosts, addresses and command lines."""
_HEX = re.compile(r"0x[0-9a-fA-F]{1,16}")


def add_session(
    heading: TableHeading, rows: Sequence[Sequence[str]], into: CollectedValues
) -> None:
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

    def __init__(self, heading: TableHeading, before: Mapping[str, str]) -> None:
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
        cells = split_cells(line, self._heading.separator)
        if at is None or len(cells) <= at or not _HEX.fullmatch(cells[at].strip()):
            return False
        self._rows.setdefault(cells[at].strip(), cells)  # some pages have each of them twice
        return True

    def add_line(self, line: str, into: CollectedValues) -> bool:
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

    def finish(self, into: CollectedValues) -> None:
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
