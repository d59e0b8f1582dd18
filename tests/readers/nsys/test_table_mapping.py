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
