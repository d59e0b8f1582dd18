"""tensor-cores-idle: a matrix product on the ordinary pipes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.analyses.counters import quantities as shared
from gpusight.findings.finding import Confidence, Evidence
from gpusight.findings.kernels import quantities as q
from gpusight.findings.kernels.launch import UNIT_NAMES, WARP
from gpusight.findings.kernels.model import ATTAINABLE, WORTH, limited
from gpusight.findings.kernels.residency import lives_on_tensor_cores
from gpusight.findings.kernels.rule import CLEAN, Absent, Found, Limit, Rule, Verdict
from gpusight.model.kernel_names import classify

if TYPE_CHECKING:
    from gpusight.findings.kernels.launch import Launch

EFFICIENCY = Limit(
    0.5, "part of the tensor cores' peak that a library reaches on products of common sizes"
)
ARITHMETIC = Limit(
    0.3,
    "least share of the FP32 or FP16 pipe from which on a kernel that is no product by its name is "
    "looked at: below it, something else holds it up",
)
PURE = Limit(
    0.1,
    "most additions and multiplications for each multiply-add: a product has next to none, physics "
    "and statistics have as many",
)
FED = Limit(
    0.02,
    "least loads for each multiply-add: less is arithmetic on registers, which no matrix unit does",
)
INTENSITY = Limit(
    16,
    "least FP32 operations for each byte of DRAM: a product reads its operands many times, a "
    "stencil or a sum does not",
)
ELSEWHERE = Limit(
    0.2, "share of the ordinary pipes below which a 16-bit or 8-bit product computes elsewhere"
)
_SHORT_FORMATS = ("fp16", "bf16", "fp8", "fp4", "int8")
_PRODUCTS = ("matmul", "convolution", "attention")


def check(launch: Launch) -> Verdict:
    """Find a matrix product, by name or by its mix of instructions, that leaves them idle."""
    if launch.gpu is None:
        return Absent("not known: which GPU it ran on", ())
    precision, peak, now = _rates(launch)
    if peak is None or now is None or lives_on_tensor_cores(launch) or _says_so(launch):
        return CLEAN
    share = _arithmetic(launch)
    if share is None or not {"dram", "l2"} & launch.busy.keys():
        return Absent("not measured: how busy the FP32 pipe and memory were", RULE.sections)
    if not _is_product(launch):
        return CLEAN
    left = limited(launch, max(share * now / (peak * EFFICIENCY.value), _memory(launch)))
    if left > 1 / WORTH:
        return CLEAN
    return Found(
        title=f"a matrix product without tensor cores, {peak / now:.0f} times the FP32 rate",
        time_share=left,
        estimate=f"the product in {precision.upper()} on tensor cores at {EFFICIENCY.value:.0%} of "
        f"their peak; memory stays: {_memory_sentence(launch)}",
        evidence=(
            *launch.evidence(q.TENSOR, q.FMA, q.FFMA, q.HFMA),
            Evidence(
                "tensor_rate",
                peak * 1e12,
                "flop/s",
                f"Peak rate of tensor cores in {precision.upper()}",
            ),
            Evidence("vector_rate", now * 1e12, "flop/s", "Peak rate of the pipe that is used"),
        ),
        confidence=Confidence.MEDIUM if launch.category in _PRODUCTS else Confidence.LOW,
        confidence_reason="whether the results allow the shorter format is not known"
        if launch.category in _PRODUCTS
        else "that it is a matrix product is inferred from its instructions",
    )


def _rates(launch: Launch) -> tuple[str, float | None, float | None]:
    """Give the format for tensor cores, their rate in it, and the rate of the pipe used now."""
    assert launch.gpu is not None
    tensor, vector = launch.gpu.tensor, launch.gpu.vector
    if (launch.get(q.HFMA) or 0.0) > (launch.get(q.FFMA) or 0.0):
        return "fp16", tensor.fp16, vector.fp16 or vector.fp32
    if tensor.tf32 is not None:
        return "tf32", tensor.tf32, vector.fp32
    return "fp16", tensor.fp16, vector.fp32


def _arithmetic(launch: Launch) -> float | None:
    """Give the part of the time that the arithmetic would take at the peak of its pipe."""
    busy = launch.busy
    known = [busy[unit] for unit in ("fma", "fp16") if unit in busy]
    return max(known) if known else None


def _says_so(launch: Launch) -> bool:
    """Tell whether the name alone says that tensor cores are used.

    Their counters have other names on each new generation; a 16-bit kernel that computes next to
    nothing on the ordinary pipes computes somewhere else.
    """
    name = classify(launch.name)
    shorter = name.precision in _SHORT_FORMATS and name.tensor_core is None
    return name.tensor_core is True or (shorter and (_arithmetic(launch) or 0.0) < ELSEWHERE.value)


def _is_product(launch: Launch) -> bool:
    if launch.category in _PRODUCTS:
        # Attention of a single query is a stream through memory, whatever computes it.
        return launch.category != "attention" or (_arithmetic(launch) or 0.0) >= ARITHMETIC.value
    adds = (launch.get(q.FFMA) or 0.0) + (launch.get(q.HFMA) or 0.0)
    loads = (launch.get(q.LOAD_REQUESTS) or 0.0) + (launch.get(q.SHARED_INSTRUCTIONS) or 0.0)
    dram = launch.get(shared.DRAM_BYTES)
    others, pipe = launch.get(q.FP32_OTHER), _arithmetic(launch) or 0.0
    if not adds or dram is None or others is None:
        return False
    return (
        pipe >= max(ARITHMETIC.value, launch.busy.get("alu", 0.0))
        and others <= PURE.value * adds
        and loads >= FED.value * adds / WARP
        and 2 * adds >= INTENSITY.value * dram
    )


def _memory(launch: Launch) -> float:
    """Give the part of the time that L2 and DRAM need whatever computes the product."""
    return max((launch.busy.get(u, 0.0) for u in ("dram", "l2")), default=0.0) / ATTAINABLE


def _memory_sentence(launch: Launch) -> str:
    known = {u: launch.busy[u] for u in ("dram", "l2") if u in launch.busy}
    if not known:
        return "its load is not known"
    unit = max(known, key=lambda name: known[name])
    return f"{UNIT_NAMES[unit]} takes {known[unit]:.0%} of the time now"


RULE = Rule(
    id="tensor-cores-idle",
    detects="A matrix product, convolution or attention that runs on the FP32 or FP16 pipe while "
    "the tensor cores do nothing.",
    why="Tensor cores compute products 4 to 16 times as fast as the ordinary pipes.",
    fix="Use TF32, BF16 or FP16: in PyTorch one line, in CUDA a library (cuBLAS, CUTLASS) or wmma.",
    code="""\
torch.set_float32_matmul_precision("high")          # TF32
with torch.autocast("cuda", dtype=torch.bfloat16):  # or BF16
    loss = model(x)
# cuBLAS: cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH)
# Triton: tl.dot(a, b, input_precision="tf32")
""",
    misleads="TF32 keeps 10 bits of the mantissa: some solvers need all 23. Sizes that are no "
    "multiple of 8 or 16, and very small products, gain less. A product that is recognised by its "
    "instructions alone may be something else.",
    limits={
        "EFFICIENCY": EFFICIENCY,
        "ARITHMETIC": ARITHMETIC,
        "PURE": PURE,
        "FED": FED,
        "ELSEWHERE": ELSEWHERE,
        "INTENSITY": INTENSITY,
    },
    needs=(q.TENSOR,),
    helps=(q.FMA, q.FFMA, q.FP32_OTHER, shared.DRAM_BYTES),
    check=check,
    estimate="The arithmetic at half of the tensor cores' peak, not below what L2 and DRAM need.",
    explains=frozenset({"compute-bound", "memory-bound", "latency-bound"}),
)
