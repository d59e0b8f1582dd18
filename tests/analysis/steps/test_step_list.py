"""Steps, found by the names of ranges."""

from __future__ import annotations

from dataclasses import astuple

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpusight.analysis.steps.step_list import (
    SCHEMA,
    StepList,
    TraceStep,
    TraceSteps,
    ends_of,
    find_steps,
    frame_of,
    read_name,
    read_names,
    starts_of,
)
from gpusight.results import NotApplicable
from tests.shared import DATA, opened
from tests.traces import Rows, build_trace


def steps(*ranges: tuple[str, int, int] | tuple[str, int, int, int]) -> TraceSteps | NotApplicable:
    """Find the steps among ranges given as name, start, end and, where it matters, thread."""
    keys = ("name", "start_ns", "end_ns", "thread")
    rows: Rows = [dict(zip(keys, row, strict=False)) for row in ranges]
    return find_steps(build_trace(ranges=rows))


def found(*ranges: tuple[str, int, int] | tuple[str, int, int, int]) -> list[tuple[str, int]]:
    result = steps(*ranges)
    assert isinstance(result, TraceSteps), result
    return [(step.name, step.number) for step in result.steps]


@pytest.mark.parametrize(
    ("name", "family", "number"),
    [
        ("ProfilerStep#5", "profiler step##", 5),
        ("step_0", "step_#", 0),
        ("training_step_3", "training_step_#", 3),
        ("iteration 7", "iteration #", 7),
        ("Step 12", "step #", 12),
        ("TrainStep5", "train step#", 5),
        ("iter7", "iter#", 7),
        ("batch:12/100", "batch:#/#", 12),
        ("epoch 2 step 14", "epoch # step #", 14),
        ("resnet18_step_4", "resnet#_step_#", 4),
        ("step_3_bs32", "step_#_bs#", 3),
        ("7_step", "#_step", 7),
        ("train_step", "train_step", None),
        ("train 12", "train #", 12),
        ("train#0", "train##", 0),
        ("Generate 3", "generate #", 3),
        ("[pl][profile]run_training_batch", "[pl][profile]run_training_batch", None),
        ("execute_model", "execute_model", None),
        ("execute_context_1(888)", "execute_context_#(#)", 888),
    ],
)
def test_names_that_are_steps(name: str, family: str, number: int | None) -> None:
    assert read_name(name) == (family, number)


@pytest.mark.parametrize(
    "name",
    ["layer_3", "forward", "writer_2", "stepper 3", "Optimizer.step#AdamW.step", "12", "",
     "optimizer_step_4", "lr_scheduler step 2", "train", "generate", "load batch", "next_batch 3",
     "x" * 5000 + "step_1"],
)  # fmt: skip
def test_names_that_are_not(name: str) -> None:
    assert read_name(name) is None


def test_steps_come_in_order_with_their_times() -> None:
    result = steps(("step_1", 20, 30), ("step_0", 0, 10), ("forward", 1, 5))
    assert isinstance(result, TraceSteps)
    first, second = result.steps
    assert (first.name, first.number, first.start_ns, first.end_ns) == ("step_0", 0, 0, 10)
    assert (second.name, second.number, second.start_ns, second.end_ns) == ("step_1", 1, 20, 30)


def test_the_outer_family_wins() -> None:
    outer = [("step 1", 0, 50), ("step 2", 50, 90)]
    inner = [("microbatch 1", 0, 20), ("microbatch 2", 20, 45), ("microbatch 3", 55, 80)]
    assert found(*outer, *inner) == [("step 1", 1), ("step 2", 2)]


def test_the_profilers_own_steps_win_over_longer_ones() -> None:
    own = [("ProfilerStep#4", 10, 20), ("ProfilerStep#5", 20, 30)]
    longer = [("step 1", 0, 50), ("step 2", 50, 90)]
    assert found(*own, *longer) == [("ProfilerStep#4", 4), ("ProfilerStep#5", 5)]


def test_steps_may_overlap_by_the_rounding_of_times() -> None:
    found = steps(("batch 1", 0, 100_000), ("batch 2", 99_999, 200_000))
    assert isinstance(found, TraceSteps)
    assert [(s.number, s.start_ns, s.end_ns) for s in found.steps] == [
        (1, 0, 99_999),
        (2, 99_999, 200_000),
    ]


def test_members_that_overlap_on_a_thread_are_no_steps() -> None:
    assert isinstance(steps(("batch 1", 0, 20), ("batch 2", 10, 30)), NotApplicable)
    assert found(("batch 1", 0, 20, 11), ("batch 2", 10, 30, 12)) == [
        ("batch 1", 1),
        ("batch 2", 2),
    ]


def test_one_member_is_no_family_but_one_profiler_step_is_a_step() -> None:
    assert isinstance(steps(("step 1", 0, 20)), NotApplicable)
    assert found(("ProfilerStep#6", 0, 20)) == [("ProfilerStep#6", 6)]
    two = [("step 1", 0, 5), ("step 2", 5, 9)]
    assert found(("ProfilerStep#6", 0, 20), *two) == [("step 1", 1), ("step 2", 2)]


def test_a_repeated_name_is_numbered_as_it_comes() -> None:
    repeated = [("train_step", 0, 10), ("train_step", 10, 20), ("train_step", 20, 30)]
    assert found(*repeated) == [("train_step", 0), ("train_step", 1), ("train_step", 2)]
    size = [("step bs32", 0, 10), ("step bs32", 10, 20)]
    assert found(*size) == [("step bs32", 0), ("step bs32", 1)]


def test_warm_up_comes_last_however_long() -> None:
    warm = [("warmup step 0", 0, 100), ("warmup step 1", 100, 200)]
    assert found(*warm, ("step 0", 200, 210), ("step 1", 210, 220)) == [
        ("step 0", 0),
        ("step 1", 1),
    ]


def test_marks_and_ranges_never_closed_are_no_steps() -> None:
    trace = build_trace(
        ranges=[
            {"name": "step 1", "start_ns": 0, "end_ns": 0, "kind": "mark"},
            {"name": "step 2", "start_ns": 5, "end_ns": 9},
            {"name": "step 3", "start_ns": 9, "end_ns": 99, "open": True},
        ]
    )
    result = find_steps(trace)
    assert isinstance(result, NotApplicable)
    assert "nvtx.range" in result.hint


@pytest.mark.parametrize(
    ("source", "remedy"),
    [("torch-chrome", "record_function"), ("jax-xplane", "StepTraceAnnotation")],
)
def test_the_remedy_is_that_of_the_tool(source: str, remedy: str) -> None:
    result = find_steps(build_trace({"source": source}, ranges=[{"name": "x"}]))
    assert isinstance(result, NotApplicable)
    assert remedy in result.hint


def test_no_ranges_at_all_is_explained() -> None:
    result = find_steps(build_trace(kernels=[{"name": "k"}]))
    assert isinstance(result, NotApplicable)
    assert "no ranges" in result.reason


def test_moments_are_placed_in_the_step_of_their_process() -> None:
    trace = build_trace(
        ranges=[
            {"name": "step 1", "start_ns": 0, "end_ns": 10, "process": 1, "thread": 11},
            {"name": "step 2", "start_ns": 20, "end_ns": 30, "process": 1, "thread": 11},
            {"name": "step 1", "start_ns": 5, "end_ns": 25, "process": 2, "thread": 12},
        ]
    )
    result = find_steps(trace)
    assert isinstance(result, TraceSteps)
    placed = result.holding(pl.Series([25, 0, 10, 6, 24]), pl.Series([1, 1, 1, 2, 2]))
    assert placed.to_list() == [2, 0, None, 1, 1]


def test_a_real_capture_has_four() -> None:
    result = find_steps(opened(DATA / "healthy.json.gz"))
    assert isinstance(result, TraceSteps)
    assert [step.name for step in result.steps] == ["train_step"] * 4


NAME_PARTS = st.sampled_from(
    ["step", "Iter", "_", " ", "#", "batch", "TrainStep", "optim", "execute_", "context", "é", "\n"]
)
NAMES = st.lists(NAME_PARTS | st.integers(0, 10**21).map(str) | st.text(max_size=3), max_size=8)


@given(st.lists(NAMES.map("".join), max_size=20))
@example(
    ["step 007 of 12", "step 8 of 12", "step " + "9" * 18, "step " + "9" * 19, "step ٣", "a" * 300]
)
@example([f"{'x' * 190}_step_1234567890", "step_1\n", "train\n4", "step", "7_step"])
def test_names_read_together_are_read_as_each_alone(names: list[str]) -> None:
    distinct = sorted(set(names))
    known = {name: parsed for name in distinct if (parsed := read_name(name)) is not None}
    together = read_names(pl.Series(distinct, dtype=pl.String))
    assert {name: (family, number) for name, family, number in together.iter_rows()} == known


def test_steps_in_columns_are_a_sequence_of_steps() -> None:
    each = tuple(TraceStep(f"step_{n}", n, 10 * n, 10 * n + 9, 1, None) for n in range(5))
    listed = StepList(pl.DataFrame([astuple(s) for s in each], SCHEMA, orient="row"))
    assert tuple(listed) == each
    assert listed == each
    assert hash(listed) == hash(each)
    assert (listed[1], listed[-1], tuple(listed[1:3])) == (each[1], each[-1], each[1:3])
    assert StepList.of(listed[:2], each[2:], ()) == listed
    assert not StepList.of()
    with pytest.raises(IndexError):
        listed[5]
    for times in (starts_of, ends_of):
        assert times(listed).tolist() == times(each).tolist()
    assert frame_of(each).equals(listed.frame)
