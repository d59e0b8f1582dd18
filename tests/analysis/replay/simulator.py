"""A program simulated by the book, so that what a change gives is known without any replay.

A script is a list of `Do`: what one chain of host work does, one thing after the other. `simulate`
says when everything runs, `trace_of` writes that down as a capture. Changing the script and
simulating again gives the truth that a replay of the first capture has to find.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.traces import PROCESS, THREAD, build_trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.trace.trace import Trace

LATENCY_NS = 2_000
GAP_NS = 1_200
"""What the replay assumes too where a program never shows it."""
TAIL_NS = 5_000
SETUP_NS = 3_000
SYNC_NS = 3_000

NAMES = {
    "launch": "cudaLaunchKernel",
    "copy": "cudaMemcpyAsync",
    "sync": "cudaDeviceSynchronize",
    "stream_sync": "cudaStreamSynchronize",
    "event_sync": "cudaEventSynchronize",
    "malloc": "cudaMalloc",
    "free": "cudaFree",
}


@dataclass(frozen=True)
class Do:
    """One thing that the host does, after some work of its own."""

    what: str
    before_ns: int = 0
    """Work of the host before it."""
    own_ns: int = 5_000
    gpu_ns: int = 0
    stream: int = 7
    thread: int = THREAD
    pageable: bool = False
    device: int = 0
    lag: int = 0
    """For the wait for an event: behind how many launches it was recorded."""


@dataclass
class Run:
    """When everything ran."""

    calls: list[dict[str, Any]]
    kernels: list[dict[str, Any]]
    copies: list[dict[str, Any]]
    end_ns: int


def simulate(script: Sequence[Do]) -> Run:
    """Run a script: streams in order, synchronizing calls wait, pageable copies block."""
    now = 0
    streams: dict[tuple[int, int], int] = {}
    run = Run([], [], [], 0)
    for number, do in enumerate(script, start=1):
        begun = now + do.before_ns
        ended = begun + do.own_ns
        stream = (do.device, do.stream)
        row = {
            "correlation": number,
            "stream": do.stream,
            "process": PROCESS,
            "device": do.device,
        }
        behind = streams[stream] + GAP_NS if stream in streams else 0
        if do.what == "launch":
            start = max(ended + LATENCY_NS, behind)
            streams[stream] = start + do.gpu_ns
            run.kernels.append({**row, "start_ns": start, "end_ns": start + do.gpu_ns})
        elif do.what == "copy":
            start = max((begun + SETUP_NS) if do.pageable else (ended + LATENCY_NS), behind)
            streams[stream] = start + do.gpu_ns
            run.copies.append({**row, "start_ns": start, "end_ns": start + do.gpu_ns})
            if do.pageable:
                ended = start + do.gpu_ns + TAIL_NS
        elif do.what in {"sync", "stream_sync", "event_sync"}:
            busy = max((end for (gpu, _), end in streams.items() if gpu == do.device), default=0)
            if do.what == "stream_sync":
                busy = streams.get(stream, 0)
            elif do.what == "event_sync":
                busy = run.kernels[-1 - do.lag]["end_ns"] if len(run.kernels) > do.lag else 0
            ended = max(begun + SYNC_NS, busy + TAIL_NS) if busy > begun else begun + SYNC_NS
        elif do.what == "free":
            ended = max(begun, *streams.values()) + do.own_ns if streams else ended
        run.calls.append(
            {
                "start_ns": begun,
                "end_ns": ended,
                "name": NAMES[do.what],
                "thread": do.thread,
                "correlation": number,
            }
        )
        now = ended
    run.end_ns = max([now, *streams.values()])
    return run


def trace_of(run: Run) -> Trace:
    """Write a run down as a capture."""
    return build_trace(
        api_calls=run.calls,
        kernels=[{"name": "kernel", **k} for k in run.kernels],
        copies=[{"bytes": 1_000_000, **c} for c in run.copies],
        processes=[{"process": PROCESS}],
        threads=[{"thread": THREAD, "process": PROCESS}],
    )
