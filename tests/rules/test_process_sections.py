"""Several processes in a capture: all are diagnosed, the worst one first, none is left unsaid.

Steps of 10 ms with eight kernels each. A slow process launches a kernel every 1.2 ms, so that
its GPU waits; a fast one launches all at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

import pytest

import gpusight as gs
from gpusight.analysis.ledger.ledger_report import LedgerReport
from gpusight.analysis.scenario import Scenario, ScenarioAction, WhatIf
from gpusight.analysis.selection import Selection
from gpusight.errors import UsageError
from gpusight.render.diagnosis_screen import MAX_LINES
from gpusight.render.diagnosis_summary import diagnosis_head
from gpusight.render.result_view import DiagnosisView
from gpusight.rules.diagnosis import DiagnoseOptions, TimelineDiagnosis, diagnose_captures
from gpusight.rules.process_sections import MAX_DIAGNOSED, first_process, gpu_owners
from gpusight.rules.scenario_changes import what_if
from gpusight.trace.trace import Trace
from tests.traces import Rows, build_trace

Tables: TypeAlias = dict[str, list[dict[str, Any]]]
US, MS = 1_000, 1_000_000
STEPS, KERNELS = 6, 8


def process(number: int, *, slow: bool, device: int = 0, kernels: int = KERNELS) -> Tables:
    """Give the tables of one process: its key is `number`, its pid 100 times that."""
    tables: Tables = {"api_calls": [], "kernels": [], "ranges": []}
    owner = {"process": number, "thread": 10 * number}
    for step in range(STEPS):
        begin = step * 10 * MS
        tables["ranges"].append(
            {"start_ns": begin, "end_ns": begin + 10 * MS, "name": f"step_{step}", **owner}
        )
        for kernel in range(kernels):
            at = begin + kernel * (1200 * US if slow else 10 * US)
            starts = at + 20 * US if slow else begin + 20 * US + kernel * 1240 * US
            key = {"correlation": 1000 * number + step * KERNELS + kernel + 1}
            call = {"start_ns": at, "end_ns": at + 5 * US, "name": "cudaLaunchKernel"}
            tables["api_calls"].append(call | key | owner)
            length_ns = 200 * US if slow else 1235 * US
            work = {"start_ns": starts, "end_ns": starts + length_ns, "name": "k", "stream": 7}
            tables["kernels"].append(work | key | {"process": number, "device": device})
    return tables


def capture(*processes: Tables) -> Trace:
    tables: dict[str, Rows] = {
        name: sorted((row for p in processes for row in p[name]), key=lambda row: row["start_ns"])
        for name in processes[0]
    }
    keys = sorted({row["process"] for p in processes for row in p["kernels"]})
    return build_trace(
        None,
        processes=[{"process": key, "pid": 100 * key, "name": "python"} for key in keys],
        threads=[{"thread": 10 * key, "process": key, "tid": 100 * key} for key in keys],
        **tables,
    )


def diagnosed(trace: Trace, options: DiagnoseOptions | None = None) -> TimelineDiagnosis:
    diagnosis = diagnose_captures([trace], options or DiagnoseOptions())
    assert isinstance(diagnosis, TimelineDiagnosis)
    return diagnosis


@pytest.fixture(scope="module")
def two() -> TimelineDiagnosis:
    return diagnosed(capture(process(1, slow=False), process(2, slow=True, device=1)))


def test_the_worst_comes_first_not_the_busiest(two: TimelineDiagnosis) -> None:
    assert two.meta["process"] == 200
    (other,) = two.sections
    assert other.option == "--process 100"
    assert other.label == "process 100 (python), GPU 0"
    assert other.busy_share is not None
    assert other.busy_share > 0.7
    assert "process 200 (worst of 2)" in diagnosis_head(two)


def test_numbers_of_fixes_are_those_of_the_process_that_comes_first(
    two: TimelineDiagnosis,
) -> None:
    trace = capture(process(1, slow=False), process(2, slow=True, device=1))
    answer = what_if(trace, scenarios=[Scenario(ScenarioAction.APPLY, "1")])
    assert isinstance(answer, WhatIf)
    assert answer.window is not None
    assert answer.window.steps == two.focus.steps
    assert answer.changes[0].change == f"fix of {two.plan[0].rule}"
    note = "steps are those of process 200, the worst of 2; --process selects another"
    assert answer.notes[0] == note


def test_every_command_is_about_the_process_that_diagnose_shows(two: TimelineDiagnosis) -> None:
    trace = capture(process(1, slow=False), process(2, slow=True, device=1))
    window = "6 steps of 10.0 ms, those of process 200 (worst of 2; others: --process)"
    pages = (
        gs.steps(trace),
        gs.ledger(trace),
        gs.summary(trace),
        gs.kernels(trace),
        gs.whatif(trace, apply=["1"]),
    )
    assert two.focus.text == window.partition(", ")[0]
    for page in pages:
        assert window in page.to_text(), page.title
    assert gs.kernels(trace).frame["calls"].sum() == STEPS * KERNELS
    assert gs.steps(trace, process=100).to_text().splitlines()[0].count("process") == 0
    note = "steps are those of process 200, the worst of 2; --process selects another"
    assert note in gs.drill(trace).notes
    assert note not in gs.drill(trace, process=100).notes
    # A window of time has the rows of all processes.
    assert gs.kernels(trace, window=(None, None)).frame["calls"].sum() == 2 * STEPS * KERNELS
    program = gs.report(trace).answer.program
    assert program is not None
    assert isinstance(program.diagnosis, TimelineDiagnosis)
    assert isinstance(program.ledger, LedgerReport)
    assert program.diagnosis.meta["process"] == 200
    assert len(program.diagnosis.sections) == 1
    assert program.ledger.focus.text == window


def test_a_small_process_needs_no_diagnosis(monkeypatch: pytest.MonkeyPatch) -> None:
    small = process(2, slow=True, kernels=1)
    small["kernels"] = [row | {"end_ns": row["start_ns"] + US} for row in small["kernels"]]
    trace = capture(process(1, slow=False), small)
    monkeypatch.setattr("gpusight.rules.process_sections.diagnose_processes", pytest.fail)
    chosen = first_process(trace, Selection())
    assert (chosen.process, chosen.rank) == ("100", "worst of 2")
    named = Selection(process="200")
    assert first_process(trace, named) is named


def test_a_process_that_waits_for_another_one_comes_after_it() -> None:
    """Both are idle for the same time, one of them in a collective: the other one is the cause."""
    waiting = process(1, slow=True)
    rows = [row for row in waiting["kernels"] if row["start_ns"] % (10 * MS) < 1200 * US * 7]
    waiting["ranges"] += [
        {
            "start_ns": row["end_ns"],
            "end_ns": row["end_ns"] + 970 * US,
            "name": "gloo:all_reduce",
            "process": 1,
            "thread": 10,
        }
        for row in rows
    ]
    assert diagnosed(capture(waiting, process(2, slow=True))).meta["process"] == 200


def test_a_process_that_sleeps_waits_for_no_other_one() -> None:
    calls = []
    for number, name in ((1, "pthread_cond_wait"), (2, "clock_nanosleep")):
        tables = process(number, slow=True)
        tables["os_calls"] = [
            {
                "start_ns": row["end_ns"] + US,
                "end_ns": row["end_ns"] + 970 * US,
                "name": name,
                "process": number,
                "thread": 10 * number,
            }
            for row in tables["kernels"]
        ]
        calls.append(tables)
    assert diagnosed(capture(*calls)).meta["process"] == 200


def test_a_line_has_step_time_busy_share_and_finding(two: TimelineDiagnosis) -> None:
    line = two.sections[0].summary()
    assert line.startswith("process 100 (python), GPU 0: ")
    assert "10.0 ms/step" in line
    assert "GPU busy 98" in line
    assert line.endswith("; no finding")


def test_json_has_every_process(two: TimelineDiagnosis) -> None:
    (section,) = two.document()["sections"]
    assert (section["pid"], section["devices"]) == (100, [0])
    assert section["diagnosis"]["window"]["steps"] == STEPS
    assert section["diagnosis"]["ledger"]["devices"][0]["device"] == 0


def test_one_that_was_asked_for_is_alone() -> None:
    trace = capture(process(1, slow=False), process(2, slow=True))
    options = DiagnoseOptions(selection=Selection(process="100"))
    assert diagnosed(trace, options).sections == ()
    with pytest.raises(UsageError, match="no process"):
        diagnosed(trace, DiagnoseOptions(selection=Selection(process="7")))


def test_a_process_with_little_gpu_work_is_not_first() -> None:
    little = process(2, slow=True, kernels=1)
    diagnosis = diagnosed(capture(process(1, slow=False), little))
    assert diagnosis.meta["process"] == 100
    assert [section.option for section in diagnosis.sections] == ["--process 200"]


def test_further_gpus_of_one_process() -> None:
    tables = process(1, slow=True)
    for row in tables["kernels"][::2]:
        row["device"] = 1
    diagnosis = diagnosed(capture(tables))
    (gpu,) = diagnosis.sections
    assert {gpu.label, f"GPU {diagnosis.meta['device']}"} == {"GPU 0", "GPU 1"}
    assert gpu.option == f"--device {gpu.label[-1]}"
    assert gpu.diagnosis is None


def test_many_processes_are_all_listed() -> None:
    trace = capture(*(process(key, slow=True, kernels=2) for key in range(1, MAX_DIAGNOSED + 3)))
    assert len(gpu_owners(trace)) == MAX_DIAGNOSED + 2
    sections = diagnosed(trace, DiagnoseOptions(rules=["launch-bound"])).sections
    assert len(sections) == MAX_DIAGNOSED + 1
    assert [s.reason for s in sections[-2:]] == ["not diagnosed: too many"] * 2


def test_the_first_screen_has_a_line_for_each_and_stays_short(two: TimelineDiagnosis) -> None:
    screen = DiagnosisView(two).to_text().splitlines()
    (line,) = (text for text in screen if text.startswith("process 100"))
    assert line.endswith("(--process 100)")
    many = replace(two, sections=two.sections * 9)
    screen = DiagnosisView(many).to_text().splitlines()
    assert len(screen) <= MAX_LINES
    assert "… 6 more processes: --details; all ranks: gpusight ranks" in screen
