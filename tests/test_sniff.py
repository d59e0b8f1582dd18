"""What is a capture, or belongs to one, is not written to."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from gpusight.errors import UsageError
from gpusight.sniff import refuse_capture

TRACE = {"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1}]}
GROUPS = {"distributedInfo": {"pg_config": [{"ranks": list(range(64))}] * 500}}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("large_job.json", json.dumps(GROUPS | TRACE).encode()),
        ("marked.json", b"\xef\xbb\xbf" + json.dumps(TRACE).encode()),
        ("log", bytes.fromhex("377f0682") + bytes(40)),
        ("undo", bytes.fromhex("d9d505f920a163d7") + bytes(40)),
        ("tables", b"\xff\xff\xff\xff" + bytes(40)),
    ],
)
def test_captures_are_known_by_what_they_hold(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError, match="is a capture already"):
        refuse_capture(path, None)


@pytest.mark.parametrize("suffix", ["-wal", "-journal", "-shm"])
def test_what_sqlite_keeps_beside_a_capture_is_not_written(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(UsageError, match="named like a capture"):
        refuse_capture(tmp_path / f"run.sqlite{suffix}", None)


def test_tables_of_nsys_are_kept_and_our_own_exports_replaced(tmp_path: Path) -> None:
    rows = pl.DataFrame({"start": [1]})
    rows.write_parquet(tmp_path / "NVTX_EVENTS.parquet")
    rows.write_parquet(tmp_path / "kernels.parquet")
    with pytest.raises(UsageError, match="is a capture already"):
        refuse_capture(tmp_path / "NVTX_EVENTS.parquet", None)
    refuse_capture(tmp_path / "kernels.parquet", None)
