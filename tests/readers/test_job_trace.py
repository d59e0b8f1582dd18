"""Job traces: recognized by their columns, refused where they contradict themselves."""

from __future__ import annotations

from pathlib import Path
from random import Random

import polars as pl
import pytest

from gpusight.errors import CaptureError, DamagedCaptureError, NotACaptureError
from gpusight.readers.job_trace import JOB_COLUMNS, is_job_trace, read_job_operations
from tests.shared import DATA

ROWS = pl.DataFrame(
    {
        "dp_rank": [0, 1, 0],
        "stage": [0, 0, 0],
        "rank": [0, 8, 0],
        "step": [5, 5, 5],
        "optype": pl.Series(["forward-compute", "forward-compute", "optimizer"]).cast(
            pl.Categorical
        ),
        "start_ts": pl.Series([0.0, 0.25, 1.5], dtype=pl.Float32),
        "duration": pl.Series([1.0, 0.5, 0.125], dtype=pl.Float32),
        "seq_id": [0, 0, 0],
        "mc": [0, 0, -1],
        "mb_id": [2, 0, -1],
        "gmc": [0, 0, -1],
    }
)


def written(folder: Path, rows: pl.DataFrame) -> Path:
    path = folder / "job.parquet"
    rows.write_parquet(path)
    return path


def test_a_job_becomes_a_table(tmp_path: Path) -> None:
    path = written(tmp_path, ROWS)
    assert is_job_trace(path)
    table = read_job_operations(path)
    assert dict(table.schema) == {name: kind() for name, (kind, _) in JOB_COLUMNS.items()}
    assert table.rows() == [
        (5, 0, 0, 0, "forward-compute", 0, 0, 2, 0, 1_000_000_000),
        (5, 0, 0, 0, "optimizer", 0, None, None, 1_500_000_000, 1_625_000_000),
        (5, 8, 1, 0, "forward-compute", 0, 0, 0, 250_000_000, 750_000_000),
    ]


def test_other_files_are_no_jobs(tmp_path: Path) -> None:
    other = written(tmp_path, ROWS.drop("mb_id"))
    for path in (other, tmp_path, *sorted(DATA.glob("*.sqlite"))[:1]):
        assert not is_job_trace(path)
    with pytest.raises(NotACaptureError, match=r"not a job trace.*mb_id"):
        read_job_operations(other)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (ROWS.clear(), "no operations"),
        (pl.concat([ROWS, ROWS[:1]]), "twice"),
        (ROWS.with_columns(duration=-pl.col("duration")), "impossible time"),
        (ROWS.with_columns(start_ts=pl.lit(float("nan"))), "impossible time"),
        (ROWS.with_columns(duration=pl.lit(float("inf"))), "impossible time"),
        (ROWS.with_columns(rank=pl.lit(None, pl.Int16)), "missing in rank"),
        (ROWS.with_columns(start_ts=pl.lit("soon")), "cannot be read"),
    ],
)
def test_damaged_jobs_say_why(tmp_path: Path, rows: pl.DataFrame, reason: str) -> None:
    with pytest.raises(DamagedCaptureError, match=reason):
        read_job_operations(written(tmp_path, rows))


def test_damaged_bytes_never_end_in_another_error(tmp_path: Path) -> None:
    path = written(tmp_path, ROWS)
    whole, random = path.read_bytes(), Random(3)
    refused = 0
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(random.randint(1, 4)):
            damaged[random.randrange(4, len(damaged))] = random.randrange(256)
        path.write_bytes(damaged)
        try:
            read_job_operations(path)
        except CaptureError:
            refused += 1
    assert refused > 50


def test_cut_off_jobs_say_so(tmp_path: Path) -> None:
    path = written(tmp_path, ROWS)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DamagedCaptureError, match="cannot be read"):
        read_job_operations(path)
