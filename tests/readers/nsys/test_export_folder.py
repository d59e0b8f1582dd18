"""Parquet and Arrow exports give the same model as the SQLite export of the same report."""

from __future__ import annotations

import io
import sqlite3
from pathlib import Path

import polars as pl
import pytest

from gpusight.errors import DamagedCaptureError
from gpusight.readers.nsys.columnar_files import parquet_bytes
from gpusight.readers.open import open_trace
from gpusight.readers.protobuf_wire import WireError
from gpusight.trace.schema import TABLES
from tests.shared import DATA

CAPTURES = [DATA / "graph_node.sqlite", DATA / "gpt_tiny_osrt.sqlite"]


def raw_tables(path: Path) -> dict[str, pl.DataFrame]:
    """Read an export's tables with the types that nsys gives its Parquet files."""
    db = sqlite3.connect(path)
    names = [n for (n,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    frames = {}
    for table in names:
        declared = db.execute(f"SELECT name, type FROM pragma_table_info('{table}')").fetchall()
        types = {"INTEGER": pl.Int64, "TEXT": pl.String, "REAL": pl.Float64}
        columns = {column: types[kind] for column, kind in declared}
        rows = db.execute(f"SELECT * FROM {table}").fetchall()
        frame = pl.DataFrame(rows, schema=columns, orient="row")
        wide = [c for c in ("globalPid", "globalTid") if c in columns]
        frames[table] = frame.with_columns(pl.col(wide).cast(pl.Int64).reinterpret(signed=False))
    db.close()
    return frames


def write_folder(frames: dict[str, pl.DataFrame], folder: Path, kind: str) -> Path:
    folder.mkdir()
    for table, frame in frames.items():
        if kind == "parquet":
            frame.write_parquet(folder / f"{table}.parquet")
        elif kind == "stream":
            frame.write_ipc_stream(folder / f"{table}.arrow", compat_level=pl.CompatLevel.oldest())
        else:
            frame.write_ipc(folder / f"{table}.arrow")
    return folder


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda p: p.stem)
@pytest.mark.parametrize("kind", ["parquet", "stream", "file"])
def test_folders_equal_sqlite(tmp_path: Path, capture: Path, kind: str) -> None:
    folder = write_folder(raw_tables(capture), tmp_path / "export", kind)
    ours, reference = open_trace(folder, cache=False), open_trace(capture, cache=False)
    ours.validate()
    for table in TABLES:
        assert ours.has(table) == reference.has(table), table
        assert ours.table(table).rows() == reference.table(table).rows(), table


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    folder = write_folder(raw_tables(DATA / "graph_node.sqlite"), tmp_path / "export", "parquet")
    file = folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(DamagedCaptureError, match=r"CUPTI_ACTIVITY_KIND_KERNEL\.parquet"):
        open_trace(folder, cache=False).validate()


def test_integers_that_became_floats(tmp_path: Path) -> None:
    """What pandas makes of an integer column with nulls."""
    frames = raw_tables(DATA / "graph_node.sqlite")
    kernels = frames["CUPTI_ACTIVITY_KIND_KERNEL"]
    ids = [c for c in kernels.columns if c != "start"]
    frames["CUPTI_ACTIVITY_KIND_KERNEL"] = kernels.with_columns(pl.col(ids).cast(pl.Float64))
    trace = open_trace(write_folder(frames, tmp_path / "export", "parquet"), cache=False)
    trace.validate()
    expected = open_trace(DATA / "graph_node.sqlite", cache=False)
    columns = ["start_ns", "name", "grid_x", "correlation"]
    assert trace.table("kernels", columns).rows() == expected.table("kernels", columns).rows()


def kernels_changed(folder: Path, **columns: pl.Expr) -> Path:
    frames = raw_tables(DATA / "graph_node.sqlite")
    kernels = frames["CUPTI_ACTIVITY_KIND_KERNEL"]
    frames["CUPTI_ACTIVITY_KIND_KERNEL"] = kernels.with_columns(**columns)
    return write_folder(frames, folder / "export", "parquet")


@pytest.mark.parametrize("value", [pl.lit("text"), pl.lit(None), pl.lit(0.5)])
def test_a_time_column_of_another_type_is_damage(tmp_path: Path, value: pl.Expr) -> None:
    folder = kernels_changed(tmp_path, start=value)
    with pytest.raises(DamagedCaptureError, match="360 of 360 rows cannot be used"):
        open_trace(folder, cache=False).table("kernels", ["name"])


@pytest.mark.parametrize("value", [pl.lit("text"), pl.lit(0.5)])
def test_another_column_of_another_type_counts_as_missing(tmp_path: Path, value: pl.Expr) -> None:
    trace = open_trace(kernels_changed(tmp_path, gridX=value), cache=False)
    trace.validate()
    assert trace.kernels["grid_x"].null_count() == trace.kernels.height == 360
    assert "360 of 360 values of gridX are not integers" in trace.warnings[0]


def test_fractions_among_times_are_left_out_and_counted(tmp_path: Path) -> None:
    half = pl.when(pl.int_range(pl.len()) < 3).then(pl.col("end") + 0.5).otherwise(pl.col("end"))
    trace = open_trace(kernels_changed(tmp_path, end=half), cache=False)
    trace.validate()
    assert trace.row_count("kernels") == trace.kernels.height == 357
    assert "3 of 360 rows left out: 3 have no number as end" in trace.warnings[0]


def test_a_cut_single_file_export(tmp_path: Path) -> None:
    stream = io.BytesIO()
    pl.DataFrame({"id": [1]}).write_ipc_stream(stream)
    path = tmp_path / "cut.arrow"
    path.write_bytes(stream.getvalue()[:-20])
    with pytest.raises(DamagedCaptureError, match="nsys Arrow export"):
        open_trace(path, cache=False)


def test_a_footer_of_other_types_is_damage(tmp_path: Path) -> None:
    """Fields of Parquet's footer by number: here, the list of row groups is a number."""
    footer = b"\x45\x02\x00"  # field 4 (row groups) = 1, end
    path = tmp_path / "made.parquet"
    path.write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(WireError, match="another type"):
        parquet_bytes(path)


def test_strings_of_other_types_are_texts(tmp_path: Path) -> None:
    frames = raw_tables(DATA / "graph_node.sqlite")
    strings = frames["StringIds"]
    frames["StringIds"] = strings.select(pl.col("id").cast(pl.String), value=pl.lit(7))
    frames["ThreadNames"] = frames["ThreadNames"].with_columns(pl.col("nameId").cast(pl.String))
    trace = open_trace(write_folder(frames, tmp_path / "export", "parquet"), cache=False)
    assert trace.table("kernels", ["name"]).to_series().cast(pl.String).unique().to_list() == ["7"]
    assert "7" in trace.table("threads")["name"].cast(pl.String).to_list()
