"""Run a command as a process of its own and say how long it took and how much memory it had.

Memory is the peak of all processes of the command together: the kernel's own figure for the largest
of them, or the sum over all of them as sampled every 20 ms, whichever is more. What processes share
by copying on write counts more than once in the sum.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

SAMPLE_SECONDS = 0.02
PAGE = os.sysconf("SC_PAGE_SIZE")
MACHINE_BYTES = os.sysconf("SC_PHYS_PAGES") * PAGE


@dataclass(frozen=True)
class Limits:
    """When to stop a command: before it takes the machine down with it."""

    seconds: float = 3600
    bytes: int = MACHINE_BYTES * 85 // 100


@dataclass(frozen=True)
class Measured:
    """What one command took."""

    seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class Failed:
    """Why a command has no time."""

    reason: str


def median_of(taken: list[Measured]) -> Measured:
    """Sum up several runs: the median time and the largest memory."""
    return Measured(statistics.median(m.seconds for m in taken), max(m.peak_bytes for m in taken))


def run_once(
    command: list[str], *, environment: dict[str, str] | None = None, limits: Limits | None = None
) -> Measured | Failed:
    """Run a command once."""
    with tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=environment,
            start_new_session=True,
        )
        watch = Watch(process.pid, limits or Limits())
        watch.start()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        watch.finish()
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        message = errors.read().decode(errors="replace").strip()
    if watch.stopped_for:
        return Failed(watch.stopped_for)
    if process.returncode:
        return Failed(_failure(process.returncode, message))
    return Measured(seconds, max(usage.ru_maxrss * 1024, watch.peak_bytes))


def _failure(code: int, message: str) -> str:
    last = message.splitlines()[-1] if message else "nothing on stderr"
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"{how}: {last}"


@dataclass
class Watch:
    """A thread that samples the memory of a process and its children, and enforces limits."""

    pid: int
    limits: Limits
    peak_bytes: int = 0
    stopped_for: str = ""
    _done: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Begin to watch."""
        self._started = time.perf_counter()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Stop watching; the process has ended."""
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            now = memory_of_tree(self.pid)
            self.peak_bytes = max(self.peak_bytes, now)
            if now > self.limits.bytes:
                self._stop(f"stopped: over {self.limits.bytes / 1e9:.0f} GB of memory")
            elif time.perf_counter() - self._started > self.limits.seconds:
                self._stop(f"stopped: over {self.limits.seconds:.0f} s")

    def _stop(self, reason: str) -> None:
        self.stopped_for = reason
        # The group was made for this command, by start_new_session.
        if not self._done.is_set():
            os.killpg(self.pid, signal.SIGKILL)
        self._done.set()


def memory_of_tree(pid: int) -> int:
    """Add up the memory of a process and its descendants; what they map in common counts once."""
    tree = [pid]
    for process in tree:
        tree += _children(process)
    sizes = [_memory(process) for process in tree]
    return sum(own for own, _ in sizes) + max(shared for _, shared in sizes)


def _children(pid: int) -> list[int]:
    """List the children of a process; none when it has just ended."""
    tasks = Path(f"/proc/{pid}/task")
    try:
        texts = [(task / "children").read_text() for task in tasks.iterdir()]
    except OSError:
        return []
    return [int(child) for text in texts for child in text.split()]


def _memory(pid: int) -> tuple[int, int]:
    """Give the bytes of a process that are its own and those of files and shared memory."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return 0, 0
    return (int(resident) - int(shared)) * PAGE, int(shared) * PAGE
