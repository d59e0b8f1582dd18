"""nsys exports whose tables lack a column: an honest default that is said, or one clear line."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import polars as pl
import pytest

from gpusight.cli.main import main
from gpusight.errors import DamagedCaptureError
from gpusight.naming.kernel_names import classify
from gpusight.readers.open import open_trace
from tests.shared import DATA

KERNELS, CALLS, RANGES = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
COMMANDS = ("summary", "kernels", "ranges", "api", "launches", "steps", "ledger", "diagnose")


def without(folder: Path, table: str, *columns: str, also: str = "") -> Path:
    """Copy a capture, less some columns of a table."""
    path = Path(shutil.copy(DATA / "dataload.sqlite", folder / "less.sqlite"))
    db = sqlite3.connect(path)
    kept = [c for _, c, *_ in db.execute(f"PRAGMA table_info({table})") if c not in columns]
    names = ", ".join(f'"{c}"' for c in kept)
    # Made anew: old versions of SQLite cannot drop a column.
    db.executescript(
        f"CREATE TABLE less AS SELECT {names} FROM {table}; DROP TABLE {table};"
        f"ALTER TABLE less RENAME TO {table}; {also}"
    )
    db.close()
    return path


@pytest.mark.parametrize(
    ("table", "column", "model"),
    [
        (KERNELS, "start", "kernels"),
        (KERNELS, "end", "kernels"),
        (CALLS, "end", "api_calls"),
        (CALLS, "nameId", "api_calls"),
        (RANGES, "start", "ranges"),
        (RANGES, "end", "ranges"),
        (RANGES, "eventType", "ranges"),
    ],
)
def test_a_column_that_nothing_stands_in_for_is_named(
    tmp_path: Path, table: str, column: str, model: str
) -> None:
    trace = open_trace(without(tmp_path, table, column), cache=False)
    assert trace.has(model)  # what is there cannot be read, which is not the same as nothing
    assert f"{table} has no column {column}: {model} cannot be read" in trace.meta.warnings
    with pytest.raises(DamagedCaptureError) as caught:
        trace.table(model)
    assert f"table {table}: no column {column}; export it again: nsys export" in str(caught.value)


@pytest.mark.parametrize(
    ("table", "column"), [(KERNELS, "end"), (KERNELS, "start"), (CALLS, "end")]
)
def test_every_command_answers_or_says_it_in_one_line(
    tmp_path: Path, table: str, column: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = without(tmp_path, table, column)
    for command in COMMANDS:
        code = main([command, str(path), "--no-cache"])
        error = capsys.readouterr().err
        assert code in (0, 2), command
        assert "SELECT" not in error
        assert "syntax error" not in error
        if code:
            assert error.count("\n") == 1, command
            assert f"no column {column}" in error


def test_the_only_gpu_did_the_work(tmp_path: Path) -> None:
    trace = open_trace(without(tmp_path, KERNELS, "deviceId"), cache=False)
    assert trace.kernels["device"].unique().to_list() == [0]
    assert trace.meta.warnings == (
        f"{KERNELS} has no column deviceId: all of it is assigned to the only GPU",
    )


def test_a_bus_that_is_written_as_a_number(tmp_path: Path) -> None:
    bus = "ALTER TABLE TARGET_INFO_GPU ADD COLUMN busLocation INTEGER DEFAULT 5;"
    path = without(tmp_path, "TARGET_INFO_GPU", "busLocation", also=bus)
    assert open_trace(path, cache=False).table("devices", ["bus"])["bus"].to_list() == ["5"]


def test_of_several_gpus_none_is_taken_for_the_one(tmp_path: Path) -> None:
    another = (
        "CREATE TABLE gpu AS SELECT * FROM TARGET_INFO_GPU; UPDATE gpu SET id = 1;"
        "INSERT INTO TARGET_INFO_GPU SELECT * FROM gpu"
    )
    trace = open_trace(without(tmp_path, KERNELS, "deviceId", also=another), cache=False)
    with pytest.raises(DamagedCaptureError, match="no column deviceId"):
        trace.table("kernels", ["device"])
    assert trace.table("kernels", ["start_ns"]).height == trace.row_count("kernels")


def categories(names: pl.Series) -> list[str]:
    return [classify(name).category for name in names.to_list()]


def test_kernels_go_by_their_other_names(tmp_path: Path) -> None:
    whole = open_trace(DATA / "dataload.sqlite", cache=False).kernels
    less = open_trace(without(tmp_path, KERNELS, "demangledName"), cache=False)
    assert categories(less.kernels["name"]) == categories(whole["name"])
    assert "kernels are named by their other names" in less.meta.warnings[0]
    short = open_trace(without(tmp_path, KERNELS, "demangledName", "mangledName"), cache=False)
    assert short.kernels["name"].to_list() == whole["base_name"].to_list()
    none = without(tmp_path, KERNELS, "demangledName", "mangledName", "shortName")
    with pytest.raises(DamagedCaptureError, match="no column demangledName"):
        open_trace(none, cache=False).table("kernels", ["name"])


def test_a_capture_with_all_its_columns_has_no_warnings() -> None:
    for path in DATA.glob("*.sqlite"):
        assert open_trace(path, cache=False).meta.warnings == (), path


def test_rows_are_counted_where_no_column_asked_for_is_there(tmp_path: Path) -> None:
    path = tmp_path / "events.sqlite"
    db = sqlite3.connect(path)
    db.executescript(
        "CREATE TABLE StringIds (id INTEGER, value TEXT);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_CUDA_EVENT (somethingNew INTEGER);"
        "INSERT INTO CUPTI_ACTIVITY_KIND_CUDA_EVENT VALUES (1), (2)"
    )
    db.close()
    events = open_trace(path, cache=False).table("event_records", ["event"])
    assert events.to_series().to_list() == [None, None]


@pytest.mark.parametrize("end", ["NULL", "start - 1"])
def test_gpu_work_none_of_which_ended_has_no_times(tmp_path: Path, end: str) -> None:
    lost = f"UPDATE {KERNELS} SET end = {end}"
    trace = open_trace(without(tmp_path, KERNELS, "gridX", also=lost), cache=False)
    with pytest.raises(DamagedCaptureError, match=f"{KERNELS}: 370 of 370 rows cannot be used"):
        trace.table("kernels", ["end_ns"])
    assert not trace.has("kernels", "grid_x")


LIBRARY_TABLES = """
CREATE TABLE StringIds (id INTEGER, value TEXT);
INSERT INTO StringIds VALUES (1, 'MPI_Waitall'), (2, 'MPI_Allreduce'), (3, 'Parallel region'),
  (4, 'Enqueue Launch'), (5, 'jacobi.c'), (6, 'vkQueueSubmit'), (7, 'frame'), (8, 'Wait');
CREATE TABLE MPI_START_WAIT_EVENTS (start, end, globalTid, textId, requestHandle);
INSERT INTO MPI_START_WAIT_EVENTS VALUES
  (10, 20, 9, 1, 100), (10, 20, 9, 1, 101), (30, 40, 9, 1, 5);
CREATE TABLE MPI_COLLECTIVES_EVENTS (start, end, globalTid, textId);
INSERT INTO MPI_COLLECTIVES_EVENTS VALUES (50, 60, 9, 2);
CREATE TABLE OPENMP_EVENT_KIND_PARALLEL (start, end, eventClass, globalTid, nameId, eventKind);
INSERT INTO OPENMP_EVENT_KIND_PARALLEL VALUES (70, 80, 78, 9, 3, 28);
CREATE TABLE CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH (start, end, nameId, globalTid, lineNo, srcFile);
INSERT INTO CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH VALUES
  (90, 95, 4, 9, 17, 5), (96, 97, 8, 9, 0, NULL);
CREATE TABLE VULKAN_API (start, end, eventClass, globalTid, nameId);
INSERT INTO VULKAN_API VALUES (100, 110, 53, 9, 6);
CREATE TABLE KHR_DEBUG_EVENTS (eventClass, start, end, textId, globalTid);
INSERT INTO KHR_DEBUG_EVENTS VALUES (62, 120, 130, 7, 9), (63, 125, 135, 7, 9);
CREATE TABLE VULKAN_WORKLOAD (start, end, eventClass, globalTid, nameId, gpu);
INSERT INTO VULKAN_WORKLOAD VALUES (140, 150, 54, 9, 6, 1);
"""


def test_other_libraries_are_ranges_that_say_which(tmp_path: Path) -> None:
    path = tmp_path / "libraries.sqlite"
    with sqlite3.connect(path) as db:
        db.executescript(LIBRARY_TABLES)
    trace = open_trace(path, cache=False)
    columns = ["start_ns", "end_ns", "source", "category", "name"]
    assert trace.table("ranges", columns).rows() == [
        (10, 20, "MPI", "start-wait", "MPI_Waitall"),  # of two requests, but one call
        (30, 40, "MPI", "start-wait", "MPI_Waitall"),
        (50, 60, "MPI", "collectives", "MPI_Allreduce"),
        (70, 80, "OpenMP", "regions", "Parallel region"),
        (90, 95, "OpenACC", "regions", "Enqueue Launch@jacobi.c:17"),
        (96, 97, "OpenACC", "regions", "Wait"),
        (100, 110, "Vulkan", "calls", "vkQueueSubmit"),
        (120, 130, "OpenGL", "markers", "frame"),  # the range on the GPU is none of the host
    ]
    assert trace.row_count("ranges") == 8
    workload = trace.table("gpu_ranges", ["start_ns", "name", "kind", "device"])
    assert workload.rows() == [(140, "vkQueueSubmit", "workload", 1)]
    assert trace.meta.notes == ()


def test_ranges_of_nvtx_have_no_source() -> None:
    ranges = open_trace(DATA / "dataload.sqlite", cache=False).table("ranges", ["source", "record"])
    assert ranges["source"].null_count() == ranges.height
    assert ranges["record"].null_count() == 0


def test_chains_of_cuda_calls_numbered_from_one_belong_to_calls_numbered_from_zero(
    tmp_path: Path,
) -> None:
    """As nsys before 2022 has them; newer versions number both from 0."""
    path = Path(shutil.copy(DATA / "odd_cpu.sqlite", tmp_path / "old.sqlite"))
    db = sqlite3.connect(path)
    db.executescript("UPDATE CUDA_CALLCHAINS SET id = -1 - id; UPDATE CUDA_CALLCHAINS SET id = -id")
    db.commit()
    assert db.execute("SELECT min(id) FROM CUDA_CALLCHAINS").fetchone() == (1,)
    db.close()
    old, new = (open_trace(p, cache=False) for p in (path, DATA / "odd_cpu.sqlite"))
    assert old.callchains.equals(new.callchains)
    chains = old.callchains.filter(pl.col("source").cast(str) == "api_calls")
    named = old.api_calls.join(chains, on="callchain").filter(
        pl.col("symbol_right").cast(str) == pl.col("name").cast(str)
    )
    assert named["callchain"].n_unique() == old.api_calls["callchain"].drop_nulls().n_unique() == 56
