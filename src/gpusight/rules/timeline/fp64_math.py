"""fp64-math: kernels that compute in double precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.hardware.gpu_lookup import GEMM_FIXED_NS
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import is_training, title_share
from gpusight.rules.locations import each_op
from gpusight.rules.patterns.fp32_gemms import MIN_TENSOR_SPEEDUP
from gpusight.rules.patterns.kernel_groups import (
    kernel_ns,
    kernels_unseen,
    locations_of,
    main_source_phrase,
    scale_durations,
    total_ns,
)
from gpusight.rules.rule import (
    CLEAN,
    UNKNOWN_PEAKS,
    Framework,
    RuleMatch,
    RuleNotApplicable,
    Threshold,
    TimelineRule,
)

if TYPE_CHECKING:
    from gpusight.analysis.replay.changes import Change
    from gpusight.hardware.gpu_table import Gpu
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import RuleVerdict


MIN_KERNEL_TIME_SHARE = Threshold(
    0.05, "share of kernel time in FP64; below it, a fix has no visible effect"
)
MIN_FP64_RATE = Threshold(
    0.25,
    "FP64 to FP32 rate of a GPU that is made for FP64: there, a program without a framework is "
    "assumed to need it",
)
FLOAT_BYTES_SHARE = Threshold(
    0.5, "share of their time that kernels other than GEMMs keep in FP32: they move half the bytes"
)
MIN_KERNEL_NS = Threshold(2_000, "ns that even a small kernel takes")
_MATH = ("matmul", "convolution", "attention")


class Fp64Math(TimelineRule):
    """Double precision where single precision may do."""

    id = "fp64-math"
    detects = (
        "Looks for kernels that compute in FP64, by their names (`dgemm`, `d884gemm`, `double` "
        "template arguments). Without a framework, only on GPUs with slow FP64."
    )
    why = (
        "FP64 moves twice the bytes of FP32. Its arithmetic runs at half the FP32 rate on HPC "
        "GPUs, and at 1/32 or 1/64 on all others. TF32 and BF16 GEMMs are several times faster "
        "still. "
        "NumPy arrays are float64 by default, and a model that gets one becomes float64 itself."
    )
    fix = "Convert model and inputs to float32, and let GEMMs use TF32."
    code = """\
model = model.float()                                # parameters and buffers
inputs = torch.from_numpy(array).float().to("cuda")  # NumPy arrays are float64
torch.set_float32_matmul_precision("high")           # TF32 for GEMMs
"""
    cuda_code = """\
float y = x * 1.5f;                       // 1.5 would make it double
// find accidents: nvcc -Xptxas -warn-double-usage
"""
    jax_code = """\
jax.config.update("jax_enable_x64", False)           # the default; arrays become float32
x = jnp.asarray(array, dtype=jnp.float32)
"""
    snippets: ClassVar = {
        Framework.CUPY: """\
x = cp.asarray(array, dtype=cp.float32)        # NumPy arrays are float64
""",
        Framework.NUMBA: """\
x = cuda.to_device(array.astype(np.float32))   # NumPy arrays are float64
y = x * np.float32(1.5)                        # in kernels too: 1.5 is float64
""",
        Framework.JULIA: """\
x = CuArray{Float32}(array)
y = x .* 1.5f0                                 # 1.5 is Float64
""",
    }
    verify = (
        "`gpusight kernels` shows no FP64 kernels. Compare the loss curve or the results with "
        "those of FP64 before keeping it."
    )
    caveats = (
        "Solvers, ODE integrators and other code with small differences of large numbers may need "
        "FP64. Keep it for that part only."
    )
    estimate = (
        "Simulation in which the time of FP64 GEMMs is divided by the ratio of peak FLOP/s, plus "
        f"{GEMM_FIXED_NS // 1000} µs each. The target is TF32 where Tensor Cores have it, else "
        "FP32. Other FP64 kernels move half the bytes and take half the time. Measured on an H200 "
        "with one program: 25.3 ms/step predicted for FP32, 25.0 ms/step measured."
    )
    effort = "one line"
    thresholds: ClassVar = {
        "min_kernel_time_share": MIN_KERNEL_TIME_SHARE,
        "min_fp64_rate": MIN_FP64_RATE,
        "float_bytes_share": FLOAT_BYTES_SHARE,
        "min_kernel_ns": MIN_KERNEL_NS,
    }

    def check(self, context: RuleContext) -> RuleVerdict:
        """Sum the FP64 kernels, and replay them in FP32 and TF32."""
        if (unseen := kernels_unseen(context)) is not None:
            return unseen
        rows = _fp64_kernels(context)
        share = total_ns(rows) / kernel_ns(context)
        if share < MIN_KERNEL_TIME_SHARE.value:
            return CLEAN
        gpu = context.gpu
        if gpu is None or not gpu.vector.fp64 or not gpu.vector.fp32:
            return RuleNotApplicable(UNKNOWN_PEAKS)
        made_for_fp64 = gpu.vector.fp64 >= MIN_FP64_RATE.value * gpu.vector.fp32
        if made_for_fp64 and not context.framework.is_ml:
            return CLEAN
        return _match(context, rows, share, gpu)

    def locate(self, context: RuleContext, _: TimelineFinding) -> pl.DataFrame:
        """Find the FP64 kernels."""
        return each_op(context, _fp64_kernels(context))


def _fp64_kernels(context: RuleContext) -> pl.DataFrame:
    return context.kernels.filter(pl.col("precision") == "fp64")


def _match(context: RuleContext, rows: pl.DataFrame, share: float, gpu: Gpu) -> RuleMatch:
    changes = {"FP32": _in_precision(rows, gpu, gpu.vector.fp32 or 0.0)}
    if (gpu.tensor.tf32 or 0.0) >= MIN_TENSOR_SPEEDUP * (gpu.vector.fp32 or 0.0):
        changes["TF32"] = _in_precision(rows, gpu, gpu.tensor.tf32 or 0.0)
    saved = {
        name: float(max(0, context.replay.run(change).saved_ns)) for name, change in changes.items()
    }
    gemms = rows.filter(pl.col("category").is_in(_MATH))
    framework = context.framework
    what = "FP64 GEMMs" if 2 * total_ns(gemms) > total_ns(rows) else "FP64 kernels"
    gains = ", ".join(
        f"{name} saves {context.time_per_step(ns) if ns > 0 else 'nothing'}"
        for name, ns in saved.items()
    )
    inputs = "model and inputs" if is_training(context) else "weights and inputs"
    way = context.framework.choose(
        torch=f"Call .float() on {inputs} (NumPy arrays are float64), and allow TF32. Look for "
        "torch.set_default_dtype(torch.float64) and .double().",
        cuda="Use float where precision allows: literals with an f suffix, sinf() instead of "
        "sin().",
        jax="Leave jax_enable_x64 off, and convert NumPy arrays to float32.",
        other="Use float32 where precision allows: convert arrays; literals are float64.",
    )
    return RuleMatch(
        title=f"{what} ({title_share(share)} of GPU time)",
        evidence=(
            context.evidence("fp64_ns", total_ns(rows), "ns", "Time in FP64 kernels"),
            Evidence("gpu_share", share, "share", "Share of GPU time"),
            context.evidence("fp64_gemm_ns", total_ns(gemms), "ns", "Time in FP64 GEMMs"),
            context.evidence("kernels", rows.height, "", "FP64 kernels"),
            *(
                context.evidence(f"saved_{name.lower()}_ns", ns, "ns", f"Time saved with {name}")
                for name, ns in saved.items()
            ),
        ),
        confidence=Confidence.LOW if not framework.is_ml else Confidence.MEDIUM,
        confidence_reason="the kernels were measured; the capture does not show whether the "
        "results need FP64",
        change=(list(changes.values())[-1],),
        fix=(
            f"{context.count_per_step(rows.height, 'FP64 kernel')}"
            f"{main_source_phrase(context, rows)}. Alone, {gains}. {way}"
        ),
        effort=framework.choose(torch="one line", cuda="rewrite", jax="config"),
        where=locations_of(context, rows),
    )


def _in_precision(rows: pl.DataFrame, gpu: Gpu, rate: float) -> Change:
    """Run GEMMs at this rate (TFLOP/s), and move half the bytes in all other kernels."""
    on_tensor_cores = rows["tensor_core"].fill_null(value=False).to_numpy()
    vector = gpu.vector.fp64 or 0.0
    now = np.where(on_tensor_cores, gpu.tensor.fp64 or vector, vector)
    duration_ns = np.maximum(rows["duration_ns"].to_numpy(), 1)
    is_math = rows["category"].is_in(_MATH).to_numpy()
    left = np.where(
        is_math,
        now / rate + GEMM_FIXED_NS / duration_ns,
        np.maximum(FLOAT_BYTES_SHARE.value, MIN_KERNEL_NS.value / duration_ns),
    )
    return scale_durations(rows["op"].to_numpy(), np.minimum(left, 1.0))
