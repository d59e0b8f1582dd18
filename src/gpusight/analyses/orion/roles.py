"""What a launch is to the scheduler, which sees calls of libraries rather than their kernels.

It intercepts the launches that a program makes itself, one row each, and the calls into cuDNN and
cuBLAS, one row each however many kernels they launch. So kernels of PyTorch (`at::…`) always stand
for themselves, also its own convolutions, while cuDNN's are recognised by the names they had over
the years.
"""

from __future__ import annotations

import enum
import re
from functools import lru_cache

from gpusight.model.kernel_names import classify

MODEL_TYPES = ("vision", "bert", "transformer")
"""Models that the scheduler's own tools tell apart."""


class Role(enum.Enum):
    """What a launch becomes in the file."""

    MEMORY = "memory"
    """A copy or a fill, which the scheduler does not count."""
    BATCH_NORM = "batch norm"
    CONVOLUTION = "convolution"
    HELPER = "helper"
    """Prepares a convolution, or finishes one."""
    SPLIT_K = "split-k"
    """Adds up what a matrix product left in parts."""
    GEMM = "gemm"
    OTHER = "other"


_LONGEST = 6_000
"""Letters of a name that are looked at."""
_UNNAMED = "<unnamed>"
_ANONYMOUS = "(anonymous namespace)"
_PARAMETERS = re.compile(r"[(<](?!unnamed>)")

_MEMORY = re.compile(r"\[?(?:CUDA )?mem(?:cpy|set)\b", re.IGNORECASE)
_OF_PYTORCH = re.compile(r"(?:^|[ :])at::")
_BATCH_NORM = re.compile(r"(?:^|[^a-z])bn_(?:fw|bw)|batch_?norm", re.IGNORECASE)
_OF_CUDNN = re.compile(
    r"cudnn|engines_precompiled|cask_plugin|winograd|fft2d|DSE::|\bcnn::|im2col4d"
    r"|(?:nchw|nhwc|padding|precompute_indices|offsets)\w{0,12}kernel|kernel_helper_stage"
    r"|flip_filter|compute_gemm_pointers",
    re.IGNORECASE,
)
# What comes before a convolution kernel: layouts, padding, offsets, transforms, workspaces.
_BEFORE = re.compile(
    r"nchw_?to_?(?:folded)?nhwc|ncdhw_?to_?ndhwc|nhwctofoldednhwc|addpadding|im2col"
    r"|compute\w{0,20}offsets|kern_precompute|init_device_workspace|scalepackedtensor"
    r"|generatewinogradtiles|winograd\w{0,12}(?:data|filter|delta|diff)"
    r"|fft2d_r2c|fft_pad|flip_filter|compute_gemm_pointers|kernel_helper",
    re.IGNORECASE,
)
# What comes after one: layouts back, inverse transforms.
_AFTER = re.compile(
    r"nhwc_?to_?nchw|ndhwc_?to_?ncdhw|foldednhwctonhwc|winograd\w{0,12}output|fft2d_c2r|fft_clip",
    re.IGNORECASE,
)
# The second half of one: it adds up what the first left in parts.
_SUM = re.compile(
    r"reduce_wgrad|cudnn\w{0,10}::kernel<.{0,60}reducesplitk|split_k_kernel\w{0,8}cudnn",
    re.IGNORECASE,
)
_CONVOLUTION = re.compile(
    r"xmma_\w{0,12}(?:fprop|dgrad|wgrad)|\d(?:fprop|dgrad|wgrad)_|implicitgemmconvolution"
    r"|(?:maxwell|pascal|volta|turing|ampere|hopper|sm\d{2,3})_\w{0,24}?cudnn_"
    r"|(?:implicit|explicit|precomputed)_convolve|convolve_common_engine"
    r"|[dw]grad\w{0,6}_engine|[dw]grad_alg|(?:[dw]grad|conv)2d_(?:grouped|alg|c1)"
    r"|cudnn\w{0,10}::kernel\d?<|xmma_cudnn::gemm::kernel|cudnn\S{0,60}(?:conv|fprop|[dw]grad)"
    r"|implicit_gemm::\w{0,12}(?:fprop|[dw]grad)",
    re.IGNORECASE,
)
# cuDNN's attention and recurrent layers are made of the same parts.
_OTHER_LAYERS = re.compile(r"sdpa|fmha|flash|attention|lstm|gru_|rnn", re.IGNORECASE)
# Products of spectra, in convolutions by FFT.
_COMPLEX_GEMM = re.compile(r"_gcgemm_", re.IGNORECASE)
_SPLIT_K = re.compile(r"splitk_?reduce|split_k_(?:kernel|reduce)|reducesplitk", re.IGNORECASE)
# On Volta cuDNN runs convolutions of 1 x 1 as these; linear layers use other layouts.
_VISION_GEMM = re.compile(r"volta_sgemm_128x64_n[nt]")


@lru_cache(maxsize=16_384)
def role_of(name: str, model_type: str) -> Role:
    """Tell what a launch of this name is, in a model of this type."""
    text = name[:_LONGEST]
    function = _function(text)
    if _MEMORY.match(text):
        return Role.MEMORY
    if _BATCH_NORM.search(function):
        return Role.BATCH_NORM
    if _OF_PYTORCH.search(function):
        return Role.OTHER
    if _OF_CUDNN.search(text) and any(p.search(text) for p in (_BEFORE, _AFTER, _SUM)):
        return Role.HELPER
    if _is_convolution(text, model_type):
        return Role.CONVOLUTION
    if _SPLIT_K.search(text):
        return Role.SPLIT_K
    return Role.GEMM if classify(name).category == "matmul" else Role.OTHER


def prepares(name: str) -> bool:
    """Tell whether a helper belongs to the convolution after it."""
    return bool(_BEFORE.search(name[:_LONGEST]))


def finishes(name: str) -> bool:
    """Tell whether a helper belongs to the convolution before it."""
    return not prepares(name) and bool(_AFTER.search(name[:_LONGEST]) or adds_up(name))


def adds_up(name: str) -> bool:
    """Tell whether a helper is the second half of the convolution kernel before it."""
    return bool(_SUM.search(name[:_LONGEST]))


def is_complex_gemm(name: str) -> bool:
    """Tell whether it is one of the several products of a convolution by FFT."""
    return bool(_COMPLEX_GEMM.search(name[:_LONGEST]))


def row_name(name: str) -> str:
    """Give a name as it may stand in the file: without template arguments, commas or line ends."""
    printable = "".join(c if c.isprintable() else " " for c in name)
    whole = printable.replace(_UNNAMED, _ANONYMOUS).strip()
    cut = whole.split("<", 1)[0].rstrip()
    if "," in cut:
        cut = _function(cut)
    return (cut or whole).replace(",", ";") or "unnamed"


def _is_convolution(text: str, model_type: str) -> bool:
    if _OTHER_LAYERS.search(text):
        return False
    in_vision = model_type == "vision" and _VISION_GEMM.search(text)
    return bool(_CONVOLUTION.search(text) or _COMPLEX_GEMM.search(text) or in_vision)


def _function(name: str) -> str:
    """Cut parameters and template arguments off."""
    text = name.replace(_ANONYMOUS, _UNNAMED)
    return _PARAMETERS.split(text, maxsplit=1)[0].replace(_UNNAMED, _ANONYMOUS).rstrip()
