"""Totals of operators as a profiler printed them, for captures that hold nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.advice import advice_for
from gpusight.analyses.ops.fields import completed, fields_for, how_to_record, title_for
from gpusight.analyses.printed import printed_totals as totals_below
from gpusight.analyses.statistics import share_of
from gpusight.result import NotApplicable, TableResult
from gpusight.units import format_time

if TYPE_CHECKING:
    from gpusight.analyses.printed import PrintedTotals
    from gpusight.analyses.select import Selection
    from gpusight.model.trace import Trace

_AMOUNTS = (
    *("calls", "self_cpu_ns", "cpu_ns", "self_gpu_ns", "gpu_ns"),
    *("self_gpu_bytes", "gpu_bytes", "flops"),
)


def printed_totals(trace: Trace, selection: Selection, by: str) -> TableResult | NotApplicable:
    """Show the operators of a printed table; kernels in it are not among them."""
    refused = _refusal(trace, selection, by)
    if refused is not None:
        return refused
    table = trace.table("op_totals")
    operators = table.filter((pl.col("side") == "host").fill_null(value=True))
    rows = _summed(operators, by)
    gpu = trace.has("op_totals", "self_gpu_ns")
    whole = totals_below(trace)
    everything = whole.gpu_ns or int(operators["self_gpu_ns"].sum())
    of_all_cpu = share_of(pl.col("self_cpu_ns"), whole.cpu_ns or pl.col("self_cpu_ns").sum())
    return TableResult(
        "ops",
        title_for(by, gpu=gpu),
        fields_for(by, gpu=gpu),
        completed(rows, everything).with_columns(of_all_cpu.alias("cpu_share")),
        meta={"operators": int(rows["calls"].sum()), "gpu_ns": everything if gpu else None},
        notes=_notes(trace, whole, table.height - operators.height, gpu=gpu),
    )


def _summed(operators: pl.DataFrame, by: str) -> pl.DataFrame:
    """Sum up rows that the table keeps apart though they are not asked for so: shapes, stacks."""
    shapes = pl.col("shapes").sort_by("calls", descending=True).first()
    return (
        operators.with_columns(pl.col("name", "shapes").cast(pl.String))
        .group_by(["name", "shapes"] if by == "shapes" else ["name"])
        .agg(
            *(pl.when(pl.col(a).count() > 0).then(pl.col(a).sum()) for a in _AMOUNTS),
            *([] if by == "shapes" else [shapes]),
        )
    )


def _refusal(trace: Trace, selection: Selection, by: str) -> NotApplicable | None:
    advice = advice_for(trace.meta)
    if selection:
        reason = "totals cannot be divided by range, GPU or process"
        return NotApplicable("ops", reason, advice.select)
    if by == "shapes" and not trace.has("op_totals", "shapes"):
        reason = "the totals in the capture are not grouped by the shapes of inputs"
        return NotApplicable("ops", reason, how_to_record(trace, "op_totals", "shapes"))
    if by in ("module", "call-site"):
        reason = f"the capture holds totals by operator, not by {by.replace('-', ' ')}"
        return NotApplicable("ops", reason, advice.ranges)
    return None


def _notes(trace: Trace, whole: PrintedTotals, others: int, *, gpu: bool) -> tuple[str, ...]:
    notes = [_basis(whole, gpu=gpu)]
    if others:
        notes.append(
            f"{others:,} rows of kernels, copies, waits and GPU annotations are left out; see the"
            " kernels with: gpusight kernels FILE"
        )
    return (*notes, *trace.meta.notes)


def _basis(whole: PrintedTotals, *, gpu: bool) -> str:
    """Say what shares are of: the totals below the table, or the rows where there are none."""
    told = [("CPU", whole.cpu_ns)] + ([("GPU", whole.gpu_ns)] if gpu else [])
    printed = [f"{format_time(ns)} of {side} time" for side, ns in told if ns is not None]
    rows = [f"the {side} time of its rows" for side, ns in told if ns is None]
    below = [f"what is printed below the table ({', '.join(printed)})"] if printed else []
    return f"shares are of {' and of '.join(below + rows)}"
