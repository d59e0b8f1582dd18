"""GPU work and API calls of a schedule as frames, with names and causes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.call_sites import text_of
from gpusight.analysis.attribution.work_causes import (
    KINDS,
    causes_of_calls,
    causes_of_rows,
    names_of_causes,
)
from gpusight.analysis.gpu_schedule import NONE, CallKind, OpKind
from gpusight.analysis.kernel_summary import BLOCK, GRID, product
from gpusight.naming.kernel_names import classify

if TYPE_CHECKING:
    from gpusight.analysis.gpu_schedule import GpuSchedule, Ints
    from gpusight.analysis.replay.simulation import ReplayProgram


_NO_TEXT = pl.lit(None, pl.String)
_NO_NUMBER = pl.lit(None, pl.Int64)


def ops_frame(schedule: GpuSchedule) -> pl.DataFrame:
    """Give GPU work with its names and causes, a row each in the order of the schedule."""
    ops = schedule.ops
    parts = [_part(schedule, kind) for kind in OpKind if (ops.kind == kind).any()]
    frame = pl.DataFrame(
        {
            "op": np.arange(len(ops)),
            "kind": pl.Series(KINDS, dtype=pl.Enum(KINDS)).gather(ops.kind),
            "start_ns": ops.start_ns,
            "end_ns": ops.end_ns,
            "duration_ns": ops.end_ns - ops.start_ns,
            "device": ops.device,
            "queue": ops.queue,
            "call": pl.Series(ops.call, dtype=pl.Int64),
            "step": _step_of(schedule, ops.call),
        }
    ).with_columns(pl.when(pl.col("call") >= 0).then("call").alias("call"))
    told = pl.concat(parts) if parts else _nothing(schedule)
    return frame.hstack(told.sort("op").drop("op").get_columns())


def _part(schedule: GpuSchedule, kind: OpKind) -> pl.DataFrame:
    """Give what a table tells of its own work, with its causes."""
    own = np.flatnonzero(schedule.ops.kind == kind)
    rows = pl.Series("row", schedule.ops.row[own])
    told = {
        OpKind.KERNEL: _kernels,
        OpKind.COPY: _copies,
        OpKind.FILL: _fills,
        OpKind.GRAPH: _graphs,
    }[kind](schedule, rows)
    causes = causes_of_rows(schedule.trace, kind.table, rows)
    names = names_of_causes(schedule.trace, causes)
    shapes = _shapes(schedule, causes["op"])
    return told.select(*_TOLD).hstack(
        [
            pl.Series("op", own),
            causes["in_graph"],
            names["range"],
            names["op"].alias("operator"),
            names["forward_op"].alias("forward_operator"),
            shapes,
            names["module"],
            names["call_site"].alias("site"),
        ]
    )


_TOLD = (
    "name",
    "label",
    "category",
    "precision",
    "tensor_core",
    "blocks",
    "threads",
    "bytes",
    "direction",
    "src_kind",
    "dst_kind",
)


def _nothing(schedule: GpuSchedule) -> pl.DataFrame:
    return _part(schedule, OpKind.KERNEL)


def _kernels(schedule: GpuSchedule, rows: pl.Series) -> pl.DataFrame:
    table = schedule.trace.table("kernels", ["name", *GRID, *BLOCK])
    frame = table[rows]
    code = frame["name"].to_physical()
    texts = names_of(frame["name"])
    known = code.unique().sort()
    found = [classify(texts[c]) for c in known]
    described = pl.DataFrame(
        {
            "code": known,
            "label": pl.Series([k.short for k in found], dtype=pl.String),
            "category": pl.Series([k.category for k in found], dtype=pl.String),
            "precision": pl.Series([k.precision for k in found], dtype=pl.String),
            "tensor_core": pl.Series([k.tensor_core for k in found], dtype=pl.Boolean),
        }
    )
    return (
        frame.with_columns(code.alias("code"), text_of(table["name"], rows))
        .join(described, on="code", maintain_order="left")
        .with_columns(
            product(GRID).alias("blocks"),
            product(BLOCK).alias("threads"),
            _NO_NUMBER.alias("bytes"),
            _NO_TEXT.alias("direction"),
            _NO_TEXT.alias("src_kind"),
            _NO_TEXT.alias("dst_kind"),
        )
    )


def _copies(schedule: GpuSchedule, rows: pl.Series) -> pl.DataFrame:
    frame = schedule.trace.table("copies", ["kind", "bytes", "src_kind", "dst_kind"])[rows]
    name = pl.format("[copy {}]", pl.col("kind").cast(pl.String))
    return _unnamed(frame.with_columns(pl.col("kind").cast(pl.String).alias("direction")), name)


def _fills(schedule: GpuSchedule, rows: pl.Series) -> pl.DataFrame:
    frame = schedule.trace.table("memsets", ["bytes"])[rows]
    return _unnamed(frame.with_columns(_NO_TEXT.alias("direction")), pl.lit("[memset]"))


def _graphs(schedule: GpuSchedule, rows: pl.Series) -> pl.DataFrame:
    frame = schedule.trace.table("graph_launches", ["start_ns"])[rows]
    none = frame.with_columns(_NO_NUMBER.alias("bytes"), _NO_TEXT.alias("direction"))
    return _unnamed(none, pl.lit("[CUDA graph]"))


def _unnamed(frame: pl.DataFrame, name: pl.Expr) -> pl.DataFrame:
    """Fill in what only kernels have."""
    kinds = {"src_kind", "dst_kind"} & set(frame.columns)
    return frame.with_columns(
        name.alias("name"),
        name.alias("label"),
        *(_NO_TEXT.alias(c) for c in ("category", "precision")),
        pl.lit(None, pl.Boolean).alias("tensor_core"),
        *(_NO_NUMBER.alias(c) for c in ("blocks", "threads")),
        *(
            pl.col(c).cast(pl.String) if c in kinds else _NO_TEXT.alias(c)
            for c in ("src_kind", "dst_kind")
        ),
    )


def _shapes(schedule: GpuSchedule, ops: pl.Series) -> pl.Series:
    trace = schedule.trace
    if not trace.has("cpu_ops", "shapes"):
        return pl.Series("shapes", [None], dtype=pl.String).new_from_index(0, len(ops))
    shapes = trace.table("cpu_ops", ["shapes"])["shapes"]
    return text_of(shapes, ops).alias("shapes")


def _step_of(schedule: GpuSchedule, calls: Ints) -> pl.Series:
    """Number the step that each call lies in; null outside."""
    marks = np.flatnonzero(schedule.calls.kind == CallKind.MARK)
    # Steps begin at the first mark, end at the second, and so on.
    passed = np.searchsorted(marks, calls, side="right")
    inside = (passed % 2 == 1) & (calls >= 0)
    return pl.Series("step", np.where(inside, passed // 2, NONE)).replace(NONE, None)


def calls_frame(schedule: GpuSchedule, program: ReplayProgram) -> pl.DataFrame:
    """Give the API calls with their names and places, without the marks."""
    calls, trace = schedule.calls, schedule.trace
    position = np.flatnonzero(calls.kind != CallKind.MARK)
    rows = pl.Series("row", calls.row[position])
    kinds = [kind.name.lower() for kind in CallKind]
    threads = pl.DataFrame(
        list(schedule.threads), schema={"process": pl.Int64, "thread": pl.Int64}, orient="row"
    )[calls.thread[position]]
    places = _places(schedule, rows)
    return pl.DataFrame(
        {
            "call": position,
            "kind": pl.Series(kinds, dtype=pl.Enum(kinds)).gather(calls.kind[position]),
            "name": text_of(trace.table("api_calls", ["name"])["name"], rows),
            "start_ns": calls.start_ns[position],
            "end_ns": calls.end_ns[position],
            "duration_ns": (calls.end_ns - calls.start_ns)[position],
            "lane": calls.lane[position],
            "step": _step_of(schedule, position),
            "waits": (program.wait != 0)[position],
            "waited_ns": _waited(schedule, program)[position],
        }
    ).hstack([*threads.get_columns(), *places.get_columns()])


def _waited(schedule: GpuSchedule, program: ReplayProgram) -> Ints:
    """Measure what calls took beyond their own work."""
    taken = schedule.calls.end_ns - schedule.calls.start_ns
    return np.where(program.wait != 0, np.maximum(taken - program.own_ns, 0), 0)


def _places(schedule: GpuSchedule, rows: pl.Series) -> pl.DataFrame:
    """Give the range, operator and line of Python that were open when calls began."""
    causes = causes_of_calls(schedule.trace, rows)
    names = names_of_causes(schedule.trace, causes)
    return names.select("range", pl.col("op").alias("operator"), pl.col("call_site").alias("site"))
