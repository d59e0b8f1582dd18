"""layout-transpose: what a library turns around before and after convolutions."""

from __future__ import annotations

import pytest

from gpusight.rules.rule import CLEAN, RuleNotApplicable
from gpusight.rules.timeline.layout_transpose import LayoutTranspose
from tests.rules.timeline.gpu_traces import ADD, BATCH_NORM, CONV_TF32, GEMM, TO_NCHW, TO_NHWC, of
from tests.rules.timeline.rule_captures import Capture, evidence, match_of, opened, saved_us
from tests.shared import needs_shared

RULE = LayoutTranspose()
LAYER = [(TO_NHWC, 10.0), (TO_NHWC, 2.0), (CONV_TF32, 60.0), (TO_NCHW, 8.0)]


def test_found() -> None:
    timeline = of([*LAYER, (ADD, 20.0)])
    verdict = match_of(RULE, timeline)
    assert evidence(verdict) == {
        "transposes": 3,
        "transpose_ns": 20_000,
        "gpu_share": pytest.approx(0.2),
        "convolution_ns": 60_000,
    }
    assert verdict.title == "NCHW/NHWC transposes (20% of kernel time)"
    # Three kernels and their gaps of 1 us go, but the convolution is launched 8 us after the step
    # has begun now, and two launches of 3 us sooner then.
    assert saved_us(verdict, timeline) == pytest.approx(18, abs=3)
    assert "channels_last" in verdict.code


def test_transposes_of_amd() -> None:
    """MIOpen's convolutions run channels last too."""
    turn = "batched_transpose_16x64_pack_1x4_ediv_1x2_half"
    convolution = "igemm_fwd_gtcx2_nhwc_bf16_bx0_ex1_bt256x128x16_wt32x32x8_ws2x1_wr2x2"
    timeline = of([(turn, 10.0), (turn, 2.0), (convolution, 60.0), (turn, 8.0), (ADD, 20.0)])
    assert match_of(RULE, timeline).title == "NCHW/NHWC transposes (20% of kernel time)"


@pytest.mark.parametrize(
    ("norm", "blocks", "more"),
    [
        pytest.param((BATCH_NORM, 210.0), 33, 150, id="a quarter of the SMs: 150 of 200 us"),
        pytest.param((BATCH_NORM, 210.0), 1_000, 0, id="many channels"),
        pytest.param((BATCH_NORM, 9.0), 33, 0, id="a short one"),
        pytest.param((ADD, 210.0), 33, 0, id="another kernel of few blocks"),
    ],
)
def test_batch_normalization_of_few_channels(
    norm: tuple[str, float], blocks: int, more: float
) -> None:
    timeline = of([*LAYER, norm], blocks=blocks, sm_count=132)
    verdict = match_of(RULE, timeline)
    assert saved_us(verdict, timeline) == pytest.approx(18 + more, abs=3)
    assert ("norm_ns" in evidence(verdict)) == ("33 blocks" in verdict.fix) == bool(more)


def test_batch_normalization_alone_says_nothing_about_the_layout() -> None:
    assert (
        RULE.check(of([(CONV_TF32, 60.0), (BATCH_NORM, 210.0)], blocks=33, sm_count=132)) is CLEAN
    )


def test_the_way_of_the_host_to_the_convolution_stays() -> None:
    # 20 us a launch, kernels of 1 us: what is gained is the launch calls of 3 us themselves.
    timeline = of([(TO_NHWC, 1.0), (CONV_TF32, 1.0), (TO_NCHW, 1.0)], host_us=20.0)
    assert saved_us(match_of(RULE, timeline), timeline) == pytest.approx(6, abs=2)


@pytest.mark.parametrize(
    "kernels",
    [
        pytest.param([(CONV_TF32, 60.0), (ADD, 20.0)], id="channels last already"),
        pytest.param([(GEMM, 60.0), (ADD, 20.0)], id="no convolutions"),
        pytest.param([(TO_NHWC, 1.0), (CONV_TF32, 99.0)], id="one at the edge of a model"),
    ],
)
def test_clean(kernels: list[tuple[str, float]]) -> None:
    assert RULE.check(of(kernels)) is CLEAN


def test_absent_where_graphs_hide_the_kernels() -> None:
    capture = Capture()
    for step in range(3):
        at = step * 100
        correlation = capture.call("cudaGraphLaunch", at, at + 5)
        capture.tables["graph_launches"].append(
            {
                "start_ns": (at + 6) * 1_000,
                "end_ns": (at + 90) * 1_000,
                "graph": 1,
                "correlation": correlation,
            }
        )
    verdict = RULE.check(capture.timeline())
    assert isinstance(verdict, RuleNotApplicable)
    assert "graphs" in verdict.reason


@needs_shared
@pytest.mark.parametrize(("name", "steps"), [("nsys/conv.sqlite", 10), ("torch/conv.json.gz", 2)])
def test_planted(name: str, steps: int) -> None:
    timeline = opened(name)
    numbers = evidence(match_of(RULE, timeline))
    assert timeline.steps == steps
    assert numbers["gpu_share"] == pytest.approx(0.18, abs=0.002)
    assert numbers["transposes"] == 157
    assert numbers["norm_ns"] > 1e6


@needs_shared
@pytest.mark.parametrize("name", ["healthy", "gpt_small_train", "tiny"])
def test_not_planted(name: str) -> None:
    assert RULE.check(opened(f"nsys/{name}.sqlite")) is CLEAN
