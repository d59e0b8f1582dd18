"""exposed-communication: collectives with nothing beside them."""

from __future__ import annotations

import pytest

from gpusight.rules.finding import Confidence
from gpusight.rules.rule import CLEAN, RuleNotApplicable
from gpusight.rules.timeline.exposed_communication import ExposedCommunication
from tests.rules.timeline.rule_captures import Capture, evidence, judged, match_of, opened, saved_us
from tests.shared import needs_shared

RULE = ExposedCommunication()
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def steps(
    name: str = REDUCE, *, alone_us: float = 300, after_us: float = 2, torch: bool = True
) -> Capture:
    """A step of 1 ms: backward 400 us, a collective of 350 that outlasts it, then the optimizer."""
    capture = Capture("torch-chrome" if torch else "nsys-sqlite")
    for n in range(4):
        at = n * 1_000
        ends = at + 420 + alone_us
        capture.range(f"step_{n}", at, at + 1_000)
        capture.launch((at + 10, at + 15), (at + 20, at + 420), "gemm")
        capture.launch((at + 20, at + 25), (ends - 350, ends), name, stream=20)
        # The optimizer was launched long before: it waits for the collective.
        capture.launch((at + 30, at + 35), (ends + after_us, ends + after_us + 50), "adam")
        capture.call("cudaDeviceSynchronize", at + 40, ends + after_us + 58)
    return capture


def test_only_what_no_kernel_hides_counts() -> None:
    timeline = steps().timeline()
    verdict = match_of(RULE, timeline)
    numbers = evidence(verdict)
    assert verdict.title == ("Exposed communication: 300 µs/step")
    assert numbers["exposed_share"] == pytest.approx(0.3)
    assert numbers["collectives"] == 1
    assert numbers["took_ns"] == 350_000
    assert numbers["hidden_share"] == pytest.approx(50 / 350)
    assert verdict.confidence is Confidence.LOW
    assert "DistributedDataParallel" in verdict.fix
    assert "nccl" in verdict.where[0].name.lower()


@pytest.mark.parametrize("after_us", [2, 8])
def test_the_collective_itself_still_takes_its_time(after_us: float) -> None:
    """Whether the optimizer begins just when the collective ends, or a little later."""
    capture = steps(after_us=after_us)
    for n in range(4):
        # Work in a row, from which the usual gap between kernels is seen.
        for m in range(3):
            at = n * 1_000 + 41 + m
            capture.launch((at, at + 0.5), (n * 1_000 + 790 + m * 5, n * 1_000 + 794 + m * 5))
    timeline = capture.timeline()
    # It ends at 720 us of a step whatever happens; the 92 us of kernels behind it come earlier.
    assert saved_us(match_of(RULE, timeline), timeline) == pytest.approx(80, abs=15)


@pytest.mark.parametrize(
    ("capture", "advice"),
    [
        (steps(GATHER), "With FSDP"),
        (steps(torch=False), "ncclGroupStart"),
    ],
)
def test_advice_fits_the_program(capture: Capture, advice: str) -> None:
    assert advice in match_of(RULE, capture.timeline()).fix


def test_named_collectives_are_told() -> None:
    capture = steps()
    for n in range(4):
        at = n * 1_000 + 20
        capture.event("collectives", "allreduce", at, at + 5, side="host", in_bytes=1_000_000)
    verdict = match_of(RULE, capture.timeline())
    assert evidence(verdict)["in_bytes"] == 1_000_000
    assert "called as allreduce" in verdict.fix


def test_hidden_communication_is_clean() -> None:
    assert RULE.check(steps(alone_us=5).timeline()) == CLEAN


def test_a_program_that_does_not_communicate_is_clean() -> None:
    assert RULE.check(steps("gemm").timeline()) == CLEAN


def test_graphs_traced_whole_hide_their_kernels() -> None:
    rows = [{"start_ns": n * 1_000_000, "end_ns": n * 1_000_000 + 900_000} for n in range(4)]
    timeline = judged(graph_launches=rows)
    verdict = RULE.check(timeline)
    assert verdict == RuleNotApplicable("CUDA graphs traced as one event: kernels not visible")


@needs_shared
def test_a_server_that_waits_for_its_collectives() -> None:
    timeline = opened("public/nsys/2026.2.1.210__schema3.25.0__db4e199.sqlite")
    verdict = match_of(RULE, timeline)
    assert evidence(verdict)["exposed_share"] == pytest.approx(0.08, abs=0.03)
    assert saved_us(verdict, timeline) > 0


@pytest.mark.parametrize(
    ("kernel", "advice"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "DistributedDataParallel"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "FSDP"),
        ("ncclDevKernel_SendRecv", "pipeline parallelism"),
    ],
)
def test_advice_follows_the_collectives(kernel: str, advice: str) -> None:
    assert advice in match_of(RULE, steps(kernel).timeline()).fix


def test_all_to_alls_get_code_for_all_to_alls() -> None:
    capture = steps("ncclDevKernel_SendRecv")
    for n in range(4):  # a step of a training has an optimizer
        capture.range("Optimizer.step#AdamW.step", n * 1_000 + 26, n * 1_000 + 36)
    assert "all_to_all_single" in match_of(RULE, capture.timeline()).code


def test_inference_gets_no_advice_for_training() -> None:
    capture = steps()
    for row in capture.tables["kernels"]:
        row["name"] = row["name"].replace("adam", "norm")
    verdict = match_of(RULE, capture.timeline())
    assert "tensor parallelism" in verdict.fix
    assert "DistributedDataParallel" not in verdict.fix + verdict.code
