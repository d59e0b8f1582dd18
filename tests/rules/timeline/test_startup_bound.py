"""startup-bound: programs without steps that mostly start, load and end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpusight.rules.diagnosis import TimelineDiagnosis
from gpusight.rules.rule import CLEAN, RuleNotApplicable
from gpusight.rules.timeline.startup_bound import StartupBound
from gpusight.rules.timeline_diagnosis import diagnose_timeline
from tests.rules.timeline.rule_captures import Capture, evidence, match_of
from tests.traces import build_trace

if TYPE_CHECKING:
    from gpusight.rules.finding import TimelineFinding

RULE = StartupBound()
MS = 1_000


def program(end: tuple[str, float, float] | None = None, **setup: float) -> Capture:
    """Calls of some ms each, then kernels of 1, 2, 3 and 4 ms, then perhaps one more call."""
    capture, at = Capture(), 0.0
    for name, ms in setup.items():
        capture.call(name, at, at + ms * MS)
        at += ms * MS + 10
    for number in range(1, 5):
        capture.launch((at, at + 5), (at + 7, at + number * MS), f"kernel_{number}")
        at += number * MS
    if end is not None:
        name, start, stop = end
        capture.call(name, at + start * MS, at + stop * MS)
    return capture


def first(capture: Capture) -> TimelineFinding:
    trace = build_trace({"source": "nsys-sqlite"}, devices=[{"device": 0}], **capture.tables)
    diagnosis = diagnose_timeline(trace)
    assert isinstance(diagnosis, TimelineDiagnosis)
    return diagnosis.findings[0]


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("cuInit", "context_ns"),
        ("cuDevicePrimaryCtxRetain", "context_ns"),
        ("cudaFree", "context_ns"),
        ("cuModuleLoadData", "code_ns"),
        ("cuLibraryLoadData", "code_ns"),
        ("cublasCreate_v2", "handles_ns"),
        ("cudnnCreate", "handles_ns"),
        ("cudaGraphInstantiate", "graphs_ns"),
    ],
)
def test_what_the_start_is_spent_on(name: str, group: str) -> None:
    finding = first(program(None, **{name: 90.0}))
    assert finding.rule == "startup-bound"
    assert finding.title.startswith("Start-up: 90.")
    assert {e.metric: e.value for e in finding.evidence}[group] == 90_000_000
    assert (finding.where[0].kind, finding.where[0].name) == ("call", name)
    assert (finding.recoverable_ns, finding.share) == (None, None)


@pytest.mark.parametrize(
    ("name", "helps"),
    [
        ("cuModuleLoadData", True),
        ("cuInit", True),
        ("cudaGraphInstantiate", False),
        ("hipModuleLoad", False),
    ],
)
def test_lazy_loading_is_advised_where_it_helps(name: str, helps: bool) -> None:
    finding = first(program(None, **{name: 90.0}))
    assert ("CUDA_MODULE_LOADING=LAZY" in finding.code) is helps
    assert ("CUDA_MODULE_LOADING" in finding.fix) is (name == "cuModuleLoadData")
    # 90 ms are too short for the whole seconds of --delay.
    assert "gpusight record" not in finding.code
    assert "gpusight ledger FILE --window 90.0" in finding.code
    assert finding.code.count("\n") == 1 + helps


def test_a_long_start_is_left_out_of_the_next_recording() -> None:
    finding = first(program(None, cuInit=4200.0))
    assert "gpusight record --delay 4 -- ./program" in finding.code


def test_an_end_that_unloads_modules() -> None:
    finding = first(program(end=("cuModuleUnload", 1, 91)))
    assert finding.title == "Program end: 91.0 ms of 101 ms (90.1%), mostly unloading code"
    assert "exit of the process" in finding.fix
    assert finding.where[0].name == "cuModuleUnload"
    assert "--window" in finding.fix


def test_setup_calls_between_kernels() -> None:
    capture = Capture()
    for number in range(6):
        at = number * 10.0 * MS
        capture.call("cuModuleLoadData", at, at + 8 * MS)
        capture.launch((at + 8 * MS, at + 8_005), (at + 8_010, at + 10 * MS), f"kernel_{number}")
    timeline = capture.timeline()
    verdict = match_of(RULE, timeline)
    assert verdict.title.startswith("Start-up and setup calls: 48.0 ms of 60.0 ms (80")
    assert verdict.leads
    assert evidence(verdict)["setup_ns"] == 40_000_000  # without the first, which is start-up


def test_a_slow_first_launch_loads_code() -> None:
    capture = program()
    capture.launch((10_010, 60_010), (60_020, 60_900), "kernel_9")
    verdict = match_of(RULE, capture.timeline())
    assert verdict.title.startswith("Loading and compiling code: 50.0 ms of 60.9 ms")


def test_a_graph_capture_counts_with_what_it_launches() -> None:
    capture = program()
    capture.call("cudaStreamBeginCapture", 11 * MS, 11_010)
    for number in range(20):
        capture.call("cudaLaunchKernel", 11_100 + 1_000 * number, 11_110 + 1_000 * number)
    capture.call("cudaStreamEndCapture", 31 * MS, 31_010)
    capture.launch((31_020, 31_025), (31_030, 31_900), "kernel_9")
    verdict = match_of(RULE, capture.timeline())
    assert verdict.title.startswith("Capturing and instantiating graphs: 20.0 ms")


def test_a_program_that_works_is_clean() -> None:
    assert RULE.check(program(cuInit=0.5).timeline()) is CLEAN


def test_steps_leave_the_start_out() -> None:
    capture = Capture()
    for step in range(5):
        at = step * 1_000
        capture.range(f"step_{step}", at, at + 1_000)
        capture.call("cuModuleLoadData", at, at + 800)
        capture.launch((at + 800, at + 805), (at + 810, at + 990))
    assert RULE.check(capture.timeline()) is CLEAN


def looped(copy_ms: float, start_ms: float = 0.0, *, name: str = "sweep") -> Capture:
    """A copy to the GPU, ten steps of 2 ms each, and a copy back."""
    capture, at = Capture(), start_ms * MS
    if start_ms:
        capture.call("cuInit", 0, at)
    for number in range(12):
        last = number in (0, 11)
        kind, took = ("Host-to-Device", "Device-to-Host")[number > 0], copy_ms * MS
        if last and copy_ms:
            times = (at, at + took + 2), (at + 1, at + took + 1)
            capture.copy(*times, size=10_000_000, kind=kind, src_kind="Pageable")
            at += took + 10
        elif not last:
            capture.launch((at, at + 5), (at + 7, at + 1_990), f"{name}(float*)")
            capture.call("cudaDeviceSynchronize", at + 6, at + 1_995)
            capture.range(f"step_{number}", at, at + 1_999)
            at += 2 * MS
    return capture


def test_copies_around_the_steps_come_first_where_they_take_most_of_the_program() -> None:
    finding = first(looped(15))
    assert finding.rule == "startup-bound"
    assert finding.title == "Copies before and after the steps: 30.0 ms of 50.0 ms (60.0%)"
    assert "pinned memory" in finding.fix
    assert "--window all" in finding.fix
    assert finding.where[0].ns is None  # no time per step


def test_shorter_copies_around_the_steps_are_listed_and_few_are_not() -> None:
    match = match_of(RULE, looped(3).timeline())
    assert match.title.startswith("Copies before and after the steps: 6.00 ms of 26.0 ms (23")
    assert not match.leads
    assert RULE.check(looped(0.5).timeline()) is CLEAN


def test_a_start_that_is_longer_than_all_steps_is_named_with_steps_too() -> None:
    match = match_of(RULE, looped(0, 60).timeline())
    assert match.title.startswith("Start-up: 60.0 ms of 80.0 ms (75")
    assert not match.leads
    assert RULE.check(looped(0, 15).timeline()) is CLEAN


def test_programs_that_load_a_model_first_are_left_out() -> None:
    timeline = looped(15, name="at::native::vectorized_elementwise_kernel").timeline()
    assert isinstance(RULE.check(timeline), RuleNotApplicable)
