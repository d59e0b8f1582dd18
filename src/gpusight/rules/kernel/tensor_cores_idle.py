"""tensor-cores-idle: a GEMM on CUDA cores."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from gpusight.analysis.counters import kernel_quantities as q
from gpusight.analysis.counters import launch_quantities as shared
from gpusight.analysis.counters.kernel_limiter import SATURATED, busiest
from gpusight.analysis.counters.profiled_launch import SECTOR_BYTES, UNIT_NAMES, WARP
from gpusight.hardware.gpu_lookup import GEMM_FIXED_NS
from gpusight.hardware.gpu_table import GPUS, Peaks
from gpusight.naming.kernel_names import classify
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.patterns.kernel_speedup import (
    ATTAINABLE,
    MIN_SPEEDUP,
    is_tensor_core_kernel,
    with_launch_overhead,
)
from gpusight.rules.rule import CLEAN, KernelRule, KernelRuleMatch, RuleNotApplicable, Threshold

if TYPE_CHECKING:
    from gpusight.analysis.counters.profiled_launch import ProfiledLaunch
    from gpusight.hardware.gpu_table import Gpu
    from gpusight.rules.rule import RuleVerdict


TENSOR_EFFICIENCY = Threshold(
    0.5,
    "share of the Tensor Core peak that a kernel reaches which is a GEMM by its instructions only",
)
MIN_PIPE_SHARE = Threshold(
    0.3, "min. FP32 or FP16 pipe utilization of a kernel that is not a GEMM by name"
)
MAX_OTHER_PER_FMA = Threshold(0.1, "max. adds and multiplies per FMA; a GEMM has almost none")
MIN_LOADS_PER_FMA = Threshold(0.02, "min. loads per FMA; fewer means arithmetic on registers only")
MIN_FLOPS_PER_BYTE = Threshold(
    16, "min. FP32 FLOPs per DRAM byte; a GEMM reuses its operands, a stencil or a sum does not"
)
MAX_STREAMING_FLOPS_PER_BYTE = Threshold(
    4,
    "FLOPs per DRAM byte up to which a GEMM is memory-bound on any unit: GEMV, depthwise "
    "convolution",
)
MIN_OPERAND_LOADS_PER_FMA = Threshold(
    0.25, "min. loads per FMA of a GEMM that is limited by its loads"
)
MIN_L2_REREADS = Threshold(2, "min. ratio of L2 to DRAM traffic: blocks read the same operands")
MIN_FMA_SHARE = Threshold(0.2, "min. share of FMAs in the instructions of such a GEMM")
MAX_CUDA_CORE_SHARE = Threshold(
    0.2, "CUDA core utilization below which a 16-bit or 8-bit GEMM runs elsewhere"
)
_SHORT_FORMATS = ("fp16", "bf16", "fp8", "fp4", "int8")
_TENSOR_USE = "Tensor Core utilization"
_GEMM_CATEGORIES = ("matmul", "convolution", "attention")
_FEEDING = ("l1_data", "l1", "lsu")


class TensorCoresIdle(KernelRule):
    """A GEMM on CUDA cores."""

    id = "tensor-cores-idle"
    effort = "one line"
    timeline_rule = "fp32-no-tensor-cores"
    detects = (
        "A GEMM, convolution or attention kernel that runs on CUDA cores while the Tensor Cores "
        "are idle."
    )
    why = "Tensor Cores compute GEMMs 4 to 16 times faster than CUDA cores."
    fix = (
        "Use TF32, BF16 or FP16: one line in PyTorch; a library (cuBLAS, CUTLASS) or WMMA in CUDA."
    )
    code = """\
torch.set_float32_matmul_precision("high")          # TF32
with torch.autocast("cuda", dtype=torch.bfloat16):  # or BF16
    loss = model(x)
# cuBLAS: cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH)
# Triton: tl.dot(a, b, input_precision="tf32")
"""
    half_fix = "Use FP16: autocast in PyTorch; a library (cuBLAS, CUTLASS) or WMMA in CUDA."
    half_code = """\
with torch.autocast("cuda", dtype=torch.float16):
    loss = model(x)                       # training: with torch.amp.GradScaler
# cuBLAS: cublasGemmEx with CUDA_R_16F operands and CUBLAS_COMPUTE_32F
"""
    half_caveats = (
        "FP16 overflows above 65,504: training needs loss scaling. Sizes that are not multiples of "
        "8, and very small GEMMs, gain less. A GEMM recognized by its instruction mix alone may be "
        "something else."
    )
    caveats = (
        "TF32 keeps 10 mantissa bits; some solvers need 23. Sizes that are not multiples of 8 or "
        "16, and very small GEMMs, gain less. A GEMM recognized by its instruction mix alone may "
        "be something else."
    )
    estimate = (
        "As in `fp32-no-tensor-cores` of a timeline: the time by the ratio of peak FLOP/s plus "
        f"{GEMM_FIXED_NS // 1000} µs, not below that of DRAM. For what is a GEMM by its "
        "instructions only: half of the Tensor Core peak, not below the time of L2 and DRAM."
    )
    thresholds: ClassVar = {
        "tensor_efficiency": TENSOR_EFFICIENCY,
        "min_pipe_share": MIN_PIPE_SHARE,
        "max_other_per_fma": MAX_OTHER_PER_FMA,
        "min_loads_per_fma": MIN_LOADS_PER_FMA,
        "max_cuda_core_share": MAX_CUDA_CORE_SHARE,
        "min_flops_per_byte": MIN_FLOPS_PER_BYTE,
        "max_streaming_flops_per_byte": MAX_STREAMING_FLOPS_PER_BYTE,
        "min_operand_loads_per_fma": MIN_OPERAND_LOADS_PER_FMA,
        "min_l2_rereads": MIN_L2_REREADS,
        "min_fma_share": MIN_FMA_SHARE,
    }
    helps = (q.TENSOR, q.FMA, q.FFMA, q.FP32_OTHER, shared.DRAM_BYTES)
    explains = frozenset({"compute-bound", "memory-bound", "latency-bound"})

    def check(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Find a GEMM, by name or by its mix of instructions, that leaves them idle."""
        if launch.gpu is None:
            return RuleNotApplicable("the GPU is unknown")
        if launch.get(q.TENSOR) is None and not _computes_in_fp32(launch):
            return RuleNotApplicable(f"not measured: {_TENSOR_USE}", self.sections)
        precision, peak, now = _rates(launch)
        if (
            peak is None
            or now is None
            or is_tensor_core_kernel(launch)
            or _named_tensor_core(launch)
        ):
            return CLEAN
        share = _arithmetic(launch)
        if share is None or not {"dram", "l2"} & launch.busy.keys():
            return RuleNotApplicable("not measured: FP32 and memory utilization", self.sections)
        if not _is_gemm(launch):
            return CLEAN
        remaining, how = _on_tensor_cores(launch, share, peak / now)
        if remaining > 1 / MIN_SPEEDUP:
            return CLEAN
        # GPUs before Ampere have neither TF32 nor BF16.
        half = precision == "fp16" and launch.gpu.tensor.bf16 is None
        at_clock = (
            "" if launch.get(shared.SM_CLOCK_HZ) is None else " at the SM clock while profiling"
        )
        return KernelRuleMatch(
            fix=self.half_fix if half else "",
            code=self.half_code if half else "",
            caveats=self.half_caveats if half else "",
            title=f"GEMM not on Tensor Cores ({peak / now:.0f}x the FP32 rate)",
            time_share=remaining,
            estimate=f"{precision.upper()} on Tensor Cores{how}",
            evidence=(
                *launch.evidence(q.TENSOR, q.FMA, q.FFMA, q.HFMA),
                Evidence(
                    "tensor_rate",
                    peak * 1e12,
                    "flop/s",
                    f"Tensor Core peak in {precision.upper()}{at_clock}",
                ),
                Evidence("vector_rate", now * 1e12, "flop/s", f"Peak of the pipe in use{at_clock}"),
            ),
            confidence=Confidence.MEDIUM if launch.category in _GEMM_CATEGORIES else Confidence.LOW,
            confidence_reason="whether lower precision is acceptable is unknown"
            if launch.category in _GEMM_CATEGORIES
            else "the GEMM is inferred from its instruction mix",
        )


def _on_tensor_cores(launch: ProfiledLaunch, share: float, ratio: float) -> tuple[float, str]:
    """Return the part of the time that remains on Tensor Cores of `ratio` times the rate, and how.

    A library has kernels with larger tiles for them, which read less from L2; a kernel of the
    program keeps its tiles.
    """
    by_name = launch.category in _GEMM_CATEGORIES
    units = ("dram",) if by_name else ("dram", "l2")
    memory = {unit: launch.busy[unit] for unit in units if unit in launch.busy}
    if by_name:
        remaining = 1 / ratio + GEMM_FIXED_NS / (launch.duration_ns or math.inf)
        how = f": time by the ratio of peak FLOP/s, plus {GEMM_FIXED_NS // 1000} µs"
    else:
        remaining = share / (ratio * TENSOR_EFFICIENCY.value)
        how = f", {TENSOR_EFFICIENCY.value:.0%} of peak"
    unit = max(memory, key=lambda name: memory[name], default=None)
    if unit is not None and memory[unit] / ATTAINABLE > remaining:
        remaining = memory[unit] / ATTAINABLE
        how += f"; memory traffic stays ({UNIT_NAMES[unit]} {memory[unit]:.0%} busy)"
    return min(1.0, remaining) if by_name else with_launch_overhead(launch, remaining), how


def _computes_in_fp32(launch: ProfiledLaunch) -> bool:
    """Return whether it is a GEMM by its name that achieves a part of the FP32 peak."""
    share = launch.get(q.FP32_SHARE)
    return (
        launch.category in _GEMM_CATEGORIES
        and share is not None
        and share >= MAX_CUDA_CORE_SHARE.value
    )


def _rates(launch: ProfiledLaunch) -> tuple[str, float | None, float | None]:
    """Return the Tensor Core format, its peak, and the peak of the pipe in use."""
    assert launch.gpu is not None
    gpu = launch.gpu if launch.gpu.tensor != Peaks() else _of_its_kind(launch.gpu)
    tensor, vector = gpu.tensor, gpu.vector
    if (launch.get(q.HFMA) or 0.0) > (launch.get(q.FFMA) or 0.0):
        return "fp16", tensor.fp16, vector.fp16 or vector.fp32
    if tensor.tf32 is not None:
        return "tf32", tensor.tf32, vector.fp32
    return "fp16", tensor.fp16, vector.fp32


def _of_its_kind(gpu: Gpu) -> Gpu:
    """Return a GPU of the same compute capability for one that has no name, as in printed tables.

    Of those with as many SMs, or else of all, the one in the middle by the ratio
    of its Tensor Core peak to its FP32 peak.
    """
    similar = [
        (other.tensor.fp16 / other.vector.fp32, other)
        for other in GPUS
        if other.compute_capability == gpu.compute_capability
        and other.tensor.fp16
        and other.vector.fp32
    ]
    same_size = [(ratio, other) for ratio, other in similar if other.sm_count == gpu.sm_count]
    ranked = sorted(same_size or similar, key=lambda pair: pair[0])
    return ranked[len(ranked) // 2][1] if ranked else gpu


def _arithmetic(launch: ProfiledLaunch) -> float | None:
    """Return the share of the time that the arithmetic takes at the peak of its pipe."""
    busy = launch.busy
    known = [busy[unit] for unit in ("fma", "fp16") if unit in busy]
    return max(known) if known else launch.get(q.FP32_SHARE)


def _named_tensor_core(launch: ProfiledLaunch) -> bool:
    """Return whether the name alone shows that Tensor Cores are used.

    Their counters have other names on each new generation; a 16-bit kernel that computes next to
    nothing on CUDA cores runs on Tensor Cores.
    """
    name = classify(launch.name)
    shorter = name.precision in _SHORT_FORMATS and name.tensor_core is None
    return name.tensor_core is True or (
        shorter and (_arithmetic(launch) or 0.0) < MAX_CUDA_CORE_SHARE.value
    )


def _is_gemm(launch: ProfiledLaunch) -> bool:
    intensity = _intensity(launch)
    if launch.category in _GEMM_CATEGORIES:
        # Attention of a single query is a stream through memory, whatever computes it.
        busy = (
            launch.category != "attention" or (_arithmetic(launch) or 0.0) >= MIN_PIPE_SHARE.value
        )
        return busy and (intensity is None or intensity > MAX_STREAMING_FLOPS_PER_BYTE.value)
    adds, others = _multiply_adds(launch), launch.get(q.FP32_OTHER)
    if not adds or others is None or intensity is None:
        return False
    return (
        others <= MAX_OTHER_PER_FMA.value * adds
        and _loads(launch) >= MIN_LOADS_PER_FMA.value * adds / WARP
        and intensity >= MIN_FLOPS_PER_BYTE.value
        and (
            (_arithmetic(launch) or 0.0) >= max(MIN_PIPE_SHARE.value, launch.busy.get("alu", 0.0))
            or _waits_for_operands(launch, adds)
        )
    )


def _waits_for_operands(launch: ProfiledLaunch, adds: float) -> bool:
    """Return whether it looks like a GEMM without register tiles, bound by L1 and shared memory."""
    instructions, unit = launch.get(q.INSTRUCTIONS), busiest(launch)
    requested_bytes = (launch.get(q.L2_SECTORS) or 0.0) * SECTOR_BYTES
    return (
        unit is not None
        and unit[0] in _FEEDING
        and unit[1] >= SATURATED
        and requested_bytes >= MIN_L2_REREADS.value * (launch.get(shared.DRAM_BYTES) or math.inf)
        and _loads(launch) >= MIN_OPERAND_LOADS_PER_FMA.value * adds / WARP
        and adds / WARP >= MIN_FMA_SHARE.value * (instructions or math.inf)
    )


def _multiply_adds(launch: ProfiledLaunch) -> float:
    return (launch.get(q.FFMA) or 0.0) + (launch.get(q.HFMA) or 0.0)


def _loads(launch: ProfiledLaunch) -> float:
    return (launch.get(q.LOAD_REQUESTS) or 0.0) + (launch.get(q.SHARED_INSTRUCTIONS) or 0.0)


def _intensity(launch: ProfiledLaunch) -> float | None:
    """Return the operations for each byte of DRAM; None where they were not counted."""
    dram = launch.get(shared.DRAM_BYTES)
    counted = launch.get(q.FFMA) if launch.get(q.HFMA) is None else _multiply_adds(launch)
    if dram is not None and (counted or launch.get(q.HFMA) is not None):
        return 2 * _multiply_adds(launch) / dram if dram else math.inf
    gpu, share, moving = launch.gpu, _arithmetic(launch), launch.busy.get("dram")
    if gpu is None or not gpu.vector.fp32 or not gpu.memory_bandwidth_bytes_s:
        return None
    if share is None or not moving:
        return None
    return share * gpu.vector.fp32 * 1e12 / (moving * gpu.memory_bandwidth_bytes_s)
