"""uncoalesced-access: the threads of a warp access global addresses that are far apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gpusight.analysis.counters import kernel_quantities as q
from gpusight.analysis.counters import launch_quantities as shared
from gpusight.analysis.counters.kernel_limiter import is_limited_by_memory, waits_left
from gpusight.analysis.counters.profiled_launch import SECTOR_BYTES, WARP, shares
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.patterns.access_pattern import (
    MIN_EXCESS_WAVEFRONTS,
    MIN_GLOBAL_TRAFFIC_RATIO,
    MIN_L2_SHARE,
    excess_is_global,
    excess_wavefronts,
    reads_at_random,
)
from gpusight.rules.patterns.kernel_speedup import SHARED_WAITS, is_worth, limit_sentence, time_left
from gpusight.rules.rule import (
    CLEAN,
    InstructionCounters,
    KernelRule,
    KernelRuleMatch,
    RuleNotApplicable,
    Threshold,
)

if TYPE_CHECKING:
    from gpusight.analysis.counters.profiled_launch import ProfiledLaunch
    from gpusight.rules.rule import RuleVerdict


MIN_WASTE_SHARE = Threshold(
    0.2, "min. share of excess sectors; row ends and misalignment alone cause up to 20%"
)
UNLOADED_CYCLES = Threshold(
    1000,
    "max. latency of a load on an idle GPU (500 to 1000 cycles from Pascal to Blackwell); the "
    "rest is queueing that the fix removes",
)
LOADS_IN_FLIGHT = Threshold(2, "loads in flight per warp of a memory-bound kernel")
MAX_RATE_PRINTED_AS_ZERO = 0.005
"""ncu prints instructions per cycle with two decimals: 0.00 where nearly all warps wait."""
QUEUES = ("lg_throttle", "drain", "membar")
"""Stalls on a full queue, which vanish with the traffic that fills it."""
MAX_SECTORS_PER_LOAD = Threshold(16, "sectors of the widest load of a warp, 16 bytes per thread")


class UncoalescedAccess(KernelRule):
    """The threads of a warp access global addresses that are far apart."""

    id = "uncoalesced-access"
    effort = "rewrite"
    detects = (
        "Threads of a warp access global addresses so far apart that most bytes of each 32-byte "
        "sector are unused."
    )
    why = (
        "Memory moves whole sectors. Unused bytes take the same L1, L2 and DRAM bandwidth as used "
        "ones."
    )
    fix = (
        "Let neighboring threads access neighboring addresses: make threadIdx.x the fastest "
        "index, use structures of arrays, or stage through a shared-memory tile."
    )
    code = """\
// before: thread i reads a[i * stride]
// after: x runs along memory
int x = blockIdx.x * blockDim.x + threadIdx.x;   // fastest
int y = blockIdx.y;
out[y * width + x] = in[y * width + x];
// float3 particles[n]  ->  float px[n], py[n], pz[n]
"""
    caveats = (
        "A random gather cannot be coalesced, only sorted or made smaller. Sectors that later "
        "accesses hit in L1 count as moved; the estimate takes the hits into account."
    )
    estimate = (
        "Each memory unit keeps the load of the needed sectors. Load latency stays at that of an "
        "idle GPU. Where sectors were not counted, the excess is inferred from L1 wavefronts that "
        "requests do not explain."
    )
    thresholds: ClassVar = {
        "min_waste_share": MIN_WASTE_SHARE,
        "unloaded_cycles": UNLOADED_CYCLES,
        "loads_in_flight": LOADS_IN_FLIGHT,
        "min_excess_wavefronts": MIN_EXCESS_WAVEFRONTS,
        "min_global_traffic_ratio": MIN_GLOBAL_TRAFFIC_RATIO,
        "min_l2_share": MIN_L2_SHARE,
        "max_sectors_per_load": MAX_SECTORS_PER_LOAD,
    }
    helps = (q.SECTORS_MOVED, q.SECTORS_NEEDED, q.L2_SECTORS, shared.DRAM_BYTES, q.WARP_STATES)
    located_by = InstructionCounters(
        ("memory_l2_theoretical_sectors_global",), ("memory_l2_theoretical_sectors_global_ideal",)
    )
    explains = frozenset({"memory-bound", "latency-bound", "cache-miss"})

    def check(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Compare the sectors moved with those that were needed."""
        sectors = _sectors(launch)
        if sectors is None:
            return _inferred(launch, self.sections)
        moved, needed = sectors
        if moved <= 0 or 1 - needed / moved < MIN_WASTE_SHARE.value:
            return CLEAN
        if reads_at_random(launch):  # no layout puts these in order: see cache-miss
            return CLEAN
        after = _relieved(launch, moved, needed)
        remaining = time_left(launch, after, waits_left=_waits_left(launch, needed / moved))
        if not is_worth(remaining):
            return CLEAN
        measured = launch.get(q.SECTORS_NEEDED) is not None
        return KernelRuleMatch(
            title=f"Uncoalesced access: {moved / needed:.1f}x the ideal sectors",
            time_share=remaining,
            estimate=f"with {needed / moved:.0%} of the sectors; "
            + limit_sentence(launch, after, remaining),
            evidence=(
                Evidence("sectors_moved", moved, "", q.SECTORS_MOVED.meaning),
                Evidence("sectors_needed", needed, "", q.SECTORS_NEEDED.meaning),
                *launch.evidence(shared.DRAM_SHARE, shared.L2_SHARE, shared.L1_HIT_SHARE),
            ),
            confidence=Confidence.HIGH if measured and launch.stalls else Confidence.MEDIUM,
            confidence_reason=_reason(launch, measured),
        )


def _inferred(launch: ProfiledLaunch, sections: tuple[str, ...]) -> RuleVerdict:
    """Infer scattered addresses from L1 wavefronts that its requests do not explain."""
    absent = RuleNotApplicable(
        "not measured: sectors and ideal sectors of global accesses", sections
    )
    removed = excess_wavefronts(launch)
    if removed is None or not excess_is_global(launch):
        return absent
    units = ("l1_data", "l1", "l1_to_l2", "l2", "memory")
    after = {unit: launch.busy[unit] * (1 - removed) for unit in units if unit in launch.busy}
    remaining = time_left(launch, after)
    if not is_worth(remaining):
        return absent
    return KernelRuleMatch(
        title=f"{1 / (1 - removed):.1f} L1 wavefronts per request (ideal 1)",
        time_share=remaining,
        estimate=f"without {removed:.0%} of the wavefronts and of the L1-to-L2 traffic; "
        + limit_sentence(launch, after, remaining),
        evidence=launch.evidence(q.L1_DATA, q.L1_REQUESTS, q.L1_DELIVERED, q.L1_STORED, q.L1_TO_L2),
        confidence=Confidence.LOW,
        confidence_reason="uncoalesced access is inferred: collect SourceCounters",
    )


def _sectors(launch: ProfiledLaunch) -> tuple[float, float] | None:
    """Return the sectors moved and needed; where only requests are known, needed at most."""
    moved, needed = launch.get(q.SECTORS_MOVED), launch.get(q.SECTORS_NEEDED)
    if moved is not None and needed is not None:
        return moved, max(1.0, min(needed, moved))
    loads, requests = launch.get(q.LOAD_SECTORS), launch.get(q.LOAD_REQUESTS)
    if loads is None or requests is None:
        return None
    return loads, min(loads, MAX_SECTORS_PER_LOAD.value * requests)


def _relieved(launch: ProfiledLaunch, moved: float, needed: float) -> dict[str, float]:
    """Return how busy the memory units would be if only the sectors needed were moved."""
    busy, after = launch.busy, {}
    in_shared = min(launch.get(q.SHARED_SHARE) or 0.0, busy.get("l1_data", 0.0))
    for unit, kept in (("l1_data", in_shared), ("l1_to_l2", 0.0), ("l1", 0.0), ("memory", 0.0)):
        if unit in busy:
            after[unit] = kept + (busy[unit] - kept) * needed / moved
    # What the caches save already is not saved again.
    passed = moved * (1 - (launch.get(shared.L1_HIT_SHARE) or 0.0))
    l2, dram = launch.get(q.L2_SECTORS) or passed, launch.get(shared.DRAM_BYTES)
    amounts = {"l2": l2, "dram": l2 if dram is None else dram / SECTOR_BYTES}
    for unit, amount in amounts.items():
        if unit in busy:
            after[unit] = busy[unit] * min(1.0, needed / amount) if amount else busy[unit]
    return after


def _waits_left(launch: ProfiledLaunch, kept: float) -> float | None:
    """Return the waits that stay: loads do not get faster than they are on an idle GPU."""
    moved = launch.get(q.SECTORS_MOVED)
    # The fewest loads that can have moved the sectors: one for each thread of a warp.
    min_loads = None if moved is None else moved / WARP
    cycles = load_cycles(launch, launch.get(q.LOAD_REQUESTS) or min_loads)
    under_way = LOADS_IN_FLIGHT.value if is_limited_by_memory(launch) else 1.0
    fastest = 0.0 if not cycles else min(1.0, UNLOADED_CYCLES.value / under_way / cycles)
    removed = dict.fromkeys(SHARED_WAITS, 1.0 - kept) | dict.fromkeys(QUEUES, 1.0)
    return waits_left(launch, removed | {"long_scoreboard": 1.0 - max(kept, fastest)})


def load_cycles(launch: ProfiledLaunch, loads: float | None) -> float | None:
    """Return the cycles that a warp waits for one of so many loads; None if not known."""
    warps, rate = launch.get(q.WARPS), launch.get(q.ISSUED)
    instructions = launch.get(q.INSTRUCTIONS)
    if not launch.stalls or not warps or rate is None or not loads or not instructions:
        return None
    waiting = shares(("long_scoreboard", "lg_throttle"), launch.stalls)
    return waiting * warps / (rate or MAX_RATE_PRINTED_AS_ZERO) * instructions / loads


def _reason(launch: ProfiledLaunch, measured: bool) -> str:
    if not measured:
        return "the access size is unknown; 16 bytes per thread are assumed"
    if not launch.stalls:
        return "warp stalls were not measured"
    return "sectors and stalls were measured"
