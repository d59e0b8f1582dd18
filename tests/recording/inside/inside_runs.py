"""Runs programs with our recorder in them, as `gpusight record` does."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpusight.recording import inside
from gpusight.recording.inside.environment import VARIABLE, RecorderPlan

SITE = Path(inside.__file__).parent / "site"
_LAUNCHERS_OWN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "PYTHONPATH", VARIABLE)


@dataclass(frozen=True)
class Ran:
    """How a program ended, and what it left."""

    code: int
    out: str
    errors: str
    folder: Path

    @property
    def messages(self) -> list[str]:
        """Our lines on stderr."""
        return [line for line in self.errors.splitlines() if line.startswith("gpusight:")]

    @property
    def files(self) -> list[str]:
        return sorted(file.name for file in self.folder.iterdir())

    def events(self, name: str) -> list[dict[str, Any]]:
        """Read the complete events of a PyTorch trace."""
        with gzip.open(self.folder / name, "rt") as file:
            return [e for e in json.load(file)["traceEvents"] if e.get("ph") == "X"]

    def names(self, name: str) -> set[str]:
        """Give the names in a trace."""
        return {event["name"] for event in self.events(name)}

    def steps(self, name: str) -> list[str]:
        """Give the steps that were finished, in order."""
        marks = [e for e in self.events(name) if e["name"].startswith("ProfilerStep#")]
        whole = [e for e in marks if e["args"].get("finished", True)]
        return [e["name"] for e in sorted(whole, key=lambda e: float(e["ts"]))]


def _environment(
    output: Path, plan: dict[str, Any], variables: dict[str, str], path: tuple[Path, ...]
) -> dict[str, str]:
    output.mkdir(exist_ok=True)
    wanted = RecorderPlan(output=str(output / "run"), **{"recorder": "torch", **plan})
    own = {k: v for k, v in os.environ.items() if k not in _LAUNCHERS_OWN}
    search = os.pathsep.join(map(str, (SITE, *path)))
    return {**own, **variables, VARIABLE: wanted.to_text(), "PYTHONPATH": search}


def run(
    folder: Path,
    *arguments: str,
    python: str = sys.executable,
    path: tuple[Path, ...] = (),
    variables: dict[str, str] | None = None,
    timeout_s: float = 120,
    **plan: Any,
) -> Ran:
    """Run Python with these arguments under a plan; captures go to `folder/out`."""
    output = folder / "out"
    done = subprocess.run(
        [python, *arguments],
        env=_environment(output, plan, variables or {}, path),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr, output)


_SERVER = """
import gc, json, os, sys
import torch, torch._dynamo, torch.profiler  # profilers and optimizers import dynamo
from gpusight.recording.inside import environment, start_recording, torch_recorder

torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()  # imports more
gc.freeze()  # or each fork would walk, and so copy, all of torch when it ends

for line in sys.stdin:
    program = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    raise SystemExit
os.environ.clear()
os.environ.update(program["environ"])
os.chdir(program["folder"])
for number, name in enumerate(("/dev/null", "stdout", "stderr")):
    os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
sys.argv = ["program", *program["arguments"]]
start_recording.start(environment.current_plan())
exec(program["code"], {"__name__": "__main__"})
"""


class TorchPrograms:
    """A Python that has imported torch, and runs each program in a fork of its own.

    Starting torch takes longer than any of these programs. A fork begins as a process in which the
    recorder starts after torch was imported; that it may also be imported later, and that our
    sitecustomize is what starts it, is for `run`.
    """

    def __init__(self) -> None:
        package = Path(inside.__file__).parents[3]
        environ = {k: v for k, v in os.environ.items() if k not in _LAUNCHERS_OWN}
        self._server = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            env={**environ, "PYTHONPATH": str(package)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self,
        folder: Path,
        code: str,
        *arguments: str,
        variables: dict[str, str] | None = None,
        **plan: Any,
    ) -> Ran:
        """Run a program under a plan; captures go to `folder/out`."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        output = folder / "out"
        environ = _environment(output, plan, variables or {}, ())
        program = {"code": code, "arguments": arguments, "environ": environ, "folder": str(folder)}
        self._server.stdin.write(json.dumps(program) + "\n")
        self._server.stdin.flush()
        ended = int(self._server.stdout.readline())
        out, errors = ((folder / name).read_text() for name in ("stdout", "stderr"))
        return Ran(ended, out, errors, output)

    def close(self) -> None:
        assert self._server.communicate()[0] == ""
        assert self._server.returncode == 0
