"""The files of the pipeline as text: the kernel-info file, and the tables on the way to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.counters.quantities import DRAM_SHARE, REGISTERS, SM_SHARE, STATIC_SHARED
from gpusight.analyses.orion.blocks import SM_NEEDED
from gpusight.analyses.orion.classes import INTENSITY, PROFILE

if TYPE_CHECKING:
    from collections.abc import Mapping

HEADER = ("Name", "Profile", "Memory_footprint", "SM_usage", "Duration")
SHAPE_HEADER = ("Block", "Grid")
"""What files with seven columns have besides."""
_ROW_KEYS = ("name", PROFILE, "memory_footprint", SM_NEEDED, "duration_ns", "block", "grid")

_THREADS = pl.col("block") * pl.col("grid")
_PROCESSED: Mapping[str, pl.Expr] = {
    "Kernel_Name": pl.col("name"),
    "DRAM_Throughput(%)": pl.col(DRAM_SHARE.key) * 100,
    "Duration(ns)": pl.col("duration_ns"),
    "Compute(SM)(%)": pl.col(SM_SHARE.key) * 100,
    "Block": pl.col("block"),
    "Grid": pl.col("grid"),
    "Registers_Per_Thread": pl.col(REGISTERS.key),
    "Static_shmem_per_block": pl.col(STATIC_SHARED.key),
    "Number_of_threads": _THREADS,
    "Number_of_registers": _THREADS * pl.col(REGISTERS.key),
}
_SMS = {**_PROCESSED, "SM_needed": pl.col(SM_NEEDED)}
_ROOFLINE = {**_SMS, "AI(flops/bytes)": pl.col(INTENSITY), "Roofline_prof": pl.col(PROFILE)}
TABLES: Mapping[str, Mapping[str, pl.Expr]] = {
    "output_ncu_processed.csv": _PROCESSED,
    "output_ncu_sms.csv": _SMS,
    "output_ncu_sms_roofline.csv": _ROOFLINE,
}
"""The tables on the way, by the names that the original scripts give them."""


def kernel_info(rows: pl.DataFrame, columns: int) -> str:
    """Write the file that the scheduler reads; it knows no quotes, so names have no commas."""
    header = (*HEADER, *SHAPE_HEADER)[:columns]
    keys = _ROW_KEYS[:columns]
    lines = [",".join(_cell(row[key]) for key in keys) for row in rows.iter_rows(named=True)]
    return "\n".join([",".join(header), *lines]) + "\n"


def table_texts(launches: pl.DataFrame) -> dict[str, str]:
    """Write the tables on the way as CSV, by the name of their file."""
    return {
        name: launches.select(e.alias(c) for c, e in columns.items()).write_csv()
        for name, columns in TABLES.items()
    }


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3f}".rstrip("0").rstrip(".")
