"""The launches of a report beside those of a timeline of the same program, and how they differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.join.match import (
    NEEDS,
    NO_NAME,
    NO_PLACE,
    NO_SHAPE,
    ORDER,
    Match,
    in_launch_order,
    match,
)
from gpusight.analyses.orion.launches import COMMAND, how_many
from gpusight.analyses.select import Scope, Selection
from gpusight.model.kernel_names import classify
from gpusight.result import Field, Fmt, NotApplicable, TableResult

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.int64]

    from gpusight.analyses.orion.merged import Disagreement
    from gpusight.model.trace import Trace

DIFFERENCE_FIELDS = (
    Field("side", "Only in", Fmt.TEXT, "Which capture has it: `ncu` or `nsys`"),
    Field("position", "Number", Fmt.ID, "ncu: the launch's number; nsys: its place from 0"),
    Field("kernel", "Kernel", Fmt.NAME, "Readable label made from the name"),
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
    NO_PLACE: "not at this place",
}
_ALIKE = 0.5
"""Part of the launches that captures of one program have in common at least."""
_TIMELINE = ("end_ns", "device", *ORDER, *NEEDS)


@dataclass(frozen=True, slots=True)
class Matched:
    """How the launches of a report pair up with those of a timeline."""

    launches: pl.DataFrame
    timeline: pl.DataFrame
    found: Match

    @property
    def durations_ns(self) -> pl.Series:
        """How long the partner of each launch ran in the timeline; null without one."""
        length = self.timeline["end_ns"] - self.timeline["start_ns"]
        pairs = pl.DataFrame({"row": self.found.left, "ns": length.gather(self.found.right)})
        rows = pl.DataFrame({"row": np.arange(self.launches.height)})
        joined = rows.join(pairs, on="row", how="left", maintain_order="left")
        return joined["ns"].cast(pl.Float64)

    @property
    def outside(self) -> tuple[int, int]:
        """Launches of the timeline before the first and after the last that has a partner."""
        if not len(self.found.right):
            return 0, 0
        return int(self.found.right.min()), self.timeline.height - 1 - int(self.found.right.max())


def timeline_launches(trace: Trace, selection: Selection) -> pl.DataFrame | NotApplicable:
    """Give the kernels of a timeline in the order in which they were launched."""
    if not trace.has("kernels"):
        reason = "the timeline (--nsys) has no GPU kernels"
        return NotApplicable(COMMAND, reason, "capture with: gpusight record --with nsys …")
    rows = Scope(trace, selection).gpu("kernels", _TIMELINE)
    if rows.is_empty():
        reason = "no kernel of the timeline (--nsys) is inside the selection"
        return NotApplicable(COMMAND, reason, "see gpusight ranges FILE for the ranges there are")
    return in_launch_order(rows)


def match_timeline(launches: pl.DataFrame, timeline: pl.DataFrame) -> Matched:
    """Pair launches with kernels of a timeline by name, shape and order."""
    left = launches.with_columns(as_enum(launches["name"]))
    return Matched(launches, timeline, match(left.select(NEEDS), timeline.select(NEEDS)))


def differences(matched: Matched) -> TableResult | None:
    """List what each capture has and the other lacks, inside the stretch that both cover."""
    found = matched.found
    before, after = matched.outside
    inside = [
        (row, why)
        for row, why in zip(found.right_only.tolist(), found.right_why, strict=True)
        if before <= row < matched.timeline.height - after
    ]
    numbers = matched.launches["launch"].to_list()
    names = matched.launches["name"].to_list()
    left = [
        ("ncu", numbers[row], names[row], why, _next(found.left, found.right, row), (row, 0))
        for row, why in zip(found.left_only.tolist(), found.left_why, strict=True)
    ]
    shown = matched.timeline["name"].cast(pl.String)
    right = []
    for row, why in inside:
        beside = _next(found.right, found.left, row)
        number = None if beside is None else numbers[beside]
        place = (len(numbers) if beside is None else beside, 1)
        right.append(("nsys", row, shown[row], why, number, place))
    rows = sorted([*left, *right], key=lambda entry: (*entry[5], entry[1]))
    return _table([entry[:5] for entry in rows]) if rows else None


def disagreement_table(found: list[Disagreement]) -> TableResult:
    """List the launches that two exports of one report do not agree on."""
    frame = pl.DataFrame(
        {
            "launch": pl.Series([d.launch for d in found], dtype=pl.Int64),
            "first": pl.Series([d.first for d in found], dtype=pl.String),
            "second": pl.Series([d.second for d in found], dtype=pl.String),
        }
    )
    title = "Launches that the two files do not agree on"
    return TableResult(
        COMMAND, title, DISAGREEMENT_FIELDS, frame, meta={"action": "build", "launches": len(found)}
    )


def match_notes(matched: Matched) -> tuple[str, ...]:
    """Say how well the captures fit each other."""
    found = matched.found
    before, after = matched.outside
    pairs, launches = len(found.left), matched.launches.height
    notes = [f"{pairs:,} of {how_many(launches)} have their partner in the timeline"]
    if pairs < _ALIKE * launches:
        notes.append("so few match that the two captures are hardly of the same program")
    if before or after:
        notes.append(
            f"the timeline has {how_many(before)} before and {after:,} after those of the report"
        )
    if not found.in_order:
        notes.append("the captures are too long to align: the n-th launches of a kernel are paired")
    if not found.keys.shapes:
        notes.append("a capture does not tell grids and blocks: kernels are compared by name alone")
    return tuple(notes)


def _next(own: Rows, other: Rows, row: int) -> int | None:
    """Give where the other side stands: the partner of the next launch that has one."""
    at = int(np.searchsorted(own, row)) if np.all(own[:-1] <= own[1:]) else -1
    return int(other[at]) if 0 <= at < len(other) else None


def _table(rows: list[tuple[str, int, str, str, int | None]]) -> TableResult:
    frame = pl.DataFrame(
        {
            "side": pl.Series([r[0] for r in rows], dtype=pl.String),
            "position": pl.Series([r[1] for r in rows], dtype=pl.Int64),
            "kernel": pl.Series([classify(r[2]).short for r in rows], dtype=pl.String),
            "why": pl.Series([_WHY[r[3]] for r in rows], dtype=pl.String),
            "beside": pl.Series([r[4] for r in rows], dtype=pl.Int64),
            "name": pl.Series([r[2] for r in rows], dtype=pl.String),
        }
    )
    return TableResult("differences", "Where the two captures differ", DIFFERENCE_FIELDS, frame)


def as_enum(names: pl.Series) -> pl.Series:
    """Encode names that are text, as matching wants them."""
    return names.cast(pl.Enum(names.unique(maintain_order=True)))
