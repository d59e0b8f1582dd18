"""pageable-copy on captures written down by hand, and on those where it was planted."""

from __future__ import annotations

from typing import Any

import pytest

from gpusight.rules.engine import run_timeline_rules
from gpusight.rules.rule import CLEAN, RuleNotApplicable
from gpusight.rules.timeline.exposed_copy import ExposedCopy
from gpusight.rules.timeline.pageable_copy import PageableCopy
from tests.rules.timeline.rule_captures import Capture, evidence, match_of, opened, saved_us
from tests.shared import needs_shared

MB = 1_000_000
TO_GPU = {"kind": "Host-to-Device", "src_kind": "Pageable", "dst_kind": "Device"}


def steps(size: int, copied_us: float, *, count: int = 4, **kinds: Any) -> Capture:
    """Copy a batch to the GPU, then compute on it for 500 us and wait: a step of 1 ms and more."""
    capture = Capture()
    for n in range(count):
        at = n * (copied_us + 1_000)
        copied = at + 110 + copied_us
        capture.range(f"step_{n}", at, at + copied_us + 1_000)
        # The call returns just before the last part has arrived, as drivers do.
        capture.copy((at + 100, copied - 2), (at + 110, copied), size=size, **{**TO_GPU, **kinds})
        capture.launch((copied + 10, copied + 15), (copied + 18, copied + 518), "gemm")
        capture.call("cudaDeviceSynchronize", copied + 20, copied + 523)
    return capture


def test_the_copy_runs_at_the_rate_of_the_link_beside_the_kernels() -> None:
    # 50.4 MB in 5 ms are 10 GB/s; an H200's link does 0.8 x 63 GB/s, so 1 ms.
    timeline = steps(50_400_000, 5_000.0).timeline()
    verdict = match_of(PageableCopy(), timeline)
    numbers = evidence(verdict)
    assert verdict.title == ("Pageable memory copies: 5.00 ms/step at 10.1 GB/s")
    assert numbers["h2d_count"] == 1
    assert numbers["h2d_bytes"] == 50_400_000
    assert numbers["h2d_ns"] == 5_000_000
    assert numbers["h2d_pinned_rate"] == pytest.approx(50.4e9)
    assert numbers["held_ns"] == 5_008_000
    # Left of a step: 110 us until the copy begins, 1,000 for it, 5 until the synchronisation
    # returns, 367 of host work until the next step. The kernel of 500 us runs beside the copy.
    assert saved_us(verdict, timeline) == pytest.approx(6_000 - 1_482, abs=5)
    # Pinned but not ahead, the kernel still waits for the copy: 5 ms become 1.
    assert numbers["pinned_in_place_ns"] == pytest.approx(4_000_000, rel=0.01)
    assert "PCIe 5" in verdict.estimate
    assert [(w.kind, w.name, w.count) for w in verdict.where] == [("call", "cudaMemcpyAsync", 4)]


def test_a_rate_measured_in_the_capture_is_taken() -> None:
    capture = steps(50_400_000, 5_000.0)
    # 10 MB in 400 us: pinned copies reach 25 GB/s here.
    capture.copy(
        (30_000, 30_005), (30_006, 30_406), size=10 * MB, **{**TO_GPU, "src_kind": "Pinned"}
    )
    verdict = match_of(PageableCopy(), capture.timeline())
    assert evidence(verdict)["h2d_pinned_rate"] == pytest.approx(25e9)
    assert "in this capture" in verdict.estimate


@pytest.mark.parametrize(
    ("size", "copied_us", "kinds", "verdict"),
    [
        (50 * MB, 5_000.0, {"src_kind": "Pinned"}, CLEAN),
        (60_000, 5_000.0, {}, CLEAN),
        (70_000, 4.0, {}, CLEAN),
        (50 * MB, 5_000.0, {"kind": "Device-to-Device", "src_kind": "Device"}, CLEAN),
    ],
    ids=["pinned", "small", "no time to speak of", "within the GPU"],
)
def test_near_misses_do_not_trip(
    size: int, copied_us: float, kinds: dict[str, Any], verdict: object
) -> None:
    assert PageableCopy().check(steps(size, copied_us, **kinds).timeline()) == verdict


def test_a_capture_that_does_not_say_what_memory_it_was() -> None:
    capture = steps(50 * MB, 5_000.0, src_kind=None, dst_kind=None)
    verdict = PageableCopy().check(capture.timeline())
    assert verdict == RuleNotApplicable("the capture does not record whether host memory is pinned")


def test_it_stands_for_exposed_copies_when_there_are_no_others() -> None:
    timeline = steps(50_400_000, 5_000.0).timeline()
    judgement = run_timeline_rules(timeline, [PageableCopy(), ExposedCopy()])
    assert [finding.rule for finding in judgement.findings] == ["pageable-copy"]


def test_a_program_without_copies_is_clean() -> None:
    capture = Capture()
    for n in range(4):
        capture.range(f"step_{n}", n * 100, n * 100 + 90)
        capture.launch((n * 100 + 10, n * 100 + 15), (n * 100 + 20, n * 100 + 80), "gemm")
    assert PageableCopy().check(capture.timeline()) == CLEAN


@needs_shared
@pytest.mark.parametrize("capture", ["nsys/pageable.sqlite", "torch/pageable.json.gz"])
def test_the_planted_copies_leave_under_eight_milliseconds(capture: str) -> None:
    timeline = opened(capture)
    verdict = match_of(PageableCopy(), timeline)
    assert verdict.code.index("result.copy_") < verdict.code.index("DataLoader")  # D2H is slower
    step_ms = timeline.length_ns / timeline.steps / 1e6
    assert step_ms - saved_us(verdict, timeline) / 1e3 == pytest.approx(7.8, rel=0.05)


@needs_shared
@pytest.mark.parametrize("name", ["healthy", "dataload", "conv", "gpt_small_train", "item", "tiny"])
def test_other_programs_are_clean(name: str) -> None:
    timeline = opened(f"nsys/{name}.sqlite")
    assert PageableCopy().check(timeline) == CLEAN
    assert ExposedCopy().check(timeline) == CLEAN


@pytest.mark.parametrize("between", ["MPI_Sendrecv", "exchange of halos"])
def test_what_other_processes_get_is_copied_faster_but_not_later(between: str) -> None:
    """A border of 20 MB goes to the host in 4 ms, to another process, and one comes back."""
    capture = Capture()
    for n in range(4):
        at = n * 12_000.0
        capture.range(f"step_{n}", at, at + 12_000)
        capture.launch((at, at + 5), (at + 8, at + 1_000), "pack")
        border: dict[str, Any] = {"size": 20 * MB, "name": "cudaMemcpy"}
        capture.copy((at + 10, at + 5_010), (at + 1_005, at + 5_005), **border)
        capture.range(between, at + 5_020, at + 7_000)
        capture.copy((at + 7_010, at + 11_020), (at + 7_015, at + 11_015), **border | TO_GPU)
        capture.launch((at + 11_030, at + 11_035), (at + 11_040, at + 11_900), "sweep")
        capture.call("cudaDeviceSynchronize", at + 11_040, at + 11_910)
    timeline = capture.timeline()
    verdict = match_of(PageableCopy(), timeline)
    exchanged = between.startswith("MPI")
    assert ("CUDA-aware MPI" in verdict.fix) is exchanged
    # Pinned, each takes 0.4 ms. What is not sent to anyone overlaps with the kernels too.
    saved = saved_us(verdict, timeline)
    assert saved == pytest.approx(7_200, abs=100) if exchanged else saved > 7_900
