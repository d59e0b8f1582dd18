"""`gpusight timeline` and the picture of `gpusight ledger` through `main`, and in Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gpusight as gs
from gpusight.cli.main import main
from gpusight.render.result_view import LedgerView
from tests.shared import DATA

CAPTURE = str(DATA / "dataload.sqlite")
SNAPSHOT = str(DATA / "memory_snapshot.pickle")
DEMO = Path(gs.__file__).parent / "data" / "demo.ncu-repz"


def test_the_table_has_a_row_for_each_track(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", CAPTURE, "--wide"]) == 0
    out = capsys.readouterr().out
    assert "step_7, the median of 10 steps" in out
    for key in ("gpu0/ledger", "gpu0/stream7", "p0/t1/ranges", "p0/t1/api"):
        assert key in out
    assert "Events drawn alone" not in out


def test_the_document_has_what_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["timeline", CAPTURE, "--steps", "2", "--tracks", "stream,ranges"]
    assert main([*command, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["meta"]["what"] == "step_2"
    rows = document["rows"]
    assert {row["kind"] for row in rows if row["section"] == "tracks"} == {"stream", "ranges"}
    names = {row["name"] for row in rows if row["section"] == "slices"}
    assert {"data", "forward", "backward"} <= names


@pytest.mark.parametrize(
    ("command", "name", "start"),
    [
        ("timeline", "t.svg", b"<svg"),
        ("timeline", "t.html", b"<!DOCTYPE html>"),
        ("timeline", "t.pdf", b"%PDF"),
        ("ledger", "l.svg", b"<svg"),
        ("ledger", "l.html", b"<!DOCTYPE html>"),
        ("ledger", "l.png", b"\x89PNG"),
        ("ledger", "l.json", b"{"),
    ],
)
def test_the_name_of_the_file_chooses_what_it_holds(
    command: str, name: str, start: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name.endswith(("png", "pdf")):
        pytest.importorskip("vl_convert")
    target = tmp_path / name
    assert main([command, CAPTURE, "-o", str(target)]) == 0
    assert target.read_bytes().startswith(start)
    out, err = capsys.readouterr()
    assert out == ""
    opened = name.endswith(("svg", "html", "png", "pdf"))
    assert err.startswith(f"gpusight {command}: wrote {target} (") is opened


@pytest.mark.parametrize("command", ["timeline", "ledger"])
def test_nothing_is_drawn_of_a_capture_that_has_none(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "x.svg"
    assert main([command, str(DATA / "thrice.ncu-rep.xz"), "-o", str(target)]) == 2
    assert not target.exists()
    assert capsys.readouterr().err.count("\n") == 1


def test_unknown_tracks_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", CAPTURE, "--tracks", "nope"]) == 2
    assert "kinds in the capture: ledger, stream" in capsys.readouterr().err


def test_pictures_that_are_text_may_be_piped(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", CAPTURE, "--format", "svg"]) == 0
    assert capsys.readouterr().out.startswith("<svg")
    assert main(["ledger", CAPTURE, "--format", "png"]) == 2
    assert "add: -o picture.png" in capsys.readouterr().err


# Python -------------------------------------------------------------------------------------------


def test_every_answer_that_has_a_picture_saves_it(tmp_path: Path) -> None:
    trace = gs.open(CAPTURE)
    answers: dict[str, gs.Page | LedgerView] = {
        "ledger": gs.ledger(trace),
        "timeline": gs.timeline(trace, tracks="stream"),
        "utilization": gs.utilization(trace),
        "memory": gs.memory(SNAPSHOT),
        "roofline": gs.roofline(DEMO),
        "occupancy": gs.occupancy_of("A100"),
    }
    for name, answer in answers.items():
        assert answer.figure.title
        for ending in ("svg", "json", "md", "csv", "txt"):
            assert answer.save(tmp_path / f"{name}.{ending}").stat().st_size > 0
        assert (tmp_path / f"{name}.svg").read_bytes().startswith(b"<svg")


def test_what_has_no_picture_says_so(tmp_path: Path) -> None:
    with pytest.raises(gs.GpusightError, match="Summary has no chart"):
        gs.summary(CAPTURE).save(tmp_path / "s.svg")
    with pytest.raises(gs.GpusightError, match="cannot be written as svg"):
        gs.kernels(CAPTURE).save(tmp_path / "k.svg")
    with pytest.raises(gs.GpusightError, match="no picture format 'gif'"):
        gs.ledger(CAPTURE).save(tmp_path / "l.gif")
    assert list(tmp_path.glob("*.*")) == []
