"""Programs that know nothing of us are recorded with PyTorch's profiler."""

from __future__ import annotations

import gzip
import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

import gpusight as gs
from gpusight.pace import METADATA_KEY, Pace
from gpusight.recording.collect_stacks import collect_stacks, stacks_path
from gpusight.recording.inside.environment import REPORT_VARIABLE
from gpusight.recording.inside.stack_sampler import MAGIC, PROCESS, SESSION_VARIABLE, json_chunk
from tests.recording.inside.inside_runs import Ran, TorchPrograms, run
from tests.shared import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="programs run in forks")

TRACE = "run.trace.json.gz"
TRAIN = """
import gc, sys
import torch

gc.freeze()  # ends in a quarter of the time

def main():
    model = torch.nn.Linear(8, 8)
    first = torch.optim.SGD(model.parameters(), lr=0.1)
    second = torch.optim.Adam(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.ones(16, 8))
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=1,
                                         multiprocessing_context=sys.argv[1])
    for (batch,) in loader:
        model(batch).sum().backward()
        first.step()
        second.step()
        first.zero_grad()
    print("trained")

if __name__ == "__main__":
    main()
    raise SystemExit(sys.argv[2])
"""


@pytest.fixture(scope="module")
def programs() -> Iterator[TorchPrograms]:
    started = TorchPrograms()
    yield started
    started.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def test_a_whole_program_with_workers_that_fails(folder: Path) -> None:
    hidden = folder / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("print('hidden ran')")
    done = run(folder, "train.py", "spawn", "it failed", path=(hidden,))
    assert (done.code, done.out.count("hidden ran") > 1, "trained" in done.out) == (1, True, True)
    assert (done.files, done.messages) == ([TRACE], [])
    assert done.steps(TRACE) == ["ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#3"]
    operators = gs.ops(done.folder / TRACE, window=(None, None)).frame
    counted = dict(operators.select("name", "calls").iter_rows())
    assert counted["Optimizer.step#SGD.step"] == 4
    assert recorded_shapes(done) == 0


def test_steps_of_a_module_are_recorded_and_end_it(folder: Path) -> None:
    done = run(folder, "-m", "train", "fork", "0", first_step=1, last_step=2, stop=True)
    assert done.code == -signal.SIGTERM
    assert "trained" not in done.out
    assert done.files == [TRACE]
    assert done.steps(TRACE) == ["ProfilerStep#1", "ProfilerStep#2"]


def test_shapes_are_recorded_where_they_are_wanted(folder: Path) -> None:
    own = (REPOSITORY / "src",)
    done = run(folder, "train.py", "fork", "0", path=own, first_step=1, last_step=2, shapes=True)
    assert recorded_shapes(done) > 0


def recorded_shapes(done: Ran) -> int:
    return gs.open(done.folder / TRACE).table("cpu_ops", ["shapes"])["shapes"].count()


def test_steps_that_never_come_are_named(tmp_path: Path, programs: TorchPrograms) -> None:
    done = programs.run(tmp_path, TRAIN, "fork", "0", first_step=9, last_step=10)
    assert (done.code, done.files) == (1, [])
    assert len(done.messages) == 1
    assert "step 9 never began (4 were counted)" in done.messages[0]


@pytest.mark.parametrize(
    ("end", "files"),
    [("", []), ("raise ValueError", [TRACE]), ("os.kill(os.getpid(), 15)", [TRACE])],
)
def test_what_follows_the_last_step_of_an_optimizer_is_none(
    tmp_path: Path, programs: TorchPrograms, end: str, files: list[str]
) -> None:
    code = (
        "import os, torch\n"
        "layer = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)\n"
        "for _ in range(2):\n"
        "    layer(torch.ones(2)).sum().backward()\n"
        "    optimizer.step()\n"
        f"torch.ones(2) + 1\n{end}\n"
    )
    done = programs.run(tmp_path, code, first_step=2, last_step=5)
    assert done.files == files
    assert any("step 2 never ended (2 were counted)" in line for line in done.messages) is not bool(
        files
    )


def test_a_program_that_is_terminated_leaves_its_capture(
    tmp_path: Path, programs: TorchPrograms
) -> None:
    code = "import torch, os, signal; torch.ones(2) + 1; os.kill(os.getpid(), signal.SIGTERM)"
    done = programs.run(tmp_path, code)
    assert (done.code, done.files) == (-signal.SIGTERM, [TRACE])
    assert "aten::add" in done.names(TRACE)


def test_the_program_has_its_signals_back_once_recording_is_over(
    tmp_path: Path, programs: TorchPrograms
) -> None:
    code = (
        "import torch, signal, gpusight as gs\n"
        "for number in gs.step(range(3)):\n"
        "    torch.ones(2) + 1\n"
        "    print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)\n"
    )
    done = programs.run(tmp_path, code, first_step=1, last_step=1)
    assert done.files == [TRACE]
    assert done.out.split() == ["True", "False", "True"]


def test_nothing_can_be_written_past_os_exit(tmp_path: Path, programs: TorchPrograms) -> None:
    done = programs.run(tmp_path, "import torch, os; torch.ones(2); os._exit(7)")
    assert (done.code, done.files, done.messages) == (7, [], [])


def test_the_program_may_have_the_profiler_for_itself(
    tmp_path: Path, programs: TorchPrograms
) -> None:
    code = (
        "import torch\n"
        "torch.ones(2) + 1\n"
        "with torch.profiler.profile() as own:\n"
        "    torch.ones(2) * 2\n"
        "print(sorted({event.name for event in own.events()}))\n"
    )
    done = programs.run(tmp_path, code)
    assert done.code == 0
    assert "aten::mul" in done.out
    assert "aten::add" not in done.out
    assert {"aten::add"} <= done.names(TRACE)
    assert "aten::mul" not in done.names(TRACE)
    assert "uses torch.profiler itself" in done.messages[0]


def test_a_range_is_recorded_from_its_first_opening_to_its_end(
    tmp_path: Path, programs: TorchPrograms
) -> None:
    code = (
        "import torch\n"
        "torch.ones(2) + 1\n"
        "for _ in range(2):\n"
        "    with torch.profiler.record_function('forward'):\n"
        "        with torch.profiler.record_function('forward'):\n"
        "            pass\n"
        "        torch.ones(2) * 2\n"
        "    torch.ones(2) / 2\n"
    )
    done = programs.run(tmp_path, code, range_name="forward")
    assert done.files == [TRACE]
    names = [event["name"] for event in done.events(TRACE)]
    assert (names.count("aten::mul"), names.count("forward")) == (1, 2)
    assert not {"aten::add", "aten::div"} & set(names)


def test_ranges_and_steps_that_the_program_tells_are_in_the_trace(
    tmp_path: Path, programs: TorchPrograms
) -> None:
    code = (
        "import threading, torch, gpusight as gs\n"
        "def work(name):\n"
        "    with gs.annotate(name):\n"
        "        torch.ones(2) + 1\n"
        "for _ in gs.step(range(2)):\n"
        "    work('here')\n"
        "    other = threading.Thread(target=work, args=('there',))\n"
        "    other.start()\n"
        "    other.join()\n"
    )
    done = programs.run(tmp_path, code)
    names = [event["name"] for event in done.events(TRACE)]
    assert (names.count("here"), names.count("there")) == (2, 2)
    assert {"step 0", "step 1"} <= set(names)
    assert done.steps(TRACE) == ["ProfilerStep#0", "ProfilerStep#1"]


def test_the_clock_starts_and_stops_it_on_the_thread_that_works(
    tmp_path: Path, programs: TorchPrograms
) -> None:
    code = (
        "import os, threading, time, torch\n"
        "end = time.monotonic() + 60\n"
        "def work():\n"
        f"    while time.monotonic() < end and not os.path.exists('out/{TRACE}'):\n"
        "        torch.ones(2) + 1\n"
        "        time.sleep(0.01)\n"
        "    print(time.monotonic() < end)\n"
        "other = threading.Thread(target=work)\n"
        "other.start()\n"
        "work()\n"
        "other.join()\n"
    )
    done = programs.run(tmp_path, code, delay_s=0.1, duration_s=0.3)
    assert (done.files, done.messages) == ([TRACE], [])
    assert done.out.split() == ["True", "True"]  # it was written while the program ran
    added = [event for event in done.events(TRACE) if event["name"] == "aten::add"]
    assert len({event["tid"] for event in added}) == 2
    times = [float(event["ts"]) for event in added]
    assert 50_000 < max(times) - min(times) < 1_500_000  # microseconds


def test_each_rank_has_its_file_and_the_launcher_none(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(
        "import gc, torch, torch.distributed as dist\n"
        "gc.freeze()\n"
        "dist.init_process_group('gloo')\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "model(torch.ones(2, 2)).sum().backward()\n"
        "optimizer.step()\n"
        "dist.barrier()\n"  # one that ends early takes the connections of the other with it
        "dist.destroy_process_group()\n"
    )
    launch = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone")
    done = run(tmp_path, *launch, "ranks.py")
    assert (done.code, done.messages) == (0, []), done.errors
    assert done.files == ["run.rank0.trace.json.gz", "run.rank1.trace.json.gz"]


def test_a_fork_that_trains_is_recorded_where_its_parent_was_not(
    tmp_path: Path, programs: TorchPrograms
) -> None:
    code = (
        "import multiprocessing, torch\n"
        "def train():\n"
        "    model = torch.nn.Linear(2, 2)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    for _ in range(3):\n"
        "        model(torch.ones(2, 2)).sum().backward()\n"
        "        optimizer.step()\n"
        "child = multiprocessing.get_context('fork').Process(target=train)\n"
        "child.start()\n"
        "child.join()\n"
    )
    done = programs.run(tmp_path, code, first_step=1, last_step=None)
    assert (done.code, done.files, done.messages) == (0, [TRACE], [])
    assert done.steps(TRACE) == ["ProfilerStep#1", "ProfilerStep#2"]


def test_a_program_that_hangs_up_leaves_its_capture(
    tmp_path: Path, programs: TorchPrograms
) -> None:
    code = "import torch, os, signal; torch.ones(2) + 1; os.kill(os.getpid(), signal.SIGHUP)"
    done = programs.run(tmp_path, code)
    assert (done.code, done.files) == (-signal.SIGHUP, [TRACE])


@pytest.mark.parametrize("is_module", [False, True])
def test_an_interrupted_program_leaves_its_capture_and_dies_of_the_signal(
    tmp_path: Path, programs: TorchPrograms, is_module: bool
) -> None:
    code = (
        "import gc, torch, os, signal; gc.freeze(); torch.ones(2) + 1\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
    )
    (tmp_path / "interrupted.py").write_text(code)
    done = run(tmp_path, "-m", "interrupted") if is_module else programs.run(tmp_path, code)
    assert (done.code, done.files) == (-signal.SIGINT, [TRACE])


def test_an_interrupt_that_the_program_caught_changes_nothing(
    tmp_path: Path, programs: TorchPrograms
) -> None:
    code = (
        "import torch, os, signal\ntorch.ones(2) + 1\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n    signal.pause()\n"
        "except KeyboardInterrupt:\n    raise SystemExit(7)\n"
    )
    done = programs.run(tmp_path, code)
    assert (done.code, done.files) == (7, [TRACE])


def test_an_interrupt_while_we_write_is_one_line(tmp_path: Path, programs: TorchPrograms) -> None:
    code = (
        "import torch, os, signal\nfrom gpusight.recording.inside import torch_recorder\n"
        "own = os.getpid()\n"
        "torch_recorder.write_trace = lambda *_: (os.kill(own, signal.SIGINT), signal.pause())\n"
        "torch.ones(2) + 1\nos.kill(os.getpid(), signal.SIGINT)\n"
    )
    done = programs.run(tmp_path, code)
    assert (done.code, done.files, len(done.messages)) == (-signal.SIGINT, [], 1)
    assert "is not written" in done.messages[0]
    assert done.errors.count("Traceback") == 1  # the program's own


def test_a_program_without_torch_is_told_so(tmp_path: Path) -> None:
    code = "import gpusight as gs\nfor _ in gs.step(range(4)): pass"
    done = run(tmp_path, "-c", code, first_step=2, last_step=3)
    assert (done.code, done.files, len(done.messages)) == (0, [], 1)
    assert "the program has not imported torch" in done.messages[0]


def test_memory_without_a_gpu_has_no_history_and_says_so(
    tmp_path: Path, programs: TorchPrograms
) -> None:
    variables = {"CUDA_VISIBLE_DEVICES": ""}
    done = programs.run(
        tmp_path, "import torch; torch.ones(2) + 1", memory=True, variables=variables
    )
    assert (done.files, len(done.messages)) == ([TRACE], 1)
    assert "no GPU memory history: this process has no GPU" in done.messages[0]


WINDOW: dict[str, Any] = {"window": True, "warmup": 2, "timed": 3, "recorded": 2}
INFER = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
{prepare}
with torch.no_grad():
    for _ in range({steps}):
        torch.nn.MSELoss()(model(torch.ones(2, 4)), torch.ones(2, 4))
print("done")
"""


def stored_pace(done: Ran) -> Pace:
    with gzip.open(done.folder / TRACE, "rt") as file:
        return Pace.from_text(json.dumps(json.load(file)[METADATA_KEY]))


def test_a_window_of_an_optimizer_s_steps_and_the_pace_before_it(
    tmp_path: Path, programs: TorchPrograms
) -> None:
    code = (
        "import torch\n"
        "layer = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)\n"
        "for _ in range(12):\n"
        "    layer(torch.ones(2)).sum().backward()\n"
        "    optimizer.step()\n"
        "print('done')\n"
    )
    report = tmp_path / "report"
    done = programs.run(tmp_path, code, variables={REPORT_VARIABLE: str(report)}, **WINDOW)
    assert (done.code, done.out, done.files, done.messages) == (0, "done\n", [TRACE], [])
    # 0 is a guess, 1 and 2 warm up, 3 to 5 are timed, 6 gets the profiler warm.
    assert done.steps(TRACE) == ["ProfilerStep#7", "ProfilerStep#8"]
    pace = stored_pace(done)
    assert (pace.steps, pace.how, pace.step_source) == (3, "before", "optimizer")
    run_report = json.loads(report.read_text())
    assert (run_report["recorded_steps"], run_report["pace"]) == (2, pace.to_text())


@pytest.mark.parametrize("prepare", ["", 'model = torch.compile(model, backend="eager")'])
def test_a_window_of_calls_of_the_model(
    prepare: str, tmp_path: Path, programs: TorchPrograms
) -> None:
    done = programs.run(tmp_path, INFER.format(prepare=prepare, steps=14), **WINDOW)
    assert (done.code, done.out, done.files, done.messages) == (0, "done\n", [TRACE], [])
    assert done.steps(TRACE) == ["ProfilerStep#6", "ProfilerStep#7"]
    assert stored_pace(done).step_source == "module"


def test_a_program_that_ends_before_its_window_is_reported(
    tmp_path: Path, programs: TorchPrograms
) -> None:
    done = programs.run(tmp_path, INFER.format(prepare="", steps=5), **WINDOW)
    assert (done.code, done.files) == (0, [])
    assert "it ran 3 steps, too few to warm up, time and record" in done.messages[0]


def test_a_run_that_is_only_timed_ends_when_it_is(tmp_path: Path, programs: TorchPrograms) -> None:
    report = tmp_path / "report"
    done = programs.run(
        tmp_path,
        INFER.format(prepare="", steps=1_000_000),
        variables={REPORT_VARIABLE: str(report)},
        recorder="pace",
        stop=True,
        **WINDOW,
    )
    assert (done.code, done.files) == (-signal.SIGTERM, [])
    assert Pace.from_text(json.loads(report.read_text())["pace"]).steps == 3


BUSY = """
import torch
from tests_guilty import guilty

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    guilty()
"""
GUILTY = """
import time

def guilty():
    end = time.monotonic() + 0.05
    while time.monotonic() < end:
        pass
"""


def test_sampled_stacks_name_the_line_that_takes_the_time(
    programs: TorchPrograms, folder: Path
) -> None:
    (folder / "tests_guilty.py").write_text(GUILTY)
    ran = programs.run(
        folder,
        f"import sys; sys.path.insert(0, {str(folder)!r})\n" + BUSY,
        variables={SESSION_VARIABLE: "run1"},
        stacks_hz=200.0,
    )
    assert ran.code == 0, ran.errors
    (part,) = (name for name in ran.files if name.endswith(".part"))
    assert part.startswith("run.stacks-run1-")
    capture = ran.folder / TRACE
    found = collect_stacks(ran.folder / "run", "run1", [capture])
    assert ran.files == [TRACE, f"{TRACE}.stacks"]
    assert found.samples > 10
    trace = gs.open(capture, cache=False)
    assert trace.meta.session == "run1"
    assert trace.stack_samples["time_ns"].is_between(0, trace.meta.duration_ns).sum() > 10
    first = gs.hotspots(trace).to_dict()["rows"][0]
    assert (first["file"].rpartition("/")[2], first["line"] in (6, 7)) == ("tests_guilty.py", True)


def test_stacks_of_another_run_are_left_out(programs: TorchPrograms, folder: Path) -> None:
    ran = programs.run(folder, BUSY.replace("guilty", "str").replace("tests_str", "builtins"))
    assert ran.code == 0, ran.errors
    capture = ran.folder / TRACE
    about = {"version": 1, "session": "x", "pid": 1, "hz": 200}
    stacks_path(capture).write_bytes(MAGIC + json_chunk(PROCESS, about))
    trace = gs.open(capture, cache=False)
    assert not trace.has("stack_samples")
    assert "left out" in trace.meta.notes[-1]
