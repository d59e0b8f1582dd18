"""Programs run as a shell would run them: signals, exit codes, standard streams."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from gpusight.errors import RecordError
from gpusight.recording import launch_program

SOURCE = Path(launch_program.__file__).parents[2]
posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
WAITS_S = 20.0


def test_exit_codes() -> None:
    for code in (0, 3):
        argv = [sys.executable, "-c", f"raise SystemExit({code})"]
        ended = launch_program.run_program(argv, os.environ, argv)
        assert ended.code == code
        assert 0 < ended.seconds < 60


@posix
def test_a_program_that_a_signal_ends() -> None:
    argv = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    assert launch_program.run_program(argv, os.environ, argv).code == 128 + 9


def test_a_program_that_cannot_be_run(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot run"):
        launch_program.run_program([str(tmp_path / "nothing")], os.environ, ["nothing"])


def test_the_environment_is_what_was_given() -> None:
    code = "import os; raise SystemExit(os.environ['HIDDEN'] != 'x' or 'PATH' in os.environ)"
    argv = [sys.executable, "-c", code]
    assert launch_program.run_program(argv, {"HIDDEN": "x"}, argv).code == 0


def started(
    tmp_path: Path, tool: list[str], program: list[str], *, before: str = ""
) -> subprocess.Popen[str]:
    """Run `tool program` through `run_program` in a process group of its own; wait for `ready`."""
    script = tmp_path / "runner.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os, signal, sys
            sys.path.insert(0, {str(SOURCE)!r})
            {before}
            from gpusight.recording import launch_program
            ended = launch_program.run_program({[*tool, *program]!r}, os.environ, {program!r})
            raise SystemExit(ended.code)
            """
        )
    )
    running = subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    return running


def ended(running: subprocess.Popen[str]) -> tuple[int, str]:
    out, _ = running.communicate(timeout=WAITS_S)
    return running.returncode, out


def program(tmp_path: Path, body: str) -> list[str]:
    script = tmp_path / "program.py"
    script.write_text(
        "import os, signal, sys, time\n" + textwrap.dedent(body) + "\ntime.sleep(30)\n"
    )
    return [sys.executable, str(script), "one"]


TOLD = """
def told(number, frame):
    os.write(1, f"told {signal.Signals(number).name}\\n".encode())  # print may be under way
    sys.exit(7)
for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGQUIT"):
    signal.signal(getattr(signal, name), told)
print("ready", flush=True)
"""


@posix
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGQUIT"])
def test_signals_reach_the_program(name: str, tmp_path: Path) -> None:
    running = started(tmp_path, [], program(tmp_path, TOLD))
    running.send_signal(getattr(signal, name))
    assert ended(running) == (7, f"told {name}\n")


TOOL = """
import signal, subprocess, sys
def told(number, frame):
    print("the tool was hit", flush=True)
    sys.exit(99)
for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGINT"):
    signal.signal(getattr(signal, name), told)
# Like nsys: the program is a grandchild, in a session of its own.
between = "import os, sys; os.setsid(); os.execvp(sys.argv[1], sys.argv[1:])"
code = subprocess.call([sys.executable, "-c", between, *sys.argv[1:]])
print("report written", flush=True)
sys.exit(code)
"""


@posix
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGHUP", "SIGINT"])
def test_signals_pass_by_the_profiler(name: str, tmp_path: Path) -> None:
    tool = tmp_path / "tool.py"
    tool.write_text(TOOL)
    running = started(tmp_path, [sys.executable, str(tool)], program(tmp_path, TOLD))
    running.send_signal(getattr(signal, name))
    assert ended(running) == (7, f"told {name}\nreport written\n")


@posix
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
def test_a_forked_worker_is_not_taken_for_the_program(tmp_path: Path) -> None:
    body = """
    if os.fork() == 0:
        time.sleep(30)
    signal.signal(signal.SIGUSR1, lambda *_: (os.write(1, b"parent\\n"), os.killpg(0, 9)))
    print("ready", flush=True)
    """
    running = started(tmp_path, [], program(tmp_path, body))
    running.send_signal(signal.SIGUSR1)
    code, out = ended(running)
    assert (code, out) == (-9, "parent\n")


LEAVES = """
import subprocess, sys
between = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
subprocess.Popen([sys.executable, "-c", between, *sys.argv[1:]])
print("tool ends", flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets us adopt processes")
def test_a_program_that_outlives_its_profiler(tmp_path: Path) -> None:
    tool = tmp_path / "tool.py"
    tool.write_text(LEAVES)
    argv = program(tmp_path, "time.sleep(1); sys.exit(9)")
    whole = [sys.executable, str(tool), *argv]
    assert launch_program.run_program(whole, os.environ, argv, may_outlive=True).code == 9
    assert (
        launch_program.run_program(
            [sys.executable, "-c", "raise SystemExit(2)", *argv], os.environ, argv, may_outlive=True
        ).code
        == 2
    )


@posix
def test_what_is_ignored_stays_ignored(tmp_path: Path) -> None:
    body = """
    print("ready", flush=True)
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    time.sleep(1)
    sys.exit(10 + ignored)
    """
    nohup = "signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    running = started(tmp_path, [], program(tmp_path, body), before=nohup)
    running.send_signal(signal.SIGHUP)
    assert ended(running)[0] == 11


@posix
def test_a_program_that_survives_its_signal_goes_on(tmp_path: Path) -> None:
    body = """
    signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"checkpoint\\n"))
    print("ready", flush=True)
    time.sleep(1)
    sys.exit(4)
    """
    running = started(tmp_path, [], program(tmp_path, body))
    running.send_signal(signal.SIGUSR1)
    assert ended(running) == (4, "checkpoint\n")


@posix
def test_keys_of_a_terminal_reach_the_program_once(tmp_path: Path) -> None:
    import pty

    body = """
    hits = []
    signal.signal(signal.SIGINT, lambda *_: hits.append(1))
    print("ready", flush=True)
    while not hits: time.sleep(0.05)
    time.sleep(0.5)
    print("hits", len(hits), flush=True)
    sys.exit(5)
    """
    argv = program(tmp_path, body)
    code = (
        f"import os, sys; sys.path.insert(0, {str(SOURCE)!r}); from "
        "gpusight.recording import launch_program;"
        f"raise SystemExit(launch_program.run_program({argv!r}, os.environ, {argv!r}).code)"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", code])
    out = b""
    deadline = time.monotonic() + WAITS_S
    while time.monotonic() < deadline:
        try:
            out += os.read(terminal, 1000)
        except OSError:  # the other end was closed
            break
        if b"ready" in out and b"^C" not in out:
            os.write(terminal, b"\x03")
            time.sleep(0.1)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert b"hits 1" in out
    assert os.waitstatus_to_exitcode(status) == 5


@posix
def test_standard_input_passes_through(tmp_path: Path) -> None:
    body = """
    print("ready", flush=True)
    print(sys.stdin.readline().upper(), end="", flush=True)
    sys.exit(0)
    """
    running = started(tmp_path, [], program(tmp_path, body))
    out, _ = running.communicate("typed\n", timeout=WAITS_S)
    assert out == "TYPED\n"


@posix
def test_handlers_are_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    argv = [sys.executable, "-c", "pass"]
    launch_program.run_program(argv, os.environ, argv)
    assert signal.getsignal(signal.SIGTERM) is before


def test_another_thread_may_run_a_program_too() -> None:
    import threading

    argv = [sys.executable, "-c", "raise SystemExit(6)"]
    codes: list[int] = []
    thread = threading.Thread(
        target=lambda: codes.append(launch_program.run_program(argv, os.environ, argv).code)
    )
    thread.start()
    thread.join()
    assert codes == [6]


@posix
def test_becoming_the_program(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import os; print(os.getpid(), os.environ['X'])"]
    code = (
        f"import os, sys; sys.path.insert(0, {str(SOURCE)!r}); from "
        "gpusight.recording import launch_program;"
        f"print(os.getpid()); launch_program.exec_program({argv!r}, {{**os.environ, 'X': 'set'}})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert second == f"{first} set"
    with pytest.raises(RecordError, match="cannot run"):
        launch_program.exec_program([str(tmp_path / "nothing")], os.environ)
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_what_we_become_ignores_no_signals() -> None:
    argv = ["grep", "SigIgn", "/proc/self/status"]
    code = (
        f"import os, sys; sys.path.insert(0, {str(SOURCE)!r}); from "
        "gpusight.recording import launch_program;"
        f"launch_program.exec_program({argv!r}, os.environ)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[1], 16) & (1 << signal.SIGPIPE - 1) == 0
