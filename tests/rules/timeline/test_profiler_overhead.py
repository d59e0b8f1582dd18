"""profiler-overhead: time that would not be there without the profiler."""

from __future__ import annotations

import pytest

from gpusight.rules.finding import Confidence
from gpusight.rules.rule import CLEAN, RuleNotApplicable
from gpusight.rules.timeline.profiler_overhead import ProfilerOverhead
from tests.rules.timeline.rule_captures import Capture, evidence, found, judged, opened, saved_us
from tests.shared import needs_shared

RULE = ProfilerOverhead()


def loop(source: str = "nsys-sqlite", operators: int = 0) -> Capture:
    """Four steps of 500 us: 300 us of the host, a launch, a kernel of 100 us, a wait for it."""
    capture = Capture(source)
    for step in range(4):
        at = step * 500
        capture.range(f"step_{step}", at, at + 490)
        for number in range(operators):
            capture.event("cpu_ops", "aten::add", at + 5 + number * 3, at + 7 + number * 3)
        capture.launch((at + 310, at + 320), (at + 322, at + 422))
        capture.call("cudaDeviceSynchronize", at + 325, at + 425)
    return capture


def test_recorded_work_of_the_profiler_before_and_inside_calls() -> None:
    capture = loop()
    for step in range(4):
        at = step * 500
        capture.event("overheads", "CUPTI Buffer flush", at + 100, at + 160)
        capture.event("overheads", "CUPTI Buffer flush", at + 312, at + 317)
    timeline = capture.timeline()
    verdict = found(RULE, timeline)
    assert evidence(verdict)["recorded_ns"] == 65_000
    assert verdict.confidence is Confidence.HIGH
    assert [(w.name, w.ns, w.count) for w in verdict.where] == [("CUPTI Buffer flush", 260_000, 8)]
    assert saved_us(verdict, timeline) == 65


def test_operators_that_torch_profiler_recorded() -> None:
    timeline = loop("torch-json", operators=50).timeline()
    verdict = found(RULE, timeline)
    assert evidence(verdict)["operators_ns"] == 50_000
    assert verdict.confidence is Confidence.MEDIUM
    assert saved_us(verdict, timeline) == 50


@pytest.mark.parametrize(
    "capture",
    [
        pytest.param(loop(), id="nothing recorded"),
        pytest.param(loop("torch-json", operators=2), id="few operators"),
        pytest.param(loop("nsys-sqlite", operators=50), id="operators of another tool"),
    ],
)
def test_clean(capture: Capture) -> None:
    assert RULE.check(capture.timeline()) is CLEAN


def test_without_calls_it_cannot_be_judged() -> None:
    kernels = [{"start_ns": 1_000 * i, "end_ns": 1_000 * i + 500, "name": "k"} for i in range(9)]
    assert isinstance(RULE.check(judged(kernels=kernels)), RuleNotApplicable)


@needs_shared
@pytest.mark.parametrize("capture", ["healthy", "dataload", "conv", "graph", "pageable"])
def test_clean_captures(capture: str) -> None:
    assert RULE.check(opened(f"nsys/{capture}.sqlite")) is CLEAN


@needs_shared
def test_a_torch_trace_of_a_program_with_many_operators() -> None:
    timeline = opened("torch/gpt_small_train_bf16_fused.json.gz")
    verdict = found(RULE, timeline)
    assert evidence(verdict)["share"] == pytest.approx(0.10, abs=0.03)
