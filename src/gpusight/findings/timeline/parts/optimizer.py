"""Finds optimizers that pass over the parameters many times."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from gpusight.findings.timeline.parts.order import last_before

if TYPE_CHECKING:
    from gpusight.analyses.replay.program import Flags
    from gpusight.analyses.schedule.schedule import Ints
    from gpusight.findings.timeline.parts.order import InOrder

FEWEST = 6
"""Kernels of one optimizer step from which on it counts as many."""
TENSORS_A_KERNEL = 36
"""Tensors that one fused kernel of PyTorch takes, with their gradients and two averages."""
_BESIDE = 8
"""Other work between two kernels of an optimizer that does not end its step."""
_OF_A_MODEL = ("matmul", "convolution", "attention", "embedding")
_POINTWISE = ("elementwise", "copy")
# Adam, RMSprop and Adagrad divide by a root: outside optimizers this is rare.
_DIVIDES = r"^elementwise addcdiv"
# Clearing gradients and measuring their norm are no part of the update.
_NO_UPDATE = r"foreach (?:l2|lp)?_?norm|foreach zero|^elementwise fill"


class Optimizer(NamedTuple):
    """Kernels of optimizers, by position in `Schedule.ops`."""

    group: Ints
    """Number of the fused kernel that a kernel would become part of; `NONE` for all others."""
    tensors: Ints
    """Tensors that the host goes through for each fused kernel beyond what it does for one launch;
    0 where it goes through all of them before the first launch already (foreach)."""
    steps: int
    fused: bool
    """A fused optimizer runs too."""


def find_optimizer(order: InOrder, free: Flags) -> Optimizer:
    """Find steps of optimizers among kernels that are `free`, by phase, name or arithmetic."""
    category, label, phase = pl.col("category"), pl.col("label"), pl.col("phase").cast(pl.String)
    foreach = (category == "optimizer") & label.str.starts_with("foreach")
    loop = (phase == "optimizer") & category.is_in(_POINTWISE)
    other = label.str.contains(_NO_UPDATE)
    known = order.where((foreach | loop) & ~other) | _dividing(order)
    rows = np.flatnonzero(known & free)
    step = _steps(order, rows)
    rows, step = _large(rows, step)
    group, tensors = _groups(order, rows, step)
    fused = order.where((category == "optimizer") & ~label.str.starts_with("foreach"))
    return Optimizer(
        order.by_op(rows, group),
        tensors,
        int(step.max(initial=-1)) + 1,
        bool(fused.any()),
    )


def _dividing(order: InOrder) -> Flags:
    """Mark runs of pointwise kernels that divide by a root more than once: Adam, in a loop."""
    pointwise = order.where(pl.col("category") == "elementwise")
    begins = pointwise & ~(np.concatenate(([False], pointwise[:-1]))[: len(order)])
    begins |= pointwise & ~order.follows()
    run = np.where(pointwise, last_before(begins), len(order))
    divides = order.where(pl.col("label").str.contains(_DIVIDES)) & pointwise
    often = np.bincount(run[divides], minlength=len(order) + 1) > 1
    result: Flags = pointwise & often[run]
    return result


def _steps(order: InOrder, rows: Ints) -> Ints:
    """Number runs of kernels with little else between them, and nothing of a model."""
    if not len(rows):
        return rows
    model = np.cumsum(order.where(pl.col("category").is_in(_OF_A_MODEL)))
    apart = np.diff(rows) > _BESIDE + 1
    apart |= (np.diff(order.queue[rows]) != 0) | (np.diff(model[rows]) != 0)
    return np.concatenate(([0], np.cumsum(apart)))


def _large(rows: Ints, step: Ints) -> tuple[Ints, Ints]:
    """Keep steps of many kernels."""
    if not len(rows):
        return rows, step
    kept = np.bincount(step)[step] >= FEWEST
    _, renumbered = np.unique(step[kept], return_inverse=True)
    return rows[kept], renumbered.astype(np.int64)


def _groups(order: InOrder, rows: Ints, step: Ints) -> tuple[Ints, Ints]:
    """Split each step into as many kernels as a fused optimizer needs; with their tensors."""
    frame = pl.DataFrame({"step": step, "label": order.frame["label"].gather(rows)})
    foreach = pl.col("label").str.starts_with("foreach").any()
    passes = frame.group_by("step", "label").agg(pl.len().cast(pl.Int64).alias("n"))
    # Every pass touches every tensor, so the rarest kernel tells how many tensors there are.
    fewest = passes.group_by("step").agg(pl.col("n").min(), foreach.alias("foreach")).sort("step")
    tensors = fewest["n"].to_numpy()
    in_turn = (~fewest["foreach"]).to_numpy()
    kernels = np.where(in_turn, -(-tensors // TENSORS_A_KERNEL), tensors)
    if not len(rows):
        return rows, kernels
    size = np.bincount(step)
    place = np.arange(len(rows)) - (np.cumsum(size) - size)[step]
    first = np.cumsum(kernels) - kernels
    group: Ints = first[step] + place * kernels[step] // size[step]
    return group, np.repeat(np.where(in_turn, tensors // kernels, 0), kernels)
