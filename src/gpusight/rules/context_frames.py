"""GPU activities and API calls of a schedule as frames, with their names, ranges and operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.nested_intervals import text_of
from gpusight.analysis.attribution.work_causes import (
    KINDS,
    causes_of_calls,
    causes_of_rows,
    names_of_causes,
)
from gpusight.analysis.gpu_schedule import NONE, CallKind, OpKind
from gpusight.analysis.kernel_behavior import kinds_of
from gpusight.analysis.kernel_summary import distinct_short_names, product
from gpusight.trace.schema_gpu import BLOCK, GRID

if TYPE_CHECKING:
    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.analysis.replay.simulation import ReplayProgram
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


_DETAILS = {
    "name": pl.String,
    "label": pl.String,
    "category": pl.String,
    "precision": pl.String,
    "tensor_core": pl.Boolean,
    "blocks": pl.Int64,
    "threads": pl.Int64,
    "bytes": pl.Int64,
    "direction": pl.String,
    "src_kind": pl.String,
    "dst_kind": pl.String,
}
"""Columns of an activity that come from its own table; null where the table lacks one."""


def ops_frame(schedule: GpuSchedule) -> pl.DataFrame:
    """Return GPU activities, a row each, with the columns of `RuleContext.ops`."""
    ops = schedule.ops
    kinds = [kind for kind in OpKind if (ops.kind == kind).any()] or [OpKind.KERNEL]
    op = {kind: np.flatnonzero(ops.kind == kind) for kind in kinds}
    rows = {kind.table: pl.Series("row", ops.row[own]) for kind, own in op.items()}
    causes = causes_of_rows(schedule.trace, rows)
    parts, first = [], 0
    for kind, own in op.items():
        parts.append(_details_and_causes(schedule, kind, own, causes.slice(first, len(own))))
        first += len(own)
    details = pl.concat([pl.DataFrame(schema=_DETAILS), *parts], how="diagonal")
    frame = pl.DataFrame(
        {
            "op": np.arange(len(ops)),
            "kind": pl.Series(KINDS, dtype=pl.Enum(KINDS)).gather(ops.kind),
            "start_ns": ops.start_ns,
            "end_ns": ops.end_ns,
            "duration_ns": ops.end_ns - ops.start_ns,
            "device": ops.device,
            "stream_id": ops.stream_id,
            "call": pl.Series(ops.call, dtype=pl.Int64),
            "step": _step_of(schedule, ops.call),
        }
    ).with_columns(pl.when(pl.col("call") >= 0).then("call").alias("call"))
    return frame.hstack(details.sort("op").drop("op").get_columns())


def _details_and_causes(
    schedule: GpuSchedule, kind: OpKind, op: Ints, causes: pl.DataFrame
) -> pl.DataFrame:
    """Describe the activities of one kind, with the range, operator and line that launched them."""
    trace, rows = schedule.trace, pl.Series("row", schedule.ops.row[op])
    if kind is OpKind.KERNEL:
        details = _kernel_details(trace, rows)
    elif kind is OpKind.COPY:
        copies = trace.table("copies", ["kind", "bytes", "src_kind", "dst_kind"])[rows]
        direction = pl.col("kind").cast(pl.String)
        details = copies.select(
            pl.format("[copy {}]", direction).alias("name"),
            "bytes",
            direction.alias("direction"),
            pl.col("src_kind", "dst_kind").cast(pl.String),
        )
    elif kind is OpKind.MEMSET:
        memsets = trace.table("memsets", ["bytes"])[rows]
        details = memsets.with_columns(pl.lit("[memset]").alias("name"))
    else:
        details = pl.select(pl.repeat("[CUDA graph]", len(rows)).alias("name"))
    if kind is not OpKind.KERNEL:
        details = details.with_columns(pl.col("name").alias("label"))
    names = names_of_causes(trace, causes)
    shapes = pl.Series([], dtype=pl.String).extend_constant(None, len(rows))
    if trace.has("cpu_ops", "shapes"):
        shapes = text_of(trace.table("cpu_ops", ["shapes"])["shapes"], causes["op"])
    return details.hstack(
        [
            pl.Series("op", op),
            causes["in_graph"],
            names["range"],
            names["op"].alias("operator"),
            names["forward_op"].alias("forward_operator"),
            shapes.alias("shapes"),
            names["module"],
            names["call_site"].alias("site"),
        ]
    )


def _kernel_details(trace: Trace, rows: pl.Series) -> pl.DataFrame:
    table = trace.table("kernels", ["name", *GRID, *BLOCK])
    kernels = table[rows]
    code = kernels["name"].to_physical()
    names, codes = names_of(kernels["name"]), code.unique().sort()
    kinds = kinds_of(trace, [names[c] for c in codes])
    by_name = pl.DataFrame(
        {
            "code": codes,
            "label": distinct_short_names(kernels["name"]).gather(codes),
            "category": pl.Series([k.category for k in kinds], dtype=pl.String),
            "precision": pl.Series([k.precision for k in kinds], dtype=pl.String),
            "tensor_core": pl.Series([k.tensor_core for k in kinds], dtype=pl.Boolean),
        }
    )
    return (
        kernels.with_columns(code.alias("code"), text_of(table["name"], rows))
        .join(by_name, on="code", maintain_order="left")
        .select(
            *("name", "label", "category", "precision", "tensor_core"),
            product(GRID).alias("blocks"),
            product(BLOCK).alias("threads"),
        )
    )


def _step_of(schedule: GpuSchedule, calls: Ints) -> pl.Series:
    """Return the number of the step that each call is in; null outside steps."""
    marks = np.flatnonzero(schedule.calls.kind == CallKind.MARK)
    # Steps begin at the first mark, end at the second, and so on.
    passed = np.searchsorted(marks, calls, side="right")
    inside = (passed % 2 == 1) & (calls >= 0)
    return pl.Series("step", np.where(inside, passed // 2, NONE)).replace(NONE, None)


def calls_frame(schedule: GpuSchedule, program: ReplayProgram) -> pl.DataFrame:
    """Return API calls, a row each, with the columns of `RuleContext.calls`."""
    calls, trace = schedule.calls, schedule.trace
    position = np.flatnonzero(calls.kind != CallKind.MARK)
    rows = pl.Series("row", calls.row[position])
    kinds = [kind.name.lower() for kind in CallKind]
    threads = pl.DataFrame(
        list(schedule.threads), schema={"process": pl.Int64, "thread": pl.Int64}, orient="row"
    )[calls.thread[position]]
    duration_ns = calls.end_ns - calls.start_ns
    waits = program.wait != 0
    waited_ns = np.where(waits, np.maximum(duration_ns - program.own_ns, 0), 0)
    causes = names_of_causes(trace, causes_of_calls(trace, rows))
    return pl.DataFrame(
        {
            "call": position,
            "kind": pl.Series(kinds, dtype=pl.Enum(kinds)).gather(calls.kind[position]),
            "name": text_of(trace.table("api_calls", ["name"])["name"], rows),
            "start_ns": calls.start_ns[position],
            "end_ns": calls.end_ns[position],
            "duration_ns": duration_ns[position],
            "host_thread": calls.host_thread[position],
            "step": _step_of(schedule, position),
            "waits": waits[position],
            "waited_ns": waited_ns[position],
        }
    ).hstack(
        [
            *threads.get_columns(),
            causes["range"],
            causes["op"].alias("operator"),
            causes["call_site"].alias("site"),
        ]
    )
