"""Kernels and launches of an ncu report: duration and utilization, and the report's overview."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.aggregates import (
    average,
    is_filled,
    prevailing,
    share_of,
    shown_if_filled,
    timing,
    timing_fields,
    weighed_mean,
)
from gpusight.analysis.capture_info import names_of_used
from gpusight.analysis.counters import launch_quantities as q
from gpusight.analysis.counters.counter_selection import LaunchSelection
from gpusight.analysis.counters.launch_quantities import DURATION, measured
from gpusight.analysis.kernel_summary import (
    SHAPE,
    classified,
    product,
    shape_texts,
    short_names,
    short_names_by_shape,
)
from gpusight.analysis.roofline.roofline_points import roofline_points
from gpusight.analysis.selection import EVERYTHING, Selection
from gpusight.results import Composite, Fact, Field, Fmt, TableResult
from gpusight.trace.schema_gpu import BLOCK, GRID

if TYPE_CHECKING:
    from gpusight.trace.trace import Trace


_AVERAGED = (
    q.SM_SHARE,
    q.MEMORY_SHARE,
    q.DRAM_SHARE,
    q.L2_SHARE,
    q.OCCUPANCY,
    q.THEORETICAL_OCCUPANCY,
    q.WAVES,
    q.SM_CLOCK_HZ,
)
"""Averaged over the launches of a kernel, weighted by their time."""
_COMPILED = (q.REGISTERS, q.STATIC_SHARED)
"""Fixed at compile time."""

_MEASURED = (
    Field("sm_share", "SM", Fmt.SHARE, q.SM_SHARE.meaning),
    Field("memory_share", "Memory", Fmt.SHARE, q.MEMORY_SHARE.meaning),
    Field("dram_share", "DRAM", Fmt.SHARE, q.DRAM_SHARE.meaning),
    Field("bound", "Bound by", Fmt.TEXT, "`compute`, `memory` or `latency`, for most of its time"),
    Field("roof_share", "Roofline", Fmt.SHARE, "Achieved share of the roofline", shown=False),
    Field("l2_share", "L2", Fmt.SHARE, q.L2_SHARE.meaning, shown=False),
    Field("occupancy", "Occup.", Fmt.SHARE, q.OCCUPANCY.meaning),
    Field("blocks", "Blocks", Fmt.COUNT, "Grid size in blocks"),
    Field("theoretical_occupancy", "Theory", Fmt.SHARE, "Theoretical occupancy"),
    Field("registers", "Regs", Fmt.COUNT, q.REGISTERS.meaning),
    Field("shared_bytes", "Shared", Fmt.BYTES, "Shared memory per block, static and dynamic"),
    Field("waves", "Waves", Fmt.REAL, q.WAVES.meaning),
    Field("block_threads", "Threads", Fmt.COUNT, "Threads per block"),
    Field("static_shared_bytes", "Static", Fmt.BYTES, q.STATIC_SHARED.meaning, shown=False),
    Field("dynamic_shared_bytes", "Dynamic", Fmt.BYTES, q.DYNAMIC_SHARED.meaning, shown=False),
    Field("sm_clock_hz", "Clock Hz", Fmt.REAL, q.SM_CLOCK_HZ.meaning, shown=False),
    Field("grid", "Grid", Fmt.TEXT, "Blocks in x, y and z", shown=False),
    Field("block", "Block", Fmt.TEXT, "Threads per block in x, y and z", shown=False),
    Field("device", "GPU", Fmt.ID, "GPU of the launch", shown=False),
)
_NAMED = (
    Field("category", "Category", Fmt.TEXT, "What the kernel does, from its name", shown=False),
    Field("precision", "Precision", Fmt.TEXT, "Number format it computes in", shown=False),
    Field("tensor_core", "TensorCore", Fmt.FLAG, "Whether it uses Tensor Cores", shown=False),
    Field("short_name", "Kernel", Fmt.NAME, "Short kernel name"),
    Field("name", "Full name", Fmt.NAME, "Name with template arguments", shown=False),
)
_SHARE = Field("share", "Share", Fmt.SHARE, "Share of the time of all selected launches")
FIELDS = (_SHARE, *timing_fields("total_ns", "calls"), *_MEASURED, *_NAMED)
LAUNCH_FIELDS = (
    Field("launch", "Launch", Fmt.ID, "Launch ID in the report"),
    Field("duration_ns", "Duration", Fmt.TIME, "Duration on the GPU"),
    _SHARE,
    *_MEASURED,
    Field("stream", "Stream", Fmt.ID, "CUDA stream", shown=False),
    Field("ranges", "Ranges", Fmt.NAME, "NVTX ranges open at the launch", shown=False),
    *_NAMED,
)
_GROUP = ("name", "device", *SHAPE, "dynamic_shared_bytes")
"""Launches equal in these are one row of the table of kernels."""


def kernel_table(trace: Trace, selection: Selection = EVERYTHING) -> TableResult:
    """Sum up measured launches by kernel and launch shape, the longest first."""
    scope = LaunchSelection(trace, selection)
    rows = prevailing(_measured_launches(scope), _GROUP, "bound")
    # The sum of no durations is not known, rather than 0.
    known_total = pl.when(pl.col("mean_ns").is_not_null()).then(pl.col("total_ns"))
    frame = (
        rows.group_by(_GROUP, maintain_order=True)
        .agg(
            *timing(),
            *(weighed_mean(quantity.key) for quantity in _AVERAGED),
            *(pl.col(quantity.key).max() for quantity in _COMPILED),
            weighed_mean("roof_share"),
            pl.col("bound").first(),
            pl.col("launch").first(),
        )
        .with_columns(known_total.alias("total_ns"))
        .with_columns(share_of(pl.col("total_ns"), pl.lit(_total_ns(rows))).alias("share"))
        .sort(["total_ns", "launch"], descending=[True, False], nulls_last=True)
    )
    return _result(scope, "kernels", "Kernels by GPU time", FIELDS, frame, rows)


def launch_table(
    trace: Trace, selection: Selection = EVERYTHING, *, kernel: str | None = None
) -> TableResult:
    """List measured launches in order."""
    scope = LaunchSelection(trace, selection, kernel=kernel)
    rows = _measured_launches(scope)
    frame = rows.with_columns(share_of(pl.col(DURATION), pl.lit(_total_ns(rows))).alias("share"))
    result = _result(scope, "launches", "Profiled launches in order", LAUNCH_FIELDS, frame, rows)
    has_ranges = rows["ranges"].null_count() < rows.height
    fields = tuple(replace(f, shown=has_ranges) if f.key == "ranges" else f for f in result.fields)
    return replace(result, fields=fields)


def by_duration(result: TableResult) -> TableResult:
    """Put the longest launches first."""
    frame = result.frame.sort("duration_ns", descending=True, nulls_last=True, maintain_order=True)
    fields = tuple(replace(f, shown=f.shown and f.key != "ranges") for f in result.fields)
    return replace(
        result, command="kernels", title="Launches by GPU time", fields=fields, frame=frame
    )


def _measured_launches(scope: LaunchSelection) -> pl.DataFrame:
    """Return the selected launches in order, with all columns that the tables need."""
    quantities = (*_AVERAGED, *_COMPILED, q.DYNAMIC_SHARED)
    frame = measured(
        scope.trace, quantities, ("name", "kind", "device", "stream", "ranges", *SHAPE)
    )
    points = roofline_points(scope.trace).select("launch", "roof_share", "bound")
    frame = frame.join(points, on="launch", how="left", maintain_order="left")
    if scope.everything:
        return frame
    return frame.filter(pl.col("launch").is_in(scope.launches().implode()))


def _total_ns(rows: pl.DataFrame) -> float:
    return float(rows[DURATION].sum())


def _result(
    scope: LaunchSelection,
    command: str,
    title: str,
    fields: tuple[Field, ...],
    frame: pl.DataFrame,
    rows: pl.DataFrame,
) -> TableResult:
    names = classified(frame["name"])
    by_shape = "calls" in frame.columns
    frame = frame.with_columns(
        product(GRID).alias("blocks"),
        product(BLOCK).alias("block_threads"),
        *shape_texts(),
        (pl.col("static_shared_bytes") + pl.col("dynamic_shared_bytes")).alias("shared_bytes"),
        pl.col("name").cast(pl.String),
        short_names_by_shape(frame) if by_shape else short_names(frame["name"]),
        pl.Series("category", [str(name.category) for name in names], pl.String),
        pl.Series("precision", [name.precision for name in names], pl.String),
        pl.Series("tensor_core", [name.tensor_core for name in names], pl.Boolean),
    ).select([f.key for f in fields])
    return TableResult(
        command,
        title,
        shown_if_filled(fields, frame),
        frame,
        meta={
            "kernels": rows.height,
            "kernel_names": rows["name"].n_unique(),
            "total_ns": _total_ns(rows) if is_filled(rows, DURATION) else None,
            "any_gpu_busy_ns": None,
        },
        notes=_notes(scope, rows),
    )


def _notes(scope: LaunchSelection, rows: pl.DataFrame) -> tuple[str, ...]:
    notes = list(scope.notes)
    if rows.is_empty():
        return (*notes, "no profiled launch in the selection")
    untimed = rows[DURATION].null_count()
    if untimed:
        subject = "the launches have" if untimed == rows.height else f"{untimed:,} launches have"
        subject = "1 launch has" if untimed == 1 else subject
        notes.append(
            f"{subject} no duration; collect gpu__time_duration.sum (--section SpeedOfLight)"
        )
    others = rows.filter(pl.col("kind").cast(pl.String) != "kernel").height
    if others:
        what = "is a range or graph that was profiled as a whole"
        many = "are ranges or graphs that were profiled as a whole"
        notes.append(f"{others:,} of these {what if others == 1 else many}")
    return tuple(notes)


_TOP_KERNELS = 10
_SHOWN = ("share", "total_ns", "calls", "sm_share", "memory_share", "dram_share",
          "roof_share", "bound", "short_name")  # fmt: skip
_AVERAGES = (
    ("sm_share", "SMs busy", "SM throughput, weighted by time"),
    ("memory_share", "Memory busy", "Memory throughput, caches included, weighted by time"),
    ("dram_share", "DRAM busy", "DRAM throughput, weighted by time"),
    ("occupancy", "Occupancy", "Achieved occupancy, weighted by time"),
    ("roof_share", "Roofline", "Achieved share of the roofline, weighted by time"),
)
_NEXT = "bottlenecks and fixes: gpusight diagnose FILE"


def overview(trace: Trace, selection: Selection = EVERYTHING) -> Composite:
    """Summarize on one screen where the time of the measured launches went."""
    table = kernel_table(trace, selection)
    wanted = (replace(f, shown=f.key in _SHOWN) for f in table.fields)
    fields = shown_if_filled(wanted, table.frame)
    frame = table.frame.head(_TOP_KERNELS)
    more = f": top {_TOP_KERNELS} of {table.frame.height:,}"
    title = table.title + (more if table.frame.height > frame.height else "")
    meta = table.meta
    gpus = names_of_used(trace, table.frame["device"])
    facts = [
        Fact("gpus", "GPU", gpus, Fmt.TEXT, "GPUs measured"),
        Fact("kernels", "Launches", meta["kernels"], Fmt.COUNT, "Profiled launches"),
        Fact("kernel_names", "Kernels", meta["kernel_names"], Fmt.COUNT, "Different kernels"),
        Fact("kernel_ns", "GPU time", meta["total_ns"], Fmt.TIME, "Sum of the kernel durations"),
    ]
    for key, label, meaning in _AVERAGES:
        facts.append(Fact(key, label, average(table.frame, key, "total_ns"), Fmt.SHARE, meaning))
    facts.append(Fact("bounds", "Bound by", _bounds(table.frame), Fmt.TEXT, "Share of the time"))
    return Composite(
        "summary",
        "Summary" + (f" of {selection.within}" if selection.within else ""),
        tuple(fact for fact in facts if fact.value is not None),
        (replace(table, fields=fields, frame=frame, title=title, notes=()),),
        meta={"path": trace.meta.path},
        notes=tuple(dict.fromkeys((*table.notes, *trace.meta.notes, _NEXT))),
    )


def _bounds(frame: pl.DataFrame) -> str | None:
    """Return the share of time by what bounds it: `memory 61%, latency 39%`."""
    total_ns = float(frame["total_ns"].sum())
    known = frame.filter(pl.col("bound").is_not_null())
    if not total_ns or known.is_empty():
        return None
    by_bound = known.group_by("bound").agg(pl.col("total_ns").sum())
    by_bound = by_bound.sort("total_ns", "bound", descending=[True, False])
    return ", ".join(f"{bound} {ns / total_ns:.0%}" for bound, ns in by_bound.iter_rows())
