"""What a reader of the roofline must know: what was not counted, assumed or estimated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.roofline.arithmetic import SECTION, TENSOR_SECTION
from gpusight.analyses.roofline.flops import TENSOR_KEYS
from gpusight.analyses.roofline.tables import NAME_GPU, NO_ROOFS
from gpusight.model.kernel_names import classify

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.analyses.roofline.points import Points

_ABOVE = 1.02
"""Above a roof by more than rounding and the clocks of several passes explain."""


def notes_of(placed: Points, rows: pl.DataFrame, *, name_gpu: bool) -> Iterator[str]:
    """Say it, the most important first; `name_gpu` when naming the GPU could give more roofs."""
    if rows.is_empty():
        yield "no launch was measured inside the selection"
        return
    yield from _missing(rows)
    yield from _roofs(rows, name_gpu=name_gpu)
    yield from _partial(placed, rows)
    yield from _odd(rows)


def _missing(rows: pl.DataFrame) -> Iterator[str]:
    for column, what, sections in (
        ("duration_ns", "a duration", "--section SpeedOfLight"),
        ("flop_per_s", "a count of FLOPs", f"--section {SECTION} --section InstructionStats"),
        ("dram_bytes_per_s", "a count of DRAM bytes", "--section MemoryWorkloadAnalysis"),
    ):
        lacking = rows.get_column(column).null_count()
        if lacking:
            which = "no launch has" if lacking == rows.height else f"{_count(lacking)} without"
            yield f"{which} {what}; collect it with: ncu {sections}"


def _roofs(rows: pl.DataFrame, *, name_gpu: bool) -> Iterator[str]:
    working = rows.filter(pl.col("flop_per_s").fill_null(0.0) > 0)
    roofless = working.get_column("compute_roof").null_count()
    blind = rows.filter(pl.col("dram_bytes_per_s") > 0).get_column("memory_roof").null_count()
    if (roofless or blind) and name_gpu:
        what = "roofs" if roofless and blind else "compute roof" if roofless else "DRAM roof"
        yield f"{_count(max(roofless, blind))} without {what}: {NO_ROOFS}; {NAME_GPU}"
    elif roofless and roofless < working.height:
        yield f"{_count(roofless)} in a kind of arithmetic of which no peak is known"


def _partial(placed: Points, rows: pl.DataFrame) -> Iterator[str]:
    if placed.uncounted:
        missing = ", ".join(op.upper() for op in placed.uncounted)
        yield f"{missing} instructions were not counted, so FLOPs are too few where there are any"
    keys = [f"flops_{key}" for key in TENSOR_KEYS]
    untold = rows.filter(pl.all_horizontal(pl.col(key).is_null() for key in keys))
    names = untold.get_column("name").cast(pl.String).unique()
    if any(classify(name).tensor_core for name in names):
        yield (
            "operations of tensor cores were not counted, and kernels are named after them; "
            f"collect them with: ncu --section {TENSOR_SECTION} --section InstructionStats"
        )
    estimated = rows.filter(pl.col("estimated")).height
    if estimated:
        yield (
            f"FLOPs of {_count(estimated)} are estimated from how busy tensor cores were; exact "
            f"ones: ncu --section {TENSOR_SECTION} --section InstructionStats"
        )


def _count(launches: int) -> str:
    return f"{launches:,} launch" + ("" if launches == 1 else "es")


def _odd(rows: pl.DataFrame) -> Iterator[str]:
    above = rows.filter(pl.col("roof_share") > _ABOVE).height
    if above:
        yield (
            f"{_count(above)} above the roof: counters come from several runs of the kernel, "
            "which differ, or the roof is not that of this GPU"
        )
    devices = rows.get_column("device").n_unique()
    if devices > 1:
        yield f"launches ran on {devices} GPUs, each with roofs of its own"
