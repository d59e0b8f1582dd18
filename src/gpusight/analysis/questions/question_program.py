"""The GPU work of a capture with forward pass, phase and step; and the answer type."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import DURATION, names_of
from gpusight.analysis.attribution.work_causes import WorkSelection
from gpusight.analysis.kernel_summary import graph_notes
from gpusight.analysis.launch_index import launched, of_process
from gpusight.analysis.questions.forward_passes import (
    ForwardPasses,
    described,
    in_window,
    inside_passes,
    passes_of,
)
from gpusight.analysis.selection import EVERYTHING, GPU_WORK, ResolvedSelection, Selection
from gpusight.analysis.steps.program_phases import as_phases, phases_of
from gpusight.analysis.steps.step_detection import busiest_process
from gpusight.analysis.steps.step_list import TraceSteps
from gpusight.analysis.steps.step_window import step_window
from gpusight.analysis.steps.window_headline import StepWindow
from gpusight.results import NotApplicable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.results import TableResult
    from gpusight.trace.trace import Trace


FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"


@dataclass(frozen=True)
class QuestionProgram:
    """The GPU work of a capture, and the passes that it belongs to."""

    trace: Trace
    work: pl.DataFrame
    """GPU work launched in the window, outside warm-up: `table` and `row`, times, who launched it
    when, `phase`, `part` (forward, backward, optimizer, other), and the positions of `pass` and
    `step`, null for none."""
    passes: ForwardPasses | NotApplicable
    steps: int
    """Steps in the window with a forward pass; 0 where none are known."""
    notes: tuple[str, ...]
    window: str = ""
    """The time that was looked at, where it is not the window of other commands."""

    @cached_property
    def kernels(self) -> pl.DataFrame:
        """The kernels among it, with `code` of the name, `category` and `queue`."""
        return described(self.trace, self.work)

    @property
    def runs(self) -> int:
        """Number of forward passes; 0 where none are known."""
        return 0 if isinstance(self.passes, NotApplicable) else self.passes.count

    @property
    def label(self) -> str:
        """Name of the capture's file."""
        return label_of(self.trace)

    @property
    def names(self) -> list[str]:
        """Kernel names, by their code."""
        return names_of(self.trace.table("kernels", ["name"])["name"])

    def has(self, part: str) -> bool:
        """Return whether there are kernels of a part."""
        return bool((self.kernels["part"] == part).any())

    @property
    def trains(self) -> bool:
        """Whether there is a backward pass or an optimizer."""
        return self.has(BACKWARD) or self.has(OPTIMIZER)

    def forward(self) -> pl.DataFrame:
        """Return the kernels of the forward passes."""
        return self.kernels.filter(pl.col("pass").is_not_null())

    def both(self) -> pl.DataFrame:
        """Return the kernels of forward and backward passes."""
        backward = pl.col("part") == BACKWARD
        return self.kernels.filter(pl.col("pass").is_not_null() | backward)

    def step(self) -> pl.DataFrame:
        """Return the kernels of whole steps; of the window, where no steps are known."""
        return self.kernels.filter(pl.col("step").is_not_null()) if self.steps else self.kernels


def label_of(trace: Trace) -> str:
    """Return the file name of a capture."""
    return trace.meta.path.replace("\\", "/").rpartition("/")[2]


def program(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
) -> QuestionProgram | NotApplicable:
    """Find the kernels to look at, and the forward passes among them."""
    looked = step_window(trace, selection, steps=steps, window=window, warmup=warmup)
    if isinstance(looked, NotApplicable):
        return looked
    work, process, process_notes = _of_one_process(trace, selection, looked)
    covered = ""
    if steps is None and window is None and inside_passes(trace, looked):
        everything = ResolvedSelection(trace, selection).window
        looked = StepWindow(everything.start_ns, everything.end_ns)
        covered = "whole capture: steps were found inside forward passes"
    phases = np.full(work.height, -1, np.int64)
    tables, rows = work["table"].to_numpy(), work["row"].to_numpy()
    for number, codes in enumerate(phases_of(trace)) if work.height else ():
        own = tables == number
        phases[own] = codes[rows[own]]
    work = work.with_columns(
        in_window(trace, looked, work, "launch_ns", warmup=warmup).alias("inside"),
        TraceSteps(looked.steps).holding(work["launch_ns"], work["process"]).alias("step"),
        as_phases(phases).cast(pl.String),
        DURATION,
    )
    passes = passes_of(trace, selection, looked, work, process, warmup=warmup)
    graphs = graph_notes(trace) if trace.has("kernels") else ()
    notes = (*looked.notes, *process_notes, *graphs)
    if isinstance(passes, NotApplicable):
        return QuestionProgram(trace, _parts(work, None), passes, len(looked.steps), notes, covered)
    # The capture may cut the last step: those without a forward pass do not count.
    complete = pl.col("pass").is_not_null().any().over("step")
    parts = _parts(work, passes.members).with_columns(pl.when(complete).then("step").alias("step"))
    steps_seen = parts["step"].drop_nulls().n_unique()
    return QuestionProgram(trace, parts, passes, steps_seen, (*notes, *passes.notes), covered)


def _of_one_process(
    trace: Trace, selection: Selection, looked: StepWindow
) -> tuple[pl.DataFrame, int | None, tuple[str, ...]]:
    """Return the selected GPU work of one process, that process, and notes on the choice."""
    work = launched(trace)
    if selection:
        scope = WorkSelection(trace, selection)
        chosen = [
            scope.gpu_rows(table)
            .cast(pl.Int64)
            .alias("row")
            .to_frame()
            .select(pl.lit(number, pl.Int8).alias("table"), "row")
            for number, table in enumerate(GPU_WORK)
            if trace.has(table)
        ]
        empty = pl.DataFrame(schema={"table": pl.Int8(), "row": pl.Int64()})
        rows = pl.concat([empty, *chosen])
        work = work.join(rows, on=["table", "row"], how="semi", maintain_order="left")
    process: int | None
    notes: tuple[str, ...]
    if looked.steps:
        process, notes = looked.steps[0].process, ()
    else:
        inside = work.filter(
            pl.col("launch_ns").is_between(looked.start_ns, looked.end_ns, closed="left")
        )
        process, notes = busiest_process(trace, inside, "answers are of")
    return of_process(work, process), process, notes


def _parts(work: pl.DataFrame, members: pl.Series | None) -> pl.DataFrame:
    """Add the pass and the part of each GPU activity: a pass takes precedence over a phase."""
    passes = pl.lit(None, pl.Int64) if members is None else members
    phase, in_pass = pl.col("phase"), pl.col("pass").is_not_null()
    other = pl.when(phase.is_in([BACKWARD, OPTIMIZER])).then(phase).otherwise(pl.lit("other"))
    part = pl.when(in_pass).then(pl.lit(FORWARD)).otherwise(other)
    inside = work.with_columns(passes.alias("pass")).filter(pl.col("inside") | in_pass)
    return inside.with_columns(part.alias("part"))


@dataclass(frozen=True)
class QuestionAnswer:
    """The answer to one question."""

    sentence: str
    numbers: Mapping[str, Any]
    """In base units, as the JSON document gives them."""
    tables: tuple[TableResult, ...]
    notes: tuple[str, ...] = field(default=())


def times(count: float) -> str:
    """Format how often something happens: `12 times`, `1.5 times`, `once`."""
    text = f"{count:,.0f}" if float(count).is_integer() else f"{count:,.1f}"
    return "once" if text == "1" else f"{text} times"
