"""Allocations that failed for want of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.attribution.nested import optional
from gpusight.analyses.memory import stacks
from gpusight.analyses.memory.history import ROW
from gpusight.result import Field, Fmt, TableResult

if TYPE_CHECKING:
    from gpusight.analyses.memory.view import View
    from gpusight.model.trace import Trace

FAILURE_FIELDS = (
    Field("time_ns", "When", Fmt.TIME, "When it failed"),
    Field("bytes", "Asked for", Fmt.BYTES, "Size that could not be had"),
    Field("allocated_bytes", "In use", Fmt.BYTES, "In use at that moment"),
    Field("reserved_bytes", "Reserved", Fmt.BYTES, "Held from the driver at that moment"),
    Field("unused_bytes", "Unused", Fmt.BYTES, "Reserved but not in use, in too small pieces"),
    Field("op", "Operator", Fmt.NAME, "Operator that asked"),
    Field("outer_op", "Called by", Fmt.NAME, "Outermost operator around that", shown=False),
    Field("site", "Code", Fmt.NAME, "Innermost Python call outside the framework"),
    Field("stack", "Python stack", Fmt.NAME, "Python calls, innermost first", shown=False),
)


def failures(trace: Trace, view: View, events: pl.DataFrame) -> TableResult | None:
    """List the allocations that failed; None when none did."""
    failed = events.filter(pl.col("operation").cast(pl.String) == "out_of_memory")
    if failed.is_empty():
        return None
    history = view.history
    rows = optional(failed[ROW].cast(pl.Int64).to_numpy())
    chains = trace.table("memory_events", ["callchain"])["callchain"].gather(rows)
    last = [history.last_before(time + 1) for time in failed["time_ns"].to_list()]
    frame = failed.select("time_ns", "bytes").with_columns(
        pl.Series("allocated_bytes", [history.allocated_after(e) for e in last], pl.Int64),
        pl.Series("reserved_bytes", [history.reserved_after(e) for e in last], pl.Int64),
        *stacks.from_chains(trace, "memory_events", chains).get_columns(),
        pl.Series("stack", stacks.python_frames(trace, "memory_events", chains)),
    )
    frame = frame.with_columns(
        (pl.col("reserved_bytes") - pl.col("allocated_bytes")).alias("unused_bytes")
    )
    return TableResult(
        "out_of_memory",
        "Allocations that failed for want of memory",
        FAILURE_FIELDS,
        frame.select(f.key for f in FAILURE_FIELDS),
    )
