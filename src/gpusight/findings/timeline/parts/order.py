"""GPU work stream by stream, in the order in which it ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.schedule.schedule import NONE

if TYPE_CHECKING:
    from gpusight.analyses.replay.program import Flags
    from gpusight.analyses.schedule.schedule import Ints


_IS_KERNEL = pl.col("kind") == "kernel"
_IS_COPY = (pl.col("kind") == "copy") & (pl.col("direction") == "Device-to-Device")


class InOrder:
    """Rows of `Timeline.ops`, those of a stream together; all positions here are in this order."""

    def __init__(self, ops: pl.DataFrame) -> None:
        order = np.argsort(ops["queue"].to_numpy(), kind="stable")
        self.ops: Ints = order
        """Position of each row in `Schedule.ops`."""
        self.frame = ops[order]
        self.queue: Ints = self.frame["queue"].to_numpy()
        self.inside_device = self.where(_IS_KERNEL | _IS_COPY)
        """Kernels and copies within a GPU: what a kernel could do too."""

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.ops)

    def where(self, condition: pl.Expr) -> Flags:
        """Tell for each row whether something is true of it; what is not known is not true."""
        flags: Flags = self.frame.select(condition.fill_null(value=False).alias("x"))[
            "x"
        ].to_numpy()
        return flags

    def follows(self) -> Flags:
        """Tell for each row whether the row before it is of the same stream."""
        same: Flags = np.concatenate(([False], self.queue[1:] == self.queue[:-1]))[: len(self)]
        return same

    def by_op(self, rows: Ints, numbers: Ints) -> Ints:
        """Give each piece of work of a schedule the number of its row, `NONE` to all others."""
        result = np.full(len(self), NONE, np.int64)
        result[self.ops[rows]] = numbers
        return result


def last_before(flags: Flags) -> Ints:
    """Give for each row the nearest one before it, or itself, that is marked; -1 for none."""
    marked = np.where(flags, np.arange(len(flags)), -1)
    return np.maximum.accumulate(marked) if len(marked) else marked


def next_after(flags: Flags) -> Ints:
    """Give for each row the nearest one after it, or itself, that is marked; the end for none."""
    n = len(flags)
    marked = np.where(flags, np.arange(n), n)
    return np.minimum.accumulate(marked[::-1])[::-1] if n else marked
