"""Rows of printed tables, added to what is collected: one way for each layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.readers.ncu.printed.headings import (
    METRICS,
    UNITS,
    Form,
    Heading,
    is_metric_name,
    role_of,
    with_unit,
)
from gpusight.readers.ncu.printed.naming import Said

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.readers.ncu.printed.collected import Collected

_SAID = ("section", "body", "metric", "unit", "cc")
_RULE = {"rule_kind": "kind"}
_SECTION_HEADINGS = ("section name", "section")


def add_long(frame: pl.DataFrame, heading: Heading, into: Collected) -> None:
    """Add a table that has a row for each metric, or rule, of each launch."""
    rows = _told_apart(frame, into) if not _is_told(heading) else frame
    rows = rows.with_columns(into.launches.numbers(rows))
    if heading.form is Form.SUMMARY:
        _count_invocations(rows, into)
    empty = [pl.lit("").alias(name) for name in _SAID if name not in rows.columns]
    rows = rows.with_columns(pl.col(pl.String).str.strip_chars()).with_columns(empty)
    said = rows.filter(pl.col("metric").fill_null("") != "")
    place = ["launch", "section", "body", "metric"]
    names = said.select(
        pl.col(list(_SAID)).fill_null(""), nth=pl.int_range(pl.len(), dtype=pl.Int64).over(place)
    ).rename({"metric": "text"})
    into.add_values(
        said.select("launch", said=pl.col("value")).with_columns(into.names.numbers(names))
    )
    if "rule" in rows.columns:
        found = rows.filter(pl.col("rule").fill_null("") != "")
        into.add_rules(found.rename({k: v for k, v in _RULE.items() if k in found.columns}))


def _is_told(heading: Heading) -> bool:
    """Tell whether the table itself tells launches of one kernel apart."""
    return "id" in heading.roles or heading.form is Form.SUMMARY


def _told_apart(frame: pl.DataFrame, into: Collected) -> pl.DataFrame:
    """Number launches where the table does not: each begins anew with its first metric."""
    into.without_id = True
    known = ("pid", "kernel", "function", "section", "body", "metric", "rule")
    same = [name for name in known if name in frame.columns]
    return frame.with_columns(id=pl.int_range(pl.len()).over(same).cast(pl.String))


def _count_invocations(rows: pl.DataFrame, into: Collected) -> None:
    if "invocations" in rows.columns:
        each = rows.unique("launch").get_column("invocations").str.replace_all(r"\D", "")
        into.averaged += int(each.cast(pl.Int64, strict=False).sum())


class WideTable:
    """A table that has a row for each launch; its second line may say the units."""

    def __init__(self, heading: Heading) -> None:
        self._heading = heading
        self._units = [with_unit(heading.cells[at])[1] for at in heading.metrics]
        self._columns = [str(at) for at in heading.metrics]

    def add(self, frame: pl.DataFrame, into: Collected) -> None:
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

    def _values(self, rows: pl.DataFrame, into: Collected) -> pl.DataFrame:
        if "id" not in rows.columns:
            into.without_id = True
            rows = rows.with_columns(id=_positions(rows, len(into.launches.rows)))
        launches = into.launches.numbers(rows)
        names = [self._name(at, into) for at in range(len(self._columns))]
        long = rows.select(launches, *self._columns).unpivot(index="launch", value_name="said")
        code = pl.Series(names, dtype=pl.UInt32).to_frame("name")
        repeated = code.select(pl.col("name").repeat_by(rows.height).explode())
        return long.drop("variable").hstack(repeated)

    def _name(self, at: int, into: Collected) -> int:
        cell = self._heading.cells[int(self._columns[at])]
        text = with_unit(cell)[0] if with_unit(cell)[1] else cell
        return into.names.number(Said("", "", text, self._units[at]))


def _positions(rows: pl.DataFrame, before: int) -> pl.Series:
    return pl.Series([str(before + at) for at in range(rows.height)], dtype=pl.String)


class TurnedTable:
    """A table that has a row for each metric and a column for each launch."""

    def __init__(self, heading: Heading) -> None:
        self.separator = heading.separator
        names = [cell.casefold() for cell in heading.cells]
        self._of_metrics = names[0] in METRICS
        self._unit = _first(names, UNITS) if self._of_metrics else None
        self._section = _first(names, _SECTION_HEADINGS) if self._of_metrics else None
        self.rows: list[Sequence[str]] = [heading.cells]

    def add(self, into: Collected) -> None:
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

    def _said(self, row: Sequence[str]) -> Said:
        text, unit = with_unit(row[0])
        if not unit or not (is_metric_name(text) or self._unit is None):
            text = row[0].strip()
        if self._unit is not None and len(row) > self._unit:
            unit = row[self._unit].strip()
        section = row[self._section].strip() if self._section is not None else ""
        return Said(section, "", text, unit.strip("[]"))


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
