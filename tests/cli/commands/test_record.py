"""`gpusight record` as a user types it."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gpusight.cli.commands import record
from gpusight.cli.main import build_parser, main
from gpusight.recording import choose_tool
from gpusight.recording.collect_stacks import StackFiles
from gpusight.recording.request import NcuLevel, Tool
from tests.cli.captures import SOURCE
from tests.recording.fake_tools import install

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the fake tools are POSIX scripts")
PYTHON = sys.executable


@pytest.fixture(autouse=True)
def _alone(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    install(tmp_path_factory.mktemp("tools"), "nsys", monkeypatch)
    monkeypatch.setenv("GPUSIGHT_NCU", "/nowhere/ncu")
    for name in list(os.environ):
        if re.match(r"OMPI_|PMI|SLURM_|RANK$|LOCAL_RANK$|WORLD_SIZE$|NSYS_|NV_TPS", name):
            monkeypatch.delenv(name)
    Path("t.py").write_text("import sys; print(sys.argv[1:])\n")


def test_choices_are_those_of_the_request() -> None:
    assert ("auto", *(tool.value for tool in Tool)) == record.TOOLS
    assert tuple(level.value for level in NcuLevel) == record.LEVELS


@pytest.mark.parametrize(
    ("line", "program", "output"),
    [
        ("-o x -- python t.py --steps 3", ["python", "t.py", "--steps", "3"], "x"),
        ("python t.py -o y", ["python", "t.py", "-o", "y"], None),
        (
            "-o x python t.py -o y --stop --help",
            ["python", "t.py", "-o", "y", "--stop", "--help"],
            "x",
        ),
        ("-o x -- python t.py -- --rank 1", ["python", "t.py", "--", "--rank", "1"], "x"),
        ("python t.py -- -o y", ["python", "t.py", "--", "-o", "y"], None),
        ("python t.py --version", ["python", "t.py", "--version"], None),
        # These begin like two options of ours each.
        (
            "python t.py --st 1 --d 2 --launch",
            ["python", "t.py", "--st", "1", "--d", "2", "--launch"],
            None,
        ),
        ("--memory -- mpirun -np 4 ./a.out", ["mpirun", "-np", "4", "./a.out"], None),
    ],
)
def test_where_the_program_begins(line: str, program: list[str], output: str | None) -> None:
    args = build_parser().parse_args(["record", *line.split()])
    request = record._request(args)
    assert list(request.program) == program
    assert request.output == (None if output is None else Path(output))
    assert request.steps is None
    assert request.stop is False


def test_options_are_not_abbreviated(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "--mem", "--", "python", "t.py"]) == 2
    assert "--mem" in capfd.readouterr().err


def test_a_report_of_five_bytes_is_no_success(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MODE", "broken")
    assert main(["record", "--", PYTHON, "t.py"]) == 2
    error = capfd.readouterr().err
    assert "t.nsys-rep was written, but is not a capture (it has only 5 bytes)" in error
    assert "wrote t.nsys-rep" not in error
    assert "next:" not in error


def test_what_a_recording_says(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose_tool, "has_gpu", lambda: True)
    assert main(["record", "--memory", "--", PYTHON, "t.py", "a b"]) == 0
    out, err = capfd.readouterr()
    assert out == "['a b']\n"
    lines = err.splitlines()
    assert lines[0] == "gpusight record: recording with nsys 2025.3.1 (the default)"
    assert lines[1].startswith("gpusight record: $ ")
    assert lines[1].endswith(f"{PYTHON} t.py 'a b'")
    assert lines[2:] == [
        "gpusight record: wrote t.nsys-rep (2.029 kB)",
        "gpusight record: next: gpusight diagnose t.nsys-rep",
    ]


def test_quiet_is_quiet(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["record", "--quiet", "--", PYTHON, "t.py"]) == 0
    assert capfd.readouterr() == ("[]\n", "")
    monkeypatch.setenv("FAKE_MODE", "nothing")
    assert main(["record", "--quiet", "--whole", "--", PYTHON, "t.py"]) == 2
    assert capfd.readouterr().err.startswith("gpusight record: nothing was recorded: nsys")


def test_a_program_that_fails_keeps_its_code(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("t.py").write_text("raise SystemExit(7)")
    assert main(["record", "--", PYTHON, "t.py"]) == 7
    assert "the program ended with exit code 7" in capfd.readouterr().err
    monkeypatch.setenv("FAKE_MODE", "nothing")
    assert main(["record", "--", PYTHON, "t.py"]) == 7
    assert (
        "nothing was recorded: nsys or the program failed with exit code 7"
        in capfd.readouterr().err
    )


def test_a_dry_run_prints_a_line_to_paste(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "--dry-run", "--steps", "3:4", "--", PYTHON, "t.py", "it's"]) == 0
    out, err = capfd.readouterr()
    words = shlex.split(out)
    assert words[-3:] == [PYTHON, "t.py", "it's"]
    assert words[0].startswith("PYTHONPATH=")
    assert words[1].startswith("GPUSIGHT_RECORD={")
    assert out.count("\n") == 1
    assert err == "gpusight record: recording with nsys 2025.3.1 (the default)\n"
    assert not list(Path().glob("*rep*"))


@pytest.mark.parametrize("tool", ["nsys", "ncu"])
def test_a_dry_run_needs_no_profiler(
    tool: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"GPUSIGHT_{tool.upper()}", "/nowhere")
    line = ["record", "--dry-run", "--with", tool, "--", PYTHON, "t.py"]
    assert main(line) == 0
    out, err = capfd.readouterr()
    words = shlex.split(out)
    assert words[-2:] == [PYTHON, "t.py"]
    assert tool in words
    assert f"{tool} is not installed here; the command is for {tool} 2025.3.1" in err
    assert not list(Path().glob("*rep*"))
    assert main([*line[:2], "--format", "json", *line[2:]]) == 0
    assert json.loads(capfd.readouterr().out)["version"] == "2025.3.1"
    del line[1]
    assert main(line) == 2
    assert "no working installation was found" in capfd.readouterr().err


def test_a_dry_run_of_a_binary_needs_no_nsys(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSIGHT_NSYS", "/nowhere")
    assert main(["record", "--dry-run", "--", "/bin/ls"]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("nsys profile ")
    assert "nsys is not installed here" in err
    assert main(["record", "--", "/bin/ls"]) == 2
    assert "only nsys records programs that are not Python" in capfd.readouterr().err


def test_a_dry_run_as_json(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ["record", "--dry-run", "--format", "json", "--rank", "0", "--", PYTHON, "t.py"]
    assert main(line) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["recorded"] is True
    assert (document["tool"], document["version"]) == ("nsys", "2025.3.1")
    assert document["command"][-2:] == [PYTHON, "t.py"]
    assert document["capture"] == "t.nsys-rep"
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    assert main(line) == 0
    assert json.loads(capfd.readouterr().out) == {
        "recorded": False,
        "command": [PYTHON, "t.py"],
        "environment": {},
    }


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "no program was given"),
        ("--", "no program was given"),
        ("--steps x -- python t.py", "names no steps"),
        ("--steps 3 --range x -- python t.py", "use one of them"),
        ("--stop --whole -- python t.py", "--stop needs a part"),
        ("--rank x -- python t.py", "is not a list of ranks"),
        ("--delay 0 -- python t.py", "is not a number above 0"),
        ("--format json -- python t.py", "--summary FILE"),
        ("--level full -- python t.py", "add --with ncu"),
        ("--with ncu -- python t.py", "ncu is required"),
        ("-o t.py/x -- python t.py", "cannot write to t.py"),
        ("--summary t.py/x -- python t.py", "cannot write to t.py"),
        ("--summary nowhere/x -- python t.py", "cannot write to nowhere: it is not a folder"),
        ("--duration 1e300 -- python t.py", "'1e300' is too large"),
        ("--summary x.sqlite -- python t.py", "named like a capture"),
        ("nowhere-to-be-found", "not found"),
    ],
)
def test_what_is_refused_is_one_line(
    line: str, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["record", *line.split()]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert says in err


def test_what_tools_and_names_say_cannot_drive_the_terminal(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["record", "-o", "a\x1b[31m", "--", PYTHON, "t.py"]) == 0
    assert "\x1b" not in capfd.readouterr().err
    assert main(["record", "--dry-run", "--range", "a\x1b\nb", "--", PYTHON, "t.py"]) == 0
    out = capfd.readouterr().out
    assert "\x1b" not in out
    assert out.count("\n") == 1


def test_what_to_type_next(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpusight.recording.record_program import Recording
    from gpusight.recording.tools import ToolCommand as Command

    def done(tool: Tool, name: str) -> Recording:
        return Recording((Path(name),), tool, None, Command(("x",), Path(name)), 0, 1.0)

    monkeypatch.setattr(choose_tool, "has_gpu", lambda: False)
    assert record._next(done(Tool.TORCH, "-x.json")) == "gpusight ops ./-x.json"
    assert record._next(done(Tool.NSYS, "a b")) == "gpusight info 'a b'"
    stacks = StackFiles((Path("a.stacks"),), 1, 0)
    sampled = dataclasses.replace(done(Tool.TORCH, "a"), stacks=stacks)
    assert record._next(sampled) == "gpusight hotspots a"
    monkeypatch.setattr(choose_tool, "has_gpu", lambda: True)
    assert record._next(done(Tool.TORCH, "x.json")) == "gpusight diagnose x.json"


def test_a_rank_that_is_not_chosen_becomes_the_program() -> None:
    code = "import os; print(os.getpid(), os.environ['PMI_RANK'])"
    environ = {**os.environ, "PYTHONPATH": str(SOURCE.parent), "PMI_RANK": "1", "PMI_SIZE": "2"}
    running = subprocess.Popen(
        [PYTHON, "-m", "gpusight", "record", "--rank", "0", "--", PYTHON, "-c", code],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = running.communicate(timeout=60)
    assert (out, err, running.returncode) == (f"{running.pid} 1\n", "", 0)


def test_the_next_command_of_several_ranks_is_about_all_of_them(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    assert main(["record", "--", PYTHON, "t.py"]) == 0
    err = capfd.readouterr().err
    assert "wrote t.rank0.nsys-rep" in err
    monkeypatch.setattr(choose_tool, "has_gpu", lambda: True)
    assert "next: gpusight ranks 't.rank*.nsys-rep'" in err
    assert main(["record", "--rank", "0", "--", PYTHON, "t.py"]) == 0
    assert "next: gpusight diagnose t-2.rank0.nsys-rep" in capfd.readouterr().err


def test_one_report_of_all_ranks_is_compared_too(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    launcher = tmp_path / "mpirun"
    launcher.write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
    launcher.chmod(0o755)
    assert main(["record", "-o", "job", "--", str(launcher), "-n", "2", PYTHON, "t.py"]) == 0
    assert "next: gpusight ranks job.nsys-rep" in capfd.readouterr().err
