"""`gpusight explain`: one finding in every format, and what to say where there is none."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

import gpusight as gs
from gpusight.cli.main import main
from gpusight.errors import NotApplicableError, UsageError
from gpusight.rules.diagnosis import KernelReportDiagnosis
from gpusight.rules.registry import KERNEL_RULES, TIMELINE_RULES
from tests.cli.captures import NAMED, SOURCE
from tests.shared import DATA

DEMO = str(NAMED["demo"])
REPORT = str(SOURCE / "data" / "demo.ncu-repz")


@pytest.fixture(scope="module")
def diagnosis() -> gs.Result:
    return gs.diagnose(DEMO)


def rules_of(diagnosis: gs.Result) -> list[str]:
    return [finding.rule for finding in diagnosis.answer.findings]


def explained(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["explain", *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_the_first_finding_is_the_default(
    diagnosis: gs.Result, capsys: pytest.CaptureFixture[str]
) -> None:
    first = explained(capsys, DEMO)
    assert first == explained(capsys, DEMO, "1") == explained(capsys, "1", DEMO)
    assert first == explained(capsys, DEMO, rules_of(diagnosis)[0])
    assert first != explained(capsys, DEMO, "2")
    assert max(map(len, first.splitlines())) <= 100


def test_every_finding_has_its_evidence_and_its_fix(
    diagnosis: gs.Result, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, finding in enumerate(diagnosis.answer.findings, 1):
        out = explained(capsys, DEMO, str(number))
        assert out.startswith(f"{number}. " if finding.is_fix else f"note: {finding.rule}: ")
        assert finding.rule in out
        for label in ("fix", "verify"):
            assert f"\n   {label}" in out, (finding.rule, label)


@pytest.mark.parametrize("capture", [DEMO, REPORT], ids=["timeline", "report"])
def test_every_format(capture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(explained(capsys, capture, "--format", "json"))
    assert document["meta"]["command"] == "explain"
    assert document["number"] == 1
    assert document["finding"]
    header, *rows = csv.reader(io.StringIO(explained(capsys, capture, "--format", "csv")))
    assert rows
    assert {len(row) for row in rows} == {len(header)}
    markdown = explained(capsys, capture, "--format", "markdown")
    assert markdown.startswith("#")
    assert "```" in markdown
    target = tmp_path / "finding.md"
    assert main(["explain", capture, "-o", str(target)]) == 0
    assert target.read_text(encoding="utf-8") == markdown


def test_one_finding_is_one_row_of_the_diagnosis(
    diagnosis: gs.Result, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, rule in enumerate(rules_of(diagnosis), 1):
        text = explained(capsys, DEMO, str(number), "--format", "csv")
        (row,) = csv.DictReader(io.StringIO(text))
        assert row["rule"] == rule
        document = json.loads(explained(capsys, DEMO, str(number), "--format", "json"))
        assert (document["number"], document["finding"]["rule"]) == (number, rule)


def test_a_kernel_of_a_report_by_number_rule_or_name(capsys: pytest.CaptureFixture[str]) -> None:
    diagnosis = gs.diagnose(REPORT).answer
    assert isinstance(diagnosis, KernelReportDiagnosis)
    groups = [group for group in diagnosis.groups if group.findings]
    first = explained(capsys, REPORT, "1")
    assert groups[0].label in first
    assert first == explained(capsys, REPORT, groups[0].label)
    assert first == explained(capsys, REPORT, groups[0].findings[0].rule)


@pytest.mark.parametrize("number", ["0", "99", "-1"])
def test_a_number_that_no_finding_has(
    number: str, diagnosis: gs.Result, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", DEMO, number]) == 2
    error = capsys.readouterr().err
    assert f"no finding {number}; findings are: 1 {rules_of(diagnosis)[0]}" in error
    assert error.count("\n") == 1


def test_a_rule_that_is_misspelled(
    diagnosis: gs.Result, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = rules_of(diagnosis)[0]
    assert main(["explain", DEMO, rule[:-1]]) == 2
    assert f"did you mean {rule}?" in capsys.readouterr().err


def test_rules_that_passed_or_had_no_data(
    diagnosis: gs.Result, capsys: pytest.CaptureFixture[str]
) -> None:
    passed, without_data = diagnosis.answer.clean, diagnosis.answer.not_applicable
    assert passed
    assert without_data
    for rule in passed:
        assert main(["explain", DEMO, rule]) == 2
        assert f"{rule} passed" in capsys.readouterr().err
    rule, reason = next(iter(without_data.items()))
    assert main(["explain", DEMO, rule, "--format", "json"]) == 2
    out, err = capsys.readouterr()
    assert f"{rule} was not evaluated: {reason}"[:60] in err
    assert json.loads(out)["meta"]["not_applicable"]["reason"]


@pytest.mark.parametrize("rule", [*TIMELINE_RULES, *KERNEL_RULES])
def test_a_rule_without_a_capture(rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = explained(capsys, rule)
    assert out.startswith(f"{rule} (")
    assert "\n   why" in out
    assert "\n   fix" in out


def test_a_rule_in_other_formats(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(explained(capsys, "launch-bound", "--format", "json"))["rows"]
    assert [row["rule"] for row in rows] == ["launch-bound"]
    assert "launch-bound" in explained(capsys, "launch-bound", "--format", "markdown")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no_such_file.sqlite", "1"], "no such file"),
        (["nothing", "1"], "no such file: nothing"),
        ([DEMO, "1", "2"], "explain takes one finding, not 2"),
        (["lanch-bound"], "did you mean launch-bound?"),
        (["zzz"], "gpusight diagnose --list-rules lists them"),
    ],
)
def test_mistakes(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_in_python(diagnosis: gs.Result) -> None:
    result = gs.explain(DEMO)
    assert isinstance(result, gs.Result)
    assert repr(result) == repr(diagnosis.explain(1))  # type: ignore[attr-defined]
    assert gs.explain(DEMO, rules_of(diagnosis)[1]).to_dict()["number"] == 2
    assert result._repr_html_().startswith("<pre>")
    assert result.frame.height == 1
    assert gs.explain(DEMO, steps="1").to_dict()["number"] == 1
    with pytest.raises(UsageError, match="no finding 99"):
        gs.explain(DEMO, 99)
    with pytest.raises(NotApplicableError, match="passed"):
        gs.explain(DEMO, diagnosis.answer.clean[0])


def test_rules_of_one_name_are_both_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert {*TIMELINE_RULES} & {*KERNEL_RULES} == {"small-grid"}
    out = explained(capsys, "small-grid")
    assert "small-grid (timeline): Looks for kernels of 10 µs or more" in out
    assert "small-grid (Nsight Compute): The grid has fewer blocks" in out


def test_an_id_of_the_ledger_or_of_an_event(capsys: pytest.CaptureFixture[str]) -> None:
    capture = str(DATA / "dataload.sqlite")
    assert main(["explain", capture, "ledger:idle/input"]) == 0
    assert "random normal" in capsys.readouterr().out
    assert main(["explain", capture, "kernels:17", "--format", "json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert {row["id"] for row in page["rows"]} >= {"ranges:3", "kernels:16"}
    assert main(["explain", capture, "kernels:99999"]) == 2
    assert "it has 370 rows" in capsys.readouterr().err


def test_a_kernel_of_a_report_has_its_source_lines(capsys: pytest.CaptureFixture[str]) -> None:
    located = gs.diagnose(REPORT, lines=True).answer
    assert isinstance(located, KernelReportDiagnosis)
    numbers = [n for n, g in enumerate(located.groups, 1) if g.findings and g.findings[0].places]
    assert numbers
    group = located.groups[numbers[0] - 1]
    place = group.findings[0].places[0]
    out = explained(capsys, REPORT, str(numbers[0]))
    assert f"{place.path}:{place.line}" in out
    # `--lines` shows them without a further option, and says where there are none.
    assert main(["diagnose", REPORT, "--lines"]) == 0
    shown = capsys.readouterr()
    assert f"{place.path}:{place.line}" in shown.out
    assert shown.err == ""
