"""What the environment says.

The plan of `gpusight record`, the profiler around this process; log lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from gpusight.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Mapping


VARIABLE = "GPUSIGHT_RECORD"
PROFILER_API = "profiler-api"
"""The recorder is another tool around us, which cudaProfilerStart and Stop switch on and off."""
TORCH = "torch"
CUPTI = "cupti"


@dataclass(frozen=True)
class RecorderPlan:
    """What to record in this process, and when."""

    recorder: str
    """`torch`, `cupti`, or `profiler-api` for nsys and ncu."""
    output: str
    """Where to, absolute, without the suffix; ranks and further processes add to the name."""
    first_step: int | None = None
    last_step: int | None = None
    range_name: str | None = None
    delay_s: float | None = None
    duration_s: float | None = None
    ranks: tuple[int, ...] | None = None
    """None: all."""
    memory: bool = False
    python_stacks: bool = False
    stop: bool = False
    overwrite: bool = False

    def to_text(self) -> str:
        """Write it for the environment."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> RecorderPlan:
        """Read what `to_text` wrote; what this version does not know is left out."""
        known = {field.name for field in fields(cls)}
        told = {key: value for key, value in json.loads(text).items() if key in known}
        if told.get("ranks") is not None:
            told["ranks"] = tuple(told["ranks"])
        return cls(**told)


def current_plan() -> RecorderPlan | None:
    """Give the plan of this process, if `gpusight record` started it."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    try:
        return RecorderPlan.from_text(text)
    except (ValueError, TypeError, AttributeError) as error:  # not JSON, or not what we write
        raise RecordError(
            f"the variable {VARIABLE} holds no plan of gpusight record",
            hint=f"unset {VARIABLE}, unless gpusight record started this",
        ) from error


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


def log_line(text: str) -> None:
    """Print a line; a program that closed its stderr does not want it.

    Programs also put objects of their own there, and a signal may come while one is written to.
    """
    stream = sys.stderr
    if stream is None:
        return
    with contextlib.suppress(Exception):  # there is no other place to say it
        stream.write(f"gpusight: {text}\n")
        stream.flush()


def log_error(doing: str, error: BaseException) -> None:
    """Say what of ours failed; the program goes on without it."""
    text = " ".join(str(error).split()) or type(error).__name__
    log_line(f"{doing} failed in process {os.getpid()}: {text}; the program goes on unrecorded")
