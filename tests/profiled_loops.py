"""Loops as a profiler records them: each recorded event takes the host time, the GPU none.

    trace = profiled_loop(overhead_us=5)

The same program with another overhead has the same calls, kernels and ranges at other times.
"""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

from gpusight.pace import METADATA_KEY
from tests.rules.timeline.rule_captures import US, Capture
from tests.traces import PROCESS, THREAD, build_trace

if TYPE_CHECKING:
    from pathlib import Path

    from gpusight.trace.trace import Trace

AUTOGRAD = THREAD + 1
"""The thread that launches the second half of each step, where there are two."""


def profiled_loop(
    *,
    overhead_us: float = 0.0,
    host_us: float = 20.0,
    kernel_us: float = 4.0,
    steps: int = 6,
    launches: int = 12,
    threads: int = 1,
    streams: int = 1,
    latency_us: float = 2.0,
    tool: str = "built by hand",
) -> Trace:
    """Record a loop of launches, each in a range of its own, that ends with a wait for the GPU.

    A call takes the overhead twice, before its time stamps and within them; a range once. The
    overhead of a `tool` that gpusight knows is estimated, unless a step time is given.
    """
    capture, now, free = Capture(), 0.0, [0.0] * streams
    for step in range(steps):
        begins = now
        now += overhead_us
        for number in range(launches):
            thread = AUTOGRAD if threads > 1 and number >= launches / 2 else THREAD
            opens, now = now, now + host_us + 2 * overhead_us
            call_end, stream = now + 4 + overhead_us, number % streams
            start = max(call_end + latency_us, free[stream])
            free[stream] = start + kernel_us
            correlation = capture.call("cudaLaunchKernel", now, call_end, thread=thread)
            link = {"correlation": correlation, "process": PROCESS, "stream": 7 + stream}
            grid = {"grid_x": 1_000, "grid_y": 1, "grid_z": 1}
            capture.event("kernels", f"kernel_{number}", start, free[stream], **link, **grid)
            now = call_end + 1
            capture.range(f"layer_{number}", opens, now, thread=thread)
        now += host_us + overhead_us
        done = max(now + 3 + overhead_us, max(free) + 2)
        capture.call("cudaDeviceSynchronize", now, done)
        now = done + 1
        capture.range(f"step_{step}", begins, now)
    tables: dict[str, Any] = capture.tables
    return build_trace({"tool": tool}, devices=[{"device": 0}], **tables)


def step_ns(trace: Trace) -> float:
    """Return the step time of a loop, from the starts of its first and last step."""
    rows = trace.table("ranges", ["start_ns", "name"]).rows()
    starts = [start for start, name in rows if name.startswith("step_")]
    return float(max(starts) - min(starts)) / (len(starts) - 1)


def stored_pace(mean_ns: float, steps: int = 9) -> dict[str, Any]:
    """Return the step time without a profiler as the recorder stores it."""
    times = {"mean_ns": mean_ns, "median_ns": mean_ns, "spread": 0.02, "steps": steps}
    return {"version": 1, **times, "how": "before", "step_source": "optimizer"}


def write_torch(trace: Trace, path: Path, pace: object = None) -> Path:
    """Write a loop as torch.profiler does, with a step time without it among the metadata."""
    gpu = {"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150_000_000_000, "numSms": 132}
    document = {
        "schemaVersion": 1,
        "deviceProperties": [gpu | {"computeMajor": 9, "computeMinor": 0}],
        "traceEvents": [
            *(_event(_category(row["name"]), row) for row in trace.ranges.rows(named=True)),
            *(_event("cuda_runtime", row) for row in trace.api_calls.rows(named=True)),
            *(_event("kernel", row) for row in trace.kernels.rows(named=True)),
        ],
    }
    if pace is not None:
        document[METADATA_KEY] = pace
    path.write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))
    return path


def _category(name: str) -> str:
    """Layers are operators, and steps are those of the profiler."""
    return "user_annotation" if name.startswith("step_") else "cpu_op"


def _event(category: str, row: dict[str, Any]) -> dict[str, Any]:
    name = row["name"]
    if name.startswith("step_"):
        name = f"ProfilerStep#{name.removeprefix('step_')}"
    args = {"correlation": row["correlation"]} if "correlation" in row else {}
    where = {"pid": 4242, "tid": row.get("thread")}
    if category == "kernel":
        where = {"pid": 0, "tid": row["stream"]}
        args |= {"device": 0, "stream": row["stream"], "grid": [1_000, 1, 1], "block": [128, 1, 1]}
    times = {"ts": row["start_ns"] / US, "dur": (row["end_ns"] - row["start_ns"]) / US}
    return {"ph": "X", "cat": category, "name": name, "args": args, **where, **times}
