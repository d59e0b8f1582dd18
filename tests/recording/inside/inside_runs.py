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
    said: list[str]
    """Our lines on stderr."""
    errors: str
    """All of it."""
    files: list[str]
    folder: Path

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
    output.mkdir(exist_ok=True)
    wanted = RecorderPlan(output=str(output / "run"), **{"recorder": "torch", **plan})
    environment = {k: v for k, v in os.environ.items() if k not in _LAUNCHERS_OWN}
    environment.update(variables or {})
    environment[VARIABLE] = wanted.to_text()
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (SITE, *path)))
    done = subprocess.run(
        [python, *arguments],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if line.startswith("gpusight:")]
    files = sorted(file.name for file in output.iterdir())
    return Ran(done.returncode, done.stdout, said, done.stderr, files, output)
