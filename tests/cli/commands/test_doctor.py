"""`gpusight doctor` on a machine that is described, and on this one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import gpusight as gs
from gpusight.cli.main import main
from gpusight.recording.doctor import checkup
from gpusight.recording.request import Tool
from tests.recording.doctor.machines import h200

if TYPE_CHECKING:
    from tests.recording.doctor.machines import Described

CLOSED = {"/proc/driver/nvidia/params": "RmProfilingAdminOnly: 1\n"}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Described:
    described = h200(files=CLOSED)
    monkeypatch.setattr(checkup, "Machine", lambda: described)
    return described


@pytest.mark.usefixtures("machine")
def test_verdicts_come_first_and_fixes_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Profilers on this machine"
    assert lines[1].startswith("nsys   yes     2025.3.1")
    assert any(line.startswith("ncu    no ") for line in lines)
    assert "gpusight record would use nsys." in lines
    last = "\n".join(lines[-2:])
    assert "NVreg_RestrictProfilingToAdminUsers=0" in last
    assert "tee /etc/modprobe.d" in last
    assert max(map(len, lines)) <= 80


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("tools", "code"), [("nsys", 0), ("nsys,torch", 0), ("nsys,ncu", 1)])
def test_a_gate_trips(tools: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--require", tools]) == code
    error = capsys.readouterr().err
    assert ("ncu can record here: no; GPU performance counters" in error) == bool(code)


@pytest.mark.usefixtures("machine")
def test_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    ncu = next(row for row in rows if row.get("tool") == "ncu")
    assert ncu["can"] == "no"
    counters = next(row for row in rows if row.get("check") == "counters")
    assert counters["state"] == "missing"
    assert len(counters["commands"]) == 1
    for name, part in (("d.csv", "checks,0,check,gpu"), ("d.md", "| gpu | ok |"), ("d.txt", "GPU")):
        assert main(["doctor", "-o", str(tmp_path / name)]) == 0
        assert part in (tmp_path / name).read_text(encoding="utf-8")
    assert main(["doctor", "--format", "csv", "--top", "1"]) == 0
    assert "checks,1," not in capsys.readouterr().out


@pytest.mark.usefixtures("machine")
def test_what_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--require", "perf"]) == 2
    assert "tools are nsys, ncu, torch, cupti" in capsys.readouterr().err
    assert main(["doctor", "--python", "/no/such/python"]) == 2
    assert "no Python at /no/such/python" in capsys.readouterr().err


def test_this_machine() -> None:
    view = gs.doctor(python=sys.executable)
    assert set(view.facts) == {"nsys", "ncu", "torch", "cupti", "record_uses"}
    python = next(check for check in view.answer.checks if check.key == "python")
    assert python.found.startswith(".".join(map(str, sys.version_info[:3])))
    assert view.answer.verdict(Tool.TORCH).found.startswith("torch ")
    assert "gpusight record" in repr(view)


def test_descriptions_match_the_tools() -> None:
    from gpusight.cli.commands.doctor import TOOLS

    assert tuple(tool.value for tool in Tool) == TOOLS
