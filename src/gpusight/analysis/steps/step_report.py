"""Step by step: duration, GPU utilization, variation and phases: `steps`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import share_of, shown_if_filled
from gpusight.analysis.gpu_time import headline
from gpusight.analysis.launch_index import (
    count_in,
    done_ns,
    launched,
    of_process,
    rows_of_steps,
    took_ns,
)
from gpusight.analysis.selection import EVERYTHING, Selection
from gpusight.analysis.steps.program_phases import NO_PHASES, UNKNOWN, phases_of_work
from gpusight.analysis.steps.step_list import absent, frame_of
from gpusight.analysis.steps.step_window import step_spans, step_window
from gpusight.analysis.steps.unrepresentative_steps import outliers
from gpusight.analysis.steps.window_headline import StepWindow, WindowHeadline, WindowKind
from gpusight.results import Composite, Fact, Field, Fmt, NotApplicable, TableResult
from gpusight.trace.intervals import Intervals, coverage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace

    Mask = NDArray[np.bool_]


STEP_FIELDS = (
    Field("number", "Step", Fmt.ID, "Number of the step"),
    Field("start_ns", "Start", Fmt.TIME, "Start on the host"),
    Field(
        "took_ns",
        "Duration",
        Fmt.TIME,
        "From the end of the previous step's GPU work to the end of its own",
    ),
    Field("duration_ns", "Host", Fmt.TIME, "Duration on the host"),
    Field("gpu_busy_ns", "GPU busy", Fmt.TIME, "Part of the duration in which GPU work runs"),
    Field("gpu_share", "Share", Fmt.SHARE, "GPU busy time as part of the duration"),
    Field(
        "lag_ns",
        "GPU behind host",
        Fmt.TIME,
        "From its end on the host to the end of its GPU work",
    ),
    Field("kernels", "Kernels", Fmt.COUNT, "Kernels launched"),
    Field("gpu_ops", "GPU ops", Fmt.COUNT, "Kernels, memcpys, memsets, graphs launched", False),
    Field("pause_ns", "Gap to next", Fmt.TIME, "From its end on the host to the next step's start"),
    Field(
        "remark",
        "Note",
        Fmt.TEXT,
        "`excluded`, `slow`, `fast`; `pipeline fill`: the first step, longer only because the GPU "
        "has no earlier work to overlap with; null for a typical step",
    ),
    Field("outlier", "Outlier", Fmt.FLAG, "Much longer or shorter than the other steps", False),
    Field("kept", "Kept", Fmt.FLAG, "In the window: neither warm-up nor partial", False),
    Field("name", "Name", Fmt.NAME, "Name of the step's range", shown=False),
)
PHASE_FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Part of the GPU work of the steps in the window"),
    Field("gpu_ns", "GPU work", Fmt.TIME, "Sum of the durations of its GPU work"),
    Field("step_ns", "Per step", Fmt.TIME, "GPU work per step"),
    Field("gpu_ops", "GPU ops", Fmt.COUNT, "Kernels, memcpys, memsets and graphs"),
    Field("phase", "Phase", Fmt.TEXT, "Phase of the step; `unknown` where it has no evidence"),
)
FACTS = (
    Field("steps", "Steps", Fmt.COUNT, "Steps found"),
    Field("kept", "In window", Fmt.COUNT, "Steps in the window, without warm-up"),
    Field("how", "Detected by", Fmt.TEXT, "How steps are detected"),
    Field("step_ns", "Step time", Fmt.TIME, "Mean duration: length of the window per step"),
    Field("between_ns", "Between steps", Fmt.TIME, "Part of it between steps, with no GPU work"),
    Field("median_ns", "Median", Fmt.TIME, "Median duration of the steps in the window"),
    Field("min_ns", "Shortest", Fmt.TIME, "Shortest duration"),
    Field("max_ns", "Longest", Fmt.TIME, "Longest duration"),
    Field("stddev_ns", "Std. dev.", Fmt.TIME, "Standard deviation; null for a single step"),
    Field("variation", "CV", Fmt.SHARE, "Coefficient of variation: standard deviation / mean"),
    Field("gpu_share", "GPU busy", Fmt.SHARE, "Part of the window with GPU work, mean of the GPUs"),
    Field("outliers", "Outliers", Fmt.COUNT, "Steps much longer or shorter than the others"),
    Field("window_ns", "Window", Fmt.TIME, "From the first step to the end of the last"),
)
INNER_FACTS = (
    Field(
        "inner_count", "Inner iterations", Fmt.COUNT, "Of the loop inside each step; null for none"
    ),
    Field("inner_gpu_ops", "GPU ops each", Fmt.COUNT, "GPU activities of each inner iteration"),
    Field("inner_gpu_ns", "GPU time each", Fmt.TIME, "GPU time of each inner iteration"),
)
"""Of steps found by repetition that have a loop inside; null, and not in the text, for others."""


_NO_WHOLE_STEP = "the window contains no whole step"


def steps(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
) -> Composite | NotApplicable:
    """List the steps of a capture; the keywords choose the window, as in `step_window`."""
    chosen = step_window(trace, selection, steps=steps, window=window, warmup=warmup)
    if isinstance(chosen, NotApplicable):
        return replace(chosen, command="steps")
    if not chosen.steps:
        missing = absent(trace, chosen.no_steps or _NO_WHOLE_STEP)
        return replace(missing, hint=f"{missing.hint}{chosen.suggestions}")
    table = _table(trace, chosen)
    named = headline(trace, selection, chosen)
    return Composite(
        "steps",
        "Steps",
        _facts(trace, chosen, named, table.frame),
        (table, _phases(trace, chosen)),
        meta={
            "headline": named.document(),
            "start_ns": chosen.start_ns,
            "end_ns": chosen.end_ns,
            **(dict.fromkeys(f.key for f in INNER_FACTS) if chosen.inner_loop is None else {}),
        },
        notes=chosen.notes,
        window=named.text,
    )


def _table(trace: Trace, chosen: StepWindow) -> TableResult:
    all_steps = sorted((*chosen.steps, *chosen.left_out), key=lambda step: step.start_ns)
    work = of_process(launched(trace), all_steps[0].process)
    launch_ns, kernels = work["launch_ns"].to_numpy(), (work["table"] == 0).to_numpy()
    kept = np.isin([s.start_ns for s in all_steps], [s.start_ns for s in chosen.steps])
    done = done_ns(work, all_steps)
    ended = np.maximum.accumulate(done)
    own_ns = took_ns(work, all_steps)
    begun = ended - own_ns
    begun[kept], ended[kept] = step_spans(trace, chosen.steps)
    took = ended - begun
    outlier = _outliers(took, own_ns, kept)
    # The GPU is done with the first step later than the host by all that later steps overlap.
    first = int(np.argmax(kept))
    host_ns = np.array([step.end_ns - step.start_ns for step in all_steps], np.int64)
    fills = np.zeros(len(all_steps), np.bool_)
    if outlier[first] and begun[first] == all_steps[first].start_ns:
        took_then, own_then = (np.where(kept.cumsum() == 1, host_ns, ns) for ns in (took, own_ns))
        fills[first] = not _outliers(took_then, own_then, kept)[first]
        outlier &= ~fills
    # Work of the next step may run in one too: on another stream, or of another thread.
    busy = Intervals.from_arrays(work["start_ns"].to_numpy(), work["end_ns"].to_numpy())
    start, end = pl.col("start_ns"), pl.col("end_ns")
    frame = frame_of(tuple(all_steps)).with_columns(
        (end - start).alias("duration_ns"),
        pl.Series("took_ns", took),
        pl.Series("gpu_busy_ns", coverage(busy, begun, ended)),
        pl.Series("lag_ns", done) - end,
        pl.Series("kernels", count_in(launch_ns[kernels], all_steps)),
        pl.Series("gpu_ops", count_in(launch_ns, all_steps)),
        (start.shift(-1) - end).alias("pause_ns"),
        pl.Series("outlier", outlier),
        pl.Series("fills", fills),
        pl.Series("kept", kept),
    )
    share = share_of(pl.col("gpu_busy_ns"), pl.col("took_ns")).alias("gpu_share")
    slow = pl.col("took_ns") > pl.col("took_ns").median()
    remark = (
        pl.when(~pl.col("kept"))
        .then(pl.lit("excluded"))
        .when(pl.col("outlier"))
        .then(pl.when(slow).then(pl.lit("slow")).otherwise(pl.lit("fast")))
        .when(pl.col("fills"))
        .then(pl.lit("pipeline fill"))
    )
    frame = frame.with_columns(share, remark.alias("remark")).select(f.key for f in STEP_FIELDS)
    fields = shown_if_filled(STEP_FIELDS, frame)
    # Columns that add nothing: the host's time is the step's, the GPU is never behind the host.
    same = (frame["duration_ns"] == frame["took_ns"]).all()
    hidden = {"duration_ns": same, "lag_ns": not frame["lag_ns"].max()}
    fields = tuple(replace(f, shown=f.shown and not hidden.get(f.key)) for f in fields)
    return TableResult("steps", "Steps", fields, frame)


def _outliers(took: Ints, own_ns: Ints, kept: Mask) -> Mask:
    """Return which steps are much longer or shorter than the others.

    A pause before a step makes it slow, but a short one, or none before the first, not fast.
    """
    long: Mask = outliers(took, kept) & (took > np.median(took[kept]))
    return long | outliers(own_ns, kept)


def step_lengths(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
) -> dict[int, int]:
    """Return how long each step of the window takes, by number; they add up to the window.

    Of a window of time, which may cut steps, and without steps there are none.
    """
    chosen = step_window(trace, selection, steps=steps, window=window, warmup=warmup)
    whole = (WindowKind.STEPS, WindowKind.NUMBERED)
    if isinstance(chosen, NotApplicable) or not chosen.steps or chosen.kind not in whole:
        return {}
    begun, ended = step_spans(trace, chosen.steps)
    return dict(zip((s.number for s in chosen.steps), (ended - begun).tolist(), strict=True))


def _facts(
    trace: Trace, chosen: StepWindow, named: WindowHeadline, frame: pl.DataFrame
) -> tuple[Fact, ...]:
    kept = frame.filter("kept")
    # Between each step and the one before, when neither runs.
    starts = np.array([step.start_ns for step in chosen.steps], np.int64)
    ended = step_spans(trace, chosen.steps)[1]
    between_ns = float(np.maximum(starts[1:] - ended[:-1], 0).sum()) / kept.height
    took = kept["took_ns"]
    spread, total = took.std(), int(took.sum())
    values = {
        "steps": frame.height,
        "kept": kept.height,
        "how": chosen.how,
        "step_ns": chosen.step_ns,
        "between_ns": between_ns,
        "median_ns": took.median(),
        "min_ns": took.min(),
        "max_ns": took.max(),
        "stddev_ns": spread,
        "variation": spread / took.mean() if spread is not None and total else None,  # type: ignore[operator]
        "gpu_share": named.busy_share,
        "outliers": int(kept["outlier"].sum()),
        "window_ns": chosen.length_ns,
    }
    inner = chosen.inner_loop
    fields = FACTS if inner is None else (*FACTS, *INNER_FACTS)
    if inner is not None:
        own = (inner.count, inner.gpu_ops, inner.gpu_ns)
        values |= dict(zip((f.key for f in INNER_FACTS), own, strict=True))
    return tuple(Fact(f.key, f.label, values[f.key], f.fmt, f.meaning) for f in fields)


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
    return TableResult("phases", "GPU work by phase", PHASE_FIELDS, frame)
