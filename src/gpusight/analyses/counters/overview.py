"""One screen about a report of measured launches: which kernels, and what held them down."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.counters import kernel_table
from gpusight.analyses.counters.choose import ProfileScope
from gpusight.analyses.counters.kernel_table import GROUP, NAMED, measured_launches, summed_up
from gpusight.analyses.devices import names_of_used
from gpusight.analyses.roofline.points import points
from gpusight.analyses.select import EVERYTHING, Selection
from gpusight.analyses.statistics import average, prevailing, weighed_mean
from gpusight.result import Composite, Fact, Field, Fmt, TableResult

if TYPE_CHECKING:
    from gpusight.model.trace import Trace

TOP_KERNELS = 10
_LIMITS = (
    Field("roof_share", "Of roof", Fmt.SHARE, "How near to the roofline: 1 is at the roof"),
    Field("bound", "Bound by", Fmt.TEXT, "`compute`, `memory` or `latency`, for most of its time"),
)
SUMMARY_FIELDS = (*kernel_table.FIELDS[: -len(NAMED)], *_LIMITS, *NAMED)
"""Those of the table of kernels, and how near to what the GPU can do."""
_SHOWN = ("share", "total_ns", "calls", "sm_share", "memory_share", "dram_share",
          "roof_share", "bound", "short_name")  # fmt: skip
_AVERAGES = (
    ("sm_share", "SMs busy", "How busy the SMs were, by time"),
    ("memory_share", "Memory busy", "How busy the memory system was, caches included, by time"),
    ("dram_share", "DRAM busy", "How busy the GPU's memory was, by time"),
    ("occupancy", "Occupancy", "Warps resident on an SM, of those that fit, by time"),
    ("roof_share", "Of the roof", "How near to the roofline, by time"),
)
_NEXT = "why each kernel is slow, and what to change: gpusight diagnose FILE"


def overview(trace: Trace, selection: Selection = EVERYTHING) -> Composite:
    """Answer in one screen where the time of the measured launches went."""
    table = _kernels(trace, selection)
    fields = tuple(replace(f, shown=f.shown and f.key in _SHOWN) for f in table.fields)
    frame = table.frame.head(TOP_KERNELS)
    more = f": the first {TOP_KERNELS} of {table.frame.height:,}"
    title = table.title + (more if table.frame.height > frame.height else "")
    return Composite(
        "summary",
        "Summary" + (f" of {selection.within}" if selection.within else ""),
        _facts(trace, table),
        (replace(table, fields=fields, frame=frame, title=title, notes=()),),
        meta={"path": trace.meta.path},
        notes=tuple(dict.fromkeys((*table.notes, *trace.meta.notes, _NEXT))),
    )


def _kernels(trace: Trace, selection: Selection) -> TableResult:
    """Sum up launches by kernel, with how near to the roofline they came."""
    scope = ProfileScope(trace, selection)
    under = points(trace).select("launch", "roof_share", "bound")
    rows = measured_launches(scope).join(under, on="launch", how="left", maintain_order="left")
    further = (weighed_mean("roof_share"), pl.col("bound").first())
    return summed_up(scope, prevailing(rows, GROUP, "bound"), SUMMARY_FIELDS, further)


def _facts(trace: Trace, table: TableResult) -> tuple[Fact, ...]:
    meta = table.meta
    gpus = names_of_used(trace, table.frame["device"])
    facts = [
        Fact("gpus", "GPU", gpus, Fmt.TEXT, "GPUs measured"),
        Fact("kernels", "Launches", meta["kernels"], Fmt.COUNT, "Launches that were measured"),
        Fact("kernel_names", "Kernels", meta["kernel_names"], Fmt.COUNT, "Different kernels"),
        Fact("kernel_ns", "GPU time", meta["total_ns"], Fmt.TIME, "Time of all, each on its own"),
    ]
    for key, label, meaning in _AVERAGES:
        facts.append(Fact(key, label, average(table.frame, key, "total_ns"), Fmt.SHARE, meaning))
    facts.append(Fact("bounds", "Bound by", _bounds(table.frame), Fmt.TEXT, "Parts of the time"))
    return tuple(fact for fact in facts if fact.value is not None)


def _bounds(frame: pl.DataFrame) -> str | None:
    """Say for which part of the time what was the limit: `memory 61%, latency 39%`."""
    total = float(frame["total_ns"].sum())
    known = frame.filter(pl.col("bound").is_not_null())
    if not total or known.is_empty():
        return None
    by = known.group_by("bound").agg(pl.col("total_ns").sum())
    by = by.sort("total_ns", "bound", descending=[True, False])
    return ", ".join(f"{bound} {time / total:.0%}" for bound, time in by.iter_rows())
