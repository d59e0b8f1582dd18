"""How many warps the kernels of a capture could have on an SM, how many they had, and what limits.

See `gpusight.model.occupancy` for the rules. A row is a kernel with one shape: block size,
registers and shared memory. Averages over its launches are weighted by their time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analyses.devices import device_names, names_of_used
from gpusight.analyses.kernels import graph_notes, no_kernels
from gpusight.analyses.launch_columns import short_names
from gpusight.analyses.occupancy.answers import limits_of_row, shape_of, with_answers
from gpusight.analyses.occupancy.changes import changes
from gpusight.analyses.occupancy.fields import ADVICE_FIELDS, FACTS, FIELDS, LIMITER_FIELDS
from gpusight.analyses.occupancy.launches import SHAPE, profiled_launches, timeline_launches
from gpusight.analyses.occupancy.limits import device_rows, named_limits
from gpusight.analyses.occupancy.remarks import remarks
from gpusight.analyses.occupancy.tables import detail
from gpusight.analyses.select import EVERYTHING, Selection
from gpusight.analyses.statistics import share_of, shown_if_filled, weighed_mean
from gpusight.model.kernel_names import classify
from gpusight.model.occupancy import LIMITS, whole_carve_out
from gpusight.model.occupancy import occupancy as work_out
from gpusight.result import Composite, Fact, Fmt, NotApplicable, TableResult
from gpusight.units import format_share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.analyses.occupancy.launches import Launches
    from gpusight.model.occupancy import Shape
    from gpusight.model.sm_table import SmLimits
    from gpusight.model.trace import Trace

_GROUP = ("name", *SHAPE)
_AVERAGED = ("theoretical", "achieved", "reported", "waves", "sm_share", "memory_share")
_OF_SHAPE = (
    *("blocks", "warps", *(f"limit_{name}" for name in LIMITS), "limiters", "refused", "change"),
    *("change_theoretical", "block_for_more", "registers_for_more", "shared_for_more_bytes"),
    *("cluster_blocks", "active_clusters", "sm_count"),
)
_SECTIONS_HINT = "measure with: ncu --section LaunchStats --section Occupancy …"
_SAME = 0.002
"""Printed percentages are rounded."""


def occupancy(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    kernel: str | None = None,
    gpu: str | None = None,
    closely: bool = False,
) -> Composite | NotApplicable:
    """Say how many warps the kernels have on an SM, what limits them, and what would raise it.

    `kernel` keeps the kernels that a glob or a part of the name matches; the tables of the one that
    took longest then follow, as they do with `closely`. `gpu` asks how it would be on another GPU.
    """
    if not trace.has("profiles") and not trace.has("kernels"):
        return no_kernels(trace, "occupancy")
    other = None if gpu is None else named_limits(gpu)
    take = profiled_launches if trace.has("profiles") else timeline_launches
    launches = take(trace, selection, kernel)
    if other is not None:
        launches = _elsewhere(launches, other)
    rows = _known(with_answers(launches, other))
    absent = _absent(trace, launches, rows)
    if absent is not None:
        return absent
    frame = _kernels(rows)
    table = TableResult("kernels", "Occupancy by kernel", FIELDS, _named(frame))
    looked_at = _closely(launches, frame, other) if kernel is not None or closely else ()
    return Composite(
        "occupancy",
        "Occupancy",
        _facts(trace, rows, gpu),
        (
            _limiters(rows),
            replace(table, fields=shown_if_filled(FIELDS, table.frame)),
            _advice(launches, frame, other),
            *looked_at,
        ),
        meta={"launches": rows.height, "measured": launches.measured},
        notes=(*launches.notes, *graph_notes(trace), *_notes(launches, rows, gpu)),
    )


def _elsewhere(launches: Launches, other: SmLimits) -> Launches:
    """Leave out what was measured on another kind of GPU than the one asked about."""
    major, minor = pl.col("compute_major"), pl.col("compute_minor").fill_null(0)
    elsewhere = (major != other.major) | (minor != other.minor)
    lost = ("achieved", "sm_share", "memory_share", "reported", "active_clusters", "sm_count")
    frame = launches.frame.with_columns(
        pl.when(elsewhere).then(None).otherwise(pl.col(key)).alias(key) for key in lost
    )
    return replace(launches, frame=frame)


def _known(rows: pl.DataFrame) -> pl.DataFrame:
    """Add what follows for each launch from the shape's answer."""
    places = pl.col("blocks") * pl.col("sm_count")
    return rows.with_columns(
        pl.coalesce("computed", "reported").alias("theoretical"),
        pl.when(places > 0).then(pl.col("grid_blocks") / places).alias("waves"),
    )


def _absent(trace: Trace, launches: Launches, rows: pl.DataFrame) -> NotApplicable | None:
    """Say why nothing can be told, where that is so."""
    if rows.is_empty():
        return NotApplicable("occupancy", "no launch is inside the selection")
    if any(rows[key].null_count() < rows.height for key in ("theoretical", "achieved")):
        return None
    if others := ", ".join(_not_nvidia(trace)):
        return NotApplicable("occupancy", f"the limits of {others} are not known")
    if rows["registers"].null_count() == rows.height:
        what = "the capture does not say how many registers its kernels use"
        return NotApplicable("occupancy", what, _SECTIONS_HINT if launches.measured else "")
    if not launches.limits:
        names = names_of_used(trace, device_names(trace))
        what = f"the limits of {names} are not known" if names else "the capture names no GPU"
        return NotApplicable("occupancy", what, "name a GPU to ask about: --gpu A100, --gpu sm_80")
    what = "the capture does not say what its kernels ask of an SM"
    return NotApplicable("occupancy", what, _SECTIONS_HINT if launches.measured else "")


def _not_nvidia(trace: Trace) -> Iterator[str]:
    for row in device_rows(trace).values():
        if row["vendor"] not in (None, "NVIDIA"):
            yield row["name"] or f"GPUs of {row['vendor']}"


def _kernels(rows: pl.DataFrame) -> pl.DataFrame:
    """Sum up launches by kernel and shape, the longest first."""
    total = rows["duration_ns"].sum() or 0
    return (
        rows.group_by(_GROUP, maintain_order=True)
        .agg(
            *_sums(),
            *(weighed_mean(key) for key in _AVERAGED),
            *(pl.col(k).first() for k in _OF_SHAPE),
        )
        .with_columns(share_of(pl.col("total_ns"), pl.lit(total)).alias("share"))
        .sort("total_ns", descending=True, nulls_last=True, maintain_order=True)
    )


def _limiters(rows: pl.DataFrame) -> TableResult:
    """Sum up launches by what limits them, the longest first."""
    total = rows["duration_ns"].sum() or 0
    frame = (
        rows.with_columns(pl.col("limiters").fill_null("not known"))
        .group_by("limiters", maintain_order=True)
        .agg(*_sums(), weighed_mean("theoretical"), weighed_mean("achieved"))
        .with_columns(share_of(pl.col("total_ns"), pl.lit(total)).alias("share"))
        .sort(["total_ns", "calls"], descending=True, nulls_last=True, maintain_order=True)
        .select([field.key for field in LIMITER_FIELDS])
    )
    fields = shown_if_filled(LIMITER_FIELDS, frame)
    return TableResult("limiters", "What limits occupancy", fields, frame)


def _sums() -> tuple[pl.Expr, pl.Expr]:
    """Count launches and add up their time; null when no time was measured."""
    time = pl.col("duration_ns")
    return (
        pl.len().cast(pl.Int64).alias("calls"),
        pl.when(time.count() > 0).then(time.sum()).alias("total_ns"),
    )


def _named(frame: pl.DataFrame) -> pl.DataFrame:
    """Add what is told from the name and from the other columns."""
    rows = frame.iter_rows(named=True)
    return frame.with_columns(
        pl.col("name").cast(pl.String),
        short_names(frame["name"]),
        (pl.col("static_shared_bytes") + pl.col("dynamic_shared_bytes")).alias("shared_bytes"),
        pl.Series("remark", ["; ".join(remarks(row)) or None for row in rows], pl.String),
    ).select([field.key for field in FIELDS])


def _advice(launches: Launches, frame: pl.DataFrame, other: SmLimits | None) -> TableResult:
    """List for each kernel what would raise its occupancy, and what else matters."""
    rows: list[dict[str, Any]] = []
    for row in frame.iter_rows(named=True):
        of_kernel = {
            "share": row["share"],
            "theoretical": row["theoretical"],
            "short_name": classify(row["name"]).short,
            "name": row["name"],
        }
        found = _block_of(launches, row, other)
        rows += [
            {**of_kernel, "kind": "change", "advice": change.text, "after": change.share}
            for change in (changes(*found) if found else ())
        ]
        rows += [{**of_kernel, "kind": "remark", "advice": text} for text in remarks(row)]
    schema = {f.key: pl.Float64 if f.fmt is Fmt.SHARE else pl.String for f in ADVICE_FIELDS}
    return TableResult("advice", "What would help", ADVICE_FIELDS, pl.DataFrame(rows, schema))


def _closely(
    launches: Launches, frame: pl.DataFrame, other: SmLimits | None
) -> tuple[TableResult, ...]:
    """Give the tables of the first kernel whose shape is known."""
    for row in frame.iter_rows(named=True):
        found = _block_of(launches, row, other)
        if found is not None:
            label = classify(row["name"]).short
            tables = detail(*found, work_out(*found))
            achieved = {"achieved": row["achieved"]}
            return tuple(
                replace(t, title=f"{t.title}: {label}", meta={**t.meta, **achieved}) for t in tables
            )
    return ()


def _block_of(
    launches: Launches, row: dict[str, Any], other: SmLimits | None
) -> tuple[SmLimits, Shape] | None:
    """Give the limits and the shape behind a row; None where they are not known."""
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
    found = (replace(fact, value=values[fact.key]) for fact in FACTS)
    return tuple(fact for fact in found if fact.value is not None)


def _notes(launches: Launches, rows: pl.DataFrame, gpu: str | None) -> Iterator[str]:
    unknown = rows["theoretical"].null_count()
    if unknown == rows.height:
        yield "no launch says what it asks of an SM"
    elif unknown:
        says = "does not say what it asks" if unknown == 1 else "do not say what they ask"
        yield f"{unknown:,} of {rows.height:,} launches {says} of an SM"
    if gpu is not None:
        yield f"worked out for {gpu}; what was measured on another kind of GPU is left out"
    elif not launches.measured:
        yield (
            "achieved occupancy is not in a timeline: measure the kernels with "
            "ncu --section Occupancy …"
        )
    elif rows["achieved"].null_count() == rows.height:
        yield "the report does not hold the achieved occupancy: ncu --section Occupancy …"
    if rows["change"].str.contains("registers").any():
        yield "fewer registers (__launch_bounds__, -maxrregcount) can mean spills to memory"
    yield from _disagreements(rows)


def _disagreements(rows: pl.DataFrame) -> Iterator[str]:
    """Own up where the profiler's own theoretical occupancy is another."""
    differs = rows.filter((pl.col("computed") - pl.col("reported")).abs() > _SAME)
    if differs.height:
        first = differs.row(0, named=True)
        yield (
            f"of {'one launch' if differs.height == 1 else f'{differs.height:,} launches'} the "
            f"report says {format_share(first['reported'])} and these rules "
            f"{format_share(first['computed'])}{'' if differs.height == 1 else ' (the first)'}"
        )
