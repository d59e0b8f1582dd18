"""Programs of the tests, and how they would be recorded."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from gpusight.recording import choose_tool
from gpusight.recording.inside.environment import VARIABLE, RecorderPlan
from gpusight.recording.parse_request import make_request
from gpusight.recording.plan_recording import RecordingPlan, plan_recording
from gpusight.recording.programs import InterpreterInfo

PYTHON = sys.executable


NO_TOOL = "/nowhere/tool"
MPIRUN = """#!/bin/sh
# mpirun -n N PROGRAM: the ranks run at the same time.
n=$2; shift 2; i=0
while [ $i -lt $n ]; do
  OMPI_COMM_WORLD_RANK=$i OMPI_COMM_WORLD_SIZE=$n "$@" &
  i=$((i+1))
done
wait
"""
TORCHRUN = """#!{python}
import os, subprocess, sys
words = sys.argv[1:]
assert words[:3] == ["--nproc-per-node", "2", "--standalone"], words
assert words[3] == "--no-python", words
environ = {{**os.environ, "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}}
ranks = [
    subprocess.Popen(words[4:], env={{**environ, "RANK": str(n), "LOCAL_RANK": str(n)}})
    for n in range(2)
]
sys.exit(max(rank.wait() for rank in ranks))
"""


def script(text: str = "pass", name: str = "train.py") -> str:
    Path(name).write_text(textwrap.dedent(text))
    return name


def planned(program: str | list[str], **options: Any) -> RecordingPlan:
    plan = plan_recording(make_request(program, **options))
    assert plan is not None
    return plan


def injected(plan: RecordingPlan) -> RecorderPlan:
    return RecorderPlan.from_text(plan.command.environment[VARIABLE])


def with_packages(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    python = InterpreterInfo((3, 12), frozenset(packages))
    monkeypatch.setattr(choose_tool, "query_interpreter", lambda *_: python)


def as_rank(rank: int, world: int) -> dict[str, str]:
    return {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(world)}
