"""The cache answers with the same rows, notices a changed capture, and may vanish at any time."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest

from gpusight.readers import cache, open_trace
from tests.shared import DATA

COLUMNS = ["start_ns", "name"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUSIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_WORTH_ROWS", 1)
    return tmp_path / "cache"


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return Path(shutil.copy(DATA / "graph_node.sqlite", tmp_path / "capture.sqlite"))


def kernels(path: Path) -> pl.DataFrame:
    return open_trace(path).table("kernels", COLUMNS)


def test_the_second_time_comes_from_the_cache(folder: Path, capture: Path) -> None:
    first = kernels(capture)
    files = {f.name: f for f in folder.rglob("*.arrow")}
    assert set(files) == {"start_ns.arrow", "name.arrow"}
    marked = pl.read_ipc(files["start_ns.arrow"]).with_columns(pl.col("start_ns") + 1)
    marked.write_ipc(files["start_ns.arrow"])
    assert kernels(capture)["start_ns"].to_list() == (first["start_ns"] + 1).to_list()
    assert kernels(capture)["name"].to_list() == first["name"].to_list()


def test_a_changed_capture_is_read_again(folder: Path, capture: Path) -> None:
    before = kernels(capture)
    shutil.copy(DATA / "resnet18_infer.sqlite", capture)
    after = kernels(capture)
    assert after.height != before.height
    assert len(list(folder.iterdir())) == 2


def test_damage_is_ignored(folder: Path, capture: Path) -> None:
    expected = kernels(capture)
    for file in folder.rglob("*.arrow"):
        file.write_bytes(b"not arrow")
    assert kernels(capture).equals(expected)


def test_nothing_is_left_half_written(folder: Path, capture: Path) -> None:
    kernels(capture)
    assert not list(folder.rglob("*.part"))


def test_an_unwritable_cache_costs_nothing_but_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capture: Path
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("in the way")
    monkeypatch.setenv("GPUSIGHT_CACHE_DIR", str(blocker / "cache"))
    monkeypatch.setattr(cache, "_WORTH_ROWS", 1)
    assert kernels(capture).height > 0


def test_info_and_clear(folder: Path, capture: Path) -> None:
    kernels(capture)
    info = cache.cache_info()
    assert info.folder == folder
    assert info.captures == 1
    assert info.bytes > 0
    assert cache.clear_cache() == info
    assert cache.cache_info().captures == 0


def test_the_oldest_go_when_it_grows_too_large(
    folder: Path, capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels(capture)
    monkeypatch.setenv("GPUSIGHT_CACHE_BYTES", "1")
    other = Path(shutil.copy(DATA / "resnet18_infer.sqlite", capture.with_name("other.sqlite")))
    kernels(other)
    assert [e.name for e in folder.iterdir()] == [cache.identity(other)]
