"""Which kernels are matrix products in FP32 that tensor cores could do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.flops.costs import Cost, cost_of
from gpusight.findings.timeline.convolutions import tensor_cores_allowed, without_tensor_cores
from gpusight.model.hardware import peak_flops

if TYPE_CHECKING:
    from gpusight.findings.timeline.timeline import Timeline

LEAST_RATE = 0.15
"""Part of the peak rate below which a product waits for memory, not for arithmetic."""
# Products with a vector, of few columns, of sparse matrices, solvers and recurrent layers.
_NOT_FOR_TENSOR_CORES = r"^gemv|^gemm small|^sparse|trsm|syrk|trmm|getrf|potrf|lu_?factor|rnn"
_SERVES = r"split-k|epilogue|setup"


def on_lanes(kernels: pl.DataFrame) -> pl.DataFrame:
    """Give products and convolutions in FP32 whose names say that lanes compute them."""
    label = pl.col("label").str.to_lowercase()
    product = (pl.col("category") == "matmul") & ~label.str.contains(_NOT_FOR_TENSOR_CORES)
    found = product & (pl.col("precision") == "fp32") & ~pl.col("tensor_core")
    if not tensor_cores_allowed(kernels):
        found = found | without_tensor_cores()
    return kernels.filter(found.fill_null(value=False))


def untold(kernels: pl.DataFrame) -> pl.DataFrame:
    """Give products in FP32, or in what is not known, whose names do not say what computes them."""
    label = pl.col("label").str.to_lowercase()
    product = (pl.col("category") == "matmul") & ~label.str.contains(
        f"{_NOT_FOR_TENSOR_CORES}|{_SERVES}"
    )
    plain = pl.col("precision").is_in(("fp32", "unknown"))
    return kernels.filter(product & plain & pl.col("tensor_core").is_null())


def without_memory_bound(timeline: Timeline, rows: pl.DataFrame) -> pl.DataFrame:
    """Leave out products whose recorded shapes say that arithmetic does not hold them."""
    gpu = timeline.gpu
    peak = None if gpu is None else peak_flops(gpu, "fp32", tensor=False)
    if not peak or not rows["shapes"].count():
        return rows
    known = rows.select("operator", "shapes").unique(maintain_order=True)
    costs = [_flops(*row) for row in known.iter_rows()]
    told = known.with_columns(pl.Series("flops", costs, dtype=pl.Float64))
    rate = rows.join(
        told, on=["operator", "shapes"], how="left", nulls_equal=True, maintain_order="left"
    )
    reached = pl.col("flops") / (pl.col("duration_ns") * 1e-9 * peak)
    return rate.filter((reached >= LEAST_RATE).fill_null(value=True)).drop("flops")


def _flops(operator: str | None, shapes: str | None) -> float | None:
    if operator is None or shapes is None:
        return None
    cost = cost_of(operator, shapes)
    return float(cost.flops) if isinstance(cost, Cost) else None
