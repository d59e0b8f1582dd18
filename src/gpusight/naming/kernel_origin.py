"""Whose code a kernel is, from its name: that of a library or framework, or the program's own."""

from __future__ import annotations

import re
from functools import lru_cache

ORIGINS: tuple[tuple[str, str], ...] = (
    # Generated code first: its names list operators of others.
    ("torch.compile", r"^triton_(?:poi|red|per|tem|for|spl|mix|unk|mm|bmm)_"),
    (
        "XLA",
        (
            r"^(?:\w{0,60}_)?fusion(?:[._]\d{1,6})?(?:\.clone)?(?:[._]\d{1,6})?$|^fusion_|^wrapped_"
            r"|^loop_\w{1,60}fusion|gemm_fusion|^triton_(?:softmax|gemm)"
        ),
    ),
    ("NCCL", r"nccl(?:dev|symk?dev)?kernel|ncclsymk|^rccl"),
    ("TensorRT", r"__myl_|myelin|tensorrt|\btrt_"),
    (
        "PyTorch",
        (
            r"\bat::|\bc10::|at_cuda_detail|pytorch_flash|\btorch::|fmha_cutlass|\bcunn_"
            r"|softmax_warp_(?:for|back)ward|(?:vectorized|unrolled)_elementwise_kernel"
            r"|elementwise_kernel_with_index|multi_tensor_apply"
        ),
    ),
    ("TensorFlow", r"tensorflow::|eigen::internal"),
    (
        "cuDNN",
        (
            r"cudnn|xmma_(?:fprop|dgrad|wgrad|conv)|implicit_convolve_|nchwtonhwc|nhwctonchw"
            r"|\bbn_(?:fw|bw)_"
        ),
    ),
    (
        "cuBLAS",
        (
            r"cublas|nvjet|xmma|splitkreduce|\d_[sdhcz]gemm|gemv2|gemvx|gemmsn_|gemmk1_"
            r"|\b(?:maxwell|volta|turing|ampere|hopper|sm\d{2,3})_\w{0,60}gemm"
        ),
    ),
    ("cuFFT", r"cufft|\b(?:vector|regular|multi_bluestein)_fft\b"),
    ("cuSPARSE", r"cusparse"),
    ("cuSOLVER", r"cusolver"),
    ("CUTLASS", r"cutlass"),
    ("CUB/Thrust", r"\bcub::|thrust::"),
    ("MAGMA", r"magma_"),
    ("RAPIDS", r"cudf::|raft::|cuml::|cugraph::"),
    ("FlashAttention", r"\bflash::|flash_(?:fwd|bwd)_|flashattn(?:fwd|bwd)"),
    ("vLLM", r"\bvllm::"),
    ("FlashInfer", r"flashinfer"),
)
"""Libraries and frameworks, and what their kernel names contain in lower case; the first wins."""
_ORIGINS = tuple((origin, re.compile(pattern)) for origin, pattern in ORIGINS)
LIBRARY_KERNELS = r"(?i)" + "|".join(f"(?:{pattern})" for _, pattern in ORIGINS)
"""Matches the kernels that are not the program's own."""


@lru_cache(maxsize=4096)
def kernel_origin(name: str) -> str | None:
    """Return the library or framework that a kernel belongs to; None for the program's own."""
    text = name.lower().removeprefix("void ")
    return next((origin for origin, pattern in _ORIGINS if pattern.search(text)), None)
