"""exposed-copy: copies that no kernel runs beside."""

from __future__ import annotations

from typing import Any

import pytest

from gpusight.rules.rule import CLEAN
from gpusight.rules.timeline.exposed_copy import ExposedCopy
from tests.rules.timeline.rule_captures import Capture, evidence, match_of, opened, saved_us
from tests.shared import needs_shared

RULE = ExposedCopy()
PINNED = {"kind": "Host-to-Device", "src_kind": "Pinned", "dst_kind": "Device"}


def steps(
    *, copy_us: float = 400, kernel_us: float = 500, beside: bool = False, **columns: Any
) -> Capture:
    """A step of 1 ms: a copy of 4 MB, and a kernel of 500 us in the same stream or beside it."""
    capture = Capture()
    columns = {**PINNED, **({"stream": 8} if beside else {}), **columns}
    size = int(columns.pop("size", 4_000_000))
    for n in range(4):
        at = n * 1_000
        capture.range(f"step_{n}", at, at + 1_000)
        capture.copy((at + 10, at + 14), (at + 20, at + 20 + copy_us), size=size, **columns)
        begins = at + 22 if beside else at + 21 + copy_us
        capture.launch((at + 15, at + 20), (begins, begins + kernel_us), "gemm")
        capture.call("cudaDeviceSynchronize", at + 30, begins + kernel_us + 10)
    return capture


def test_what_is_exposed_can_run_beside_the_kernel() -> None:
    timeline = steps().timeline()
    verdict = match_of(RULE, timeline)
    numbers = evidence(verdict)
    assert verdict.title == ("Exposed H2D copies: 400 µs/step without overlap")
    assert numbers["exposed_share"] == pytest.approx(0.4)
    assert numbers["h2d_exposed_ns"] == 400_000
    assert numbers["h2d_rate"] == pytest.approx(10e9)
    # The kernel begins 2 us after its launch, at 22 us of a step, instead of at 421.
    assert saved_us(verdict, timeline) == pytest.approx(399, abs=4)
    assert "cudaMemcpyAsync on a separate stream" in verdict.fix


def test_a_copy_longer_than_the_kernel_still_takes_its_time() -> None:
    timeline = steps(copy_us=800, kernel_us=100).timeline()
    # The kernel's 100 us and the gap before it are all that is no longer waited for.
    assert saved_us(match_of(RULE, timeline), timeline) == pytest.approx(101, abs=4)


@pytest.mark.parametrize(
    "columns",
    [
        {"src_kind": "Pageable"},
        {"kind": "Device-to-Device", "src_kind": "Device"},
        {"size": 8_000},
        {"copy_us": 8},
        {"beside": True},
    ],
    ids=["pageable, the other rule's", "within the GPU", "small", "short", "hidden by a kernel"],
)
def test_near_misses_do_not_trip(columns: dict[str, Any]) -> None:
    assert RULE.check(steps(**columns).timeline()) == CLEAN


def test_unknown_memory_counts_as_it_may_be_pinned() -> None:
    verdict = match_of(RULE, steps(src_kind=None, dst_kind=None).timeline())
    assert verdict.title == "Exposed H2D copies: 400 µs/step without overlap"


def test_directions_are_told_apart_and_run_at_the_same_time() -> None:
    capture = steps()
    for n in range(4):
        back = {"kind": "Device-to-Host", "src_kind": "Device", "dst_kind": "Pinned"}
        at = n * 1_000 + 935
        capture.copy((at, at + 3), (at + 5, at + 55), size=500_000, **back)
    verdict = match_of(RULE, capture.timeline())
    assert verdict.title == "Exposed copies: 450 µs/step without overlap"
    assert evidence(verdict)["d2h_count"] == 1
    assert "1 H2D copy per step" in verdict.fix
    assert "1 D2H copy per step" in verdict.fix


@pytest.mark.parametrize(
    ("back_us", "left_us"),
    [
        # Copies that fill the step: 200 us each way, at 0.92 of the rate 217 at once.
        (200, 217),
        # A fourth as much the other way slows a fourth of the copy to the GPU down.
        (50, 204),
    ],
)
def test_copies_of_both_directions_slow_each_other_down(back_us: int, left_us: int) -> None:
    capture = Capture()
    length = 2 * 200 + 2 * back_us + 100
    for n in range(4):
        at = n * length
        capture.range(f"step_{n}", at, at + length)
        for k in range(2):
            begins = at + 20 + k * (200 + back_us)
            back = {"kind": "Device-to-Host", "src_kind": "Device", "dst_kind": "Pinned"}
            call = at + 4 * k
            to_gpu, to_host = (begins, begins + 200), (begins + 200, begins + 200 + back_us)
            capture.copy((call, call + 1), to_gpu, size=4_000_000, **PINNED)
            capture.copy((call + 2, call + 3), to_host, size=1_000_000, **back)
        capture.call("cudaDeviceSynchronize", at + 10, at + length - 70)
    timeline = capture.timeline()
    # Nothing waits for them any more: a step is as long as its two copies to the GPU.
    expected = length - 2 * left_us
    assert saved_us(match_of(RULE, timeline), timeline) == pytest.approx(expected, abs=8)


def test_managed_memory_gets_its_own_advice() -> None:
    capture = steps(kind="Unified Host-to-Device", src_kind=None, dst_kind=None)
    verdict = match_of(RULE, capture.timeline())
    assert "cudaMemPrefetchAsync" in verdict.fix
    assert "cudaMemPrefetchAsync" in verdict.code


@needs_shared
def test_a_real_pipeline_of_two_directions() -> None:
    timeline = opened("public/nsys/2020.5.1.85__schemanone__f027880.sqlite")
    verdict = match_of(RULE, timeline)
    assert {"h2d_count", "d2h_count"} <= set(evidence(verdict))
    assert 0 < saved_us(verdict, timeline) < evidence(verdict)["exposed_share"] * 1e6
