"""How a launch reads memory: in order, with gaps, or here and there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.analyses.counters import quantities as shared
from gpusight.findings.kernels import quantities as q
from gpusight.findings.kernels.bound import MEMORY, bound_of
from gpusight.findings.kernels.rule import Limit

if TYPE_CHECKING:
    from gpusight.findings.kernels.launch import Launch

SCATTERED = Limit(
    0.5, "part of the moved sectors that nobody asked for, from which on accesses are far apart"
)
STORED_TOGETHER = Limit(
    8, "sectors of a store up to which the threads of a warp write next to each other"
)
L1_HITS = Limit(0.4, "hit rate of L1 up to which what is read at random is not there")
L2_HITS = Limit(0.5, "the same for reads from L2")
IN_ORDER = Limit(
    0.7,
    "share of DRAM from which on it is read in order, if with gaps: random places cost it a new "
    "page each, and hold it at half of its peak",
)
RANDOM = {
    "SCATTERED": SCATTERED,
    "STORED_TOGETHER": STORED_TOGETHER,
    "L1_HITS": L1_HITS,
    "L2_HITS": L2_HITS,
    "IN_ORDER": IN_ORDER,
}
"""What reads at random places are told by."""


def waste(launch: Launch) -> float | None:
    """Give the part of the moved sectors that nobody asked for."""
    moved, needed = launch.get(q.SECTORS_MOVED), launch.get(q.SECTORS_NEEDED)
    return None if not moved or needed is None else 1 - min(1.0, needed / moved)


def reads_at_random(launch: Launch) -> bool:
    """Tell whether a launch waits for reads at random places of a large array.

    Such reads look like strided ones to the counters, but cannot be put in order by another
    layout: the data have to be sorted, or worked on in pieces that fit a cache. They are told from
    strided ones by how little DRAM achieves, and by stores that are in order.
    """
    hits, first = launch.get(q.L2_READ_HITS), launch.get(shared.L1_HIT_SHARE)
    if hits is None or first is None or (waste(launch) or 0.0) < SCATTERED.value:
        return False
    return (
        bound_of(launch) == MEMORY
        and hits <= L2_HITS.value
        and first <= L1_HITS.value
        and launch.busy.get("dram", 1.0) <= IN_ORDER.value
        and overflows_l2(launch)
        and _stores_in_order(launch)
    )


def overflows_l2(launch: Launch) -> bool:
    """Tell whether more was read than L2 holds: else everything missed because it was cold."""
    read = launch.get(q.DRAM_READ)
    size = None if launch.gpu is None else launch.gpu.l2_bytes
    return read is not None and (size is None or read > size)


def _stores_in_order(launch: Launch) -> bool:
    moved, loads = launch.get(q.SECTORS_MOVED), launch.get(q.LOAD_SECTORS)
    stores = launch.get(q.STORE_REQUESTS)
    if moved is None or loads is None or stores is None:
        return False
    return moved - loads <= STORED_TOGETHER.value * stores
