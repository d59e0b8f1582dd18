"""`gpusight baseline` and `gs.baseline`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import gpusight as gs
from gpusight.cli.main import main
from gpusight.comparison.baseline_file import load_baseline
from tests.shared import DATA, SHARED, needs_shared

if TYPE_CHECKING:
    from pathlib import Path

CAPTURE = str(DATA / "dataload.sqlite")
OTHER = str(DATA / "dataload.nsys-rep")
OTHER_PROGRAM = str(DATA / "healthy.json.gz")


def test_save_says_what_it_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "b.json"
    assert main(["baseline", "save", CAPTURE, "-o", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "dataload.sqlite" in shown
    assert "12.28 ms" in shown  # without the profiler, an estimate
    assert "--max kernel_time=+5%" in shown.replace(
        "\\\n  ", ""
    )  # one capture shows no noise of the step time
    assert [digest.label for digest in load_baseline(path)] == ["dataload.sqlite"]
    assert str(DATA) not in path.read_text(encoding="utf-8")


def test_the_default_name_is_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["baseline", "save", CAPTURE, "--quiet"]) == 0
    assert (tmp_path / "baseline.json").is_file()


def test_show_lists_the_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "b.json"
    assert main(["baseline", "save", CAPTURE, "-o", str(path)]) == 0
    capsys.readouterr()
    assert main(["baseline", "show", str(path), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    times = {row["metric"]: row["mean"] for row in document["rows"] if row["section"] == "times"}
    assert times["step_time"] == pytest.approx(gs.diagnose(CAPTURE).to_dict()["window"]["step_ns"])
    assert times["busy"] + times["idle"] == pytest.approx(times["step_time"])
    assert times["idle/input"] > 9e6
    assert document["meta"]["captures"] == 1
    assert any("one capture" in note for note in document["meta"]["notes"])


def test_a_baseline_grows_by_captures(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    assert main(["baseline", "save", CAPTURE, "-o", str(path)]) == 0
    assert main(["baseline", "save", str(path), OTHER, "-o", str(path)]) == 0
    assert len(load_baseline(path)) == 2


def test_steps_can_be_chosen(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    assert main(["baseline", "save", CAPTURE, "--steps", "3-5", "-o", str(path)]) == 0
    assert load_baseline(path)[0].steps == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["save", str(DATA / "thrice.ncu-rep.xz")],
            "baseline: thrice.ncu-rep.xz cannot be compared: an Nsight Compute",
        ),
        (["save", "nothing.sqlite"], "no such file"),
        (
            ["save", CAPTURE, OTHER_PROGRAM],
            "not repeats of one program: probably different programs: 14 GEMMs per step before",
        ),
        (["save", CAPTURE, "-o", "-"], "written to a file"),
        (["save", CAPTURE, "-o", "no/folder/b.json"], "does not exist"),
        (["show", CAPTURE], "is not a baseline"),
        (["show", "nothing.json"], "cannot read"),
    ],
)
def test_bad_requests_are_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["baseline", *arguments]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert not shown.out
    assert not (tmp_path / "baseline.json").exists()


def test_hostile_names_do_not_drive_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "b.json"
    assert main(["baseline", "save", CAPTURE, "-o", str(path)]) == 0
    text = path.read_text(encoding="utf-8").replace("dataload.sqlite", r"\u001b[31mred")
    path.write_text(text, encoding="utf-8")
    capsys.readouterr()
    assert main(["baseline", "show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert r"\x1b[31mred" in shown


def test_the_function_gives_digests(tmp_path: Path) -> None:
    view = gs.baseline([CAPTURE, gs.open(OTHER, cache=False)], tmp_path / "b.json")
    assert load_baseline(tmp_path / "b.json") == view.digests
    assert "dataload.sqlite" in repr(view)
    assert gs.baseline(tmp_path / "b.json").digests == view.digests
    with pytest.raises(gs.GpusightError, match="cannot be compared"):
        gs.baseline(DATA / "thrice.ncu-rep.xz")


@needs_shared
def test_proposed_limits_are_above_the_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(SHARED / "nsys" / f"gpt_tiny_train_r{number}.sqlite") for number in (1, 2, 3)]
    assert main(["baseline", "save", *runs, "-o", str(tmp_path / "b.json")]) == 0
    shown = " ".join(capsys.readouterr().out.replace("\\\n", "").split())
    step = int(shown.partition("--max step_time=+")[2].partition("%")[0])
    assert step > 30  # the interval of two such sides: runs differ by 16%
    assert "--max kernel_time=+3%" in shown
