"""How a launch accesses memory: in order, with gaps, or at random."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.analysis.counters import kernel_quantities as q
from gpusight.analysis.counters import launch_quantities as shared
from gpusight.analysis.counters.kernel_limiter import SATURATED, is_limited_by_memory
from gpusight.rules.rule import Threshold

if TYPE_CHECKING:
    from gpusight.analysis.counters.profiled_launch import ProfiledLaunch


MIN_WASTED_SECTORS = Threshold(0.5, "min. share of excess sectors of scattered accesses")
MAX_SECTORS_PER_STORE = Threshold(8, "max. sectors per store of coalesced writes")
MAX_RANDOM_L1_HITS = Threshold(0.4, "max. L1 hit rate of random reads")
MAX_RANDOM_L2_HITS = Threshold(0.5, "max. L2 hit rate of random reads")
MIN_SEQUENTIAL_DRAM_SHARE = Threshold(
    0.7,
    "DRAM utilization from which reads are sequential; random reads open a new page each and "
    "reach half of the peak",
)
MIN_EXCESS_WAVEFRONTS = Threshold(
    0.43,
    "min. share of L1 wavefronts beyond one per request and per 128 bytes, to infer conflicts "
    "or scattered addresses; library GEMMs have up to 0.35",
)
MIN_L2_SHARE = Threshold(
    0.45, "min. L2 utilization from which excess L1 wavefronts cost time there"
)
MIN_GLOBAL_TRAFFIC_RATIO = Threshold(
    0.3,
    "min. ratio of L1-to-L2 traffic to L1 data pipe utilization: global accesses cause the "
    "excess wavefronts, not shared memory",
)
RANDOM = {
    "min_wasted_sectors": MIN_WASTED_SECTORS,
    "max_sectors_per_store": MAX_SECTORS_PER_STORE,
    "max_random_l1_hits": MAX_RANDOM_L1_HITS,
    "max_random_l2_hits": MAX_RANDOM_L2_HITS,
    "min_sequential_dram_share": MIN_SEQUENTIAL_DRAM_SHARE,
}
"""Thresholds of `reads_at_random`."""


def waste(launch: ProfiledLaunch) -> float | None:
    """Return the part of the moved sectors that was not requested.

    What texture reads request is not counted: texels are assumed to have four bytes, so that those
    of eight threads fill one sector.
    """
    moved, needed = launch.get(q.SECTORS_MOVED), launch.get(q.SECTORS_NEEDED)
    if moved is None or needed is None:
        return None
    texels = launch.get(q.TEXTURE_SECTORS) or 0.0
    moved, needed = moved + texels, needed + min(texels, launch.get(q.TEXTURE_REQUESTS) or 0.0)
    return 1 - min(1.0, needed / moved) if moved else None


def reads_at_random(launch: ProfiledLaunch) -> bool:
    """Return whether a launch is bound by reads at random addresses of a large array.

    The counters of such reads look like those of strided ones, but no other layout helps: the data
    have to be sorted, or processed in tiles that fit a cache. They differ from strided reads by how
    little DRAM achieves, and by stores that are coalesced.
    """
    l2_hits, l1_hits = launch.get(q.L2_READ_HITS), launch.get(shared.L1_HIT_SHARE)
    if l2_hits is None or l1_hits is None or (waste(launch) or 0.0) < MIN_WASTED_SECTORS.value:
        return False
    return (
        is_limited_by_memory(launch)
        and l2_hits <= MAX_RANDOM_L2_HITS.value
        and l1_hits <= MAX_RANDOM_L1_HITS.value
        and launch.busy.get("dram", 1.0) <= MIN_SEQUENTIAL_DRAM_SHARE.value
        and overflows_l2(launch)
        and _stores_coalesced(launch)
    )


def overflows_l2(launch: ProfiledLaunch) -> bool:
    """Return whether more was read than L2 holds: else all misses are compulsory."""
    read = launch.get(q.DRAM_READ)
    size = None if launch.gpu is None else launch.gpu.l2_bytes
    return read is not None and (size is None or read > size)


def _stores_coalesced(launch: ProfiledLaunch) -> bool:
    moved, loads = launch.get(q.SECTORS_MOVED), launch.get(q.LOAD_SECTORS)
    stores = launch.get(q.STORE_REQUESTS)
    if moved is None or loads is None or stores is None:
        return False
    return moved - loads <= MAX_SECTORS_PER_STORE.value * stores


def excess_wavefronts(launch: ProfiledLaunch) -> float | None:
    """Return the part of the L1 wavefronts that its requests and data do not account for.

    A request takes at least one wavefront, and one for each 128 bytes to or from the registers. The
    rest comes from bank conflicts, or from uncoalesced addresses: an estimate where neither was
    counted. None where neither L1 nor L2 is busy.
    """
    wavefronts, requests = launch.get(q.L1_DATA), launch.get(q.L1_REQUESTS)
    read, written = launch.get(q.L1_DELIVERED), launch.get(q.L1_STORED)
    if not wavefronts or requests is None or read is None or written is None:
        return None
    excess = 1 - max(read + written, requests) / wavefronts
    busy = wavefronts >= SATURATED or launch.busy.get("l2", 0.0) >= MIN_L2_SHARE.value
    return excess if busy and excess >= MIN_EXCESS_WAVEFRONTS.value else None


def excess_is_global(launch: ProfiledLaunch) -> bool:
    """Return whether excess L1 wavefronts come from global accesses, not from shared memory."""
    allocated = (launch.get(shared.STATIC_SHARED) or 0) + (launch.get(shared.DYNAMIC_SHARED) or 0)
    to_l2, l1_data = launch.get(q.L1_TO_L2) or 0.0, launch.get(q.L1_DATA) or 0.0
    return not allocated or to_l2 >= MIN_GLOBAL_TRAFFIC_RATIO.value * l1_data
