"""Files made to cost more than their size: each is answered, or refused, within the bounds.

`docs/reliability.md` states them. Every file is opened by a process of its own that may use no more
than so much memory and processor time; what is refused is refused in one line.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import pickle
import resource
import shutil
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from gpusight.errors import DamagedCaptureError
from gpusight.readers import file_blocks
from gpusight.readers.file_blocks import zstd_module
from gpusight.readers.nsys.export_folder import FolderTables, table_files
from gpusight.readers.open import open_trace
from tests.readers.nsys.test_sqlite_export import KERNEL_COLUMNS, build, strings
from tests.shared import DATA

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMORY_BYTES, SECONDS = 3 << 30, 20
TINY = (
    strings("k"),
    f"CREATE TABLE {KERNELS} ({KERNEL_COLUMNS})",
    f"INSERT INTO {KERNELS} VALUES (1, 2, 0, 1, 7, 1, 0, 0, 0)",
)
READ = (
    "import sys, resource\n"
    f"resource.setrlimit(resource.RLIMIT_AS, ({MEMORY_BYTES}, {MEMORY_BYTES}))\n"
    f"resource.setrlimit(resource.RLIMIT_CPU, ({SECONDS}, {SECONDS}))\n"
    "from gpusight.cli.main import main\n"
    "sys.exit(main(['summary', sys.argv[1], '--no-cache']))\n"
)


def cost(path: Path) -> tuple[int, str, float]:
    """Read a capture in another process: exit code, last line, seconds of processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    output = (done.stderr or done.stdout).strip().splitlines()
    return done.returncode, output[-1] if output else "", seconds


def refused(path: Path, why: str) -> None:
    """Check that a file is refused for this reason, at little cost."""
    code, output, seconds = cost(path)
    assert (code, why in output) == (2, True), output
    assert "Traceback" not in output
    assert seconds < SECONDS / 2


def answered(path: Path) -> None:
    """Check that a file is read at little cost."""
    code, output, seconds = cost(path)
    assert code == 0, output
    assert seconds < SECONDS / 2


# nsys SQLite -------------------------------------------------------------------------------------


def test_one_row_id_far_from_the_others(tmp_path: Path) -> None:
    path = Path(shutil.copy(DATA / "dataload.sqlite", tmp_path / "far.sqlite"))
    db = sqlite3.connect(path)
    db.execute(f"UPDATE {KERNELS} SET rowid = {1 << 62} WHERE rowid = 1")
    db.commit()
    db.close()
    answered(path)


def test_pages_that_are_listed_again_and_again(tmp_path: Path) -> None:
    """Two pages that name the same page 680 times each make a million rows out of one."""
    path = build(tmp_path / "shared.sqlite", "PRAGMA page_size = 4096", *TINY)
    db = sqlite3.connect(path)
    (root,) = db.execute(f"SELECT rootpage FROM sqlite_master WHERE name = '{KERNELS}'").fetchone()
    db.close()
    data = bytearray(path.read_bytes())
    pages = len(data) // 4096
    leaf, inner = pages + 1, pages + 2
    data += data[(root - 1) * 4096 : root * 4096] + _interior(leaf)
    data[(root - 1) * 4096 : root * 4096] = _interior(inner)
    data[28:32] = struct.pack(">I", inner)
    path.write_bytes(data)
    refused(path, "more rows than the file can hold")


def _interior(child: int) -> bytes:
    """Make a page of a table's tree whose entries all name the same child."""
    entries, cell = 680, struct.pack(">I", child) + b"\x01"
    head = struct.pack(">BHHHBI", 5, 0, entries, 4096 - len(cell), 0, child)
    page = head + struct.pack(">H", 4096 - len(cell)) * entries
    return page.ljust(4096 - len(cell), b"\0") + cell


def test_a_view_that_never_ends(tmp_path: Path) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n) SELECT i AS start"
    path = build(tmp_path / "view.sqlite", TINY[0], f"CREATE VIEW {KERNELS} AS {endless} FROM n")
    code, output, seconds = cost(path)
    assert code in (0, 2), output
    assert seconds < SECONDS / 2


# nsys Parquet and Arrow --------------------------------------------------------------------------


def constant(rows: int, dtype: type[pl.DataType] = pl.Int64) -> pl.DataFrame:
    """Make kernels that are all the same, which take a few bytes however many they are."""
    column = pl.Series([None if dtype is pl.Null else 0], dtype=dtype).new_from_index(0, rows)
    return pl.DataFrame(dict.fromkeys(("start", "end", "deviceId", "demangledName"), column))


def folder(path: Path, suffix: str) -> Path:
    path.mkdir()
    names = pl.DataFrame({"id": [0], "value": ["k"]})
    if suffix == "parquet":
        names.write_parquet(path / "StringIds.parquet")
    else:
        names.write_ipc(path / "StringIds.arrow")
    return path


def test_a_pipe_and_a_device_among_the_tables(tmp_path: Path) -> None:
    export = folder(tmp_path / "export", "parquet")
    constant(3).write_parquet(export / f"{KERNELS}.parquet")
    os.mkfifo(export / "NVTX_EVENTS.parquet")
    (export / "OSRT_API.parquet").symlink_to("/dev/zero")
    (export / "GPU_METRICS.parquet").mkdir()
    answered(export)


def test_a_column_of_one_value_and_very_many_rows(tmp_path: Path) -> None:
    export = folder(tmp_path / "export", "parquet")
    file = export / f"{KERNELS}.parquet"
    constant(4_000_000).write_parquet(file, compression="zstd", row_group_size=4_000_000)
    assert file.stat().st_size < 200_000
    refused(export, "rows in a file of its size")


def test_columns_of_nothing_and_very_many_rows(tmp_path: Path) -> None:
    export = folder(tmp_path / "export", "arrow")
    constant(50_000_000, pl.Null).write_ipc(export / f"{KERNELS}.arrow")
    refused(export, "rows in a file of its size")


@pytest.mark.parametrize("form", ["parquet", "file", "stream"])
def test_a_text_that_grows_a_thousand_times(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_blocks, "_FREE_BYTES", 1 << 20)
    export = folder(tmp_path / "export", "parquet" if form == "parquet" else "arrow")
    names = export / f"StringIds.{'parquet' if form == 'parquet' else 'arrow'}"
    write = {"parquet": "write_parquet", "file": "write_ipc", "stream": "write_ipc_stream"}[form]
    for length in (100_000, 4_000_000):
        getattr(pl.DataFrame({"value": ["a" * length]}), write)(names, compression="zstd")
        tables = FolderTables(export, table_files(export))
        if length == 100_000:
            assert tables.read("StringIds", ["value"])["value"].str.len_bytes().sum() == length
            continue
        assert names.stat().st_size < length / 1000
        with pytest.raises(DamagedCaptureError, match=r"it would expand to 4\.000 MB"):
            tables.read("StringIds", ["value"])


# Traces in JSON ----------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", ["gz", "xz", "zst"])
def test_a_small_file_that_unpacks_without_end(
    tmp_path: Path, packing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_blocks, "_FREE_BYTES", 1 << 20)
    packers: dict[str, Callable[[bytes], bytes]] = {
        "gz": gzip.compress,
        "xz": lzma.compress,
        "zst": zstd_module().compress,
    }
    pack = packers[packing]
    path = tmp_path / f"bomb.json.{packing}"
    path.write_bytes(pack(b'{"traceEvents":[' + b" " * (8 << 20)))
    assert path.stat().st_size < 20_000
    with pytest.raises(DamagedCaptureError, match="it expands more than 200 times"):
        open_trace(path, cache=False).has("kernels")


def test_a_packed_file_that_asks_for_gigabytes_of_memory(tmp_path: Path) -> None:
    path = tmp_path / "t.json.xz"
    form = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 29}]
    path.write_bytes(lzma.compress(b'{"traceEvents":[]}', filters=form))
    with pytest.raises(DamagedCaptureError):
        open_trace(path, cache=False).has("kernels")


@pytest.mark.parametrize(
    "value",
    ["9" * 1_000_000, "[" * 500_000 + "]" * 500_000, '{"a":' * 100_000 + "1" + "}" * 100_000],
)
def test_numbers_and_nesting_without_end(tmp_path: Path, value: str) -> None:
    good = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 1}
    bad = json.dumps({**good, "args": 0}).replace(
        '"args": 0', f'"args": {{"correlation": {value}}}'
    )
    path = tmp_path / "t.json"
    path.write_text(f'{{"traceEvents": [{json.dumps(good)}, {bad}]}}')
    answered(path)


def test_ranges_nested_a_hundred_thousand_deep(tmp_path: Path) -> None:
    deep = 100_000
    event = '{"ph":"X","cat":"user_annotation","name":"r","pid":1,"tid":1,"ts":%d,"dur":%d}'
    kernel = '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1,"dur":1}'
    ranges = ",".join(event % (place, 2 * (deep - place)) for place in range(deep))
    path = tmp_path / "t.json"
    path.write_text(f'{{"traceEvents": [{kernel},{ranges}]}}')
    answered(path)


# The others --------------------------------------------------------------------------------------


def test_a_table_with_one_line_without_end(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n"' + "a," * 4_000_000
    )
    code, output, seconds = cost(path)
    assert code == 2, output
    assert seconds < SECONDS / 2


def test_a_pickle_of_nothing_but_containers(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    body = b"\x80\x04}\x8c\x08segments](" + pickle.EMPTY_LIST * 4_000_000 + b"es."
    path.write_bytes(body)
    refused(path, "empty containers")


def test_a_report_that_names_more_than_it_holds(tmp_path: Path) -> None:
    report = bytearray((DATA / "dataload.nsys-rep").read_bytes())
    path = tmp_path / "cut.nsys-rep"
    # The directory of the file lies where its last bytes say: now beyond all that there is.
    report[-16:-8] = struct.pack("<Q", (1 << 62) + 5)
    path.write_bytes(report)
    refused(path, "lies outside the file")


def test_a_device_or_a_pipe_is_no_capture(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.sqlite"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        refused(path, "is not a regular file")


def varint(number: int) -> bytes:
    """Write a number as protobuf does."""
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def message(field: int, content: bytes) -> bytes:
    """Write a field that holds bytes."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def test_a_report_of_ncu_that_counts_more_kernels_than_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "counted.ncu-rep"
    kernels, payload_bytes = varint(2 << 3) + varint(1 << 40), varint(5 << 3) + varint(1 << 50)
    block = kernels + payload_bytes
    header = message(1, b"x")
    words = [struct.pack("<I", len(part)) + part for part in (header, block)]
    path.write_bytes(b"NVR\0" + b"".join(words))
    refused(path, "")


@pytest.mark.parametrize("field", [3, 4])
def test_a_profile_of_nothing_but_empty_parts(tmp_path: Path, field: int) -> None:
    path = tmp_path / "empty.xplane.pb"
    plane = message(2, b"/device:GPU:0") + message(field, b"") * 400_000
    path.write_bytes(message(1, varint(1 << 3) + varint(1) + plane))
    code, output, seconds = cost(path)
    assert code in (0, 2), output
    assert "Traceback" not in output
    assert seconds < SECONDS / 2


def test_a_profile_that_is_shorter_than_it_says(tmp_path: Path) -> None:
    path = tmp_path / "short.xplane.pb"
    path.write_bytes(b"\x0a" + varint(1 << 40) + message(2, b"/device:GPU:0"))
    refused(path, "")
