"""Operations of each launch by kind of arithmetic, from whatever the capture counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.counters.launch_quantities import (
    DURATION,
    LaunchQuantity,
    QuantityFormula,
    measured,
    metric,
    percent,
)
from gpusight.analysis.kernel_summary import SHAPE
from gpusight.analysis.roofline.arithmetic_counters import (
    FP16,
    FP32,
    FP64,
    HALF_FMA,
    HALF_OTHER,
    KINDS,
    SECONDS,
    TENSOR_PRECISIONS,
    UNTOLD,
    WARPS,
    ArithmeticKind,
    counted_by_opcode,
    lane_quantities,
    tensor_quantities,
)
from gpusight.naming.kernel_names import classify

if TYPE_CHECKING:
    from collections.abc import Collection

    from gpusight.naming.kernel_names import KernelName
    from gpusight.trace.trace import Trace


TENSOR_KEYS = tuple(kind.key for kind in KINDS if kind.tensor)
_LANE_KEYS = (FP64.key, FP32.key, HALF_FMA, HALF_OTHER)
_CONSTANTS = 8
_FEW = 0.1
"""FP16 FMAs that are fewer, a thread or of all instructions, may be no arithmetic: see `_half`."""
_LANES = 32
_HALVES = ("fp16", "bf16")
NO_WORK = 0.1
"""Tensor cores and FP16 units that are less busy may do no work: they also load constants."""

_ANY_BUSY = tuple(
    percent(f"sm__{name}.{way}.pct_of_peak_sustained_elapsed")
    for name in ("pipe_tensor_cycles_active", "inst_executed_pipe_tensor")
    for way in ("avg", "sum")
)
_MATRICES = (
    "sm__pipe_tensor_type_hmma_hgmma_qgmma_imma_igmma_bmma_bgmma_cycles_active.avg"
    ".pct_of_peak_sustained_elapsed"
)
"""Hopper tells matrix products from FMAs that only pass through the tensor cores."""
_DOUBLES = "sm__pipe_tensor_op_dmma_cycles_active.avg.pct_of_peak_sustained_elapsed"
_BUSY = LaunchQuantity(
    "tensor_pipe",
    "",
    "How busy the tensor cores were",
    (
        QuantityFormula(
            (_MATRICES, _DOUBLES),
            lambda values: pl.when(values[0].is_not_null()).then(pl.max_horizontal(values) * 0.01),
        ),
        *_ANY_BUSY,
    ),
    "ComputeWorkloadAnalysis",
)
_INSTRUCTIONS = LaunchQuantity(
    "instructions",
    "inst",
    "Instructions that warps executed",
    (metric("smsp__inst_executed.sum"), metric("sm__inst_executed.sum")),
    "InstructionStats",
)
_BUSY_ASIDE = LaunchQuantity(
    "tensor_aside",
    "",
    "How busy the tensor cores were with what runs beside the warps, from Blackwell on",
    (percent("sm__pipe_tc_cycles_active.avg.pct_of_peak_sustained_elapsed"),),
    "ComputeWorkloadAnalysis",
)

_HALF_BUSY = LaunchQuantity(
    "half_share",
    "",
    "How busy the units of FP16 were; on some GPUs with conversions too",
    tuple(
        percent(f"sm__inst_executed_pipe_{unit}.avg.pct_of_peak_sustained_{time}")
        for time in ("elapsed", "active")
        for unit in ("fma_type_fp16", "fp16")
    ),
    "ComputeWorkloadAnalysis",
)


def count(trace: Trace, present: Collection[str]) -> pl.DataFrame:
    """Count what every launch computed; `present` are the metrics of the capture.

    Gives `launch`, `duration_ns`, a column for each kind (null: not known), `tensor_share` and
    `half_share` (how busy tensor cores and FP16 units were) and `tensor_key` (the kind that the
    kernel's name says tensor cores did).
    """
    counted = (*lane_quantities(present), *tensor_quantities(present))
    used = (_BUSY, _BUSY_ASIDE, _HALF_BUSY, _INSTRUCTIONS)
    frame = measured(trace, (*counted, *used), ("name", *SHAPE))
    absent = [key for key in (*_LANE_KEYS, *TENSOR_KEYS) if key not in frame.columns]
    frame = _with_names(frame).with_columns(
        *(pl.lit(None, pl.Float64).alias(key) for key in absent),
        pl.max_horizontal(_BUSY.key, _BUSY_ASIDE.key).alias("tensor_share"),
    )
    frame = _none_of_the_others(frame)
    if WARPS in present and trace.has("counter_instances") and _is_short(frame):
        frame = _with_opcodes(frame, counted_by_opcode(trace))
    kinds = (kind.key for kind in KINDS)
    return _without_idle(frame.with_columns(_half().alias(FP16.key))).select(
        "launch", DURATION, *kinds, "tensor_share", _HALF_BUSY.key, "tensor_key"
    )


def estimate(frame: pl.DataFrame) -> pl.DataFrame:
    """Fill in what tensor cores did, from how busy they were; needs `peak_…` columns.

    Adds `estimated`.
    """
    unknown = pl.all_horizontal(pl.col(key).is_null() for key in TENSOR_KEYS)
    work = pl.col("tensor_share") * SECONDS
    filled = [
        pl.when(unknown & (pl.col("tensor_key") == key))
        .then(work * pl.col(f"peak_{key}"))
        .otherwise(pl.col(key))
        .alias(key)
        for key in TENSOR_KEYS
    ]
    known_now = pl.any_horizontal(pl.col(key).is_not_null() for key in TENSOR_KEYS)
    return (
        frame.with_columns(unknown.alias("estimated"))
        .with_columns(filled)
        .with_columns(pl.col("estimated") & known_now)
    )


def total() -> pl.Expr:
    """Add all kinds up; null when what the kernel mainly did was not counted."""
    counted = pl.sum_horizontal(pl.col(kind.key).fill_null(0.0) for kind in KINDS)
    untold = pl.all_horizontal(pl.col(key).is_null() for key in TENSOR_KEYS)
    busy = pl.col("tensor_share").fill_null(0.0) > NO_WORK
    halves = pl.col(FP16.key).is_null() & (pl.col(_HALF_BUSY.key).fill_null(0.0) > NO_WORK)
    told = (pl.col(FP32.key).is_not_null() | (counted > 0)) & ~(untold & busy) & ~halves
    return pl.when(told).then(counted)


def _none_of_the_others(frame: pl.DataFrame) -> pl.DataFrame:
    """Where some formats of tensor cores were counted, the GPU has none of the others.

    Unless nothing was counted while they were busy: then they did what nobody counted.
    """
    known = pl.any_horizontal(pl.col(key).is_not_null() for key in TENSOR_KEYS)
    nothing = pl.sum_horizontal(pl.col(key).fill_null(0.0) for key in TENSOR_KEYS) == 0
    busy = pl.col("tensor_share").fill_null(0.0) > NO_WORK
    return frame.with_columns(
        pl.when(known & ~(nothing & busy)).then(pl.col(key).fill_null(0.0)).alias(key)
        for key in TENSOR_KEYS
    )


def _is_short(frame: pl.DataFrame) -> bool:
    """Tell whether any launch lacks counters of what lanes or tensor cores did."""
    keys = (FP64.key, FP32.key, HALF_FMA, TENSOR_KEYS[0])
    return any(frame.get_column(key).null_count() for key in keys)


def _with_opcodes(frame: pl.DataFrame, opcodes: pl.DataFrame) -> pl.DataFrame:
    keys = (*_LANE_KEYS, *TENSOR_KEYS)
    joined = frame.join(opcodes, on="launch", how="left", suffix="_op", maintain_order="left")
    timed = pl.col(DURATION).is_not_null()
    told = {True: timed & ~pl.col(UNTOLD).fill_null(value=False), False: timed}
    return joined.with_columns(
        pl.coalesce(pl.col(key), pl.when(told[key in TENSOR_KEYS]).then(pl.col(f"{key}_op"))).alias(
            key
        )
        for key in keys
    )


def _half() -> pl.Expr:
    """Count FP16 work, without the FMAs by which compilers load constants.

    Those are few, come without additions or products, and in kernels not named after FP16.
    """
    threads = pl.lit(1.0)
    for side in SHAPE:
        threads = threads * pl.col(side)
    fma, other = pl.col(HALF_FMA), pl.col(HALF_OTHER)
    warps = fma / 4 / _LANES
    few = pl.any_horizontal(
        (warps < _FEW * pl.col(_INSTRUCTIONS.key)).fill_null(value=False),
        (fma <= 4 * _CONSTANTS * threads).fill_null(value=False),
        (fma < pl.col(FP32.key)).fill_null(value=False),
    )
    constants = (other.fill_null(0.0) == 0) & few & ~pl.col("half_named")
    return pl.when(constants).then(0.0).otherwise(fma + other.fill_null(0.0))


def _with_names(frame: pl.DataFrame) -> pl.DataFrame:
    """Add what names tell: the kind of tensor-core arithmetic, and whether it works in FP16."""
    names = frame.get_column("name").cast(pl.String).to_list()
    known = {name: classify(name) for name in set(names)}
    keys = {name: _tensor_key(kernel) for name, kernel in known.items()}
    halves = {name: kernel.precision in _HALVES for name, kernel in known.items()}
    return frame.with_columns(
        pl.Series("tensor_key", [keys[name] for name in names], pl.String),
        pl.Series("half_named", [halves[name] for name in names], pl.Boolean),
    )


def _tensor_key(known: KernelName) -> str | None:
    if not known.tensor_core or known.precision not in TENSOR_PRECISIONS:
        return None
    return ArithmeticKind(known.precision, tensor=True).key


def _without_idle(frame: pl.DataFrame) -> pl.DataFrame:
    """Set what tensor cores did to nothing where they had nothing to do, and were not counted."""
    idle = (pl.col("tensor_share") <= NO_WORK) & (
        pl.col("tensor_key").is_null() | (pl.col("tensor_share") == 0)
    )
    return frame.with_columns(
        pl.when(idle).then(pl.col(key).fill_null(0.0)).otherwise(pl.col(key)).alias(key)
        for key in TENSOR_KEYS
    )
