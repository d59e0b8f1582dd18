"""`gpusight utilization` through `main`: tables, documents and pictures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import gpusight as gs
from gpusight.cli.main import main
from tests.shared import DATA

CAPTURE = str(DATA / "dataload.sqlite")


@pytest.mark.parametrize("spelling", ["utilization", "utilisation"])
def test_the_table_has_as_many_bins_as_a_screen(
    spelling: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([spelling, CAPTURE]) == 0
    out = capsys.readouterr().out
    assert re.search(r"GPU busy +10\.2%", out)
    assert "more rows" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_json_has_all_bins_and_the_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["utilization", CAPTURE, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    sections = [row["section"] for row in document["rows"]]
    assert (sections.count("bins"), sections.count("steps")) == (400, 10)
    bins = [row for row in document["rows"] if row["section"] == "bins"]
    window = document["meta"]["window_ns"]
    assert sum(row["duration_ns"] for row in bins) == window
    busy = sum(row["duration_ns"] - row["idle_ns"] for row in bins)
    assert busy / window == pytest.approx(document["meta"]["busy_share"])
    assert "no GPU metrics were sampled" in document["meta"]["not_applicable"]["metrics"]["reason"]


def test_bins_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["utilization", CAPTURE, "--bins", "7", "--format", "csv"]) == 0
    assert capsys.readouterr().out.count("bins,") == 7 * 13
    assert main(["utilization", CAPTURE, "--bins", "20000"]) == 2
    assert "use 1 to 10,000" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "start"),
    [("u.svg", b"<svg"), ("u.html", b"<!DOCTYPE html>"), ("u.png", b"\x89PNG"), ("u.md", b"##")],
)
def test_the_name_of_the_file_chooses_what_it_holds(
    name: str, start: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name.endswith("png"):
        pytest.importorskip("vl_convert")
    target = tmp_path / name
    assert main(["utilization", CAPTURE, "--steps", "3-4", "-o", str(target)]) == 0
    assert target.read_bytes().startswith(start)
    out, err = capsys.readouterr()
    assert out == ""
    opened = name.endswith(("svg", "html", "png", "pdf"))
    assert err.startswith(f"gpusight utilization: wrote {target} (") is opened


def test_nothing_is_drawn_of_a_capture_without_gpu_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "u.svg"
    assert main(["utilization", str(DATA / "memory_snapshot.pickle"), "-o", str(target)]) == 2
    assert not target.exists()
    assert "the capture shows no GPU work" in capsys.readouterr().err


def test_python_gives_the_same_and_saves_it(tmp_path: Path) -> None:
    page = gs.utilization(CAPTURE, bins=50, steps="2-3")
    assert len(page["bins"]) == 50
    assert page.facts["steps"] == 2
    assert page.save(tmp_path / "u.svg").read_bytes().startswith(b"<svg")
    assert json.loads(page.save(tmp_path / "u.json").read_bytes())["meta"]["steps"] == 2
    with pytest.raises(gs.GpusightError, match="named like a capture"):
        page.save(tmp_path / "u.sqlite")
