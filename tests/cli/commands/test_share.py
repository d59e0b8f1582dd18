"""`gpusight share`."""

from __future__ import annotations

import json
import shlex
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gpusight.cli.main import main
from tests.shared import DATA

CAPTURE = DATA / "graph.sqlite"


def test_it_says_what_it_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "copy.sqlite"
    assert main(["share", str(CAPTURE), "-o", str(output)]) == 0
    out = capsys.readouterr().out
    assert output.is_file()
    for text in ("command lines", "removed", "Size of the copy", "--check"):
        assert text in out


def test_check_lists_places_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["share", str(CAPTURE), "--check"]) == 0
    out = capsys.readouterr().out
    assert "META_DATA_CAPTURE.value" in out
    assert "gpusight share" in out
    assert not list(tmp_path.iterdir())


def test_a_copy_needs_no_other_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy.sqlite"
    assert main(["share", str(CAPTURE), "-o", str(copy), "--quiet"]) == 0
    capsys.readouterr()
    assert main(["share", "--check", str(copy)]) == 0
    out = capsys.readouterr().out
    assert "It holds no values that a sanitized copy would remove." in out
    assert "next: " not in out
    assert main(["share", "--check", "--hash-names", str(copy)]) == 0
    assert "next: gpusight share" in capsys.readouterr().out


def test_the_next_command_is_valid_as_it_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy.sqlite"
    assert main(["share", str(CAPTURE), "-o", str(copy)]) == 0
    remark, command = capsys.readouterr().out.splitlines()[-2:]
    assert remark == "Check it before you send it."
    assert shlex.split(command.removeprefix("next: "))[:3] == ["gpusight", "share", "--check"]
    assert command.endswith(copy.name)


def test_json_has_every_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["share", str(CAPTURE), "--check", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    places = [row for row in document["rows"] if row["section"] == "places"]
    assert {"category", "where", "count", "fate"} <= places[0].keys()
    assert document["meta"]["names"] == "kept"
    assert document["meta"]["capture_bytes"] == CAPTURE.stat().st_size


def test_the_answer_of_a_check_goes_to_a_file(tmp_path: Path) -> None:
    output = tmp_path / "leaks.md"
    assert main(["share", str(CAPTURE), "--check", "-o", str(output)]) == 0
    assert "| command lines |" in output.read_text()


def test_a_slash_asks_for_a_folder(tmp_path: Path) -> None:
    assert main(["share", str(CAPTURE), "-o", f"{tmp_path}/v1.2/", "--format", "json"]) == 0
    assert (tmp_path / "v1.2" / "StringIds.parquet").is_file()


def test_nothing_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "copy.sqlite"
    output.write_text("mine")
    assert main(["share", str(CAPTURE), "-o", str(output)]) == 2
    error = capsys.readouterr().err
    assert "exists already" in error
    assert error.count("\n") == 1
    assert output.read_text() == "mine"


@pytest.mark.parametrize("name", ["memory_snapshot.pickle", "jax_small.trace.json.gz"])
def test_other_captures_are_refused_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["share", str(DATA / name), "-o", str(tmp_path / "copy.json.gz")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("strict", "code"), [(False, 0), (True, 1)])
def test_strict_fails_when_a_removed_value_is_in_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, strict: bool, code: int
) -> None:
    capture = tmp_path / "run.sqlite"
    shutil.copyfile(DATA / "gpt_small_forward.sqlite", capture)
    with closing(sqlite3.connect(capture)) as db:
        host = "UPDATE TARGET_INFO_SYSTEM_ENV SET value = 'nodeXY77' WHERE name = 'Hostname'"
        db.execute(host)
        db.execute("UPDATE NVTX_EVENTS SET text = 'on nodeXY77' WHERE rowid = 3")
        db.commit()
    argv = ["share", str(capture), "-o", str(tmp_path / "copy.sqlite")]
    assert main([*argv, "--strict"] if strict else argv) == code
    out = capsys.readouterr().out
    assert "host names" in out.partition("still in the copy")[2]
    assert "nodeXY77" not in out
