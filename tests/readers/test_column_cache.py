"""The cache answers as the capture does, or says that it does not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from benchmarks.generate import generate
from gpusight.cli.main import main
from gpusight.readers import column_cache
from gpusight.readers.cache_folder import open_entry
from gpusight.readers.nsys.nsys_source import NsysSource
from gpusight.readers.open import open_trace
from tests.shared import DATA

COLUMNS = ["start_ns", "name"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUSIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(column_cache, "_MIN_CACHED_ROWS", 1)
    return tmp_path / "cache" / "gpusight-cache"


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return Path(shutil.copy(DATA / "graph_node.sqlite", tmp_path / "capture.sqlite"))


def kernels(path: Path) -> pl.DataFrame:
    with open_trace(path) as trace:
        return trace.table("kernels", COLUMNS)


def notes(path: Path) -> tuple[str, ...]:
    """Read the table, check it against the capture itself, and give what was noted on the way."""
    with open_trace(path) as trace, open_trace(path, cache=False) as capture:
        assert trace.table("kernels", COLUMNS).equals(capture.table("kernels", COLUMNS))
        return trace.warnings


def entries(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir())


def slow() -> pl.DataFrame:
    time.sleep(0.03)
    return pl.DataFrame({"x": [1]})


def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Count the tables that are read from captures from now on."""
    read: list[str] = []
    load = NsysSource.load

    def counted(self: NsysSource, table: str, columns: Sequence[str]) -> pl.DataFrame:
        read.append(table)
        return load(self, table, columns)

    monkeypatch.setattr(NsysSource, "load", counted)
    return read


def test_the_second_time_comes_from_the_cache(
    folder: Path, capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kernels(capture)
    assert {f.name for f in folder.rglob("*.column")} == {
        "kernels.start_ns.column",
        "kernels.name.column",
    }
    read = reads(monkeypatch)
    assert kernels(capture).equals(first)
    assert read == []


def test_a_changed_capture_is_read_again(folder: Path, capture: Path) -> None:
    before = kernels(capture)
    shutil.copy(DATA / "resnet18_infer.sqlite", capture)
    after = kernels(capture)
    assert after.height != before.height
    assert len(entries(folder)) == 2


@pytest.mark.parametrize("damage", ["zeros", "text", "cut", "empty", "one bit", "longer", "footer"])
def test_a_damaged_file_is_ignored_noted_and_written_again(
    folder: Path, capture: Path, damage: str
) -> None:
    kernels(capture)
    (file,) = folder.rglob("kernels.start_ns.column")
    data = bytearray(file.read_bytes())
    middle = len(data) // 2
    changes: dict[str, bytes] = {
        "zeros": bytes(data[:middle] + bytes(64) + data[middle + 64 :]),
        "text": b"not arrow",
        "cut": bytes(data[:-100]),
        "empty": b"",
        "one bit": bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]),
        "longer": bytes(data + b"more"),
        "footer": bytes(data[:-10] + b"\xff\xff\xff\x7f" + data[-6:]),
    }
    file.write_bytes(changes[damage])
    assert notes(capture) == ("cache damaged: ignored 1 file and read the capture again",)
    assert notes(capture) == ()


def test_all_of_a_file_is_checked(folder: Path, capture: Path) -> None:
    kernels(capture)
    (file,) = folder.rglob("kernels.name.column")
    data = file.read_bytes()
    with open_entry(file.parent.name) as entry:
        for place in (*range(0, len(data), 13), *range(len(data) - 60, len(data))):
            file.write_bytes(data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :])
            with pytest.raises(column_cache.DamagedRecordError):
                column_cache.read_record(entry, file.name)


def test_files_cannot_be_exchanged(folder: Path, capture: Path) -> None:
    """Each is intact, but one column stands in the place of another."""
    with open_trace(capture) as trace:
        trace.table("kernels", ["start_ns", "end_ns"])
    (start,) = folder.rglob("kernels.start_ns.column")
    shutil.copy(start.with_name("kernels.end_ns.column"), start)
    assert notes(capture) == ("cache damaged: ignored 1 file and read the capture again",)


def test_a_cached_ledger_is_that_of_the_capture_whatever_happens_to_the_files(
    folder: Path, capture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """64 zeroed bytes made a ledger say that there was no activity."""
    command = ["ledger", str(capture), "--format", "json"]
    assert main([*command, "--no-cache"]) == 0
    expected = json.loads(capsys.readouterr().out)
    main(command)
    column_cache.flush_caches()
    capsys.readouterr()
    for file in folder.rglob("*.*"):
        data = file.read_bytes()
        if len(data) > 400:
            file.write_bytes(data[:200] + bytes(64) + data[264:])
    assert main(command) == 0
    answer = json.loads(capsys.readouterr().out)
    noted = [note for note in answer["notes"] if note.startswith("cache damaged: ")]
    assert len(noted) == 1
    answer["notes"].remove(noted[0])
    assert answer == expected


def test_what_the_reader_warned_of_comes_with_the_cached_table(
    folder: Path, capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer from the cache is the answer from the capture, its warnings included."""
    load = NsysSource.load
    given: list[str] = []

    def lossy(self: NsysSource, table: str, columns: Sequence[str]) -> pl.DataFrame:
        given.append(f"{table}: 3 rows left out")
        return load(self, table, columns)

    monkeypatch.setattr(NsysSource, "load", lossy)
    monkeypatch.setattr(NsysSource, "warnings", lambda _: tuple(given))
    for _ in range(2):
        with open_trace(capture) as trace:
            assert not trace.warnings
            trace.table("kernels", COLUMNS)
            assert list(trace.warnings) == ["kernels: 3 rows left out"]
            trace.table("api_calls", ["start_ns"])
            assert list(trace.warnings)[:-1] == ["api_calls: 3 rows left out"]
            trace.derive("slow-1", slow)
        given.clear()
    with open_trace(capture) as trace:
        trace.derive("slow-1", lambda: pytest.fail("it was kept"))
        assert len(trace.warnings) == 2
    assert folder.is_dir()


def test_nothing_is_left_half_written(folder: Path, capture: Path) -> None:
    kernels(capture)
    assert not list(folder.rglob("part-*"))


@pytest.mark.parametrize("chosen", ["file", "file/cache", "dangling", "loop"])
def test_a_place_that_cannot_be_a_folder_costs_nothing_but_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capture: Path, chosen: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    before = sorted(tmp_path.iterdir())
    monkeypatch.setenv("GPUSIGHT_CACHE_DIR", str(tmp_path / chosen))
    monkeypatch.setattr(column_cache, "_MIN_CACHED_ROWS", 1)
    with open_trace(capture) as trace:
        assert trace.table("kernels", COLUMNS).height == 360
    assert trace.warnings[0].startswith(("cache not used: ", "cache not written: "))
    assert sorted(tmp_path.iterdir()) == before


def test_columns_of_another_length_are_read_again(folder: Path, capture: Path) -> None:
    """Both files are intact, as if two readers had disagreed."""
    kernels(capture)
    (file,) = folder.rglob("kernels.name.column")
    with open_entry(file.parent.name) as entry:
        record = column_cache.read_record(entry, file.name)
        column_cache.write_record(entry, file.name, record._replace(frame=record.frame.head(3)))
    file.with_name("kernels.start_ns.column").unlink()
    assert notes(capture) == ("cache damaged: ignored 1 file and read the capture again",)
    assert notes(capture) == ()


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
    from gpusight.readers import chrome_source

    monkeypatch.setattr("gpusight.readers.column_cache._MIN_CACHED_S", 0.01)
    walks: list[Path] = []
    walk = chrome_source.scan_trace

    def counted(path: Path) -> chrome_source.ScannedTrace:
        walks.append(path)
        return walk(path)

    monkeypatch.setattr(chrome_source, "scan_trace", counted)
    for tables in ((), ("copies", "memsets", "syncs"), ("copies", "memsets", "syncs")):
        trace = open_trace(DATA / "torch_odd.json.gz")
        assert trace.has("kernels")
        for table in tables:
            assert trace.table(table).height
        trace.close()
    assert len(walks) == 2


def test_warnings_of_a_trace_that_is_cached_take_no_walk_through_it(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """They come with the outline, for each table."""
    from gpusight.readers import chrome_source

    monkeypatch.setattr("gpusight.readers.column_cache._MIN_CACHED_S", 0.0)
    walks: list[Path] = []
    walk = chrome_source.scan_trace

    def counted(path: Path) -> chrome_source.ScannedTrace:
        walks.append(path)
        return walk(path)

    def lossy(self: chrome_source.ChromeSource) -> tuple[str, ...]:
        assert self._source is not None  # made by the walk
        return ("3 events have no number",)

    monkeypatch.setattr(chrome_source, "scan_trace", counted)
    monkeypatch.setattr(chrome_source.ChromeSource, "warnings", lossy)
    for tables in (("copies", "kernels"), ("kernels",), ("copies",), ()):
        with open_trace(DATA / "torch_odd.json.gz") as trace:
            assert trace.has("kernels")
            for table in tables:
                trace.table(table)
            assert "3 events have no number" in trace.warnings
    assert len(walks) == 1
    assert list(folder.rglob("outline.record"))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_an_interrupted_command_leaves_a_usable_cache(tmp_path: Path) -> None:
    capture, cache = tmp_path / "x.sqlite", tmp_path / "cache"
    generate(100_000, capture)
    environment = {**os.environ, "GPUSIGHT_CACHE_DIR": str(cache)}
    command = [sys.executable, "-m", "gpusight", "ranges", str(capture), "--format", "csv"]

    def start(*options: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*command, *options], env=environment, stdout=pipe, stderr=pipe, text=True
        )

    expected, _ = start("--no-cache").communicate()
    assert not cache.exists()
    interrupted = set()
    # While it starts, reads, or once files of the cache are being written.
    for moment in (0.4, 0.7, 1.0, "*", "*/*", "*/*/*"):
        running = start()
        if isinstance(moment, float):
            time.sleep(moment)
        else:
            while running.poll() is None and not any(cache.glob(moment)):
                time.sleep(0.005)
        running.send_signal(signal.SIGINT)
        running.communicate()
        interrupted.add(running.returncode)
        found, errors = start().communicate()
        assert (found, errors) == (expected, "")
        shutil.rmtree(cache, ignore_errors=True)
    assert interrupted != {0}
