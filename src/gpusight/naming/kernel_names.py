"""What a kernel is, from its name alone: a short name, a category, a precision."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from gpusight.naming.kernel_patterns import find
from gpusight.naming.name_parts import parts_of, precision_of, tensor_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpusight.naming.name_parts import KernelNameParts


MAX_LABEL_CHARS = 48
MAX_LABEL_ARGS_CHARS = 18
_MAX_ARGS_CHARS = 2_000
"""Template arguments are searched up to this length."""

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
    "": "",
    **dict.fromkeys(("fprop", "fwd", "forward"), "fprop"),
    **dict.fromkeys(("dgrad", "bwd", "backward"), "dgrad"),
    **dict.fromkeys(("wgrad", "wrw", "grad_weight"), "wgrad"),
}
"""Forward, data gradient or weight gradient."""
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
    """Fill in a label template, drop what is empty, and shorten it to `MAX_LABEL_CHARS`."""

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
    return text if len(text) <= MAX_LABEL_CHARS else text[: MAX_LABEL_CHARS - 1].rstrip() + "…"


def _first_group(pattern: re.Pattern[str], text: str) -> str:
    """Return the first group of a match that took part in it; empty without a match."""
    match = pattern.search(text)
    return "" if match is None else next((group for group in match.groups() if group), "")


def function_name(parts: KernelNameParts) -> str:
    """The bare function, with its template arguments when they are short."""
    args = parts.args.replace(" ", "")
    base = parts.base.strip() or parts.text
    if args and len(args) <= MAX_LABEL_ARGS_CHARS and len(base) + len(args) + 2 <= MAX_LABEL_CHARS:
        return f"{base}<{parts.args}>"
    return base


def direction(parts: KernelNameParts) -> str:
    """Forward or backward, where the name shows it."""
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
    """Which operands are transposed, in the letters of BLAS."""
    if (tensile := TENSILE_LAYOUT.search(parts.subject)) is not None:
        transposed = (tensile.group(1) == "li", tensile.group(2) == "jl")
        return "".join("t" if flag else "n" for flag in transposed)
    return _first_group(LAYOUT, parts.subject)


def extras(parts: KernelNameParts) -> str:
    """Split-k and the epilogue of a GEMM."""
    words = [f"+{name}" for name in dict.fromkeys(EPILOGUE.findall(parts.subject))]
    if "split_k" in parts.subject or "splitk" in parts.subject:
        words.append("split-k")
    return " ".join(words)


def head_dim(parts: KernelNameParts) -> str:
    """The attention head's size."""
    text = f"{parts.subject}<{parts.args.lower()}"
    size = _first_group(HEAD_DIM, text) or _first_group(TUPLE_DIM, text)
    return f"d{size}" if size else ""


def collective(parts: KernelNameParts) -> str:
    """A collective with its algorithm."""
    return NCCL.sub("", parts.base).removesuffix("_t").replace("_", " ")


def snake(name: str) -> str:
    """`GeluBackward` as `gelu bwd`."""
    text = CAMEL.sub("_", name).lower().strip("_")
    return text.replace("_backward", " bwd").removesuffix("_scalar").removesuffix("_tensor")


def operation(parts: KernelNameParts) -> str:
    """What a generic elementwise kernel does, from its functor."""
    name = _first_group(OPERATION, parts.args[:_MAX_ARGS_CHARS])
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
    """How a generic elementwise kernel accesses memory, which decides its speed."""
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
    "conv": lambda parts: CONVOLUTION_PASSES[_first_group(CONVOLUTION, parts.subject)],
    "data": lambda parts: _first_group(DATA_LAYOUT, parts.subject),
    "d": head_dim,
    "triton": lambda parts: TRITON.sub("", parts.base).strip("_") or parts.base,
    "coll": collective,
    "op": operation,
    "reduce": lambda parts: _first_group(REDUCTION, parts.args.lower()),
    "optim": optimizer,
    "to": lambda parts: COPY_TARGETS.get(_first_group(COPY_TARGET, parts.args.lower()), ""),
    "access": access,
}


class KernelName(msgspec.Struct, frozen=True):
    """A kernel's name and what follows from it."""

    raw: str
    """As in the capture."""
    demangled: str
    """Demangled where `raw` is mangled."""
    short: str
    """A label of at most `MAX_LABEL_CHARS`, on one line; other kernels may have the same."""
    category: str
    """One of `CATEGORIES`."""
    precision: str
    """Number format of the arithmetic, one of `PRECISIONS`."""
    tensor_core: bool | None
    """Whether Tensor Cores are used; None where the name does not show it."""


_MAX_CACHED_NAMES = 1 << 19
"""Names that are cached, 0.4 KB each plus the name.

A capture with more is classified again by each analysis, at 0.1 ms per name.
"""


@lru_cache(maxsize=_MAX_CACHED_NAMES)
def classify(name: str) -> KernelName:
    """Classify the kernel `name`. Text that is no kernel name falls into `other`."""
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


_TYPES = {
    **dict.fromkeys(("float", "f32"), "f32"),
    **dict.fromkeys(("double", "f64"), "f64"),
    **dict.fromkeys(("Half", "half", "__half", "half_t"), "f16"),
    **dict.fromkeys(("BFloat16", "bfloat16", "__nv_bfloat16", "bfloat16_t"), "bf16"),
    **dict.fromkeys(("long", "int64_t"), "i64"),
    **dict.fromkeys(("int", "int32_t"), "i32"),
    **dict.fromkeys(("short", "int16_t"), "i16"),
    **dict.fromkeys(("int8_t",), "i8"),
    **dict.fromkeys(("uint8_t",), "u8"),
    "bool": "bool",
}
_TYPE = re.compile(r"(?<![A-Za-z0-9_])(?:" + "|".join(_TYPES) + r")(?![A-Za-z0-9_])")
_MAX_TYPES = 3
_LIBRARY = re.compile(r"(cutlass|xmma|nvjet|magma|triton)")
_OPERANDS = re.compile(r"(AUnary|BUnary|Binary|CUDAFunctor_|FunctorOnSelf|FunctorOnOther)")
_OPERAND_WORDS = {
    **dict.fromkeys(("AUnary", "FunctorOnOther"), "scalar-tensor"),
    **dict.fromkeys(("BUnary", "FunctorOnSelf"), "tensor-scalar"),
    **dict.fromkeys(("Binary", "CUDAFunctor_"), "tensor-tensor"),
}
_WORD = re.compile(r"[A-Za-z0-9]{1,60}")
_NOISE = frozenset({"void", "const", "unsigned"})
_MAX_WORDS = 400
_MAX_SUFFIX_WORDS = 4
_MAX_SUFFIX_CHARS = 24
_VALUE = re.compile(r"(\d{1,20})u?l{0,2}|true|false")


def _types(parts: KernelNameParts) -> str:
    """The data types of the template arguments."""
    types = dict.fromkeys(_TYPES[word] for word in _TYPE.findall(parts.args[:_MAX_ARGS_CHARS]))
    return "/".join(list(types)[:_MAX_TYPES])


# What sets kernels of one label apart, in the order in which people look for it.
_DIFFERENCES: tuple[Callable[[KernelNameParts], str], ...] = (
    lambda parts: SHORT_PRECISION.get(p := classify(parts.text).precision, p),
    direction, tile, layout, extras, operation, head_dim, _types, access,
    lambda parts: _OPERAND_WORDS.get(_first_group(_OPERANDS, parts.args[:_MAX_ARGS_CHARS]), ""),
    lambda parts: _first_group(_LIBRARY, parts.subject),
)  # fmt: skip


def unique_short_names(names: Iterable[str]) -> Mapping[str, str]:
    """Map the kernel names of a capture to short names; those of two kernels differ.

    Pass all names of the capture, so that a kernel has the same short name in all tables.
    """
    return _unique_short_names(tuple(names))


@lru_cache(maxsize=16)
def _unique_short_names(names: tuple[str, ...]) -> Mapping[str, str]:
    return distinguish({name: classify(name).short for name in names})


def distinguish(labels: Mapping[str, str]) -> dict[str, str]:
    """Make the labels of different kernels differ, by adding what differs in their full names.

    Spellings of one kernel, such as those of different tools, keep the same label.
    """
    by_label: defaultdict[str, list[str]] = defaultdict(list)
    for name, label in labels.items():
        by_label[label].append(name)
    unique = dict(labels)
    taken = {label: 1 for label, names in by_label.items() if len(names) == 1}
    for label in sorted(by_label):
        names = by_label[label]
        if len(names) == 1:
            continue
        kernels: defaultdict[str, list[str]] = defaultdict(list)
        parts = {}
        for name in names:
            of_name = parts_of(name)[1]
            kernels[of_name.text].append(name)
            parts[of_name.text] = of_name
        for text, suffix in _suffixes(label, parts).items():
            own_label = _make_unique(_with_suffix(label, suffix), taken)
            unique |= dict.fromkeys(kernels[text], own_label)
    return unique


def _suffixes(label: str, parts: Mapping[str, KernelNameParts]) -> dict[str, str]:
    """Find what to add to the label of each kernel, by its full name."""
    words = set(label.split())
    added: dict[str, tuple[str, ...]] = dict.fromkeys(sorted(parts), ())
    for difference in _DIFFERENCES:
        if len(set(added.values())) == len(added):
            break
        new = {text: difference(parts[text]) for text in added}
        # A value that is in the label already would not be added.
        new = {text: "" if value in words else value for text, value in new.items()}
        split = {text: (*added[text], new[text]) for text in added}
        if len(set(split.values())) > len(set(added.values())):
            added = split
    by_values: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for text, values in added.items():
        by_values[values].append(text)
    suffixes = {}
    for values, texts in by_values.items():
        shown = [value for value in values if value]
        different = _different_words(texts) if len(texts) > 1 else {texts[0]: []}
        for text in texts:
            suffixes[text] = " ".join([*shown, _shown_words(different[text])]).strip()
    return suffixes


def _different_words(texts: Sequence[str], most: int = _MAX_SUFFIX_WORDS) -> dict[str, list[str]]:
    """Find, for each full name, the few words that set it apart from the others."""
    own = _own_words(texts)
    longest = max(map(len, own.values()))
    padded = {text: words + [""] * (longest - len(words)) for text, words in own.items()}
    columns = zip(*padded.values(), strict=True)
    position = next((at for at, words in enumerate(columns) if len(set(words)) > 1), None)
    if position is None or not most:
        return {text: [] for text in texts}
    by_word: defaultdict[str, list[str]] = defaultdict(list)
    for text, words in padded.items():
        by_word[words[position]].append(text)
    different = {}
    for word, members in by_word.items():
        more = _different_words(members, most - 1) if len(members) > 1 else {}
        for text in members:
            different[text] = [*([word] if word else []), *more.get(text, [])]
    return different


def _own_words(texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the words of each full name that not all of them have, in order."""
    words = {text: _WORD.findall(text)[:_MAX_WORDS] for text in texts}
    counts = {text: Counter(of_text) for text, of_text in words.items()}
    common = Counter(counts[texts[0]])
    for count in counts.values():
        common &= count
    own: dict[str, list[str]] = {text: [] for text in texts}
    for text, of_text in words.items():
        left = Counter(common)
        for word in of_text:
            if left[word]:
                left[word] -= 1
            elif word not in _NOISE:
                own[text].append(word)
    return own


def _shown_words(words: Sequence[str]) -> str:
    """Write bare values as template arguments."""
    values = [match[1] or match[0] for match in map(_VALUE.fullmatch, words) if match]
    names = [word for word in words if not _VALUE.fullmatch(word)]
    return " ".join([*names, f"<{', '.join(values)}>"] if values else names)


def _with_suffix(label: str, suffix: str) -> str:
    """Put a suffix behind a label, which is shortened where there is no room."""
    if not suffix:
        return label
    if len(suffix) > _MAX_SUFFIX_CHARS:
        suffix = suffix[: _MAX_SUFFIX_CHARS - 1].rstrip() + "…"
    room = MAX_LABEL_CHARS - len(suffix) - 1
    kept = label if len(label) <= room else label.rstrip("…")[: room - 1].rstrip() + "…"
    return f"{kept} {suffix}"


def _make_unique(label: str, taken: dict[str, int]) -> str:
    """Add a number to a label that is taken; `taken` holds the last number of each label."""
    candidate = label
    while candidate in taken:
        taken[label] += 1
        candidate = _with_suffix(label, f"#{taken[label]}")
    taken[candidate] = 1
    return candidate
