"""What is not a capture gets one clear line: what it is, and what to do."""

from __future__ import annotations

import gzip
import lzma
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from gpusight.errors import CaptureError
from gpusight.readers.file_blocks import zstd_module
from gpusight.readers.open import open_trace
from tests.shared import DATA


def sqlite_of_another_program(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE bookmarks (url TEXT)")
    db.commit()
    db.close()


CASES: list[tuple[str, bytes, str]] = [
    ("empty.sqlite", b"", "is empty"),
    (
        "pointer.nsys-rep",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        "git lfs pull",
    ),
    ("raw.qdstrm", b"\xff\xff\xff\xff\x00 stream", "QdstrmImporter"),
    ("text.nsys-rep", b"not a report at all", "header is missing"),
    (
        "rows.csv",
        b'"0","52","app","127.0.0.1","k(int)","1","7","(32, 1, 1)","(8, 1, 1)","0","9.0","x","y"\n',
        "but no header",
    ),
    ("text.ncu-rep", b"not a report at all", "not an ncu report: its header is missing"),
    ("short.ncu-rep", b"NVR\x00....", "is not a complete report"),
    ("packed.sqlite.xz", lzma.compress(b"SQLite format 3\0"), "xz -d"),
    ("packed.xz", lzma.compress(b"anything"), "xz-compressed, but contains no capture"),
    ("cut.xz", lzma.compress(b"anything")[:20], "is cut off"),
    ("packed.sqlite.gz", gzip.compress(b"SQLite format 3\0"), "gunzip"),
    ("packed.gz", gzip.compress(b"anything"), "gzip-compressed, but contains no capture"),
    ("cut.gz", b"\x1f\x8b\x08\x00", "is cut off"),
    ("broken.gz", b"\x1f\x8b\x08\x00" + bytes(6) + b"\xff" * 99, "cannot be unpacked"),
    ("report.h5", b"\x89HDF\r\n\x1a\n", "nsys export --type sqlite"),
    ("one.parquet", b"PAR1....", "parquetdir"),
    ("noise.bin", b"\x00\x01\x02\x03", "not a capture that gpusight knows"),
    ("short.sqlite", b"SQLite for", "cut off"),
]


@pytest.mark.parametrize(("file", "content", "says"), CASES, ids=[c[0] for c in CASES])
def test_foreign_files(tmp_path: Path, file: str, content: bytes, says: str) -> None:
    path = tmp_path / file
    path.write_bytes(content)
    with pytest.raises(CaptureError) as caught:
        open_trace(path)
    message = str(caught.value)
    assert says in message
    assert str(path) in message
    assert "\n" not in message


@pytest.mark.parametrize("pack", [lzma.compress, zstd_module().compress], ids=["xz", "zstandard"])
def test_traces_may_be_packed_in_any_way(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    plain = DATA / "healthy.json.gz"
    packed = tmp_path / "trace.packed"
    packed.write_bytes(pack(gzip.decompress(plain.read_bytes())))
    ours, theirs = (open_trace(path, cache=False).kernels for path in (packed, plain))
    assert ours.equals(theirs)


def test_another_programs_database(tmp_path: Path) -> None:
    path = tmp_path / "places.sqlite"
    sqlite_of_another_program(path)
    with pytest.raises(CaptureError, match="not an nsys export"):
        open_trace(path)


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="folder without a capture"):
        open_trace(tmp_path)
    (tmp_path / "run.sqlite").write_bytes(b"x")
    with pytest.raises(CaptureError, match=r"folder of captures; pass one of them: run\.sqlite"):
        open_trace(tmp_path)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="no such file"):
        open_trace(tmp_path / "missing.sqlite")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.sqlite")
    with pytest.raises(CaptureError, match="not a regular file"):
        open_trace(tmp_path / "pipe.sqlite")


def test_a_tilde_that_names_nobody() -> None:
    with pytest.raises(CaptureError, match="no such file"):
        open_trace("~nobody-of-this-name/run.sqlite")


def test_a_name_as_long_as_a_file_may_have_leaves_no_room_for_stacks(tmp_path: Path) -> None:
    path = tmp_path / f"{'x' * 246}.nsys-rep"
    path.write_bytes((DATA / "graph.nsys-rep").read_bytes())
    with open_trace(path, cache=False) as trace:
        assert trace.row_count("api_calls")
