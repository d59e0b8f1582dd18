"""The cache answers with the same rows, notices a changed capture, and may vanish at any time."""

from __future__ import annotations

import shutil
import time
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
    with open_trace(path) as trace:
        return trace.table("kernels", COLUMNS)


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


def test_columns_of_another_length_are_read_again(folder: Path, capture: Path) -> None:
    expected = kernels(capture)
    (file,) = folder.rglob("name.arrow")
    pl.read_ipc(file).head(3).write_ipc(file)
    (file,) = folder.rglob("start_ns.arrow")
    file.unlink()
    assert kernels(capture).equals(expected)


@pytest.mark.usefixtures("folder")
def test_derived_frames_are_kept(capture: Path) -> None:
    computed: list[str] = []

    def compute() -> pl.DataFrame:
        computed.append("once")
        time.sleep(0.03)
        return pl.DataFrame({"x": [1, 2]})

    for _ in range(2):
        with open_trace(capture) as trace:
            assert trace.derive("answer-1", compute).rows() == [(1,), (2,)]
            assert trace.derive("answer-1", compute).rows() == [(1,), (2,)]
    assert computed == ["once"]
    with open_trace(capture, cache=False) as trace:
        trace.derive("answer-1", compute)
    assert computed == ["once", "once"]


def test_what_is_costly_to_find_is_kept_table_by_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace without a table of contents: small tables are kept too, in any later process."""
    from gpusight.readers.chrome import source

    monkeypatch.setattr("gpusight.readers.cache._WORTH_S", 0.01)
    walks: list[Path] = []
    walk = source.scan

    def counted(path: Path) -> source.Scanned:
        walks.append(path)
        return walk(path)

    monkeypatch.setattr(source, "scan", counted)
    for tables in ((), ("copies", "memsets", "syncs"), ("copies", "memsets", "syncs")):
        trace = open_trace(DATA / "torch_odd.json.gz")
        assert trace.has("kernels")
        for table in tables:
            assert trace.table(table).height
        trace.close()
    assert len(walks) == 2
