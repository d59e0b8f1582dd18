"""What gets our recorder into a program: roles, imports, windows, names, the site folder."""

from __future__ import annotations

import importlib
import importlib.machinery
import io
import os
import shutil
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpusight.errors import RecordError
from gpusight.recording.inside import (
    cuda_driver,
    environment,
    recording_window,
    start_recording,
)
from gpusight.recording.inside.environment import (
    VARIABLE,
    ProcessRole,
    RecorderPlan,
    current_plan,
    log_line,
    role_of,
)
from gpusight.recording.inside.import_hooks import when_imported
from gpusight.recording.inside.recording_window import (
    ProfilerApiRecorder,
    RecordingWindow,
    WindowState,
    recorder_for,
    run_on_main_thread,
)
from gpusight.recording.inside.step_hub import StepHub
from tests.recording.inside.inside_runs import SITE, run


class CallLog:
    """A recorder that logs the methods called on it."""

    suffix: str | None = ".x"
    on_main_thread = False

    def __init__(self) -> None:
        self.names: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args: self.names.append(" ".join([name, *map(str, args)]))


def window(
    recorder: Any, *, tool: str = "torch", allowed: bool = True, **plan: Any
) -> RecordingWindow:
    return RecordingWindow(
        RecorderPlan(tool, "/nowhere", **plan),
        recorder,
        opened=lambda: recorder.names.append("opened"),
        ended=lambda: recorder.names.append("ended"),
        allowed=lambda: allowed,
    )


@pytest.mark.parametrize(
    ("arguments", "role"),
    [
        ("python train.py --pip", ProcessRole.MAIN),
        ("python -u -X dev -m train", ProcessRole.MAIN),
        ("python -c print()", ProcessRole.MAIN),
        ("python", ProcessRole.MAIN),
        ("python /bin/torchrun train.py", ProcessRole.HELPER),
        ("python -m torch.distributed.run train.py", ProcessRole.HELPER),
        ("python -u -m deepspeed.launcher.launch train.py", ProcessRole.HELPER),
        ("python /bin/accelerate launch train.py", ProcessRole.HELPER),
        ("python /x/torch/_inductor/compile_worker/__main__.py --workers=2", ProcessRole.HELPER),
        ("python -m pip install x", ProcessRole.HELPER),
        ("python pipeline.py", ProcessRole.MAIN),
        ("python -m gpusight_training", ProcessRole.MAIN),
        ("python -c from multiprocessing.spawn import spawn_main; spawn_main()", ProcessRole.CHILD),
        ("python -c from multiprocessing.resource_tracker import main;main(7)", ProcessRole.HELPER),
        ("python -s -c from multiprocessing.forkserver import main; main(3)", ProcessRole.HELPER),
    ],
)
def test_roles(arguments: str, role: ProcessRole) -> None:
    words = arguments.split(" ")
    if "-c" in words:
        at = words.index("-c") + 1
        words = [*words[:at], " ".join(words[at:])]
    assert role_of(words) is role


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_module_is_told_of_once_it_is_whole(modules: Path) -> None:
    (modules / "told_of.py").write_text("done = False\ndone = True\n")
    seen: list[bool] = []
    when_imported("told_of", lambda module: seen.append(module.done))
    module = importlib.import_module("told_of")
    importlib.reload(module)
    assert seen == [True]
    assert module.__spec__ is not None
    assert "exec_module" not in vars(module.__spec__.loader) or seen
    when_imported("told_of", lambda module: seen.append(module.done))
    assert seen == [True, True]
    assert not any(type(finder).__name__ == "_Finder" for finder in sys.meta_path)


def test_an_import_that_fails_does_not_count_and_an_action_never_breaks_one(
    modules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (modules / "fails_once.py").write_text("import sys\nassert hasattr(sys, 'let_it_pass')\n")
    seen: list[str] = []

    def act(module: Any) -> None:
        seen.append(module.__name__)
        raise ValueError("ours")

    when_imported("fails_once", act)
    with pytest.raises(AssertionError):
        importlib.import_module("fails_once")
    sys.let_it_pass = True  # type: ignore[attr-defined]
    importlib.import_module("fails_once")
    assert seen == ["fails_once"]
    assert "hooking fails_once failed" in capsys.readouterr().err


def test_a_module_whose_loader_cannot_be_followed_is_imported_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Fixed:
        """Finds and loads one module, and takes no attributes."""

        __slots__ = ()

        def find_spec(self, name: str, *_: object) -> Any:
            loader: Any = self
            return importlib.machinery.ModuleSpec(name, loader) if name == "fixed" else None

        def create_module(self, _spec: object) -> None:
            return None

        def exec_module(self, module: Any) -> None:
            module.done = True

    monkeypatch.setattr(sys, "meta_path", [Fixed(), *sys.meta_path])
    when_imported("fixed", lambda _: None)
    assert importlib.import_module("fixed").done
    assert "following the import of fixed failed" in capsys.readouterr().err


def test_a_window_of_steps() -> None:
    calls, hub = CallLog(), StepHub()
    steps = window(calls, first_step=2, last_step=3)
    hub.listen(steps)
    for _ in range(6):
        hub.end_step(hub.begin_step())
    assert calls.names == [
        "prepare",
        "start",
        "opened",
        "step_began 2",
        "step_ended 2",
        "step_began 3",
        "step_ended 3",
        "stop",
        "ended",
    ]


def test_a_window_of_the_first_range_and_what_is_nested_in_it() -> None:
    calls = CallLog()
    ranges = window(calls, range_name="forward")
    for event in ("began forward", "began forward", "ended forward", "ended forward") * 2:
        what, _, name = event.partition(" ")
        getattr(ranges, f"range_{what}")(name)
        if event == "ended forward" and calls.names[-1] != "ended":
            assert ranges.state is WindowState.RECORDING
    assert calls.names == ["start", "opened", "stop", "ended"]


@pytest.mark.parametrize(
    ("wanted", "name", "is_it"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a", "a@mine", True),
        ("a@mine", "a@mine", True),
        ("a@mine", "a@other", False),
        ("a@mine", "a", True),  # who tells no domain does not know it
        ("a@*", "a@other", True),
        ("me@home", "me@home", True),
        ("b@*", "a@b", False),
    ],
)
def test_names_of_ranges(wanted: str, name: str, is_it: bool) -> None:
    ranges = window(CallLog(), range_name=wanted)
    ranges.range_began(name)
    assert (ranges.state is WindowState.RECORDING) is is_it


def test_a_window_of_time() -> None:
    calls = CallLog()
    timed = window(calls, delay_s=0.05, duration_s=0.05)
    timed.ready()
    timed.ready()
    assert (calls.names, timed.missed()) == (
        [],
        "the program ended before the delay of 0.05 s was over",
    )
    end_s = time.monotonic() + 10
    while "ended" not in calls.names and time.monotonic() < end_s:
        time.sleep(0.01)
    assert calls.names == ["start", "opened", "stop", "ended"]


def test_a_window_without_limits_lasts_to_the_end() -> None:
    calls = CallLog()
    whole = window(calls)
    whole.ready()
    whole.step_began(1)
    whole.step_ended(1)
    assert "stop" not in calls.names
    whole.close()
    whole.close()
    assert calls.names[-2:] == ["stop", "ended"]


def test_what_never_came_is_named() -> None:
    steps = window(CallLog(), first_step=5)
    steps.step_began(0)
    steps.step_ended(0)
    assert steps.missed() == "step 5 never began (1 were counted)"
    assert window(CallLog(), range_name="a").missed() == "the range a never started"
    assert window(CallLog()).missed() is None


def test_a_recorder_that_fails_is_said_once_and_felt_by_nobody(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Failing(CallLog):
        def start(self) -> None:
            raise RecordError("no such thing")

    failing = Failing()
    whole = window(failing)
    whole.ready()
    whole.step_began(1)
    whole.close()
    assert failing.names == []
    assert capsys.readouterr().err.count("no such thing") == 1


@pytest.mark.parametrize("broken", ["opened", "allowed"])
def test_what_fails_around_the_recorder_is_felt_by_nobody(
    broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> bool:
        raise RuntimeError("can't start new thread")

    calls = CallLog()
    callbacks: dict[str, Any] = {"opened": bool, "allowed": lambda: True, broken: fail}
    whole = RecordingWindow(
        RecorderPlan("torch", "/nowhere"), calls, ended=lambda: None, **callbacks
    )
    whole.ready()
    whole.close()
    assert calls.names == (["start", "stop"] if broken == "opened" else [])
    assert capsys.readouterr().err.count("can't start new thread") == 1


def test_what_was_prepared_in_vain_is_undone() -> None:
    calls = CallLog()
    steps = window(calls, first_step=1)
    steps.step_began(0)
    steps.close()
    assert calls.names == ["prepare", "cancel"]


def test_a_rank_that_is_not_wanted_does_not_begin() -> None:
    calls = CallLog()
    other = window(calls, allowed=False)
    other.ready()
    other.close()
    assert calls.names == []


def test_a_function_runs_on_the_main_thread() -> None:
    ran: list[threading.Thread] = []
    worker = threading.Thread(
        target=lambda: run_on_main_thread(lambda: ran.append(threading.current_thread()))
    )
    worker.start()
    end_s = time.monotonic() + 0.8
    while not ran and time.monotonic() < end_s:
        pass
    worker.join()
    assert ran == [threading.main_thread()]


@pytest.fixture
def began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.STARTED_VARIABLE, str(time.time_ns()))


@pytest.mark.usefixtures("began")
def test_names_that_nobody_has(tmp_path: Path) -> None:
    plan = RecorderPlan("torch", str(tmp_path / "run"))
    pid = os.getpid()

    def names(rank: int | None) -> str:
        return environment.written(plan, ".x", rank, lambda path: _fill(path, "new")).name

    assert [names(None), names(None), names(None)] == [
        "run.x",
        f"run.pid{pid}.x",
        f"run.pid{pid}.2.x",
    ]
    assert [names(3), names(3)] == ["run.rank3.x", f"run.rank3.pid{pid}.x"]
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.usefixtures("began")
def test_an_earlier_file_is_replaced_when_asked_and_a_siblings_never(tmp_path: Path) -> None:
    old = tmp_path / "run.x"
    old.write_text("old")
    os.utime(old, (1, 1))
    kept = environment.written(RecorderPlan("torch", str(tmp_path / "run")), ".x", None, _new)
    plan = RecorderPlan("torch", str(tmp_path / "run"), overwrite=True)
    assert (kept.name, old.read_text()) == (f"run.pid{os.getpid()}.x", "old")
    assert environment.written(plan, ".x", None, _new) == old
    assert old.read_text() == "new"
    assert environment.written(plan, ".x", None, _new) != old


@pytest.mark.usefixtures("began")
def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        environment.written(RecorderPlan("torch", str(tmp_path / "run")), ".x", None, fail)
    assert not list(tmp_path.iterdir())


def _new(path: Path) -> None:
    _fill(path, "new")


def _fill(path: Path, text: str) -> None:
    path.write_text(text)


def test_the_profiler_around_us_waits_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []
    in_use = threading.Event()
    monkeypatch.setattr(cuda_driver, "cuda_in_use", in_use.is_set)
    for module, name in (
        (cuda_driver, "profiler_start"),
        (cuda_driver, "profiler_stop"),
        (cuda_driver, "borrow_context"),
        (cuda_driver, "wait_for_gpus"),
    ):
        monkeypatch.setattr(module, name, lambda name=name: did.append(name))
    early = recorder_for(RecorderPlan("profiler-api", "/nowhere"))
    early.start()
    assert (did, early.is_empty()) == ([], True)
    in_use.set()
    end_s = time.monotonic() + 10
    while early.is_empty() and time.monotonic() < end_s:
        time.sleep(0.005)
    early.stop()
    assert did == ["borrow_context", "profiler_start", "wait_for_gpus", "profiler_stop"]
    did.clear()
    late = ProfilerApiRecorder()
    late.start()
    late.stop()
    assert did == ["wait_for_gpus", "profiler_start", "wait_for_gpus", "profiler_stop"]
    never = ProfilerApiRecorder()
    in_use.clear()
    never.start()
    never.stop()
    assert never.is_empty()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc")
def test_a_python_inside_a_profiler_is_left_alone(tmp_path: Path) -> None:
    """Nsight Compute runs its rules in a Python of its own, in an environment that is ours."""
    base = sys._base_executable  # type: ignore[attr-defined]
    named_like_it = tmp_path / "ncu"
    shutil.copy(os.path.realpath(base), named_like_it)
    (tmp_path / "rule.py").write_text("import sys; print('gpusight' in sys.modules)")
    done = run(
        tmp_path,
        "rule.py",
        python=str(named_like_it),
        recorder="profiler-api",
        first_step=0,
        variables={"PYTHONHOME": sys.base_prefix},
    )
    assert (done.code, done.out, done.messages) == (0, "False\n", [])


def test_a_python_without_gpusight_gets_it_and_nothing_else(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare" / ("Scripts" if os.name == "nt" else "bin") / "python"
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("hidden = True")
    (tmp_path / "steps.py").write_text(
        "import gpusight as gs, importlib.util, sitecustomize\n"
        "for _ in gs.step(range(3)): pass\n"
        "print(sitecustomize.hidden, importlib.util.find_spec('polars'))\n"
    )
    done = run(
        tmp_path,
        "steps.py",
        python=str(python),
        path=(tmp_path / "own",),
        recorder="profiler-api",
        first_step=7,
    )
    assert (done.code, done.out) == (0, "True None\n")
    assert len(done.messages) == 1
    assert "step 7 never began (3 were counted)" in done.messages[0]


def test_what_goes_wrong_with_us_does_not_stop_the_program(tmp_path: Path) -> None:
    done = run(tmp_path, "-c", "print('ran')", recorder="no such recorder")
    assert (done.code, done.out) == (0, "ran\n")
    assert "is not recorded: unknown recorder" in done.messages[0]


@pytest.mark.parametrize("stream", [None, "closed", "ascii"])
def test_a_program_without_a_stderr_that_takes_our_line_goes_on(
    stream: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    if stream == "closed":
        kept.close()
    monkeypatch.setattr(sys, "stderr", kept if stream else None)
    log_line("über")


class Tee:
    """What programs put in the place of stderr: without `flush`, or busy when a signal comes."""

    def write(self, _text: str) -> None:
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stderr>'>")


@pytest.mark.parametrize("stream", [Tee(), SimpleNamespace(write=lambda _: None)])
def test_a_stream_of_the_program_s_own_does_not_make_us_raise(
    stream: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    log_line("a line")


def test_a_profiler_that_cannot_be_switched_on_later_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise RecordError("no CUDA runtime was found")

    answers = iter((False, True))
    monkeypatch.setattr(cuda_driver, "cuda_in_use", lambda: next(answers))
    monkeypatch.setattr(cuda_driver, "borrow_context", lambda: None)
    monkeypatch.setattr(cuda_driver, "profiler_start", fail)
    recorder = ProfilerApiRecorder()
    recorder.start()
    for thread in threading.enumerate():
        if thread.name == "gpusight":
            thread.join(10)
    lines = capfd.readouterr().err.splitlines()
    assert (len(lines), recorder.is_empty()) == (1, True)
    assert "no CUDA runtime was found" in lines[0]


def test_a_file_from_just_before_the_run_is_replaced_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = RecorderPlan("torch", str(tmp_path / "run"), overwrite=True)
    old = tmp_path / "run.x"
    old.write_text("old")
    an_instant_later_ns = old.stat().st_mtime_ns + 200_000_000
    time.sleep(0.25)
    monkeypatch.setenv(environment.STARTED_VARIABLE, str(an_instant_later_ns))
    assert environment.written(plan, ".x", None, _new) == old
    assert environment.written(plan, ".x", None, _new) != old


def test_a_plan_that_is_none_is_said_by_the_name_of_the_variable(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "print('ran')"],
        env={**os.environ, "PYTHONPATH": str(SITE), VARIABLE: "{garbage"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "ran\n"
    assert done.stderr.count("\n") == 1
    assert f"the variable {VARIABLE} is not set by gpusight record" in done.stderr


@pytest.mark.parametrize("text", ["[1]", "{}", "7", '{"recorder": "x", "output": "y", "ranks": 3}'])
def test_other_json_is_no_plan(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(RecordError, match="is not set by gpusight record"):
        current_plan()


def test_why_the_profiler_around_us_was_not_switched_on_is_said(tmp_path: Path) -> None:
    code = "import gpusight as gs\nfor _ in gs.step(range(4)): pass"
    done = run(tmp_path, "-c", code, recorder="profiler-api", first_step=1, last_step=2)
    assert done.code == 0
    assert len(done.messages) == 1
    assert "CUDA" in done.messages[0]
    assert "never began" not in done.messages[0]


def test_ranks_that_do_not_exist_are_said_by_one(tmp_path: Path) -> None:
    messages = []
    for rank in ("0", "1"):
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}
        messages += run(tmp_path, "-c", "pass", variables=variables, ranks=(8,)).messages
    assert messages == [
        "gpusight: nothing is recorded: rank 8 was requested, but there are only 2 ranks"
    ]


def watched(
    monkeypatch: pytest.MonkeyPatch, *, torch: bool, then: Callable[[Any], None] = lambda _: None
) -> tuple[CallLog, str | None]:
    """Watch a process that uses the GPU for steps that can be counted."""
    calls = CallLog()
    monkeypatch.setattr(start_recording, "recorder_for", lambda _: calls)
    monkeypatch.setattr(start_recording, "_UNCOUNTABLE_S", 0.05)
    monkeypatch.setattr(start_recording, "_WATCH_S", 0.01)
    monkeypatch.setattr(start_recording, "HUB", StepHub())
    monkeypatch.setattr(cuda_driver, "cuda_in_use", lambda: True)
    monkeypatch.setattr(cuda_driver, "borrow_context", lambda: None)
    monkeypatch.setattr(start_recording.ProcessRecording, "_opened", lambda _: None)
    modules = {name: module for name, module in sys.modules.items() if name != "torch"}
    monkeypatch.setattr(sys, "modules", {**modules, **({"torch": sys} if torch else {})})
    process = start_recording.ProcessRecording(
        RecorderPlan("profiler-api", "/nowhere", window=True), ProcessRole.MAIN
    )
    then(process)
    process._watch_for_steps()
    return calls, process._window.whole_because


def test_a_program_without_torch_is_recorded_as_soon_as_it_uses_the_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, why = watched(monkeypatch, torch=False)
    assert (calls.names, why) == (["start"], "the program uses the GPU without PyTorch")


@pytest.mark.parametrize(
    ("tool", "after_s", "missed"),
    [
        ("profiler-api", 0.9, True),
        ("profiler-api", 1.1, False),
        ("cupti", 0.1, False),
    ],
)
def test_what_was_over_before_nsys_listened_was_missed(
    tool: str, after_s: float, missed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nsys needs time to begin; a recorder of ours has begun when it is told to."""
    monkeypatch.setattr(cuda_driver, "borrow_context", lambda: None)
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    calls = CallLog()
    whole = window(calls, tool=tool, window=True)
    whole.start_whole("no PyTorch", used_s=now_s)
    now_s += after_s
    assert whole.mostly_missed == missed


def test_a_program_with_nothing_to_count_is_recorded_soon(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls, why = watched(monkeypatch, torch=True)
    assert (calls.names, why) == (["start"], "no steps were found for 0 s")
    assert "everything from here on is recorded" in capsys.readouterr().err


def test_a_program_with_an_optimizer_gets_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    began_s = time.monotonic()
    monkeypatch.setattr(start_recording, "_STALLED_S", 0.3)
    calls, _ = watched(monkeypatch, torch=True, then=lambda process: process._optimizer_made())
    assert calls.names == ["start"]
    assert time.monotonic() - began_s >= 0.3


def test_a_pace_is_stored_when_recording_begins_and_before_it_ends() -> None:
    calls = CallLog()
    pace = '{"version":1,"steps":2,"mean_ns":5,"median_ns":5,"spread":0.0,"how":"second run",'
    pace += '"step_source":"program"}'
    whole = window(calls, pace=pace)
    whole.ready()
    whole.close()
    stored = f"store_pace {pace}"
    assert calls.names == ["start", stored, "opened", stored, "stop", "ended"]


def test_steps_that_cannot_be_timed_are_recorded_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(cuda_driver, "wait_for_gpus", fail)
    calls, hub = CallLog(), StepHub()
    monkeypatch.setattr(recording_window, "HUB", hub)
    hub.listen(window(calls, window=True, warmup=0))
    for _ in range(2):
        hub.end_step(hub.begin_step())
    assert calls.names[:2] == ["start", "opened"]
    assert "steps were not timed: CUDA error" in capsys.readouterr().err
