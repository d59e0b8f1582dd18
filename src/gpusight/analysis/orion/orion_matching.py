"""Matches the launches of reports and timelines of one program, and merges two exports."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl

from gpusight.analysis.aggregates import schema_of
from gpusight.analysis.join.launch_matching import (
    NEEDS,
    NO_NAME,
    NO_SHAPE,
    NOT_IN_ORDER,
    ORDER,
    LaunchMatch,
    in_launch_order,
    launch_keys,
    match,
)
from gpusight.analysis.orion.orion_launches import COMMAND, how_many
from gpusight.analysis.selection import ResolvedSelection, Selection
from gpusight.naming.kernel_names import unique_short_names
from gpusight.results import Field, Fmt, NotApplicable, TableResult
from gpusight.trace.schema import TABLES
from gpusight.trace.schema_columns import ColumnKind
from gpusight.trace.trace import TraceSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Meta, Trace

    Rows = Ints


DIFFERENCE_FIELDS = (
    Field("side", "Only in", Fmt.TEXT, "Which capture has it: `ncu` or `nsys`"),
    Field("position", "Number", Fmt.ID, "ncu: the launch's number; nsys: its position from 0"),
    Field("kernel", "Kernel", Fmt.NAME, "Short name"),
    Field("why", "Why", Fmt.TEXT, "What the other capture lacks: `name`, `shape` or `place`"),
    Field("beside", "Beside", Fmt.ID, "The next number of the other capture", shown=False),
    Field("name", "Full name", Fmt.NAME, "Name with template arguments", shown=False),
)
DISAGREEMENT_FIELDS = (
    Field("launch", "Launch", Fmt.ID, "Number of the launch in both files"),
    Field("first", "--ncu", Fmt.NAME, "Kernel in the file of --ncu"),
    Field("second", "--ncu-raw", Fmt.NAME, "Kernel in the file of --ncu-raw"),
)
_WHY = {
    NO_NAME: "no such kernel",
    NO_SHAPE: "other grid or block",
    NOT_IN_ORDER: "not at this position",
}
_MIN_COMMON_SHARE = 0.5
"""Share of the launches that two captures of one program have in common."""
_TIMELINE = ("end_ns", "device", *ORDER, *NEEDS)


@dataclass(frozen=True, slots=True)
class OrionMatch:
    """How the launches of a report pair up with those of a timeline."""

    launches: pl.DataFrame
    timeline: pl.DataFrame
    pairs: LaunchMatch

    @property
    def durations_ns(self) -> pl.Series:
        """Duration of the partner of each launch in the timeline; null without one."""
        length = self.timeline["end_ns"] - self.timeline["start_ns"]
        pairs = pl.DataFrame({"row": self.pairs.left, "ns": length.gather(self.pairs.right)})
        rows = pl.DataFrame({"row": np.arange(self.launches.height)})
        joined = rows.join(pairs, on="row", how="left", maintain_order="left")
        return joined["ns"].cast(pl.Float64)

    @property
    def outside(self) -> tuple[int, int]:
        """Launches of the timeline before the first and after the last that has a partner."""
        if not len(self.pairs.right):
            return 0, 0
        return int(self.pairs.right.min()), self.timeline.height - 1 - int(self.pairs.right.max())


def timeline_launches(trace: Trace, selection: Selection) -> pl.DataFrame | NotApplicable:
    """Return the kernels of a timeline in launch order."""
    if not trace.has("kernels"):
        reason = "the timeline (--nsys) has no GPU kernels"
        return NotApplicable(COMMAND, reason, "capture with: gpusight record --with nsys …")
    rows = ResolvedSelection(trace, selection).gpu("kernels", _TIMELINE)
    if rows.is_empty():
        reason = "no kernel of the timeline (--nsys) is inside the selection"
        return NotApplicable(COMMAND, reason, "see gpusight ranges FILE for the ranges there are")
    return in_launch_order(rows)


def match_timeline(launches: pl.DataFrame, timeline: pl.DataFrame) -> OrionMatch:
    """Pair launches with kernels of a timeline by name, shape and order."""
    left = launches.with_columns(as_enum(launches["name"]))
    return OrionMatch(launches, timeline, match(left.select(NEEDS), timeline.select(NEEDS)))


def differences(matched: OrionMatch) -> TableResult | None:
    """List what each capture has and the other lacks, inside the window that both cover."""
    pairs = matched.pairs
    before, after = matched.outside
    numbers = matched.launches["launch"].to_list()
    names = matched.launches["name"].to_list()
    rows = []
    for row, why in zip(pairs.left_only.tolist(), pairs.left_reason, strict=True):
        beside = _next(pairs.left, pairs.right, row)
        rows.append(((row, 0, numbers[row]), "ncu", numbers[row], names[row], why, beside))
    timeline_names = matched.timeline["name"].cast(pl.String)
    for row, why in zip(pairs.right_only.tolist(), pairs.right_reason, strict=True):
        if before <= row < matched.timeline.height - after:
            beside = _next(pairs.right, pairs.left, row)
            number = None if beside is None else numbers[beside]
            order = (len(numbers) if beside is None else beside, 1, row)
            rows.append((order, "nsys", row, timeline_names[row], why, number))
    if not rows:
        return None
    short = unique_short_names(sorted({*names, *timeline_names}))
    values = [
        (side, position, short[name], _WHY[why], beside, name)
        for _, side, position, name, why, beside in sorted(rows, key=lambda row: row[0])
    ]
    frame = pl.DataFrame(values, schema=schema_of(DIFFERENCE_FIELDS), orient="row")
    return TableResult("differences", "Where the two captures differ", DIFFERENCE_FIELDS, frame)


def match_notes(matched: OrionMatch) -> list[str]:
    """Describe how well the captures match."""
    match = matched.pairs
    before, after = matched.outside
    pairs, launches = len(match.left), matched.launches.height
    notes = [f"{pairs:,} of {how_many(launches)} have their partner in the timeline"]
    if pairs < _MIN_COMMON_SHARE * launches:
        notes.append("so few match that the two captures are hardly of the same program")
    if before or after:
        notes.append(
            f"the timeline has {how_many(before)} before and {after:,} after those of the report"
        )
    if not match.in_order:
        notes.append("the captures are too long to align: the n-th launches of a kernel are paired")
    if not match.keys.shapes:
        notes.append("a capture lacks grid and block sizes: kernels are matched by name only")
    return notes


def _next(own: Rows, other: Rows, row: int) -> int | None:
    """Return the partner of the next launch that has one."""
    at = int(np.searchsorted(own, row)) if np.all(own[:-1] <= own[1:]) else -1
    return int(other[at]) if 0 <= at < len(other) else None


def as_enum(names: pl.Series) -> pl.Series:
    """Encode names, which are text, as matching needs them."""
    return names.cast(pl.Enum(names.drop_nulls().unique(maintain_order=True)))


_MERGED = ("profiles", "counters")
_NAMED = ("kind", "name", "base_name", "mangled_name")
"""Columns that are taken from the first file."""


def disagreements(first: Trace, second: Trace) -> TableResult:
    """List the launches that two exports of one report do not agree on.

    Both must have a launch of each number, of the same kernel.
    """
    columns = ("launch", *NEEDS)
    left, right = first.table("profiles", columns), second.table("profiles", columns)
    keys = launch_keys(left, right)
    sides = [
        frame.select("launch", pl.col("name").cast(pl.String), code.alias("code"))
        for frame, code in ((left, keys.left_name), (right, keys.right_name))
    ]
    both = sides[0].join(sides[1], on="launch", how="full", coalesce=True, suffix="_right")
    unequal = both.filter(pl.col("code").ne_missing(pl.col("code_right"))).sort("launch")
    frame = unequal.select("launch", first="name", second="name_right")
    title = "Launches that the two files do not agree on"
    meta = {"action": "build", "launches": frame.height}
    return TableResult(COMMAND, title, DISAGREEMENT_FIELDS, frame, meta=meta)


class MergedReports(TraceSource):
    """Serves launches and counters of two exports of one report, which agree on the launches.

    Other tables are those of the second, if it has them.
    """

    def __init__(self, first: Trace, second: Trace) -> None:
        self._both = (first, second)

    @property
    def meta(self) -> Meta:
        """Meta of the first, with the notes and warnings of both."""
        first, second = (trace.meta for trace in self._both)
        return msgspec.structs.replace(
            first,
            notes=tuple(dict.fromkeys((*first.notes, *second.notes))),
            warnings=tuple(dict.fromkeys((*first.warnings, *second.warnings))),
        )

    def has(self, table: str) -> bool:
        """Return whether either has the table."""
        return any(trace.has(table) for trace in self._both)

    def has_column(self, table: str, column: str) -> bool:
        """Return whether either fills the column."""
        return any(trace.has(table, column) for trace in self._both)

    def row_count(self, table: str) -> int:
        """Count rows."""
        if table in _MERGED:
            return self._frames[table].height
        return self._owner(table).row_count(table)

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Return these columns."""
        if table in _MERGED:
            return self._frames[table].select(columns)
        return self._owner(table).table(table, columns)

    def prepare(self, tables: Iterable[str]) -> None:
        """Prepare both."""
        for trace in self._both:
            trace.prepare(*tables)

    def warnings(self) -> tuple[str, ...]:
        """Name rows and values that reading either has left out so far."""
        return tuple(warning for trace in self._both for warning in trace.warnings)

    def close(self) -> None:
        """Close both."""
        for trace in self._both:
            trace.close()

    def _owner(self, table: str) -> Trace:
        first, second = self._both
        return second if second.has(table) else first

    @cached_property
    def _frames(self) -> dict[str, pl.DataFrame]:
        """Names of launches are those of the first; what else both have is the second's."""
        first, second = (self._plain("profiles", trace) for trace in self._both)
        both = first.join(second, on="launch", how="left", suffix="_right", maintain_order="left")
        filled = [
            pl.coalesce(c if c in _NAMED else f"{c}_right", c, f"{c}_right").alias(c)
            for c in first.columns
            if c != "launch"
        ]
        first, second = (self._plain("counters", trace) for trace in self._both)
        known = second.filter(pl.col("value").is_not_null() | pl.col("text").is_not_null())
        further = first.join(known, on=["launch", "metric"], how="anti", maintain_order="left")
        frames = {
            "profiles": both.select("launch", *filled),
            "counters": pl.concat([known, further]),
        }
        return {
            table: frame.with_columns(as_enum(frame[name]) for name in _name_columns(table))
            for table, frame in frames.items()
        }

    def _plain(self, table: str, trace: Trace) -> pl.DataFrame:
        """Read a table with names as text, so that two of them can be put together."""
        return trace.table(table).with_columns(pl.col(_name_columns(table)).cast(pl.String))


def _name_columns(table: str) -> list[str]:
    return [c.name for c in TABLES[table].columns if c.kind is ColumnKind.NAME]
