"""alloc-churn: memory taken and given back in every step."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from gpusight.analysis.steps.step_window import step_window
from gpusight.analysis.steps.window_headline import StepWindow
from gpusight.rules.context import sample_steps
from gpusight.rules.engine import run_timeline_rules
from gpusight.rules.finding import Confidence
from gpusight.rules.rule import CLEAN, RuleMatch, RuleNotApplicable
from gpusight.rules.timeline.alloc_churn import AllocChurn
from gpusight.rules.timeline.layout_transpose import LayoutTranspose
from tests.rules.timeline.rule_captures import Capture, evidence, judged, match_of, opened, saved_us
from tests.shared import needs_shared
from tests.traces import build_trace

RULE = AllocChurn()


def loop(churning: range, steps: int = 6) -> Capture:
    """Steps of 500 us: in some of them 100 us of cudaMalloc before the kernel, then a free.

    cudaFree begins before the kernel is done, waits for it and works for 200 us.
    """
    capture = Capture()
    for step in range(steps):
        at = step * 500
        capture.range(f"step_{step}", at, at + 490)
        if step in churning:
            capture.call("cudaMalloc", at + 5, at + 105)
            capture.call("cudaFree", at + 120, at + 420)
        capture.launch((at + 110, at + 115), (at + 117, at + 217))
        capture.call("cudaDeviceSynchronize", at + 425, at + 430)
    return capture


def test_every_step() -> None:
    timeline = loop(range(6)).timeline()
    verdict = match_of(RULE, timeline)
    assert evidence(verdict) == {"calls": 2, "calls_ns": 400_000, "waited_ns": 100_000 - 3_000}
    assert [(w.kind, w.name, w.count) for w in verdict.where] == [
        ("call", "cudaFree", 6),
        ("call", "cudaMalloc", 6),
    ]
    # 100 us of cudaMalloc and 200 us of cudaFree; the kernel is waited for all the same.
    assert 290 < saved_us(verdict, timeline) < 310
    assert "cudaMallocAsync" in verdict.fix


@pytest.mark.parametrize(
    "churning",
    [
        pytest.param(range(0), id="none"),
        pytest.param(range(2), id="the first steps warm up"),
        pytest.param(range(3, 6), id="half of the steps"),
    ],
)
def test_clean(churning: range) -> None:
    assert RULE.check(loop(churning).timeline()) is CLEAN


@pytest.mark.parametrize(("pairs", "listed"), [(4, True), (1, False)])
def test_a_single_step_after_others(pairs: int, *, listed: bool) -> None:
    """One step is left after warm-up: many pairs are churn, one may be a cache that grows."""
    capture = Capture()
    for step, name in enumerate(("step_0", "step_1")):
        at = step * 5_000
        capture.range(name, at, at + 4_500)
        for pair in range(pairs):
            capture.call("cudaMalloc", at + 500 * pair, at + 500 * pair + 200)
        for pair in range(pairs):
            start = at + 2_200 + 500 * pair
            capture.call("cudaFree", start, start + 300)
        capture.launch((at + 2_050, at + 2_055), (at + 2_060, at + 2_160))
    trace = build_trace(None, **capture.tables)
    window = step_window(trace, steps="1")
    assert isinstance(window, StepWindow)
    timeline = sample_steps(trace, window)
    assert timeline.steps == 1
    if listed:
        verdict = match_of(RULE, timeline)
        assert verdict.title == "cudaMalloc/cudaFree: 8 per step"
        assert (verdict.measured_ns or 0) > 0.3 * timeline.length_ns
    else:
        assert RULE.check(timeline) is CLEAN


def test_pinned_memory_is_told_apart() -> None:
    capture = loop(range(6))
    for row in capture.tables["api_calls"]:
        row["name"] = row["name"].replace("cudaMalloc", "cudaHostAlloc")
    assert "Keep pinned buffers" in match_of(RULE, capture.timeline()).fix


def test_a_pool_that_answers_at_once_is_no_churn() -> None:
    capture = loop(range(6))
    for row in capture.tables["api_calls"]:
        if row["name"] in ("cudaMalloc", "cudaFree"):
            row |= {"name": f"{row['name']}Async", "end_ns": row["start_ns"] + 4_000}
    assert RULE.check(capture.timeline()) is CLEAN


def test_a_program_without_steps_that_begins_and_ends() -> None:
    """Memory is taken first and given back last: that is no churn."""
    capture = Capture()
    for number in range(5):
        capture.call("cudaMalloc", number * 20, number * 20 + 10)
    capture.launch((110, 115), (117, 217), "one")
    capture.launch((220, 225), (227, 327), "two")
    for number in range(5):
        capture.call("cudaFree", 400 + number * 20, 400 + number * 20 + 10)
    assert RULE.check(capture.timeline()) is CLEAN


def test_a_program_without_steps_that_takes_memory_again_and_again() -> None:
    capture = Capture()
    for number, at in enumerate(range(0, 3_000, 500)):
        capture.call("cudaMalloc", at, at + 100)
        capture.launch((at + 110, at + 115), (at + 117, at + 217 + number), f"kernel_{number}")
        capture.call("cudaFree", at + 120, at + 420)
    verdict = match_of(RULE, capture.timeline())
    # Counted from the first free to the last allocation: five of each.
    assert evidence(verdict)["calls"] == 10


def test_without_calls_it_cannot_be_judged() -> None:
    kernels = [{"start_ns": 1_000 * i, "end_ns": 1_000 * i + 500, "name": "k"} for i in range(9)]
    assert isinstance(RULE.check(judged(kernels=kernels)), RuleNotApplicable)


@needs_shared
@pytest.mark.parametrize(
    "capture", ["healthy", "tiny", "dataload", "conv", "graph", "gpt_small_train", "pageable"]
)
def test_clean_captures(capture: str) -> None:
    assert RULE.check(opened(f"nsys/{capture}.sqlite")) is CLEAN


def test_an_allocator_without_a_cache() -> None:
    capture = loop(range(6))
    capture.source = "torch-trace"
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING=1: unset it" in match_of(RULE, capture.timeline()).fix
    for step in range(6):
        for number in range(10):
            at = step * 500 + 431 + number * 5
            capture.launch((at, at + 4), (at + 5, at + 6))
    assert "Remove torch.cuda.empty_cache()" in match_of(RULE, capture.timeline()).fix


def test_allocations_come_before_a_fix_that_saves_about_as_much() -> None:
    """Nobody needs them: `torch.cuda.empty_cache()` in a loop goes before a layout is changed."""
    context = loop(range(6)).timeline()
    (alone,) = run_timeline_rules(context, [RULE]).findings
    layout = LayoutTranspose()
    more_ns = 1.1 * (alone.recoverable_ns or 0.0)
    match = RuleMatch("layout", (), Confidence.MEDIUM, "", recoverable_ns=more_ns)
    with patch.object(layout, "check", lambda _: match):
        results = run_timeline_rules(context, [layout, RULE])
    assert [finding.rule for finding in results.findings] == ["alloc-churn", "layout-transpose"]
