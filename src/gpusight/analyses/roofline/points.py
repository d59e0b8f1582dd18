"""Where each launch stands under its roofs, and what holds it down.

Definitions are in docs/roofline.md. In short: a launch reaches a share of its compute roof and a
share of each memory roof; the largest of the first and of DRAM's is its share of the roofline. It
is bound by whichever of computing and memory is busier, from 60% on; below that, by latency.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.counters.quantities import MEMORY_SHARE, SM_SHARE
from gpusight.analyses.counters.quantity import DURATION, Quantity, measured, percent
from gpusight.analyses.devices import named_gpu
from gpusight.analyses.roofline.arithmetic import KINDS, SECONDS, uncounted
from gpusight.analyses.roofline.flops import NO_WORK, count, estimate, total
from gpusight.analyses.roofline.roofs import compute_roofs, gpus_of
from gpusight.analyses.roofline.traffic import traffic

if TYPE_CHECKING:
    from gpusight.model.hardware import Gpu
    from gpusight.model.trace import Trace

BUSY = 0.6
"""From this share of a peak on, the peak is what limits; Nsight Compute's own rules say so too."""
_SURELY_BUSY = 0.8
"""From this share on it limits even if how busy the other side was is not known."""
_AT_DRAM = 0.9
"""DRAM is what limits when it is as busy as this part of the busiest of memory."""
_AT_FLOPS = 0.5
"""FLOPs are what limits when they reach this part of how busy the SMs are; else the SMs do."""
_EVEN = 0.1
"""Computing and memory that are about equally busy: the lower roof of the roofline decides."""
_LEVELS = ("dram", "l2", "l1")
_SM_BUSY = Quantity(
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
    "sm_share", "roof_share", "bound", "limit", "l2_roof", "l1_roof", "estimated", "roofs_from",
)  # fmt: skip
"""Columns of `points`, before those of each kind of arithmetic: `flops_…` and `peak_…`."""


@dataclass(frozen=True, slots=True)
class Points:
    """Every launch under its roofs."""

    frame: pl.DataFrame
    """One row a launch, in the order of `profiles`; see `COLUMNS`."""
    gpus: dict[int, Gpu]
    """What is known of the GPUs that launches ran on."""
    uncounted: tuple[str, ...]
    """Instructions that the capture did not count, though it counted others of their kind."""


def points(trace: Trace) -> pl.DataFrame:
    """Give one row for each profiled launch: what it did, its roofs, and how near it came.

    Shares are fractions of 1, rates a second. What the capture does not tell is null.
    """
    return measure(trace).frame


def measure(trace: Trace, gpu: str | None = None) -> Points:
    """Find where every launch stands; `gpu` names the GPU where the capture does not."""
    present = _metrics(trace)
    gpus = gpus_of(trace, None if gpu is None else named_gpu(gpu))
    frame = _joined(
        count(trace, present),
        compute_roofs(trace, present, gpus),
        traffic(trace, gpus),
        measured(trace, (_SM_BUSY,)).drop(DURATION),
    )
    frame = estimate(frame).with_columns(total().alias("flops"))
    frame = frame.with_columns(*_rates(), *_arithmetic_shares())
    frame = frame.with_columns(_compute()).with_columns(_uses()).with_columns(_bound())
    frame = frame.with_columns(
        _limit(),
        _roof_share(),
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
    return Points(frame, gpus, tuple(uncounted(present)))


def _metrics(trace: Trace) -> frozenset[str]:
    """List the metrics that the capture holds."""
    dtype = trace.table("counters", ["metric"]).get_column("metric").dtype
    assert isinstance(dtype, pl.Enum)
    return frozenset(dtype.categories)


def _joined(first: pl.DataFrame, *others: pl.DataFrame) -> pl.DataFrame:
    for other in others:
        first = first.join(other, on="launch", how="left", maintain_order="left")
    return first


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
    ]


def _arithmetic_shares() -> list[pl.Expr]:
    """Compare each kind with its own peak: the kind that limits need not be the most FLOPs."""
    return [
        pl.when(pl.col(kind.key) > 0)
        .then(pl.col(kind.key) / SECONDS / pl.col(f"peak_{kind.key}"))
        .alias(f"share_{kind.key}")
        for kind in KINDS
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
    untold = pl.col("flops").is_null() & (pl.col("tensor_share") > busy)
    roofs = [
        pl.when(share == top).then(pl.col(f"peak_{kind.key}")) for kind, share in shares.items()
    ]
    return [
        pl.when(untold)
        .then(pl.coalesce(pl.col("tensor_key").str.replace("_", " "), pl.lit("tensor")))
        .otherwise(pl.coalesce(*by_share, *by_flops))
        .alias("arithmetic"),
        pl.when(~untold).then(pl.coalesce(roofs)).alias("compute_roof"),
        pl.when(untold)
        .then(pl.col("tensor_share"))
        .when(pl.col("flops") == 0)
        .then(0.0)
        .otherwise(top)
        .alias("compute_share"),
    ]


def _uses() -> list[pl.Expr]:
    """Say how busy computing and memory were at all, whatever kept them busy."""
    levels = ("reached_dram", "dram_share", MEMORY_SHARE.key)
    caches = pl.when(pl.col(MEMORY_SHARE.key).is_null()).then(
        pl.max_horizontal("l2_share", "l1_share")
    )
    return [
        pl.max_horizontal("compute_share", _SM_BUSY.key).alias("computing"),
        pl.max_horizontal(*levels, caches).alias("moving"),
    ]


def _bound() -> pl.Expr:
    """Name what limits; nothing is said when it could be what is not known."""
    computing, moving = pl.col("computing"), pl.col("moving")
    known = computing.is_not_null() & moving.is_not_null()
    busiest = pl.max_horizontal(computing, moving)
    under_flat_roof = pl.col("compute_share") > pl.col("reached_dram")
    nearer = (
        pl.when(under_flat_roof)
        .then(pl.lit("compute"))
        .when(~under_flat_roof)
        .then(pl.lit("memory"))
    )
    return (
        pl.when(known & (busiest < BUSY))
        .then(pl.lit("latency"))
        .when(busiest < pl.when(known).then(BUSY).otherwise(_SURELY_BUSY))
        .then(None)
        .when(((computing - moving).abs() < _EVEN) & nearer.is_not_null())
        .then(nearer)
        .when(computing.fill_null(0.0) > moving.fill_null(0.0))
        .then(pl.lit("compute"))
        .when(moving.is_not_null())
        .then(pl.lit("memory"))
        .alias("bound")
    )


def _limit() -> pl.Expr:
    """Name the part that limits: a kind of arithmetic, the SMs as a whole, or a level of memory."""
    near_dram = pl.max_horizontal("reached_dram", "dram_share") >= _AT_DRAM * pl.col("moving")
    l2_first = pl.col("l2_share") >= pl.col("l1_share")
    compute, memory = pl.col("bound") == "compute", pl.col("bound") == "memory"
    return (
        pl.when(compute & (pl.col("compute_share") >= _AT_FLOPS * pl.col("computing")))
        .then(pl.col("arithmetic"))
        .when(compute)
        .then(pl.lit("sm"))
        .when(memory & near_dram)
        .then(pl.lit("dram"))
        .when(memory & l2_first)
        .then(pl.lit("l2"))
        .when(memory & l2_first.not_())
        .then(pl.lit("l1"))
        .alias("limit")
    )


def _roof_share() -> pl.Expr:
    """Compare with the roofline: the larger share is the distance to the lower roof."""
    both = pl.col("compute_share").is_not_null() & pl.col("reached_dram").is_not_null()
    return (
        pl.when(both & pl.col("flops").is_not_null())
        .then(pl.max_horizontal("compute_share", "reached_dram"))
        .alias("roof_share")
    )


def _roofs_from() -> pl.Expr:
    """Say where the roofs come from: what was measured beside the launch, or the GPU table."""
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
