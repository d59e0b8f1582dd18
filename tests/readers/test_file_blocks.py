"""What is shown of a file that is being read."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gpusight.readers.file_blocks import FileBlocks, progress_text, reading_bytes


def test_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert progress_text() == ""
    with reading_bytes(400_000_000) as progress:
        progress.done_bytes = 100_000_000
        assert progress_text() == ""
        now = 102.0
        assert progress_text() == "25%, 50 MB/s, 6 s left"
        progress.done_bytes = 500_000_000  # a file that grew
        assert progress_text() == "100%, 200 MB/s, 0 s left"
    assert progress_text() == ""


def test_blocks_of_a_file_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(bytes(2_000_000))
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    seen = []
    for _ in FileBlocks(path):
        now += 2.0
        seen.append(progress_text().partition("%")[0])
    assert seen == ["26", "52", "79", "100"]
    assert progress_text() == ""
