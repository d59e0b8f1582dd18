"""Which steps of a window are diagnosed, where all of them would take too long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpusight.rules import context as module
from tests.rules.timeline.rule_captures import Capture

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext

OPS = 10
"""Kernels in a step."""


@pytest.fixture(autouse=True)
def _few_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four steps fit in a sample, and eight where steps differ."""
    monkeypatch.setattr(module, "MAX_SAMPLE_OPS", 4 * OPS)
    monkeypatch.setattr(module, "MAX_VARIED_OPS", 8 * OPS)


def sampled(*lengths_us: float) -> RuleContext:
    """Diagnose steps of these lengths, whose kernels take half of the time."""
    capture, at = Capture(), 0.0
    for number, length in enumerate(lengths_us):
        each = length / OPS
        for kernel in range(OPS):
            begun = at + kernel * each
            capture.launch((begun, begun + 2), (begun + 4, begun + 4 + each / 2))
        capture.range(f"step_{number}", at, at + length - 1)
        at += length
    return capture.timeline()


def mean_us(context: RuleContext) -> float:
    return context.length_ns / context.steps / 1_000


def test_all_steps_where_they_fit() -> None:
    context = sampled(100, 130, 100, 120)
    assert (context.steps, context.part) == (4, "")


def test_equal_steps_are_those_in_the_middle() -> None:
    context = sampled(*[100] * 12)
    assert (context.steps, context.part) == (4, "4 of 12 steps")
    assert context.schedule.start_ns == pytest.approx(400_000, abs=5_000)


def test_steps_are_like_all_steps_not_like_the_middle() -> None:
    """The middle is slow: those that have the mean of all lie beside it."""
    context = sampled(*[100] * 6, *[200] * 4, *[100] * 6)
    assert context.steps == 4
    assert mean_us(context) == pytest.approx(125, rel=0.02)


def test_more_steps_where_none_that_fit_are_alike() -> None:
    """Every eighth step takes five times as long: four steps show too much of it, or nothing."""
    context = sampled(*([100] * 7 + [500]) * 3)
    assert context.steps == 8
    assert mean_us(context) == pytest.approx(150, rel=0.02)


def test_a_step_that_is_too_long_by_itself_is_taken_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SAMPLE_OPS", OPS // 2)
    monkeypatch.setattr(module, "MAX_VARIED_OPS", OPS // 2)
    context = sampled(*[100] * 5)
    assert (context.steps, len(context.schedule.ops)) == (1, OPS)
