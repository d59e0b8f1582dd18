"""fp32-no-tensor-cores: FP32 GEMMs that run on CUDA cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from gpusight.hardware.gpu_lookup import GEMM_FIXED_NS
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import is_training, title_share
from gpusight.rules.locations import each_op
from gpusight.rules.patterns.fp32_gemms import (
    CAST_GPU_NS,
    TensorFormat,
    gemms_of_unknown_pipe,
    gemms_on_cuda_cores,
    targets,
    without_memory_bound,
)
from gpusight.rules.patterns.kernel_groups import (
    kernel_ns,
    kernels_unseen,
    locations_of,
    main_source_phrase,
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
from gpusight.units import format_time

if TYPE_CHECKING:
    import polars as pl

    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import RuleVerdict


MIN_KERNEL_TIME_SHARE = Threshold(
    0.05, "share of kernel time; below it, a fix has no visible effect"
)
MIN_SAVED_SHARE = Threshold(
    0.02, "share of the time below which the advice notes that the fix saves little alone"
)


class _Gain(NamedTuple):
    """Time that a number format saves when it is the only change; below 0 where it costs."""

    target: TensorFormat
    ns: float


class Fp32NoTensorCores(TimelineRule):
    """FP32 GEMMs that Tensor Cores would compute faster."""

    id = "fp32-no-tensor-cores"
    detects = (
        "Looks for FP32 GEMMs and convolutions whose kernels run on CUDA cores (SIMT), on a GPU "
        "that has Tensor Cores."
    )
    why = (
        "Tensor Cores run GEMMs several times faster than CUDA cores. TF32 (Ampere and newer) "
        "keeps FP32 tensors and rounds the inputs of each GEMM. Half precision also halves the "
        "memory traffic."
    )
    half_why = (
        "Tensor Cores run GEMMs several times faster than CUDA cores, on this GPU only in half "
        "precision: autocast or parameters in it. That also halves the memory traffic."
    )
    fix = "Enable TF32, or use mixed precision (autocast)."
    code = """\
torch.set_float32_matmul_precision("high")      # TF32 for matmuls
torch.backends.cudnn.allow_tf32 = True          # TF32 for convolutions (the default)
"""
    half_code = """\
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = loss_of(model(inputs), targets)
loss.backward()
"""
    scaled_half_code = """\
scaler = torch.amp.GradScaler("cuda")          # once, before the loop
with torch.autocast("cuda", dtype=torch.float16):
    loss = loss_of(model(inputs), targets)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
"""
    half_inference_code = """\
with torch.inference_mode(), torch.autocast("cuda", dtype=torch.{dtype}):
    output = model(inputs)
"""
    cuda_code = """\
cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH);
// or cublasGemmEx with CUDA_R_16BF operands and CUBLAS_COMPUTE_32F
"""
    half_cuda_code = """\
// cublasGemmEx with {operands} operands and CUBLAS_COMPUTE_32F
"""
    jax_code = """\
jax.config.update("jax_default_matmul_precision", "tensorfloat32")
"""
    half_jax_code = """\
params = jax.tree.map(lambda x: x.astype(jnp.{dtype}), params)
"""
    snippets: ClassVar = {
        Framework.CUPY: """\
# TF32 for matmuls: CUPY_TF32=1 python script.py
""",
        Framework.JULIA: """\
CUDA.math_mode!(CUDA.FAST_MATH)                # TF32 for matmuls
""",
    }
    verify = (
        "`gpusight kernels` shows TF32 (or BF16) kernels. Compare the loss curve or the results "
        "with those of FP32 before keeping it."
    )
    caveats = (
        "Solvers and other code that needs the full FP32 mantissa cannot use it. Small and narrow "
        "GEMMs are bound by memory or launches, not by FLOP/s. In a launch-bound program, shorter "
        "kernels only increase GPU idle time."
    )
    estimate = (
        "Simulation in which the time of these kernels is divided by the ratio of peak FLOP/s, "
        f"plus {GEMM_FIXED_NS // 1000} µs each. Assumes the same share of peak on Tensor Cores as "
        "on CUDA cores."
    )
    effort = "one line"
    thresholds: ClassVar = {
        "min_kernel_time_share": MIN_KERNEL_TIME_SHARE,
        "min_saved_share": MIN_SAVED_SHARE,
        "fixed_ns": Threshold(
            GEMM_FIXED_NS, "ns that even a small GEMM takes on Tensor Cores; measured"
        ),
        "cast_gpu_ns": Threshold(CAST_GPU_NS, "ns of GPU time per cast that autocast adds"),
    }
    min_share = None

    def check(self, context: RuleContext) -> RuleVerdict:
        """Sum FP32 GEMMs on CUDA cores, and replay them on Tensor Cores."""
        if (unseen := kernels_unseen(context)) is not None:
            return unseen
        rows = without_memory_bound(context, gemms_on_cuda_cores(context.kernels))
        share = total_ns(rows) / kernel_ns(context)
        unclear = total_ns(gemms_of_unknown_pipe(context.kernels)) / kernel_ns(context)
        if max(share, unclear) < MIN_KERNEL_TIME_SHARE.value:
            return CLEAN
        gpu = context.gpu
        possible = None if gpu is None else targets(gpu)
        if gpu is not None and not possible:
            return RuleNotApplicable(f"{gpu.name} has no faster Tensor Cores")
        if share < MIN_KERNEL_TIME_SHARE.value:
            return RuleNotApplicable(
                "the kernel names do not show whether the GEMMs use Tensor Cores"
            )
        if not possible:
            return RuleNotApplicable(UNKNOWN_PEAKS)
        return _match(context, rows, share, possible)

    def locate(self, context: RuleContext, _: TimelineFinding) -> pl.DataFrame:
        """Find the GEMMs that run on CUDA cores."""
        rows = without_memory_bound(context, gemms_on_cuda_cores(context.kernels))
        return each_op(context, rows)


def _match(
    context: RuleContext, rows: pl.DataFrame, share: float, possible: tuple[TensorFormat, ...]
) -> RuleMatch:
    gains = [
        _Gain(t, float(context.replay.run(*t.change(context, rows)).saved_ns)) for t in possible
    ]
    first = gains[0]
    formats = " or ".join(target.precision.upper() for target in possible)
    faster = (
        context.evidence(
            f"{'saved' if gain.ns >= 0 else 'added'}_{gain.target.precision}_ns",
            abs(gain.ns),
            "ns",
            f"{'Saved' if gain.ns >= 0 else 'Added'} by {gain.target.name} alone",
        )
        for gain in gains
    )
    median = format_time(float(np.median(rows["duration_ns"].to_numpy())), digits=3)
    saved = [f"{g.target.name} {g.target.how} {_gain_text(context, g)}" for g in gains]
    has_tf32 = gains[0].target.casts == 0
    casts = "Autocast adds cast kernels: a launch-bound program gets slower."
    own_kernels = "For your own kernels, use CUTLASS or mma instructions."
    half = "Use cublasGemmEx with half-precision operands."
    way = context.framework.choose(
        torch=f"TF32 is one line and adds no launches. {casts}" if has_tf32 else casts,
        cuda=f"{'TF32 is one call per cuBLAS or cuDNN handle.' if has_tf32 else half} "
        f"{own_kernels}",
        jax="The matmul precision is one setting. bfloat16 parameters save more."
        if has_tf32
        else "Use half-precision parameters; with float16, scale the loss.",
        other="Allow TF32 in matmuls, which is one setting, or use half-precision arrays.",
    )
    if gains[0].ns < 0:
        way = f"Apply it after the fixes above it in the plan: before them it saves nothing. {way}"
    elif gains[0].ns < MIN_SAVED_SHARE.value * context.length_ns:
        way = f"It saves little now, and more after fixes that make the GPU the bottleneck. {way}"
    return RuleMatch(
        title=f"FP32 GEMMs not on Tensor Cores ({title_share(share)} of kernel time)",
        evidence=(
            context.evidence("fp32_ns", total_ns(rows), "ns", "Time in FP32 GEMMs"),
            Evidence("gpu_share", share, "share", "Share of kernel time"),
            context.evidence("kernels", rows.height, "", "FP32 GEMM kernels"),
            Evidence(
                "ratio", gains[0].target.ratio, "", "Peak FLOP/s of Tensor Cores over CUDA cores"
            ),
            *faster,
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason="the kernels were measured; their time on Tensor Cores is derived from "
        "peak FLOP/s",
        change=first.target.change(context, rows),
        why="" if has_tf32 else Fp32NoTensorCores.half_why,
        fix=(
            f"{context.count_per_step(rows.height, 'FP32 GEMM')}, {median} each "
            f"(median){main_source_phrase(context, rows)}. "
            f"Alone, {', '.join(saved)}. {way}"
        ),
        code=_code(context, first.target),
        verify=Fp32NoTensorCores.verify.replace("TF32 (or BF16)", formats),
        where=locations_of(context, rows),
    )


def _code(context: RuleContext, target: TensorFormat) -> str:
    """Choose the snippet by format: GPUs before Ampere have neither TF32 nor BF16."""
    rule = Fp32NoTensorCores
    if not target.casts:
        torch_code, cuda_code, jax_code = rule.code, rule.cuda_code, rule.jax_code
    else:
        bf16 = target.precision == "bf16"
        dtype = "bfloat16" if bf16 else "float16"
        torch_code = rule.half_code if bf16 else rule.scaled_half_code
        if not is_training(context):
            torch_code = rule.half_inference_code.format(dtype=dtype)
        cuda_code = rule.half_cuda_code.format(operands="CUDA_R_16BF" if bf16 else "CUDA_R_16F")
        jax_code = rule.half_jax_code.format(dtype=dtype)
    return context.framework.choose(torch=torch_code, cuda=cuda_code, jax=jax_code)


def _gain_text(context: RuleContext, gain: _Gain) -> str:
    time = context.time_per_step(abs(gain.ns))
    if gain.ns < -MIN_SAVED_SHARE.value * context.length_ns:
        slower = time.removesuffix("/step")
        return f"would slow the step by {slower}, because its casts add launches"
    return f"saves {time}" if gain.ns > 0 else "saves nothing"
