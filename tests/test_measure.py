"""The runner of the benchmarks has to survive what it runs."""

from __future__ import annotations

import sys

from benchmarks.measure import Failed, Limits, Measured, median_of, run_once

HOLD = "import time; held = bytearray({size}); held[::4096] = b'x' * len(held[::4096]); {then}"
SIZE = 80_000_000


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_time_and_memory_of_a_command() -> None:
    measured = run_once(python(HOLD.format(size=SIZE, then="time.sleep(0.2)")))
    assert isinstance(measured, Measured)
    assert 0.2 < measured.seconds < 5
    # No upper bound: what a process held before it became the command counts too.
    assert measured.peak_bytes > SIZE


def test_memory_of_children_adds_up() -> None:
    hold = HOLD.format(size=SIZE, then="time.sleep(0.6)")
    children = f"import subprocess, sys; c = [sys.executable, '-c', {hold!r}]"
    code = f"{children}; [p.wait() for p in [subprocess.Popen(c), subprocess.Popen(c)]]"
    measured = run_once(python(code))
    assert isinstance(measured, Measured)
    assert measured.peak_bytes > 2 * SIZE


def test_a_command_that_takes_too_much_memory_is_stopped() -> None:
    code = HOLD.format(size=SIZE, then="time.sleep(30)")
    failed = run_once(python(code), limits=Limits(bytes=SIZE // 2))
    assert isinstance(failed, Failed)
    assert "memory" in failed.reason


def test_a_command_that_takes_too_long_is_stopped() -> None:
    failed = run_once(python("import time; time.sleep(30)"), limits=Limits(seconds=0.2))
    assert failed == Failed("stopped: over 0 s")


def test_a_command_that_fails_says_why() -> None:
    failed = run_once(python("raise ValueError('no such trace')"))
    assert failed == Failed("exit code 1: ValueError: no such trace")


def test_a_command_that_is_killed_says_so() -> None:
    failed = run_once(python("import os; os.kill(os.getpid(), 9)"))
    assert failed == Failed("killed by SIGKILL: nothing on stderr")


def test_runs_are_summed_up_by_their_median_time_and_largest_memory() -> None:
    assert median_of([Measured(3, 10), Measured(1, 30), Measured(2, 20)]) == Measured(2, 30)
