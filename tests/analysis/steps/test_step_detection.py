"""Steps without names that count: ranges that repeat, and GPU work that repeats itself."""

from __future__ import annotations

from typing import Any

import pytest

from gpusight.analysis.steps.step_detection import detect_steps
from gpusight.analysis.steps.step_list import StepEvidence, TraceSteps
from gpusight.results import NotApplicable
from gpusight.trace.trace import Trace
from tests.shared import SHARED, needs_shared, opened
from tests.traces import build_trace

US = 1_000


def program(
    kernels: str, *, every_us: int = 50, ranges: list[tuple[str, int, int]] | None = None
) -> Trace:
    """Launch a kernel for each letter, one every `every_us`; a dot is a wait for the GPU.

    Ranges are given by name and the positions of the first letter inside and the first after.
    """
    at = [i * every_us * US for i in range(len(kernels) + 1)]
    calls: list[dict[str, Any]] = []
    work: list[dict[str, Any]] = []
    for i, letter in enumerate(kernels):
        wait = letter == "."
        name = "cudaDeviceSynchronize" if wait else "cudaLaunchKernel"
        calls.append({"start_ns": at[i], "end_ns": at[i] + US, "name": name, "correlation": i + 1})
        if not wait:
            times = {"start_ns": at[i] + 2 * US, "end_ns": at[i] + 4 * US}
            work.append({**times, "name": letter, "correlation": i + 1, "grid_x": 1})
    spans: list[dict[str, Any]] = [
        {"name": name, "start_ns": at[first], "end_ns": at[after] - 1}
        for name, first, after in ranges or []
    ]
    more: dict[str, Any] = {"ranges": spans} if spans else {}
    return build_trace(api_calls=calls, kernels=work, **more)


def found(trace: Trace) -> TraceSteps:
    steps = detect_steps(trace).steps
    assert isinstance(steps, TraceSteps), steps
    return steps


def first_letters(trace: Trace, every_us: int = 50) -> list[int]:
    """Give the position of the letter that each step begins with."""
    return [step.start_ns // (every_us * US) for step in found(trace).steps]


# Ranges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernels", "first", "after", "is_step"),
    [
        pytest.param("abcdefghijklmnopqrst", 15, 20, True, id="it ends with the optimizer"),
        pytest.param("abcdefghijklmnopqrst", 12, 19, True, id="little follows"),
        pytest.param("abcdefghijklmnopqrst", 0, 19, False, id="no model before it"),
        pytest.param("abcdefghijklmnopqrst", 6, 10, False, id="half of a second step follows"),
    ],
)
def test_the_only_step_of_an_optimizer_ends_a_step(
    kernels: str, first: int, after: int, *, is_step: bool
) -> None:
    trace = program(kernels, ranges=[("Optimizer.step#AdamW.step", first, after)])
    steps = detect_steps(trace).steps
    assert isinstance(steps, TraceSteps) is is_step
    if isinstance(steps, TraceSteps):
        step = steps.steps[0]
        assert (len(steps.steps), step.start_ns, step.end_ns) == (1, 0, after * 50 * US - 1)


def test_one_range_that_repeats_is_the_step() -> None:
    trace = program("abcd" * 4, ranges=[("forward", i, i + 4) for i in range(0, 16, 4)])
    steps = found(trace)
    assert steps.evidence is StepEvidence.REPEATED
    assert [(s.name, s.number) for s in steps.steps] == [("forward", n) for n in range(4)]
    assert "forward" in steps.how


def test_a_round_of_ranges_begins_with_the_first() -> None:
    rounds = [
        (name, at + first, at + after)
        for at in range(0, 15, 5)
        for name, first, after in [("forward", 0, 2), ("backward", 2, 4), ("optimizer", 4, 5)]
    ]
    trace = program("abcde" * 3, ranges=rounds)
    assert first_letters(trace) == [0, 5, 10]
    assert {s.name for s in found(trace).steps} == {"step"}


def test_the_outer_of_two_that_repeat_wins_and_one_around_all_is_looked_into() -> None:
    inner = [(f"layer_{n}", i + n, i + n + 1) for i in range(0, 12, 4) for n in range(4)]
    outer = [("infer", i, i + 4) for i in range(0, 12, 4)]
    trace = program("aaaa" * 3, ranges=[("start", 0, 12), *outer, *inner])
    assert [s.name for s in found(trace).steps] == ["infer"] * 3


def test_a_step_that_ends_with_its_only_range_begins_where_the_one_before_ended() -> None:
    """Forward and backward have no range here; the optimizer's step has."""
    trace = program("ffbbo" * 3, ranges=[("update", i + 4, i + 5) for i in (0, 5, 10)])
    assert first_letters(trace) == [0, 4, 9]
    assert [round((s.end_ns - s.start_ns) / US, -1) for s in found(trace).steps] == [250] * 3


def test_ranges_of_the_framework_are_parts_of_a_step() -> None:
    """A step may update several times: kernels show the loop around it."""
    kernels = "rrr" + "uo" * 3 + "."
    ranges = [
        ("Optimizer.step#SGD.step", 10 * n + i, 10 * n + i + 1) for n in range(4) for i in (4, 6, 8)
    ]
    steps = found(program(kernels * 4, ranges=ranges))
    assert (len(steps.steps), steps.evidence) == (4, StepEvidence.PERIODIC)


def test_ranges_of_operators_are_not_looked_at() -> None:
    ranges = [(f"aten::mm, seq = {n}", n, n + 1) for n in range(6)]
    assert found(program("abcabc" * 4, ranges=ranges)).evidence is StepEvidence.PERIODIC


def test_much_work_after_one_step_does_not_make_the_others_less() -> None:
    """As where a trainer evaluates, batch by batch, between two of the steps that were recorded."""
    steps = [("step 6", 0, 3), ("step 7", 3, 6), ("step 8", 18, 21)]
    loads = [("load", at, at + 1) for at in (0, 3, 6, 8, 10, 12, 14, 16, 18)]
    trace = program("abc" * 2 + "de" * 6 + "abc", ranges=steps + loads)
    assert [step.number for step in found(trace).steps] == [6, 7, 8]


def test_ranges_named_like_steps_that_hold_no_gpu_work_are_not_believed() -> None:
    trace = build_trace(
        ranges=[
            *({"name": f"batch {n}", "start_ns": n * 10_000, "end_ns": n * 10_000 + 9_000,
               "thread": 12} for n in range(3)),
            *({"name": "infer", "start_ns": 100_000 * n, "end_ns": 100_000 * n + 90_000}
              for n in range(1, 5)),
        ],
        api_calls=[{"start_ns": 100_000 * n + 5, "correlation": n} for n in range(1, 5)],
        kernels=[
            {"start_ns": 100_000 * n + 50, "end_ns": 100_000 * n + 60, "correlation": n, "name": ""}
            for n in range(1, 5)
        ],
    )  # fmt: skip
    assert [s.name for s in found(trace).steps] == ["infer"] * 4


# GPU work -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernels", "starts"),
    [
        ("abcdef" * 4, [0, 6, 12, 18]),
        ("aaaaa." * 4, [0, 6, 12, 18]),  # only the wait tells where it begins
        ("xyz" + "abcdef." * 5, [3, 10, 17, 24, 31]),  # preparation comes before
        ("abcdef" * 3 + "abcxdef" + "abcdef" * 4, [0, 6, 12, 18, 25, 31, 37, 43]),  # one more
        ("pab ab ab ab q.".replace(" ", "") * 3, [0, 11, 22]),  # layers inside a step
    ],
)
def test_kernels_that_repeat(kernels: str, starts: list[int]) -> None:
    trace = program(kernels)
    assert first_letters(trace) == starts
    assert found(trace).evidence is StepEvidence.PERIODIC
    assert "launched repeatedly" in found(trace).how


@pytest.mark.parametrize(
    "kernels",
    ["abcdefghijkl", "pqrababababstu", "ab", "a", "abcabd"],
)
def test_kernels_that_do_not_repeat_or_only_in_part(kernels: str) -> None:
    assert isinstance(detect_steps(program(kernels)).steps, NotApplicable)


def test_a_loop_may_be_launched_fast() -> None:
    """What counts is that the GPU repeats itself, however soon the host is done."""
    assert len(found(program("abc" * 50, every_us=2)).steps) == 50


def test_launches_of_whole_graphs_are_steps() -> None:
    calls = [
        {"start_ns": n * 200_000, "name": "cudaGraphLaunch", "correlation": n + 1} for n in range(5)
    ]
    runs = [
        {"start_ns": n * 200_000 + 50, "end_ns": n * 200_000 + 100_000, "graph": 3,
         "correlation": n + 1}
        for n in range(5)
    ]  # fmt: skip
    steps = found(build_trace(api_calls=calls, graph_launches=runs))
    assert steps.evidence is StepEvidence.GRAPHS
    assert len(steps.steps) >= 4


def test_copies_alone_are_no_steps() -> None:
    copies = [{"start_ns": n * 500_000, "end_ns": n * 500_000 + 9, "bytes": 8} for n in range(9)]
    assert isinstance(detect_steps(build_trace(copies=copies)).steps, NotApplicable)


def test_without_calls_the_work_itself_tells() -> None:
    kernels = [
        {"start_ns": n * 50_000, "end_ns": n * 50_000 + 9, "name": "abcdef"[n % 6]}
        for n in range(30)
    ]
    assert len(found(build_trace(kernels=kernels)).steps) >= 4


@needs_shared
@pytest.mark.parametrize(
    ("capture", "count"),
    [("gpt_small_forward", 3), ("gpt_small_train", 3), ("gpt_tiny_compile", 2)],
)
def test_real_traces_without_step_ranges(capture: str, count: int) -> None:

    trace = opened(SHARED / "torch" / f"{capture}.json.gz")
    assert len(found(trace).steps) == count


@needs_shared
@pytest.mark.parametrize(
    "capture", ["conv", "gpt_small_train", "gpt_tiny_train_r1", "pageable", "tiny", "graph_node"]
)
def test_kernels_give_the_steps_that_ranges_name(capture: str) -> None:
    """The same captures, once by `step_0`, `step_1`, … and once as if those were not there."""
    from gpusight.analysis.launch_index import launched
    from gpusight.analysis.steps.step_sequences import periodic_steps

    trace = opened(SHARED / "nsys" / f"{capture}.sqlite")
    named, periodic = found(trace), periodic_steps(trace, launched(trace))
    assert periodic is not None
    assert len(periodic.steps) == len(named.steps)
    for a, b in zip(named.steps, periodic.steps, strict=True):
        length = a.end_ns - a.start_ns
        assert abs(a.start_ns - b.start_ns) < 0.2 * length
