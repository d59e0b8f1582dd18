"""GPU memory that the framework's allocator handed out while a call of the host was open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.attribution.nested import NONE, joint_keys

if TYPE_CHECKING:
    from gpusight.analyses.attribution.nested import Ints
    from gpusight.analyses.ops.host_tree import HostTree
    from gpusight.model.trace import Trace

_COLUMNS = ["time_ns", "process", "operation", "memory_kind", "allocator", "bytes"]
_SIGNS = {"allocation": 1, "deallocation": -1}


def memory_taken(trace: Trace, tree: HostTree) -> Ints | None:
    """Sum what was taken, less what was given back, for each place; None if it was not recorded.

    By any thread of the process, as PyTorch counts: a step holds what its backward pass took.
    """
    events = _events(trace)
    if events.is_empty():
        return None
    known, codes = np.unique(events["process"].to_numpy(), return_inverse=True)
    own = np.minimum(np.searchsorted(known, tree.processes), len(known) - 1)
    spans = np.concatenate([tree.nested.starts, tree.nested.ends])
    keys, wanted = joint_keys(codes, events["time_ns"].to_numpy(), np.tile(own, 2), spans)
    order = np.argsort(keys, kind="stable")
    running = np.zeros(len(order) + 1, dtype=np.int64)
    np.cumsum(events["bytes"].to_numpy()[order], out=running[1:])
    before = np.searchsorted(keys[order], wanted[: len(own)], side="left")
    after = np.searchsorted(keys[order], wanted[len(own) :], side="right")
    return np.where(known[own] == tree.processes, running[after] - running[before], 0)


def _events(trace: Trace) -> pl.DataFrame:
    """Give what was taken (above 0) and given back (below 0) of the GPU's memory."""
    if not trace.has("memory_events", "allocator"):
        return pl.DataFrame()
    events = trace.table("memory_events", _COLUMNS).filter(
        pl.col("allocator") == "framework", pl.col("memory_kind") == "Device"
    )
    signs = events["operation"].cast(pl.String).replace_strict(_SIGNS, default=0)
    return events.with_columns(pl.col("process").fill_null(NONE), bytes=events["bytes"] * signs)
