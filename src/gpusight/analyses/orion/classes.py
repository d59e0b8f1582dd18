"""Whether a launch is bound by arithmetic or by memory, as the scheduler tells them apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.counters.quantities import DRAM_SHARE, SM_SHARE
from gpusight.analyses.counters.quantity import DURATION, Formula, Quantity, measured, metric, total
from gpusight.analyses.orion.launches import how_many
from gpusight.analyses.roofline.points import measure
from gpusight.model.hardware import find_gpu

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.model.trace import Trace

COMPUTE, MEMORY, NEITHER = 1, 0, -1
"""What the column `Profile` holds."""
CLASS_NAMES = {COMPUTE: "compute", MEMORY: "memory", NEITHER: "neither"}
PROFILE = "profile"
INTENSITY = "intensity"
"""FLOPs for each byte of DRAM; zero without FLOPs, null where it is not known."""
ORIGINAL_THRESHOLD = 9.72
"""FLOP/byte above which the original calls a launch compute-bound, whatever the GPU."""
BUSY = 0.6
"""Part of the peak from which a unit is what binds a launch that does no arithmetic."""

_OPS = ("fadd", "fmul", "ffma")
_PER_CYCLE = tuple(
    f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum.per_cycle_elapsed" for op in _OPS
)
_SUMS = tuple(f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in _OPS)
_CLOCK = "smsp__cycles_elapsed.avg.per_second"
_PER_SECOND = 1e9 / pl.col(DURATION)


def _operations(values: Sequence[pl.Expr]) -> pl.Expr:
    return values[0] + values[1] + 2 * values[2]


_FP32_RATE = Quantity(
    "fp32_per_second",
    "",
    "FP32 operations a second, an FMA counted as two",
    (
        Formula((*_PER_CYCLE, _CLOCK), lambda v: _operations(v) * v[3]),
        Formula(_SUMS, lambda v: _operations(v) * _PER_SECOND),
    ),
    "SpeedOfLight_RooflineChart",
)
_DRAM_RATE = Quantity(
    "dram_bytes_per_second",
    "byte/s",
    "Bytes read from and written to the GPU's memory a second",
    (
        metric("dram__bytes.sum.per_second"),
        Formula(("dram__bytes.sum",), lambda v: v[0] * _PER_SECOND),
        total("dram__bytes_read.sum.per_second", "dram__bytes_write.sum.per_second"),
        Formula(
            ("dram__bytes_read.sum", "dram__bytes_write.sum"),
            lambda v: (v[0] + v[1]) * _PER_SECOND,
        ),
    ),
    "MemoryWorkloadAnalysis",
)


def with_profile(
    trace: Trace,
    launches: pl.DataFrame,
    threshold: float | None,
    *,
    gpu: str | None = None,
    compat: bool = False,
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Add the columns `intensity` and `profile`; gives them with notes. `gpu` replaces its own."""
    told = _original(trace) if compat else _counted(trace, gpu)
    default = pl.lit(ORIGINAL_THRESHOLD) if compat else pl.col("knee")
    limit = default if threshold is None else pl.lit(threshold)
    frame = (
        launches.join(told, on="launch", how="left", maintain_order="left")
        .with_columns(_intensity().alias(INTENSITY), limit.cast(pl.Float64).alias("_limit"))
        .with_columns(_profile().alias(PROFILE))
    )
    notes = _notes(frame)
    return frame.drop("_limit", "_flops", "_bytes", "_estimated", "knee"), notes


def _counted(trace: Trace, gpu: str | None) -> pl.DataFrame:
    """Count the operations of every precision; the knee is that of what the launch computes in."""
    # A compute capability such as sm_80 names limits of an SM, but no peaks.
    peaks_of = gpu if gpu is not None and find_gpu(gpu) is not None else None
    return measure(trace, peaks_of).frame.select(
        "launch",
        pl.col("flops").alias("_flops"),
        pl.col("dram_bytes").alias("_bytes"),
        "knee",
        pl.col("estimated").alias("_estimated"),
    )


def _original(trace: Trace) -> pl.DataFrame:
    """Count as the original does: FP32 only."""
    return measured(trace, (_FP32_RATE, _DRAM_RATE)).select(
        "launch",
        pl.col(_FP32_RATE.key).alias("_flops"),
        pl.col(_DRAM_RATE.key).alias("_bytes"),
        pl.lit(None, pl.Float64).alias("knee"),
        pl.lit(value=False).alias("_estimated"),
    )


def _intensity() -> pl.Expr:
    flops, moved = pl.col("_flops"), pl.col("_bytes")
    return pl.when(flops == 0).then(0.0).when(moved.is_not_null()).then(flops / moved)


def _profile() -> pl.Expr:
    intensity, limit = pl.col(INTENSITY), pl.col("_limit")
    told = (pl.col("_flops") > 0) & intensity.is_not_null() & limit.is_not_null()
    by_intensity = pl.when(intensity > limit).then(COMPUTE).otherwise(MEMORY)
    return (
        pl.when(told)
        .then(by_intensity)
        .when(pl.col(SM_SHARE.key) >= BUSY)
        .then(COMPUTE)
        .when(pl.col(DRAM_SHARE.key) >= BUSY)
        .then(MEMORY)
        .otherwise(NEITHER)
        .cast(pl.Int64)
    )


def _notes(frame: pl.DataFrame) -> tuple[str, ...]:
    """Say for how many launches the class is told by less than it should be."""
    flops = pl.col("_flops")
    unit = pl.any_horizontal(pl.col(SM_SHARE.key, DRAM_SHARE.key).is_null())
    no_flops = frame.filter(flops.is_null()).height
    no_bytes = frame.filter((flops > 0) & pl.col(INTENSITY).is_null()).height
    no_knee = frame.filter((flops > 0) & pl.col("_limit").is_null()).height
    no_units = frame.filter((flops.is_null() | (flops == 0)) & unit).height
    told = (
        (no_flops, "no operations are counted", f"collect: --section {_FP32_RATE.section}"),
        (no_bytes, "no DRAM bytes are counted", f"collect: --section {_DRAM_RATE.section}"),
        (no_knee, "the peaks of the GPU are not known", "give --threshold FLOP/BYTE or --gpu NAME"),
    )
    notes = [
        f"{what} of {how_many(count)}: the class is that of the unit that is {BUSY:.0%} busy, "
        f"if any; {remedy}"
        for count, what, remedy in told
        if count
    ]
    if no_units:
        notes.append(
            f"no throughput in the report of {how_many(no_units)}, and the class may be missing; "
            "collect: --section SpeedOfLight"
        )
    estimated = frame.filter(pl.col("_estimated")).height
    if estimated:
        notes.append(
            f"operations of {how_many(estimated)} are estimated from how busy tensor cores were"
        )
    return tuple(notes)
