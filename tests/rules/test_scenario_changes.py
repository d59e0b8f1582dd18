"""What the replay leaves out is named where a capture shows it, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusight.analysis.replay.changes import as_graphs
from gpusight.analysis.scenario import Scenario, ScenarioAction, WhatIf
from gpusight.render.diagnosis_view import EXPLANATION_RENDERER, explanation_lines
from gpusight.render.table_layout import TableOptions
from gpusight.rules.diagnosis import TimelineDiagnosis, explain_finding
from gpusight.rules.scenario_changes import what_if
from gpusight.rules.timeline_diagnosis import diagnose_timeline, not_modeled
from tests.rules.timeline.gpu_traces import GEMM, program
from tests.rules.timeline.rule_captures import MAIN, US, Capture
from tests.rules.timeline.test_gil_contention import steps as steps_with_gil
from tests.rules.timeline.test_gpu_shared import shared


def drifting(slow: float = 1.0, steps: int = 10, name: str = GEMM) -> Capture:
    """Steps of ten kernels of 100 us, which take longer in every second step."""
    capture, at = Capture(), 0.0
    for step in range(steps):
        begun, length = at, 100.0 * (slow if step % 2 else 1.0)
        for _ in range(10):
            capture.launch((at, at + 5), (at + 6, at + 6 + length), name)
            at += length + 7
        capture.range(f"step_{step}", begun, at)
    return capture


def preempted(share: float, *, call: str = "") -> Capture:
    """Steps of 1 ms in which the launching thread is off the CPU, in an OS call if given."""
    capture = Capture()
    for step in range(4):
        at = 1_000.0 * step
        capture.range(f"step_{step}", at, at + 999)
        capture.launch((at, at + 5), (at + 6, at + 56))
        capture.launch((at + 990, at + 995), (at + 996, at + 998))
        off, on = at + 100, at + 100 + 1_000 * share
        for time_us, scheduled_in in ((off, False), (on, True)):
            capture.tables["thread_switches"].append(
                {"time_ns": round(time_us * US), "scheduled_in": scheduled_in, "thread": MAIN}
            )
        if call:
            capture.event("os_calls", call, off - 1, on + 1, thread=MAIN)
    return capture


@pytest.mark.parametrize(
    ("capture", "line"),
    [
        pytest.param(drifting(), "", id="nothing"),
        pytest.param(
            shared(80.0),
            "server (200) on the same GPU: simulations keep its share, 39.3% of the time",
            id="another process",
        ),
        pytest.param(shared(80.0, device=1), "", id="another process on another GPU"),
        pytest.param(
            drifting(1.2),
            "GPU clocks under load, or processes that the capture lacks: the same kernels take "
            "20.0% longer in some steps than in others",
            id="clocks",
        ),
        pytest.param(drifting(1.02), "", id="kernels that vary little"),
        pytest.param(drifting(1.2, steps=4), "", id="too few steps"),
        pytest.param(
            drifting(name="ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
            "other ranks: collectives keep their measured durations, with the time that ranks wait",
            id="collectives",
        ),
        pytest.param(
            steps_with_gil(),
            "Python threads that hold the GIL: the launching thread waits for it 25.0 ms/step, "
            "as now",
            id="the GIL",
        ),
        pytest.param(
            preempted(0.3),
            "other threads that compete for the CPU: the launching thread is off it 300 µs/step",
            id="off the CPU",
        ),
        pytest.param(preempted(0.02), "", id="off the CPU for a moment"),
        pytest.param(preempted(0.3, call="pthread_cond_wait"), "", id="waiting for a thread"),
    ],
)
def test_lines(capture: Capture, line: str) -> None:
    assert list(not_modeled(capture.timeline()).values()) == ([line] if line else [])


def test_time_for_the_gil_stays_when_launches_go() -> None:
    context = steps_with_gil().timeline()
    assert context.replay.run(as_graphs()).saved_ns < 0.02 * context.length_ns


def test_whatif_names_them_in_a_field_of_their_own() -> None:
    """So does `explain`; without such a condition there is no field."""
    graph = [Scenario(ScenarioAction.GRAPH)]
    for capture, shown in ((shared(80.0), True), (program([(GEMM, 100.0)] * 10), False)):
        trace = capture.timeline().trace
        answer, diagnosis = what_if(trace, scenarios=graph), diagnose_timeline(trace)
        assert isinstance(answer, WhatIf)
        assert isinstance(diagnosis, TimelineDiagnosis)
        assert ("not_modeled" in answer.document()) is shown
        assert any(note.startswith("not modeled: server") for note in answer.notes) is shown
        assert ("not_modeled" in diagnosis.document()["replay"]) is shown
        if shown:
            other = replace(diagnosis.fixes[0], rule="of-a-user")
            diagnosis = replace(diagnosis, findings=(*diagnosis.findings, other))
            explanation = explain_finding(diagnosis, "of-a-user")
            document = EXPLANATION_RENDERER.document
            assert document is not None
            assert document(explanation)["not_modeled"]
            lines = [line.text for line in explanation_lines(explanation, TableOptions(60))]
            (at,) = [n for n, line in enumerate(lines) if line.startswith("not modeled: ")]
            assert lines[at].startswith("not modeled: server (200)")
            assert max(map(len, lines)) <= 60


@pytest.mark.parametrize(
    ("capture", "rule"),
    [
        pytest.param(shared(80.0), "gpu-shared", id="another process"),
        pytest.param(steps_with_gil(), "gil-contention", id="the GIL"),
    ],
)
def test_a_fix_is_not_followed_by_a_line_that_it_is_not_modeled(
    capture: Capture, rule: str
) -> None:
    trace = capture.timeline().trace
    assert rule in not_modeled(capture.timeline())
    diagnosis = diagnose_timeline(trace)
    answer = what_if(trace, scenarios=[Scenario(ScenarioAction.APPLY, rule)])
    assert isinstance(diagnosis, TimelineDiagnosis)
    assert isinstance(answer, WhatIf)
    assert not explain_finding(diagnosis, rule).not_modeled
    assert not answer.not_modeled
    assert not any(note.startswith("not modeled") for note in answer.notes)
