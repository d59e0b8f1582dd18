"""memory-growth: memory in use at the ends of steps."""

from __future__ import annotations

from typing import Any

import pytest

from gpusight.rules.engine import run_timeline_rules
from gpusight.rules.rule import CLEAN, RuleNotApplicable
from gpusight.rules.timeline.memory_growth import MemoryGrowth
from tests.rules.timeline.rule_captures import Capture, evidence, match_of, opened
from tests.shared import needs_shared

RULE = MemoryGrowth()
MB = 1_000_000
MODEL = 1_000 * MB


def steps(levels: list[int], **device: Any) -> Capture:
    """Steps of 1 ms that end with so many bytes in use, above a model that is held all along."""
    capture = Capture("torch-chrome")
    capture.tables["devices"].append({"device": 0, "memory_bytes": 10_000 * MB, **device})
    held, address = 0, 0
    _event(capture, 0.0, "allocation", MODEL, 1 << 40)
    for n, level in enumerate(levels):
        at = 100 + n * 1_000.0
        capture.range(f"step_{n}", at, at + 990)
        capture.launch((at + 10, at + 15), (at + 20, at + 900), "gemm")
        _event(capture, at + 20, "allocation", 200 * MB, 1 << 50)
        _event(capture, at + 800, "deallocation", 200 * MB, 1 << 50)
        if level != held:
            kind = "allocation" if level > held else "deallocation"
            _event(capture, at + 850, kind, abs(level - held), address := address + 4_096)
        held = level
    return capture


def _event(capture: Capture, at: float, operation: str, size: int, address: int) -> None:
    row = {"operation": operation, "bytes": size, "address": address, "allocator": "framework"}
    rows = capture.tables["memory_events"]
    before = rows[-1]["allocated_bytes"] if rows else 0
    total = before + (size if operation == "allocation" else -size)
    rows.append({"time_ns": round(at * 1_000), "allocated_bytes": total, **row})


def test_a_leak_is_found_with_the_steps_until_the_gpu_is_full() -> None:
    capture = steps([n * 20 * MB for n in range(10)])
    capture.event("cpu_ops", "aten::clone", 0, 11_000)
    verdict = match_of(RULE, capture.timeline())
    numbers = evidence(verdict)
    assert numbers["growth_bytes"] == 20 * MB
    assert numbers["steps"] == 10
    assert numbers["last_bytes"] - numbers["first_bytes"] == 180 * MB
    # The peak of the last step: 1,000 + 160 + 200 MB of 10 GB; at 20 MB a step.
    assert numbers["peak_bytes"] == 1_360 * MB
    assert verdict.title == "GPU memory grows 20.00 MB/step (out of memory in 432 steps)"
    assert verdict.where[0].name.startswith("aten::clone")
    assert verdict.change == ()
    assert verdict.recoverable_ns is None


def test_it_is_a_finding_though_it_gives_back_no_time() -> None:
    timeline = steps([n * 20 * MB for n in range(10)]).timeline()
    (finding,) = run_timeline_rules(timeline, [RULE]).findings
    assert finding.rule == "memory-growth"
    assert finding.recoverable_ns is None


def test_a_leak_of_every_other_step_is_found() -> None:
    verdict = match_of(RULE, steps([n // 2 * 40 * MB for n in range(12)]).timeline())
    assert evidence(verdict)["growth_bytes"] == pytest.approx(20 * MB, rel=0.2)


def test_without_the_size_of_the_gpu_it_does_not_say_when() -> None:
    capture = steps([n * 20 * MB for n in range(10)], memory_bytes=None)
    assert match_of(RULE, capture.timeline()).title == "GPU memory grows 20.00 MB/step"


@pytest.mark.parametrize(
    "levels",
    [
        [0] * 10,
        [0, 300, 500, 590, 600, 600, 600, 600, 600, 600],
        [0, 50, 0, 50, 0, 50, 0, 50, 0, 50],
        [100, 90, 80, 70, 60, 50, 40, 30, 20, 10],
        [0.01 * n for n in range(10)],
    ],
    ids=["flat", "caches that fill", "up and down", "falling", "a few kilobytes a step"],
)
def test_near_misses_do_not_trip(levels: list[float]) -> None:
    assert RULE.check(steps([round(level * MB) for level in levels]).timeline()) == CLEAN


def test_few_steps_cannot_tell() -> None:
    verdict = RULE.check(steps([0, 20 * MB, 40 * MB]).timeline())
    assert isinstance(verdict, RuleNotApplicable)
    assert "too few" in verdict.reason


def test_without_memory_events_it_is_absent() -> None:
    timeline = steps([n * 20 * MB for n in range(10)]).timeline(without=("memory_events",))
    assert RULE.check(timeline) == RuleNotApplicable("the capture has no memory events")


@needs_shared
@pytest.mark.parametrize("name", ["dataload", "healthy", "item", "pageable", "tiny", "conv"])
def test_programs_that_hold_their_memory_are_clean(name: str) -> None:
    assert RULE.check(opened(f"nsys/{name}.sqlite")) == CLEAN
