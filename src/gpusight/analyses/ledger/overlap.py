"""What ran side by side on a GPU: the ledger counts each instant once, so this stands beside it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpusight.analyses.ledger.labels import Labels, Rank
from gpusight.analyses.schedule.schedule import OpKind
from gpusight.model.intervals import Intervals, concurrency, intersect

if TYPE_CHECKING:
    from gpusight.analyses.schedule.schedule import Ints, Schedule


@dataclass(frozen=True, slots=True)
class Overlap:
    """Time of one GPU in which several things ran."""

    kernels_ns: int
    """Two or more kernels."""
    copy_ns: int
    """Copies and fills, with or without kernels."""
    copy_hidden_ns: int
    """Copies and fills beside kernels that compute."""
    communication_ns: int
    """Communication, with or without other kernels."""
    communication_hidden_ns: int
    """Communication beside kernels that compute."""

    def document(self) -> dict[str, int]:
        """Give it as plain objects."""
        return asdict(self)


def overlap(schedule: Schedule, labels: Labels, device: int) -> Overlap:
    """Measure what ran side by side on a GPU."""
    ops, ranks = schedule.ops, labels.ranks
    own = ops.device == device
    start, end = (
        np.clip(t, schedule.start_ns, schedule.end_ns) for t in (ops.start_ns, ops.end_ns)
    )

    def running(rank: Rank) -> Intervals:
        at = np.flatnonzero(own & (ranks == rank))
        return Intervals.from_arrays(start[at], end[at])

    compute, moving, talking = (running(rank) for rank in Rank)
    kernels = np.flatnonzero(own & np.isin(ops.kind, (OpKind.KERNEL, OpKind.GRAPH)))
    return Overlap(
        kernels_ns=_several(start[kernels], end[kernels]),
        copy_ns=moving.length_ns,
        copy_hidden_ns=intersect(moving, compute).length_ns,
        communication_ns=talking.length_ns,
        communication_hidden_ns=intersect(talking, compute).length_ns,
    )


def _several(starts: Ints, ends: Ints) -> int:
    """Measure the time in which two or more spans run."""
    times, depth = concurrency(starts, ends)
    return int(np.diff(times)[depth[:-1] >= 2].sum()) if len(times) else 0
