"""anomaly-mode: NaN checks after the operators of the backward pass."""

from __future__ import annotations

import pytest

from gpusight.rules.engine import run_timeline_rules
from gpusight.rules.rule import CLEAN
from gpusight.rules.timeline.anomaly_mode import AnomalyMode
from gpusight.rules.timeline.host_sync import HostSync
from tests.rules.timeline.gpu_traces import ADD, GEMM_BF16, SOFTMAX_BWD
from tests.rules.timeline.rule_captures import Capture, evidence, match_of, saved_us

RULE = AnomalyMode()
COMPARE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CompareEqFunctor<float>>(int)"
)
ANY = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<bool, at::native::func_wrapper_t"
    "<bool, at::native::or_kernel_cuda(at::TensorIterator &)>, unsigned int, bool, 4, 4>>(T3)"
)


def training(
    *,
    checks: bool,
    thread: int = 12,
    operators: int = 15,
    traceback_us: float = 0.0,
    query: bool = False,
) -> Capture:
    """Four steps: forward in the main thread, backward in autograd's, each result checked."""
    capture, at = Capture(), 0.0

    def launch(name: str, own: int) -> None:
        nonlocal at
        capture.launch((at, at + 5), (at + 7, at + 12), name)
        capture.tables["api_calls"][-1]["thread"] = own
        at += 15

    def check(own: int) -> None:
        nonlocal at
        launch(COMPARE, own)
        launch(ANY, own)
        capture.copy((at, at + 4), (at + 5, at + 6), size=1)
        capture.tables["api_calls"][-1]["thread"] = own
        capture.call("cudaStreamSynchronize", at + 5, at + 8, thread=own)
        at += 10

    for step in range(4):
        begun = at
        for _ in range(operators):
            at += traceback_us
            if query:
                capture.call("cudaStreamIsCapturing", at, at + 0.5, thread=11)
                at += 0.5
            launch(GEMM_BF16, 11)
            if checks and thread == 11:
                check(11)
        for _ in range(operators):
            launch(SOFTMAX_BWD, 12)
            if checks and thread == 12:
                check(12)
        launch(ADD, 11)
        capture.range(f"step_{step}", begun, at, thread=11)
    return capture


def test_found() -> None:
    timeline = training(checks=True).timeline()
    verdict = match_of(RULE, timeline)
    numbers = evidence(verdict)
    assert numbers["checks"] == 15
    assert numbers["syncs"] == 15
    assert verdict.title == "Anomaly detection: 15 NaN checks per step"
    # Two launches, a copy and a wait each: 40 us.
    assert saved_us(verdict, timeline) == pytest.approx(15 * 40, rel=0.2)
    assert RULE.locate(timeline, None).height == 60  # type: ignore[arg-type]


@pytest.mark.parametrize("query", [False, True], ids=["launches", "a query before each launch"])
def test_tracebacks_of_the_forward_pass_count(query: bool) -> None:
    plain, traced = (
        training(checks=True, traceback_us=us, query=query).timeline() for us in (0.0, 200.0)
    )
    saved = [saved_us(match_of(RULE, timeline), timeline) for timeline in (plain, traced)]
    assert saved[1] - saved[0] == pytest.approx(15 * 200, rel=0.1)


def test_its_syncs_are_one_finding() -> None:
    results = run_timeline_rules(training(checks=True).timeline(), [HostSync(), RULE])
    assert [finding.rule for finding in results.findings] == ["anomaly-mode"]


def test_clean() -> None:
    assert RULE.check(training(checks=False).timeline()) is CLEAN
    # A program that checks its own results in the forward pass: host-sync says so.
    forward = training(checks=True, thread=11).timeline()
    assert RULE.check(forward) is CLEAN
    assert evidence(match_of(HostSync(), forward))["waits"] == 15
