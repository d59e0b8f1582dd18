"""gpu-shared: another process of the capture on the same GPU."""

from __future__ import annotations

import pytest

from gpusight.rules.rule import CLEAN
from gpusight.rules.timeline.gpu_shared import GpuShared
from tests.rules.timeline.gpu_traces import GEMM, program
from tests.rules.timeline.rule_captures import US, Capture, evidence, match_of, saved_us

RULE = GpuShared()


def shared(other_us: float, *, device: int = 0) -> Capture:
    """Three steps of ten kernels of 100 us, and one kernel of another process during each."""
    capture = program([(GEMM, 100.0)] * 10)
    capture.tables["processes"] += [
        {"process": 1, "pid": 100},
        {"process": 2, "pid": 200, "name": "server"},
    ]
    for kernel in list(capture.tables["kernels"]):
        start_ns = kernel["start_ns"]
        times = {"start_ns": start_ns, "end_ns": start_ns + round(other_us * US)}
        capture.tables["kernels"].append(
            {"name": "other", "process": 2, "context": 2, "device": device, **times}
        )
    return capture


def test_found() -> None:
    timeline = shared(80.0).timeline()
    verdict = match_of(RULE, timeline)
    numbers = evidence(verdict)
    assert numbers["shared_share"] == pytest.approx(0.8, abs=0.02)
    assert numbers["processes"] == 1
    assert numbers["other_ns"] == 800_000
    assert verdict.fix.startswith("server (200) also runs on GPU 0.")
    # While both run, each gets half of the GPU.
    assert saved_us(verdict, timeline) == pytest.approx(400, rel=0.02)


@pytest.mark.parametrize(
    "capture",
    [
        pytest.param(program([(GEMM, 100.0)] * 10), id="one process"),
        pytest.param(shared(1.0), id="hardly at all"),
        pytest.param(shared(80.0, device=1), id="another GPU"),
    ],
)
def test_clean(capture: Capture) -> None:
    assert RULE.check(capture.timeline()) is CLEAN
