"""Traces of training jobs as one Parquet file: operations of all workers by step.

The format is that of the public straggler study of ByteDance (OSDI 2025). A file is recognized by
its columns, never by its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.errors import DamagedCaptureError, NotACaptureError
from gpusight.readers.file_blocks import max_unpacked_bytes
from gpusight.readers.guarded_source import reading
from gpusight.readers.nsys.columnar_files import parquet_bytes
from gpusight.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


_MAGIC = b"PAR1"
_COLUMNS = frozenset(
    ("step", "rank", "dp_rank", "stage", "optype", "seq_id", "mc", "mb_id", "start_ts", "duration")
)
JOB_COLUMNS: Mapping[str, tuple[type[pl.DataType], str]] = {
    "step": (pl.Int64, "Training step"),
    "rank": (pl.Int64, "Global rank of the worker"),
    "dp_rank": (pl.Int64, "Data-parallel rank of the worker"),
    "stage": (pl.Int64, "Pipeline stage of the worker"),
    "operation": (pl.String, "Type of the operation, such as `forward-compute`"),
    "sequence": (pl.Int64, "Number among the operations of this type, worker and step, from 0"),
    "chunk": (pl.Int64, "Model chunk within the stage (virtual pipeline); null where it has none"),
    "microbatch": (pl.Int64, "Microbatch of a forward or backward pass; null for others"),
    "start_ns": (pl.Int64, "Start, from the beginning of the step"),
    "end_ns": (pl.Int64, "End, on the same clock"),
}
"""Columns of a job's table: type and meaning."""
_MAX_SECONDS = 1e7
"""Times are seconds since the beginning of a step: none lasts months."""
_KEY = ["step", "dp_rank", "stage", "operation", "sequence"]


def is_job_trace(path: Path) -> bool:
    """Return whether a file is a job trace: a Parquet table with the columns of one."""
    if not path.is_file():
        return False
    with reading(path):
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                return False
        return set(pl.read_parquet_schema(path)) >= _COLUMNS


def read_job_operations(path: Path) -> pl.DataFrame:
    """Read the operations of a job, with the columns of `JOB_COLUMNS`."""
    if not is_job_trace(path):
        raise NotACaptureError(
            f"{path} is not a job trace",
            why=f"a Parquet table with these columns is needed: {', '.join(sorted(_COLUMNS))}",
        )
    with reading(path):
        _check_size(path)
        rows = pl.read_parquet(path, columns=sorted(_COLUMNS))
        _check_values(path, rows)
        start = pl.col("start_ts").cast(pl.Float64)
        table = job_table(
            {
                "step": pl.col("step"),
                "rank": pl.col("rank"),
                "dp_rank": pl.col("dp_rank"),
                "stage": pl.col("stage"),
                "operation": pl.col("optype"),
                "sequence": pl.col("seq_id"),
                "chunk": _known(pl.col("mc")),
                "microbatch": _known(pl.col("mb_id")),
                "start_ns": (start * 1e9).round(),
                "end_ns": ((start + pl.col("duration").cast(pl.Float64)) * 1e9).round(),
            },
            rows,
        )
    if table.select(_KEY).is_duplicated().any():
        raise DamagedCaptureError(
            f"{path} contradicts itself", why="it has an operation of a worker and step twice"
        )
    return table


def _known(number: pl.Expr) -> pl.Expr:
    """Return a number, and null for the -1 that means none."""
    return pl.when(number >= 0).then(number)


def _check_size(path: Path) -> None:
    """Refuse a file that takes more memory than its size warrants."""
    unpacked_bytes = parquet_bytes(path)
    if unpacked_bytes > max_unpacked_bytes(path.stat().st_size):
        raise DamagedCaptureError(
            f"{path} cannot be read", why=f"it would expand to {format_bytes(unpacked_bytes)}"
        )


def _check_values(path: Path, rows: pl.DataFrame) -> None:
    """Refuse what no simulation can use: no rows, missing keys, times that are none."""
    if rows.is_empty():
        raise DamagedCaptureError(f"{path} is empty", why="it has no operations")
    keys = ["step", "rank", "dp_rank", "stage", "optype", "seq_id"]
    missing = [name for name in (*keys, "start_ts", "duration") if rows[name].null_count()]
    if missing:
        raise DamagedCaptureError(
            f"{path} contradicts itself", why=f"values are missing in {', '.join(missing)}"
        )
    times = rows.select(
        pl.col("start_ts").cast(pl.Float64).is_between(-_MAX_SECONDS, _MAX_SECONDS).all(),
        pl.col("duration").cast(pl.Float64).is_between(0, _MAX_SECONDS).all(),
    )
    # NaN is between nothing, so it is refused too.
    if not all(times.row(0)):
        raise DamagedCaptureError(
            f"{path} contradicts itself", why="an operation has a negative or impossible time"
        )


def job_table(columns: Mapping[str, pl.Expr], rows: pl.LazyFrame | pl.DataFrame) -> pl.DataFrame:
    """Return the table with all columns in their types, sorted by step, worker and start."""
    typed = [columns[name].cast(kind).alias(name) for name, (kind, _) in JOB_COLUMNS.items()]
    order = ["step", "stage", "dp_rank", "start_ns", "end_ns", "operation", "sequence"]
    return rows.lazy().select(typed).sort(order).collect()
