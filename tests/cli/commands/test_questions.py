"""`gpusight questions` as a user types it."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import gpusight as gs
from gpusight.analysis.questions import question_answers as questions_module
from gpusight.cli.commands import demo
from gpusight.cli.main import main
from gpusight.errors import MissingDataError
from gpusight.trace.trace import Trace
from tests.shared import DATA

FORWARD = str(DATA / "gpt_small_forward.sqlite")
TRAIN = str(DATA / "gpt_tiny_osrt.sqlite")


@pytest.fixture
def timings(tmp_path: Path) -> str:
    path = tmp_path / "timings.csv"
    path.write_text("mode,forward_ms\nforward,14.2\nforward,14.4\n", encoding="utf-8")
    return str(path)


def test_one_screen_of_sentences_then_tables(
    timings: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--compare", TRAIN, "--timings", timings, "--model", "4,12,512,64"]
    assert main(["questions", FORWARD, *options]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert max(map(len, out.splitlines())) <= 80
    for letter in "abcde":
        assert f"\n({letter}) " in out
    assert "1,610,612,736" in out
    assert "0.2% more" in out


@pytest.mark.parametrize("form", ["json", "csv", "markdown"])
def test_other_formats(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["questions", FORWARD, "--format", form]) == 0
    out = capsys.readouterr().out
    if form != "json":
        assert "softmax" in out
        return
    document = json.loads(out)
    answer = document["meta"]["answers"]
    assert answer["b"]["forward"]["launches"] == 24
    assert answer["d"]["answer"] is None
    assert document["meta"]["not_applicable"]["shares"]["hint"]
    assert {row["section"] for row in document["rows"]} >= {"forward_time", "passes", "attention"}


def test_python_gives_the_same(timings: str) -> None:
    page = gs.questions(FORWARD, timings=timings, model=(4, 12, 512, 64))
    assert page.meta["answers"]["a"]["wall_clock_ns"] == pytest.approx(14.3e6)
    assert page["top_kernels"].rows()[0]["launches"] == 24
    with pytest.raises(MissingDataError, match="no backward pass"):
        _ = page["shares"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "questions needs a capture"),
        ([FORWARD, "--model", "1,2"], "is not the sizes of a model"),
        ([FORWARD, "--timings", "missing.csv"], "cannot read missing.csv"),
        ([FORWARD, "--timings", FORWARD], "holds no timings"),
        ([FORWARD, "--batch", "."], "--batch treats all captures alike"),
        (["--batch", FORWARD], "is not a folder"),
    ],
)
def test_requests_that_make_no_sense(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["questions", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1


def test_captures_without_kernels_say_so(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["questions", graph]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gpusight questions: the capture has no kernels")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "captures"
    made.mkdir()
    for name in ("gpt_small_forward.sqlite", "gpt_small_forward.json.gz", "graph.sqlite"):
        shutil.copy(DATA / name, made)
    (made / "notes.txt").write_text("no capture", encoding="utf-8")
    return made


def test_batch_writes_reports_and_a_summary(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    out = tmp_path / "answers"
    assert main(["questions", "--batch", str(folder), "-o", str(out)]) == 0
    shown, err = capsys.readouterr()
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert [line for line in err.splitlines() if "skipped" in line] == [
        line for line in err.splitlines() if "notes.txt" in line
    ]
    assert max(map(len, shown.splitlines())) <= 80
    reports = {path.name for path in out.glob("gpt_small_forward.[cn]*_sum.txt")}
    assert len(reports) == 5
    kernels = out / "gpt_small_forward.cuda_gpu_kern_sum.txt"
    assert "sm80_xmma_gemm" in kernels.read_text(encoding="utf-8")
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    captures = summary["meta"]["captures"]
    assert set(captures) == {"gpt_small_forward", "gpt_small_forward.json", "graph"}
    for name in ("gpt_small_forward", "gpt_small_forward.json"):
        assert captures[name]["b"]["forward"]["launches"] == 24
    assert "no kernels" in captures["graph"]["why"]
    text = (out / "summary.md").read_text(encoding="utf-8")
    assert "launched 24 times per pass" in text
    assert "notes.txt" in text


def test_batch_keeps_away_from_captures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["questions", "--batch", str(folder), "-o", str(folder)]) == 2
    assert "holds the captures" in capsys.readouterr().err


@pytest.mark.parametrize("out", [None, "out", "deep/out"])
def test_batch_writes_nowhere_below_the_captures(
    folder: Path,
    out: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = sorted(folder.rglob("*"))
    monkeypatch.chdir(folder)
    assert main(["questions", "--batch", ".", *([] if out is None else ["-o", out])]) == 2
    assert "lies in the folder of the captures" in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == before


def test_batch_goes_on_after_a_capture_that_fails(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A file that is cut off, and one that trips over something nobody foresaw."""
    whole = (folder / "gpt_small_forward.sqlite").read_bytes()
    (folder / "cut.sqlite").write_bytes(whole[:60_000])
    original = questions_module.questions

    def trips(trace: Trace, *given: Any, **more: Any) -> Any:
        if trace.meta.path.endswith("graph.sqlite"):
            raise ValueError("nobody foresaw\nthis")
        return original(trace, *given, **more)

    monkeypatch.setattr(questions_module, "questions", trips)
    out = tmp_path / "answers"
    assert main(["questions", "--batch", str(folder), "-o", str(out)]) == 2
    err = capsys.readouterr().err.splitlines()
    assert [line for line in err if "failed cut.sqlite: is cut off" in line]
    assert "gpusight questions: failed graph.sqlite: unexpected ValueError: nobody foresaw" in err
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert set(summary["meta"]["captures"]) == {"gpt_small_forward", "gpt_small_forward.json"}
    assert summary["meta"]["captures_failed"] == 2
    failed = [row["name"] for row in summary["rows"] if row["section"] == "failed"]
    assert failed == ["cut.sqlite", "graph.sqlite"]


@pytest.mark.skipif(os.name == "nt", reason="such names and links need another system")
def test_batch_reads_each_capture_once_and_names_files_safely(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "graph.sqlite").rename(folder / os.fsdecode(b"a\x1b[31m\n\xe2\x80\xaeb.sqlite"))
    shutil.copy(folder / "gpt_small_forward.sqlite", folder / ("n" * 240 + ".sqlite"))
    (folder / "self").symlink_to(folder)
    (folder / "twice.sqlite").symlink_to(folder / "gpt_small_forward.sqlite")
    out = tmp_path / "answers"
    assert main(["questions", "--batch", str(folder), "-o", str(out)]) == 0
    shown, err = capsys.readouterr()
    assert "\x1b[31m" not in shown + err
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["meta"]["captures_asked"] == 4
    written = {path.name for path in out.glob("*.nvtx_sum.txt")}
    assert any(re.fullmatch(r"a__31m_+b\.nvtx_sum\.txt", name) for name in written)
    assert len(written) == 4
    assert all(name.isprintable() and len(name) < 200 for name in written)


def test_the_answer_does_not_replace_the_timings(
    timings: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path(timings).read_text(encoding="utf-8")
    assert main(["questions", FORWARD, "--timings", timings, "-o", timings]) == 2
    assert "is the timings themselves" in capsys.readouterr().err
    assert Path(timings).read_text(encoding="utf-8") == before


def test_batch_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty, out = tmp_path / "empty", tmp_path / "out"
    empty.mkdir()
    assert main(["questions", "--batch", str(empty), "-o", str(out)]) == 2
    assert "no capture is in" in capsys.readouterr().err
    (empty / "notes.txt").write_text("no capture", encoding="utf-8")
    assert main(["questions", "--batch", str(empty), "-o", str(out)]) == 2
    assert "no capture is in" in capsys.readouterr().err
    assert not out.exists()


def test_a_report_of_kernels_is_no_timeline(capsys: pytest.CaptureFixture[str]) -> None:
    report = Path(demo.__file__).parents[2] / demo.CAPTURES["ncu"]
    assert main(["questions", str(report)]) == 2
    error = capsys.readouterr().err
    assert "the capture has no timeline" in error
    assert "nsys profile" in error
