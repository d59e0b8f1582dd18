"""Which framework a program is written in, so that advice speaks its language."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, TypeVar

from gpusight.analyses.statistics import names_of

if TYPE_CHECKING:
    from gpusight.model.trace import Trace

T = TypeVar("T")

_TORCH_KERNELS = ("at::native", "at_cuda_detail", "c10::", "triton_")
_TORCH_RANGES = ("aten::", "ProfilerStep", "autograd::", "Optimizer.step#")
_JAX_RANGES = ("XlaModule", "PjitFunction", "TSL:", "XlaLaunch")


class Framework(enum.Enum):
    """What the host program is written with."""

    TORCH = "PyTorch"
    JAX = "JAX"
    CUDA = "CUDA"
    """Calls CUDA itself, or through something that cannot be told."""

    def choose(self, *, torch: T, cuda: T, jax: T | None = None) -> T:
        """Give what fits; for JAX what fits CUDA where nothing of its own is given."""
        if self is Framework.TORCH:
            return torch
        return jax if self is Framework.JAX and jax is not None else cuda


def framework_of(trace: Trace) -> Framework:
    """Tell the framework by the tool that made the capture, operators, kernels and ranges."""
    if trace.meta.source.startswith("jax"):
        return Framework.JAX
    if trace.has("cpu_ops") or trace.meta.source.startswith("torch"):
        return Framework.TORCH
    kernels, ranges = _names(trace, "kernels"), _names(trace, "ranges")
    if any(mark in name for name in kernels for mark in _TORCH_KERNELS):
        return Framework.TORCH
    if any(name.startswith(_TORCH_RANGES) for name in ranges):
        return Framework.TORCH
    if any(name.startswith(_JAX_RANGES) for name in ranges):
        return Framework.JAX
    return Framework.CUDA


def _names(trace: Trace, table: str) -> list[str]:
    return names_of(trace.table(table, ["name"])["name"]) if trace.has(table) else []
