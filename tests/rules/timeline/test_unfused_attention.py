"""unfused-attention: a softmax between two products, and what only looks like it."""

from __future__ import annotations

import pytest

from gpusight.rules.rule import CLEAN, RuleMatch, RuleNotApplicable
from gpusight.rules.timeline.fp32_no_tensor_cores import Fp32NoTensorCores
from gpusight.rules.timeline.unfused_attention import UnfusedAttention
from tests.rules.timeline.gpu_traces import (
    ADD,
    FLASH,
    GEMM,
    GEMM_BF16,
    ISNEGINF,
    LOG_SOFTMAX,
    MUL,
    NCCL,
    REDUCE,
    REDUCE_AND,
    SOFTMAX,
    SOFTMAX_BWD,
    SPLIT_K,
    TO_BF16,
    WHERE,
    of,
    program,
)
from tests.rules.timeline.rule_captures import Capture, evidence, match_of, opened, saved_us
from tests.shared import needs_shared

RULE = UnfusedAttention()
LINEAR = (GEMM, 100.0)
FORWARD = [(GEMM, 50.0), (MUL, 20.0), (SOFTMAX, 30.0), (GEMM, 40.0)]
PRODUCTS, GRADIENTS = [(GEMM, 50.0)] * 2, [(GEMM, 40.0)] * 2
BACKWARD = [*PRODUCTS, (MUL, 10.0), (SOFTMAX_BWD, 30.0), (MUL, 10.0), *GRADIENTS]


def test_forward() -> None:
    timeline = of([LINEAR, *FORWARD, (REDUCE, 5.0)])
    verdict = match_of(RULE, timeline)
    assert evidence(verdict) == {
        "attentions": 1,
        "kernels": 4,
        "attention_ns": 140_000,
        "between_ns": 50_000,
        "between_share": pytest.approx(50 / 245),
    }
    # The scale and the softmax go; that leaves three gaps of 1 us less, and one kernel of 90 us.
    assert saved_us(verdict, timeline) == pytest.approx(53, abs=1)
    assert "scaled_dot_product_attention" in verdict.code
    assert {w.name for w in verdict.where} == {"softmax fwd", "elementwise mul"}


def test_backward_has_two_products_on_each_side_and_computes_the_scores_again() -> None:
    timeline = of([LINEAR, (ADD, 3.0), *BACKWARD, (REDUCE, 5.0)])
    verdict = match_of(RULE, timeline)
    assert evidence(verdict)["kernels"] == 7
    # 180 us of products become 225; 50 us between them and six gaps go.
    assert saved_us(verdict, timeline) == pytest.approx(50 + 6 - 45, abs=1)


HALF = [(GEMM_BF16, 200.0), (SOFTMAX, 90.0), (GEMM_BF16, 200.0)]
SAFE = [(SOFTMAX, 30.0), (ISNEGINF, 10.0), (REDUCE_AND, 5.0), (WHERE, 20.0)]
FALLBACK = [(GEMM, 335.0), *SAFE, (GEMM, 335.0)]
END = (REDUCE, 5.0)
# H200: 989 TFLOP/s in BF16 for 67 in FP32.
TENSOR_US = 335 * 67 / 989 + 4


@pytest.mark.parametrize(
    ("kernels", "left"),
    [
        pytest.param([*HALF, END], 2 * (0.5 * 200 + 4), id="half precision waits for memory"),
        pytest.param([(GEMM_BF16, 6.0), *HALF[1:], END], 6 + 104, id="a short one stays"),
        pytest.param([*FALLBACK, END], 670, id="a safe softmax; FP32 throughout"),
        pytest.param([*FALLBACK, (TO_BF16, 2.0), END], 2 * TENSOR_US, id="it was half precision"),
        pytest.param(
            [*FALLBACK, (MUL, 2.0), (TO_BF16, 2.0), END], 2 * TENSOR_US, id="scaled before the cast"
        ),
        pytest.param([*FALLBACK, END, (TO_BF16, 2.0)], 670, id="another result is cast"),
    ],
)
def test_what_a_fused_kernel_takes(kernels: list[tuple[str, float]], left: float) -> None:
    timeline = of([LINEAR, *kernels], name="NVIDIA H200")
    verdict = match_of(RULE, timeline)
    numbers = evidence(verdict)
    saved = numbers["attention_ns"] / 1_000 - left + numbers["kernels"] - 1
    assert saved_us(verdict, timeline) == pytest.approx(saved, abs=2)
    assert ("falls back" in verdict.fix) == (left == 2 * TENSOR_US)


def test_fused_and_on_tensor_cores_is_counted_once() -> None:
    timeline = of([LINEAR, *FALLBACK, (TO_BF16, 2.0), END], name="NVIDIA H200")
    faster = match_of(Fp32NoTensorCores(), timeline).change
    both = timeline.replay.run(*faster, *match_of(RULE, timeline).change)
    # The fused kernel takes what it takes alone; the linear layer gets TF32, 7.4 times the rate.
    alone = timeline.replay.run(*match_of(RULE, timeline).change)
    linear_us = 100 - (100 * 67 / 495 + 4)
    saved_us_more = (both.saved_ns - alone.saved_ns) / 1_000 / timeline.per_step
    assert saved_us_more == pytest.approx(linear_us, abs=1)


def test_what_finishes_a_product_is_part_of_it() -> None:
    timeline = of([LINEAR, *FORWARD, (SPLIT_K, 4.0), (REDUCE, 5.0)])
    assert evidence(match_of(RULE, timeline))["kernels"] == 5


def test_a_copy_within_the_gpu_is_part_of_masking() -> None:
    capture = program(FORWARD[:1])
    for step in range(3):
        at = capture.tables["ranges"][step]["end_ns"] / 1_000 - 5
        capture.copy((at, at + 1), (at + 1, at + 2), kind="Device-to-Device")
    assert RULE.check(capture.timeline()) is CLEAN  # alone, it is none

    capture, at = Capture(), 0.0
    for step in range(3):
        begun = at
        for name, us in FORWARD[:2]:
            capture.launch((at, at + 3), (at + 5, at + 5 + us), name)
            at += us + 10
        capture.copy((at, at + 3), (at + 5, at + 25), kind="Device-to-Device", dst_kind="Device")
        at += 30
        for name, us in FORWARD[2:]:
            capture.launch((at, at + 3), (at + 5, at + 5 + us), name)
            at += us + 10
        capture.range(f"step_{step}", begun, at)
    assert evidence(match_of(RULE, capture.timeline()))["between_ns"] == 70_000


@pytest.mark.parametrize(
    "kernels",
    [
        pytest.param([LINEAR, (FLASH, 200.0), LINEAR], id="fused already"),
        pytest.param([LINEAR, (LOG_SOFTMAX, 30.0), LINEAR], id="the softmax of a loss"),
        pytest.param([LINEAR, (SOFTMAX, 30.0), (REDUCE, 9.0), LINEAR], id="something else between"),
        pytest.param([LINEAR, (SOFTMAX, 30.0), (NCCL, 9.0), LINEAR], id="a collective between"),
        pytest.param([LINEAR, (SOFTMAX, 30.0)], id="nothing after the softmax"),
        pytest.param([(GEMM, 5_000.0), (SOFTMAX, 30.0), LINEAR], id="too little time"),
    ],
)
def test_clean(kernels: list[tuple[str, float]]) -> None:
    assert RULE.check(of(kernels, steps=1)) is CLEAN


def test_a_product_with_weights_is_no_attention() -> None:
    # A mixture of experts: linear, softmax, and the experts' product.
    kernels = [(GEMM, 50.0), (SOFTMAX, 30.0), (GEMM, 40.0), (REDUCE, 5.0)]
    capture = program(kernels, steps=3)
    for row in capture.tables["api_calls"]:
        span = {"start_ns": row["start_ns"], "end_ns": row["end_ns"]}
        capture.tables["cpu_ops"].append({"name": "aten::addmm", **span})
    assert RULE.check(capture.timeline()) is CLEAN


def test_a_fused_call_that_falls_back_is_told_why() -> None:
    capture = program([LINEAR, *FORWARD, (REDUCE, 5.0)])
    capture.event("cpu_ops", "aten::_scaled_dot_product_attention_math", 0, 1)
    assert "falls back" in match_of(RULE, capture.timeline()).fix


def test_absent_without_kernels() -> None:
    capture = Capture()
    capture.copy((0, 5), (6, 9))
    assert isinstance(RULE.check(capture.timeline()), RuleNotApplicable)


@needs_shared
@pytest.mark.parametrize(
    ("name", "attentions"),
    [
        ("nsys/gpt_small_forward.sqlite", 12),
        ("nsys/gpt_small_fwdbwd.sqlite", 24),
        ("nsys/gpt_small_train_bf16_fused.sqlite", 24),
        ("torch/gpt_small_forward.json.gz", 12),
    ],
)
def test_planted(name: str, attentions: int) -> None:
    assert evidence(match_of(RULE, opened(name)))["attentions"] == attentions


@needs_shared
@pytest.mark.parametrize("name", ["conv", "healthy", "tiny", "item", "dataload"])
def test_not_planted(name: str) -> None:
    assert not isinstance(RULE.check(opened(f"nsys/{name}.sqlite")), RuleMatch)
