"""profiler-overhead: time that would not be there without the profiler."""

from __future__ import annotations

import pytest

from gpusight.rules.finding import Confidence
from gpusight.rules.rule import CLEAN, RuleNotApplicable
from gpusight.rules.timeline.profiler_overhead import ProfilerOverhead
from tests.rules.timeline.rule_captures import Capture, evidence, judged, match_of, opened, saved_us
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
    verdict = match_of(RULE, timeline)
    assert evidence(verdict)["recorded_ns"] == 65_000
    assert verdict.confidence is Confidence.HIGH
    assert [(w.name, w.ns, w.count) for w in verdict.where] == [("CUPTI Buffer flush", 260_000, 8)]
    assert saved_us(verdict, timeline) == 65


def test_what_torch_profiler_usually_takes_for_operators() -> None:
    timeline = judged({"tool": "torch.profiler"}, **loop(operators=12).tables)
    verdict = match_of(RULE, timeline)
    values = evidence(verdict)
    # In front of the launch: 12 operators of four events each, the call and the step's range.
    assert 35 * values["event_ns"] < 1_000 * saved_us(verdict, timeline) < 52 * values["event_ns"]
    assert values["low_ns"] < 1_000 * saved_us(verdict, timeline) < values["high_ns"]
    assert verdict.title.endswith("/step (estimate)")
    assert verdict.confidence is Confidence.LOW


@pytest.mark.parametrize("operators", [0, 50])
def test_a_tool_whose_costs_are_not_known_recorded_no_overhead(operators: int) -> None:
    assert RULE.check(loop(operators=operators).timeline()) is CLEAN


def test_without_calls_it_cannot_be_judged() -> None:
    kernels = [{"start_ns": 1_000 * i, "end_ns": 1_000 * i + 500, "name": "k"} for i in range(9)]
    assert isinstance(RULE.check(judged(kernels=kernels)), RuleNotApplicable)


@needs_shared
@pytest.mark.parametrize("capture", ["healthy", "pageable"])
def test_programs_that_the_host_does_not_limit_are_clean(capture: str) -> None:
    assert RULE.check(opened(f"nsys/{capture}.sqlite")) is CLEAN


@needs_shared
def test_a_torch_trace_of_a_program_with_many_operators() -> None:
    timeline = opened("torch/gpt_small_train_bf16_fused.json.gz")
    verdict = match_of(RULE, timeline)
    assert 0.25 < evidence(verdict)["share"] < 0.7
