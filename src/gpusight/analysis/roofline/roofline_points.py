"""Each launch against its compute and memory rooflines, and what limits it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.counters.kernel_limiter import COMPUTE, LATENCY, MEMORY, SATURATED, limiters
from gpusight.analysis.counters.launch_quantities import (
    DURATION,
    MEMORY_SHARE,
    SM_CLOCK_HZ,
    SM_SHARE,
    LaunchQuantity,
    QuantityFormula,
    measured,
    metric,
    percent,
)
from gpusight.analysis.flops.flops_tables import roofs_of
from gpusight.analysis.roofline.arithmetic_counters import (
    FP16,
    FP32,
    FP64,
    KINDS,
    PEAK,
    SECONDS,
    SECTION,
    TENSOR_SECTION,
    paths,
    positive,
    uncounted,
)
from gpusight.analysis.roofline.launch_work import (
    NO_DEVICE,
    NO_WORK,
    count_flops,
    estimate_tensor_flops,
    memory_traffic,
    total_flops,
)
from gpusight.hardware.gpu_lookup import PRECISIONS, named_gpu, peak_flops

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gpusight.analysis.roofline.arithmetic_counters import ArithmeticKind, TensorPath
    from gpusight.hardware.gpu_table import Gpu
    from gpusight.trace.trace import Trace


_SPARSE_SINCE = 8
"""Compute capability from which Tensor Cores can skip zeros, which doubles their rate."""
_NEVER_SPARSE = ("fp64", "int1")
_FMAS = ((FP64, "dfma", 2.0), (FP32, "ffma", 2.0), (FP16, "hfma", 4.0))
"""An FMA does two operations; one in FP16 works on a pair of numbers."""


def _compute_roofs(trace: Trace, present: Collection[str], gpus: dict[int, Gpu]) -> pl.DataFrame:
    """Return for each launch and kind `peak_…` in FLOP/s, and `own_…`: it is from the report."""
    own = list(_per_cycle(present))
    frame = measured(trace, (*own, SM_CLOCK_HZ), ("device", "compute_major"))
    frame = frame.with_columns(pl.col("device").fill_null(NO_DEVICE))
    frame = frame.join(_table(gpus), on="device", how="left", maintain_order="left")
    reported = {quantity.key for quantity in own}
    return frame.select("launch", *(e for kind in KINDS for e in _peak(kind.key, reported)))


def _peak(key: str, reported: Collection[str]) -> Iterator[pl.Expr]:
    clock = pl.coalesce(SM_CLOCK_HZ.key, "table_clock")
    own = positive(pl.col(key) * clock) if key in reported else pl.lit(None, pl.Float64)
    clock_ratio = pl.col(SM_CLOCK_HZ.key) / pl.col(f"clock_{key}")
    table = pl.col(f"table_{key}") * clock_ratio.fill_null(1.0)
    yield pl.coalesce(own, table).alias(f"peak_{key}")
    yield own.is_not_null().alias(f"own_{key}")


def _per_cycle(present: Collection[str]) -> Iterator[LaunchQuantity]:
    """Return what the GPU does per cycle, for each kind that the report has this of."""
    for kind, op, flops in _FMAS:
        name = f"sm__sass_thread_inst_executed_op_{op}_pred_on.{PEAK}"
        if name in present:
            yield LaunchQuantity(
                kind.key, "", f"FLOPs per cycle in {kind.text}", (metric(name, flops),), SECTION
            )
    peaks = [path for path in paths(present) if path.form == PEAK]
    for kind in KINDS:
        own = [p for p in peaks if kind.tensor and p.precision == kind.precision]
        dense = [p for p in own if p.sparsity == "off"] or [p for p in own if p.sparsity is None]
        # Where an instruction has both, the peak with sums in FP32.
        with_fp32_sums = {path.op for path in dense if path.target == "fp32"}
        chosen = [p for p in dense if p.target == "fp32" or p.op not in with_fp32_sums]
        if chosen:
            meaning = f"Operations per cycle of {kind.text}, without sparsity"
            largest = _largest(sorted(chosen, key=lambda path: path.op or ""))
            yield LaunchQuantity(kind.key, "", meaning, (largest,), TENSOR_SECTION)


def _largest(chosen: list[TensorPath]) -> QuantityFormula:
    """Take the largest peak: newer instructions for the same GEMM can be faster."""
    # A peak that does not name sparsity is the highest there is, and is halved.
    can_skip = (pl.col("compute_major") >= _SPARSE_SINCE).fill_null(value=True)
    halved = pl.when(can_skip).then(0.5).otherwise(1.0)
    shares = [
        halved if path.sparsity is None and path.precision not in _NEVER_SPARSE else pl.lit(1.0)
        for path in chosen
    ]
    return QuantityFormula(
        tuple(f"{path.base}.{PEAK}" for path in chosen),
        lambda values: pl.max_horizontal(v * s for v, s in zip(values, shares, strict=True)),
    )


def _table(gpus: dict[int, Gpu]) -> pl.DataFrame:
    """Return a row for each GPU: its clock, its peaks, and the clock each is published for."""
    known = [kind for kind in KINDS if kind.precision in PRECISIONS]
    schema = {"device": pl.Int64, "table_clock": pl.Float64}
    schema |= {f"{what}_{kind.key}": pl.Float64 for what in ("table", "clock") for kind in KINDS}
    rows = [
        {
            "device": number,
            "table_clock": _hertz(gpu.boost_clock_mhz),
            **{f"table_{k.key}": peak_flops(gpu, k.precision, tensor=k.tensor) for k in known},
            **{f"clock_{k.key}": _published_clock(gpu, k) for k in known},
        }
        for number, gpu in gpus.items()
    ]
    return pl.DataFrame(rows, schema=schema)


def _published_clock(gpu: Gpu, kind: ArithmeticKind) -> float | None:
    """Return the clock of a peak: data sheets of Hopper rate Tensor Cores at a lower one."""
    lower = gpu.tensor_clock_mhz if kind.tensor and kind.precision != FP64.precision else None
    return _hertz(lower or gpu.boost_clock_mhz)


def _hertz(mhz: float | None) -> float | None:
    return mhz * 1e6 if mhz else None


_SURELY_BUSY = 0.8
"""From this share on it limits even if how busy the other side was is not known."""
_AT_DRAM = 0.9
"""DRAM is what limits when it is as busy as this part of the busiest of memory."""
_AT_FLOPS = 0.5
"""FLOPs are what limits when they reach this part of how busy the SMs are; else the SMs do."""
_EVEN = 0.1
"""Computing and memory that are about equally busy: the lower roofline decides."""
_LEVELS = ("dram", "l2", "l1")
_SM_BUSY = LaunchQuantity(
    SM_SHARE.key,
    "",
    SM_SHARE.meaning,
    (
        *SM_SHARE.formulas,
        percent("sm__instruction_throughput.avg.pct_of_peak_sustained_elapsed"),
    ),
    SM_SHARE.section,
)
COLUMNS = (
    "launch", DURATION, "flops", "flop_per_s", "arithmetic", "dram_bytes_per_s",
    "dram_bytes", "l2_bytes", "l1_bytes", "dram_intensity", "l2_intensity", "l1_intensity",
    "compute_roof", "memory_roof", "knee", "compute_share", "memory_share", "l2_share", "l1_share",
    "sm_share", "roof_share", "bound", "limit", "limit_share", "l2_roof", "l1_roof", "estimated",
    "roofs_from",
)  # fmt: skip
"""Columns of `points`, before those of each kind of arithmetic: `flops_…` and `peak_…`."""


@dataclass(frozen=True, slots=True)
class RooflinePoints:
    """Every launch against its rooflines."""

    frame: pl.DataFrame
    """One row a launch, in the order of `profiles`; see `COLUMNS`."""
    gpus: dict[int, Gpu]
    """What is known of the GPUs that launches ran on."""
    uncounted: tuple[str, ...]
    """Instructions that the capture did not count, though it counted others of their kind."""


def roofline_points(trace: Trace) -> pl.DataFrame:
    """Return one row for each profiled launch: its work, peaks and share of the roofline.

    Shares are fractions of 1, rates per second. What the capture does not hold is null.
    """
    return measure(trace).frame


def measure(trace: Trace, gpu: str | None = None) -> RooflinePoints:
    """Find where every launch stands; `gpu` names the GPU where the capture does not."""
    metrics = trace.table("counters", ["metric"]).get_column("metric").dtype
    assert isinstance(metrics, pl.Enum)
    present = frozenset(metrics.categories)
    devices = trace.table("profiles", ["device"]).get_column("device").unique().sort()
    numbers = [NO_DEVICE if number is None else number for number in devices]
    if gpu is not None:
        gpus = dict.fromkeys(numbers, named_gpu(gpu))  # it stands for all of them
    else:
        roofs = roofs_of(trace, numbers).by_device
        gpus = {n: known for n in numbers if (known := roofs[n].gpu) is not None}
    frame = count_flops(trace, present)
    for other in (
        _compute_roofs(trace, present, gpus),
        memory_traffic(trace, gpus),
        measured(trace, (_SM_BUSY,)).drop(DURATION),
        limiters(trace),
    ):
        frame = frame.join(other, on="launch", how="left", maintain_order="left")
    frame = estimate_tensor_flops(frame).with_columns(total_flops().alias("flops"))
    frame = frame.with_columns(_rates())
    # How busy computing and memory were at all, whatever kept them busy.
    caches = pl.when(pl.col(MEMORY_SHARE.key).is_null()).then(
        pl.max_horizontal("l2_share", "l1_share")
    )
    moving = pl.max_horizontal("reached_dram", "dram_share", MEMORY_SHARE.key, caches)
    computing = pl.max_horizontal("compute_share", _SM_BUSY.key)
    frame = frame.with_columns(_compute()).with_columns(
        computing.alias("computing"), moving.alias("moving")
    )
    frame = frame.with_columns(_bound())
    shares = pl.col("compute_share"), pl.col("reached_dram")
    both = shares[0].is_not_null() & shares[1].is_not_null() & pl.col("flops").is_not_null()
    frame = frame.with_columns(_limit()).with_columns(
        _limit_share(),
        # The larger share is that of the lower roofline.
        pl.when(both).then(pl.max_horizontal(shares)).alias("roof_share"),
        _roofs_from(),
        (pl.col("compute_roof") / pl.col("dram_roof")).alias("knee"),
    )
    named = {kind.key: f"flops_{kind.key}" for kind in KINDS}
    final = {"reached_dram": "memory_share", "dram_roof": "memory_roof"}
    frame = (
        frame.drop("memory_share")
        .rename(named | final)
        .select(*COLUMNS, *named.values(), *(f"peak_{kind.key}" for kind in KINDS))
    )
    amounts = ("flops", *named.values(), *(f"{level}_bytes" for level in _LEVELS))
    frame = frame.with_columns(
        pl.when(pl.col(DURATION).is_not_null()).then(pl.col(key)).alias(key) for key in amounts
    )
    return RooflinePoints(frame, gpus, tuple(uncounted(present)))


def _rates() -> list[pl.Expr]:
    intensities = [
        pl.when(pl.col(f"{level}_bytes") > 0)
        .then(pl.col("flops") / pl.col(f"{level}_bytes"))
        .alias(f"{level}_intensity")
        for level in _LEVELS
    ]
    return [
        (pl.col("flops") / SECONDS).alias("flop_per_s"),
        (pl.col("dram_bytes") / SECONDS).alias("dram_bytes_per_s"),
        pl.coalesce(
            pl.col("dram_bytes") / SECONDS / pl.col("dram_roof"), pl.col("dram_share")
        ).alias("reached_dram"),
        *intensities,
        # Each kind against its own peak: the kind that limits need not be the most FLOPs.
        *(
            pl.when(pl.col(kind.key) > 0)
            .then(pl.col(kind.key) / SECONDS / pl.col(f"peak_{kind.key}"))
            .alias(f"share_{kind.key}")
            for kind in KINDS
        ),
    ]


def _compute() -> list[pl.Expr]:
    """Choose the kind of arithmetic that comes nearest to its peak, or has the most FLOPs."""
    shares = {kind: pl.col(f"share_{kind.key}") for kind in KINDS}
    top = pl.max_horizontal(shares.values())
    most = pl.max_horizontal(kind.key for kind in KINDS)
    works = most > 0
    by_share = [pl.when(share == top).then(pl.lit(kind.text)) for kind, share in shares.items()]
    by_flops = [
        pl.when(works & (pl.col(kind.key) == most)).then(pl.lit(kind.text)) for kind in KINDS
    ]
    busy = pl.max_horizontal(top.fill_null(0.0), pl.lit(NO_WORK))
    uncounted_tensor = pl.col("flops").is_null() & (pl.col("tensor_share") > busy)
    roofs = [
        pl.when(share == top).then(pl.col(f"peak_{kind.key}")) for kind, share in shares.items()
    ]
    return [
        pl.when(uncounted_tensor)
        .then(pl.coalesce(pl.col("tensor_key").str.replace("_", " "), pl.lit("tensor")))
        .otherwise(pl.coalesce(*by_share, *by_flops))
        .alias("arithmetic"),
        pl.when(~uncounted_tensor).then(pl.coalesce(roofs)).alias("compute_roof"),
        pl.when(uncounted_tensor)
        .then(pl.col("tensor_share"))
        .when(pl.col("flops") == 0)
        .then(0.0)
        .otherwise(top)
        .alias("compute_share"),
    ]


def _bound() -> pl.Expr:
    """Return the limiter by utilization and stalls; where these are missing, by FLOPs and bytes.

    Null when it could be what is not known.
    """
    computing, moving = pl.col("computing"), pl.col("moving")
    known = computing.is_not_null() & moving.is_not_null()
    busiest = pl.max_horizontal(computing, moving)
    under_flat_roof = pl.col("compute_share") > pl.col("reached_dram")
    nearer = (
        pl.when(under_flat_roof).then(pl.lit(COMPUTE)).when(~under_flat_roof).then(pl.lit(MEMORY))
    )
    by_work = (
        pl.when(known & (busiest < SATURATED))
        .then(pl.lit(LATENCY))
        .when(busiest < pl.when(known).then(SATURATED).otherwise(_SURELY_BUSY))
        .then(None)
        .when(((computing - moving).abs() < _EVEN) & nearer.is_not_null())
        .then(nearer)
        .when(computing.fill_null(0.0) > moving.fill_null(0.0))
        .then(pl.lit(COMPUTE))
        .when(moving.is_not_null())
        .then(pl.lit(MEMORY))
    )
    return pl.coalesce("limiter", by_work).alias("bound")


def _limit() -> pl.Expr:
    """Name the part that limits: a kind of arithmetic, the SMs as a whole, or a level of memory."""
    near_dram = pl.max_horizontal("reached_dram", "dram_share") >= _AT_DRAM * pl.col("moving")
    l2_first = pl.col("l2_share") >= pl.col("l1_share")
    compute, memory = pl.col("bound") == COMPUTE, pl.col("bound") == MEMORY
    return (
        pl.when(compute & (pl.col("compute_share") >= _AT_FLOPS * pl.col("computing")))
        .then(pl.col("arithmetic"))
        .when(compute)
        .then(pl.lit("sm"))
        .when(memory & pl.col("level").is_not_null())
        .then(pl.col("level"))
        .when(memory & near_dram)
        .then(pl.lit("dram"))
        .when(memory & l2_first)
        .then(pl.lit("l2"))
        .when(memory & l2_first.not_())
        .then(pl.lit("l1"))
        .alias("limit")
    )


def _limit_share() -> pl.Expr:
    """Return how busy the part was that limits; null for latency-bound launches."""
    limit, of_unit = pl.col("limit"), pl.col("limiter_share")
    dram = pl.max_horizontal("reached_dram", "dram_share")
    return (
        pl.when(limit == "dram")
        .then(pl.coalesce(of_unit, dram))
        .when(limit == "l2")
        .then(pl.coalesce(of_unit, "l2_share"))
        .when(limit == "l1")
        .then(pl.coalesce(of_unit, "l1_share"))
        .when(limit == "sm")
        .then(pl.coalesce(of_unit, "computing"))
        .when(limit.is_not_null())  # a kind of arithmetic: its FLOPs against their peak
        .then(pl.col("compute_share"))
        .alias("limit_share")
    )


def _roofs_from() -> pl.Expr:
    """Return the source of the rooflines: measured with the launch, or the GPU table."""
    own = [
        pl.when(pl.col("arithmetic") == kind.text).then(pl.col(f"own_{kind.key}")) for kind in KINDS
    ]
    compute_known = pl.col("compute_roof").is_not_null()
    memory_known = pl.col("dram_roof").is_not_null()
    all_own = pl.coalesce(*own, pl.lit(value=True)) & (pl.col("own_dram") | ~memory_known)
    none_own = ~(pl.coalesce(*own, pl.lit(value=False)) | (pl.col("own_dram") & memory_known))
    return (
        pl.when(~compute_known & ~memory_known)
        .then(None)
        .when(all_own)
        .then(pl.lit("report"))
        .when(none_own)
        .then(pl.lit("GPU table"))
        .otherwise(pl.lit("report and GPU table"))
        .alias("roofs_from")
    )
