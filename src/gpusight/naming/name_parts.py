"""The parts of a kernel's name, and its number format as far as they show it.

Tools spell one kernel differently (`(int)4` or `4`, `<unnamed>` or `(anonymous namespace)`,
`char *` or `char*`); the parts of a name read the same for all of them.

Library kernels carry codes for their number format (`s1688gemm`, `f32f32_tf32f32_f32`,
`nvjet_tst`); the others say it in their template arguments. Memory-bound kernels are given the
type of the data they move.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# Long enough for every instance seen, short enough that matching stays in microseconds.
MAX_NAME = 20_000
MAX_TEXT = 6_000
MAX_NESTING = 200

ANONYMOUS = re.compile(r"\(anonymous namespace\)::|<unnamed>::|^(?:void )?unnamed>::")
LITERAL_CAST = re.compile(r"\((?:unsigned )?(?:int|bool|char|short|long long|long)\)(?=-?\d)")
CLONE = re.compile(r" \[clone [^\]]{0,40}\]|\.kd$")
WORD = re.compile(r"[A-Z]{1,60}(?=[A-Z][a-z])|[A-Z]?[a-z]{1,60}|[A-Z]{1,60}|\d{1,12}")
IDENTIFIER = re.compile(r"[A-Za-z_]\w{0,100}")
MANGLED_LENGTH = re.compile(r"\d{1,3}")
CLOSERS = {">": "<", ")": "(", "]": "[", "}": "{"}

# Functions that only launch what their template arguments say.
LAUNCHERS = re.compile(
    r"::kentry|parallel_launch|_kernel_agent|static_kernel|trampoline_kernel|forall\w{0,20}kernel"
)
# Composable Kernel starts everything through one function: kentry<1, ck_tile::GemmKernel<…>>.
CK_ENTRY = "kentry"
CK_LAUNCHED = re.compile(r"(\w{3,80})<")
GENERIC_NAMES = ("kernel", "kernel2", "device_kernel")
GENERIC_ARGS = re.compile(r"cutlass|cute::|gemm|mma|flash|conv")


class KernelNameParts(NamedTuple):
    """The parts of a kernel's name. `subject` and `words` are lower case, for the patterns."""

    text: str
    head: str
    base: str
    args: str
    params: str
    subject: str
    words: str


def take_apart(name: str) -> KernelNameParts:
    """Split a demangled or plain kernel name."""
    text = clean(name)
    if text.startswith("_Z"):
        text = readable_identifiers(text)
    head, args, params = split(text)
    base = head.rsplit("::", 1)[-1]
    launcher = LAUNCHERS.search(head.lower()) or (
        base.lower() in GENERIC_NAMES and GENERIC_ARGS.search(args.lower())
    )
    subject = f"{head}<{args}>" if launcher and args else head
    if base == CK_ENTRY and (launched := CK_LAUNCHED.search(args)) is not None:
        base, args = launched.group(1), args[launched.end() :].removesuffix(">")
    words = WORD.findall(base)
    return KernelNameParts(
        text, head, base, args, params, subject.lower(), f" {' '.join(words).lower()} "
    )


def clean(name: str) -> str:
    """Return one spelling for all tools, truncated to a length that is safe to search."""
    text = name[:MAX_TEXT]
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in text)
    text = ANONYMOUS.sub("", CLONE.sub("", text.strip()))
    return LITERAL_CAST.sub("", text).strip()


def readable_identifiers(mangled: str) -> str:
    """Return the identifiers of a name that could not be demangled, to recognize its family."""
    function: list[str] = []
    arguments: list[str] = []
    identifiers, at = function, 2
    while (number := MANGLED_LENGTH.search(mangled, at)) is not None:
        end = number.end() + int(number.group())
        word = mangled[number.end() : end]
        at = end if IDENTIFIER.fullmatch(word) else number.end()
        if at == end and not word.startswith("_GLOBAL_"):
            identifiers.append(word)
            identifiers = arguments if mangled[end : end + 1] in ("I", "E") else identifiers
    text = "::".join(function) or mangled
    return f"{text}<{', '.join(arguments)}>" if arguments else text


def split(text: str) -> tuple[str, str, str]:
    """Return function name, template arguments and parameters, from one walk over the text."""
    open_brackets: list[str] = []
    start, args_from, args_to, end = 0, -1, -1, len(text)
    for at, char in enumerate(text):
        if len(open_brackets) > MAX_NESTING:
            break
        if char in "<([{":
            if not open_brackets and char == "(" and at > start:
                end = at
                break
            if not open_brackets and char == "<":
                args_from = at
            open_brackets.append(char)
        elif char in CLOSERS:
            close(open_brackets, char)
            if not open_brackets and char == ">":
                args_to = at
        elif char == " " and not open_brackets:
            start, args_from, args_to = at + 1, -1, -1
    head = text[start : args_from if args_from >= 0 else end]
    inside_to = args_to if args_to > args_from else end
    args = text[args_from + 1 : inside_to] if args_from >= 0 else ""
    return head.split("[", 1)[0].strip() or text, args.strip(), text[end:]


def close(open_brackets: list[str], char: str) -> None:
    """Close a bracket; `>` between parentheses is a comparison and closes nothing."""
    opener = CLOSERS[char]
    if opener not in open_brackets or (char == ">" and open_brackets[-1] != opener):
        return
    while open_brackets.pop() != opener:
        pass


def parts_of(raw: str) -> tuple[str, KernelNameParts]:
    """Return the demangled name and its parts."""
    demangled = demangle_if_mangled(raw)
    return demangled, take_apart(demangled)


_MAX_NESTED_PARENTHESES = 40
_INSTANCE = re.compile(r"\s?\(instance (\d+)\)")
_BRACED = re.compile(r"[\[{]lambda[^\[\]{}]*?#?(\d{0,9})[\]}]")
_PARENTHESES = re.compile(r"\([^()]*\)")
_UNNAMED = re.compile(r"(?:<?unnamed>|_GLOBAL__N_\w*)(?=::)")
_QUALIFIERS = re.compile(r"\b(?:const|volatile|struct|class|enum)\b")
_RETURNS = re.compile(r"\bvoid (?=[\w:])")
_TYPED = re.compile(r"(?<=[<,])[\w: ]*=(?=-?\d)")
"""`<int=32>`, as profilers wrote it until 2019."""
_LITERAL = re.compile(r"(?<![\w.])(-?\d+)(?:ull|ul|ll|u|l)\b", re.IGNORECASE)
_EMPTY_SCOPE = re.compile(r"(?<![\w>#])::|(?<=::)::")
_SPACE = re.compile(r"\s+(?!\w)|(?<!\w)\s+")


def normal_name(name: str) -> str:
    """Return the spelling that names of one kernel share; two kernels' names stay different."""
    text = CLONE.sub("", demangle_if_mangled(name.strip())[:MAX_NAME])
    text = _without_parameters(_INSTANCE.sub(r"#\1", text))
    text = _UNNAMED.sub("", text)
    text = _RETURNS.sub("", _QUALIFIERS.sub("", text))
    text = re.sub(r"\btrue\b", "1", re.sub(r"\bfalse\b", "0", text))
    text = _SPACE.sub("", _LITERAL.sub(r"\1", _TYPED.sub("", text)))
    return _EMPTY_SCOPE.sub("", text) or name.strip()


def _without_parameters(text: str) -> str:
    """Drop everything in parentheses: parameters, casts, the unnamed namespace.

    A lambda keeps its number, and `operator()` its name.
    """
    text = text.replace("operator ()", "operator()").replace("operator()", "operator_call")
    for _ in range(_MAX_NESTED_PARENTHESES):
        text, changed = _PARENTHESES.subn("", text)
        if not changed:
            break
    return _BRACED.sub(r"lambda#\1", text)


# Number formats -----------------------------------------------------------------------------------

PRECISIONS: tuple[str, ...] = (
    "fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8", "int", "complex", "mixed",
    "unknown",
)  # fmt: skip

# Spelling -> precision, narrow types first: a matmul runs in the narrowest type it names, the
# wider ones being accumulators and outputs.
TYPES: tuple[tuple[str, str], ...] = (
    (r"nvfp4\w{0,12}|mxfp4|fp4|(?:mx)?e2m1\w{0,8}", "fp4"),
    (r"fp8x?\d?|b?f8(?:_\w{1,8})?|float8_\w{1,12}|(?:mx|float_)?e(?:4m3|5m2)\w{0,8}", "fp8"),
    (r"int8_t|int8|s8|i8|u8|signed char", "int8"),
    (r"bfloat16_t|bfloat16|bfloat162|bf16|bhalf_t|bf16x\d", "bf16"),
    (r"half_t|half2?|float16|fp16|f16|df16_", "fp16"),
    (r"tf32|tfloat32_t", "tf32"),
    (r"complex\w{0,8}|cucomplex|cudoublecomplex", "complex"),
    (r"double[234]?|fp64|f64|float64|double_t", "fp64"),
    (r"float[234]?|fp32|f32|float32|float_t", "fp32"),
    (r"int[234]?|long|short|bool|u?int(?:16|32|64)(?:_t)?|unsigned char", "int"),
)
ORDER = tuple(precision for _, precision in TYPES)
TYPE = re.compile(
    "|".join(f"(?P<{kind}>(?<![a-z0-9])(?:{words})(?![a-z0-9]))" for words, kind in TYPES)
)
INTEGERS = ("int", "int8")
LAMBDA = re.compile(r"lambda\(([^()]{1,200})\)")
# Kernels that move bytes whatever they stand for.
UNTYPED = re.compile(r"opaquetype|vectorized_gather|genericreformat|batched_transpose_\d")

# The types of operands and accumulator that xmma kernels are named after, run together.
XMMA_TYPE = r"(?:tf32|bf16|f16|f32|f64|i8|u8|i32|e4m3|e5m2|e2m1|c?f32|c?f64)"
XMMA = re.compile(rf"_((?:{XMMA_TYPE}){{2}}_(?:{XMMA_TYPE}){{2}})_")
XMMA_ORDER = (
    ("e2m1", "fp4"),
    ("e4m3", "fp8"),
    ("e5m2", "fp8"),
    ("i8", "int8"),
    ("tf32", "tf32"),
    ("bf16", "bf16"),
    ("f16", "fp16"),
    ("cf", "complex"),
    ("f64", "fp64"),
    ("f32", "fp32"),
)
# s1688gemm, h884cudnn, i16832gemm, s64x128x16gemm, s1688bf16gemm, s1688dgrad
MMA = re.compile(
    r"(?<![a-z0-9])([shidcz])(\d{3,6}|\d{1,3}x\d{1,3}x\d{1,3})"
    r"(tf32|bf16|f16)?(?:gemm|cudnn|fprop|dgrad|wgrad|conv)"
)
MMA_LETTER = {"h": "fp16", "d": "fp64", "i": "int8", "c": "complex", "z": "complex"}
NVJET = re.compile(r"nvjet_(?:sm\d{2,3}_)?([a-z])")
NVJET_LETTER = {
    "h": "fp16", "t": "bf16", "s": "tf32", "d": "fp64", "q": "fp8", "r": "fp8", "o": "fp4",
    "c": "complex", "z": "complex",
}  # fmt: skip
# Tensile: Cijk_Ailk_Bjlk_BBS_BH_… ; the letters after the index names are types: of the operands,
# the result and the sums. `_MX` has FP32 operands multiplied as TF32.
TENSILE = re.compile(
    r"cijk_(?:a[ijkl]{3,4}_b[ijkl]{3,4}_)?(4xi8|i8|[fb]8|f4|[shdcz]|[bi](?!\d))(_mx)?"
)
TENSILE_LETTER = {
    "s": "fp32", "h": "fp16", "d": "fp64", "b": "bf16", "i": "int8", "4xi8": "int8", "i8": "int8",
    "f8": "fp8", "b8": "fp8", "f4": "fp4", "c": "complex", "z": "complex",
}  # fmt: skip
# AMD's assembly kernels: aiter::f8gemm_bf16_…, fmoe_bf16_pertokenFp8_…, pa_bf16_pertokenFp8_gqa8.
AITER = re.compile(
    r"(?:pertoken|blockscale|per\d{1,4}x\d{1,4})(mxfp4|fp8|fp4|int8)|::(b?f|fp|i)(\d{1,2})gemm_"
)
AITER_TYPE = {
    "f4": "fp4", "fp4": "fp4", "f8": "fp8", "fp8": "fp8", "i8": "int8", "bf16": "bf16",
    "f16": "fp16", "fp16": "fp16",
}  # fmt: skip
# Composable Kernel holds bfloat16 in this type.
CK_BF16 = re.compile(r"unsigned short|ushort")
# sgemm, hgemm, scudnn, gcgemm; the letter is the type.
BLAS = re.compile(r"(?<![a-z])g?([shdcz])(?:gemm|cudnn|symm|trsm|syrk)")
BLAS_LETTER = {"s": "fp32", "h": "fp16", "d": "fp64", "c": "complex", "z": "complex"}
# TensorRT-LLM: bmm_<out>_<a><b>_…, fmhaSm100aKernel_QkvE4m3OBfloat16…
TRTLLM_BMM = re.compile(r"bmm_[a-z0-9]{1,12}_((?:mx)?(?:e2m1|e4m3|bfloat16|fp16)){1,2}_")
TRTLLM_FMHA = re.compile(r"_qkv?(e4m3|bfloat16|fp16|e2m1)")
# Triton's mixture-of-experts matmul: <out>x<activation>x<weight>; weights are widened first.
OGS = re.compile(r"matmul_ogs_[a-z]{3}_[a-z0-9]{2,8}x([a-z]{1,5}\d{1,2})")

# cuDNN's attention for 16 bits is named f16 whichever of the two types it is given.
EITHER_HALF = re.compile(r"_sdpa_\w{0,80}_f16(?:_|$)")

MATH = ("matmul", "convolution", "attention")
MAY_USE_TENSOR_CORES = (*MATH, "generated", "loop", "custom", "other")
SIMT = re.compile(
    r"simt|ffma|(?<!x)dlops|_dl_|cijk_\w{0,80}_tt\d|gemv|gemmk1|gemmsn|[sd]gemm_|scudnn|[cz]gemm|convolve|dgrad_engine"
    r"|winograd|fft2d|depthwise|wgrad_alg|im2col|preprocess|postprocess|dot_do_o|convert_dq|combine"
)
HELPER = re.compile(
    r"splitk_?reduce|reducesplitk|epilogue::impl|offsets|workspace|kernel_helper|tensormaps|metadata|postgsu"
    r"|cijk_(?!a[ijkl]{3,4}_b)"
)
TENSOR = re.compile(
    r"tensorop|tensor\d{1,2}x|hmma|wmma|wgmma|xdl|gtcx|mfma|_mi\d{1,2}x\d{1,2}x|nvjet|warpgroup"
    r"|flash|fmha|sdpa|marlin|deep_gemm|bmm_|matmul_ogs|grouped_gemm"
    r"|aiter::(?:fmoe|(?:b?f|fp|i)\d{1,2}gemm|pa_|mla_)|flatmm"
)


def precision_of(parts: KernelNameParts, category: str) -> str:
    """Return the precision of the kernel's arithmetic."""
    if category in MATH:
        return code_precision(parts.subject) or narrowest(parts)
    if category == "sort":
        return first_type(parts, integers=True)
    return first_type(parts, integers=False)


def code_precision(subject: str) -> str | None:
    """Return the precision that a library's own naming gives; None where it gives none."""
    if EITHER_HALF.search(subject):
        return "unknown"
    if (xmma := XMMA.search(subject)) is not None:  # f32f32_tf32f32_f32
        return next(kind for code, kind in XMMA_ORDER if code in xmma.group(1))
    if (nvjet := NVJET.search(subject)) is not None:  # the first letter: type of the operands
        return NVJET_LETTER.get(nvjet.group(1), "unknown")
    if (tensile := TENSILE.search(subject)) is not None:  # Cijk_Ailk_Bljk_BBS
        return "tf32" if tensile.group(2) else TENSILE_LETTER[tensile.group(1)]
    generated = aiter_precision(subject) or trtllm_precision(subject)
    if generated is not None:
        return generated
    if (mma := MMA.search(subject)) is not None:
        return mma_precision(subject, mma)
    if (blas := BLAS.search(subject)) is not None:
        return BLAS_LETTER[blas.group(1)]
    return None


def aiter_precision(subject: str) -> str | None:
    """Return what AMD's assembly kernels quantize weights and activations to."""
    match = AITER.search(subject)
    if match is None:
        return None
    scaled, letter, bits = match.groups()
    return AITER_TYPE.get((scaled or f"{letter}{bits}").removeprefix("mx"), "unknown")


def trtllm_precision(subject: str) -> str | None:
    """Return the precision of TensorRT-LLM's generated kernels and Triton's expert matmul."""
    if (ogs := OGS.search(subject)) is not None or (ogs := TRTLLM_FMHA.search(subject)) is not None:
        return named_type(ogs.group(1))
    if (bmm := TRTLLM_BMM.search(subject)) is None:
        return None
    operands = {kind for kind in ("e2m1", "e4m3", "bfloat16") if kind in bmm.group().split("_")[2]}
    return named_type(operands.pop()) if len(operands) == 1 else "mixed"


def named_type(spelling: str) -> str:
    """Return the precision of one type's name."""
    match = TYPE.search(spelling)
    return "unknown" if match is None else str(match.lastgroup)


def mma_precision(subject: str, mma: re.Match[str]) -> str:
    """Return the precision of an MMA instruction, which its shape alone does not decide."""
    if mma.group(3) is not None:
        return named_type(mma.group(3))
    kinds = {str(match.lastgroup) for match in TYPE.finditer(subject[:400])} - {"fp32", "int"}
    if kinds:
        return min(kinds, key=ORDER.index)
    letter, shape = mma.group(1), mma.group(2)
    if letter in MMA_LETTER:
        return MMA_LETTER[letter]
    return "tf32" if shape == "1688" or shape.endswith("x8") else "fp16"


def narrowest(parts: KernelNameParts) -> str:
    """Return the narrowest type in a matmul's name and arguments, or else in its parameters."""
    inside = CK_BF16.sub("bf16", parts.args) if "ck::" in parts.head else parts.args
    for text in (f"{parts.head} {inside}", parts.params):
        kinds = {str(match.lastgroup) for match in TYPE.finditer(text.lower())} - {"int"}
        if kinds:
            return min(kinds, key=ORDER.index)
    return "unknown"


def first_type(parts: KernelNameParts, *, integers: bool) -> str:
    """Return the first type named; integers, often indices, only when nothing else is."""
    if UNTYPED.search(f"{parts.subject} {parts.args[:200].lower()}"):
        return "unknown"
    first_integer = ""
    for text in (functor_types(parts), parts.args, pointers(parts.params), parts.head):
        for match in TYPE.finditer(text.lower()):
            kind = str(match.lastgroup)
            if integers or kind not in INTEGERS:
                return kind
            first_integer = first_integer or kind
    return first_integer or "unknown"


def functor_types(parts: KernelNameParts) -> str:
    """Return the types that a generic elementwise kernel's lambda takes; `(int)` is its index."""
    if "elementwise_kernel" not in parts.subject:
        return ""
    return next((types for types in LAMBDA.findall(parts.args) if types != "int"), "")


def pointers(params: str) -> str:
    """Return the parameters that are arrays; a lone `int` is a size, not a type of data."""
    return ",".join(param for param in params.split(",") if "*" in param or "Array<" in param)


def tensor_cores(parts: KernelNameParts, category: str, precision: str) -> bool | None:
    """Return whether Tensor (or matrix) Cores are used; None when the name does not say."""
    if category not in MAY_USE_TENSOR_CORES:
        return False
    if category not in MATH or HELPER.search(parts.subject):
        return None
    subject = parts.subject
    if SIMT.search(subject) and not MMA.search(subject):
        return False
    if MMA.search(subject) or TENSOR.search(subject):
        return True
    if XMMA.search(subject):
        return precision != "fp32"
    return None


def demangle_if_mangled(name: str) -> str:
    """Demangle a name; nearly all are already, and the demangler is slow to import."""
    if not name.startswith("_Z"):
        return name
    from gpusight.naming.demangle import demangle

    return demangle(name)
