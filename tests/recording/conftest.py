"""Tools that stand in for NVIDIA's, in an empty folder."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.recording.fake_tools import install
from tests.recording.planned_programs import NO_TOOL


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, without the tools of this machine and its launchers."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GPUSIGHT_NSYS", NO_TOOL)
    monkeypatch.setenv("GPUSIGHT_NCU", NO_TOOL)
    for name in list(os.environ):
        if re.match(r"OMPI_|PMI|SLURM_|RANK$|LOCAL_RANK$|WORLD_SIZE$|NSYS_|NV_TPS", name):
            monkeypatch.delenv(name)
    return folder


@pytest.fixture
def nsys(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return _with_tool("nsys", empty_folder, monkeypatch)


@pytest.fixture
def ncu(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return _with_tool("ncu", empty_folder, monkeypatch)


def _with_tool(name: str, empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = empty_folder.parent / "tools"
    folder.mkdir(exist_ok=True)
    install(folder, name, monkeypatch)
    return folder
