"""recomputation: forward kernels that autograd's thread launches again."""

from __future__ import annotations

from typing import Any

import pytest

from gpusight.rules.rule import CLEAN, RuleNotApplicable
from gpusight.rules.timeline.recomputation import Recomputation
from tests.rules.timeline.gpu_traces import ADD, GEMM_BF16, MUL, SOFTMAX, SOFTMAX_BWD, TO_BF16
from tests.rules.timeline.rule_captures import Capture, evidence, match_of, saved_us

RULE = Recomputation()
GEMM_NN = GEMM_BF16.replace("TNT", "NNT")
FORWARD = (TO_BF16, GEMM_BF16, SOFTMAX, GEMM_BF16, ADD)
BACKWARD = (MUL, GEMM_NN, SOFTMAX_BWD, GEMM_NN, MUL)
AUTOGRAD = 12


def training(
    *,
    checkpoint: bool,
    micro_batches: int = 1,
    one_thread: bool = False,
    kernel_us: float = 50,
    hook_us: float = 0,
    memset_us: float = 0,
    **memory: Any,
) -> Capture:
    """Three steps of four layers, forward and backward.

    `hook_us` is what the host takes more in front of each launch of the forward pass, `memset_us`
    what a memset takes it in front of the last kernel of each repeated part.
    """
    capture = Capture()
    time_us = {"at": 0.0, "free": 0.0}
    delay_us = {11: hook_us, AUTOGRAD: 0.0}

    def launch(names: tuple[str, ...], thread: int) -> None:
        for name in names:
            time_us["at"] += delay_us[thread]
            at, starts = time_us["at"], max(time_us["at"] + 7, time_us["free"] + 1)
            capture.launch((at, at + 5), (starts, starts + kernel_us), name)
            capture.tables["api_calls"][-1]["thread"] = 11 if one_thread else thread
            time_us["at"], time_us["free"] = at + 6, starts + kernel_us

    def memset() -> None:
        at = time_us["at"]
        correlation = capture.call("cudaMemsetAsync", at, at + memset_us, thread=AUTOGRAD)
        start_ns = round((at + memset_us + 2) * 1000)
        row = {"start_ns": start_ns, "end_ns": start_ns + 1000, "correlation": correlation}
        capture.tables["memsets"].append(row)
        time_us["at"] += memset_us + 1

    def backward() -> None:
        if checkpoint:
            launch(FORWARD[:-1], AUTOGRAD)
            memset()
            launch(FORWARD[-1:], AUTOGRAD)
        launch(BACKWARD, AUTOGRAD)

    for step in range(3):
        begun = time_us["at"]
        for _ in range(micro_batches):
            launch(FORWARD * 4, 11)
            for _ in range(4):
                backward()
        done = time_us["free"] + 5
        capture.call("cudaDeviceSynchronize", time_us["at"], done, thread=11)
        capture.range(f"step_{step}", begun, done, thread=11)
        time_us["at"] = done
    if memory:
        capture.tables["memory_events"].append({"time_ns": 0, "bytes": 1, **memory})
    return capture


def test_found() -> None:
    timeline = training(checkpoint=True).timeline()
    verdict = match_of(RULE, timeline)
    numbers = evidence(verdict)
    assert numbers["kernels"] == 20
    assert numbers["runs"] == 4
    assert numbers["forward_share"] == pytest.approx(1.0)
    assert numbers["gpu_share"] == pytest.approx(1 / 3)
    assert verdict.title == "Forward pass recomputed in backward (33% of GPU time)"
    assert saved_us(verdict, timeline) == pytest.approx(20 * 51, rel=0.02)
    assert "gpusight record --memory" in verdict.fix
    assert RULE.locate(timeline, None).height == 12  # type: ignore[arg-type]


def test_host_time_of_checkpointing_goes_too() -> None:
    """Where kernels take no time, the host's is all that counts."""

    def saves_us(**options: Any) -> float:
        timeline = training(checkpoint=True, kernel_us=0.1, **options).timeline()
        return saved_us(match_of(RULE, timeline), timeline)

    plain_us = saves_us()
    assert plain_us == pytest.approx(20 * 6 + 4, rel=0.05)
    assert saves_us(memset_us=30) - plain_us == pytest.approx(4 * 30, rel=0.05)
    assert saves_us(hook_us=100) - plain_us == pytest.approx(20 * 100, rel=0.05)


@pytest.mark.parametrize(
    ("reserved", "advice"),
    [(20_000_000_000, "there is room"), (120_000_000_000, "may be needed")],
)
def test_memory(reserved: int, advice: str) -> None:
    verdict = match_of(RULE, training(checkpoint=True, reserved_bytes=reserved).timeline())
    assert advice in verdict.fix
    assert evidence(verdict)["peak_bytes"] == reserved


@pytest.mark.parametrize(
    "capture",
    [
        pytest.param(training(checkpoint=False), id="no checkpoints"),
        pytest.param(training(checkpoint=False, micro_batches=2), id="gradient accumulation"),
    ],
)
def test_clean(capture: Capture) -> None:
    assert RULE.check(capture.timeline()) is CLEAN


def test_several_gpus_have_a_thread_each() -> None:
    """The backward pass of one GPU is no forward pass of the other."""
    capture = training(checkpoint=False)
    for at, call in enumerate(capture.tables["api_calls"]):
        if call["name"] == "cudaLaunchKernel" and call["thread"] == AUTOGRAD and at // 10 % 2:
            call["thread"] = 13
    assert RULE.check(capture.timeline()) is CLEAN


def test_absent_where_one_thread_launches_all() -> None:
    verdict = RULE.check(training(checkpoint=True, one_thread=True).timeline())
    assert verdict == RuleNotApplicable("one thread launches forward and backward pass")
