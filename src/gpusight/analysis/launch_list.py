"""Every GPU activity in order of time, with the call, operator and line that launched it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.aggregates import DURATION
from gpusight.analysis.attribution.work_causes import (
    WAYS,
    SelectedWork,
    WorkSelection,
    names_of_causes,
    selected_work,
    short_labels,
)
from gpusight.analysis.kernel_summary import graph_notes
from gpusight.analysis.launch_index import tables_with_rows
from gpusight.analysis.name_patterns import kernel_codes
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import EVERYTHING, GPU_WORK, Selection
from gpusight.results import Field, Fmt, NotApplicable, TableResult

if TYPE_CHECKING:
    from gpusight.trace.trace import Trace


FIELDS = (
    Field("start_ns", "Start", Fmt.TIME, "Start on the GPU, from the capture's origin"),
    Field("duration_ns", "Duration", Fmt.TIME, "Duration on the GPU"),
    Field(
        "delay_ns", "Latency", Fmt.TIME, "From the start of the API call to the start on the GPU"
    ),
    Field("queue_ns", "After call", Fmt.TIME, "From the end of that call; below 0 within", False),
    Field("kind", "Kind", Fmt.TEXT, "`kernel`, `copy`, `memset` or `graph`", shown=False),
    Field("device", "GPU", Fmt.ID, "GPU that it ran on", shown=False),
    Field("stream", "Stream", Fmt.ID, "CUDA stream that it ran on", shown=False),
    Field("correlation", "Correlation", Fmt.ID, "Links it to the launching call", shown=False),
    Field("short_name", "Activity", Fmt.NAME, "Readable label of the kernel, memcpy or memset"),
    Field("op", "Operator", Fmt.NAME, "Operator that launched it"),
    Field("found", "Matched by", Fmt.TEXT, "`op id`, `call`, `time` or `none`", shown=False),
    Field("forward_op", "Forward", Fmt.NAME, "Forward operator that it serves", shown=False),
    Field("range", "Range", Fmt.NAME, "Innermost range open at the launch", shown=False),
    Field("module", "Module", Fmt.NAME, "Innermost module open at the launch", shown=False),
    Field("call_site", "Called from", Fmt.NAME, "Function or line of the user's Python", False),
    Field("from_forward", "Forward's", Fmt.FLAG, "Module or line are the forward's", shown=False),
    Field("in_graph", "In graph", Fmt.FLAG, "It ran as part of a CUDA graph", shown=False),
    Field("call", "API call", Fmt.NAME, "API call that launched it", shown=False),
    Field("name", "Full name", Fmt.NAME, "Kernel name with template arguments", shown=False),
)
_CAUSES = ("op", "call_site", "module", "range", "call")
"""Columns with the origin of GPU work, the most specific first."""
_CAUSES_SHOWN = 2


def list_launches(
    trace: Trace, selection: Selection = EVERYTHING, *, kernel: str | None = None
) -> TableResult | NotApplicable:
    """List GPU work in order of time, with what launched it.

    `kernel` keeps the work whose name it matches: a glob, a regular expression (`/…/`), or a part
    of the name. Of a report of measured launches, those in order, with what was measured.
    """
    if not tables_with_rows(trace, GPU_WORK):
        if trace.has("profiles"):
            from gpusight.analysis.counters.measured_kernels import launch_table

            return launch_table(trace, selection, kernel=kernel)
        hint = advice_for(trace.meta).gpu
        return NotApplicable("launches", "the capture shows no GPU work", hint)
    scope = WorkSelection(trace, selection)
    work = selected_work(scope)
    rows = work.frame
    codes = rows["label"].unique().sort()
    if kernel is not None and len(codes):
        texts = zip(work.labels.gather(codes), short_labels(work.labels, codes), strict=True)
        matching = kernel_codes(dict(zip(codes, texts, strict=True)), kernel, "GPU work")
        rows = rows.filter(pl.col("label").is_in(matching))
    work = SelectedWork(rows.sort("start_ns", maintain_order=True), work.labels)
    frame = _rows(trace, work)
    found_by = work.found()
    notes = [*scope.notes, *work.notes, *graph_notes(trace, scope.selection.time)]
    unknown = frame["call"].null_count()
    if unknown:
        notes.append(f"{unknown:,} GPU activities have no launching call in the capture")
    return TableResult(
        "launches",
        "GPU activities in order of time",
        _fields(frame),
        frame,
        meta={
            "work": frame.height,
            "duration_ns": int(frame["duration_ns"].sum()),
            "found": {way: found_by.get(way, 0) for way in WAYS},
        },
        notes=tuple(notes),
    )


def _rows(trace: Trace, work: SelectedWork) -> pl.DataFrame:
    frame = work.frame
    calls = trace.table("api_calls", ["start_ns", "end_ns"]).select(
        pl.all().gather(frame["call"]).name.prefix("call_")
    )
    causes = names_of_causes(trace, frame)
    return (
        frame.drop(set(causes.columns) & set(frame.columns))
        .hstack(causes.get_columns())
        .hstack(calls.get_columns())
        .with_columns(
            DURATION,
            (pl.col("start_ns") - pl.col("call_start_ns")).alias("delay_ns"),
            (pl.col("start_ns") - pl.col("call_end_ns")).alias("queue_ns"),
            pl.col("kind", "found").cast(pl.String),
            work.labels.gather(frame["label"]).alias("name"),
            short_labels(work.labels, frame["label"]).alias("short_name"),
        )
        .select([f.key for f in FIELDS])
    )


def _fields(frame: pl.DataFrame) -> tuple[Field, ...]:
    """Show the known columns that are most specific about the origin of the work."""
    known = [c for c in _CAUSES if frame[c].null_count() < frame.height]
    shown = known[:_CAUSES_SHOWN] or ["call"]
    return tuple(replace(f, shown=f.key in shown) if f.key in _CAUSES else f for f in FIELDS)
