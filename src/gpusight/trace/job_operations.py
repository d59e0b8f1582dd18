"""The table of a whole job: which worker did which operation, when, in which step.

A job trace has no kernels: one row is a forward or backward pass of a microbatch, a transfer
between pipeline stages, or a collective, on one worker. Rows of one step share a clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def job_table(columns: Mapping[str, pl.Expr], rows: pl.LazyFrame | pl.DataFrame) -> pl.DataFrame:
    """Return the table with all columns in their types, sorted by step, worker and start."""
    typed = [columns[name].cast(kind).alias(name) for name, (kind, _) in JOB_COLUMNS.items()]
    order = ["step", "stage", "dp_rank", "start_ns", "end_ns", "operation", "sequence"]
    return rows.lazy().select(typed).sort(order).collect()
