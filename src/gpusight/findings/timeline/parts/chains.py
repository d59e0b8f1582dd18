"""Finds chains of pointwise kernels that one kernel could do."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from gpusight.analyses.schedule.schedule import CallKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.analyses.replay.program import Flags
    from gpusight.analyses.schedule.schedule import Ints, Schedule
    from gpusight.findings.timeline.parts.order import InOrder

SHORTEST = 3
"""Kernels that make a chain."""
UNLIKE = 16
"""Grids that differ by this factor are of tensors of different sizes: kernels of one size differ by
up to 8 in the elements that a thread takes."""
PAUSE_NS = 1_000_000
"""A silence of a stream that ends a chain: the program went on to something else."""

NARROW, CAST_NARROW = 1 / 2, 2 / 3
"""Bytes that one kernel moves for a chain that goes from half precision to FP32 and back: half of
what a kernel within it moves, two thirds of what a cast moves. FP32 never leaves the SMs."""

# Copies and fills alone are a loop over tensors: nothing flows from one to the next.
_MOVES = r"^copy|^\[copy|^elementwise fill|^arange"


class Chains(NamedTuple):
    """Chains of pointwise kernels, by position in `Schedule.ops`."""

    number: Ints
    """Number of the chain that a kernel is part of; `NONE` for all others."""
    part: NDArray[np.float64]
    """Part of a kernel's memory traffic that is left where one kernel does the chain."""


def find_chains(order: InOrder, schedule: Schedule, free: Flags) -> Chains:
    """Find chains of pointwise kernels."""
    label = pl.col("label")
    copies = (pl.col("category") == "copy") & label.str.starts_with("copy")
    dropout = (pl.col("category") == "random") & label.str.starts_with("dropout")
    pointwise = order.where((pl.col("category") == "elementwise") | copies | dropout)
    pointwise |= order.inside_device & order.where(pl.col("category").is_null())
    member = pointwise & free
    before = np.concatenate(([False], member[:-1]))[: len(order)]
    goes_on = member & before & order.follows() & ~_parted(order, schedule)
    chain = np.cumsum(member & ~goes_on) - 1
    rows = np.flatnonzero(member)
    computes = rows[~order.where(label.str.contains(_MOVES))[rows]]
    long = np.bincount(chain[rows], minlength=1) >= SHORTEST
    long &= np.bincount(chain[computes], minlength=len(long)) > 0
    rows = rows[long[chain[rows]]]
    _, number = np.unique(chain[rows], return_inverse=True)
    part = np.ones(len(order))
    part[order.ops[rows]] = _narrowed(order, rows, number)
    return Chains(order.by_op(rows, number.astype(np.int64)), part)


def _narrowed(order: InOrder, rows: Ints, number: Ints) -> NDArray[np.float64]:
    """Give the part of the traffic of each row that is left, by the casts around it."""
    casts = (pl.col("category") == "copy") & (pl.col("precision") == "mixed")
    wide = pl.col("label").str.ends_with("→f32")
    count = int(number.max(initial=-1)) + 1
    first, last = np.full(count, len(order)), np.full(count, -1)
    np.minimum.at(first, *_where(order.where(casts & wide), rows, number))
    np.maximum.at(last, *_where(order.where(casts & ~wide), rows, number))
    between = (rows >= first[number]) & (rows <= last[number])
    fp32 = order.where(pl.col("precision") == "fp32")[rows]
    part = np.where(fp32, NARROW, np.where(order.where(casts)[rows], CAST_NARROW, 1.0))
    result: NDArray[np.float64] = np.where(between, part, 1.0)
    return result


def _where(flags: Flags, rows: Ints, number: Ints) -> tuple[Ints, Ints]:
    """Give the numbers of the rows that are marked, and these rows."""
    return number[flags[rows]], rows[flags[rows]]


def _parted(order: InOrder, schedule: Schedule) -> Flags:
    """Tell where a chain ends though the next kernel is pointwise too."""
    start, end = (order.frame[c].to_numpy() for c in ("start_ns", "end_ns"))
    pause = np.concatenate(([0], start[1:] - end[:-1]))[: len(order)] > PAUSE_NS
    changed = order.where(
        pl.any_horizontal(_changes("step"), _changes("phase"))
        | (pl.col("blocks") > pl.col("blocks").shift(1) * UNLIKE)
        | (pl.col("blocks") * UNLIKE < pl.col("blocks").shift(1))
    )
    parted: Flags = pause | changed | _waited_between(order, schedule)
    return parted


def _changes(column: str) -> pl.Expr:
    return pl.col(column) != pl.col(column).shift(1)


def _waited_between(order: InOrder, schedule: Schedule) -> Flags:
    """Tell where the host waited for the GPU between the launches: it wanted to see a result."""
    waits = np.flatnonzero(schedule.calls.kind == CallKind.SYNC)
    call = order.frame["call"].fill_null(-1).to_numpy()
    passed = np.searchsorted(waits, call)
    known = (call >= 0) & np.concatenate(([False], call[:-1] >= 0))[: len(order)]
    moved: Flags = np.concatenate(([False], passed[1:] != passed[:-1]))[: len(order)]
    return known & moved
