"""The ledger as it is asked for and shown."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest

import gpusight as gs
from gpusight.analysis.ledger import idle_contributors
from gpusight.analysis.ledger.idle_contributors import IdleContributor, IdleStretches, families
from gpusight.analysis.ledger.ledger_report import (
    DeviceLedgerReport,
    LedgerReport,
    StepTimes,
    ledger_report,
)
from gpusight.analysis.ledger.ledger_tables import ledger_lines_table, ledger_page
from gpusight.analysis.selection import Selection
from gpusight.analysis.steps.step_list import TraceStep
from gpusight.cli.main import main
from gpusight.errors import MissingDataError, UsageError
from gpusight.readers.open import open_trace
from gpusight.results import NotApplicable
from tests.analysis.ledger.windows import AUTOGRAD, US, kernel, launch, us
from tests.shared import DATA, EVERY_REPORT, EVERY_SQLITE, EVERY_TORCH_TRACE, SHARED, name
from tests.shared import needs_shared as needs_shared_captures
from tests.traces import build_trace

if TYPE_CHECKING:
    from pathlib import Path


CAPTURE = str(DATA / "dataload.sqlite")
TABLES: dict[str, Any] = {
    "api_calls": [launch(0, 5, 1), launch(50, 55, 2)],
    "kernels": [kernel(6, 20, 1), kernel(57, 70, 2)],
}


def report(within: str | None = None, **tables: Any) -> LedgerReport:
    result = ledger_report(build_trace(**{**TABLES, **tables}), Selection(within=within))
    assert isinstance(result, LedgerReport), result
    return result


def contributors(entry: str, **tables: Any) -> list[IdleContributor]:
    (device,) = report(**tables).devices
    return list(device.contributors[entry])


def test_contributors_of_each_kind() -> None:
    result = contributors(
        "idle/framework",
        ranges=[us(0, 70, name="forward"), us(22, 40, name="layer 1"), us(40, 48, name="layer 2")],
        cpu_ops=[us(22, 48, name="aten::mm")],
        os_calls=[us(22, 48, name="ioctl")],
        python_calls=[us(10, 60, name="train.py(7): step")],
    )
    assert {c.kind: (c.name, c.ns, c.count) for c in result} == {
        "range": ("layer 1", 30 * US, 1),
        "op": ("aten::mm", 30 * US, 1),
        "os call": ("ioctl", 30 * US, 1),
        "call site": ("train.py(7): step", 30 * US, 1),
        "next": ("gemm", 30 * US, 1),
    }


def test_ranges_that_only_differ_by_numbers_are_one() -> None:
    calls = [launch(50 * i, 50 * i + 5, i + 1) for i in range(4)]
    kernels = [kernel(50 * i + 6, 50 * i + 20, i + 1) for i in range(4)]
    ranges = [us(50 * i, 50 * i + 49, name=f"layer.{i}") for i in range(4)]
    result = contributors("idle/framework", api_calls=calls, kernels=kernels, ranges=ranges)
    assert (result[0].name, result[0].ns, result[0].count) == ("layer.#", 119 * US, 4)


def test_call_sites_of_native_code() -> None:
    chain = {"source": "api_calls", "callchain": 4, "module": "app"}
    result = contributors(
        "idle/synchronizing",
        api_calls=[*TABLES["api_calls"], us(21, 30, name="cudaDeviceSynchronize", callchain=4)],
        callchains=[
            {**chain, "depth": 0, "symbol": "cuda_sync", "module": "libcuda.so.1"},
            {**chain, "depth": 1, "symbol": "wait_for_all", "file": "solver.cu", "line": 42},
            {**chain, "depth": 2, "symbol": "main"},
        ],
    )
    names = {c.kind: c.name for c in result}
    assert names["api call"] == "cudaDeviceSynchronize"
    assert names["call site"] == "wait_for_all (solver.cu:42)"


def test_queued_work_is_explained_by_its_own_launch() -> None:
    result = contributors(
        "idle/queued",
        api_calls=[launch(0, 5, 1), launch(7, 9, 2)],
        ranges=[us(6, 10, name="launched here"), us(21, 60, name="later")],
    )
    assert {c.kind: c.name for c in result}["range"] == "launched here"


def test_the_document_has_the_promised_form() -> None:
    document = report(ranges=[us(0, 35, name="step_0"), us(35, 70, name="step_1")]).document()
    times = {"step_ns": 35 * US, "recorded_step_ns": 35 * US, "estimate_ns": None}
    assert document["window"] == {"start_ns": 0, "end_ns": 70 * US, **times}
    (device,) = document["devices"]
    assert device["device"] == 0
    assert [(e["entry"], e["ns"]) for e in device["entries"]] == [
        ("compute/matmul", 27 * US),
        ("idle/launching", 13 * US),
        ("idle/framework", 30 * US),
    ]
    assert sum(e["share"] for e in device["entries"]) == pytest.approx(1)
    first, second = document["steps"]
    assert (first["step"], first["number"], first["end_ns"]) == ("step_0", 0, 35 * US)
    assert _ns(first) == {
        "compute/matmul": 14 * US,
        "idle/launching": 6 * US,
        "idle/framework": 15 * US,
    }
    assert sum(_ns(second).values()) == 35 * US


def _ns(step: dict[str, Any]) -> dict[str, int]:
    (device,) = step["devices"]
    return {entry["entry"]: entry["ns"] for entry in device["entries"]}


def test_lines_and_documents_of_steps_say_the_same() -> None:
    """One table holds all steps: a step without GPU time of its own has no lines in it."""
    steps = (TraceStep("a", 0, 0, 10), TraceStep("b", 1, 10, 10), TraceStep("c", 2, 10, 40))
    times = StepTimes(steps, ("compute/matmul", "idle/input"), np.array([[4, 6], [0, 0], [0, 30]]))
    assert times.lines.rows() == [
        (0, "compute/matmul", 4, 0.4),
        (0, "idle/input", 6, 0.6),
        (2, "idle/input", 30, 1.0),
    ]
    assert times.documents() == [
        [
            {"entry": "compute/matmul", "ns": 4, "share": 0.4},
            {"entry": "idle/input", "ns": 6, "share": 0.6},
        ],
        [],
        [{"entry": "idle/input", "ns": 30, "share": 1.0}],
    ]


def test_lines_of_the_window_come_before_those_of_steps() -> None:
    result = report(ranges=[us(0, 35, name="step_0"), us(35, 70, name="step_1")])
    rows = ledger_lines_table(result).frame.select("step", "number", "entry", "ns").rows()
    assert [row[0] for row in rows] == [None] * 3 + ["step_0"] * 3 + ["step_1"] * 3
    assert rows[0] == (None, None, "compute/matmul", 27 * US)
    assert rows[3] == ("step_0", 0, "compute/matmul", 14 * US)


def test_names_of_operators_are_told_without_what_pytorch_appends() -> None:
    names = pl.Series(
        ["aten::mm, seq = 7, op_id = 3", "step_12", "a1b22 sizes = [[1,\n2]]", "plain"]
    )
    assert families(names).to_list() == ["aten::mm", "step_#", "a#b#", "plain"]


def test_no_calls_are_said() -> None:
    result = ledger_report(build_trace(kernels=TABLES["kernels"]))
    assert isinstance(result, LedgerReport)
    assert any("no API calls" in note for note in result.notes)


def test_whole_graphs_are_said() -> None:
    result = report(graph_launches=[us(30, 40)])
    assert any("traced per graph" in note for note in result.notes)


def test_much_unknown_time_is_said() -> None:
    result = report(kernels=[kernel(6, 20, 1), kernel(57, 70)])
    assert any("unknown causes" in note for note in result.notes)


def test_several_gpus_are_compared() -> None:
    kernels = [kernel(6, 20, 1, device=0), kernel(57, 70, 2, device=1)]
    result = ledger_page(report(kernels=kernels), by_step=True)
    assert [s.command for s in result.sections] == [
        "gpus",
        "entries_0",
        "entries_1",
        "idle",
        "steps",
    ]
    assert any(note.startswith("idle causes: ") for note in result.notes)


def test_steps_of_another_process_are_not_those_of_a_gpu() -> None:
    result = report(
        api_calls=[*TABLES["api_calls"], launch(1, 2, 1, process=2, thread=AUTOGRAD)],
        kernels=[*TABLES["kernels"], kernel(3, 60, 1, device=1, process=2)],
        ranges=[us(0, 35, name="step_0"), us(35, 70, name="step_1")],
    )
    first, second = result.devices
    assert len(first.steps.steps) == 2
    assert len(second.steps.steps) == 0


def test_without_gpu_work_there_is_no_ledger() -> None:
    result = ledger_report(build_trace(api_calls=[launch(0, 5, 1)]))
    assert isinstance(result, NotApplicable)
    assert result.command == "ledger"
    with pytest.raises(MissingDataError):
        gs.ledger(build_trace(api_calls=[launch(0, 5, 1)]))


def test_several_processes_of_one_name_are_refused() -> None:
    processes = [{"process": n, "pid": n, "name": "python3"} for n in (1, 2)]
    with pytest.raises(UsageError, match="one process or all"):
        ledger_report(build_trace(**TABLES, processes=processes), Selection(process="python3"))


def test_the_command_fits_the_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["ledger", CAPTURE, "--by-step"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert max(map(len, out.splitlines())) <= 80
    assert "idle/input" in out
    assert "step_3" in out


def test_the_command_writes_json_and_csv(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", CAPTURE, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"window", "devices", "steps", "meta", "notes"}
    assert main(["ledger", CAPTURE, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    whole = [row for row in rows if not row["step"]]
    window = document["window"]
    assert sum(int(row["ns"]) for row in whole) == window["end_ns"] - window["start_ns"]
    assert {row["step"] for row in rows} - {""} == {s["step"] for s in document["steps"]}


@pytest.mark.usefixtures("recorded_times")
def test_the_command_takes_steps_ranges_and_windows(capsys: pytest.CaptureFixture[str]) -> None:
    def ledger_ns(*chosen: str) -> dict[str, int]:
        assert main(["ledger", CAPTURE, "--format", "json", *chosen]) == 0
        window: dict[str, int] = json.loads(capsys.readouterr().out)["window"]
        return window

    whole, steps, data = ledger_ns(), ledger_ns("--steps", "3-4"), ledger_ns("--in", "data")
    middle = (whole["start_ns"] + whole["end_ns"]) // 2
    half = ledger_ns("--window", f"{middle}ns-")
    assert whole["start_ns"] < steps["start_ns"] < steps["end_ns"] < whole["end_ns"]
    assert whole["start_ns"] <= data["start_ns"] < data["end_ns"] < whole["end_ns"]
    assert half["start_ns"] == middle


def test_no_gpu_work_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", str(DATA / "memory_snapshot.pickle")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1


def test_the_function_shows_itself() -> None:
    view = gs.ledger(CAPTURE)
    assert "idle/input" in repr(view)
    assert "idle/input" in view._repr_html_()
    assert json.loads(view.to_json()) == json.loads(json.dumps(view.to_dict()))
    assert view.to_csv().startswith("device,step,number,entry,ns,share")
    assert "| idle/input" in view.to_markdown()


# The ledgers of real captures.


EVERY = [*EVERY_SQLITE, *EVERY_REPORT, *EVERY_TORCH_TRACE, *sorted(DATA.glob("jax*"))]


def report_of(path: Path) -> LedgerReport | NotApplicable:
    with open_trace(path, cache=False) as trace:
        return ledger_report(trace)


def only_device(path: Path) -> DeviceLedgerReport:
    result = report_of(path)
    assert isinstance(result, LedgerReport), result
    (device,) = result.devices
    return device


@pytest.mark.parametrize("path", EVERY, ids=name)
def test_every_capture_is_accounted_for_to_the_nanosecond(path: Path) -> None:
    result = report_of(path)
    if isinstance(result, NotApplicable):
        assert "no GPU work" in result.reason or "no activity" in result.reason
        return
    start, end = result.ledger.start_ns, result.ledger.end_ns
    for device in result.devices:
        assert sum(entry.ns for entry in device.ledger.entries) == end - start
        assert all(entry.ns > 0 for entry in device.ledger.entries)
        if device.steps.steps:
            assert device.steps.ns.sum() == end - start
        assert (device.steps.ns >= 0).all()
        for entry, contributors in device.contributors.items():
            for kind in {c.kind for c in contributors}:
                named_ns = sum(c.ns for c in contributors if c.kind == kind)
                assert 0 < named_ns <= device.ledger.ns(entry)


def test_a_starved_gpu_waits_for_input() -> None:
    device = only_device(DATA / "dataload.sqlite")
    input_ns = device.steps.ns[:, device.steps.entries.index("idle/input")]
    assert float(np.median(input_ns)) == pytest.approx(10.1e6, rel=0.02)
    largest = device.contributors["idle/input"][0]
    assert (largest.kind, largest.name) == ("range", "data")
    assert largest.count == len(device.steps.steps)


@pytest.mark.parametrize("codes", [[2, 0, 2, None, 1, 2], [None] * 6, []])
def test_sums_by_code_are_those_of_groups(
    codes: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cause = np.array([3, 3, 3, 1, 0, 1], np.int64)[: len(codes)]
    times = np.arange(len(codes), dtype=np.int64)
    stretches = IdleStretches(cause, cause, times, 3 * times + 1, cause, times)
    names = pl.Series(codes, dtype=pl.UInt32)
    by_code = idle_contributors._summed(stretches, names)
    monkeypatch.setattr(idle_contributors, "_MAX_CODES_PER_ROW", -1)
    by_group = idle_contributors._summed(stretches, names)
    assert by_code.schema == by_group.schema
    assert by_code.sort("cause", "name").rows() == by_group.sort("cause", "name").rows()
    known = [2 * at + 1 for at, code in enumerate(codes) if code is not None]
    assert (by_code["ns"].sum(), by_code["count"].sum()) == (sum(known), len(known))


@needs_shared_captures
@pytest.mark.parametrize(
    "capture", ["nsys/gpt_small_train.sqlite", "torch/gpt_small_train.json.gz"]
)
def test_a_slow_host_is_the_framework_and_launching(capture: str) -> None:
    ledger = only_device(SHARED / capture).ledger
    host = ledger.ns("idle/framework") + ledger.ns("idle/launching")
    assert host > 0.7 * ledger.ns("idle")
    assert ledger.ns("idle/input") == 0


@needs_shared_captures
def test_workers_take_the_input_off_the_launching_thread() -> None:
    alone, helped = (
        only_device(next((SHARED / "public/torch").glob(f"kineto__tb_plugin*num_workers_{n}*")))
        for n in (0, 4)
    )
    assert alone.ledger.ns("idle/input") > 0.1 * alone.steps.ns.sum()
    assert helped.ledger.ns("idle/input") < 0.02 * helped.steps.ns.sum()


@needs_shared_captures
def test_a_shared_gpu_keeps_launched_work_waiting() -> None:
    alone, shared = (
        only_device(SHARED / f"nsys/gpt_tiny_train_{run}.sqlite").ledger for run in ("r1", "r2")
    )
    assert shared.ns("idle/queued") > 10 * alone.ns("idle/queued")


@needs_shared_captures
def test_a_healthy_program_is_hardly_idle() -> None:
    device = only_device(SHARED / "nsys/healthy.sqlite")
    assert device.ledger.ns("compute") > 0.95 * sum(e.ns for e in device.ledger.entries)
