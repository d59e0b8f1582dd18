"""small-grid: long kernels with few blocks, and those that have few on purpose."""

from __future__ import annotations

import pytest

from gpusight.rules.finding import Confidence
from gpusight.rules.rule import CLEAN, RuleMatch, RuleNotApplicable
from gpusight.rules.timeline.small_grid_timeline import SmallGridTimeline
from tests.rules.timeline.gpu_traces import (
    BATCH_NORM,
    CONV_TF32,
    GEMM,
    NCCL,
    REDUCE,
    SCAN,
    SPLIT_K,
    TO_NHWC,
    of,
    program,
)
from tests.rules.timeline.rule_captures import evidence, match_of, opened, saved_us
from tests.shared import needs_shared

RULE = SmallGridTimeline()
KERNELS = [("stencil", 210.0), ("update", 60.0)]


def test_found() -> None:
    timeline = of(KERNELS, blocks=33, sm_count=132)
    verdict = match_of(RULE, timeline)
    assert evidence(verdict) == {
        "sm_count": 132,
        "blocks": 33,
        "kernels": 2,
        "small_ns": 270_000,
        "gpu_share": 1.0,
    }
    # A quarter of the SMs have a block: three quarters of what lies above 10 us go.
    assert saved_us(verdict, timeline) == pytest.approx(0.75 * (200 + 50), abs=1)
    assert verdict.confidence is Confidence.LOW
    assert verdict.title == ("Small grids: 33 blocks for 132 SMs (100% of kernel time)")


@pytest.mark.parametrize(
    ("kernel", "blocks", "threads", "left"),
    [
        pytest.param("stencil", 33, 1_024, 0.25, id="a quarter of the SMs, each full"),
        pytest.param("stencil", 33, 512, 0.125, id="one block that half fills its SM"),
        pytest.param("stencil", 33, 2_048, 0.25, id="no more than full"),
        pytest.param("stencil", 12, 128, 0.05, id="memory and latency stay"),
        pytest.param(SCAN, 8, 512, 0.05, id="a scan of few rows"),
        pytest.param(GEMM, 33, 128, 0.25, id="a product keeps its SM busy"),
    ],
)
def test_what_is_left(kernel: str, blocks: int, threads: int, left: float) -> None:
    timeline = of([(kernel, 1_010.0)], blocks=blocks, threads=threads, sm_count=132)
    assert saved_us(match_of(RULE, timeline), timeline) == pytest.approx(1_000 * (1 - left), abs=1)


def test_batch_normalization_is_left_to_the_layout() -> None:
    kernels = [(CONV_TF32, 50.0), (BATCH_NORM, 300.0)]
    assert evidence(match_of(RULE, of(kernels, blocks=64, sm_count=132)))["small_ns"] == 350_000
    turned = of([(TO_NHWC, 60.0), *kernels], blocks=64, sm_count=132)
    assert evidence(match_of(RULE, turned))["small_ns"] == 110_000


def test_the_table_of_gpus_knows_the_number_of_sms() -> None:
    verdict = match_of(RULE, of(KERNELS, blocks=1, name="NVIDIA H200"))
    assert evidence(verdict)["sm_count"] == 132


@pytest.mark.parametrize(
    ("kernels", "blocks"),
    [
        pytest.param(KERNELS, 132, id="a block for each SM"),
        pytest.param(KERNELS, 100, id="most SMs have a block"),
        pytest.param([(REDUCE, 8.0)] * 50, 1, id="short ones"),
        pytest.param([(NCCL, 400.0)], 16, id="communication"),
        pytest.param([(GEMM, 5.0), (SPLIT_K, 40.0)], 16, id="the end of a product"),
    ],
)
def test_clean(kernels: list[tuple[str, float]], blocks: int) -> None:
    assert RULE.check(of(kernels, blocks=blocks, sm_count=132)) is CLEAN


def test_kernels_side_by_side_fill_the_gpu() -> None:
    capture = program(KERNELS, blocks=33, sm_count=132)
    for row in list(capture.tables["kernels"]):
        capture.tables["kernels"].append({**row, "stream": 8, "correlation": None})
    assert RULE.check(capture.timeline()) is CLEAN


def test_absent_without_grids_or_sms() -> None:
    unknown = RULE.check(of(KERNELS, blocks=33, name="Some GPU"))
    assert unknown == RuleNotApplicable("the number of SMs is unknown")
    capture = program(KERNELS, sm_count=132)
    for row in capture.tables["kernels"]:
        del row["grid_x"]
    assert RULE.check(capture.timeline()) == RuleNotApplicable("the capture has no grid sizes")


@needs_shared
@pytest.mark.parametrize(
    "name", ["healthy", "gpt_small_train", "gpt_small_forward", "tiny", "conv"]
)
def test_not_planted(name: str) -> None:
    assert not isinstance(RULE.check(opened(f"nsys/{name}.sqlite")), RuleMatch)


def test_grids_of_library_kernels_are_not_the_program_s_to_set() -> None:
    own = match_of(RULE, of([("stencil(float*)", 100)], blocks=33, sm_count=132))
    library = match_of(RULE, of([(GEMM, 100)], blocks=33, sm_count=132))
    assert "<<<" in own.code
    assert "<<<" not in library.code
    assert "Batch small library calls" in library.fix
