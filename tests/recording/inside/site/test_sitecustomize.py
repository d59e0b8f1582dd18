"""A program does the same whether its stacks are sampled or not, however it ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpusight.recording.inside.environment import SURROUNDED, VARIABLE, RecorderPlan
from gpusight.recording.inside.stack_sampler import PROCESS, SESSION_VARIABLE, processes
from gpusight.recording.plan_recording import SITE

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="programs fork")
INSTALLED = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"))
PYTHONS = [
    pytest.param(sys.executable, id="own"),
    *(
        pytest.param(str(path), id=path.parts[-3], marks=pytest.mark.wide)
        for path in INSTALLED
        if re.search(r"/3\.(8|9|10|12|13|14)\.", str(path))
    ),
]
BUSY = """
import os, signal, sys, threading, time
def busy(seconds=0.4):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(100))
"""
PROGRAMS = {
    "threads": """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(3) as pool:
    list(pool.map(busy, [0.3] * 3))
print(threading.active_count(), [t.name for t in threading.enumerate()])
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
busy(0.1)
""",
    "forks": """
for k in range(20):
    child = os.fork()
    if child == 0:
        busy(0.02)
        os._exit(k)
    print(os.waitpid(child, 0)[1])
    busy(0.02)
child = os.fork()
busy()
if child == 0:
    sys.exit("the child ends")
print(os.waitpid(child, 0)[1])
""",
    "forks that start at once": """
for _ in range(3):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(4)
        print("inner", os.wait()[1], flush=True)
        os._exit(5)
    print("outer", os.wait()[1], flush=True)
busy()
""",
    "workers of multiprocessing": """
import multiprocessing
def square(number):
    busy(0.05)
    return number * number
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, pool.map(square, range(6)))
""",
    "signals": """
seen = []
signal.signal(signal.SIGALRM, lambda *_: seen.append(threading.current_thread().name))
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
while len(seen) < 12:
    time.sleep(0.05)
signal.setitimer(signal.ITIMER_REAL, 0)
print(set(seen))
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
os.kill(os.getpid(), signal.SIGUSR1)
print(signal.sigwait({signal.SIGUSR1}))
""",
    "killed": "busy(); os.kill(os.getpid(), signal.SIGTERM); busy()",
    "killed at once": "busy(); os.kill(os.getpid(), signal.SIGKILL); busy()",
    "interrupted": "busy(); os.kill(os.getpid(), signal.SIGINT); busy()",
    "an exception": "busy(); raise SystemError('this is the end')",
    "a crash": "import ctypes; busy(); ctypes.string_at(0)",
    "aborted": "busy(); os.abort()",
    "os._exit": "busy(); print('no more', flush=True); os._exit(7)",
    "exec": """
busy()
if len(sys.argv) == 1:
    os.execv(sys.executable, [sys.executable, *([] if __file__ is None else [__file__]), "again"])
print("again")
""",
    "subprocesses": """
import subprocess
print(subprocess.run(["cat"], input="text", stdout=subprocess.PIPE, universal_newlines=True))
print(subprocess.run([sys.executable, "-c", "import sys; sys.exit(3)"]).returncode)
print(subprocess.run(["true"], preexec_fn=os.setsid).returncode)
busy()
""",
    "files of a daemon": """
busy()
os.closerange(3, 64)
own = [open("own.%d" % k, "w") for k in range(5)]
busy(0.8)
print([os.path.getsize(file.name) for file in own])
for file in own:
    file.close()
""",
    "no room on the disk": """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
busy(0.8)
""",
    "asyncio": """
import asyncio
async def main():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, lambda: print("signal"))
    os.kill(os.getpid(), signal.SIGUSR1)
    process = await asyncio.create_subprocess_exec("true")
    print(await process.wait(), await loop.run_in_executor(None, sum, range(9)))
    await asyncio.sleep(0.4)
asyncio.run(main())
""",
    "a closed output": "busy(); sys.stdout.close(); busy()",
}
SAYS_SO = "no room on the disk"
ENDS_BY_ITSELF = {"threads", "forks", "signals", "asyncio", "files of a daemon", "an exception"}
"""The others may be gone before the first samples are written."""


def ran(folder: Path, python: str, program: str, *, sampled: bool) -> tuple[int, str, str]:
    """Run a program from a file of its own, with every warning an error."""
    script = folder / "program.py"
    script.write_text(BUSY + PROGRAMS[program])
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", VARIABLE)}
    if sampled:
        plan = RecorderPlan(SURROUNDED, str(folder / "run"), stacks_hz=200.0)
        search = os.pathsep.join(map(str, (SITE, SITE.parents[3])))  # not an installed gpusight
        environ.update({VARIABLE: plan.to_text(), SESSION_VARIABLE: "s", "PYTHONPATH": search})
    words = [python, "-W", "error", str(script)]
    done = subprocess.run(
        words, cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, re.sub(r"0x[0-9a-f]+", "0x", done.stderr)


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_does_the_same(program: str, python: str, tmp_path: Path) -> None:
    plain = ran(tmp_path, python, program, sampled=False)
    code, output, errors = ran(tmp_path, python, program, sampled=True)
    if program == SAYS_SO:
        line, _, errors = errors.partition("\n")
        assert line.startswith("gpusight: sampling stacks ended in process")
    assert (code, output, errors) == plain
    seen = [
        chunks[0][0] == PROCESS and len(chunks) > 1
        for path in tmp_path.glob("run.stacks-s-*.part")
        for chunks, _ in processes(path.read_bytes())
        if chunks
    ]
    assert any(seen) or program not in ENDS_BY_ITSELF
