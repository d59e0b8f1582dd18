"""elementwise-chain: pointwise kernels in a row, and what breaks a chain."""

from __future__ import annotations

import pytest

from gpusight.rules.rule import CLEAN, RuleNotApplicable
from gpusight.rules.timeline.elementwise_chain import ElementwiseChain
from tests.rules.timeline.gpu_traces import (
    ADAM,
    ADD,
    DIV,
    FILL,
    GEMM,
    MUL,
    REDUCE,
    SOFTMAX,
    SQRT,
    SUB,
    TO_BF16,
    TO_FP32,
    TRITON,
    of,
    program,
)
from tests.rules.timeline.rule_captures import Capture, evidence, match_of, opened, saved_us
from tests.shared import needs_shared

RULE = ElementwiseChain()
MODEL = (GEMM, 100.0)
BY_COLUMN = REDUCE.replace("<512, 1,", "<128, 4,")


def test_found() -> None:
    timeline = of([MODEL, (MUL, 20.0), (ADD, 30.0), (SQRT, 20.0), (BY_COLUMN, 5.0), (ADD, 9.0)])
    verdict = match_of(RULE, timeline)
    assert evidence(verdict) == {
        "chains": 1,
        "kernels": 3,
        "chain_ns": 70_000,
        "gpu_share": pytest.approx(70 / 184),
    }
    assert verdict.title == "3 unfused pointwise kernels per step (1 if fused)"
    # The longest stays: 40 us less, and two gaps of 1 us.
    assert saved_us(verdict, timeline) == pytest.approx(42, abs=1)
    assert verdict.where[-1].name == "mul → add → sqrt"


BATCH_NORM = "void cudnn::bn_fw_inf_1C11_kernel_NCHW<float, float, true, 1>(float, float)"


def test_batch_norm_in_evaluation_mode_is_a_scale_and_an_offset() -> None:
    """With the activation after it a chain of two; two other pointwise kernels are none."""
    verdict = match_of(RULE, of([MODEL, (BATCH_NORM, 30.0), (ADD, 20.0), (REDUCE, 5.0)]))
    assert evidence(verdict)["kernels"] == 2
    assert "fuse_conv_bn_eval" in verdict.fix
    assert RULE.check(of([MODEL, (MUL, 30.0), (ADD, 20.0), (REDUCE, 5.0)])) is CLEAN
    assert RULE.check(of([MODEL, (BATCH_NORM, 30.0), MODEL, (REDUCE, 5.0)])) is CLEAN


WIDE = [(MUL, 60.0), (ADD, 90.0)]


@pytest.mark.parametrize(
    ("kernels", "left"),
    [
        pytest.param([(TO_FP32, 45.0), *WIDE, (TO_BF16, 45.0)], 45, id="FP32 between casts"),
        pytest.param([(TO_FP32, 90.0), *WIDE, (TO_BF16, 45.0)], 60, id="a cast is the longest"),
        pytest.param([(TO_FP32, 45.0), *WIDE, (SQRT, 20.0)], 90, id="the result is FP32"),
        pytest.param([(MUL, 9.0), *WIDE, (TO_BF16, 45.0)], 90, id="the input is FP32"),
        pytest.param([(TO_BF16, 45.0), *WIDE, (TO_FP32, 45.0)], 90, id="FP32 outside the casts"),
        pytest.param(
            [*WIDE, (TO_FP32, 45.0), (MUL, 60.0), (TO_BF16, 45.0)], 90, id="FP32 before the casts"
        ),
    ],
)
def test_half_precision_outside_is_half_the_traffic(
    kernels: list[tuple[str, float]], left: float
) -> None:
    timeline = of([MODEL, *kernels, (REDUCE, 5.0)])
    gaps = len(kernels) - 1
    saved = sum(us for _, us in kernels) - left + gaps
    assert saved_us(match_of(RULE, timeline), timeline) == pytest.approx(saved, abs=1)


def with_tensors(name: str, tensors: int) -> str:
    """Name a kernel as PyTorch does, with the number of tensors that it reads and writes."""
    return name.replace(">(int)", f", std::array<char*, {tensors}ul>>(int)")


def test_other_operands_are_still_read() -> None:
    """Reads 2 of 3 tensors, then 1 of 3, and 1 of 3 and writes 1; 2 us of each are fixed."""
    kernels = [(with_tensors(name, 3), 32.0) for name in (MUL, ADD, MUL)]
    timeline = of([MODEL, *kernels, (REDUCE, 5.0)])
    left = 2 + 30 * (2 / 3 + 1 / 3 + 2 / 3)
    saved = 3 * 32 - left + 2  # and two gaps
    assert saved_us(match_of(RULE, timeline), timeline) == pytest.approx(saved, abs=1)


NORMALIZATION = [
    *((REDUCE, 20.0), (SUB, 40.0), (MUL, 40.0), (REDUCE, 20.0), (SUB, 40.0)),
    *((ADD, 2.0), (SQRT, 2.0), (DIV, 40.0), (MUL, 40.0), (ADD, 40.0)),
]
"""LayerNorm as a formula: mean, deviation, square, mean, and all that follows; two kernels on the
means."""


def normalization(*, small: int) -> Capture:
    """Write the formula on tensors of 1,000 blocks, with results of rows in `small` blocks."""
    capture = program([MODEL, *NORMALIZATION])
    for row in capture.tables["kernels"]:
        if row["end_ns"] - row["start_ns"] == 2_000:
            row["grid_x"] = small
    return capture


def test_a_normalization_by_formula_is_one_kernel_besides_its_reductions() -> None:
    timeline = normalization(small=4).timeline()
    verdict = match_of(RULE, timeline)
    assert verdict.title == "8 unfused pointwise kernels per step (1 if fused)"
    # 6 passes of 40 us and 2 of 2 us become one of 40 us; 7 gaps of 1 us go too.
    assert saved_us(verdict, timeline) == pytest.approx(5 * 40 + 2 * 2 + 7, abs=1)


def test_what_follows_a_reduction_on_another_tensor_is_a_chain_of_its_own() -> None:
    timeline = normalization(small=200).timeline()
    assert match_of(RULE, timeline).title == "8 unfused pointwise kernels per step (1 if fused)"
    kernels = [(MUL, 9.0), (ADD, 9.0), (MUL, 9.0), (REDUCE, 5.0), (ADD, 2.0), (MUL, 2.0), MODEL]
    capture = program(kernels)
    for row in capture.tables["kernels"]:
        row["grid_x"] = 4 if row["end_ns"] - row["start_ns"] == 2_000 else 1_000
    # The result is used by nothing as large: a loss, for example.
    verdict = match_of(RULE, capture.timeline())
    assert verdict.title == "3 unfused pointwise kernels per step (1 if fused)"


def test_a_pass_reads_one_tensor_and_writes_one() -> None:
    """A kernel of three tensors is the longest, but the fused one reads them anyway."""
    kernels = [(MUL, 22.0), (with_tensors(ADD, 3), 62.0), (SQRT, 22.0)]
    timeline = of([MODEL, *kernels, MODEL])
    # Two thirds of 60 us and 2 us are longer than what moves: 10 + 20 + 10 us, and 2.
    saved = 22 + 62 + 22 - 42 + 2
    assert saved_us(match_of(RULE, timeline), timeline) == pytest.approx(saved, abs=1)


def test_launches_go_too() -> None:
    timeline = of([(n, 1.0) for n in (MUL, ADD) * 50], host_us=20.0)
    # 100 launches 20 us apart become one.
    assert saved_us(match_of(RULE, timeline), timeline) == pytest.approx(99 * 20, rel=0.05)


@pytest.mark.parametrize(
    "kernels",
    [
        pytest.param([MODEL, (MUL, 20.0), (ADD, 20.0), MODEL], id="two are no chain"),
        pytest.param(
            [(MUL, 9.0), (ADD, 9.0), (BY_COLUMN, 9.0), (MUL, 9.0), MODEL],
            id="a sum over columns between",
        ),
        pytest.param([MODEL, *[(FILL, 9.0)] * 9], id="a loop that clears tensors"),
        pytest.param([MODEL, *[(TO_BF16, 9.0)] * 9, (ADD, 9.0), MODEL], id="casts of weights"),
        pytest.param([MODEL, *[(TRITON, 9.0)] * 9], id="generated already"),
        pytest.param([MODEL, *((n, 5.0) for n in ADAM * 4)], id="the optimizer's"),
        pytest.param(
            [MODEL, (MUL, 9.0), (ADD, 9.0), (MUL, 9.0), (SOFTMAX, 9.0), MODEL, (REDUCE, 9.0)],
            id="attention's",
        ),
    ],
)
def test_clean(kernels: list[tuple[str, float]]) -> None:
    assert RULE.check(of(kernels)) is CLEAN


def test_tensors_of_other_sizes_are_no_chain() -> None:
    capture = program([MODEL, (MUL, 9.0), (ADD, 9.0), (MUL, 9.0)])
    for number, row in enumerate(capture.tables["kernels"]):
        row["grid_x"] = 1_000 if number % 2 else 10
    assert RULE.check(capture.timeline()) is CLEAN


def test_the_same_kernel_on_tensors_of_other_sizes_is_a_loop() -> None:
    capture = program([MODEL, *[(ADD, 9.0)] * 6])
    for number, row in enumerate(capture.tables["kernels"]):
        row["grid_x"] = 1_000 + 100 * (number % 7)
    assert RULE.check(capture.timeline()) is CLEAN


def test_a_chain_ends_where_the_host_waits() -> None:
    capture, at = Capture(), 0.0
    for step in range(3):
        begun = at
        for name in (MUL, ADD, MUL, ADD):
            capture.launch((at, at + 3), (at + 5, at + 10), name)
            capture.call("cudaStreamSynchronize", at + 4, at + 13)
            at += 20
        capture.range(f"step_{step}", begun, at)
    assert RULE.check(capture.timeline()) is CLEAN


def test_streams_are_apart() -> None:
    capture = program([(MUL, 9.0), (ADD, 9.0), (MUL, 9.0), (ADD, 9.0)])
    for number, row in enumerate(capture.tables["kernels"]):
        row["stream"] = 7 + number % 2
    assert RULE.check(capture.timeline()) is CLEAN


def test_absent_without_kernels() -> None:
    capture = Capture()
    capture.copy((0, 5), (6, 9))
    assert isinstance(RULE.check(capture.timeline()), RuleNotApplicable)


@needs_shared
@pytest.mark.parametrize("name", ["nsys/tiny.sqlite", "torch/tiny.json.gz"])
def test_planted(name: str) -> None:
    timeline = opened(name)
    verdict = match_of(RULE, timeline)
    assert evidence(verdict)["kernels"] == 600
    # 11.9 ms a step -> well below 1 when all of them are one.
    step_us = timeline.length_ns / timeline.per_step / 1_000
    assert step_us - saved_us(verdict, timeline) < 600


@needs_shared
@pytest.mark.parametrize("name", ["healthy", "conv", "gpt_small_train", "graph_node"])
def test_not_planted(name: str) -> None:
    assert RULE.check(opened(f"nsys/{name}.sqlite")) is CLEAN
