"""The compute roofs over each launch: what its GPU could do in each kind of arithmetic.

A report that was made for it holds what its GPU does a cycle, and how fast it was clocked. What it
does not hold comes from the GPU table, for as many SMs and at the clock that the launch had.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.counters.quantities import SM_CLOCK_HZ
from gpusight.analyses.counters.quantity import Formula, Quantity, measured, metric
from gpusight.analyses.flops.roofs import roofs_of
from gpusight.analyses.roofline.arithmetic import (
    FP16,
    FP32,
    FP64,
    KINDS,
    PEAK,
    SECTION,
    TENSOR_SECTION,
    paths,
    positive,
)
from gpusight.model.hardware import PRECISIONS, peak_flops

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gpusight.analyses.roofline.arithmetic import Arithmetic, Path
    from gpusight.model.hardware import Gpu
    from gpusight.model.trace import Trace

_SPARSE_SINCE = 8
"""Compute capability from which tensor cores can skip zeros, which doubles their rate."""
_NEVER_SPARSE = ("fp64", "int1")
_LANES = ((FP64, "dfma", 2.0), (FP32, "ffma", 2.0), (FP16, "hfma", 4.0))
"""An FMA does two operations; one in FP16 works on a pair of numbers."""
_NOWHERE = -1


def gpus_of(trace: Trace, given: Gpu | None) -> dict[int, Gpu]:
    """Describe the GPUs that launches ran on; one that a person names stands for all of them."""
    devices = trace.table("profiles", ["device"]).get_column("device").unique().sort()
    numbers = [_NOWHERE if number is None else number for number in devices]
    if given is not None:
        return dict.fromkeys(numbers, given)
    roofs = roofs_of(trace, numbers, peak=None, bandwidth=None)
    return {number: gpu for number in numbers if (gpu := roofs.of(number).gpu) is not None}


def compute_roofs(trace: Trace, present: Collection[str], gpus: dict[int, Gpu]) -> pl.DataFrame:
    """Give for each launch and kind `peak_…` in FLOP/s, and `own_…`: the report told it."""
    own = list(_per_cycle(present))
    frame = measured(trace, (*own, SM_CLOCK_HZ), ("device", "compute_major"))
    frame = frame.with_columns(pl.col("device").fill_null(_NOWHERE))
    frame = frame.join(_table(gpus), on="device", how="left", maintain_order="left")
    told = {quantity.key for quantity in own}
    return frame.select("launch", *(e for kind in KINDS for e in _peak(kind.key, told)))


def _peak(key: str, told: Collection[str]) -> Iterator[pl.Expr]:
    clock = pl.coalesce(SM_CLOCK_HZ.key, "table_clock")
    own = positive(pl.col(key) * clock) if key in told else pl.lit(None, pl.Float64)
    published = pl.col(SM_CLOCK_HZ.key) / pl.col(f"clock_{key}")
    table = pl.col(f"table_{key}") * published.fill_null(1.0)
    yield pl.coalesce(own, table).alias(f"peak_{key}")
    yield own.is_not_null().alias(f"own_{key}")


def _per_cycle(present: Collection[str]) -> Iterator[Quantity]:
    """Give what the report says its GPU does a cycle, for each kind it says that of."""
    for kind, op, flops in _LANES:
        name = f"sm__sass_thread_inst_executed_op_{op}_pred_on.{PEAK}"
        if name in present:
            yield Quantity(
                kind.key, "", f"FLOPs a cycle in {kind.text}", (metric(name, flops),), SECTION
            )
    found = [path for path in paths(present) if path.form == PEAK]
    for kind in KINDS:
        chosen = _dense([p for p in found if kind.tensor and p.precision == kind.precision])
        if chosen:
            meaning = f"Operations a cycle of {kind.text}, without sparsity"
            yield Quantity(kind.key, "", meaning, (_largest(chosen),), TENSOR_SECTION)


def _dense(found: list[Path]) -> list[Path]:
    """Choose peaks without sparsity and, where both are given, with sums in FP32."""
    plain = [path for path in found if path.sparsity == "off"]
    plain = plain or [path for path in found if path.sparsity is None]
    chosen: list[Path] = []
    for _, group in groupby(sorted(plain, key=_op), key=_op):
        alike = list(group)
        chosen += [path for path in alike if path.target == "fp32"] or alike
    return chosen


def _op(path: Path) -> str:
    return path.op or ""


def _largest(chosen: list[Path]) -> Formula:
    """Take the largest peak: newer instructions for the same product can be faster."""
    names = tuple(f"{path.base}.{PEAK}" for path in chosen)
    return Formula(
        names,
        lambda values: pl.max_horizontal(
            value * _share_without_sparsity(path)
            for value, path in zip(values, chosen, strict=True)
        ),
    )


def _share_without_sparsity(path: Path) -> pl.Expr:
    """Halve a peak that says nothing of sparsity: it is the highest there is."""
    if path.sparsity is not None or path.precision in _NEVER_SPARSE:
        return pl.lit(1.0)
    sparse = (pl.col("compute_major") >= _SPARSE_SINCE).fill_null(value=True)
    return pl.when(sparse).then(0.5).otherwise(1.0)


def _table(gpus: dict[int, Gpu]) -> pl.DataFrame:
    """Give a row for each GPU: its clock, its peaks, and the clock that each is published for."""
    known = [kind for kind in KINDS if kind.precision in PRECISIONS]
    schema = {"device": pl.Int64, "table_clock": pl.Float64}
    schema |= {f"{what}_{kind.key}": pl.Float64 for what in ("table", "clock") for kind in KINDS}
    rows = [
        {
            "device": number,
            "table_clock": _hertz(gpu.boost_clock_mhz),
            **{f"table_{k.key}": peak_flops(gpu, k.precision, tensor=k.tensor) for k in known},
            **{f"clock_{k.key}": _published_clock(gpu, k) for k in known},
        }
        for number, gpu in gpus.items()
    ]
    return pl.DataFrame(rows, schema=schema)


def _published_clock(gpu: Gpu, kind: Arithmetic) -> float | None:
    """Give the clock of a peak: data sheets of Hopper rate tensor cores at a lower one."""
    lower = gpu.tensor_clock_mhz if kind.tensor and kind.precision != FP64.precision else None
    return _hertz(lower or gpu.boost_clock_mhz)


def _hertz(mhz: float | None) -> float | None:
    return mhz * 1e6 if mhz else None
