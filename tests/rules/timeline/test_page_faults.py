"""page-faults: kernels and the host that wait for pages of unified memory."""

from __future__ import annotations

import pytest

from gpusight.rules.rule import CLEAN
from gpusight.rules.timeline.page_faults import PageFaults
from tests.rules.timeline.rule_captures import US, Capture, evidence, match_of, saved_us

RULE = PageFaults()
UNIFIED = {"src_kind": "Unknown", "dst_kind": "Unknown", "stream": 0}


def migrate(capture: Capture, way: str, start: float, end: float, size: int = 65_536) -> None:
    row = {"start_ns": round(start * US), "end_ns": round(end * US), "bytes": size}
    capture.tables["copies"].append({"kind": f"Unified {way}", **row, **UNIFIED})


def steps(*, faults: int = 20, back: bool = False, prefetch: bool = False) -> Capture:
    """Four steps of one kernel, 100 us long, and 50 us for each group of faults in it.

    With `back`, the host then touches the same pages. With `prefetch`, they migrate before it.
    """
    capture, at = Capture(), 0.0
    for step in range(4):
        begun = at
        if prefetch:
            capture.call("cudaMemPrefetchAsync", at, at + 4)
            migrate(capture, "Host-to-Device", at + 30, at + 70, 2 << 20)  # during the kernel
            at += 6
        length = 100 if prefetch else 100 + 50 * faults
        capture.launch((at, at + 5), (at + 7, at + 7 + length), "add(int, float *, float *)")
        for fault in range(0 if prefetch else faults):
            migrate(capture, "Host-to-Device", at + 10 + fault * 50, at + 20 + fault * 50)
        capture.call("cudaDeviceSynchronize", at + 6, at + length + 12)
        at += length + 20
        for fault in range(faults if back else 0):
            migrate(capture, "Device-to-Host", at + fault * 50, at + 10 + fault * 50)
        at += 50 * faults if back else 10
        capture.range(f"step_{step}", begun, at)
    return capture


def test_found() -> None:
    timeline = steps().timeline()
    verdict = match_of(RULE, timeline)
    numbers = evidence(verdict)
    assert numbers["migrations"] == 20
    assert numbers["bytes"] == 20 * 65_536
    assert numbers["kernel_stall_ns"] == pytest.approx(960_000, rel=0.02)
    # The same bytes take 26 us as a copy at 80% of PCIe 5.0.
    assert saved_us(verdict, timeline) == pytest.approx(960 - 26, rel=0.03)
    assert verdict.title.startswith("Unified memory page faults: ")
    assert [place.kind for place in verdict.where] == ["kernel"]
    assert RULE.locate(timeline, None).height == 4  # type: ignore[arg-type]


def test_pages_that_go_back_and_forth() -> None:
    timeline = steps(back=True).timeline()
    verdict = match_of(RULE, timeline)
    assert verdict.title.startswith("Unified memory goes back and forth: ")
    assert evidence(verdict)["turns"] == 7
    assert evidence(verdict)["host_stall_ns"] > 700_000
    assert saved_us(verdict, timeline) > 1_600


def test_recorded_faults_count() -> None:
    capture = steps(faults=0)
    for kernel in capture.tables["kernels"]:
        times = {"start_ns": kernel["start_ns"], "end_ns": kernel["end_ns"] - 20_000}
        capture.tables["page_faults"].append({"side": "gpu", "faults": 30, **times})
    numbers = evidence(match_of(RULE, capture.timeline()))
    assert numbers["faults"] == 30
    assert numbers["kernel_stall_ns"] == 80_000


@pytest.mark.parametrize(
    "capture",
    [
        pytest.param(steps(faults=0), id="no unified memory"),
        pytest.param(steps(prefetch=True), id="prefetched"),
    ],
)
def test_clean(capture: Capture) -> None:
    assert RULE.check(capture.timeline()) is CLEAN
