"""The whole way of a recording, with tools that stand in for NVIDIA's, and with the real nsys."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpusight as gs
from gpusight.errors import RecordError
from gpusight.pace import Pace
from gpusight.recording import record_program
from gpusight.recording.capture_names import name_lock
from gpusight.recording.inside.environment import STARTED_VARIABLE, VARIABLE, RecorderPlan
from gpusight.recording.launch_program import ProgramExit
from gpusight.recording.parse_request import make_request
from gpusight.recording.record_program import plan_again, record
from gpusight.recording.request import Tool
from tests.recording.doctor.machines import NOBODY, ROOT, Described, status
from tests.recording.fake_tools import options_seen
from tests.recording.planned_programs import (
    MPIRUN,
    PYTHON,
    TORCHRUN,
    as_rank,
    planned,
    script,
    with_packages,
)
from tests.shared import tool

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="the fake tools are POSIX scripts"),
    pytest.mark.usefixtures("empty_folder"),
]


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


def test_a_rank_that_is_not_chosen_needs_no_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in as_rank(1, 2).items():
        monkeypatch.setenv(name, value)
    done = gs.record([PYTHON, script("raise SystemExit(6)")], tool="nsys", rank=0)
    assert (done.paths, done.tool, done.exit_code) == ((), None, 6)


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
    assert "next: gpusight " in err
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
