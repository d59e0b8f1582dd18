"""Rows that cannot be used: counted, left out of every column, and named in every output."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusight import api
from gpusight.cli.main import main
from gpusight.errors import DamagedCaptureError, NotACaptureError
from gpusight.readers.nsys.raw_tables import process_of
from gpusight.readers.open import open_trace
from gpusight.readers.tables import encode_names, gather_names
from tests.readers.nsys.test_sqlite_export import KERNEL_COLUMNS, build, strings
from tests.shared import DATA

KERNELS, CALLS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
TIMES = f"CREATE TABLE {KERNELS} ({KERNEL_COLUMNS})"


def changed(folder: Path, *statements: str) -> Path:
    """Copy a capture of 370 kernels and change it."""
    path = Path(shutil.copy(DATA / "dataload.sqlite", folder / "changed.sqlite"))
    db = sqlite3.connect(path)
    db.executescript(";".join(statements))
    db.close()
    return path


@pytest.fixture
def backwards(tmp_path: Path) -> Path:
    """Give a capture of which three kernels end before they start."""
    return changed(tmp_path, f"UPDATE {KERNELS} SET end = start - 1 WHERE rowid <= 3")


LEFT_OUT = f"{KERNELS}: 3 of 370 rows left out: 3 end before they start"


@pytest.mark.parametrize(
    "command",
    ["summary", "kernels", "info", "ledger", "diagnose", "launches", "steps", "timeline"],
)
@pytest.mark.parametrize("form", ["table", "json", "markdown"])
def test_every_answer_says_it(
    backwards: Path, command: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(backwards), "--format", form, "--no-cache"]) == 0
    output = " ".join(capsys.readouterr().out.replace("\\", "").split())
    assert LEFT_OUT in output


@pytest.mark.parametrize(
    "arguments",
    [
        ["kernels", "--format", "csv"],
        ["sql", "SELECT count(*) AS n FROM kernels", "--format", "csv"],
        ["stats", "-r", "cuda_gpu_kern_sum", "--format", "csv"],
        ["compare", "--format", "csv"],
        ["diagnose", "--format", "csv"],
        ["ledger", "--format", "csv"],
    ],
)
def test_outputs_without_room_for_notes_say_it_on_standard_error(
    backwards: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command, *others = arguments
    files = [str(backwards)] * (2 if command == "compare" else 1)
    assert main([command, *files, *others, "--no-cache"]) == 0
    captured = capsys.readouterr()
    assert LEFT_OUT in captured.err
    assert LEFT_OUT not in captured.out


def test_exports_and_pages_say_it(
    backwards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "kernels.csv"
    export = ["export", str(backwards), "--to", "csv", "--tables", "kernels", "-o", str(out)]
    assert main([*export, "--no-cache"]) == 0
    assert LEFT_OUT in capsys.readouterr().err
    assert len(out.read_text().splitlines()) == 1 + 367
    page = tmp_path / "report.html"
    assert main(["report", str(backwards), "-o", str(page), "--no-cache"]) == 0
    assert LEFT_OUT in page.read_text()
    assert LEFT_OUT in api.kernels(open_trace(backwards, cache=False)).answer.notes


def test_counts_and_totals_agree(backwards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = sqlite3.connect(backwards)
    count, total = db.execute(
        f"SELECT count(*), sum(end - start) FROM {KERNELS} WHERE end >= start"
    ).fetchone()
    db.close()
    main(["kernels", str(backwards), "--format", "json", "--no-cache"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert sum(row["calls"] for row in rows) == count == 367
    assert sum(row["total_ns"] for row in rows) == total
    trace = open_trace(backwards, cache=False)
    assert trace.row_count("kernels") == count  # before any column is read
    assert "kernels: 367" in repr(trace)


def test_calls_without_an_end_count_as_instants(tmp_path: Path) -> None:
    path = changed(
        tmp_path,
        # Made anew: nsys declares that ends are never null.
        f"CREATE TABLE calls AS SELECT * FROM {CALLS}; DROP TABLE {CALLS}",
        f"ALTER TABLE calls RENAME TO {CALLS}",
        f"UPDATE {CALLS} SET end = NULL WHERE rowid = 1",
        f"UPDATE {CALLS} SET end = 9223372036854775807 WHERE rowid = 2",
        f"UPDATE {CALLS} SET end = start - 5 WHERE rowid = 3",
        f"UPDATE {CALLS} SET end = 'soon' WHERE rowid = 4",
    )
    trace = open_trace(path, cache=False)
    trace.validate()
    rows = trace.row_count("api_calls")
    why = "1 ends before it starts, 1 has no number as end"
    assert trace.warnings == (
        f"{CALLS}: 2 of {rows:,} rows have no end and count as 0 ns",
        f"{CALLS}: 2 of {rows + 2:,} rows left out: {why}",
    )


def test_an_open_range_is_cut_but_one_that_runs_backwards_is_left_out(tmp_path: Path) -> None:
    path = build(
        tmp_path / "c.sqlite",
        strings("k"),
        "CREATE TABLE ANALYSIS_DETAILS (duration INTEGER)",
        "INSERT INTO ANALYSIS_DETAILS VALUES (1000)",
        "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT,"
        " globalTid INTEGER, domainId INTEGER)",
        "INSERT INTO NVTX_EVENTS VALUES (1, 50, 59, 'a', 1, 0), (2, NULL, 59, 'open', 1, 0),"
        " (3, 9223372036854775807, 59, 'open', 1, 0), (4, 3, 59, 'back', 1, 0),"
        " (5, 0, 34, 'mark', 1, 0), (6, 9, NULL, 'of no kind', 1, 0), (7, 9, 'x', 'none', 1, 0)",
    )
    trace = open_trace(path, cache=False)
    trace.validate()
    assert trace.table("ranges", ["start_ns", "end_ns", "open", "record"]).rows() == [
        (1, 50, False, 1),
        (2, 1000, True, 2),
        (3, 1000, True, 3),
        (5, 5, False, 5),
    ]
    assert trace.warnings == (
        "NVTX_EVENTS: 3 of 7 rows left out: 2 have no number as eventType, 1 ends before it starts",
    )


@pytest.mark.parametrize("size", ["-1", "NULL", "'many'", "4611686018427387904"])
def test_copies_of_an_impossible_size_are_left_out(tmp_path: Path, size: str) -> None:
    path = build(
        tmp_path / "c.sqlite",
        strings("k"),
        "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER,"
        " bytes INTEGER, copyKind INTEGER)",
        f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1, 2, 0, 8, 1), (3, 4, 0, {size}, 1)",
    )
    trace = open_trace(path, cache=False)
    trace.validate()
    assert trace.copies["bytes"].to_list() == [8]
    assert "1 of 2 rows left out: 1 has" in trace.warnings[0]
    assert "bytes" in trace.warnings[0]


def test_other_values_that_nothing_can_mean_are_missing(tmp_path: Path) -> None:
    path = changed(
        tmp_path,
        f"UPDATE {KERNELS} SET staticSharedMemory = -5, gridX = -1 WHERE rowid = 1",
        f"UPDATE {KERNELS} SET correlationId = x'00ff' WHERE rowid = 2",
    )
    trace = open_trace(path, cache=False)
    trace.validate()
    kernels = trace.table("kernels", ["grid_x", "static_shared_bytes", "correlation"])
    assert kernels.height == 370
    assert kernels.null_count().row(0) == (1, 1, 1)
    assert f"{KERNELS}: 1 of 370 values of correlationId is not an integer" in trace.warnings[0]
    assert f"{KERNELS}: 1 of 370 values of grid_x out of range" in " ".join(trace.warnings)


def test_whole_numbers_stored_as_reals_are_numbers(tmp_path: Path) -> None:
    """What pandas makes of an integer column with nulls."""
    path = build(
        tmp_path / "c.sqlite",
        strings("k"),
        TIMES.replace("INTEGER", "REAL"),
        f"INSERT INTO {KERNELS} VALUES (1.0, 2.0, 0.0, 1.0, 7.0, 1.0, 0.0, 0.0, 0.0)",
    )
    trace = open_trace(path, cache=False)
    trace.validate()
    assert trace.kernels["end_ns"].to_list() == [2]
    assert trace.warnings == ()


def test_an_index_does_not_change_the_order_of_a_column(tmp_path: Path) -> None:
    path = build(
        tmp_path / "c.sqlite",
        strings("k"),
        TIMES,
        f"CREATE INDEX by_stream ON {KERNELS} (streamId)",
        f"INSERT INTO {KERNELS} VALUES (1, 2, 0, 1, 9, 1, 0, 0, 0), (3, 4, 0, 1, 8, 2, 0, 0, 0)",
    )
    trace = open_trace(path, cache=False)
    assert trace.table("kernels", ["start_ns"]).to_series().to_list() == [1, 3]
    assert trace.table("kernels", ["stream"]).to_series().to_list() == [9, 8]


# Tables that are none ----------------------------------------------------------------------------


def test_a_view_in_place_of_a_table_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(
        tmp_path,
        f"ALTER TABLE {KERNELS} RENAME TO hidden",
        f"CREATE VIEW {KERNELS} AS SELECT * FROM hidden",
        "CREATE VIEW of_another_program AS SELECT 1",
    )
    trace = open_trace(path, cache=False)
    assert not trace.has("kernels")
    assert trace.warnings[0].startswith(f"{KERNELS} is a view or virtual, not read; to read it")
    assert "of_another_program" not in trace.warnings[0]
    main(["summary", str(path), "--no-cache"])
    assert f"{KERNELS} is a view" in "".join(capsys.readouterr())


def test_nothing_but_views_is_no_capture(tmp_path: Path) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n) SELECT i AS start"
    path = build(tmp_path / "c.sqlite", f"CREATE VIEW {KERNELS} AS {endless} FROM n")
    with pytest.raises(NotACaptureError, match=f"{KERNELS} is a view"):
        open_trace(path, cache=False)


def test_a_virtual_table_is_not_read_and_a_table_without_row_ids_is(tmp_path: Path) -> None:
    path = build(
        tmp_path / "c.sqlite",
        strings("k"),
        "CREATE VIRTUAL TABLE NVTX_EVENTS USING fts5(start, text)",
        f"{TIMES[:-1]}, PRIMARY KEY (correlationId)) WITHOUT ROWID",
        f"INSERT INTO {KERNELS} VALUES (1, 2, 0, 1, 7, 1, 0, 0, 0), (3, 4, 0, 1, 7, 2, 0, 0, 0)",
    )
    trace = open_trace(path, cache=False)
    assert trace.kernels.height == 2
    assert not trace.has("ranges")
    assert "NVTX_EVENTS is a view or virtual" in trace.warnings[0]


def test_a_generated_column_is_not_computed(tmp_path: Path) -> None:
    columns = KERNEL_COLUMNS.replace("end INTEGER", "end INTEGER AS (start + 1)")
    path = build(
        tmp_path / "c.sqlite",
        strings("k"),
        f"CREATE TABLE {KERNELS} ({columns})",
        f"INSERT INTO {KERNELS} VALUES (1, 0, 1, 7, 1, 0, 0, 0)",
    )
    trace = open_trace(path, cache=False)
    assert f"{KERNELS} has no column end: kernels cannot be read" in trace.warnings
    with pytest.raises(DamagedCaptureError, match="no column end"):
        trace.table("kernels", ["end_ns"])


def test_columns_that_take_the_names_of_row_ids(tmp_path: Path) -> None:
    path = build(
        tmp_path / "c.sqlite",
        strings("k"),
        f"{TIMES[:-1]}, rowid TEXT, oid INTEGER)",
        f"INSERT INTO {KERNELS} VALUES (1, 2, 0, 1, 7, 1, 0, 0, 0, 'z', NULL)",
    )
    assert open_trace(path, cache=False).kernels.height == 1


def test_rows_far_apart_are_read_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpusight.readers.nsys.sqlite_export._PIECE_ROWS", 7)
    ids = [-(1 << 62), *range(20), *range(1 << 40, (1 << 40) + 20), (1 << 63) - 1]
    db = sqlite3.connect(tmp_path / "c.sqlite")
    db.executescript(f"{strings('k')}; {TIMES}")
    db.executemany(
        f"INSERT INTO {KERNELS} (rowid, start, end, deviceId, correlationId, demangledName)"
        " VALUES (?, ?, ?, 0, ?, 0)",
        [(number, place, place + 1, place) for place, number in enumerate(ids)],
    )
    db.commit()
    db.close()
    trace = open_trace(tmp_path / "c.sqlite", cache=False)
    assert (
        trace.table("kernels", ["correlation"])
        .to_series()
        .equals(pl.Series("correlation", range(len(ids)), dtype=pl.Int64))
    )


DURATION = "CREATE TABLE ANALYSIS_DETAILS (duration INTEGER); INSERT INTO ANALYSIS_DETAILS VALUES"


def test_gpu_work_that_ends_after_the_capture(tmp_path: Path) -> None:
    rows = ", ".join(f"({10 * i}, {10 * i + 5}, 0, 1, 7, {i}, 0, 0, 0)" for i in range(9))
    hour_ns = 3600 * 10**9
    path = build(
        tmp_path / "c.sqlite",
        strings("k"),
        TIMES,
        f"INSERT INTO {KERNELS} VALUES {rows}, (95, {hour_ns}, 0, 1, 7, 9, 0, 0, 0)",
        *f"{DURATION} (1000)".split(";"),
    )
    trace = open_trace(path, cache=False)
    assert trace.kernels.height == 9
    assert trace.warnings == (
        f"{KERNELS}: 1 of 10 rows left out: 1 has an end after the capture ended",
    )


def test_a_capture_that_says_it_ended_before_most_of_its_work(tmp_path: Path) -> None:
    late_ns = 5 * 10**9
    rows = ", ".join(f"({late_ns + i}, {late_ns + i + 1}, 0, 1, 7, {i}, 0, 0, 0)" for i in range(9))
    path = build(
        tmp_path / "c.sqlite",
        strings("k"),
        TIMES,
        f"INSERT INTO {KERNELS} VALUES {rows}",
        *f"{DURATION} (1)".split(";"),
    )
    trace = open_trace(path, cache=False)
    assert trace.kernels.height == 9
    assert trace.warnings == (
        f"{KERNELS}: most rows are later than the end of the capture: some times are wrong",
    )


def test_warnings_are_in_the_same_order_whichever_table_is_read_first(tmp_path: Path) -> None:
    path = changed(
        tmp_path,
        f"UPDATE {KERNELS} SET end = 'x' WHERE rowid = 1",
        f"UPDATE {CALLS} SET end = 'x' WHERE rowid = 1",
    )
    orders = (("kernels", "api_calls"), ("api_calls", "kernels"))
    result = []
    for tables in orders:
        with open_trace(path, cache=False) as trace:
            for table in tables:
                trace.table(table)
            result.append(trace.warnings)
    assert len(result[0]) == 2
    assert result[0] == result[1]


IDS = st.lists(st.none() | st.integers(-3, 3), max_size=12)


@given(IDS, st.integers(1, 8), st.sampled_from([0, 7, -5, 10**6]))
def test_names_of_ids_are_those_of_each_id(ids: list[int | None], copies: int, low: int) -> None:
    column = pl.Series([None if n is None else n + low for n in ids] * copies, dtype=pl.Int64)
    used = column.unique().drop_nulls()
    names = encode_names(pl.Series([f"name {n}" for n in used], dtype=pl.String))
    expected = [None if n is None else f"name {n}" for n in column]
    assert gather_names(names, used, column).cast(pl.String).to_list() == expected


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=5), st.integers(1, 3))
def test_a_process_is_in_the_middle_bits_of_an_id(ids: list[int | None], copies: int) -> None:
    expected = [None if n is None else n >> 24 & (1 << 40) - 1 for n in ids * copies]
    assert process_of(pl.Series(ids * copies, dtype=pl.Int64)).to_list() == expected
