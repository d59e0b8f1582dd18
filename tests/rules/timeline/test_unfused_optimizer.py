"""unfused-optimizer: many passes over the parameters, in a loop or with foreach."""

from __future__ import annotations

import pytest

from gpusight.rules.rule import CLEAN, RuleNotApplicable
from gpusight.rules.timeline.unfused_optimizer import UnfusedOptimizer
from tests.rules.timeline.gpu_traces import (
    ADAM,
    ADD,
    FILL,
    FOREACH_ADD,
    FOREACH_ADDCDIV,
    FOREACH_MUL,
    FUSED_ADAM,
    GEMM,
    MUL,
    of,
    program,
)
from tests.rules.timeline.rule_captures import Capture, evidence, match_of, opened, saved_us
from tests.shared import needs_shared

RULE = UnfusedOptimizer()
MODEL = (GEMM, 100.0)
LOOP = [(name, 10.0) for name in ADAM * 4]
"""AdamW in a loop over 4 tensors."""


def test_a_loop_is_told_by_its_arithmetic() -> None:
    timeline = of([MODEL, *LOOP])
    verdict = match_of(RULE, timeline)
    assert evidence(verdict) == {
        "optimizer_kernels": 32,
        "kernels_fused": 1,
        "optimizer_ns": 320_000,
        "gpu_share": pytest.approx(320 / 420),
    }
    assert verdict.title == "Unfused optimizer: 32 kernels/step (1 if fused)"
    # One pass takes 0.35 of the 320 us; 31 gaps of 1 us go as well.
    assert saved_us(verdict, timeline) == pytest.approx(320 * 0.65 + 31, abs=1)


def test_the_host_still_goes_through_all_tensors() -> None:
    # Bound by the host: 32 launches of 20 us. What stays is a launch, and as long for 4 tensors.
    timeline = of([MODEL, *((name, 1.0) for name, _ in LOOP)], host_us=20.0)
    left = timeline.length_ns / timeline.per_step / 1_000 - saved_us(
        match_of(RULE, timeline), timeline
    )
    assert left == pytest.approx(20 + 20 + 4 * 20, abs=20)


def test_foreach() -> None:
    # Two chunks of tensors, three passes: two kernels would do.
    passes = [(n, 10.0) for n in (FOREACH_MUL, FOREACH_ADD, FOREACH_ADDCDIV) for _ in range(2)]
    timeline = of([MODEL, *passes])
    verdict = match_of(RULE, timeline)
    assert evidence(verdict)["kernels_fused"] == 2
    assert saved_us(verdict, timeline) == pytest.approx(60 * 0.65 + 4, abs=1)


def test_the_phase_tells_a_loop_that_arithmetic_does_not() -> None:
    capture = program([MODEL, *[(MUL, 5.0), (ADD, 5.0)] * 5])
    for start in [r["start_ns"] for r in capture.tables["ranges"]]:
        capture.range("optimizer", start / 1_000 + 3.5, start / 1_000 + 48)
    verdict = match_of(RULE, capture.timeline())
    assert evidence(verdict)["optimizer_kernels"] == 10
    # Without averages: 0.6 of the time is left.
    assert saved_us(verdict, capture.timeline()) == pytest.approx(50 * 0.4 + 9, abs=1)


@pytest.mark.parametrize(
    ("name", "called", "code"),
    [
        ("Adam", "torch.optim.Adam", "torch.optim.Adam("),
        ("LBFGS", "torch.optim.LBFGS", "torch.compile(optimizer.step)"),
        ("Shampoo", "Shampoo", "torch.compile(optimizer.step)"),  # not in PyTorch
    ],
)
def test_the_optimizer_is_named(name: str, called: str, code: str) -> None:
    capture = program([MODEL, *LOOP])
    for r in list(capture.tables["ranges"]):
        capture.range(f"Optimizer.step#{name}.step", r["start_ns"] / 1_000 + 4, r["end_ns"] / 1_000)
    verdict = match_of(RULE, capture.timeline())
    assert code in verdict.code
    assert verdict.fix.startswith(f"{called} launches 32 kernels/step")


@pytest.mark.parametrize(
    "kernels",
    [
        pytest.param([MODEL, (FUSED_ADAM, 100.0)], id="fused"),
        pytest.param([MODEL, (FOREACH_ADD, 100.0)], id="one pass: plain SGD"),
        pytest.param([MODEL, *[(MUL, 5.0), (ADD, 5.0)] * 10], id="arithmetic of a model"),
        pytest.param([MODEL, *[(FILL, 5.0)] * 20], id="gradients cleared"),
    ],
)
def test_clean(kernels: list[tuple[str, float]]) -> None:
    assert RULE.check(of(kernels)) is CLEAN


def test_absent_without_kernels() -> None:
    capture = Capture()
    capture.copy((0, 5), (6, 9))
    assert isinstance(RULE.check(capture.timeline()), RuleNotApplicable)


@needs_shared
@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("nsys/gpt_small_train.sqlite", 1_000),
        ("torch/gpt_small_train.json.gz", 1_000),
        ("nsys/gpt_tiny_train_r1.sqlite", 360),
    ],
)
def test_planted(name: str, kernels: int) -> None:
    verdict = match_of(RULE, opened(name))
    assert verdict.title.startswith(f"Unfused optimizer: {kernels:,} kernels/step")


@needs_shared
def test_what_it_gives_on_a_real_capture() -> None:
    timeline = opened("nsys/gpt_small_train.sqlite")
    # 46.9 ms a step -> 40.5 in the prototype's replay.
    assert saved_us(match_of(RULE, timeline), timeline) == pytest.approx(6_300, abs=300)


@needs_shared
@pytest.mark.parametrize("name", ["gpt_small_train_bf16_fused", "conv", "healthy", "tiny"])
def test_not_planted(name: str) -> None:
    assert RULE.check(opened(f"nsys/{name}.sqlite")) is CLEAN
