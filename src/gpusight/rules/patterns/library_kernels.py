"""Advice for kernels of libraries and frameworks: their code and grid are not the program's own.

What the program can change is how it calls them: more work per call, another layout, lower
precision, operators fused into one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpusight.naming.kernel_names import classify
from gpusight.naming.kernel_patterns import kernel_origin
from gpusight.rules.rule import Framework

if TYPE_CHECKING:
    from gpusight.rules.finding import KernelFinding


FITTING_RULES = frozenset({"tensor-cores-idle"})
"""Rules whose own advice is how to call a library."""


@dataclass(frozen=True, slots=True)
class LibraryAdvice:
    """What to change in the program that calls a library kernel."""

    fix: str
    code: str = ""
    effort: str = "config"
    precision_fix: str = ""
    """What to do as well where a lower precision is left, which `{}` names."""
    precision_code: str = ""
    tf32_code: str = ""

    def in_precision(self, precision: str) -> LibraryAdvice:
        """Return the advice for a kernel that computes in a precision."""
        if precision in _LOW:
            return self
        is_tf32 = precision == "tf32"
        fix = f"{self.fix} {self.precision_fix.format('BF16' if is_tf32 else 'BF16 or TF32')}"
        code = ("" if is_tf32 else self.tf32_code) + self.precision_code
        return replace(self, fix=fix.rstrip(), code=self.code + code)


_LOW = frozenset({"fp16", "bf16", "fp8", "fp6", "fp4", "int8", "int4"})
"""Nothing is gained by 16 bits."""
_AUTOCAST = """\
with torch.autocast("cuda", dtype=torch.bfloat16):
    y = model(x)
"""

_COMPILE = """\
model = torch.compile(model)              # fuses neighbors
"""
_TORCH = {
    "matmul": LibraryAdvice(
        "Give it more work per call: a larger batch or sequence, small matmuls merged into one "
        "(torch.bmm, one projection for Q, K and V).",
        """\
q, k, v = qkv_projection(x).chunk(3, dim=-1)        # one matmul instead of three
""",
        "one line",
        "Use {}.",
        _AUTOCAST,
        """\
torch.set_float32_matmul_precision("high")          # TF32
""",
    ),
    "convolution": LibraryAdvice(
        "Give it more work per call with a larger batch. Use channels_last, and let cuDNN choose "
        "the fastest algorithm.",
        """\
torch.backends.cudnn.benchmark = True
model = model.to(memory_format=torch.channels_last)
x = x.to(memory_format=torch.channels_last)         # larger batch
""",
        "one line",
        "Use BF16.",
        _AUTOCAST,
    ),
    "attention": LibraryAdvice(
        "Give it more work per call: a larger batch, or several sequences at once.",
        """\
y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
""",
        precision_fix="Use BF16, which the flash kernels need.",
    ),
    "batch normalization": LibraryAdvice(
        "For inference, fold batch normalization into the convolution before it. Else fuse it with "
        "its neighbors: torch.compile does.",
        """\
model = torch.compile(model.eval())       # or, for one pair:
conv = torch.nn.utils.fusion.fuse_conv_bn_eval(conv, bn)
""",
        "one line",
    ),
    "copy": LibraryAdvice(
        "Avoid the copy: drop .contiguous(), transposes and casts that nothing needs, or fuse it "
        "into its neighbors with torch.compile.",
        _COMPILE,
        "one line",
    ),
    "layout conversion": LibraryAdvice(
        "Avoid the conversion: keep one memory format for the whole model, channels_last for "
        "convolutions on Tensor Cores.",
        """\
model = model.to(memory_format=torch.channels_last)
x = x.to(memory_format=torch.channels_last)
""",
        "one line",
    ),
    "optimizer": LibraryAdvice(
        "Use the fused optimizer, which updates all parameters in few kernels.",
        """\
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
""",
        "one line",
    ),
    "communication": LibraryAdvice(
        "Send fewer and larger messages (gradient buckets), in 16 bits, while other kernels run."
    ),
}
_TORCH_DEFAULT = LibraryAdvice(
    "Fuse it with its neighbors (torch.compile), or give it more work per call (a larger batch).",
    _COMPILE,
    "one line",
    "16-bit tensors halve its traffic.",
)
_CUDA = {
    "matmul": LibraryAdvice(
        "Give it more work per call: larger matrices, small ones batched into one call. Let "
        "cublasLt choose the algorithm.",
        """\
// one call for all small matrices: cublasGemmStridedBatchedEx
// fastest algorithm of a shape: cublasLtMatmulAlgoGetHeuristic
""",
        precision_fix="Use {}.",
        tf32_code="""\
cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH);
""",
    ),
    "convolution": LibraryAdvice(
        "Give it more work per call with a larger batch. Use NHWC tensors, and let cuDNN choose "
        "the fastest algorithm.",
        """\
cudnnSetConvolutionMathType(desc, CUDNN_TENSOR_OP_MATH);
// tensors in CUDNN_TENSOR_NHWC; algorithm by
// cudnnFindConvolutionForwardAlgorithm
""",
        precision_fix="Use {}.",
    ),
    "communication": LibraryAdvice(
        "Send fewer and larger messages, in 16 bits, while other kernels run."
    ),
}
_CUDA_DEFAULT = LibraryAdvice(
    "Give it more work per call: larger problems, small ones batched into one call; run "
    "independent calls on several streams; or combine calls into one kernel."
)
_JAX_DEFAULT = LibraryAdvice(
    "Give it more work per call: a larger batch, small operations batched with jax.vmap. Keep the "
    "operations in one jax.jit, so that XLA fuses them.",
    """\
step = jax.jit(jax.vmap(step))
""",
    precision_fix="Use BF16.",
    precision_code="""\
x = x.astype(jax.numpy.bfloat16)
""",
)


_SPECIAL = (
    ("layout conversion", re.compile(r"nchwtonhwc|nhwctonchw")),
    ("batch normalization", re.compile(r"batch_?norm|\bbn_(?:fw|bw)_")),
)
"""Kernels with advice of their own within a category."""


def _category(name: str) -> str:
    text = name.lower()
    special = (category for category, pattern in _SPECIAL if pattern.search(text))
    return next(special, classify(name).category)


def advise_on_library(finding: KernelFinding, framework: Framework) -> KernelFinding:
    """Replace advice about code by advice about calls, where the kernel is not the program's own.

    `framework` is that of the program.
    """
    origin = kernel_origin(finding.where)
    if origin is None or finding.rule in FITTING_RULES:
        return finding
    if origin in {"PyTorch", "torch.compile"}:
        framework = Framework.TORCH
    elif origin == "XLA":
        framework = Framework.JAX
    category = _category(finding.where)
    advice = framework.choose(
        torch=_TORCH.get(category, _TORCH_DEFAULT),
        cuda=_CUDA.get(category, _CUDA_DEFAULT),
        jax=_JAX_DEFAULT,
        other=_CUDA_DEFAULT,
    ).in_precision(classify(finding.where).precision)
    kind = "Generated by" if origin in {"torch.compile", "XLA"} else "A kernel of"
    return replace(
        finding,
        fix=f"{kind} {origin}: its code and grid are not yours to change. {advice.fix}",
        code=advice.code,
        effort=advice.effort,
    )
