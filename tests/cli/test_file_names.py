"""Captures whose names are not UTF-8, as anybody may call a file: every form is still written."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from gpusight.cli.main import main
from tests.shared import DATA

if TYPE_CHECKING:
    from pathlib import Path

ESCAPED = "x\\udcff"


@pytest.fixture(params=["dataload.sqlite", "healthy.json.gz"])
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    source: str = request.param
    name = os.fsdecode(b"x\xff." + source.partition(".")[2].encode())
    try:
        return str(shutil.copy(DATA / source, tmp_path / name))
    except OSError:
        pytest.skip("this file system takes UTF-8 only")


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
@pytest.mark.parametrize("command", ["info", "compare"])
def test_every_form_is_written(
    command: str, form: str, odd: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captures = [odd, odd] if command == "compare" else [odd]
    assert main([command, *captures, "--format", form]) == 0
    shown = capsys.readouterr().out
    shown.encode()
    target = tmp_path / "answer.txt"
    assert main([command, *captures, "--format", form, "-o", str(target)]) == 0
    assert target.read_bytes()
    if form == "json":
        json.loads(shown)


@pytest.mark.parametrize(("command", "form"), [("diagnose", "html"), ("compare", "html"),
                                               ("compare", "svg")])  # fmt: skip
def test_pages_and_pictures(command: str, form: str, odd: str, tmp_path: Path) -> None:
    target = tmp_path / f"page.{form}"
    captures = [odd, odd] if command == "compare" else [odd]
    assert main([command, *captures, "-o", str(target)]) == 0
    assert ESCAPED in target.read_text(encoding="utf-8")


def test_a_baseline_and_a_gate(
    odd: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, report = str(tmp_path / "base.json"), tmp_path / "gate"
    assert main(["baseline", "save", odd, "-o", saved, "--format", "json"]) == 0
    capsys.readouterr()
    reports = ("--junit", f"{report}.xml", "--markdown", f"{report}.md", "--format", "json")
    assert main(["gate", "--baseline", saved, *reports, odd]) == 0
    meta = json.loads(capsys.readouterr().out)["meta"]
    assert meta["baseline"] == meta["captures"]
    assert meta["captures"][0].startswith(ESCAPED)
