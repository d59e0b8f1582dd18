"""Captures with stacks, built by hand: every sum in them is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.traces import THREAD, build_trace

if TYPE_CHECKING:
    from gpusight.trace.trace import Trace

MS = 1_000_000
STEP_NS = 20 * MS
MAIN = ("/home/ada/train.py", 90, "main", False)
COLLATE = ("/home/ada/train.py", 88, "collate", False)
READ = ("/usr/lib/python3.11/json/decoder.py", 355, "decode", True)
FORWARD = ("/home/ada/model.py", 12, "forward", False)
LINEAR = ("/opt/lib/python3.11/site-packages/torch/nn/modules/linear.py", 125, "forward", True)
STACKS = {
    1: (READ, COLLATE, MAIN),
    2: (LINEAR, FORWARD, MAIN),
    3: (MAIN,),
}
"""Stacks by key, the innermost frame first."""


def frame_rows() -> list[dict[str, Any]]:
    """Write `STACKS` as rows of `stack_frames`."""
    return [
        {
            "stack": stack,
            "depth": depth,
            "file": file,
            "line": line,
            "function": function,
            "kind": "python",
            "is_library": library,
        }
        for stack, frames in STACKS.items()
        for depth, (file, line, function, library) in enumerate(frames)
    ]


def loader_trace(steps: int = 6, *, period_ns: int = 2 * MS, **more: Any) -> Trace:
    """Steps of 20 ms: `collate` for 12 ms, then `forward` launches a kernel of 8 ms.

    The kernel starts as soon as it is launched, and the host waits until it is done.
    """
    calls, kernels, samples, ranges = [], [], [], []
    for step in range(steps):
        begin = step * STEP_NS
        launch = begin + 12 * MS
        correlation = step + 1
        end = begin + STEP_NS
        ranges.append({"start_ns": begin, "end_ns": end, "name": f"step_{step}"})
        calls += [
            {"start_ns": launch, "end_ns": launch + 10_000, "correlation": correlation},
            {"start_ns": launch + 20_000, "end_ns": end, "name": "cudaStreamSynchronize"},
        ]
        kernels.append(
            {
                "start_ns": launch + 10_000,
                "end_ns": end,
                "name": "gemm",
                "correlation": correlation,
            }
        )
        for time_ns in range(begin + period_ns // 2, end, period_ns):
            stack = 1 if time_ns < launch else 2
            samples.append(sample(time_ns, stack, period_ns))
    tables: dict[str, Any] = {
        "api_calls": calls,
        "kernels": kernels,
        "ranges": ranges,
        "stack_samples": samples,
        "stack_frames": frame_rows(),
        "processes": [{"process": 1, "pid": 4242}],
        "threads": [{"thread": THREAD, "process": 1, "tid": 4242}],
    }
    return build_trace(**(tables | more))


def sample(time_ns: int, stack: int, weight_ns: int, late_ns: int = 0) -> dict[str, Any]:
    """Write a row of `stack_samples`."""
    return {
        "time_ns": time_ns,
        "stack": stack,
        "weight_ns": weight_ns,
        "late_ns": late_ns,
        "source": "gpusight",
    }
