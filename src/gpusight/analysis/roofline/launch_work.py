"""What each launch did: its operations by kind of arithmetic, its bytes at DRAM, L2 and L1."""

from __future__ import annotations

from functools import reduce
from operator import mul
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.counters.launch_quantities import (
    DRAM_BYTES,
    DRAM_SHARE,
    DURATION,
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
from gpusight.analysis.kernel_summary import SHAPE
from gpusight.analysis.roofline.arithmetic_counters import (
    FP16,
    FP32,
    FP64,
    HALF_FMA,
    HALF_OTHER,
    KINDS,
    SECONDS,
    TENSOR_PRECISIONS,
    UNSIZED,
    WARPS,
    ArithmeticKind,
    counted_by_opcode,
    cuda_core_quantities,
    in_seconds,
    positive,
    tensor_quantities,
    timed,
)
from gpusight.naming.kernel_names import classify

if TYPE_CHECKING:
    from collections.abc import Collection

    from gpusight.hardware.gpu_table import Gpu
    from gpusight.trace.trace import Trace


NO_DEVICE = -1
"""Stands for the GPU of launches that name none."""

# Operations ---------------------------------------------------------------------------------------

TENSOR_KEYS = tuple(kind.key for kind in KINDS if kind.tensor)
_CUDA_CORE_KEYS = (FP64.key, FP32.key, HALF_FMA, HALF_OTHER)
_CONSTANTS = 8
_MAX_STRAY_SHARE = 0.1
"""FP16 FMAs that are fewer, of all instructions, may be no arithmetic: see `_fp16_flops`."""
_WARP_THREADS = 32
NO_WORK = 0.1
"""Tensor Cores and FP16 units that are less busy may do no arithmetic: they also load constants."""

_ANY_BUSY = tuple(
    percent(f"sm__{name}.{way}.pct_of_peak_sustained_elapsed")
    for name in ("pipe_tensor_cycles_active", "inst_executed_pipe_tensor")
    for way in ("avg", "sum")
)
_MATRICES = (
    "sm__pipe_tensor_type_hmma_hgmma_qgmma_imma_igmma_bmma_bgmma_cycles_active.avg"
    ".pct_of_peak_sustained_elapsed"
)
"""Hopper counts GEMMs apart from FMAs that only pass through the Tensor Cores."""
_DOUBLES = "sm__pipe_tensor_op_dmma_cycles_active.avg.pct_of_peak_sustained_elapsed"
_BUSY = LaunchQuantity(
    "tensor_pipe",
    "",
    "How busy the tensor cores were",
    (
        QuantityFormula(
            (_MATRICES, _DOUBLES),
            lambda values: pl.when(values[0].is_not_null()).then(pl.max_horizontal(values) * 0.01),
        ),
        *_ANY_BUSY,
    ),
    "ComputeWorkloadAnalysis",
)
_INSTRUCTIONS = LaunchQuantity(
    "instructions",
    "inst",
    "Instructions that warps executed",
    (metric("smsp__inst_executed.sum"), metric("sm__inst_executed.sum")),
    "InstructionStats",
)
_BUSY_ASIDE = LaunchQuantity(
    "tensor_aside",
    "",
    "Tensor Core utilization by asynchronous instructions, from Blackwell on",
    (percent("sm__pipe_tc_cycles_active.avg.pct_of_peak_sustained_elapsed"),),
    "ComputeWorkloadAnalysis",
)

_HALF_BUSY = LaunchQuantity(
    "half_share",
    "",
    "How busy the units of FP16 were; on some GPUs with conversions too",
    tuple(
        percent(f"sm__inst_executed_pipe_{unit}.avg.pct_of_peak_sustained_{time}")
        for time in ("elapsed", "active")
        for unit in ("fma_type_fp16", "fp16")
    ),
    "ComputeWorkloadAnalysis",
)


def count_flops(trace: Trace, present: Collection[str]) -> pl.DataFrame:
    """Count the operations of every launch; `present` are the metrics of the capture.

    Returns `launch`, `duration_ns`, a column for each kind (null: not known), `tensor_share` and
    `half_share` (how busy Tensor Cores and FP16 units were) and `tensor_key` (the kind of Tensor
    Core arithmetic by the kernel's name).
    """
    counted = (*cuda_core_quantities(present), *tensor_quantities(present))
    used = (_BUSY, _BUSY_ASIDE, _HALF_BUSY, _INSTRUCTIONS)
    frame = measured(trace, (*counted, *used), ("name", *SHAPE))
    absent = [key for key in (*_CUDA_CORE_KEYS, *TENSOR_KEYS) if key not in frame.columns]
    frame = _with_names(frame).with_columns(
        *(pl.lit(None, pl.Float64).alias(key) for key in absent),
        pl.max_horizontal(_BUSY.key, _BUSY_ASIDE.key).alias("tensor_share"),
    )
    frame = _none_of_the_others(frame)
    keys = (FP64.key, FP32.key, HALF_FMA, TENSOR_KEYS[0])
    incomplete = any(frame.get_column(key).null_count() for key in keys)
    if incomplete and WARPS in present and trace.has("counter_instances"):
        frame = _with_opcodes(frame, counted_by_opcode(trace))
    # Tensor Cores that were idle, and not counted, did nothing.
    share = pl.col("tensor_share")
    idle = (share <= NO_WORK) & (pl.col("tensor_key").is_null() | (share == 0))
    frame = frame.with_columns(
        _fp16_flops().alias(FP16.key),
        *(
            pl.when(idle).then(pl.col(key).fill_null(0.0)).otherwise(pl.col(key)).alias(key)
            for key in TENSOR_KEYS
        ),
    )
    kinds = (kind.key for kind in KINDS)
    return frame.select("launch", DURATION, *kinds, "tensor_share", _HALF_BUSY.key, "tensor_key")


def estimate_tensor_flops(frame: pl.DataFrame) -> pl.DataFrame:
    """Fill in the operations of Tensor Cores from how busy they were; needs `peak_…` columns.

    Adds `estimated`.
    """
    unknown = pl.all_horizontal(pl.col(key).is_null() for key in TENSOR_KEYS)
    busy_seconds = pl.col("tensor_share") * SECONDS
    filled = [
        pl.when(unknown & (pl.col("tensor_key") == key))
        .then(busy_seconds * pl.col(f"peak_{key}"))
        .otherwise(pl.col(key))
        .alias(key)
        for key in TENSOR_KEYS
    ]
    known_now = pl.any_horizontal(pl.col(key).is_not_null() for key in TENSOR_KEYS)
    return (
        frame.with_columns(unknown.alias("estimated"))
        .with_columns(filled)
        .with_columns(pl.col("estimated") & known_now)
    )


def total_flops() -> pl.Expr:
    """Return the sum of all kinds; null when what the kernel mainly did was not counted."""
    counted = pl.sum_horizontal(pl.col(kind.key).fill_null(0.0) for kind in KINDS)
    no_tensor = pl.all_horizontal(pl.col(key).is_null() for key in TENSOR_KEYS)
    tensor_busy = pl.col("tensor_share").fill_null(0.0) > NO_WORK
    fp16_busy = pl.col(_HALF_BUSY.key).fill_null(0.0) > NO_WORK
    missing = (no_tensor & tensor_busy) | (pl.col(FP16.key).is_null() & fp16_busy)
    return pl.when((pl.col(FP32.key).is_not_null() | (counted > 0)) & ~missing).then(counted)


def _none_of_the_others(frame: pl.DataFrame) -> pl.DataFrame:
    """Set the other formats to 0 where some of Tensor Cores were counted: the GPU has no others.

    Unless nothing was counted while they were busy: then they did what no counter counts.
    """
    known = pl.any_horizontal(pl.col(key).is_not_null() for key in TENSOR_KEYS)
    nothing = pl.sum_horizontal(pl.col(key).fill_null(0.0) for key in TENSOR_KEYS) == 0
    busy = pl.col("tensor_share").fill_null(0.0) > NO_WORK
    return frame.with_columns(
        pl.when(known & ~(nothing & busy)).then(pl.col(key).fill_null(0.0)).alias(key)
        for key in TENSOR_KEYS
    )


def _with_opcodes(frame: pl.DataFrame, opcodes: pl.DataFrame) -> pl.DataFrame:
    """Fill in operations that were not counted from the instructions that were executed."""
    joined = frame.join(opcodes, on="launch", how="left", suffix="_op", maintain_order="left")
    has_duration = pl.col(DURATION).is_not_null()
    sized = has_duration & ~pl.col(UNSIZED).fill_null(value=False)

    def filled(key: str, known: pl.Expr) -> pl.Expr:
        return pl.coalesce(pl.col(key), pl.when(known).then(pl.col(f"{key}_op"))).alias(key)

    return joined.with_columns(
        *(filled(key, has_duration) for key in _CUDA_CORE_KEYS),
        *(filled(key, sized) for key in TENSOR_KEYS),
    )


def _fp16_flops() -> pl.Expr:
    """Count FP16 operations, without the FMAs by which compilers load constants.

    Those are few, come without additions or multiplications, and in kernels not named after FP16.
    """
    threads = reduce(mul, (pl.col(side) for side in SHAPE), pl.lit(1.0))
    fma, other = pl.col(HALF_FMA), pl.col(HALF_OTHER)
    warps = fma / 4 / _WARP_THREADS
    few = pl.any_horizontal(
        (warps < _MAX_STRAY_SHARE * pl.col(_INSTRUCTIONS.key)).fill_null(value=False),
        (fma <= 4 * _CONSTANTS * threads).fill_null(value=False),
        (fma < pl.col(FP32.key)).fill_null(value=False),
    )
    constants = (other.fill_null(0.0) == 0) & few & ~pl.col("half_named")
    return pl.when(constants).then(0.0).otherwise(fma + other.fill_null(0.0))


def _with_names(frame: pl.DataFrame) -> pl.DataFrame:
    """Add what names imply: the kind of Tensor Core arithmetic, and whether it is FP16."""
    names = frame.get_column("name").cast(pl.String).to_list()
    known = {name: classify(name) for name in set(names)}
    keys = {
        name: ArithmeticKind(kernel.precision, tensor=True).key
        for name, kernel in known.items()
        if kernel.tensor_core and kernel.precision in TENSOR_PRECISIONS
    }
    fp16 = [known[name].precision in ("fp16", "bf16") for name in names]
    return frame.with_columns(
        pl.Series("tensor_key", [keys.get(name) for name in names], pl.String),
        pl.Series("half_named", fp16, pl.Boolean),
    )


# Bytes --------------------------------------------------------------------------------------------

_SECTION = "MemoryWorkloadAnalysis"
_TABLES_SECTION = "MemoryWorkloadAnalysis_Tables"
_SECTOR = 32
"""Bytes of a sector of the caches."""
_L1_BYTES_PER_CYCLE = 128
_L1_SINCE = 7
"""Compute capability from which L1 returns a line per cycle, and an L2 slice two sectors."""
_ROUGH_SHARE, _FINE_SHARE = 0.01, 0.1
"""Shares of a peak from which it can be computed: at all, and for the launch itself."""
_MIN_L1_SHARE = 0.9


def _rate(peak: str, clock: str, scale: float = 1.0) -> QuantityFormula:
    """Return a peak per cycle times a clock."""
    return QuantityFormula((peak, clock), lambda values: values[0] * values[1] * scale)


DRAM = LaunchQuantity(
    "dram_bytes",
    "byte",
    DRAM_BYTES.meaning,
    (
        *map(timed, DRAM_BYTES.formulas),
        timed(total("dram__bytes_op_read.sum", "dram__bytes_op_write.sum")),
        timed(total("dram__sectors_op_read.sum", "dram__sectors_op_write.sum", scale=_SECTOR)),
        in_seconds("dram__bytes.sum.per_second"),
        in_seconds("dram__bytes_read.sum.per_second", "dram__bytes_write.sum.per_second"),
        in_seconds("dram__bytes_op_read.sum.per_second", "dram__bytes_op_write.sum.per_second"),
    ),
    _SECTION,
)
DRAM_ROOF = LaunchQuantity(
    "dram_roof",
    "byte/s",
    "Peak DRAM bandwidth",
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
    _SECTION,
)
_L2_PARTS = tuple(
    tuple(f"lts__t_sectors_srcunit_tex_op_{op}.sum" for op in ("read", "write", "red", *atomics))
    for atomics in (("atom",), ("atom_dot_alu", "atom_dot_cas"))
)
"""Requests of SMs to L2, by kind; smaller sets of metrics hold these and not their sum."""
L2 = LaunchQuantity(
    "l2_bytes",
    "byte",
    "Bytes that the SMs read from and wrote to the L2 cache",
    (
        timed(metric("lts__t_bytes_srcunit_tex.sum")),
        timed(metric("lts__t_sectors_srcunit_tex.sum", _SECTOR)),
        *(timed(total(*names, scale=_SECTOR)) for names in _L2_PARTS),
        timed(metric("lts__t_bytes.sum")),
        timed(metric("lts__t_sectors.sum", _SECTOR)),
        timed(total("lts__t_sectors_op_read.sum", "lts__t_sectors_op_write.sum", scale=_SECTOR)),
        in_seconds("lts__t_bytes.sum.per_second"),
        in_seconds("derived__lts__lts2xbar_bytes.sum.per_second"),
    ),
    _SECTION,
)
_L2_CLOCK = "lts__cycles_elapsed.avg.per_second"
L2_ROOF = LaunchQuantity(
    "l2_roof",
    "byte/s",
    "Peak L2 bandwidth",
    (
        _rate("derived__lts__lts2xbar_bytes.sum.peak_sustained", _L2_CLOCK),
        _rate("lts__t_bytes.sum.peak_sustained", _L2_CLOCK),
        _rate("lts__t_sectors.sum.peak_sustained", _L2_CLOCK, _SECTOR),
    ),
    _SECTION,
)
_L2_SLICE_BYTES = 64
"""Bytes that a slice of L2 returns per cycle: two sectors, which Nsight Compute reports too."""
_L2_CYCLES = LaunchQuantity(
    "l2_cycles",
    "cycle",
    "Elapsed cycles of all L2 slices",
    (
        timed(metric("lts__cycles_elapsed.sum")),
        in_seconds("lts__cycles_elapsed.sum.per_second"),
    ),
    _SECTION,
)
_L2_ALL = LaunchQuantity(
    "l2_all_bytes",
    "byte",
    "All bytes of L2",
    (timed(metric("lts__t_sectors.sum", _SECTOR)),),
    _SECTION,
)
_L2_OF_PEAK = LaunchQuantity(
    "l2_of_peak",
    "",
    "Part of its peak that L2 served",
    (percent("lts__t_sectors.avg.pct_of_peak_sustained_elapsed"),),
    _SECTION,
)
_L1_PARTS = (
    *(f"lsu_mem_global_op_{op}" for op in ("ld", "st", "atom", "red")),
    *(f"lsu_mem_local_op_{op}" for op in ("ld", "st")),
    *(f"tex_mem_surface_op_{op}" for op in ("ld", "st", "atom", "red")),
    "tex_mem_texture",
)
_WRITEBACK_ENDINGS = ("_mem_lgds", "_mem_lg", "")
"""Endings of the counter of L1 writebacks, of newer GPUs first."""
L1 = LaunchQuantity(
    "l1_bytes",
    "byte",
    "Bytes that threads read from and wrote to global and local memory and textures",
    (
        timed(metric("l1tex__t_bytes.sum")),
        timed(metric("l1tex__t_sectors.sum", _SECTOR)),
        timed(total(*(f"l1tex__t_sectors_pipe_{part}.sum" for part in _L1_PARTS), scale=_SECTOR)),
        timed(total(*(f"l1tex__t_bytes_pipe_lsu_mem_global_op_{op}.sum" for op in ("ld", "st")))),
        *(
            in_seconds(f"derived__l1tex__lsu_writeback_bytes{ending}.sum.per_second")
            for ending in _WRITEBACK_ENDINGS
        ),
    ),
    _TABLES_SECTION,
)
L1_ROOF = LaunchQuantity(
    "l1_roof",
    "byte/s",
    "Peak L1 bandwidth",
    tuple(
        _rate(
            f"derived__l1tex__lsu_writeback_bytes{ending}.sum.peak_sustained",
            "l1tex__cycles_elapsed.avg.per_second",
        )
        for ending in _WRITEBACK_ENDINGS
    ),
    _TABLES_SECTION,
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


def memory_traffic(trace: Trace, gpus: dict[int, Gpu]) -> pl.DataFrame:
    """Return bytes, peak and % of peak of each level; `own_dram`: the report has the peak."""
    wanted = (
        DRAM, DRAM_ROOF, DRAM_SHARE, L2, L2_ROOF, L2_SHARE, L1, L1_ROOF, L1_SHARE, MEMORY_SHARE,
    )  # fmt: skip
    used = (_DRAM_OF_PEAK, _L2_CYCLES, _L2_ALL, _L2_OF_PEAK, SM_CLOCK_HZ, SM_COUNT)
    frame = measured(trace, (*wanted, *used), ("device", "compute_major"))
    frame = frame.with_columns(pl.col("device").fill_null(NO_DEVICE))
    listed = [(number, gpu.memory_bandwidth_bytes_s, gpu.sm_count) for number, gpu in gpus.items()]
    schema = {"device": pl.Int64, "table_bandwidth": pl.Float64, "table_sms": pl.Float64}
    table = pl.DataFrame(listed, schema=schema, orient="row")
    frame = frame.join(table, on="device", how="left", maintain_order="left")
    own = pl.coalesce(positive(DRAM_ROOF.key), _peak_from_share(DRAM, _DRAM_OF_PEAK))
    # What all slices of L2 can return to the SMs is the same for all sections of a report.
    new = pl.when(pl.col("compute_major") >= _L1_SINCE)
    l2_roof = new.then(positive(pl.col(_L2_CYCLES.key) / SECONDS) * _L2_SLICE_BYTES)
    sms = pl.coalesce(SM_COUNT.key, "table_sms")
    l1_roof = new.then(positive(sms * pl.col(SM_CLOCK_HZ.key)) * _L1_BYTES_PER_CYCLE)
    # L1's bytes are left out where most went around its counters, from L2 to shared memory.
    l1, l2 = pl.col(L1.key), pl.col(L2.key)
    seen_by_l1 = pl.when((l1 >= _MIN_L1_SHARE * l2) | l2.is_null()).then(l1)
    return frame.select(
        "launch",
        own.is_not_null().alias("own_dram"),
        pl.coalesce(own, "table_bandwidth").alias(DRAM_ROOF.key),
        pl.coalesce(l2_roof, positive(L2_ROOF.key), _peak_from_share(_L2_ALL, _L2_OF_PEAK)).alias(
            L2_ROOF.key
        ),
        pl.coalesce(positive(L1_ROOF.key), l1_roof).alias(L1_ROOF.key),
        seen_by_l1.alias(L1.key),
        *(q.key for q in wanted if not q.key.endswith("_roof") and q is not L1),
    )


def _peak_from_share(amount: LaunchQuantity, share: LaunchQuantity) -> pl.Expr:
    """Compute a peak from what was carried and which part of the peak that was.

    Shares are rounded: a launch that used little of the peak takes the one of the launch on the
    same GPU that used most. It may have run at another clock, so that comes second.
    """
    peak = pl.col(amount.key) / SECONDS / pl.col(share.key)
    usable = peak.is_not_null() & (pl.col(share.key) > _ROUGH_SHARE)
    highest = pl.col(share.key).filter(usable).max().over("device")
    others = peak.filter(usable & (pl.col(share.key) == highest)).first().over("device")
    return pl.coalesce(pl.when(pl.col(share.key) > _FINE_SHARE).then(peak), others)
