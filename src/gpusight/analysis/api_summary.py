"""Host time in calls of the CUDA runtime, driver and libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.aggregates import DURATION, share_of, timing, timing_fields
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import EVERYTHING, ResolvedSelection, Selection
from gpusight.results import Field, Fmt, NotApplicable, TableResult

if TYPE_CHECKING:
    from gpusight.trace.trace import Trace


FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Part of all time in the same library's calls"),
    *timing_fields("total_ns", "calls", "mean_ns", "max_ns"),
    Field("errors", "Errors", Fmt.COUNT, "Calls that failed; `not ready` answers are no failure"),
    Field("threads", "Threads", Fmt.COUNT, "Threads that made the call", shown=False),
    Field("api", "API", Fmt.TEXT, "Runtime, driver or library", shown=False),
    Field("name", "Function", Fmt.NAME, "Function without its version suffix"),
)

READS = {"api_calls": ("start_ns", "end_ns", "name", "api", "thread", "return_value")}
"""Columns that are summed up."""
# A query that finds the work unfinished answers so: 600 since CUDA 10.1, 34 before.
_QUERIES = "(?i)(Event|Stream)Query"
_NOT_READY = (600, 34)


def api_calls(trace: Trace, selection: Selection = EVERYTHING) -> TableResult | NotApplicable:
    """Sum up API calls by function, the most expensive first."""
    if not trace.has("api_calls"):
        hint = advice_for(trace.meta).calls
        return NotApplicable("api", "the capture has no API calls", hint)
    scope = ResolvedSelection(trace, selection)
    scope.prepare("api_calls")
    calls = scope.host("api_calls", READS["api_calls"])
    has_return_values = trace.has("api_calls", "return_value")
    # cuDNN and cuBLAS calls contain CUDA calls: a share is of the library's own total.
    library = pl.col("api").fill_null("").replace({"driver": "cuda", "runtime": "cuda"})
    total_ns, code = pl.col("total_ns"), pl.col("return_value")
    is_query = pl.col("name").cast(pl.String).str.contains(_QUERIES).first()
    failures = ((code != 0) & ~(is_query & code.is_in(_NOT_READY))).sum().cast(pl.Int64)
    frame = (
        calls.lazy()
        .with_columns(DURATION)
        .group_by("name", "api")
        .agg(
            *timing(),
            (failures if has_return_values else pl.lit(None, pl.Int64)).alias("errors"),
            pl.col("thread").n_unique().cast(pl.Int64).alias("threads"),
        )
        .with_columns(pl.col("name", "api").cast(pl.String))
        .with_columns(share_of(total_ns, total_ns.sum().over(library)).alias("share"))
        .sort(["total_ns", "name", "api"], descending=[True, False, False])
        .select([f.key for f in FIELDS])
        .collect()
    )
    errors = int(frame["errors"].sum()) if has_return_values else None
    libraries = sorted(set(frame["api"].drop_nulls()) - {"runtime", "driver"})
    note = f"{', '.join(libraries)} calls contain CUDA calls: do not add the two up"
    return TableResult(
        "api",
        "API calls by host time",
        FIELDS,
        frame,
        meta={"calls": calls.height, "total_ns": int(frame["total_ns"].sum()), "errors": errors},
        notes=(*scope.notes, note) if libraries else scope.notes,
    )
