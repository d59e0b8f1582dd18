"""What a kernel-info file holds, and what became of every launch, as an answer to show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analyses.orion.blocks import SM_NEEDED
from gpusight.analyses.orion.classes import CLASS_NAMES, INTENSITY, PROFILE
from gpusight.analyses.orion.launches import COMMAND
from gpusight.model.kernel_names import classify
from gpusight.result import Composite, Fact, Field, Fmt, TableResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.analyses.orion.rows import Rows

_TIME = Field("duration_ns", "Time", Fmt.TIME, "Time on the GPU")
_KERNEL = Field("kernel", "Kernel", Fmt.NAME, "Readable label made from the name")
_NAME = Field("name", "Full name", Fmt.NAME, "Name with template arguments", shown=False)
_PROFILE = Field(PROFILE, "Profile", Fmt.ID, "1 compute, 0 memory, -1 neither")

CLASS_FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Part of the time in the file"),
    _TIME,
    Field("rows", "Rows", Fmt.COUNT, "Rows of this class"),
    _PROFILE,
    Field("class", "Bound by", Fmt.TEXT, "What the profile stands for"),
)
LEFT_OUT_FIELDS = (
    _TIME,
    Field("launch", "Launch", Fmt.ID, "Number of the launch in the report"),
    Field("why", "Why", Fmt.TEXT, "What it is"),
    _KERNEL,
    _NAME,
)
ROW_FIELDS = (
    Field("name", "Name", Fmt.NAME, "Name in the file"),
    _PROFILE,
    Field("memory_footprint", "Memory", Fmt.COUNT, "Always 0: the scheduler does not use it"),
    Field(SM_NEEDED, "SMs", Fmt.COUNT, "SMs that hold all blocks at once, also beyond the GPU's"),
    _TIME,
    Field("block", "Block", Fmt.COUNT, "Threads of a block of the launch that names the row"),
    Field("grid", "Grid", Fmt.COUNT, "Blocks of that launch"),
    Field("launches", "Launches", Fmt.COUNT, "Launches merged into the row"),
    Field("first_launch", "From", Fmt.ID, "Number of the first of them"),
)
LAUNCH_FIELDS = (
    Field("launch", "Launch", Fmt.ID, "Number of the launch in the report"),
    Field("row", "Row", Fmt.ID, "Row of the file that it is part of, from 0; null for none"),
    Field(PROFILE, "Profile", Fmt.ID, "Its own class: 1 compute, 0 memory, -1 neither"),
    Field(INTENSITY, "FLOP/B", Fmt.REAL, "FLOPs for each byte of DRAM; null when not known"),
    Field(SM_NEEDED, "SMs", Fmt.COUNT, "SMs that hold all of its blocks at once"),
    _TIME,
    _KERNEL,
    _NAME,
)


def summarise(
    launches: pl.DataFrame,
    rows: pl.DataFrame,
    found: Rows,
    differences: TableResult | None,
    *,
    meta: Mapping[str, Any],
    notes: tuple[str, ...],
) -> Composite:
    """Say what the file holds; rows and launches are for programs rather than for people."""
    left_out = _left_out(launches, found)
    sections = [_classes(rows), left_out, differences, _rows(rows), _launches(launches, found)]
    return Composite(
        COMMAND,
        "Kernel-info file for the Orion scheduler",
        _facts(launches, rows, found),
        tuple(section for section in sections if section is not None),
        meta=meta,
        notes=notes,
    )


def _facts(launches: pl.DataFrame, rows: pl.DataFrame, found: Rows) -> tuple[Fact, ...]:
    kept = sum(len(row.launches) for row in found.rows)
    time, everything = _time(rows), _time(launches)
    return (
        Fact("rows", "Rows", rows.height, Fmt.COUNT, "Rows of the file: the job's `num_kernels`"),
        Fact("launches", "Launches", launches.height, Fmt.COUNT, "Launches in the report"),
        Fact(
            "merged",
            "Merged",
            kept - rows.height,
            Fmt.COUNT,
            "Launches that were added to the row of another",
        ),
        Fact("left_out", "Left out", len(found.left_out), Fmt.COUNT, "Launches in no row"),
        Fact("total_ns", "Time", time, Fmt.TIME, "Sum of the durations in the file"),
        Fact(
            "left_out_ns",
            "Time left out",
            max(0.0, everything - time),
            Fmt.TIME,
            "Durations of launches in no row",
        ),
    )


def _classes(rows: pl.DataFrame) -> TableResult:
    total = _time(rows)
    entries = []
    for profile, name in CLASS_NAMES.items():
        own = rows.filter(pl.col(PROFILE) == profile)
        time = _time(own)
        share = time / total if total else None
        entries.append((share, time, own.height, profile, name))
    keys = [f.key for f in CLASS_FIELDS]
    frame = pl.DataFrame(entries, schema=keys, orient="row")
    return TableResult("classes", "What the rows are bound by", CLASS_FIELDS, frame)


def _left_out(launches: pl.DataFrame, found: Rows) -> TableResult | None:
    if not found.left_out:
        return None
    chosen = launches[sorted(found.left_out)]
    frame = _labelled(chosen).with_columns(
        pl.Series("why", [found.left_out[at] for at in sorted(found.left_out)])
    )
    columns = [f.key for f in LEFT_OUT_FIELDS]
    return TableResult("left_out", "Left out", LEFT_OUT_FIELDS, frame.select(columns))


def _rows(rows: pl.DataFrame) -> TableResult:
    frame = rows.select([f.key for f in ROW_FIELDS])
    return TableResult("rows", "Rows of the file", ROW_FIELDS, frame)


def _launches(launches: pl.DataFrame, found: Rows) -> TableResult:
    owner = {at: number for number, row in enumerate(found.rows) for at in row.launches}
    row = pl.Series("row", [owner.get(at) for at in range(launches.height)], pl.Int64)
    frame = _labelled(launches).with_columns(row).select([f.key for f in LAUNCH_FIELDS])
    return TableResult("launches", "Launches", LAUNCH_FIELDS, frame)


def _time(frame: pl.DataFrame) -> float:
    return float(frame["duration_ns"].sum())


def _labelled(launches: pl.DataFrame) -> pl.DataFrame:
    shorts = [classify(name).short for name in launches["name"]]
    return launches.with_columns(pl.Series("kernel", shorts, pl.String))
