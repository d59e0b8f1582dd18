"""Rows of printed tables, added to the collected values: one way for each layout and page."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from gpusight.naming.metric_labels import SAMPLED_STALLS
from gpusight.readers.ncu.text_metrics import VALUE_SCHEMA, MetricLabel
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
from gpusight.readers.tables import shown_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusight.readers.ncu.text_metrics import CollectedValues


_TEXT_ROLES = ("section", "body", "metric", "unit", "cc")
_SECTION_HEADINGS = ("section name", "section")


def _add_long(frame: pl.DataFrame, heading: TableHeading, collected: CollectedValues) -> None:
    """Add a table that has a row for each metric, or rule, of each launch."""
    is_summary = heading.layout is TableLayout.SUMMARY
    if "id" not in heading.roles and not is_summary:
        # Nothing numbers the launches of a kernel: each begins anew with its first metric.
        collected.without_id = True
        known = ("pid", "kernel", "function", "section", "body", "metric", "rule")
        same = [name for name in known if name in frame.columns]
        frame = frame.with_columns(id=pl.int_range(pl.len()).over(same).cast(pl.String))
    rows = frame.with_columns(collected.launches.numbers(frame))
    if is_summary and "invocations" in rows.columns:
        counts = rows.unique("launch").get_column("invocations").str.replace_all(r"\D", "")
        collected.averaged += int(counts.cast(pl.Int64, strict=False).sum())
    empty = [pl.lit("").alias(name) for name in _TEXT_ROLES if name not in rows.columns]
    rows = rows.with_columns(pl.col(pl.String).str.strip_chars()).with_columns(empty)
    values = rows.filter(pl.col("metric").fill_null("") != "")
    label = ["launch", "section", "body", "metric"]
    labels = values.select(
        pl.col(list(_TEXT_ROLES)).fill_null(""),
        nth=pl.int_range(pl.len(), dtype=pl.Int64).over(label),
    ).rename({"metric": "text"})
    collected.add_values(
        values.select("launch", printed="value").with_columns(collected.labels.numbers(labels))
    )
    if "rule" in rows.columns:
        rules = rows.filter(pl.col("rule").fill_null("") != "")
        collected.add_rules(rules.rename({"rule_kind": "kind"}, strict=False))


class WideTable:
    """A table that has a row for each launch; its second line may say the units."""

    def __init__(self, heading: TableHeading) -> None:
        names = [heading.cells[column] for column in heading.metrics]
        names_and_units = [with_unit(name) for name in names]
        self._names = [
            name if unit else heading
            for heading, (name, unit) in zip(names, names_and_units, strict=True)
        ]
        self._units = [unit for _, unit in names_and_units]
        self._columns = [str(column) for column in heading.metrics]

    def add(self, frame: pl.DataFrame, collected: CollectedValues) -> None:
        """Add some of its rows."""
        names = [c for c in ("kernel", "function") if c in frame.columns]
        nameless = pl.all_horizontal(pl.col(names).fill_null("").str.strip_chars() == "")
        units = frame.filter(nameless)
        if units.height:
            cells = zip(units.select(self._columns).row(0), self._units, strict=True)
            self._units = [(cell or "").strip() or unit for cell, unit in cells]
        rows = frame.filter(~nameless)
        if not rows.height:
            return
        if "id" not in rows.columns:
            collected.without_id = True
            before = len(collected.launches.rows)
            rows = rows.with_columns(id=pl.int_range(before, before + pl.len()).cast(pl.String))
        launches = collected.launches.numbers(rows)
        labels = [
            collected.labels.number(MetricLabel("", "", name, unit))
            for name, unit in zip(self._names, self._units, strict=True)
        ]
        values = rows.select(launches, *self._columns).unpivot(index="launch", value_name="printed")
        label = pl.Series("label", labels, dtype=pl.UInt32).repeat_by(rows.height).explode()
        collected.add_values(values.drop("variable").with_columns(label))


class LongTable:
    """A table that has a row for each metric, or rule, of each launch or kernel."""

    def __init__(self, heading: TableHeading) -> None:
        self._heading = heading
        self._numbers_launches = "id" in heading.roles or heading.layout is TableLayout.SUMMARY
        self._unnumbered: list[pl.DataFrame] = []
        """Rows without launch numbers: launches are separated once all of them are there."""

    def add(self, frame: pl.DataFrame, collected: CollectedValues) -> None:
        """Add some of its rows."""
        if self._numbers_launches:
            _add_long(frame, self._heading, collected)
        else:
            self._unnumbered.append(frame)

    def finish(self, collected: CollectedValues) -> None:
        """Add the rows that had to wait."""
        if self._unnumbered:
            _add_long(pl.concat(self._unnumbered), self._heading, collected)


class TransposedTable:
    """A table that has a row for each metric and a column for each launch."""

    def __init__(self, heading: TableHeading) -> None:
        self._separator = heading.separator
        names = [cell.casefold() for cell in heading.cells]
        self._of_metrics = names[0] in METRICS
        self._unit = _first(names, UNITS) if self._of_metrics else None
        self._section = _first(names, _SECTION_HEADINGS) if self._of_metrics else None
        self.rows: list[Sequence[str]] = [heading.cells]

    def add_line(self, line: str, _: CollectedValues) -> bool:
        """Keep a row; return whether the line was one."""
        if self._separator not in line:
            return False
        self.rows.append(_stripped_cells(line, self._separator))
        return True

    def finish(self, collected: CollectedValues) -> None:
        """Add the whole table."""
        collected.separators.append(self._separator)
        skipped = {0, self._unit, self._section}
        first = self.rows[0]
        columns = [at for at in range(len(first)) if at not in skipped and first[at].strip()]
        rows = self.rows[1:] if self._of_metrics else self.rows
        metrics = [row for row in rows if row[0].strip() and role_of(row[0]) is None]
        if not metrics or not columns:
            return
        launches = [
            collected.launches.add(cells, (str(number),))
            for number, cells in enumerate(self._launches(columns))
        ]
        labels = [collected.labels.number(self._label(row)) for row in metrics]
        collected.add_values(
            pl.DataFrame(
                {
                    "launch": launches * len(metrics),
                    "label": [label for label in labels for _ in launches],
                    "printed": [cell for row in metrics for cell in _cells(row, columns)],
                },
                schema=VALUE_SCHEMA,
            )
        )

    def _launches(self, columns: Sequence[int]) -> list[dict[str, str | None]]:
        """Return what the rows that hold no metric say of each launch."""
        launches: list[dict[str, str | None]] = [{} for _ in columns]
        for row in self.rows:
            role = role_of(row[0])
            if row is self.rows[0] and self._of_metrics:
                role = "id" if all(row[at].strip().isdigit() for at in columns) else "kernel"
            if role is not None:
                for launch, cell in zip(launches, _cells(row, columns), strict=True):
                    launch.setdefault(role, cell)
        return launches

    def _label(self, row: Sequence[str]) -> MetricLabel:
        text, unit = with_unit(row[0])
        if not unit or not (is_metric_name(text) or self._unit is None):
            text = row[0].strip()
        if self._unit is not None and len(row) > self._unit:
            unit = row[self._unit].strip()
        section = row[self._section].strip() if self._section is not None else ""
        return MetricLabel(section, "", text, unit.strip("[]"))


def _stripped_cells(line: str, separator: str) -> list[str]:
    return [cell.strip() for cell in split_cells(line, separator)]


def _first(names: Sequence[str], wanted: Sequence[str]) -> int | None:
    return next((at for at, name in enumerate(names) if name in wanted), None)


def _cells(row: Sequence[str], columns: Sequence[int]) -> list[str]:
    """Return the cells of some columns; sizes without quotes take three cells each."""
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
"""What is read of the session; it also has names of hosts, addresses and command lines."""
_HEX = re.compile(r"0x[0-9a-fA-F]{1,16}")


class SessionTable:
    """Attributes of the session, its GPUs or its processes."""

    def __init__(self, heading: TableHeading) -> None:
        self._heading = heading
        self._kind = heading.cells[0].casefold()

    def add_line(self, line: str, collected: CollectedValues) -> bool:
        """Add an attribute; return whether the line was one."""
        if self._heading.separator not in line:
            return False
        key, *values = _stripped_cells(line, self._heading.separator)
        if self._kind == "device attribute":
            for cell, value in zip(self._heading.cells[1:], values, strict=False):
                number = _DEVICE.fullmatch(cell.casefold())
                if number:
                    collected.devices.setdefault(int(number[1]), {})[key] = value
        elif self._kind == "process id" and values and _PID.fullmatch(key):
            collected.processes[int(key)] = values[0]
        elif self._kind == "session attribute" and key.casefold() in _SESSION and values:
            collected.session[key.casefold()] = values[0]
        return True


_COLUMNS = {
    "# samples": "smsp__pcsamp_sample_count",
    "instructions executed": "inst_executed",
    "thread instructions executed": "thread_inst_executed",
    "predicated-on thread instructions executed": "thread_inst_executed_true",
    "avg. threads executed": "derived__avg_thread_executed",
    "avg. predicated-on threads executed": "derived__avg_thread_executed_true",
    "address space": "memory_type",
    "access operation": "memory_access_type",
    "access size": "memory_access_size_type",
    "l2 theoretical sectors global excessive": (
        "derived__memory_l2_theoretical_sectors_global_excessive"
    ),
    "l1 wavefronts shared excessive": "derived__memory_l1_wavefronts_shared_excessive",
    "l1 conflicts shared n-way": "derived__memory_l1_conflicts_shared_nway",
}
_MEMORY = re.compile(r"l[12] (?:tag requests|wavefronts|theoretical sectors) [a-z ]+")
_STALL = re.compile(r"stall_(?P<reason>[a-z_]+)(?P<waiting> \(not issued\))?")
_FULL_NAMES = ("barrier", "branch_resolving", "drain", "membar", "misc", "not_selected")
_STALLS = SAMPLED_STALLS | {
    reason: reason for reason in (*_FULL_NAMES, "selected", "sleeping", "wait")
}


def source_metric(column: str) -> str | None:
    """Return the metric whose instances a column of the source page shows; None if unknown."""
    name = column.strip().casefold()
    stall = _STALL.fullmatch(name)
    if stall and stall["reason"] in _STALLS:
        waiting = "_not_issued" if stall["waiting"] else ""
        return f"smsp__pcsamp_warps_issue_stalled_{_STALLS[stall['reason']]}{waiting}"
    if name in _COLUMNS:
        return _COLUMNS[name]
    return f"memory_{name.replace(' ', '_')}" if _MEMORY.fullmatch(name) else None


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

    def add_line(self, line: str, collected: CollectedValues) -> bool:
        """Keep what was measured for an instruction, or a line of a source file.

        Returns whether the line was one.
        """
        if self._address is None:  # lines of source have quotes that no CSV would have
            return self._add_source_line(line, collected)
        cells = split_cells(line, self._heading.separator)
        if len(cells) <= self._address or not _HEX.fullmatch(cells[self._address].strip()):
            return False
        # Some pages have each of them twice.
        self._rows.setdefault(cells[self._address].strip(), cells)
        return True

    def _add_source_line(self, line: str, collected: CollectedValues) -> bool:
        match = _LINE.fullmatch(line.strip())
        if match is None:
            return False
        if self._file is None:
            collected.notes.setdefault("PTX text was not read")
            return True
        lines = collected.sources.setdefault(shown_file(self._file) or self._file, [])
        if int(match["line"]) == len(lines) + 1:
            text = match["text"]
            # Quotes inside the cell are doubled in some versions only.
            inner = text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
            lines.append(inner.replace('""', '"'))
        return True

    def is_same_as(self, other: SourcePage | None) -> bool:
        """Return whether this repeats a page: ncu prints each kernel's twice."""
        return (
            other is not None
            and (self._kernel, self._heading.cells) == (other._kernel, other._heading.cells)
            and self._rows == other._rows
        )

    def follow(self, other: SourcePage | None) -> None:
        """Continue another page's launch: a kernel has one page for each file it came from."""
        if other is None or other._launch is None or other._kernel != self._kernel:
            return
        if self._file not in other._files:
            self._launch = other._launch
            self._files |= other._files
            self._seen = other._seen

    def finish(self, collected: CollectedValues) -> None:
        """Add what was measured for each instruction."""
        metrics = {
            column: metric
            for column, cell in enumerate(self._heading.cells)
            if (metric := source_metric(cell)) is not None
        }
        if self._rows:
            collected.notes.setdefault("SASS text was not read")
        if not self._rows or not metrics:
            return
        if self._launch is None:
            number = str(len(collected.launches.rows))
            self._launch = collected.launches.add({"kernel": self._kernel}, ("source page", number))
        new = {address: row for address, row in self._rows.items() if address not in self._seen}
        self._seen |= new.keys()
        instance = pl.Series([int(address, 16) for address in new], dtype=pl.Int64)
        for column, metric in metrics.items():
            cells = [row[column].strip() if column < len(row) else None for row in new.values()]
            instances = pl.DataFrame({"instance": instance, "printed": cells}).with_columns(
                launch=pl.lit(self._launch, pl.UInt32), metric=pl.lit(metric, pl.String)
            )
            collected.add_instances(instances.filter(~pl.col("printed").is_in(["", "-"])))
