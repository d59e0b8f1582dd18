"""What a kernel is, from its name alone: a readable label, a category, a precision."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from gpusight.naming.demangle import parts_of
from gpusight.naming.kernel_patterns import find
from gpusight.naming.kernel_precision import precision_of, tensor_cores

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusight.naming.demangle import KernelNameParts


MAX_SHORT = 48
MAX_SHORT_ARGS = 18

SHORT_PRECISION = {"fp64": "f64", "fp32": "f32", "fp16": "f16", "int8": "i8", "unknown": ""}

PLACEHOLDER = re.compile(r"\{(\w{1,12})\}")
SPACES = re.compile(r"\s{1,100}")
BACKWARD = re.compile(r"backward|bwd|grad(?!e)|_bw_|bw_1c|cutlassb")
FORWARD = re.compile(r"forward|_fwd|fwd_|fwd|_fw_|fw_tr|fw_inf|fprop|cutlassf|compute_attn")
XMMA_TILE = re.compile(r"tilesize(\d{1,4}x\d{1,4})|gemmshape<(\d{1,4}), (\d{1,4})")
TILE = re.compile(r"(?<![a-z0-9])(?:mt|bt|t)?(\d{1,4}x\d{1,4})(?![0-9])")
LAYOUT = re.compile(r"_(nn|nt|tn|tt)(?:[nt])?(?:_|$|>|:| )")
TENSILE_LAYOUT = re.compile(r"cijk_a(il|li)k\w{0,2}_b(lj|jl)k")
EPILOGUE = re.compile(r"[a-z0-9]_(bias|relu|gelu|swiglu)(?:_|$)")
CONVOLUTION = re.compile(
    r"(fprop|dgrad|wgrad)|igemm_(fwd|bwd|wrw)|depthwise2d_(forward|backward|grad_weight)"
)
CONVOLUTION_PASSES = {
    **dict.fromkeys(("fwd", "forward"), "fprop"),
    **dict.fromkeys(("bwd", "backward"), "dgrad"),
    **dict.fromkeys(("wrw", "grad_weight"), "wgrad"),
}
DATA_LAYOUT = re.compile(r"_(nhwc|nchw|ndhwc|ncdhw)(?:_|$)")
HEAD_DIM = re.compile(
    r"kernel_traits<(\d{2,3})|_h(?:dim)?(\d{2,3})(?:_|$)|(?:bfloat16|e4m3|fp16)h(\d{2,3})"
)
TUPLE_DIM = re.compile(
    r"tuple<(?:cute::)?c<\d{1,3}>, (?:(?:cute::)?c<\d{1,3}>, )?(?:cute::)?c<(\d{2,3})>"
)
TRITON = re.compile(r"^triton_(?:(?:poi|red|per|tem|for|unk|spl|mix)_)?(?:fused_)?")
NCCL = re.compile(r"^(?:rccl|nccl)(?:Dev)?(?:Kernel_?)?|^ncclSymk?DevKernel_?|ncclDevFunc_?")
CAST = re.compile(r"loadwithcast")
COPY_TARGET = re.compile(r"(bfloat16|float16|float8|float4)\w{0,12}_copy_kernel")
COPY_TARGETS = {"bfloat16": "bf16", "float16": "f16", "float8": "fp8", "float4": "fp4"}

# What PyTorch's generic kernels are instantiated with: CUDAFunctor_add, MulFunctor, exp_kernel_cuda
# or launch_clamp_scalar. The wrappers around them carry no meaning of their own.
OPERATION = re.compile(
    r"CUDAFunctor(?:OnSelf|OnOther)?_([a-z]{2,20})"
    r"|\b(?!Binary|Unary|AUnary|BUnary|opmath)([A-Za-z]\w{1,40}?)(?:_f|F)unctor\b"
    r"|\blaunch_([a-z_]{2,30})"
    r"|\b(?!gpu_|fbgemm|launch_)_{0,2}([A-Za-z]\w{1,40}?)(?:_kernel_cuda|_cuda_kernel"
    r"|_scalar_kernel_impl|_kernel_impl|CUDAKernelImpl|_kernel|_cuda_out|_gpu)\b"
)
REDUCTION = re.compile(
    r"(mean|argmax|argmin|absmax|absmin|max|min|welford|norm|nansum|sum|prod|and|or|any|all|std"
    r"|xor)(?:two|one)?_?(?:ops|nanfunctor|functor|nan_?ops|_functor|_kernel)"
)
FUNCTOR = re.compile(r"([A-Za-z0-9]{2,40}?)(?:Math)?Functor\b")
APPLIED = re.compile(r"std::(plus|multiplies|minus|divides)|native::([A-Z][a-z]{2,12})<")
APPLIED_NAMES = {"plus": "add", "multiplies": "mul", "minus": "sub", "divides": "div"}
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def build_label(
    template: str, parts: KernelNameParts, precision: str, groups: tuple[str, ...]
) -> str:
    """Fill in a label template, drop what is empty, and shorten it to `MAX_SHORT` characters."""

    def fill(placeholder: re.Match[str]) -> str:
        key = placeholder.group(1)
        if key.isdigit():
            return groups[int(key) - 1] if int(key) <= len(groups) else ""
        if key == "p":
            return SHORT_PRECISION.get(precision, precision)
        if key == "np":
            return "" if precision == "fp32" else SHORT_PRECISION.get(precision, precision)
        return FILLERS[key](parts)

    text = SPACES.sub(" ", PLACEHOLDER.sub(fill, template)).strip() or "(unnamed)"
    return text if len(text) <= MAX_SHORT else text[: MAX_SHORT - 1].rstrip() + "…"


def _first_group(pattern: re.Pattern[str], text: str) -> str:
    """Return the first group of a match that took part in it; empty without a match."""
    match = pattern.search(text)
    return "" if match is None else next((group for group in match.groups() if group), "")


def function_name(parts: KernelNameParts) -> str:
    """The bare function, with its template arguments when they are short."""
    args = parts.args.replace(" ", "")
    base = parts.base.strip() or parts.text
    if args and len(args) <= MAX_SHORT_ARGS and len(base) + len(args) + 2 <= MAX_SHORT:
        return f"{base}<{parts.args}>"
    return base


def direction(parts: KernelNameParts) -> str:
    """Forward or backward, where the name says."""
    text = parts.subject
    if BACKWARD.search(text):
        return "bwd"
    return "fwd" if FORWARD.search(text) else ""


def tile(parts: KernelNameParts) -> str:
    """The tile one thread block computes."""
    if (xmma := XMMA_TILE.search(parts.subject)) is not None:
        return xmma.group(1) or f"{xmma.group(2)}x{xmma.group(3)}"
    return _first_group(TILE, parts.subject)


def layout(parts: KernelNameParts) -> str:
    """Which operands are transposed, as BLAS says it."""
    if (tensile := TENSILE_LAYOUT.search(parts.subject)) is not None:
        transposed = (tensile.group(1) == "li", tensile.group(2) == "jl")
        return "".join("t" if flag else "n" for flag in transposed)
    return _first_group(LAYOUT, parts.subject)


def extras(parts: KernelNameParts) -> str:
    """What sets a matmul apart from its namesakes: split-k and what its epilogue does."""
    words = [f"+{name}" for name in dict.fromkeys(EPILOGUE.findall(parts.subject))]
    if "split_k" in parts.subject or "splitk" in parts.subject:
        words.append("split-k")
    return " ".join(words)


def convolution_pass(parts: KernelNameParts) -> str:
    """Forward, data gradient or weight gradient."""
    name = _first_group(CONVOLUTION, parts.subject)
    return CONVOLUTION_PASSES.get(name, name)


def head_dim(parts: KernelNameParts) -> str:
    """The attention head's size."""
    text = f"{parts.subject}<{parts.args.lower()}"
    size = _first_group(HEAD_DIM, text) or _first_group(TUPLE_DIM, text)
    return f"d{size}" if size else ""


def triton_name(parts: KernelNameParts) -> str:
    """A generated kernel's name without its generator's prefix."""
    return TRITON.sub("", parts.base).strip("_") or parts.base


def collective(parts: KernelNameParts) -> str:
    """A collective with its algorithm."""
    return NCCL.sub("", parts.base).removesuffix("_t").replace("_", " ")


def snake(name: str) -> str:
    """`GeluBackward` as `gelu bwd`."""
    text = CAMEL.sub("_", name).lower().strip("_")
    return text.replace("_backward", " bwd").removesuffix("_scalar").removesuffix("_tensor")


def operation(parts: KernelNameParts) -> str:
    """What a generic elementwise kernel does, from its functor."""
    name = _first_group(OPERATION, parts.args[:2000])
    return snake(name) if name else ""


def optimizer(parts: KernelNameParts) -> str:
    """What a multi-tensor kernel applies: an optimizer's step or one operation of it."""
    functors = FUNCTOR.findall(parts.args) or [""]
    name = snake(functors[-1].removeprefix("Fused"))
    if (applied := APPLIED.search(parts.args)) is not None:
        plain = applied.group(1) or applied.group(2).lower()
        name = APPLIED_NAMES.get(plain, plain)
    if functors[0].startswith("PointwiseOp"):
        name = f"addc{name}"
    return name if name in ("adam", "adamw", "sgd", "lamb", "adagrad") else f"foreach {name}"


def access(parts: KernelNameParts) -> str:
    """How a generic elementwise kernel reaches its data, since it decides its speed."""
    if CAST.search(parts.args.lower()):
        return "cast"
    return "strided" if parts.base.startswith(("elementwise_kernel", "Elementwise")) else ""


FILLERS: dict[str, Callable[[KernelNameParts], str]] = {
    "fn": function_name,
    "base": lambda parts: parts.base,
    "dir": direction,
    "tile": tile,
    "layout": layout,
    "extras": extras,
    "conv": convolution_pass,
    "data": lambda parts: _first_group(DATA_LAYOUT, parts.subject),
    "d": head_dim,
    "triton": triton_name,
    "coll": collective,
    "op": operation,
    "reduce": lambda parts: _first_group(REDUCTION, parts.args.lower()),
    "optim": optimizer,
    "to": lambda parts: COPY_TARGETS.get(_first_group(COPY_TARGET, parts.args.lower()), ""),
    "access": access,
}


class KernelName(msgspec.Struct, frozen=True):
    """A kernel's name and what it says."""

    raw: str
    """As in the capture."""
    demangled: str
    """Demangled where `raw` is mangled."""
    short: str
    """A label of at most 48 characters, on one line."""
    category: str
    """One of `CATEGORIES`."""
    precision: str
    """What the arithmetic runs in, one of `PRECISIONS`."""
    tensor_core: bool | None
    """Whether tensor cores are used; None where the name cannot tell."""


_MAX_CACHED_NAMES = 1 << 19
"""Names that are cached, in 0.4 KB each beside the name.

A capture with more is classified again by each analysis, at 0.1 ms a name.
"""


@lru_cache(maxsize=_MAX_CACHED_NAMES)
def classify(name: str) -> KernelName:
    """Classify the kernel `name`. Any text is accepted; most of it is then in "other"."""
    demangled, parts = parts_of(name)
    row, groups = find(parts.subject, parts.args.lower(), parts.words)
    precision = precision_of(parts, row.category)
    return KernelName(
        raw=name,
        demangled=demangled,
        short=build_label(row.label, parts, precision, groups),
        category=row.category,
        precision=row.precision or precision,
        tensor_core=tensor_cores(parts, row.category, precision),
    )
