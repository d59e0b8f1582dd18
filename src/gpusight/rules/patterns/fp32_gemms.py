"""FP32 GEMMs and convolutions not on Tensor Cores, and what they would take there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.replay.changes import more_launches
from gpusight.hardware.gpu_lookup import GEMM_FIXED_NS, peak_flops
from gpusight.rules.patterns.kernel_groups import launch_ns, scale_durations

if TYPE_CHECKING:
    from gpusight.analysis.replay.changes import Change
    from gpusight.hardware.gpu_table import Gpu
    from gpusight.rules.context import RuleContext
    from gpusight.trace.intervals import Ints, Reals


MIN_TENSOR_CORE_SHARE = 0.2
"""Share of the time of convolutions on Tensor Cores from which on the program allows these: the
others are then the choice of an algorithm."""
# Lowered to a matrix in memory, written without a library, or one thread for each element.
_PLAIN = r"^im\d?d?2col|^col2im|^vol2col|^col2vol|naive_conv|grouped_direct|^depthwise"
# Transforms of cuDNN's convolutions by FFT; the GEMMs in between are of complex numbers.
_FFT = r"\bDSE::|fft2d_|cudnn\w*::fft"
_BETWEEN_FFT = r"^gemm complex|^region_transform"
_TRANSPOSES = r"cudnn.*genericTranspose"
_IS_CONVOLUTION = pl.col("category") == "convolution"


def uses_plain_algorithm() -> pl.Expr:
    """Match kernels of algorithms that are slower than those of a library."""
    return (_IS_CONVOLUTION & pl.col("label").str.contains(_PLAIN)).fill_null(value=False)


def without_tensor_cores() -> pl.Expr:
    """Match the other kernels that compute in FP32 on CUDA cores."""
    on_cuda_cores = (pl.col("precision") == "fp32") & ~pl.col("tensor_core")
    return (_IS_CONVOLUTION & on_cuda_cores & ~uses_plain_algorithm()).fill_null(value=False)


def tensor_cores_allowed(kernels: pl.DataFrame) -> bool:
    """Return whether a large part of the convolutions runs on Tensor Cores."""
    convolutions = kernels.filter(_IS_CONVOLUTION)
    on_tensor_cores = int(convolutions.filter(pl.col("tensor_core"))["duration_ns"].sum())
    return on_tensor_cores > MIN_TENSOR_CORE_SHARE * int(convolutions["duration_ns"].sum())


def slow_convolutions(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the convolutions with an algorithm that others beat, and their transposes."""
    if not tensor_cores_allowed(kernels):
        return kernels.filter(uses_plain_algorithm())
    fft = pl.col("name").str.contains(_FFT).fill_null(value=False)
    if kernels.filter(fft).height:
        fft = fft | pl.col("label").str.contains(_BETWEEN_FFT).fill_null(value=False)
    slow = uses_plain_algorithm() | without_tensor_cores() | fft
    transposes = pl.col("name").str.contains(_TRANSPOSES).fill_null(value=False)
    neighbors = [slow.shift(n).over("stream_id").fill_null(value=False) for n in (1, -1)]
    return kernels.filter(slow | (transposes & pl.any_horizontal(neighbors)))


MIN_PEAK_SHARE = 0.15
"""Share of the peak rate below which a GEMM may be bound by memory."""
# GEMMs with a vector, of few columns, of sparse matrices, solvers and recurrent layers.
_NOT_FOR_TENSOR_CORES = r"^gemv|^gemm small|^sparse|trsm|syrk|trmm|getrf|potrf|lu_?factor|rnn"
_SERVES = r"split-k|epilogue|setup"


def gemms_on_cuda_cores(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return FP32 GEMMs and convolutions that use CUDA cores by their names."""
    label = pl.col("label").str.to_lowercase()
    gemm = (pl.col("category") == "matmul") & ~label.str.contains(_NOT_FOR_TENSOR_CORES)
    on_cuda_cores = gemm & (pl.col("precision") == "fp32") & ~pl.col("tensor_core")
    if not tensor_cores_allowed(kernels):
        on_cuda_cores = on_cuda_cores | without_tensor_cores()
    return kernels.filter(on_cuda_cores.fill_null(value=False))


def gemms_of_unknown_pipe(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return GEMMs in FP32 or an unknown precision whose names do not show what computes them."""
    label = pl.col("label").str.to_lowercase()
    return kernels.filter(
        pl.col("category") == "matmul",
        ~label.str.contains(f"{_NOT_FOR_TENSOR_CORES}|{_SERVES}"),
        pl.col("precision").is_in(("fp32", "unknown")),
        pl.col("tensor_core").is_null(),
    )


def without_memory_bound(context: RuleContext, rows: pl.DataFrame) -> pl.DataFrame:
    """Leave out GEMMs that are bound by memory, by their recorded shapes.

    These are far from the peak rate, and have fewer FLOPs per byte than the GPU (ridge point).
    Others that are as slow are small: they wait for neither memory nor arithmetic.
    """
    gpu = context.gpu
    peak = None if gpu is None else peak_flops(gpu, "fp32", tensor=False)
    bandwidth = None if gpu is None else gpu.memory_bandwidth_bytes_s
    if not peak or not bandwidth or not rows["shapes"].count():
        return rows
    known = rows.select("operator", "shapes").unique(maintain_order=True)
    costs = [_flops(*row, ridge_point=peak / bandwidth) for row in known.iter_rows()]
    flops = known.with_columns(pl.Series("flops", costs, dtype=pl.Float64))
    with_flops = rows.join(
        flops, on=["operator", "shapes"], how="left", nulls_equal=True, maintain_order="left"
    )
    peak_share = pl.col("flops") / (pl.col("duration_ns") * 1e-9 * peak)
    return with_flops.filter((peak_share >= MIN_PEAK_SHARE).fill_null(value=True)).drop("flops")


def _flops(operator: str | None, shapes: str | None, *, ridge_point: float) -> float | None:
    """Return the FLOPs of a GEMM whose intensity is below the ridge point; else None."""
    if operator is None or shapes is None:
        return None
    # Formulas of all operators, which only captures with shapes need.
    from gpusight.analysis.flops.operator_cost import cost_of
    from gpusight.analysis.flops.operator_inputs import OperatorCost

    cost = cost_of(operator, shapes, json.dumps(["float"] * len(json.loads(shapes))))
    if not isinstance(cost, OperatorCost):
        return None
    moved_bytes = (cost.read_bytes or 0) + (cost.written_bytes or 0)
    is_below = not moved_bytes or cost.flops < ridge_point * moved_bytes
    return float(cost.flops) if is_below else None


CAST_GPU_NS = 5_000
"""GPU time of a cast that autocast adds."""
MIN_TENSOR_SPEEDUP = 1.5
"""Ratio of rates from which Tensor Cores pay off: on GeForce cards TF32 is as fast as FP32."""
_NAMES = {"tf32": "TF32", "bf16": "BF16 autocast", "fp16": "FP16 autocast"}


@dataclass(frozen=True)
class TensorFormat:
    """A number format for Tensor Cores."""

    precision: str
    ratio: float
    """Its peak rate against that of FP32 on CUDA cores."""
    casts: int
    """Casts of a forward GEMM; a backward one needs half of them."""

    @property
    def name(self) -> str:
        """Its usual name."""
        return _NAMES[self.precision]

    @property
    def how(self) -> str:
        """What the estimate includes, within a sentence."""
        return f"({self.ratio:.1f}x peak FLOP/s)" if not self.casts else "(including its casts)"

    def change(self, context: RuleContext, rows: pl.DataFrame) -> tuple[Change, ...]:
        """Run GEMMs at this rate."""
        faster = scale_durations(rows["op"].to_numpy(), self.left(rows["duration_ns"].to_numpy()))
        return (faster, self._casting(context, rows)) if self.casts else (faster,)

    def left(self, duration_ns: Ints) -> Reals:
        """Return the part of the time of GEMMs that remains at this rate."""
        remaining: Reals = np.minimum(
            1.0, 1 / self.ratio + GEMM_FIXED_NS / np.maximum(duration_ns, 1)
        )
        return remaining

    def _casting(self, context: RuleContext, rows: pl.DataFrame) -> Change:
        """Add the launches of casts."""
        backward = pl.col("phase").cast(pl.String).fill_null("") == "backward"
        called = rows.filter(
            pl.col("call").is_not_null() & ~pl.col("in_graph").fill_null(value=False)
        )
        casts = pl.when(backward).then(self.casts // 2).otherwise(self.casts)
        by_call = called.group_by("call", maintain_order=True).agg(casts.sum().alias("n"))
        return more_launches(
            by_call["call"].to_numpy(),
            by_call["n"].cast(pl.Int64).to_numpy(),
            host_ns=round(launch_ns(context, rows)),
            gpu_ns=CAST_GPU_NS,
        )


def targets(gpu: Gpu) -> tuple[TensorFormat, ...]:
    """Return the formats in which GEMMs could be computed on this GPU, the easiest first."""
    fp32 = gpu.vector.fp32
    if not fp32:
        return ()
    half = "bf16" if gpu.tensor.bf16 else "fp16"
    rates = ((gpu.tensor.tf32, "tf32", 0), (getattr(gpu.tensor, half), half, 2))
    return tuple(
        TensorFormat(precision, rate / fp32, casts)
        for rate, precision, casts in rates
        if rate and rate / fp32 >= MIN_TENSOR_SPEEDUP
    )
