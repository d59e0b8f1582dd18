"""How near to their roof kernels ran, as far as a timeline can tell.

It can where the sizes of an operator's inputs were recorded and its arithmetic has a formula:
matrix products, convolutions, attention. Of everything else only counters tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.attribution.operators import Operators
from gpusight.analyses.attribution.work import selected_work
from gpusight.analyses.flops.counted import count_ops
from gpusight.analyses.flops.roofs import Arithmetic, Bound, roofs_of

if TYPE_CHECKING:
    from gpusight.analyses.attribution.work import WorkScope
    from gpusight.analyses.flops.counted import CountedOps
    from gpusight.analyses.flops.roofs import Roofs
    from gpusight.model.trace import Trace

AT_ROOF = 0.8
"""Part of the roof from which on there is little left: what large products of the best libraries
reach."""
_CLASS = ["entry", "precision", "tensor_core", "device"]
_SCHEMA = {"row": pl.Int64(), "least_ns": pl.Float64(), "call_ns": pl.Float64()}


def least_times(scope: WorkScope) -> pl.DataFrame:
    """Give, for kernels whose operator was counted, the least time its call could take.

    Columns: `row` of `kernels`, `least_ns`, and `call_ns`, what all GPU work of the call took.
    """
    trace = scope.trace
    if not (trace.has("cpu_ops", "shapes") and trace.has("kernels")):
        return pl.DataFrame(schema=_SCHEMA)
    counted = count_ops(scope)
    if counted.calls.is_empty():
        return pl.DataFrame(schema=_SCHEMA)
    devices = counted.calls["device"].unique().sort()
    calls = _bounded(counted, roofs_of(trace, devices, peak=None, bandwidth=None))
    return _owned(scope, calls).select(
        "row", "least_ns", pl.col("gpu_ns").cast(pl.Float64).alias("call_ns")
    )


def _bounded(counted: CountedOps, roofs: Roofs) -> pl.DataFrame:
    """Add the least time to each call; those that cost the same and ran alike at once."""
    classes = counted.calls.select(_CLASS).unique(maintain_order=True)
    least = []
    for entry, precision, tensor_core, device in classes.iter_rows():
        cost, roof = counted.cost(entry), roofs.of(device)
        peak = roof.peak(Arithmetic.of(cost, precision, tensor_core)) if cost.flops else None
        least.append(Bound.of(cost, peak, roof.bandwidth).least_ns)
    told = classes.with_columns(pl.Series("least_ns", least, pl.Float64))
    return counted.calls.join(told, on=_CLASS, how="left", nulls_equal=True).drop_nulls("least_ns")


def _owned(scope: WorkScope, calls: pl.DataFrame) -> pl.DataFrame:
    """Give the kernels that a call launched, itself or through what it called."""
    owner = _owners(scope.trace, calls)
    work = selected_work(scope).frame.filter(pl.col("kind") == "kernel")
    kernels = work.select(scope.gpu_rows("kernels").cast(pl.Int64).alias("row"), "op")
    kernels = kernels.drop_nulls("op")
    kernels = kernels.with_columns(pl.Series("op", owner[kernels["op"].to_numpy()], pl.Int64))
    return kernels.join(calls.with_columns(pl.col("op").cast(pl.Int64)), on="op")


def _owners(trace: Trace, calls: pl.DataFrame) -> np.ndarray:
    """Find for each operator the counted call that it is or belongs to; -1 for none."""
    nested = Operators(trace).nested
    marked = np.zeros(trace.row_count("cpu_ops"), dtype=np.bool_)
    marked[calls["op"].to_numpy()] = True
    found = np.empty(len(marked), dtype=np.int64)
    found[nested.rows] = nested.rows_at(nested.nearest(marked[nested.rows]))
    return found
