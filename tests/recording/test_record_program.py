"""The whole way of a recording, with tools that stand in for NVIDIA's, and with the real nsys."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpusight as gs
from gpusight.errors import GpusightError, RecordError, UsageError
from gpusight.pace import Pace
from gpusight.recording import choose_tool, record_program
from gpusight.recording.capture_names import name_lock
from gpusight.recording.inside.environment import STARTED_VARIABLE, VARIABLE, RecorderPlan
from gpusight.recording.launch_program import ProgramExit
from gpusight.recording.parse_request import kernel_regex, make_request
from gpusight.recording.programs import InterpreterInfo, options_of
from gpusight.recording.record_program import (
    SITE,
    RecordingPlan,
    plan_again,
    plan_recording,
    record,
)
from gpusight.recording.request import Tool
from tests.recording.doctor.machines import NOBODY, ROOT, Described, status
from tests.recording.fake_tools import install, options_seen
from tests.shared import tool

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the fake tools are POSIX scripts")
PYTHON = sys.executable
NO_TOOL = "/nowhere/tool"


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, without the tools of this machine and its launchers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUSIGHT_NSYS", NO_TOOL)
    monkeypatch.setenv("GPUSIGHT_NCU", NO_TOOL)
    for name in list(os.environ):
        if re.match(r"OMPI_|PMI|SLURM_|RANK$|LOCAL_RANK$|WORLD_SIZE$|NSYS_|NV_TPS", name):
            monkeypatch.delenv(name)


@pytest.fixture
def nsys(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("tools")
    install(folder, "nsys", monkeypatch)
    return folder


@pytest.fixture
def ncu(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("tools")
    install(folder, "ncu", monkeypatch)
    return folder


def script(text: str = "pass", name: str = "train.py") -> str:
    Path(name).write_text(textwrap.dedent(text))
    return name


def planned(program: str | list[str], **options: Any) -> RecordingPlan:
    plan = plan_recording(make_request(program, **options))
    assert plan is not None
    return plan


def injected(plan: RecordingPlan) -> RecorderPlan:
    return RecorderPlan.from_text(plan.command.environment[VARIABLE])


# What is planned


def test_nsys_is_the_default(nsys: Path) -> None:
    plan = planned([PYTHON, script(), "--epochs", "3"], whole=True)
    assert plan.choice.tool is Tool.NSYS
    assert plan.choice.version == "2025.3.1"
    assert plan.command.argv[:2] == (str(nsys / "nsys"), "profile")
    assert plan.command.argv[-4:] == (PYTHON, "train.py", "--epochs", "3")
    assert plan.command.produces == Path("train.nsys-rep")
    assert (injected(plan).recorder, injected(plan).stacks_hz) == ("surrounded", 200)
    plan = planned([PYTHON, "train.py"], whole=True, stacks=0)
    assert VARIABLE not in plan.command.environment
    assert list(Path().iterdir()) == [Path("train.py")]


def with_packages(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    python = InterpreterInfo((3, 12), frozenset(packages))
    monkeypatch.setattr(choose_tool, "query_interpreter", lambda *_: python)


@pytest.mark.usefixtures("nsys")
def test_of_a_program_with_torch_some_steps_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    with_packages(monkeypatch, "torch")
    plan = planned([PYTHON, script()], stop=True, warmup=4, timed=6, recorded=8)
    inside = injected(plan)
    assert (inside.recorder, inside.window, inside.stop) == ("profiler-api", True, False)
    assert (inside.warmup, inside.timed, inside.recorded) == (4, 6, 8)
    assert "--capture-range=cudaProfilerApi" in plan.command.argv
    assert "--capture-range-end=stop-shutdown" in plan.command.argv
    assert planned(["env", PYTHON, "train.py"]).choice.windowed


@pytest.mark.usefixtures("nsys")
@pytest.mark.parametrize(
    ("program", "options", "packages"),
    [
        ([PYTHON, "train.py"], {}, ()),
        ([PYTHON, "-I", "train.py"], {}, ("torch",)),
        ([PYTHON, "train.py"], {"whole": True}, ("torch",)),
        ([PYTHON, "train.py"], {"range": "forward"}, ("torch",)),
        ([PYTHON, "train.py"], {"duration_s": 3}, ("torch",)),
        ([PYTHON, "train.py"], {"tool_options": ["-c", "none"]}, ("torch",)),
        (["ls"], {}, ("torch",)),
        ([PYTHON, "-m", "torch.distributed.run", "train.py"], {}, ("torch",)),
    ],
)
def test_what_nsys_records_as_a_whole(
    program: list[str],
    options: dict[str, Any],
    packages: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where we do not get into a program, nobody would switch nsys on."""
    with_packages(monkeypatch, *packages)
    script()
    plan = planned(program, **options)
    assert not plan.choice.windowed
    surely_listens = program[0] == PYTHON and "-I" not in program
    assert (VARIABLE in plan.command.environment) == surely_listens
    assert not surely_listens or injected(plan).recorder == "surrounded"
    assert "--capture-range=cudaProfilerApi" not in plan.command.argv


@pytest.mark.usefixtures("nsys")
def test_numbers_of_steps_and_a_stop_need_steps() -> None:
    with pytest.raises(RecordError, match="nsys cannot count the steps of ls"):
        planned(["ls"], timed=5)
    with pytest.raises(UsageError, match="--stop needs a part"):
        planned(["ls"], stop=True)


def test_recorders_inside_get_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    with_packages(monkeypatch, "torch")
    assert injected(planned([PYTHON, script()], tool="torch")).window
    assert not injected(planned([PYTHON, script()], tool="torch", whole=True)).window
    assert not injected(planned([PYTHON, script()], tool="torch", steps="9")).window


REPORTING = """
import json, os
plan = json.loads(os.environ["GPUSIGHT_RECORD"])
facts = {"steps": 7, "recorded_steps": %d, "pace": None, "whole_because": None}
facts["pace"] = plan["pace"] or %r
with open(os.environ["GPUSIGHT_RECORD_REPORT"], "a") as file:
    file.write(json.dumps(facts) + "\\n")
"""
PACE = Pace(12, 2e6, 2e6, 0.03, "before", "optimizer")


@pytest.mark.usefixtures("nsys")
def test_what_became_of_the_window_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with_packages(monkeypatch, "torch")
    done = gs.record([PYTHON, script(REPORTING % (10, PACE.to_text()))])
    assert (done.pace, done.recorded_steps) == (PACE, 10)
    monkeypatch.setenv("FAKE_MODE", "nothing")
    with pytest.raises(RecordError) as error:
        gs.record([PYTHON, script(REPORTING % (0, None))], recorded=3)
    assert str(error.value) == (
        "nothing was recorded: the program ran 7 steps, too few to warm up, time and record; "
        f"record all of it: gpusight record --whole -- {PYTHON} train.py"
    )


@pytest.mark.usefixtures("nsys")
def test_a_program_with_too_few_steps_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with_packages(monkeypatch, "torch")
    monkeypatch.setenv("FAKE_MODE", "no steps")
    program = [PYTHON, script(REPORTING % (0, PACE.to_text()))]
    plan = planned(program)
    first = record(plan)
    assert first.missed_window
    again = plan_again(plan, first)
    assert again is not None
    assert again.notes[0] == (
        "the program ran 7 steps, too few to warm up, time and record: the program runs again, and "
        "all of it is recorded (--whole)"
    )
    done = record(again)
    assert [path.name for path in done.paths] == ["train.nsys-rep"]
    assert done.pace == replace(PACE, how="second run")
    assert plan_again(again, done) is None


@pytest.mark.usefixtures("nsys")
def test_a_capture_that_began_late_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with_packages(monkeypatch, "torch")
    report = REPORTING.replace('"whole_because": None', '"whole_because": "x", "mostly_missed": 1')
    assert report != REPORTING
    plan = planned([PYTHON, script(report % (0, None))])
    first = record(plan)
    again = plan_again(plan, first)
    assert again is not None
    assert again.notes[0].startswith("most of the program was over before recording began: ")
    assert record(again).paths == first.paths


@pytest.mark.parametrize(
    "changed", [{"exit_code": 3}, {"seconds": 1e4}, {"missed_window": False}], ids=str
)
@pytest.mark.usefixtures("nsys")
def test_a_program_is_not_run_again(
    changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_packages(monkeypatch, "torch")
    monkeypatch.setenv("FAKE_MODE", "no steps")
    plan = planned([PYTHON, script(REPORTING % (0, None))])
    assert plan_again(plan, replace(record(plan), **changed)) is None


@pytest.mark.usefixtures("nsys")
def test_a_run_without_a_profiler_gives_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    with_packages(monkeypatch, "torch")
    program = [PYTHON, script(REPORTING % (10, PACE.to_text()))]
    plan = planned(program, pace=True)
    assert plan.plain is not None
    assert RecorderPlan.from_text(plan.plain.environment[VARIABLE]).recorder == "pace"
    assert "the program runs twice" in plan.notes[-1]
    done = record(plan)
    assert done.pace == replace(PACE, how="second run")
    assert not list(Path().glob("*.pace.json"))  # it is in the capture


def test_without_python_the_pace_lies_beside_the_capture(
    nsys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_PROGRAM", "true")
    assert nsys.exists()
    done = gs.record(["true"], pace=True)
    stored = Pace.from_text(Path("true.nsys-rep.pace.json").read_text())
    assert stored == done.pace
    assert (stored.steps, stored.how, stored.step_source) == (1, "second run", "program")


@pytest.mark.usefixtures("nsys")
def test_a_program_that_fails_without_a_profiler_has_no_pace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_packages(monkeypatch)
    done = gs.record([PYTHON, script("raise SystemExit(3)")], pace=True, whole=True)
    assert done.pace is None
    assert done.notes[-1] == "no pace: without a profiler the program ended with exit code 3"


@pytest.mark.usefixtures("nsys")
def test_debug_settings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert planned([PYTHON, script()]).notes == ()
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    notes = planned([PYTHON, script()]).notes
    assert notes == ("CUDA_LAUNCH_BLOCKING=1 is set: every launch waits for its kernel",)


@pytest.mark.usefixtures("nsys")
def test_steps_are_counted_from_within(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    plan = planned([PYTHON, script()], steps="3:7", stop=True, rank="0,2", overwrite=True)
    assert plan.command.environment["PYTHONPATH"] == f"{SITE}{os.pathsep}/theirs"
    inside = injected(plan)
    assert inside.recorder == "profiler-api"
    assert (inside.first_step, inside.last_step, inside.ranks) == (3, 7, (0, 2))
    assert inside.stop is False  # nsys ends the program itself
    assert inside.overwrite is True


def test_recorders_inside_are_told_everything() -> None:
    plan = planned(
        [PYTHON, script()],
        tool="torch",
        output="runs/x.trace.json.gz",
        range="forward",
        memory=True,
        shapes=True,
        python_stacks=True,
        stop=True,
    )
    assert plan.command.argv == (PYTHON, "train.py")
    inside = injected(plan)
    assert inside.output == str(Path("runs/x").absolute())
    assert (inside.recorder, inside.range_name, inside.stop) == ("torch", "forward", True)
    assert (inside.memory, inside.shapes, inside.python_stacks) == (True, True, True)
    assert inside.first_step is None


@pytest.mark.usefixtures("ncu")
def test_ncu_is_told_which_launches() -> None:
    plan = planned(
        [PYTHON, script()], tool="ncu", kernel="gemm", launch_skip=4, launch_count=2, stop=True
    )
    line = shlex.join(plan.command.argv)
    assert "regex:[gG][eE][mM][mM]" in line
    assert "--kernel-name-base demangled" in line
    assert "--launch-skip 4" in line
    assert "--launch-count 2" in line
    assert plan.command.produces == Path("train.ncu-rep")
    by_function = planned([PYTHON, script()], tool="ncu", kernel="ampere_*")
    assert "demangled" not in shlex.join(by_function.command.argv)


@pytest.mark.parametrize(
    ("pattern", "regex", "hits", "misses"),
    [
        ("gemm", "[gG][eE][mM][mM]", "void x<sGEMM_128>(int)", "conv"),
        ("*gemm*", "[gG][eE][mM][mM]", "sgemm_nn", "conv"),
        ("ampere_*", "^[aA][mM][pP][eE][rR][eE]_.*$", "ampere_sgemm", "my_ampere_"),
        ("*_nt", "^.*_[nN][tT]$", "gemm_nt", "gemm_nt_2"),
        ("a?c", "^[aA].[cC]$", "abc", "abcd"),
        ("f(int)", r"[fF]\([iI][nN][tT]\)", "f(int)", "f[int]"),
        ("/^a|b$/", "^a|b$", "cb", "ba"),
        ("regex:^a", "^a", "ab", "ba"),
    ],
)
def test_kernel_patterns(pattern: str, regex: str, hits: str, misses: str) -> None:
    assert kernel_regex(pattern) == regex
    assert re.search(regex, hits)
    assert not re.search(regex, misses)


def test_words_of_a_program() -> None:
    assert make_request([Path("a b"), "x"]).program == ("a b", "x")
    with pytest.raises(UsageError, match="No closing quotation"):
        make_request("python 'train.py")


def test_kernel_patterns_that_are_none() -> None:
    with pytest.raises(UsageError, match="not a regular expression"):
        kernel_regex("/(/")


@pytest.mark.usefixtures("nsys")
def test_names_are_numbered_and_never_replaced(tmp_path: Path) -> None:
    program = [PYTHON, script()]
    Path("train.nsys-rep").touch()
    assert planned(program).command.produces == Path("train-2.nsys-rep")
    assert planned(program, output=tmp_path).own == tmp_path / "train-2"
    with pytest.raises(RecordError, match=r"train\.nsys-rep exists"):
        planned(program, output="train")
    assert planned(program, output="train", overwrite=True).own == Path("train")
    with pytest.raises(UsageError, match="named like a capture of torch"):
        planned(program, output="x.trace.json.gz")


@pytest.mark.usefixtures("nsys")
def test_a_name_that_another_recording_has_is_not_taken() -> None:
    program = [PYTHON, script()]
    plan = planned(program)
    with name_lock(Path("train.nsys-rep")):
        assert planned(program).own == Path("train-2")
        with pytest.raises(
            RecordError, match=r"another gpusight record is already writing train\."
        ):
            record(plan)
    assert record(plan).paths == (Path("train.nsys-rep"),)
    assert sorted(Path().iterdir()) == [Path("train.nsys-rep"), Path("train.py")]


@pytest.mark.usefixtures("nsys")
def test_a_mark_that_a_killed_recording_left_holds_nobody_up() -> None:
    Path(".train.nsys-rep.recording").touch()
    assert gs.record([PYTHON, script()]).paths == (Path("train.nsys-rep"),)


@pytest.mark.usefixtures("nsys")
def test_a_name_that_becomes_too_long_is_refused_before_the_program_runs() -> None:
    with pytest.raises(RecordError, match="too long"):
        gs.record([PYTHON, script("open('ran', 'w')")], output="x" * 250)
    assert not Path("ran").exists()


def test_old_versions_of_nsys_have_another_suffix(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path_factory.mktemp("old"), "nsys", monkeypatch, "2020.4.3.7")
    Path("train.qdrep").touch()
    done = record(planned([PYTHON, script()]))
    assert done.paths == (Path("train-2.qdrep"),)


# Which tool


def test_without_nsys_the_program_s_python_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    program = [PYTHON, script()]
    answer = InterpreterInfo((3, 12), frozenset({"torch"}))
    monkeypatch.setattr(choose_tool, "query_interpreter", lambda *_: answer)
    monkeypatch.setattr(choose_tool, "has_gpu", lambda: True)
    for library, expected in (("/opt/libcupti.so.13", Tool.CUPTI), (None, Tool.TORCH)):
        monkeypatch.setattr(choose_tool, "find_cupti", lambda *_, library=library: library)
        plan = planned(program)
        assert plan.choice.tool is expected
        assert plan.choice.why.startswith("nsys was not found")
    monkeypatch.setattr(choose_tool, "has_gpu", lambda: False)
    monkeypatch.setattr(choose_tool, "find_cupti", lambda *_: "/opt/libcupti.so.13")
    assert planned(program).choice.tool is Tool.TORCH
    monkeypatch.setattr(
        choose_tool, "query_interpreter", lambda *_: InterpreterInfo((3, 12), frozenset())
    )
    with pytest.raises(RecordError, match="no profiler can record this program"):
        planned(program)


@pytest.mark.parametrize(
    ("program", "options", "message"),
    [
        ("ls", {}, "nsys was not found"),
        ("ls", {"tool": "torch"}, "needs a Python program.*--with nsys"),
        ("ls", {"tool": "nsys"}, "nsys is required, but no working installation was found"),
        (f"{PYTHON} -I t.py", {"tool": "torch"}, "remove -I"),
        (f"{PYTHON} t.py", {"tool": "torch", "gpu_metrics": True}, "not support --gpu-metrics"),
        (f"{PYTHON} t.py", {"tool": "torch", "kernel": "x"}, "not support --kernel.*--with ncu"),
        (f"{PYTHON} t.py", {"tool": "torch", "level": "full"}, "does not support --level"),
        (f"{PYTHON} t.py", {"tool": "cupti", "python_stacks": True}, "--python-stacks"),
        (f"{PYTHON} t.py", {"tool": "cupti", "shapes": True}, "--shapes.*--with torch"),
        (f"{PYTHON} t.py", {"tool": "torch", "tool_options": ["-x"]}, "--tool-option"),
        (f"{PYTHON} t.py", {"launch_count": 3}, "add --with ncu"),
        (f"{PYTHON} t.py", {"tool": "gprof"}, "no tool 'gprof'"),
        (f"{PYTHON} t.py", {"tool": "ncu", "level": "much"}, "no level 'much'"),
        ("nowhere-to-be-found", {}, "program nowhere-to-be-found not found"),
        ("", {}, "no program was given"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    program: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(GpusightError) as error:
        planned(program, **options)
    assert re.search(message, str(error.value))
    assert error.value.exit_code == 2


@pytest.mark.usefixtures("nsys", "ncu")
def test_what_nsys_and_ncu_cannot_do() -> None:
    with pytest.raises(RecordError, match="--steps needs a Python program"):
        planned("ls", steps="3")
    with pytest.raises(RecordError, match="ncu does not support --delay"):
        planned("ls", tool="ncu", delay_s=1.0)
    with pytest.raises(RecordError, match="ncu does not support --memory"):
        planned("ls", tool="ncu", memory=True)


def test_the_program_s_python_must_be_able(monkeypatch: pytest.MonkeyPatch) -> None:
    program = [PYTHON, script()]
    monkeypatch.setattr(
        choose_tool, "query_interpreter", lambda *_: InterpreterInfo((3, 8), frozenset({"torch"}))
    )
    with pytest.raises(RecordError, match=r"needs Python 3\.10 in the program; it has 3\.8"):
        planned(program, tool="torch")
    monkeypatch.setattr(
        choose_tool, "query_interpreter", lambda *_: InterpreterInfo((3, 12), frozenset())
    )
    with pytest.raises(RecordError, match="--with torch needs torch in the program's Python"):
        planned(program, tool="torch")
    monkeypatch.setattr(choose_tool, "find_cupti", lambda *_: None)
    with pytest.raises(RecordError, match="needs a libcupti that the driver supports"):
        planned(program, tool="cupti")
    monkeypatch.setattr(choose_tool, "find_cupti", lambda *_: "/opt/libcupti.so.13")
    assert planned(program, tool="cupti").choice.why == "requested; libcupti is /opt/libcupti.so.13"
    monkeypatch.setattr(choose_tool, "query_interpreter", lambda *_: None)
    assert "if" in planned(program, tool="torch").notes[0]


@pytest.mark.usefixtures("nsys")
def test_under_a_profiler_there_is_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "7")
    with pytest.raises(RecordError, match="already running under nsys"):
        planned([PYTHON, script()])


# What happens


def test_recorders_inside_know_when_the_run_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STARTED_VARIABLE, "1")  # left over from another
    text = f"import os; open('started', 'w').write(os.environ['{STARTED_VARIABLE}'])"
    before_ns = time.time_ns()
    record(planned([PYTHON, script(text)], tool="torch"))
    assert before_ns <= int(Path("started").read_text()) <= time.time_ns()


def test_a_recording(nsys: Path) -> None:
    done = gs.record(f"{PYTHON} {script()}", memory=True, tool_options=["--stats=true"])
    assert done.paths == (Path("train.nsys-rep"),)
    assert Path(done) == done.path == Path("train.nsys-rep")
    assert (done.tool, done.version, done.exit_code) == (Tool.NSYS, "2025.3.1", 0)
    assert done.seconds > 0
    assert "--cuda-memory-usage=true" in options_seen(nsys, "nsys")
    assert options_seen(nsys, "nsys")[-1] == "--stats=true" or "--stats=true" in options_seen(
        nsys, "nsys"
    )


def test_memory_snapshots_lie_beside_their_traces() -> None:
    text = """
    import gzip, os, json, pathlib
    base = json.loads(os.environ["GPUSIGHT_RECORD"])["output"]
    for name in (".rank0.trace.json.gz", ".rank0.memory.pickle", ".rank1.trace.json.gz"):
        pathlib.Path(base + name).write_bytes(gzip.compress(b"{}"))
    """
    done = gs.record([PYTHON, script(text)], tool="torch", memory=True)
    assert [path.name for path in done.paths] == [
        "train.rank0.trace.json.gz",
        "train.rank1.trace.json.gz",
    ]
    assert done.memory_snapshots == (Path("train.rank0.memory.pickle"),)


@pytest.mark.usefixtures("nsys")
def test_exit_codes_are_the_program_s() -> None:
    assert gs.record([PYTHON, script("raise SystemExit(5)")]).exit_code == 5


@pytest.mark.usefixtures("nsys")
def test_a_stop_that_was_asked_for_is_no_failure() -> None:
    ends = script("import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    assert gs.record([PYTHON, ends], range="x", stop=True).exit_code == 0
    assert gs.record([PYTHON, ends], range="x").exit_code == 128 + signal.SIGTERM
    fails = script("raise SystemExit(1)")
    assert gs.record([PYTHON, fails], range="x", stop=True).exit_code == 1


@pytest.mark.usefixtures("nsys")
def test_a_stop_by_somebody_else_is_told() -> None:
    """Ctrl-C ended the program, not what was asked for: a script must not go on from there."""
    text = "import os, sys, time; os.kill(int(sys.argv[1]), 15); time.sleep(30)"
    done = gs.record([PYTHON, script(text), str(os.getpid())], range="x", stop=True)
    assert done.exit_code == 128 + signal.SIGTERM


@pytest.mark.usefixtures("ncu")
def test_a_stop_below_nsight_compute_is_none_either() -> None:
    ends = script("import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    assert gs.record([PYTHON, ends], tool="ncu", steps="1:2", stop=True).exit_code == 0
    assert gs.record([PYTHON, ends], tool="ncu", steps="1:2").exit_code == signal.SIGTERM


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        ("nothing", {"whole": True}, "nsys wrote no report"),
        ("empty", {"whole": True}, "nsys wrote no report"),
        ("nothing", {"recorded": 2}, "no steps were counted.*gpusight record --whole -- .* train"),
        ("nothing", {}, "nsys wrote no report"),
        ("stream", {}, r"left train\.qdstrm unfinished.*gpusight doctor"),
        ("nothing", {"range": "forward"}, "the range forward never started"),
        (
            "nothing",
            {"steps": "9"},
            "step 9 was not recorded: the program ran fewer steps or none, or",
        ),
        ("nothing", {"delay_s": 100.0}, "less than --delay 100"),
    ],
)
@pytest.mark.usefixtures("nsys")
def test_why_there_is_nothing(
    mode: str, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MODE", mode)
    with pytest.raises(RecordError) as error:
        gs.record([PYTHON, script()], **options)
    assert re.search(f"nothing was recorded: .*{message}", str(error.value))


@pytest.mark.usefixtures("ncu")
def test_why_ncu_left_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_MODE", "nothing")
    program = [PYTHON, script()]
    with pytest.raises(RecordError, match="nothing was recorded") as error:
        gs.record(program, tool="ncu")
    assert "no kernel matched" in str(error.value)
    for able, message in ((NOBODY, "ERR_NVGPUCTRPERM"), (ROOT, "no kernel matched")):
        limits = {"/proc/driver/nvidia/params": "RmProfilingAdminOnly: 1\n"}
        machine = Described(files={**limits, "/proc/self/status": status(able)})
        monkeypatch.setattr(record_program, "Machine", lambda machine=machine: machine)
        with pytest.raises(RecordError) as error:
            gs.record(program, tool="ncu")
        assert message in str(error.value)


def test_a_program_that_failed_is_the_reason() -> None:
    request = make_request([PYTHON, script()])
    why, _ = record_program.why_nothing(request, Tool.NSYS, Path("x"), ProgramExit(3, 1.0))
    assert why == "nsys or the program failed with exit code 3"
    why, hint = record_program.why_nothing(request, Tool.TORCH, Path("x"), ProgramExit(3, 1.0))
    assert (why, hint) == (
        "the program ended with exit code 3",
        "run it without gpusight record to see why",
    )
    partial = make_request([PYTHON, script()], steps="4")
    why, _ = record_program.why_nothing(partial, Tool.NSYS, Path("x"), ProgramExit(3, 1.0))
    assert why.startswith("step 4 was not recorded: ")
    assert why.endswith("; it ended with exit code 3")


@pytest.mark.parametrize("ended", [ProgramExit(7, 1.0, signalled=True), ProgramExit(128 + 15, 1.0)])
def test_a_program_that_was_stopped_needs_no_second_look(ended: ProgramExit) -> None:
    request = make_request([PYTHON, script()])
    why, hint = record_program.why_nothing(request, Tool.TORCH, Path("x"), ended)
    assert (why, hint) == (f"the program was stopped (exit code {ended.code})", "")


@pytest.mark.usefixtures("nsys")
@pytest.mark.parametrize("target", ["nowhere", "run.nsys-rep"])
def test_links_that_lead_nowhere_are_no_captures(target: str) -> None:
    Path("run.nsys-rep").symlink_to(target)
    assert record_program._times_and_sizes(Path("run"), ".nsys-rep") == {}
    if target == "nowhere":
        done = gs.record([PYTHON, script()], output="run", overwrite=True)
        assert done.paths == (Path("run.nsys-rep"),)


@pytest.mark.usefixtures("nsys")
def test_a_folder_in_the_capture_s_place_is_refused_before_the_program_runs() -> None:
    Path("run.nsys-rep").mkdir()
    with pytest.raises(RecordError, match=r"run\.nsys-rep is a folder"):
        planned([PYTHON, script()], output="run", overwrite=True)


def test_a_current_folder_that_is_gone_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from gpusight.cli.main import main

    folder = tmp_path / "gone"
    folder.mkdir()
    os.chdir(folder)
    folder.rmdir()
    for line in (["doctor"], ["record", "--with", "torch", "--", PYTHON, "-c", "pass"]):
        assert main(line) == 2
        assert "the current folder cannot be used: No such file" in capfd.readouterr().err
    os.chdir(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"range": ""}, "--range has no name"),
        ({"range": "  "}, "--range has no name"),
        ({"tool_options": ["bogus"]}, "--tool-option=bogus is not an option"),
        ({"tool_options": ["--trace=cuda", "bogus"]}, "--tool-option=bogus is not an option"),
        ({"tool_options": ["--"]}, "--tool-option=-- is not an option"),
        ({"steps": "9" * 30}, "number that is too large"),
    ],
)
def test_what_a_tool_would_misread_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_request([PYTHON, "t.py"], **options)
    assert make_request("ls", tool_options=["--set", "full"]).extra == ("--set", "full")


def test_options_that_the_tool_s_help_does_not_list_are_named() -> None:
    from gpusight.recording import choose_tool
    from gpusight.recording.tools import InstalledTool
    from gpusight.recording.tools import ToolVersion as Version

    listed = {"--trace": frozenset[str](), "--sample": frozenset[str]()}
    tool = InstalledTool(Tool.NSYS, Path("nsys"), Version(2025, 3, 1), listed)
    request = make_request("ls", tool_options=["--bogus=1", "--trace=cuda", "--samp=none", "-t"])
    notes = choose_tool._unlisted(request, choose_tool.ToolChoice(Tool.NSYS, tool, ""))
    assert notes == ("nsys 2025.3.1 --help does not list --bogus",)


@pytest.mark.usefixtures("nsys")
def test_a_folder_that_takes_nothing_is_refused_before_the_program_runs() -> None:
    Path("file").touch()
    with pytest.raises(RecordError, match="cannot write to file"):
        gs.record([PYTHON, script("open('ran', 'w')")], output="file/run")
    assert not Path("ran").exists()


@pytest.mark.usefixtures("nsys")
def test_what_was_there_before_is_not_what_was_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("run.nsys-rep").write_text("old")
    monkeypatch.setenv("FAKE_MODE", "nothing")
    with pytest.raises(RecordError, match="nothing was recorded"):
        gs.record([PYTHON, script()], output="run", overwrite=True)
    assert Path("run.nsys-rep").read_text() == "old"


# Ranks


def as_rank(rank: int, world: int) -> dict[str, str]:
    return {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(world)}


@pytest.mark.usefixtures("nsys")
def test_ranks_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    program = [PYTHON, script()]
    for name, value in as_rank(3, 4).items():
        monkeypatch.setenv(name, value)
    assert planned(program).command.produces == Path("train.rank3.nsys-rep")
    assert planned(program, output="x").own == Path("x.rank3")
    torch = planned(program, tool="torch", output="x")
    assert injected(torch).output == str(Path("x").absolute())  # it adds the rank itself
    assert torch.own == Path("x.rank3")
    assert plan_recording(make_request(program, rank="0,1")) is None
    with pytest.raises(RecordError, match="not among the 4 ranks"):
        planned(program, rank="4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    assert planned(program, rank=0).command.produces == Path("train.nsys-rep")


def test_a_rank_that_is_not_chosen_needs_no_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in as_rank(1, 2).items():
        monkeypatch.setenv(name, value)
    done = gs.record([PYTHON, script("raise SystemExit(6)")], tool="nsys", rank=0)
    assert (done.paths, done.tool, done.exit_code) == ((), None, 6)


MPIRUN = """#!/bin/sh
# mpirun -n N PROGRAM: the ranks run at the same time.
n=$2; shift 2; i=0
while [ $i -lt $n ]; do
  OMPI_COMM_WORLD_RANK=$i OMPI_COMM_WORLD_SIZE=$n "$@" &
  i=$((i+1))
done
wait
"""
GPUSIGHT = [PYTHON, "-m", "gpusight"]


def mpirun(*words: str) -> subprocess.CompletedProcess[str]:
    launcher = Path("mpirun")
    launcher.write_text(MPIRUN)
    launcher.chmod(0o755)
    source = str(Path(gs.__file__).parents[1])
    return subprocess.run(
        ["./mpirun", "-n", "4", *words],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


RANKED = """
import os  # one write, so that the ranks' lines do not mix
line = os.environ["OMPI_COMM_WORLD_RANK"] + " " + str("GPUSIGHT_RECORD" in os.environ) + "\\n"
os.write(1, line.encode())
"""


@pytest.mark.usefixtures("nsys")
def test_below_mpirun_only_chosen_ranks_are_recorded() -> None:
    done = mpirun(*GPUSIGHT, "record", "--whole", "--rank", "1,3", "--", PYTHON, script(RANKED))
    assert sorted(done.stdout.split()) == ["0", "1", "2", "3", "False", "False", "True", "True"]
    assert sorted(p.name for p in Path().glob("*-rep")) == [
        "train.rank1.nsys-rep",
        "train.rank3.nsys-rep",
    ]
    assert "rank 1: wrote train.rank1.nsys-rep" in done.stderr
    assert "rank 3: wrote train.rank3.nsys-rep" in done.stderr
    assert done.stderr.count("recording with") == 1
    assert done.stderr.count("next:") == 1
    assert "rank 0" not in done.stderr


TORCHRUN = """#!{python}
import os, subprocess, sys
words = sys.argv[1:]
assert words[:3] == ["--nproc-per-node", "2", "--standalone"], words
assert words[3] == "--no-python", words
environ = {{**os.environ, "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}}
ranks = [
    subprocess.Popen(words[4:], env={{**environ, "RANK": str(n), "LOCAL_RANK": str(n)}})
    for n in range(2)
]
sys.exit(max(rank.wait() for rank in ranks))
"""


@pytest.mark.usefixtures("nsys")
def test_some_ranks_of_torchrun_are_recorded_from_below(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    launcher = tmp_path / "torchrun"
    launcher.write_text(TORCHRUN.format(python=PYTHON))
    launcher.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(Path(gs.__file__).parents[1]))
    line = [str(launcher), "--nproc-per-node", "2", "--standalone", script("raise SystemExit(4)")]
    done = gs.record([*line, "--lr", "1"], rank=1, memory=True)
    assert done.paths == (Path("train.rank1.nsys-rep"),)
    assert done.exit_code == 4
    assert done.notes == ("torchrun starts gpusight in every rank, which records 1",)
    Path("train-2").mkdir()  # not to be taken for a folder to write into
    again = planned([*line], rank=1)
    assert again.own == Path("train-2")
    assert "--output=train-2.nsys-rep" in again.command.argv
    dashed = planned([*line[:-1], "--", *line[-1:]], rank=1)  # which torchrun takes too
    assert dashed.command.argv == planned(line, rank=1).command.argv
    whole = planned([*line, "--lr", "1"])
    assert "all processes" in whole.notes[0]
    assert whole.command.argv[-7:] == (*line, "--lr", "1")


@pytest.mark.usefixtures("nsys")
def test_a_torchrun_on_every_node_has_ranks_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    launcher = tmp_path / "torchrun"
    launcher.write_text(TORCHRUN.format(python=PYTHON))
    launcher.chmod(0o755)
    line = [str(launcher), "--nnodes", "2", script()]
    node = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}
    for name, value in node.items():
        monkeypatch.setenv(name, value)
    assert planned(line, tool="torch").own == Path("train")
    assert planned(line, tool="torch", rank="9").own == Path("train")
    assert "--rank=9" in planned(line, rank="9").command.argv
    assert planned(line).own == Path("train.rank1")  # one report a node


@pytest.mark.usefixtures("nsys")
def test_some_ranks_of_another_launcher_are_refused() -> None:
    launcher = Path("mpirun")
    launcher.write_text(MPIRUN)
    launcher.chmod(0o755)
    with pytest.raises(RecordError) as error:
        planned(["./mpirun", "-n", "4", PYTHON, script()], rank="0")
    assert f"./mpirun -n 4 gpusight record --with nsys --rank 0 -- {PYTHON} train.py" in str(
        error.value
    )


@pytest.mark.parametrize(
    "options",
    [
        {"steps": "3:", "memory": True, "rank": "0,2"},
        {"range": "a b@c", "stop": True, "gpu_metrics": True, "rank": "1"},
        {"delay_s": 1.5, "duration_s": 2.0, "graph_nodes": True, "python_stacks": True},
        {"tool_options": ["--trace=cuda,nvtx", "-x y"], "overwrite": True},
        {"tool": "ncu", "kernel": "*gemm*", "launch_skip": 3, "launch_count": 2, "level": "full"},
    ],
)
def test_a_request_can_be_written_as_options(options: dict[str, Any]) -> None:
    from gpusight.cli.commands.record import _request
    from gpusight.cli.main import build_parser

    request = make_request([PYTHON, "train.py"], **options)
    tool_given = [f"--with={request.tool.value}"] if request.tool else []
    words = ["record", *tool_given, *options_of(request), "--", *request.program]
    assert _request(build_parser().parse_args(words)) == request


# With real tools

NVTX = """
import sys, time
import gpusight as gs
for number in range(5):
    with gs.annotate(f"step {number}"):
        time.sleep(0.02)
sys.exit(3)
"""


@pytest.mark.oracle
def test_the_real_nsys_records_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSIGHT_NSYS", tool("nsys", "nsys/target-linux-x64/nsys"))
    done = gs.record([PYTHON, script(NVTX)], output="real", whole=True)
    assert done.exit_code == 3
    assert done.paths == (Path("real.nsys-rep"),)
    names = sorted(gs.ranges(done.path).frame["name"].cast(str))
    assert names == [f"step {n}" for n in range(5)]


@pytest.mark.oracle
def test_the_real_nsys_records_one_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSIGHT_NSYS", tool("nsys", "nsys/target-linux-x64/nsys"))
    done = gs.record([PYTHON, script(NVTX)], range="step 2")
    assert done.exit_code == 3
    assert gs.ranges(done).frame["name"].cast(str).to_list() == ["step 2"]
    with pytest.raises(RecordError, match="nothing was recorded"):
        gs.record([PYTHON, script(NVTX)], range="step 9")


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_the_real_nsys_keeps_its_report_when_we_are_signalled(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSIGHT_NSYS", tool("nsys", "nsys/target-linux-x64/nsys"))
    text = "import time\nopen('up', 'w').close()\ntime.sleep(60)"
    source = str(Path(gs.__file__).parents[1])
    running = subprocess.Popen(
        [*GPUSIGHT, "record", "--whole", "-o", "real", PYTHON, script(text)],
        env={**os.environ, "PYTHONPATH": source},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not Path("up").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    number = getattr(signal, name)
    running.send_signal(number)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 128 + number
    assert "wrote real.nsys-rep" in err
    assert Path("real.nsys-rep").stat().st_size > 0


@pytest.mark.oracle
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets us adopt processes")
def test_a_program_goes_on_after_the_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSIGHT_NSYS", tool("nsys", "nsys/target-linux-x64/nsys"))
    done = gs.record(
        [PYTHON, script("import time\ntime.sleep(4)\nopen('end', 'w')\nraise SystemExit(7)")],
        duration_s=1,
    )
    assert done.exit_code == 7
    assert Path("end").exists()
    assert done.paths


TRAINS = """
import gc, torch
gc.freeze()  # ends in a quarter of the time
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
"""


def test_torch_records_a_program_that_knows_nothing_of_it() -> None:
    done = gs.record([PYTHON, script(TRAINS)], tool="torch", steps="2:3")
    assert done.paths == (Path("train.trace.json.gz"),)
    ops = gs.ops(done.path).frame
    calls = dict(zip(ops["name"].cast(str), ops["calls"], strict=True))
    assert calls["aten::linear"] == 2


def test_the_summary_is_json(tmp_path: Path, nsys: Path) -> None:
    from gpusight.cli.main import main

    target = tmp_path / "s.json"
    assert main(["record", "--summary", str(target), "--", PYTHON, script()]) == 0
    document = json.loads(target.read_text())
    assert document["captures"] == [{"path": "train.nsys-rep", "bytes": 2029}]
    assert (document["tool"], document["exit_code"]) == ("nsys", 0)
    assert document["command"][0] == str(nsys / "nsys")


@pytest.mark.usefixtures("nsys")
def test_a_summary_that_cannot_be_written_hides_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    from gpusight.cli.main import main

    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    assert main(["record", "--summary", "/dev/full", "--", PYTHON, script()]) == 2
    err = capfd.readouterr().err
    assert "gpusight record: cannot write /dev/full: No space left" in err
    assert "wrote train.nsys-rep" in err
    assert "next: gpusight diagnose" in err
    Path("train.py").write_text("raise SystemExit(7)")
    assert main(["record", "--summary", "/dev/full", "--", PYTHON, "train.py"]) == 7


@pytest.mark.usefixtures("nsys")
def test_a_rank_that_recorded_nothing_exits_like_its_program(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from gpusight.cli.main import main

    monkeypatch.setenv("FAKE_MODE", "nothing")
    line = ["record", "--quiet", "--summary", "s.json", "--steps", "8", "--", PYTHON, script()]
    assert main(line) == 2
    for name, value in as_rank(1, 2).items():
        monkeypatch.setenv(name, value)
    capfd.readouterr()
    assert main(line) == 0
    err = capfd.readouterr().err
    assert err.startswith("gpusight record: rank 1: nothing was recorded: step 8 was not recorded")
    assert err.count("\n") == 1
    assert json.loads(Path("s.rank1.json").read_text())["captures"] == []
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert main(line) == 2
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    assert main(line) == 0
