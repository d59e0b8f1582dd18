"""What-ifs on captures written down by hand, whose answers can be worked out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpusight
from gpusight.analysis.scenario import (
    Scenario,
    ScenarioAction,
    parse_scenario,
    scenarios,
    whatif_page,
)
from gpusight.analysis.selection import Selection
from gpusight.cli.main import main
from gpusight.errors import GpusightError, UsageError
from gpusight.results import NotApplicable, TableResult
from gpusight.rules.scenario_changes import what_if
from gpusight.units import format_time
from tests.rules.timeline.rule_captures import Capture
from tests.shared import (
    DATA,
    EVERY_REPORT,
    EVERY_SQLITE,
    EVERY_TORCH_TRACE,
    SHARED,
    name,
    needs_shared,
)
from tests.traces import build_trace

DATALOAD = DATA / "dataload.sqlite"


def loop() -> Capture:
    """Five steps of 1 ms: 300 us of data, a copy, two kernels, a synchronization.

    In a step: data until 300, an allocation of 50, a copy of 100 us that is waited for, `gemm` of
    200 us and `relu` of 100, a synchronization that returns 5 us after them, 235 us of Python.
    """
    capture = Capture()
    for n in range(5):
        at = n * 1_000
        capture.range(f"step_{n}", at, at + 1_000)
        capture.range("data", at, at + 300)
        capture.call("cudaMalloc", at + 300, at + 350)
        capture.copy((at + 350, at + 460), (at + 355, at + 455), size=1_000_000)
        capture.range("forward", at + 460, at + 480)
        capture.launch((at + 460, at + 463), (at + 465, at + 665), "ampere_sgemm_128x64_tn")
        capture.launch((at + 464, at + 467), (at + 666, at + 766), "vectorized_elementwise_kernel")
        capture.call("cudaDeviceSynchronize", at + 470, at + 771)
    return capture


def predicted(capture: Capture, *given: Scenario, **options: Any) -> Any:
    trace = build_trace({"source": capture.source}, **capture.tables)
    return what_if(trace, scenarios=given, **options)


def saved_us(capture: Capture, verb: ScenarioAction, text: str = "") -> float:
    return float(predicted(capture, parse_scenario(verb, text)).saved_ns / 5 / 1_000)


@pytest.mark.parametrize(
    ("verb", "text", "expected"),
    [
        # Four times as fast: 150 of the 200 us.
        (ScenarioAction.SPEEDUP, "matmul=4x", 150),
        (ScenarioAction.SPEEDUP, "kernel:*sgemm*=2", 100),
        (ScenarioAction.SPEEDUP, "kernels=2x", 150),
        (ScenarioAction.SPEEDUP, "range:forward=2x", 150),
        (ScenarioAction.SPEEDUP, "copies=2x", 50),
        (ScenarioAction.REMOVE, "input", 300),
        (ScenarioAction.REMOVE, "alloc", 50),
        (ScenarioAction.REMOVE, "matmul", 201),
        (ScenarioAction.REMOVE, "range:data", 300),
        # The copy's 100 us and 2 us around it; its call costs 8 us.
        (ScenarioAction.OVERLAP, "copies", 102),
    ],
)
def test_one_change(verb: ScenarioAction, text: str, expected: float) -> None:
    assert saved_us(loop(), verb, text) == pytest.approx(expected, abs=4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # 66.9 TFLOP/s of FP32 on lanes become 494.7: 200 us become 27, and 4 that always stay.
        ("tf32", 169),
        # At 989.4 TFLOP/s 14 and 4; two casts cost 5 us of the GPU and 4 of the host each.
        ("bf16", 164),
        ("fp16", 164),
    ],
)
def test_products_on_tensor_cores(text: str, expected: float) -> None:
    capture = loop()
    capture.tables["devices"] = [{"device": 0, "name": "NVIDIA H200"}]
    assert saved_us(capture, ScenarioAction.PRECISION, text) == pytest.approx(expected, abs=4)
    words = f"FP32 GEMMs in {text.upper()}"
    assert (
        predicted(capture, parse_scenario(ScenarioAction.PRECISION, text)).changes[0].change
        == words
    )


@pytest.mark.parametrize(
    ("gpu", "kernel", "message"),
    [
        ("NVIDIA H200", "nvjet_sm90_tst_256x128_64x4_h_bz_TNT", "no FP32 GEMM or convolution"),
        ("Tesla P100-PCIE-16GB", "ampere_sgemm_128x64_tn", "has no faster Tensor Cores"),
        ("a GPU of no list", "ampere_sgemm_128x64_tn", "the peak FLOP/s of the GPU are unknown"),
    ],
)
def test_products_that_cannot_be_on_tensor_cores(gpu: str, kernel: str, message: str) -> None:
    capture = loop()
    capture.tables["devices"] = [{"device": 0, "name": gpu}]
    for row in capture.tables["kernels"]:
        row["name"] = row["name"].replace("ampere_sgemm_128x64_tn", kernel)
    with pytest.raises(UsageError, match=message):
        predicted(capture, parse_scenario(ScenarioAction.PRECISION, "tf32"))


def test_without_synchronization_host_and_gpu_run_side_by_side() -> None:
    # The host needs 300 + 50 + 5 + some for calls + 229 of Python; the GPU 400 a step.
    assert 300 < saved_us(loop(), ScenarioAction.REMOVE, "sync") < 420


@needs_shared
def test_removed_syncs_name_what_the_fix_of_diagnose_saves_in_addition() -> None:
    capture = SHARED / "nsys" / "item.sqlite"
    (finding,) = (
        row
        for row in gpusight.diagnose(capture).to_dict()["findings"]
        if row["rule"] == "host-sync"
    )
    view = gpusight.whatif(capture, remove="sync")
    saving = format_time(finding["recoverable_ns_per_step"], digits=3)
    assert any(f"host-sync of diagnose saves {saving}/step" in note for note in view.notes)
    applied = gpusight.whatif(capture, apply="host-sync").to_dict()
    assert applied["changes"][0]["alone_ns"] == pytest.approx(finding["recoverable_ns"], rel=0.01)


def test_a_host_twice_as_fast_halves_what_it_does_itself() -> None:
    # 300 us of data, 50 of allocating and 229 of Python are its own; waits stay.
    assert saved_us(loop(), ScenarioAction.SPEEDUP, "host=2x") == pytest.approx(289, abs=10)


def test_gains_do_not_add_up_and_sum_to_the_whole() -> None:
    result = predicted(
        loop(),
        parse_scenario(ScenarioAction.REMOVE, "input"),
        parse_scenario(ScenarioAction.SPEEDUP, "matmul=4x"),
        parse_scenario(ScenarioAction.REMOVE, "sync"),
    )
    assert sum(change.after_ns for change in result.changes) == result.saved_ns
    assert [change.change for change in result.changes] == [
        "without input",
        "matmul 4x faster",
        "without sync",
    ]
    last = result.changes[-1]
    assert last.after_ns < last.alone_ns
    assert result.unchanged_ns == pytest.approx(result.measured_ns, rel=0.001)


def test_the_new_ledger_sums_to_the_new_time() -> None:
    result = predicted(
        loop(),
        parse_scenario(ScenarioAction.SPEEDUP, "matmul=4x"),
        parse_scenario(ScenarioAction.REMOVE, "input"),
    )
    (before,), (after,) = result.before.devices, result.after.devices
    assert sum(entry.ns for entry in before.entries) == result.measured_ns
    assert sum(entry.ns for entry in after.entries) == result.changed_ns
    assert before.ns("compute/matmul") == 5 * 200_000
    assert after.ns("compute/matmul") == 5 * 50_000
    assert after.ns("idle/input") == 0


def test_one_gpu_can_be_asked_for() -> None:
    capture = loop()
    capture.launch((480, 483), (485, 500), "gemm", device=1)
    scenario = parse_scenario(ScenarioAction.SPEEDUP, "kernels=2x")
    assert len(predicted(capture, scenario).before.devices) == 2
    chosen = predicted(capture, scenario, selection=Selection(device=1))
    assert [d.device for d in (*chosen.before.devices, *chosen.after.devices)] == [1, 1]


def test_the_document_has_what_programs_read() -> None:
    document = predicted(loop(), parse_scenario(ScenarioAction.SPEEDUP, "matmul=4x")).document()
    assert document["steps"] == 5
    assert document["share"] == pytest.approx(0.15, abs=0.01)
    assert document["window"] == {"start_ns": 0, "end_ns": 5_000_000}
    assert document["saved_ns"] == document["unchanged_ns"] - document["changed_ns"]
    assert set(document["changes"][0]) == {"change", "alone_ns", "after_ns"}
    assert set(document["ledger"]) == {"before", "after"}
    assert set(document) >= {"measured_ns", "error", "meta", "notes"}


def test_the_page_shows_a_step() -> None:
    shown = whatif_page(predicted(loop(), parse_scenario(ScenarioAction.SPEEDUP, "matmul=4x")))
    facts = {fact.key: fact.value for fact in shown.facts}
    assert facts["step_before_ns"] == 1_000_000
    assert facts["step_after_ns"] == pytest.approx(850_000, rel=0.01)
    changes, entries = shown.sections
    assert changes.rows()[0]["alone_ns"] == pytest.approx(150_000, rel=0.01)  # type: ignore[union-attr]
    assert entries.rows()[0]["entry"] == "compute/matmul"  # type: ignore[union-attr]
    assert entries.rows()[0]["delta_ns"] == -150_000  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("verb", "text", "scenario"),
    [
        (ScenarioAction.SPEEDUP, "matmul=4x", Scenario(ScenarioAction.SPEEDUP, "matmul", 4.0)),
        (ScenarioAction.SPEEDUP, " matmul = 1.5 ", Scenario(ScenarioAction.SPEEDUP, "matmul", 1.5)),
        (
            ScenarioAction.SPEEDUP,
            "kernel:a=b*=2X",
            Scenario(ScenarioAction.SPEEDUP, "kernel:a=b*", 2.0),
        ),
        (
            ScenarioAction.REMOVE,
            "range:validation",
            Scenario(ScenarioAction.REMOVE, "range:validation"),
        ),
        (ScenarioAction.GRAPH, "", Scenario(ScenarioAction.GRAPH)),
        (ScenarioAction.APPLY, "launch-bound", Scenario(ScenarioAction.APPLY, "launch-bound")),
        (ScenarioAction.PRECISION, "bf16", Scenario(ScenarioAction.PRECISION, "bf16")),
    ],
)
def test_scenarios_are_read(verb: ScenarioAction, text: str, scenario: Scenario) -> None:
    assert parse_scenario(verb, text) == scenario


@pytest.mark.parametrize(
    ("verb", "text", "message"),
    [
        (ScenarioAction.SPEEDUP, "mathmul=4x", "'matmul'"),
        (ScenarioAction.PRECISION, "bf61", "'bf16'"),
        (ScenarioAction.SPEEDUP, "matmul", "has no speedup factor"),
        (ScenarioAction.SPEEDUP, "matmul=0.5x", "has no speedup factor"),
        (ScenarioAction.SPEEDUP, "matmul=fast", "has no speedup factor"),
        (ScenarioAction.SPEEDUP, "=4x", "--speedup cannot take"),
        (ScenarioAction.SPEEDUP, "kernel:=4x", "--speedup cannot take"),
        (ScenarioAction.FUSE, "matmul", "elementwise, optimizer, attention"),
        (ScenarioAction.OVERLAP, "compute", "copies"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_is_near(
    verb: ScenarioAction, text: str, message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        parse_scenario(verb, text)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("verb", "text", "message"),
    [
        (ScenarioAction.SPEEDUP, "convolution=2x", "it has matmul, elementwise"),
        (ScenarioAction.SPEEDUP, "kernel:nothing=2x", "no kernel matches"),
        (ScenarioAction.REMOVE, "range:nothing", "no range matches"),
        (ScenarioAction.REMOVE, "syncs", "similar: 'sync'; "),
        (
            ScenarioAction.REMOVE,
            "gil",
            "cannot take 'gil'; in these steps: sync, input, alloc, copies, matmul, elementwise, ",
        ),
        (ScenarioAction.OVERLAP, "communication", "no 'communication' in the simulated steps"),
        (ScenarioAction.APPLY, "no-such-rule", "no rule"),
        (ScenarioAction.APPLY, "exposed-communication", "does not have that problem"),
        (ScenarioAction.APPLY, "memory-growth", "no memory events"),
    ],
)
def test_what_the_capture_does_not_have_is_refused(
    verb: ScenarioAction, text: str, message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        predicted(loop(), parse_scenario(verb, text))
    assert message in str(refused.value)


def test_nothing_to_change_is_refused() -> None:
    with pytest.raises(UsageError, match="needs a change"):
        predicted(loop())


def test_a_capture_without_gpu_work_has_no_answer() -> None:
    trace = build_trace(cpu_ops=[{"name": "aten::add", "end_ns": 100}])
    assert isinstance(what_if(trace, scenarios=[Scenario(ScenarioAction.GRAPH)]), NotApplicable)


def test_named_arguments_become_scenarios_with_graphs_last() -> None:
    made = scenarios(
        graph=True,
        speedup={"matmul": 4},
        remove="sync",
        apply=["launch-bound"],
        precision="tf32",
    )
    assert [scenario.text for scenario in made] == [
        "matmul 4x faster",
        "FP32 GEMMs in TF32",
        "without sync",
        "fix of launch-bound",
        "CUDA graphs",
    ]


# Real captures ------------------------------------------------------------------------------------


def test_the_order_of_changes_changes_their_savings_but_no_total(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--remove", "input", "--graph", "--speedup", "matmul=2x"]
    turned = ["--speedup", "matmul=2x", "--graph", "--remove", "input"]
    assert main(["whatif", str(DATALOAD), *turned, "--format", "json"]) == 0
    other = json.loads(capsys.readouterr().out)
    assert main(["whatif", str(DATALOAD), *arguments, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["changed_ns"] == other["changed_ns"]
    assert sum(change["after_ns"] for change in other["changes"]) == other["saved_ns"]
    assert [change["change"] for change in document["changes"]] == [
        "without input",
        "CUDA graphs",
        "matmul 2x faster",
    ]
    # Each step sleeps for 10 ms.
    assert document["changes"][0]["alone_ns"] / document["steps"] == pytest.approx(10.1e6, rel=0.02)


def test_the_table_fits_the_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["whatif", str(DATALOAD), "--apply", "input-starved", "--graph"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "fix of input-starved" in out
    assert "no room for" not in out


def test_fixes_are_applied_by_their_number_in_diagnose() -> None:
    first = gpusight.diagnose(DATALOAD).findings[0].rule
    view = gpusight.whatif(DATALOAD, apply=["1"])
    assert [change.change for change in view.changes] == [f"fix of {first}"]
    with pytest.raises(UsageError, match=rf"no fix 99; fixes are: 1 {first}"):
        gpusight.whatif(DATALOAD, apply=["99"])


def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", str(DATALOAD), "--speedup", "mathmul=2x"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1


def test_the_function_gives_a_view_that_shows_itself() -> None:
    view = gpusight.whatif(DATALOAD, remove=["input"])
    assert view.saved_ns > 0
    assert "What if: without input" in repr(view)
    assert json.loads(view.to_json())["saved_ns"] == view.saved_ns
    assert "without input" in view.to_markdown()
    assert "without input" in view.to_csv()


def test_step_time_and_window_are_those_of_diagnose() -> None:
    from gpusight.rules.diagnosis import TimelineDiagnosis

    diagnosis = gpusight.diagnose(DATALOAD).answer
    assert isinstance(diagnosis, TimelineDiagnosis)
    result = gpusight.whatif(DATALOAD, remove=["input"]).answer
    facts = {fact.key: fact for fact in whatif_page(result).facts}
    assert facts["window"].value == result.window_text == diagnosis.headline.text
    assert facts["step_before_ns"].value == pytest.approx(diagnosis.step_ns)
    labels = [fact.label for fact in whatif_page(result).facts]
    assert labels == [
        "Window",
        "Step time",
        "Predicted",
        "Saved",
        "Saved %",
        "Speedup",
        "Simulation error",
    ]
    assert str(facts["speedup"].value).endswith("x")


@needs_shared
@pytest.mark.usefixtures("recorded_times")
def test_faster_matmuls_do_little_for_a_program_that_the_host_holds_up() -> None:
    view = gpusight.whatif(
        SHARED / "nsys/gpt_small_train.sqlite", speedup={"matmul": 6}, graph=True
    )
    matmul, graph = (change.alone_ns / view.answer.steps / 1e6 for change in view.changes)
    assert matmul == pytest.approx(1.0, abs=0.3)
    assert graph == pytest.approx(6.3, abs=1.0)
    assert view.saved_ns / view.answer.steps / 1e6 > 2 * (matmul + graph)


@needs_shared
def test_graphs_save_what_the_plan_says_of_them_alone() -> None:
    from gpusight.rules.diagnosis import TimelineDiagnosis

    path = SHARED / "nsys/gpt_small_train.sqlite"
    diagnosis = gpusight.diagnose(path).answer
    assert isinstance(diagnosis, TimelineDiagnosis)
    (fix,) = (f for f in diagnosis.plan if f.rule == "graph-candidate")
    saved_ns = gpusight.whatif(path, graph=True).saved_ns
    assert saved_ns == pytest.approx(fix.recoverable_ns, rel=0.02)


@needs_shared
@pytest.mark.parametrize("path", [*EVERY_SQLITE, *EVERY_TORCH_TRACE, *EVERY_REPORT], ids=name)
def test_every_capture_has_an_answer_whose_ledger_adds_up(path: Path) -> None:
    try:
        view = gpusight.whatif(path, speedup={"host": 2}, graph=True)
    except GpusightError as refused:
        pytest.skip(str(refused))
    result = view.answer
    for ledger, length in ((result.before, result.measured_ns), (result.after, result.changed_ns)):
        for device in ledger.devices:
            assert sum(entry.ns for entry in device.entries) == length
            assert min(entry.ns for entry in device.entries) >= 0
    assert result.changed_ns <= result.unchanged_ns


@needs_shared
@pytest.mark.usefixtures("recorded_times")
def test_the_real_pair_of_half_precision_and_a_fused_optimizer() -> None:
    result = gpusight.whatif(
        gpusight.open(SHARED / "nsys/gpt_small_train.sqlite"), precision="bf16", fuse=["optimizer"]
    ).answer
    # `gpt_small_train_bf16_fused` took 42.7 ms a step.
    assert result.changed_ns / result.steps == pytest.approx(42.7e6, rel=0.15)
    # Alone, the casts of autocast cost a program that waits for its host more than they give.
    assert result.changes[0].alone_ns < 0


def test_a_breakdown_of_a_sample_says_so() -> None:
    result = predicted(loop(), parse_scenario(ScenarioAction.REMOVE, "input"))
    for steps, title in ((5, ""), (2, " (2 of 5 steps)")):
        breakdown = whatif_page(replace(result, steps=steps)).sections[1]
        assert isinstance(breakdown, TableResult)
        assert breakdown.title == f"Time breakdown per step{title}"


def test_the_fix_of_a_general_rule_saves_what_diagnose_says() -> None:
    """host-bound is about the idle time that other findings leave, not about all of it."""
    capture = loop()
    trace = build_trace({"source": capture.source}, **capture.tables)
    diagnosis = gpusight.diagnose(trace).timeline
    assert diagnosis is not None
    fixes = {f.rule: f for f in diagnosis.fixes}
    assert {"input-starved", "host-bound"} <= set(fixes)
    result = predicted(capture, parse_scenario(ScenarioAction.APPLY, "host-bound"))
    alone_ns = fixes["host-bound"].recoverable_ns
    assert alone_ns == pytest.approx(5 * 240_000, rel=0.01)
    assert result.saved_ns == pytest.approx(5 * 279_000, rel=0.01)
    # The wait in between hides more of it: diagnose counts the idle time only, and that is said.
    (note,) = result.notes
    assert note.startswith("diagnose counts 240 µs/step for the fix of host-bound alone: the idle ")
    graphs = predicted(capture, Scenario(ScenarioAction.GRAPH))
    assert not any("CUDA graphs alone" in note for note in graphs.notes), (
        "no launches are its cause"
    )
    both = predicted(
        capture, *(Scenario(ScenarioAction.APPLY, f"{n}") for n in range(1, len(fixes) + 1))
    )
    assert both.changed_ns / 5 == pytest.approx(diagnosis.predicted_step_ns, rel=0.02)


@needs_shared
@pytest.mark.parametrize("name", ["nsys/gpt_tiny_train_r2.sqlite", "torch/conv.json.gz"])
def test_cuda_graphs_save_what_diagnose_says_or_why_they_save_more(name: str) -> None:
    trace = gpusight.open(SHARED / name)
    diagnosis = gpusight.diagnose(trace).timeline
    assert diagnosis is not None
    found = next(f for f in diagnosis.fixes if f.rule in {"launch-bound", "graph-candidate"})
    result = gpusight.whatif(trace, graph=True).answer
    assert found.recoverable_ns is not None
    assert result.saved_ns / result.per_step > 1.05 * found.recoverable_ns / diagnosis.steps
    limit = format_time(found.recoverable_ns / diagnosis.steps, digits=3)
    assert f"diagnose counts {limit}/step for CUDA graphs alone: the idle time" in " ".join(
        result.notes
    )
