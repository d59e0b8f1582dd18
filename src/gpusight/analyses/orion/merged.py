"""Two exports of one report as one capture: what one does not tell, the other may.

Where both tell it, the second counts: the raw page has more digits than the details.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import polars as pl

from gpusight.analyses.join.match import NEEDS, launch_keys
from gpusight.model.schema import TABLES, Kind
from gpusight.model.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpusight.model.trace import Meta

_MERGED = ("profiles", "counters")
_NAMED = ("kind", "name", "base_name", "mangled_name")
"""What the first file says of a launch in words is kept."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A launch that two exports of one report do not agree on."""

    launch: int
    first: str | None
    """Kernel in the first file; None where the file has no such launch."""
    second: str | None


def disagreements(first: Trace, second: Trace) -> list[Disagreement]:
    """Compare the launches of two exports by number: both must have them, of the same kernel."""
    columns = ("launch", *NEEDS)
    left, right = first.table("profiles", columns), second.table("profiles", columns)
    keys = launch_keys(left, right)
    sides = [
        frame.select("launch", pl.col("name").cast(pl.String), code.alias("code"))
        for frame, code in ((left, keys.left_name), (right, keys.right_name))
    ]
    both = sides[0].join(sides[1], on="launch", how="full", coalesce=True, suffix="_right")
    unequal = both.filter(pl.col("code").ne_missing(pl.col("code_right"))).sort("launch")
    rows = unequal.select("launch", "name", "name_right").iter_rows()
    return [Disagreement(*row) for row in rows]


def merge(first: Trace, second: Trace) -> Trace:
    """Make one capture of two that agree on their launches."""
    return Trace(_MergedSource(first, second))


class _MergedSource:
    """Serves launches and counters of both; other tables of the second, if it has them."""

    def __init__(self, first: Trace, second: Trace) -> None:
        self._both = (first, second)

    @property
    def meta(self) -> Meta:
        """What is known about the first, and what both say of themselves."""
        first, second = (trace.meta for trace in self._both)
        return msgspec.structs.replace(
            first,
            notes=tuple(dict.fromkeys((*first.notes, *second.notes))),
            warnings=tuple(dict.fromkeys((*first.warnings, *second.warnings))),
        )

    def outline(self) -> None:
        """Know everything without a walk."""

    def has(self, table: str) -> bool:
        """Tell whether either has the table."""
        return any(trace.has(table) for trace in self._both)

    def has_column(self, table: str, column: str) -> bool:
        """Tell whether either fills the column."""
        return any(trace.has(table, column) for trace in self._both)

    def row_count(self, table: str) -> int:
        """Count rows."""
        if table in _MERGED:
            return self._frames[table].height
        return self._owner(table).row_count(table)

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Give these columns."""
        if table in _MERGED:
            return self._frames[table].select(columns)
        return self._owner(table).table(table, columns)

    def prepare(self, tables: Iterable[str]) -> None:
        """Pass it on."""
        for trace in self._both:
            trace.prepare(*tables)

    def warnings(self) -> tuple[str, ...]:
        """Name rows and values that reading either has left out so far."""
        return tuple(warning for trace in self._both for warning in trace.warnings)

    def close(self) -> None:
        """Give both files back."""
        for trace in self._both:
            trace.close()

    def _owner(self, table: str) -> Trace:
        first, second = self._both
        return second if second.has(table) else first

    @cached_property
    def _frames(self) -> dict[str, pl.DataFrame]:
        return {
            "profiles": _profiles(*(_plain(t, "profiles") for t in self._both)),
            "counters": _counters(*(_plain(t, "counters") for t in self._both)),
        }


def _plain(trace: Trace, table: str) -> pl.DataFrame:
    """Read a table with names as text, so that two of them can be put together."""
    names = [c.name for c in TABLES[table].columns if c.kind is Kind.NAME]
    return trace.table(table).with_columns(pl.col(names).cast(pl.String))


def _profiles(first: pl.DataFrame, second: pl.DataFrame) -> pl.DataFrame:
    both = first.join(second, on="launch", how="left", suffix="_right", maintain_order="left")
    others = [c for c in first.columns if c != "launch"]
    filled = [pl.coalesce(c if c in _NAMED else f"{c}_right", c, f"{c}_right") for c in others]
    named = [value.alias(c) for c, value in zip(others, filled, strict=True)]
    return _encoded("profiles", both.select("launch", *named))


def _counters(first: pl.DataFrame, second: pl.DataFrame) -> pl.DataFrame:
    """Add to what the second has values of what only the first measured."""
    told = second.filter(pl.col("value").is_not_null() | pl.col("text").is_not_null())
    further = first.join(told, on=["launch", "metric"], how="anti", maintain_order="left")
    return _encoded("counters", pl.concat([told, further]))


def _encoded(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    names = [c.name for c in TABLES[table].columns if c.kind is Kind.NAME]
    types = {name: pl.Enum(frame[name].drop_nulls().unique(maintain_order=True)) for name in names}
    return frame.cast(types)  # type: ignore[arg-type]
