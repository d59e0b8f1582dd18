"""blocking-launches: calls that return after their kernel, as with CUDA_LAUNCH_BLOCKING=1."""

from __future__ import annotations

import pytest

from gpusight.analysis.replay.changes import as_graphs
from gpusight.rules.engine import run_timeline_rules
from gpusight.rules.rule import CLEAN
from gpusight.rules.timeline.blocking_launches import BlockingLaunches
from gpusight.rules.timeline.launch_bound import LaunchBound
from tests.rules.timeline.rule_captures import Capture, evidence, match_of, saved_us

RULE = BlockingLaunches()


def launches(*, blocking: bool, kernel_us: float = 50.0, count: int = 20) -> Capture:
    """Three steps of kernels; the host needs 10 us from one call to the next."""
    capture, at = Capture(), 0.0
    for step in range(3):
        begun, free = at, at
        for _ in range(count):
            starts = max(at + 6, free + 1)
            free = starts + kernel_us
            returns = free + 4 if blocking else at + 5
            capture.launch((at, returns), (starts, free))
            at = returns + 10
        capture.range(f"step_{step}", begun, max(at, free))
        at = max(at, free) + 1
    return capture


def test_found() -> None:
    timeline = launches(blocking=True).timeline()
    verdict = match_of(RULE, timeline)
    numbers = evidence(verdict)
    assert numbers["blocked_share"] == 1.0
    assert numbers["launches"] == 20
    assert numbers["waited_ns"] == 20 * 54_000
    # Without blocking, kernels follow each other: 51 us instead of 70.
    assert saved_us(verdict, timeline) == pytest.approx(20 * 18, rel=0.15)
    assert "unset CUDA_LAUNCH_BLOCKING" in verdict.code


def test_time_in_a_launch_that_blocks_is_a_wait() -> None:
    """It is no host time: neither a graph nor a faster host saves it."""
    timeline = launches(blocking=True).timeline()
    blocked = timeline.calls.filter("waits")
    assert blocked.height == 60
    assert blocked["waited_ns"].min() == 54_000
    assert timeline.replay.run(as_graphs()).saved_ns < 0.01 * timeline.length_ns
    assert not launches(blocking=False).timeline().calls["waits"].any()


def test_what_blocking_launches_cause_is_one_finding() -> None:
    results = run_timeline_rules(
        launches(blocking=True).timeline(), [LaunchBound(), BlockingLaunches()]
    )
    assert [finding.rule for finding in results.findings] == ["blocking-launches"]
    assert results.covered == {"launch-bound": "blocking-launches"}


@pytest.mark.parametrize(
    "capture",
    [
        pytest.param(launches(blocking=False), id="asynchronous"),
        pytest.param(launches(blocking=False, kernel_us=2), id="short kernels, idle GPU"),
        pytest.param(launches(blocking=True, kernel_us=12), id="kernels too short to tell"),
        pytest.param(launches(blocking=True, count=3), id="too few"),
    ],
)
def test_clean(capture: Capture) -> None:
    assert RULE.check(capture.timeline()) is CLEAN
