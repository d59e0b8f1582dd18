"""Which profiler this program runs in, by what each leaves in the environment of its programs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpusight.capture.inside.plan import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

NVTX_INJECTIONS = ("NVTX_INJECTION64_PATH", "NVTX_INJECTION32_PATH")
INJECTIONS = ("CUDA_INJECTION64_PATH", *NVTX_INJECTIONS)
"""The libraries that CUDA and NVTX load into a program: any tool may set them."""
_PROFILERS = {
    "nsys": ("NSYS_PROFILING_SESSION_ID", "QUADD_INJECTION_PROXY"),
    "ncu": (
        "NV_TPS_LAUNCH_TOKEN",
        "NV_NSIGHT_INJECTION_TRANSPORT_TYPE",
        "NV_COMPUTE_PROFILER_PERFWORKS_DIR",
    ),
}
"""Older versions set only some of these."""


def surrounding_profiler(environ: Mapping[str, str] = os.environ) -> str | None:
    """Name the profiler of NVIDIA's that runs this program, `nsys` or `ncu`, if one does."""
    for profiler, variables in _PROFILERS.items():
        if any(environ.get(name) for name in variables):
            return profiler
    return None


def surrounding_tool(environ: Mapping[str, str] = os.environ) -> str | None:
    """Name whatever records or listens to this program, in words."""
    if environ.get(VARIABLE):
        return "gpusight record"
    if profiler := surrounding_profiler(environ):
        return profiler
    if any(environ.get(name) for name in NVTX_INJECTIONS):
        return "a tool that listens to NVTX"
    return None
