"""What products in FP32 would take on the tensor cores of a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.replay.changes import more_launches
from gpusight.findings.timeline.fusing import scaled
from gpusight.findings.timeline.gpu import launch_ns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.analyses.replay.changes import Change
    from gpusight.analyses.schedule.schedule import Ints
    from gpusight.findings.timeline.timeline import Timeline
    from gpusight.model.hardware import Gpu

    Reals = NDArray[np.float64]

FIXED_NS = 4_000
"""What a product takes however fast the arithmetic is. With it and the ratio of peak rates, 657
products of 93 ms in FP32 should take 8.9 ms in BF16 on an H200; they took 8.0."""
CAST_GPU_NS = 5_000
"""GPU time of a cast that autocast adds."""
WORTH = 1.5
"""Ratio of rates from which tensor cores are worth it: on GeForce cards TF32 is as fast as FP32."""
_NAMES = {"tf32": "TF32", "bf16": "BF16 autocast", "fp16": "FP16 autocast"}


@dataclass(frozen=True)
class Target:
    """A number format for tensor cores."""

    precision: str
    ratio: float
    """Its peak rate against that of FP32 on lanes."""
    casts: int
    """Casts that a forward product needs; a backward one needs half of them."""

    @property
    def name(self) -> str:
        """What people call it."""
        return _NAMES[self.precision]

    @property
    def how(self) -> str:
        """Say what it takes, within a sentence."""
        return f"({self.ratio:.1f} times the rate)" if not self.casts else "(with its casts)"

    def change(self, timeline: Timeline, rows: pl.DataFrame) -> tuple[Change, ...]:
        """Let products run at this rate."""
        faster = scaled(rows["op"].to_numpy(), self.left(rows["duration_ns"].to_numpy()))
        return (faster, self._casting(timeline, rows)) if self.casts else (faster,)

    def left(self, duration_ns: Ints) -> Reals:
        """Give the part of the time of products that is left at this rate."""
        left: Reals = np.minimum(1.0, 1 / self.ratio + FIXED_NS / np.maximum(duration_ns, 1))
        return left

    def _casting(self, timeline: Timeline, rows: pl.DataFrame) -> Change:
        """Launch the casts too."""
        backward = pl.col("phase").cast(pl.String).fill_null("") == "backward"
        called = rows.filter(
            pl.col("call").is_not_null() & ~pl.col("in_graph").fill_null(value=False)
        )
        half = pl.when(backward).then(self.casts // 2).otherwise(self.casts)
        each = called.group_by("call", maintain_order=True).agg(half.sum().alias("n"))
        return more_launches(
            each["call"].to_numpy(),
            each["n"].cast(pl.Int64).to_numpy(),
            host_ns=round(launch_ns(timeline, rows)),
            gpu_ns=CAST_GPU_NS,
        )


def targets(gpu: Gpu) -> tuple[Target, ...]:
    """Give what products could be computed in on this GPU, the easiest first."""
    lanes = gpu.vector.fp32
    if not lanes:
        return ()
    half = "bf16" if gpu.tensor.bf16 else "fp16"
    rates = ((gpu.tensor.tf32, "tf32", 0), (getattr(gpu.tensor, half), half, 2))
    return tuple(
        Target(precision, rate / lanes, casts)
        for rate, precision, casts in rates
        if rate and rate / lanes >= WORTH
    )
