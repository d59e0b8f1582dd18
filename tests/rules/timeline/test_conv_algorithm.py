"""conv-algorithm: convolutions that are lowered, or left on host_threads beside tensor cores."""

from __future__ import annotations

import pytest

from gpusight.rules.finding import Confidence
from gpusight.rules.rule import CLEAN, RuleMatch, RuleNotApplicable
from gpusight.rules.timeline.conv_algorithm import ConvAlgorithm
from tests.rules.timeline.gpu_traces import (
    ADD,
    CONV_FP32,
    CONV_TF32,
    FFT_CLIP,
    FFT_PAD,
    GEMM,
    GEMM_COMPLEX,
    IM2COL,
    TURN,
    of,
)
from tests.rules.timeline.rule_captures import Capture, evidence, match_of, opened, saved_us
from tests.shared import needs_shared

RULE = ConvAlgorithm()


def test_lanes_beside_tensor_cores() -> None:
    timeline = of([(CONV_TF32, 100.0), (CONV_FP32, 60.0), (ADD, 40.0)])
    verdict = match_of(RULE, timeline)
    assert evidence(verdict) == {
        "slow_ns": 60_000,
        "gpu_share": pytest.approx(0.3),
        "kernels": 1,
        "convolution_ns": 160_000,
    }
    assert saved_us(verdict, timeline) == pytest.approx(30, abs=1)
    assert verdict.confidence is Confidence.LOW
    assert "cudnn.benchmark" in verdict.code
    assert "`conv implicit gemm f32`" in verdict.fix


def test_lowered_to_a_matrix() -> None:
    assert evidence(match_of(RULE, of([(IM2COL, 50.0), (GEMM, 50.0)])))["slow_ns"] == 50_000


TENSOR = (CONV_TF32, 100.0)
BY_FFT = [(FFT_PAD, 20.0), (GEMM_COMPLEX, 50.0), (FFT_CLIP, 30.0)]


@pytest.mark.parametrize(
    ("kernels", "slow_us"),
    [
        pytest.param([TENSOR, *BY_FFT], 100, id="transforms and the product between them"),
        pytest.param([TENSOR, (TURN, 20.0), (CONV_FP32, 60.0), (TURN, 30.0)], 110, id="turned"),
        pytest.param([(CONV_FP32, 60.0), TENSOR, (TURN, 20.0)], 60, id="turned for another"),
    ],
)
def test_slow_beside_tensor_cores(kernels: list[tuple[str, float]], slow_us: float) -> None:
    # One step: the last kernel of a step is not beside the first of the next.
    numbers = evidence(match_of(RULE, of(kernels, steps=1)))
    assert numbers["slow_ns"] == slow_us * 1_000


@pytest.mark.parametrize(
    "kernels",
    [
        pytest.param([(CONV_TF32, 100.0), (ADD, 40.0)], id="tensor cores"),
        pytest.param([*BY_FFT, (CONV_FP32, 9.0)], id="FFT in FP32 throughout: it may be the best"),
        pytest.param([(GEMM_COMPLEX, 50.0), TENSOR], id="complex products without an FFT"),
        pytest.param(
            [(CONV_FP32, 100.0), (ADD, 40.0)], id="FP32 throughout: no choice of an algorithm"
        ),
        pytest.param([(CONV_TF32, 100.0), (CONV_FP32, 4.0)], id="an odd layer"),
        pytest.param([(GEMM, 100.0)], id="no convolutions"),
    ],
)
def test_clean(kernels: list[tuple[str, float]]) -> None:
    assert RULE.check(of(kernels)) is CLEAN


def test_absent_without_kernels() -> None:
    capture = Capture()
    capture.copy((0, 5), (6, 9))
    assert isinstance(RULE.check(capture.timeline()), RuleNotApplicable)


@needs_shared
@pytest.mark.parametrize("name", ["conv", "healthy", "gpt_small_train"])
def test_not_planted(name: str) -> None:
    assert not isinstance(RULE.check(opened(f"nsys/{name}.sqlite")), RuleMatch)
