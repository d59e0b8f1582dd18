"""Bytes of each launch at DRAM, L2 and L1, and the peak of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.counters.launch_quantities import (
    DRAM_BYTES,
    DRAM_SHARE,
    L2_SHARE,
    MEMORY_SHARE,
    SM_CLOCK_HZ,
    SM_COUNT,
    LaunchQuantity,
    QuantityFormula,
    measured,
    metric,
    percent,
    total,
)
from gpusight.analysis.roofline.arithmetic_counters import SECONDS, in_seconds, positive, timed

if TYPE_CHECKING:
    from gpusight.hardware.gpu_table import Gpu
    from gpusight.trace.trace import Trace


SECTION = "MemoryWorkloadAnalysis"
TABLES_SECTION = "MemoryWorkloadAnalysis_Tables"
SECTOR = 32
_L1_BYTES_A_CYCLE = 128
_L1_SINCE = 7
"""Compute capability from which the L1 cache of an SM gives a line a cycle."""
_ROUGH_SHARE, _FINE_SHARE = 0.01, 0.1
"""Shares of a peak from which on they tell the peak: if nothing better does, and of their own."""
_MOST = 0.9
_NOWHERE = -1


def _rate(peak: str, clock: str, scale: float = 1.0) -> QuantityFormula:
    """Take a peak a cycle times a clock."""
    return QuantityFormula((peak, clock), lambda values: values[0] * values[1] * scale)


DRAM = LaunchQuantity(
    "dram_bytes",
    "byte",
    DRAM_BYTES.meaning,
    (
        *map(timed, DRAM_BYTES.formulas),
        timed(total("dram__bytes_op_read.sum", "dram__bytes_op_write.sum")),
        timed(total("dram__sectors_op_read.sum", "dram__sectors_op_write.sum", scale=SECTOR)),
        in_seconds("dram__bytes.sum.per_second"),
        in_seconds("dram__bytes_read.sum.per_second", "dram__bytes_write.sum.per_second"),
        in_seconds("dram__bytes_op_read.sum.per_second", "dram__bytes_op_write.sum.per_second"),
    ),
    SECTION,
)
DRAM_ROOF = LaunchQuantity(
    "dram_roof",
    "byte/s",
    "Bytes a second that the GPU's memory can carry",
    (_rate("dram__bytes.sum.peak_sustained", "dram__cycles_elapsed.avg.per_second"),),
    "SpeedOfLight_RooflineChart",
)
_DRAM_OF_PEAK = LaunchQuantity(
    "dram_of_peak",
    "",
    "Part of its peak that DRAM carried",
    (
        percent("dram__bytes.sum.pct_of_peak_sustained_elapsed"),
        total(
            "dram__bytes_read.sum.pct_of_peak_sustained_elapsed",
            "dram__bytes_write.sum.pct_of_peak_sustained_elapsed",
            scale=0.01,
        ),
        *DRAM_SHARE.formulas,
    ),
    SECTION,
)
_L2_PARTS = tuple(
    tuple(f"lts__t_sectors_srcunit_tex_op_{op}.sum" for op in ("read", "write", "red", *atomics))
    for atomics in (("atom",), ("atom_dot_alu", "atom_dot_cas"))
)
"""What SMs ask of L2, by kind; smaller sets of metrics hold these and not their sum."""
L2 = LaunchQuantity(
    "l2_bytes",
    "byte",
    "Bytes that the SMs read from and wrote to the L2 cache",
    (
        timed(metric("lts__t_bytes_srcunit_tex.sum")),
        timed(metric("lts__t_sectors_srcunit_tex.sum", SECTOR)),
        *(timed(total(*names, scale=SECTOR)) for names in _L2_PARTS),
        timed(metric("lts__t_bytes.sum")),
        timed(metric("lts__t_sectors.sum", SECTOR)),
        timed(total("lts__t_sectors_op_read.sum", "lts__t_sectors_op_write.sum", scale=SECTOR)),
        in_seconds("lts__t_bytes.sum.per_second"),
        in_seconds("derived__lts__lts2xbar_bytes.sum.per_second"),
    ),
    SECTION,
)
_L2_CLOCK = "lts__cycles_elapsed.avg.per_second"
L2_ROOF = LaunchQuantity(
    "l2_roof",
    "byte/s",
    "Bytes a second that the L2 cache can serve",
    (
        _rate("derived__lts__lts2xbar_bytes.sum.peak_sustained", _L2_CLOCK),
        _rate("lts__t_bytes.sum.peak_sustained", _L2_CLOCK),
        _rate("lts__t_sectors.sum.peak_sustained", _L2_CLOCK, SECTOR),
    ),
    SECTION,
)
_L2_ALL = LaunchQuantity(
    "l2_all_bytes",
    "byte",
    "All bytes of L2",
    (timed(metric("lts__t_sectors.sum", SECTOR)),),
    SECTION,
)
_L2_OF_PEAK = LaunchQuantity(
    "l2_of_peak",
    "",
    "Part of its peak that L2 served",
    (percent("lts__t_sectors.avg.pct_of_peak_sustained_elapsed"),),
    SECTION,
)
_L1_PARTS = (
    *(f"lsu_mem_global_op_{op}" for op in ("ld", "st", "atom", "red")),
    *(f"lsu_mem_local_op_{op}" for op in ("ld", "st")),
    *(f"tex_mem_surface_op_{op}" for op in ("ld", "st", "atom", "red")),
    "tex_mem_texture",
)
_WRITEBACK = ("_mem_lgds", "_mem_lg", "")
"""What the counter of the L1 cache's answers is called, on newer GPUs first."""
L1 = LaunchQuantity(
    "l1_bytes",
    "byte",
    "Bytes that threads read from and wrote to global and local memory and textures",
    (
        timed(metric("l1tex__t_bytes.sum")),
        timed(metric("l1tex__t_sectors.sum", SECTOR)),
        timed(total(*(f"l1tex__t_sectors_pipe_{part}.sum" for part in _L1_PARTS), scale=SECTOR)),
        timed(total(*(f"l1tex__t_bytes_pipe_lsu_mem_global_op_{op}.sum" for op in ("ld", "st")))),
        *(
            in_seconds(f"derived__l1tex__lsu_writeback_bytes{which}.sum.per_second")
            for which in _WRITEBACK
        ),
    ),
    TABLES_SECTION,
)
L1_ROOF = LaunchQuantity(
    "l1_roof",
    "byte/s",
    "Bytes a second that the L1 caches can serve",
    tuple(
        _rate(
            f"derived__l1tex__lsu_writeback_bytes{which}.sum.peak_sustained",
            "l1tex__cycles_elapsed.avg.per_second",
        )
        for which in _WRITEBACK
    ),
    TABLES_SECTION,
)
L1_SHARE = LaunchQuantity(
    "l1_share",
    "",
    "How busy the L1 caches were, of what they could do",
    (
        percent("l1tex__throughput.avg.pct_of_peak_sustained_elapsed"),
        *(
            QuantityFormula(
                (
                    "l1tex__throughput.avg.pct_of_peak_sustained_active",
                    "sm__cycles_active.avg",
                    elapsed,
                ),
                lambda values: values[0] * 0.01 * (values[1] / values[2]).clip(0, 1),
            )
            for elapsed in ("sm__cycles_elapsed.max", "gpc__cycles_elapsed.max")
        ),
    ),
    "SpeedOfLight",
)


def traffic(trace: Trace, gpus: dict[int, Gpu]) -> pl.DataFrame:
    """Give bytes, roof and share of every level; `own_dram`: the report told its roof."""
    wanted = (
        DRAM, DRAM_ROOF, DRAM_SHARE, L2, L2_ROOF, L2_SHARE, L1, L1_ROOF, L1_SHARE, MEMORY_SHARE,
    )  # fmt: skip
    used = (_DRAM_OF_PEAK, _L2_ALL, _L2_OF_PEAK, SM_CLOCK_HZ, SM_COUNT)
    frame = measured(trace, (*wanted, *used), ("device", "compute_major"))
    frame = frame.with_columns(pl.col("device").fill_null(_NOWHERE))
    frame = frame.join(_table(gpus), on="device", how="left", maintain_order="left")
    own = pl.coalesce(positive(DRAM_ROOF.key), _peak_from_share(DRAM, _DRAM_OF_PEAK))
    return frame.select(
        "launch",
        own.is_not_null().alias("own_dram"),
        pl.coalesce(own, "table_bandwidth").alias(DRAM_ROOF.key),
        pl.coalesce(positive(L2_ROOF.key), _peak_from_share(_L2_ALL, _L2_OF_PEAK)).alias(
            L2_ROOF.key
        ),
        pl.coalesce(positive(L1_ROOF.key), _l1_roof()).alias(L1_ROOF.key),
        _seen_by_l1().alias(L1.key),
        *(q.key for q in wanted if not q.key.endswith("_roof") and q is not L1),
    )


def _seen_by_l1() -> pl.Expr:
    """Leave L1's bytes out where most went around its counters, from L2 to shared memory."""
    moved, below = pl.col(L1.key), pl.col(L2.key)
    return pl.when((moved >= _MOST * below) | below.is_null()).then(moved)


def _peak_from_share(amount: LaunchQuantity, share: LaunchQuantity) -> pl.Expr:
    """Tell a peak by what was carried and which part of the peak that was.

    Shares are rounded: a launch that used little of the peak takes the one of the launch on the
    same GPU that used most. It may have run at another clock, so that comes second.
    """
    rate = pl.col(amount.key) / SECONDS / pl.col(share.key)
    telling = rate.is_not_null() & (pl.col(share.key) > _ROUGH_SHARE)
    best = pl.col(share.key).filter(telling).max().over("device")
    others = rate.filter(telling & (pl.col(share.key) == best)).first().over("device")
    return pl.coalesce(pl.when(pl.col(share.key) > _FINE_SHARE).then(rate), others)


def _l1_roof() -> pl.Expr:
    sms = pl.coalesce(SM_COUNT.key, "table_sms")
    known = pl.when(pl.col("compute_major") >= _L1_SINCE)
    return known.then(positive(sms * pl.col(SM_CLOCK_HZ.key)) * _L1_BYTES_A_CYCLE)


def _table(gpus: dict[int, Gpu]) -> pl.DataFrame:
    schema = {"device": pl.Int64, "table_bandwidth": pl.Float64, "table_sms": pl.Float64}
    rows = [(number, gpu.memory_bandwidth_bytes_s, gpu.sm_count) for number, gpu in gpus.items()]
    return pl.DataFrame(rows, schema=schema, orient="row")
