"""What each NVTX range or annotation costs.

On the host, and on the GPU for the work it launched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.aggregates import DURATION, share_of, timing, timing_fields
from gpusight.analysis.range_projection import project_ranges
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import EVERYTHING, GPU_WORK, ResolvedSelection, Selection
from gpusight.results import Field, Fmt, NotApplicable, TableResult

if TYPE_CHECKING:
    from gpusight.trace.trace import Trace


_TIMING = {f.key: f for f in timing_fields("total_ns", "calls", "mean_ns")}


def _on_host(key: str, label: str) -> Field:
    field = _TIMING[key]
    return Field(key, label, field.fmt, f"{field.meaning}, on the host", field.shown)


FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Host time as part of the window; threads add up"),
    _on_host("total_ns", "Host"),
    Field("gpu_work_ns", "GPU work", Fmt.TIME, "GPU work launched by any thread while it was open"),
    Field(
        "gpu_total_ns",
        "Projected",
        Fmt.TIME,
        "From the first to the last GPU work launched by its thread, summed",
    ),
    Field("gpu_busy_ns", "GPU busy", Fmt.TIME, "GPU work launched by its thread", shown=False),
    Field("calls", "Times", Fmt.COUNT, "How often the range was entered"),
    _on_host("mean_ns", "Host mean"),
    Field("gpu_mean_ns", "Mean span", Fmt.TIME, "GPU span of those with GPU work", shown=False),
    _on_host("median_ns", "Host median"),
    _on_host("min_ns", "Host min"),
    _on_host("max_ns", "Host max"),
    _on_host("stddev_ns", "Host stddev"),
    Field("ops", "GPU ops", Fmt.COUNT, "Kernels, copies, fills and graphs launched", shown=False),
    Field("ops_each", "Ops each", Fmt.REAL, "GPU operations each time", shown=False),
    Field("threads", "Threads", Fmt.COUNT, "Threads that entered it", shown=False),
    Field("depth", "Depth", Fmt.COUNT, "Ranges around it, at the least", shown=False),
    Field("open", "Open", Fmt.COUNT, "How often it was never closed", shown=False),
    Field("kind", "Kind", Fmt.TEXT, "`push_pop` or `start_end`", shown=False),
    Field("domain", "Domain", Fmt.TEXT, "NVTX domain; empty for the default one", shown=False),
    Field("name", "Range", Fmt.NAME, "Text given by the program"),
)
BRIEF_FIELDS = tuple(f for f in FIELDS if f.key != "depth")

_KEYS = ["name", "domain", "kind"]
_ORDER = [True, *(False for _ in _KEYS)]
"""Longest first, then by the keys."""
# One number is grouped by faster than three names; a capture has few domains and three kinds.
_GROUP = (
    pl.col("name").to_physical().cast(pl.Int64) * (1 << 24)
    + pl.col("domain").to_physical().cast(pl.Int64).fill_null(0) * 4
    + pl.col("kind").to_physical().cast(pl.Int64)
).alias("group")
_COLUMNS = ["start_ns", "end_ns", *_KEYS, "open", "thread"]
_WORK = ("start_ns", "end_ns", "process", "correlation")
READS = {
    "ranges": (*_COLUMNS, "domain_key", "end_thread", "process"),
    "api_calls": ("start_ns", "end_ns", "thread", "process", "correlation"),
    **dict.fromkeys(GPU_WORK, _WORK),
}
_PROJECTED = ("ops", "work_ns", "busy_ns", "span_ns")


def ranges(
    trace: Trace, selection: Selection = EVERYTHING, *, top: int | None = None
) -> TableResult | NotApplicable:
    """Sum up ranges by name, domain and kind, those with most host time first.

    With `top`, only so many and without their depth, which takes longest to find;
    `meta["range_names"]` says how many there are.
    """
    if not trace.has("ranges"):
        advice = advice_for(trace.meta)
        return NotApplicable("ranges", f"the capture has no {advice.ranges_name}", advice.ranges)
    scope = ResolvedSelection(trace, selection)
    trace.read_together(READS)
    fields = FIELDS if top is None else BRIEF_FIELDS
    columns = [*_COLUMNS, "depth"] if top is None else _COLUMNS
    rows = scope.host("ranges", columns, row_index="range").with_columns(DURATION, _GROUP)
    marks = int((rows["kind"] == "mark").sum())
    rows = rows.filter(pl.col("kind") != "mark") if marks else rows
    projected, gpu_notes = _projected(scope)
    names, chosen = _longest(rows, top)
    frame = (
        chosen.hstack(_of(projected, chosen["range"]))
        .lazy()
        .group_by("group")
        .agg(pl.col(_KEYS).first(), *timing(), *_aggregates(columns))
        .with_columns(*_derived(scope.window.length_ns))
        .sort("total_ns", *_KEYS, descending=_ORDER)
        .select([f.key for f in fields])
        .collect()
    )
    never_closed = int(rows["open"].fill_null(value=False).sum())
    return TableResult(
        "ranges",
        "Ranges by host time",
        fields,
        frame,
        meta={
            "ranges": rows.height,
            "range_names": names,
            "marks": marks,
            "window_ns": scope.window.length_ns,
        },
        notes=(
            *scope.notes,
            *gpu_notes,
            *_notes(frame, never_closed, marks, advice_for(trace.meta).marks_name),
        ),
    )


def _longest(rows: pl.DataFrame, top: int | None) -> tuple[int, pl.DataFrame]:
    """Count the groups, and keep the rows of those with most host time."""
    totals = rows.group_by("group").agg(
        pl.col("duration_ns").sum(), pl.col(_KEYS).first().cast(pl.String)
    )
    if top is None or totals.height <= top:
        return totals.height, rows
    # Among equals those that come first in the whole table too.
    keep = totals.sort("duration_ns", *_KEYS, descending=_ORDER)["group"].head(top)
    return totals.height, rows.filter(pl.col("group").is_in(keep.implode()))


def _of(frame: pl.DataFrame, rows: pl.Series) -> list[pl.Series]:
    """Take these rows; nothing to do where they are all of them."""
    return (frame if len(rows) == frame.height else frame[rows]).get_columns()


def _projected(scope: ResolvedSelection) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Give the GPU work of every range of the trace, or nulls and the reason."""
    projection = project_ranges(scope.trace)
    if isinstance(projection, NotApplicable):
        unknown = pl.Series([None], dtype=pl.Int64)
        unknown = unknown.new_from_index(0, scope.trace.table("ranges", ["start_ns"]).height)
        return pl.DataFrame([unknown.alias(column) for column in _PROJECTED]), (
            f"GPU times are not known: {projection.reason}",
        )
    frame = projection.frame.select(
        "ops",
        "work_ns",
        pl.when(pl.col("launches") > 0).then("busy_ns").alias("busy_ns"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("span_ns"),
    )
    notes = []
    if scope.selection.device is not None:
        notes.append("GPU times of ranges count the work on all GPUs")
    if projection.crossing:
        crossing = "ranges were closed by another thread: they are not projected onto the GPU"
        notes.append(f"{projection.crossing:,} {crossing}")
    return frame, tuple(notes)


def _aggregates(columns: list[str]) -> list[pl.Expr]:
    depth = [pl.col("depth").min()] if "depth" in columns else []
    return [
        *depth,
        pl.col("span_ns").sum().alias("gpu_total_ns"),
        pl.col("span_ns").mean().alias("gpu_mean_ns"),
        pl.col("work_ns").sum().alias("gpu_work_ns"),
        pl.col("busy_ns").sum().alias("gpu_busy_ns"),
        pl.col("span_ns").count().alias("projected"),
        pl.col("ops").sum(),
        pl.col("thread").n_unique().cast(pl.Int64).alias("threads"),
        pl.col("open").fill_null(value=False).sum().cast(pl.Int64),
    ]


def _derived(window_ns: int) -> list[pl.Expr]:
    launched = pl.col("projected") > 0
    return [
        share_of(pl.col("total_ns"), window_ns).alias("share"),
        *(pl.when(launched).then(key).alias(key) for key in ("gpu_total_ns", "gpu_busy_ns")),
        pl.when(pl.col("gpu_work_ns") > 0).then("gpu_work_ns").alias("gpu_work_ns"),
        (pl.col("ops") / pl.col("calls")).alias("ops_each"),
        pl.col(_KEYS).cast(pl.String),
    ]


def _notes(frame: pl.DataFrame, never_closed: int, marks: int, marks_name: str) -> tuple[str, ...]:
    notes = []
    if never_closed:
        notes.append(f"{never_closed:,} ranges were never closed: they end with the capture")
    elsewhere = frame.filter(pl.col("gpu_work_ns") > 2 * pl.col("gpu_busy_ns").fill_null(0)).height
    if elsewhere:
        notes.append(
            f"{elsewhere:,} ranges have most of their GPU work launched by other threads: GPU work"
            " counts it, the projection onto the range's own thread does not"
        )
    if marks:
        notes.append(f"{marks:,} {marks_name} have no length and are not in the table")
    return tuple(notes)
