"""What a program is written with, so that advice is in its own language."""

from __future__ import annotations

import enum
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
    CUDA = "CUDA"
    """Calls CUDA itself, or through an unknown framework."""

    def choose(self, *, torch: T, cuda: T, jax: T | None = None) -> T:
        """Return the argument of this framework; for JAX that of CUDA where it has none."""
        if self is Framework.TORCH:
            return torch
        return jax if self is Framework.JAX and jax is not None else cuda


def framework_of(trace: Trace) -> Framework:
    """Detect the framework from the profiler, operators, kernels and ranges."""
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
    return Framework.CUDA


def _names(trace: Trace, table: str) -> list[str]:
    return names_of(trace.table(table, ["name"])["name"]) if trace.has(table) else []
