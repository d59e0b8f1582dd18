"""gil-contention: waits for the GIL on the launching thread."""

from __future__ import annotations

from typing import Any

import pytest

from gpusight.rules.engine import run_timeline_rules
from gpusight.rules.finding import Confidence
from gpusight.rules.registry import timeline_rules
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


def stretches(*before_us: float, kernel: str = KERNEL, number: int = 4) -> Capture:
    """Steps of launches, each after a stretch without calls, by a profiler without OS calls."""
    capture, at = Capture(), 0.0
    for step in range(number):
        begun = at
        for wait_us in before_us:
            at += wait_us
            capture.launch((at, at + 5), (at + 7, at + 27), kernel)
            at += 30
        capture.range(f"step_{step}", begun, at)
    return capture


def test_stretches_of_the_switch_interval_without_os_calls() -> None:
    """The step is 25 ms of waits, and one stall of another length that is not the lock."""
    timeline = stretches(5_060, 40, 5_110, 10_190, 20, 5_020, 1_200).timeline()
    verdict = match_of(RULE, timeline)
    assert evidence(verdict)["waits"] == 4
    assert verdict.title == "Launching thread waits for the GIL 25.5 ms/step"
    assert verdict.confidence is Confidence.LOW
    assert "switches threads" in verdict.fix
    assert saved_us(verdict, timeline) == pytest.approx(25_380, rel=0.01)
    results = run_timeline_rules(timeline, timeline_rules().values())
    assert results.findings[0].rule == "gil-contention"
    spans = RULE.locate(timeline, results.findings[0])
    assert spans is not None
    assert spans.height == 16


def test_where_most_stretches_are_waits_the_long_ones_are_many_of_them() -> None:
    """What releases the lock without a CUDA call, such as an optimizer's loop, waits as often."""
    timeline = stretches(*[5_060] * 5, 85_700).timeline()
    verdict = match_of(RULE, timeline)
    assert verdict.title == "Launching thread waits for the GIL 111 ms/step"
    assert saved_us(verdict, timeline) == pytest.approx(5 * 5_060 + 85_700, rel=0.01)
    loading = match_of(RULE, stretches(*[5_060] * 3, *[85_700] * 4).timeline())
    assert loading.title == "Launching thread waits for the GIL 15.2 ms/step"


def test_operators_show_where_the_lock_is_released() -> None:
    """Torch's operators without kernels: each returns to Python, and waits."""
    capture, at = Capture("torch-json"), 0.0
    for step in range(4):
        begun = at
        for _ in range(3):
            for _ in range(7):
                capture.event("cpu_ops", "aten::view", at, at + 4)
                at += 4 + 5_080
            capture.launch((at, at + 5), (at + 7, at + 27), KERNEL)
            at += 30
        capture.range(f"step_{step}", begun, at)
    verdict = match_of(RULE, capture.timeline())
    assert evidence(verdict)["waits"] == 21
    assert verdict.title == "Launching thread waits for the GIL 107 ms/step"


@pytest.mark.parametrize(
    "capture",
    [
        pytest.param(stretches(5_060, 40, 30), id="one in each step"),
        pytest.param(
            stretches(2_500, 3_700, 5_060, 7_900, 8_400, 6_200), id="stalls of any length"
        ),
        pytest.param(stretches(*[4_200] * 6), id="shorter than the switch interval"),
        pytest.param(stretches(*[25_300] * 6), id="too long for the lock"),
        pytest.param(stretches(*[5_060] * 6, kernel="stencil(float*)"), id="not Python"),
        pytest.param(stretches(*[40] * 6), id="none"),
    ],
)
def test_other_stretches_are_not_the_lock(capture: Capture) -> None:
    assert isinstance(RULE.check(capture.timeline()), RuleNotApplicable)


def test_absent() -> None:
    assert isinstance(RULE.check(stretches(40, 60).timeline()), RuleNotApplicable)
    assert isinstance(RULE.check(steps(kernel="stencil(float*)").timeline()), RuleNotApplicable)
    python = steps(kernel="stencil(float*)")
    python.tables["processes"].append({"process": 1})  # called python3
    match_of(RULE, python.timeline())
