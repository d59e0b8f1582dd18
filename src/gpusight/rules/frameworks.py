"""What a program is written with, so that advice is in its own language."""

from __future__ import annotations

import enum
import re
from pathlib import PurePath
from typing import TYPE_CHECKING, TypeVar

from gpusight.analysis.aggregates import names_of
from gpusight.naming.kernel_patterns import kernel_origin

if TYPE_CHECKING:
    from gpusight.trace.trace import Trace


T = TypeVar("T")

_TORCH_KERNELS = ("at::native", "at_cuda_detail", "c10::", "triton_")
_TORCH_RANGES = ("aten::", "ProfilerStep", "autograd::", "Optimizer.step#")
_JAX_RANGES = ("XlaModule", "PjitFunction", "TSL:", "XlaLaunch")


class Framework(enum.Enum):
    """What the host program is written with."""

    TORCH = "PyTorch"
    JAX = "JAX"
    CUPY = "CuPy"
    NUMBA = "Numba"
    JULIA = "Julia"
    CUDA = "CUDA"
    """Calls CUDA itself, or through an unknown framework."""

    @property
    def is_ml(self) -> bool:
        """It is a framework for machine learning; others are for any kind of program."""
        return self in {Framework.TORCH, Framework.JAX}

    @property
    def is_array_language(self) -> bool:
        """Programs launch kernels from Python or Julia: neither CUDA C++ nor PyTorch helps them."""
        return self in {Framework.CUPY, Framework.NUMBA, Framework.JULIA}

    def choose(self, *, torch: T, cuda: T, jax: T | None = None, other: T | None = None) -> T:
        """Return the argument of this framework; that of CUDA where it has none.

        `other` is for CuPy, Numba and Julia.
        """
        if self is Framework.TORCH:
            return torch
        if self is Framework.JAX and jax is not None:
            return jax
        return other if self.is_array_language and other is not None else cuda


_KERNEL_NAMES = {
    Framework.CUPY: re.compile(r"^cupyx?_"),
    Framework.NUMBA: re.compile(r"cudapy(?:::|\d)"),
    Framework.JULIA: re.compile(r"CuDeviceArray|CompilerMetadata|^julia_|^gpu_\w+_$"),
}
"""Names of kernels that only programs of a framework have."""
_PACKAGES = {
    "torch": Framework.TORCH,
    "jax": Framework.JAX,
    "cupy": Framework.CUPY,
    "numba": Framework.NUMBA,
}
"""Python packages whose code was seen on sampled stacks."""


def framework_of(trace: Trace) -> Framework:
    """Detect the framework from the profiler, operators, kernels, ranges and sampled stacks."""
    if trace.meta.source.startswith("jax"):
        return Framework.JAX
    if trace.has("cpu_ops") or trace.meta.source.startswith("torch"):
        return Framework.TORCH
    kernels = [*_names(trace, "kernels"), *_names(trace, "profiles")]
    ranges = _names(trace, "ranges")
    if any(mark in name for name in kernels for mark in _TORCH_KERNELS):
        return Framework.TORCH
    if any(name.startswith(_TORCH_RANGES) for name in ranges):
        return Framework.TORCH
    if any(name.startswith(_JAX_RANGES) for name in ranges):
        return Framework.JAX
    if any(kernel_origin(name) == "XLA" for name in kernels):
        return Framework.JAX
    for framework, names in _KERNEL_NAMES.items():
        if any(names.search(name) for name in kernels):
            return framework
    # Kernels of a program are not visible where its CUDA graphs were traced as one event.
    hidden = not kernels and trace.has("graph_launches")
    otherwise = Framework.TORCH if hidden and _runs_python(trace) else Framework.CUDA
    seen = {name.partition(".")[0] for name in _names(trace, "stack_frames", "module")}
    return next((_PACKAGES[package] for package in _PACKAGES if package in seen), otherwise)


def _runs_python(trace: Trace) -> bool:
    processes = _names(trace, "processes")
    return any(PurePath(name).name.startswith("python") for name in processes if name)


def _names(trace: Trace, table: str, column: str = "name") -> list[str]:
    return names_of(trace.table(table, [column])[column]) if trace.has(table) else []
