"""A native report gives the same model as nsys's own SQLite export of it, in every column."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from gpusight.readers.open import open_trace
from gpusight.trace.schema import TABLES
from tests.shared import DATA, SHARED, name

PAIRS = [
    *((DATA / f"{stem}.nsys-rep", DATA / f"{stem}.sqlite") for stem in ("odd_node", "odd_cpu")),
    *(
        (report, export)
        for report in sorted(SHARED.glob("public/nsys/*.nsys-rep"))
        for export in report.parent.glob(f"{report.stem}.paired-*.sqlite")
    ),
]

# nsys 2025.3 and older have no table for these events of the report.
ONLY_IN_REPORTS = {"overheads": ("Runtime Triggered Module Loading", "Lazy Function Loading")}
# Columns that exports of that age lack, though the report has the values.
NEWER_COLUMNS = {"kernels": {"graph", "cluster_x", "cluster_y", "cluster_z"}}


@pytest.mark.parametrize(("report", "export"), PAIRS, ids=[name(report) for report, _ in PAIRS])
@pytest.mark.parametrize("table", TABLES)
def test_same_rows_in_every_column(report: Path, export: Path, table: str) -> None:
    ours, theirs = open_trace(report, cache=False), open_trace(export, cache=False)
    assert ours.has(table) == theirs.has(table)
    drop = NEWER_COLUMNS.get(table, set())
    columns = [c for c in TABLES[table].column_names if c not in drop]
    rows = ours.table(table, columns)
    if table in ONLY_IN_REPORTS:
        extra = pl.col("name").cast(pl.String).is_in(ONLY_IN_REPORTS[table])
        rows = rows.filter(~extra)
    assert rows.rows() == theirs.table(table, columns).rows()


OF_OTHERS = {
    "code_lines",
    "collectives",
    "counter_instances",
    "counters",
    "cpu_ops",
    "gpu_ranges",
    "memory_blocks",
    "op_totals",
    "process_groups",
    "profiles",
    "python_calls",
    "rule_results",
    "source_files",
}
"""Tables that no capture of nsys fills."""


def test_the_pairs_hold_one_of_everything() -> None:
    """What the two small captures were made for; a reader that lost a table would pass above."""
    held = {t for report, _ in PAIRS[:2] for t in TABLES if open_trace(report, cache=False).has(t)}
    assert set(TABLES) - held - OF_OTHERS == {"gpu_metrics"}
