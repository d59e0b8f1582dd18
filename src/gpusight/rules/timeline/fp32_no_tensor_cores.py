"""fp32-no-tensor-cores: FP32 GEMMs that run on CUDA cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import by_step, framework_of, step_evidence
from gpusight.rules.locations import each_op
from gpusight.rules.patterns.fp32_gemms import (
    CAST_GPU_NS,
    FIXED_NS,
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
from gpusight.rules.rule import CLEAN, RuleMatch, RuleNotApplicable, Threshold, TimelineRule
from gpusight.units import format_count, format_share, format_time

if TYPE_CHECKING:
    import polars as pl

    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import RuleVerdict


MIN_KERNEL_TIME_SHARE = Threshold(
    0.05, "part of the time of all kernels; below, a fix changes nothing that is seen"
)
MIN_SAVED_SHARE = Threshold(
    0.02, "part of the judged time below which the title says that it gives little"
)


class _Gain(NamedTuple):
    """Time that a number format saves when it is the only change."""

    target: TensorFormat
    ns: float


class Fp32NoTensorCores(TimelineRule):
    """FP32 GEMMs that Tensor Cores would compute faster."""

    id = "fp32-no-tensor-cores"
    detects = (
        "Looks for matrix products and convolutions in FP32 whose kernels use ordinary lanes "
        "(SIMT), on a GPU that has tensor cores."
    )
    why = (
        "Tensor cores multiply matrices several times faster than the lanes: TF32 keeps FP32 "
        "tensors and rounds the factors, half precision halves the memory traffic too."
    )
    fix = "Allow TF32, or compute in half precision."
    code = """\
torch.set_float32_matmul_precision("high")      # TF32 for matrix products
torch.backends.cudnn.allow_tf32 = True          # and for convolutions (the default)
"""
    half_code = """\
with torch.autocast("cuda", dtype=torch.float16):         # bfloat16 on Ampere and newer
    loss = loss_of(model(inputs), targets)
scaler.scale(loss).backward()                             # torch.amp.GradScaler for float16
"""
    cuda_code = """\
cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH);
// or cublasGemmEx with CUDA_R_16BF operands and CUBLAS_COMPUTE_32F
"""
    jax_code = """\
jax.config.update("jax_default_matmul_precision", "tensorfloat32")
"""
    verify = (
        "`gpusight kernels` shows tf32 (or bf16) kernels; compare a loss curve or a result with "
        "the FP32 one before keeping it."
    )
    caveats = (
        "Solvers and other work that needs all 24 bits of FP32 cannot use it. Small and narrow "
        "products are bound by memory and launches, not by arithmetic. Where the host is the "
        "limit, shorter kernels only make the GPU wait longer."
    )
    estimate = (
        "Replay in which these kernels take their time divided by the ratio of the GPU's peak "
        f"rates, plus {FIXED_NS // 1000} µs: they reach the same part of the peak on tensor cores "
        "as on lanes."
    )
    thresholds: ClassVar = {
        "min_kernel_time_share": MIN_KERNEL_TIME_SHARE,
        "min_saved_share": MIN_SAVED_SHARE,
        "fixed_ns": Threshold(
            FIXED_NS, "ns that even a small product takes on tensor cores; measured"
        ),
        "cast_gpu_ns": Threshold(CAST_GPU_NS, "ns of GPU time for each cast that autocast adds"),
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
            return RuleNotApplicable(f"{gpu.name} has no tensor cores that would be faster")
        if share < MIN_KERNEL_TIME_SHARE.value:
            return RuleNotApplicable(
                "the names of the matrix products do not say whether they use tensor cores"
            )
        if not possible:
            return RuleNotApplicable("it is not known what the GPU can do")
        return _match(context, rows, share, possible)

    def locate(self, context: RuleContext, _: TimelineFinding) -> pl.DataFrame:
        """Find the GEMMs that run on CUDA cores."""
        rows = without_memory_bound(context, gemms_on_cuda_cores(context.kernels))
        return each_op(context, rows)


def _match(
    context: RuleContext, rows: pl.DataFrame, share: float, possible: tuple[TensorFormat, ...]
) -> RuleMatch:
    gains = [
        _Gain(t, float(max(0, context.replay.run(*t.change(context, rows)).saved_ns)))
        for t in possible
    ]
    first = gains[0]
    little = ""
    if first.ns < MIN_SAVED_SHARE.value * context.length_ns:
        little = f", but {first.target.name} gives little"
    return RuleMatch(
        title=f"FP32 products without tensor cores take {format_share(share)} of GPU time{little}",
        evidence=_evidence(context, rows, share, gains),
        confidence=Confidence.MEDIUM,
        confidence_reason="the kernels were measured; their time on tensor cores follows from peak "
        "rates",
        change=first.target.change(context, rows),
        fix=_fix(context, rows, gains),
        code=framework_of(context.trace).choose(
            torch=Fp32NoTensorCores.code
            if first.target.casts == 0
            else Fp32NoTensorCores.half_code,
            cuda=Fp32NoTensorCores.cuda_code,
            jax=Fp32NoTensorCores.jax_code,
        ),
        where=locations_of(context, rows),
    )


def _evidence(
    context: RuleContext, rows: pl.DataFrame, share: float, gains: list[_Gain]
) -> tuple[Evidence, ...]:
    faster = (
        step_evidence(
            context,
            f"saved_{gain.target.precision}_ns",
            gain.ns,
            "ns",
            f"Time that a replay with {gain.target.name} gives back",
        )
        for gain in gains
    )
    return (
        step_evidence(context, "fp32_ns", total_ns(rows), "ns", "Time of FP32 products"),
        Evidence("gpu_share", share, "share", "The same as a part of GPU time"),
        step_evidence(context, "kernels", rows.height, "", "Their kernels"),
        Evidence("ratio", gains[0].target.ratio, "", "Peak rate of tensor cores against lanes"),
        *faster,
    )


def _fix(context: RuleContext, rows: pl.DataFrame, gains: list[_Gain]) -> str:
    count = format_count(round(rows.height / context.per_step))
    median = format_time(float(np.median(rows["duration_ns"].to_numpy())))
    saved = [
        f"{g.target.name} {g.target.how} gives back "
        + (by_step(context, format_time(g.ns / context.per_step)) if g.ns > 0 else "nothing")
        for g in gains
    ]
    way = framework_of(context.trace).choose(
        torch="TF32 is one line and adds no launches; autocast makes the GPU faster still but "
        "launches casts, which cost a program that waits for its host.",
        cuda="TF32 is one call for a cuBLAS or cuDNN handle; kernels of one's own need mma "
        "instructions, or CUTLASS.",
        jax="The precision of products is one setting; bfloat16 parameters gain more.",
    )
    return (
        f"{by_step(context, f'{count} products')} of {median} "
        f"(median){main_source_phrase(context, rows)}. "
        f"In a replay {', '.join(saved)}. {way}"
    )
