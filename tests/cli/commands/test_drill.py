from __future__ import annotations

import json
import shlex
import shutil
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

import gpusight as gs
from gpusight.cli.main import main
from gpusight.errors import MissingDataError, RecordError, UsageError
from gpusight.sniff import NCU_REPORT
from tests.recording.fake_tools import install, options_seen
from tests.shared import DATA, SHARED, needs_shared

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("one_cache")
RESNET = str(DATA / "resnet18_infer.sqlite")
REPORT = SHARED / "ncu" / "resnet18.ncu-rep.xz"
NOTHING_ALIKE = DATA / "thrice.ncu-rep.xz"
TORCH = SHARED / "torch" / "gpt_small_train.json.gz"


@pytest.fixture(autouse=True)
def _no_ncu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let no Nsight Compute of this machine decide what a test sees."""
    monkeypatch.setenv("GPUSIGHT_NCU", str(tmp_path / "absent" / "ncu"))
    monkeypatch.chdir(tmp_path)


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["drill", *arguments, "--format", "json"]) == 0
    output: dict[str, Any] = json.loads(capsys.readouterr().out)
    return output


def test_it_fits_the_screen_but_for_what_is_pasted(
    train: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["drill", train]) == 0
    lines = capsys.readouterr().out.splitlines()
    wide = [line for line in lines if len(line) > 80]
    # Only names of kernels are not broken.
    assert all(line.startswith(("  --kernel-name 'regex:^", "'^")) for line in wide)
    assert "your_script.py" in lines[-1]
    assert "note: ncu is not installed here: run this on the machine with the GPU" in lines


def test_the_command_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drill", RESNET]) == 0
    pasted = capsys.readouterr().out.split("PROGRAM\n\n")[-1]
    assert "$|'\\\n'^" in pasted  # names on lines of their own join up to one pattern
    words = shlex.split(pasted.replace("\\\n", ""))
    at = words.index("ncu")
    (run,) = document(capsys, RESNET)["runs"]
    assert words[at:] == run["command"]
    assert words[:at] == [f"{key}={value}" for key, value in run["environment"].items()]


def test_json_has_the_parts(capsys: pytest.CaptureFixture[str]) -> None:
    result = document(capsys, RESNET, "--level", "full")
    assert result["anchor"] == "profiler"
    assert result["exact"] is True
    assert result["installed"] is False
    (run,) = result["runs"]
    command = run["command"]
    assert command[command.index("--launch-skip") + 1] == str(run["launch_skip"])
    assert command[command.index("--launch-count") + 1] == str(run["launch_count"])
    assert command[command.index("--kernel-name") + 1] == f"regex:{run['kernel_regex']}"
    assert command[command.index("--profile-from-start") + 1] == "off"
    assert command[command.index("--set") + 1] == "full"
    assert "--kernel-name-base" not in command
    times = [kernel["time_ns"] for kernel in result["kernels"]]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("form", ["csv", "markdown"])
def test_other_formats(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drill", RESNET, "--format", form]) == 0
    out = capsys.readouterr().out
    assert "verdict" in out if form == "csv" else "```bash" in out


def test_ranges_of_the_program_become_filters(capsys: pytest.CaptureFixture[str]) -> None:
    result = document(capsys, str(DATA / "gpt_small_forward.sqlite"))
    assert result["anchor"] == "range"
    (run,) = result["runs"]
    command = run["command"]
    ranges = [after for word, after in pairwise(command) if word == "--nvtx-include"]
    assert ranges == run["nvtx_include"] == ["step_0/", "step_0"]
    assert command[command.index("--nvtx-push-pop-scope") + 1] == "process"


def test_a_kernel_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    result = document(capsys, RESNET, "--kernel", "relu|pool", "--top", "0")
    labels = [kernel["label"] for kernel in result["kernels"]]
    assert labels
    assert all("relu" in label or "pool" in label for label in labels)


def test_totals_give_names_and_calls(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drill", str(DATA / "gpt_small_train_key_averages.txt")]) == 0
    out = capsys.readouterr().out
    assert "Commands, to run in order" in out
    assert "your_script-3.ncu-rep" in out


def test_whole_graphs_cannot_be_drilled(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drill", graph]) == 2
    assert "traced per graph" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--run"], "needs a program"),
        (["--run", "--"], "needs a program"),
        (["absent.ncu-rep"], "absent.ncu-rep"),
        ([str(NOTHING_ALIKE), "--run", "--", sys.executable], "cannot be combined with reports"),
        (["--kernel", "nothing_like_it"], "no kernel matches"),
        (["-o", "picture.png"], "cannot write .png"),
    ],
)
def test_requests_that_make_no_sense(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["drill", RESNET, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_without_ncu_nothing_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = _script(tmp_path, "open('ran', 'w')")
    assert main(["drill", RESNET, "--run", "--", sys.executable, script]) == 2
    assert "ncu is not installed" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


# With an ncu that is none -------------------------------------------------------------------------


def _script(folder: Path, text: str) -> str:
    path = folder / "train.py"
    path.write_text(text)
    return str(path)


def _fake_ncu(folder: Path, monkeypatch: pytest.MonkeyPatch, report: Path) -> None:
    """Install an ncu that runs the program and leaves a report that was made before."""
    tool = install(folder, "ncu", monkeypatch)
    text = tool.read_text()
    written = f"shutil.copy({str(report)!r}, output + '.ncu-rep')"
    fake = f'pathlib.Path(output + ".ncu-rep").write_bytes({NCU_REPORT!r} + bytes(2000))'
    text = text.replace(fake, written)
    assert written in text
    tool.write_text(text.replace("import os,", "import shutil, os,"))


@needs_shared
def test_run_measures_and_joins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _fake_ncu(tmp_path, monkeypatch, REPORT)
    script = _script(tmp_path, "print('trained')")
    assert main(["drill", RESNET, "--run", "--", sys.executable, script]) == 0
    out, err = capfd.readouterr()
    assert "trained" in out
    assert "gpusight drill: $" in err
    assert "Kernels by what their fix saves" in out
    assert "Kernels by time" not in out  # one table
    assert "Profiled kernels" in out
    first, *_ = [line for line in out.splitlines() if line.startswith("1  ")]
    label = next(line for line in out.splitlines() if line.startswith("1. ")).removeprefix("1. ")
    assert f"{label.split()[0]} " in first
    assert "Command, for" not in out
    assert (tmp_path / "train.ncu-rep").exists()
    options = options_seen(tmp_path, "ncu")
    assert options[options.index("--kill") + 1] == "yes"
    assert options[options.index("--profile-from-start") + 1] == "off"


TOTALS = str(DATA / "gpt_small_train_key_averages.txt")


def test_totals_are_measured_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, "ncu", monkeypatch)
    (tmp_path / "runs").mkdir()
    script = _script(tmp_path, "")
    assert main(["drill", TOTALS, "--report", "runs", "--run", "--", sys.executable, script]) == 0
    written = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert written == ["train-1.ncu-rep", "train-2.ncu-rep", "train-3.ncu-rep"]
    assert "note: profiled: gpusight diagnose runs/train-3.ncu-rep" in capfd.readouterr().out


def test_after_a_run_that_was_ended_no_other_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "ncu", monkeypatch)
    script = _script(tmp_path, "open('runs', 'a').write('x'); raise SystemExit(3)")
    assert main(["drill", TOTALS, "--run", "--", sys.executable, script]) == 3
    assert (tmp_path / "runs").read_text() == "x"


def test_a_report_s_folder_is_kept_for_another_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()
    (run,) = document(capsys, RESNET, "--report", "runs")["runs"]
    assert run["report"] == "runs/your_script.ncu-rep"


@needs_shared
def test_a_report_made_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    result = document(capsys, RESNET, str(REPORT))
    chosen = [k for k in result["kernels"] if k["verdict"] == "chosen"]
    assert all(kernel["measured"] > 0 for kernel in chosen)
    assert len(result["diagnoses"]) == 1


def test_kernels_that_no_report_holds_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drill", RESNET, str(NOTHING_ALIKE), "--top", "1"]) == 0
    out = capsys.readouterr().out
    assert "note: no launch of" in out
    assert "was profiled" in out
    assert "Command, for" in out
    assert "Kernels to profile" in out


def test_the_programs_exit_code_and_a_missing_report_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, "ncu", monkeypatch)
    monkeypatch.setenv("FAKE_MODE", "nothing")
    script = _script(tmp_path, "raise SystemExit(5)")
    assert main(["drill", RESNET, "--run", "--", sys.executable, script]) == 2
    assert (
        "nothing was recorded: ncu or the program failed with exit code 5" in capfd.readouterr().err
    )


@needs_shared
def test_steps_of_a_torch_trace_are_counted_inside_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, "ncu", monkeypatch)
    script = _script(tmp_path, "")
    words = ["--format", "json", "--", sys.executable, script, "--format", "table"]
    assert main(["drill", str(TORCH), *words]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["program"] == [sys.executable, script, "--format", "table"]
    assert output["anchor"] == "step"
    (run,) = output["runs"]
    plan = json.loads(run["environment"]["GPUSIGHT_RECORD"])
    assert plan["recorder"] == "profiler-api"
    assert plan["first_step"] == plan["last_step"] == run["step"]
    assert run["command"][-3:] == [script, "--format", "table"]


def test_an_older_ncu_gets_what_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, "ncu", monkeypatch, version="2022.3.0.0")
    result = document(capsys, str(DATA / "gpt_small_forward.sqlite"))
    assert result["tool"] == "ncu 2022.3.0"
    (run,) = result["runs"]
    assert run["nvtx_process_scope"] is False
    assert "--nvtx-push-pop-scope" not in run["command"]


def test_an_existing_report_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, "ncu", monkeypatch)
    shutil.copy(NOTHING_ALIKE, tmp_path / "mine.ncu-rep")
    script = _script(tmp_path, "")
    arguments = ["--report", "mine", "--run", "--", sys.executable, script]
    assert main(["drill", RESNET, *arguments]) == 2
    assert "exists" in capsys.readouterr().err


# From Python --------------------------------------------------------------------------------------


def test_from_python() -> None:
    view = gs.drill(RESNET, top=2)
    assert len(view.kernels) == 2
    assert len(view.commands) == 1
    assert "--launch-skip" in view.commands[0]
    assert "Kernels to profile" in repr(view)
    assert "<pre>" in view._repr_html_()
    assert json.loads(view.to_json())["anchor"] == "profiler"
    assert "```bash" in view.to_markdown()
    assert view.to_csv().startswith("verdict")


def test_from_python_what_makes_no_sense() -> None:
    with pytest.raises(MissingDataError, match="traced per graph"):
        gs.drill(DATA / "graph.sqlite")
    with pytest.raises(UsageError, match="no level 'deep'"):
        gs.drill(RESNET, level="deep")
    with pytest.raises(UsageError, match="needs a program"):
        gs.drill(RESNET, run=True)
    with pytest.raises(RecordError, match="ncu is not installed"):
        gs.drill(RESNET, program=[sys.executable, "-c", ""], run=True)
