"""The columns of `ops`, and what all its groupings compute in the same way."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analyses.advice import advice_for
from gpusight.analyses.attribution.operators import WAYS
from gpusight.analyses.attribution.work import short_labels
from gpusight.analyses.select import GPU_WORK
from gpusight.analyses.statistics import DURATION, share_of
from gpusight.result import Field, Fmt
from gpusight.units import format_time

if TYPE_CHECKING:
    from gpusight.analyses.attribution.work import Work
    from gpusight.model.trace import Trace

FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Its own GPU work as part of all GPU work selected"),
    Field("self_gpu_ns", "Self GPU", Fmt.TIME, "GPU time of the work it launched itself"),
    Field("gpu_ns", "GPU total", Fmt.TIME, "GPU time with what it called"),
    Field("gpu_mean_ns", "GPU mean", Fmt.TIME, "GPU time with what it called, a call", shown=False),
    Field("calls", "Calls", Fmt.COUNT, "How often it was called"),
    Field("cpu_share", "CPU share", Fmt.SHARE, "Its own host time as part of all", shown=False),
    Field("self_cpu_ns", "Self CPU", Fmt.TIME, "Host time in itself"),
    Field("cpu_ns", "CPU total", Fmt.TIME, "Host time with what it called"),
    Field("cpu_mean_ns", "CPU mean", Fmt.TIME, "Host time with what it called, a call", False),
    Field("work", "GPU ops", Fmt.COUNT, "Pieces of GPU work that it launched itself", shown=False),
    Field("self_gpu_bytes", "Self memory", Fmt.BYTES, "GPU memory taken in itself, net", False),
    Field("gpu_bytes", "Memory", Fmt.BYTES, "GPU memory taken with what it called, net", False),
    Field("flops", "FLOPs", Fmt.COUNT, "Floating-point operations the profiler counted", False),
    Field("flops_per_s", "FLOP/s", Fmt.REAL, "Those by the GPU time of its own work", shown=False),
    Field("kernel", "Top kernel", Fmt.NAME, "What its own GPU time mostly went into", shown=False),
    Field("kernel_share", "Of its time", Fmt.SHARE, "Part that this took of it", shown=False),
    Field("shapes", "Input shapes", Fmt.NAME, "Sizes of the inputs, the most common", shown=False),
    Field("kind", "Kind", Fmt.TEXT, "`operator`, `annotation`, `module` or `call site`", False),
    Field("name", "Operator", Fmt.NAME, "Operator, annotation, module or call site"),
)
_TYPES: dict[Fmt, pl.DataType] = {
    Fmt.NAME: pl.String(),
    Fmt.TEXT: pl.String(),
    Fmt.SHARE: pl.Float64(),
    Fmt.REAL: pl.Float64(),
}
_GPU = ("self_gpu_ns", "gpu_ns", "work")
_HEADINGS = {"module": "Module", "call-site": "Call site"}


def fields_for(by: str, *, gpu: bool) -> tuple[Field, ...]:
    """Choose what the default table shows; without GPU work, what the host did."""
    hidden = set() if gpu else {"share", "self_gpu_ns", "gpu_ns"}
    extra = {"shapes"} if by == "shapes" else set()
    extra |= set() if gpu else {"cpu_share", "cpu_mean_ns"}
    fields = [replace(f, shown=(f.shown or f.key in extra) and f.key not in hidden) for f in FIELDS]
    fields[-1] = replace(fields[-1], label=_HEADINGS.get(by, fields[-1].label))
    return tuple(fields)


def title_for(by: str, *, gpu: bool) -> str:
    """Say what rows are and how they are sorted."""
    rows = {"module": "Modules", "call-site": "Call sites"}.get(by, "Operators")
    return f"{rows} by {'GPU' if gpu else 'CPU'} time"


def how_to_record(trace: Trace, table: str, column: str | None = None) -> str:
    """Say what makes the tool of this capture record something; empty where it never does."""
    wanted = advice_for(trace.meta).wanted
    options = [w.how for w in wanted if (w.table, w.column) == (table, column)]
    return f"record it with {options[0]}" if options else ""


def has_gpu_work(trace: Trace) -> bool:
    """Tell whether the capture shows what GPUs did."""
    return any(trace.has(table) for table in GPU_WORK)


def finished(summed: pl.DataFrame, work: Work, groups: pl.Series, *, gpu: bool) -> pl.DataFrame:
    """Complete sums by `group` into rows: shares, means and what most of the time went into."""
    if not gpu:
        summed = summed.with_columns(pl.lit(None, pl.Int64).alias(key) for key in _GPU)
    rows = summed.join(_top_work(work, groups), on="group", how="left")
    rows = rows.with_columns(
        share_of(pl.col("top_ns"), pl.col("self_gpu_ns")).alias("kernel_share")
    )
    return completed(rows, int(work.frame.select(DURATION).to_series().sum()))


def completed(sums: pl.DataFrame, everything_ns: int) -> pl.DataFrame:
    """Make sums into sorted rows with every field; what is not known is null.

    `everything_ns` is the GPU time that shares refer to.
    """
    missing = [f for f in FIELDS if f.key not in sums.columns]
    nulls = [pl.lit(None, _TYPES.get(f.fmt, pl.Int64())).alias(f.key) for f in missing]
    by = ["self_gpu_ns", "gpu_ns", "self_cpu_ns", "cpu_ns", "name", "shapes"]
    by += ["place"] if "place" in sums.columns else []  # of the first, among equals
    return (
        sums.with_columns(nulls)
        .with_columns(*_ratios(everything_ns))
        .sort(by, descending=[key.endswith("_ns") for key in by], nulls_last=True)
        .select([f.key for f in FIELDS])
    )


def _ratios(everything_ns: int) -> list[pl.Expr]:
    self_gpu, calls = pl.col("self_gpu_ns"), pl.col("calls")
    return [
        share_of(self_gpu, everything_ns).alias("share"),
        share_of(pl.col("self_cpu_ns"), pl.col("self_cpu_ns").sum()).alias("cpu_share"),
        share_of(pl.col("gpu_ns"), calls).alias("gpu_mean_ns"),
        share_of(pl.col("cpu_ns"), calls).alias("cpu_mean_ns"),
        share_of(pl.col("flops") * 1e9, self_gpu).alias("flops_per_s"),
    ]


def _top_work(work: Work, groups: pl.Series) -> pl.DataFrame:
    """Find, for each group, what most of its own GPU time went into."""
    top = (
        work.frame.select("label", DURATION, groups.alias("group"))
        .filter(pl.col("group").is_not_null())
        .group_by("group", "label")
        .agg(pl.col("duration_ns").sum().alias("top_ns"))
        .sort(["top_ns", "label"], descending=[True, False])
        .group_by("group", maintain_order=True)
        .first()
    )
    return top.select("group", "top_ns", short_labels(work.labels, top["label"]).alias("kernel"))


def work_meta(work: Work, groups: pl.Series) -> dict[str, Any]:
    """Give the totals of the work: all of it, what is in no row, how operators were found."""
    spent = work.frame.select(DURATION).to_series()
    found = work.found()
    return {
        "work": len(spent),
        "gpu_ns": int(spent.sum()),
        "outside": groups.null_count(),
        "outside_ns": int(spent.filter(groups.is_null()).sum()),
        "found": {way: found.get(way, 0) for way in WAYS},
    }


def work_notes(meta: dict[str, Any], places: str) -> tuple[str, ...]:
    """Say what is in no row, and which work was matched by time."""
    notes = []
    if meta["found"]["time"]:
        notes.append(
            f"{meta['found']['time']:,} of {meta['work']:,} pieces of GPU work name no operator:"
            " they belong to the one that was open when they were launched"
        )
    if meta["outside"]:
        spent = format_time(meta["outside_ns"])
        notes.append(
            f"{meta['outside']:,} pieces of GPU work ({spent}) were launched outside of all"
            f" {places}: they are in no row"
        )
    return tuple(notes)
