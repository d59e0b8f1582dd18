"""`gs.torch_profile`: what is recorded, what is written, and what happens when things go wrong."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gpusight as gs
from gpusight.errors import RecordError, UsageError
from gpusight.recording.inside import (
    cuda_driver,
    nvtx_backend,
    step_recorders,
    torch_recorder,
    torch_session,
)
from gpusight.recording.inside.environment import (
    VARIABLE,
    RecorderPlan,
    surrounding_profiler,
    surrounding_tool,
)
from gpusight.recording.inside.step_hub import HUB
from gpusight.recording.inside.step_recorders import RunFolder
from gpusight.recording.inside.torch_settings import (
    ProfilerWarning,
    ScheduledTorchOptions,
    TorchSettings,
)

QUIET = (VARIABLE, nvtx_backend.PATH_VARIABLE, "NSYS_PROFILING_SESSION_ID", "QUADD_INJECTION_PROXY")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (*QUIET, "NV_COMPUTE_PROFILER_PERFWORKS_DIR", "NV_NSIGHT_INJECTION_TRANSPORT_TYPE"):
        monkeypatch.delenv(name, raising=False)


class Model:
    """A step of one matrix product each way."""

    def __init__(self) -> None:
        self.layer = torch.nn.Linear(16, 16)
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=0.1)

    def step(self) -> None:
        self.layer(torch.ones(4, 16)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def run(prof: Any, steps: int, fail_in: int | None = None) -> None:
    model = Model()
    with prof:
        for number in range(steps):
            model.step()
            if number == fail_in:
                raise ZeroDivisionError("the program's own")
            prof.step()


def profiling() -> bool:
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def step_marks(path: Path) -> dict[str, bool]:
    """Marks of steps in a trace, and whether each was closed."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    marks = [event for event in events if event["name"].startswith("ProfilerStep#")]
    return {mark["name"]: mark["args"].get("finished", True) for mark in marks}


def test_cycles_become_folders_that_commands_read(tmp_path: Path) -> None:
    prof = gs.torch_profile(tmp_path / "out", wait=1, warmup=1, active=2, cycles=2)
    run(prof, 9)
    assert files(tmp_path) == [
        "out/iteration_4/rank0_key_averages.txt",
        "out/iteration_4/rank0_trace.json.gz",
        "out/iteration_8/rank0_key_averages.txt",
        "out/iteration_8/rank0_trace.json.gz",
    ]
    assert sorted(str(path.relative_to(tmp_path)) for path in prof.paths) == files(tmp_path)
    traces = [path for path in prof.paths if path.name.endswith(".json.gz")]
    assert [list(step_marks(trace)) for trace in traces] == [
        ["ProfilerStep#2", "ProfilerStep#3"],
        ["ProfilerStep#6", "ProfilerStep#7"],
    ]
    assert gs.steps(traces[1])["steps"].frame["number"].to_list() == [6, 7]
    calls = gs.ops(traces[0]).frame.filter(name="aten::addmm")["calls"]
    assert calls.to_list() == [2]
    printed = gs.ops(traces[0].with_name("rank0_key_averages.txt")).frame
    assert printed.filter(name="aten::addmm")["calls"].to_list() == [2]


def test_without_a_schedule_all_of_the_block_is_recorded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    prof = gs.torch_profile()
    with prof:
        Model().step()
    (trace, _) = prof.paths
    assert trace == Path("profiler_output/iteration_0/rank0_trace.json.gz").absolute()
    assert not step_marks(trace), "nobody told of a step"
    assert "next: gpusight diagnose profiler_output/iteration_0/rank0" in capsys.readouterr().err

    run(prof, 3)
    assert prof.paths[0].parent.parent.name == "profiler_output-2", "runs do not mix"
    marks = step_marks(prof.paths[0])
    assert marks == {"ProfilerStep#1": True, "ProfilerStep#2": True, "ProfilerStep#3": False}


def test_more_artefacts(tmp_path: Path) -> None:
    prof = gs.torch_profile(
        warmup=1, active=1, stacks=True, memory_timeline=True, with_flops=True, rows=3
    )
    run(prof, 2)
    folder = tmp_path / "profiler_output" / "iteration_2"
    assert files(folder) == [
        "rank0_key_averages.txt",
        "rank0_memory-timeline.html",
        "rank0_stacks.txt",
        "rank0_trace.json.gz",
    ]
    assert "test_torch_session" in (folder / "rank0_stacks.txt").read_text(encoding="utf-8")
    assert "<svg" in (folder / "rank0_memory-timeline.html").read_text(encoding="utf-8")
    assert len(gs.ops(folder / "rank0_key_averages.txt")) == 3
    assert gs.memory(folder / "rank0_trace.json.gz").facts["peak_bytes"] > 0


def test_an_artefact_that_cannot_be_had_is_one_warning_and_no_end(tmp_path: Path) -> None:
    prof = gs.torch_profile(active=1, warmup=1, key_averages=False, memory_snapshot=True)
    with pytest.warns(ProfilerWarning, match=r"memory_snapshot\.pickle is missing") as warned:
        run(prof, 3)
    assert len(warned) == 1
    assert warned[0].filename == __file__, "it is told at the program's own line"
    assert files(tmp_path) == ["profiler_output/iteration_2/rank0_trace.json.gz"]


def test_a_disk_that_fails_costs_the_artefact_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_profiler: object, _path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(step_recorders, "write_trace", full)
    prof = gs.torch_profile(active=1, warmup=1)
    with pytest.warns(ProfilerWarning, match=r"trace\.json\.gz is missing: OSError.*No space"):
        run(prof, 3)
    assert [path.name for path in prof.paths] == ["rank0_key_averages.txt"]


class Full:
    """What torch does on a full disk: it says so, leaves a part, and does not raise."""

    def __init__(self, ending: str, text: str) -> None:
        self._ending, self._text = ending, text

    def export_chrome_trace(self, path: str) -> None:
        Path(path + self._ending).write_text(self._text)


@pytest.mark.parametrize(("ending", "text"), [(".tmp", "{"), ("", '{"traceEvents": [{"na')])
def test_a_trace_that_torch_wrote_in_part_is_refused_and_goes(
    ending: str, text: str, tmp_path: Path
) -> None:
    with pytest.raises(RecordError, match="did not write the whole trace"):
        torch_recorder.write_trace(Full(ending, text), tmp_path / "x.gz")
    assert files(tmp_path) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is full")
def test_why_torch_could_not_write_is_the_disk_s_own_reason(tmp_path: Path) -> None:
    (tmp_path / "x.gz.json").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        torch_recorder.write_trace(Full(".tmp", "{"), tmp_path / "x.gz")
    assert files(tmp_path) == []


def test_files_that_somebody_took_away_meanwhile_do_not_end_the_training(
    capsys: pytest.CaptureFixture[str],
) -> None:
    prof = gs.torch_profile(active=1, warmup=1)
    with prof:
        for _ in range(2):
            prof.step()
        prof.paths[1].unlink()
    assert "wrote 2 files" in capsys.readouterr().err


def test_an_exception_passes_on_and_what_is_complete_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prof = gs.torch_profile(warmup=1, active=3)
    with pytest.raises(ZeroDivisionError):
        run(prof, 9, fail_in=3)
    assert "iteration_3/rank0_trace.json.gz" in str(prof.paths[0])
    assert step_marks(prof.paths[0]) == {
        "ProfilerStep#1": True,
        "ProfilerStep#2": True,
        "ProfilerStep#3": False,
    }
    assert "the last cycle holds 2 of 3 steps" in capsys.readouterr().err
    assert not profiling()
    again = gs.torch_profile(tmp_path / "other")
    run(again, 1)
    assert again.paths


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_an_end_before_the_first_recorded_step_leaves_nothing(tmp_path: Path, steps: int) -> None:
    with pytest.warns(ProfilerWarning, match=f"needs 4 steps and the run has {steps} step"):
        run(gs.torch_profile(wait=1, warmup=2, active=1), steps)
    assert not files(tmp_path)
    assert not profiling()


def test_a_profiler_that_runs_already_is_an_error() -> None:
    other = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with other, pytest.raises(RecordError, match="already running"):
        gs.torch_profile().__enter__()


def test_a_profiler_that_comes_between_costs_the_cycle_only() -> None:
    prof = gs.torch_profile(wait=1, warmup=1, active=1, cycles=2)
    other = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    model = Model()

    def three() -> None:
        for _ in range(3):
            model.step()
            prof.step()

    with prof:
        with other, pytest.warns(ProfilerWarning, match="from 1 on are not recorded: another"):
            three()
        three()
    assert {path.parent.name for path in prof.paths} == {"iteration_6"}


def test_a_folder_that_cannot_be_written_is_refused_before(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="is a file"):
        gs.torch_profile(tmp_path / "file" / "out").__enter__()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs what not even root writes to")
def test_a_folder_that_takes_no_files_is_refused_before() -> None:
    with pytest.raises(RecordError, match="/proc is not writable"):
        gs.torch_profile("/proc/nope").__enter__()


def test_the_diagnosis_is_made_in_another_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[tuple[list[str], dict[str, str]]] = []

    def fake(command: list[str], *, env: dict[str, str], **_: Any) -> Any:
        commands.append((command, env))
        return subprocess.CompletedProcess(command, 0, "slow because\n", "")

    monkeypatch.setattr(subprocess, "run", fake)
    run(gs.torch_profile(diagnose=True), 2)
    ((command, env),) = commands
    assert command[1:4] == ["-m", "gpusight", "diagnose"]
    assert VARIABLE not in env
    assert "slow because" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mode": "cuda"}, "mode='cuda' is unknown; one of auto, torch, nvtx"),
        ({"cpu": False, "cuda": False}, "leave nothing to record"),
        ({"rows": 0}, "rows=0"),
        ({"ranks": []}, "is not a list of ranks"),
        ({"ranks": [0, -1]}, "is not a list of ranks"),
        ({"ranks": "0"}, "is not a list of ranks"),
        ({"active": 0}, "active=0"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_at_once(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        gs.torch_profile(**wrong)


def test_options_and_settings_have_the_same_names() -> None:
    fields = set(TorchSettings.__dataclass_fields__) - {"output_dir", "schedule", "chosen"}
    assert set(ScheduledTorchOptions.__annotations__) | {"cpu"} <= fields
    assert ScheduledTorchOptions.__optional_keys__ == fields


def test_step_outside_the_block_is_an_error() -> None:
    with pytest.raises(UsageError, match="must be called inside the block"):
        gs.torch_profile().step()


# Ranks ----------------------------------------------------------------------------------------


def test_ranks_have_their_own_names_and_only_the_chosen_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        run(gs.torch_profile(ranks=[1, 3], key_averages=False), 1)
    assert files(tmp_path) == [
        "profiler_output/iteration_1/rank1_trace.json.gz",
        "profiler_output/iteration_1/rank3_trace.json.gz",
    ]
    monkeypatch.setenv("RANK", "0")
    with pytest.warns(ProfilerWarning, match=r"ranks \[9\] do not exist, there are 4"):
        run(gs.torch_profile(ranks=[0, 9], key_averages=False), 1)
    with pytest.warns(ProfilerWarning, match=r"\[9\] do not exist, there are 4: nothing is recor"):
        run(gs.torch_profile(ranks=9), 1)
    monkeypatch.setenv("RANK", "1")
    run(gs.torch_profile(ranks=9), 1)  # the others say nothing


def test_all_ranks_of_a_run_come_to_one_folder(tmp_path: Path) -> None:
    """An earlier run had one rank only: both ranks of the next must leave its folder alone."""

    def put(path: Path) -> None:
        path.write_text("x")

    base = tmp_path / "out"
    RunFolder(base, 0, since_s=0).publish("iteration_1", "trace.json.gz", put)
    os.utime(base / "iteration_1" / "rank0_trace.json.gz", (1000, 1000))
    ranks = [RunFolder(base, rank, since_s=2000) for rank in (0, 1)]
    for rank in ranks:
        rank.publish("iteration_1", "trace.json.gz", put)
    assert files(tmp_path) == [
        "out-2/iteration_1/rank0_trace.json.gz",
        "out-2/iteration_1/rank1_trace.json.gz",
        "out/iteration_1/rank0_trace.json.gz",
    ]
    late = RunFolder(base, 2, since_s=2000)
    assert late.root.name == "out-2", "what others of this run wrote is no earlier run"


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    one, other = RunFolder(tmp_path / "out", 0), RunFolder(tmp_path / "out", 0)
    for folder, text in ((one, "one"), (other, "other")):
        folder.publish("iteration_1", "t", lambda path, text=text: path.write_text(text))  # type: ignore[misc]
    assert (tmp_path / "out/iteration_1/rank0_t").read_text() == "one"
    assert (tmp_path / "out-2/iteration_1/rank0_t").read_text() == "other"


def test_a_write_that_fails_leaves_nothing_half(tmp_path: Path) -> None:
    def half(path: Path) -> None:
        path.write_text("half")
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        RunFolder(tmp_path / "out", 0).publish("iteration_1", "t", half)
    assert not files(tmp_path)


DISTRIBUTED = """
import os, sys, torch, torch.distributed as dist, gpusight as gs
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
with gs.torch_profile(wait=1, warmup=1, active=1) as prof:
    for _ in range(4):
        layer(torch.ones(2, 8)).sum().backward()
        prof.step()
dist.barrier()
os._exit(0)  # gloo's own threads abort one in ten of such programs at their end, also without us
"""


def test_two_ranks_that_really_run(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DISTRIBUTED]
    both = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "meet")], stderr=subprocess.PIPE, text=True
        )
        for rank in (0, 1)
    ]
    outputs = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    folder = tmp_path / "profiler_output" / "iteration_3"
    assert files(folder) == [
        "rank0_key_averages.txt",
        "rank0_trace.json.gz",
        "rank1_key_averages.txt",
        "rank1_trace.json.gz",
    ]
    assert list(step_marks(folder / "rank1_trace.json.gz")) == ["ProfilerStep#2"]
    assert ["gpusight: wrote" in text for text in outputs] == [True, False], "one speaks for all"


# Inside another tool --------------------------------------------------------------------------


class Tool:
    """Writes down what it is told, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heard: list[str] = []
        monkeypatch.setattr(nvtx_backend, "backend", lambda: self)
        monkeypatch.setattr(cuda_driver, "profiler_start", lambda: self.heard.append("on"))
        monkeypatch.setattr(cuda_driver, "profiler_stop", lambda: self.heard.append("off"))

    def start(self, event: nvtx_backend.NvtxEvent) -> str:
        self.heard.append(f"[{event.name}@{event.domain}")
        return event.name

    def end(self, handle: str) -> None:
        self.heard.append(f"{handle}]")


def test_inside_nsys_steps_are_marked_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    tool = Tool(monkeypatch)
    run(gs.torch_profile(wait=1, warmup=0, active=1, cycles=2), 4)
    text = " ".join(word.replace("@gpusight", "") for word in tool.heard)
    assert text == (
        "[step 0 step 0] on [step 1 step 1] off [step 2 step 2] on [step 3 step 3] off [step 4"
    ), "what came after the last step is none, and stays open"
    assert not files(tmp_path)
    assert not profiling()


def test_gpusight_record_switches_the_tool_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        VARIABLE, RecorderPlan("profiler-api", "x", first_step=1, last_step=1).to_text()
    )
    tool = Tool(monkeypatch)
    run(gs.torch_profile(wait=1, active=1), 2)
    assert "on" not in tool.heard
    assert "[step 1@gpusight" in tool.heard


def test_without_a_tool_the_commands_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", "--name", "a b"])
    tool = Tool(monkeypatch)
    run(gs.torch_profile(wait=2, warmup=1, active=2, mode="nvtx"), 6)
    printed = capsys.readouterr().err
    assert "gpusight record --steps 3-4 -- python train.py --name 'a b'" in printed
    assert "--capture-range=cudaProfilerApi --capture-range-end=stop -o train python" in printed
    assert "on" not in tool.heard
    assert not files(tmp_path)


def test_without_cuda_the_program_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NV_COMPUTE_PROFILER_PERFWORKS_DIR", "/x")

    def fails() -> None:
        raise RecordError("no CUDA runtime was found")

    Tool(monkeypatch)
    monkeypatch.setattr(cuda_driver, "profiler_start", fails)
    with pytest.warns(ProfilerWarning, match="not recorded: no CUDA runtime"):
        run(gs.torch_profile(wait=1, warmup=0, active=1), 3)


@pytest.mark.parametrize(
    ("variable", "tool"),
    [
        (None, None),
        ("NSYS_PROFILING_SESSION_ID", "nsys"),
        ("QUADD_INJECTION_PROXY", "nsys"),
        ("NV_NSIGHT_INJECTION_TRANSPORT_TYPE", "ncu"),
        ("NV_TPS_LAUNCH_TOKEN", "ncu"),
        (VARIABLE, "gpusight record"),
        (nvtx_backend.PATH_VARIABLE, "a tool that records NVTX"),
    ],
)
def test_tools_are_known_by_what_they_leave(
    variable: str | None, tool: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable is not None:
        monkeypatch.setenv(variable, "x")
    assert surrounding_tool() == tool
    assert surrounding_profiler() == (tool if tool in ("nsys", "ncu") else None)


def test_two_profilers_at_once_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    with pytest.warns(ProfilerWarning, match="two profilers"):
        run(gs.torch_profile(mode="torch"), 1)


class StepListener:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def step_began(self, number: int) -> None:
        self.heard.append(f"began {number}")

    def step_ended(self, number: int) -> None:
        self.heard.append(f"ended {number}")

    def range_began(self, name: str) -> None:
        pass

    def range_ended(self, name: str) -> None:
        pass


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What a recorder hears of steps, counted from 0."""
    monkeypatch.setattr(HUB, "explicit", False)
    listener = StepListener()
    HUB.listen(listener)
    yield listener.heard
    HUB.forget(listener)


def test_steps_are_told_to_whoever_listens(steps: list[str]) -> None:
    run(gs.torch_profile(active=1, warmup=1), 2)
    assert steps[:4] == ["began 0", "ended 0", "began 1", "ended 1"]


def test_a_step_within_a_step_counts_once(steps: list[str], tmp_path: Path) -> None:
    with gs.torch_profile(warmup=1, active=2) as prof:
        for _ in gs.step(range(3)):
            prof.step()
    assert [word for word in steps if word.startswith("began")] == [f"began {n}" for n in range(4)]
    trace = tmp_path / "profiler_output/iteration_3/rank0_trace.json.gz"
    assert list(step_marks(trace)) == ["ProfilerStep#1", "ProfilerStep#2"]
    assert "step 0" not in gzip.decompress(trace.read_bytes()).decode()


def test_a_block_leaves_its_steps_to_the_program(steps: list[str], tmp_path: Path) -> None:
    with gs.torch_profile():
        for _ in gs.step(range(2)):
            torch.ones(2) + 1
    assert steps == ["began 0", "ended 0", "began 1", "ended 1"]
    found = gs.steps(tmp_path / "profiler_output/iteration_0/rank0_trace.json.gz")
    assert found["steps"].frame["number"].to_list() == [0, 1]


def test_a_session_that_nobody_closes_is_closed_at_exit(tmp_path: Path) -> None:
    script = (
        "import gc, torch, gpusight as gs\n"
        "gc.freeze()\n"  # ends in a quarter of the time
        "prof = gs.torch_profile(key_averages=False).__enter__()\n"
        "torch.ones(3) + 1\n"
        "raise SystemExit(7)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert done.returncode == 7, done.stderr
    assert files(tmp_path) == ["profiler_output/iteration_0/rank0_trace.json.gz"]
    assert not torch_session._OPEN


def test_programs_without_our_dependencies_can_import_it() -> None:
    script = (
        "import sys, gpusight.recording.inside.profiler_callback, "
        "gpusight.recording.inside.torch_session\n"
        "ours = {'gpusight', 'sitecustomize', *sys.stdlib_module_names}\n"
        "names = {n.partition('.')[0] for n, m in sys.modules.items() if hasattr(m, '__file__')}\n"
        "print(sorted(n for n in names - ours if not n.startswith('_')))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done
