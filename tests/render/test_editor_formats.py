"""SARIF and LSP: valid by the schema, taken by GitHub, the same from run to run."""

from __future__ import annotations

import json
import lzma
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import gpusight as gs
from gpusight.cli.main import main
from gpusight.render.code_findings import SourceRoot, level_of
from gpusight.render.editor_formats import lsp_diagnostics, sarif_log
from gpusight.rules.diagnosis import AnyDiagnosis
from gpusight.rules.finding import Confidence, StackLine
from gpusight.rules.rule import FindingLocation
from tests.render.hostile import HOSTILE
from tests.render.test_diagnosis_view import MS, diagnosis, finding
from tests.shared import DATA, EVERY_NCU_REPORT, EVERY_TORCH_TRACE, OWN, name, opened

SCHEMA = Path(__file__).with_name("sarif-2.1.0-rtm.5.json.xz")
"""The schema of OASIS, as the npm package @microsoft/jest-sarif (MIT) carries it."""
WITH_LINES = DATA / "torch_checkpoint.json.gz"
LINES = (
    StackLine("/home/ada/proj/src/train.py", 88, "collate", 60 * MS, 0.75, ran=True),
    StackLine("/home/ada/proj/src/train.py", 12, "main", 16 * MS, 0.20, ran=False),
    StackLine("/home/ada/proj/src/train.py", 13, "rare", 4 * MS, 0.01, ran=False),
)


@cache
def validator() -> Any:
    return jsonschema.Draft4Validator(json.loads(lzma.decompress(SCHEMA.read_bytes())))


def check_sarif(log: dict[str, Any]) -> dict[str, Any]:
    """Check a log against the schema, and against what GitHub documents beyond it."""
    log = json.loads(json.dumps(log))
    problems = [f"{list(e.absolute_path)}: {e.message}" for e in validator().iter_errors(log)]
    assert problems == []
    [run] = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules) <= 25_000
    for rule in rules:
        assert 0 < len(rule["shortDescription"]["text"]) <= 1024
        assert 0 < len(rule["fullDescription"]["text"]) <= 1024
        assert rule["help"]["text"]
        assert len(rule["name"]) <= 255
        assert len(rule["properties"]["tags"]) <= 20
    assert len(run["results"]) <= 5_000
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["message"]["text"]
        assert 0 < len(result["locations"]) <= 10
        for location in (*result["locations"], *result["relatedLocations"]):
            place = location["physicalLocation"]
            assert place["region"]["startLine"] >= 1
            assert place["artifactLocation"]["uri"]
            assert ".." not in place["artifactLocation"]["uri"].split("/")
        assert result["partialFingerprints"]["primaryLocationLineHash"]
    fingerprints = [json.dumps(result["partialFingerprints"]) for result in run["results"]]
    assert len(set(fingerprints)) == len(fingerprints)
    return dict(run)


@pytest.mark.parametrize("capture", [*OWN, *EVERY_TORCH_TRACE, *EVERY_NCU_REPORT], ids=name)
def test_every_diagnosis_is_valid(capture: Path) -> None:
    trace = opened(capture)
    try:
        view = gs.diagnose(trace, lines=trace.has("profiles"))
    except gs.errors.MissingDataError:
        pytest.skip("nothing to diagnose")
    run = check_sarif(view.to_sarif())
    of_groups = getattr(view.answer, "groups", None)
    count = len(view.findings) if of_groups is None else sum(len(g.findings) for g in of_groups)
    assert len(run["results"]) == count
    check_lsp(view.to_lsp())


def check_lsp(files: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Check the parameters of publishDiagnostics by the LSP specification, 3.17."""
    assert len({file["uri"] for file in files}) == len(files)
    for file in files:
        assert set(file) == {"uri", "diagnostics"}
        assert file["uri"].startswith("file:///")
        for item in file["diagnostics"]:
            start, end = item["range"]["start"], item["range"]["end"]
            assert (end["line"], end["character"]) == (start["line"] + 1, 0)
            assert start["line"] >= 0
            assert item["severity"] in {1, 2, 3}
            assert item["source"] == "gpusight"
            assert isinstance(item["code"], str)
            assert item["message"]
            for related in item["relatedInformation"]:
                assert related["location"]["uri"].startswith("file:///")
                assert related["message"]
    return [item for file in files for item in file["diagnostics"]]


def checkout(folder: Path) -> Path:
    (folder / "src").mkdir()
    (folder / "src" / "train.py").write_text("pass\n" * 90)
    return folder


def test_a_line_of_code_shows_what_it_costs(tmp_path: Path) -> None:
    made = diagnosis(finding("input-starved", 80.0, lines=LINES))
    run = check_sarif(sarif_log(made, checkout(tmp_path)))
    [result] = run["results"]
    [location] = result["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "src/train.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 88},
    }
    assert [place["name"] for place in location["logicalLocations"]] == ["data", "cudaFree"]
    assert [related["message"]["text"] for related in result["relatedLocations"]] == [
        "75% of it in this line of collate",
        "20% of it in function main",
    ]
    assert "Saves 8.00 ms/step (80.0%)" in result["message"]["text"]
    assert result["level"] == "error"
    assert result["rank"] == 80
    assert result["properties"]["saves_ns_per_step"] == 8 * MS
    [capture, file] = lsp_diagnostics(made, tmp_path)
    assert capture["diagnostics"] == []
    assert file["uri"] == (tmp_path / "src" / "train.py").as_uri()
    first, second = check_lsp([file])
    assert first["range"]["start"]["line"] == 87
    assert first["message"].endswith("75% of it in this line of collate.")
    assert second["range"]["start"]["line"] == 11
    assert second["relatedInformation"][0]["location"]["range"] == first["range"]


def test_a_finding_without_lines_is_at_the_capture(tmp_path: Path) -> None:
    capture = tmp_path / "runs" / "train.nsys-rep"
    made = replace(diagnosis(finding("input-starved", 80.0)), meta={"path": str(capture)})
    [result] = check_sarif(sarif_log(made, tmp_path))["results"]
    [location] = result["locations"]
    uri = location["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "runs/train.nsys-rep"
    assert location["logicalLocations"][0] == {"name": "data", "kind": "range"}
    assert result["relatedLocations"] == []
    [file] = lsp_diagnostics(made, tmp_path)
    assert file["uri"] == capture.as_uri()
    other = sarif_log(made, tmp_path / "runs" / "elsewhere")
    place = other["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "train.nsys-rep"  # no folder of the machine


def test_where_nothing_is_found_older_findings_of_the_capture_are_cleared(tmp_path: Path) -> None:
    made = replace(diagnosis(), meta={"path": str(tmp_path / "run.nsys-rep")})
    uri = (tmp_path / "run.nsys-rep").as_uri()
    assert lsp_diagnostics(made, tmp_path) == [{"uri": uri, "diagnostics": []}]


def test_no_folder_of_the_machine_is_uploaded(tmp_path: Path) -> None:
    made = diagnosis(finding("input-starved", 80.0, lines=LINES))
    log = sarif_log(made, tmp_path)
    assert "/home/ada" not in json.dumps(log)
    [result] = check_sarif(log)["results"]
    place = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place == {"uri": "train.py", "uriBaseId": "%SRCROOT%"}
    notes = log["runs"][0]["invocations"][0]["toolExecutionNotifications"]
    assert any("--source-root" in note["message"]["text"] for note in notes)
    [_, file] = lsp_diagnostics(made, tmp_path)
    assert file["uri"] == "file:///home/ada/proj/src/train.py"  # an editor runs where files are


def test_code_scanning_knows_severity_and_precision() -> None:
    made = diagnosis(
        finding("input-starved", 80.0, confidence=Confidence.HIGH),
        finding("launch-bound", 10.0, confidence=Confidence.LOW),
    )
    rules = check_sarif(sarif_log(made))["tool"]["driver"]["rules"]
    assert [
        (rule["properties"]["problem.severity"], rule["properties"]["precision"]) for rule in rules
    ] == [("error", "high"), ("recommendation", "low")]


@pytest.mark.parametrize(
    ("lines", "sites", "shown"),
    [
        ([("<string>", 0.9), ("train.py", 0.1)], [], "train.py"),  # <string> is no file
        ([("train.py", 0.004)], ["net.py(3): forward"], "net.py"),  # some other line is meant
        ([], ["torchvision/resnet.py(89): forward", "net.py(3): forward"], "net.py"),
        ([], ["torchvision/resnet.py(89): forward"], "torchvision/resnet.py"),  # all that is known
    ],
)
def test_the_line_is_one_of_the_program(
    lines: list[tuple[str, float]], sites: list[str], shown: str
) -> None:
    stack = tuple(StackLine(file, 7, "f", MS, share, ran=True) for file, share in lines)
    where = tuple(FindingLocation("site", site) for site in sites)
    made = diagnosis(finding("host-sync", 30.0, lines=stack, where=where))
    [result] = check_sarif(sarif_log(made))["results"]
    place = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place["uri"] == shown


def test_lines_that_only_a_name_has(tmp_path: Path) -> None:
    (tmp_path / "w.py").touch()
    sites = ("torch/utils/data.py(799): next in w.py(27): <module>", "w.py(13): blk", "no line")
    made = diagnosis(
        finding("host-sync", 3.0, where=tuple(FindingLocation("site", s) for s in sites))
    )
    [_, file] = lsp_diagnostics(made, tmp_path)
    assert [item["range"]["start"]["line"] for item in file["diagnostics"]] == [26, 12]


def test_fingerprints_stay_the_same_between_runs(tmp_path: Path) -> None:
    def prints(view: AnyDiagnosis) -> dict[str, Any]:
        return {
            r["ruleId"]: r["partialFingerprints"] for r in sarif_log(view)["runs"][0]["results"]
        }

    again = tmp_path / "again.sqlite"
    again.write_bytes((DATA / "dataload.sqlite").read_bytes())
    first, second = (gs.diagnose(path).answer for path in (DATA / "dataload.sqlite", again))
    assert prints(first) == prints(second)
    assert prints(first) == prints(
        gs.diagnose(again, steps="3-6").answer
    )  # other times, same causes
    moved = replace(LINES[0], line=91, share=0.4)
    made = [
        diagnosis(finding("input-starved", ms, lines=(line,)))
        for ms, line in ((80.0, LINES[0]), (50.0, moved))
    ]
    assert prints(made[0]) == prints(made[1])


@pytest.mark.parametrize(
    ("share", "confidence", "level"),
    [
        (0.3, Confidence.HIGH, "error"),
        (0.3, Confidence.MEDIUM, "error"),
        (0.3, Confidence.LOW, "warning"),
        (0.1, Confidence.HIGH, "warning"),
        (0.1, Confidence.LOW, "note"),
        (0.01, Confidence.HIGH, "note"),
        (None, Confidence.HIGH, "note"),
    ],
)
def test_levels_follow_saving_and_confidence(
    share: float | None, confidence: Confidence, level: str
) -> None:
    assert level_of(share, confidence) == level


def test_what_is_no_fix_is_a_note() -> None:
    made = diagnosis(finding("warmup-in-window", 50.0, is_fix=False))
    [result] = check_sarif(sarif_log(made))["results"]
    assert result["level"] == "note"
    assert result["properties"]["saves_ns_per_step"] is None


# Hostile captures -------------------------------------------------------------------------------


def test_recorded_paths_stay_below_the_source_root(tmp_path: Path) -> None:
    root = SourceRoot(checkout(tmp_path))
    assert root.uri("/home/others/src/train.py") == "src/train.py"
    assert root.uri(r"C:\proj\src\train.py") == "src/train.py"
    assert root.uri("../../../src/train.py") == "src/train.py"
    assert not root.missing
    assert root.uri("../../etc/passwd") == "etc/passwd"
    assert root.uri("/opt/a b#c?.py") == "file:///opt/a%20b%23c%3F.py"
    assert root.uri("x\0y.py")
    assert root.uri("evil:b/c.py") == "evil%3Ab/c.py"  # no scheme
    assert root.uri("\ud800.py") == "%3F.py"
    assert root.uri("..") == "unknown"
    assert root.uri("a" * 5000)
    assert len(root.missing) == 7


def test_names_of_a_capture_are_no_markup(tmp_path: Path) -> None:
    link = "[click](https://evil.example) {0} {lambda}"
    made = diagnosis(
        *(
            finding(
                rule,
                5.0,
                title=text,
                fix=f"{text} {link}",
                lines=(StackLine(text or "x.py", 3, text, 1.0, 1.0, ran=True),),
            )
            for rule, text in zip(
                (
                    "input-starved",
                    "launch-bound",
                    "host-sync",
                    "alloc-churn",
                    "recompilation",
                    "exposed-copy",
                    "pageable-copy",
                    "unfused-attention",
                    "small-transfers",
                ),
                HOSTILE,
                strict=True,
            )
        )
    )
    run = check_sarif(sarif_log(made, tmp_path))
    for result in run["results"]:
        text = result["message"]["text"]
        assert text.isprintable()
        assert "](" not in text
        assert "{{0}} {{lambda}}" in text
        for location in result["locations"]:
            assert location["physicalLocation"]["artifactLocation"]["uri"].isascii()
    for item in check_lsp(lsp_diagnostics(made, tmp_path)):
        assert item["message"].isprintable()


# Command line and files -------------------------------------------------------------------------


def test_the_command_and_python_write_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "w.py").touch()
    target = tmp_path / "out.sarif"
    where = ["--source-root", str(tmp_path)]
    assert main(["diagnose", str(WITH_LINES), "-o", str(target), *where]) == 0
    view = gs.diagnose(WITH_LINES)
    assert json.loads(target.read_text()) == json.loads(json.dumps(view.to_sarif(tmp_path)))
    capsys.readouterr()
    assert main(["diagnose", str(WITH_LINES), "--format", "lsp", *where]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(view.to_lsp(tmp_path)))
    saved = json.loads(view.save(tmp_path / "saved.sarif").read_text())
    assert saved["runs"][0]["tool"] == json.loads(target.read_text())["runs"][0]["tool"]
    uris = {
        result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        for result in json.loads(target.read_text())["runs"][0]["results"]
    }
    assert uris == {"w.py"}


def test_lines_of_measured_kernels_need_no_option(tmp_path: Path) -> None:
    target = tmp_path / "kernels.sarif"
    report = str(DATA / "thrice.ncu-rep.xz")
    assert main(["diagnose", report, "-o", str(target)]) == 0
    results = json.loads(target.read_text())["runs"][0]["results"]
    assert results[0]["ruleId"].startswith("kernel/")
    assert results[0]["locations"][0]["logicalLocations"][0]["kind"] == "function"


def test_bad_calls_get_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture = str(DATA / "dataload.sqlite")
    for options, why in (
        (["--source-root", str(tmp_path)], "--source-root needs --format sarif or lsp"),
        (["--format", "sarif", "--source-root", str(tmp_path / "none")], "is not a folder"),
        (["-o", str(tmp_path / "x.svg")], "cannot write .svg files"),
    ):
        assert main(["diagnose", capture, *options]) == 2
        assert why in capsys.readouterr().err
    with pytest.raises(gs.errors.UsageError, match="cannot be written as svg"):
        gs.diagnose(capture).save(tmp_path / "x.svg")
