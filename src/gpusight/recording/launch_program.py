"""Runs a command as the shell would: in the foreground, with its signals and its exit code."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from gpusight.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType


_PASSED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGQUIT")
_FROM_KEYBOARD = ("SIGINT", "SIGQUIT")
"""A terminal sends these to every process in its foreground: to the child too, then."""
_USER_SIGNALS = ("SIGUSR1", "SIGUSR2")
"""These mean what a program makes of them; all others are to end it."""
SIGNALLED = 128
"""A program that signal N ended has this exit code plus N, as in a shell."""
_TERMINATION_S = 10.0
"""How long a program may take to end after SIGTERM."""
_PROC = Path("/proc")
_SET_ADOPTING, _GET_ADOPTING = 36, 37
"""What Linux calls PR_SET_CHILD_SUBREAPER and PR_GET_CHILD_SUBREAPER."""


@dataclass(frozen=True)
class ProgramExit:
    """How a program ended."""

    code: int
    seconds: float
    signalled: bool = False
    """A signal that reached us, and was passed on to it, was to end it."""


def run_program(
    argv: Sequence[str],
    environ: Mapping[str, str],
    program: Sequence[str],
    *,
    may_outlive: bool = False,
    limit_s: float | None = None,
) -> ProgramExit:
    """Run a command to its end; `program` is the part of it that signals are meant for.

    `may_outlive`: the profiler around the program may end before it does, as nsys does when its
    time is up. Where the system lets us adopt the program, its end is waited for all the same.
    `limit_s`: it is ended after that time.
    """
    start_s = time.monotonic()
    below = () if list(argv) == list(program) else tuple(program)
    signals = _SignalForwarding(below)
    with signals.listening(), _adopting(may_outlive):
        try:
            # The user's own program.
            child = subprocess.Popen(list(argv), env=dict(environ))  # noqa: S603
        except OSError as error:
            raise _cannot_run(argv[0], error) from error
        with child:
            signals.start(child)
            code = child.wait() if limit_s is None else _wait_at_most(child, limit_s)
        if may_outlive and below:
            signals.root = os.getpid()
            code = _adopted_code(below, code)
    exit_code = SIGNALLED - code if code < 0 else code
    return ProgramExit(exit_code, time.monotonic() - start_s, signals.signalled)


def _wait_at_most(child: subprocess.Popen[bytes], limit_s: float) -> int:
    """Wait for a child; terminate it when its time is up, and kill it if that does not help."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return child.wait(limit_s)
    child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        return child.wait(_TERMINATION_S)
    child.kill()
    return child.wait()


def exec_program(argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Turn this process into the program; does not come back."""
    sys.stdout.flush()
    sys.stderr.flush()
    if sys.platform == "win32":  # there, exec leaves the caller's caller without its child
        raise SystemExit(run_program(argv, environ, argv).code)
    # Python ignores these, and what it turns into would too: `program | head` would not end.
    ignored = {n: signal.signal(n, signal.SIG_DFL) for n in (signal.SIGPIPE, signal.SIGXFSZ)}
    try:
        os.execvpe(argv[0], list(argv), dict(environ))  # noqa: S606 - no shell is meant
    except OSError as error:
        for number, handler in ignored.items():
            signal.signal(number, handler)
        raise _cannot_run(argv[0], error) from error


def _cannot_run(word: str, error: OSError) -> RecordError:
    return RecordError(f"cannot run {word}", why=error.strerror or str(error))


@contextlib.contextmanager
def _adopting(wanted: bool) -> Iterator[None]:
    """Have processes below us become our children when theirs end; on Linux only."""
    libc = ctypes.CDLL(None) if wanted and sys.platform == "linux" else None
    if libc is None:
        yield
        return
    before = ctypes.c_int(0)
    libc.prctl(_GET_ADOPTING, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_SET_ADOPTING, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_SET_ADOPTING, before.value, 0, 0, 0)


def _adopted_code(program: Sequence[str], code: int) -> int:
    """Wait for a program that outlived its profiler; returns its code, else `code`."""
    pid = find_program(os.getpid(), program)
    parents = _parents()
    while pid is not None and parents.get(pid) != os.getpid():
        pid = parents.get(pid)
    if pid is None:
        return code
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


class _SignalForwarding:
    """Passes signals on to the program while the child runs."""

    def __init__(self, program: Sequence[str]) -> None:
        self._program = tuple(program)
        """What runs below the child; empty where the child itself is the program."""
        self.root: int | None = None
        """Below which process the program is."""
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self.signalled = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals meanwhile, except those that are ignored (`nohup`)."""
        handlers = {}
        if threading.current_thread() is threading.main_thread():
            known = (getattr(signal, name, None) for name in _PASSED_ON)
            for number in filter(None, known):
                if signal.getsignal(number) != signal.SIG_IGN:
                    handlers[number] = signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def start(self, child: subprocess.Popen[bytes]) -> None:
        """Send what came before there was anybody to send it to."""
        self._child, self.root = child, child.pid
        for number in self._early:
            self._send(number)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.signalled |= signal.Signals(number).name not in _USER_SIGNALS
        if self._child is None:
            self._early.append(number)
        elif not (signal.Signals(number).name in _FROM_KEYBOARD and _in_foreground()):
            self._send(number)

    def _send(self, number: int) -> None:
        assert self._child is not None
        assert self.root is not None
        below = find_program(self.root, self._program) if self._program else None
        if below is None:
            self._child.send_signal(number)
        else:
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.kill(below, number)


def _in_foreground() -> bool:
    """Return whether this process is in the foreground of a terminal."""
    if sys.platform == "win32":
        return True
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def find_program(root: int, program: Sequence[str]) -> int | None:
    """Find the process below `root` that runs this command line; None without one, or /proc."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    queue = deque(children.get(root, ()))
    while queue:
        pid = queue.popleft()
        with contextlib.suppress(OSError):  # it ended just now
            command_line = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")[:-1]
            if _runs([os.fsdecode(word) for word in command_line], program):
                return pid
        queue.extend(children.get(pid, ()))
    return None


def _parents() -> dict[int, int]:
    """Return the parent of each process of this machine."""
    parents = {}
    for entry in _PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it ended just now
            # The name is in brackets and may hold any character, brackets too.
            parent = entry.read_text(errors="replace").rpartition(")")[2].split()[1]
            parents[int(entry.parent.name)] = int(parent)
    return parents


def _runs(words: Sequence[str], program: Sequence[str]) -> bool:
    """Return whether a process runs the program.

    A script's own command line has its interpreter in front; one that `env` or the like became
    lacks the wrapper's words.
    """
    size = min(len(words), len(program))
    if size == 0:
        return False
    ours, theirs = list(program[-size:]), list(words[-size:])
    return ours[1:] == theirs[1:] and Path(ours[0]).name == Path(theirs[0]).name
