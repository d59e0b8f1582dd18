"""fp32-no-tensor-cores: products on host_threads, what TF32 gives, and where it gives nothing."""

from __future__ import annotations

import json

import pytest

from gpusight.hardware.gpu_lookup import find_gpu
from gpusight.rules.patterns.fp32_gemms import gemms_on_cuda_cores, targets
from gpusight.rules.rule import CLEAN, RuleNotApplicable
from gpusight.rules.timeline.fp32_no_tensor_cores import Fp32NoTensorCores
from gpusight.rules.timeline.unfused_attention import UnfusedAttention
from gpusight.rules.timeline.unfused_optimizer import UnfusedOptimizer
from tests.rules.timeline.gpu_traces import (
    ADD,
    CONV_FP32,
    CONV_TF32,
    GEMM,
    GEMM_TF32,
    GEMV,
    MUL,
    SOFTMAX,
    of,
    program,
)
from tests.rules.timeline.rule_captures import Capture, evidence, match_of, opened, saved_us
from tests.shared import needs_shared

RULE = Fp32NoTensorCores()
PRODUCTS = [(GEMM, 200.0), (ADD, 20.0), (GEMM, 100.0)]


def test_found() -> None:
    timeline = of(PRODUCTS)  # on an H200: 67 TFLOP/s in FP32, 494 in TF32
    verdict = match_of(RULE, timeline)
    numbers = evidence(verdict)
    assert numbers["fp32_ns"] == 300_000
    assert numbers["gpu_share"] == pytest.approx(300 / 320)
    assert numbers["kernels"] == 2
    assert numbers["ratio"] == pytest.approx(7.4, abs=0.1)
    # Each takes a part of its time, and 4 us.
    left = 300 / numbers["ratio"] + 2 * 4
    assert saved_us(verdict, timeline) == pytest.approx(300 - left, abs=1)
    assert numbers["saved_tf32_ns"] == pytest.approx((300 - left) * 1_000, abs=1_000)
    assert 'set_float32_matmul_precision("high")' in verdict.code
    assert verdict.title == "FP32 GEMMs not on Tensor Cores (94% of kernel time)"


def test_autocast_launches_casts() -> None:
    numbers = evidence(match_of(RULE, of(PRODUCTS)))
    # BF16 is faster, but each product brings two casts of 5 us and 4 us of host time.
    left = 300 / (2 * numbers["ratio"]) + 2 * 4 + 4 * 5
    assert numbers["saved_bf16_ns"] == pytest.approx((300 - left) * 1_000, rel=0.05)


def test_little_where_the_host_is_the_limit() -> None:
    timeline = of([(GEMM, 30.0)] * 10, host_us=200.0)
    verdict = match_of(RULE, timeline)
    assert "It saves little now" in verdict.fix
    assert saved_us(verdict, timeline) < 30
    assert RULE.min_share is None  # still a finding


def test_small_products_keep_their_fixed_time() -> None:
    timeline = of([(GEMM, 3.0)] * 10)
    assert saved_us(match_of(RULE, timeline), timeline) == pytest.approx(0, abs=1)


@pytest.mark.parametrize(
    ("gpu", "formats"),
    [
        ("H200", ["tf32", "bf16"]),
        ("A100", ["tf32", "bf16"]),
        ("V100", ["fp16"]),
        ("RTX 4090", ["bf16"]),  # TF32 is no faster than FP32 on GeForce
        ("GTX 1080", []),
    ],
)
def test_targets(gpu: str, formats: list[str]) -> None:
    known = find_gpu(gpu)
    assert known is not None
    assert [t.precision for t in targets(known)] == formats


def test_advice_names_only_formats_of_the_gpu() -> None:
    capture = program(PRODUCTS)
    for row in capture.tables["devices"]:
        row["name"] = "Tesla V100-SXM2-16GB"
    verdict = match_of(RULE, capture.timeline())
    assert verdict.verify.startswith("`gpusight kernels` shows FP16 kernels.")
    assert "float16" in verdict.code
    for absent in ("TF32", "BF16", "bfloat16"):
        assert absent not in f"{verdict.verify} {verdict.code} {verdict.fix} {verdict.why}"


def test_a_format_that_slows_the_step_down_saves_nothing() -> None:
    capture = program([(GEMM, 6.0)] * 20)  # casts cost more than Tensor Cores save
    for row in capture.tables["devices"]:
        row["name"] = "Tesla V100-SXM2-16GB"
    verdict = match_of(RULE, capture.timeline())
    numbers = evidence(verdict)
    assert "saved_fp16_ns" not in numbers
    assert numbers["added_fp16_ns"] > 0
    assert "would slow the step" in verdict.fix
    assert "Apply it after the fixes above it in the plan" in verdict.fix


@pytest.mark.parametrize(
    "kernels",
    [
        pytest.param([(GEMM_TF32, 100.0)], id="tensor cores"),
        pytest.param([(GEMV, 100.0), (ADD, 5.0)], id="a product with a vector waits for memory"),
        pytest.param([(GEMM, 4.0), (ADD, 100.0)], id="too little time"),
        pytest.param([(CONV_TF32, 80.0), (CONV_FP32, 20.0)], id="another algorithm, not a format"),
    ],
)
def test_clean(kernels: list[tuple[str, float]]) -> None:
    assert RULE.check(of(kernels)) is CLEAN


def test_convolutions_where_none_uses_tensor_cores() -> None:
    assert evidence(match_of(RULE, of([(CONV_FP32, 80.0), (ADD, 20.0)])))["gpu_share"] == 0.8


@pytest.mark.parametrize(
    ("rows", "is_found"),
    [
        pytest.param(4_096, True, id="4096x1024 by 1024x1024: 86 us at the peak"),
        pytest.param(64, True, id="64 rows: slow, but not for the memory traffic"),
        pytest.param(8, False, id="8 rows: reads the weights, hardly computes"),
    ],
)
def test_shapes_tell_what_waits_for_memory(rows: int, *, is_found: bool) -> None:
    capture = program([(GEMM, 200.0), (ADD, 20.0)])
    for row in capture.tables["api_calls"]:
        capture.tables["cpu_ops"].append(
            {
                "name": "aten::mm",
                "start_ns": row["start_ns"],
                "end_ns": row["end_ns"],
                "shapes": json.dumps([[rows, 1024], [1024, 1024]]),
            }
        )
    assert (RULE.check(capture.timeline()) is not CLEAN) == is_found


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Some GPU", "the peak FLOP/s of the GPU are unknown"),
        ("NVIDIA GeForce GTX 1080", "GTX 1080 has no faster Tensor Cores"),
    ],
)
def test_absent(name: str, reason: str) -> None:
    assert RULE.check(of(PRODUCTS, name=name)) == RuleNotApplicable(reason)


def test_absent_where_names_do_not_tell() -> None:
    verdict = RULE.check(of([("matmul_naive(float*, float*, float*, int)", 100.0), (ADD, 5.0)]))
    assert isinstance(verdict, RuleNotApplicable)
    assert "names" in verdict.reason


def test_absent_without_kernels() -> None:
    capture = Capture()
    capture.copy((0, 5), (6, 9))
    assert isinstance(RULE.check(capture.timeline()), RuleNotApplicable)


def test_fusing_and_tensor_cores_compose_in_any_order() -> None:
    timeline = of([(GEMM, 100.0), (MUL, 20.0), (SOFTMAX, 20.0), (GEMM, 100.0)])
    faster = match_of(RULE, timeline).change
    fused = match_of(UnfusedAttention(), timeline).change
    one, other = (
        timeline.replay.run(*faster, *fused).total_ns,
        timeline.replay.run(*fused, *faster).total_ns,
    )
    assert one == pytest.approx(other, rel=0.02)
    assert one < min(timeline.replay.run(*c).total_ns for c in (faster, fused))


@needs_shared
@pytest.mark.parametrize(
    ("name", "before_ms", "after_ms"),
    [  # what the prototype's replay gave for the same captures
        ("gpt_small_forward", 14.3, 8.4),
        ("gpt_small_fwdbwd", 42.5, 34.9),
        ("gpt_small_train", 46.9, 45.9),
    ],
)
def test_planted(name: str, before_ms: float, after_ms: float) -> None:
    timeline = opened(f"nsys/{name}.sqlite")
    saved = saved_us(match_of(RULE, timeline), timeline) / 1_000
    assert timeline.length_ns / timeline.per_step / 1e6 == pytest.approx(before_ms, abs=0.1)
    assert before_ms - saved == pytest.approx(after_ms, abs=0.2)


@needs_shared
def test_a_real_pair() -> None:
    """BF16 autocast and a fused optimizer, predicted from the capture without: 42.7 ms measured."""
    timeline = opened("nsys/gpt_small_train.sqlite")
    gpu = timeline.gpu
    assert gpu is not None
    half = targets(gpu)[1].change(timeline, gemms_on_cuda_cores(timeline.kernels))
    fused = match_of(UnfusedOptimizer(), timeline).change
    predicted_ms = timeline.replay.run(*half, *fused).total_ns / timeline.per_step / 1e6
    assert predicted_ms == pytest.approx(42.7, rel=0.15)


@needs_shared
@pytest.mark.parametrize("name", ["healthy", "conv", "gpt_small_train_bf16_fused", "tiny"])
def test_not_planted(name: str) -> None:
    assert RULE.check(opened(f"nsys/{name}.sqlite")) is CLEAN
