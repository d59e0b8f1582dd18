"""The programs with known defects: what the registry has of them, and one that runs on a CPU."""

from __future__ import annotations

import argparse
import ast
import contextlib
import fcntl
import json
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.programs import running
from benchmarks.programs.collect import (
    PACKING_SECONDS,
    PLAIN_STEPS,
    REPEATS,
    REPORT_SECONDS,
    RUN_SLACK,
    START_SECONDS,
    WINDOW_MIN_S,
    Collection,
    _Turn,
    doubt,
    known_step_s,
    measured_ms,
    missing_tasks,
    planned_seconds,
    window_numbers,
    window_steps,
)
from benchmarks.programs.registry import FOUND, GROUPS, PROGRAMS, REPAIRED
from gpusight.recording.inside.environment import RecorderPlan
from gpusight.recording.inside.recording_window import NoRecorder, RecordingWindow
from gpusight.rules.registry import TIMELINE_RULES
from tests.shared import REPOSITORY

if TYPE_CHECKING:
    from benchmarks.programs.registry import Program

FOLDER = REPOSITORY / "benchmarks" / "programs"


def functions(module: str) -> set[str]:
    if module == "native":
        source = (FOLDER / "native.cu").read_text(encoding="utf-8")
        return {f"cuda_{name}" for name in re.findall(r"^Step (\w+)\(bool", source, re.MULTILINE)}
    tree = ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=lambda program: program.name)
def test_every_program_has_its_function_and_names_rules_that_exist(program: Program) -> None:
    assert program.name in functions(program.module)
    assert set(program.expected) <= set(TIMELINE_RULES)
    assert program.variants == ((FOUND, REPAIRED) if program.defect else (FOUND,))
    assert program.defect or not program.expected


def test_the_groups_hold_every_program_once() -> None:
    assert sorted(name for group in GROUPS.values() for name in group) == sorted(PROGRAMS)


def test_there_are_enough_programs_defects_and_healthy_ones() -> None:
    healthy = [program for program in PROGRAMS.values() if program.defect is None]
    assert len(PROGRAMS) >= 42
    assert len({program.expected[0] for program in PROGRAMS.values() if program.expected}) >= 18
    assert len(healthy) >= 8


def test_the_programs_in_cuda_are_all_listed() -> None:
    assert functions("native") == {p.name for p in PROGRAMS.values() if p.library == "cuda"}


def test_the_plan_of_a_lease_is_by_measured_step_times() -> None:
    program = PROGRAMS["token_loop"]
    step_s = known_step_s(program, FOUND)
    assert step_s == measured_ms()["token_loop", FOUND] / 1e3 != program.step_ms / 1e3
    steps_s = (program.warmup + REPEATS * PLAIN_STEPS) * step_s
    assert planned_seconds(program, FOUND, "plain") == pytest.approx(
        START_SECONDS["torch"] + steps_s
    )
    assert planned_seconds(program, FOUND, "nsys") > planned_seconds(program, FOUND, "cupti")


def test_short_steps_are_run_more_often_and_long_ones_less() -> None:
    short, long = PROGRAMS["small_features"], PROGRAMS["changing_lengths"]
    assert window_steps(short) * known_step_s(short, FOUND) > 2 * WINDOW_MIN_S
    assert window_numbers(short, FOUND) == []
    assert window_numbers(long, FOUND) == ["--warmup", "2", "--timed", "3", "--recorded", "3"]
    assert window_steps(long) == 11
    assert planned_seconds(long, FOUND, "torch") < 30
    whole = PROGRAMS["jax_changing_shapes"]
    assert window_numbers(whole, FOUND) == []
    assert window_steps(whole) == whole.steps


def test_a_collection_goes_on_with_what_tells_most_per_second() -> None:
    one, other = PROGRAMS["token_loop"], PROGRAMS["nan_checks"]
    tasks = [
        (program, variant, doing)
        for program in (one, other)
        for variant in (FOUND, REPAIRED)
        for doing in ("plain", "nsys", "torch")
    ]
    both = dict.fromkeys([(p.name, v) for p in (one, other) for v in (FOUND, REPAIRED)], 1.0)
    plain_ms = {key: ms for key, ms in both.items() if key != (other.name, REPAIRED)}

    def row(program: Program, variant: str, tool: str, **more: object) -> dict[str, object]:
        return {"program": program.name, "variant": variant, "tool": tool, **more}

    rows = [
        row(one, FOUND, "nsys", alone={}),
        row(one, FOUND, "torch", right=True),
        row(one, REPAIRED, "nsys", error="no steps"),
        row(other, FOUND, "nsys", alone={}),
        row(other, REPAIRED, "nsys", alone={}),
        row(other, REPAIRED, "torch", alone={}),
    ]
    assert missing_tasks(tasks, rows, plain_ms) == [
        (other, FOUND, "torch"),
        (other, REPAIRED, "plain"),
        (one, FOUND, "torch"),
        (one, REPAIRED, "nsys"),
        (one, REPAIRED, "torch"),
    ]
    done = [row(*task, alone={}, recorded_ms=2.0, pace_ms=None, plain_ms=1.0) for task in tasks]
    assert missing_tasks(tasks, done, both) == []
    timed_again = missing_tasks(tasks, done, both, retimed={(one.name, FOUND)})
    assert timed_again == [(one, FOUND, "plain")]
    as_fast = [known | {"recorded_ms": 1.0} for known in done]
    assert missing_tasks(tasks, as_fast, both, retimed={(one.name, FOUND)}) == []


def test_there_is_most_to_learn_of_what_was_wrong() -> None:
    right = {"right": True, "step_ms": 1.1, "plain_ms": 1.0}
    assert doubt(right) == pytest.approx(0.1)
    assert doubt(right | {"predicted_ms": 3.0, "repaired_ms": 1.0}) == pytest.approx(1.1)
    assert doubt(right | {"right": False}) == pytest.approx(1.1)
    assert doubt(None) == doubt({"error": "no steps"}) == 2


def test_a_run_waits_for_the_gpu_on_no_time_of_its_own(tmp_path: Path) -> None:
    now = time.monotonic()
    collection = Collection(tmp_path, tmp_path, ends_s=now + PACKING_SECONDS + 100)
    turn = _Turn(tmp_path / "taken", planned_s=20)
    assert turn.limit_s == 20 * RUN_SLACK
    assert turn._given_up(collection) is None
    collection.ends_s = now
    assert turn._given_up(collection) == 0  # its turn comes too late
    collection.ends_s = now + 1000
    turn.taken.touch()
    assert turn._given_up(collection) is None
    long_ago = time.time() - turn.limit_s - REPORT_SECONDS - 1
    os.utime(turn.taken, (long_ago, long_ago))
    assert turn._given_up(collection) == 124


def test_what_a_run_leaves_running_is_ended(tmp_path: Path) -> None:
    collection = Collection(tmp_path, tmp_path, ends_s=time.monotonic() + 1000)
    program = "import os, subprocess, sys; subprocess.Popen(['sleep', '60']); sys.exit(3)"
    taken = tmp_path / "taken"
    taken.touch()
    with (tmp_path / "log").open("w") as log:
        turn = _Turn(taken, planned_s=1)
        assert turn.run(collection, [sys.executable, "-c", program], log) == 3
        collection.ends_s = time.monotonic()
        assert turn.run(collection, ["sleep", "60"], log) == 124
        taken.unlink()
        assert turn.run(collection, ["sleep", "60"], log) is None


def test_step_times_are_of_programs_that_are_listed() -> None:
    measured = json.loads((FOLDER / "step_times_h200.json").read_text(encoding="utf-8"))
    for name, variants in measured["programs"].items():
        assert set(variants) <= set(PROGRAMS[name].variants)
        assert all(row.keys() <= {"plain_ms", "run_ms", "date"} for row in variants.values())


def test_about_half_of_the_programs_are_held_out() -> None:
    held_out = sum(program.held_out for program in PROGRAMS.values())
    assert 0.35 < held_out / len(PROGRAMS) < 0.65


@pytest.mark.parametrize("source", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_no_program_marks_its_steps(source: Path) -> None:
    text = source.read_text(encoding="utf-8")
    assert "nvtx" not in text
    assert "record_function" not in text


def test_a_program_prints_its_step_time_for_each_repeat(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "PAUSE_S", 0)
    times = tmp_path / "times.json"
    args = argparse.Namespace(variant=FOUND, device="cpu", steps=2, times=times, repeats=2)
    running.run(PROGRAMS["small_features"], args)
    assert capsys.readouterr().out.count("step time: ") == 2
    assert [len(timed["step_ms"]) for timed in json.loads(times.read_text())] == [2, 2]


class _Slow(NoRecorder):
    """Notes whether the GPU is free when its stop, which takes seconds with nsys, begins."""

    def __init__(self, lock: Path) -> None:
        self.lock, self.was_free = lock, False

    def stop(self) -> None:
        with self.lock.open("w") as other, contextlib.suppress(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.was_free = True


def test_the_gpu_is_free_when_the_window_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecordingWindow, "stop", RecordingWindow.stop)  # put back afterwards
    monkeypatch.setenv(running.GPU_LOCK, str(tmp_path / "lock"))
    monkeypatch.setenv(running.GPU_TAKEN, str(tmp_path / "taken"))
    recorder = _Slow(tmp_path / "lock")
    plan = RecorderPlan("none", "", window=True, warmup=1, timed=1, recorded=2)
    window = RecordingWindow(
        plan, recorder, opened=lambda: None, ended=lambda: None, allowed=lambda: True
    )
    lock = running.take_gpu()
    assert lock is not None
    assert (tmp_path / "taken").exists()
    over = running.end_when_recorded(lock)
    for number in range(10):
        window.step_began(number)
        window.step_ended(number)
        if over.is_set():
            break
    os.close(lock)
    assert number == 4  # one to warm up, one timed, one in which the recorder gets warm, two
    assert recorder.was_free


def test_a_program_ends_with_its_window(capsys: pytest.CaptureFixture[str]) -> None:
    args = argparse.Namespace(variant=FOUND, device="cpu", steps=50, times=None, repeats=1)
    over = threading.Event()
    over.set()
    running.run(PROGRAMS["small_features"], args, until=over)
    assert "(mean of 1 steps)" in capsys.readouterr().out
