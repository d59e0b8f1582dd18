"""Kernels that were measured one by one: how long each took, and how busy it kept the GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
import polars.selectors as cs

from gpusight.analyses.counters import quantities as q
from gpusight.analyses.counters.choose import ProfileScope
from gpusight.analyses.counters.quantity import DURATION, measured
from gpusight.analyses.select import EVERYTHING, Selection
from gpusight.analyses.statistics import names_of, share_of, timing, timing_fields
from gpusight.model.kernel_names import classify
from gpusight.result import Field, Fmt, TableResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpusight.model.trace import Trace

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
"""What launches of one kernel have in common on average, weighted by their time."""
_FIXED = (q.REGISTERS, q.STATIC_SHARED)
"""What the compiler decided."""
QUANTITIES = (*_AVERAGED, *_FIXED, q.DYNAMIC_SHARED)

_MEASURED = (
    Field("sm_share", "SM", Fmt.SHARE, q.SM_SHARE.meaning),
    Field("memory_share", "Memory", Fmt.SHARE, q.MEMORY_SHARE.meaning),
    Field("dram_share", "DRAM", Fmt.SHARE, q.DRAM_SHARE.meaning),
    Field("l2_share", "L2", Fmt.SHARE, q.L2_SHARE.meaning, shown=False),
    Field("occupancy", "Occup.", Fmt.SHARE, q.OCCUPANCY.meaning),
    Field("blocks", "Blocks", Fmt.COUNT, "Blocks of the grid"),
    Field("theoretical_occupancy", "Theory", Fmt.SHARE, "Occupancy that its shape allows"),
    Field("registers", "Regs", Fmt.COUNT, q.REGISTERS.meaning),
    Field("shared_bytes", "Shared", Fmt.BYTES, "Shared memory of a block, static and dynamic"),
    Field("waves", "Waves", Fmt.REAL, q.WAVES.meaning),
    Field("block_threads", "Threads", Fmt.COUNT, "Threads of a block"),
    Field("static_shared_bytes", "Static", Fmt.BYTES, q.STATIC_SHARED.meaning, shown=False),
    Field("dynamic_shared_bytes", "Dynamic", Fmt.BYTES, q.DYNAMIC_SHARED.meaning, shown=False),
    Field("sm_clock_hz", "Clock Hz", Fmt.REAL, q.SM_CLOCK_HZ.meaning, shown=False),
    Field("grid", "Grid", Fmt.TEXT, "Blocks in x, y and z", shown=False),
    Field("block", "Block", Fmt.TEXT, "Threads of a block in x, y and z", shown=False),
    Field("device", "GPU", Fmt.ID, "GPU that it ran on", shown=False),
)
_NAMED = (
    Field("category", "Category", Fmt.TEXT, "What the kernel does, from its name", shown=False),
    Field("precision", "Precision", Fmt.TEXT, "Number format it computes in", shown=False),
    Field("tensor_core", "TensorCore", Fmt.FLAG, "Whether it uses tensor cores", shown=False),
    Field("short_name", "Kernel", Fmt.NAME, "Readable label made from the name"),
    Field("name", "Full name", Fmt.NAME, "Name with template arguments", shown=False),
)
_SHARE = Field("share", "Share", Fmt.SHARE, "Part of the time of all selected launches")
FIELDS = (_SHARE, *timing_fields("total_ns", "calls"), *_MEASURED, *_NAMED)
_LIMITS = (
    Field("roof_share", "Of roof", Fmt.SHARE, "How near to the roofline: 1 is at the roof"),
    Field("bound", "Bound by", Fmt.TEXT, "`compute`, `memory` or `latency`, for most of its time"),
)
SUMMARY_FIELDS = (_SHARE, *timing_fields("total_ns", "calls"), *_MEASURED, *_LIMITS, *_NAMED)
"""Those of `FIELDS`, and how near to what the GPU can do."""
LAUNCH_FIELDS = (
    Field("launch", "Launch", Fmt.ID, "The profiler's number of the launch"),
    Field("duration_ns", "Duration", Fmt.TIME, "Time that the GPU needed for it"),
    _SHARE,
    *_MEASURED,
    Field("stream", "Stream", Fmt.ID, "CUDA stream that it ran on", shown=False),
    Field("ranges", "Ranges", Fmt.NAME, "NVTX ranges open at the launch", shown=False),
    *_NAMED,
)
_SHAPE = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
_COLUMNS = ("name", "kind", "device", "stream", "ranges", *_SHAPE)
_GROUP = ("name", "device", *_SHAPE, "dynamic_shared_bytes")


def kernel_table(
    trace: Trace, selection: Selection = EVERYTHING, *, limits: bool = False
) -> TableResult:
    """Sum up measured launches by kernel and launch shape, the longest first.

    With `limits`, also how near to the roofline they came.
    """
    scope = ProfileScope(trace, selection)
    rows = _with_limits(trace, _launches(scope)) if limits else _launches(scope)
    total_ns = _total_ns(rows)
    frame = (
        rows.group_by(_GROUP, maintain_order=True)
        .agg(
            *timing(),
            *(weighed_mean(quantity.key) for quantity in _AVERAGED),
            *(pl.col(quantity.key).max() for quantity in _FIXED),
            *((weighed_mean("roof_share"), pl.col("bound").first()) if limits else ()),
            pl.col("launch").first(),
        )
        .with_columns(_known_total())
        .with_columns(share_of(pl.col("total_ns"), pl.lit(total_ns)).alias("share"))
        .sort(["total_ns", "launch"], descending=[True, False], nulls_last=True)
    )
    named = _with_names(_with_shape(frame), names_of(rows["name"]))
    fields = SUMMARY_FIELDS if limits else FIELDS
    return _result(scope, "kernels", "Kernels by GPU time", fields, named, rows)


def launch_table(
    trace: Trace, selection: Selection = EVERYTHING, *, kernel: str | None = None
) -> TableResult:
    """List measured launches in order."""
    scope = ProfileScope(trace, selection, kernel=kernel)
    rows = _launches(scope)
    share = share_of(pl.col(DURATION), pl.lit(_total_ns(rows))).alias("share")
    frame = _with_names(_with_shape(rows.with_columns(share)), names_of(rows["name"]))
    result = _result(scope, "launches", "Measured launches in order", LAUNCH_FIELDS, frame, rows)
    told = frame["ranges"].null_count() < frame.height
    fields = tuple(replace(f, shown=told) if f.key == "ranges" else f for f in result.fields)
    return replace(result, fields=fields)


def by_duration(result: TableResult) -> TableResult:
    """Put the longest launches first."""
    frame = result.frame.sort("duration_ns", descending=True, nulls_last=True, maintain_order=True)
    fields = tuple(replace(f, shown=f.shown and f.key != "ranges") for f in result.fields)
    return replace(
        result, command="kernels", title="Launches by GPU time", fields=fields, frame=frame
    )


def _launches(scope: ProfileScope) -> pl.DataFrame:
    # A measurement that failed is NaN in the report, which would spread to every sum.
    frame = measured(scope.trace, QUANTITIES, _COLUMNS).with_columns(cs.float().fill_nan(None))
    if scope.everything:
        return frame
    return frame.filter(pl.col("launch").is_in(scope.launches().implode()))


def _total_ns(rows: pl.DataFrame) -> float:
    return float(rows[DURATION].sum())


def _known_total() -> pl.Expr:
    """Null a sum of nothing: launches without a duration did not take no time."""
    return pl.when(pl.col("mean_ns").is_not_null()).then(pl.col("total_ns")).alias("total_ns")


def weighed_mean(column: str, weight: str = DURATION) -> pl.Expr:
    """Average over launches by their time; plainly where no time was measured."""
    value, time = pl.col(column), pl.col(weight)
    weighed = (value * time).sum() / time.filter(value.is_not_null()).sum()
    return pl.when((value * time).sum() > 0).then(weighed).otherwise(value.mean()).alias(column)


def prevailing(
    frame: pl.DataFrame, by: Sequence[str], column: str, weight: str = DURATION
) -> pl.DataFrame:
    """Give every row the value of `column` that holds for most of its group's time."""
    time = pl.col(weight).fill_null(0.0).sum().alias("_time")
    most = (
        frame.filter(pl.col(column).is_not_null())
        .group_by(*by, column)
        .agg(time)
        .sort(["_time", column], descending=[True, False])
        .unique(by, keep="first", maintain_order=True)
        .drop("_time")
    )
    rest = frame.drop(column)
    return rest.join(most, on=list(by), how="left", nulls_equal=True, maintain_order="left")


def _with_limits(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    from gpusight.analyses.roofline.points import points

    under = points(trace).select("launch", "roof_share", "bound")
    both = rows.join(under, on="launch", how="left", maintain_order="left")
    return prevailing(both, _GROUP, "bound")


def _with_shape(frame: pl.DataFrame) -> pl.DataFrame:
    grid, block = _SHAPE[:3], _SHAPE[3:]
    static, dynamic = pl.col("static_shared_bytes"), pl.col("dynamic_shared_bytes")
    return frame.with_columns(
        _product(grid).alias("blocks"),
        _product(block).alias("block_threads"),
        pl.concat_str(grid, separator="x").alias("grid"),
        pl.concat_str(block, separator="x").alias("block"),
        (static + dynamic).alias("shared_bytes"),
    )


def _product(columns: Iterable[str]) -> pl.Expr:
    x, y, z = (pl.col(c) for c in columns)
    return x * y * z


def _with_names(frame: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """Add what the name tells; each distinct name is looked at once."""
    codes = frame["name"].to_physical().to_list()
    known = {code: classify(names[code]) for code in set(codes)}
    return frame.with_columns(
        pl.col("name").cast(pl.String),
        pl.Series("short_name", [known[c].short for c in codes], pl.String),
        pl.Series("category", [str(known[c].category) for c in codes], pl.String),
        pl.Series("precision", [known[c].precision for c in codes], pl.String),
        pl.Series("tensor_core", [known[c].tensor_core for c in codes], pl.Boolean),
    )


def _result(
    scope: ProfileScope,
    command: str,
    title: str,
    fields: tuple[Field, ...],
    frame: pl.DataFrame,
    rows: pl.DataFrame,
) -> TableResult:
    frame = frame.select([f.key for f in fields])
    return TableResult(
        command,
        title,
        tuple(replace(f, shown=f.shown and _filled(frame, f.key)) for f in fields),
        frame,
        meta={
            "kernels": rows.height,
            "kernel_names": rows["name"].n_unique(),
            "total_ns": _total_ns(rows) if _filled(rows, DURATION) else None,
            "any_gpu_busy_ns": None,
        },
        notes=_notes(scope, rows),
    )


def _filled(frame: pl.DataFrame, column: str) -> bool:
    return frame.is_empty() or frame[column].null_count() < frame.height


def _notes(scope: ProfileScope, rows: pl.DataFrame) -> tuple[str, ...]:
    notes = list(scope.notes)
    if rows.is_empty():
        return (*notes, "no launch was measured inside the selection")
    untimed = rows[DURATION].null_count()
    if untimed:
        which = "the launches have" if untimed == rows.height else f"{untimed:,} launches have"
        which = "1 launch has" if untimed == 1 else which
        notes.append(
            f"{which} no duration; measure gpu__time_duration.sum (--section SpeedOfLight)"
        )
    others = rows.filter(pl.col("kind").cast(pl.String) != "kernel").height
    if others:
        notes.append(f"{others:,} of these are ranges or graphs that were measured as wholes")
    return tuple(notes)
