"""Steps of programs that nobody annotated: by the order of launches, operators and calls."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from gpusight.analysis.steps.step_detection import detect_steps
from gpusight.analysis.steps.step_list import StepEvidence, TraceSteps
from gpusight.results import NotApplicable
from gpusight.trace.trace import Trace
from tests.analysis.steps.further_programs import FURTHER
from tests.analysis.steps.programs import FAMILIES, Recorder, made
from tests.traces import build_trace

SEED = 305
"""Any other does; the smaller its programs, the cheaper the test."""
_SMALLER = {
    "training_without_waits": 304, "evaluation_every_n_steps": 307, "training_with_loss_item": 304,
    "checkpoint_every_n_steps": 303, "logging_every_n_steps": 304, "ppo_with_cpu_environments": 303,
    "autotuning_in_front": 300, "stencil": 302, "training_then_test": 301, "random_work": 300,
    "unified_memory": 300, "gemm_benchmark": 300, "plain_sgd_with_evaluation": 300,
    "lstm_cells_in_training": 303, "one_training_step": 301, "ode_solver": 307,
    "passes_without_graph_in_front": 304, "recompiled_until_a_test": 301,
}  # fmt: skip


def found(trace: Trace) -> TraceSteps:
    steps = detect_steps(trace).steps
    assert isinstance(steps, TraceSteps), steps
    return steps


@pytest.mark.parametrize("family", dict.fromkeys([*FAMILIES, *FURTHER]))
def test_programs_have_the_steps_that_they_run(family: str) -> None:
    trace, starts = made(family, _SMALLER.get(family, SEED))
    detected = detect_steps(trace)
    if not starts:
        assert isinstance(detected.steps, NotApplicable), detected.steps
        return
    steps = found(trace).steps
    assert len(steps) == len(starts), detected.steps
    # A step may begin at any place of the loop, but each truth has one of its own.
    owner = np.searchsorted(starts, [step.start_ns for step in steps], side="right") - 1
    assert len(np.unique(owner)) >= len(starts) - 1
    assert all(a.end_ns <= b.start_ns for a, b in pairwise(steps))


def test_the_loop_inside_a_step_is_named() -> None:
    trace, _ = made("lstm_cells_in_inference", SEED)
    inner = found(trace).inner_loop
    assert inner is not None
    assert inner.gpu_ops == 5
    assert inner.count > 10
    assert 15_000 < inner.gpu_ns < 30_000
    assert found(made("training_with_loss_item", 304)[0]).inner_loop != inner


def test_what_comes_after_the_last_step_is_not_part_of_it() -> None:
    trace, starts = made("training_then_test", 301)
    steps = found(trace).steps
    usual = np.median([step.end_ns - step.start_ns for step in steps])
    assert steps[-1].end_ns - steps[-1].start_ns < 1.2 * usual
    assert steps[-1].start_ns >= starts[-1]


def test_a_wait_long_after_the_last_result_is_not_part_of_the_last_step() -> None:
    recorder = Recorder(np.random.default_rng(1))
    for _ in range(3):
        recorder.kernels("load", "solve", "store", gpu_us=300)
        recorder.sync()
        recorder.host(20_000)  # what the program does between two steps, and before it ends
        recorder.sync()
    last = found(recorder.trace()).steps[-1]
    assert last.end_ns - last.start_ns < 1_500_000


def test_steps_of_other_sizes_say_how_they_differ() -> None:
    trace, _ = made("conjugate_gradients_in_time_steps", 306)
    assert found(trace).how.startswith("the same kinds of GPU activities (")


def test_the_nodes_of_a_graph_are_one_launch() -> None:
    """Layers inside it are no steps: one call launches them all."""
    recorder = Recorder(np.random.default_rng(1))
    for _ in range(6):
        recorder.graph(1, 30)
        call = recorder.calls[-1]
        del recorder.work["graph_launches"][-1]
        for n in range(12):
            times = {"start_ns": call["end_ns"] + n * 900, "end_ns": call["end_ns"] + n * 900 + 800}
            name = {"name": "abc"[n % 3], "correlation": call["correlation"]}
            recorder.work.setdefault("kernels", []).append({**times, **name})
        recorder.host(100)
    recorder.work.pop("graph_launches")
    steps = found(recorder.trace())
    assert (len(steps.steps), steps.evidence) == (6, StepEvidence.GRAPHS)


@pytest.mark.parametrize(("gpu_us", "count"), [(5.0, 0), (400.0, 12)])
def test_one_kernel_is_a_step_only_if_it_takes_a_while(gpu_us: float, count: int) -> None:
    recorder = Recorder(np.random.default_rng(1))
    for _ in range(12):
        recorder.kernel("k", gpu_us=gpu_us)
    detected = detect_steps(recorder.trace()).steps
    assert count == (len(detected.steps) if isinstance(detected, TraceSteps) else 0)


# Without GPU work -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("iterations", "waits", "count"), [(2_000, True, 2_000), (20, True, 0), (2_000, False, 0)]
)
def test_a_program_of_one_short_kernel_and_a_wait_is_a_loop_of_steps(
    iterations: int, waits: bool, count: int
) -> None:
    """Of other programs it is a part; without the wait, nothing shows that an iteration ends."""
    record = Recorder(np.random.default_rng(1))
    record.h2d()
    for _ in range(iterations):
        record.kernel("saxpy", gpu_us=5)
        if waits:
            record.sync()
    steps = detect_steps(record.trace()).steps
    assert (len(steps.steps) if isinstance(steps, TraceSteps) else 0) == count


def operators(names: str, **row: Any) -> list[dict[str, Any]]:
    return [
        {"start_ns": n * 1000, "end_ns": n * 1000 + 900, "name": f"op_{name}", **row}
        for n, name in enumerate(names)
    ]


def test_operators_of_a_cpu_repeat() -> None:
    inner = [{"start_ns": n * 1000 + 5, "end_ns": n * 1000 + 50, "name": "in"} for n in range(30)]
    steps = found(build_trace(cpu_ops=[*operators("abcdef" * 5), *inner]))
    assert (len(steps.steps), steps.how) == (5, "the same 6 operators, called repeatedly")


def test_calls_repeat_where_the_driver_recorded_no_gpu_work() -> None:
    names = {"a": "cudaMemcpy", "b": "cudaLaunchKernel", "c": "cudaDeviceSynchronize"}
    calls = [{**row, "name": names[row["name"][-1]]} for row in operators("abbbbbc" * 6)]
    steps = found(build_trace(api_calls=calls))
    assert len(steps.steps) == 6
    assert "API calls" in steps.how


@pytest.mark.parametrize(("streams", "count"), [(5, 0), (2, 5)])
def test_equal_work_at_the_same_time_is_no_loop(streams: int, count: int) -> None:
    """Unless it takes turns on streams."""
    calls, kernels = [], []
    for n in range(5):
        launch = {"start_ns": 10_000 * n, "end_ns": 10_000 * n + 5_000, "correlation": n}
        calls.append(launch)
        start = 20_000 + 10_000 * n
        own = {"start_ns": start, "end_ns": start + 900_000, "name": "add_one"}
        kernels.append({**own, "stream": 20 + n % streams, "correlation": n})
    detected = detect_steps(build_trace(api_calls=calls, kernels=kernels)).steps
    assert (len(detected.steps) if isinstance(detected, TraceSteps) else 0) == count


def test_a_call_that_waits_for_a_full_queue_is_no_pause() -> None:
    """The host pauses before each pass of three equal layers; launches take as long as kernels."""
    calls, kernels, now = [], [], 0
    for n in range(12 * 3 * 2):
        now += 30_000 if n % 6 == 0 else 5_000
        took = 100_000 + 40_000 * (n * 7 % 5)
        call = {"start_ns": now, "end_ns": now + took, "correlation": n + 1}
        calls.append(call)
        own = {"start_ns": now + took, "end_ns": now + 2 * took, "correlation": n + 1}
        kernels.append({**own, "name": ("norm", "gemm")[n % 2]})
        now += took
    steps = found(build_trace(api_calls=calls, kernels=kernels)).steps
    assert len(steps) == 12
