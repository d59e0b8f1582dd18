"""Programs put together at random have the steps that they run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from gpusight.analysis.steps.step_choice import find_period
from gpusight.analysis.steps.step_detection import detect_steps
from gpusight.analysis.steps.step_list import TraceSteps
from tests.analysis.steps.generated import FEED, NOTHING, PAUSE, UPDATE, WAIT, Plan, plans, trace_of

BASE = Plan(seed=7, steps=8, kernels=24)


def count(plan: Plan) -> int:
    steps = detect_steps(trace_of(plan)).steps
    return len(steps.steps) if isinstance(steps, TraceSteps) else 0


@settings(max_examples=15, derandomize=True)
@given(plans(max_kernels=30))
def test_steps_are_found_whatever_is_around_them(plan: Plan) -> None:
    """One may be cut off at an end."""
    assert abs(count(plan) - plan.steps) <= 1


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(replace(BASE, changing_tiles=True, steps=5), id="other names in each step"),
        pytest.param(replace(BASE, changing_tiles=True, steps=12), id="names come in turn"),
        pytest.param(
            replace(BASE, changing_tiles=True, inner=(6, 5), once=PAUSE), id="an equal inner loop"
        ),
        pytest.param(replace(BASE, inner=(6, 5), once=WAIT, setup=30), id="two levels of loops"),
        pytest.param(replace(BASE, dropped=0.02, once=NOTHING), id="lost events"),
        pytest.param(
            Plan(seed=1, steps=5, kernels=5, once=WAIT, threads=2), id="threads in any order"
        ),
        pytest.param(
            Plan(seed=1, steps=5, kernels=5, once=PAUSE, threads=2), id="threads that do not wait"
        ),
        pytest.param(replace(BASE, threads=2, streams=3, once=FEED), id="threads and streams"),
        pytest.param(replace(BASE, autotuned=8, processes=2, once=UPDATE), id="autotuning"),
        pytest.param(replace(BASE, tail_every=3, once=UPDATE, steps=11), id="tails"),
    ],
)
def test_each_thing_that_steps_may_have(plan: Plan) -> None:
    assert abs(count(plan) - plan.steps) <= 1


@pytest.mark.parametrize(("length", "repetitions"), [(3, 30_000), (100_000, 3)])
def test_steps_of_any_length(length: int, repetitions: int) -> None:
    kinds = np.random.default_rng(length).integers(0, 80, length)
    step = np.arange(length) if length < len(set(kinds.tolist())) else kinds
    period = find_period(np.tile(step, repetitions))
    assert period is not None
    assert (period.length, len(period.starts)) == (length, repetitions)
