"""A training program written down by hand, whose names may be whatever a test wants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.rules.timeline.rule_captures import Capture
from tests.traces import build_trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.trace.trace import Trace

EVIL = '</script><img src=x onerror="window.hacked=1"><b>bold</b>\u202e\x1b[31m'
"""A name that would be markup, end a script, turn text round or color a terminal."""
GEMM = "ampere_sgemm_128x64_nn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>()"
STEP_US = 1_000


def training(
    steps: int = 4,
    *,
    gemm: str = GEMM,
    forward: str = "forward",
    meta: Mapping[str, Any] | None = None,
) -> Trace:
    """Give steps of a millisecond: 400 µs of data, then forward, backward and a copy.

    The product takes 200 µs of GPU time a step, the addition 100, the copy 50.
    """
    capture = Capture()
    for step in range(steps):
        at = step * STEP_US
        capture.range(f"step_{step}", at, at + STEP_US - 20)
        capture.range("data", at + 5, at + 405)
        capture.range(forward, at + 410, at + 600)
        capture.launch((at + 420, at + 430), (at + 440, at + 640), gemm)
        capture.range("backward", at + 610, at + 700)
        capture.launch((at + 620, at + 630), (at + 640, at + 740), ADD)
        capture.copy((at + 750, at + 760), (at + 770, at + 820), size=1_000_000)
    tables = {
        "devices": [{"device": 0, "name": "NVIDIA H200", "memory_bytes": 141_000_000_000}],
        "threads": [{"thread": 11, "tid": 4242, "name": "python3"}],
        "memory_events": _memory(steps),
    }
    about = {"path": "/home/somebody/secret-project/run.sqlite", **(meta or {})}
    return build_trace(about, **capture.tables, **tables)


def _memory(steps: int) -> list[dict[str, Any]]:
    """Take 1 GB a step, and give it back at the end."""
    rows = []
    for step in range(steps):
        start, end = (1_000 * (step * STEP_US + at) for at in (415, 900))
        same = {"bytes": 1_000_000_000, "address": 4096}
        rows.append({"time_ns": start, "operation": "allocation", **same})
        rows.append({"time_ns": end, "operation": "deallocation", **same})
    return rows
