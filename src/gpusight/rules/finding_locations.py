"""Where on the timeline findings happen: the most telling stretches, with labels to show."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.join.launch_matching import normal_name
from gpusight.analysis.steps.step_list import called
from gpusight.naming.kernel_names import classify
from gpusight.rules.context import sample_steps
from gpusight.rules.locations import CANDIDATES, events_named
from gpusight.units import format_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.analysis.steps.step_window import StepWindow
    from gpusight.rules.context import RuleContext
    from gpusight.rules.diagnosis_results import TimelineDiagnosis
    from gpusight.rules.finding import TimelineFinding
    from gpusight.trace.trace import Trace


MAX_LOCATIONS = 8
"""Places of a finding, unless more are asked for."""
_LONGEST_NAME = 80
"""What is shown of a name that nobody has shortened yet."""


@dataclass(frozen=True, slots=True)
class TimelineLocation:
    """A stretch of the timeline that shows something."""

    start_ns: int
    end_ns: int
    label: str
    """Such as `step 5: data 10.1 ms`."""
    table: str | None = None
    """Table of the event to select there; None where it is none, or several."""
    row: int | None = None


class FindingLocator:
    """Finds where the findings of one diagnosis happen; what they have in common is found once."""

    def __init__(self, trace: Trace, diagnosis: TimelineDiagnosis) -> None:
        self._trace = trace
        self._focus = diagnosis.focus
        self._rules = diagnosis.rules

    @cached_property
    def _context(self) -> RuleContext:
        """What the rules looked at."""
        return sample_steps(self._trace, self._focus)

    def of(
        self, finding: TimelineFinding, most: int = MAX_LOCATIONS
    ) -> tuple[TimelineLocation, ...]:
        """Give the most telling places of a finding, of different steps first; at least one."""
        stretches = self._stretches(finding)
        if stretches.is_empty():
            return (_middle(self._focus),)
        return _most_telling(stretches, self._focus.steps, most)

    def _stretches(self, finding: TimelineFinding) -> pl.DataFrame:
        """Ask the rule of a finding for the stretches that show it; else take what it names."""
        rule = self._rules.get(finding.rule)
        stretches = None if rule is None else rule.locate(self._context, finding)
        if stretches is None or stretches.is_empty():
            stretches = events_named(self._context, finding)
        if "telling" not in stretches.columns:
            telling = pl.col("weight_ns").cast(pl.Float64).alias("telling")
            stretches = stretches.with_columns(telling)
        return stretches.select(*CANDIDATES, "telling")


def locations_of_kernels(
    trace: Trace, kernel: str, focus: StepWindow | None = None, most: int = MAX_LOCATIONS
) -> tuple[TimelineLocation, ...]:
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
    stretches = launches.select(
        "start_ns",
        "end_ns",
        length.alias("weight_ns"),
        pl.lit(classify(kernel).short).alias("name"),
        pl.lit("kernels").alias("table"),
        pl.col("row").cast(pl.Int64),
        length.cast(pl.Float64).alias("telling"),
    )
    return _most_telling(stretches, () if focus is None else focus.steps, most)


def _codes(names: pl.Series, kernel: str) -> list[int]:
    """Find the names of a kernel: spelled alike, else with the same label."""
    known, wanted = names_of(names), normal_name(kernel)
    codes = [code for code, name in enumerate(known) if normal_name(name) == wanted]
    label = classify(kernel).short
    return codes or [code for code, name in enumerate(known) if classify(name).short == label]


def _most_telling(
    stretches: pl.DataFrame, steps: Sequence[TraceStep], most: int
) -> tuple[TimelineLocation, ...]:
    """Choose the most telling of each step, then the second of each, and so on."""
    middle = stretches.select((pl.col("start_ns") + pl.col("end_ns")) // 2).to_series().to_numpy()
    at_step = np.searchsorted([step.start_ns for step in steps], middle, side="right") - 1
    turn = pl.int_range(pl.len()).over("step")
    rows = (
        stretches.with_columns(pl.Series("step", at_step, pl.Int64))
        .unique(["start_ns", "end_ns", "name"], keep="first", maintain_order=True)
        .sort("telling", "start_ns", descending=[True, False])
        .with_columns(turn.alias("turn"))
        .sort("turn", maintain_order=True)
        .head(max(1, most))
    )
    return tuple(
        TimelineLocation(
            start, end, _label(steps[at] if at >= 0 else None, name, weight), table, row
        )
        for start, end, weight, name, table, row, at in rows.select(*CANDIDATES, "step").iter_rows()
    )


def _label(step: TraceStep | None, name: str, weight_ns: int) -> str:
    what = f"{name[:_LONGEST_NAME]} {format_time(weight_ns)}"
    return what if step is None or name == called(step) else f"{called(step)}: {what}"


def _middle(focus: StepWindow) -> TimelineLocation:
    """Give the step in the middle; the whole window where no steps are known."""
    if not focus.steps:
        start_ns, end_ns, name = focus.start_ns, focus.end_ns, "window"
    else:
        step = focus.steps[len(focus.steps) // 2]
        start_ns, end_ns, name = step.start_ns, step.end_ns, called(step)
    return TimelineLocation(start_ns, end_ns, f"{name} {format_time(end_ns - start_ns)}")
