"""warmup-in-window: first steps and starts that do not stand for the rest."""

from __future__ import annotations

import pytest

from gpusight.analysis.steps.step_window import step_window
from gpusight.analysis.steps.window_headline import StepWindow
from gpusight.rules.context import sample_steps
from gpusight.rules.rule import CLEAN, RuleNotApplicable
from gpusight.rules.timeline.warmup_in_window import WarmupInWindow
from tests.rules.timeline.rule_captures import Capture, evidence, match_of, opened
from tests.shared import needs_shared

RULE = WarmupInWindow()


def steps(*lengths_us: float, prepares: str | None = None) -> Capture:
    """Steps of these lengths, each with a kernel that ends with it; the first may prepare."""
    capture, at = Capture(), 0.0
    for number, length in enumerate(lengths_us):
        capture.range(f"step_{number}", at, at + length)
        if prepares and number == 0:
            capture.call(prepares, at + 1, at + 9)
        capture.launch((at + 10, at + 15), (at + 17, at + length - 5))
        capture.call("cudaDeviceSynchronize", at + 20, at + length - 2)
        at += length
    return capture


def test_the_first_of_two_steps() -> None:
    verdict = match_of(RULE, steps(900, 300).timeline())
    assert verdict.title == "Warm-up in the window: first step 900 µs, later 300 µs"
    assert verdict.recoverable_ns == 600_000
    assert verdict.change == ()
    assert [(w.kind, w.name) for w in verdict.where] == [("step", "step_0")]


def test_a_step_that_loads_code_need_not_be_much_longer() -> None:
    assert RULE.check(steps(400, 300).timeline()) is CLEAN
    verdict = match_of(RULE, steps(400, 300, prepares="cuModuleLoadData").timeline())
    assert verdict.recoverable_ns == 100_000


def test_the_time_of_several_first_steps_is_their_mean() -> None:
    verdict = match_of(RULE, steps(5_000, 3_000, 300, 300, 300).timeline())
    assert verdict.title.endswith("warm-up: mean of first 2 steps 4.00 ms, later 300 µs")
    assert evidence(verdict)["first_ns"] == 4_000_000


@pytest.mark.parametrize(
    "capture",
    [
        pytest.param(steps(300, 300, 310), id="alike"),
        pytest.param(steps(300, 900), id="the last one is long"),
        pytest.param(steps(900, 300, 300, 300, 300), id="left out already"),
    ],
)
def test_clean(capture: Capture) -> None:
    assert RULE.check(capture.timeline()) is CLEAN


def ahead(*kernels_us: float) -> Capture:
    """Steps that never wait: each launches one kernel in 50 us and is done long before it is."""
    capture, at, busy = Capture(), 0.0, 20.0
    for number, kernel in enumerate(kernels_us):
        capture.range(f"step_{number}", at, at + 50)
        capture.launch((at + 10, at + 15), (busy, busy + kernel))
        at, busy = at + 50, busy + kernel + 1
    return capture


@pytest.mark.parametrize(
    "kernels_us",
    [
        pytest.param((300, 300, 300, 300, 300), id="no step is left out"),
        pytest.param((700, 300, 300, 300, 300), id="the first is left out, its work runs on"),
    ],
)
def test_work_that_the_step_before_left_is_not_the_first_steps(
    kernels_us: tuple[float, ...],
) -> None:
    assert RULE.check(ahead(*kernels_us).timeline()) is CLEAN


def test_a_capture_that_is_mostly_warm_up() -> None:
    """5 ms of 6.2 ms: left out of the window, so nothing is to be won there, but told."""
    timeline = steps(5_000, 300, 300, 300, 300).timeline()
    verdict = match_of(RULE, timeline)
    assert [step.name for step in timeline.focus.left_out] == ["step_0"]
    assert verdict.title == "Capture is mostly warm-up: first step 5.00 ms, later 300 µs"
    assert verdict.recoverable_ns is None
    assert [(w.name, w.ns) for w in verdict.where] == [("step_0", 5_000_000)]


def program(start_us: float, work_us: float, loading_us: float) -> Capture:
    """A program without steps: a start with a call that loads code, then one kernel."""
    capture = Capture()
    capture.call("cuInit", 0, 1)
    capture.call("cuModuleLoadData", 5, 5 + loading_us)
    capture.launch((start_us - 10, start_us - 5), (start_us, start_us + work_us))
    return capture


def test_the_start_of_a_program() -> None:
    trace = program(2_000, 8_000, 900).timeline().trace
    whole = step_window(trace, warmup=True)
    assert isinstance(whole, StepWindow)
    verdict = match_of(RULE, sample_steps(trace, whole))
    assert verdict.title == "Program start in the window: 2.00 ms (20.0%)"
    assert verdict.recoverable_ns == 2_000_000
    assert evidence(verdict)["preparing_ns"] == 901_000
    assert "--window 1.990ms-" in verdict.fix
    assert verdict.where[0].name == "cuModuleLoadData"


@pytest.mark.parametrize(
    "capture",
    [
        pytest.param(program(2_000, 80_000, 900), id="a small part"),
        pytest.param(program(500, 2_000, 300), id="the way to the first launch"),
        pytest.param(program(2_000, 8_000, 20), id="host work, nothing is loaded"),
    ],
)
def test_clean_starts(capture: Capture) -> None:
    assert RULE.check(capture.timeline()) is CLEAN


def test_one_step_cannot_be_judged() -> None:
    capture = Capture("torch-json")
    capture.range("ProfilerStep#3", 0, 300)
    capture.launch((10, 15), (17, 290))
    assert isinstance(RULE.check(capture.timeline()), RuleNotApplicable)


@needs_shared
@pytest.mark.parametrize(
    "capture", ["nsys/healthy.sqlite", "torch/healthy.json.gz", "nsys/gpt_small_train.sqlite"]
)
def test_clean_captures(capture: str) -> None:
    assert RULE.check(opened(capture)) is CLEAN
