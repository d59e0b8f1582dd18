"""Environment variables that make programs slow: of this machine, of a recording, of a capture."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


_OFF = frozenset({"", "0", "false", "off", "no", "none"})
_ON = r"."
_DEBUG_VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": (_ON, "every launch waits for its kernel"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": (_ON, "every tensor is a cudaMalloc and a cudaFree"),
    "TORCH_LOGS": (r"\+|all|output_code|graph|trace", "torch.compile logs all that it does"),
    "TORCH_COMPILE_DEBUG": (_ON, "torch.compile writes all that it does to files"),
    "TORCH_COMPILE_DISABLE": (_ON, "torch.compile does nothing"),
    "TORCHDYNAMO_DISABLE": (_ON, "torch.compile does nothing"),
    "TORCH_DISTRIBUTED_DEBUG": (r"(?i)^detail$", "every collective is checked by another one"),
    "TORCH_NCCL_BLOCKING_WAIT": (_ON, "the host waits for every collective"),
    "NCCL_DEBUG": (r"(?i)^trace$", "NCCL logs every call"),
    "CUDNN_LOGINFO_DBG": (_ON, "cuDNN logs every call"),
    "CUDNN_LOGLEVEL_DBG": (r"^[23]", "cuDNN logs every call"),
    "CUBLAS_LOGINFO_DBG": (_ON, "cuBLAS logs every call"),
    "CUBLASLT_LOG_LEVEL": (r"^[2-5]", "cuBLASLt logs every call"),
    "NVIDIA_TF32_OVERRIDE": (r"^0$", "no library uses TF32"),
    "CUDA_FORCE_PTX_JIT": (_ON, "the driver compiles all kernels at the start"),
    "CUDA_CACHE_DISABLE": (_ON, "the driver compiles PTX again in every run"),
    "TRITON_INTERPRET": (_ON, "Triton kernels run on the CPU"),
    "JAX_DEBUG_NANS": (_ON, "JAX checks every result for NaN"),
    "JAX_DISABLE_JIT": (_ON, "JAX runs operators one by one"),
    "XLA_PYTHON_CLIENT_ALLOCATOR": (r"^platform$", "every array is a cudaMalloc and a cudaFree"),
    "XLA_FLAGS": (r"xla_dump_to", "XLA writes all that it compiles to files"),
    "PYTHONDEVMODE": (_ON, "Python runs its debug checks"),
}
"""Variables that make programs slow, the values that do so, and why."""
_SILENT = frozenset({"XLA_FLAGS"})
"""Their values hold paths."""
_MAX_VALUE = 60


def debug_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the debug settings of an environment, as `NAME=VALUE`, and what each one does."""
    settings = {}
    for name, (values, effect) in _DEBUG_VARIABLES.items():
        value = environ.get(name, "").strip()[:_MAX_VALUE]
        off = value.lower() in _OFF and name != "NVIDIA_TF32_OVERRIDE"
        if not off and re.search(values, value):
            settings[name if name in _SILENT else f"{name}={value}"] = effect
    return settings


def debug_variables(text: str) -> dict[str, str]:
    """Take the variables with debug settings, and no other, out of `NAME=value;NAME=value`."""
    environ = dict(pair.split("=", 1) for pair in text.split(";") if "=" in pair)
    names = {setting.partition("=")[0] for setting in debug_settings(environ)}
    return {name: value for name, value in environ.items() if name in names}
