"""Where on the timeline a finding happens: stretches to look at, the most telling first."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.join.names import normal_name
from gpusight.analyses.statistics import names_of
from gpusight.analyses.steps.step import called
from gpusight.findings.timeline.locate import everywhere, locate
from gpusight.findings.timeline.part import judged_part
from gpusight.findings.timeline.place_events import CANDIDATES
from gpusight.model.kernel_names import classify
from gpusight.units import format_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analyses.steps.focus import Focus
    from gpusight.analyses.steps.step import Step
    from gpusight.findings.timeline.diagnosis import TimelineDiagnosis
    from gpusight.findings.timeline.finding import TimelineFinding
    from gpusight.findings.timeline.timeline import Timeline
    from gpusight.model.trace import Trace

MOST = 8
"""Places of a finding, unless more are asked for."""
_LONGEST_NAME = 80
"""What is shown of a name that nobody has shortened yet."""


@dataclass(frozen=True, slots=True)
class PlaceInTime:
    """A stretch of the timeline that shows something."""

    start_ns: int
    end_ns: int
    label: str
    """Such as `step 5: data 10.1 ms`."""
    table: str | None = None
    """Table of the event to select there; None where it is none, or several."""
    row: int | None = None


class Places:
    """Finds where the findings of one diagnosis happen; what they have in common is found once."""

    def __init__(self, trace: Trace, diagnosis: TimelineDiagnosis) -> None:
        self._trace = trace
        self._focus = diagnosis.focus

    @cached_property
    def _timeline(self) -> Timeline:
        """What the rules looked at."""
        return judged_part(self._trace, self._focus)

    def of(self, finding: TimelineFinding, most: int = MOST) -> tuple[PlaceInTime, ...]:
        """Give the most telling places of a finding, of different steps first; at least one."""
        found = locate(self._timeline, finding)
        if found.is_empty():
            return (_middle(self._focus),)
        return _chosen(found, self._focus.steps, most)


def places(
    trace: Trace, diagnosis: TimelineDiagnosis, finding: TimelineFinding, most: int = MOST
) -> tuple[PlaceInTime, ...]:
    """Say where a finding happens, the most telling place first; never empty.

    For the findings of a whole diagnosis `Places` is faster.
    """
    return Places(trace, diagnosis).of(finding, most)


def places_of_kernels(
    trace: Trace, kernel: str, focus: Focus | None = None, most: int = MOST
) -> tuple[PlaceInTime, ...]:
    """Give the longest launches of a kernel that another capture names; none if it never runs.

    With a `focus`, only those that begin in its window, of different steps first.
    """
    if not trace.has("kernels"):
        return ()
    frame = trace.table("kernels", ["start_ns", "end_ns", "name"]).with_row_index("row")
    launches = frame.filter(pl.col("name").to_physical().is_in(_codes(frame["name"], kernel)))
    if focus is not None:
        inside = pl.col("start_ns").is_between(focus.start_ns, focus.end_ns, "left")
        launches = launches.filter(inside)
    length = pl.col("end_ns") - pl.col("start_ns")
    found = launches.select(
        "start_ns",
        "end_ns",
        length.alias("weight_ns"),
        pl.lit(classify(kernel).short).alias("name"),
        pl.lit("kernels").alias("table"),
        pl.col("row").cast(pl.Int64),
        length.cast(pl.Float64).alias("telling"),
    )
    return _chosen(found, () if focus is None else focus.steps, most)


def _codes(names: pl.Series, kernel: str) -> list[int]:
    """Find the names of a kernel: spelled alike, else with the same label."""
    known, wanted = names_of(names), normal_name(kernel)
    codes = [code for code, name in enumerate(known) if normal_name(name) == wanted]
    label = classify(kernel).short
    return codes or [code for code, name in enumerate(known) if classify(name).short == label]


def _chosen(found: pl.DataFrame, steps: Sequence[Step], most: int) -> tuple[PlaceInTime, ...]:
    """Choose the most telling of each step, then the second of each, and so on."""
    middle = found.select((pl.col("start_ns") + pl.col("end_ns")) // 2).to_series().to_numpy()
    step = np.searchsorted([one.start_ns for one in steps], middle, side="right") - 1
    turn = pl.int_range(pl.len()).over("step")
    rows = (
        found.with_columns(pl.Series("step", step, pl.Int64))
        .unique(["start_ns", "end_ns", "name"], keep="first", maintain_order=True)
        .sort("telling", "start_ns", descending=[True, False])
        .with_columns(turn.alias("turn"))
        .sort("turn", maintain_order=True)
        .head(max(1, most))
    )
    return tuple(
        PlaceInTime(start, end, _label(steps[at] if at >= 0 else None, name, weight), table, row)
        for start, end, weight, name, table, row, at in rows.select(*CANDIDATES, "step").iter_rows()
    )


def _label(step: Step | None, name: str, weight_ns: int) -> str:
    what = f"{name[:_LONGEST_NAME]} {format_time(weight_ns)}"
    return what if step is None or name == called(step) else f"{called(step)}: {what}"


def _middle(focus: Focus) -> PlaceInTime:
    """Give the step in the middle; the whole window where no steps are known."""
    start_ns, end_ns, name = everywhere(focus)
    return PlaceInTime(start_ns, end_ns, f"{name} {format_time(end_ns - start_ns)}")
