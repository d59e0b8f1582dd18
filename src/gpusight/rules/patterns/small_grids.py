"""Kernels that leave SMs idle, and their time on all SMs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.rules.patterns.fusable_kernels import parts_of
from gpusight.rules.patterns.kernel_groups import kernel_ns, marked_work, total_ns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.rules.context import RuleContext


MAX_BLOCKS_PER_SM = 0.5
"""Blocks for each SM up to which they are few."""
FIXED_KERNEL_NS = 10_000
"""What a kernel takes however many blocks it has."""
THREADS_TO_FILL_SM = 1_024
"""Threads that keep an SM busy, half of what it holds: with fewer, one block waits for memory most
of the time, and several on an SM would fill these waits. Products keep it busy with fewer."""
SPREAD = 0.05
"""Part of the time that is left at least. One SM can draw up to a fortieth of the memory's
bandwidth of a large GPU, and kernels that few SMs can serve wait for latency, which stays."""
MIN_LAYOUT_SHARE = 0.02
"""Part of the time of all kernels that layout changes take from which on they are a cause."""
# These use few blocks on purpose, or are the small end of a larger piece of work.
_ON_PURPOSE = ("communication",)
_SERVES = r"split-k|epilogue|setup|combine|finali[sz]e|init_device"
_BY_CHANNEL = r"^batch_norm"
_IN_TILES = ("matmul", "convolution", "attention")


def sm_count(timeline: RuleContext) -> int | None:
    """Tell how many SMs the GPU has, by the capture or by the table of GPUs."""
    rows = timeline.trace.table("devices", ["device", "sm_count"])
    told = rows.filter(pl.col("device") == timeline.device)["sm_count"].drop_nulls()
    if len(told) and told[0]:
        return int(told[0])
    return None if timeline.gpu is None else timeline.gpu.sm_count


def small_grids(timeline: RuleContext, sms: int) -> pl.DataFrame:
    """Give long kernels with few blocks that run alone, on the GPU whose SMs are known."""
    alone = timeline.kernels.filter(pl.col("device") == timeline.device).filter(_alone())
    return alone.filter(
        pl.col("blocks") <= MAX_BLOCKS_PER_SM * sms,
        pl.col("duration_ns") > FIXED_KERNEL_NS,
        ~pl.col("category").is_in(_ON_PURPOSE),
        ~pl.col("label").str.to_lowercase().str.contains(_SERVES),
    )


def _alone() -> pl.Expr:
    """Tell kernels beside which no other one runs, in a frame in order of start."""
    before = pl.col("end_ns").cum_max().shift(1).fill_null(-1)
    after = pl.col("start_ns").shift(-1)
    return (pl.col("start_ns") >= before) & (after >= pl.col("end_ns")).fill_null(value=True)


def left_on_all(rows: pl.DataFrame, sms: int) -> NDArray[np.float64]:
    """Give the part of each kernel's time that is left when all SMs work."""
    time = rows["duration_ns"].to_numpy()
    busy = (pl.col("threads") / THREADS_TO_FILL_SM).clip(upper_bound=1).fill_null(1.0)
    busy = pl.when(pl.col("category").is_in(_IN_TILES)).then(1.0).otherwise(busy)
    used = rows.select(pl.col("blocks") / sms * busy).to_series().to_numpy()
    spread = np.maximum(used, SPREAD)
    left: NDArray[np.float64] = (FIXED_KERNEL_NS + (time - FIXED_KERNEL_NS) * spread) / time
    return left


def norms_by_channel(timeline: RuleContext) -> pl.DataFrame:
    """Give batch normalisations that have a block for each of few channels due to their layout.

    Channels first, their kernels take a block for a channel. Channels last, they divide the pixels
    as well. Where a library turns layouts around convolutions, tensors are channels first.
    """
    sms, turned = sm_count(timeline), marked_work(timeline, parts_of(timeline).layout)
    if sms is None or total_ns(turned) < MIN_LAYOUT_SHARE * kernel_ns(timeline):
        return timeline.kernels.clear()
    rows = small_grids(timeline, sms)
    return rows.filter(pl.col("label").str.contains(_BY_CHANNEL))
