"""How a recording is planned: the tool, its command line, what runs inside, and the names."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from gpusight.errors import GpusightError, RecordError, UsageError
from gpusight.recording import choose_tool
from gpusight.recording.inside.environment import VARIABLE
from gpusight.recording.parse_request import make_request
from gpusight.recording.plan_recording import SITE, plan_recording
from gpusight.recording.programs import InterpreterInfo
from gpusight.recording.record_program import record
from gpusight.recording.request import Tool
from tests.recording.fake_tools import install
from tests.recording.planned_programs import (
    MPIRUN,
    PYTHON,
    TORCHRUN,
    as_rank,
    injected,
    planned,
    script,
    with_packages,
)

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="the fake tools are POSIX scripts"),
    pytest.mark.usefixtures("empty_folder"),
]


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
@pytest.mark.parametrize(
    ("text", "windowed"),
    [
        ("import jax", False),
        ("import cupy, numpy", False),
        ("from jax import numpy\nimport torch.utils.data", True),
        ("import cupy\nimport torch_geometric", True),
        ("import jax\nimport gpusight as gs", True),
        ("import somebody", True),
    ],
)
def test_a_program_without_torch_is_recorded_from_its_start(
    text: str, windowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short one would be over before nsys listens."""
    with_packages(monkeypatch, "torch")
    assert planned([PYTHON, script(text)]).choice.windowed == windowed
    assert planned([PYTHON, script(text)], timed=3).choice.windowed


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


@pytest.mark.usefixtures("nsys")
def test_names_are_numbered_and_never_replaced(empty_folder: Path) -> None:
    program = [PYTHON, script()]
    Path("train.nsys-rep").touch()
    assert planned(program).command.produces == Path("train-2.nsys-rep")
    assert planned(program, output=empty_folder).own == empty_folder / "train-2"
    with pytest.raises(RecordError, match=r"train\.nsys-rep exists"):
        planned(program, output="train")
    assert planned(program, output="train", overwrite=True).own == Path("train")
    with pytest.raises(UsageError, match="named like a capture of torch"):
        planned(program, output="x.trace.json.gz")


def test_old_versions_of_nsys_have_another_suffix(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path_factory.mktemp("old"), "nsys", monkeypatch, "2020.4.3.7")
    Path("train.qdrep").touch()
    done = record(planned([PYTHON, script()]))
    assert done.paths == (Path("train-2.qdrep"),)


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


@pytest.mark.usefixtures("nsys")
def test_a_folder_in_the_capture_s_place_is_refused_before_the_program_runs() -> None:
    Path("run.nsys-rep").mkdir()
    with pytest.raises(RecordError, match=r"run\.nsys-rep is a folder"):
        planned([PYTHON, script()], output="run", overwrite=True)


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
