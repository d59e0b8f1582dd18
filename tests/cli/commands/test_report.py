"""`gpusight report` through `main`: where the page goes, and what is refused before reading."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from gpusight.cli.main import main
from tests.shared import DATA

CAPTURE = str(DATA / "dataload.sqlite")
REPORT = str(DATA / "thrice.ncu-rep.xz")


def test_it_writes_one_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUSIGHT_CACHE_DIR", str(tmp_path / "elsewhere"))
    target = tmp_path / "out" / "report.html"
    target.parent.mkdir()
    assert main(["report", CAPTURE, "-o", str(target)]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"gpusight report: wrote {target} (")
    assert err.endswith(" kB); open it in a browser (one file, no network needed)\n")
    assert [path.name for path in target.parent.iterdir()] == ["report.html"]
    assert target.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("output", [[], ["-o", "-"]])
def test_a_pipe_gets_the_page(output: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", REPORT, *output]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("<!DOCTYPE html>")
    assert out.endswith("</html>\n")
    assert err == ""


def test_a_terminal_gets_one_line_of_advice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["report", CAPTURE]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "gpusight report: a report is an HTML page and needs a file; add: -o report.html\n"
    )


def test_options_choose_title_time_and_range(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--title", "Mine <3", "--steps", "2-5", "--in", "step_*"]
    assert main(["report", CAPTURE, *options]) == 0
    page = capsys.readouterr().out
    assert "<title>Mine &lt;3 · gpusight report</title>" in page
    assert "4 steps, " in page


def test_timeline_report_and_base_are_one_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", CAPTURE, REPORT, "--compare", CAPTURE]) == 0
    page = capsys.readouterr().out
    assert '<section id="comparison"' in page
    assert '<section id="measured-1"' in page
    assert "The report has no kernel of the window" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([CAPTURE, CAPTURE], "2 timelines were given; a report takes one"),
        ([CAPTURE, "-o", "report.pdf"], "a report is HTML, not .pdf"),
        ([CAPTURE, "-o", "report.sqlite"], "is named like a capture"),
        ([REPORT, "--steps", "3"], "--steps does not apply"),
        ([CAPTURE, "--in", "nowhere"], "no range matches 'nowhere'"),
        ([CAPTURE, "--compare", REPORT], "cannot be compared"),
        (["missing.sqlite"], "missing.sqlite"),
        ([], "arguments are required: FILE"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_no_capture_is_ever_written_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, base = tmp_path / "run.html", tmp_path / "base.html"
    for copy in (own, base):
        shutil.copyfile(CAPTURE, copy)
    before = own.read_bytes()
    for target in (own, base):
        assert main(["report", str(own), "--compare", str(base), "-o", str(target)]) == 2
        assert "choose another name for -o" in capsys.readouterr().err
    assert own.read_bytes() == base.read_bytes() == before
