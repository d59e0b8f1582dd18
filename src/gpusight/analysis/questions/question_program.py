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
from gpusight.analysis.questions.forward_passes import (
    ForwardPasses,
    described,
    in_window,
    inside_passes,
    passes_of,
)
from gpusight.analysis.selection import EVERYTHING, GPU_WORK, ResolvedSelection, Selection
from gpusight.analysis.steps.step_detection import busiest_process
from gpusight.analysis.steps.step_launches import launched, of_process
from gpusight.analysis.steps.step_list import TraceSteps
from gpusight.analysis.steps.step_phases import as_phases, phases_of
from gpusight.analysis.steps.step_window import StepWindow, step_window
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

    @cached_property
    def kernels(self) -> pl.DataFrame:
        """The kernels among it, with `code` of the name, `category` and `queue`."""
        return described(self.trace, self.work)

    @property
    def runs(self) -> int:
        """How many forward passes there are; 0 where none are known."""
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
        """Tell whether kernels of a part were seen."""
        return bool((self.kernels["part"] == part).any())

    @property
    def trains(self) -> bool:
        """Tell whether there is a backward pass or an optimizer."""
        return self.has(BACKWARD) or self.has(OPTIMIZER)

    def forward(self) -> pl.DataFrame:
        """Give the kernels of the forward passes."""
        return self.kernels.filter(pl.col("pass").is_not_null())

    def both(self) -> pl.DataFrame:
        """Give the kernels of forward and backward passes."""
        backward = pl.col("part") == BACKWARD
        return self.kernels.filter(pl.col("pass").is_not_null() | backward)

    def step(self) -> pl.DataFrame:
        """Give the kernels of whole steps; of the window, where no steps are known."""
        return self.kernels.filter(pl.col("step").is_not_null()) if self.steps else self.kernels


def label_of(trace: Trace) -> str:
    """Name the file of a capture."""
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
    work, process, which = _of_one(trace, selection, looked)
    if steps is None and window is None and inside_passes(trace, looked):
        whole = ResolvedSelection(trace, selection).window
        looked = StepWindow(whole.start_ns, whole.end_ns)
    work = _described(trace, looked, work, warmup=warmup)
    found = passes_of(trace, selection, looked, work, process, warmup=warmup)
    graphs = graph_notes(trace) if trace.has("kernels") else ()
    notes = (*looked.notes, *which, *graphs)
    if isinstance(found, NotApplicable):
        return QuestionProgram(trace, _parts(work, None), found, len(looked.steps), notes)
    parts = _whole_steps(_parts(work, found.members))
    steps_seen = parts["step"].drop_nulls().n_unique()
    return QuestionProgram(trace, parts, found, steps_seen, (*notes, *found.notes))


def _whole_steps(work: pl.DataFrame) -> pl.DataFrame:
    """Count steps as such only where they hold a forward pass: the capture may cut the last one."""
    whole = pl.col("pass").is_not_null().any().over("step")
    return work.with_columns(pl.when(whole).then("step").alias("step"))


def _of_one(
    trace: Trace, selection: Selection, looked: StepWindow
) -> tuple[pl.DataFrame, int | None, tuple[str, ...]]:
    """Give the selected GPU work of one process, which, and why: its steps, or most work."""
    work = launched(trace)
    if selection:
        work = work.join(
            _selected(trace, selection), on=["table", "row"], how="semi", maintain_order="left"
        )
    process: int | None
    which: tuple[str, ...]
    if looked.steps:
        process, which = looked.steps[0].process, ()
    else:
        inside = work.filter(
            pl.col("launch_ns").is_between(looked.start_ns, looked.end_ns, closed="left")
        )
        process, which = busiest_process(trace, inside, "answers are of")
    return of_process(work, process), process, which


def _described(
    trace: Trace, looked: StepWindow, work: pl.DataFrame, *, warmup: bool
) -> pl.DataFrame:
    """Give GPU work with its step and phase, and whether it is `inside` what is looked at."""
    return work.with_columns(
        in_window(trace, looked, work, "launch_ns", warmup=warmup).alias("inside"),
        TraceSteps(looked.steps).holding(work["launch_ns"], work["process"]).alias("step"),
        _phases(trace, work),
        DURATION,
    )


def _selected(trace: Trace, selection: Selection) -> pl.DataFrame:
    """Give the tables and rows of the selected GPU work."""
    scope = WorkSelection(trace, selection)
    parts = [pl.DataFrame(schema={"table": pl.Int8(), "row": pl.Int64()})]
    for number, table in enumerate(GPU_WORK):
        if trace.has(table):
            rows = scope.gpu_rows(table).cast(pl.Int64).alias("row")
            parts.append(rows.to_frame().select(pl.lit(number, pl.Int8).alias("table"), "row"))
    return pl.concat(parts)


def _phases(trace: Trace, work: pl.DataFrame) -> pl.Series:
    """Give the phase of each piece of work, null where it is not known."""
    at = np.full(work.height, -1, np.int64)
    if work.is_empty():
        return as_phases(at).cast(pl.String)
    tables, rows = work["table"].to_numpy(), work["row"].to_numpy()
    for number, codes in enumerate(phases_of(trace)):
        mine = tables == number
        at[mine] = codes[rows[mine]]
    return as_phases(at).cast(pl.String)


def _parts(work: pl.DataFrame, members: pl.Series | None) -> pl.DataFrame:
    """Add the pass and the part of each piece of work: a pass counts more than a phase."""
    held = pl.Series([None], dtype=pl.Int64).new_from_index(0, work.height)
    inside = (held if members is None else members).alias("pass")
    phase = pl.col("phase")
    told = pl.when(phase.is_in([BACKWARD, OPTIMIZER])).then(phase).otherwise(pl.lit("other"))
    part = pl.when(pl.col("pass").is_not_null()).then(pl.lit(FORWARD)).otherwise(told)
    held_work = work.with_columns(inside).filter(pl.col("inside") | pl.col("pass").is_not_null())
    return held_work.with_columns(part.alias("part"))


@dataclass(frozen=True)
class QuestionAnswer:
    """The answer to one question."""

    sentence: str
    numbers: Mapping[str, Any]
    """In base units, as the JSON document gives them."""
    tables: tuple[TableResult, ...]
    notes: tuple[str, ...] = field(default=())


def listed(parts: list[str]) -> str:
    """Join parts as people do: `a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1]))) if parts else ""


def times(count: float) -> str:
    """Say how often something happens: `12 times`, `1.5 times`, `once`."""
    whole = f"{count:,.0f}" if float(count).is_integer() else f"{count:,.1f}"
    return "once" if whole == "1" else f"{whole} times"
