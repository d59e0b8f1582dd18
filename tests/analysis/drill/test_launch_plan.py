"""Which launches ncu is to measure, and how it is told to find them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusight.analysis.drill.drill_kernels import FUNCTION, DrillSelection, pick_kernels
from gpusight.analysis.drill.launch_anchors import AnchorSupport, LaunchAnchor
from gpusight.analysis.drill.launch_plan import (
    MAX_LAUNCHES_PER_RUN,
    LaunchPlan,
    pick_totals,
    plan_launches,
    plan_totals,
    shortest_window,
    sure_length,
)
from gpusight.analysis.selection import Selection
from gpusight.results import NotApplicable
from tests.analysis.drill.launch_programs import AUTOGRAD, Launch, Program, Range
from tests.shared import (
    DATA,
    EVERY_REPORT,
    EVERY_SQLITE,
    EVERY_TORCH_TRACE,
    SHARED,
    name,
    needs_shared,
    opened,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpusight.analysis.drill.launch_plan import PlannedRun
    from gpusight.trace.trace import Trace


GEMM = Launch("void lib::gemm<float>(float*)", took_ns=900)
GEMM_WIDE = Launch("void lib::gemm<float>(float*)", grid=8, took_ns=700)
ADD = Launch("void at::add<int>(int)", took_ns=300)
SUM = Launch("sum_kernel", took_ns=50)
BACKWARD = Launch("void lib::gemm_bwd<float>(float*)", took_ns=950, thread=AUTOGRAD)


def picked(trace: Trace, top: int = 3) -> DrillSelection:
    picked = pick_kernels(trace, top=top)
    assert not isinstance(picked, NotApplicable)
    return picked


def planned(trace: Trace, means: AnchorSupport | None = None, top: int = 3) -> LaunchPlan:
    plan = plan_launches(picked(trace, top), means)
    assert plan is not None
    return plan


def steps(
    bodies: Sequence[Sequence[Launch]], kind: str = "push_pop", domain: str = ""
) -> list[Range]:
    return [Range(f"step_{n}", body, kind, domain) for n, body in enumerate(bodies)]


LAUNCHES = st.sampled_from([GEMM, GEMM_WIDE, ADD, SUM, BACKWARD])
BODIES = st.lists(LAUNCHES, min_size=1, max_size=12)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(LAUNCHES, max_size=6),
    st.lists(BODIES, min_size=2, max_size=4),
    st.sampled_from(["push_pop", "start_end"]),
    st.integers(1, 3),
)
def test_inside_a_range_the_shortest_run_is_hit(
    before: list[Launch], bodies: list[list[Launch]], kind: str, top: int
) -> None:
    program = Program([*before, *steps(bodies, kind=kind)])
    chosen = picked(program.trace(), top)
    plan = plan_launches(chosen)
    if plan is None or plan.anchor is not LaunchAnchor.RANGE:
        return  # no step holds all of them, or the steps are of another kind
    wanted = {k.group: (k.name, k.shape[0] or 0) for k in chosen.chosen}
    for run in plan.runs:
        keys = program.keys(program.measured(run))
        assert len(keys) == run.count
        assert {wanted[group] for group in run.covers} <= set(keys)
        assert run.count == _brute(bodies, chosen, [wanted[group] for group in run.covers])
        assert run.hits == tuple(keys.count(wanted[group]) for group in run.covers)


def _brute(
    bodies: Sequence[Sequence[Launch]], chosen: DrillSelection, wanted: list[tuple[str, int]]
) -> int:
    """Find the shortest run by trying all, among launches of the wanted functions."""
    names = {name for name, _ in wanted}
    kept = {step.name for step in chosen.focus.steps}
    lengths = []
    for number, body in enumerate(bodies):
        if f"step_{number}" not in kept:
            continue
        matching = [launch.key for launch in body if launch.name in names]
        lengths += [
            end - begin
            for begin in range(len(matching))
            for end in range(begin + 1, len(matching) + 1)
            if set(wanted) <= set(matching[begin:end])
        ]
    return min(lengths)


def test_a_step_that_is_a_range_is_counted_inside() -> None:
    body = [SUM, GEMM, ADD, GEMM_WIDE, SUM]
    program = Program([GEMM, GEMM, *steps([body] * 4)])
    plan = planned(program.trace(), top=2)
    assert plan.anchor is LaunchAnchor.RANGE
    (run,) = plan.runs
    assert (run.include, run.skip, run.count) == (("step_0/", "step_0"), 0, 2)
    assert run.process_scope
    assert program.keys(program.measured(run)) == [GEMM.key, GEMM_WIDE.key]


def test_without_process_scope_kernels_of_other_threads_are_not_counted_in_a_range() -> None:
    body = [GEMM, BACKWARD, SUM]
    program = Program(steps([body] * 4), calls=["cuInit"])
    old = AnchorSupport(process_scope=False)
    assert planned(program.trace(), old, top=2).anchor is LaunchAnchor.PROGRAM
    of_main = Program(steps([[GEMM, ADD, BACKWARD]] * 4))
    (run,) = planned(of_main.trace(), old, top=1).runs
    assert not run.process_scope
    # The longest kernel is autograd's: it cannot be hit from the main thread's range.
    assert of_main.keys(of_main.measured(run))[-1] == BACKWARD.key


def test_start_end_ranges_hold_for_all_threads_in_every_version() -> None:
    program = Program(steps([[GEMM, BACKWARD]] * 4, kind="start_end", domain="mine"))
    plan = planned(program.trace(), AnchorSupport(process_scope=False), top=2)
    (run,) = plan.runs
    assert (run.include, run.process_scope) == (("mine@step_0/", "mine@step_0"), False)
    assert set(program.keys(program.measured(run))) == {GEMM.key, BACKWARD.key}


def test_of_two_kinds_of_range_with_one_name_the_step_s_own_is_meant() -> None:
    other = Range("step_0", [SUM, GEMM], kind="start_end")
    program = Program([*steps([[ADD, GEMM]] * 4), other])
    (run,) = planned(program.trace(), top=1).runs
    assert run.include == ("step_0/",)
    assert program.keys(program.measured(run)) == [GEMM.key]


def test_ranges_of_one_name_are_skipped_by_what_each_launches() -> None:
    body = [SUM, GEMM, ADD]
    program = Program([Range("train_step", body) for _ in range(8)])
    plan = planned(program.trace(), top=1)
    assert plan.anchor is LaunchAnchor.RANGES
    (run,) = plan.runs
    assert (run.include, run.skip, run.count) == (("train_step/", "train_step"), 2, 1)
    assert program.keys(program.measured(run)) == [GEMM.key]


def test_ranges_of_one_name_are_counted_exactly_from_the_start_of_the_program() -> None:
    other = Launch(GEMM.name, grid=2, took_ns=1)
    bodies = [[GEMM] * 5, *[[other, GEMM, GEMM_WIDE]] * 3]
    program = Program([Range("train_step", body) for body in bodies], calls=["cuInit"])
    plan = planned(program.trace(), top=2)
    (run,) = plan.runs
    assert plan.anchor is LaunchAnchor.RANGES
    assert program.keys(program.measured(run)) == [GEMM.key, GEMM_WIDE.key]


def test_a_capture_from_the_start_is_counted_from_the_start() -> None:
    launches = [SUM, ADD, SUM, GEMM, SUM, GEMM_WIDE]
    program = Program(launches, calls=["cuInit", "cuModuleGetLoadingMode"])
    plan = planned(program.trace(), top=2)
    assert plan.anchor is LaunchAnchor.PROGRAM
    (run,) = plan.runs
    assert run.from_start
    assert program.keys(program.measured(run)) == [GEMM.key, GEMM_WIDE.key]


def test_a_capture_from_the_programs_own_start_of_the_profiler_is_counted_from_there() -> None:
    program = Program([SUM, GEMM], calls=["cuProfilerStart"])
    plan = planned(program.trace(), top=1)
    assert plan.anchor is LaunchAnchor.PROFILER
    assert not plan.runs[0].from_start
    in_ranges = Program(steps([[GEMM, ADD]] * 4), calls=["cuProfilerStart"])
    assert not planned(in_ranges.trace()).runs[0].from_start


def test_steps_that_gpusight_marked_need_gpusight_again() -> None:
    program = Program(
        [Range(f"step {n}", [ADD, GEMM], "start_end", "gpusight") for n in range(4)],
        calls=["cuProfilerStart"],
    )
    plan = planned(program.trace(), AnchorSupport(injectable=True), top=1)
    assert plan.anchor is LaunchAnchor.STEP
    (run,) = plan.runs
    assert (run.step, run.include, run.from_start) == (0, (), False)
    assert planned(program.trace(), AnchorSupport(), top=1).anchor is LaunchAnchor.UNSURE


def test_steps_that_the_program_tells_are_counted_as_it_does() -> None:
    """`gs.step` in a torch trace: annotations, numbered as inside the program."""
    other = Launch(GEMM.name, grid=2, took_ns=1)
    program = Program([Range(f"step {n}", [other, GEMM, ADD]) for n in range(5, 9)])
    for nvtx_range in program.ranges:
        nvtx_range["domain_key"] = None
    plan = planned(program.trace(), AnchorSupport(injectable=True), top=1)
    (run,) = plan.runs
    assert plan.anchor is LaunchAnchor.STEP
    assert (run.step, run.skip, run.count) == (5, 1, 1)


def test_steps_of_an_optimizer_are_counted_from_its_end() -> None:
    """A torch trace: annotations that ncu does not see, and the optimizer's among them."""
    parts: list[Launch | Range] = []
    for _ in range(4):
        parts += [ADD, GEMM, Range("Optimizer.step#AdamW.step", [SUM])]
    program = Program(parts)
    for nvtx_range in program.ranges:
        nvtx_range["domain_key"] = None
    plan = planned(program.trace(), AnchorSupport(injectable=True), top=1)
    assert plan.anchor is LaunchAnchor.STEP
    (run,) = plan.runs
    assert run.step is not None
    assert run.step > 0
    assert (run.skip, run.count) == (0, 1)
    assert planned(program.trace(), AnchorSupport(), top=1).anchor is LaunchAnchor.UNSURE


@settings(max_examples=20, deadline=None)
@given(BODIES, st.integers(0, 30))
def test_an_approximate_run_holds_the_kernels_wherever_it_begins(
    body: list[Launch], shift: int
) -> None:
    shown = Program([launch for _ in range(6) for launch in [*body, GEMM]])
    chosen = picked(shown.trace(), 2)
    plan = plan_launches(chosen)
    if plan is None or not chosen.focus.steps:
        return  # nothing repeats
    assert plan.anchor is LaunchAnchor.UNSURE
    real = Program([launch for _ in range(40) for launch in [*body, GEMM]][shift:])
    for run in plan.runs:
        wanted = {(k.name, k.shape[0]) for k in chosen.chosen if k.group in run.covers}
        assert wanted <= set(real.keys(real.measured(run)))


def test_kernels_that_lie_far_apart_get_runs_of_their_own() -> None:
    filler = Launch("void lib::gemm<float>(float*)", grid=2, took_ns=1)
    apart = [GEMM, *[filler] * (MAX_LAUNCHES_PER_RUN + 5), GEMM_WIDE]
    program = Program(steps([apart] * 3))
    plan = planned(program.trace(), top=2)
    assert [run.count for run in plan.runs] == [1, 1]
    assert [program.keys(program.measured(run)) for run in plan.runs] == [
        [GEMM.key],
        [GEMM_WIDE.key],
    ]
    assert any("2 runs" in note for note in plan.notes)


def test_kernels_between_steps_are_counted_from_the_start() -> None:
    parts = [part for step in steps([[ADD]] * 4) for part in (step, GEMM)]
    program = Program(parts, calls=["cuInit"])
    plan = planned(program.trace(), top=1)
    assert plan.anchor is LaunchAnchor.PROGRAM
    assert program.keys(program.measured(plan.runs[0])) == [GEMM.key]


def test_launches_outside_the_selection_count_but_are_not_wanted() -> None:
    """The same kernel runs before and inside `attention`: the one inside is hit."""
    step: list[Launch | Range] = [GEMM, ADD, Range("attention", [SUM, GEMM]), GEMM]
    program = Program([part for _ in range(4) for part in step], calls=["cuInit"])
    picked = pick_kernels(program.trace(), Selection(within="attention"), top=1)
    assert isinstance(picked, DrillSelection)
    counted = plan_launches(picked)
    assert counted is not None
    (run,) = counted.runs
    (measured,) = program.measured(run)
    at = program.moments[measured][0]
    assert any(r["start_ns"] <= at < r["end_ns"] for r in program.ranges)


def test_from_the_start_only_launches_inside_the_selection_are_hit() -> None:
    inner = Range("inner", [GEMM])
    program = Program([GEMM, GEMM, inner, GEMM], calls=["cuInit"])
    trace = program.trace()
    picked = pick_kernels(trace, Selection(within="inner"), top=1)
    assert isinstance(picked, DrillSelection)
    whole = replace(picked, focus=replace(picked.focus, start_ns=0, steps=()))
    counted = plan_launches(whole)
    assert counted is not None
    assert counted.anchor is LaunchAnchor.PROGRAM
    assert program.measured(counted.runs[0]) == [2]


def brute(keys: list[int], wanted: int, parts: list[tuple[int, int]]) -> int | None:
    lengths = [
        end - begin
        for first, after in parts
        for begin in range(first, after)
        for end in range(begin + 1, after + 1)
        if set(range(wanted)) <= set(keys[begin:end])
    ]
    return min(lengths, default=None)


SEQUENCES = st.lists(st.integers(-1, 2), max_size=24)


@given(SEQUENCES, st.integers(1, 3), st.integers(0, 12))
def test_shortest_window_is_the_shortest(keys: list[int], wanted: int, middle: int) -> None:
    cut = min(middle, len(keys))
    parts = [(0, cut), (cut, len(keys))]
    window = shortest_window(np.array(keys, dtype=np.int64), wanted, parts)
    expected = brute(keys, wanted, parts)
    assert (None if window is None else window.count) == expected
    if window is not None:
        first, after = parts[window.part]
        assert first <= window.first
        assert window.first + window.count <= after
        assert set(range(wanted)) <= set(keys[window.first : window.first + window.count])


def test_of_equal_windows_the_first_is_taken() -> None:
    window = shortest_window(np.array([0, 1, -1, 1, 0]), 2, [(0, 5)])
    assert window is not None
    assert (window.first, window.count) == (0, 2)


def test_a_window_does_not_cross_from_one_part_into_the_next() -> None:
    assert shortest_window(np.array([0, 1]), 2, [(0, 1), (1, 2)]) is None


@given(SEQUENCES, st.integers(1, 3))
def test_sure_length_holds_everything_wherever_it_begins(keys: list[int], wanted: int) -> None:
    length = sure_length(np.array(keys, dtype=np.int64), wanted)
    if not set(range(wanted)) <= set(keys):
        assert length is None
        return
    assert length is not None
    round_and_round = keys * 3
    windows = [round_and_round[at : at + length] for at in range(len(keys))]
    assert all(set(range(wanted)) <= set(window) for window in windows)
    shorter = [round_and_round[at : at + length - 1] for at in range(len(keys))]
    assert not all(set(range(wanted)) <= set(window) for window in shorter)


@pytest.mark.parametrize("size", [0, 3])
def test_nothing_wanted_is_nowhere(size: int) -> None:
    assert shortest_window(np.full(size, -1), 1, [(0, size)]) is None


# Real captures: every one is answered, and what is planned hits what ncu really recorded.


JAX = sorted(DATA.glob("jax*"))
_FROM_FIRST = {LaunchAnchor.PROGRAM, LaunchAnchor.PROFILER}


@pytest.mark.parametrize("path", [*EVERY_SQLITE, *EVERY_REPORT, *EVERY_TORCH_TRACE, *JAX], ids=name)
def test_every_capture_is_answered(path: Path) -> None:
    picked = pick_kernels(opened(path))
    if isinstance(picked, NotApplicable):
        assert picked.reason
        return
    planned = plan_launches(picked)
    if planned is None:
        assert not picked.chosen
        return
    covered = [group for run in planned.runs for group in run.covers]
    assert sorted(covered) == [kernel.group for kernel in picked.chosen]
    for run in planned.runs:
        assert run.count >= len(run.covers)
        if planned.anchor in _FROM_FIRST:
            assert set(run.covers) <= _hit(picked, run)


def _hit(picked: DrillSelection, run: PlannedRun) -> set[int | None]:
    """Give the groups of the launches that a run measures, counted from the first."""
    column = "function" if run.base == FUNCTION else "mangled_name"
    names = picked.launches[column].cast(pl.String)
    matching = names.str.contains(run.pattern).fill_null(value=False)
    rows = picked.launches.filter(matching)[run.skip : run.skip + run.count]
    return set(rows["group"].to_list())


@needs_shared
@pytest.mark.parametrize(
    ("timeline", "report"),
    [
        ("nsys/gpt_small_forward.sqlite", "ncu/gpt_fwd.ncu-rep.xz"),
        ("nsys/resnet18_infer.sqlite", "ncu/resnet18.ncu-rep.xz"),
    ],
)
def test_ncu_recorded_the_launches_where_they_are_looked_for(timeline: str, report: str) -> None:
    """These reports hold the launches from the beginning of the step on, unfiltered."""
    picked = pick_kernels(opened(SHARED / timeline))
    assert not isinstance(picked, NotApplicable)
    planned = plan_launches(picked)
    assert planned is not None
    assert planned.exact
    wanted = {k.group: (k.function, *k.shape) for k in picked.chosen}
    shape = [f"{part}_{axis}" for part in ("grid", "block") for axis in "xyz"]
    measured = opened(SHARED / report).table("profiles", ["launch", "base_name", *shape])
    rows = measured.sort("launch").with_columns(pl.col("base_name").cast(pl.String))
    for run in planned.runs:
        matching = rows.filter(pl.col("base_name").str.contains(run.pattern))
        hit = matching[run.skip : run.skip + run.count].select("base_name", *shape)
        assert {wanted[group] for group in run.covers} <= set(hit.iter_rows())


@pytest.mark.parametrize("path", sorted(DATA.glob("*averages.txt")), ids=name)
def test_totals_are_answered(path: Path) -> None:
    picked = pick_totals(opened(path))
    if isinstance(picked, NotApplicable):
        assert picked.command == "drill"
        return
    kernels, _ = picked
    planned = plan_totals(kernels)
    assert planned is not None
    assert not planned.exact
    assert planned.hits is None
    for run in planned.runs:
        kernel = next(k for k in kernels if k.group in run.covers)
        matching = [k for k in kernels if re.search(run.pattern, k.function.removesuffix("..."))]
        assert run.skip + run.count <= sum(k.launches for k in matching)
        assert re.search(run.pattern, kernel.function.removesuffix("...") + "")


def test_names_that_a_table_cut_short_are_matched_by_their_beginning() -> None:
    picked = pick_totals(opened(DATA / "gpt_small_train_key_averages.txt"))
    assert not isinstance(picked, NotApplicable)
    kernels, _ = picked
    planned = plan_totals(kernels)
    assert planned is not None
    whole = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1"
    assert re.search(planned.runs[0].pattern, whole)
