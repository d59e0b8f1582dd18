"""`gpusight memory` through `main`: tables, documents and pictures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gpusight.cli.main import main
from tests.shared import DATA

TRACE = str(DATA / "gpt_small_forward.json.gz")
SNAPSHOT = str(DATA / "memory_snapshot.pickle")


@pytest.mark.parametrize("capture", [TRACE, SNAPSHOT, str(DATA / "dataload.sqlite")])
def test_tables_fit_eighty_columns(capture: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", capture]) == 0
    out = capsys.readouterr().out
    assert "Memory at the peak by allocation site" in out
    assert "Memory over time" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_blocks_of_one_size_and_site_are_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", TRACE, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    groups = [row for row in document["rows"] if row["section"] == "block_groups"]
    blocks = [row for row in document["rows"] if row["section"] == "blocks"]
    assert len({(row["bytes"], row["holder"]) for row in groups}) == len(groups)
    assert sum(row["blocks"] for row in groups) >= len(blocks)
    sized = [row for row in groups if row["bytes"] is not None]
    assert len(sized) >= len(groups) - 1  # the last sums up small ones
    assert all(row["total_bytes"] == row["bytes"] * row["blocks"] for row in sized)
    assert sum(row["total_bytes"] for row in groups) <= document["meta"]["peak_bytes"]
    assert main(["memory", TRACE]) == 0
    assert "Largest blocks at the peak" not in capsys.readouterr().out
    assert main(["memory", TRACE, "--blocks"]) == 0
    assert "Largest blocks at the peak" in capsys.readouterr().out


def test_the_timeline_is_shown_when_requested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", TRACE, "--timeline", "--top", "3"]) == 0
    assert "Memory over time" in capsys.readouterr().out


def test_json_always_has_the_timeline(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", TRACE, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    peak = [row for row in document["rows"] if row["section"] == "peak"]
    line = [row for row in document["rows"] if row["section"] == "timeline"]
    assert sum(row["bytes"] for row in peak) == document["meta"]["peak_bytes"]
    assert max(row["allocated_bytes"] for row in line) == document["meta"]["peak_bytes"]
    assert len(line[0]["held_bytes"]) == len(document["meta"]["timeline_holders"])


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("m.svg", b"<svg"),
        ("m.HTML", b"<!DOCTYPE html>"),
        ("m.png", b"\x89PNG"),
        ("m.pdf", b"%PDF"),
        ("m.json", b"{"),
        ("m.csv", b"section,row,key,value"),
        ("m.md", b"## Memory of GPU 0"),
        ("m.txt", b"Memory of GPU 0"),
    ],
)
def test_the_name_of_the_file_chooses_what_it_holds(
    name: str, start: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name.endswith(("png", "pdf")):
        pytest.importorskip("vl_convert")
    target = tmp_path / name
    assert main(["memory", SNAPSHOT, "-o", str(target)]) == 0
    assert target.read_bytes().startswith(start)
    out, err = capsys.readouterr()
    assert out == ""
    opened = name.lower().endswith(("svg", "html", "png", "pdf"))
    assert err.startswith(f"gpusight memory: wrote {target} (") is opened
    assert err.count("\n") == opened


def test_a_format_asked_for_wins_over_the_name(tmp_path: Path) -> None:
    target = tmp_path / "m.png"
    assert main(["memory", SNAPSHOT, "-o", str(target), "--format", "json"]) == 0
    assert json.loads(target.read_bytes())["meta"]["command"] == "memory"


def test_pictures_that_are_text_may_be_piped(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", SNAPSHOT, "--format", "svg"]) == 0
    assert capsys.readouterr().out.startswith("<svg")
    pytest.importorskip("vl_convert")
    assert main(["memory", SNAPSHOT, "--format", "png"]) == 2
    assert "add: -o picture.png" in capsys.readouterr().err


def test_a_capture_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture = tmp_path / "capture.svg"
    shutil.copy(SNAPSHOT, capture)
    before = capture.read_bytes()
    assert main(["memory", str(capture), "-o", str(capture)]) == 2
    assert capture.read_bytes() == before
    assert "is the capture itself" in capsys.readouterr().err
    other = tmp_path / "other.sqlite"
    assert main(["memory", SNAPSHOT, "--format", "svg", "-o", str(other)]) == 2
    assert not other.exists()


def test_a_file_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["memory", SNAPSHOT, "-o", str(tmp_path / "none" / "m.svg")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_nothing_is_drawn_of_a_capture_without_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "m.svg"
    assert main(["memory", str(DATA / "gpt_tiny_osrt.sqlite"), "-o", str(target)]) == 2
    assert not target.exists()
    assert "--cuda-memory-usage=true" in capsys.readouterr().err
