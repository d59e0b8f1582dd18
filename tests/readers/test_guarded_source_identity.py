"""A changed capture is another capture, however it was changed, and may not change while read."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from gpusight.errors import DamagedCaptureError
from gpusight.readers import column_cache, guarded_source
from gpusight.readers.nsys.nsys_source import NsysSource
from gpusight.readers.open import open_trace
from tests.readers.nsys.test_export_folder import raw_tables, write_folder
from tests.shared import DATA


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let files of a megabyte be large ones."""
    monkeypatch.setenv("GPUSIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(guarded_source, "_WHOLE_BYTES", 1 << 16)
    monkeypatch.setattr(guarded_source, "_BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(column_cache, "_MIN_CACHED_ROWS", 1)


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return Path(shutil.copy(DATA / "graph_node.sqlite", tmp_path / "capture.sqlite"))


def name(path: Path) -> str:
    return guarded_source.capture_identity(path, guarded_source.file_status(path))


def overwrite(path: Path, place: int, content: bytes) -> None:
    """Change bytes in place, and put the times back."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(place)
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.skipif(sys.platform == "win32", reason="keeps no time of the last status change")
def test_a_change_in_the_middle_with_its_time_put_back_is_noticed(capture: Path) -> None:
    """Not even where no sample is taken: the status change itself has a time."""
    before, size = name(capture), capture.stat().st_size
    assert size > 100_000
    place = size // 2 + 5_000
    byte = capture.read_bytes()[place]
    overwrite(capture, place, bytes([byte ^ 1]))
    assert name(capture) != before


def test_a_small_file_counts_with_every_byte(
    capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where a disk gave it the very same status."""
    monkeypatch.setattr(guarded_source, "_WHOLE_BYTES", 1 << 30)
    status = guarded_source.file_status(capture)
    before = guarded_source.capture_identity(capture, status)
    for place in (0, 12_345, capture.stat().st_size - 1):
        byte = capture.read_bytes()[place]
        overwrite(capture, place, bytes([byte ^ 1]))
        assert guarded_source.capture_identity(capture, status) != before
        overwrite(capture, place, bytes([byte]))
    assert guarded_source.capture_identity(capture, status) == before


@pytest.mark.parametrize("now_ns", [0, 10_000_000])
def test_a_file_of_this_moment_or_of_the_future_counts_with_every_byte(
    capture: Path, monkeypatch: pytest.MonkeyPatch, now_ns: int
) -> None:
    """It may change again within the tick of its clock; a clock may have been put back."""
    status = guarded_source.file_status(capture)
    later = status[0].changed_ns + now_ns if now_ns else 1
    monkeypatch.setattr("gpusight.readers.guarded_source.time.time_ns", lambda: later)
    before = guarded_source.capture_identity(capture, status)
    place = capture.stat().st_size // 2 + 700
    overwrite(capture, place, bytes([capture.read_bytes()[place] ^ 1]))
    assert guarded_source.capture_identity(capture, status) != before


def test_a_large_file_is_sampled_throughout(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = guarded_source.file_status(capture)
    monkeypatch.setattr(
        "gpusight.readers.guarded_source.time.time_ns", lambda: status[0].changed_ns + (1 << 40)
    )
    before, data = guarded_source.capture_identity(capture, status), capture.read_bytes()
    step = len(data) // 16
    for place in range(0, len(data) - step, step):
        other = bytes(byte ^ 1 for byte in data[place : place + step])
        capture.write_bytes(data[:place] + other + data[place + step :])
        assert guarded_source.capture_identity(capture, status) != before


@pytest.mark.parametrize("log", ["-wal", "-journal"])
def test_logs_of_a_database_are_part_of_it(capture: Path, log: str) -> None:
    before = name(capture)
    beside = Path(f"{capture}{log}")
    beside.write_bytes(b"")
    assert name(capture) == before
    beside.write_bytes(b"pages")
    assert name(capture) != before


def test_every_table_of_a_folder_counts(tmp_path: Path) -> None:
    folder = write_folder(raw_tables(DATA / "graph_node.sqlite"), tmp_path / "export", "parquet")
    identities = {name(folder)}
    for file in sorted(folder.iterdir()):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        overwrite(file, 0, bytes(data))
        identities.add(name(folder))
    assert len(identities) == 1 + len(list(folder.iterdir()))


def test_another_file_of_the_same_content_is_another_capture(capture: Path) -> None:
    copied = Path(shutil.copy2(capture, capture.with_name("copy.sqlite")))
    assert name(copied) != name(capture)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("change", ["grows", "middle", "replaced", "log", "vanishes"])
def test_a_capture_that_changes_while_it_is_read_gives_no_numbers(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, *, cached: bool
) -> None:
    load = NsysSource.load

    def meanwhile(self: NsysSource, table: str, columns: Sequence[str]) -> pl.DataFrame:
        frame = load(self, table, columns)
        if change == "grows":
            with capture.open("ab") as file:
                file.write(b"more")
        elif change == "middle":
            overwrite(capture, 50_000, bytes(64))
        elif change == "replaced":
            Path(shutil.copy(DATA / "resnet18_infer.sqlite", tmp_path / "new")).replace(capture)
        elif change == "log":
            Path(f"{capture}-wal").write_bytes(b"pages")
        else:
            capture.unlink()
        return frame

    monkeypatch.setattr(NsysSource, "load", meanwhile)
    trace = open_trace(capture, cache=cached)
    with pytest.raises(DamagedCaptureError, match="changed while it was read"):
        trace.table("kernels", ["start_ns"])
    trace.close()
    assert not list((tmp_path / "cache").rglob("*.column"))
