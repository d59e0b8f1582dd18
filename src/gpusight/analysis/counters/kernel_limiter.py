"""What limits a kernel: memory, compute or latency.

The one classifier of `roofline`, `kernels`, `join` and `diagnose`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.aggregates import prevailing
from gpusight.analysis.counters import launch_quantities as shared
from gpusight.analysis.counters.profiled_launch import MEMORY_UNITS, SM_UNITS, shares, utilizations

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpusight.analysis.counters.profiled_launch import ProfiledLaunch
    from gpusight.trace.trace import Trace


SATURATED = 0.6
"""From this share of its peak on a unit limits the launch, as in Nsight Compute's own rules."""
AT_ROOF = 0.8
"""From this share of a unit's peak on, a launch is at its roofline."""
OVERHEAD_NS = 1_500.0
"""Time to start and drain a grid, whatever it does: no launch is shorter."""
MAX_OVERHEAD_SHARE = 0.9
"""Most of a launch that counts as overhead: some launches are shorter than `OVERHEAD_NS`."""
WAITING_FOR_OTHERS = ("barrier", "sleeping", "membar", "drain")
"""Stalls that are as long as what other warps wait for, or as what is still in flight."""
MAX_OVERHEAD_CORRECTION = 0.5
"""Most of a short launch that is subtracted as overhead to compute how busy a unit was."""
RUNNING = ("selected", "not_selected")
"""Warps that issue, or could: these are no stalls."""


def overhead(launch: ProfiledLaunch) -> float:
    """Return the part of the duration that starting and draining the grid takes."""
    if not launch.duration_ns:
        return 0.0
    return min(MAX_OVERHEAD_SHARE, OVERHEAD_NS / launch.duration_ns)


def steady_utilization(launch: ProfiledLaunch, share: float) -> float:
    """Return how busy a unit was between the start and the drain of the grid."""
    return min(1.0, share / (1 - min(MAX_OVERHEAD_CORRECTION, overhead(launch))))


def waits_left(launch: ProfiledLaunch, removed: Mapping[str, float]) -> float | None:
    """Return the part of the warps' time that remains without a part of some stalls.

    Warps at a barrier wait for siblings that wait for something else: such stalls shrink with the
    stalls that are not a consequence of others. None where stalls were not measured.
    """
    stalls = launch.stalls
    if not stalls:
        return None
    secondary = [r for r in WAITING_FOR_OTHERS if r not in removed]
    primary = [r for r in stalls if r not in secondary and r not in RUNNING]
    direct = sum(stalls.get(reason, 0.0) * part for reason, part in removed.items())
    of_primary = shares(primary, stalls)
    shrunk = direct / of_primary if of_primary else 0.0
    return 1.0 - direct - shrunk * shares(secondary, stalls)


def stall_share(launch: ProfiledLaunch, reasons: Iterable[str]) -> float | None:
    """Return the part of the warps' time that these stalls cost; None where it is not known."""
    remaining = waits_left(launch, dict.fromkeys(reasons, 1.0))
    return None if remaining is None else 1.0 - remaining


def busiest(launch: ProfiledLaunch, units: Iterable[str] | None = None) -> tuple[str, float] | None:
    """Return the busiest unit, of all or of some, and how busy it was."""
    candidates = [(u, s) for u, s in launch.busy.items() if units is None or u in set(units)]
    return max(candidates, key=lambda pair: pair[1], default=None)


MEMORY_WAITS = ("long_scoreboard", "lg_throttle", "drain", "membar")
"""Stalls on global and local memory."""
MEMORY, COMPUTE, LATENCY = "memory", "compute", "latency"
MIN_FULL_OCCUPANCY = 0.5
"""Occupancy from which on a GPU is full enough: more warps would not help."""
MIN_MEMORY_UNIT_SHARE = 0.3
"""Share of a memory unit from which on stalls on memory are due to its bandwidth too."""
L1_SHARE_WEIGHT = 0.95
_L1_UNITS = ("l1", "l1_data", "l1_to_l2")
MIN_BARRIER_SHARE = 0.25
"""Part of the warps' time at barriers from which on these limit the launch."""
MIN_MEMORY_WAIT = 0.5
"""Part of the warps' time from which on they mostly wait for memory."""


def _limited_by_barriers(launch: ProfiledLaunch, highest: float) -> bool:
    """Return whether barriers keep the busiest unit from its roofline."""
    waits = {r: s for r, s in launch.stalls.items() if r not in RUNNING}
    first = max(waits, key=lambda reason: waits[reason], default="")
    return highest < AT_ROOF and first == "barrier" and waits[first] >= MIN_BARRIER_SHARE


def limiter(launch: ProfiledLaunch) -> str | None:
    """Return what limits a launch; None where too little was measured.

    A unit that is busy for 60% of the time or more does. Below that no bandwidth is exhausted, and
    the launch is latency-bound, also where its warps mostly stall on memory.
    """
    memory = busiest(launch, (*MEMORY_UNITS, "memory"))
    compute = busiest(launch, SM_UNITS)
    if memory is None or compute is None:
        known = memory or compute
        if known is None or steady_utilization(launch, known[1]) < AT_ROOF:
            return None
        return MEMORY if compute is None else COMPUTE
    highest = steady_utilization(launch, max(memory[1], compute[1]))
    if highest >= SATURATED and not _limited_by_barriers(launch, highest):
        # L1 is a part of the SM that feeds its pipes: a GEMM on Tensor Cores keeps both busy.
        share = L1_SHARE_WEIGHT if memory[0] in _L1_UNITS else 1.0
        return MEMORY if memory[1] * share >= compute[1] else COMPUTE
    return LATENCY


def is_limited_by_memory(launch: ProfiledLaunch) -> bool:
    """Return whether memory-bound, or its many warps mostly stall on memory, the busiest unit.

    Scattered accesses saturate DRAM and L2 well below their peak bandwidth.
    """
    bound = limiter(launch)
    memory, compute = busiest(launch, (*MEMORY_UNITS, "memory")), busiest(launch, SM_UNITS)
    if bound != LATENCY or memory is None or compute is None:
        return bound == MEMORY
    # Accesses to shared memory between barriers keep L1 busy, and wait for nothing outside the SM.
    highest = steady_utilization(launch, max(memory[1], compute[1]))
    between_barriers = highest >= SATURATED and memory[0] in _L1_UNITS
    if between_barriers or memory[1] < max(MIN_MEMORY_UNIT_SHARE, compute[1]):
        return False
    waiting = stall_share(launch, MEMORY_WAITS)
    occupancy = launch.get(shared.OCCUPANCY)
    is_full = occupancy is not None and occupancy >= MIN_FULL_OCCUPANCY
    return is_full and waiting is not None and waiting >= MIN_MEMORY_WAIT


MIN_DRAM_TO_UNIT_RATIO = 0.85
"""What comes from DRAM goes through L2 as well: from this ratio on, DRAM is the bottleneck."""
_LEVELS = {"l1_data": "l1", "l1_to_l2": "l1", "memory": None}
"""Level of the memory hierarchy of units that are not named after it."""


def memory_unit(launch: ProfiledLaunch) -> tuple[str, float] | None:
    """Return the memory unit that limits a memory-bound launch, and its utilization."""
    unit, dram = busiest(launch, (*MEMORY_UNITS, "memory")), launch.busy.get("dram", 0.0)
    if unit is not None and dram >= MIN_DRAM_TO_UNIT_RATIO * unit[1]:
        return "dram", dram
    return unit


def limiters(trace: Trace) -> pl.DataFrame:
    """Return for each profiled launch `limiter`, `level` and `limiter_share`.

    The level of the memory that limits it is `dram`, `l2` or `l1`, null for launches that are not
    memory-bound. The share is how busy the limiting unit was, as in `memory-bound` and
    `compute-bound` of `diagnose`; null for latency-bound launches.
    """
    rows = []
    for launch in utilizations(trace):
        limit = limiter(launch)
        unit = memory_unit(launch) if limit == MEMORY else None
        level = None if unit is None else _LEVELS.get(unit[0], unit[0])
        unit = busiest(launch, SM_UNITS) if limit == COMPUTE else unit
        rows.append((launch.values["launch"], limit, level, None if unit is None else unit[1]))
    schema = {
        "launch": pl.Int64,
        "limiter": pl.String,
        "level": pl.String,
        "limiter_share": pl.Float64,
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


def prevailing_limits(
    launches: pl.DataFrame, by: Sequence[str], weight: str = "duration_ns"
) -> pl.DataFrame:
    """Set `bound` and `limit` of every launch to those of most of its group's time.

    Only launches with the bound of the group decide its limit.
    """
    own = launches.with_columns(pl.col("bound").alias("own_bound"))
    frame = prevailing(own, by, "bound", weight)
    agrees = pl.col("own_bound") == pl.col("bound")
    frame = frame.with_columns(
        pl.when(agrees).then(column).alias(column) for column in ("limit", "limit_share")
    )
    return prevailing(frame, by, "limit", weight)
