"""fp64-math: FP64 kernels, what FP32 and TF32 give, and who is assumed to need FP64."""

from __future__ import annotations

import pytest

from gpusight.rules.finding import Confidence
from gpusight.rules.rule import CLEAN, RuleNotApplicable
from gpusight.rules.timeline.fp64_math import Fp64Math
from tests.rules.timeline.gpu_traces import ADD, GEMM, of
from tests.rules.timeline.rule_captures import evidence, match_of, saved_us

RULE = Fp64Math()
DGEMM = "cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1"
ADD_FP64 = ADD.replace("float", "double")
OWN = "void stencil<double>(double *, const double *, int)"


def test_gemms_by_the_ratio_of_peaks_and_others_by_their_bytes() -> None:
    timeline = of([(DGEMM, 400.0), (ADD_FP64, 100.0), (ADD, 50.0)])
    verdict = match_of(RULE, timeline)
    numbers = evidence(verdict)
    assert numbers["fp64_ns"] == 500_000
    assert numbers["fp64_gemm_ns"] == 400_000
    assert numbers["gpu_share"] == pytest.approx(500 / 550)
    assert verdict.title == "FP64 GEMMs (91% of GPU time)"
    # H200: 67 TFLOP/s in FP64 on Tensor Cores, 67 in FP32, 494 in TF32; half the bytes.
    assert saved_us(verdict, timeline) == pytest.approx(400 * (1 - 67 / 494) - 4 + 50, abs=3)
    assert numbers["saved_fp32_ns"] == pytest.approx(50_000, abs=3_000)
    assert "model.float()" in verdict.code
    assert "TF32 saves" in verdict.fix
    assert verdict.confidence is Confidence.MEDIUM


def test_a_small_kernel_keeps_its_time() -> None:
    timeline = of([(ADD_FP64, 2.0)] * 20, host_us=1.0)
    assert saved_us(match_of(RULE, timeline), timeline) == pytest.approx(0, abs=1)


@pytest.mark.parametrize(
    "kernels",
    [
        pytest.param([(GEMM, 100.0), (ADD, 10.0)], id="FP32"),
        pytest.param([(GEMM, 100.0), (ADD_FP64, 4.0)], id="too little time"),
        pytest.param([(OWN, 100.0)], id="no framework, on a GPU that is made for FP64"),
    ],
)
def test_clean(kernels: list[tuple[str, float]]) -> None:
    assert RULE.check(of(kernels)) is CLEAN


def test_without_a_framework_only_where_fp64_is_slow() -> None:
    verdict = match_of(RULE, of([(OWN, 100.0)], name="NVIDIA GeForce RTX 4090"))
    assert verdict.confidence is Confidence.LOW
    assert "1.5f" in verdict.code


def test_absent_where_peaks_are_unknown() -> None:
    verdict = RULE.check(of([(DGEMM, 100.0)], name="Some GPU"))
    assert verdict == RuleNotApplicable("the peak FLOP/s of the GPU are unknown")


def test_located_at_the_kernels() -> None:
    timeline = of([(DGEMM, 400.0), (ADD, 50.0)])
    spans = RULE.locate(timeline, None)  # type: ignore[arg-type]
    assert spans["weight_ns"].to_list() == [400_000] * 3
