from __future__ import annotations

import os
import shutil
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from gpusight.errors import UsageError
from gpusight.mcp.workspace import Workspace
from tests.shared import DATA


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "inside"
    (inside / "runs").mkdir(parents=True)
    shutil.copyfile(DATA / "graph.sqlite", inside / "runs" / "graph.sqlite")
    shutil.copyfile(DATA / "graph.sqlite", tmp_path / "outside.sqlite")
    (inside / "link.sqlite").symlink_to(tmp_path / "outside.sqlite")
    (inside / "notes.txt").write_text("no capture")
    return inside


def test_it_lists_captures_and_follows_no_links(folder: Path) -> None:
    workspace = Workspace([folder])
    assert [workspace.name(path) for path in workspace.captures().paths] == ["runs/graph.sqlite"]
    assert workspace.captures().notes == ()


def test_a_listing_says_what_it_leaves_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copyfile(DATA / "graph.sqlite", folder / "a.sqlite")
    monkeypatch.setattr("gpusight.mcp.workspace.MAX_LISTED", 1)
    listed = Workspace([folder]).captures()
    assert (len(listed.paths), listed.notes) == (1, ("the newest 1 of 2 captures",))
    monkeypatch.setattr("gpusight.mcp.workspace._MAX_ENTRIES", 1)
    listed = Workspace([folder]).captures()
    assert [path.name for path in listed.paths] == ["a.sqlite"]
    assert listed.notes == ("only 1 files of a folder were looked at",)


@pytest.mark.parametrize("name", ["../outside.sqlite", "link.sqlite", "/etc/passwd", "..", "a\0b"])
def test_nothing_outside_is_found(folder: Path, name: str) -> None:
    with pytest.raises(UsageError):
        Workspace([folder]).path(name)


def test_a_capture_is_found_by_any_path_to_it(folder: Path) -> None:
    workspace = Workspace([folder])
    path = folder.resolve() / "runs" / "graph.sqlite"
    assert workspace.path("runs/graph.sqlite") == path
    assert workspace.path(str(path)) == path
    assert workspace.path("runs/../runs/graph.sqlite") == path
    assert workspace.path("`runs/graph.sqlite`") == path, "as answers write names"


def test_a_changed_capture_is_opened_anew(folder: Path) -> None:
    with closing(Workspace([folder])) as workspace:
        path = folder / "runs" / "graph.sqlite"
        first = workspace.trace("runs/graph.sqlite")
        assert workspace.trace("runs/graph.sqlite") is first
        os.utime(path, (1, 1))
        assert workspace.trace("runs/graph.sqlite") is not first


def test_answers_are_kept_until_their_capture_is_closed(folder: Path) -> None:
    for number in range(5):
        shutil.copyfile(DATA / "graph.sqlite", folder / f"{number}.sqlite")
    questions: list[str] = []
    with closing(Workspace([folder])) as workspace:
        for name in ("0.sqlite", "0.sqlite", *(f"{n}.sqlite" for n in range(1, 5)), "0.sqlite"):
            workspace.trace(name)
            workspace.kept(("question",), [name], partial(questions.append, name))
    assert questions.count("0.sqlite") == 2


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        Workspace([tmp_path / "nothing"])
