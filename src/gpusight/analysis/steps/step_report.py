"""Step by step: duration, GPU utilization, variation and phases: `steps`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import share_of, shown_if_filled
from gpusight.analysis.selection import EVERYTHING, Selection
from gpusight.analysis.steps.step_launches import (
    count_in,
    done_ns,
    launched,
    of_process,
    rows_of_steps,
    took_ns,
)
from gpusight.analysis.steps.step_list import TraceStep, absent, frame_of
from gpusight.analysis.steps.step_phases import NO_PHASES, UNKNOWN, phases_of_work
from gpusight.analysis.steps.step_window import NO_STEPS, StepWindow, outliers, step_window
from gpusight.results import Composite, Fact, Field, Fmt, NotApplicable, TableResult
from gpusight.trace.intervals import Intervals

if TYPE_CHECKING:
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


STEP_FIELDS = (
    Field("number", "Step", Fmt.ID, "Number of the step"),
    Field("start_ns", "Began", Fmt.TIME, "When it began"),
    Field("duration_ns", "Host", Fmt.TIME, "How long the host took for it"),
    Field(
        "took_ns",
        "Took",
        Fmt.TIME,
        "Time until its GPU work was done, from its beginning or when the one before was done",
    ),
    Field("gpu_busy_ns", "GPU busy", Fmt.TIME, "Time in which GPU work that it launched ran"),
    Field("gpu_share", "Share", Fmt.SHARE, "That time as part of what the step took"),
    Field("lag_ns", "GPU lag", Fmt.TIME, "How long after its end on the host its GPU work ended"),
    Field("kernels", "Kernels", Fmt.COUNT, "Kernels that it launched"),
    Field("gpu_ops", "GPU ops", Fmt.COUNT, "Kernels, copies, fills and graphs launched", False),
    Field("pause_ns", "To next", Fmt.TIME, "From its end on the host to the next step's beginning"),
    Field("remark", "Remark", Fmt.TEXT, "`left out`, `slow`, `fast`; null for the ordinary"),
    Field("outlier", "Outlier", Fmt.FLAG, "Took much longer or shorter than kept steps do", False),
    Field("kept", "Kept", Fmt.FLAG, "Stands for the program; not warm-up, nor a part", False),
    Field("name", "Name", Fmt.NAME, "Name of the range that is the step", shown=False),
)
PHASE_FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Part of the GPU work of the kept steps"),
    Field("gpu_ns", "GPU work", Fmt.TIME, "Durations of its GPU work, summed"),
    Field("step_ns", "A step", Fmt.TIME, "The same, a step"),
    Field("gpu_ops", "GPU ops", Fmt.COUNT, "Kernels, copies, fills and graphs"),
    Field("phase", "Phase", Fmt.TEXT, "Phase of the step; `unknown` where nothing tells"),
)
FACTS = (
    Field("steps", "Steps", Fmt.COUNT, "Steps found"),
    Field("kept", "Kept", Fmt.COUNT, "Steps that stand for the program"),
    Field("how", "Found by", Fmt.TEXT, "How they were found"),
    Field("median_ns", "Median", Fmt.TIME, "What half of the kept steps take less than"),
    Field("min_ns", "Shortest", Fmt.TIME, "Shortest of them"),
    Field("max_ns", "Longest", Fmt.TIME, "Longest of them"),
    Field("stddev_ns", "Deviation", Fmt.TIME, "Standard deviation; null for a single one"),
    Field("variation", "Variation", Fmt.SHARE, "Standard deviation over the mean"),
    Field(
        "gpu_share", "GPU busy", Fmt.SHARE, "GPU busy time of the kept steps over what they took"
    ),
    Field("outliers", "Outliers", Fmt.COUNT, "Kept steps unlike the others"),
    Field("window_ns", "Window", Fmt.TIME, "From the first kept step to the end of the last"),
)


def steps(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
) -> Composite | NotApplicable:
    """Describe the steps of a capture; the keywords choose which are kept, as in `step_window`."""
    chosen = step_window(trace, selection, steps=steps, window=window, warmup=warmup)
    if isinstance(chosen, NotApplicable):
        return replace(chosen, command="steps")
    if not chosen.steps:
        reasons = (n.removeprefix(NO_STEPS) for n in chosen.notes if n.startswith(NO_STEPS))
        return absent(trace, next(reasons, "no whole step lies in the window"))
    table = _table(trace, chosen)
    return Composite(
        "steps",
        "Steps" + (f" of {selection.within}" if selection.within else ""),
        _facts(chosen, table.frame),
        (table, _phases(trace, chosen)),
        meta={"start_ns": chosen.start_ns, "end_ns": chosen.end_ns},
        notes=chosen.notes,
    )


def _table(trace: Trace, chosen: StepWindow) -> TableResult:
    all_steps = sorted((*chosen.steps, *chosen.left_out), key=lambda step: step.start_ns)
    work = of_process(launched(trace), all_steps[0].process)
    launch_ns, kernels = work["launch_ns"].to_numpy(), (work["table"] == 0).to_numpy()
    kept = np.isin([s.start_ns for s in all_steps], [s.start_ns for s in chosen.steps])
    took = took_ns(work, all_steps)
    start, end = pl.col("start_ns"), pl.col("end_ns")
    frame = frame_of(tuple(all_steps)).with_columns(
        (end - start).alias("duration_ns"),
        pl.Series("took_ns", took),
        pl.Series("gpu_busy_ns", _busy_ns(work, all_steps)),
        pl.Series("lag_ns", done_ns(work, all_steps)) - end,
        pl.Series("kernels", count_in(launch_ns[kernels], all_steps)),
        pl.Series("gpu_ops", count_in(launch_ns, all_steps)),
        (start.shift(-1) - end).alias("pause_ns"),
        pl.Series("outlier", outliers(took, kept)),
        pl.Series("kept", kept),
    )
    share = share_of(pl.col("gpu_busy_ns"), pl.col("took_ns")).alias("gpu_share")
    slow = pl.col("took_ns") > pl.col("took_ns").median()
    remark = (
        pl.when(~pl.col("kept"))
        .then(pl.lit("left out"))
        .when(pl.col("outlier"))
        .then(pl.when(slow).then(pl.lit("slow")).otherwise(pl.lit("fast")))
    )
    frame = frame.with_columns(share, remark.alias("remark")).select(f.key for f in STEP_FIELDS)
    return TableResult("steps", "Steps", shown_if_filled(STEP_FIELDS, frame), frame)


def _busy_ns(work: pl.DataFrame, steps: list[TraceStep]) -> Ints:
    """Measure the time in which any GPU work that each step launched ran."""
    rows, owner = rows_of_steps(work, steps)
    start, end = (work[c].to_numpy()[rows] for c in ("start_ns", "end_ns"))
    if not len(rows):
        return np.zeros(len(steps), np.int64)
    # Every step gets a span of time of its own, so that one union serves them all.
    low = int(start.min())
    span = int(end.max()) - low + 1
    union = Intervals.from_arrays(owner * span + start - low, owner * span + end - low)
    busy = np.zeros(len(steps), np.int64)
    np.add.at(busy, union.starts // span, union.ends - union.starts)
    return busy


def _facts(chosen: StepWindow, frame: pl.DataFrame) -> tuple[Fact, ...]:
    kept = frame.filter("kept")
    took = kept["took_ns"]
    spread, total = took.std(), int(took.sum())
    values = {
        "steps": frame.height,
        "kept": kept.height,
        "how": chosen.how,
        "median_ns": took.median(),
        "min_ns": took.min(),
        "max_ns": took.max(),
        "stddev_ns": spread,
        "variation": spread / took.mean() if spread is not None and total else None,  # type: ignore[operator]
        "gpu_share": int(kept["gpu_busy_ns"].sum()) / total if total else None,
        "outliers": int(kept["outlier"].sum()),
        "window_ns": chosen.length_ns,
    }
    return tuple(Fact(f.key, f.label, values[f.key], f.fmt, f.meaning) for f in FACTS)


def _phases(trace: Trace, chosen: StepWindow) -> TableResult | NotApplicable:
    """Sum up by phase the GPU work that the kept steps launched."""
    work = of_process(launched(trace), chosen.steps[0].process)
    work = work[rows_of_steps(work, chosen.steps)[0]]
    if work.is_empty():
        return NotApplicable("phases", "the steps launch no GPU work")
    took = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("gpu_ns")
    frame = (
        work.with_columns(phases_of_work(trace, work))
        .group_by("phase", maintain_order=True)
        .agg(took, pl.len().cast(pl.Int64).alias("gpu_ops"))
        .with_columns(
            share_of(pl.col("gpu_ns"), pl.col("gpu_ns").sum()).alias("share"),
            (pl.col("gpu_ns") / len(chosen.steps)).alias("step_ns"),
        )
        .sort(["gpu_ns", "phase"], descending=[True, False])
        .select(f.key for f in PHASE_FIELDS)
    )
    if frame["phase"].to_list() == [UNKNOWN]:
        return NO_PHASES
    return TableResult("phases", "GPU work by phase, in the kept steps", PHASE_FIELDS, frame)
