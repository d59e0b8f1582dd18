"""`gpusight diagnose` on timelines, and on a timeline with a report of Nsight Compute."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

import gpusight as gs
from gpusight.cli.main import main
from gpusight.errors import UsageError
from gpusight.results import NotApplicable
from gpusight.rules.diagnosis import (
    DiagnoseOptions,
    JoinedDiagnosis,
    TimelineDiagnosis,
    diagnose_captures,
    shares,
)
from gpusight.rules.registry import TIMELINE_RULES
from tests.rules.kernel.rule_launches import FOUND
from tests.rules.launches import trace_of
from tests.shared import SHARED, needs_shared
from tests.traces import build_trace

if TYPE_CHECKING:
    from pathlib import Path

US = 1_000
SHAPE = {"grid_x": 8, "grid_y": 1, "grid_z": 1, "block_x": 64, "block_y": 1, "block_z": 1}
MEASURED: dict[str, Any] = {**FOUND["uncoalesced-access"], "name": "strided(float*)", **SHAPE}
QUICK: dict[str, Any] = {"name": "copy(float*)", **SHAPE}


def starved(*kernels: str) -> gs.Trace:
    """Four steps of 100 µs: 70 µs in the range `data`, then kernels of 5 µs each."""
    ranges: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = [{"start_ns": 0, "end_ns": US, "correlation": 0}]
    launched: list[dict[str, Any]] = [{"start_ns": US, "end_ns": US, "name": "k", **SHAPE}]
    for step in range(4):
        at = (step + 1) * 100 * US
        ranges.append({"start_ns": at, "end_ns": at + 99 * US, "name": f"step_{step}"})
        ranges.append({"start_ns": at + US, "end_ns": at + 71 * US, "name": "data"})
        for number, name in enumerate(kernels):
            start, correlation = at + (72 + 6 * number) * US, len(calls)
            times = {"start_ns": start, "end_ns": start + 2 * US}
            calls.append({**times, "correlation": correlation})
            times = {"start_ns": start + 3 * US, "end_ns": start + 8 * US}
            launched.append({**times, **SHAPE, "name": name, "correlation": correlation})
    devices = [{"device": 0}]
    return build_trace(None, devices=devices, ranges=ranges, api_calls=calls, kernels=launched)


def run_diagnose(*args: str) -> int:
    return main(["diagnose", *args])


def document(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert run_diagnose(*args, "--format", "json") in {0, 1}
    output: dict[str, Any] = json.loads(capsys.readouterr().out)
    return output


def test_a_starved_program() -> None:
    view = gs.diagnose(starved("k", "k"))
    assert view.timeline is not None
    first = view.timeline.findings[0]
    assert first.rule == "input-starved"
    assert first.step_ns == pytest.approx(70 * US, rel=0.05)
    assert "data" in first.title
    assert view.timeline.steps == 4
    assert first.title[:20] in repr(view)


def test_every_rule_is_accounted_for_once() -> None:
    view = gs.diagnose(starved("k")).timeline
    assert view is not None
    rules = [*(f.rule for f in view.findings), *view.clean, *view.not_applicable]
    assert sorted(rules) == sorted(TIMELINE_RULES)


@pytest.mark.usefixtures("recorded_times")
def test_the_demo_in_every_form(
    train: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_diagnose(train) == 0
    out = capsys.readouterr().out
    assert "GPU busy" in out.splitlines()[0]
    result = document(capsys, train)
    assert set(result) >= {"meta", "window", "findings", "clean", "not_applicable", "ledger"}
    assert result["window"]["inner_loop"] is None  # its steps are ranges
    alone = [f["recoverable_ns"] or 0 for f in result["findings"]]
    assert alone[0] == max(alone)  # the fix that saves most comes first
    saved_ns = sum(f["after_above_ns"] or 0 for f in result["findings"])
    predicted_ns = result["plan"]["predicted_step_ns"] * result["window"]["steps"]
    window_ns = result["window"]["end_ns"] - result["window"]["start_ns"]
    assert saved_ns + predicted_ns == pytest.approx(window_ns)
    for form, start in (("markdown", "## "), ("csv", "rank,rule"), ("html", "<!DOCTYPE")):
        assert run_diagnose(train, "--format", form) == 0
        assert capsys.readouterr().out.startswith(start)
    page = tmp_path / "page.html"
    assert run_diagnose(train, "-o", str(page)) == 0
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_the_ledger_in_it_sums_to_the_window(
    train: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = document(capsys, train)
    window = result["window"]["end_ns"] - result["window"]["start_ns"]
    for device in result["ledger"]["devices"]:
        assert sum(entry["ns"] for entry in device["entries"]) == window


def test_rules_and_steps_are_chosen(train: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = document(capsys, train, "--rule", "launch-bound,host-sync")
    rules = {f["rule"] for f in result["findings"]} | set(result["clean"])
    rules |= {row["rule"] for row in result["not_applicable"]}
    assert rules == {"launch-bound", "host-sync"}
    assert document(capsys, train, "--steps", "1")["window"]["steps"] == 1
    assert run_diagnose(train, "--rule", "nope") == 2
    assert "no rule 'nope'" in capsys.readouterr().err


def test_the_gate(train: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = document(capsys, train)
    length_ns = result["window"]["end_ns"] - result["window"]["start_ns"]
    best = max((f["after_above_ns"] or 0) / length_ns for f in result["findings"])
    assert run_diagnose(train, "--fail-over", f"{best * 100 + 0.1:.3f}%") == 0
    assert capsys.readouterr().err == ""
    assert run_diagnose(train, "--fail-over", "0.1%", "--format", "json") == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["findings"]
    assert "limit 0.1%" in err
    shares = [float(share) for share in re.findall(r" saves ([\d.]+)%", err)]
    assert sum(shares) < 100  # those of the plan, which add up


@pytest.mark.parametrize("text", ["5", "0.05", "-1%", "101%", "five%", "%", "nan%"])
def test_a_gate_is_a_percentage(text: str, train: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_diagnose(train, f"--fail-over={text}") == 2
    assert "is not a percentage such as 5%" in capsys.readouterr().err


def test_what_gates_look_at() -> None:
    of_report = diagnose_captures([trace_of(MEASURED, QUICK)], DiagnoseOptions())
    assert not isinstance(of_report, NotApplicable)
    (what, share), *_ = shares(of_report)
    assert what == "uncoalesced-access of strided"
    assert 0.2 < share < 1
    of_timeline = diagnose_captures([starved("k")], DiagnoseOptions())
    assert isinstance(of_timeline, TimelineDiagnosis)
    assert shares(of_timeline)[0][0] == "input-starved"
    assert all(share <= 1 for _, share in shares(of_timeline))


def test_rules_are_listed_without_a_capture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "mine.py"
    own.write_text(
        "import gpusight as gs\nclass Mine(gs.TimelineRule):\n    id = 'mine'\n"
        "    detects = why = fix = caveats = estimate = 'text'\n"
        "    def check(self, timeline): return gs.Clean()\n",
        encoding="utf-8",
    )
    assert run_diagnose("--list-rules", "--rules", str(own), "--format", "json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    kinds = {row["rule"]: row["of"] for row in rows}
    assert (kinds["launch-bound"], kinds["bank-conflict"]) == ("timeline", "kernels")
    assert kinds["mine"] == "yours"
    assert len(rows) == len(TIMELINE_RULES) + 16 + 1
    assert run_diagnose("--list-rules") == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize("options", [(), ("--list-rules",)])
def test_a_rule_is_not_written_over(
    options: tuple[str, ...], train: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rule, link = tmp_path / "mine.py", tmp_path / "link.txt"
    rule.write_text("raise SystemExit  # not even run\n", encoding="utf-8")
    link.hardlink_to(rule)
    for output in (rule, tmp_path / "." / "mine.py", link):
        assert (
            run_diagnose(
                train, "--rules", str(rule), "-o", str(output), "--format", "json", *options
            )
            == 2
        )
        assert "is a file of --rules" in capsys.readouterr().err
    assert rule.read_text(encoding="utf-8").startswith("raise")


def test_rules_of_a_user(train: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n", encoding="utf-8")
    assert run_diagnose(train, "--rules", str(broken)) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "broken.py:1: ZeroDivisionError" in err


def test_mistakes_are_one_line(train: str, capsys: pytest.CaptureFixture[str]) -> None:
    for args, message in (
        ([], "no capture given"),
        ([train, train], "for all ranks of a job: gpusight ranks, to compare: gpusight compare"),
        (
            [train, train, train],
            "3 captures were given; pass one, or a timeline and an Nsight Compute report",
        ),
        ([train, "--kernel", "x"], "--kernel does not apply"),
        ([train, "--lines"], "--lines does not apply"),
        ([train, "-o", train], "is the capture itself"),
    ):
        assert run_diagnose(*args) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert message in err


def test_steps_of_a_report_are_refused() -> None:
    with pytest.raises(UsageError, match="--steps does not apply"):
        gs.diagnose(trace_of(MEASURED), steps="1")


def joined(timeline: gs.Trace, *launches: dict[str, Any], **options: Any) -> JoinedDiagnosis:
    result = diagnose_captures([timeline, trace_of(*launches)], DiagnoseOptions(**options))
    assert isinstance(result, JoinedDiagnosis)
    return result


def test_kernels_of_a_report_are_weighed_by_their_time_in_the_timeline() -> None:
    timeline = starved("strided(float*)", "strided(float*)", "other(int*)")
    result = joined(timeline, MEASURED, {**QUICK, "name": "unused(float*)"})
    (kernel,) = result.kernels
    assert (kernel.group.label, kernel.calls, kernel.time_ns) == ("strided", 8, 40 * US)
    assert kernel.finding is not None
    speedup = kernel.finding.speedup
    assert speedup is not None
    assert kernel.saved_ns == pytest.approx(40 * US * (1 - 1 / speedup))
    assert "the report: it covers 66.7% of the kernel time in the window" in result.notes
    assert "the report: 1 of its kernels do not run in the window: not shown" in result.notes
    assert result.timeline.findings[0].rule == "input-starved"


def test_only_the_judged_gpu_weighs_the_kernels_of_a_report() -> None:
    one = starved("strided(float*)")
    tables = {name: one.table(name).to_dicts() for name in ("ranges", "api_calls", "kernels")}
    short = [{**row, "device": 1, "end_ns": row["start_ns"] + US} for row in tables["kernels"]]
    tables["kernels"] += short
    both = build_trace(None, devices=[{"device": 0}, {"device": 1}], **tables)
    (kernel,) = joined(both, MEASURED).kernels
    assert (kernel.calls, kernel.time_ns) == (4, 20 * US)


def test_both_are_shown() -> None:
    view = gs.diagnose([trace_of(MEASURED), starved("strided(float*)")])
    shown = repr(view)
    assert view.timeline is not None
    number = len(view.timeline.findings) + 1
    (row,) = [line for line in shown.splitlines() if "strided: Uncoalesced access" in line]
    assert row.startswith(f"{number:>2}. ")
    assert "5.00 µs" in row
    explained = view.explain(number).to_text()
    assert explained.startswith(f"{number}. strided\n")
    assert "5.00 µs/step (5.0% of the step); profiled: launch 0" in explained
    details = view.to_text(details=True)
    assert "uncoalesced-access" in details
    assert "5.00 µs/step (5.0% of the step); profiled: launch 0" in details
    document = json.loads(view.to_json())
    assert document["kernels"][0]["time_ns_per_step"] == 5 * US
    assert document["kernels"][0]["findings"][0]["rule"] == "uncoalesced-access"
    assert document["findings"][0]["rule"] == "input-starved"
    assert [k.launch for k in view.kernels] == [0]
    assert f"### {number}. `strided`" in view.to_markdown(details=True)
    assert view.to_html().count('<section class="kernel">') > 1
    assert "<table>" in view._repr_html_()


def test_a_report_of_another_program_is_said_on_the_first_screen() -> None:
    result = joined(starved("k"), MEASURED)
    assert result.kernels == ()
    lead = "the report has no kernel of the window"
    assert result.notes[0] == f"{lead}: is it of the same program?"
    assert f"note: {lead}" in repr(gs.diagnose([starved("k"), trace_of(MEASURED)]))
    few = joined(starved("strided(float*)", *["other(int*)"] * 10), MEASURED)
    assert len(few.kernels) == 1
    assert few.notes[0].startswith("the report covers only 9.1% of the kernel time")
    assert sum(" covers " in note for note in few.notes) == 1


def test_names_of_rules_are_divided_among_the_two() -> None:
    timeline = starved("strided(float*)")
    only = joined(timeline, MEASURED, rules=["uncoalesced-access", "launch-bound"])
    assert {f.rule for k in only.kernels for f in k.group.findings} == {"uncoalesced-access"}
    rules = [*(f.rule for f in only.timeline.findings), *only.timeline.clean]
    assert [*rules, *only.timeline.not_applicable] == ["launch-bound"]
    with pytest.raises(UsageError, match="no rule 'nope'"):
        joined(timeline, MEASURED, rules=["nope"])


@needs_shared
def test_real_captures_are_joined(capsys: pytest.CaptureFixture[str]) -> None:
    timeline = SHARED / "nsys" / "gpt_small_forward.sqlite"
    report = SHARED / "ncu" / "gpt_fwd.ncu-rep.xz"
    result = document(capsys, str(timeline), str(report))
    first = result["kernels"][0]
    assert first["findings"][0]["rule"] == "tensor-cores-idle"
    assert 2e6 < first["time_ns_per_step"] < 4e6
    assert sum(k["share"] for k in result["kernels"]) < 1


@needs_shared
def test_a_healthy_program_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_diagnose(str(SHARED / "nsys" / "healthy.sqlite"), "--fail-over", "4%") == 0
    out = capsys.readouterr().out
    assert "No fix" in out
    assert "matmul" in out
