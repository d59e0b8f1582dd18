"""recompilation: compilation inside steps, by name, by module loads and by new kernels."""

from __future__ import annotations

import pytest

from gpusight.rules.engine import run_timeline_rules
from gpusight.rules.rule import CLEAN, RuleNotApplicable
from gpusight.rules.timeline.between_steps import BetweenSteps
from gpusight.rules.timeline.recompilation import Recompilation
from tests.rules.timeline.rule_captures import Capture, evidence, match_of, saved_us

RULE = Recompilation()
COMPILE_US = 40_000
NAME = "_compile.compile_inner (dynamo_timed)"


def steps(
    *compiling: int,
    count: int = 8,
    load: bool = True,
    named: bool = False,
    new: bool = True,
    read_us: float = 0,
) -> Capture:
    """Steps of ten kernels of 50 us; some compile for 40 ms after the third of them.

    A compilation loads a module and launches a kernel that never ran before. Before its first
    launch, each step reads for `read_us`, which no name says.
    """
    capture, at = Capture(), 0.0
    for step in range(count):
        begun = at
        at += read_us
        for number in range(10):
            name = f"k{number}"
            if step in compiling and number == 3:
                if named:
                    capture.event("cpu_ops", NAME, at + 10, at + COMPILE_US - 10)
                at += COMPILE_US
                if load:
                    capture.call("cuModuleLoadData", at, at + 100)
                    at += 110
                name = f"triton_fused_{step}" if new else name
            capture.launch((at, at + 5), (at + 7, at + 57), name)
            at += 60
        capture.call("cudaDeviceSynchronize", at, at + 10)
        at += 11
        capture.range(f"step_{step}", begun, at)
    return capture


@pytest.mark.parametrize(
    "capture",
    [
        pytest.param(steps(*range(8)), id="module loads"),
        pytest.param(steps(*range(8), load=False), id="new kernels"),
        pytest.param(steps(*range(8), load=False, new=False, named=True), id="names"),
    ],
)
def test_found(capture: Capture) -> None:
    timeline = capture.timeline()
    verdict = match_of(RULE, timeline)
    compiled_us = evidence(verdict)["compile_ns"] / 1_000
    # The first step of a capture only has new kernels: whether it compiles is not known.
    assert compiled_us == pytest.approx(COMPILE_US, rel=0.15)
    assert saved_us(verdict, timeline) == pytest.approx(compiled_us, rel=0.02)
    assert verdict.title.startswith("Recompilation in ")
    assert "between-steps" in verdict.also
    assert (verdict.measured_ns or 0) / timeline.steps == evidence(verdict)["compile_ns"]


def inductor(*, tuned: int = 0) -> Capture:
    """Seven steps that compile anew, as torch.compile does: its processes, then kernel by kernel.

    The launching thread waits for 40 of 100 ms, then 12 times loads a kernel and launches it, 1 ms
    apart. `tuned` launches in a row time each third kernel.
    """
    capture, at = Capture(), 0.0
    for step in range(7):
        begun = at
        capture.launch((at, at + 5), (at + 7, at + 20), "embedding")
        capture.event("os_calls", "sem_clockwait", at + 60_000, at + 100_000)
        at += 100_000
        for number in range(12):
            at += 1_000
            capture.call("cuModuleLoadData", at, at + 80)
            at += 300
            for _ in range(tuned if number % 3 == 0 else 0):
                capture.launch((at, at + 5), (at + 7, at + 30), f"triton_{step}_{number}")
                capture.call("cudaEventSynchronize", at + 10, at + 35)
                at += 60
            capture.launch((at, at + 5), (at + 7, at + 30), f"triton_{step}_{number}")
            at += 40
        capture.call("cudaDeviceSynchronize", at, at + 10)
        at += 20
        capture.range(f"step_{step}", begun, at)
    return capture


@pytest.mark.parametrize("tuned", [0, 10])
def test_waits_for_the_compiler_and_all_it_does_kernel_by_kernel(tuned: int) -> None:
    timeline = inductor(tuned=tuned).timeline()
    verdict = match_of(RULE, timeline)
    step_us = 100_000 + 12 * 1_340 + 20 + 4 * tuned * 60
    # 13 launches of 5 us remain, with the time from one to the next that any program takes.
    assert 13 * 5 < step_us - saved_us(verdict, timeline) < 13 * 150


def test_a_loop_over_one_kernel_is_no_tuning_where_little_is_compiled() -> None:
    """Each step has a new kernel, which the program launches ten times."""
    capture, at = Capture(), 0.0
    for step in range(7):
        begun = at
        at += 6_000
        for _ in range(10):
            capture.launch((at, at + 5), (at + 7, at + 907), f"shape_{step}")
            at += 910
        capture.range(f"step_{step}", begun, at)
    timeline = capture.timeline()
    assert saved_us(match_of(RULE, timeline), timeline) <= 6_000


def test_every_second_step() -> None:
    verdict = match_of(RULE, steps(1, 3, 5, 7).timeline())
    numbers = evidence(verdict)
    assert numbers["steps"] == 0.5
    assert numbers["loads"] == 0.5
    assert verdict.title.startswith("Recompilation in 4 of 8 steps: 20.")


@pytest.mark.parametrize("functions", [("forward (train.py:12)",), ("f (a.py:1)", "g (a.py:9)")])
def test_the_functions_that_are_compiled_are_named(functions: tuple[str, ...]) -> None:
    capture = steps(*range(8))
    for number, function in enumerate(functions):
        compiler = {"file": "torch/_dynamo/convert_frame.py", "is_library": True, "line": 1}
        capture.tables["stack_frames"] += [
            {"stack": number, "depth": 0, **compiler, "function": "trace", "kind": "python"},
            {
                "stack": number,
                "depth": 1,
                **compiler,
                "function": f"_compile {function}",
                "kind": "python",
            },
            {
                "stack": number,
                "depth": 2,
                "file": "train.py",
                "line": 88,
                "function": "step",
                "kind": "python",
                "is_library": False,
            },
        ]
    end = max(call["end_ns"] for call in capture.tables["api_calls"])
    for at, time_ns in enumerate(range(0, end, 1_000_000)):
        row = {"time_ns": time_ns, "stack": at % len(functions), "weight_ns": 1_000_000}
        capture.tables["stack_samples"].append(row | {"source": "gpusight"})
    verdict = match_of(RULE, capture.timeline())
    assert all(f"`{function}`" in verdict.fix for function in functions)
    assert (f"of `{functions[0]}` in" in verdict.title) == (len(functions) == 1)
    assert verdict.lines[0].text == "train.py:88 step"


def test_what_other_steps_wait_for_as_well_does_not_count() -> None:
    capture = steps(1, 3, 5, 7, read_us=10_000)
    assert evidence(match_of(RULE, capture.timeline()))["compile_ns"] == pytest.approx(
        20e6, rel=0.03
    )


def test_stalls_of_compilation_are_one_finding() -> None:
    results = run_timeline_rules(steps(*range(8)).timeline(), [BetweenSteps(), Recompilation()])
    assert [finding.rule for finding in results.findings] == ["recompilation"]


def test_a_compiler_in_a_thread_of_its_own() -> None:
    """XLA autotunes in threads that launch: the program waits, with a name for it."""
    capture = steps(*range(8), load=False, new=False, named=True)
    end = max(call["end_ns"] for call in capture.tables["api_calls"]) // 1_000
    for at in range(0, end, 700):
        capture.launch((at, at + 5), (at + 7, at + 9), "tuned", stream=20)
        capture.tables["api_calls"][-1]["thread"] = 12
    timeline = capture.timeline()
    assert saved_us(match_of(RULE, timeline), timeline) == pytest.approx(COMPILE_US, rel=0.03)


@pytest.mark.parametrize(
    "capture",
    [
        pytest.param(steps(), id="nothing compiles"),
        pytest.param(steps(0, 1, 2), id="warm-up"),
        pytest.param(steps(0, 1, count=3), id="warm-up of a short capture"),
        pytest.param(steps(6), id="once"),
        pytest.param(steps(load=False, read_us=20_000), id="stalls alone"),
    ],
)
def test_clean(capture: Capture) -> None:
    assert RULE.check(capture.timeline()) is CLEAN


def test_one_compilation_over_several_steps_is_a_start() -> None:
    """Autotuning repeats itself too, and looks like steps."""
    capture = steps()
    end = max(call["end_ns"] for call in capture.tables["api_calls"]) / 1_000
    capture.event("ranges", "XlaCompile:#module=jit_step#", 0, end)
    assert RULE.check(capture.timeline()) is CLEAN


def test_lazy_loading_of_library_kernels_is_not_compilation() -> None:
    """cuBLAS loads a kernel for each new shape: unnamed work of 10 ms per step is not its cost."""
    capture, at = Capture(), 0.0
    for step in range(8):
        begun, at = at, at + 10_000
        for number in range(10):
            if number == 5:
                capture.call("cuLibraryLoadData", at, at + 50)
                at += 55
            capture.launch((at, at + 5), (at + 7, at + 57), f"k{number}")
            at += 60
        capture.range(f"step_{step}", begun, at)
    assert RULE.check(capture.timeline()) is CLEAN


def test_absent_without_steps() -> None:
    assert isinstance(RULE.check(steps(0, count=1).timeline()), RuleNotApplicable)


def test_located_at_the_stall() -> None:
    timeline = steps(*range(8)).timeline()
    (finding,) = run_timeline_rules(timeline, [RULE]).findings
    spans = RULE.locate(timeline, finding)
    assert spans["weight_ns"].max() == pytest.approx(COMPILE_US * 1_000, rel=0.02)
