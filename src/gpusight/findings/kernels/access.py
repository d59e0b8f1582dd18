"""How a launch reads memory: in order, with gaps, or here and there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.analyses.counters import quantities as shared
from gpusight.findings.kernels import quantities as q
from gpusight.findings.kernels.held_by import MEMORY, held_by
from gpusight.findings.kernels.model import SATURATED
from gpusight.findings.verdict import Limit

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
NEEDLESS = Limit(
    0.43,
    "part of the steps of L1 beyond one for each request and for each 128 bytes read or written, "
    "from which on conflicts or scattered addresses are inferred; library products have up to 0.35",
)
L2_BUSY = Limit(0.45, "share of L2 from which on needless steps of L1 hold a launch up there")
OUTSIDE = Limit(
    0.3,
    "use of the way from L1 to L2 over that of the data pipe of L1, from which on global accesses "
    "take the needless steps, below which those to shared memory",
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
    """Give the part of the moved sectors that nobody asked for.

    Of texture reads it is not counted what they asked for: texels are taken to have four bytes, so
    that those of eight threads fill one sector.
    """
    moved, needed = launch.get(q.SECTORS_MOVED), launch.get(q.SECTORS_NEEDED)
    if moved is None or needed is None:
        return None
    texels = launch.get(q.TEXTURE_SECTORS) or 0.0
    moved, needed = moved + texels, needed + min(texels, launch.get(q.TEXTURE_REQUESTS) or 0.0)
    return 1 - min(1.0, needed / moved) if moved else None


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
        held_by(launch) == MEMORY
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


def needless_steps(launch: Launch) -> float | None:
    """Give the part of the steps in L1 that its requests and data do not account for.

    A request takes a step at least, and one for each 128 bytes that go to or from the registers.
    What there is beyond comes from bank conflicts, or from addresses far apart: this tells of them
    where neither was counted. None where neither L1 nor L2 is busy with it.
    """
    steps, requests = launch.get(q.L1_DATA), launch.get(q.L1_REQUESTS)
    read, written = launch.get(q.L1_DELIVERED), launch.get(q.L1_STORED)
    if not steps or requests is None or read is None or written is None:
        return None
    part = 1 - max(read + written, requests) / steps
    held_up = steps >= SATURATED or launch.busy.get("l2", 0.0) >= L2_BUSY.value
    return part if held_up and part >= NEEDLESS.value else None


def is_outside(launch: Launch) -> bool:
    """Tell whether needless steps of L1 are those of global accesses."""
    inside = (launch.get(shared.STATIC_SHARED) or 0) + (launch.get(shared.DYNAMIC_SHARED) or 0)
    way = launch.get(q.L1_TO_L2) or 0.0
    return not inside or way >= OUTSIDE.value * (launch.get(q.L1_DATA) or 0.0)
