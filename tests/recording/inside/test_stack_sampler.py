"""Python stacks are sampled inside a program, whatever the program does."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gpusight.recording.inside import stack_sampler
from gpusight.recording.inside.stack_sampler import (
    CLOCK,
    END,
    FRAMES,
    MAGIC,
    NODES,
    PROCESS,
    RATE,
    RESET,
    SAMPLE,
    SAMPLES,
    THREAD,
    StackSampler,
    StackTable,
    SwitchInterval,
    chunk,
    json_chunk,
    processes,
)

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="programs fork")
SOURCE = Path(stack_sampler.__file__)
BEGIN = f"""
import importlib.util, os, sys, time, threading
spec = importlib.util.spec_from_file_location("sampler", {str(SOURCE)!r})
sampler = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sampler)
def busy(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
stacks = sampler.StackSampler("run", "s", 200, log=lambda text: print(text, file=sys.stderr))
"""


def sampled(folder: Path, code: str) -> list[list[tuple[bytes, bytes]]]:
    """Run a program that samples itself; returns the chunks of each of its processes."""
    words = [sys.executable, "-W", "error", "-c", BEGIN + code]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    found = []
    for path in sorted(folder.glob("run.stacks-s-*.part")):
        found += [chunks for chunks, _ in processes(path.read_bytes())]
    return found


def about(chunks: list[tuple[bytes, bytes]], kind: bytes) -> list[Any]:
    return [json.loads(body) for key, body in chunks if key == kind]


def functions(chunks: list[tuple[bytes, bytes]]) -> Counter[str]:
    """Count the innermost function of each sample."""
    frames: list[list[Any]] = []
    nodes: list[tuple[int, int]] = []
    seen: Counter[str] = Counter()
    for kind, body in chunks:
        if kind == FRAMES:
            frames += json.loads(body)
        elif kind == NODES:
            numbers = [int.from_bytes(body[i : i + 4], "little") for i in range(0, len(body), 4)]
            nodes += list(zip(numbers[::2], numbers[1::2], strict=True))
        elif kind == SAMPLES:
            for *_, node in SAMPLE.iter_unpack(body[8:]):
                seen[frames[nodes[node][1]][1].rpartition(".")[2]] += 1
    return seen


def test_the_sampler_needs_only_what_python_3_8_has() -> None:
    tree = ast.parse(SOURCE.read_text(), feature_version=(3, 8))
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= sys.stdlib_module_names


def test_a_busy_function_is_seen_and_clocks_are_compared(tmp_path: Path) -> None:
    (chunks,) = sampled(tmp_path, "stacks.start(); busy(0.8); stacks.stop()")
    seen = functions(chunks)
    assert seen["busy"] > 5
    assert seen["busy"] > 0.9 * seen.total()
    (process,), (end,) = about(chunks, PROCESS), about(chunks, END)
    assert (process["session"], process["hz"], process["is_fork"]) == ("s", 200, False)
    assert end["samples"] == seen.total()
    clocks = about(chunks, CLOCK)
    assert len(clocks) >= 2
    assert all(0 <= c["after"] - c["before"] < 50_000_000 for c in clocks)
    assert {abs(c["value"] - time.time_ns()) < 60 * 10**9 for c in clocks} == {True}
    assert about(chunks, THREAD)[0]["native"] == process["pid"]


def test_a_function_between_waits_is_seen_too(tmp_path: Path) -> None:
    """Python hands over the GIL after 5 ms only: waits alone would be seen."""
    code = "stacks.start()\nfor _ in range(150): busy(0.004); time.sleep(0.002)\nstacks.stop()"
    (chunks,) = sampled(tmp_path, code)
    seen = functions(chunks)
    assert seen["busy"] > 0.1 * seen.total()


def test_forks_are_sampled_while_their_parent_is(tmp_path: Path) -> None:
    code = """
early = os.fork()
if early == 0:
    busy(60)  # until its parent ends it
    os._exit(0)
time.sleep(0.1)
stacks.start()
late = os.fork()
if late == 0:
    busy(1)
    os._exit(0)  # nothing runs at exit
busy(1.2)
os.waitpid(late, 0)
stacks.stop()
time.sleep(0.3)
os.kill(early, 9)
os.waitpid(early, 0)
"""
    found = sampled(tmp_path, code)
    own = [about(chunks, PROCESS)[0] for chunks in found]
    assert sorted(process["is_fork"] for process in own) == [False, True, True]
    for chunks in found:
        assert functions(chunks)["busy"] > 1
    ended = [bool(about(chunks, END)) for chunks in found]
    assert ended.count(False) == 1  # that of os._exit; the other fork saw that its parent stopped


def test_a_fork_may_record_on_its_own(tmp_path: Path) -> None:
    code = """
if os.fork() == 0:
    stacks.start(); busy(0.5); stacks.stop()
    os._exit(0)
os.wait()
"""
    (chunks,) = sampled(tmp_path, code)
    assert functions(chunks)["busy"] > 1
    assert not about(chunks, PROCESS)[0]["is_fork"]


def test_nothing_is_left_of_short_children_and_exec(tmp_path: Path) -> None:
    code = """
stacks.start()
for _ in range(3):
    if os.fork() == 0:
        os._exit(0)
    os.wait()
busy(0.6)
os.execv(sys.executable, [sys.executable, "-c", "pass"])
"""
    (chunks,) = sampled(tmp_path, code)
    assert functions(chunks)["busy"] > 1


def test_a_sample_that_the_gil_delays_says_so(tmp_path: Path) -> None:
    code = """
import ctypes
held = ctypes.PyDLL(None)
stacks.start()
for _ in range(4): held.usleep(150_000)
busy(0.05)
stacks.stop()
"""
    (chunks,) = sampled(tmp_path, code)
    late_us = [
        row[1] for kind, body in chunks if kind == SAMPLES for row in SAMPLE.iter_unpack(body[8:])
    ]
    assert max(late_us) > 100_000
    assert about(chunks, END)[0]["late"] >= 2


def test_a_call_that_kept_the_gil_is_not_blamed_on_a_signal_handler(tmp_path: Path) -> None:
    """Python runs handlers before it gives the GIL away, and would be seen in them only."""
    code = """
import signal
def handler(*_):
    pass
def holder():
    for _ in range(40):
        sum(range(1_000_000))
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.004, 0.004)
stacks.start()
holder()
stacks.stop()
signal.setitimer(signal.ITIMER_REAL, 0)
"""
    (chunks,) = sampled(tmp_path, code)
    seen = functions(chunks)
    assert seen["holder"] >= 2
    assert seen["handler"] < seen["holder"]


def test_threads_that_launch_are_sampled_and_all_on_request(tmp_path: Path) -> None:
    code = """
def other():
    busy(1)
if {all}: stacks = sampler.StackSampler("run", "s", 200, "all")
stacks.start()
threads = [threading.Thread(target=other, name="worker") for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
stacks.stop()
"""
    (chunks,) = sampled(tmp_path, code.replace("{all}", "False"))
    assert "busy" not in functions(chunks)
    names = {thread["name"] for thread in about(chunks, THREAD)}
    assert names == {"MainThread"}
    (tmp_path / "all").mkdir()
    (chunks,) = sampled(tmp_path / "all", code.replace("{all}", "True"))
    assert functions(chunks)["busy"] > 1
    assert {thread["name"] for thread in about(chunks, THREAD)} == {"MainThread", "worker"}


def test_the_switch_interval_is_given_back(tmp_path: Path) -> None:
    own = sys.getswitchinterval()
    stacks = StackSampler(str(tmp_path / "run"), "s", 200)
    stacks.start()
    deadline = time.monotonic() + 10
    while sys.getswitchinterval() == own and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sys.getswitchinterval() < own
    stacks.stop()
    assert sys.getswitchinterval() == own


def test_threads_that_share_the_gil_keep_their_interval() -> None:
    own = sys.getswitchinterval()
    interval = SwitchInterval()
    other = threading.Event()
    thread = threading.Thread(target=other.wait)
    thread.start()
    try:
        frames = sys._current_frames()
        interval.look(frames, -1)
        interval.look(frames, -1)
        assert sys.getswitchinterval() < own
        interval.give_back()
        moved = dict.fromkeys(frames, sys._getframe())
        interval.look(moved, -1)
        assert sys.getswitchinterval() == own
    finally:
        interval.give_back()
        other.set()
        thread.join()


def test_the_rate_falls_where_sampling_costs_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_sampler, "_TARGET_COST", 1e-6)
    stacks = StackSampler(str(tmp_path / "run"), "s", 200)
    stacks.start()
    deadline = time.monotonic() + 20
    while stacks._lowest_hz == 200 and time.monotonic() < deadline:
        time.sleep(0.05)
    stacks.stop()
    assert stacks.path is not None
    ((chunks, is_whole),) = processes(Path(stacks.path).read_bytes())
    assert is_whole
    rates = [rate["hz"] for rate in about(chunks, RATE)]
    assert rates
    assert rates[0] < 200


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_sampler, "_MAX_NODES", 5)
    stacks = StackSampler(str(tmp_path / "run"), "s", 500)
    stacks.start()
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        sum(range(1000))
    stacks.stop()
    assert stacks.path is not None
    ((chunks, _),) = processes(Path(stacks.path).read_bytes())
    assert (RESET, b"") in chunks


def test_stacks_are_told_apart_and_cut_where_they_are_deep() -> None:
    table = StackTable()

    def deeper(depth: int) -> tuple[int, list[int]]:
        return table.node(sys._getframe()) if depth == 0 else deeper(depth - 1)

    (first, numbers), (again, _), (other, _) = (deeper(depth) for depth in (3, 3, 4))
    assert first == again != other
    assert len(deeper(200)[1]) == stack_sampler.MAX_DEPTH
    assert len(numbers) < stack_sampler.MAX_DEPTH
    assert stack_sampler.CUT_OFF in table.new_nodes


def test_a_frame_that_compiles_a_function_names_it() -> None:
    """torch.compile has the code of the function in a variable; its own frames do not name it."""
    seen: list[Any] = []
    source = "def _compile(code, look):\n    look()\n"
    made: dict[str, Any] = {"__name__": "torch._dynamo.convert_frame"}
    exec(compile(source, "/x/torch/_dynamo/convert_frame.py", "exec"), made)
    table = StackTable()

    def look() -> None:
        seen.append(table.node(sys._getframe(1)))

    first, second = busy_one.__code__, busy_two.__code__
    for code in (first, second, first, None):
        made["_compile"](code, look)
    names = [frame for frame in table.new_frames if frame[0].endswith("convert_frame.py")]
    here = Path(__file__).name
    assert [name for _, name, _, _ in names] == [
        "_compile",
        f"_compile busy_one ({here}:{first.co_firstlineno})",
        f"_compile busy_two ({here}:{second.co_firstlineno})",
    ]
    assert seen[0] == seen[2]
    assert len({node for node, _ in seen}) == 3


def busy_one() -> None:
    """Stand for a function that is compiled."""


def busy_two() -> None:
    """Stand for another one."""


def test_what_is_damaged_ends_with_its_process() -> None:
    whole = MAGIC + json_chunk(PROCESS, {"pid": 1}) + chunk(SAMPLES, bytes(24))
    other = MAGIC + json_chunk(PROCESS, {"pid": 2})
    assert [len(found) for found, _ in processes(whole + other)] == [2, 1]
    for damaged in (whole[:-1], whole[:-3] + b"abc", whole + b"zzz"):
        read = list(processes(damaged + other))
        assert [is_whole for _, is_whole in read] == [False, True]
        assert read[1][0] == [(PROCESS, b'{"pid":2}')]
    assert list(processes(b"")) == []


def test_a_full_disk_ends_sampling_and_not_the_program(tmp_path: Path) -> None:
    messages: list[str] = []
    stacks = StackSampler(str(tmp_path / "missing" / "run"), "s", 200, log=messages.append)
    stacks.start()
    deadline = time.monotonic() + 10
    while not messages and time.monotonic() < deadline:
        time.sleep(0.05)
    stacks.stop()
    assert len(messages) == 1
    assert "sampling stacks ended" in messages[0]
