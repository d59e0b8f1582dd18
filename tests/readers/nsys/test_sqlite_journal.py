"""SQLite exports with changes beside them: applied to a private copy, or refused."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from gpusight.errors import CaptureError
from gpusight.readers.guarded_source import capture_identity, file_status
from gpusight.readers.nsys import sqlite_journal
from gpusight.readers.open import open_trace
from gpusight.trace.trace import Trace
from tests.readers.nsys.test_sqlite_export import KERNEL_COLUMNS, build, digest, strings
from tests.shared import DATA

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
ROWS = (
    f"INSERT INTO {KERNELS} WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n"
    " WHERE i < 119) SELECT i * 10, i * 10 + 5, 0, 1, 7, i, 16777216, 0, 0 FROM n"
)


def export(path: Path, *further: str) -> Path:
    """Write an export of 120 kernels."""
    return build(path, strings("k"), f"CREATE TABLE {KERNELS} ({KERNEL_COLUMNS})", ROWS, *further)


def with_log(folder: Path) -> Path:
    """Write an export with 120 further kernels in its write-ahead log, as after a killed writer."""
    source = export(folder / "source.sqlite")
    writer = sqlite3.connect(source)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("PRAGMA wal_autocheckpoint = 0")
    writer.execute(ROWS)
    writer.commit()
    for end in ("", "-wal"):
        shutil.copy(f"{source}{end}", folder / f"capture.sqlite{end}")
    writer.close()
    return folder / "capture.sqlite"


def with_journal(folder: Path) -> Path:
    """Write an export in the middle of a transaction that made every kernel longer."""
    source = export(folder / "source.sqlite", f"{ROWS};" * 20)
    writer = sqlite3.connect(source, isolation_level=None)
    writer.execute("PRAGMA cache_size = 1")
    writer.execute("PRAGMA cache_spill = 1")
    writer.execute("BEGIN")
    writer.execute(f"UPDATE {KERNELS} SET end = end + 1000")
    for end in ("", "-journal"):
        shutil.copy(f"{source}{end}", folder / f"capture.sqlite{end}")
    writer.execute("ROLLBACK")
    writer.close()
    return folder / "capture.sqlite"


def total_ns(trace: Trace) -> int:
    return int((trace.kernels["end_ns"] - trace.kernels["start_ns"]).sum())


def test_a_write_ahead_log_is_applied_to_a_private_copy(tmp_path: Path) -> None:
    capture = with_log(tmp_path)
    log = Path(f"{capture}-wal")
    before = (digest(capture), digest(log), sorted(p.name for p in tmp_path.iterdir()))
    with open_trace(capture, cache=False) as trace:
        assert trace.kernels.height == trace.row_count("kernels") == 240
        assert "applied to a private copy" in trace.meta.notes[0]
        assert trace.meta.path == str(capture)
    assert (digest(capture), digest(log), sorted(p.name for p in tmp_path.iterdir())) == before


def test_a_hot_journal_is_rolled_back_in_a_private_copy(tmp_path: Path) -> None:
    capture = with_journal(tmp_path)
    journal = Path(f"{capture}-journal")
    plain = sqlite3.connect(f"{capture.as_uri()}?mode=ro&immutable=1", uri=True)
    (spoiled,) = plain.execute(f"SELECT total(end - start) FROM {KERNELS}").fetchone()
    plain.close()
    before = (digest(capture), digest(journal))
    assert total_ns(open_trace(capture, cache=False)) == 21 * 120 * 5 < spoiled
    assert (digest(capture), digest(journal)) == before


def test_the_copy_is_private_and_goes_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capture, temporary = with_log(tmp_path), tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    trace = open_trace(capture, cache=False)
    (folder,) = temporary.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    trace.close()
    assert not list(temporary.iterdir())


def test_a_log_without_a_commit_or_of_an_older_generation_is_nothing(tmp_path: Path) -> None:
    capture = with_log(tmp_path)
    log = Path(f"{capture}-wal")
    salted = bytearray(log.read_bytes())
    salted[16:24] = b"another!"
    for content in (b"", b"left by a crash", bytes(salted), log.read_bytes()[:40]):
        log.write_bytes(content)
        assert not sqlite_journal.is_pending(capture)
        assert open_trace(capture, cache=False).row_count("kernels") == 120


@pytest.mark.parametrize("kind", ["wal", "journal"])
def test_a_pipe_or_a_folder_in_place_of_a_log_is_refused(tmp_path: Path, kind: str) -> None:
    capture = export(tmp_path / "capture.sqlite")
    beside = Path(f"{capture}-{kind}")
    os.mkfifo(beside)
    with pytest.raises(CaptureError, match="not a regular file"):
        open_trace(capture, cache=False)
    beside.unlink()
    beside.mkdir()
    with pytest.raises(CaptureError, match="not a regular file"):
        open_trace(capture, cache=False)


def test_a_journal_of_several_databases_is_refused(tmp_path: Path) -> None:
    capture = with_journal(tmp_path)
    journal = Path(f"{capture}-journal")
    journal.write_bytes(journal.read_bytes() + bytes.fromhex("d9d505f920a163d7"))
    with pytest.raises(CaptureError, match="several databases"):
        open_trace(capture, cache=False)


def test_what_is_too_large_to_copy_is_refused_with_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = with_log(tmp_path)
    monkeypatch.setattr(sqlite_journal, "_MAX_COPIED_BYTES", 1000)
    with pytest.raises(CaptureError, match="wal_checkpoint") as caught:
        open_trace(capture, cache=False)
    assert "\n" not in str(caught.value)


def test_a_log_that_appears_changes_what_the_cache_calls_the_capture(tmp_path: Path) -> None:
    capture = with_log(tmp_path)
    both = capture_identity(capture, file_status(capture))
    Path(f"{capture}-wal").unlink()
    assert capture_identity(capture, file_status(capture)) != both


def test_a_log_without_a_complete_change_is_named(tmp_path: Path) -> None:
    capture = tmp_path / "run.sqlite"
    shutil.copyfile(DATA / "graph.sqlite", capture)
    (tmp_path / "run.sqlite-wal").write_bytes(b"junk" * 300)
    with open_trace(capture, cache=False) as trace:
        assert trace.row_count("kernels") or trace.has("graph_launches")
        assert "run.sqlite-wal has no complete change to the capture: ignored" in trace.meta.notes
