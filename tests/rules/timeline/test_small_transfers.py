"""small-transfers: many small copies per step that could be one."""

from __future__ import annotations

from typing import Any

import pytest

from gpusight.rules.engine import run_timeline_rules
from gpusight.rules.registry import timeline_rules
from gpusight.rules.rule import CLEAN
from gpusight.rules.timeline.host_sync import HostSync
from gpusight.rules.timeline.small_transfers import SmallTransfers
from tests.rules.timeline.rule_captures import Capture, evidence, match_of, saved_us

RULE = SmallTransfers()
TO_GPU: dict[str, Any] = {"kind": "Host-to-Device", "src_kind": "Pageable", "dst_kind": "Device"}


def layers(count: int, *, size: int = 64, synced: bool = False, in_steps: int = 4) -> Capture:
    """Four steps of layers: a small copy to the GPU, then a kernel of 5 us; a host-bound loop."""
    capture, at = Capture(), 0.0
    for step in range(4):
        begun = at
        for _ in range(count):
            if step < in_steps:
                capture.copy((at, at + 8), (at + 9, at + 10), size=size, **TO_GPU)
                at += 10
            if synced:
                capture.call("cudaStreamSynchronize", at, at + 4)
                at += 5
            capture.launch((at, at + 5), (at + 7, at + 12))
            at += 20
        capture.range(f"step_{step}", begun, at)
    return capture


def test_found() -> None:
    timeline = layers(20).timeline()
    verdict = match_of(RULE, timeline)
    numbers = evidence(verdict)
    assert numbers["h2d_count"] == 20
    assert numbers["pageable"] == 20
    assert verdict.title == "20 small H2D/D2H copies per step"
    # One copy is left; the calls of 19 others go, and up to 20 us of host time before each.
    assert 19 * 8 < saved_us(verdict, timeline) < 19 * (8 + 20)
    assert [place.name for place in verdict.where] == ["cudaMemcpyAsync"]
    # 1 µs on the GPU for each; the call begins in idle time, and ends before the copy.
    assert verdict.measured_ns == pytest.approx(4 * 20 * (1 + 8) * 1_000, rel=0.1)


def test_host_work_before_copies_stays() -> None:
    capture, at = Capture(), 0.0
    for step in range(4):
        begun = at
        for _ in range(12):
            at += 500  # prepares values
            capture.copy((at, at + 8), (at + 9, at + 10), **TO_GPU)
            capture.launch((at + 9, at + 14), (at + 16, at + 21))
            at += 20
        capture.range(f"step_{step}", begun, at)
    timeline = capture.timeline()
    assert saved_us(match_of(RULE, timeline), timeline) <= 12 * 28


def test_copies_that_synchronize_are_those_of_host_sync() -> None:
    timeline = layers(20, synced=True).timeline()
    assert RULE.check(timeline) is CLEAN
    results = run_timeline_rules(timeline, [HostSync(), RULE])
    assert [finding.title for finding in results.findings] == ["20 blocking syncs per step"]


def test_copies_in_a_row_could_be_one_although_each_is_waited_for() -> None:
    """Columns of a batch copied by `.to("cuda")`: a copy and a sync each, then the model."""
    capture, at = Capture(), 0.0
    for step in range(4):
        begun = at
        for _ in range(100):
            capture.copy((at, at + 6), (at + 7, at + 8.4), size=4_096, **TO_GPU)
            capture.call("cudaStreamSynchronize", at + 6.5, at + 10)
            at += 22
        for _ in range(20):
            capture.launch((at, at + 5), (at + 7, at + 13))
            at += 30
        capture.range(f"step_{step}", begun, at)
        at += 20
    results = run_timeline_rules(capture.timeline(), timeline_rules().values())
    first = results.findings[0]
    assert (first.rule, first.title) == ("small-transfers", "100 small H2D/D2H copies per step")
    # A copy, its sync and the host time before it: 22 of them per step but for the first.
    assert (first.recoverable_ns or 0) / 4e3 == pytest.approx(99 * 22, rel=0.15)


@pytest.mark.parametrize("in_call", [False, True])
def test_many_copies_of_a_batch_come_before_the_launches_of_the_model(*, in_call: bool) -> None:
    """Columns copied one by one: some copies end before their call does, and none is awaited."""
    capture, at = Capture(), 0.0
    for step in range(6):
        begun = at
        for _ in range(160):
            copied = at + (4 if in_call else 9)
            capture.copy((at, at + 8), (copied, copied + 1.4), size=4_096, **TO_GPU)
            at += 11
        for _ in range(40):
            capture.launch((at, at + 5), (at + 7, at + 13))
            at += 30
        capture.range(f"step_{step}", begun, at)
        at += 20
    context = capture.timeline()
    results = run_timeline_rules(context, timeline_rules().values())
    first, second, *_ = [finding.rule for finding in results.findings]
    assert (first, second) == ("small-transfers", "launch-bound")
    # A graph cannot contain the copies: it saves none of their time.
    copying_us = 6 * 160 * 11
    assert (results.findings[1].recoverable_ns or 0) / 1e3 < context.length_ns / 1e3 - copying_us


@pytest.mark.parametrize(
    "capture",
    [
        pytest.param(layers(5), id="few"),
        pytest.param(layers(20, size=1_000_000), id="large"),
        pytest.param(layers(50, in_steps=1), id="setup in one step"),
    ],
)
def test_clean(capture: Capture) -> None:
    assert RULE.check(capture.timeline()) is CLEAN
