"""gil-contention: waits for the GIL on the launching thread."""

from __future__ import annotations

from typing import Any

import pytest

from gpusight.rules.rule import CLEAN, RuleNotApplicable
from gpusight.rules.timeline.gil_contention import GilContention
from tests.rules.timeline.rule_captures import Capture, evidence, match_of, saved_us

RULE = GilContention()
KERNEL = "void at::native::vectorized_elementwise_kernel<4, at::native::add<float>>(int)"


def steps(
    call: str = "pthread_cond_timedwait", wait_us: float = 5_000, kernel: str = KERNEL, **os: Any
) -> Capture:
    """Four steps of five launches; each comes after a wait."""
    capture, at = Capture(), 0.0
    for step in range(4):
        begun = at
        for _ in range(5):
            capture.event("os_calls", call, at + 1, at + 1 + wait_us, **os)
            at += wait_us + 5
            capture.launch((at, at + 5), (at + 7, at + 27), kernel)
            at += 30
        capture.range(f"step_{step}", begun, at)
    return capture


def test_found() -> None:
    timeline = steps().timeline()
    verdict = match_of(RULE, timeline)
    assert evidence(verdict)["waits"] == 5
    assert evidence(verdict)["waited_ns"] == 25_000_000
    assert saved_us(verdict, timeline) == pytest.approx(25_000, rel=0.01)
    assert verdict.title == "Launching thread waits for the GIL 25.0 ms/step"


@pytest.mark.parametrize(
    "capture",
    [
        pytest.param(steps("pthread_cond_wait"), id="autograd waits without a limit"),
        pytest.param(steps("sem_clockwait"), id="a lock of the program"),
        pytest.param(steps(wait_us=100_000), id="too long for the GIL"),
        pytest.param(steps(wait_us=0.2), id="too short to matter"),
        pytest.param(steps(thread=99), id="another thread"),
    ],
)
def test_clean(capture: Capture) -> None:
    assert RULE.check(capture.timeline()) is CLEAN


def test_absent() -> None:
    assert isinstance(RULE.check(steps().timeline(without=("os_calls",))), RuleNotApplicable)
    assert isinstance(RULE.check(steps(kernel="stencil(float*)").timeline()), RuleNotApplicable)
    python = steps(kernel="stencil(float*)")
    python.tables["processes"].append({"process": 1})  # called python3
    match_of(RULE, python.timeline())
