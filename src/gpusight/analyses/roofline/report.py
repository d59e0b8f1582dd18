"""The answer of `gpusight roofline`: kernels under their roofs, and the roofs themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.counters.choose import ProfileScope
from gpusight.analyses.counters.quantity import DURATION
from gpusight.analyses.devices import device_names, names_of_used
from gpusight.analyses.launch_columns import SHAPE
from gpusight.analyses.roofline.notes import notes_of
from gpusight.analyses.roofline.points import measure
from gpusight.analyses.roofline.tables import (
    by_kernel,
    by_launch,
    kernel_table,
    launch_table,
    roof_table,
)
from gpusight.analyses.select import EVERYTHING, Selection
from gpusight.analyses.statistics import weighed_mean
from gpusight.result import Composite, Fact, Fmt, NotApplicable, TableResult

if TYPE_CHECKING:
    from gpusight.model.trace import Trace

COLLECT = "ncu --set roofline --section MemoryWorkloadAnalysis --section InstructionStats"
_MEASURE = f"measure the kernels with: {COLLECT} -o report PROGRAM"
_SIZES = "; FLOPs from recorded sizes: gpusight flops FILE"
_PART = "Part of the time of launches whose bound is known"
FACTS = tuple(
    Fact(key, label, None, fmt, meaning)
    for key, label, fmt, meaning in (
        ("gpus", "GPU", Fmt.TEXT, "GPUs that launches ran on"),
        ("launches", "Launches", Fmt.COUNT, "Launches looked at"),
        ("total_ns", "GPU time", Fmt.TIME, "Time of all of them"),
        (
            "roof_share",
            "Of the roof",
            Fmt.SHARE,
            "How near to the roofline they came, weighted by time; of those where it is known",
        ),
        ("compute_time_share", "Compute-bound", Fmt.SHARE, _PART),
        ("memory_time_share", "Memory-bound", Fmt.SHARE, _PART),
        ("latency_time_share", "Latency-bound", Fmt.SHARE, _PART),
        ("roofs_from", "Roofs from", Fmt.TEXT, "Where the roofs come from: report or GPU table"),
    )
)
"""The facts at the top, without their values; those that are not known are left out."""


def roofline(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    kernel: str | None = None,
    launches: bool = False,
    gpu: str | None = None,
) -> Composite | NotApplicable:
    """Compare what each kernel did with what its GPU could have done.

    Rows are kernels of one launch shape, or with `launches` single launches. `kernel` keeps those
    of a name. `gpu` names the GPU whose roofs are meant where the capture holds none.
    """
    if not trace.has("profiles"):
        return _absent(trace)
    scope = ProfileScope(trace, selection, kernel=kernel)
    placed = measure(trace, gpu)
    columns = ["launch", "name", "device", *SHAPE]
    rows = scope.profiles(columns).join(
        placed.frame, on="launch", how="left", maintain_order="left"
    )
    if _is_empty(rows):
        return _nothing_known()
    table = launch_table(by_launch(rows)) if launches else kernel_table(by_kernel(rows))
    roofs = roof_table(rows, device_names(trace))
    told = isinstance(roofs, TableResult) and gpu is None
    return Composite(
        "roofline",
        "Roofline",
        _facts(
            rows,
            names_of_used(trace, rows["device"].unique()) or (f"{gpu}, as given" if gpu else None),
        ),
        (table, roofs),
        meta={"path": trace.meta.path, "by": "launch" if launches else "kernel"},
        notes=(*scope.notes, *notes_of(placed, rows, name_gpu=told)),
    )


def _absent(trace: Trace) -> NotApplicable:
    """Explain that a capture is no report of single kernels."""
    sized = trace.has("cpu_ops", "shapes") if trace.has("cpu_ops") else False
    reason = "the capture has no hardware counters of kernels"
    return NotApplicable("roofline", reason, _MEASURE + (_SIZES if sized else ""))


def _is_empty(rows: pl.DataFrame) -> bool:
    telling = ("flop_per_s", "dram_bytes_per_s", "memory_share", "sm_share", "compute_share")
    return all(rows.get_column(column).null_count() == rows.height for column in telling)


def _nothing_known() -> NotApplicable:
    reason = "the report counts neither operations nor bytes, nor how busy the GPU's units were"
    return NotApplicable("roofline", reason, _MEASURE)


def _facts(rows: pl.DataFrame, gpus: str | None) -> tuple[Fact, ...]:
    time = rows.get_column(DURATION)
    reached = rows.filter(pl.col(DURATION) > 0).select(weighed_mean("roof_share")).item()
    total = float(time.sum()) if time.null_count() < len(time) else None
    sources = rows.get_column("roofs_from").drop_nulls().unique().sort().to_list()
    values = {
        "gpus": gpus,
        "launches": rows.height,
        "total_ns": total,
        "roof_share": reached,
        "roofs_from": " and ".join(dict.fromkeys(" and ".join(sources).split(" and "))) or None,
        **{f"{kind}_time_share": _part(rows, kind) for kind in ("compute", "memory", "latency")},
    }
    filled = (replace(fact, value=values[fact.key]) for fact in FACTS)
    return tuple(fact for fact in filled if fact.value is not None)


def _part(rows: pl.DataFrame, kind: str) -> float | None:
    """Give the part of the time that launches of one class took; None when no class is known."""
    known = rows.filter(pl.col("bound").is_not_null())
    total = float(known[DURATION].sum())
    own = float(known.filter(pl.col("bound") == kind)[DURATION].sum())
    return own / total if total else None
