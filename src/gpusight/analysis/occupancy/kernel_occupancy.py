"""Theoretical and achieved occupancy of the kernels of a capture, and the limiter of each."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.aggregates import share_of, shown_if_filled, weighed_mean
from gpusight.analysis.capture_info import device_names, names_of_used
from gpusight.analysis.kernel_summary import SHAPE as LAUNCH_SHAPE
from gpusight.analysis.kernel_summary import (
    graph_notes,
    no_kernels,
    shape_texts,
    short_names_by_shape,
)
from gpusight.analysis.occupancy.block_occupancy import (
    REGISTER_CHANGE,
    SHARED_MEMORY_CHANGE,
    changes,
    detail,
    furthest_reduction,
    named_limits,
)
from gpusight.analysis.occupancy.launch_occupancy import (
    SHAPE,
    device_rows,
    join_answers,
    limits_of_row,
    profiled_launches,
    shape_answers,
    shape_of,
    timeline_launches,
    varying,
)
from gpusight.analysis.selection import EVERYTHING, Selection
from gpusight.hardware.sm_limits import occupancy as work_out
from gpusight.hardware.sm_limits import whole_carve_out
from gpusight.naming.kernel_patterns import kernel_origin
from gpusight.results import Composite, Fact, Field, Fmt, NotApplicable, TableResult
from gpusight.units import format_mean, format_share

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpusight.analysis.occupancy.block_occupancy import OccupancyChange
    from gpusight.analysis.occupancy.launch_occupancy import OccupancyLaunches
    from gpusight.hardware.sm_limits import BlockShape, SmLimits
    from gpusight.trace.trace import Trace


_LIMITER_OF = {REGISTER_CHANGE: "registers", SHARED_MEMORY_CHANGE: "shared memory"}
FACTS = tuple(
    Fact(key, label, None, fmt, meaning)
    for key, label, fmt, meaning in (
        ("gpus", "GPU", Fmt.TEXT, "GPUs of the kernels, or the one given"),
        ("launches", "Launches", Fmt.COUNT, "Launches"),
        ("total_ns", "GPU time", Fmt.TIME, "Sum of their durations"),
        (
            "theoretical",
            "Theoretical occupancy",
            Fmt.SHARE,
            "Max. resident warps over the warp slots of an SM, weighted by time",
        ),
        (
            "achieved",
            "Achieved occupancy",
            Fmt.SHARE,
            "Resident warps over the warp slots of an active SM, weighted by time",
        ),
    )
)
"""The facts at the top, without their values; those that are not known are left out."""

FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Share of the time of all launches"),
    Field("theoretical", "Theory", Fmt.SHARE, "Theoretical occupancy"),
    Field("achieved", "Achieved", Fmt.SHARE, "Achieved occupancy"),
    Field("limiters", "Limited by", Fmt.TEXT, "Limiters of the resident blocks"),
    Field("short_name", "Kernel", Fmt.NAME, "Short kernel name"),
    Field("blocks", "Blocks/SM", Fmt.COUNT, "Max. resident blocks per SM"),
    Field("waves", "Waves", Fmt.REAL, "Waves per SM"),
    Field("calls", "Calls", Fmt.COUNT, "Launches of the kernel in this shape"),
    Field("total_ns", "Total", Fmt.TIME, "Sum of the launches' durations", shown=False),
    Field("remark", "Note", Fmt.NAME, "Whether it matters, and why achieved is lower", False),
    Field("change", "Change", Fmt.TEXT, "Most effective change to raise it", shown=False),
    Field("block_threads", "Block", Fmt.COUNT, "Threads per block", shown=False),
    Field("grid", "Grid", Fmt.TEXT, "Blocks in x, y and z", shown=False),
    Field("registers", "Regs", Fmt.COUNT, "Registers per thread", shown=False),
    Field("shared_bytes", "Shared", Fmt.BYTES, "Shared memory per block, as requested", False),
    Field("static_shared_bytes", "Static", Fmt.BYTES, "Fixed at compile time", shown=False),
    Field("dynamic_shared_bytes", "Dynamic", Fmt.BYTES, "Requested at launch", shown=False),
    Field("shared_config_bytes", "Carve-out", Fmt.BYTES, "Configured per SM", shown=False),
    Field("barriers", "Barriers", Fmt.COUNT, "Barriers per block", shown=False),
    Field("cluster_blocks", "Cluster", Fmt.COUNT, "Blocks per cluster", shown=False),
    Field("warps", "Warps/SM", Fmt.COUNT, "Max. resident warps per SM", shown=False),
    *(
        Field(f"limit_{name}", label, Fmt.COUNT, f"Max. resident blocks by {what} alone", False)
        for name, label, what in (
            ("warps", "By warps", "warp slots"),
            ("blocks", "By blocks", "the block limit"),
            ("registers", "By regs", "registers"),
            ("shared_memory", "By shared", "shared memory"),
            ("barriers", "By barriers", "barriers"),
        )
    ),
    Field("reported", "Reported", Fmt.SHARE, "Theoretical, from the report", shown=False),
    Field("change_theoretical", "After it", Fmt.SHARE, "Theoretical after the change", False),
    Field("block_for_more", "Block for more", Fmt.COUNT, "Nearest better block size", False),
    Field(
        "registers_for_more", "Regs for more", Fmt.COUNT, "Registers for higher occupancy", False
    ),
    Field(
        "shared_for_more_bytes",
        "Shared for more",
        Fmt.BYTES,
        "Shared memory for higher occupancy",
        shown=False,
    ),
    Field("sm_share", "SM", Fmt.SHARE, "SM throughput", shown=False),
    Field("memory_share", "Memory", Fmt.SHARE, "Memory throughput", shown=False),
    Field("device", "GPU", Fmt.ID, "GPU of the launch", shown=False),
    Field("name", "Full name", Fmt.NAME, "Name with template arguments", shown=False),
)
LIMITER_FIELDS = (
    Field("limiters", "Limited by", Fmt.TEXT, "Limiter of the resident blocks"),
    Field("share", "Share", Fmt.SHARE, "Share of the time of all launches"),
    Field("total_ns", "Total", Fmt.TIME, "Sum of the launches' durations"),
    Field("calls", "Calls", Fmt.COUNT, "Launches"),
    Field("theoretical", "Theory", Fmt.SHARE, "Theoretical occupancy, weighted by time"),
    Field("achieved", "Achieved", Fmt.SHARE, "Achieved occupancy, weighted by time"),
)
ADVICE_FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Share of the time of all launches"),
    Field("theoretical", "Theory", Fmt.SHARE, "Theoretical occupancy"),
    Field("after", "After", Fmt.SHARE, "Theoretical occupancy after the change"),
    Field("advice", "Change or note", Fmt.TEXT, "What to change, or a remark"),
    Field("short_name", "Kernel", Fmt.NAME, "Short kernel name"),
    Field("kind", "Kind", Fmt.TEXT, "`change` or `remark`", shown=False),
    Field("name", "Full name", Fmt.NAME, "Name with template arguments", shown=False),
)


_WARP = 32
"""Threads of a warp, of every NVIDIA GPU."""
_FULL_SHARE = 0.9999
"""Profilers print percentages rounded."""
_MIN_GAP = 0.10
"""Achieved occupancy this far below the theoretical one is remarked (as in Nsight Compute)."""
_NEAR_SHARE = 0.85
"""Where the theoretical one is low itself, less than this part of it is."""
_FULL_TAIL = 0.85
_BUSY_SHARE = 0.80
"""A kernel this near to what its busiest unit can do gains little from more warps."""


def _remarks(row: Mapping[str, Any]) -> list[str]:
    """Return what matters about a row of the table of kernels."""
    if row["refused"]:
        return [f"cannot be launched: {row['refused']}"]
    if row["theoretical"] is None:
        return []
    texts = [_gap(row)]
    size, active, sms, blocks = (
        row[key] for key in ("cluster_blocks", "active_clusters", "sm_count", "blocks")
    )
    if size and active and sms and blocks and active * size < blocks * sms:
        # Clusters need SMs of one GPC, and so leave room for blocks empty.
        texts.append(f"clusters of {size} fill {format_share(active * size / (blocks * sms))}")
    if row["theoretical"] < _FULL_SHARE:
        texts.append(_busy(row))
    threads = (row["block_threads"] or 0) % _WARP
    if threads:
        texts.append(f"last warp: {threads} of {_WARP} threads")
    return list(dict.fromkeys(text for text in texts if text))


def _gap(row: Mapping[str, Any]) -> str | None:
    """Explain why an SM held fewer warps than would have fit."""
    theoretical, achieved, waves = row["theoretical"], row["achieved"], row["waves"]
    if achieved is not None and achieved > max(theoretical - _MIN_GAP, theoretical * _NEAR_SHARE):
        return None
    if waves is not None and waves < 1:
        return f"small grid: {format_share(waves)} of a wave"
    if achieved is None:
        return None
    if waves is not None and waves / math.ceil(waves) < _FULL_TAIL:
        return f"tail: {format_mean(waves)} waves"
    return _busy(row) or "short or imbalanced blocks"


def _busy(row: Mapping[str, Any]) -> str | None:
    """Remark that more warps could not make the kernel much faster."""
    units = (("SMs", row["sm_share"]), ("memory", row["memory_share"]))
    name, share = max(units, key=lambda unit: unit[1] or 0)
    if not share or share < _BUSY_SHARE:
        return None
    return f"{name} already {format_share(share)} busy"


_GROUP = (*SHAPE, "grid_blocks", *LAUNCH_SHAPE)
_AVERAGED = ("theoretical", "achieved", "reported", "waves", "sm_share", "memory_share")
_OF_LAUNCH = ("computed", "blocks", "limiters")
"""What each launch needs of what its shape allows; kernels, which are fewer, get the rest."""
_REMARKED = (
    *("refused", "theoretical", "achieved", "waves", "blocks", "block_threads"),
    *("cluster_blocks", "active_clusters", "sm_count", "sm_share", "memory_share"),
)
"""What remarks depend on: few rows differ in it where a kernel has many grids."""
_SECTIONS_HINT = "collect with: ncu --section LaunchStats --section Occupancy …"
_LIBRARIES = "no changes are listed for kernels of libraries and frameworks (cuBLAS, PyTorch)"
_MAX_ROUNDING = 0.002
"""Printed percentages are rounded."""


def occupancy(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    kernel: str | None = None,
    gpu: str | None = None,
    closely: bool = False,
) -> Composite | NotApplicable:
    """Compute how many warps the kernels have on an SM, what limits them, and what raises it.

    `kernel` keeps the kernels that a glob or a part of the name matches; the tables of the one that
    took longest then follow, as they do with `closely`. `gpu` computes it for another GPU.
    """
    if not trace.has("profiles") and not trace.has("kernels"):
        return no_kernels(trace, "occupancy")
    other = None if gpu is None else named_limits(gpu)
    take = profiled_launches if trace.has("profiles") else timeline_launches
    launches = take(trace, selection, kernel)
    if other is not None:
        # What was measured on another kind of GPU than the requested one does not count.
        major, minor = pl.col("compute_major"), pl.col("compute_minor").fill_null(0)
        elsewhere = (major != other.major) | (minor != other.minor)
        lost = ("achieved", "sm_share", "memory_share", "reported", "active_clusters", "sm_count")
        kept = (pl.when(elsewhere).then(None).otherwise(pl.col(key)).alias(key) for key in lost)
        launches = replace(launches, frame=launches.frame.with_columns(kept))
    slots = pl.col("blocks") * pl.col("sm_count")
    answers = shape_answers(launches, other)
    rows = join_answers(launches.frame, answers.select(*SHAPE, *_OF_LAUNCH)).with_columns(
        pl.coalesce("computed", "reported").alias("theoretical"),
        pl.when(slots > 0).then(pl.col("grid_blocks") / slots).alias("waves"),
    )
    absent = _absent(trace, launches, rows)
    if absent is not None:
        return absent
    frame = join_answers(_kernels(rows), answers)
    changeable = frame["change"].count()
    # The code and the launches of kernels of libraries are not the program's own to change.
    names = frame["name"].cast(pl.String).drop_nulls().unique()
    libraries = names.filter(pl.Series([bool(kernel_origin(n)) for n in names], dtype=pl.Boolean))
    own = ~pl.col("name").cast(pl.String).is_in(libraries.implode()).fill_null(value=False)
    frame = frame.with_columns(
        pl.when(own).then(pl.col(key)).alias(key) for key in ("change", "change_theoretical")
    )
    frame = frame.with_columns(short_names_by_shape(frame))
    known = frame.select(_REMARKED).unique(maintain_order=True)
    remarks = [_remarks(row) for row in known.iter_rows(named=True)]
    known = known.with_columns(pl.Series("remarks", remarks, pl.List(pl.String)))
    frame = frame.join(known, on=_REMARKED, how="left", nulls_equal=True, maintain_order="left")
    texts = pl.col("remarks").list.join("; ")
    shown = frame.with_columns(
        pl.col("name").cast(pl.String),
        shape_texts()[0],
        (pl.col("static_shared_bytes") + pl.col("dynamic_shared_bytes")).alias("shared_bytes"),
        pl.when(texts != "").then(texts).alias("remark"),
    ).select([field.key for field in FIELDS])
    details = _details(launches, frame, other) if kernel is not None or closely else ()
    return Composite(
        "occupancy",
        "Occupancy",
        _facts(trace, rows, gpu),
        (
            _limiters(rows),
            TableResult("kernels", "Occupancy by kernel", shown_if_filled(FIELDS, shown), shown),
            _advice(launches, frame, other),
            *details,
        ),
        meta={"launches": rows.height, "measured": launches.measured},
        notes=(
            *launches.notes,
            *graph_notes(trace),
            *([_LIBRARIES] if frame["change"].count() < changeable else []),
            *_notes(launches, rows, frame, gpu),
        ),
    )


def _absent(trace: Trace, launches: OccupancyLaunches, rows: pl.DataFrame) -> NotApplicable | None:
    """Return why nothing is known, where that is so."""
    if rows.is_empty():
        return NotApplicable("occupancy", "no launch in the selection")
    if any(rows[key].null_count() < rows.height for key in ("theoretical", "achieved")):
        return None
    others = [row for row in device_rows(trace).values() if row["vendor"] not in (None, "NVIDIA")]
    if others:
        gpus = ", ".join(row["name"] or f"GPUs of {row['vendor']}" for row in others)
        return NotApplicable("occupancy", f"the SM limits of {gpus} are unknown")
    if rows["registers"].null_count() == rows.height:
        what = "the capture has no register counts"
        return NotApplicable("occupancy", what, _SECTIONS_HINT if launches.measured else "")
    if not launches.limits:
        names = names_of_used(trace, device_names(trace))
        what = f"the SM limits of {names} are unknown" if names else "the capture names no GPU"
        return NotApplicable("occupancy", what, "name a GPU: --gpu A100, --gpu sm_80")
    what = "the capture has no block resources (registers, shared memory)"
    return NotApplicable("occupancy", what, _SECTIONS_HINT if launches.measured else "")


def _kernels(rows: pl.DataFrame) -> pl.DataFrame:
    """Sum up launches by kernel and shape, the longest first."""
    total = rows["duration_ns"].sum() or 0
    keys = varying(rows, _GROUP)
    same = [key for key in _GROUP if key not in keys]
    known = [key for key in _AVERAGED if rows[key].count()]
    unknown = [key for key in _AVERAGED if key not in known]
    return (
        rows.group_by("name", *keys, maintain_order=True)
        .agg(
            *_sums(),
            *(weighed_mean(key) for key in known),
            *(pl.lit(None, pl.Float64).alias(key) for key in unknown),
            pl.col(*same, "cluster_blocks", "active_clusters", "sm_count").first(),
        )
        .with_columns(share_of(pl.col("total_ns"), pl.lit(total)).alias("share"))
        .sort("total_ns", descending=True, nulls_last=True, maintain_order=True)
    )


def _limiters(rows: pl.DataFrame) -> TableResult:
    """Sum up launches by what limits them, the longest first."""
    total = rows["duration_ns"].sum() or 0
    frame = (
        rows.with_columns(pl.col("limiters").fill_null("unknown"))
        .group_by("limiters", maintain_order=True)
        .agg(*_sums(), weighed_mean("theoretical"), weighed_mean("achieved"))
        .with_columns(share_of(pl.col("total_ns"), pl.lit(total)).alias("share"))
        .sort(["total_ns", "calls"], descending=True, nulls_last=True, maintain_order=True)
        .select([field.key for field in LIMITER_FIELDS])
    )
    fields = shown_if_filled(LIMITER_FIELDS, frame)
    return TableResult("limiters", "Occupancy limiters", fields, frame)


def _sums() -> tuple[pl.Expr, pl.Expr]:
    """Count launches and add up their time; null when no time was measured."""
    time = pl.col("duration_ns")
    return (
        pl.len().cast(pl.Int64).alias("calls"),
        pl.when(time.count() > 0).then(time.sum()).alias("total_ns"),
    )


def _advice(
    launches: OccupancyLaunches, frame: pl.DataFrame, other: SmLimits | None
) -> TableResult:
    """List for each kernel what would raise its occupancy, and what else matters.

    Kernels of libraries and frameworks get no changes: their blocks are not the user's to change.
    """
    keys = [*SHAPE, "limiters", "waves", "blocks"]
    shapes = frame.select(keys).unique(maintain_order=True)
    options = [_options(launches, row, other) for row in shapes.iter_rows(named=True)]
    changed = shapes.with_columns(pl.Series("change", options, pl.List(_CHANGE)))
    names = frame["name"].cast(pl.String)
    distinct = names.unique()
    origins = [bool(kernel_origin(name or "")) for name in distinct]
    own = ~names.is_in(distinct.filter(pl.Series(origins, dtype=pl.Boolean)).implode())
    of_kernel = ("share", "theoretical", "short_name", names.alias("name"))
    rows = frame.select(*of_kernel, *keys, "remarks").with_row_index("at")
    own_rows = rows.filter(own.fill_null(value=True))
    change = (
        own_rows.join(changed, on=keys, nulls_equal=True, maintain_order="left")
        .filter(pl.col("change").list.len() > 0)
        .explode("change")
        .unnest("change")
        .with_columns(pl.lit("change").alias("kind"))
    )
    remark = (
        rows.filter(pl.col("remarks").list.len() > 0)
        .explode("remarks")
        .with_columns(
            pl.lit(None, pl.Float64).alias("after"),
            pl.col("remarks").alias("advice"),
            pl.lit("remark").alias("kind"),
        )
    )
    columns = [field.key for field in ADVICE_FIELDS]
    # Changes of a kernel come before what is remarked of it.
    advice = pl.concat([part.select("at", *columns) for part in (change, remark)])
    advice = advice.sort("at", maintain_order=True).drop("at")
    return TableResult("advice", "Advice", ADVICE_FIELDS, advice)


_CHANGE = pl.Struct({"advice": pl.String, "after": pl.Float64})


def _options(
    launches: OccupancyLaunches, row: dict[str, Any], other: SmLimits | None
) -> list[dict[str, Any]]:
    """List what raises the occupancy of a shape, and by how much."""
    block = _block_of(launches, row, other)
    if block is None:
        return []
    return [
        {"advice": change.text, "after": change.share}
        for option in changes(*block)
        for change in (option, _further(block, option, row))
        if change is not None
    ]


def _further(
    block: tuple[SmLimits, BlockShape], change: OccupancyChange, row: dict[str, Any]
) -> OccupancyChange | None:
    """Go on from a nearest change to what `diagnose` estimates with; None where there is none."""
    resource = change.requests[0][0]
    if len(change.requests) > 1 or row["limiters"] != _LIMITER_OF.get(resource):
        return None
    per_sm = None if row["waves"] is None else math.ceil(row["waves"] * row["blocks"])
    return furthest_reduction(*block, resource, per_sm)


def _details(
    launches: OccupancyLaunches, frame: pl.DataFrame, other: SmLimits | None
) -> tuple[TableResult, ...]:
    """Return the tables of the first kernel whose shape is known."""
    for row in frame.iter_rows(named=True):
        block = _block_of(launches, row, other)
        if block is not None:
            label = row["short_name"]
            tables = detail(*block, work_out(*block))
            achieved = {"achieved": row["achieved"]}
            return tuple(
                replace(t, title=f"{t.title}: {label}", meta={**t.meta, **achieved}) for t in tables
            )
    return ()


def _block_of(
    launches: OccupancyLaunches, row: dict[str, Any], other: SmLimits | None
) -> tuple[SmLimits, BlockShape] | None:
    """Return the limits and the shape behind a row; None where they are not known."""
    limits = other or limits_of_row(launches, row)
    shape = shape_of(row, limits)
    if limits is None or shape is None:
        return None
    return limits, shape if other is None else whole_carve_out(shape)


def _facts(trace: Trace, rows: pl.DataFrame, gpu: str | None) -> tuple[Fact, ...]:
    averages = rows.select(*_sums(), weighed_mean("theoretical"), weighed_mean("achieved")).row(
        0, named=True
    )
    values: dict[str, Any] = {
        **averages,
        "gpus": gpu or names_of_used(trace, rows["device"].unique()),
        "launches": rows.height,
    }
    facts = (replace(fact, value=values[fact.key]) for fact in FACTS)
    return tuple(fact for fact in facts if fact.value is not None)


def _notes(
    launches: OccupancyLaunches, rows: pl.DataFrame, frame: pl.DataFrame, gpu: str | None
) -> Iterator[str]:
    unknown = rows["theoretical"].null_count()
    if unknown == rows.height:
        yield "no launch has its block resources recorded"
    elif unknown:
        yield f"{unknown:,} of {rows.height:,} launches without recorded block resources"
    if gpu is not None:
        yield f"computed for {gpu}; values measured on another GPU are left out"
    elif not launches.measured:
        yield ("a timeline has no achieved occupancy; collect it with: ncu --section Occupancy …")
    elif rows["achieved"].null_count() == rows.height:
        yield "the report has no achieved occupancy; collect it with: ncu --section Occupancy …"
    if frame["change"].drop_nulls().str.contains("registers").any():
        yield "fewer registers (__launch_bounds__, -maxrregcount) can cause spills"
    # The profiler's own theoretical occupancy may be another.
    differs = rows.filter((pl.col("computed") - pl.col("reported")).abs() > _MAX_ROUNDING)
    if differs.height:
        first = differs.row(0, named=True)
        yield (
            f"{'1 launch' if differs.height == 1 else f'{differs.height:,} launches'}: the report "
            f"has {format_share(first['reported'])}, computed {format_share(first['computed'])}"
            f"{'' if differs.height == 1 else ' (the first)'}"
        )
