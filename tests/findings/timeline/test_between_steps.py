"""between-steps: what the host does from one step to the next."""

from __future__ import annotations

import pytest

from gpusight.findings.timeline.rule import Absent
from gpusight.findings.timeline.rules.between_steps import BetweenSteps
from gpusight.findings.verdict import CLEAN
from tests.findings.timeline.traces import Capture, evidence, found, judged, opened, saved_us
from tests.shared import needs_shared

RULE = BetweenSteps()


def loop(
    between_us: float, name: str | None = "log metrics", source: str = "nsys-sqlite"
) -> Capture:
    """Five steps of 200 us with a kernel of 150 us, and something in between."""
    capture, at = Capture(source), 0.0
    for step in range(5):
        capture.range(f"step_{step}", at, at + 200)
        capture.launch((at + 10, at + 15), (at + 17, at + 167))
        capture.call("cudaDeviceSynchronize", at + 20, at + 170)
        if name:
            capture.range(name, at + 200, at + 200 + between_us)
        at += 200 + between_us
    return capture


def test_work_between_steps() -> None:
    timeline = loop(100).timeline()
    verdict = found(RULE, timeline)
    # Four gaps between five steps.
    assert evidence(verdict) == {
        "idle_ns": 4 * 100_000 / 5,
        "between_ns": 4 * 100_000 / 5,
        "host_ns": 4 * 100_000 / 5,
        "longest_ns": 100_000,
    }
    assert [(w.kind, w.name, w.ns, w.count) for w in verdict.where] == [
        ("range", "log metrics", 400_000, 4)
    ]
    assert saved_us(verdict, timeline) == 80
    assert "`log metrics`" in verdict.fix


def test_one_long_gap_is_told() -> None:
    capture = loop(30)
    capture.range("step_5", 1_500, 1_700)
    capture.launch((1_510, 1_515), (1_517, 1_667))
    capture.range("save checkpoint", 1_120, 1_490)
    verdict = found(RULE, capture.timeline())
    assert verdict.where[0].name == "save checkpoint"
    assert evidence(verdict)["longest_ns"] == 380_000


@pytest.mark.parametrize(
    ("between_us", "name"),
    [
        pytest.param(0, None, id="nothing"),
        pytest.param(15, None, id="the loop itself"),
        pytest.param(500, "load batch", id="input has a rule of its own"),
    ],
)
def test_clean(between_us: float, name: str | None) -> None:
    assert RULE.check(loop(between_us, name).timeline()) is CLEAN


def test_the_profiler_counting_steps_is_not_the_program() -> None:
    capture = loop(100, None, source="torch-json")
    for step in range(5):
        at = step * 300 + 200
        capture.event("python_calls", "torch/profiler/profiler.py(884): step", at + 1, at + 99)
    assert RULE.check(capture.timeline()) is CLEAN


def kernels_in_a_row(pause_us: float) -> Capture:
    """Eight times the same four kernels, no ranges; the host pauses before each third one."""
    capture, at = Capture(), 0.0
    for _ in range(8):
        for number in range(4):
            at += pause_us if number == 2 else 0
            capture.launch((at, at + 5), (at + 7, at + 40), f"kernel_{number}")
            at += 50
    return capture


def test_a_long_stretch_inside_steps_counts_as_well() -> None:
    timeline = kernels_in_a_row(2_000).timeline()
    verdict = found(RULE, timeline)
    assert verdict.title.startswith("Other host work keeps the GPU waiting for 2.0")
    assert evidence(verdict)["between_ns"] == 0
    assert saved_us(verdict, timeline) == pytest.approx(2_000, rel=0.05)
    assert RULE.check(kernels_in_a_row(900).timeline()) is CLEAN


def test_a_hiccup_in_one_step_is_no_finding() -> None:
    """One stretch of 1.5 ms in eight steps of 4 ms; one of 3 ms tells."""
    for pause_us, tells in ((1_500, False), (3_000, True)):
        capture = Capture()
        for step in range(8):
            capture.range(f"step_{step}", step * 4_000, step * 4_000 + 4_000)
            for number in range(40):
                at = step * 4_000 + number * 100
                if step == 4 and 5 <= number < 5 + pause_us / 100:
                    continue
                capture.launch((at, at + 5), (at + 7, at + 95))
        assert (RULE.check(capture.timeline()) is not CLEAN) == tells


def test_ranges_around_a_part_of_each_step_say_nothing_of_the_rest() -> None:
    """Half of the launches come after the range: that is no time between steps."""
    capture = Capture()
    for step in range(5):
        at = step * 400
        capture.range(f"step_{step}", at, at + 200)
        capture.launch((at + 10, at + 15), (at + 17, at + 167))
        capture.launch((at + 310, at + 315), (at + 317, at + 367))
    assert RULE.check(capture.timeline()) is CLEAN


def test_one_step_cannot_be_judged() -> None:
    assert isinstance(RULE.check(judged(kernels=[{"end_ns": 10, "name": "k"}])), Absent)
    capture = Capture("torch-json")
    capture.range("ProfilerStep#3", 0, 300)
    capture.launch((10, 15), (17, 290))
    assert isinstance(RULE.check(capture.timeline()), Absent)


@needs_shared
@pytest.mark.parametrize(
    "capture",
    ["nsys/healthy.sqlite", "nsys/graph.sqlite", "torch/healthy.json.gz", "torch/item.json.gz"],
)
def test_clean_captures(capture: str) -> None:
    assert RULE.check(opened(capture)) is CLEAN
