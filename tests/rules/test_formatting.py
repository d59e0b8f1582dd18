"""Whether steps are alike, and how amounts per step are written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusight.rules.formatting import (
    called_from,
    is_training,
)
from gpusight.rules.patterns.kernel_groups import LaunchRepetition, repetition
from tests.rules.timeline.rule_captures import Capture


def steps(*sequences: str) -> LaunchRepetition:
    """Compare steps whose kernels have names of one letter."""
    capture = Capture()
    for step, names in enumerate(sequences):
        capture.range(f"step_{step}", step * 1_000, step * 1_000 + 900)
        for number, name in enumerate(names):
            at = step * 1_000 + number * 50
            capture.launch((at, at + 5), (at + 7, at + 17), name)
    return repetition(capture.timeline())


@pytest.mark.parametrize(
    ("sequences", "repeated", "alike"),
    [
        (("abc", "abc", "abc"), 1.0, 1.0),
        (("abc", "acb", "abc"), 1.0, 2 / 3),
        (("abx", "aby", "abz"), 2 / 3, 1 / 3),
        (("abc", "def", "ghi"), 0.0, 1 / 3),
    ],
)
def test_repetition(sequences: tuple[str, ...], repeated: float, alike: float) -> None:
    result = steps(*sequences)
    assert result.kernels == 9
    assert result.repeated == pytest.approx(repeated)
    assert result.alike == pytest.approx(alike)


def test_one_step_has_nothing_to_be_compared_with() -> None:
    capture = Capture("torch-json")
    capture.range("ProfilerStep#1", 0, 900)
    for number, name in enumerate("aaab"):
        capture.launch((number * 50, number * 50 + 5), (number * 50 + 7, number * 50 + 17), name)
    assert repetition(capture.timeline()) == LaunchRepetition(4, 0.75, None)


def test_ranges_of_operators_lose_their_numbers() -> None:
    capture = Capture()
    for number in range(3):
        at = number * 100
        capture.range(f"aten::mm, seq = {number}, op_id = {7 * number}", at, at + 50)
        capture.launch((at + 5, at + 10), (at + 12, at + 40))
    context = capture.timeline()
    places = called_from(context, context.calls)["range"]
    assert [(place.name, place.count) for place in places] == [("aten::mm", 3)]


def test_amounts_are_per_step_of_the_window() -> None:
    capture = Capture()
    for step in range(4):
        capture.range(f"step_{step}", step * 1_000, step * 1_000 + 900)
        capture.launch((step * 1_000, step * 1_000 + 5), (step * 1_000 + 7, step * 1_000 + 17), "a")
    context = capture.timeline()
    length_us = context.length_ns / 1_000
    assert context.time_per_step(context.length_ns) == f"{length_us / 4:.0f} µs/step"
    assert context.count_per_step(48, "blocking sync") == "12 blocking syncs per step"
    assert context.count_per_step(4, "launch") == "1 launch per step"
    assert context.count_per_step(10, "copy") == "2.5 copies per step"
    assert context.count_per_step(384) == "96 per step"
    assert context.count_per_step(3, "copy") == "3 copies in 4 steps"
    assert context.count_per_step(1) == "1 in 4 steps"
    # A sample whose steps are longer than those of the window: times are scaled to the headline's.
    context.focus = replace(context.focus, end_ns=context.focus.start_ns + context.length_ns // 2)
    assert context.time_per_step(context.length_ns) == f"{length_us / 8:.0f} µs/step"


def test_amounts_without_steps_have_no_unit_of_steps() -> None:
    capture = Capture()
    capture.launch((0, 5), (7, 1_007), "a")
    context = capture.timeline()
    assert context.time_per_step(500_000) == "500 µs"
    assert context.count_per_step(3, "launch") == "3 launches"


@pytest.mark.parametrize(
    ("kernel", "phase", "expected"),
    [
        ("flash_fwd_kernel", "forward", False),
        ("flash_bwd_kernel", "step", True),
        ("k", "backward", True),
        ("k", "optimizer", True),
    ],
)
def test_training_is_seen_by_backward_or_optimizer(kernel: str, phase: str, expected: bool) -> None:
    capture = Capture()
    capture.range(phase, 0, 900)
    capture.launch((10, 15), (17, 57), kernel)
    assert is_training(capture.timeline()) is expected
