"""nsys SQLite exports: every version opens, every table is valid, the file stays as it was."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from pathlib import Path

import polars as pl
import pytest

from gpusight.errors import DamagedCaptureError
from gpusight.readers.open import open_trace
from gpusight.trace.schema import TABLES
from gpusight.trace.trace import Trace
from tests.shared import DATA, EVERY_SQLITE, SHARED, name, needs_shared

KERNEL_COLUMNS = (
    "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER,"
    " correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER"
)


def build(path: Path, *statements: str) -> Path:
    """Write a tiny export from SQL, so that a test shows exactly what is in it."""
    db = sqlite3.connect(path)
    db.executescript(";".join(statements))
    db.commit()
    db.close()
    return path


def strings(*values: str) -> str:
    rows = ", ".join(f"({i}, '{v}')" for i, v in enumerate(values))
    table = "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)"
    return f"{table}; INSERT INTO StringIds VALUES {rows}"


@pytest.mark.parametrize("path", EVERY_SQLITE, ids=name)
def test_every_export_gives_valid_tables(path: Path) -> None:
    trace = open_trace(path, cache=False)
    trace.validate()
    assert any(trace.has(table) for table in TABLES)


@pytest.mark.parametrize("path", EVERY_SQLITE, ids=name)
def test_row_counts_are_those_of_the_raw_tables(path: Path) -> None:
    trace = open_trace(path, cache=False)
    db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    raw = {
        "kernels": "CUPTI_ACTIVITY_KIND_KERNEL",
        "copies": "CUPTI_ACTIVITY_KIND_MEMCPY",
        "memsets": "CUPTI_ACTIVITY_KIND_MEMSET",
        "syncs": "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        "os_calls": "OSRT_API",
        "cpu_samples": "COMPOSITE_EVENTS",
        "memory_events": "CUDA_GPU_MEMORY_USAGE_EVENTS",
        "gpu_metrics": "GPU_METRICS",
        "graph_launches": "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    }
    present = {t for (t,) in db.execute("SELECT name FROM sqlite_master")}
    for table, source in raw.items():
        only = "WHERE eventClass = 27" if source == "OSRT_API" else ""
        count = f"SELECT count(*) FROM {source} {only}"
        rows = db.execute(count).fetchone()[0] if source in present else 0
        assert trace.row_count(table) == rows == trace.table(table).height, table
    db.close()


def test_values_of_a_known_capture() -> None:
    trace = open_trace(DATA / "resnet18_infer.sqlite", cache=False)
    kernel = trace.kernels.row(0, named=True)
    db = sqlite3.connect(DATA / "resnet18_infer.sqlite")
    expected = db.execute(
        "SELECT k.start, k.end, k.gridX, k.blockX, k.registersPerThread, d.value, s.value,"
        " (k.globalPid >> 24) & 0xFFFFFF FROM CUPTI_ACTIVITY_KIND_KERNEL k"
        " JOIN StringIds d ON d.id = k.demangledName JOIN StringIds s ON s.id = k.shortName"
        " ORDER BY k.start LIMIT 1"
    ).fetchone()
    db.close()
    got = (
        kernel["start_ns"],
        kernel["end_ns"],
        kernel["grid_x"],
        kernel["block_x"],
        kernel["registers_per_thread"],
        kernel["name"],
        kernel["base_name"],
    )
    assert got == expected[:-1]
    process = trace.processes.filter(pl.col("process") == kernel["process"]).row(0, named=True)
    assert process["pid"] == expected[-1]
    assert trace.devices["name"].to_list() == ["NVIDIA H200"]
    assert trace.devices["sm_count"].to_list() == [132]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_capture_and_its_folder_stay_as_they_were(tmp_path: Path) -> None:
    capture = tmp_path / "folder with spaces & signs" / "a capture?.sqlite"
    capture.parent.mkdir()
    shutil.copy(DATA / "graph.sqlite", capture)
    before = digest(capture)
    capture.chmod(0o444)
    capture.parent.chmod(0o555)
    try:
        open_trace(capture, cache=False).validate()
        assert digest(capture) == before
        assert [f.name for f in capture.parent.iterdir()] == ["a capture?.sqlite"]
    finally:
        capture.parent.chmod(0o755)


def test_a_write_ahead_log_left_by_another_program_is_not_touched(tmp_path: Path) -> None:
    capture = tmp_path / "capture.sqlite"
    shutil.copy(DATA / "graph.sqlite", capture)
    (tmp_path / "capture.sqlite-wal").write_bytes(b"left by a crash")
    open_trace(capture, cache=False).validate()
    assert (tmp_path / "capture.sqlite-wal").read_bytes() == b"left by a crash"


def test_rows_are_sorted_and_those_without_an_end_are_left_out(tmp_path: Path) -> None:
    path = build(
        tmp_path / "c.sqlite",
        strings("zero", "late", "early", "lost"),
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({KERNEL_COLUMNS})",
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES"
        " (300, 350, 0, 1, 7, 3, 16777216, 1, 1), (100, 150, 0, 1, 7, 1, 16777216, 2, 2),"
        " (200, NULL, 0, 1, 7, 2, 16777216, 3, 3), (400, 90, 0, 1, 7, 4, 16777216, 99, 99)",
    )
    trace = open_trace(path, cache=False)
    trace.validate()
    assert trace.table("kernels", ["start_ns", "end_ns", "name"]).rows() == [
        (100, 150, "early"),
        (300, 350, "late"),
    ]
    # Columns asked for later come in the same order as those asked for first.
    assert trace.table("kernels", ["correlation"]).to_series().to_list() == [1, 3]
    assert trace.row_count("kernels") == 2
    (warning,) = trace.warnings
    assert warning.startswith("CUPTI_ACTIVITY_KIND_KERNEL: 2 of 4 rows left out: ")
    assert warning.endswith("1 ends before it starts, 1 has no number as end")


def test_ranges_of_every_kind(tmp_path: Path) -> None:
    thread_a, thread_b = (5 << 24) | 51, (5 << 24) | 52
    path = build(
        tmp_path / "c.sqlite",
        strings("registered"),
        "CREATE TABLE ANALYSIS_DETAILS (duration INTEGER)",
        "INSERT INTO ANALYSIS_DETAILS VALUES (1000)",
        "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, rangeId INTEGER,"
        " category INTEGER, text TEXT, textId INTEGER, globalTid INTEGER, endGlobalTid INTEGER,"
        " domainId INTEGER, int64Value INTEGER, doubleValue REAL)",
        "INSERT INTO NVTX_EVENTS VALUES"
        f" (0, NULL, 75, NULL, NULL, 'lib', NULL, {thread_a}, NULL, 3, NULL, NULL),"
        f" (1, NULL, 33, NULL, 9, 'io', NULL, {thread_a}, NULL, 3, NULL, NULL),"
        f" (10, 90, 59, NULL, 9, NULL, 0, {thread_a}, NULL, 3, 7, NULL),"
        f" (20, 30, 59, NULL, NULL, 'inner', NULL, {thread_a}, NULL, 3, NULL, 0.5),"
        f" (25, 28, 59, NULL, NULL, 'other domain', NULL, {thread_a}, NULL, 0, NULL, NULL),"
        f" (30, 40, 59, NULL, NULL, 'sibling', NULL, {thread_a}, NULL, 3, NULL, NULL),"
        f" (50, 60, 60, 4, NULL, 'crossing', NULL, {thread_a}, {thread_b}, 0, NULL, NULL),"
        f" (70, NULL, 34, NULL, NULL, 'a mark', NULL, {thread_b}, NULL, 0, NULL, NULL),"
        f" (80, NULL, 59, NULL, NULL, 'open', NULL, {thread_b}, NULL, 0, NULL, NULL),"
        f" (85, 9223372036854775807, 59, NULL, NULL, NULL, NULL, {thread_b}, NULL, 0, NULL, NULL)",
    )
    trace = open_trace(path, cache=False)
    trace.validate()
    columns = [
        "start_ns",
        "end_ns",
        "name",
        "kind",
        "domain",
        "category",
        "open",
        "depth",
        "parent",
    ]
    assert trace.table("ranges", columns).rows() == [
        (10, 90, "registered", "push_pop", "lib", "io", False, 0, None),
        (20, 30, "inner", "push_pop", "lib", None, False, 1, 0),
        (25, 28, "other domain", "push_pop", "", None, False, 0, None),
        (30, 40, "sibling", "push_pop", "lib", None, False, 1, 0),
        (50, 60, "crossing", "start_end", "", None, False, 0, None),
        (70, 70, "a mark", "mark", "", None, False, 0, None),
        (80, 1000, "open", "push_pop", "", None, True, 0, None),
        (85, 1000, "", "push_pop", "", None, True, 1, 6),
    ]
    assert trace.table("ranges", ["payload_int"]).to_series()[0] == 7
    assert trace.table("ranges", ["payload_real"]).to_series()[1] == 0.5
    assert trace.table("ranges", ["end_thread"]).to_series()[4] == thread_b
    assert trace.row_count("ranges") == 8


def test_renamed_devices_are_one_gpu(tmp_path: Path) -> None:
    """Two processes call their GPU 0, but CUDA_VISIBLE_DEVICES gave the second one GPU 1."""
    path = build(
        tmp_path / "c.sqlite",
        strings("k"),
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({KERNEL_COLUMNS})",
        f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, 0, 1, 7, 1, {11 << 24}, 0, 0),"
        f" (3, 4, 0, 1, 7, 1, {22 << 24}, 0, 0)",
        "CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER)",
        "INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (0, 0, 11), (1, 0, 22)",
    )
    assert open_trace(path, cache=False).table("kernels", ["device"]).to_series().to_list() == [
        0,
        1,
    ]


@pytest.mark.parametrize("gpu", ["-1000000000000000000", "'text'", "NULL", "0.5"])
def test_a_number_that_no_gpu_has_renames_nothing(tmp_path: Path, gpu: str) -> None:
    path = build(
        tmp_path / "c.sqlite",
        strings("k"),
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({KERNEL_COLUMNS})",
        f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, 0, 1, 7, 1, {11 << 24}, 0, 0)",
        "CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER)",
        f"INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES ({gpu}, 0, 11)",
    )
    assert open_trace(path, cache=False).table("kernels", ["device"]).to_series().to_list() == [0]


def test_a_gpu_renamed_twice_adds_no_rows(tmp_path: Path) -> None:
    path = build(
        tmp_path / "c.sqlite",
        strings("k"),
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({KERNEL_COLUMNS})",
        f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, 0, 1, 7, 1, {11 << 24}, 0, 0)",
        "CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER)",
        "INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (2, 0, 11), (3, 0, 11)",
    )
    trace = open_trace(path, cache=False)
    assert trace.table("kernels", ["device", "start_ns"]).rows() == [(2, 1)]


def test_a_required_text_that_is_missing_is_named_so(tmp_path: Path) -> None:
    path = build(
        tmp_path / "c.sqlite",
        strings("k"),
        "CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, source INTEGER, severity INTEGER,"
        " text TEXT, globalPid INTEGER)",
        "INSERT INTO DIAGNOSTIC_EVENT VALUES (1, 1, 1, NULL, 0)",
    )
    trace = open_trace(path, cache=False)
    trace.validate()
    assert trace.table("diagnostics", ["text"]).item() == "[name missing from capture]"


def test_invalid_utf8_and_foreign_columns(tmp_path: Path) -> None:
    path = build(
        tmp_path / "c.sqlite",
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT, noteByOtherTool TEXT)",
        "INSERT INTO StringIds VALUES (0, CAST(x'6b65fffe72' AS TEXT), 'x')",
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({KERNEL_COLUMNS}, score REAL)",
        "CREATE INDEX by_other_tool ON CUPTI_ACTIVITY_KIND_KERNEL (start)",
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, 0, 1, 7, 1, 0, 0, 0, NULL),"
        " (3, 'not a number', 0, 1, 7, 1, 0, 0, 0, 0.5)",
    )
    trace = open_trace(path, cache=False)
    # Text where a number belongs is no number, least of all 0.
    assert trace.table("kernels", ["end_ns", "name"]).rows() == [(2, "ke\ufffd\ufffdr")]
    assert "1 of 2 rows left out: 1 has no number as end" in trace.warnings[0]


def test_environment_and_host_are_never_in_the_model(tmp_path: Path) -> None:
    path = build(
        tmp_path / "c.sqlite",
        strings("k"),
        "CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)",
        "INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('DeviceEnvironment', 'TOKEN=secret'),"
        " ('Hostname', 'secret-host'), ('NvDriverVersion', '580.1')",
        "CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT)",
        "INSERT INTO PROCESSES VALUES (83886080, 5, '/home/secret-user/bin/train')",
    )
    trace = open_trace(path, cache=False)
    everything = repr(trace.meta) + "".join(str(trace.table(t).rows()) for t in TABLES)
    assert "secret" not in everything
    assert trace.meta.driver_version == "580.1"
    assert trace.processes["name"].to_list() == ["train"]


@pytest.mark.parametrize("keep", [1, 15, 99, 4096, 100_000])
def test_a_truncated_export_is_one_clear_error(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "cut.sqlite"
    path.write_bytes((DATA / "graph.sqlite").read_bytes()[:keep])
    with pytest.raises(DamagedCaptureError) as caught:
        open_trace(path, cache=False).validate()
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_damage_in_the_middle_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "broken.sqlite"
    data = bytearray((DATA / "graph.sqlite").read_bytes())
    data[4096 * 3 : 4096 * 40] = b"\xff" * (4096 * 37)
    path.write_bytes(data)
    with pytest.raises(DamagedCaptureError):
        open_trace(path, cache=False).validate()


@needs_shared
def test_gpu_metrics_have_names_and_devices() -> None:
    trace = open_trace(SHARED / "nsys" / "gpt_small_gpumetrics.sqlite", cache=False)
    active = trace.gpu_metrics.filter(pl.col("metric") == "GR Active [Throughput %]")
    assert active.height > 1000
    assert active["device"].unique().to_list() == [0]
    assert 0 <= active["value"].min() <= active["value"].max() <= 100  # type: ignore[operator]


def test_trace_describes_itself() -> None:
    trace = open_trace(DATA / "graph_node.sqlite", cache=False)
    assert isinstance(trace, Trace)
    assert "kernels: 360" in repr(trace)
    assert trace.has("kernels")
    assert not trace.has("cpu_samples")
    assert trace.has("kernels", "registers_per_thread")
    assert "kernels" in dir(trace)


def test_tables_beyond_the_model_are_named() -> None:
    notes = open_trace(DATA / "odd_node.sqlite", cache=False).meta.notes
    assert notes == ("not read: CUDA_GPU_MEMORY_POOL_EVENTS",)


def test_a_capture_that_goes_away_is_one_clear_error(tmp_path: Path) -> None:
    path = Path(shutil.copy(DATA / "graph.sqlite", tmp_path / "gone.sqlite"))
    trace = open_trace(path, cache=False)
    path.unlink()
    with pytest.raises(DamagedCaptureError):
        trace.row_count("api_calls")


def test_home_directories_stay_out_of_diagnostics(tmp_path: Path) -> None:
    path = build(
        tmp_path / "c.sqlite",
        strings("k"),
        "CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, severity INTEGER, text TEXT)",
        "INSERT INTO DIAGNOSTIC_EVENT VALUES"
        r" (1, 2, '/home/bob/a /Users/carol/b C:\Users\dave\c /root, /homework/e')",
    )
    texts = open_trace(path, cache=False).diagnostics["text"].to_list()
    assert texts == [r"~/a ~/b ~\c ~, /homework/e"]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("(NULL, 2, 0, 1, 7, 1, 0, 0, 0)", "has no number as start"),
        ("('abc', 2, 0, 1, 7, 1, 0, 0, 0)", "has no number as start"),
        ("(1, x'0102', 0, 1, 7, 1, 0, 0, 0)", "has no number as end"),
        ("(1.5, 2, 0, 1, 7, 1, 0, 0, 0)", "has no number as start"),
        ("(1, 2, NULL, 1, 7, 1, 0, 0, 0)", "has no number as deviceId"),
        ("(1, 2, 'gpu', 1, 7, 1, 0, 0, 0)", "has no number as deviceId"),
        ("(-9223372036854775807, 2, 0, 1, 7, 1, 0, 0, 0)", "has start out of range"),
        ("(1, 9223372036854775807, 0, 1, 7, 1, 0, 0, 0)", "has end out of range"),
        ("(1, 9000000000000000, 0, 1, 7, 1, 0, 0, 0)", "has a duration over 30 days"),
        ("(9, 2, 0, 1, 7, 1, 0, 0, 0)", "ends before it starts"),
        ("(1, 2, 9223372036854775807, 1, 7, 1, 0, 0, 0)", "has deviceId out of range"),
    ],
)
def test_a_row_that_cannot_be_used_is_left_out_and_counted(
    tmp_path: Path, row: str, why: str
) -> None:
    table = (
        strings("k"),
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({KERNEL_COLUMNS})",
        f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, 0, 1, 7, 1, 0, 0, 0), {row}",
    )
    trace = open_trace(build(tmp_path / "c.sqlite", *table), cache=False)
    trace.validate()
    assert trace.kernels.height == trace.row_count("kernels") == 1
    assert trace.warnings == (f"CUPTI_ACTIVITY_KIND_KERNEL: 1 of 2 rows left out: 1 {why}",)
    # One row more that cannot be used, and the capture as a whole cannot be.
    path = build(tmp_path / "d.sqlite", *table[:2], f"{table[2]}, {row}")
    with pytest.raises(DamagedCaptureError, match="2 of 3 rows cannot be used"):
        open_trace(path, cache=False).table("kernels", ["name"])


def test_columns_without_a_type_and_names_without_an_id(tmp_path: Path) -> None:
    path = build(
        tmp_path / "c.sqlite",
        "CREATE TABLE StringIds (id, value); INSERT INTO StringIds VALUES (5, 'gemm')",
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({KERNEL_COLUMNS.replace(' INTEGER', '')})",
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, 0, 1, 7, 1, 0, 5, 5),"
        " (3, 4, 0, 1, 7, 1, 0, NULL, 9223372036854775807)",
    )
    trace = open_trace(path, cache=False)
    trace.validate()
    assert trace.kernels["name"].to_list() == ["gemm", "[name missing from capture]"]


def test_os_calls_leave_out_the_profilers_own_marks(tmp_path: Path) -> None:
    path = build(
        tmp_path / "c.sqlite",
        strings("poll", "Profiling started"),
        "CREATE TABLE OSRT_API (start INTEGER, end INTEGER, eventClass INTEGER, nameId INTEGER)",
        "INSERT INTO OSRT_API VALUES (1, 1, 31, 1), (2, 5, 27, 0), (6, 6, 27, 0)",
    )
    trace = open_trace(path, cache=False)
    assert trace.table("os_calls", ["start_ns", "name"]).rows() == [(2, "poll"), (6, "poll")]


def test_a_schema_that_is_not_text_is_damage(tmp_path: Path) -> None:
    """SQLite's message then holds bytes that Python cannot show."""
    path = tmp_path / "made.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_master SET name = CAST(X'61a8ff' AS TEXT)")
    connection.commit()
    connection.close()
    with pytest.raises(DamagedCaptureError, match="not UTF-8"):
        open_trace(path, cache=False)
