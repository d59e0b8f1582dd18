"""`gpusight counters`, `kernels`, `launches`, `summary` and `join` on measured launches."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from gpusight.cli.main import main
from gpusight.trace.trace import Trace
from tests.shared import DATA, SHARED, needs_shared
from tests.traces import build_trace

SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
TIME = "gpu__time_duration.sum"
CACHE = "launch__func_cache_config"
HOSTILE = "evil\x1b[31m<b>"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> str:
    """Stand in for a report: whatever file is opened, it holds two launches."""
    monkeypatch.setattr("gpusight.cli.capture_input.open_capture", lambda *_: _trace())
    return "report.ncu-rep"


def _trace() -> Trace:
    shape = {"grid_x": 2, "grid_y": 1, "grid_z": 1, "block_x": 32, "block_y": 1, "block_z": 1}
    return build_trace(
        {"source": "ncu-report", "tool": "Nsight Compute"},
        profiles=[
            {"launch": 0, "kind": "kernel", "name": "first", "duration_ns": 1500.0, **shape},
            {"launch": 1, "kind": "kernel", "name": HOSTILE, "duration_ns": 500.0, **shape},
        ],
        counters=[
            {"launch": 0, "metric": TIME, "value": 1500.0, "unit": "ns"},
            {"launch": 0, "metric": SM, "value": 12.5, "unit": "%"},
            {"launch": 0, "metric": CACHE, "text": "CachePreferNone"},
            {"launch": 0, "metric": "dram__bytes.sum", "value": 2.5e6, "unit": "byte"},
            {"launch": 1, "metric": TIME, "value": 500.0, "unit": "ns"},
        ],
    )


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, _ = run(capsys, *arguments, "--format", "json")
    assert code == 0
    document: dict[str, Any] = json.loads(out)
    return document


def test_json_rows_are_tidy_and_a_value_is_a_number_or_a_text(
    capsys: pytest.CaptureFixture[str], measured: str
) -> None:
    rows = document(capsys, "counters", measured, "--launch", "0")["rows"]
    assert [list(row)[:5] for row in rows] == [["launch", "kernel", "metric", "value", "unit"]] * 4
    assert [(r["metric"], r["value"], r["unit"]) for r in rows] == [
        (TIME, 1500.0, "ns"),
        (SM, 12.5, "%"),
        (CACHE, "CachePreferNone", None),
        ("dram__bytes.sum", 2.5e6, "byte"),
    ]


def test_csv_holds_the_same_rows(capsys: pytest.CaptureFixture[str], measured: str) -> None:
    code, out, _ = run(capsys, "counters", measured, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert len(rows) == 5
    assert rows[2]["value"] == "CachePreferNone"
    assert float(rows[3]["value"]) == 2.5e6


def test_the_table_is_for_people(capsys: pytest.CaptureFixture[str], measured: str) -> None:
    code, out, _ = run(capsys, "counters", measured, "--metrics", "*")
    assert code == 0
    assert "1.500 µs" in out
    assert "2.500 MB" in out
    assert "12.50 %" in out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_without_metrics_the_table_shows_a_few_and_says_so(
    capsys: pytest.CaptureFixture[str], measured: str
) -> None:
    _, out, _ = run(capsys, "counters", measured)
    assert TIME in out
    assert CACHE not in out
    assert "2 of 4 metrics are shown" in out


def test_wide_has_a_column_a_metric_with_its_unit(
    capsys: pytest.CaptureFixture[str], measured: str
) -> None:
    rows = document(capsys, "counters", measured, "--wide")["rows"]
    assert len(rows) == 2
    assert rows[0][f"{TIME} [ns]"] == 1500.0
    assert rows[0][CACHE] == "CachePreferNone"
    assert rows[1][f"{SM} [%]"] is None


def test_metrics_are_listed_with_their_units(
    capsys: pytest.CaptureFixture[str], measured: str
) -> None:
    rows = document(capsys, "counters", measured, "--list")["rows"]
    assert [(r["metric"], r["unit"], r["launches"]) for r in rows] == [
        ("dram__bytes.sum", "byte", 1),
        (TIME, "ns", 2),
        (CACHE, None, 1),
        (SM, "%", 1),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--metrics", "nothing"), "no metric matches"),
        (("--kernel", "nothing"), "no kernel matches"),
        (("--launch", "7"), "no launch 7"),
        (("--in", "step"), "ncu --nvtx"),
        (("--instances",), "no metric instances"),
        (("--source",), "SourceCounters"),
        (("--metrics", "/(/"), "not a regular expression"),
    ],
)
def test_what_cannot_be_answered_is_one_line(
    capsys: pytest.CaptureFixture[str], measured: str, arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = run(capsys, "counters", measured, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_forms_exclude_each_other(capsys: pytest.CaptureFixture[str], measured: str) -> None:
    code, _, err = run(capsys, "counters", measured, "--list", "--source")
    assert code == 2
    assert "not allowed with" in err


@pytest.mark.parametrize("command", ["kernels", "launches", "summary", "info"])
def test_first_looks_fit_the_screen(
    capsys: pytest.CaptureFixture[str], measured: str, command: str
) -> None:
    code, out, _ = run(capsys, command, measured)
    assert code == 0
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_kernels_lists_launches_when_asked(
    capsys: pytest.CaptureFixture[str], measured: str
) -> None:
    rows = document(capsys, "kernels", measured, "--launches")["rows"]
    assert [(r["launch"], r["duration_ns"], r["share"]) for r in rows] == [
        (0, 1500.0, 0.75),
        (1, 500.0, 0.25),
    ]


@pytest.mark.parametrize("command", ["ranges", "api", "copies", "ops", "flops", "memory"])
def test_commands_about_timelines_say_that_there_is_none(
    capsys: pytest.CaptureFixture[str], measured: str, command: str
) -> None:
    code, out, err = run(capsys, command, measured)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "nsys profile" in err or "torch.profiler" in err or "memory" in err


def test_timelines_have_no_launches_to_list_with_counters(
    capsys: pytest.CaptureFixture[str], train: str
) -> None:
    code, _, err = run(capsys, "kernels", train, "--launches")
    assert code == 2
    assert "gpusight launches" in err


def test_join_needs_a_report(capsys: pytest.CaptureFixture[str], train: str) -> None:
    code, _, err = run(capsys, "join", train, train)
    assert code == 2
    assert "ncu --set full" in err


def test_join_never_writes_over_either_capture(
    capsys: pytest.CaptureFixture[str], train: str, graph: str
) -> None:
    for target in (train, graph):
        code, _, err = run(capsys, "join", train, graph, "-o", target)
        assert code == 2
        assert "capture" in err


@needs_shared
def test_join_says_what_a_kernel_is_of_the_step_and_of_the_roof(
    capsys: pytest.CaptureFixture[str],
) -> None:
    timeline = str(DATA / "gpt_small_forward.sqlite")
    report = str(SHARED / "ncu" / "gpt_fwd.ncu-rep.xz")
    code, out, _ = run(capsys, "join", timeline, report, "--in", "step_1")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "of step_1 and at" in out
    meta = document(capsys, "join", timeline, report, "--in", "step_1")["meta"]
    assert meta["covered_share"] == pytest.approx(0.949, abs=0.002)
    assert meta["kernels"] == 258
