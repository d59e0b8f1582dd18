"""What each GPU did in a window, as spans of time: ready to be measured between any moments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.ledger.causes import IDLE
from gpusight.analyses.ledger.labels import COMMUNICATION, COMPUTE, COPY, Rank
from gpusight.analyses.select import GPU_WORK, Scope, Selection
from gpusight.analyses.statistics import names_of
from gpusight.model.intervals import Intervals, coverage, union
from gpusight.model.kernel_names import classify

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.analyses.steps.focus import Focus
    from gpusight.model.trace import Trace

    Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Work:
    """What one GPU did in the window."""

    computing: Intervals
    active: Intervals
    """Computing or moving data."""
    running: Intervals
    """Anything."""
    kernel_start_ns: Ints
    """Of kernels that began in the window, rising."""

    def parts(self, starts: Ints, ends: Ints) -> dict[str, Ints]:
        """Give the ns of each group between these moments; they sum to the time between."""
        compute, active, running = (
            coverage(spans, starts, ends) for spans in (self.computing, self.active, self.running)
        )
        return {
            COMPUTE: compute,
            COPY: active - compute,
            COMMUNICATION: running - active,
            IDLE: ends - starts - running,
        }

    def kernels(self, starts: Ints, ends: Ints) -> Ints:
        """Count the kernels that began between these moments."""
        first, after = (np.searchsorted(self.kernel_start_ns, t) for t in (starts, ends))
        counts: Ints = (after - first).astype(np.int64)
        return counts


def work_of(trace: Trace, selection: Selection, chosen: Focus) -> dict[int, Work]:
    """Collect what ran in the window, GPU by GPU."""
    processes = Scope(trace, replace(selection, within=None)).processes
    rows = pl.concat([_rows(trace, table, chosen) for table in GPU_WORK if trace.has(table)])
    if processes is not None:
        rows = rows.filter(pl.col("process").is_null() | pl.col("process").is_in(processes))
    if selection.device is not None:
        rows = rows.filter(pl.col("device") == selection.device)
    apart = rows.drop_nulls("device").partition_by("device", as_dict=True)
    return {int(device): _of_device(own, chosen) for (device,), own in sorted(apart.items())}


def _rows(trace: Trace, table: str, chosen: Focus) -> pl.DataFrame:
    """Give what of a table ran in the window, with its rank: what counts first has the lowest."""
    columns = ["start_ns", "end_ns", "device", "process"]
    is_kernel = table == "kernels"
    frame = trace.table(table, [*columns, "name"] if is_kernel else columns)
    rank = _kernel_ranks(frame["name"]) if is_kernel else pl.lit(int(_RANKS[table]))
    ran = (pl.col("start_ns") < chosen.end_ns) & (
        (pl.col("end_ns") > chosen.start_ns) | (pl.col("start_ns") >= chosen.start_ns)
    )
    own = (rank.cast(pl.Int64).alias("rank"), pl.lit(is_kernel).alias("kernel"))
    return frame.with_columns(*own).filter(ran).select(*columns, "rank", "kernel")


_RANKS = {"copies": Rank.MOVING, "memsets": Rank.MOVING, "graph_launches": Rank.COMPUTING}


def _kernel_ranks(names: pl.Series) -> pl.Series:
    """Tell kernels that communicate from those that compute; each name is looked at once."""
    texts, codes = names_of(names), names.to_physical()
    ranks = np.full(len(texts), int(Rank.COMPUTING))
    for code in codes.unique().drop_nulls():
        if classify(texts[code]).category == COMMUNICATION:
            ranks[code] = Rank.COMMUNICATING
    return pl.Series(ranks[codes.to_numpy()] if len(texts) else [], dtype=pl.Int64)


def _of_device(rows: pl.DataFrame, chosen: Focus) -> Work:
    def spans(rank: Rank) -> Intervals:
        own = rows.filter(pl.col("rank") == int(rank))
        return Intervals.from_arrays(own["start_ns"].to_numpy(), own["end_ns"].to_numpy())

    computing = spans(Rank.COMPUTING)
    active = union(computing, spans(Rank.MOVING))
    began = rows.filter("kernel", pl.col("start_ns") >= chosen.start_ns)["start_ns"]
    running = union(active, spans(Rank.COMMUNICATING))
    return Work(computing, active, running, began.sort().to_numpy())
